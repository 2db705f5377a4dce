"""DirectWrites: large appends that go to the disk past the kernel's page cache.

The kernel copies what is written into pages of its cache, which it has to find and clear before:
1.3 ns of processor time a byte where it was measured, more than all else that history costs. What
the disk fetches from our memory costs 0.1. It wants whole pages, in memory as in the file:

    memory   |.......rrrrrrrrr|rrrrrrrrrrrrrrrr|rrrrrrrrrrrrrrrr|rrrrr...........|  r: records
    file            ^ position
    written         `- cache -'`----------- past it -----------'`cache'

So records are encoded into a room that begins as far behind a page as they will in the file. The
pages at both ends are shared with other appends and go through the cache.

A cache takes more than its disk does, for a while. If the disk is slow, all goes through the cache;
also where there are no such writes (tmpfs, macOS).
"""

import errno
import fcntl
import mmap
import os
import time
from collections.abc import Callable, Sequence

from diskqueue.append_job import write_buffers

# Smaller appends are written as quickly through the cache; larger ones have no room.
MIN_BYTES = 512 * 1024
MAX_BYTES = 32 * 1024 * 1024
# A disk is slow that takes longer than this. A thread may wait 5 ms for the interpreter, several
# times.
MIN_BYTES_PER_S = 300e6
SLACK_S = 0.02
# How long the cache is used then.
SLOW_S = 5.0

_PAGE_BYTES = max(mmap.PAGESIZE, 4096)
_O_DIRECT = getattr(os, "O_DIRECT", 0)


class DirectWrites:
    """Writes past the page cache, for one thread at a time."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, *, is_trusted: bool = False
    ) -> None:
        """Args: is_trusted: the disk is not slow, however long it takes."""
        self._clock = clock
        self._is_trusted = is_trusted
        # Of one append, before it is written. None while little is written.
        self._memory: mmap.mmap | None = None
        self._is_possible = _O_DIRECT != 0
        self._slow_until = 0.0

    def find_room(self, size_bytes: int, position: int) -> memoryview | None:
        """Return memory for records that will stand at a position; None if the cache is better.

        It is the same memory each time: what was there has to be written before.
        """
        if not self._is_possible or not MIN_BYTES <= size_bytes <= MAX_BYTES:
            return None
        if self._clock() < self._slow_until:
            return None
        if self._memory is None:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            self._memory = mmap.mmap(-1, MAX_BYTES + _PAGE_BYTES, flags)
        start = position % _PAGE_BYTES
        return memoryview(self._memory)[start : start + size_bytes]

    def release(self) -> None:
        """Give the memory back, until there is much to write again."""
        self._memory = None

    def write(self, fd: int, buffers: Sequence[bytes | memoryview], position: int) -> None:
        """Write records that were encoded into the room for this position.

        Raises:
            OSError: a part may have been written.
        """
        (data,) = buffers
        view = memoryview(data)
        assert view.obj is self._memory, "encoded elsewhere, maybe not on page boundaries"
        head_bytes = -position % _PAGE_BYTES
        pages_bytes = (len(view) - head_bytes) // _PAGE_BYTES * _PAGE_BYTES
        pages = view[head_bytes : head_bytes + pages_bytes]
        if head_bytes:
            write_buffers(fd, (view[:head_bytes],), position)
        began = self._clock()
        written_bytes = self._write_pages(fd, pages, position + head_bytes)
        seconds = self._clock() - began
        if seconds > SLACK_S + pages_bytes / MIN_BYTES_PER_S and not self._is_trusted:
            self._slow_until = self._clock() + SLOW_S
        rest = view[head_bytes + written_bytes :]
        if rest:
            write_buffers(fd, (rest,), position + head_bytes + written_bytes)

    def _write_pages(self, fd: int, pages: memoryview, position: int) -> int:
        """Write pages past the cache, and return how many bytes that were: maybe not all."""
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        try:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags | _O_DIRECT)
            return os.pwrite(fd, pages, position)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._is_possible = False  # not on this file system
            return 0
        finally:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags)
