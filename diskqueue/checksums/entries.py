"""The format of checksum files: one entry for each append, or several for a large one.

    offset  size
    0       4     "DQC1"
    4       2     number of records, n
    6       2     0
    8       8     where in the segment the first record begins
    16      4     number of bytes, the length prefixes included
    20      4     CRC32 of the first 14 bytes: length, timestamp in ns and attempts of a message
    24      4     CRC32 of all bytes
    28      4n    the size of each record with its prefix      (both lists only if n is not 1)
    ...     4n    CRC32 of each record with its prefix
    -4      4     CRC32 of the entry, begun with that of the queue's name and the segment's number

An entry with n = 0 has no checksums: it remembers that a start has found these bytes behind the
write position of the metadata, for the starts after it (`recovery`).

Big-endian. One number for all bytes makes reading cheap (0.03 us for a message of 200 bytes). Those
of the records are for the day when it does not fit: then exactly the damaged records are left out,
and a record is found though its length is damaged, or though it stands somewhere else. Adler-32
takes half of the time, but does not see two parts of a repetitive text that have changed places.

An entry proves itself, and that it is of this segment, so damage in a checksum file takes away
entries, and never a record. `iter_entries` goes on behind damage. Nothing here has state.
"""

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import accumulate
from struct import Struct
from typing import NamedTuple

from diskqueue.checksums.crc import crc32

MAGIC = b"DQC1"
# The first bytes of a record, which tell its message from all others.
IDENTITY_BYTES = 14
# An entry is read and checked as a whole: the records of a large append are divided among several.
MAX_RECORDS = 1024
MAX_BYTES = 64 * 1024

_head = Struct(">4sHHQIII")
_crc = Struct(">I")
_prefix = Struct(">i")
HEAD_BYTES = _head.size
_DETAIL_BYTES = 8
MIN_ENTRY_BYTES = HEAD_BYTES + _crc.size
MAX_ENTRY_BYTES = MIN_ENTRY_BYTES + MAX_RECORDS * _DETAIL_BYTES
_PREFIX_BYTES = _prefix.size
_COPY_BYTES = 4096
_ZEROS = bytes(512)
_IS_LITTLE = sys.byteorder == "little"


class Expected(NamedTuple):
    """A record as it was written: where, and its checksum."""

    start: int
    end: int
    crc: int

    @property
    def key(self) -> int:
        """Its size and its checksum in one number."""
        return (self.end - self.start) << 32 | self.crc


class Entry(NamedTuple):
    """The checksums of records that stand back to back in a segment."""

    start: int
    end: int
    identity_crc: int
    crc: int
    details: bytes
    # It has no checksums, but says that no sync is known to have covered the bytes.
    is_doubt: bool = False

    def records(self) -> list[Expected]:
        """Return the records that it is about."""
        if not self.details:
            return [Expected(self.start, self.end, self.crc)]
        numbers = array("I", self.details)
        if _IS_LITTLE:
            numbers.byteswap()
        count = len(numbers) // 2
        bounds = list(accumulate(numbers[:count], initial=self.start))
        return [
            Expected(start, end, crc)
            for start, end, crc in zip(bounds, bounds[1:], numbers[count:], strict=False)
        ]

    def is_about(self, data: bytes) -> bool:
        """Tell whether these bytes are its records, be they damaged.

        Other bytes were written there since: by go-diskqueue, or after a power cut that took the
        records and left the entry. So it says nothing about them.
        """
        if crc32(data[:IDENTITY_BYTES]) == self.identity_crc:
            return True
        # The rest is as it was, if it leads from the one checksum to the other.
        if crc32(memoryview(data)[IDENTITY_BYTES:], self.identity_crc) == self.crc:
            return True
        return any(
            is_record(data[record.start - self.start : record.end - self.start], record)
            for record in self.records()
        )


def is_record(data: bytes, expected: Expected) -> bool:
    """Tell whether these bytes are the record, but perhaps for its length prefix."""
    size = expected.end - expected.start
    if len(data) != size:
        return False
    prefix = _prefix.pack(size - _PREFIX_BYTES)
    return crc32(memoryview(data)[_PREFIX_BYTES:], crc32(prefix)) == expected.crc


def make_key(record: bytes) -> int:
    """Return the key that a record with its prefix has in entries."""
    return len(record) << 32 | crc32(record)


def make_prefix(expected: Expected) -> bytes:
    """Return the length prefix that a record had."""
    return _prefix.pack(expected.end - expected.start - _PREFIX_BYTES)


def make_seed(queue_name: str, number: int) -> int:
    """Return the number by which entries of one segment are told from those of others."""
    return crc32(f"{queue_name}.{number}".encode("utf-8", "surrogateescape"))


def may_look_torn(data: bytes | memoryview) -> bool:
    """Tell whether records, without a checksum, may be taken for a write that a power cut has torn.

    Only such records need their checksums to be delivered after a power cut, if they are durable.
    A sector of zeros is seen within a message, or where the records end.
    """
    return data[-1] == 0 or has_zero_sector(data)


def has_zero_sector_in_python(data: bytes | memoryview) -> bool:
    """Tell whether 512 bytes in a row are 0."""
    return _ZEROS in bytes(data)


def encode_doubt(seed: int, start: int, size: int) -> bytes:
    """Return the entry that no sync is known to have covered some bytes."""
    entry = _head.pack(MAGIC, 0, 0, start, min(size, 0xFFFFFFFF), 0, 0)
    return entry + _crc.pack(crc32(entry, seed))


def encode_in_python(
    seed: int, start: int, data: bytes | memoryview, lengths: Sequence[int]
) -> bytes:
    """Return the entries of records that are appended together.

    Args:
        start: where in the segment they begin.
        data: the records back to back, each with its length prefix.
        lengths: the size of each inside data.
    """
    if len(lengths) == 1:
        identity_crc = crc32(data[:IDENTITY_BYTES])
        crc = crc32(_rest(data), identity_crc)
        entry = _head.pack(MAGIC, 1, 0, start, len(data), identity_crc, crc)
        return entry + _crc.pack(crc32(entry, seed))
    if len(lengths) <= MAX_RECORDS and len(data) <= MAX_BYTES:
        return _encode_many(seed, start, data, lengths)
    ends = list(accumulate(lengths))
    view = memoryview(data)
    entries: list[bytes] = []
    first = position = 0
    while first < len(ends):
        stop = bisect_right(ends, position + MAX_BYTES, first, min(first + MAX_RECORDS, len(ends)))
        stop = max(stop, first + 1)
        end = ends[stop - 1]
        part = view[position:end]
        entries.append(encode_in_python(seed, start + position, part, lengths[first:stop]))
        first, position = stop, end
    return b"".join(entries)


def _rest(data: bytes | memoryview) -> bytes | memoryview:
    """Return the bytes behind the first ones; a copy of a few is made sooner than a view."""
    if len(data) > _COPY_BYTES:
        return memoryview(data)[IDENTITY_BYTES:]
    return data[IDENTITY_BYTES:]


def _encode_many(seed: int, start: int, data: bytes | memoryview, lengths: Sequence[int]) -> bytes:
    identity_crc = crc32(data[:IDENTITY_BYTES])
    crc = crc32(memoryview(data)[IDENTITY_BYTES:], identity_crc)
    # C code cuts the records and computes: half of the time of a loop over slices.
    numbers = array("I", [*lengths, *map(crc32, map(BytesIO(data).read, lengths))])
    if _IS_LITTLE:
        numbers.byteswap()
    head = _head.pack(MAGIC, len(lengths), 0, start, len(data), identity_crc, crc)
    entry = head + numbers.tobytes()
    return entry + _crc.pack(crc32(entry, seed))


try:
    from diskqueue._compiled import encode as encode
    from diskqueue._compiled import has_zero_sector as has_zero_sector
except ImportError:  # it was not built, or isal is missing; then it takes 75 ns a record, not 15
    encode = encode_in_python
    has_zero_sector = has_zero_sector_in_python


def decode(data: bytes, offset: int, seed: int) -> tuple[Entry, int] | None:
    """Return the entry at an offset and where it ends; None if there is no whole one."""
    if len(data) - offset < MIN_ENTRY_BYTES:
        return None
    magic, count, _, start, size, identity_crc, crc = _head.unpack_from(data, offset)
    if magic != MAGIC or count > MAX_RECORDS:
        return None
    details_end = offset + HEAD_BYTES + (count * _DETAIL_BYTES if count > 1 else 0)
    end = details_end + _crc.size
    if end > len(data):
        return None
    (own_crc,) = _crc.unpack_from(data, details_end)
    if crc32(memoryview(data)[offset:details_end], seed) != own_crc:
        return None
    details = data[offset + HEAD_BYTES : details_end]
    entry = Entry(start, start + size, identity_crc, crc, details, not count)
    return entry, end


def move(data: bytes, seed: int, new_seed: int) -> bytes:
    """Return the entries of a segment for a copy of it with another name or number.

    Bytes that are no entry prove nothing about the segment, nor would they about the copy.
    """
    moved: list[bytes] = []
    for start, end, _ in iter_entries(data, seed, is_last=True):
        entry = data[start : end - _crc.size]
        moved += (entry, _crc.pack(crc32(entry, new_seed)))
    return b"".join(moved)


def iter_entries(data: bytes, seed: int, *, is_last: bool) -> Iterator[tuple[int, int, Entry]]:
    """Yield where each entry begins and ends, and the entry; bytes between them are damaged.

    Args:
        is_last: no bytes follow these. Else the last entries may be missing: those that the caller
            has not got all bytes of.
    """
    offset = 0
    while True:
        found = decode(data, offset, seed)
        if found is not None:
            entry, end = found
            yield offset, end, entry
            offset = end
            continue
        if not is_last and len(data) - offset < MAX_ENTRY_BYTES:
            return
        offset = data.find(MAGIC, offset + 1)
        if offset < 0:
            return
