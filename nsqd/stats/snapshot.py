"""Snapshots of topics and channels: the figures of one moment, which the other modules here show.

A topic and its channels are read in one go, so their figures fit together. Only the consumers are
given as they are: there may be thousands, and they can be shown over several turns of the loop.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nsqd.broker.archive.archive import ArchiveStats
from nsqd.broker.broker import Broker
from nsqd.broker.channel import Channel
from nsqd.broker.consumer import Consumer, Locality
from nsqd.broker.durations import Histogram, LatencyQuantiles
from nsqd.broker.limits.queue_bounds import Losses
from nsqd.broker.peek import find_oldest_age
from nsqd.broker.queue.backend import DiskBackend
from nsqd.broker.queue.message_queue import MessageQueue
from nsqd.broker.topic import Topic
from nsqd.config.limits import NO_LIMITS, Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsQuery:
    """Which of the figures to show."""

    topic_name: str = ""  # "" stands for all
    channel_name: str = ""
    has_clients: bool = True
    has_memory: bool = True


ALL_TOPICS = StatsQuery()


@dataclass(frozen=True, slots=True)
class LatencyStats:
    """How long messages took from publish to FIN."""

    count: int = 0
    # Pairs of quantile and nanoseconds; None if the daemon does not keep them.
    percentiles: tuple[tuple[float, float], ...] | None = None


@dataclass(frozen=True, slots=True)
class DiskUse:
    """The files of one queue."""

    size_bytes: int = 0
    segment_count: int = 0


NO_LATENCIES = LatencyStats()
NO_LOSSES = Losses()
NO_DISK_USE = DiskUse()


@dataclass(frozen=True, slots=True)
class ChannelStats:
    """One channel, at one moment."""

    name: str
    is_ephemeral: bool
    depth: int
    backend_depth: int
    in_flight_count: int
    deferred_count: int
    message_count: int
    zone_local_count: int
    region_local_count: int
    global_count: int
    finish_count: int
    requeue_count: int
    timeout_count: int
    is_paused: bool
    latency: LatencyStats
    consumers: tuple[Consumer, ...]
    finish_times: Histogram  # the channel's own, still counting
    total_times: Histogram  # likewise
    losses: Losses = NO_LOSSES
    disk: DiskUse = NO_DISK_USE
    oldest_age_s: float = 0.0  # of the messages that are due; 0 if none; read only if asked for


@dataclass(frozen=True, slots=True)
class TopicStats:
    """One topic and its channels by name, at one moment."""

    name: str
    is_ephemeral: bool
    depth: int
    backend_depth: int
    message_count: int
    message_bytes: int
    is_paused: bool
    latency: LatencyStats
    channels: tuple[ChannelStats, ...]
    archive: ArchiveStats | None = None  # None if no history is kept
    losses: Losses = NO_LOSSES
    limits: Limits = NO_LIMITS
    disk: DiskUse = NO_DISK_USE
    dead_letter_topic: str | None = None  # None if there is none


def is_unknown(broker: Broker, query: StatsQuery) -> bool:
    """Return whether a query names a topic that does not exist."""
    return bool(query.topic_name) and broker.find_topic(query.topic_name) is None


def read_topics(broker: Broker, query: StatsQuery) -> Iterator[TopicStats]:
    """Read the topics of a query in the order of their names, each when it is asked for.

    With a channel in the query, topics without that channel are left out.
    """
    if query.topic_name:
        named = broker.find_topic(query.topic_name)
        topics = [] if named is None else [named]
    else:
        topics = [topic for _, topic in sorted(broker.topics.items())]
    for topic in topics:
        name = None if topic.bounds is None else broker.limits.find_dead_letter_name(topic)
        channels = None
        if query.channel_name:
            channels = [each for each in topic.channels.values() if each.name == query.channel_name]
        stats = read_topic(topic, broker.now, channels=channels, dead_letter_topic=name)
        if stats.channels or not query.channel_name:
            yield stats


def read_topic(
    topic: Topic,
    now: float,
    *,
    channels: Iterable[Channel] | None = None,
    dead_letter_topic: str | None = None,
    has_ages: bool = False,
) -> TopicStats:
    """Read a topic with all of its channels, or some.

    Args:
        now: the time of the broker's clock, which decides which latencies still count.
        dead_letter_topic: gets the messages beyond its limits.
        has_ages: look for the oldest message of each channel too, perhaps among many.
    """
    if channels is None:
        channels = topic.channels.values()
    return TopicStats(
        name=topic.name,
        is_ephemeral=topic.is_ephemeral,
        depth=topic.depth,
        backend_depth=topic.backend_depth,
        message_count=topic.message_count,
        message_bytes=topic.message_bytes,
        is_paused=topic.is_paused,
        latency=_read_latency([channel.latencies for channel in topic.channels.values()], now),
        channels=tuple(
            [
                read_channel(channel, now, has_ages=has_ages)
                for channel in sorted(channels, key=_name)
            ]
        ),
        archive=None if topic.archive is None else topic.archive.stats(),
        losses=topic.losses.copy(),
        limits=NO_LIMITS if topic.bounds is None else topic.bounds.limits,
        disk=_read_disk_use(topic.queue),
        dead_letter_topic=dead_letter_topic,
    )


def name_losses(losses: Losses) -> list[tuple[str, int]]:
    """Return the counts of refused, dropped and dead-lettered messages that are not zero, by name.

    NSQ does not have these figures: those who never set a limit never see them.
    """
    counts = [
        ("rejected_count", losses.rejected_count),
        *(
            (f"dropped_{reason.value}_count", count)
            for reason, count in losses.dropped_counts.items()
        ),
        ("dead_lettered_count", losses.dead_lettered_count),
    ]
    return [(name, count) for name, count in counts if count]


def read_channel(channel: Channel, now: float, *, has_ages: bool = False) -> ChannelStats:
    """Read a channel; see `read_topic`."""
    counts = channel.locality_counts
    return ChannelStats(
        name=channel.name,
        is_ephemeral=channel.is_ephemeral,
        depth=channel.depth,
        backend_depth=channel.backend_depth,
        in_flight_count=channel.consumers.in_flight_count,
        deferred_count=channel.deferred_count,
        message_count=channel.message_count,
        zone_local_count=counts[Locality.ZONE],
        region_local_count=counts[Locality.REGION],
        global_count=counts[Locality.GLOBAL],
        finish_count=channel.finish_count,
        requeue_count=channel.requeue_count,
        timeout_count=channel.timeout_count,
        is_paused=channel.is_paused,
        latency=_read_latency([channel.latencies], now),
        consumers=tuple(channel.consumers),
        finish_times=channel.finish_times,
        total_times=channel.total_times,
        losses=channel.losses.copy(),
        disk=_read_disk_use(channel.queue),
        oldest_age_s=find_oldest_age(channel, time.time_ns()) if has_ages else 0.0,
    )


def _read_disk_use(queue: MessageQueue) -> DiskUse:
    backend = queue.backend
    if not isinstance(backend, DiskBackend):
        return NO_DISK_USE
    return DiskUse(backend.queue.disk_bytes, backend.queue.segment_count)


def _read_latency(latencies: list[LatencyQuantiles | None], now: float) -> LatencyStats:
    kept = [each for each in latencies if each is not None]
    if not kept:
        return NO_LATENCIES
    count, percentiles = LatencyQuantiles.merge(kept, now)
    return LatencyStats(count, tuple(percentiles))


def _name(channel: Channel) -> str:
    return channel.name
