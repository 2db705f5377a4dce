"""Pins: segment files that readers hold, even if the queue is done with them.

A queue removes a segment when its records are finished, and renames one that is damaged. A file
with a pin is opened before either, and its checksum file with it, so that their bytes stay until
the last pin is released; it costs room on the disk and two descriptors, and the queue never waits.
Files that stay where they are cost nothing.

The owner of the queue pins its segments. Threads that remove files call `keep` first, and any
thread may open a pinned file.
"""

import contextlib
import logging
import os
import threading

from diskqueue.checksums.marks import have_same_mark
from diskqueue.layout import checksum_path

_logger = logging.getLogger(__name__)


class Pin:
    """One reader's hold on one segment, until `Pins.release`."""

    __slots__ = ("checksums_fd", "fd", "is_lost", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        # The file itself, once it has lost its name.
        self.fd = -1
        # Its checksum file, likewise; it may have none.
        self.checksums_fd = -1
        # It lost its name when the process had no descriptor left for it.
        self.is_lost = False


class Pins:
    """The pins on the files of one queue."""

    __slots__ = ("_by_path", "_lock")

    def __init__(self) -> None:
        self._by_path: dict[str, set[Pin]] = {}
        self._lock = threading.Lock()

    def pin(self, path: str) -> Pin:
        """Hold a file that the queue has in use."""
        pin = Pin(path)
        with self._lock:
            self._by_path.setdefault(path, set()).add(pin)
        return pin

    def release(self, pin: Pin) -> None:
        """Let go of a file; more than once does no harm."""
        with self._lock:
            pins = self._by_path.get(pin.path)
            if pins is not None:
                pins.discard(pin)
                if not pins:
                    del self._by_path[pin.path]
            for fd in (pin.fd, pin.checksums_fd):
                if fd >= 0:
                    os.close(fd)
            pin.fd = pin.checksums_fd = -1
            pin.is_lost = True

    def keep(self, path: str) -> None:
        """Open a file for its pins, if there are any: its name is about to go.

        Without a descriptor for it the file goes all the same: consumers come before readers.
        """
        if not self._by_path:
            return
        with self._lock:
            for pin in self._by_path.pop(path, ()):
                try:
                    pin.fd = _open(path)
                except FileNotFoundError:
                    pin.is_lost = True
                except OSError as error:
                    pin.is_lost = True
                    _logger.warning(
                        "a reader loses a segment that is removed file=%s error=%s", path, error
                    )
                else:
                    # Without it the reader has the records, unverified.
                    with contextlib.suppress(OSError):
                        pin.checksums_fd = _open(checksum_path(path))

    def open(self, pin: Pin) -> int:
        """Return a new descriptor of a pinned file.

        Raises:
            FileNotFoundError: the pin was released, or the file is not there.
            OSError: the file cannot be opened.
        """
        with self._lock:
            if pin.fd >= 0:
                return os.dup(pin.fd)
            if pin.is_lost:
                raise FileNotFoundError(pin.path)
            return _open(pin.path)

    def open_checksums(self, pin: Pin) -> tuple[int, bool]:
        """Return a new descriptor of a pinned file's checksums, and whether the marks are the same.

        Raises:
            FileNotFoundError: the pin was released, or there are no checksums.
            OSError: the file cannot be opened.
        """
        with self._lock:
            if pin.checksums_fd >= 0:
                fd = os.dup(pin.checksums_fd)
                return fd, have_same_mark(pin.fd, fd)
            if pin.fd >= 0 or pin.is_lost:
                raise FileNotFoundError(checksum_path(pin.path))
            # Nobody removes the two files meanwhile, so they belong together.
            fd = _open(checksum_path(pin.path))
            return fd, have_same_mark(pin.path, fd)


def _open(path: str) -> int:
    # A pipe that took the name would be waited for otherwise.
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
