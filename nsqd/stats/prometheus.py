"""GET /metrics: everything Prometheus may want to know, in its text format or in OpenMetrics.

Nothing is counted here: a scrape reads the broker. What there is once per node goes through
prometheus-client and a collector of ours. What there is per topic and channel is thousands of
samples, of which that library makes 50 in a millisecond, all in one go (880 ms for 1,000 topics
with 3 channels each); so those families are rendered here, faster and in slices.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import add
from typing import Generic, TypeAlias, TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.gc_collector import GCCollector
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

import nsqd
from nsqd.broker.durations import Histogram
from nsqd.broker.limits.losses import DropReason
from nsqd.broker.queue.backend import DiskBackend
from nsqd.broker.queue.message_queue import MessageQueue
from nsqd.config.kinds import DURATION
from nsqd.config.limits import LIMITS, Limit
from nsqd.node import Node
from nsqd.runtime.slices import encode_slices, gather_slices
from nsqd.stats.snapshot import ChannelStats, TopicStats, read_topic

TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_FORMAT = "application/openmetrics-text; version=1.0.0; charset=utf-8"

# Stands for all topics or channels beyond --metrics-max-queues; no name may hold parentheses.
OTHER = "(other)"

ROWS_PER_PART = 100

_Stats = TypeVar("_Stats", TopicStats, ChannelStats)


@dataclass(frozen=True, slots=True)
class DiskUse:
    """What a queue has on disk."""

    size_bytes: int
    segment_count: int


class Row:
    """The figures of one topic or channel, or the sums of those that share one row."""

    __slots__ = ("finish_times", "labels", "values")

    def __init__(self, labels: str, values: list[float], finish_times: Histogram | None) -> None:
        """Args:
        labels: as they stand between the braces.
        values: one for each sample of each family.
        """
        self.labels = labels
        self.values = values
        self.finish_times = finish_times


@dataclass(frozen=True, slots=True)
class Family(Generic[_Stats]):
    """A metric with one or more samples per row."""

    name: str  # without the _total of counters
    kind: str
    help_text: str
    # Further labels, each with its comma in front, and what to read.
    samples: tuple[tuple[str, Callable[[_Stats, DiskUse], float]], ...]
    # Makes one of the values of two rows.
    merge: Callable[[float, float], float] = add

    @property
    def sample_name(self) -> str:
        """The name on the lines of the samples."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


_Read: TypeAlias = Callable[[_Stats, DiskUse], float]


def _family(name: str, kind: str, help_text: str, read: _Read[_Stats]) -> Family[_Stats]:
    return Family(name, kind, help_text, (("", read),))


def _smallest(one: float, other: float) -> float:
    return min(one or other, other or one)


def _limit_family(limit: Limit) -> Family[TopicStats]:
    """Of topics that share a row the strictest limit is shown; 0 is none."""
    return Family(
        f"nsqd_topic_{limit.gauge}",
        "gauge",
        limit.flag.gauge_help or "",
        (("", lambda topic, _: limit.read(topic.limits)),),
        merge=_smallest,
    )


def _memory_depth(stats: TopicStats | ChannelStats, _disk: DiskUse) -> int:
    return stats.depth - stats.backend_depth


def _disk_depth(stats: TopicStats | ChannelStats, _disk: DiskUse) -> int:
    return stats.backend_depth


def _count_drops(reason: DropReason) -> Callable[[TopicStats | ChannelStats, DiskUse], int]:
    return lambda stats, _disk: stats.losses.dropped_counts[reason]


_BY_REASON = tuple((f',reason="{reason.value}"', _count_drops(reason)) for reason in DropReason)
_BY_STORE = ((',store="memory"', _memory_depth), (',store="disk"', _disk_depth))

# Counts come before durations.
_LIMIT_FAMILIES = tuple(
    _limit_family(limit)
    for limit in sorted(LIMITS, key=lambda limit: limit.kind is DURATION)
    if limit.gauge is not None
)

TOPIC_FAMILIES: tuple[Family[TopicStats], ...] = (
    Family("nsqd_topic_depth", "gauge", "Messages that no channel has taken yet.", _BY_STORE),
    _family(
        *("nsqd_topic_messages", "counter", "Messages published."),
        lambda topic, _: topic.message_count,
    ),
    _family(
        *("nsqd_topic_message_bytes", "counter", "Bytes of the bodies published."),
        lambda topic, _: topic.message_bytes,
    ),
    _family(
        *("nsqd_topic_paused", "gauge", "Whether the topic is paused."),
        lambda topic, _: int(topic.is_paused),
    ),
    _family(
        *("nsqd_topic_disk_bytes", "gauge", "Bytes of the topic's own files."),
        lambda _, disk: disk.size_bytes,
    ),
    _family(
        *("nsqd_topic_disk_segments", "gauge", "Number of the topic's own files."),
        lambda _, disk: disk.segment_count,
    ),
    _family(
        *("nsqd_topic_rejected", "counter", "Messages refused because a queue was full."),
        lambda topic, _: topic.losses.rejected_count,
    ),
    Family(
        "nsqd_topic_dropped",
        "counter",
        "Messages dropped because of a limit before any channel took them.",
        _BY_REASON,
    ),
    _family(
        *("nsqd_topic_dead_lettered", "counter", "Messages dead-lettered before that."),
        lambda topic, _: topic.losses.dead_lettered_count,
    ),
    *_LIMIT_FAMILIES,
)

# Only if history is kept.
ARCHIVE_FAMILIES: tuple[Family[TopicStats], ...] = (
    _family(
        *("nsqd_topic_archive_bytes", "gauge", "Bytes of the topic's history on disk."),
        lambda topic, _: topic.archive.size_bytes if topic.archive else 0,
    ),
    _family(
        *("nsqd_topic_archive_segments", "gauge", "Number of the files of the topic's history."),
        lambda topic, _: topic.archive.segment_count if topic.archive else 0,
    ),
    _family(
        *("nsqd_topic_archive_messages", "gauge", "Messages in the topic's history."),
        lambda topic, _: topic.archive.message_count if topic.archive else 0,
    ),
    _family(
        *("nsqd_topic_archive_dropped", "counter", "Messages that the history lacks."),
        lambda topic, _: topic.archive.dropped_count if topic.archive else 0,
    ),
    Family(
        "nsqd_topic_archive_oldest_timestamp_seconds",
        "gauge",
        "When the oldest message of the topic's history was published; 0 if there is none.",
        (("", lambda topic, _: topic.archive.oldest_ns // 10**9 if topic.archive else 0),),
        merge=_smallest,
    ),
)

CHANNEL_FAMILIES: tuple[Family[ChannelStats], ...] = (
    Family("nsqd_channel_depth", "gauge", "Messages that wait for a consumer.", _BY_STORE),
    _family(
        *("nsqd_channel_in_flight", "gauge", "Messages delivered and not answered."),
        lambda channel, _: channel.in_flight_count,
    ),
    _family(
        *("nsqd_channel_deferred", "gauge", "Messages kept back until they are due."),
        lambda channel, _: channel.deferred_count,
    ),
    _family(
        *("nsqd_channel_messages", "counter", "Messages that have come from the topic."),
        lambda channel, _: channel.message_count,
    ),
    _family(
        *("nsqd_channel_finished", "counter", "Messages finished by a FIN."),
        lambda channel, _: channel.finish_count,
    ),
    _family(
        *("nsqd_channel_requeued", "counter", "Messages put back by a REQ."),
        lambda channel, _: channel.requeue_count,
    ),
    _family(
        *("nsqd_channel_timed_out", "counter", "Messages put back by a timeout."),
        lambda channel, _: channel.timeout_count,
    ),
    _family(
        *("nsqd_channel_clients", "gauge", "Subscribed clients."),
        lambda channel, _: len(channel.consumers),
    ),
    _family(
        *("nsqd_channel_paused", "gauge", "Whether the channel is paused."),
        lambda channel, _: int(channel.is_paused),
    ),
    _family(
        *("nsqd_channel_disk_bytes", "gauge", "Bytes of the channel's files."),
        lambda _, disk: disk.size_bytes,
    ),
    _family(
        *("nsqd_channel_disk_segments", "gauge", "Number of the channel's files."),
        lambda _, disk: disk.segment_count,
    ),
    Family("nsqd_channel_dropped", "counter", "Messages dropped because of a limit.", _BY_REASON),
    _family(
        *("nsqd_channel_dead_lettered", "counter", "Messages moved to the dead-letter topic."),
        lambda channel, _: channel.losses.dead_lettered_count,
    ),
)

FINISH_TIME_NAME = "nsqd_channel_finish_time_seconds"
FINISH_TIME_HELP = "Time from delivery to FIN; absent where nothing was finished."


class Metrics:
    """Renders scrapes of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        # A registry of its own: the library's default one belongs to the whole process.
        self._registry = CollectorRegistry()
        self._registry.register(NodeCollector(node))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    async def render(self, *, is_openmetrics: bool) -> bytes:
        """Read everything now and give it in one of the two formats."""
        node = self._node
        families = TOPIC_FAMILIES
        if node.broker.archives is not None:
            families += ARCHIVE_FAMILIES
        table = RowTable(node.options.metrics_max_queues, families)
        await gather_slices(map(table.add, read_queues(node)))
        parts = await encode_slices(table.render(is_openmetrics=is_openmetrics))
        # Last, because OpenMetrics ends with a line that says so.
        generate = generate_openmetrics if is_openmetrics else generate_latest
        parts.append(generate(self._registry))
        return b"".join(parts)


# A topic and its channels, each with what it has on disk.
TopicReading: TypeAlias = tuple[tuple[TopicStats, DiskUse], list[tuple[ChannelStats, DiskUse]]]


def read_queues(node: Node) -> Iterator[TopicReading]:
    """Read topics with their channels, each topic in one go, the oldest first."""
    for topic in list(node.broker.topics.values()):
        stats = read_topic(topic, node.broker.now)
        channels = [
            (channel, _disk_use(topic.channels[channel.name].queue)) for channel in stats.channels
        ]
        yield (stats, _disk_use(topic.queue)), channels


def _disk_use(queue: MessageQueue) -> DiskUse:
    backend = queue.backend
    if not isinstance(backend, DiskBackend):
        return DiskUse(0, 0)
    return DiskUse(backend.queue.disk_bytes, backend.queue.segment_count)


class RowTable:
    """The rows of one scrape: one for each topic and channel, while there is room for them.

    The older a topic, the safer is its place: a new one never takes the labels of another.
    """

    def __init__(
        self, max_queues: int, topic_families: tuple[Family[TopicStats], ...] = TOPIC_FAMILIES
    ) -> None:
        self._room = max_queues
        self._topic_families = topic_families
        self._merges = [family.merge for family in topic_families for _ in family.samples]
        self._topics: list[Row] = []
        self._channels: list[Row] = []
        self._other_topics: Row | None = None
        self._other_channels: Row | None = None

    def add(self, reading: TopicReading) -> None:
        """Add a topic with its channels, all of them one by one or none."""
        topic, channels = reading
        name = topic[0].name
        has_room = 1 + len(channels) <= self._room
        if has_room:
            self._room -= 1 + len(channels)
            values = _read_all(self._topic_families, *topic)
            self._topics.append(Row(f'topic="{name}"', values, None))
        else:
            self._add_to_other_topics(_read_all(self._topic_families, *topic))
        for stats, disk in channels:
            values = _read_all(CHANNEL_FAMILIES, stats, disk)
            if has_room:
                labels = f'channel="{stats.name}",topic="{name}"'
                self._channels.append(Row(labels, values, stats.finish_times))
            else:
                self._add_to_other_channels(values, stats.finish_times)

    def render(self, *, is_openmetrics: bool) -> Iterator[str]:
        """Give the families of topics and channels, in parts."""
        families = self._topic_families
        yield from _render_families(families, self._topics, is_openmetrics=is_openmetrics)
        yield from _render_families(CHANNEL_FAMILIES, self._channels, is_openmetrics=is_openmetrics)
        yield _header(FINISH_TIME_NAME, "histogram", FINISH_TIME_HELP)
        for row in self._channels:
            if row.finish_times is not None:
                yield _render_finish_times(row.labels, row.finish_times)

    def _add_to_other_topics(self, values: list[float]) -> None:
        if self._other_topics is None:
            self._other_topics = Row(f'topic="{OTHER}"', values, None)
            self._topics.append(self._other_topics)
        else:
            pairs = zip(self._merges, self._other_topics.values, values, strict=True)
            self._other_topics.values = [merge(one, other) for merge, one, other in pairs]

    def _add_to_other_channels(self, values: list[float], finish_times: Histogram) -> None:
        if self._other_channels is None:
            labels = f'channel="{OTHER}",topic="{OTHER}"'
            self._other_channels = Row(labels, values, Histogram(finish_times.bounds))
            self._channels.append(self._other_channels)
        else:
            self._other_channels.values = list(map(add, self._other_channels.values, values))
        assert self._other_channels.finish_times is not None
        self._other_channels.finish_times.merge(finish_times)


def _read_all(families: tuple[Family[_Stats], ...], stats: _Stats, disk: DiskUse) -> list[float]:
    return [read(stats, disk) for family in families for _, read in family.samples]


def _header(name: str, kind: str, help_text: str) -> str:
    return f"# HELP {name} {help_text}\n# TYPE {name} {kind}\n"


def _render_families(
    families: tuple[Family[_Stats], ...], rows: list[Row], *, is_openmetrics: bool
) -> Iterator[str]:
    index = 0
    for family in families:
        name = family.sample_name
        yield _header(family.name if is_openmetrics else name, family.kind, family.help_text)
        for labels, _ in family.samples:
            for start in range(0, len(rows), ROWS_PER_PART):
                part = rows[start : start + ROWS_PER_PART]
                yield "".join(
                    [f"{name}{{{row.labels}{labels}}} {row.values[index]}\n" for row in part]
                )
            index += 1


def _render_finish_times(labels: str, histogram: Histogram) -> str:
    counts = histogram.cumulative()
    if not counts[-1]:
        return ""
    bounds = (*histogram.bounds, "+Inf")
    lines = [
        f'{FINISH_TIME_NAME}_bucket{{{labels},le="{bound}"}} {count}\n'
        for bound, count in zip(bounds, counts, strict=True)
    ]
    lines.append(f"{FINISH_TIME_NAME}_count{{{labels}}} {counts[-1]}\n")
    lines.append(f"{FINISH_TIME_NAME}_sum{{{labels}}} {histogram.total}\n")
    return "".join(lines)


class NodeCollector(Collector):
    """What there is once per node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        """Read the node."""
        node = self._node
        broker = node.broker
        yield InfoMetricFamily(
            "nsqd",
            "What runs here.",
            value={"version": nsqd.PROTOCOL_VERSION, "build": nsqd.__version__},
        )
        yield _gauge("healthy", "Whether the disk takes what it is given.", broker.is_healthy)
        free_bytes = broker.disk_health.free_bytes
        if free_bytes is not None:
            yield _gauge("disk_free_bytes", "Room on the disk of the data path.", free_bytes)
        if broker.archives is not None:
            is_archived = not broker.archives.health
            yield _gauge("archive_healthy", "Whether all history is being kept.", is_archived)
            yield CounterMetricFamily(
                "nsqd_archive_dropped",
                "Messages that no history has, as the disk failed or was too slow.",
                value=broker.archives.dropped_count,
            )
        yield _gauge("start_time_seconds", "Start of this process.", node.start_time_s)
        topics = broker.topics.values()
        yield _gauge("topics", "Topics.", len(topics))
        yield _gauge("channels", "Channels.", sum(len(topic.channels) for topic in topics))
        yield _gauge("connections", "TCP connections.", len(node.connections))
        yield _gauge(
            "producers",
            "TCP connections that have published.",
            sum(bool(connection.pub_counts) for connection in node.connections),
        )
        yield _gauge(
            "consumers",
            "TCP connections that have subscribed.",
            sum(connection.consumer is not None for connection in node.connections),
        )
        lookupds = GaugeMetricFamily(
            "nsqd_lookupd_connected", "Whether that nsqlookupd knows this node.", labels=["address"]
        )
        for peer in node.registration.peers:
            lookupds.add_metric([peer.address], peer.is_connected)
        yield lookupds
        yield _histogram("fsync_duration_seconds", "Syncs of disk queues.", broker.sync_times)


def _gauge(name: str, help_text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"nsqd_{name}", help_text, value=value)


def _histogram(name: str, help_text: str, histogram: Histogram) -> HistogramMetricFamily:
    bounds = [*map(str, histogram.bounds), "+Inf"]
    buckets = list(zip(bounds, histogram.cumulative(), strict=True))
    return HistogramMetricFamily(
        f"nsqd_{name}", help_text, buckets=buckets, sum_value=histogram.total
    )
