"""The sidecar file `NAME.diskqueue.finished`: which records behind the read position are finished.

The metadata has one read position, that of the oldest unfinished record, and without more a crash
would deliver everything behind it again. So a sync writes down the finished records too, before it
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
    ...     ...   blocks: a header and its intervals
    -4      4     CRC32 of everything before

    block:  8     segment
            8     offset of the last finished record of the block
            4, 4  CRC32 of the first 30 bytes of its first and of its last finished record
            4     number of intervals
            ...   intervals, ascending: start, end, number of records (8, 8, 4)

This file must never cost a record. go-diskqueue ignores it and may have worked on the directory
meanwhile, an operator may have restored a backup. So it is believed only if the metadata's read
position lies between the two in the header, and a block only if the records at its ends are the
same: these 30 bytes hold the message's unique id. A segment is only ever appended to, therefore the
block's last record proves the records before it. Records of a block that is not believed are
delivered again. A reader must meet each interval at the end of a record; otherwise it drops the
intervals of that segment.

`DiskQueue` owns the one `Sidecar` of a queue, and only the thread of a sync writes through it.
`examine` serves every reader: a start, `check`, and Spark.
"""

import itertools
import logging
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from diskqueue import layout
from diskqueue.errors import CorruptSidecarError
from diskqueue.finished.intervals import Interval, Intervals
from diskqueue.segment import PREFIX, PREFIX_BYTES

MAGIC = b"DQFINISH"
VERSION = 1
# Length, timestamp, attempts and id of a message.
FINGERPRINT_BYTES = 30
# The fingerprint of the end of a segment, where no record stands.
NO_FINGERPRINT = zlib.crc32(b"")

# A file of this size has thirteen million intervals, more than a queue writes: it is not ours.
_MAX_BYTES = 256 * 1024 * 1024
_HEAD = struct.Struct(">8sI")
_POSITION = struct.Struct(">QQ")
_COUNTS = struct.Struct(">QQIII")
_GAP = struct.Struct(">QQ")
_BLOCK = struct.Struct(">QQIII")
_INTERVAL = struct.Struct(">QQI")
_CRC = struct.Struct(">I")
# The content of a file that the sidecar has not written itself.
_UNKNOWN = b""

_logger = logging.getLogger(__name__)


class Position(NamedTuple):
    """A place in a queue."""

    number: int
    offset: int


@dataclass(frozen=True, slots=True)
class Block:
    """Finished records of one segment, at least one, with the fingerprints that prove them."""

    number: int
    records: Intervals
    last_start: int
    first_crc: int
    last_crc: int

    @property
    def end(self) -> int:
        """Where its last record ends."""
        return self.records.end

    def encode(self) -> bytes:
        """Return its bytes in the file."""
        head = _BLOCK.pack(
            self.number, self.last_start, self.first_crc, self.last_crc, len(self.records)
        )
        return head + b"".join([_INTERVAL.pack(*entry) for entry in self.records])


@dataclass(frozen=True, slots=True)
class Content:
    """The parts of a sidecar, believed or not."""

    previous: Position
    read: Position
    read_crc: int
    # Numbers of segments that were deleted before older ones.
    gaps: Intervals
    blocks: tuple[Block, ...]


def encode_body(read: Position, read_crc: int, gaps: Intervals, blocks: Iterable[bytes]) -> bytes:
    """Return the part of a file that makes a sync write it again if it has changed."""
    packed_gaps = [_GAP.pack(gap.start, gap.end - 1) for gap in gaps]
    packed_blocks = list(blocks)
    counts = _COUNTS.pack(*read, read_crc, len(packed_gaps), len(packed_blocks))
    return b"".join([counts, *packed_gaps, *packed_blocks])


def encode(previous: Position, body: bytes) -> bytes:
    """Return the bytes of a file."""
    content = b"".join([_HEAD.pack(MAGIC, VERSION), _POSITION.pack(*previous), body])
    return content + _CRC.pack(zlib.crc32(content))


def decode(content: bytes) -> Content:
    """Take the bytes of a file apart.

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


def _decode_body(content: bytes, body_end: int) -> Content:
    offset = _HEAD.size
    previous = Position(*_POSITION.unpack_from(content, offset))
    offset += _POSITION.size
    number, position, read_crc, gap_count, block_count = _COUNTS.unpack_from(content, offset)
    offset += _COUNTS.size
    end = offset + gap_count * _GAP.size
    spans = _GAP.iter_unpack(content[offset:end])
    try:
        gaps = Intervals(Interval(first, last + 1, last + 1 - first) for first, last in spans)
    except ValueError as error:
        raise CorruptSidecarError("its gaps are wrong") from error
    offset = end
    blocks: list[Block] = []
    for _ in range(block_count):
        block, offset = _decode_block(content, offset, body_end)
        blocks.append(block)
    if offset != body_end:
        raise CorruptSidecarError("its counts are wrong")
    ends = [block.end for block in blocks]
    if max(number, position, *previous, *ends) > layout.MAX_NUMBER:
        raise CorruptSidecarError("its numbers are wrong")
    return Content(previous, Position(number, position), read_crc, gaps, tuple(blocks))


def _decode_block(content: bytes, offset: int, body_end: int) -> tuple[Block, int]:
    """Return a block and where the next one begins."""
    segment, last_start, first_crc, last_crc, count = _BLOCK.unpack_from(content, offset)
    offset += _BLOCK.size
    end = offset + count * _INTERVAL.size
    try:
        records = Intervals(
            Interval(*entry) for entry in _INTERVAL.iter_unpack(content[offset:end])
        )
    except ValueError as error:
        raise CorruptSidecarError("its ranges are wrong") from error
    if not records or end > body_end or not records.last.start <= last_start < records.end:
        raise CorruptSidecarError("its ranges are wrong")
    return Block(segment, records, last_start, first_crc, last_crc), end


class Sidecar:
    """The file of one queue: written if its content changes, removed when it has no use."""

    def __init__(self, directory: str, name: str, *, exists: bool) -> None:
        self._path = layout.finished_path(directory, name)
        # The body of the file, None if there is no file, or `_UNKNOWN`.
        self._body: bytes | None = _UNKNOWN if exists else None

    @property
    def exists(self) -> bool:
        """Whether there is a file."""
        return self._body is not None

    def write(self, previous: Position, body: bytes) -> None:
        """Replace the file unless it has this body.

        Raises:
            OSError: the file may not be durable.
        """
        if body != self._body:
            self._body = _UNKNOWN
            layout.write_atomically(self._path, encode(previous, body))
            self._body = body

    def remove(self) -> None:
        """Remove the file; the caller makes that durable.

        Raises:
            OSError: the file is still there.
        """
        if self._body is not None:
            layout.remove(self._path)
            self._body = None

    def forget(self, *, is_removed: bool) -> None:
        """Take note that the caller is removing the file, or has removed it."""
        self._body = None if is_removed else _UNKNOWN


def fingerprint(fd: int, offset: int) -> int:
    """Return the number that tells the record at an offset from any other.

    Raises:
        OSError: the segment cannot be read.
    """
    return zlib.crc32(os.pread(fd, FINGERPRINT_BYTES, offset))


class Fingerprints:
    """Fingerprints of records of a queue; the segment that was read last stays open."""

    def __init__(self, directory: str, name: str) -> None:
        self._directory = directory
        self._name = name
        self._number = -1
        self._fd = -1
        # Why the last fingerprint that was not found could not be read, if there was a file.
        self.error: OSError | None = None

    def __enter__(self) -> "Fingerprints":
        return self

    def __exit__(self, *exception: object) -> None:
        self._close()

    def find(self, number: int, offset: int) -> int | None:
        """Return the fingerprint of a record, or None if the record cannot be read.

        Without one the record cannot be written down, and a crash delivers it again.
        """
        try:
            if number != self._number:
                self._close()
                path = layout.segment_path(self._directory, self._name, number)
                self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                self._number = number
            return fingerprint(self._fd, offset)
        except FileNotFoundError:
            self.error = None
            return None
        except OSError as error:
            self.error = error
            _logger.warning(
                "diskqueue finished records not written down queue=%s file=%d offset=%d error=%s",
                self._name,
                number,
                offset,
                error,
            )
            return None

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = self._number = -1


@dataclass(slots=True)
class Evidence:
    """The part of a queue's sidecar that can be believed."""

    # The metadata's, unless a crash kept it from getting the newer one of the sidecar.
    read: Position
    # Without those before the read position, in the order of their ends.
    blocks: list[Block] = field(default_factory=list)
    gaps: Intervals = field(default_factory=Intervals)
    # The reasons why a part was not believed.
    doubts: list[str] = field(default_factory=list)

    def find_records(self) -> dict[int, Intervals]:
        """Return the finished records from the read position on, by the number of their segment.

        The intervals of one block may stand between those of another.
        """
        by_number: dict[int, list[Intervals]] = {}
        for block in self.blocks:
            start = self.read.offset if block.number == self.read.number else 0
            by_number.setdefault(block.number, []).append(block.records.since(start))
        return {number: Intervals().union(*parts) for number, parts in by_number.items()}


def examine(directory: str, name: str, read: Position, sizes: Mapping[int, int]) -> Evidence | None:
    """Compare the sidecar of a queue, if it has one, with the queue's segments.

    Args:
        read: the read position of the metadata.
        sizes: the segments that exist.

    Raises:
        OSError: a segment cannot be read.
    """
    found = Evidence(read)
    try:
        content = _read_content(directory, name)
    except (CorruptSidecarError, OSError) as error:
        found.doubts.append(str(error))
        return found
    if content is None:
        return None
    if not content.previous <= read <= content.read:
        found.doubts.append("it was not written for this read position")
    elif not _is_read_position_same(directory, name, read, content):
        found.doubts.append("another record stands at its read position")
    else:
        found.read = content.read
        found.gaps = content.gaps.minus(Intervals.of_span(0, content.read.number))
        _examine_blocks(directory, name, content, sizes, found)
    return found


def _examine_blocks(
    directory: str, name: str, content: Content, sizes: Mapping[int, int], found: Evidence
) -> None:
    # A block whose segment is gone is no cause for doubt: the sync deleted the segment right after.
    candidates = [block for block in content.blocks if block.number in sizes]
    blocks = list(_recognise(directory, name, candidates, sizes))
    if len(blocks) < len(candidates):
        found.doubts.append(f"{len(candidates) - len(blocks)} blocks are of other records")
    if _do_overlap(blocks):
        found.doubts.append("its ranges overlap")
        return
    blocks = [block for block in blocks if (block.number, block.end) > content.read]
    found.blocks = sorted(blocks, key=lambda block: (block.number, block.end))


def _do_overlap(blocks: list[Block]) -> bool:
    entries = sorted((block.number, *entry) for block in blocks for entry in block.records)
    return any(
        older[0] == newer[0] and older[2] > newer[1] for older, newer in itertools.pairwise(entries)
    )


def _read_content(directory: str, name: str) -> Content | None:
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


def _recognise(
    directory: str, name: str, blocks: Iterable[Block], sizes: Mapping[int, int]
) -> Iterator[Block]:
    """Yield the blocks whose records are still the ones that were finished."""
    for number, group in itertools.groupby(blocks, key=lambda block: block.number):
        fd = os.open(layout.segment_path(directory, name, number), os.O_RDONLY | os.O_CLOEXEC)
        try:
            for block in group:
                if block.end <= sizes[number] and _is_same(fd, block):
                    yield block
        finally:
            os.close(fd)


def _is_same(fd: int, block: Block) -> bool:
    if fingerprint(fd, block.records.start) != block.first_crc:
        return False
    data = os.pread(fd, FINGERPRINT_BYTES, block.last_start)
    if zlib.crc32(data) != block.last_crc or len(data) < PREFIX_BYTES:
        return False
    (length,) = PREFIX.unpack_from(data)
    return bool(block.last_start + PREFIX_BYTES + length == block.end)


def _is_read_position_same(directory: str, name: str, read: Position, content: Content) -> bool:
    """Tell whether the record at the sidecar's read position is the one that was there."""
    if content.read_crc == NO_FINGERPRINT and content.read != read:
        return False
    path = layout.segment_path(directory, name, content.read.number)
    if layout.find_size(path) is None:
        return content.read_crc == NO_FINGERPRINT
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return fingerprint(fd, content.read.offset) == content.read_crc
    finally:
        os.close(fd)
