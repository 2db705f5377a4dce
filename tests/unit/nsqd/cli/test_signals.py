"""The signals that end a command."""

import signal
from collections.abc import Iterator

import pytest

from nsqd.cli import signals


@pytest.fixture
def _hangup() -> Iterator[None]:
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("_hangup")
def test_nohup_keeps_a_command_alive() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert signals.ending() == [signal.SIGINT, signal.SIGTERM]

    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    assert signals.ending() == [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def test_codes_are_those_of_shells() -> None:
    assert all(code == 128 + number for number, code in signals.CODES.items())


def test_a_signal_that_comes_twice_at_once_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 50.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    repeats = signals.Repeats()

    assert not repeats.is_second()
    now += 0.05  # as `timeout` sends it, to the command and to its group
    assert not repeats.is_second()
    now += 1.0
    assert repeats.is_second()
