"""SegmentChecks: which bytes of a segment can be believed, by the entries of its checksum file.

Each place of a segment is one of these:

* *covered* by an entry: a record is good if its checksum is right, and denied if not. A denied
  record is never delivered; its length need not be right, and is repaired from the entry;
* *moved*: no record is right at its place, but this one is, to the last byte, another record of the
  same segment, as behind bytes that were inserted;
* *uncovered*: no entry is about it. go-diskqueue has written there, or checksums were off, or the
  checksum file is damaged. Its records are judged by their shape alone, as without checksums, and
  none reaches into a covered place.

A checksum file none of whose entries is about the bytes in the segment (`Entry.is_about`), and that
has not the segment's mark (`marks`), is of another segment, which had the same name: it says
nothing. go-diskqueue leaves such files when a topic is deleted and made again.

Entries stand in the order of the appends, so mostly the next one is about the next bytes, and one
comparison clears tens of records. Anything else makes the whole checksum file be read
(`_load_all`).

One reader of a queue owns a `SegmentChecks`, for the segment it stands in.
"""

import bisect
from collections import deque
from collections.abc import Callable
from itertools import takewhile
from typing import NamedTuple

from diskqueue import salvage
from diskqueue.checksums.crc import crc32
from diskqueue.checksums.entries import (
    MAX_ENTRY_BYTES,
    Entry,
    Expected,
    is_record,
    iter_entries,
    make_key,
    make_prefix,
)
from diskqueue.salvage import SECTOR_BYTES
from diskqueue.segment import PREFIX, PREFIX_BYTES, ReadAt

_READ_BYTES = 64 * 1024
# So many entries are compared with a segment, to tell whether they are about it.
_MAX_SAMPLES = 256
# How far to look for records that have moved, if no entry tells where the next ones begin.
_SEARCH_BYTES = 8 * 1024 * 1024
# So many zeros may stand beside a lost sector by chance.
_MAX_CHANCE_ZEROS = 8
# Without an end: no place of a segment is behind it.
NOWHERE = 1 << 63


class Clearance(NamedTuple):
    """How far records can be delivered from the beginning of some bytes of a segment."""

    # Where the judged part ends.
    end: int
    # The bytes with the lengths of good records repaired.
    data: bytes
    is_covered: bool
    # Of an uncovered place: no record may reach beyond this.
    piece_end: int = NOWHERE
    # So many bytes are needed from there to tell anything; 0 if these are enough.
    needed_bytes: int = 0
    # How many lengths were repaired.
    repaired_count: int = 0


class Denial(NamedTuple):
    """A place where no record is good."""

    # Where to go on, and how many records there were before that.
    resume: int
    record_count: int


class SegmentChecks:
    """The entries of one checksum file from the reader's position on."""

    def __init__(
        self,
        read_checks: ReadAt,
        read_segment: ReadAt,
        seed: int,
        max_record_bytes: int,
        *,
        have_same_mark: Callable[[], bool] = lambda: False,
        position: int = 0,
        size_bytes: int = 0,
    ) -> None:
        """Args:
        read_checks: reads the checksum file.
        read_segment: reads the segment.
        have_same_mark: tells whether the two files were made together.
        position: where in the segment to begin.
        size_bytes: of the checksum file, to find the place of `position` in it.
        """
        self._read_checks = read_checks
        self._read_segment = read_segment
        self._have_same_mark = have_same_mark
        self._seed = seed
        self._max_record_bytes = max_record_bytes
        self._pending: deque[Entry] = deque()
        # The places that no sync is known to have covered, as far as the file has been read.
        self.doubts: list[tuple[int, int]] = []
        self._is_loaded = False
        # The file has an entry that is about the bytes in the segment; None if that is unknown.
        self._is_proven: bool | None = None
        # Sizes and checksums of all records, once one was not found at its place.
        self._known: set[int] | None = None
        # A record was found at another place than its own.
        self._has_moved = False
        self._offset = self._find_offset(position, size_bytes) if position else 0
        self._first_offset = self._offset

    def clear(self, data: bytes, base: int, *, is_whole: bool) -> Clearance | Denial:
        """Tell how far the records in `data`, which was read at `base`, are good.

        Args:
            is_whole: there is nothing to read behind these bytes, or nothing that may be read.

        Raises:
            OSError: the segment cannot be read.
        """
        position = base
        end = base + len(data)
        with memoryview(data) as view:
            while position < end:
                first = self._find_first(position)
                if first is None or first.start != position or first.end > end:
                    break
                if crc32(view[position - base : first.end - base]) != first.crc:
                    break
                position = first.end
        if position > base:
            self._is_proven = True
            return Clearance(position, data, is_covered=True)
        return self._inquire(data, base, is_whole=is_whole)

    def _inquire(self, data: bytes, base: int, *, is_whole: bool) -> Clearance | Denial:
        """Judge bytes whose next entry does not fit."""
        first = self._find_first(base)
        if first is not None and first.start <= base:
            size = first.end - base
            if size > len(data) and not is_whole:
                return Clearance(base, data, is_covered=True, needed_bytes=size)
            found = self._take_good(first, data, base)
            if found is not None:
                return found
        if first is None and not self._has_moved:
            return Clearance(base + len(data), data, is_covered=False)
        self._load_all()
        if not self._is_of_segment():
            return Clearance(base + len(data), data, is_covered=False)
        covering = self._find_covering(base)
        for entry in covering:
            found = self._take_good(entry, data, base)
            if found is not None:
                return found
        found = self._take_moved(data, base)
        if found is not None:
            return found
        if covering or self._has_moved:
            return self._deny(covering, base)
        piece_end = self._find_next_covered(base)
        return Clearance(min(base + len(data), piece_end), data, False, piece_end)

    def is_of_segment(self) -> bool:
        """Tell whether the checksum file is that of the segment; so it is if it has no entry.

        Raises:
            OSError: the segment cannot be read.
        """
        first = self._find_first(0)
        if first is None:
            return True
        if first.is_about(self._read_segment(first.end - first.start, first.start)):
            return True
        if self._have_same_mark():
            return True
        self._load_all()
        return self._is_of_segment()

    def find_next_covered(self, position: int) -> int | None:
        """Return where the next records begin that entries are about, None if nowhere.

        Raises:
            OSError: the segment cannot be read.
        """
        if self._find_first(position) is None:
            return None
        self._load_all()
        if not self._is_of_segment():
            return None
        found = self._find_next_covered(position)
        return None if found == NOWHERE else found

    # --- the entries in the order of the file

    def _find_first(self, position: int) -> Entry | None:
        """Return the first entry in the file that ends behind a position."""
        pending = self._pending
        while True:
            while pending:
                entry = pending[0]
                if entry.end > position:
                    return entry
                pending.popleft()
            if not self._parse_more():
                return None

    def _parse_more(self) -> bool:
        """Parse more entries; return whether there were any."""
        while True:
            data = self._read_checks(_READ_BYTES, self._offset)
            is_last = len(data) < _READ_BYTES
            found = list(iter_entries(data, self._seed, is_last=is_last))
            if found:
                self._pending.extend(entry for *_, entry in found if not entry.is_doubt)
                self.doubts += [entry[:2] for *_, entry in found if entry.is_doubt]
                self._offset += found[-1][1]
                return True
            if is_last:
                return False
            self._offset += len(data) - MAX_ENTRY_BYTES

    def _load_all(self) -> None:
        """Put all entries in the order of the segment; entries that follow later are behind it."""
        if self._is_loaded:
            return
        self._is_loaded = True
        self._pending.clear()
        self._offset = self._first_offset
        while self._parse_more():
            pass
        self._pending = deque(sorted(self._pending, key=lambda each: each.start))

    def _find_offset(self, position: int, size_bytes: int) -> int:
        """Return an offset before the entries from a position on, not far from them."""
        low, high = 0, size_bytes
        while high - low > _READ_BYTES:
            middle = (low + high) // 2
            data = self._read_checks(_READ_BYTES, middle)
            found = next(iter_entries(data, self._seed, is_last=True), None)
            if found is not None and found[2].start <= position and middle + found[0] < high:
                low = middle + found[0]
            else:
                high = middle
        return low

    # --- entries that do not fit

    def _is_of_segment(self) -> bool:
        """Tell whether the checksum file is that of this segment."""
        if self._is_proven is None:
            entries = list(self._pending)
            step = -(-len(entries) // _MAX_SAMPLES) or 1
            self._is_proven = self._have_same_mark() or any(
                each.is_about(self._read_segment(each.end - each.start, each.start))
                for each in entries[::step]
            )
            if not self._is_proven:
                self._remember()
                self._is_proven = self._find_moved(0, NOWHERE) is not None
        return self._is_proven

    def _find_covering(self, position: int) -> list[Entry]:
        """Return the entries about a position, the newest first."""
        pending = self._pending
        while pending and pending[0].end <= position:
            pending.popleft()
        covering = [
            each
            for each in takewhile(lambda each: each.start <= position, pending)
            if each.end > position
        ]
        return covering[::-1]

    def _find_next_covered(self, position: int) -> int:
        return next((each.start for each in self._pending if each.start > position), NOWHERE)

    def _remember(self) -> None:
        """Know all records from now on: one was not found at its place."""
        if self._known is None:
            self._known = set()
            position = self._first_offset
            # Those that the reader has passed, too.
            while True:
                data = self._read_checks(_READ_BYTES, position)
                is_last = len(data) < _READ_BYTES
                found = list(iter_entries(data, self._seed, is_last=is_last))
                for *_, entry in found:
                    if entry.is_doubt:
                        continue
                    self._known.update(record.key for record in entry.records())
                if is_last:
                    return
                position += found[-1][1] if found else len(data) - MAX_ENTRY_BYTES

    def _take_good(self, entry: Entry, data: bytes, base: int) -> Clearance | None:
        """Return the good records of an entry from `base` on, None if there is none."""
        records = entry.records()
        index = _find_index(records, base)
        if index == len(records) or records[index].start != base:
            return None
        end = base
        repairs: list[Expected] = []
        for record in records[index:]:
            content = data[record.start - base : record.end - base]
            if not is_record(content, record):
                break
            if not content.startswith(make_prefix(record)):
                repairs.append(record)
            end = record.end
        if end == base:
            return None
        return Clearance(
            end, _repair(data, base, repairs), is_covered=True, repaired_count=len(repairs)
        )

    def _take_moved(self, data: bytes, base: int) -> Clearance | None:
        """Return records that belong to another place of the segment, None if there are none."""
        if self._known is None:
            return None
        # Not over the beginning of one that is good at its place.
        stop = self._find_good_start(base, base + len(data)) - base
        position = 0
        while (size := _find_size(data, position)) is not None and position + size <= stop:
            record = data[position : position + size]
            if make_key(record) not in self._known:
                break
            position += size
        if not position:
            return None
        self._has_moved = True
        return Clearance(base + position, data, is_covered=True)

    def _find_good_start(self, position: int, stop: int) -> int:
        """Return where the next record begins that is good at its place, NOWHERE if before `stop`
        there is none."""
        for entry in takewhile(lambda each: each.start < stop, self._pending):
            if entry.end <= position:
                continue
            data = self._read_segment(entry.end - entry.start, entry.start)
            for record in entry.records():
                content = data[record.start - entry.start : record.end - entry.start]
                if record.start > position and is_record(content, record):
                    return record.start
        return NOWHERE

    def _deny(self, covering: list[Entry], base: int) -> Denial:
        """Find where to go on behind a record that is not good."""
        self._remember()
        stop = min((entry.end for entry in covering), default=self._find_next_covered(base))
        good = self._find_good_start(base, stop + 1)
        resume = min(stop, good)
        moved = self._find_moved(base + 1, resume, good)
        if moved is not None:
            resume = moved
        count = sum(
            base <= record.start < resume for entry in covering[:1] for record in entry.records()
        )
        return Denial(resume, max(count, 1))

    def _find_moved(self, start: int, stop: int, limit: int = NOWHERE) -> int | None:
        """Return where a record of another place of the segment stands, None if there is none.

        Args:
            stop: it begins before this.
            limit: it ends before this.
        """
        assert self._known is not None
        size = min(stop - start, _SEARCH_BYTES) + salvage.START_BYTES
        data = self._read_segment(size, start)
        for offset in salvage.iter_headers(data, self._max_record_bytes):
            if start + offset >= stop:
                return None
            (length,) = PREFIX.unpack_from(data, offset)
            record = self._read_segment(PREFIX_BYTES + length, start + offset)
            if start + offset + len(record) > limit:
                continue
            if make_key(record) in self._known:
                return start + offset
        return None


def _find_index(records: list[Expected], position: int) -> int:
    """Return the index of the first record that does not begin before a position."""
    return bisect.bisect_left(records, position, key=lambda record: record.start)


def _find_size(data: bytes, position: int) -> int | None:
    """Return the size of the record at a position by its length; None if it is not all there."""
    if position + PREFIX_BYTES > len(data):
        return None
    (length,) = PREFIX.unpack_from(data, position)
    size: int = PREFIX_BYTES + length
    return size if length >= 0 and position + size <= len(data) else None


def _repair(data: bytes, base: int, records: list[Expected]) -> bytes:
    if not records:
        return data
    content = bytearray(data)
    for record in records:
        start = record.start - base
        content[start : start + PREFIX_BYTES] = make_prefix(record)
    return bytes(content)


def find_torn(data: bytes, base: int) -> int | None:
    """Return where a file seems to have lost a sector, None if nowhere.

    A power cut that tears a write leaves sectors of zeros between others, so that zeros begin or
    end where a sector does. Zeros that a message has itself begin and end anywhere.

    Args:
        data: bytes of the file from `base` on, to the end of a sector or of the file.
    """
    end = base + len(data)
    position = base
    while position < end:
        stop = min(position + SECTOR_BYTES - position % SECTOR_BYTES, end)
        if data.count(0, position - base, stop - base) < stop - position:
            position = stop
            continue
        # Only the rest of a sector, as at the beginning: what stands before is of another write.
        run_start = base + len(data[: position - base].rstrip(b"\0"))
        run_end = end - len(data[position - base :].lstrip(b"\0"))
        last_sector = run_end - run_end % SECTOR_BYTES
        is_at_sector = position - run_start <= _MAX_CHANCE_ZEROS or (
            run_end < end and run_end - last_sector <= _MAX_CHANCE_ZEROS
        )
        # The first bytes of a length are zeros in any case.
        is_length = position == base and run_end - base < PREFIX_BYTES
        if is_at_sector and not is_length:
            return position
        position = max(run_end, stop)
    return None
