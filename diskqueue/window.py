"""The window between what was read and what is finished.

Every record that is read gets an ordinal; ordinals are consecutive. Records are finished in any
order, so the window keeps a done mark for each, and the persisted read position is that of the
lowest ordinal without one. Positions are kept per run of records (what one `read` or `advance`
handed out, joined with what stood before it) in four bytes per record, because only a sync asks
for one and a single record that is never finished may hold millions behind it.

    ordinal   base        lowest                       next
              |           |                            |
    done      1 1 1 1 1 1 0 1 1 0 0 1 1 0 0 0 0 0 0 0 0
              `- trimmed away in large steps

Finished records behind the lowest are written down by a sync. Its thread works them out from a
`Snapshot`: a copy of the marks, and the runs, of which only the newest still changes, at its end.
"""

from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from diskqueue.finished import Block
from diskqueue.recovery import SegmentState

# Done marks are removed in steps of at least this many, so that it costs nothing per record.
_TRIM_COUNT = 4096
# Runs are joined up to this many records. Longer ones cost more when one of their marks changes or
# when a position in them is asked for, shorter ones cost more when nothing happens.
_MAX_RUN_COUNT = 1024


class Run:
    """Records that stand one behind the other in one segment.

    Its numbers are either where the records begin, counted from `origin`, or the size of each, with
    `origin` the beginning of the first.
    """

    __slots__ = (
        "are_lengths",
        "block",
        "count",
        "end",
        "first",
        "known_marks",
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
        # What the last sync has worked out, and from which marks; only its thread looks at it.
        self.block: tuple[Block, bytes] | None = None
        self.known_marks = b""

    def position_of(self, ordinal: int) -> int:
        """Where in the segment the record begins."""
        index = ordinal - self.first
        if self.are_lengths:
            return self.origin + sum(self.numbers[:index])
        return self.origin + self.numbers[index]

    def bounds(self, count: int, end: int) -> list[int]:
        """Where the first `count` records begin, and where the last of them ends."""
        if self.are_lengths:
            return list(accumulate(self.numbers[:count], initial=self.origin))
        origin = self.origin
        return [*[origin + number for number in self.numbers[:count]], end]

    def remove_last(self, count: int) -> None:
        """Takes back the last records, but not all."""
        if self.are_lengths:
            self.end -= sum(self.numbers[-count:])
        else:
            self.end = self.origin + self.numbers[-count]
        self.count -= count
        del self.numbers[self.count :]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The window at the moment of a sync, from the lowest unfinished record on."""

    first: int
    marks: bytes
    runs: tuple[Run, ...]
    # Where the last run ended.
    end: int


class Window:
    """The records that were read and, from the lowest one on, are not all finished."""

    __slots__ = ("_base", "_done", "_low", "_runs", "next_ordinal")

    def __init__(self) -> None:
        self.next_ordinal = 0
        self._base = 0
        self._done = bytearray()
        # Everything before this index is done: where the search for the lowest goes on.
        self._low = 0
        self._runs: deque[Run] = deque()

    def __len__(self) -> int:
        """The number of records from the lowest unfinished one on."""
        return len(self._done) - self._find_low()

    def add(
        self,
        segment: SegmentState,
        origin: int,
        numbers: Sequence[int],
        end: int,
        *,
        are_lengths: bool,
    ) -> int:
        """Takes up records that were just read, at least one; returns the ordinal of the first.

        Args:
            numbers: `Run` says what they and `origin` are.
            end: where the last record ends.
        """
        first = self.next_ordinal
        count = len(numbers)
        self.next_ordinal = first + count
        self._done += bytes(count)
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
        """Marks records as done, and returns how many of the ordinals were in the window.

        Raises:
            IndexError: an ordinal that was never handed out.
        """
        done = self._done
        base = self._base
        count = 0
        for ordinal in ordinals:
            index = ordinal - base
            if index >= 0:
                done[index] = 1
                count += 1
        if len(done) >= _TRIM_COUNT:
            self._trim()
        return count

    def find_lowest(self) -> tuple[SegmentState, int] | None:
        """The position of the lowest record that is not done, or None if all are."""
        low = self._find_low()
        if low == len(self._done):
            return None
        ordinal = self._base + low
        runs = self._runs
        while runs[0].first + runs[0].count <= ordinal:
            runs.popleft()
        return runs[0].segment, runs[0].position_of(ordinal)

    def count_before(self, ordinal: int) -> int:
        """How many records from the lowest unfinished one on have a lower ordinal."""
        return max(0, ordinal - self._base - self._find_low())

    def take_snapshot(self) -> Snapshot | None:
        """What a sync needs to find the finished records behind an unfinished one, if any.

        To be called after `find_lowest`, which lets go of the runs before it.
        """
        low = self._find_low()
        if self._done.find(1, low) < 0:
            return None
        with memoryview(self._done) as done:
            marks = bytes(done[low:])
        return Snapshot(self._base + low, marks, tuple(self._runs), self._runs[-1].end)

    def remove_last(self, count: int) -> None:
        """Takes back the records that were read last; their ordinals will be handed out again."""
        assert count <= len(self._done), "the records are not in the window any more"
        self.next_ordinal -= count
        del self._done[len(self._done) - count :]
        self._low = min(self._low, len(self._done))
        runs = self._runs
        while count > 0 and runs[-1].count <= count:
            count -= runs.pop().count
        if count > 0:
            runs[-1].remove_last(count)

    def clear(self) -> None:
        """Voids everything outstanding; later commits of it are ignored."""
        self._base = self.next_ordinal
        self._done.clear()
        self._low = 0
        self._runs.clear()

    def _find_low(self) -> int:
        low = self._done.find(0, self._low)
        if low < 0:
            low = len(self._done)
        self._low = low
        return low

    def _trim(self) -> None:
        low = self._find_low()
        if low >= _TRIM_COUNT:
            del self._done[:low]
            self._base += low
            self._low = 0
            runs = self._runs
            while runs and runs[0].first + runs[0].count <= self._base:
                runs.popleft()
