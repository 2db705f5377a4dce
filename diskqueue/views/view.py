"""QueueView: the segments and positions of an open queue, for readers from outside.

The thread that owns the queue asks, and gets values that stay as they are while the queue goes on.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from diskqueue import layout
from diskqueue.finished.intervals import Interval
from diskqueue.finished.progress import Progress
from diskqueue.finished.sidecar import Position
from diskqueue.identity import Deleted, Generation
from diskqueue.reader import Reader
from diskqueue.segment import SegmentState
from diskqueue.views.pins import Pin, Pins
from diskqueue.writer import Writer


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """A part of a segment: the records from `start` to `end`, but for the finished ones."""

    number: int
    path: str
    start: int
    end: int
    finished: Iterable[Interval] = ()
    # None without a reader that holds it.
    pin: Pin | None = None


class QueueView:
    """A look at one open queue."""

    __slots__ = ("_directory", "_name", "_progress", "_reader", "_writer", "generation", "pins")

    def __init__(
        self,
        directory: str,
        name: str,
        parts: tuple[Reader, Writer, Progress],
        generation: Generation,
        pins: Pins,
    ) -> None:
        self.generation = generation
        self.pins = pins
        self._directory = directory
        self._name = name
        self._reader, self._writer, self._progress = parts

    @property
    def committed(self) -> Position:
        """Where the oldest unfinished record is, or the next to be read if there is none."""
        lowest = self._progress.outstanding.find_lowest()
        if lowest is None:
            return self.unread
        return _normalize(*lowest)

    @property
    def unread(self) -> Position:
        """Where the next record to be read is."""
        return _normalize(self._reader.segment, self._reader.position)

    @property
    def written(self) -> Position:
        """Where the last record ends."""
        return Position(self._writer.segment.number, self._writer.segment.end)

    @property
    def synced(self) -> Position:
        """The end of the records that no power cut takes."""
        return find_synced(self._writer)

    @property
    def last_deleted(self) -> Deleted | None:
        """The newest segment that is gone, if one is: a reader at its end has read all of it."""
        return self.generation.last_deleted

    def pin_unread(self) -> list[SegmentRange]:
        """Return the unread records, and hold their segments for the caller."""
        reader = self._reader
        ranges = []
        segment: SegmentState | None = reader.segment
        start = reader.position
        finished: Iterable[Interval] = tuple(reader.skips)
        while segment is not None:
            if segment.end > start and segment.exists:
                path = layout.segment_path(self._directory, self._name, segment.number)
                pin = self.pins.pin(path)
                ranges.append(SegmentRange(segment.number, path, start, segment.end, finished, pin))
            segment = segment.next
            if segment is not None:
                start = 0
                finished = segment.finished
        return ranges

    def list_segments(self) -> list[SegmentRange]:
        """Return the segments from the oldest unfinished record on, without a hold on them."""
        segment: SegmentState | None = self._progress.oldest
        ranges = []
        while segment is not None:
            if segment.end and segment.exists:
                path = layout.segment_path(self._directory, self._name, segment.number)
                ranges.append(SegmentRange(segment.number, path, 0, segment.end))
            segment = segment.next
        return ranges


def _normalize(segment: SegmentState, offset: int) -> Position:
    """Return the end of a completed segment as the beginning of the next."""
    while offset >= segment.end and segment.next is not None:
        segment, offset = segment.next, 0
    return Position(segment.number, offset)


def find_synced(writer: Writer) -> Position:
    """Return the end of the records that no power cut takes."""
    for segment in writer.dirty:
        # A recovered segment that nothing was appended to is dirty until its doubt is noted.
        if segment.is_dirty and segment.end > segment.found_end:
            # Never before the records that were there at the start, though they were not synced in
            # this run: a reader that had them in the last one must not see the queue go back.
            found_end = min(segment.found_end, segment.end)
            return Position(segment.number, max(segment.synced_end, found_end))
    return Position(writer.segment.number, writer.segment.end)
