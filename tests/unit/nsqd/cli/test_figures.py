"""Sums and rates."""

from nsqd.cli.cluster import Outcome
from nsqd.cli.figures import read_figures


def answer(count: int, depth: int) -> dict[str, object]:
    channel = {
        "channel_name": "c",
        "depth": depth,
        "message_count": count,
        "client_count": 1,
        "paused": depth > 5,
    }
    return {
        "topics": [{"topic_name": "t", "depth": 0, "message_count": count, "channels": [channel]}]
    }


def test_nodes_are_added_up_and_one_that_fails_is_left_out() -> None:
    outcomes = [Outcome("a", answer(10, 3)), Outcome("b", answer(5, 6)), Outcome("c", error="x")]

    topic, channel = read_figures(outcomes, "t", None, 1.0)

    assert (topic.name, topic.values["message_count"]) == ("", 15)
    assert (channel.values["depth"], channel.values["client_count"]) == (9, 2)
    assert channel.is_paused
    assert read_figures(outcomes, "t", "none", 1.0) == []
    assert read_figures(outcomes, "none", None, 1.0) == []


def test_rates_are_by_the_time_that_passed() -> None:
    [before] = read_figures([Outcome("a", answer(10, 3))], "t", "c", 1.0)
    [now] = read_figures([Outcome("a", answer(30, 8))], "t", "c", 5.0)

    assert now.rates(before) == (5.0, 3.75)
