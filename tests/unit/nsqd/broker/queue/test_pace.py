"""Pace: when a disk is quick enough for appends on the loop."""

from nsqd.broker.queue.pace import (
    MAX_WARY_S,
    MIN_BYTES_PER_S,
    MIN_WARY_S,
    SLOW_JOB_S,
    SLOW_S,
    Pace,
)


class Clock:
    """A time that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_disk_has_to_show_that_it_is_quick() -> None:
    pace = Pace(Clock())
    assert not pace.is_quick
    assert not pace.is_slow

    pace.note_job(SLOW_JOB_S, 0)

    assert pace.is_quick


def test_a_job_of_a_fifth_of_a_second_is_slow() -> None:
    pace = Pace(Clock())

    pace.note_job(0.2, 0)

    assert (pace.is_quick, pace.is_slow) == (False, True)


def test_large_appends_may_take_longer() -> None:
    pace = Pace(Clock())

    pace.note_job(SLOW_JOB_S + 1.0, round(MIN_BYTES_PER_S))
    assert pace.is_quick
    pace.note_job(SLOW_JOB_S + 1.1, round(MIN_BYTES_PER_S))
    assert not pace.is_quick


def test_a_slow_append_is_remembered_for_a_while() -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.note_job(0.0, 0)
    pace.note_append(SLOW_S)
    assert pace.is_quick

    pace.note_append(SLOW_S + 0.001)

    assert (pace.is_quick, pace.is_slow) == (False, True)
    clock.now += MIN_WARY_S - 0.1
    pace.note_job(0.0, 0)
    assert (pace.is_quick, pace.is_slow) == (False, True)
    clock.now += 0.1
    pace.note_job(0.0, 0)
    assert (pace.is_quick, pace.is_slow) == (True, False)


def test_a_disk_that_is_slow_again_and_again_is_watched_longer_each_time() -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.note_job(0.0, 0)
    waits = []

    for _ in range(9):
        pace.note_append(1.0)
        started = clock.now
        while not pace.is_quick:
            clock.now += 0.5
            pace.note_job(0.0, 0)
        waits.append(clock.now - started)

    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    clock.now += MAX_WARY_S + 0.1
    pace.note_append(1.0)
    clock.now += MIN_WARY_S
    pace.note_job(0.0, 0)
    assert pace.is_quick


def test_jobs_that_are_slow_in_a_row_are_one_time() -> None:
    clock = Clock()
    pace = Pace(clock)
    for _ in range(10):
        pace.note_job(0.2, 100)
        clock.now += 0.2

    clock.now += MIN_WARY_S - 0.2
    pace.note_job(0.0, 0)

    assert pace.is_quick


def test_doubt_needs_one_proof() -> None:
    pace = Pace(Clock())
    pace.note_job(0.0, 0)

    pace.doubt()
    assert not pace.is_quick
    pace.note_job(0.0, 0)

    assert pace.is_quick


def test_a_trusted_disk_is_quick_whatever_it_does() -> None:
    pace = Pace(Clock(), is_trusted=True)

    pace.note_append(10.0)
    pace.note_job(10.0, 0)
    pace.doubt()

    assert pace.is_quick
    assert not pace.is_slow
