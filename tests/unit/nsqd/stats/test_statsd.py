"""statsd lines, packets and names (S-14 to S-19)."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqd.stats.memory import MemoryStats
from nsqd.stats.snapshot import LatencyStats, TopicStats
from nsqd.stats.statsd import (
    StatsdLines,
    StatsdSettings,
    pack_lines,
    percentile_names,
    spread_s,
)
from tests.support.snapshots import channel_stats, make_losses, topic_stats

MEMORY = MemoryStats(1, 2, 3, 4, 5, 6, 7, 8, 9)


def make_lines(**options: Any) -> StatsdLines:
    given: dict[str, Any] = {
        "address": "127.0.0.1:8125",
        "prefix": "nsq.",
        "interval_s": 60.0,
        "max_packet_bytes": 508,
        "has_memory": True,
        "has_ephemeral": True,
    }
    return StatsdLines(StatsdSettings(**given | options))


def render(lines: StatsdLines, *topics: TopicStats, memory: MemoryStats | None = None) -> list[str]:
    rendered = list(lines.render(topics, memory))
    assert all(line.endswith("\n") and line.count("\n") == 1 for line in rendered)
    return [line.removesuffix("\n") for line in rendered]


def test_topic_and_channel_in_the_order_of_nsqd() -> None:
    channel = channel_stats(
        "c.x",
        depth=5,
        backend_depth=1,
        in_flight_count=2,
        deferred_count=3,
        message_count=9,
        requeue_count=4,
        timeout_count=6,
        latency=LatencyStats(1, ((0.99, 12.9),)),
    )
    topic = topic_stats(
        "t",
        channel,
        depth=7,
        backend_depth=2,
        message_count=10,
        message_bytes=100,
        latency=LatencyStats(1, ((0.99, 13.0),)),
    )

    assert render(make_lines(), topic) == [
        "nsq.topic.t.message_count:10|c",
        "nsq.topic.t.message_bytes:100|c",
        "nsq.topic.t.depth:7|g",
        "nsq.topic.t.backend_depth:2|g",
        "nsq.topic.t.e2e_processing_latency_99:13|g",
        "nsq.topic.t.channel.c.x.message_count:9|c",
        "nsq.topic.t.channel.c.x.depth:5|g",
        "nsq.topic.t.channel.c.x.backend_depth:1|g",
        "nsq.topic.t.channel.c.x.in_flight_count:2|g",
        "nsq.topic.t.channel.c.x.deferred_count:3|g",
        "nsq.topic.t.channel.c.x.requeue_count:4|c",
        "nsq.topic.t.channel.c.x.timeout_count:6|c",
        "nsq.topic.t.channel.c.x.clients:0|g",
        "nsq.topic.t.channel.c.x.e2e_processing_latency_99:12|g",
    ]


def test_memory() -> None:
    assert render(make_lines(prefix=""), memory=MEMORY) == [  # S-18
        "mem.heap_objects:1|g",
        "mem.heap_idle_bytes:2|g",
        "mem.heap_in_use_bytes:3|g",
        "mem.heap_released_bytes:4|g",
        "mem.gc_pause_usec_100:5|g",
        "mem.gc_pause_usec_99:6|g",
        "mem.gc_pause_usec_95:7|g",
        "mem.next_gc_bytes:8|g",
        "mem.gc_runs:9|c",
    ]


def test_counters_are_differences_and_gauges_are_not() -> None:  # S-16
    lines = make_lines()
    render(lines, topic_stats("t", message_count=10, depth=4), memory=MEMORY)

    second = render(lines, topic_stats("t", message_count=13, depth=4), memory=MEMORY)

    assert "nsq.topic.t.message_count:3|c" in second
    assert "nsq.topic.t.depth:4|g" in second
    assert "nsq.mem.gc_runs:0|c" in second


def test_a_topic_made_again_starts_from_zero() -> None:
    lines = make_lines()
    render(lines, topic_stats("t", message_count=10))

    assert "nsq.topic.t.message_count:4|c" in render(lines, topic_stats("t", message_count=4))

    render(lines)
    assert "nsq.topic.t.message_count:5|c" in render(lines, topic_stats("t", message_count=5))


def test_ephemeral_ones_can_be_left_out() -> None:  # S-17
    topics = (
        topic_stats("t", channel_stats("c#ephemeral"), channel_stats("d")),
        topic_stats("u#ephemeral", channel_stats("e")),
    )

    with_them = "\n".join(render(make_lines(), *topics))
    without = "\n".join(render(make_lines(has_ephemeral=False), *topics))

    assert "channel.c#ephemeral.depth" in with_them
    assert "topic.u#ephemeral.channel.e.depth" in with_them
    assert "ephemeral" not in without
    assert "topic.t.channel.d.depth" in without


@pytest.mark.parametrize(
    ("quantiles", "names"),
    [
        ((1.0, 0.99, 0.5), ["100", "99", "50"]),  # S-19
        ((0.999,), ["100"]),
        ((1.0, 0.999, 0.995), ["100", "99_9", "99_5"]),
        ((), []),
    ],
)
def test_percentiles_are_whole_unless_two_would_be_the_same(
    quantiles: tuple[float, ...], names: list[str]
) -> None:
    assert percentile_names(quantiles) == names


@given(
    sizes=st.lists(st.integers(1, 60), max_size=60),
    max_bytes=st.integers(1, 120),
)
def test_packets_hold_whole_lines_up_to_their_size(sizes: list[int], max_bytes: int) -> None:
    lines = ["x" * (size - 1) + "\n" for size in sizes]  # S-14

    packets = list(pack_lines(lines, max_bytes))

    assert b"".join(packets) == "".join(lines).encode()
    for packet in packets:
        assert packet.endswith(b"\n")
        assert len(packet) <= max_bytes or packet.count(b"\n") == 1
    for packet, following in pairwise(packets):
        first_line = following[: following.index(b"\n") + 1]
        assert len(packet) + len(first_line) > max_bytes, "it would have had room"


@pytest.mark.parametrize(("interval_s", "expected_s"), [(60.0, 59.0), (1.5, 0.5), (1.0, 0.5)])
def test_packets_are_spread_over_the_interval_less_a_second(
    interval_s: float, expected_s: float
) -> None:
    assert spread_s(interval_s) == expected_s  # S-20


def test_what_limits_have_cost_is_counted() -> None:
    lines = make_lines()
    channel = channel_stats("c", losses=make_losses(depth=3, ttl=2, attempts=1, dead_lettered=5))
    topic = topic_stats("t", channel, losses=make_losses(rejected=7))

    rendered = render(lines, topic)

    assert "nsq.topic.t.rejected_count:7|c" in rendered
    assert "nsq.topic.t.channel.c.dropped_depth_count:3|c" in rendered
    assert "nsq.topic.t.channel.c.dropped_ttl_count:2|c" in rendered
    assert "nsq.topic.t.channel.c.dropped_attempts_count:1|c" in rendered
    assert "nsq.topic.t.channel.c.dead_lettered_count:5|c" in rendered
    assert "nsq.topic.t.rejected_count:0|c" in render(lines, topic)
