"""One segment file: records back to back, each an int32 big-endian length and that many bytes.

Everything here only reads. Two levels: `split_records` cuts a part of a segment that is in memory
(the hot loop of `DiskQueue.read`), and `iter_records` / `walk` go through a file, for other
programs. A segment has no checksums (`checksums` has them in a file beside it), so here damage is a
length that cannot be one. A length L at position p
of a segment whose content ends at `end` is believed when

* L is at least `min_record_bytes`, and the record fits: p + 4 + L <= end; and
* L is at most `max_record_bytes`, or the record ends where another believable one begins, or at
  `end` exactly.

The second rule lets records pass that were written under a higher --max-msg-size (go-diskqueue
takes them for damage and drops the rest of their segment), while a flipped bit in a length, which
leads into the middle of another record, is still seen.

`SegmentState` is a segment of an open queue, which the queue's reader, writer, progress and syncs
share.
"""

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from diskqueue.envelope import HEADER_BYTES
from diskqueue.errors import CorruptSegmentError
from diskqueue.finished.intervals import Intervals

if TYPE_CHECKING:
    from diskqueue.checksums.file import ChecksumFile

PREFIX = struct.Struct(">i")
PREFIX_BYTES = PREFIX.size
# A record of exactly this size has an empty body.
MIN_RECORD_BYTES = HEADER_BYTES
DEFAULT_MAX_RECORD_BYTES = 1024 * 1024 + MIN_RECORD_BYTES

# Reads so many bytes at such an offset of a file: `partial(os.pread, fd)`, or a remote file's read.
ReadAt: TypeAlias = Callable[[int, int], bytes]

_READ_BYTES = 1024 * 1024
# Below this many records the loop is as fast as proving that they all have one size.
_MIN_UNIFORM_COUNT = 8


@dataclass(frozen=True, slots=True)
class RecordLimits:
    """The sizes a record's payload can have."""

    min_record_bytes: int = MIN_RECORD_BYTES
    max_record_bytes: int = DEFAULT_MAX_RECORD_BYTES


class SegmentState:
    """One segment of an open queue; segments are linked from the oldest to the newest."""

    __slots__ = (
        "checksums",
        "damage",
        "doubt",
        "end",
        "exists",
        "fd",
        "finished",
        "found_end",
        "has_checksum_file",
        "is_dirty",
        "is_marked",
        "is_suspect",
        "next",
        "number",
        "rest",
        "synced_end",
    )

    def __init__(self, number: int, end: int = 0, *, exists: bool = False) -> None:
        self.number = number
        # Where the readable content ends; in the segment being written, the write position.
        self.end = end
        # Why the content ends before the file does. Such a segment is renamed, never deleted.
        self.damage: str | None = None
        # The newest segment has a number before it has a file.
        self.exists = exists
        # Where bytes of an append that failed may stand, behind all records, or None. They are cut
        # off before another record is put there, and when the segment is complete.
        self.rest: int | None = None
        # Bytes were appended that no fsync covers yet.
        self.is_dirty = False
        # An fsync failed: the kernel may have dropped the bytes behind `synced_end` and call them
        # clean, so the next one must write these bytes again first.
        self.is_suspect = False
        self.synced_end = 0
        # Its files have got their mark (`checksums.marks`). Those of an older process stay as they
        # are.
        self.is_marked = exists
        # Where the content ended when the queue was opened; readers may have seen all of it.
        self.found_end = end
        # A completed segment keeps its descriptor until it was fsynced, or -1: an error of the
        # disk is reported through a descriptor that was open when it happened.
        self.fd = -1
        # The checksums of records that this process appends, if it writes any.
        self.checksums: ChecksumFile | None = None
        # There is a checksum file, be it of this process or of an earlier one.
        self.has_checksum_file = False
        # From here to there no sync is known to have covered the bytes that a start has found.
        self.doubt = (0, 0)
        # Records that were finished before the queue was opened, behind the read position of then.
        self.finished = Intervals()
        self.next: SegmentState | None = None


class Damage(NamedTuple):
    """The reason why a place in a segment is no record."""

    reason: str
    # The segment ends inside the record, as after a write that was cut short.
    is_torn: bool


@dataclass(frozen=True, slots=True)
class Walk:
    """The result of a walk over a segment: whole records up to `end`, and damage if it is there."""

    record_count: int
    end: int
    damage: Damage | None


def split_records(
    data: bytes | bytearray, position: int, stop: int, max_records: int, limits: RecordLimits
) -> tuple[list[int], list[int]]:
    """Return the starts and ends of the payloads of the whole records in data[position:stop].

    Ends early, perhaps at once, at the first record that is cut off by `stop` or whose length is
    outside the limits; `find_damage` then tells which.
    """
    if position + PREFIX_BYTES > stop:
        return [], []
    (length,) = PREFIX.unpack_from(data, position)
    if limits.min_record_bytes <= length <= limits.max_record_bytes:
        stride = PREFIX_BYTES + length
        count = min((stop - position) // stride, max_records)
        if count >= _MIN_UNIFORM_COUNT and _is_uniform(data, position, stride, count):
            end = position + stride * count
            return (
                list(range(position + PREFIX_BYTES, end, stride)),
                list(range(position + stride, end + 1, stride)),
            )
    return _split_mixed(data, position, stop, max_records, limits)


def _is_uniform(data: bytes | bytearray, position: int, stride: int, count: int) -> bool:
    """Tell whether `count` records of one size stand at `position`.

    The first prefix leads to the second and so on, so equal prefixes at equal distances are a
    proof, not a guess. Mixed sizes almost always fail at the first of the four comparisons.
    """
    end = position + stride * count
    return all(
        data[position + byte : end : stride] == data[position + byte : position + byte + 1] * count
        for byte in (3, 2, 1, 0)
    )


def _split_mixed(
    data: bytes | bytearray, position: int, stop: int, max_records: int, limits: RecordLimits
) -> tuple[list[int], list[int]]:
    starts: list[int] = []
    ends: list[int] = []
    unpack_from = PREFIX.unpack_from
    min_bytes = limits.min_record_bytes
    max_bytes = limits.max_record_bytes
    last_prefix = stop - PREFIX_BYTES
    while position <= last_prefix and max_records > 0:
        (length,) = unpack_from(data, position)
        start = position + 4
        position = start + length
        if position > stop or not min_bytes <= length <= max_bytes:
            break
        starts.append(start)
        ends.append(position)
        max_records -= 1
    return starts, ends


def find_damage(read_at: ReadAt, position: int, end: int, limits: RecordLimits) -> Damage | None:
    """Say why no record stands at `position` of a segment, or return None if one does.

    Args:
        read_at: reads a number of bytes at an offset of the file, fewer only at its end.
        end: where the content ends; not beyond the end of the file.

    Raises:
        OSError: the file cannot be read.
    """
    damage: Damage | None = None
    # Ends: every turn but the last moves on by more than max_record_bytes.
    while True:
        available = end - position
        prefix = read_at(PREFIX_BYTES, position) if available >= PREFIX_BYTES else b""
        if len(prefix) < PREFIX_BYTES:
            left = max(available, 0)
            return damage or Damage(f"the segment ends {left} bytes into a record", is_torn=True)
        (length,) = PREFIX.unpack(prefix)
        if length < limits.min_record_bytes:
            return damage or Damage(f"invalid record size ({length})", is_torn=False)
        if length > available - PREFIX_BYTES:
            # Where the length is within the limit, the record is cut off rather than misread.
            return damage or Damage(
                f"a record of {length} bytes runs past the end of the segment",
                is_torn=length <= limits.max_record_bytes,
            )
        position += PREFIX_BYTES + length
        if length <= limits.max_record_bytes or position == end:
            return None
        # Above the present limit: believed only if a record follows, or the end.
        damage = damage or Damage(f"invalid record size ({length})", is_torn=False)


def walk(
    path: str, start: int = 0, end: int | None = None, limits: RecordLimits | None = None
) -> Walk:
    """Count the whole records between two offsets of a file.

    Raises:
        OSError: the file cannot be read.
    """
    count = 0
    position = start
    try:
        for offset, _, starts, ends in iter_buffers(path, start, end, limits or RecordLimits()):
            count += len(starts)
            position = offset + ends[-1]
    except CorruptSegmentError as error:
        return Walk(count, error.offset, Damage(error.reason, error.is_torn))
    return Walk(count, position, None)


def iter_records(
    path: str, start: int = 0, end: int | None = None, limits: RecordLimits | None = None
) -> Iterator[tuple[int, bytes]]:
    """Yield the offset and payload of each record between two offsets of a file.

    Args:
        start: the offset of a record, not of any byte.
        end: where the content ends; of a live queue's last segment, the write position of the
            metadata and not a byte more. The end of the file if None.

    Raises:
        CorruptSegmentError: the chain breaks; every record before that place has been yielded.
        OSError: the file cannot be read.
    """
    for offset, data, starts, ends in iter_buffers(path, start, end, limits or RecordLimits()):
        for payload_start, payload_end in zip(starts, ends, strict=True):
            yield offset + payload_start - PREFIX_BYTES, data[payload_start:payload_end]


def iter_buffers(
    path: str, position: int, end: int | None, limits: RecordLimits
) -> Iterator[tuple[int, bytes, list[int], list[int]]]:
    """Yield (offset, buffer, payload starts, payload ends), never without a record.

    Raises:
        CorruptSegmentError: the chain breaks; every record before that place has been yielded.
        OSError: the file cannot be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if end is None:
            end = os.fstat(fd).st_size
        while position < end:
            data = os.pread(fd, min(_READ_BYTES, end - position), position)
            starts, ends = split_records(data, 0, len(data), len(data), limits)
            if not starts:
                damage = find_damage(
                    partial(os.pread, fd), position, min(end, os.fstat(fd).st_size), limits
                )
                if damage is not None:
                    raise CorruptSegmentError(path, position, damage.reason, is_torn=damage.is_torn)
                data = read_record(fd, position)
                starts, ends = [PREFIX_BYTES], [len(data)]
            yield position, data, starts, ends
            position += ends[-1]
    finally:
        os.close(fd)


def read_record(fd: int, position: int) -> bytes:
    """Return one record with its prefix; `find_damage` has told the caller that it is whole.

    Raises:
        OSError: the file cannot be read.
    """
    (length,) = PREFIX.unpack(os.pread(fd, PREFIX_BYTES, position))
    return os.pread(fd, PREFIX_BYTES + length, position)
