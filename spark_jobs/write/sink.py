"""The sink of the format `nsq`: rows of a DataFrame become messages.

    df.write.format("nsq").mode("append").options(addresses="nsqd1:4150", topic="orders").save()

The frame has a column `body` (binary or string) and may have `topic` (string) and `defer_ms` (a
number; null or 0 is now). Other columns are ignored. Options:

    addresses       of nsqd, host:port with commas; tasks spread over them
    lookupd         of nsqlookupd, host:port with commas, instead of addresses
    topic           where all rows go; without it, the column says
    batchSize       messages per MPUB at most, default 1000
    batchBytes      bytes per MPUB at most, default 1m; nsqd's --max-body-size is the upper bound
    window          MPUBs without an answer at a time, default 4
    retries         how often in a row to try again before the task fails, default 5
    timeout         seconds to wait for an answer, default 30
    maxRate         messages per second and task
    tls, tlsCa, tlsCert, tlsKey, tlsInsecure      true, and paths of PEM files
    authSecret      for nsqd's AUTH
    authSecretFile  the same, as a file on the driver
    summaryPath     file on the driver that gets the counts as JSON

Delivery is at least once: when a connection breaks, or Spark runs a task again, messages that had
arrived are published twice. `publish` does the same as `save` and returns the counts, also of what
went out in tasks that Spark ran again. With spark.speculation a slow task is run twice at a time,
and both publish: leave it off for writes.
"""

import json
import logging
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JJavaError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

from spark_jobs.pace import Pace
from spark_jobs.tally import Tally, TallyClient
from spark_jobs.write.options import SinkOptions
from spark_jobs.write.publisher import (
    Command,
    Publisher,
    PublishError,
    check_topic,
    encode_dpub,
    encode_mpub,
    find_addresses,
)

_PREFIX_BYTES = 4
_MAX_DEFER_MS = 2**31 - 1

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Published(WriterCommitMessage):
    """The counts of a task, or of all tasks."""

    message_count: int = 0
    # Messages sent more than once because of broken connections; some may have arrived twice.
    resent_count: int = 0
    by_topic: Mapping[str, int] = field(default_factory=dict)
    # Messages that tasks had published which failed, or ran twice; they are out as well. Known to
    # `publish` only.
    repeated_count: int = 0
    # The attempts of tasks that made these counts.
    attempts: tuple[str, ...] = field(default=(), repr=False)


def publish(frame: DataFrame, **options: str) -> Published:
    """Publish a frame and return the counts; the options are those of the sink.

    Raises:
        PySparkException: a task failed; messages published until then stay published, and their
            number is logged.
    """
    tally = Tally(frame.sparkSession.sparkContext.getConf().get("spark.driver.host") or "localhost")
    try:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "published.json"
            try:
                frame.write.format("nsq").mode("append").options(
                    **options | {"summaryPath": str(path), "tally": tally.address}
                ).save()
            except (PySparkException, Py4JJavaError):
                count = sum(tally.counts().values())
                if count:
                    _logger.warning("publishing failed; published by then messages=%d", count)
                raise
            summary = json.loads(path.read_text())
        done = set(summary["attempts"])
        repeated = sum(n for attempt, n in tally.counts().items() if attempt not in done)
    finally:
        tally.close()
    return Published(summary["messages"], summary["resent"], summary["topics"], repeated)


def check_sink_schema(schema: StructType, options: SinkOptions) -> None:
    """Refuse a frame that cannot be published.

    Raises:
        ValueError: a column is missing or has the wrong type.
    """
    types = {each.name: each.dataType for each in schema.fields}
    _require_type(types, "body", (BinaryType, StringType))
    if options.topic is None:
        if "topic" not in types:
            raise ValueError("the sink needs the option topic or a column topic")
        _require_type(types, "topic", (StringType,))
    if "defer_ms" in types:
        _require_type(types, "defer_ms", (LongType, IntegerType, ShortType, ByteType))


def _require_type(
    types: Mapping[str, DataType], name: str, wanted: tuple[type[DataType], ...]
) -> None:
    if not isinstance(types.get(name), wanted):
        kinds = " or ".join(each.typeName() for each in wanted)
        found = types[name].simpleString() if name in types else "not there"
        raise ValueError(f"the sink needs a column {name} of type {kinds}; it is {found}")


class NsqWriter(DataSourceArrowWriter):
    """A writer of the rows of a batch query."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        return publish_batches(iterator, self._options)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _write_summary(_total(messages), self._options)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        total = _total(messages)
        _logger.warning("publishing failed; published by then messages=%d", total.message_count)


class NsqStreamWriter(DataSourceStreamArrowWriter):
    """A writer of the rows of each micro-batch; one that is run again is published again."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        return publish_batches(iterator, self._options)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _write_summary(_total(messages), self._options)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        total = _total(messages)
        _logger.warning("publishing failed; published by then messages=%d", total.message_count)


def _total(messages: list[WriterCommitMessage | None]) -> Published:
    by_topic: dict[str, int] = {}
    message_count = resent_count = 0
    attempts: list[str] = []
    for each in messages:
        if not isinstance(each, Published):
            continue  # a task that failed
        message_count += each.message_count
        resent_count += each.resent_count
        attempts += each.attempts
        for topic, count in each.by_topic.items():
            by_topic[topic] = by_topic.get(topic, 0) + count
    return Published(message_count, resent_count, by_topic, attempts=tuple(attempts))


def _write_summary(total: Published, options: SinkOptions) -> None:
    _logger.info("published messages=%d resent=%d", total.message_count, total.resent_count)
    if options.summary_path is not None:
        summary: dict[str, object] = {
            "messages": total.message_count,
            "resent": total.resent_count,
            "topics": dict(total.by_topic),
        }
        if options.tally is not None:
            summary["attempts"] = total.attempts
        Path(options.summary_path).write_text(json.dumps(summary))


def publish_batches(batches: Iterator[pa.RecordBatch], options: SinkOptions) -> Published:
    """Publish the rows of one task; connect only if there are any.

    Raises:
        PublishError: nsqd refuses a message or cannot be reached, or a row cannot be published.
    """
    publisher: Publisher | None = None
    tally: TallyClient | None = None
    attempt = _attempt_id()
    pace = Pace(options.max_rate)
    by_topic: dict[str, int] = {}
    try:
        for batch in batches:
            for topic, command in commands_of(batch, options):
                if publisher is None:
                    publisher = _open(options, topic)
                    tally = TallyClient(options.tally) if options.tally else None
                pace.wait(command.message_count)
                publisher.publish(command)
                by_topic[topic] = by_topic.get(topic, 0) + command.message_count
                if tally is not None:
                    tally.tell(attempt, publisher.published_count)
        if publisher is None:
            return Published()
        publisher.flush()
        assert publisher.published_count == sum(by_topic.values())
        return Published(
            publisher.published_count,
            publisher.resent_count,
            by_topic,
            attempts=(attempt,) if attempt else (),
        )
    finally:
        if publisher is not None:
            publisher.close()
            if tally is not None:
                tally.tell(attempt, publisher.published_count)
                tally.close()


def _attempt_id() -> str:
    context = TaskContext.get()
    return str(context.taskAttemptId()) if context else ""


def _open(options: SinkOptions, topic: str) -> Publisher:
    context = TaskContext.get()
    return Publisher(
        options.publisher,
        find_addresses(options.publisher, topic),
        first_address=context.partitionId() if context else 0,
    )


def commands_of(batch: pa.RecordBatch, options: SinkOptions) -> Iterator[tuple[str, Command]]:
    """Yield the commands that publish a batch, each with its topic.

    Raises:
        PublishError: a row has no body or no topic, or a topic is not valid.
    """
    bodies = batch.column("body").cast(pa.binary())
    sizes = pc.binary_length(bodies)
    if bodies.null_count or pc.any(pc.equal(sizes, 0)).as_py():
        raise PublishError("a row has no body, and NSQ has no empty messages; filter such rows")
    defers = batch.column("defer_ms") if "defer_ms" in batch.schema.names else None
    if options.topic is not None:
        yield from _topic_commands(options.topic, bodies, defers, options)
        return
    topics = batch.column("topic")
    if topics.null_count:
        raise PublishError("a row has no topic; fill the column topic or set the option topic")
    for topic in topics.unique().to_pylist():
        is_here = pc.equal(topics, topic)
        of_topic = None if defers is None else defers.filter(is_here)
        yield from _topic_commands(topic, bodies.filter(is_here), of_topic, options)


def _topic_commands(
    topic: str, bodies: pa.Array, defers: pa.Array | None, options: SinkOptions
) -> Iterator[tuple[str, Command]]:
    check_topic(topic)
    if defers is not None:
        defers = pc.fill_null(defers.cast(pa.int64()), 0)
        is_deferred = pc.greater(defers, 0)
        later = zip(
            bodies.filter(is_deferred).to_pylist(),
            defers.filter(is_deferred).to_pylist(),
            strict=True,
        )
        for body, defer_ms in later:
            yield topic, encode_dpub(topic, body, min(defer_ms, _MAX_DEFER_MS))
        bodies = bodies.filter(pc.invert(is_deferred))
    for command in _mpub_commands(topic, bodies, options):
        yield topic, command


def _mpub_commands(topic: str, bodies: pa.Array, options: SinkOptions) -> Iterator[Command]:
    if not len(bodies):
        return
    framed, ends = frame_bodies(bodies)
    first = 0
    begin = 0
    while first < len(ends):
        last = int(np.searchsorted(ends, begin + options.batch_bytes, side="right"))
        last = min(max(last, first + 1), first + options.batch_count)
        end = int(ends[last - 1])
        yield encode_mpub(topic, last - first, framed[begin:end])
        first, begin = last, end


def frame_bodies(bodies: pa.Array) -> tuple[bytes, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Put each body behind its size; return all of them in one buffer, and where each ends.

    Arrow interleaves them: sizes become binary values of four bytes, and Arrow's `take` puts each
    before its body. No Python object is made for a message.
    """
    count = len(bodies)
    sizes = pc.binary_length(bodies).to_numpy(zero_copy_only=False)
    prefixes = pa.Array.from_buffers(
        pa.binary(),
        count,
        [
            None,
            pa.py_buffer(np.arange(0, _PREFIX_BYTES * count + 1, _PREFIX_BYTES, dtype=np.int32)),
            pa.py_buffer(sizes.astype(">i4")),
        ],
    )
    order = np.empty(2 * count, np.int32)
    order[0::2] = np.arange(count)
    order[1::2] = np.arange(count, 2 * count)
    mixed = pa.concat_arrays([prefixes, bodies]).take(pa.array(order))
    framed: bytes = mixed.buffers()[2].to_pybytes()
    return framed, np.cumsum(sizes + _PREFIX_BYTES, dtype=np.int64)
