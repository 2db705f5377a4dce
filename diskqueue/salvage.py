"""Finds the records in a damaged segment, also behind the damage.

A segment has no marks to look for, so a record is recognised by its shape: a length that fits, a
timestamp of this or the last decades, an id of hex digits (if the queue's ids have these; other
writers may use others), and another record or the end behind it. `find_spans` yields the file as a
sequence of spans, kept or lost, that leaves no byte out. Nothing here writes.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from mmap import mmap

from diskqueue.envelope import HEADER, HEADER_BYTES
from diskqueue.segment import DEFAULT_MAX_RECORD_BYTES, PREFIX, PREFIX_BYTES

# 2000-01-01 and January 2043: what a wall clock in nanoseconds can plausibly have shown. Until then
# the first byte of a timestamp is no printable character, so text is not taken for a record that
# stands behind zeros: blocks that a power cut has left out.
_MIN_TIMESTAMP_NS = 946_684_800 * 10**9
_MAX_TIMESTAMP_NS = 0x20 << 56
_HEX_ID = re.compile(rb"[0-9a-f]{16}")
# How many records from the beginning tell what the queue's headers look like.
_SAMPLE_COUNT = 100
# A place found by searching is believed if this many records follow one another from there, or if
# they reach the end of the file. One is enough if its header must have a timestamp and a hex id.
_CHAIN_COUNT = 3
_MIN_STRIDE = PREFIX_BYTES + HEADER_BYTES


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
    """Cuts a segment into the records to keep and the bytes that are lost."""
    shape = Shape(data, max_record_bytes)
    position = 0
    while position < len(data):
        end = shape.find_end(position)
        if end is None:
            resume = shape.find_next(position + 1)
            yield Span(position, resume, is_kept=False)
            position = resume
        elif shape.is_followed(end):
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
    """What the records of one segment look like."""

    def __init__(
        self, data: bytes | mmap, max_record_bytes: int, *, is_sampled: bool = True
    ) -> None:
        """Args: is_sampled: False takes nothing for a record but what nsqd itself has written."""
        self._data = data
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
            # The beginning is damaged and nothing in the file looks like nsqd's own records.
            self._needs_hex_id = False
            self._pattern = self._compile()

    def find_end(self, position: int) -> int | None:
        """Where the record at a position would end, or None if its length cannot be right."""
        if position + PREFIX_BYTES > len(self._data):
            return None
        (length,) = PREFIX.unpack_from(self._data, position)
        end: int = position + PREFIX_BYTES + length
        if not HEADER_BYTES <= length <= self._max_record_bytes or end > len(self._data):
            return None
        return end

    def has_header(self, position: int) -> bool:
        """Whether the header behind the length looks like the queue's others."""
        if position + _MIN_STRIDE > len(self._data):
            return False
        timestamp_ns, _, message_id = HEADER.unpack_from(self._data, position + PREFIX_BYTES)
        if self._needs_timestamp and not _MIN_TIMESTAMP_NS <= timestamp_ns < _MAX_TIMESTAMP_NS:
            return False
        return not self._needs_hex_id or _HEX_ID.fullmatch(message_id) is not None

    def is_followed(self, end: int) -> bool:
        """Whether a record, a part of one, or nothing stands behind a record that ends here."""
        if end == len(self._data):
            return True
        if self.has_header(end):
            if self.find_end(end) is not None:
                return True
            (length,) = PREFIX.unpack_from(self._data, end)
            return bool(HEADER_BYTES <= length <= self._max_record_bytes)
        return len(self._data) - end < _MIN_STRIDE

    def find_next(self, position: int, crossing: int = 0) -> int:
        """The next place where records start, or the end of the data.

        Args:
            crossing: only take a place before this offset whose records lead on beyond it.
        """
        stop = crossing or len(self._data)
        # Places that lead nowhere. The rest of a chain leads where the chain does, and a message
        # may hold a long one: without this, it would be followed from each of its links.
        dead: set[int] = set()
        for match in self._pattern.finditer(self._data, position):
            if match.start() >= stop:
                break
            if self._is_chain(match.start(), crossing, dead):
                return match.start()
        return stop

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
                return True
        if starts and end == len(self._data):
            return True
        if len(starts) >= wanted:
            # A shorter one may still be the end of another that is long enough.
            dead.update(starts)
        return False

    def _walk(self, position: int) -> Iterator[int]:
        end = self.find_end(position)
        while end is not None:
            yield position
            position = end
            end = self.find_end(position)

    def _compile(self) -> re.Pattern[bytes]:
        """Matches, without consuming, wherever a record could start."""
        length = rb"[\x00-" + re.escape(bytes([self._max_record_bytes >> 24])) + rb"].{3}"
        timestamp = rb"[\x0d-\x1f].{7}" if self._needs_timestamp else rb".{8}"
        message_id = rb"[0-9a-f]{16}" if self._needs_hex_id else rb".{16}"
        return re.compile(rb"(?=" + length + timestamp + rb".{2}" + message_id + rb")", re.DOTALL)
