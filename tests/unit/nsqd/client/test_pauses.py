"""Pauses between attempts to connect."""

from nsqd.client.pauses import Pauses


def longest() -> float:
    return 1.0


def test_pauses_double_up_to_a_bound() -> None:
    pauses = Pauses(random_share=longest)

    found = [pauses.next_s() for _ in range(40)]

    assert found[:4] == [0.1, 0.2, 0.4, 0.8]
    assert found[-1] == 30.0
    assert found == sorted(found)


def test_a_long_life_begins_anew_and_a_short_one_does_not() -> None:
    pauses = Pauses(random_share=longest)
    for _ in range(5):
        pauses.next_s()

    assert pauses.next_s(9.9) == 3.2
    assert pauses.next_s(10.0) == 0.1


def test_a_success_begins_anew() -> None:
    pauses = Pauses(random_share=longest)
    for _ in range(5):
        pauses.next_s()

    pauses.reset()

    assert pauses.next_s() == 0.1


def test_the_jitter_is_full() -> None:
    assert Pauses(random_share=lambda: 0.0).next_s() == 0.0
