"""Causes: where the dead letters of one topic come from, in a file beside its queue.

A dead letter is a message like any other, with the body that it had: consumers, the queue's files
and the Go daemon see nothing else. Its cause stands here, under the id of the dead letter.

    NAME.diskqueue.causes          entries, with growing ids
    NAME.diskqueue.causes.old      older entries

    | 16: id of the dead letter | 16: id that the message had | 8: int64 when it was published, ns |
    | 2: uint16 attempts | 1: reason | 1: length of the name of its topic, with which NAME begins |
    | 64: channel, padded with zeros; only zeros for the topic's own queue | 4: CRC-32 of all |

Ids grow and entries have one size, so that an entry is found by halving, without an index in
memory. An entry is written before its dead letter is published. One without a dead letter is never
found; a dead letter without an entry, or with a damaged one, has an unknown origin. A full file
becomes the old one, whose entries are forgotten; without dead letters both files are removed.
"""

import contextlib
import os
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from diskqueue import layout

_ENTRY: Final = Struct(">16s16sqHBB64sI")
_CHECKED: Final = Struct(">16s16sqHBB64s")
_ID_BYTES: Final = 16
# With the old file, the bound of a topic: the causes of a million dead letters and more.
MAX_FILE_BYTES: Final = _ENTRY.size * 600_000
# Read at once: dead letters that are next to each other mostly are so here, too.
_BLOCK_COUNT: Final = 64
# To free the room of a larger file takes milliseconds.
LARGE_BYTES: Final = 1024 * 1024
_REASONS: Final = ("unknown", "ttl", "attempts")


class Cause(NamedTuple):
    """Why a message became a dead letter, and what it was before."""

    topic_name: str
    channel_name: str  # empty for the topic's own queue
    reason: str  # the limit, as in /metrics
    attempts: int
    message_id: bytes
    timestamp_ns: int  # when it was published


class CauseLog:
    """The causes of one topic's dead letters. It holds no file open."""

    def __init__(self, directory: str | os.PathLike[str], name: str) -> None:
        self._name = name
        self._path = layout.causes_path(os.fspath(directory), name)
        self._old_path = f"{self._path}.old"
        # The end of the entries, and the last of their ids; None before the first use.
        self._size_bytes: int | None = None
        self._last_id = b""

    def add(self, ids: Sequence[bytes], causes: Sequence[Cause]) -> None:
        """Note why messages become dead letters; their ids grow.

        Raises:
            OSError: none of it is noted.
        """
        size_bytes = self._find_end()
        data = b"".join(map(_encode, ids, causes))
        if size_bytes and (
            size_bytes + len(data) > MAX_FILE_BYTES or ids[0] <= self._last_id
        ):  # ids that don't grow are those of a clock that was set back
            os.replace(self._path, self._old_path)
            size_bytes = self._size_bytes = 0
        with _opened(self._path, os.O_WRONLY | os.O_CREAT) as fd:
            try:
                layout.write_all(fd, data, size_bytes)
            except OSError:
                # Behind fewer entries the rest of these would stand, whose ids are smaller.
                with contextlib.suppress(OSError):
                    os.ftruncate(fd, size_bytes)
                raise
        self._size_bytes = size_bytes + len(data)
        self._last_id = ids[-1]

    def undo_add(self, count: int) -> None:
        """Forget the entries of the last `add`: those messages are no dead letters yet.

        Raises:
            OSError: they are still there, and never found.
        """
        assert self._size_bytes is not None
        self._size_bytes -= count * _ENTRY.size
        os.truncate(self._path, self._size_bytes)

    def find(self, ids: Iterable[bytes]) -> dict[bytes, Cause]:
        """Return the causes of those dead letters whose causes are known, by id.

        Raises:
            OSError: a file cannot be read.
        """
        found: dict[bytes, Cause] = {}
        wanted = sorted(set(ids))
        for path in (self._path, self._old_path):
            if wanted:
                with contextlib.suppress(FileNotFoundError), _opened(path, os.O_RDONLY) as fd:
                    found.update(_search(fd, wanted, self._name))
                wanted = [each for each in wanted if each not in found]
        return found

    def sync(self) -> None:
        """Make the entries durable; block, in any thread. The caller syncs the directory.

        Raises:
            OSError: they may not be.
        """
        for path in (self._path, self._old_path):
            with contextlib.suppress(FileNotFoundError), _opened(path, os.O_RDONLY) as fd:
                os.fsync(fd)

    def remove(self) -> list[int]:
        """Forget all entries and remove the files.

        Return descriptors of large files: to close them, and so to free their room, blocks.

        Raises:
            OSError: a file could not be removed.
        """
        self._size_bytes = 0
        self._last_id = b""
        held: list[int] = []
        for path in (self._path, self._old_path):
            if (layout.find_size(path) or 0) > LARGE_BYTES:
                with contextlib.suppress(OSError):
                    held.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
            try:
                layout.remove(path)
            except OSError:
                for fd in held:
                    os.close(fd)
                raise
        return held

    def _find_end(self) -> int:
        """Return where the next entry goes: behind the last whole one.

        Raises:
            OSError: the file can't be read.
        """
        if self._size_bytes is None:
            if layout.find_size(self._path) is None and os.path.lexists(self._path):
                # A pipe or a device of that name is never opened.
                os.rename(self._path, layout.quarantine_path(self._path))
            count = 0
            with contextlib.suppress(FileNotFoundError), _opened(self._path, os.O_RDONLY) as fd:
                count = os.fstat(fd).st_size // _ENTRY.size
                # A crash may have torn the last entries; a block of them is looked at.
                start = max(count - _BLOCK_COUNT, 0)
                entries = _read_block(fd, start)
                while entries and not _is_whole(entries[-1]):
                    entries.pop()
                count = start + len(entries)
                self._last_id = entries[-1][:_ID_BYTES] if entries else b""
                if count * _ENTRY.size < os.fstat(fd).st_size:
                    os.truncate(self._path, count * _ENTRY.size)
            self._size_bytes = count * _ENTRY.size
        return self._size_bytes


def _search(fd: int, ids: Sequence[bytes], name: str) -> Iterator[tuple[bytes, Cause]]:
    """Give the causes of those ids, which grow, that a file has."""
    count = os.fstat(fd).st_size // _ENTRY.size
    block: list[bytes] = []
    start = 0
    for each in ids if count else ():
        if not block or not block[0][:_ID_BYTES] <= each <= block[-1][:_ID_BYTES]:
            start = _halve(fd, each, start, count)
            block = _read_block(fd, start)
        at = bisect_left(block, each)
        if at < len(block) and block[at].startswith(each) and _is_whole(block[at]):
            yield each, _decode(block[at], name)


def _halve(fd: int, wanted: bytes, low: int, high: int) -> int:
    """Return the number of an entry from `low` on: the wanted one is at most in the block there."""
    while high - low >= _BLOCK_COUNT:
        middle = (low + high) // 2
        if os.pread(fd, _ID_BYTES, middle * _ENTRY.size) <= wanted:
            low = middle
        else:
            high = middle
    return low


def _read_block(fd: int, start: int) -> list[bytes]:
    size = _ENTRY.size
    data = os.pread(fd, _BLOCK_COUNT * size, start * size)
    return [data[at : at + size] for at in range(0, len(data) - len(data) % size, size)]


def _encode(dead_id: bytes, cause: Cause) -> bytes:
    checked = _CHECKED.pack(
        dead_id,
        cause.message_id,
        cause.timestamp_ns,
        cause.attempts,
        _REASONS.index(cause.reason) if cause.reason in _REASONS else 0,
        len(cause.topic_name),
        cause.channel_name.encode(),
    )
    return checked + zlib.crc32(checked).to_bytes(4, "big")


def _is_whole(entry: bytes) -> bool:
    return zlib.crc32(entry[:-4]).to_bytes(4, "big") == entry[-4:]


def _decode(entry: bytes, name: str) -> Cause:
    _, message_id, timestamp_ns, attempts, reason, length, channel, _ = _ENTRY.unpack(entry)
    reasons = _REASONS[reason : reason + 1] or _REASONS[:1]
    channel_name = channel.rstrip(b"\0").decode(errors="replace")
    return Cause(name[:length], channel_name, reasons[0], attempts, message_id, timestamp_ns)


@contextlib.contextmanager
def _opened(path: str, flags: int) -> Iterator[int]:
    """Open a file, without waiting for the reader of a pipe that has its name.

    Raises:
        OSError: it can't be opened.
    """
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, layout.FILE_MODE)
    try:
        yield fd
    finally:
        os.close(fd)
