"""The last records of a segment, found by the end of its checksum file.

A segment can be cut into records from a record's start on only, so without checksums its end is
reached by reading all of it. The entries of the checksum file tell where records begin, and stand
in the order of the appends: those of the last records are in its last bytes. For a look at the
newest messages; blocks, and reads a bounded number of bytes. Nothing here has state.
"""

import os
from typing import NamedTuple

from diskqueue import layout
from diskqueue.checksums.crc import crc32
from diskqueue.checksums.entries import (
    MAX_ENTRY_BYTES,
    MIN_ENTRY_BYTES,
    Entry,
    Expected,
    iter_entries,
    make_seed,
)
from diskqueue.segment import PREFIX_BYTES, SegmentState

# Of a checksum file: entries of 2,000 records that came one by one, or of more that came together.
WINDOW_BYTES = 64 * 1024
# How many segments are looked at.
MAX_TAILS = 16


class _Tail(NamedTuple):
    """The last payloads of a segment, and whether none stands before them."""

    payloads: list[bytes]
    is_whole: bool


def read_tails(
    directory: str,
    queue_name: str,
    segment: SegmentState,
    begin: int,
    *,
    max_records: int,
    max_bytes: int,
) -> list[bytes] | None:
    """Return the last payloads of the segments from one on, the last one first.

    At most about max_bytes, of `MAX_TAILS` segments, without a gap: none before damage, nor before
    a record that is too large. None if checksums do not tell where the last record is.

    Args:
        begin: records of the first segment before this position do not count.

    Raises:
        OSError: a file cannot be read.
    """
    segments = [segment]
    while (following := segments[-1].next) is not None:
        segments.append(following)
    payloads: list[bytes] = []
    for each in reversed(segments[-MAX_TAILS:]):
        start = begin if each is segment else 0
        if each.end <= start:
            continue
        if len(payloads) >= max_records or max_bytes <= 0:
            break
        path = layout.segment_path(directory, queue_name, each.number)
        found = _read_tail(
            path,
            queue_name,
            each,
            start,
            max_bytes=max_bytes,
            max_records=max_records - len(payloads),
        )
        if found is None:
            return payloads or None
        payloads += found.payloads
        max_bytes -= sum(map(len, found.payloads))
        if not found.is_whole:
            break
    return payloads


def _read_tail(
    path: str,
    queue_name: str,
    segment: SegmentState,
    begin: int,
    *,
    max_records: int,
    max_bytes: int,
) -> _Tail | None:
    """Return the last payloads of a segment that are not finished, the last one first.

    At most max_bytes are read of the segment, but for a single larger append; none before damage.
    None if no entry tells where the last record begins: go-diskqueue wrote it, checksums were off,
    or it is damaged.

    Args:
        path: of the segment.
        begin: records before this position do not count.

    Raises:
        OSError: a file cannot be read.
    """
    payloads: list[bytes] = []
    end = segment.end
    try:
        entries = _read_last_entries(path, queue_name, segment, max_records)
        with open(path, "rb", buffering=0) as file:
            for entry in reversed(entries):
                if entry.end > segment.end:
                    continue  # of records that a thread is writing
                if entry.end != end or entry.is_doubt or len(payloads) >= max_records:
                    break
                wanted = [each for each in entry.records() if _is_wanted(each, segment, begin)]
                if wanted:
                    size = entry.end - entry.start
                    if payloads and size > max_bytes:
                        break
                    max_bytes -= size
                    data = os.pread(file.fileno(), size, entry.start)
                    if crc32(data) != entry.crc:
                        break
                    payloads += [
                        data[each.start - entry.start + PREFIX_BYTES : each.end - entry.start]
                        for each in reversed(wanted)
                    ]
                end = entry.start
    except FileNotFoundError:
        return None
    return None if end == segment.end else _Tail(payloads[:max_records], end <= begin)


def _is_wanted(record: Expected, segment: SegmentState, begin: int) -> bool:
    return record.start >= begin and record.start not in segment.finished


def _read_last_entries(
    path: str, queue_name: str, segment: SegmentState, max_records: int
) -> list[Entry]:
    """Return the entries at the end of a checksum file, in their order."""
    seed = make_seed(queue_name, segment.number)
    # Room for so many entries of one record, behind one that is cut off and one that is long; more
    # only if that is not enough, as behind entries of records that are being written.
    few_bytes = 2 * MAX_ENTRY_BYTES + max_records * MIN_ENTRY_BYTES
    entries: list[Entry] = []
    with open(layout.checksum_path(path), "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        for window_bytes in (min(few_bytes, WINDOW_BYTES), WINDOW_BYTES):
            data = os.pread(file.fileno(), window_bytes, max(size - window_bytes, 0))
            entries = [entry for _, _, entry in iter_entries(data, seed, is_last=True)]
            if any(entry.end == segment.end for entry in entries):
                break
    return entries
