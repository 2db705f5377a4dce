"""Pins: segment files that readers hold, even if the queue is done with them.

A queue removes a segment when its records are finished, and renames one that is damaged. A file
with a pin is opened before either, so that its bytes stay until the last pin on it is released; it
costs room on the disk and a descriptor, and the queue never waits. A file that stays where it is
costs nothing.

The owner of the queue pins its segments. Threads that remove files call `keep` first, and any
thread may open a pinned file.
"""

import logging
import os
import threading

_logger = logging.getLogger(__name__)


class Pin:
    """One reader's hold on one file, until `Pins.release`."""

    __slots__ = ("fd", "is_lost", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        # The file itself, once it has lost its name.
        self.fd = -1
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
            if pin.fd >= 0:
                os.close(pin.fd)
                pin.fd = -1
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


def _open(path: str) -> int:
    # A pipe that took the name would be waited for otherwise.
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
