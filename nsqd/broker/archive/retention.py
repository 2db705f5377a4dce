"""RetainedLog: the files of one topic's history, appended to at one end and deleted at the other.

On disk it is a queue of go-diskqueue that is never consumed, so every tool that reads queues reads
it: the read position is the beginning of the oldest segment that is kept. Segments are deleted
whole, so they are small: they end after an eighth of the bytes, or of the time, that is kept.

    deleted | segment | segment | segment | segment being written |
            ^ READ of the metadata                                ^ WRITE

Writing, fsync and recovery are diskqueue's; the ages of the segments and the bounds are added here.
Everything blocks, and the caller sees to it that one thread at a time is at work, but for
`Sync.run`: that works on descriptors of its own while more is appended. A write that fails leaves
no trace. A sync makes the records durable, then replaces the metadata, then deletes; one that
publishers wait for has the first step alone. After a crash `diskqueue.recovery` finds the records
that were appended since the metadata was replaced, up to the last whole one.
"""

import contextlib
import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from struct import Struct

from diskqueue import layout
from diskqueue.append_job import WriteBuffers, write_buffers
from diskqueue.errors import CorruptSegmentError
from diskqueue.finished.sidecar import Position
from diskqueue.identity import Deleted, Generation
from diskqueue.layout import QueueFiles
from diskqueue.recovery import recover
from diskqueue.segment import RecordLimits, SegmentState, iter_buffers
from diskqueue.sync_job import remove_queue
from diskqueue.views.pins import Pins
from diskqueue.views.view import SegmentRange, find_synced
from diskqueue.writer import FsyncTarget, Writer

logger = logging.getLogger(__name__)

# The history to keep is deleted in so many steps.
SEGMENT_SHARE = 8
# Smaller segments would be deleted, each with its fsyncs, more often than a disk can.
MIN_SEGMENT_BYTES = 64 * 1024

# Chunks that one call writes; the kernel takes 1024.
_MAX_BUFFERS = 512
_DIRECTORY_MODE = 0o700
# The beginning of a record: its length, then the timestamp of its message.
_record_start = Struct(">iq")
_timestamp = Struct(">q")


@dataclass(frozen=True, slots=True)
class Retention:
    """How much history a topic keeps. Zero is no bound; with no bound at all nothing is kept."""

    max_bytes: int = 0
    max_age_s: float = 0.0

    @property
    def is_on(self) -> bool:
        """Whether any history is kept."""
        return self.max_bytes > 0 or self.max_age_s > 0

    def segment_bytes(self, max_bytes_per_file: int) -> int:
        """Return how large a segment gets."""
        if not self.max_bytes:
            return max_bytes_per_file
        return min(max_bytes_per_file, max(self.max_bytes // SEGMENT_SHARE, MIN_SEGMENT_BYTES))

    @property
    def max_age_ns(self) -> int:
        """How old the newest record of a segment gets; 0 is no bound."""
        return round(self.max_age_s * 1e9)


NO_RETENTION = Retention()


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records to append together; they stay in one segment."""

    data: bytes | memoryview
    # The sizes of the records, their prefixes included.
    lengths: Sequence[int]
    oldest_ns: int
    newest_ns: int


@dataclass(slots=True, eq=False)
class _Segment:
    """The age and the number of the records in one file."""

    state: SegmentState
    oldest_ns: int = 0
    newest_ns: int = 0
    record_count: int = 0
    # False for a segment of an earlier process until its records are read: till then its newest
    # time is that of the last change of the file, and only the records appended since are counted.
    is_surveyed: bool = True


@dataclass(frozen=True, slots=True)
class Sync:
    """The part of a sync that takes long, and may run while more is appended."""

    targets: list[FsyncTarget]
    # Where the records that become durable end, and how many they are.
    end: tuple[int, int]
    record_count: int
    # False makes the records durable, and leaves checksums and metadata for a later sync.
    with_metadata: bool
    # The directory, if it has got files since the last sync.
    changed_directory: str | None

    def run(self) -> OSError | None:
        """Make the records durable; return why they may not be."""
        failure: OSError | None = None
        for target in self.targets:
            try:
                target.fsync()
            except OSError as error:
                # A segment that was dropped since may have no file any more.
                is_dropped = isinstance(error, FileNotFoundError) and not target.state.is_dirty
                failure = failure or (None if is_dropped else error)
            finally:
                target.close()
        if self.changed_directory is not None and failure is None:
            try:
                layout.fsync_directory(self.changed_directory)
            except OSError as error:
                failure = error
        return failure

    def close(self) -> None:
        """Let go of the descriptors, without a sync."""
        for target in self.targets:
            target.close()


@dataclass(frozen=True, slots=True)
class ArchiveLook:
    """The files of one topic's history, at one moment."""

    generation: str
    segments: list[SegmentRange]
    pins: Pins
    record_count: int
    # Where history begins, where it is durable up to, and where it ends.
    read: Position
    synced: Position
    written: Position
    # The newest segment that is gone.
    last_deleted: Deleted | None = None

    def open_segment(self, segment: SegmentRange) -> int:
        """Return a descriptor of a segment.

        Raises:
            OSError: the file cannot be opened.
        """
        if segment.pin is not None:
            return self.pins.open(segment.pin)
        return os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


class RetainedLog:
    """The history of one topic on disk, within its bounds after each `trim`."""

    def __init__(
        self,
        directory: str,
        name: str,
        retention: Retention,
        *,
        max_bytes_per_file: int,
        max_record_bytes: int,
        has_checksums: bool = False,
        files: QueueFiles | None = None,
    ) -> None:
        """Open the files that are there, or begin anew; make the directory if need be.

        Args:
            has_checksums: write a checksum of each record beside it.
            files: those of this log, if the caller has just listed the directory.

        Raises:
            OSError: the directory cannot be made, or a file cannot be read.
        """
        self._directory = directory
        self._name = name
        self._retention = retention
        self._segment_bytes = retention.segment_bytes(max_bytes_per_file)
        self._max_segment_age_ns = retention.max_age_ns // SEGMENT_SHARE  # 0 is no bound
        self._limits = RecordLimits(max_record_bytes=max_record_bytes)
        self.generation = Generation(directory, name)
        # Readers that hold segments.
        self.pins = Pins()
        _ensure_directory(directory)
        found = recover(directory, name, self._limits, logger, files)
        self._read_pos = found.read_pos
        self._writer = Writer(
            *(directory, name, found.write_segment, self._segment_bytes, logger),
            has_checksums=has_checksums,
        )
        self._segments = deque(self._adopt(found.read_segment))
        # Segments beyond the bounds whose files are still there, oldest first.
        self._dropped = deque(found.consumed)
        self._durable_text = found.durable_text
        # Appended since the metadata was last replaced by a sync.
        self._is_unsynced = False
        # Where the durable records end, and how many stand behind that place.
        self._durable_end: tuple[int, int] = self.end
        self._unsynced_count = 0
        # Figures that other threads look at.
        self.size_bytes = sum(each.state.end for each in self._segments)
        self.record_count = max(found.depth, 0)

    @property
    def segment_count(self) -> int:
        """How many files hold history."""
        return len(self._segments) - (not self._segments[-1].state.exists)

    @property
    def oldest_ns(self) -> int:
        """When the oldest message that is kept was published; 0 if there is none."""
        oldest = self._segments[0]
        return oldest.oldest_ns if oldest.state.end else 0

    @property
    def is_dirty(self) -> bool:
        """Whether a sync has anything to do."""
        return self._is_unsynced or bool(self._dropped)

    @property
    def expires_ns(self) -> int | None:
        """When the oldest segment is too old; None if it never is or there is none."""
        oldest = self._segments[0]
        if not self._retention.max_age_ns or not oldest.state.end:
            return None
        return oldest.newest_ns + self._retention.max_age_ns

    @property
    def end(self) -> Position:
        """Where the last record ends."""
        return Position(self._writer.segment.number, self._writer.segment.end)

    def look(self, *, is_pinned: bool) -> ArchiveLook:
        """Return the files as they are, held for a reader or not.

        Raises:
            OSError: the generation cannot be stored.
        """
        generation = self.generation.ensure()
        ranges = []
        start = self._read_pos
        for segment in self._segments:
            state = segment.state
            if state.exists and state.end > start:
                path = self._writer.path_of(state)
                pin = self.pins.pin(path) if is_pinned else None
                ranges.append(SegmentRange(state.number, path, start, state.end, (), pin))
            start = 0
        return ArchiveLook(
            *(generation, ranges, self.pins, self.record_count),
            read=Position(self._segments[0].state.number, self._read_pos),
            synced=find_synced(self._writer),
            written=self.end,
            last_deleted=self.generation.last_deleted,
        )

    def find_position(self, size_bytes: int, now_ns: int) -> int:
        """Return where in its segment the next append will begin, if it is of this size."""
        segment = self._segments[-1]
        end = segment.state.end
        max_age_ns = self._max_segment_age_ns
        is_old = max_age_ns and now_ns - segment.oldest_ns > max_age_ns
        return 0 if is_old or end + size_bytes > self._segment_bytes else end

    def append(
        self, chunks: Sequence[Chunk], now_ns: int, write: WriteBuffers = write_buffers
    ) -> int:
        """Append the first chunks, as many as fit into a segment; return how many those are.

        They are written in one call: a thread gets its turn rarely while the loop is busy.

        Raises:
            OSError: nothing was appended.
        """
        if not self.find_position(len(chunks[0].data), now_ns):
            self._begin_segment()
        fitting = _find_fitting(chunks, self.end.offset, self._segment_bytes)
        segment = self._segments[-1]
        is_first = not segment.state.end
        self._writer.append_buffers(
            [chunk.data for chunk in fitting], [chunk.lengths for chunk in fitting], write
        )
        self._is_unsynced = True
        oldest_ns = min(chunk.oldest_ns for chunk in fitting)
        segment.oldest_ns = oldest_ns if is_first else min(segment.oldest_ns, oldest_ns)
        segment.newest_ns = max(segment.newest_ns, *(chunk.newest_ns for chunk in fitting))
        count = sum(len(chunk.lengths) for chunk in fitting)
        segment.record_count += count
        self.record_count += count
        self._unsynced_count += count
        self.size_bytes += sum(len(chunk.data) for chunk in fitting)
        return len(fitting)

    def append_now(self, data: bytes | memoryview, lengths: Sequence[int], now_ns: int) -> bool:
        """Append records that were published now; return False if that needs a new segment.

        Args: lengths: the sizes of the records, their prefixes included.

        Raises:
            OSError: nothing was appended.
        """
        segment = self._segments[-1]
        end = segment.state.end
        if not end or end + len(data) > self._segment_bytes:
            return False
        max_age_ns = self._max_segment_age_ns
        if max_age_ns and now_ns - segment.oldest_ns > max_age_ns:
            return False
        self._writer.append_buffers((data,), (lengths,))
        record_count = len(lengths)
        self._is_unsynced = True
        segment.newest_ns = max(segment.newest_ns, now_ns)
        segment.record_count += record_count
        self.record_count += record_count
        self._unsynced_count += record_count
        self.size_bytes += len(data)
        return True

    def trim(self, now_ns: int) -> bool:
        """Drop the segments that are beyond the bounds; return whether there were any.

        Their files are deleted by `delete_dropped` or the next sync.

        Raises:
            OSError: a segment of an earlier process cannot be read.
        """
        has_dropped = False
        while self._is_excess(now_ns):
            self._drop_oldest()
            has_dropped = True
        return has_dropped

    def begin_sync(self, *, with_metadata: bool = True) -> Sync:
        """Return the work that makes all appended records durable; `end_sync` takes it back.

        Args:
            with_metadata: False makes nothing durable but the records, which is one fsync. They are
                found after a crash behind the place that the metadata names.

        Raises:
            OSError: the process has no descriptors left.
        """
        targets = self._writer.fsync_targets(with_checksums=with_metadata)
        directory = self._directory if self._writer.has_new_files else None
        self._writer.has_new_files = False
        return Sync(targets, self.end, self._unsynced_count, with_metadata, directory)

    def end_sync(self, sync: Sync, error: OSError | None) -> None:
        """Note which records are durable now, and delete the files of dropped segments.

        Raises:
            OSError: the records may not be durable, or a file could not be deleted.
        """
        if error is not None:
            self._writer.has_new_files |= sync.changed_directory is not None
            if self._writer.segment.is_suspect:
                # The kernel may have lost a part of it: no more is appended behind that.
                self._begin_segment()
            raise error
        self._writer.note_durable(sync.targets)
        if not sync.with_metadata:
            return
        self._durable_end = sync.end
        self._unsynced_count -= sync.record_count
        has_more = self.end != sync.end
        if not has_more:
            self._writer.close()  # most archives are written to now and then
        self.delete_dropped()
        self._is_unsynced = has_more
        if self.size_bytes and self.generation.stored is None:
            # The next sync tries again; a reader who asks for the generation is told the error.
            with contextlib.suppress(OSError):
                self.generation.ensure()

    def sync(self) -> None:
        """Make everything durable, and delete the files of dropped segments, in one go.

        Raises:
            OSError: the records may not be durable, or a file could not be deleted.
        """
        sync = self.begin_sync()
        self.end_sync(sync, sync.run())

    def delete_dropped(self) -> None:
        """Delete the files of dropped segments without waiting for the newest to be durable.

        The metadata says where the durable records end. After a crash the rest is found behind.

        Raises:
            OSError: a file could not be deleted, or the metadata not be replaced.
        """
        text = self._format_metadata()
        is_unused = self._durable_text is None and not self.is_dirty and not self.size_bytes
        if text != self._durable_text and not is_unused:
            self._durable_text = None
            layout.write_atomically(layout.metadata_path(self._directory, self._name), text)
            self._durable_text = text
        if self._dropped:
            newest = self._dropped[-1]
            # A reader that is not told takes the segment for lost, and says so.
            with contextlib.suppress(OSError):
                self.generation.store_deleted(newest.number, newest.end)
        # Oldest first: what a crash leaves stands right before the read position, and is found.
        while self._dropped:
            state = self._dropped[0]
            path = self._writer.path_of(state)
            self.pins.keep(path)
            layout.remove_segment(path, has_checksums=state.has_checksum_file)
            self._dropped.popleft()

    def close(self) -> None:
        """Make everything durable and close the files.

        Raises:
            OSError: the records may not be durable.
        """
        try:
            self.sync()
        finally:
            self._writer.close()

    def delete(self) -> None:
        """Remove all files, the metadata that leads to them last.

        Raises:
            OSError: a file could not be removed.
        """
        self._writer.close()
        states = [*self._dropped, *(each.state for each in self._segments)]
        remove_queue(self._directory, self._name, states, self.pins)
        layout.fsync_directory(self._directory)

    def abandon(self) -> None:
        """Close the files as they are."""
        self._writer.close()

    def _format_metadata(self) -> bytes:
        start = self._segments[0].state.number, self._read_pos
        # If all durable records were dropped, the metadata says where history begins, no more.
        end = max(self._durable_end, start)
        count = self.record_count - self._unsynced_count if end > start else 0
        return layout.format_metadata(layout.Metadata(max(count, 0), *start, *end))

    # --- one segment after the other

    def _begin_segment(self) -> None:
        """Complete the segment being written, unless it is empty."""
        self._writer.start_new_segment()
        if self._segments[-1].state is not self._writer.segment:
            self._segments.append(_Segment(self._writer.segment))

    # --- bounds

    def _is_excess(self, now_ns: int) -> bool:
        """Whether the oldest segment has to go."""
        oldest, newest = self._segments[0], self._segments[-1]
        if not oldest.state.end:
            return False
        max_bytes = self._retention.max_bytes
        if max_bytes and oldest is not newest:
            # Room for all of the segment being written, so that the bound holds until it is full.
            room_bytes = max(self._segment_bytes - newest.state.end, 0)
            if self.size_bytes + room_bytes > max_bytes:
                return True
        expires_ns = self.expires_ns
        if expires_ns is None or now_ns <= expires_ns:
            return False
        if not oldest.is_surveyed:
            self._survey(oldest)
            return self._is_excess(now_ns)
        return True

    def _drop_oldest(self) -> None:
        oldest = self._segments[0]
        if not oldest.is_surveyed:
            self._survey(oldest)
        if oldest is self._segments[-1]:
            self._begin_segment()
        self._segments.popleft()
        self._read_pos = 0
        self._writer.release(oldest.state)
        self._dropped.append(oldest.state)
        self.generation.note_retired(oldest.state.number, oldest.state.end)
        self.size_bytes -= oldest.state.end
        self.record_count = max(self.record_count - oldest.record_count, 0)

    # --- segments of an earlier process

    def _adopt(self, state: SegmentState | None) -> Iterator[_Segment]:
        start = self._read_pos
        while state is not None:
            segment = _Segment(state)
            if state.end:
                self._look_at(segment, start)
            yield segment
            state = state.next
            start = 0

    def _look_at(self, segment: _Segment, start: int) -> None:
        """Find out about how old a segment is without reading all of it."""
        segment.is_surveyed = False
        with open(self._writer.path_of(segment.state), "rb") as file:
            segment.newest_ns = segment.oldest_ns = os.fstat(file.fileno()).st_mtime_ns
            head = os.pread(file.fileno(), _record_start.size, start)
        if len(head) == _record_start.size:
            segment.oldest_ns = _record_start.unpack(head)[1]

    def _survey(self, segment: _Segment) -> None:
        """Read the oldest segment for the number of its records and the age of the last.

        Records behind damage are not counted, and as old as the file.

        Raises:
            OSError: the file cannot be read.
        """
        segment.is_surveyed = True
        segment.record_count = 0
        path, end = self._writer.path_of(segment.state), segment.state.end
        with contextlib.suppress(FileNotFoundError, CorruptSegmentError):
            newest_ns = segment.newest_ns
            for _, block, starts, _ in iter_buffers(path, self._read_pos, end, self._limits):
                segment.record_count += len(starts)
                (newest_ns,) = _timestamp.unpack_from(block, starts[-1])
            segment.newest_ns = newest_ns


def _find_fitting(chunks: Iterable[Chunk], size_bytes: int, max_bytes: int) -> list[Chunk]:
    """Return the chunks that fit into a segment of that size, at least the first."""
    fitting: list[Chunk] = []
    for chunk in islice(chunks, _MAX_BUFFERS):
        size_bytes += len(chunk.data)
        if fitting and size_bytes > max_bytes:
            break
        fitting.append(chunk)
    return fitting


def _ensure_directory(path: str) -> None:
    """Make the directory if need be, but not those above it: a volume may not be mounted."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, _DIRECTORY_MODE)
        layout.fsync_directory(os.path.dirname(path) or ".")
