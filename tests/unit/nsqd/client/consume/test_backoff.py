"""go-nsq's machine: levels, pauses, probes."""

from nsqd.client.consume.backoff import Backoff, BackoffPolicy, Phase


def test_failures_double_the_pause_up_to_two_minutes() -> None:
    backoff = Backoff(BackoffPolicy())
    pauses = []

    for _ in range(9):
        assert backoff.fail()
        pauses.append(backoff.pause_s)
        backoff.end_pause()

    assert pauses == [2, 4, 8, 16, 32, 64, 120, 120, 120]
    assert backoff.level == 7


def test_each_success_lowers_the_level_and_the_last_ends_it() -> None:
    backoff = Backoff(BackoffPolicy())
    for _ in range(3):
        backoff.fail()
        backoff.end_pause()

    trace = []
    while backoff.level:
        assert backoff.succeed()
        trace.append((backoff.level, backoff.phase, backoff.pause_s))
        if backoff.phase is Phase.PAUSED:
            backoff.end_pause()

    assert trace == [(2, Phase.PAUSED, 4), (1, Phase.PAUSED, 2), (0, Phase.NORMAL, 0)]


def test_outcomes_during_the_pause_do_not_count() -> None:
    backoff = Backoff(BackoffPolicy())
    backoff.fail()

    assert not backoff.fail()
    assert not backoff.succeed()

    assert (backoff.level, backoff.phase, backoff.pause_s) == (1, Phase.PAUSED, 2)


def test_a_success_without_backoff_changes_nothing() -> None:
    backoff = Backoff(BackoffPolicy())

    assert not backoff.succeed()

    assert (backoff.level, backoff.phase) == (0, Phase.NORMAL)


def test_full_jitter_takes_a_share_of_the_pause() -> None:
    backoff = Backoff(BackoffPolicy(jitter="full"), lambda: 0.25)

    backoff.fail()

    assert backoff.pause_s == 0.5
