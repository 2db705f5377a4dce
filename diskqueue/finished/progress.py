"""How far a queue is consumed: which records are finished, and which files are still needed.

Every record that is read gets an ordinal; ordinals are consecutive. Records are finished in any
order, so `Outstanding` keeps a mark for each, and the committed position is that of the lowest
ordinal without one. Positions are kept per run of records (those of one `read` or `advance`, joined
with the ones before) in four bytes per record, because only a sync asks for one, and a single
record that is never finished may have millions behind it.

    ordinal   base        lowest                       next
              |           |                            |
    marks     1 1 1 1 1 1 0 1 1 0 0 1 1 0 0 0 0 0 0 0 0
              `- trimmed away in large steps

A sync writes down the finished records behind the lowest. Its thread works them out from a
`Snapshot`: a copy of the marks, and the runs, of which only the newest still changes, at its end.

`Progress` adds the records that were finished before the queue was opened, which the reader steps
over: the blocks of the sidecar of then. The two never overlap. A completed segment without an
unfinished record goes, also from between older and newer ones: the gap in the numbers is
remembered until the committed position has passed it. `DiskQueue` owns the one `Progress` of a
queue, and that owns the one `Outstanding`.
"""

import logging
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from diskqueue.errors import CorruptSegmentError
from diskqueue.finished.intervals import Intervals
from diskqueue.finished.sidecar import Block, Fingerprints, Position
from diskqueue.reader import Reader
from diskqueue.recovery import Recovered
from diskqueue.segment import SegmentState
from diskqueue.writer import Writer

# Marks are removed in steps of at least this many, so that it costs next to no time per record.
_TRIM_COUNT = 4096
# Runs are joined up to this many records. Longer ones cost more when one of their marks changes or
# when a position in them is asked for, shorter ones cost more when none of their marks changes.
_MAX_RUN_COUNT = 1024


class Run:
    """Records that stand one behind the other in one segment.

    Its numbers are either where the records begin, counted from `origin`, or the size of each, with
    `origin` the beginning of the first.
    """

    __slots__ = (
        "_block",
        "_known_marks",
        "are_lengths",
        "count",
        "end",
        "first",
        "numbers",
        "origin",
        "segment",
    )

    def __init__(
        self,
        segment: SegmentState,
        origin: int,
        first: int,
        numbers: Sequence[int],
        end: int,
        *,
        are_lengths: bool,
    ) -> None:
        self.segment = segment
        self.origin = origin
        self.first = first
        self.count = len(numbers)
        self.numbers = array("I", numbers)
        self.end = end
        self.are_lengths = are_lengths
        # The block of the last sync with its bytes, and the marks that it was made from. Only the
        # thread of a sync uses these two.
        self._block: tuple[Block, bytes] | None = None
        self._known_marks = b""

    def position_of(self, ordinal: int) -> int:
        """Return where in the segment a record begins."""
        index = ordinal - self.first
        if self.are_lengths:
            return self.origin + sum(self.numbers[:index])
        return self.origin + self.numbers[index]

    def remove_last(self, count: int) -> None:
        """Take back the last records, but not all; only records that were advanced over are."""
        assert self.are_lengths
        self.end -= sum(self.numbers[-count:])
        self.count -= count
        del self.numbers[self.count :]

    def find_block(
        self, skipped: int, marks: bytes, end: int, fingerprints: Fingerprints, *, is_complete: bool
    ) -> tuple[Block, bytes] | None:
        """Return its finished records as a block, or None if it has none that can be proven.

        A run with the marks of the last sync is not looked at again, so a sync costs the time of
        those runs that have changed, and one comparison of bytes for each of the others.

        Args:
            skipped: how many records of the run stand before the marks.
            end: where the last record with a mark ends.
            is_complete: no record will be added to the run.
        """
        if skipped or self._known_marks != marks:
            self._known_marks = marks
            block = self._make_block(skipped, marks, end, fingerprints)
            self._block = None if block is None else (block, block.encode())
            if is_complete and not skipped and 0 not in marks:
                self.numbers = array("I")  # all records are finished: no position is asked for
        return self._block if self.segment.exists else None

    def _make_block(
        self, skipped: int, marks: bytes, end: int, fingerprints: Fingerprints
    ) -> Block | None:
        if not self.segment.exists or 1 not in marks:
            return None
        bounds = self._bounds(skipped + len(marks), end)[skipped:]
        records = Intervals.of_marks(marks, bounds)
        number = self.segment.number
        last_start = bounds[marks.rindex(1)]
        first_crc = fingerprints.find(number, records.start)
        last_crc = fingerprints.find(number, last_start)
        if first_crc is None or last_crc is None:
            return None
        return Block(number, records, last_start, first_crc, last_crc)

    def _bounds(self, count: int, end: int) -> list[int]:
        """Return where the first `count` records begin, and where the last of them ends."""
        if self.are_lengths:
            return list(accumulate(self.numbers[:count], initial=self.origin))
        origin = self.origin
        return [*[origin + number for number in self.numbers[:count]], end]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The outstanding records at the moment of a sync, from the lowest unfinished one on."""

    first: int
    marks: bytes
    runs: tuple[Run, ...]
    # Where the last run ended.
    end: int

    def find_blocks(self, fingerprints: Fingerprints) -> Iterator[tuple[Run, Block, bytes]]:
        """Yield each run that has finished records, with their block and its bytes."""
        last = self.runs[-1]
        for run in self.runs:
            # The records before the read position have no mark in the snapshot.
            skipped = max(0, self.first - run.first)
            start = run.first + skipped - self.first
            if run is last:
                marks, end = self.marks[start:], self.end
            else:
                marks, end = self.marks[start : run.first + run.count - self.first], run.end
            found = run.find_block(skipped, marks, end, fingerprints, is_complete=run is not last)
            if found is not None:
                yield run, *found


class Outstanding:
    """The records that were read and, from the lowest one on, are not all finished."""

    __slots__ = ("_base", "_low", "_marks", "_runs", "next_ordinal")

    def __init__(self) -> None:
        self.next_ordinal = 0
        self._base = 0
        # 1 for a finished record: a set that changes with each record, and costs a byte for each.
        self._marks = bytearray()
        # All records before this index are finished: where the search for the lowest goes on.
        self._low = 0
        self._runs: deque[Run] = deque()

    def __len__(self) -> int:
        """Count the records from the lowest unfinished one on."""
        return len(self._marks) - self._find_low()

    @property
    def lowest_ordinal(self) -> int:
        """The ordinal of the lowest unfinished record, or the next one if all are finished."""
        return self._base + self._find_low()

    def add(
        self,
        segment: SegmentState,
        origin: int,
        numbers: Sequence[int],
        end: int,
        *,
        are_lengths: bool,
    ) -> int:
        """Add records that were just read, at least one; return the ordinal of the first.

        Args:
            numbers: `Run` says which numbers, and how they go with `origin`.
            end: where the last record ends.
        """
        first = self.next_ordinal
        count = len(numbers)
        self.next_ordinal = first + count
        self._marks += bytes(count)
        if self._runs:
            run = self._runs[-1]
            if (
                run.segment is segment
                and run.are_lengths is are_lengths
                and run.end == (origin if are_lengths else origin + numbers[0])
                and (are_lengths or run.origin == origin)
                and run.count + count <= _MAX_RUN_COUNT
            ):
                run.numbers.extend(array("I", numbers))
                run.count += count
                run.end = end
                return first
        self._runs.append(Run(segment, origin, first, numbers, end, are_lengths=are_lengths))
        return first

    def commit(self, ordinals: Iterable[int]) -> int:
        """Mark records as finished, and return how many of the ordinals were outstanding.

        Raises:
            IndexError: an ordinal that was never handed out.
        """
        marks = self._marks
        base = self._base
        count = 0
        for ordinal in ordinals:
            index = ordinal - base
            if index >= 0:
                marks[index] = 1
                count += 1
        # The last of those that would go tells, mostly, that there is nothing to trim yet.
        if len(marks) >= _TRIM_COUNT and marks[_TRIM_COUNT - 1]:
            self._trim()
        return count

    def find_lowest(self) -> tuple[SegmentState, int] | None:
        """Return the position of the lowest unfinished record, or None if all are finished."""
        low = self._find_low()
        if low == len(self._marks):
            return None
        ordinal = self._base + low
        runs = self._runs
        while runs[0].first + runs[0].count <= ordinal:
            runs.popleft()
        return runs[0].segment, runs[0].position_of(ordinal)

    def take_snapshot(self) -> Snapshot | None:
        """Copy the marks for a sync, or return None if no record behind the lowest is finished.

        To be called after `find_lowest`, which lets go of the runs before it.
        """
        low = self._find_low()
        if self._marks.find(1, low) < 0:
            return None
        with memoryview(self._marks) as view:
            marks = bytes(view[low:])
        return Snapshot(self._base + low, marks, tuple(self._runs), self._runs[-1].end)

    def remove_last(self, count: int) -> None:
        """Take back the records that were read last; their ordinals will be handed out again."""
        assert count <= len(self._marks), "the records are not outstanding any more"
        self.next_ordinal -= count
        del self._marks[len(self._marks) - count :]
        self._low = min(self._low, len(self._marks))
        runs = self._runs
        while count > 0 and runs[-1].count <= count:
            count -= runs.pop().count
        if count > 0:
            runs[-1].remove_last(count)

    def clear(self) -> None:
        """Forget all records; later commits of their ordinals are ignored."""
        self._base = self.next_ordinal
        self._marks.clear()
        self._low = 0
        self._runs.clear()

    def _find_low(self) -> int:
        low = self._marks.find(0, self._low)
        if low < 0:
            low = len(self._marks)
        self._low = low
        return low

    def _trim(self) -> None:
        low = self._find_low()
        if low >= _TRIM_COUNT:
            del self._marks[:low]
            self._base += low
            self._low = 0
            runs = self._runs
            while runs and runs[0].first + runs[0].count <= self._base:
                runs.popleft()


class Progress:
    """The finished records of a queue, and the segments that still have unfinished ones."""

    def __init__(
        self, name: str, found: Recovered, reader: Reader, writer: Writer, logger: logging.Logger
    ) -> None:
        self.outstanding = Outstanding()
        # Records from the reader's position on; below the truth or above it after a crash, until
        # the reader is at the tail.
        self.unread_count = found.depth
        # The oldest segment with a record that is not committed.
        self.oldest = found.read_segment
        # Wholly committed segments that a sync will delete.
        self.retired = found.consumed
        # Blocks of the sidecar that the queue was opened with, from the committed position on.
        self.kept = deque(found.blocks)
        # Numbers of segments behind the committed position that were deleted before older ones.
        self.gaps = found.gaps
        self._kept_count = sum(block.records.count for block in found.blocks)
        # The ordinals of records that were in these segments.
        self._gone = Intervals()
        self._name = name
        self._reader = reader
        self._writer = writer
        self._logger = logger
        self.correct_depth_at_tail()

    @property
    def depth(self) -> int:
        """Records that were not read; at least one unless the reader is at the tail."""
        if self.unread_count > 0:
            return self.unread_count
        return 0 if self._reader.is_at_tail() else 1

    def correct_depth_at_tail(self) -> None:
        """Set the number of unread records right if the reader is at the tail."""
        if self.unread_count != 0 and self._reader.is_at_tail():
            self._logger.warning(
                "diskqueue depth corrected at the tail queue=%s depth=%d",
                self._name,
                self.unread_count,
            )
            self.unread_count = 0

    def segments(self) -> Iterator[SegmentState]:
        """Yield all segments that may have a file, the oldest first."""
        yield from self.retired
        yield self.oldest
        yield from self._iter_behind_oldest()

    def find_left_segments(self) -> list[SegmentState]:
        """Return the segments behind the oldest that the reader has left, without damaged ones."""
        reader_number = self._reader.segment.number
        return [
            segment
            for segment in self._iter_behind_oldest()
            if segment.number < reader_number and segment.exists and segment.damage is None
        ]

    def _iter_behind_oldest(self) -> Iterator[SegmentState]:
        segment = self.oldest.next
        while segment is not None:
            yield segment
            segment = segment.next

    def clear(self) -> None:
        """Forget all records; the queue goes on with the segment being written, which is empty."""
        self._reader.enter(self._writer.segment)
        self.unread_count = 0
        self.retired = []
        self.oldest = self._writer.segment
        self.outstanding.clear()
        self.kept.clear()
        self.gaps = Intervals()
        self._kept_count = 0
        self._gone = Intervals()

    def advance_across_segments(self, lengths: Sequence[int]) -> None:
        """Move the reader over records that may be in several segments, and add them."""
        reader = self._reader
        ends = list(accumulate(lengths))
        done = index = 0
        while index < len(ends):
            segment = reader.segment
            if reader.position >= segment.end:
                assert segment.next is not None, "advanced beyond the write position"
                reader.enter(segment.next)
                continue
            stop = bisect_right(ends, done + reader.limit - reader.position, lo=index)
            assert stop > index, "the lengths are not those of the next records"
            numbers = lengths[index:stop]
            position = reader.position
            reader.position += ends[stop - 1] - done
            self.outstanding.add(segment, position, numbers, reader.position, are_lengths=True)
            reader.skip_finished()
            done = ends[stop - 1]
            index = stop

    def complete_consumed_segment(self) -> None:
        """Complete the segment being written if all its records are committed, so that it goes."""
        if len(self.outstanding) == 0 and self._reader.is_at_tail():
            self._writer.start_new_segment()

    def retire_committed(self) -> Position:
        """Move wholly committed segments to the retired ones; return the committed position."""
        lowest = self.outstanding.find_lowest()
        if lowest is None:
            self._reader.skip_finished()
            lowest = (self._reader.segment, self._reader.position)
        segment, offset = lowest
        # The end of a completed segment is persisted as the beginning of the next.
        while offset >= segment.end and segment.next is not None:
            segment, offset = segment.next, 0
        while self.oldest is not segment:
            assert self.oldest.next is not None
            self._writer.release(self.oldest)
            if self._reader.segment is self.oldest:
                # The reader stands at its end. An open file takes room even when it is deleted.
                self._reader.enter(self.oldest.next)
            if self.oldest.exists:
                self.retired.append(self.oldest)
            self.oldest = self.oldest.next
        read = Position(segment.number, offset)
        self._forget_before(read)
        return read

    def _forget_before(self, read: Position) -> None:
        kept = self.kept
        while kept and (kept[0].number, kept[0].end) <= read:
            self._kept_count -= kept.popleft().records.count
        if self.gaps and self.gaps.start < read.number:
            self.gaps = self.gaps.minus(Intervals.of_span(0, read.number))
        # All records of an interval are finished, so the lowest unfinished one is not among them.
        self._gone = self._gone.since(self.outstanding.lowest_ordinal)

    def count_records(self, read: Position) -> int:
        """Count the records in files from the committed to the reader's position.

        Finished ones are among them, also those that the reader has yet to skip.

        Args:
            read: the committed position, just found by `retire_committed`.
        """
        count = len(self.outstanding) + self._kept_count - self._gone.count
        for block in self.kept:
            if block.number != read.number:
                break
            count -= block.records.count - block.records.since(read.offset).count
        return count

    def note_deleted(self, segment: SegmentState, ordinals: Intervals) -> None:
        """Take a segment out of the list that a sync has deleted before older ones.

        Args:
            ordinals: those of its records that this process has read.
        """
        self._writer.release(segment)
        segment.exists = False
        self._replace_kept([block for block in self.kept if block.number != segment.number])
        self._gone = self._gone.union(ordinals)
        self.gaps = self.gaps.union(Intervals.of_numbers([segment.number]))
        older: SegmentState | None = self.oldest
        while older is not None and older.next is not segment:
            older = older.next
        if older is not None:
            older.next = segment.next

    def deliver_skipped(self, error: CorruptSegmentError) -> None:
        """Count finished records in the rest of the segment as unread: no record ends before them.

        Args:
            error: found by the reader in front of the next interval of finished records.
        """
        count = self.forget_finished()
        self.unread_count += count
        self._logger.warning(
            "diskqueue finished records will be delivered again file=%s offset=%d records=%d"
            " reason=%s",
            *(error.path, error.offset, count, error.reason),
        )

    def forget_finished(self) -> int:
        """Drop the finished records in the rest of the segment that the reader stands in.

        Returns how many there were.
        """
        reader = self._reader
        segment = reader.segment
        count = sum(entry.item_count for entry in reader.skips)
        reader.skips.clear()
        segment.finished = Intervals()
        self._replace_kept(
            [
                block
                for block in self.kept
                if block.number != segment.number or block.end <= reader.position
            ]
        )
        return count

    def _replace_kept(self, kept: list[Block]) -> None:
        self.kept = deque(kept)
        self._kept_count = sum(block.records.count for block in kept)
