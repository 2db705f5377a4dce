"""OutputFile: one open file of messages, as lines or as gzip members.

It knows three lengths: `end` is what was written, `synced_end` what is certain after a power cut,
`body_bytes` what the rotation counts, before compression. After a failed write the file is cut back
to what is certain, so that no line is torn and no gzip member broken.

The file is locked while it is open: several processes may append to one file, and only a process
that is alone with it cuts it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import zlib
from collections.abc import Sequence
from typing import Any, Final

_GZIP_WINDOW: Final = 31
_PIECE_BYTES: Final = 1 << 20


class OutputFile:
    """A file to append to. Not thread-safe, but `sync` may run beside a later `write`."""

    def __init__(
        self, fd: int, path: str, *, gzip_level: int | None, directories: Sequence[str] = ()
    ) -> None:
        """Take over a descriptor.

        Args:
            gzip_level: None for plain lines.
            directories: those of its name, to be synced with it once.
        """
        self.path = path
        self.end = os.fstat(fd).st_size
        self.synced_end = self.end
        self.body_bytes = self.end
        self._fd = fd
        self._gzip_level = gzip_level
        self._compressor: Any = None
        self._directories = list(directories)
        # Whether the last line may lack its end: another process appends, so it cannot be cut.
        self._is_torn = self.end > 0 and gzip_level is None and not _ends_line(path, self.end)

    @property
    def is_empty(self) -> bool:
        """Whether nothing stands in it."""
        return not self.end and self._compressor is None

    def write(self, bodies: Sequence[bytes]) -> None:
        """Append messages, each with a newline behind it.

        Raises:
            OSError: a part may stand in the file: `cut_back` is next.
        """
        size = sum(map(len, bodies))
        # Large bodies one by one: all of them in one piece would be in memory twice.
        step = len(bodies) if size <= _PIECE_BYTES else 1
        for start in range(0, len(bodies), step):
            self._write_lines(b"\n".join(bodies[start : start + step]) + b"\n")

    def _write_lines(self, lines: bytes) -> None:
        if self._gzip_level is None:
            self._append(b"\n" + lines if self._is_torn else lines)
            self._is_torn = False
        else:
            if self._compressor is None:
                level = self._gzip_level
                self._compressor = zlib.compressobj(level, zlib.DEFLATED, _GZIP_WINDOW)
            self._append(self._compressor.compress(lines))
        self.body_bytes += len(lines)

    def end_member(self) -> None:
        """End the gzip member, so that all that was written can be read.

        Raises:
            OSError: a part may stand in the file: `cut_back` is next.
        """
        if self._compressor is not None:
            rest = self._compressor.flush()
            self._compressor = None
            self._append(rest)

    def sync(self, end: int) -> None:
        """Sync the bytes before `end`: the file, then the directories of its name.

        Raises:
            OSError: it is not certain.
        """
        os.fsync(self._fd)
        while self._directories:
            sync_directory(self._directories[0])
            del self._directories[0]
        self.synced_end = max(self.synced_end, end)

    def cut_back(self) -> None:
        """Cut the bytes that are not synced; where others append too, end their line instead.

        Raises:
            OSError: the file is of no more use.
        """
        self._compressor = None
        if self.end == self.synced_end == os.fstat(self._fd).st_size:
            return
        if self._lock_alone() and os.fstat(self._fd).st_size == self.end:
            os.ftruncate(self._fd, self.synced_end)
            os.lseek(self._fd, self.synced_end, os.SEEK_SET)
            self.end = self.synced_end
            fcntl.flock(self._fd, fcntl.LOCK_SH)
        else:
            self._is_torn = True

    def close(self) -> None:
        """Close the descriptor; the lock goes with it."""
        os.close(self._fd)

    def _append(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            count = os.write(self._fd, view)
            self.end += count
            view = view[count:]

    def _lock_alone(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            fcntl.flock(self._fd, fcntl.LOCK_SH)
            return False
        return True


def sync_directory(path: str) -> None:
    """Make the names in a directory certain.

    Raises:
        OSError: they are not.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _ends_line(path: str, size: int) -> bool:
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.pread(fd, 1, size - 1) == b"\n"
    finally:
        os.close(fd)
