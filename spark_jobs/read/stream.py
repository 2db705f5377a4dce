"""Tailing queues: `spark.readStream.format("nsq")`.

    stream = spark.readStream.format("nsq").option("topic", "orders").load("/var/lib/nsqd")
    stream.writeStream.format("parquet").option("checkpointLocation", "/ckpt").start("/lake/orders")

All options of a read, but `since` and `until`, which would skip rows of a query without a sign;
and `maxRowsPerTrigger`, the number of messages in a micro-batch. `from` says where a new query
begins: backlog, earliest, archive, or latest (messages published from now on).

An offset is a position in every queue, and the rows of a micro-batch are decided by offsets alone:

    {"end":   {"/var/lib/nsqd": {"orders": "3:1048576", "orders:billing": "0:512"}},
     "begin": {"/var/lib/nsqd": {"orders:billing": "0:0"}}}

`end` is where the batch ends, segment:offset; `begin` is there for queues that the query had not
seen before, and says where reading of them starts. Files below the synced position never change,
so a batch that is run again has the same rows, and with a checkpoint each row is processed exactly
once. A queue that vanishes is forgotten; one that goes backwards was emptied or made anew.

nsqd deletes a segment when it is consumed. If that happens before the stream has read it, the query
fails and names it, unless failOnDataLoss=false. To see all traffic, let nsqd keep an archive.
"""

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from spark_jobs.read.files.catalog import Queue, find_gaps, find_queues, ranges_of
from spark_jobs.read.files.plan import gather, make_slice
from spark_jobs.read.files.scan import SegmentLostError, SegmentSlice, count_records
from spark_jobs.read.options import Origin, ReadOptions
from spark_jobs.read.reader import read_partition

# Below the usual limit of 1024 descriptors of a process.
_MAX_OPEN_SEGMENTS = 512

_logger = logging.getLogger(__name__)

QueueKey = tuple[str, str]  # directory, name


class Position(NamedTuple):
    """A place in a queue, between two records."""

    segment: int
    offset: int

    def __str__(self) -> str:
        return f"{self.segment}:{self.offset}"


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The end of a micro-batch in every queue, and the begin of queues that are new in it."""

    end: Mapping[QueueKey, Position]
    begin: Mapping[QueueKey, Position]

    def to_json(self) -> dict[str, Any]:
        """Return the offset as Spark stores it."""
        return {"end": _nest(self.end), "begin": _nest(self.begin)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "StreamOffset":
        """Parse an offset that Spark stored.

        Raises:
            ValueError: the document is no offset of this format.
        """
        try:
            return cls(_flatten(document["end"]), _flatten(document["begin"]))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"not an offset of format nsq: {document!r}") from error


def _nest(positions: Mapping[QueueKey, Position]) -> dict[str, dict[str, str]]:
    nested: dict[str, dict[str, str]] = {}
    for (directory, name), position in sorted(positions.items()):
        nested.setdefault(directory, {})[name] = str(position)
    return nested


def _flatten(nested: Mapping[str, Mapping[str, str]]) -> dict[QueueKey, Position]:
    flat: dict[QueueKey, Position] = {}
    for directory, queues in nested.items():
        for name, text in queues.items():
            segment, offset = text.split(":")
            flat[directory, name] = Position(int(segment), int(offset))
    return flat


class NsqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader that decides on the driver which rows a micro-batch has; executors call `read`."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        if options.since_ns is not None or options.until_ns is not None:
            raise ValueError("a stream has no since and until; filter the stream instead")
        if options.includes_bad or options.includes_unsynced:
            raise ValueError("a stream reads neither .bad files nor what is not synced")
        self._options = options
        self._schema = schema
        # With Trigger.AvailableNow, the end of the queues when the query started.
        self._target: StreamOffset | None = None
        self._open_segments = OpenSegments()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        queues = self._find_queues()
        positions = {_key(queue): first_position(queue, self._options.origin) for queue in queues}
        return StreamOffset(positions, {}).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 (Spark's name)
        if self._options.max_rows_per_trigger is None:
            return ReadAllAvailable()
        return ReadMaxRows(self._options.max_rows_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 (Spark's name)
        self._target = self._latest()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        """Report where the queues end now: the distance of a batch's end from it is the lag."""
        return StreamOffset(self._latest().end, {}).to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begin = StreamOffset.from_json(start)
        target = self._target or self._latest()
        offset = self._advance(begin, target)
        if isinstance(limit, ReadMaxRows):
            offset = self._limit(begin, offset, limit.max_rows)
        # Spark takes a batch for empty only if the offset is the very same.
        return start if offset.end == begin.end and not offset.begin else offset.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, finish = StreamOffset.from_json(start), StreamOffset.from_json(end)
        queues = {_key(queue): queue for queue in find_queues(self._options)}
        slices: list[SegmentSlice] = []
        for key, last in finish.end.items():
            first = finish.begin.get(key) or begin.end.get(key)
            if first is None or first == last:
                continue
            slices += self._slices(queues.get(key), key, first, last)
        return gather(slices, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._schema, self._options)

    def _latest(self) -> StreamOffset:
        """Return the synced end of every queue; `begin` of all, as any may be new to the query."""
        queues = self._find_queues()
        ends = {_key(queue): Position(*queue.synced_position()) for queue in queues}
        for queue in queues:
            self._open_segments.open(queue, ends[_key(queue)].segment)
        # Segments that nsqd has given up may stand in an archive for a moment yet; skip them.
        is_archive = self._options.origin is Origin.ARCHIVE
        origin = Origin.ARCHIVE if is_archive else Origin.EARLIEST
        begins = {_key(queue): first_position(queue, origin) for queue in queues}
        return StreamOffset(ends, begins)

    def _find_queues(self) -> list[Queue]:
        """Find the queues with metadata: without it, the end may be within a record."""
        return [queue for queue in find_queues(self._options) if queue.metadata is not None]

    def stop(self) -> None:
        self._open_segments.close()

    def _advance(self, start: StreamOffset, target: StreamOffset) -> StreamOffset:
        """Go from the end of the last batch to the target; report queues that went back."""
        end: dict[QueueKey, Position] = {}
        begin: dict[QueueKey, Position] = {}
        for key, last in target.end.items():
            first = start.end.get(key)
            if first is None:
                begin[key] = target.begin[key]
            elif last < first:
                self._report_reset(key, first, last)
                begin[key] = target.begin[key]
            end[key] = max(last, begin.get(key, last))
        for key in start.end.keys() - target.end.keys():
            _logger.warning("queue is gone directory=%s name=%s", *key)
        return StreamOffset(end, begin)

    def _report_reset(self, key: QueueKey, first: Position, last: Position) -> None:
        directory, name = key
        text = (
            f"queue {name} in {directory} went back from {first} to {last}: it was emptied, or"
            " deleted and made anew, and messages may have gone unread"
        )
        if self._options.fails_on_data_loss:
            raise SegmentLostError(
                f"{text}; set failOnDataLoss=false to go on with what is there now"
            )
        _logger.warning("%s", text)

    def _limit(self, start: StreamOffset, offset: StreamOffset, max_rows: int) -> StreamOffset:
        """Cut an offset so that the batch has at most max_rows; every queue gets its share."""
        queues = {_key(queue): queue for queue in find_queues(self._options)}
        pending = {
            key: offset.begin.get(key) or start.end[key]
            for key, last in offset.end.items()
            if (offset.begin.get(key) or start.end[key]) != last
        }
        end = {key: pending.get(key, last) for key, last in offset.end.items()}
        left = max_rows
        while pending and left > 0:
            share = max(left // len(pending), 1)
            for key in sorted(pending):
                if left <= 0:
                    break
                last = offset.end[key]
                count, end[key] = self._count_on(
                    queues.get(key), key, end[key], last, min(share, left)
                )
                left -= count
                if end[key] == last:
                    del pending[key]
        return replace(offset, end=end)

    def _count_on(
        self, queue: Queue | None, key: QueueKey, first: Position, last: Position, max_rows: int
    ) -> tuple[int, Position]:
        """Count the records behind a position, up to max_rows; return the count and its end."""
        total = 0
        for each in self._slices(queue, key, first, last):
            count, end = count_records(each, max_rows - total, self._options)
            total += count
            if end is not None:
                return total, Position(each.constants.segment, end)
        return total, last

    def _slices(
        self, queue: Queue | None, key: QueueKey, first: Position, last: Position
    ) -> Iterator[SegmentSlice]:
        """Yield the parts of segments between two positions.

        Raises:
            SegmentLostError: one of them is gone, and failOnDataLoss is true.
        """
        sizes = queue.sizes if queue is not None else {}
        stop = last.segment + (last.offset > 0)
        here = [number for number in sizes if first.segment <= number < stop]
        present = ranges_of(here)
        parts = [*find_gaps(present, first.segment, stop), *present]
        for numbers in sorted(parts, key=attrgetter("start")):
            number = numbers[0]
            start = first.offset if number == first.segment else 0
            if number == last.segment and start >= last.offset:
                continue
            if queue is None or number not in sizes:
                # Nothing is lost if it ended where the stream stands.
                if len(numbers) > 1 or self._open_segments.find_size(key, number) != start:
                    self._report_gone(key, numbers, start)
                continue
            end = last.offset if number == last.segment else sizes[number]
            if start < end:
                yield make_slice(queue, number, start, end)

    def _report_gone(self, key: QueueKey, numbers: range, start: int) -> None:
        directory, name = key
        text = (
            f"segment {numbers[0]} of queue {name} in {directory} was deleted before the stream had"
            f" read it from offset {start} on"
        )
        if len(numbers) > 1:
            text += f", and so was all up to segment {numbers[-1]}"
        if self._options.fails_on_data_loss:
            is_archive = self._options.origin is Origin.ARCHIVE
            hint = "keep more of it" if is_archive else "keep an archive"
            raise SegmentLostError(
                f"{text}; set failOnDataLoss=false to go on without it, or let nsqd {hint}"
            )
        _logger.warning("%s", text)


class OpenSegments:
    """The segment that a stream reads last in each queue, kept open on the driver.

    nsqd deletes a segment once it is consumed, perhaps between two looks of the stream. Whether the
    stream had read all of it is then known only from the file itself, and a file that is open can
    still be looked at. Local files only; for others the answer is "not known".
    """

    def __init__(self) -> None:
        self._files: dict[QueueKey, tuple[int, int]] = {}  # queue -> number, descriptor

    def open(self, queue: Queue, number: int) -> None:
        """Open a segment and close the one before it; a missing segment changes nothing."""
        key = _key(queue)
        before = self._files.get(key)
        if (before is not None and before[0] == number) or "://" in queue.directory:
            return
        if before is None and len(self._files) >= _MAX_OPEN_SEGMENTS:
            return
        with contextlib.suppress(OSError):
            path = f"{queue.directory}/{queue.file_name(number)}"
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            if before is not None:
                os.close(before[1])
            self._files[key] = number, descriptor

    def find_size(self, key: QueueKey, number: int) -> int | None:
        """Return the size of an open segment, deleted or not; None if it is not open."""
        found = self._files.get(key)
        if found is None or found[0] != number:
            return None
        return os.fstat(found[1]).st_size

    def close(self) -> None:
        """Close all."""
        for _, descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    def __getstate__(self) -> dict[str, object]:
        """Leave the descriptors on the driver when Spark pickles the reader."""
        return {"_files": {}}


def first_position(queue: Queue, origin: Origin) -> Position:
    """Return the position where reading of a queue begins."""
    synced = Position(*queue.synced_position())
    if origin is Origin.LATEST:
        return synced
    if origin is not Origin.EARLIEST and queue.metadata is not None:
        return Position(queue.metadata.read_file, queue.metadata.read_pos)
    if not queue.sizes:
        return synced
    return min(Position(min(queue.sizes), 0), synced)


def _key(queue: Queue) -> QueueKey:
    return queue.directory, queue.name
