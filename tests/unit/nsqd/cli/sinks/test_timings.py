"""Lines about how long requests took."""

import re

import pytest

from nsqd.cli.sinks.timings import HostTimings, Timings


def test_a_line_after_so_many(capsys: pytest.CaptureFixture[str]) -> None:
    timings = Timings("[x]:", 4)
    for seconds in (0.001, 0.001, 0.001, 0.005, 0.1):
        timings.add(seconds)

    pattern = r"\[x\]: finished 4 - 99th: 5\.\d\dms - 95th: 5\.\d\dms - avg: 2\.00ms\n"
    assert re.fullmatch(pattern, capsys.readouterr().err)


def test_zero_prints_none(capsys: pytest.CaptureFixture[str]) -> None:
    timings = Timings("[x]:", 0)
    timings.add(1.0, 100)

    assert capsys.readouterr().err == ""


def test_one_host_needs_no_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    HostTimings(["a"], 1).add("a", 0.1)
    assert capsys.readouterr().err.count("finished") == 1
    HostTimings(["a", "b"], 1).add("a", 0.1)
    assert "[a]:" in capsys.readouterr().err
