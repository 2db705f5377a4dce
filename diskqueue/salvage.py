"""Records recognised by their shape, where lengths alone do not tell: at damage, and behind it.

A segment has no checksums and no marks to look for, but a message has a shape: a length that fits,
a time of this or the last decades, an id of hex digits (if the queue's ids have these; other
writers may use others), and another record or the end behind it. From that follow

* the records of a damaged file that can be kept (`find_spans`), for `salvage` and for Spark: the
  file as a sequence of spans, kept or lost, that leaves no byte out;
* where the next record starts behind a place that is none (`find_resume`), for a queue's reader;
* that a record whose length leads to such a place has the wrong length itself: one that grew has
  swallowed records which can still be seen in it, one that shrank has left a rest behind
  (`is_length_right`);
* that bytes with the length of a record are none (`find_stranger`).

Two changes stay unseen: a length that grew by exactly the records behind it, and a changed body.
Checksums see both (`checksums`), where a segment has them.
This module has no state and never writes.
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from mmap import mmap
from operator import itemgetter

from diskqueue.envelope import HEADER, HEADER_BYTES
from diskqueue.segment import DEFAULT_MAX_RECORD_BYTES, PREFIX, PREFIX_BYTES

# A length and a header: the least that can be recognised.
START_BYTES = PREFIX_BYTES + HEADER_BYTES

# 2000-01-01 and January 2043: the times that a wall clock in nanoseconds can plausibly have shown.
# Until then the first byte of a time is no printable character, so text is not taken for a record
# that stands behind zeros: blocks that a power cut has left out.
_MIN_TIMESTAMP_NS = 946_684_800 * 10**9
_MAX_TIMESTAMP_NS = 0x20 << 56
# The highest bytes of a time from 2000 to 2200: a record whose length leads to another one deserves
# more trust than bytes that a search has come upon.
_TIME_BYTES = bytes(range(0x0D, 0x65))
# As many of the highest bytes of a time stay the same for three days.
_SAME_TIME_BYTES = 2
_HEX_DIGITS = b"0123456789abcdef"
_HEX_ID = re.compile(rb"[0-9a-f]{16}")
# How many records from the beginning show the shape of the queue's headers.
_SAMPLE_COUNT = 100
# A place found by searching is believed if this many records follow one another from there, or if
# they reach the end of the file. One is enough if its header must have a time and a hex id, and it
# does not begin in a sector that a power cut has left out (`Shape._is_cut_header`).
_CHAIN_COUNT = 3
SECTOR_BYTES = 512
_SKIP_BYTES = 1024 * 1024
# How far to look behind damage, at first and then: records mostly go on nearby.
_SEARCH_BYTES = (256 * 1024, 8 * 1024 * 1024)


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a segment: one record that can be kept, or bytes that cannot."""

    start: int
    end: int
    is_kept: bool
    # A kept record that is followed by damage: its length may be wrong.
    is_doubtful: bool = False


def find_spans(
    data: bytes | mmap, max_record_bytes: int = DEFAULT_MAX_RECORD_BYTES
) -> Iterator[Span]:
    """Cut a segment into the records to keep and the bytes that are lost."""
    shape = Shape(data, max_record_bytes)
    position = 0
    while position < len(data):
        end = shape.find_end(position)
        if end is None:
            resume = shape.find_next(position + 1)
            yield Span(position, resume, is_kept=False)
            position = resume
        elif shape.is_followed(end) and not shape.has_swallowed(position, end):
            yield Span(position, end, is_kept=True)
            position = end
        else:
            # Either this length is wrong, and then the true next record starts inside and leads on
            # past the end; or the record behind is damaged, and this one is good.
            resume = shape.find_next(position + 1, crossing=end)
            is_kept = resume >= end and shape.has_header(position)
            yield Span(position, end if is_kept else resume, is_kept=is_kept, is_doubtful=is_kept)
            position = end if is_kept else resume


class Shape:
    """The look of the records of one segment."""

    def __init__(
        self,
        data: bytes | mmap,
        max_record_bytes: int,
        *,
        base: int = 0,
        is_sampled: bool = True,
    ) -> None:
        """Learn the look from the first records.

        Args:
            base: where in the segment the data begins.
            is_sampled: False takes only those for records that nsqd itself has written.
        """
        self._data = data
        self._base = base
        self._max_record_bytes = max_record_bytes
        self._needs_timestamp = True
        self._needs_hex_id = True
        if not is_sampled:
            self._pattern = self._compile()
            return
        starts = list(islice(self._walk(0), _SAMPLE_COUNT))
        if starts and not self.has_header(starts[0]):
            self._needs_hex_id = False
            if not self.has_header(starts[0]):
                self._needs_timestamp = False
        self._pattern = self._compile()
        if not starts and self.find_next(0) == len(data):
            # The beginning is damaged, and the file has no record that looks like nsqd's own.
            self._needs_hex_id = False
            self._pattern = self._compile()

    def find_end(self, position: int) -> int | None:
        """Return where the record at a position would end, or None if its length is impossible."""
        if position + PREFIX_BYTES > len(self._data):
            return None
        (length,) = PREFIX.unpack_from(self._data, position)
        end: int = position + PREFIX_BYTES + length
        if not HEADER_BYTES <= length <= self._max_record_bytes or end > len(self._data):
            return None
        return end

    def has_header(self, position: int) -> bool:
        """Tell whether the header behind the length looks like the queue's others."""
        if position + START_BYTES > len(self._data):
            return False
        timestamp_ns, _, message_id = HEADER.unpack_from(self._data, position + PREFIX_BYTES)
        if self._needs_timestamp and not _MIN_TIMESTAMP_NS <= timestamp_ns < _MAX_TIMESTAMP_NS:
            return False
        return not self._needs_hex_id or _HEX_ID.fullmatch(message_id) is not None

    def is_followed(self, end: int) -> bool:
        """Tell whether a record, a part of one, or no byte stands behind a record with this end."""
        if end == len(self._data):
            return True
        if self.has_header(end):
            if self.find_end(end) is not None:
                return True
            (length,) = PREFIX.unpack_from(self._data, end)
            return bool(HEADER_BYTES <= length <= self._max_record_bytes)
        return len(self._data) - end < START_BYTES

    def has_swallowed(self, position: int, end: int) -> bool:
        """Tell whether a record that leads into the last bytes of the data holds other records."""
        left = len(self._data) - end
        return 0 < left < START_BYTES and self.find_next(position + 1, crossing=end) < end

    def find_next(self, position: int, crossing: int = 0) -> int:
        """Return the next place where records start, or the end of the data.

        Args:
            crossing: only take a place before this offset whose records lead on beyond it.
        """
        stop = crossing or len(self._data)
        # Places that lead nowhere. The rest of a chain leads where the chain does, and a message
        # may contain a long one: without this set, it would be followed from each of its links.
        dead: set[int] = set()
        for match in self._pattern.finditer(self._data, position):
            if match.start() >= stop:
                break
            if self._is_chain(match.start(), crossing, dead):
                return match.start()
        return stop

    def iter_headers(self) -> Iterator[int]:
        """Yield each place with a length and a header as the queue's others."""
        for match in self._pattern.finditer(self._data):
            if self.has_header(match.start()):
                yield match.start()

    def _is_chain(self, position: int, crossing: int, dead: set[int]) -> bool:
        wanted = 1 if self._needs_hex_id else _CHAIN_COUNT
        starts: list[int] = []
        end = position
        for start in self._walk(position):
            if start in dead:
                dead.update(starts)
                return False
            if not self.has_header(start):
                break
            starts.append(start)
            end = self.find_end(start) or start
            if len(starts) >= wanted and end > crossing:
                return not self._is_cut_header(position) or self.is_followed(end)
        if starts and end == len(self._data):
            return True
        if len(starts) >= wanted:
            # A shorter one may still be the end of another that is long enough.
            dead.update(starts)
        return False

    def _is_cut_header(self, position: int) -> bool:
        """Tell whether a length begins with the last zeros of a sector that may be lost.

        Behind them may be the rest of a header: zeros and a part of a time are a length, too, and
        the id seems to end in the body.
        """
        sector = position + -(self._base + position) % SECTOR_BYTES
        before = self._data[max(position - 1, 0) : sector]
        return position < sector < position + PREFIX_BYTES and not any(before)

    def _walk(self, position: int) -> Iterator[int]:
        end = self.find_end(position)
        while end is not None:
            yield position
            position = end
            end = self.find_end(position)

    def _compile(self) -> re.Pattern[bytes]:
        """Make a pattern that matches, without consuming, wherever a record could start."""
        length = rb"[\x00-" + re.escape(bytes([self._max_record_bytes >> 24])) + rb"].{3}"
        timestamp = rb"[\x0d-\x1f].{7}" if self._needs_timestamp else rb".{8}"
        message_id = rb"[0-9a-f]{16}" if self._needs_hex_id else rb".{16}"
        return re.compile(rb"(?=" + length + timestamp + rb".{2}" + message_id + rb")", re.DOTALL)


def iter_headers(data: bytes, max_record_bytes: int) -> Iterator[int]:
    """Yield each place where a length and a header of nsqd's own stand, whatever follows."""
    shape = Shape(data, max_record_bytes, is_sampled=False)
    return shape.iter_headers()


def find_stranger(data: bytes, starts: Sequence[int]) -> int | None:
    """Return the index of the first record without the time and the id of a message, or None.

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
    """Tell whether the time or the id is one of a message: one of them may be damaged."""
    if len(header) < HEADER_BYTES:
        return False
    return header[0] in _TIME_BYTES or not header[10:26].translate(None, _HEX_DIGITS)


def find_resume(fd: int, position: int, end: int, max_record_bytes: int) -> int | None:
    """Return where records provably go on behind a place that is none, or None if nowhere.

    Args:
        position: where the damage begins.
        end: where the segment's content ends.

    Raises:
        OSError: the file cannot be read.
    """
    position = _skip_zeros(fd, position + 1, end)
    for size in (*_SEARCH_BYTES, end - position):
        data = _read(fd, position, min(size, end - position))
        offset = Shape(data, max_record_bytes, base=position, is_sampled=False).find_next(0)
        if offset < len(data):
            return position + offset
        if size >= end - position:
            break
    return None


def is_length_right(fd: int, start: int, stop: int, end: int, max_record_bytes: int) -> bool:
    """Tell whether to believe the record start..stop although no record stands at `stop`.

    Raises:
        OSError: the file cannot be read.
    """
    data = _read(fd, start, min(stop + _SEARCH_BYTES[-1], end) - start)
    shape = Shape(data, max_record_bytes, base=start, is_sampled=False)
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
    """Tell whether a message about as old as the one at the beginning stands behind it."""
    header = data[size + PREFIX_BYTES : size + START_BYTES]
    if len(header) < HEADER_BYTES:
        return False
    own_time = data[PREFIX_BYTES : PREFIX_BYTES + _SAME_TIME_BYTES]
    return header.startswith(own_time)


def _is_torn(behind: bytes, max_record_bytes: int) -> bool:
    """Tell whether the segment ends in the first bytes of a record."""
    length = int.from_bytes(behind[:PREFIX_BYTES].ljust(PREFIX_BYTES, b"\0"))
    return len(behind) < START_BYTES and length <= max_record_bytes


def is_record_start(data: bytes, left_bytes: int, max_record_bytes: int) -> bool:
    """Tell whether a message starts with these bytes, or the segment ends here.

    Args:
        left_bytes: how many bytes the segment has from here on.
    """
    if left_bytes < START_BYTES:
        return not left_bytes  # the rest of a record that was cut off, or of one that shrank
    (length,) = PREFIX.unpack_from(data)
    if not HEADER_BYTES <= length <= min(max_record_bytes, left_bytes - PREFIX_BYTES):
        return False
    return has_message_shape(data[PREFIX_BYTES:START_BYTES])


def _skip_zeros(fd: int, position: int, end: int) -> int:
    """Return the place before the next byte that is not zero; a hole may fill a segment."""
    start = position
    while position < end:
        data = _read(fd, position, min(_SKIP_BYTES, end - position))
        left = data.lstrip(b"\0")
        if left:
            # The first bytes of a length are zeros too.
            return max(position + len(data) - len(left) - PREFIX_BYTES + 1, start)
        if not data:
            break
        position += len(data)
    return end


def _read(fd: int, position: int, size: int) -> bytes:
    # Not a mapping: there an unreadable block kills the process.
    return os.pread(fd, max(size, 0), position)
