"""The brake of copies and publishes, with a clock of its own."""

import time

import pytest

from spark_jobs.pace import Pace


def test_amounts_are_spread_over_time_and_a_pause_saves_nothing_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", sleep)
    pace = Pace(10)
    for _ in range(3):
        pace.wait(20)
    assert slept == [2.0, 2.0]

    now[0] += 60
    pace.wait(5)
    pace.wait(5)
    assert slept == [2.0, 2.0, 0.5]


def test_without_a_rate_nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(time, "sleep")
    pace = Pace(None)
    pace.wait(10**9)
    pace.wait(10**9)
