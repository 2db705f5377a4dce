"""The figures of a backlog report, counted by Spark and small enough for the driver's memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from diskqueue.envelope import HEADER_BYTES
from diskqueue.segment import PREFIX, PREFIX_BYTES
from spark_jobs.jobs.growth import Growth, Look
from spark_jobs.jobs.job import Selection
from spark_jobs.jobs.json_bodies import NOT_JSON, describe_fields, split_fields
from spark_jobs.jobs.progress import Progress
from spark_jobs.read.columns import BAD_COLUMN, DAMAGE_COLUMN
from spark_jobs.read.files.corruption import CORRUPTION_SCHEMA
from spark_jobs.read.files.directory import Directory
from spark_jobs.read.files.scan import parse_damage
from spark_jobs.read.fleet.latency import find_latencies
from spark_jobs.read.options import ReadOptions
from spark_jobs.read.queue import Queue

_HEADER_COLUMNS = "node,topic,channel,segment,offset,timestamp,attempts,id,size"
# The rate over time is counted in steps of one of these, so that a queue has at most so many.
_STEPS_S = (60, 300, 900, 3600, 6 * 3600, 86400)
_MAX_STEPS = 1500
_KEY = ["topic", "channel"]
_POISON_PER_QUEUE = 5
_MIN_POISON_ATTEMPTS = 2
_DUPLICATES_PER_QUEUE = 5
_MAX_TOP_ROWS = 5000
_MAX_FIELDS = 20_000
_MAX_CORRUPT_ROWS = 1000
_PREVIEW_BYTES = 200
# Bodies that Spark keeps of a scan, to find the fields of JSON in them.
_MAX_SAMPLE_BYTES = 512 * 1024 * 1024
# Without metadata the size of a message is a guess.
_LIKELY_RECORD_BYTES = 200
# A sample is large enough with so much of what was asked for.
_SAMPLE_TOLERANCE = 0.9

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

QueueKey = tuple[str, str | None]
_Row = dict[str, Any]


@dataclass(slots=True)
class Places:
    """Where the messages of a queue or a node are, as nsqd counts them."""

    memory: int = 0
    in_flight: int = 0
    deferred: int = 0
    disk: int = 0

    def add(self, counts: Mapping[str, int]) -> None:
        """Add the counts of another queue."""
        self.memory += counts.get("memory", 0)
        self.in_flight += counts.get("in_flight", 0)
        self.deferred += counts.get("deferred", 0)
        self.disk += counts.get("disk", 0)


@dataclass(slots=True)
class NodeFigures:
    """One node of the fleet, or one directory."""

    node: str
    queue_count: int
    message_count: int = 0
    byte_count: int = 0
    oldest: datetime | None = None
    places: Places | None = None
    # Why it is not in the figures, if it did not answer.
    failure: str = ""


@dataclass(slots=True)
class QueueFigures:
    """One topic's own queue, or one channel, over all nodes."""

    topic: str
    channel: str | None
    node_count: int
    message_count: int
    byte_count: int
    oldest: datetime | None
    newest: datetime | None
    size_p50: int
    size_p90: int
    size_p99: int
    size_max: int
    attempts_max: int
    retried_count: int
    duplicate_count: int = 0
    over_time: list[tuple[datetime, int]] = field(default_factory=list)
    attempts: list[tuple[int, int]] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)  # power of two -> messages
    # Messages by place (memory, in_flight, deferred, disk), where a node could be asked.
    places: Places | None = None
    # Since an earlier look, if there was one.
    growth: Growth | None = None
    # From publish to finish, where nodes measure it: percentile -> seconds.
    latency: dict[float, float] = field(default_factory=dict)

    @property
    def rate_per_minute(self) -> float | None:
        """Messages per minute between the oldest and the newest, over a minute at least.

        A burst of ten messages in a millisecond is not a rate of 600,000.
        """
        if self.oldest is None or self.newest is None:
            return None
        return self.message_count / max((self.newest - self.oldest).total_seconds() / 60, 1.0)


@dataclass(slots=True)
class Report:
    """All that a report shows."""

    data_dirs: list[str]
    origin: str
    created: datetime
    queues: list[QueueFigures] = field(default_factory=list)
    poison: list[_Row] = field(default_factory=list)
    duplicates: list[_Row] = field(default_factory=list)
    bodies: list[_Row] = field(default_factory=list)  # topic, type of the whole body, count
    fields: list[_Row] = field(default_factory=list)
    corrupt_records: list[_Row] = field(default_factory=list)
    step_s: int = _STEPS_S[0]
    corrupt_count: int = 0
    field_sample_rows: int = 0
    nodes: list[NodeFigures] = field(default_factory=list)
    # Sentences about messages that exist, or may, and are not in the figures.
    unseen: list[str] = field(default_factory=list)
    # The growth of all queues together, and when the earlier look was.
    growth: Growth | None = None
    compared_with: datetime | None = None

    def compare(self, before: Look, after: Look | None = None) -> None:
        """Add the growth since an earlier look.

        Args:
            after: a look of the same kind; None to compare with the messages of this report.
        """
        if after is None:
            counts = {(queue.topic, queue.channel): queue.message_count for queue in self.queues}
            after = Look(self.created, counts)
        grown = before.compare(after)
        for queue in self.queues:
            queue.growth = grown.get((queue.topic, queue.channel))
        if grown:
            span_s = next(iter(grown.values())).span_s
            # Also what is gone: a topic that was deleted has drained.
            self.growth = Growth(sum(before.counts.values()), sum(after.counts.values()), span_s)
        self.compared_with = before.moment


class Counting:
    """The count of one selection, in one scan of its messages.

    Spark keeps the headers, the damage that was met, and the bodies of a sample. How large a share
    the sample must be is estimated before the scan; the topics for which that was far too little,
    as with `--since`, are read once more.
    """

    def __init__(
        self, spark: SparkSession, selection: Selection, progress: Progress, *, field_rows: int
    ) -> None:
        """Prepare; nothing is read yet.

        Args:
            field_rows: how many messages per topic to look into for JSON fields, 0 for none.
        """
        self._spark = spark
        self._selection = selection
        self._progress = progress
        self._field_rows = field_rows
        columns = f"{_HEADER_COLUMNS},{DAMAGE_COLUMN}"
        if selection.includes_bad:
            columns += f",{BAD_COLUMN}"
        if field_rows:
            scan = selection.load(spark, columns=f"{columns},body")
            scan = scan.withColumn("body", F.when(self._is_sampled(), F.col("body")))
        else:
            scan = selection.load(spark, columns=columns)
        self._scan = scan.persist(StorageLevel.MEMORY_AND_DISK)
        self._messages = self._scan.where(F.col(DAMAGE_COLUMN).isNull())
        self._headers = self._messages.drop(DAMAGE_COLUMN, "body")

    def _is_sampled(self) -> Column:
        """Choose messages by chance, so many of each topic that there is about a sample."""
        shares = estimate_shares(
            self._selection.queues, self._selection.options, self._field_rows, _MAX_SAMPLE_BYTES
        )
        if not shares:
            return F.lit(True)
        pairs = [F.lit(each) for share in shares.items() for each in share]
        return F.rand(1) < F.coalesce(F.create_map(*pairs)[F.col("topic")], F.lit(1.0))

    def close(self) -> None:
        """Drop what Spark keeps of the scan."""
        self._scan.unpersist()

    def count(self, report: Report) -> None:
        """Fill the report."""
        self._progress.step("reading messages")
        report.queues = self._queues()
        figures = {(queue.topic, queue.channel): queue for queue in report.queues}
        total = sum(queue.message_count for queue in report.queues)
        self._progress.step(f"{total:,} messages in {len(figures):,} queues; counting over time")
        report.nodes = self._nodes()
        report.unseen = self._selection.unseen + self._add_latencies(figures)
        report.step_s = choose_step_s(report.queues)
        self._add_histograms(figures, report.step_s)
        self._progress.step("looking for poison messages and duplicate ids")
        report.poison = self._poison()
        report.duplicates = self._duplicates(figures)
        self._add_damage(report)
        if self._field_rows and total:
            self._progress.step("discovering fields of JSON bodies")
            self._add_fields(report)

    def _queues(self) -> list[QueueFigures]:
        size = F.col("size")
        rows = (
            self._headers.groupBy(*_KEY)
            .agg(
                F.count_distinct("node").alias("node_count"),
                F.count(F.lit(1)).alias("message_count"),
                F.sum(size).alias("byte_count"),
                F.unix_micros(F.min("timestamp")).alias("oldest"),
                F.unix_micros(F.max("timestamp")).alias("newest"),
                F.percentile_approx(size, [0.5, 0.9, 0.99]).alias("percentiles"),
                F.max(size).alias("size_max"),
                F.max("attempts").alias("attempts_max"),
                F.count_if(F.col("attempts") > 1).alias("retried_count"),
            )
            .collect()
        )
        found = {}
        for row in rows:
            values = row.asDict()
            p50, p90, p99 = values.pop("percentiles")
            values |= {name: utc(values[name]) for name in ("oldest", "newest")}
            queue = QueueFigures(**values, size_p50=p50, size_p90=p90, size_p99=p99)
            found[queue.topic, queue.channel] = queue
        for key in {(each.topic, each.channel) for each in self._selection.queues}:
            if key not in found:
                found[key] = QueueFigures(*key, 0, 0, 0, None, None, 0, 0, 0, 0, 0, 0)
        for each in self._selection.queues:
            if each.counts:
                queue = found[each.topic, each.channel]
                queue.places = queue.places or Places()
                queue.places.add(each.counts)
        return sorted(found.values(), key=lambda queue: (queue.topic, queue.channel or ""))

    def _nodes(self) -> list[NodeFigures]:
        """Count by node; also those with nothing, and those that did not answer."""
        found: dict[str, NodeFigures] = {}
        for queue in self._selection.queues:
            node = found.setdefault(queue.node, NodeFigures(queue.node, 0))
            node.queue_count += 1
            if queue.counts:
                node.places = node.places or Places()
                node.places.add(queue.counts)
        rows = self._headers.groupBy("node").agg(
            F.count(F.lit(1)).alias("messages"),
            F.sum("size").alias("bytes"),
            F.unix_micros(F.min("timestamp")).alias("oldest"),
        )
        for row in rows.collect():
            node = found.setdefault(row.node, NodeFigures(row.node, 0))
            node.message_count, node.byte_count = row.messages, row.bytes
            node.oldest = utc(row.oldest)
        for url, reason in self._selection.unreachable:
            node_name = url.partition("://")[2]
            found[node_name] = NodeFigures(node_name, 0, failure=reason)
        return sorted(found.values(), key=lambda node: node.node)

    def _add_latencies(self, figures: dict[QueueKey, QueueFigures]) -> list[str]:
        """Ask running nodes; return a sentence about each that did not answer."""
        fleet = self._selection.options.fleet
        if fleet is None:
            return []
        urls = {queue.directory for queue in self._selection.queues}
        latencies, failures = find_latencies(sorted(urls), fleet)
        for key, times in latencies.items():
            if key in figures:
                figures[key].latency = times
        return failures

    def _add_histograms(self, figures: dict[QueueKey, QueueFigures], step_s: int) -> None:
        step_us = step_s * 1_000_000
        moment = F.expr(f"floor(unix_micros(timestamp) / {step_us}) * {step_us}L").alias("moment")
        # Bucket n holds the sizes from 2^n, and bucket 0 the empty bodies and those of one byte.
        power = F.floor(F.log2(F.greatest(F.col("size"), F.lit(1)))).cast("int").alias("power")
        for row in self._headers.groupBy(*_KEY, moment).count().orderBy("moment").collect():
            figures[row.topic, row.channel].over_time.append((utc(row.moment), row["count"]))
        for row in self._headers.groupBy(*_KEY, "attempts").count().orderBy("attempts").collect():
            figures[row.topic, row.channel].attempts.append((row.attempts, row["count"]))
        for row in self._headers.groupBy(*_KEY, power).count().orderBy("power").collect():
            figures[row.topic, row.channel].sizes.append((row.power, row["count"]))

    def _poison(self) -> list[_Row]:
        """Find the messages that were attempted most, with the first bytes of their bodies."""
        suspects = self._headers.where(F.col("attempts") >= _MIN_POISON_ATTEMPTS).withColumn(
            "timestamp", F.unix_micros("timestamp")
        )
        rows = _top_per_queue(suspects, F.desc("attempts"), _POISON_PER_QUEUE)
        queues = {(each.node, each.name): each for each in self._selection.queues}
        for row in rows:
            name = row["topic"] if row["channel"] is None else f"{row['topic']}:{row['channel']}"
            queue = queues.get((row["node"], name))
            row["timestamp"] = utc(row["timestamp"])
            is_readable = queue is not None and not row.pop(BAD_COLUMN, False)
            row["body"] = self._find_body(queue, row) if queue and is_readable else None
        return rows

    def _find_body(self, queue: Queue, row: _Row) -> str | None:
        if not queue.is_remote:
            return _read_body(queue, row)
        size = min(row["size"], _PREVIEW_BYTES)
        offset = row["offset"] + PREFIX_BYTES + HEADER_BYTES
        body = self._selection.read_bytes(queue, row["segment"], offset, size)
        return body.decode("utf-8", "backslashreplace")

    def _duplicates(self, figures: dict[QueueKey, QueueFigures]) -> list[_Row]:
        """Find ids that a queue of one node has more than once; each channel has its own copy."""
        repeated = (
            self._headers.groupBy("node", *_KEY, "id")
            .agg(F.count(F.lit(1)).alias("copies"), F.max("attempts").alias("attempts"))
            .where(F.col("copies") > 1)
            .persist(StorageLevel.MEMORY_AND_DISK)
        )
        for row in repeated.groupBy(*_KEY).agg(F.sum(F.col("copies") - 1).alias("more")).collect():
            figures[row.topic, row.channel].duplicate_count = row.more
        rows = _top_per_queue(repeated, F.desc("copies"), _DUPLICATES_PER_QUEUE)
        repeated.unpersist()
        return rows

    def _add_damage(self, report: Report) -> None:
        """Add the places that the scan found damaged, and those that showed before."""
        names = [field.name for field in CORRUPTION_SCHEMA.fields]
        rows = [dict(zip(names, row, strict=True)) for row in self._selection.list_damage()]
        damaged = self._scan.where(F.col(DAMAGE_COLUMN).contains(" bytes not read)"))
        # Records that are not synced yet are no damage.
        report.corrupt_count = sum(row["kind"] != "unsynced" for row in rows) + damaged.count()
        places = damaged.select("node", "topic", "channel", "segment", "offset", DAMAGE_COLUMN)
        for row in _dicts(places.orderBy(DAMAGE_COLUMN, "offset"), _MAX_CORRUPT_ROWS):
            found = parse_damage(row.pop(DAMAGE_COLUMN))
            if found is not None:
                kind, path, reason, byte_count = found
                more = {"bytes": byte_count, "kind": kind, "reason": reason, "path": path}
                rows.append(row | more)
        rows.sort(key=lambda row: (row["path"], row["offset"] or 0))
        report.corrupt_records = rows[:_MAX_CORRUPT_ROWS]

    def _add_fields(self, report: Report) -> None:
        counts: dict[str, int] = {}
        for queue in report.queues:
            counts[queue.topic] = counts.get(queue.topic, 0) + queue.message_count
        sample = self._messages.where(F.col("body").isNotNull()).select("topic", "body")
        sizes = {row.topic: row["count"] for row in sample.groupBy("topic").count().collect()}
        goals = {topic: min(count, self._field_rows) for topic, count in counts.items()}
        short = [
            topic for topic, goal in goals.items() if sizes.get(topic, 0) < goal * _SAMPLE_TOLERANCE
        ]
        if short:
            shares = {topic: min(1.0, self._field_rows / counts[topic]) for topic in short}
            again = self._selection.load(self._spark, columns="topic,body", topic=",".join(short))
            sample = sample.where(~F.col("topic").isin(short)).union(
                again.sampleBy("topic", shares, seed=1)
            )
        entries = split_fields(sample).persist(StorageLevel.MEMORY_AND_DISK)
        roots, fields = describe_fields(entries)
        report.bodies = _dicts(roots.orderBy("topic", F.desc("count")), _MAX_FIELDS)
        report.fields = _dicts(fields.orderBy("topic", "path"), _MAX_FIELDS)
        entries.unpersist()
        report.field_sample_rows = self._field_rows
        _add_shares(report)


def estimate_shares(
    queues: Sequence[Queue], options: ReadOptions, row_count: int, max_bytes: int
) -> dict[str, float]:
    """Estimate which share of each topic's messages is a sample; topics read whole are left out.

    Args:
        row_count: so many messages of a topic are a sample.
        max_bytes: of the samples of all topics.
    """
    counts: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for queue in queues:
        size = sum(each.end - each.start for each in queue.ranges(options))
        size += sum(part.byte_count for part in queue.parts)
        count = sum(queue.counts.values())
        if not count:
            depth = queue.metadata.depth if queue.metadata is not None else 0
            count = depth if depth > 0 else size // _LIKELY_RECORD_BYTES
        counts[queue.topic] = counts.get(queue.topic, 0) + count
        sizes[queue.topic] = sizes.get(queue.topic, 0) + size
    shares = {
        topic: min(row_count / max(count, 1), max_bytes / (len(counts) * max(sizes[topic], 1)), 1.0)
        for topic, count in counts.items()
    }
    return {topic: share for topic, share in shares.items() if share < 1.0}


def utc(microseconds: int) -> datetime:
    """Return a moment in UTC; Spark would give it in the driver's time zone, and not say so."""
    return _EPOCH + timedelta(microseconds=microseconds)


def time_span(queues: Sequence[QueueFigures]) -> tuple[datetime | None, datetime | None]:
    """Return the times of the oldest and the newest message; neither without messages."""
    return (
        min((queue.oldest for queue in queues if queue.oldest), default=None),
        max((queue.newest for queue in queues if queue.newest), default=None),
    )


def choose_step_s(queues: Sequence[QueueFigures]) -> int:
    """Choose the steps of the count over time: minutes, or longer if there were too many."""
    oldest, newest = time_span(queues)
    if oldest is None or newest is None:
        return _STEPS_S[0]
    span_s = (newest - oldest).total_seconds()
    for step_s in _STEPS_S:
        if span_s / step_s <= _MAX_STEPS:
            return step_s
    days = -(-span_s // (_STEPS_S[-1] * _MAX_STEPS))
    return int(days) * _STEPS_S[-1]


def _add_shares(report: Report) -> None:
    """Add the share of objects that lack a field or have null there."""
    objects: dict[str, int] = {}
    for row in report.bodies:
        if row["type"] not in (NOT_JSON, "null"):
            objects[row["topic"]] = objects.get(row["topic"], 0) + row["count"]
    for row in report.fields:
        count = objects.get(row["topic"], 0)
        # Elements of arrays occur as often as they like, so only explicit nulls count there.
        base = row["present"] if "[]" in row["path"] else max(count, row["present"])
        filled = row["present"] - row["nulls"]
        row["null_share"] = 1 - filled / base if base else 0.0
        row["top"] = [(each["value"], each["count"]) for each in row["top"] or ()]


def _top_per_queue(frame: DataFrame, order: Column, count: int) -> list[_Row]:
    rank = F.row_number().over(Window.partitionBy(*_KEY).orderBy(order, F.asc("id")))
    ranked = frame.withColumn("rank", rank).where(F.col("rank") <= count)
    return _dicts(ranked.orderBy(order, "topic", "channel").drop("rank"), _MAX_TOP_ROWS)


def _dicts(frame: DataFrame, max_rows: int) -> list[_Row]:
    return [row.asDict(recursive=True) for row in frame.limit(max_rows).collect()]


def _read_body(queue: Queue, row: _Row) -> str | None:
    """Return the first bytes of a record's body as text, or None if its segment is gone."""
    try:
        directory = Directory(queue.directory, queue.store)
        with directory.open_file(queue.file_name(row["segment"])) as file:
            file.seek(row["offset"])
            start = file.read(PREFIX_BYTES + HEADER_BYTES + _PREVIEW_BYTES)
    except FileNotFoundError:
        return None
    (length,) = PREFIX.unpack_from(start)
    body = start[PREFIX_BYTES + HEADER_BYTES : PREFIX_BYTES + length]
    return str(body.decode("utf-8", "backslashreplace"))
