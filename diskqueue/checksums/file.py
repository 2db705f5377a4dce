"""ChecksumFile: the checksums of one segment while records are appended to it.

The queue's `Writer` has one for each segment that it writes to or that waits for its fsync. Entries
are written right behind the records, before the append is acknowledged, by the thread that appends.
"""

import contextlib
import os
from collections.abc import Sequence
from copy import copy
from functools import partial

from diskqueue import layout
from diskqueue.checksums import entries, marks
from diskqueue.checksums.checks import SegmentChecks

_WINDOW_BYTES = 64 * 1024
_ANY_SIZE = 2**31 - 1


def drop_stale(segment_path: str, queue_name: str, number: int, end: int) -> None:
    """Drop entries that are not about a segment to which more records will be appended.

    A power cut may have left entries and taken their records: from the first of these on the file
    is cut off, or later records would be compared with them. Or all of it is of another segment,
    which had the same name. If the file cannot be changed, it stays.

    Args:
        end: where the segment ends.
    """
    path = layout.checksum_path(segment_path)
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        if layout.find_size(path) is None:
            return
        fds: list[int] = []
        for each, flags in ((path, os.O_RDWR), (segment_path, os.O_RDONLY)):
            fds.append(os.open(each, flags | os.O_NONBLOCK | os.O_CLOEXEC))
            stack.callback(os.close, fds[-1])
        seed = entries.make_seed(queue_name, number)
        _cut_beyond(fds[0], seed, end)
        read_checks, read_segment = (partial(os.pread, fd) for fd in fds)
        checks = SegmentChecks(
            *(read_checks, read_segment, seed, _ANY_SIZE),
            have_same_mark=partial(marks.have_same_mark, fds[1], fds[0]),
        )
        if not checks.is_of_segment():
            os.unlink(path)


def _cut_beyond(fd: int, seed: int, end: int) -> None:
    """Cut a checksum file off before the last entries that reach beyond the end of the segment."""
    size = os.fstat(fd).st_size
    cut = size
    window_end = size
    while window_end > 0:
        start = max(0, window_end - _WINDOW_BYTES)
        # An entry that begins in this window may end in the next.
        data = os.pread(fd, window_end - start + entries.MAX_ENTRY_BYTES, start)
        found = [
            (start + offset, entry)
            for offset, _, entry in entries.iter_entries(data, seed, is_last=True)
            if start + offset < window_end
        ]
        beyond = [offset for offset, entry in found if entry.end > end]
        cut = min([cut, *beyond])
        if len(beyond) < len(found):
            break
        window_end = start
    if cut < size:
        os.ftruncate(fd, cut)


def _cut_torn_tail(path: str, fd: int, seed: int) -> int:
    """Cut off the beginning of an entry that a crash has left at the end; return the size then.

    Behind it, entries of this process would make it look like damage. `fd` is open for writing.
    """
    size = os.fstat(fd).st_size
    if not size:
        return 0
    start = max(0, size - 2 * entries.MAX_ENTRY_BYTES)
    with open(path, "rb") as file:
        file.seek(start)
        data = file.read(size - start)
    ends = [end for _, end, _ in entries.iter_entries(data, seed, is_last=True)]
    if start and not ends:
        return size
    last = ends[-1] if ends else 0
    torn = data[last:]
    if not torn or len(torn) >= entries.MAX_ENTRY_BYTES or not entries.MAGIC.startswith(torn[:4]):
        return size
    with contextlib.suppress(OSError):
        os.ftruncate(fd, start + last)
        return start + last
    return size


class ChecksumFile:
    """The end of one checksum file. An append that raises leaves it as it was."""

    __slots__ = (
        *("_last_size", "_seed", "fd", "has_rest", "is_urgent", "path", "size_bytes"),
        "synced_size",
    )

    def __init__(self, segment_path: str, queue_name: str, number: int) -> None:
        self.path = layout.checksum_path(segment_path)
        self.fd = -1
        self.size_bytes = -1  # unknown before the file is opened
        # The size that an fsync has covered.
        self.synced_size = 0
        # Entries must be durable with their records: see `entries.may_look_torn`.
        self.is_urgent = False
        # Entries of a failed append may stand behind `size_bytes`. `open` cuts them off: those that
        # a shorter entry does not overwrite would speak of records that are others by then.
        self.has_rest = False
        self._last_size = 0
        self._seed = entries.make_seed(queue_name, number)

    def open(self, *, is_new: bool) -> None:
        """Open the file, and make it if need be; one that is there goes on, unless `is_new`.

        Raises:
            OSError: the file can be neither opened nor made, or the rest not be cut off.
        """
        if self.fd >= 0:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        if is_new and self.size_bytes < 0:
            flags |= os.O_TRUNC  # a segment of the same name has left it
        try:
            fd = os.open(self.path, flags, layout.FILE_MODE)
        except OSError:
            # Without this other things of that name would keep the queue from being written to.
            if not layout.is_in_the_way(self.path):
                raise
            os.rename(self.path, layout.quarantine_path(self.path))
            fd = os.open(self.path, flags, layout.FILE_MODE)
        try:
            if self.has_rest and os.fstat(fd).st_size > self.size_bytes:
                os.ftruncate(fd, self.size_bytes)
            if self.size_bytes < 0:
                size = _cut_torn_tail(self.path, fd, self._seed)
                self.size_bytes = self._last_size = self.synced_size = size
        except OSError:
            os.close(fd)
            raise
        self.has_rest = False
        self.fd = fd

    def fork(self) -> "ChecksumFile":
        """Return the same for an append in another thread, which ends with `join`.

        Raises:
            OSError: the process has no descriptors left.
        """
        other = copy(self)
        if self.fd >= 0:
            other.fd = os.dup(self.fd)
        return other

    def join(self, origin: "ChecksumFile") -> None:
        """Hand the place where the file ends back to the one that this is a fork of."""
        if origin.size_bytes < 0:
            origin.synced_size = self.synced_size
        origin.is_urgent |= self.is_urgent
        origin.has_rest = self.has_rest
        origin.set_end(self.size_bytes, self._last_size)
        if origin.fd < 0:
            origin.fd, self.fd = self.fd, -1
        self.close()

    def set_end(self, size_bytes: int, last_size: int) -> None:
        """Note how large the file is, and was before the last append."""
        self.size_bytes = size_bytes
        self._last_size = last_size

    def append(self, start: int, data: bytes | memoryview, lengths: Sequence[int]) -> None:
        """Write the checksums of records that were just written; the file is open.

        Raises:
            OSError: none were written.
        """
        self.write(self.encode(start, data, lengths))

    def encode(self, start: int, data: bytes | memoryview, lengths: Sequence[int]) -> bytes:
        """Return the entries of records, for `write`."""
        if entries.may_look_torn(data):
            self.is_urgent = True
        return entries.encode(self._seed, start, data, lengths)

    def append_doubt(self, start: int, end: int) -> None:
        """Remember that no sync is known to have covered some bytes; the file is open.

        Raises:
            OSError: that is not written.
        """
        self.write(entries.encode_doubt(self._seed, start, end - start))

    def write(self, content: bytes) -> None:
        """Write entries.

        Raises:
            OSError: none were written.
        """
        size = self.size_bytes
        try:
            layout.write_all(self.fd, content, size)
        except OSError:
            self._cut(size)
            raise
        self._last_size = size
        self.size_bytes = size + len(content)

    def undo(self) -> None:
        """Take back the last append, unless that was done.

        If the file cannot be cut off now, the next `open` does it. Till then these entries speak of
        records that are gone.
        """
        self.size_bytes = self._last_size
        self._cut(self._last_size)

    def _cut(self, size: int) -> None:
        try:
            if self.fd >= 0:
                os.ftruncate(self.fd, size)
            else:
                os.truncate(self.path, size)
        except FileNotFoundError:
            pass
        except OSError:
            self.has_rest = True

    def close(self) -> None:
        """Close the file; it may be opened again."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
