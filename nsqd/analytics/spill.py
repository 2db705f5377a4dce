"""Spill: the messages that a snapshot found in memory, in one nameless file.

The file has no name, so that no crash leaves it behind; its room is free when the last descriptor
is closed. Only one thread at a time writes, and readers have descriptors of their own.
"""

import os
import tempfile
from pathlib import Path

from diskqueue.layout import write_all


class Spill:
    """A nameless file that is appended to, then read."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._fd = -1
        self.size_bytes = 0

    def append(self, data: bytes) -> None:
        """Write at the end; block.

        Raises:
            OSError: there is no room.
        """
        if self._fd < 0:
            with tempfile.TemporaryFile(dir=self._directory) as file:
                self._fd = os.dup(file.fileno())
        write_all(self._fd, data, self.size_bytes)
        self.size_bytes += len(data)

    def open(self) -> int:
        """Return a new descriptor of the file.

        Raises:
            FileNotFoundError: there is none, or it was closed.
            OSError: the process has no descriptors left.
        """
        if self._fd < 0:
            raise FileNotFoundError("the lease has ended")
        return os.dup(self._fd)

    def close(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
