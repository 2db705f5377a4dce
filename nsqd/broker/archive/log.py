"""ArchiveLog: the files of one topic's history, appended to at one end and deleted at the other.

On disk it is a queue of go-diskqueue that nobody reads: its read position is the oldest record that
is kept, always the beginning of a segment, so every tool that reads queues reads it. Deleting is
done by whole segments, which are therefore small (an eighth of what is kept), and begun anew after
an eighth of the time.

    deleted | segment | segment | segment | segment being written |
            ^ READ of the metadata                                ^ WRITE

Everything here blocks, and is called by one thread at a time, but for the long part of a sync, the
fsync of what was written: that is a job on descriptors of its own, and more is appended meanwhile.
A write that fails leaves no trace. A sync makes the records durable, then replaces the metadata,
then deletes, as `diskqueue.sync_job` does; after a crash `diskqueue.recovery` finds what was
appended since, up to the last whole record.
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
from diskqueue.recovery import SegmentState, recover
from diskqueue.segment import PREFIX_BYTES, Limits, split_records

logger = logging.getLogger(__name__)

# What is kept is deleted in so many steps.
SEGMENT_SHARE = 8
# Smaller segments would be deleted, each with its fsyncs, more often than a disk can.
MIN_SEGMENT_BYTES = 64 * 1024

# What one call writes; the kernel takes 1024.
_MAX_PIECES = 512
_SURVEY_BYTES = 1024 * 1024
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
    """Records to append in one piece; they stay in one segment."""

    data: bytes
    record_count: int
    oldest_ns: int
    newest_ns: int


class _Segment:
    """What is known of one file."""

    __slots__ = (
        "exists",
        "is_newest_sure",
        "newest_ns",
        "number",
        "oldest_ns",
        "record_count",
        "size",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.exists = False
        self.size = 0
        self.oldest_ns = 0
        self.newest_ns = 0
        # Of a segment of an earlier life only the time of its last change is known at first.
        self.is_newest_sure = True
        self.record_count: int | None = 0

    def add(self, chunk: Chunk) -> None:
        if not self.size:
            self.oldest_ns = chunk.oldest_ns
        self.size += len(chunk.data)
        self.newest_ns = max(self.newest_ns, chunk.newest_ns)
        if self.record_count is not None:
            self.record_count += chunk.record_count


class SyncJob:
    """The part of a sync that takes long, and may run while more is appended."""

    def __init__(self, fds: list[int], position: tuple[int, int], record_count: int) -> None:
        """Args:
        fds: of its own.
        position: where what becomes durable ends.
        record_count: how many records become durable.
        """
        self.position = position
        self.record_count = record_count
        self._fds = fds

    def run(self) -> OSError | None:
        """Make it durable; return why it may not be."""
        failure: OSError | None = None
        for fd in self._fds:
            try:
                os.fsync(fd)
            except OSError as error:
                failure = failure or error
            finally:
                os.close(fd)
        self._fds.clear()
        return failure


class ArchiveLog:
    """The history of one topic on disk, within its bounds after each `sync`."""

    def __init__(
        self,
        directory: str,
        name: str,
        retention: Retention,
        *,
        max_bytes_per_file: int,
        max_record_bytes: int,
    ) -> None:
        """Open what is there, or begin anew; the directory is made if need be.

        Raises:
            OSError: the directory cannot be made, or a file cannot be read.
        """
        self.name = name
        self._directory = directory
        self._retention = retention
        self._segment_bytes = retention.segment_bytes(max_bytes_per_file)
        self._limits = Limits(max_record_bytes=max_record_bytes)
        _ensure_directory(directory)
        found = recover(directory, name, self._limits, logger, None)
        self._segments = deque(self._adopt(found.read_segment, found.read_pos))
        self._read_pos = found.read_pos
        self._fd = -1
        # Segments that were completed since the last sync.
        self._completed_fds: list[int] = []
        self._is_dirty = False
        # Where what is durable ends, and how many records stand behind it.
        newest = self._segments[-1]
        self._synced = newest.number, newest.size
        self._unsynced_count = 0
        self._dropped = deque(self._path(each.number) for each in found.consumed)
        self._durable_text = found.durable_text
        self._is_open = True
        # Figures that other threads look at.
        self.size_bytes = sum(each.size for each in self._segments)
        self.record_count = max(found.depth, 0)

    @property
    def segment_count(self) -> int:
        """How many files hold history."""
        return len(self._segments) - (not self._segments[-1].exists)

    @property
    def oldest_ns(self) -> int:
        """When the oldest message that is kept was published; 0 if there is none."""
        oldest = self._segments[0]
        return oldest.oldest_ns if oldest.size else 0

    @property
    def is_dirty(self) -> bool:
        """Whether a sync has anything to do."""
        return self._is_dirty or bool(self._dropped)

    @property
    def expires_ns(self) -> int | None:
        """When the oldest segment is too old; None if it never is or there is none."""
        oldest = self._segments[0]
        if not self._retention.max_age_ns or not oldest.size:
            return None
        return oldest.newest_ns + self._retention.max_age_ns

    def append(self, chunks: Sequence[Chunk], now_ns: int) -> int:
        """Append the first chunks, as many as fit into a segment; return how many those are.

        They are written in one call: a thread gets its turn rarely while the loop is busy.

        Raises:
            OSError: nothing was appended.
        """
        if self._wants_new_segment(chunks[0], now_ns):
            self._begin_segment()
        segment = self._segments[-1]
        taken = self._fitting(chunks, segment)
        if self._fd < 0:
            self._fd = self._open(segment)
        try:
            _write_pieces(self._fd, [chunk.data for chunk in taken], segment.size)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, segment.size)
            raise
        self._is_dirty = True
        for chunk in taken:
            segment.add(chunk)
            self.size_bytes += len(chunk.data)
            self.record_count += chunk.record_count
            self._unsynced_count += chunk.record_count
        return len(taken)

    def _fitting(self, chunks: Iterable[Chunk], segment: _Segment) -> list[Chunk]:
        taken: list[Chunk] = []
        size_bytes = segment.size
        for chunk in islice(chunks, _MAX_PIECES):
            size_bytes += len(chunk.data)
            if taken and size_bytes > self._segment_bytes:
                break
            taken.append(chunk)
        return taken

    def trim(self, now_ns: int) -> bool:
        """Give up the segments that are beyond the bounds; return whether there were any.

        They are deleted by the next sync.

        Raises:
            OSError: a segment of an earlier life cannot be read.
        """
        has_dropped = False
        while self._is_excess(now_ns):
            self._drop_oldest()
            has_dropped = True
        return has_dropped

    def begin_sync(self) -> "SyncJob":
        """Return what makes everything durable that was appended so far; `end_sync` takes it back.

        Raises:
            OSError: the process has no descriptors left.
        """
        newest = self._segments[-1]
        current_fd = os.dup(self._fd) if self._fd >= 0 else -1
        fds, self._completed_fds = self._completed_fds, []
        if current_fd >= 0:
            fds.append(current_fd)
        return SyncJob(fds, (newest.number, newest.size), self._unsynced_count)

    def end_sync(self, job: "SyncJob", error: OSError | None) -> None:
        """Note what is durable now, and delete what was given up.

        Raises:
            OSError: it may not be durable, or a file could not be deleted.
        """
        if error is not None:
            # The kernel may have dropped pages, and nothing more shall stand behind them.
            if self._segments[-1].size:
                self._begin_segment()
            raise error
        self._synced = job.position
        self._unsynced_count -= job.record_count
        newest = self._segments[-1]
        has_more = (newest.number, newest.size) != job.position
        if not has_more:
            self._close_files()  # most archives write now and then
        self.delete_dropped()
        self._is_dirty = has_more

    def sync(self) -> None:
        """Make everything durable, and delete what was given up, in one go.

        Raises:
            OSError: it may not be durable, or a file could not be deleted.
        """
        job = self.begin_sync()
        self.end_sync(job, job.run())

    def delete_dropped(self) -> None:
        """Delete what was given up, but don't wait for what was written to be durable.

        The metadata says where what is durable ends. After a crash the rest is found behind that.

        Raises:
            OSError: a file could not be deleted, or the metadata not be replaced.
        """
        text = self._format_metadata()
        is_unused = self._durable_text is None and not self.is_dirty and not self.size_bytes
        if text != self._durable_text and not is_unused:
            self._durable_text = None
            layout.write_atomically(layout.metadata_path(self._directory, self.name), text)
            self._durable_text = text
        # The oldest first: what a crash leaves stands right before the read position, and is found.
        while self._dropped:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._dropped[0])
            self._dropped.popleft()

    def close(self) -> None:
        """Make everything durable and let go of the files.

        Raises:
            OSError: it may not be durable.
        """
        if self._is_open:
            self._is_open = False
            self.sync()

    def delete(self) -> None:
        """Remove all files, the metadata that leads to them last.

        Raises:
            OSError: a file could not be removed.
        """
        self._is_open = False
        self._close_files()
        paths = [*self._dropped, *(self._path(each.number) for each in self._segments)]
        for path in [*paths, layout.metadata_path(self._directory, self.name)]:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        layout.fsync_directory(self._directory)

    def abandon(self) -> None:
        """Let go of the files as they are."""
        self._close_files()

    # --- one segment after the other

    def _wants_new_segment(self, chunk: Chunk, now_ns: int) -> bool:
        segment = self._segments[-1]
        if not segment.size:
            return False
        if segment.size + len(chunk.data) > self._segment_bytes:
            return True
        max_age_ns = self._retention.max_age_ns
        return bool(max_age_ns) and now_ns - segment.oldest_ns > max_age_ns // SEGMENT_SHARE

    def _begin_segment(self) -> None:
        """Complete the segment being written; the next sync makes it durable."""
        if self._fd >= 0:
            self._completed_fds.append(self._fd)
            self._fd = -1
        self._segments.append(_Segment(self._segments[-1].number + 1))

    def _close_files(self) -> None:
        for fd in [*self._completed_fds, self._fd]:
            if fd >= 0:
                os.close(fd)
        self._completed_fds.clear()
        self._fd = -1

    def _open(self, segment: _Segment) -> int:
        path = self._path(segment.number)
        if segment.exists:
            return os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            fd = os.open(path, flags, layout.FILE_MODE)
        except FileExistsError:
            # No metadata leads to it. Writing into it would mix its records with ours.
            os.rename(path, layout.quarantine_path(path))
            logger.warning("ARCHIVE(%s): set aside a stray segment %s", self.name, path)
            fd = os.open(path, flags, layout.FILE_MODE)
        segment.exists = True
        return fd

    def _path(self, number: int) -> str:
        return layout.segment_path(self._directory, self.name, number)

    def _format_metadata(self) -> bytes:
        oldest = self._segments[0]
        start = oldest.number, self._read_pos
        # If all that is durable was given up, the metadata leads to a place and nothing more.
        end = max(self._synced, start)
        count = self.record_count - self._unsynced_count if end > start else 0
        return layout.format_metadata(layout.Metadata(max(count, 0), *start, *end))

    # --- bounds

    def _is_excess(self, now_ns: int) -> bool:
        """Whether the oldest segment has to go."""
        oldest, newest = self._segments[0], self._segments[-1]
        if not oldest.size:
            return False
        max_bytes = self._retention.max_bytes
        if max_bytes and oldest is not newest:
            # Room for all of the segment being written, so that the bound holds until it is full.
            room_bytes = max(self._segment_bytes - newest.size, 0)
            if self.size_bytes + room_bytes > max_bytes:
                return True
        expires_ns = self.expires_ns
        if expires_ns is None or now_ns <= expires_ns:
            return False
        if not oldest.is_newest_sure:
            self._survey(oldest)
            return self._is_excess(now_ns)
        return True

    def _drop_oldest(self) -> None:
        oldest = self._segments[0]
        if oldest.record_count is None:
            self._survey(oldest)
        if oldest is self._segments[-1]:
            self._begin_segment()
        self._segments.popleft()
        self._read_pos = 0
        self._dropped.append(self._path(oldest.number))
        self.size_bytes -= oldest.size
        self.record_count = max(self.record_count - (oldest.record_count or 0), 0)

    # --- segments of an earlier life

    def _adopt(self, state: SegmentState | None, read_pos: int) -> Iterator[_Segment]:
        while state is not None:
            segment = _Segment(state.number)
            segment.exists = state.exists
            segment.size = state.end
            if state.end:
                segment.record_count = None
                self._look_at(segment, read_pos)
            yield segment
            state = state.next
            read_pos = 0

    def _look_at(self, segment: _Segment, start: int) -> None:
        """Find out the age of a segment without reading all of it."""
        with open(self._path(segment.number), "rb") as file:
            segment.newest_ns = os.fstat(file.fileno()).st_mtime_ns
            segment.is_newest_sure = False
            head = os.pread(file.fileno(), _record_start.size, start)
        segment.oldest_ns = segment.newest_ns
        if len(head) == _record_start.size:
            segment.oldest_ns = _record_start.unpack(head)[1]

    def _survey(self, segment: _Segment) -> None:
        """Read a segment for the number of its records and the age of the last.

        What is behind damage is not counted, and as old as the file.
        """
        start = self._read_pos if segment is self._segments[0] else 0
        segment.is_newest_sure = True
        segment.record_count = 0
        newest_ns = 0
        piece_bytes = max(_SURVEY_BYTES, PREFIX_BYTES + self._limits.max_record_bytes)
        with contextlib.suppress(FileNotFoundError), open(self._path(segment.number), "rb") as file:
            while start < segment.size:
                data = os.pread(file.fileno(), min(piece_bytes, segment.size - start), start)
                starts, ends = split_records(data, 0, len(data), len(data), self._limits)
                if not starts:
                    return
                segment.record_count += len(starts)
                (newest_ns,) = _timestamp.unpack_from(data, starts[-1])
                start += ends[-1]
            segment.newest_ns = newest_ns


def _write_pieces(fd: int, pieces: list[bytes], position: int) -> None:
    written = os.pwritev(fd, pieces, position)
    if written < sum(map(len, pieces)):
        # The disk or a quota is almost full: the next write says so.
        layout.write_all(fd, b"".join(pieces)[written:], position + written)


def _ensure_directory(path: str) -> None:
    """Make the directory if need be, but not those above it: a volume may not be mounted."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, _DIRECTORY_MODE)
        layout.fsync_directory(os.path.dirname(path) or ".")
