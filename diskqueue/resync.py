"""Goes on behind damage, and doubts the record before it; for queues whose records are messages.

A segment has no checksums, but a message has a shape: a time of this or the last decades and an id
of hex digits (`salvage.Shape`). That tells three things which lengths alone do not:

* where the next record starts behind a place that is none (`find_resume`);
* that a record whose length leads to such a place has the wrong length itself: one that grew has
  swallowed records which can still be seen in it, one that shrank has left a rest behind
  (`is_length_right`);
* that what has the length of a record is none (`find_stranger`).

What can't be told: a length that grew by exactly the records behind it, and a body that changed.
"""

import os
from collections.abc import Sequence
from operator import itemgetter

from diskqueue.envelope import HEADER_BYTES
from diskqueue.salvage import Shape
from diskqueue.segment import PREFIX, PREFIX_BYTES

# A length and a header: what can be recognised.
START_BYTES = PREFIX_BYTES + HEADER_BYTES
_SKIP_BYTES = 1024 * 1024
# Records mostly go on nearby.
_WINDOW_BYTES = (256 * 1024, 8 * 1024 * 1024)
# As many of the highest bytes of a time stay the same for three days.
_SAME_TIME_BYTES = 2
_HEX_DIGITS = b"0123456789abcdef"
# 2000 and 2200, as in salvage: the highest bytes that a time in nanoseconds can have.
_TIME_BYTES = bytes(range(0x0D, 0x65))


def find_stranger(data: bytes, starts: Sequence[int]) -> int | None:
    """The index of the first record that has neither the time nor the id of a message, or None.

    Nearly always all times have the same highest byte, which lasts for two years, and that is one
    comparison for a whole batch.
    """
    tops = bytes(itemgetter(*starts)(data)) if len(starts) > 1 else data[starts[0] : starts[0] + 1]
    if tops[0] in _TIME_BYTES and tops.count(tops[0]) == len(tops):
        return None
    for index, start in enumerate(starts):
        if not has_message_shape(data[start : start + HEADER_BYTES]):
            return index
    return None


def has_message_shape(header: bytes) -> bool:
    """Whether at least the time or the id is one of a message: one of them may be damaged."""
    if len(header) < HEADER_BYTES:
        return False
    return header[0] in _TIME_BYTES or not header[10:26].translate(None, _HEX_DIGITS)


def find_resume(fd: int, position: int, end: int, max_record_bytes: int) -> int | None:
    """Where records provably go on behind a place that is none, or None if nowhere.

    Args:
        position: where the damage begins.
        end: where the segment's content ends.

    Raises:
        OSError: the file cannot be read.
    """
    position = _skip_zeros(fd, position + 1, end)
    for size in (*_WINDOW_BYTES, end - position):
        data = _read(fd, position, min(size, end - position))
        offset = Shape(data, max_record_bytes, is_sampled=False).find_next(0)
        if offset < len(data):
            return position + offset
        if size >= end - position:
            break
    return None


def is_length_right(fd: int, start: int, stop: int, end: int, max_record_bytes: int) -> bool:
    """Whether the record start..stop can be believed although no record stands at `stop`.

    Raises:
        OSError: the file cannot be read.
    """
    data = _read(fd, start, min(stop + _WINDOW_BYTES[-1], end) - start)
    shape = Shape(data, max_record_bytes, is_sampled=False)
    size = stop - start
    if shape.find_next(1, crossing=size) < size:
        return False  # it has swallowed others
    behind = data[size : size + START_BYTES]
    if _is_header_seen(data, size) or not any(behind) or _is_torn(behind, max_record_bytes):
        return True  # the next one is damaged, or has never been written
    # A rest of this one, if a single bit of its length can have left it behind. More bits would
    # cost many a record that is intact, and only has noise behind it.
    changed_bits = (shape.find_next(size) - PREFIX_BYTES) ^ (size - PREFIX_BYTES)
    return changed_bits.bit_count() != 1


def _is_header_seen(data: bytes, size: int) -> bool:
    """Whether a message about as old as the one at the beginning stands behind it."""
    header = data[size + PREFIX_BYTES : size + START_BYTES]
    if len(header) < HEADER_BYTES:
        return False
    own_time = data[PREFIX_BYTES : PREFIX_BYTES + _SAME_TIME_BYTES]
    return header.startswith(own_time)


def _is_torn(behind: bytes, max_record_bytes: int) -> bool:
    """Whether the segment ends in the first bytes of a record."""
    length = int.from_bytes(behind[:PREFIX_BYTES].ljust(PREFIX_BYTES, b"\0"))
    return len(behind) < START_BYTES and length <= max_record_bytes


def is_record_start(data: bytes, left_bytes: int, max_record_bytes: int) -> bool:
    """Whether a message starts with these bytes, in a segment that has so many left; or nothing."""
    if left_bytes < START_BYTES:
        return not left_bytes  # the rest of a record that was cut off, or of one that shrank
    (length,) = PREFIX.unpack_from(data)
    if not HEADER_BYTES <= length <= min(max_record_bytes, left_bytes - PREFIX_BYTES):
        return False
    return has_message_shape(data[PREFIX_BYTES:START_BYTES])


def _skip_zeros(fd: int, position: int, end: int) -> int:
    """The place before the next byte that is not zero; a hole may be as long as a segment."""
    start = position
    while position < end:
        piece = _read(fd, position, min(_SKIP_BYTES, end - position))
        left = piece.lstrip(b"\0")
        if left:
            # The first bytes of a length are zeros too.
            return max(position + len(piece) - len(left) - PREFIX_BYTES + 1, start)
        if not piece:
            break
        position += len(piece)
    return end


def _read(fd: int, position: int, size: int) -> bytes:
    # Not a mapping: there an unreadable block kills the process.
    return os.pread(fd, max(size, 0), position)
