"""Snapshots with figures of the test's choice, for what shows them."""

from dataclasses import replace
from typing import Any

from nsqd.broker.channel import FINISH_TIME_BOUNDS_S, TOTAL_TIME_BOUNDS_S
from nsqd.broker.durations import Histogram
from nsqd.broker.limits.queue_bounds import DropReason, Losses
from nsqd.stats.clients import ClientStats
from nsqd.stats.snapshot import NO_LATENCIES, ChannelStats, TopicStats


def channel_stats(name: str = "ch", **figures: Any) -> ChannelStats:
    """Return a channel that holds nothing, but for these figures."""
    empty = ChannelStats(
        name=name,
        is_ephemeral=name.endswith("#ephemeral"),
        depth=0,
        backend_depth=0,
        in_flight_count=0,
        deferred_count=0,
        message_count=0,
        zone_local_count=0,
        region_local_count=0,
        global_count=0,
        finish_count=0,
        requeue_count=0,
        timeout_count=0,
        is_paused=False,
        latency=NO_LATENCIES,
        consumers=(),
        finish_times=Histogram(FINISH_TIME_BOUNDS_S),
        total_times=Histogram(TOTAL_TIME_BOUNDS_S),
    )
    return replace(empty, **figures)


def topic_stats(name: str = "t", *channels: ChannelStats, **figures: Any) -> TopicStats:
    """Return a topic with these channels that holds nothing, but for these figures."""
    empty = TopicStats(
        name=name,
        is_ephemeral=name.endswith("#ephemeral"),
        depth=0,
        backend_depth=0,
        message_count=0,
        message_bytes=0,
        is_paused=False,
        latency=NO_LATENCIES,
        channels=channels,
    )
    return replace(empty, **figures)


def make_losses(
    *, depth: int = 0, ttl: int = 0, attempts: int = 0, dead_lettered: int = 0, rejected: int = 0
) -> Losses:
    """Return what limits have cost."""
    losses = Losses()
    losses.dropped_counts = {
        DropReason.DEPTH: depth,
        DropReason.TTL: ttl,
        DropReason.ATTEMPTS: attempts,
    }
    losses.dead_lettered_count = dead_lettered
    losses.rejected_count = rejected
    return losses


def client_stats(**figures: Any) -> ClientStats:
    """Return a client that has done nothing, but for these figures."""
    idle = ClientStats(
        client_id="id",
        hostname="hn2",
        user_agent="",
        remote_address="127.0.0.1:47546",
        state=0,
        connected_at_s=1_700_000_000,
        ready_count=0,
        in_flight_count=0,
        message_count=0,
        finish_count=0,
        requeue_count=0,
        sample_rate=0,
        is_deflated=False,
        is_snappy=False,
        topology_zone="",
        topology_region="",
        is_authed=False,
        auth_identity="",
        auth_identity_url="",
        is_tls=False,
        tls_cipher_suite="",
        tls_version="",
        pub_counts=(),
    )
    return replace(idle, **figures)
