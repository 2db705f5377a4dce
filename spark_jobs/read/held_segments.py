"""Keeps the segment open that a stream reads last in each queue.

nsqd deletes a segment once it is consumed, perhaps between two looks of the stream. Whether
anything in it had not been read yet is then known only from the file itself, and a file that is
open can still be looked at. Local files only; where none is held, the answer is "not known".
"""

import contextlib
import os

from spark_jobs.read.catalog import Queue

# Below the usual limit of 1024 descriptors of a process.
_MAX_HELD = 512


class HeldSegments:
    """Descriptors by queue; lives on the driver and is not pickled."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], tuple[int, int]] = {}  # queue -> number, descriptor

    def hold(self, queue: Queue, number: int) -> None:
        """Opens a segment in place of the one held for this queue; a missing one changes nothing.

        The one held before is let go only when the new one is open.
        """
        key = queue.directory, queue.name
        held = self._held.get(key)
        if (held is not None and held[0] == number) or "://" in queue.directory:
            return
        if held is None and len(self._held) >= _MAX_HELD:
            return
        with contextlib.suppress(OSError):
            path = f"{queue.directory}/{queue.file_name(number)}"
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            if held is not None:
                os.close(held[1])
            self._held[key] = number, descriptor

    def find_size(self, key: tuple[str, str], number: int) -> int | None:
        """The size of a held segment, deleted or not; None if it is not held."""
        held = self._held.get(key)
        if held is None or held[0] != number:
            return None
        return os.fstat(held[1]).st_size

    def close(self) -> None:
        """Lets go of all."""
        for _, descriptor in self._held.values():
            os.close(descriptor)
        self._held.clear()

    def __getstate__(self) -> dict[str, object]:
        return {"_held": {}}
