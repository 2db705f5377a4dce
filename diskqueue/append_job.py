"""The blocking half of an append that is large, or goes to a disk that is slow.

`DiskQueue.prepare_append` makes a job on the thread that owns the queue, `run` may then write in
any other while the queue is read, committed and synced, and `end` moves the write position over the
records. Until then they are behind the write position, so that no reader
sees them. One job of a queue is under way at a time, and no other append.

A job writes the current segment first and then makes the new ones, so that to a reader from outside
a segment with a successor is complete. If it fails, or another queue's part of the same publish
does, the current segment is cut back and the new files are removed.

`Writer` *cancels* a job when the segment that it writes to is given up meanwhile: the queue was
emptied or deleted, or the segment was damaged. From then on the job makes no file, because another
queue may have its names by then, and it is no append. The owner may prepare another one.
"""

import contextlib
import logging
import os
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import accumulate
from typing import TypeAlias

from diskqueue import layout
from diskqueue.checksums.file import ChecksumFile
from diskqueue.segment import SegmentState

# Buffers that one call writes; the kernel takes 1024.
_MAX_BUFFERS = 512
# A rest after the checksums of so many records, if there are more: to compute them takes the
# interpreter from the other threads, which would wait 5 ms for it after each of their system calls.
# A rest of no time would not do, since a thread that waits needs some to wake.
_YIELD_COUNT = 4000
_YIELD_S = 0.00005


# Writes buffers one behind the other to a descriptor, at a position.
WriteBuffers: TypeAlias = Callable[[int, Sequence[bytes | memoryview], int], None]


class RecordChunk:
    """Records back to back, each with its length prefix."""

    __slots__ = ("data", "lengths", "longest", "shortest")

    def __init__(self, data: bytes, lengths: Sequence[int]) -> None:
        """Args: lengths: the size of each record inside data, its prefix included."""
        self.data = data
        self.lengths = lengths
        # Of millions of records these take as long as the rest of an append. Chunks are shared by
        # the queues that get the same records.
        self.shortest = min(lengths)
        self.longest = max(lengths)

    def since(self, start: int) -> "RecordChunk":
        """Return the records from `start` on, of which there is one at least."""
        if not start:
            return self
        return RecordChunk(self.data[sum(self.lengths[:start]) :], self.lengths[start:])


@dataclass(slots=True)
class Placement:
    """The bytes that go into one segment."""

    segment: SegmentState
    path: str
    offset: int
    # Those of the segment, which only the job uses; None without any.
    checksums: ChecksumFile | None = None
    buffers: list[bytes | memoryview] = field(default_factory=list)
    # The sizes of the records in each buffer.
    lengths: list[Sequence[int]] = field(default_factory=list)
    size_bytes: int = 0
    # A descriptor of the job's own, or -1 before the file is open.
    fd: int = -1
    # The job has made the file.
    is_new: bool = False
    has_checksums_written: bool = False

    def add(self, data: bytes | memoryview, lengths: Sequence[int]) -> None:
        """Write these bytes as well, behind the others."""
        self.buffers.append(data)
        self.lengths.append(lengths)
        self.size_bytes += len(data)

    def write(self) -> None:
        """Write the bytes, and then their checksums, to the files, which are open.

        Raises:
            OSError: a part may have been written.
        """
        if len(self.buffers) == 1:
            layout.write_all(self.fd, self.buffers[0], self.offset)
        else:
            write_buffers(self.fd, self.buffers, self.offset)
        if self.checksums is not None:
            write_checksums(self.checksums, self.offset, self.buffers, self.lengths)
            self.has_checksums_written = True

    def undo(self) -> None:
        """Cut the files off where they ended, as far as that is possible."""
        try:
            os.ftruncate(self.fd, self.offset)
        except OSError:
            self.segment.rest = self.offset
        if self.checksums is not None and self.has_checksums_written:
            self.checksums.undo()

    def close(self) -> None:
        """Close the descriptor."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def close_all(self) -> None:
        """Close the descriptors of the segment and of its checksums."""
        self.close()
        if self.checksums is not None:
            self.checksums.close()


class JobState(Enum):
    """How far a job is."""

    PLANNED = auto()
    WRITTEN = auto()  # all bytes are in the files
    UNDONE = auto()  # failed or taken back: the files are as they were


class AppendJob:
    """One append under way. The queue's owner passes it on, calls `run` once, and gives it back."""

    def __init__(
        self,
        placements: list[Placement],
        record_count: int,
        on_end: Callable[["AppendJob"], bool],
        logger: logging.Logger,
    ) -> None:
        """Args:
        placements: the first is in the current segment, all others in new ones.
        on_end: appends the records, and returns whether that was possible.
        """
        self.placements = placements
        self.record_count = record_count
        # How long the files took, in seconds, when they are written.
        self.seconds = 0.0
        self.state = JobState.PLANNED
        self._on_end = on_end
        # Set under the lock, by the thread that owns the queue.
        self.is_cancelled = False
        # Held while a file is made, and while the job is cancelled.
        self._lock = threading.Lock()
        self._logger = logger

    @property
    def size_bytes(self) -> int:
        """How many bytes are written."""
        return sum(placement.size_bytes for placement in self.placements)

    def run(self) -> None:
        """Write the bytes, unless the job is cancelled.

        Raises:
            OSError: the files are as they were.
        """
        started = time.perf_counter()
        try:
            for placement in self.placements:
                if placement.size_bytes and self._open(placement):
                    placement.write()
                    if placement is not self.placements[0] and placement is not self.placements[-1]:
                        placement.close_all()
        except OSError:
            self.undo()
            raise
        self.seconds = time.perf_counter() - started
        self.state = JobState.WRITTEN
        if self.is_cancelled:
            self.undo()

    def undo(self) -> None:
        """Make the files as they were, as far as that is possible.

        New ones go from the last on, so that a crash in between leaves the beginning of the append.
        """
        self.state = JobState.UNDONE
        for placement in reversed(self.placements):
            if placement.is_new:
                with self._lock:
                    if not self.is_cancelled:
                        _discard(placement)
            elif placement.fd >= 0:
                placement.undo()
            placement.close_all()

    def end(self) -> bool:
        """Append the records if they are written, and allow other appends again.

        Returns False if nothing was appended: the job has failed or was undone, or it was cancelled
        because the queue was emptied, closed or deleted, or its segment given up, meanwhile.
        """
        return self._on_end(self)

    def cancel(self) -> None:
        """Make no more files, and remove those that were made."""
        with self._lock:
            self.is_cancelled = True
            for placement in self.placements:
                if placement.is_new:
                    _discard(placement)

    def _open(self, placement: Placement) -> bool:
        """Open the file, made if need be; return False if the job is cancelled."""
        with self._lock:
            if self.is_cancelled:
                return False
            if placement.fd < 0:
                segment = placement.segment
                placement.fd = open_segment(segment, placement.path, self._logger)
                placement.is_new = not segment.exists
            if placement.checksums is not None:
                placement.checksums.open(is_new=placement.is_new)
            return True


def _discard(placement: Placement) -> None:
    """Remove a file that the job has made, with its checksums."""
    with contextlib.suppress(OSError):
        layout.remove_segment(placement.path, has_checksums=placement.checksums is not None)


def place(
    chunks: Sequence[RecordChunk],
    segment: SegmentState,
    max_bytes_per_file: int,
    path_of: Callable[[SegmentState], str],
    checksums_of: Callable[[SegmentState], ChecksumFile | None],
) -> list[Placement]:
    """Plan which bytes go into the current segment, and which into each new one."""
    placements = [Placement(segment, path_of(segment), segment.end, checksums_of(segment))]
    used = segment.end
    for chunk in chunks:
        if used + len(chunk.data) <= max_bytes_per_file:
            placements[-1].add(chunk.data, chunk.lengths)
            used += len(chunk.data)
            continue
        view = memoryview(chunk.data)
        (head_bytes, done), *parts = _divide(chunk.lengths, used, max_bytes_per_file)
        if head_bytes:
            placements[-1].add(view[:head_bytes], chunk.lengths[:done])
        start = head_bytes
        used += head_bytes
        for size, stop in parts:
            segment = SegmentState(segment.number + 1)
            placements.append(Placement(segment, path_of(segment), 0, checksums_of(segment)))
            placements[-1].add(view[start : start + size], chunk.lengths[done:stop])
            start += size
            used = size
            done = stop
    return placements


def _divide(lengths: Sequence[int], used: int, max_bytes_per_file: int) -> list[tuple[int, int]]:
    """Divide records among a segment of which some bytes are used, and new ones.

    Returns how many bytes go into each, and the index behind their last record.
    """
    ends = list(accumulate(lengths))
    sizes: list[tuple[int, int]] = []
    done = index = 0
    while True:
        index = bisect_right(ends, done + max_bytes_per_file - used, lo=index)
        end = ends[index - 1] if index else 0
        if end == done and used == 0:
            # Larger than a whole segment: it gets one for itself.
            end = ends[index]
            index += 1
        sizes.append((end - done, index))
        if index == len(ends):
            return sizes
        done = end
        used = 0


def open_segment(segment: SegmentState, path: str, logger: logging.Logger) -> int:
    """Open a segment to write to it, without the rest of a failed append; make it if need be.

    Raises:
        OSError: the file can be neither opened nor made, or the rest not be cut off.
    """
    if segment.exists:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        if segment.rest is not None:
            try:
                os.ftruncate(fd, segment.rest)
            except OSError:
                os.close(fd)
                raise
            segment.rest = None
        return fd
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags, layout.FILE_MODE)
    except FileExistsError:
        # No metadata leads to this segment. Writing into it would mix its records with ours.
        bad_path = layout.quarantine(path)
        logger.warning(
            "diskqueue stray segment set aside file=%s look=python -m diskqueue dump %s",
            path,
            bad_path,
        )
        return os.open(path, flags, layout.FILE_MODE)


def write_checksums(
    checksums: ChecksumFile,
    position: int,
    buffers: Sequence[bytes | memoryview],
    lengths: Sequence[Sequence[int]],
) -> None:
    """Write the checksums of records that were just written at a position of their segment.

    Args: lengths: the sizes of the records in each buffer.

    Raises:
        OSError: none were written.
    """
    entries: list[bytes] = []
    count = 0
    for data, sizes in zip(buffers, lengths, strict=True):
        entries.append(checksums.encode(position, data, sizes))
        position += len(data)
        count += len(sizes)
        if count >= _YIELD_COUNT and len(buffers) > 1:
            time.sleep(_YIELD_S)
            count = 0
    checksums.write(b"".join(entries))


def write_buffers(fd: int, buffers: Sequence[bytes | memoryview], position: int) -> None:
    """Write buffers one behind the other at a position of the file, with as few calls as possible.

    Raises:
        OSError: a part may have been written.
    """
    for start in range(0, len(buffers), _MAX_BUFFERS):
        group = buffers[start : start + _MAX_BUFFERS]
        size_bytes = sum(map(len, group))
        written = os.pwritev(fd, group, position)
        if written < size_bytes:
            # The disk or a quota is almost full, or the kernel's limit for one call is reached.
            layout.write_all(fd, b"".join(group)[written:], position + written)
        position += size_bytes
