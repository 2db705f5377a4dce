"""One queue of one node, as one look found it: its positions, its segments, and its damage.

Made by files/catalog.py of a directory, and by fleet/ of what a node answers; everything behind it
(plans, streams, jobs) takes queues as they are, wherever they were found.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter

from diskqueue import layout
from spark_jobs.object_store import AMBIENT, StoreSettings
from spark_jobs.read.options import Origin, ReadOptions


@dataclass(frozen=True, slots=True)
class FinishedRecords:
    """Records behind the read position that are finished, as a queue's sidecar file proves.

    The read position is that of the oldest unfinished message. `diskqueue.finished.sidecar` decides
    which entries of the sidecar are believed, here as when nsqd starts, so a backlog lacks exactly
    the messages that nsqd would not deliver again.
    """

    # Segment -> the starts and ends of ranges in turns, as the bytes of an int64 array.
    bounds: dict[int, bytes] = field(default_factory=dict)
    # Numbers of segments that were finished and deleted before older ones.
    gaps: tuple[range, ...] = ()
    # Newer than the metadata's if a crash came between the two files.
    read: tuple[int, int] = (0, 0)
    # Of the records within the bounds.
    record_count: int = 0
    byte_count: int = 0


NOTHING_FINISHED = FinishedRecords()


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """The part of a segment to read; both ends are between two records."""

    number: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Problem:
    """A fault of a queue that shows in its metadata and its listing; or records not synced yet."""

    kind: str
    segment: int | None
    offset: int | None
    byte_count: int | None
    reason: str
    file_name: str


@dataclass(frozen=True, slots=True)
class Part:
    """Messages of a queue that a snapshot found outside its segments, as a file of records."""

    file_name: str
    state: str  # ready, in_flight or deferred
    count: int
    byte_count: int
    # Has one int64 for each record: when a message times out, or is due. Empty for none.
    due_file: str = ""


@dataclass(slots=True)
class Queue:
    """One queue of one node, as one look found it: at a directory, or at a running nsqd."""

    node: str
    directory: str
    name: str
    metadata: layout.Metadata | None = None
    sizes: dict[int, int] = field(default_factory=dict)  # segment number -> size
    bad_files: dict[str, tuple[int, int]] = field(default_factory=dict)  # name -> number, size
    # Set if there is a metadata file that cannot be used.
    metadata_fault: str | None = None
    # Records behind the read position that are finished already.
    finished: FinishedRecords = NOTHING_FINISHED
    # The id of the nsqd that wrote it, and the random generation of the queue; None if it has none.
    node_id: str | None = None
    generation: str | None = None
    # Number and final size of the newest segment that nsqd has deleted, if it writes that down.
    last_deleted: tuple[int, int] | None = None
    # Of a segment: where reading starts, and the time of the first record, where that is known.
    starts: dict[int, int] = field(default_factory=dict)
    first_ns: dict[int, int] = field(default_factory=dict)
    # Messages by place (disk, memory, in_flight, deferred), as the node counts them.
    counts: dict[str, int] = field(default_factory=dict)
    # The size of messages that wait in memory and on disk, as the node tells it.
    waiting_bytes: int | None = None
    # When the message was published that the node delivers next.
    front_ns: int | None = None
    # Of a snapshot: its lease and moment, the messages in memory, the due times of records on disk,
    # and segments that are in the books only.
    lease: str = ""
    taken_ns: int = 0
    parts: tuple[Part, ...] = ()
    due: Part | None = None
    faults: tuple[Problem, ...] = ()
    # How to reach the directory.
    store: StoreSettings = AMBIENT

    @property
    def topic(self) -> str:
        """The topic."""
        return layout.split_queue_name(self.name)[0]

    @property
    def channel(self) -> str | None:
        """The channel, or None for a topic's own queue."""
        return layout.split_queue_name(self.name)[1]

    @property
    def is_remote(self) -> bool:
        """Whether a running nsqd serves its files."""
        return self.directory.startswith(("http://", "https://"))

    @property
    def unfinished_count(self) -> int | None:
        """How many messages nobody has finished, of all places that are seen; None: not known."""
        if self.counts:
            return sum(self.counts.values())
        if self.metadata is None:
            return None
        # The metadata counts all records behind the read position.
        return self.metadata.depth - self.finished.record_count

    @property
    def unfinished_bytes(self) -> int | None:
        """How large they are: of a node those that wait, in a directory those on disk."""
        if self.waiting_bytes is not None:
            return self.waiting_bytes
        if self.metadata is None:
            return None
        ranges = self.ranges(ReadOptions(()))
        return sum(each.end - each.start for each in ranges) - self.finished.byte_count

    def file_name(self, number: int) -> str:
        """Return the name of a segment's file."""
        return os.path.basename(layout.segment_path("", self.name, number))

    def ranges(self, options: ReadOptions) -> list[SegmentRange]:
        """Return the part to read of each segment, in order, without the empty ones."""
        ranges = []
        for number, size in self.sizes.items():
            start, end = 0, size
            metadata = self.metadata
            if metadata is not None:
                if options.origin is not Origin.EARLIEST:
                    if number < metadata.read_file:
                        continue
                    start = metadata.read_pos if number == metadata.read_file else 0
                if not options.includes_unsynced:
                    end = self._synced_end(metadata, number, size)
            elif options.origin is not Origin.EARLIEST:
                start = self.starts.get(number, 0)
            if start < end:
                ranges.append(SegmentRange(number, start, end))
        return ranges

    def synced_position(self) -> tuple[int, int]:
        """Return the end of the records that may be read: a segment and an offset."""
        if self.metadata is not None:
            return self.metadata.write_file, self.metadata.write_pos
        if not self.sizes:
            return 0, 0
        last = max(self.sizes)
        return last, self.sizes[last]

    @staticmethod
    def _synced_end(metadata: layout.Metadata, number: int, size: int) -> int:
        if number > metadata.write_file:
            return 0
        return min(size, metadata.write_pos) if number == metadata.write_file else size

    def missing_segments(self) -> list[range]:
        """Find the segments with unread records that are not there, as ranges of numbers."""
        metadata = self.metadata
        if metadata is None:
            return []
        read = metadata.read_file, metadata.read_pos
        if read == (metadata.write_file, metadata.write_pos):
            return []
        # At position 0 the last segment need not exist.
        stop = metadata.write_file + (metadata.write_pos > 0)
        known = [*ranges_of(self.sizes), *self.finished.gaps]
        return find_gaps(known, metadata.read_file, stop)

    def problems(self) -> Iterator[Problem]:
        """Compare the listing with the metadata, and yield each difference."""
        yield from self.faults
        if self.metadata_fault is not None:
            name = os.path.basename(layout.metadata_path("", self.name))
            yield Problem("metadata", None, None, None, self.metadata_fault, name)
        for gap in self.missing_segments():
            reason = "the segment is missing"
            if len(gap) > 1:
                reason = f"segments {gap[0]} to {gap[-1]} are missing"
            yield self._problem("missing", gap[0], 0, None, reason)
        metadata = self.metadata
        if metadata is None:
            return
        for side, number, position in (
            ("read", metadata.read_file, metadata.read_pos),
            ("write", metadata.write_file, metadata.write_pos),
        ):
            size = self.sizes.get(number)
            if size is not None and size < position:
                reason = f"the file is shorter than the {side} position {position}"
                yield self._problem("short", number, size, position - size, reason)
        for number, size in self.sizes.items():
            end = self._synced_end(metadata, number, size)
            if end < size:
                reason = "written after the last sync; read with includeUnsynced=true"
                yield self._problem("unsynced", number, end, size - end, reason)

    def _problem(
        self, kind: str, number: int, offset: int, byte_count: int | None, reason: str
    ) -> Problem:
        return Problem(kind, number, offset, byte_count, reason, self.file_name(number))


def ranges_of(numbers: Iterable[int]) -> list[range]:
    """Return a range of length one for each number."""
    return [range(number, number + 1) for number in numbers]


def find_gaps(covered: Iterable[range], start: int, stop: int) -> list[range]:
    """Return the numbers from start to, exclusively, stop that the ranges leave out.

    Broken metadata may speak of billions of segments, so nothing here counts up to them.
    """
    gaps = []
    expected = start
    for each in sorted(covered, key=attrgetter("start")):
        if expected < min(each.start, stop):
            gaps.append(range(expected, min(each.start, stop)))
        expected = max(expected, each.stop)
    if expected < stop:
        gaps.append(range(expected, stop))
    return gaps
