"""Tailing queues: `spark.readStream.format("nsq")`.

    stream = spark.readStream.format("nsq").option("topic", "orders").load("/var/lib/nsqd")
    stream.writeStream.format("parquet").option("checkpointLocation", "/ckpt").start("/lake/orders")

All options of a read, but `since` and `until`, which would skip rows of a query without a sign;
and `maxRowsPerTrigger`, the number of messages in a micro-batch. `from` says where a new query
begins: backlog, earliest, archive, or latest (messages published from now on); startingOffsets and
startingTimestamp say it more exactly. Of running nodes a stream reads what is on disk.

An offset is a position in every queue (`offsets.py`), and the rows of a micro-batch are decided by
offsets alone. Files below the synced position never change, so a batch that is run again has the
same rows, and with a checkpoint each row is processed exactly once. A queue is never forgotten: one
that is not there for a while goes on where it was.

Three things end a query, and its error names the queue:

* messages that can have gone unread: a segment or a whole queue was deleted, or a queue was emptied
  or made anew. failOnDataLoss=false goes on with the messages there, and logs it;
* damage. mode=PERMISSIVE skips and logs it;
* a directory or a node that cannot be read. With failOnDataLoss=false the stream goes on with the
  other nodes, but for a batch that was planned with messages of this one.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from spark_jobs.read.bounds import parse_offsets
from spark_jobs.read.files.identity import find_same, keep_generation
from spark_jobs.read.files.open_segments import OpenSegments
from spark_jobs.read.files.scan import (
    DamagedSegmentError,
    SegmentLostError,
    SegmentSlice,
    count_records,
    find_time,
)
from spark_jobs.read.fleet.client import NodeError
from spark_jobs.read.fleet.manifest import ManifestCache
from spark_jobs.read.look import Look, first_position, take_look
from spark_jobs.read.metrics import measure
from spark_jobs.read.offsets import Mark, Position, QueueKey, StreamOffset, key_of
from spark_jobs.read.options import Mode, Origin, ReadOptions
from spark_jobs.read.plan import gather, make_slice
from spark_jobs.read.queue import Queue, find_gaps, ranges_of
from spark_jobs.read.reader import read_partition
from spark_jobs.read.skipped import SkippedPlaces

_logger = logging.getLogger(__name__)

_MAX_SEEN_SIZES = 64


class NsqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader that decides on the driver which rows a micro-batch has; executors call `read`."""

    def __init__(
        self, options: ReadOptions, schema: pa.Schema, driver_host: str | None = None
    ) -> None:
        if options.since_ns is not None or options.until_ns is not None:
            raise ValueError("a stream has no since and until; filter the stream instead")
        if options.includes_bad or options.includes_unsynced:
            raise ValueError("a stream reads neither .bad files nor what is not synced")
        self._options = options
        self._schema = schema
        # The newest look, and with Trigger.AvailableNow the one when the query started.
        self._look: Look | None = None
        self._target: Look | None = None
        self._is_idle = False
        # Where the last batch ended, for the metrics.
        self._reached: Mapping[QueueKey, Position] = {}
        self._losses = _Losses(self._options)
        self._skipped = SkippedPlaces(driver_host)
        self._manifests = ManifestCache()
        # Final sizes of segments that earlier looks saw, of nodes over HTTP.
        self._seen_sizes: dict[QueueKey, dict[int, int]] = {}
        self._open_segments = OpenSegments()
        # The queue that was served last by a limited batch.
        self._last_served: QueueKey | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        look = self._take_look()
        given: Mapping[QueueKey, Mark] = {}
        if self._options.start_offsets is not None:
            given = parse_offsets("startingOffsets", self._options.start_offsets).end
        marks = {
            key: given.get(key) or Mark(self._begin(queue), look.end_of(key).identity)
            for key, queue in look.queues.items()
        }
        return StreamOffset(marks, {}).to_json()

    def _begin(self, queue: Queue) -> Position:
        """Return where a new query begins in a queue that is there already."""
        if self._options.starts_at_end:
            return first_position(queue, Origin.LATEST)
        if self._options.start_ns is not None:
            return self._find_time(queue, self._options.start_ns)
        return first_position(queue, self._options.origin)

    def _find_time(self, queue: Queue, start_ns: int) -> Position:
        """Return the position of the first record of a time, or later; the end if there is none."""
        origin = Origin.ARCHIVE if self._options.origin is Origin.ARCHIVE else Origin.EARLIEST
        first, last = first_position(queue, origin), Position(*queue.synced_position())
        for each in self._slices(queue, first, last):
            found = find_time(each, start_ns, self._options)
            if found is not None:
                return Position(each.constants.segment, found)
        return last

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 (Spark's name)
        if self._options.max_rows_per_trigger is None:
            return ReadAllAvailable()
        return ReadMaxRows(self._options.max_rows_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 (Spark's name)
        self._target = self._take_look()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        """Report where the queues end: the distance of a batch's end from it is the lag."""
        look = self._look or self._take_look()
        latest = StreamOffset({key: look.end_of(key) for key in look.queues}, {}).to_json()
        metrics = measure(look, self._reached, self._options)
        metrics["damage"] += self._skipped.count()
        return latest | {"metrics": metrics}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        if self._is_idle and self._target is None and self._is_look_fresh():
            return start
        look = self._target or self._take_look()
        begin = _with_new_names(StreamOffset.from_json(start), look)
        offset = self._advance(begin, look)
        if isinstance(limit, ReadMaxRows):
            offset = self._limit(begin, offset, look, limit.max_rows)
        # Spark takes a batch for empty only if the offset is the very same.
        self._is_idle = offset.positions() == begin.positions() and not offset.begin
        self._reached = offset.positions()
        return start if self._is_idle else offset.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        look = self._target or self._look or self._take_look()
        begin = _with_new_names(StreamOffset.from_json(start), look)
        finish = _with_new_names(StreamOffset.from_json(end), look)
        slices: list[SegmentSlice] = []
        for key, last in finish.end.items():
            first = _begin_of(key, begin, finish)
            if first is None or first == last.position:
                continue
            queue = look.queues.get(key)
            if queue is None and look.unreachable:
                # Its node may come back: a batch that went without it would be committed.
                raise NodeError(
                    f"the batch has messages of queue {key[1]} of node {key[0]}, and not all nodes"
                    f" answer: {'; '.join(look.unreachable)}. Start the query again when they do"
                )
            if queue is None:
                self._losses.report_absent(key, look)
            elif find_same(queue, last.identity) is False:
                self._losses.report_other(queue, first)
            else:
                slices += [
                    replace(each, identity=last.identity)
                    for each in self._slices(queue, first, last.position)
                ]
        tally = "" if self._options.mode is Mode.FAILFAST else self._skipped.address()
        return [replace(each, tally=tally) for each in gather(slices, self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._schema, self._options)

    def stop(self) -> None:
        self._open_segments.close()
        self._skipped.close()

    def _is_look_fresh(self) -> bool:
        look = self._look
        return look is not None and time.monotonic() - look.taken_s < self._options.look_interval_s

    def _take_look(self) -> Look:
        self._look = look = take_look(self._options, self._manifests)
        for text in look.unreachable:
            self._losses.report_unreachable(text)
        for queue in look.unreadable.values():
            self._losses.report_fault(queue)
        for key, queue in look.queues.items():
            if queue.is_remote:
                self._remember_sizes(key, queue)
            else:
                self._open_segments.open(queue, queue.synced_position()[0])
        return look

    def _remember_sizes(self, key: QueueKey, queue: Queue) -> None:
        """Note where segments end that are complete: nsqd deletes them, and tells it no more."""
        last = queue.synced_position()[0]
        complete = {number: size for number, size in queue.sizes.items() if number < last}
        before = self._seen_sizes.get(key, {})
        self._seen_sizes[key] = dict(sorted((before | complete).items())[-_MAX_SEEN_SIZES:])

    def _advance(self, start: StreamOffset, look: Look) -> StreamOffset:
        """Go from the end of the last batch to the end of the queues; report the losses."""
        # Segments that nsqd has given up may stand in an archive for a moment yet; skip them.
        is_archive = self._options.origin is Origin.ARCHIVE
        origin = Origin.ARCHIVE if is_archive else Origin.EARLIEST
        end: dict[QueueKey, Mark] = {}
        begin: dict[QueueKey, Position] = {}
        for key, mark in start.end.items():
            queue = look.queues.get(key)
            if queue is None:
                self._losses.report_absent(key, look)
                end[key] = mark
                continue
            last = look.end_of(key)
            if find_same(queue, mark.identity) is False:
                self._losses.report_other(queue, mark.position)
                self._open_segments.forget(queue)
                begin[key] = first_position(queue, origin)
            elif last.position < mark.position:
                self._losses.report_reset(queue, mark.position, last.position)
                begin[key] = first_position(queue, origin)
            else:
                last = last._replace(identity=keep_generation(last.identity, mark.identity))
            end[key] = last._replace(position=max(last.position, begin.get(key, last.position)))
        for key, queue in look.queues.items():
            if key not in start.end:
                begin[key] = first_position(queue, origin)
                end[key] = look.end_of(key)
        return StreamOffset(end, begin)

    def _limit(
        self, start: StreamOffset, offset: StreamOffset, look: Look, max_rows: int
    ) -> StreamOffset:
        """Cut an offset so that the batch has at most max_rows; every queue gets its share.

        With fewer rows than queues, the queues take turns from batch to batch.
        """
        end = dict(offset.end)
        pending: list[QueueKey] = []
        for key, mark in offset.end.items():
            first = _begin_of(key, start, offset)
            if first is not None and first != mark.position and key in look.queues:
                end[key] = mark._replace(position=first)
                pending.append(key)
        left = max_rows
        while pending and left > 0:
            share = max(left // len(pending), 1)
            for key in self._in_turn(pending):
                if left <= 0:
                    break
                last = offset.end[key].position
                count, position = self._count_on(
                    look.queues[key], end[key].position, last, min(share, left)
                )
                end[key] = end[key]._replace(position=position)
                left -= count
                self._last_served = key
                if position == last:
                    pending.remove(key)
        return replace(offset, end=end)

    def _in_turn(self, keys: Sequence[QueueKey]) -> list[QueueKey]:
        """Order keys so that the one behind that which was served last comes first."""
        served = self._last_served
        return sorted(keys, key=lambda key: (served is not None and key <= served, key))

    def _count_on(
        self, queue: Queue, first: Position, last: Position, max_rows: int
    ) -> tuple[int, Position]:
        """Count the records behind a position, up to max_rows; return the count and its end."""
        total = 0
        for each in self._slices(queue, first, last):
            count, end = count_records(each, max_rows - total, self._options)
            total += count
            if end is not None:
                return total, Position(each.constants.segment, end)
        return total, last

    def _slices(self, queue: Queue, first: Position, last: Position) -> Iterator[SegmentSlice]:
        """Yield the parts of segments between two positions.

        Raises:
            SegmentLostError: one of them is gone, and failOnDataLoss is true.
        """
        sizes = queue.sizes
        stop = last.segment + (last.offset > 0)
        here = [number for number in sizes if first.segment <= number < stop]
        present = ranges_of(here)
        parts = [*find_gaps(present, first.segment, stop), *present]
        for numbers in sorted(parts, key=attrgetter("start")):
            number = numbers[0]
            start = first.offset if number == first.segment else 0
            if number == last.segment and start >= last.offset:
                continue
            if number not in sizes:
                if len(numbers) > 1 or not self._did_end_at(queue, number, start):
                    self._losses.report_gone(queue, numbers, start)
                continue
            end = last.offset if number == last.segment else sizes[number]
            if start < end:
                yield make_slice(queue, number, start, end)

    def _did_end_at(self, queue: Queue, number: int, offset: int) -> bool:
        """Tell whether a deleted segment is known to have ended where the stream stands."""
        if queue.last_deleted is not None and queue.last_deleted[0] == number:
            return queue.last_deleted[1] == offset
        if queue.is_remote:
            return self._seen_sizes.get(key_of(queue), {}).get(number) == offset
        return self._open_segments.find_size(queue, number) == offset


class _Losses:
    """Reports of messages that can have gone unread: an error, or a line in the log."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        # Lines that are in the log already: a queue that is gone stays so for many looks.
        self._told: set[str] = set()

    def report_absent(self, key: QueueKey, look: Look) -> None:
        """Report a queue that is not there, unless the options do not select it any more."""
        node, name = key
        topic, _, channel = name.partition(":")
        if key in look.unreadable or not self._options.selects(topic, channel or None):
            return
        self._lose(
            f"queue {name} of node {node} is gone: it was deleted, or its directory is not there,"
            " and messages may have gone unread",
            "to go on without it",
        )

    def report_unreachable(self, text: str) -> None:
        """Report a node that does not answer; with failOnDataLoss=false it is waited for."""
        self._lose(text, "to go on with the other nodes")

    def report_other(self, queue: Queue, first: Position) -> None:
        """Report a queue that has the name of one that was read up to a position."""
        self._lose(
            f"queue {queue.name} in {queue.directory} was deleted and made anew since it was read"
            f" up to {first}, and messages of the old one may have gone unread",
            "to read the new one from its beginning",
        )

    def report_reset(self, queue: Queue, first: Position, last: Position) -> None:
        """Report a queue whose end is before the position up to which it was read."""
        self._lose(
            f"queue {queue.name} in {queue.directory} went back from {first} to {last}: it was"
            " emptied, or deleted and made anew, and messages may have gone unread",
            "to go on with what is there now",
        )

    def report_gone(self, queue: Queue, numbers: range, start: int) -> None:
        """Report segments that were deleted before they were read."""
        text = (
            f"segment {numbers[0]} of queue {queue.name} in {queue.directory} was deleted before"
            f" the stream had read it from offset {start} on"
        )
        if len(numbers) > 1:
            text += f", and so was all up to segment {numbers[-1]}"
        is_archive = self._options.origin is Origin.ARCHIVE
        hint = "keep more of it" if is_archive else "keep an archive"
        self._lose(text, f"to go on without it, or let nsqd {hint}")

    def report_fault(self, queue: Queue) -> None:
        """Report a queue whose metadata cannot be used; one that has none yet just waits.

        Raises:
            DamagedSegmentError: mode is FAILFAST, and there is metadata.
        """
        if queue.metadata_fault is None:
            return
        text = f"queue {queue.name} in {queue.directory}: {queue.metadata_fault}"
        if self._options.mode is Mode.FAILFAST:
            raise DamagedSegmentError(f"{text}; mode=PERMISSIVE waits until it is mended")
        self._log(text)

    def _lose(self, text: str, advice: str) -> None:
        """Raise or log.

        Raises:
            SegmentLostError: failOnDataLoss is true.
        """
        if self._options.fails_on_data_loss:
            raise SegmentLostError(f"{text}; set failOnDataLoss=false {advice}")
        self._log(text)

    def _log(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            _logger.warning("%s", text)


def _with_new_names(offset: StreamOffset, look: Look) -> StreamOffset:
    return offset.renamed(look.find_new_names(offset.end))


def _begin_of(key: QueueKey, start: StreamOffset, end: StreamOffset) -> Position | None:
    """Return where a batch begins in a queue; None if the query knows no begin of it."""
    first = end.begin.get(key)
    if first is not None:
        return first
    mark = start.end.get(key)
    return None if mark is None else mark.position
