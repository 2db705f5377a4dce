"""The pace of attempts to connect; tests/wire has the rest."""

from nsqd.lookup.peer import FIRST_BACKOFF_S, MAX_BACKOFF_S, Backoff


def test_the_first_failure_is_followed_by_a_short_wait() -> None:
    assert FIRST_BACKOFF_S / 2 <= Backoff().next_delay_s() <= FIRST_BACKOFF_S


def test_waits_double_up_to_a_limit() -> None:
    backoff = Backoff()
    longest_s = FIRST_BACKOFF_S
    for _ in range(20):
        assert longest_s / 2 <= backoff.next_delay_s() <= longest_s
        longest_s = min(2 * longest_s, MAX_BACKOFF_S)

    assert longest_s == MAX_BACKOFF_S


def test_one_that_was_away_for_long_is_met_again_within_a_second() -> None:
    backoff = Backoff()
    delays_s = [backoff.next_delay_s() for _ in range(1000)]

    assert max(delays_s) <= 1.0


def test_a_good_connection_that_breaks_is_tried_again_at_once() -> None:
    backoff = Backoff()
    for _ in range(20):
        backoff.next_delay_s()

    backoff.reset()

    assert backoff.next_delay_s() == 0
    assert FIRST_BACKOFF_S / 2 <= backoff.next_delay_s() <= FIRST_BACKOFF_S


def test_waits_differ_between_daemons() -> None:
    assert len({Backoff().next_delay_s() for _ in range(20)}) > 1
