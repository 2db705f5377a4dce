"""Writes and reads the files of a queue the way go-diskqueue lays them out, without our code."""

import re
import struct
from pathlib import Path

from diskqueue import DiskQueue

NAME = "t"
# Records of 32 bytes (4 + 26 + 2), as in the cases that were verified with go-diskqueue.
RECORD_BYTES = 32


def payload(number: int, size: int = 28) -> bytes:
    """A message whose body begins with its number."""
    header = struct.pack(">qH16s", 1_700_000_000_000_000_000 + number, 0, b"%016x" % number)
    return header + (b"%02d" % number).ljust(size - 26, b".")[: size - 26]


def framed(data: bytes) -> bytes:
    """A record: the payload behind its length."""
    return struct.pack(">i", len(data)) + data


def frame_all(payloads: list[bytes]) -> tuple[bytes, list[int]]:
    """The arguments of `append`."""
    records = [framed(data) for data in payloads]
    return b"".join(records), [len(record) for record in records]


def records(first: int, count: int) -> bytes:
    """The content of a segment."""
    return b"".join(framed(payload(number)) for number in range(first, first + count))


def damaged_records() -> bytes:
    """The content of a segment whose third record of five is overwritten."""
    return records(0, 2) + b"\xff" * RECORD_BYTES + records(3, 2)


def segment_path(directory: Path, number: int, name: str = NAME) -> Path:
    return directory / (name + ".diskqueue." + str(number).zfill(6) + ".dat")


def metadata_path(directory: Path, name: str = NAME) -> Path:
    return directory / (name + ".diskqueue.meta.dat")


def write_segment(directory: Path, number: int, content: bytes, name: str = NAME) -> Path:
    path = segment_path(directory, number, name)
    path.write_bytes(content)
    return path


def write_metadata(directory: Path, text: str, name: str = NAME) -> None:
    metadata_path(directory, name).write_text(text)


def read_metadata(directory: Path, name: str = NAME) -> tuple[int, int, int, int, int]:
    """(depth, read file, read position, write file, write position), exactly as laid down (D-2)."""
    text = metadata_path(directory, name).read_text()
    match = re.fullmatch(r"(-?\d+)\n(\d+),(\d+)\n(\d+),(\d+)\n", text)
    assert match, text
    depth, read_file, read_pos, write_file, write_pos = map(int, match.groups())
    return depth, read_file, read_pos, write_file, write_pos


def names(directory: Path) -> list[str]:
    """The short names of all files of the queue: `000000.dat`, `meta.dat`, `000000.dat.bad`."""
    prefix = NAME + ".diskqueue."
    return sorted(path.name.removeprefix(prefix) for path in directory.iterdir())


def contents(directory: Path) -> dict[str, tuple[bytes, int]]:
    """The bytes and the time of change of each file."""
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in directory.iterdir()}


def drain(queue: DiskQueue, max_records: int = 1000) -> list[bytes]:
    """Reads everything that is unread."""
    payloads: list[bytes] = []
    while (batch := queue.read(max_records, 1 << 20)) is not None:
        assert len(batch) > 0
        payloads += batch
    return payloads


def consume(queue: DiskQueue) -> list[bytes]:
    """Reads and commits everything, and syncs."""
    payloads: list[bytes] = []
    while (batch := queue.read(1000, 1 << 20)) is not None:
        payloads += batch
        queue.commit(range(batch.first, batch.first + len(batch)))
    queue.sync()
    return payloads


def numbers(payloads: list[bytes]) -> list[int]:
    """Which records of `records()` these are."""
    found = [int(data[26:28]) for data in payloads]
    assert [payload(number, len(data)) for number, data in zip(found, payloads, strict=True)] == (
        payloads
    ), "not the bytes that were written"
    return found


def go_read_all(directory: Path, *, is_depth_exact: bool = True) -> list[bytes]:
    """The records that go-diskqueue 1.1 delivers from a cleanly closed directory; fails at damage.

    It opens every segment from the read to the write file, skipping those that are missing, takes
    the size of a completed one as its end, and calls a read at the end of a completed one damage.
    """
    depth, read_file, read_pos, write_file, write_pos = read_metadata(directory)
    path = segment_path(directory, write_file)
    if path.exists():
        assert path.stat().st_size == write_pos
    else:
        assert write_pos == 0, "go-diskqueue would leave a hole"
    found: list[bytes] = []
    while read_file < write_file or read_pos < write_pos:
        if not segment_path(directory, read_file).exists():
            assert read_pos == 0, "the oldest record is missing"
            read_file += 1
            continue
        content = segment_path(directory, read_file).read_bytes()
        (length,) = struct.unpack_from(">i", content, read_pos)
        assert length >= 26
        start = read_pos + 4
        read_pos = start + length
        assert read_pos <= len(content)
        found.append(content[start:read_pos])
        if read_file < write_file and read_pos >= len(content):
            read_file, read_pos = read_file + 1, 0
    assert len(found) == depth or not is_depth_exact
    return found
