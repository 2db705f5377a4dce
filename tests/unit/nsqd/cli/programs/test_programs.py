"""`nsq disk` and `nsq spark` become other programs, with the same arguments."""

import os
import sys

import pytest

from nsqd.cli.main import main

Calls = list[list[str]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What would have been executed."""
    made: Calls = []

    def execv(_path: str, argv: list[str]) -> None:
        made.append(argv)
        raise KeyboardInterrupt  # a process that is replaced does not come back

    monkeypatch.setattr(os, "execv", execv)
    return made


@pytest.mark.parametrize(
    ("argv", "module"),
    [
        (["disk", "dump", "FILE", "--json", "--limit", "3"], "diskqueue"),
        (["disk", "check", "--help"], "diskqueue"),
        (["spark", "sql", "DIR", "select 1", "--rows", "5"], "spark_jobs"),
    ],
)
def test_all_arguments_are_handed_on(argv: list[str], module: str, calls: Calls) -> None:
    main(argv)

    assert calls == [[sys.executable, "-P", "-m", module, *argv[1:]]]


def test_an_unknown_action_is_wrong_usage(calls: Calls) -> None:
    assert main(["disk", "mend", "DIR"]) == 2
    assert calls == []
