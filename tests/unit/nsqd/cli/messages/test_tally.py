"""How far a run of `nsq pub` is, in words."""

import json

import pytest

from nsqd.cli.messages.tally import Tally


def test_certainty() -> None:
    tally = Tally("t")
    tally.begun = 5
    assert tally.certainty() == "nothing is published"

    tally.has_connected = True
    assert tally.certainty() == "1-5 may be"
    tally.count([b"a", b"b"])
    assert tally.certainty() == "lines 1-2 are published, 3-5 may be"
    tally.count([b"c"] * 3)
    assert tally.certainty() == "lines 1-5 are published"


def test_the_summary_names_the_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    tally = Tally("orders")
    tally.count([b"x" * 1000] * 1900)
    tally.nodes = {"b:4150", "a:4150"}

    tally.report(is_json=False, is_quiet=False)
    tally.report(is_json=True, is_quiet=False)

    shown = capsys.readouterr()
    wanted = "1,900 published to orders on 2 nodes, 1.9 MB, 0 sent twice, 0.0 s\n"
    assert shown.err == wanted
    assert json.loads(shown.out)["nodes"] == ["a:4150", "b:4150"]


def test_progress() -> None:
    tally = Tally("orders")
    tally.begun = 10
    tally.count([b"x"] * 4)
    tally.resent = 2

    assert "4 published to orders" in tally.show()
    assert "6 not answered yet, 2 sent twice" in tally.show()
