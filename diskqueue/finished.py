"""The sidecar file `NAME.diskqueue.finished`: which records behind the read position are finished.

The metadata has one read position, that of the oldest unfinished record, and without more a crash
would deliver everything behind it again. So a sync writes down the finished ranges too, before it
moves the read position. All numbers are big-endian:

    offset  size
    0       8     "DQFINISH"
    8       4     version, 1
    12      8, 8  the read position that was durable before: file, offset
    28      8, 8  the read position that the metadata is about to get
    44      4     CRC32 of the first 30 bytes at the latter
    48      4     number of gaps
    52      4     number of blocks
    56      ...   gaps: the first and the last number (8, 8) of segments deleted before older ones
    ...     ...   blocks: a header and its ranges
    -4      4     CRC32 of everything before

    block:  8     segment
            8     offset of the last finished record of the block
            4, 4  CRC32 of the first 30 bytes of its first and of its last finished record
            4     number of ranges
            ...   ranges, ascending: start, end, number of records (8, 8, 4)

Nobody may lose a record because of this file. go-diskqueue knows nothing of it and may have worked
on the directory meanwhile, an operator may have restored a backup. So it is believed only if the
metadata's read position lies between the two in the header, and a block only if the records at its
ends are the same: these 30 bytes hold the message's unique id. A segment is only ever appended to,
therefore the block's last record proves what stands before it. What is not believed is delivered
again. A reader meets each range at a boundary of records, or the segment's ranges are dropped.
"""

import itertools
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from diskqueue import layout
from diskqueue.errors import CorruptSidecarError
from diskqueue.segment import PREFIX, PREFIX_BYTES

MAGIC = b"DQFINISH"
VERSION = 1
# Length, timestamp, attempts and id of a message.
FINGERPRINT_BYTES = 30

# A larger file is none of ours: a range takes 20 bytes.
_MAX_BYTES = 256 * 1024 * 1024
_HEAD = struct.Struct(">8sI")
_POSITION = struct.Struct(">QQ")
_COUNTS = struct.Struct(">QQIII")
_GAP = struct.Struct(">QQ")
_BLOCK = struct.Struct(">QQIII")
_RANGE = struct.Struct(">QQI")
_CRC = struct.Struct(">I")


class Position(NamedTuple):
    """A place in a queue."""

    number: int
    offset: int


class Range(NamedTuple):
    """Finished records that stand one behind the other."""

    start: int
    end: int
    record_count: int


@dataclass(frozen=True, slots=True)
class Block:
    """Ranges of one segment with the fingerprints that prove them."""

    number: int
    ranges: tuple[Range, ...]
    last_start: int
    first_crc: int
    last_crc: int

    # Of all ranges together; worked out once, since every sync asks.
    record_count: int = field(init=False)
    finished_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        record_count = sum(entry.record_count for entry in self.ranges)
        object.__setattr__(self, "record_count", record_count)
        finished_bytes = sum(entry.end - entry.start for entry in self.ranges)
        object.__setattr__(self, "finished_bytes", finished_bytes)

    @property
    def end(self) -> int:
        """Where its last record ends."""
        return self.ranges[-1].end

    def count_from(self, offset: int) -> int:
        """The number of its records from an offset on."""
        return sum(entry.record_count for entry in self.ranges if entry.start >= offset)

    def encode(self) -> bytes:
        """Its bytes in the file."""
        head = _BLOCK.pack(
            self.number, self.last_start, self.first_crc, self.last_crc, len(self.ranges)
        )
        return head + b"".join([_RANGE.pack(*entry) for entry in self.ranges])


@dataclass(frozen=True, slots=True)
class FinishedFile:
    """The content of a sidecar."""

    previous: Position
    read: Position
    read_crc: int
    gaps: tuple[tuple[int, int], ...]
    blocks: tuple[Block, ...]


def join_spans(spans: Iterable[tuple[int, int]], distance: int) -> list[tuple[int, int]]:
    """The same spans in order, with those as one that are not farther from each other."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if joined and first - joined[-1][1] <= distance:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return joined


def encode_body(
    read: Position, read_crc: int, gaps: Iterable[tuple[int, int]], blocks: list[bytes]
) -> bytes:
    """Everything but the frame: what has to be written again if it changed."""
    packed_gaps = [_GAP.pack(*gap) for gap in gaps]
    counts = _COUNTS.pack(*read, read_crc, len(packed_gaps), len(blocks))
    return b"".join([counts, *packed_gaps, *blocks])


def encode(previous: Position, body: bytes) -> bytes:
    """The content of a file."""
    content = b"".join([_HEAD.pack(MAGIC, VERSION), _POSITION.pack(*previous), body])
    return content + _CRC.pack(zlib.crc32(content))


def decode(content: bytes) -> FinishedFile:
    """The parts of a file.

    Raises:
        CorruptSidecarError: this is not a whole one, or not of this version.
    """
    if len(content) < _HEAD.size + _POSITION.size + _COUNTS.size + _CRC.size:
        raise CorruptSidecarError(f"only {len(content)} bytes")
    magic, version = _HEAD.unpack_from(content)
    if magic != MAGIC:
        raise CorruptSidecarError("it does not begin as one")
    if version != VERSION:
        raise CorruptSidecarError(f"unknown version {version}")
    body_end = len(content) - _CRC.size
    if _CRC.unpack_from(content, body_end) != (zlib.crc32(memoryview(content)[:body_end]),):
        raise CorruptSidecarError("the checksum is wrong")
    try:
        return _decode_body(content, body_end)
    except struct.error as error:
        raise CorruptSidecarError(f"its counts are wrong: {error}") from error


def _decode_body(content: bytes, body_end: int) -> FinishedFile:
    offset = _HEAD.size
    previous = Position(*_POSITION.unpack_from(content, offset))
    offset += _POSITION.size
    number, position, read_crc, gap_count, block_count = _COUNTS.unpack_from(content, offset)
    offset += _COUNTS.size
    end = offset + gap_count * _GAP.size
    gaps = tuple((first, last) for first, last in _GAP.iter_unpack(content[offset:end]))
    if any(first > last for first, last in gaps):
        raise CorruptSidecarError("its gaps are wrong")
    offset = end
    blocks: list[Block] = []
    for _ in range(block_count):
        segment, last_start, first_crc, last_crc, count = _BLOCK.unpack_from(content, offset)
        offset += _BLOCK.size
        end = offset + count * _RANGE.size
        ranges = tuple(Range(*entry) for entry in _RANGE.iter_unpack(content[offset:end]))
        offset = end
        if count == 0 or offset > body_end or not _are_ascending(ranges, last_start):
            raise CorruptSidecarError("its ranges are wrong")
        blocks.append(Block(segment, ranges, last_start, first_crc, last_crc))
    if offset != body_end:
        raise CorruptSidecarError("its counts are wrong")
    ends = [block.end for block in blocks]
    if max(number, position, *previous, *ends) > layout.MAX_NUMBER:
        raise CorruptSidecarError("its numbers are wrong")
    return FinishedFile(previous, Position(number, position), read_crc, gaps, tuple(blocks))


def _are_ascending(ranges: tuple[Range, ...], last_start: int) -> bool:
    position = 0
    for start, end, count in ranges:
        if not (position <= start < end and count > 0):
            return False
        position = end
    return ranges[-1].start <= last_start < ranges[-1].end


@dataclass(slots=True)
class Evidence:
    """What can be believed of the sidecar of a queue."""

    # The metadata's, unless a crash kept it from getting the newer one of the sidecar.
    read: Position
    # Without those before the read position, in the order of their ends.
    blocks: list[Block] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    # Why something was not believed.
    doubts: list[str] = field(default_factory=list)


def examine(directory: str, name: str, read: Position, sizes: Mapping[int, int]) -> Evidence | None:
    """Compares the sidecar of a queue, if it has one, with its files.

    Args:
        read: the read position of the metadata.
        sizes: the segments that exist.

    Raises:
        OSError: a segment cannot be read.
    """
    found = Evidence(read)
    try:
        file = _read_file(directory, name)
    except (CorruptSidecarError, OSError) as error:
        found.doubts.append(str(error))
        return found
    if file is None:
        return None
    if not file.previous <= read <= file.read:
        found.doubts.append("it was not written for this read position")
    elif not _is_read_position_same(directory, name, read, file):
        found.doubts.append("another record stands at its read position")
    else:
        found.read = file.read
        found.gaps = [gap for gap in file.gaps if gap[1] >= file.read.number]
        _examine_blocks(directory, name, file, sizes, found)
    return found


def _examine_blocks(
    directory: str, name: str, file: FinishedFile, sizes: Mapping[int, int], found: Evidence
) -> None:
    # Those of segments that the sync has deleted right after are not missed.
    candidates = [block for block in file.blocks if block.number in sizes]
    blocks = list(_recognise(directory, name, candidates, sizes))
    if len(blocks) < len(candidates):
        found.doubts.append(f"{len(candidates) - len(blocks)} blocks are of other records")
    ranges = sorted((block.number, *entry[:2]) for block in blocks for entry in block.ranges)
    if any(
        older[0] == newer[0] and older[2] > newer[1] for older, newer in itertools.pairwise(ranges)
    ):
        found.doubts.append("its ranges overlap")
        return
    blocks = [block for block in blocks if (block.number, block.end) > file.read]
    found.blocks = sorted(blocks, key=lambda block: (block.number, block.end))


def _read_file(directory: str, name: str) -> FinishedFile | None:
    path = layout.finished_path(directory, name)
    if layout.find_size(path) is None:
        return None
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(content) > _MAX_BYTES:
        raise CorruptSidecarError("it is too large")
    return decode(content)


def fingerprint(fd: int, offset: int) -> int:
    """What tells the record at an offset from any other.

    Raises:
        OSError: the segment cannot be read.
    """
    return zlib.crc32(os.pread(fd, FINGERPRINT_BYTES, offset))


# The fingerprint of a place where nothing is.
NO_FINGERPRINT = zlib.crc32(b"")


def _recognise(
    directory: str, name: str, blocks: Iterable[Block], sizes: Mapping[int, int]
) -> Iterator[Block]:
    """The blocks whose records are still the ones that were finished."""
    for number, group in itertools.groupby(blocks, key=lambda block: block.number):
        fd = os.open(layout.segment_path(directory, name, number), os.O_RDONLY | os.O_CLOEXEC)
        try:
            for block in group:
                if block.end <= sizes[number] and _is_same(fd, block):
                    yield block
        finally:
            os.close(fd)


def _is_same(fd: int, block: Block) -> bool:
    if fingerprint(fd, block.ranges[0].start) != block.first_crc:
        return False
    data = os.pread(fd, FINGERPRINT_BYTES, block.last_start)
    if zlib.crc32(data) != block.last_crc or len(data) < PREFIX_BYTES:
        return False
    (length,) = PREFIX.unpack_from(data)
    return bool(block.last_start + PREFIX_BYTES + length == block.end)


def _is_read_position_same(directory: str, name: str, read: Position, file: FinishedFile) -> bool:
    """Whether the record at the sidecar's read position is the one that was there."""
    if file.read_crc == NO_FINGERPRINT and file.read != read:
        return False
    path = layout.segment_path(directory, name, file.read.number)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return file.read_crc == NO_FINGERPRINT
    try:
        return fingerprint(fd, file.read.offset) == file.read_crc
    finally:
        os.close(fd)
