"""From queues to partitions: which slices there are, and which task reads which.

A partition costs Spark a task, some 10 ms, so small slices share one; a large segment is cut only
if splitBytes says so, because the exact offsets of its records are needed for it and the driver
must read the segment to know them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from pyspark.sql.datasource import InputPartition

from spark_jobs.read.columns import Constants
from spark_jobs.read.files.catalog import find_queues
from spark_jobs.read.files.corruption import CorruptionPartition, problem_row
from spark_jobs.read.files.scan import (
    DamagedSegmentError,
    MessagePartition,
    SegmentSlice,
    find_splits,
)
from spark_jobs.read.options import Mode, Origin, ReadOptions
from spark_jobs.read.predicate import NO_FILTERS, Predicate
from spark_jobs.read.queue import Queue

# The most bytes of a partition unless a single slice is larger; opening a file counts as
# _OPEN_COST_BYTES, so that a thousand small queues make 16 partitions.
_PARTITION_BYTES = 64 * 1024 * 1024
_OPEN_COST_BYTES = 1024 * 1024


def plan_messages(
    options: ReadOptions, predicate: Predicate = NO_FILTERS
) -> list[MessagePartition]:
    """Plan a read of messages.

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
    return gather(slices, options)


def plan_corruptions(options: ReadOptions) -> list[InputPartition]:
    """Plan a search for damage: the slices of a read, `.bad` files, and rows known already.

    Raises:
        OSError: a directory cannot be read.
    """
    queues = find_queues(options)
    rows = tuple(problem_row(queue, each) for queue in queues for each in queue.problems())
    slices = [
        each for queue in queues for each in (*_segment_slices(queue, options), *_bad_slices(queue))
    ]
    partitions: list[InputPartition] = [CorruptionPartition((), rows)] if rows else []
    partitions += [CorruptionPartition(each.slices, ()) for each in gather(slices, options)]
    return partitions


def make_slice(queue: Queue, number: int, start: int, end: int) -> SegmentSlice:
    """Return a part of one segment of a queue."""
    constants = Constants(queue.node, queue.topic, queue.channel, number, is_bad=False)
    return SegmentSlice(queue.directory, queue.file_name(number), start, end, constants)


def gather(slices: Iterable[SegmentSlice], options: ReadOptions) -> list[MessagePartition]:
    """Gather slices to partitions, in order, after cutting large ones if splitBytes says so.

    Raises:
        OSError: a file that is to be cut cannot be read.
    """
    limit_bytes = options.split_bytes or _PARTITION_BYTES
    partitions: list[MessagePartition] = []
    gathered: list[SegmentSlice] = []
    weight = 0
    for each in _cut(slices, options):
        added = each.end - each.start + _OPEN_COST_BYTES
        if gathered and weight + added > limit_bytes:
            partitions.append(MessagePartition(tuple(gathered)))
            gathered, weight = [], 0
        gathered.append(each)
        weight += added
    if gathered:
        partitions.append(MessagePartition(tuple(gathered)))
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
    for each in queue.ranges(options):
        whole = make_slice(queue, each.number, each.start, each.end)
        if options.origin is Origin.BACKLOG and each.number in queue.finished.bounds:
            yield replace(whole, finished=queue.finished.bounds[each.number])
        else:
            yield whole


def _bad_slices(queue: Queue) -> Iterator[SegmentSlice]:
    for file_name, (number, size) in queue.bad_files.items():
        constants = Constants(queue.node, queue.topic, queue.channel, number, is_bad=True)
        yield SegmentSlice(queue.directory, file_name, 0, size, constants)


def _cut(slices: Iterable[SegmentSlice], options: ReadOptions) -> Iterator[SegmentSlice]:
    split_bytes = options.split_bytes
    for each in slices:
        if split_bytes is None or each.end - each.start <= split_bytes or each.constants.is_bad:
            yield each
        else:
            yield from find_splits(each, split_bytes, options)
