"""DueLog: when the deferred messages of one disk queue are due, kept across a restart.

Queue files can't say that a message is not to be delivered yet. The Go daemon ignores this file and
delivers deferred messages at once after a restart; so does nsqd if the file is lost.

    NAME.diskqueue.due          entries, appended as messages are deferred
    NAME.diskqueue.due.old      older ones, until the last of them is past

    | 16: message id | 8: int64 time of writing | 8: int64 due time | 4: CRC-32 of all three |

Times are wall time in ns since 1970. An entry is never removed: it says only "not before", so it is
void once its time has come. The last entry of an id counts; a torn or damaged entry is passed over.
After a clean stop the file has the messages that wait, and little else. If an entry was written
later than the next one, or than now, the clock has been set back in between, and the times of all
entries before are set back as far.

Times in memory are of the scheduler's steady clock, which does not step while nsqd runs; `step_ns`
is how far the wall clock is ahead of it.
"""

import contextlib
import logging
import os
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from struct import Struct

from diskqueue import layout

logger = logging.getLogger(__name__)

_ENTRY = Struct(">16sqqI")
_CHECKED = Struct(">16sqq")
# The current file becomes the old one at this size, if the old one is past.
_ROTATE_BYTES = _ENTRY.size * 32_768
# Unread due times are counted in steps of 0.13 s: to look at each of a million takes 40 ms, and
# /stats asks for their number.
_STEP_BITS = 27
# Larger files are not read whole: this is 30 million deferred messages.
_MAX_BYTES = 1 << 30


class DueLog:
    """Due times, on disk for all messages; in memory (`unread`) for those that wait on disk."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        name: str,
        now_ns: int,
        step_ns: int = 0,
        *,
        has_files: bool = True,
    ) -> None:
        """Args: has_files: False if the caller knows that there are none."""
        self._directory = os.fspath(directory)
        self._path = layout.due_path(self._directory, name)
        self._old_path = f"{self._path}.old"
        self._fd = -1
        self._size_bytes = 0
        self._latest_ns = 0  # in the current file
        self._old_latest_ns = 0
        self.unread: dict[bytes, int] = {}
        # How many of them are due in each step of time.
        self._step_counts: Counter[int] = Counter()
        # How many more records than one an unread id has: a crash in the middle of a move between
        # queues may bring a message twice.
        self._twin_counts: Counter[bytes] = Counter()
        # Whether there may be files: most queues never have any, and thousands are closed.
        self._has_files = has_files
        if has_files:
            self._load(now_ns + step_ns, step_ns)

    def _load(self, wall_ns: int, step_ns: int) -> None:
        now_ns = wall_ns - step_ns
        for message_id, due_ns in self._read(wall_ns, step_ns):
            self._latest_ns = max(self._latest_ns, due_ns)
            if due_ns > now_ns:
                self._add_unread(message_id, due_ns)
            else:
                self._remove_unread(message_id)
                del self._twin_counts[message_id]
        self._old_latest_ns = self._latest_ns
        with contextlib.suppress(FileNotFoundError):
            self._size_bytes = os.stat(self._path).st_size

    def _read(self, wall_ns: int, step_ns: int) -> list[tuple[bytes, int]]:
        if not self._has_files:
            return []
        entries = [*_read_entries(self._old_path), *_read_entries(self._path)]
        return _shift(entries, wall_ns, step_ns)

    def open_copy(self, wall_ns: int) -> "DueCopy":
        """Open the files as they are now, for a thread to read; it holds more than is unread.

        Raises:
            OSError: the process has no descriptors left.
        """
        copy = DueCopy(wall_ns)
        if self.unread:
            try:
                copy.open(self._old_path)
                copy.open(self._path)
            except OSError:
                copy.close()
                raise
        return copy

    def add(
        self,
        ids: Sequence[bytes],
        due_ns: int,
        now_ns: int,
        *,
        are_unread: bool,
        step_ns: int = 0,
    ) -> None:
        """Record when messages are due.

        Args:
            are_unread: they are on disk only; their reader asks `pop` when they are due.

        Raises:
            OSError: it is not on disk, and a restart delivers them at once.
        """
        if are_unread:
            for message_id in ids:
                self._add_unread(message_id, due_ns)
        if self._size_bytes >= _ROTATE_BYTES and self._old_latest_ns <= now_ns:
            self.close()
            os.replace(self._path, self._old_path)
            self._old_latest_ns, self._latest_ns = self._latest_ns, 0
            self._size_bytes = 0
        if self._fd < 0:
            self._has_files = True
            self._fd = _open(self._path)
            # An entry that was torn off by a crash is written over, so that the others are found.
            self._size_bytes -= self._size_bytes % _ENTRY.size
        times = (now_ns + step_ns, due_ns + step_ns)
        data = b"".join(_encode(message_id, *times) for message_id in ids)
        layout.write_all(self._fd, data, self._size_bytes)
        self._size_bytes += len(data)
        self._latest_ns = max(self._latest_ns, due_ns)

    def _add_unread(self, message_id: bytes, due_ns: int) -> None:
        if message_id in self.unread:
            self._twin_counts[message_id] += 1
            self._remove_unread(message_id)
        self.unread[message_id] = due_ns
        self._step_counts[due_ns >> _STEP_BITS] += 1

    def _remove_unread(self, message_id: bytes) -> int:
        """Remove a due time and return it, 0 if there is none."""
        due_ns = self.unread.pop(message_id, 0)
        if due_ns:
            step = due_ns >> _STEP_BITS
            self._step_counts[step] -= 1
            if not self._step_counts[step]:
                del self._step_counts[step]
        return due_ns

    def count_early(self, now_ns: int) -> int:
        """Return how many of the unread messages are not due; up to 0.13 s late in counting."""
        if not self._step_counts:
            return 0
        now = now_ns >> _STEP_BITS
        return sum(count for step, count in self._step_counts.items() if step >= now)

    def pop(self, message_id: bytes) -> int:
        """Remove a message from `unread`, as it was read; return its due time, 0 without one."""
        if self._twin_counts and message_id in self._twin_counts:
            self._twin_counts[message_id] -= 1
            if not self._twin_counts[message_id]:
                del self._twin_counts[message_id]
            return self.unread[message_id]
        return self._remove_unread(message_id)

    def replace(self, due_times: Mapping[bytes, int], now_ns: int, step_ns: int = 0) -> None:
        """Write these due times and the older entries that are not past to a new file; block.

        The messages of older entries went to another queue and may not be durable there: a restart
        brings them again.

        Raises:
            OSError: the new file is not durable.
        """
        noted = [entry for entry in self._read(now_ns + step_ns, step_ns) if entry[1] > now_ns]
        counts = Counter(message_id for message_id, _ in noted)  # twins stay twins
        due_times = {**dict(noted), **due_times}
        if due_times:
            self.close()
            self._has_files = True
            data = b"".join(
                _encode(key, now_ns + step_ns, due_ns + step_ns) * max(counts[key], 1)
                for key, due_ns in due_times.items()
            )
            layout.write_atomically(self._path, data)
            _unlink(self._old_path)
        else:
            self.remove()

    def remove(self) -> None:
        """Forget all due times and remove the files.

        Raises:
            OSError: a file could not be removed.
        """
        self.close()
        self.unread = {}
        self._step_counts = Counter()
        self._twin_counts = Counter()
        self._size_bytes = self._latest_ns = self._old_latest_ns = 0
        if self._has_files:
            _unlink(self._path)
            _unlink(self._old_path)
            self._has_files = False

    def close(self) -> None:
        """Close the file; the next `add` opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class DueCopy:
    """The due times of one moment, in the files as they were; read and closed in any thread."""

    __slots__ = ("_files", "_wall_ns")

    def __init__(self, wall_ns: int) -> None:
        self._wall_ns = wall_ns
        # Descriptors, and how much of each file is of that moment.
        self._files: list[tuple[int, int]] = []

    @property
    def has_files(self) -> bool:
        """Whether there may be any due time."""
        return bool(self._files)

    def open(self, path: str) -> None:
        """Hold a file, if there is one."""
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            self._files.append((fd, os.fstat(fd).st_size))

    def read(self) -> dict[bytes, int]:
        """Return the due times that lay ahead, in wall time; block, and close the files.

        Raises:
            OSError: a file cannot be read.
        """
        entries: list[tuple[bytes, int, int]] = []
        try:
            for fd, size_bytes in self._files:
                entries += _decode(os.pread(fd, min(size_bytes, _MAX_BYTES), 0), "a snapshot")
        finally:
            self.close()
        times = dict(_shift(entries, self._wall_ns, 0))
        return {key: due_ns for key, due_ns in times.items() if due_ns > self._wall_ns}

    def close(self) -> None:
        """Let go of the files."""
        for fd, _ in self._files:
            os.close(fd)
        self._files = []


def _shift(
    entries: Sequence[tuple[bytes, int, int]], wall_ns: int, step_ns: int
) -> list[tuple[bytes, int]]:
    """Return ids and due times of entries, set back as far as the clock was since."""
    times: list[tuple[bytes, int]] = []
    shift_ns, next_ns = step_ns, wall_ns
    for message_id, written_ns, due_ns in reversed(entries):
        shift_ns += max(0, written_ns - next_ns)
        next_ns = written_ns
        times.append((message_id, due_ns - shift_ns))
    times.reverse()
    return times


def _encode(message_id: bytes, now_ns: int, due_ns: int) -> bytes:
    checksum = zlib.crc32(_CHECKED.pack(message_id, now_ns, due_ns))
    return _ENTRY.pack(message_id, now_ns, due_ns, checksum)


def _open(path: str) -> int:
    """Open a log to write to it; a pipe or device of its name is set aside, never opened.

    Raises:
        OSError: it can't be opened.
    """
    if layout.find_size(path) is None and os.path.lexists(path):
        aside = layout.quarantine_path(path)
        os.rename(path, aside)
        logger.warning("due times: not a file, set aside file=%s as=%s", path, aside)
    # Nor is one opened that took the name since: to open a pipe would wait for its reader.
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    return os.open(path, flags, layout.FILE_MODE)


def _read_entries(path: str) -> Iterator[tuple[bytes, int, int]]:
    try:
        if layout.find_size(path) is None and os.path.lexists(path):
            raise OSError("not a file")
        with open(path, "rb") as file:
            data = file.read(_MAX_BYTES)
    except FileNotFoundError:
        return
    except OSError as error:
        logger.warning("due times can't be read, delivering at once file=%s error=%s", path, error)
        return
    yield from _decode(data, path)


def _decode(data: bytes, path: str) -> Iterator[tuple[bytes, int, int]]:
    whole = memoryview(data)[: len(data) - len(data) % _ENTRY.size]
    damaged_count = 0
    for message_id, written_ns, due_ns, checksum in _ENTRY.iter_unpack(whole):
        if zlib.crc32(_CHECKED.pack(message_id, written_ns, due_ns)) == checksum:
            yield message_id, written_ns, due_ns
        else:
            damaged_count += 1
    if damaged_count:
        logger.warning("due times damaged, passed over file=%s count=%d", path, damaged_count)


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
