"""AgeClock: steps of the wall clock make no message old before its time."""

from nsqd.broker.limits.age_clock import AgeClock
from tests.support.fake_scheduler import FakeScheduler

HOUR_NS = 3600 * 10**9


def test_it_is_the_wall_clock() -> None:
    scheduler = FakeScheduler()
    clock = AgeClock(scheduler, 60.0)

    scheduler.advance(1000.0)

    assert clock.now_ns() == scheduler.wall_time_ns()


def test_drift_is_followed() -> None:
    scheduler = FakeScheduler()
    clock = AgeClock(scheduler, 60.0)

    for _ in range(10):
        scheduler.advance(10.0)
        scheduler.wall_ns += 500_000_000
        assert clock.now_ns() == scheduler.wall_time_ns()


def test_a_step_forward_counts_after_the_ttl() -> None:
    scheduler = FakeScheduler()
    clock = AgeClock(scheduler, 60.0)
    before_ns = scheduler.wall_time_ns()

    scheduler.wall_ns += HOUR_NS

    assert clock.now_ns() == before_ns
    scheduler.advance(59.0)
    assert clock.now_ns() == before_ns + 59 * 10**9
    scheduler.advance(1.0)
    assert clock.now_ns() == scheduler.wall_time_ns()


def test_a_step_back_counts_at_once() -> None:
    scheduler = FakeScheduler()
    clock = AgeClock(scheduler, 60.0)

    scheduler.wall_ns -= HOUR_NS

    assert clock.now_ns() == scheduler.wall_time_ns()
    scheduler.advance(100.0)
    assert clock.now_ns() == scheduler.wall_time_ns()


def test_a_step_that_is_taken_back_leaves_no_trace() -> None:
    scheduler = FakeScheduler()
    clock = AgeClock(scheduler, 60.0)
    scheduler.wall_ns += HOUR_NS
    clock.now_ns()

    scheduler.wall_ns -= HOUR_NS
    clock.now_ns()
    scheduler.advance(50.0)
    scheduler.wall_ns += HOUR_NS
    clock.now_ns()
    scheduler.advance(20.0)

    assert clock.now_ns() == scheduler.wall_time_ns() - HOUR_NS
