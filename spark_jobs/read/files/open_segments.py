"""The segment that a stream reads last in each queue, kept open on the driver.

nsqd deletes a segment once it is consumed, perhaps between two looks of the stream. Whether the
stream had read all of it is then known only from the file itself, and a file that is open can still
be looked at. Needed for directories of an nsqd that does not write down where deleted segments
ended. Local files only; for others the answer is "not known".
"""

import contextlib
import os

from spark_jobs.read.queue import Queue

# Below the usual limit of 1024 descriptors of a process.
_MAX_OPEN_SEGMENTS = 512

_Key = tuple[str, str]  # directory, name of the queue


class OpenSegments:
    """Descriptors of segments, at most one per queue."""

    def __init__(self) -> None:
        self._files: dict[_Key, tuple[int, int]] = {}  # queue -> number, descriptor

    def open(self, queue: Queue, number: int) -> None:
        """Open a segment and close the one before it; a missing segment changes nothing."""
        key = queue.directory, queue.name
        before = self._files.get(key)
        if (before is not None and before[0] == number) or "://" in queue.directory:
            return
        if before is None and len(self._files) >= _MAX_OPEN_SEGMENTS:
            return
        with contextlib.suppress(OSError):
            path = f"{queue.directory}/{queue.file_name(number)}"
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            if before is not None:
                os.close(before[1])
            self._files[key] = number, descriptor

    def find_size(self, queue: Queue, number: int) -> int | None:
        """Return the size of an open segment, deleted or not; None if it is not open."""
        found = self._files.get((queue.directory, queue.name))
        if found is None or found[0] != number:
            return None
        return os.fstat(found[1]).st_size

    def forget(self, queue: Queue) -> None:
        """Close the segment of a queue that is another one now."""
        found = self._files.pop((queue.directory, queue.name), None)
        if found is not None:
            os.close(found[1])

    def close(self) -> None:
        """Close all."""
        for _, descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    def __getstate__(self) -> dict[str, object]:
        """Leave the descriptors on the driver when Spark pickles the reader."""
        return {"_files": {}}
