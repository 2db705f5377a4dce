"""Queues, and how they change from one moment to the next."""

from typing import Any

from nsqd.cli.cluster import Outcome, read_ages
from nsqd.cli.watch.rows import History, Key


def stats(node: str, count: int, depth: int, clients: int = 0) -> Outcome:
    channel: dict[str, Any] = {
        "channel_name": "c",
        "depth": depth,
        "message_count": count,
        "client_count": clients,
        "e2e_processing_latency": {"count": 1, "percentiles": [{"quantile": 0.99, "value": 5e6}]},
    }
    topic = {"topic_name": "t", "depth": 0, "message_count": count, "channels": [channel]}
    return Outcome(node, {"topics": [topic]})


def test_nodes_are_added_up_with_rates_and_the_oldest_age() -> None:
    history = History()
    first = history.update([stats("a", 10, 1), stats("b", 0, 0)], [{("t", "c"): 3.0}, {}], 1.0)
    assert [row.in_per_s for row in first] == [None, None]
    down = Outcome("d", error="gone")

    rows = history.update(
        [stats("a", 30, 5), stats("b", 4, 0), down], [{("t", "c"): 5.0}, {}, {}], 3.0
    )

    topic, channel = rows
    assert (topic.key, channel.key) == (Key("t"), Key("t", "c"))
    assert (channel.in_per_s, channel.out_per_s, channel.depth) == (12.0, 10.0, 5)
    assert (channel.oldest_s, topic.oldest_s, channel.depths) == (5.0, None, (1, 5))
    assert channel.is_alarming
    assert not topic.is_alarming
    assert channel.figures.latencies == {"p99": 5.0}


def test_a_node_that_was_started_again_has_no_negative_rates() -> None:
    history = History()
    history.update([stats("a", 1000, 1)], [{}], 1.0)

    rows = history.update([stats("a", 3, 1)], [{}], 2.0)

    assert [(row.in_per_s, row.out_per_s) for row in rows] == [(0.0, 0.0)] * 2


def test_each_node_may_have_its_rows_and_what_is_gone_is_forgotten() -> None:
    history = History(is_by_node=True)

    rows = history.update([stats("a", 1, 1), stats("b", 2, 2)], [{}, {("t", "c"): 1.0}], 1.0)
    assert [(row.key.node, row.key.channel, row.oldest_s) for row in rows] == [
        ("a", "", None),
        ("a", "c", None),
        ("b", "", None),
        ("b", "c", 1.0),
    ]
    history.update([], [], 2.0)
    assert all(row.in_per_s is None for row in history.update([stats("a", 9, 9)], [{}], 3.0))


def test_ages_are_read_from_metrics() -> None:
    text = """# HELP nsqd_channel_oldest_message_age_seconds Age
nsqd_channel_oldest_message_age_seconds{channel="c",topic="t"} 1.5e-05
nsqd_channel_oldest_message_age_seconds{channel="d#ephemeral",topic="t"} 12
nsqd_channel_depth{channel="c",topic="t",store="memory"} 1
"""
    assert read_ages(text) == {("t", "c"): 1.5e-05, ("t", "d#ephemeral"): 12.0}
