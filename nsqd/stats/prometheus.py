"""GET /metrics: the figures for Prometheus, in its text format or in OpenMetrics.

A scrape reads the broker; no figure is counted here. Figures of the whole node go through
prometheus-client and a collector of ours. Those of topics and channels are thousands of samples, of
which that library makes 50 in a millisecond, all in one go (880 ms for 1,000 topics with 3 channels
each); so those families are rendered here, faster and in slices.
"""

from collections.abc import Iterator, Sequence

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
from nsqd.broker.durations import Histogram, SyncTimes
from nsqd.node import Node
from nsqd.runtime.door_counts import REFUSED, Failure, Refusal
from nsqd.runtime.slices import encode_slices, gather_slices
from nsqd.stats.families import (
    ARCHIVE_FAMILIES,
    CHANNEL_FAMILIES,
    TOPIC_FAMILIES,
    Family,
    Merge,
)
from nsqd.stats.snapshot import ChannelStats, TopicStats, read_topic

TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_FORMAT = "application/openmetrics-text; version=1.0.0; charset=utf-8"

# Stands for all topics or channels beyond --metrics-max-queues; no name may hold parentheses.
OTHER = "(other)"

ROWS_PER_PART = 100

_END = b"# EOF\n"

# The histograms of channels, in the order of `Row.histograms`.
CHANNEL_HISTOGRAMS = (
    (
        "nsqd_channel_finish_time_seconds",
        "Time from delivery to FIN; absent where nothing was finished.",
    ),
    (
        "nsqd_channel_publish_to_finish_seconds",
        "Time from publish to FIN, by samples; absent where nothing was finished.",
    ),
)


class Row:
    """The figures of one topic or channel, or the sums of those that share one row."""

    __slots__ = ("histograms", "labels", "values")

    def __init__(
        self, labels: str, values: list[float], histograms: Sequence[Histogram] = ()
    ) -> None:
        """Args:
        labels: as they stand between the braces.
        values: one for each sample of each family.
        histograms: those of `CHANNEL_HISTOGRAMS`, if it is a channel.
        """
        self.labels = labels
        self.values = values
        self.histograms = histograms

    def merge(self, merges: Sequence[Merge], values: list[float]) -> None:
        """Add the values of another topic or channel."""
        triples = zip(merges, self.values, values, strict=True)
        self.values = [merge(one, other) for merge, one, other in triples]


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

    async def render(self, *, is_openmetrics: bool) -> list[bytes]:
        """Read all figures and return them in one of the two formats, in parts."""
        node = self._node
        families = TOPIC_FAMILIES
        if node.broker.archives is not None:
            families += ARCHIVE_FAMILIES
        table = RowTable(node.options.metrics_max_queues, families)
        await gather_slices(map(table.add, read_queues(node)))
        parts = await encode_slices(table.render(is_openmetrics=is_openmetrics))
        await gather_slices(table.free())
        generate = generate_openmetrics if is_openmetrics else generate_latest
        texts = (generate(_Alone(metric)) for metric in self._registry.collect())
        parts += [text.removesuffix(_END) for text in await gather_slices(texts)]
        # Only OpenMetrics ends with a line that says so.
        return [*parts, _END] if is_openmetrics else parts


class _Alone(Collector):
    """A registry of one metric: the library renders a whole registry in one go, which is 10 ms."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


def read_queues(node: Node) -> Iterator[TopicStats]:
    """Read topics with their channels, the oldest first, each topic when it is asked for."""
    for topic in list(node.broker.topics.values()):
        yield read_topic(topic, node.broker.now, has_ages=True)


class RowTable:
    """The rows of one scrape: one for each topic and channel, while there is room for them.

    The older a topic, the safer is its place: a new one never takes the labels of another.
    """

    def __init__(
        self, max_queues: int, topic_families: tuple[Family, ...] = TOPIC_FAMILIES
    ) -> None:
        self._room = max_queues
        self._topic_families = topic_families
        self._topic_merges = _list_merges(topic_families)
        self._channel_merges = _list_merges(CHANNEL_FAMILIES)
        self._topics: list[Row] = []
        self._channels: list[Row] = []
        self._other_topics: Row | None = None
        self._other_channels: Row | None = None

    def add(self, topic: TopicStats) -> None:
        """Add a topic with its channels: rows for all of them, or for none."""
        queue_count = 1 + len(topic.channels)
        has_room = queue_count <= self._room
        values = _read_all(self._topic_families, topic)
        if has_room:
            self._room -= queue_count
            self._topics.append(Row(f'topic="{topic.name}"', values))
        else:
            self._add_to_other_topics(values)
        for channel in topic.channels:
            values = _read_all(CHANNEL_FAMILIES, channel)
            histograms = (channel.finish_times, channel.total_times)
            if has_room:
                labels = f'channel="{channel.name}",topic="{topic.name}"'
                self._channels.append(Row(labels, values, histograms))
            else:
                self._add_to_other_channels(values, histograms)

    def render(self, *, is_openmetrics: bool) -> Iterator[str]:
        """Give the families of topics and channels, in parts."""
        families = self._topic_families
        yield from _render_families(families, self._topics, is_openmetrics=is_openmetrics)
        yield from _render_families(CHANNEL_FAMILIES, self._channels, is_openmetrics=is_openmetrics)
        for index, (name, help_text) in enumerate(CHANNEL_HISTOGRAMS):
            yield _header(name, "histogram", help_text)
            for row in self._channels:
                yield _render_histogram(name, row.labels, row.histograms[index])

    def free(self) -> Iterator[None]:
        """Forget all rows, some at a time: ten thousand in one go take 10 ms."""
        for rows in (self._topics, self._channels):
            while rows:
                del rows[-ROWS_PER_PART:]
                yield

    def _add_to_other_topics(self, values: list[float]) -> None:
        if self._other_topics is None:
            self._other_topics = Row(f'topic="{OTHER}"', values)
            self._topics.append(self._other_topics)
        else:
            self._other_topics.merge(self._topic_merges, values)

    def _add_to_other_channels(self, values: list[float], histograms: Sequence[Histogram]) -> None:
        if self._other_channels is None:
            labels = f'channel="{OTHER}",topic="{OTHER}"'
            sums = [Histogram(each.bounds) for each in histograms]
            self._other_channels = Row(labels, values, sums)
            self._channels.append(self._other_channels)
        else:
            self._other_channels.merge(self._channel_merges, values)
        for total, each in zip(self._other_channels.histograms, histograms, strict=True):
            total.merge(each)


def _list_merges(families: tuple[Family, ...]) -> list[Merge]:
    return [family.merge for family in families for _ in family.samples]


def _read_all(families: tuple[Family, ...], stats: TopicStats | ChannelStats) -> list[float]:
    return [read(stats) for family in families for _, read in family.samples]


def _header(name: str, kind: str, help_text: str) -> str:
    return f"# HELP {name} {help_text}\n# TYPE {name} {kind}\n"


def _render_families(
    families: tuple[Family, ...], rows: list[Row], *, is_openmetrics: bool
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


def _render_histogram(name: str, labels: str, histogram: Histogram) -> str:
    counts = histogram.cumulative()
    if not counts[-1]:
        return ""
    bounds = (*histogram.bounds, "+Inf")
    lines = [
        f'{name}_bucket{{{labels},le="{bound}"}} {count}\n'
        for bound, count in zip(bounds, counts, strict=True)
    ]
    lines.append(f"{name}_count{{{labels}}} {counts[-1]}\n")
    lines.append(f"{name}_sum{{{labels}}} {histogram.total}\n")
    return "".join(lines)


class NodeCollector(Collector):
    """Collects the figures of the whole node."""

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
        yield from _sync_metrics(broker.sync_times)
        yield CounterMetricFamily(
            "nsqd_checksum_failures",
            "Messages on disk whose checksum was wrong, or missing where a write was torn.",
            value=broker.checksum_failures.count,
        )
        yield from _door_metrics(node)
        yield _histogram(
            "loop_lag_seconds", "How late the event loop was, every 25 ms.", node.loop_lags
        )


def _door_metrics(node: Node) -> Iterator[Metric]:
    refusals = CounterMetricFamily(
        *("nsqd_refusals", "Commands and requests refused, by cause."), labels=["door", "cause"]
    )
    refused = CounterMetricFamily(
        *("nsqd_connections_refused", "Connections refused, by cause."), labels=["door", "cause"]
    )
    failed = CounterMetricFamily(
        "nsqd_connections_failed",
        "Connections ended here though their clients did not ask for it, by cause.",
        labels=["door", "cause"],
    )
    for door, counts in node.doors.items():
        for refusal in Refusal:
            refusals.add_metric([door, refusal.value], counts.refusals[refusal])
        for failure in Failure:
            family = refused if failure in REFUSED else failed
            family.add_metric([door, failure.value], counts.failures[failure])
    yield from (refusals, refused, failed)
    yield CounterMetricFamily(
        *("nsqd_tls_handshakes_failed", "TLS handshakes that failed."),
        value=node.failed_handshakes.count,
    )
    yield CounterMetricFamily(
        *("nsqd_accept_errors", "Connections not accepted for lack of descriptors or memory."),
        value=node.descriptors.error_count,
    )


def _sync_metrics(syncs: SyncTimes) -> Iterator[Metric]:
    yield _histogram("fsync_duration_seconds", "Syncs of disk queues.", syncs.histogram)
    yield CounterMetricFamily(
        "nsqd_sync_failures", "Syncs of disk queues that failed.", value=syncs.failed_count
    )
    yield _gauge(
        "last_sync_timestamp_seconds",
        "When a disk queue was last synced with success; 0 before the first.",
        syncs.last_success_s,
    )
    yield _gauge(
        "sync_running_seconds",
        "For how long the oldest sync that runs has been running; 0 if none runs.",
        syncs.longest_running_s,
    )


def _gauge(name: str, help_text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"nsqd_{name}", help_text, value=value)


def _histogram(name: str, help_text: str, histogram: Histogram) -> HistogramMetricFamily:
    bounds = [*map(str, histogram.bounds), "+Inf"]
    buckets = list(zip(bounds, histogram.cumulative(), strict=True))
    return HistogramMetricFamily(
        f"nsqd_{name}", help_text, buckets=buckets, sum_value=histogram.total
    )
