"""One timer at a time, and the signs of life that a heartbeat looks for."""

import pytest

from nsqd.tcp.connection import DEADLINE_SLACK_S, SILENT_INTERVAL_S, Deadlines, Due, Vitality
from tests.support.fake_loop import FakeLoop

INTERVAL_S = 10.0


class Rig:
    """Deadlines, and those that came due with their time."""

    def __init__(self) -> None:
        self.loop = FakeLoop()
        self.due: list[tuple[Due, float]] = []
        self.deadlines = Deadlines(self.loop.as_loop(), self.on_due)

    def on_due(self, due: Due) -> None:
        self.due.append((due, self.loop.now - 1000.0))

    def examine(self, *, is_client_heard: bool = True, stalled_at: float | None = None) -> Vitality:
        return self.deadlines.examine(is_client_heard=is_client_heard, stalled_at=stalled_at)


@pytest.mark.parametrize("due", Due)
def test_a_deadline_comes_due_once_and_at_its_time(due: Due) -> None:
    rig = Rig()
    rig.deadlines.set(due, 5.0)

    rig.loop.advance(4.99)
    assert rig.due == []
    rig.loop.advance(100)

    assert rig.due == [(due, 5.0)]


def test_a_new_deadline_takes_the_place_of_the_old_one() -> None:
    rig = Rig()
    rig.deadlines.set(Due.MAGIC, 5.0)
    rig.deadlines.set(Due.LINGER, 7.0)

    rig.loop.advance(100)

    assert rig.due == [(Due.LINGER, 7.0)]


def test_a_cleared_deadline_never_comes() -> None:
    rig = Rig()
    rig.deadlines.set(Due.MAGIC, 5.0)
    rig.deadlines.clear()
    rig.deadlines.clear()

    rig.loop.advance(100)

    assert rig.due == []
    assert rig.loop.timer_count == 0


def test_closed_deadlines_never_come_and_take_no_new_one() -> None:
    rig = Rig()
    rig.deadlines.set(Due.MAGIC, 5.0)
    rig.deadlines.close()
    rig.deadlines.set(Due.CLOSE, 5.0)

    assert rig.loop.timer_count == 0


def test_heartbeats_are_due_one_by_one() -> None:
    rig = Rig()
    rig.deadlines.start_heartbeats(10_000)
    rig.loop.advance(25)
    assert rig.due == [(Due.HEARTBEAT, 10.0)]

    rig.deadlines.await_heartbeat()
    rig.loop.advance(10)

    assert rig.due == [(Due.HEARTBEAT, 10.0), (Due.HEARTBEAT, 35.0)]


def test_without_heartbeats_the_client_is_looked_at_all_the_same() -> None:
    rig = Rig()
    rig.deadlines.set(Due.MAGIC, 5.0)
    rig.deadlines.start_heartbeats(0)

    rig.loop.advance(SILENT_INTERVAL_S)

    assert rig.due == [(Due.HEARTBEAT, SILENT_INTERVAL_S)]
    assert not rig.deadlines.has_heartbeats
    rig.loop.advance(SILENT_INTERVAL_S)
    assert rig.examine() is Vitality.SILENT


@pytest.mark.parametrize(
    ("silent_s", "expected"),
    [
        (0, Vitality.ALIVE),
        (INTERVAL_S, Vitality.ALIVE),
        (2 * INTERVAL_S - 2 * DEADLINE_SLACK_S, Vitality.ALIVE),
        (2 * INTERVAL_S - DEADLINE_SLACK_S, Vitality.SILENT),
        (2 * INTERVAL_S, Vitality.SILENT),
    ],
)
def test_a_client_is_silent_after_two_intervals(silent_s: float, expected: Vitality) -> None:
    rig = Rig()
    rig.loop.now += 77
    rig.deadlines.start_heartbeats(10_000)

    rig.loop.now += silent_s

    assert rig.examine() is expected
    assert rig.examine(is_client_heard=False) is Vitality.ALIVE
    rig.deadlines.heard_at = rig.loop.now
    assert rig.examine() is Vitality.ALIVE


@pytest.mark.parametrize(
    ("stalled_s", "expected"),
    [
        (INTERVAL_S - 0.01, Vitality.ALIVE),
        (INTERVAL_S, Vitality.DEAF),
        (3 * INTERVAL_S, Vitality.DEAF),
    ],
)
def test_a_client_is_deaf_after_one_interval(stalled_s: float, expected: Vitality) -> None:
    rig = Rig()
    rig.deadlines.start_heartbeats(10_000)
    stalled_at = rig.loop.now

    rig.loop.now += stalled_s

    assert rig.examine(stalled_at=stalled_at) is expected
    assert rig.examine(is_client_heard=False, stalled_at=stalled_at) is expected
