"""From queues to partitions: which slices there are, and which task reads which.

A partition costs Spark a task, some 10 ms, so small slices share one; a large segment is cut only
if splitBytes says so, because the exact offsets of its records are needed for it and the driver
must read the segment to know them.
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace

from pyspark.sql.datasource import InputPartition

from spark_jobs.read.bounds import narrow
from spark_jobs.read.columns import Constants
from spark_jobs.read.files.corruption import (
    CorruptionPartition,
    CorruptionRow,
    corruption_row,
    problem_row,
    unreachable_row,
)
from spark_jobs.read.files.due import DueTimes
from spark_jobs.read.files.identity import identity_of
from spark_jobs.read.files.scan import (
    DamagedSegmentError,
    DamagePartition,
    MessagePartition,
    SegmentSlice,
    find_corruptions,
    find_splits,
)
from spark_jobs.read.inventory import Inventory, take_inventory
from spark_jobs.read.options import Mode, Origin, ReadOptions
from spark_jobs.read.predicate import NO_FILTERS, Predicate
from spark_jobs.read.queue import Queue

# The most bytes of a partition unless a single slice is larger; opening a file counts as
# _OPEN_COST_BYTES, so that a thousand small queues make 16 partitions.
_PARTITION_BYTES = 64 * 1024 * 1024
_OPEN_COST_BYTES = 1024 * 1024
_TIME_BYTES = 8

_logger = logging.getLogger(__name__)


def plan_messages(
    options: ReadOptions, predicate: Predicate = NO_FILTERS
) -> list[MessagePartition]:
    """Plan a read of messages.

    Raises:
        DamagedSegmentError: mode is FAILFAST, and segments or metadata are damaged.
        NodeError: a node cannot be reached.
        OSError: a directory cannot be read.
    """
    return _plan(_look(options), options, predicate)


def plan_with_damage(
    options: ReadOptions, predicate: Predicate = NO_FILTERS
) -> list[InputPartition]:
    """Plan a read of messages with damage as rows among them.

    Raises:
        DamagedSegmentError, NodeError, OSError: as in `plan_messages`.
    """
    found = _look(options)
    partitions: list[InputPartition] = list(_plan(found, options, predicate))
    places = _damaged_places(found)
    return [*partitions, DamagePartition(places)] if places else partitions


def _look(options: ReadOptions) -> Inventory:
    found = take_inventory(options)
    for text in found.unseen:
        _logger.warning("%s", text)
    if options.mode is Mode.FAILFAST:
        _refuse_problems(found.queues)
    return found


def _plan(found: Inventory, options: ReadOptions, predicate: Predicate) -> list[MessagePartition]:
    slices = [
        each
        for queue in found.queues
        for each in _queue_slices(queue, options)
        if predicate.admits(each.constants)
    ]
    return gather(slices, options)


def _damaged_places(found: Inventory) -> tuple[tuple[Constants, str], ...]:
    """Return the places that cannot be read, as far as it shows without reading."""
    places = [
        (
            Constants(queue.node, queue.topic, queue.channel, each.segment or 0, is_bad=False),
            f"{each.kind}: {queue.directory}/{each.file_name}: {each.reason}",
        )
        for queue in found.queues
        for each in queue.problems()
        if each.kind != "unsynced"
    ]
    places += [
        (Constants(url, "", None, 0, is_bad=False), f"unreachable: {reason}")
        for url, reason in found.unreachable
    ]
    return tuple(places)


def plan_corruptions(options: ReadOptions) -> list[InputPartition]:
    """Plan a search for damage: the slices of a read, `.bad` files, and rows known already.

    Raises:
        NodeError: a node cannot be reached.
        OSError: a directory cannot be read.
    """
    found = take_inventory(options)
    rows = tuple(list_problems(found))
    slices = [
        each
        for queue in found.queues
        for each in (
            *_segment_slices(queue, options),
            *_part_slices(queue),
            *_bad_slices(queue),
        )
    ]
    partitions: list[InputPartition] = [CorruptionPartition((), rows)] if rows else []
    partitions += [CorruptionPartition(each.slices, ()) for each in gather(slices, options)]
    return partitions


def list_problems(found: Inventory) -> Iterator[CorruptionRow]:
    """Yield the rows of corrupt_records that show without reading segments."""
    for queue in found.queues:
        for each in queue.problems():
            yield problem_row(queue, each)
    for url, reason in found.unreachable:
        yield unreachable_row(url, reason)


def look_through_bad_files(
    queues: Iterable[Queue], options: ReadOptions
) -> Iterator[CorruptionRow]:
    """Read the `.bad` files of queues here, and yield what of them is lost.

    Raises:
        OSError: a file cannot be read.
    """
    for queue in queues:
        for found in find_corruptions(tuple(_bad_slices(queue)), options):
            yield corruption_row(found)


def make_slice(queue: Queue, number: int, start: int, end: int) -> SegmentSlice:
    """Return a part of one segment of a queue."""
    state = "ready" if queue.lease else None
    constants = Constants(queue.node, queue.topic, queue.channel, number, is_bad=False, state=state)
    due = None
    if queue.due is not None:
        due = DueTimes(
            queue.due.file_name, queue.due.byte_count, has_ids=True, taken_ns=queue.taken_ns
        )
    return SegmentSlice(
        queue.directory,
        queue.file_name(number),
        start,
        end,
        constants,
        # A file of a node that is read without a lease is asked for by its generation.
        identity=identity_of(queue.generation) if queue.is_remote and not queue.lease else "",
        lease=queue.lease,
        due=due,
        store=queue.store,
    )


def gather(slices: Iterable[SegmentSlice], options: ReadOptions) -> list[MessagePartition]:
    """Gather slices to partitions, in order, after cutting large ones if splitBytes says so.

    Raises:
        OSError: a file that is to be cut cannot be read.
    """
    slices = list(slices)
    split_bytes = _choose_split_bytes(slices, options)
    limit_bytes = split_bytes or _PARTITION_BYTES
    partitions: list[MessagePartition] = []
    gathered: list[SegmentSlice] = []
    weight = 0
    for each in _cut(slices, split_bytes, options):
        added = each.end - each.start + _OPEN_COST_BYTES
        if gathered and weight + added > limit_bytes:
            partitions.append(MessagePartition(tuple(gathered)))
            gathered, weight = [], 0
        gathered.append(each)
        weight += added
    if gathered:
        partitions.append(MessagePartition(tuple(gathered)))
    return partitions


def _choose_split_bytes(slices: list[SegmentSlice], options: ReadOptions) -> int | None:
    """Return the size to which slices are cut, so that there are enough partitions; or None."""
    if options.min_partitions is None:
        return options.split_bytes
    total = sum(each.end - each.start for each in slices)
    if len(slices) >= options.min_partitions:
        # It is enough to gather fewer of them.
        total += len(slices) * _OPEN_COST_BYTES
    wanted = max(total // options.min_partitions, 1)
    return wanted if wanted < (options.split_bytes or _PARTITION_BYTES) else options.split_bytes


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
    if options.start_offsets is None and options.end_offsets is None:
        yield from _part_slices(queue)
    if options.includes_bad:
        yield from _bad_slices(queue)


def _part_slices(queue: Queue) -> Iterator[SegmentSlice]:
    """Yield the messages in memory; their segment numbers are below 0."""
    for number, part in enumerate(queue.parts, 1):
        constants = Constants(
            queue.node, queue.topic, queue.channel, -number, is_bad=False, state=part.state
        )
        due = None
        if part.due_file:
            due = DueTimes(part.due_file, part.count * _TIME_BYTES, has_ids=False, taken_ns=0)
        yield SegmentSlice(
            queue.directory,
            part.file_name,
            0,
            part.byte_count,
            constants,
            lease=queue.lease,
            due=due,
        )


def _segment_slices(queue: Queue, options: ReadOptions) -> Iterator[SegmentSlice]:
    for each in narrow(queue, options):
        whole = make_slice(queue, each.number, each.start, each.end)
        if options.origin is Origin.BACKLOG and each.number in queue.finished.bounds:
            yield replace(whole, finished=queue.finished.bounds[each.number])
        else:
            yield whole


def _bad_slices(queue: Queue) -> Iterator[SegmentSlice]:
    for file_name, (number, size) in queue.bad_files.items():
        constants = Constants(queue.node, queue.topic, queue.channel, number, is_bad=True)
        yield SegmentSlice(queue.directory, file_name, 0, size, constants, store=queue.store)


def _cut(
    slices: Iterable[SegmentSlice], split_bytes: int | None, options: ReadOptions
) -> Iterator[SegmentSlice]:
    for each in slices:
        # Messages in memory come in parts of a bounded size, and have due times in their order.
        is_whole = each.constants.is_bad or each.constants.segment < 0
        if split_bytes is None or each.end - each.start <= split_bytes or is_whole:
            yield each
        else:
            yield from find_splits(each, split_bytes, options)
