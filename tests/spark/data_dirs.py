"""Data directories made and read with `struct` alone, to compare the Spark source with."""

import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

HEADER = struct.Struct(">iqH16s")
TIME_NS = 1_760_000_000_000_000_000
MAX_RECORD_BYTES = 1024 * 1024 + 26
_SEGMENT = re.compile(r"(.+)\.diskqueue\.([0-9]{6,18})\.dat", re.DOTALL)
_METADATA = re.compile(r"-?[0-9]{1,18}\s+([0-9]+),([0-9]+)\s+([0-9]+),([0-9]+)\s*")


@dataclass(frozen=True)
class Message:
    """One message; the body is the only thing a test must choose."""

    body: bytes
    timestamp_ns: int = TIME_NS
    attempts: int = 1
    message_id: bytes = b"0123456789abcdef"

    def record(self) -> bytes:
        """Its bytes in a segment."""
        length = 26 + len(self.body)
        return HEADER.pack(length, self.timestamp_ns, self.attempts, self.message_id) + self.body


@dataclass(frozen=True)
class Row:
    """One row of the source, but for the node."""

    topic: str
    channel: str | None
    segment: int
    offset: int
    timestamp_ns: int
    attempts: int
    message_id: str
    body: bytes


def message(number: int, size: int = 20) -> Message:
    """A message whose values all depend on its number."""
    body = (b"message %d " % number).ljust(size, b".")[:size]
    return Message(body, TIME_NS + number * 1_000_007, number % 5, b"%016x" % number)


def messages(first: int, count: int, size: int = 20) -> list[Message]:
    """Some of them."""
    return [message(number, size) for number in range(first, first + count)]


def content(records: Iterable[Message]) -> bytes:
    """The bytes of a segment."""
    return b"".join(each.record() for each in records)


def segment_path(directory: Path, name: str, number: int) -> Path:
    return directory / f"{name}.diskqueue.{number:06d}.dat"


def write_segment(directory: Path, name: str, number: int, data: bytes) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = segment_path(directory, name, number)
    path.write_bytes(data)
    return path


def write_metadata(
    directory: Path, name: str, *, depth: int = 0, read: tuple[int, int], write: tuple[int, int]
) -> None:
    text = f"{depth}\n{read[0]},{read[1]}\n{write[0]},{write[1]}\n"
    (directory / f"{name}.diskqueue.meta.dat").write_text(text)


def write_queue(
    directory: Path, name: str, segments: list[list[Message]], *, read: tuple[int, int] = (0, 0)
) -> None:
    """A queue as a clean exit leaves it."""
    size = 0
    for number, records in enumerate(segments):
        data = content(records)
        size = len(data)
        write_segment(directory, name, number, data)
    depth = sum(map(len, segments))
    write_metadata(directory, name, depth=depth, read=read, write=(max(len(segments) - 1, 0), size))


def read_plainly(directory: Path, *, is_from_earliest: bool = False) -> list[Row]:
    """All messages of a directory, one record after the other, by queue and segment."""
    segments: dict[str, dict[int, Path]] = {}
    for path in directory.iterdir():
        match = _SEGMENT.fullmatch(path.name)
        if match is not None and path.is_file() and match[2] == f"{int(match[2]):06d}":
            segments.setdefault(match[1], {})[int(match[2])] = path
    return [
        row
        for name in sorted(segments)
        for row in _read_queue(directory, name, segments[name], is_from_earliest=is_from_earliest)
    ]


def _read_queue(
    directory: Path, name: str, segments: dict[int, Path], *, is_from_earliest: bool
) -> Iterator[Row]:
    topic, _, channel = name.partition(":")
    read, write = _read_positions(directory, name)
    for number in sorted(segments):
        data = segments[number].read_bytes()
        start = 0
        if read is not None and write is not None:
            if number > write[0] or (number < read[0] and not is_from_earliest):
                continue
            if number == write[0]:
                data = data[: write[1]]
            if number == read[0] and not is_from_earliest:
                start = read[1]
        for offset, payload in walk(data, start):
            time_ns, attempts, message_id = struct.unpack_from(">qH16s", payload)
            yield Row(
                topic,
                channel or None,
                number,
                offset,
                time_ns,
                attempts,
                message_id.decode("utf-8", "backslashreplace"),
                payload[26:],
            )


def _read_positions(
    directory: Path, name: str
) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    """Where the unread messages begin and end; neither where the metadata makes no sense."""
    path = directory / f"{name}.diskqueue.meta.dat"
    match = _METADATA.fullmatch(path.read_text(errors="replace")) if path.is_file() else None
    if match is None:
        return None, None
    read_file, read_pos, write_file, write_pos = map(int, match.groups())
    if (read_file, read_pos) > (write_file, write_pos):
        return None, None
    return (read_file, read_pos), (write_file, write_pos)


def walk(data: bytes, position: int = 0) -> Iterator[tuple[int, bytes]]:
    """The records of a segment up to the first that is none."""
    while position + 4 <= len(data):
        (length,) = struct.unpack_from(">i", data, position)
        end = position + 4 + length
        if length < 26 or end > len(data):
            return
        if length > MAX_RECORD_BYTES and not _is_followed(data, end):
            return
        yield position, data[position + 4 : end]
        position = end


def _is_followed(data: bytes, position: int) -> bool:
    """Whether a record of more than the maximum size is believed: another one stands behind it."""
    while position < len(data):
        if position + 4 > len(data):
            return False
        (length,) = struct.unpack_from(">i", data, position)
        position += 4 + length
        if length < 26 or position > len(data):
            return False
        if length <= MAX_RECORD_BYTES:
            return True
    return True
