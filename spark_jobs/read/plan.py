"""From queues to partitions: which slices there are, and which task reads which.

A partition costs Spark a task, some 10 ms, so small slices share one; a large segment is cut only
if splitBytes says so, because the exact offsets of its records are needed for it and the driver
must read the segment to know them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from pyspark.sql.datasource import InputPartition

from spark_jobs.read.catalog import Queue, find_queues
from spark_jobs.read.columns import Constants
from spark_jobs.read.corruption import CorruptionPack, ProblemRow
from spark_jobs.read.options import Mode, Origin, ReadOptions
from spark_jobs.read.predicate import Predicate, earliest, latest
from spark_jobs.read.scan import (
    DamagedSegmentError,
    ScanSettings,
    SegmentSlice,
    SlicePack,
    find_splits,
)

# What a partition holds at most unless a single slice is larger; opening a file counts as
# OPEN_COST_BYTES, so that a thousand small queues make 16 partitions.
_PACK_BYTES = 64 * 1024 * 1024
_OPEN_COST_BYTES = 1024 * 1024


def settings(options: ReadOptions, predicate: Predicate | None = None) -> ScanSettings:
    """What the tasks have to know."""
    predicate = predicate or Predicate()
    return ScanSettings(
        since_ns=latest(options.since_ns, predicate.since_ns),
        until_ns=earliest(options.until_ns, predicate.until_ns),
        limits=options.limits,
        mode=options.mode,
        fails_on_data_loss=options.fails_on_data_loss,
    )


def plan_scan(options: ReadOptions, predicate: Predicate) -> list[InputPartition]:
    """The partitions of a read of messages.

    Raises:
        DamagedSegmentError: mode is FAILFAST, and segments or metadata are damaged.
        OSError: a directory cannot be read.
    """
    queues = find_queues(options)
    if options.mode is Mode.FAILFAST:
        _refuse_problems(queues)
    slices = [
        each
        for queue in queues
        for each in _queue_slices(queue, options)
        if predicate.admits(each.constants)
    ]
    return pack(slices, options)


def plan_corruption_scan(options: ReadOptions) -> list[InputPartition]:
    """The partitions of a read of damage: the same slices, `.bad` files, and what shows already.

    Raises:
        OSError: a directory cannot be read.
    """
    queues = find_queues(options)
    problems = tuple(
        ProblemRow(queue.node, queue.directory, queue.topic, queue.channel, problem)
        for queue in queues
        for problem in queue.problems()
    )
    slices = [
        each for queue in queues for each in (*_segment_slices(queue, options), *_bad_slices(queue))
    ]
    partitions: list[InputPartition] = [CorruptionPack((), problems)] if problems else []
    for each in pack(slices, options):
        assert isinstance(each, SlicePack)
        partitions.append(CorruptionPack(each.slices, ()))
    return partitions


def _refuse_problems(queues: Iterable[Queue]) -> None:
    for queue in queues:
        for problem in queue.problems():
            if problem.kind != "unsynced":
                raise DamagedSegmentError(
                    f"{queue.directory}/{problem.file_name}"
                    f" at offset {problem.offset or 0}: {problem.reason}"
                )


def _queue_slices(queue: Queue, options: ReadOptions) -> Iterator[SegmentSlice]:
    yield from _segment_slices(queue, options)
    if options.includes_bad:
        yield from _bad_slices(queue)


def _segment_slices(queue: Queue, options: ReadOptions) -> Iterator[SegmentSlice]:
    ranges = queue.ranges(
        is_from_earliest=options.origin.is_earliest,
        includes_unsynced=options.includes_unsynced,
    )
    for each in ranges:
        whole = make_slice(queue, each.number, each.start, each.end)
        if options.origin is Origin.BACKLOG and each.number in queue.finished.bounds:
            yield replace(whole, finished=queue.finished.bounds[each.number])
        else:
            yield whole


def make_slice(queue: Queue, number: int, start: int, end: int) -> SegmentSlice:
    """A part of one segment of a queue."""
    constants = Constants(queue.node, queue.topic, queue.channel, number, is_bad=False)
    return SegmentSlice(queue.directory, queue.file_name(number), start, end, constants)


def _bad_slices(queue: Queue) -> Iterator[SegmentSlice]:
    for file_name, (number, size) in queue.bad_files.items():
        constants = Constants(queue.node, queue.topic, queue.channel, number, is_bad=True)
        yield SegmentSlice(queue.directory, file_name, 0, size, constants)


def pack(slices: Iterable[SegmentSlice], options: ReadOptions) -> list[InputPartition]:
    """Gathers slices to partitions, in order, after cutting large ones if asked to."""
    limit_bytes = options.split_bytes or _PACK_BYTES
    partitions: list[InputPartition] = []
    gathered: list[SegmentSlice] = []
    weight = 0
    for each in _cut(slices, options):
        added = each.end - each.start + _OPEN_COST_BYTES
        if gathered and weight + added > limit_bytes:
            partitions.append(SlicePack(tuple(gathered)))
            gathered, weight = [], 0
        gathered.append(each)
        weight += added
    if gathered:
        partitions.append(SlicePack(tuple(gathered)))
    return partitions


def _cut(slices: Iterable[SegmentSlice], options: ReadOptions) -> Iterator[SegmentSlice]:
    for each in slices:
        is_large = options.split_bytes is not None and each.end - each.start > options.split_bytes
        if options.split_bytes is None or not is_large or each.constants.is_bad:
            yield each
            continue
        yield from find_splits(each, options.split_bytes, settings(options))
