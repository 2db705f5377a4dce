"""How far a queue is consumed, and which of its files are still needed.

The committed position is that of the lowest unfinished record. What is finished behind it is known
from two sources that never overlap: the done marks of what this process has read (`window`), and
the blocks of the sidecar that the queue was opened with, which the reader skips. A completed
segment without an unfinished record goes, also from between older and newer ones: the gap is
remembered until the committed position has passed it.

`DiskQueue` owns the one `Progress` of a queue.
"""

from collections import deque
from collections.abc import Iterator
from itertools import takewhile

from diskqueue import layout
from diskqueue.finished import Block, Position, join_spans
from diskqueue.reader import Reader
from diskqueue.recovery import Recovered, SegmentState
from diskqueue.sidecar import Consumed, FinishedPlan
from diskqueue.window import Window
from diskqueue.writer import Writer


class Progress:
    """The finished records of a queue, and what that lets go."""

    def __init__(self, found: Recovered, reader: Reader, writer: Writer) -> None:
        self.window = Window()
        # The oldest segment with a record that is not committed.
        self.oldest = found.read_segment
        # Wholly committed segments that a sync will delete.
        self.retired = found.consumed
        self._reader = reader
        self._writer = writer
        self._kept = deque(found.blocks)
        self._kept_count = sum(block.record_count for block in found.blocks)
        self._gaps = list(found.gaps)
        # The ordinals of records that were in the gaps: first, and the one behind the last.
        self._gone: list[tuple[int, int]] = []

    def segments(self) -> Iterator[SegmentState]:
        """All that may have a file, the oldest first."""
        yield from self.retired
        segment: SegmentState | None = self.oldest
        while segment is not None:
            yield segment
            segment = segment.next

    def clear(self) -> None:
        """Forgets everything; the queue goes on with the segment being written."""
        self.retired = []
        self.oldest = self._writer.segment
        self.window.clear()
        self._kept.clear()
        self._kept_count = 0
        self._gaps = []
        self._gone = []

    def retire_committed(self) -> Position:
        """Takes wholly committed segments out of the list; returns the committed position."""
        lowest = self.window.find_lowest()
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
                # It stands at the end. A file that is open takes room even when it is deleted.
                self._reader.enter(self.oldest.next)
            if self.oldest.exists:
                self.retired.append(self.oldest)
            self.oldest = self.oldest.next
        read = Position(segment.number, offset)
        self._forget_before(read)
        return read

    def _forget_before(self, read: Position) -> None:
        kept = self._kept
        while kept and (kept[0].number, kept[0].end) <= read:
            self._kept_count -= kept.popleft().record_count
        while self._gaps and self._gaps[0][1] < read.number:
            del self._gaps[0]
        if self._gone:
            count_before = self.window.count_before
            self._gone = [span for span in self._gone if count_before(span[1]) > 0]

    def count_records(self, read: Position) -> int:
        """How many records stand in files from the committed to the reader's position.

        Finished ones are among them, also those that the reader has yet to skip.
        """
        count = len(self.window) + self._kept_count
        for block in self._kept:
            if block.number != read.number:
                break
            if block.ranges[0].start < read.offset:
                count -= block.record_count - block.count_from(read.offset)
        count_before = self.window.count_before
        return count - sum(count_before(stop) - count_before(first) for first, stop in self._gone)

    def plan_finished(self, read: Position, durable: Position | None) -> FinishedPlan | None:
        """What the sidecar has to say, or None if there is no need for one.

        Args:
            durable: the read position of the metadata on disk.
        """
        snapshot = self.window.take_snapshot()
        if snapshot is None and not self._kept and not self._gaps:
            return None
        reader_number = self._reader.segment.number
        behind = self._iter_behind_oldest()
        candidates = takewhile(lambda segment: segment.number < reader_number, behind)
        return FinishedPlan(
            previous=read if durable is None else min(durable, read),
            read=read,
            snapshot=snapshot,
            kept=tuple(self._kept),
            gaps=tuple(self._gaps),
            candidates=tuple(
                segment for segment in candidates if segment.exists and segment.damage is None
            ),
        )

    def _iter_behind_oldest(self) -> Iterator[SegmentState]:
        segment = self.oldest.next
        while segment is not None:
            yield segment
            segment = segment.next

    def note_deleted(self, entry: Consumed) -> None:
        """Takes a segment out of the list that a sync has deleted before older ones."""
        segment = entry.segment
        self._writer.release(segment)
        segment.exists = False
        kept = [block for block in self._kept if block.number != segment.number]
        self._replace_kept(kept)
        if entry.stop > entry.first:
            self._gone = join_spans([*self._gone, (entry.first, entry.stop)], distance=0)
        self._gaps = join_spans([*self._gaps, (segment.number, segment.number)], distance=1)
        older: SegmentState | None = self.oldest
        while older is not None and older.next is not segment:
            older = older.next
        if older is not None:
            older.next = segment.next

    def forget_finished(self, segment: SegmentState) -> int:
        """Drops what the sidecar said of the rest of the segment that the reader stands in.

        Returns the number of records that will be delivered again.
        """
        reader = self._reader
        assert segment is reader.segment
        count = sum(entry.record_count for entry in reader.skips)
        reader.skips.clear()
        segment.finished = ()
        self._replace_kept(
            [
                block
                for block in self._kept
                if block.number != segment.number or block.end <= reader.position
            ]
        )
        return count

    def _replace_kept(self, kept: list[Block]) -> None:
        self._kept = deque(kept)
        self._kept_count = sum(block.record_count for block in kept)


def durable_position(text: bytes | None) -> Position | None:
    """The read position in the text of a metadata file."""
    if text is None:
        return None
    metadata = layout.parse_metadata(text)
    return Position(metadata.read_file, metadata.read_pos)
