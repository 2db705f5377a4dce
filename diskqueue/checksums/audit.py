"""A walk through a segment with its checksums: records denied, without one, damaged.

For `python -m diskqueue`, which has the files before it, and for Spark, which reads them anywhere.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from diskqueue import layout
from diskqueue.checksums.checks import Denial, SegmentChecks
from diskqueue.checksums.entries import iter_entries, make_seed
from diskqueue.checksums.marks import have_same_mark
from diskqueue.segment import DEFAULT_MAX_RECORD_BYTES, ReadAt

_READ_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Denied:
    """Bytes of a segment whose records are not delivered."""

    start: int
    end: int
    record_count: int


@dataclass(slots=True)
class Audit:
    """The verdict of the checksums on a segment."""

    denied: list[Denied] = field(default_factory=list)
    # Lengths that are wrong, of records that are right.
    repaired_count: int = 0
    # Bytes of the segment that no checksum is about.
    uncovered: list[tuple[int, int]] = field(default_factory=list)
    # Bytes of the checksum file that are no entry: before the last one, and behind it.
    garbage_bytes: int = 0
    tail_bytes: int = 0
    # Entries about places that an earlier one is about too.
    repeated_count: int = 0
    # How far entries reach beyond the end of the segment.
    missing_bytes: int = 0
    has_file: bool = False
    # The file has entries, and none of them is about this segment.
    is_foreign: bool = False

    @property
    def uncovered_bytes(self) -> int:
        """How many bytes have no checksum."""
        return sum(end - start for start, end in self.uncovered)


def audit(
    segment_path: str, start: int = 0, end: int | None = None, seed: int | None = None
) -> Audit:
    """Compare a segment, or a `.bad` file, with its checksums.

    Args:
        start, end: the part to look at, from record to record; the whole file if not given.
        seed: of the checksums, if the name of the file does not tell whose it is.

    Raises:
        OSError: the segment cannot be read.
    """
    result = Audit()
    fd = os.open(segment_path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        end = os.fstat(fd).st_size if end is None else min(end, os.fstat(fd).st_size)
        checksums = read_checksums(layout.checksum_path(segment_path))
        if checksums is None:
            result.uncovered.append((start, end))
            return result
        result.has_file = True
        name = layout.parse_any_segment_name(os.path.basename(segment_path))
        if seed is None and name is not None:
            seed = make_seed(*name)
        entries = list(iter_entries(checksums, seed or 0, is_last=True))
        last = entries[-1][1] if entries else 0
        result.garbage_bytes = last - sum(stop - begin for begin, stop, _ in entries)
        result.tail_bytes = len(checksums) - last
        starts = [entry.start for *_, entry in entries if not entry.is_doubt]
        result.repeated_count = len(starts) - len(set(starts))
        size = os.fstat(fd).st_size
        result.missing_bytes = max(0, max((entry.end for *_, entry in entries), default=0) - size)
        is_marked = have_same_mark(fd, layout.checksum_path(segment_path))
        read_at = partial(os.pread, fd)
        for piece in iter_pieces(read_at, checksums, seed or 0, start, end, is_marked=is_marked):
            _add(result, piece)
        result.is_foreign = bool(starts) and result.uncovered == [(start, end)] and start < end
    finally:
        os.close(fd)
    return result


def read_checksums(path: str) -> bytes | None:
    """Return the content of a checksum file, None if there is none."""
    try:
        if layout.find_size(path) is None:
            return None
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a segment that checksums say one thing about."""

    start: int
    end: int
    # The bytes with the lengths repaired; none if they are denied.
    data: bytes
    is_covered: bool
    # How many records there were, if they are denied.
    denied_count: int = 0
    repaired_count: int = 0


def iter_denied(
    read_segment: ReadAt,
    checksums: bytes,
    seed: int,
    start: int,
    end: int,
    *,
    is_marked: bool = False,
) -> Iterator[Denied]:
    """Yield the parts of a segment whose records its checksums deny.

    Args:
        checksums: the content of the checksum file.
        is_marked: the two files are known to belong together.

    Raises:
        OSError: the segment cannot be read.
    """
    for piece in iter_pieces(read_segment, checksums, seed, start, end, is_marked=is_marked):
        if piece.denied_count:
            yield Denied(piece.start, piece.end, piece.denied_count)


def iter_pieces(
    read_segment: ReadAt,
    checksums: bytes,
    seed: int,
    start: int,
    end: int,
    *,
    is_marked: bool = False,
) -> Iterator[Piece]:
    """Cut a part of a segment into pieces, of which none is large, and none is left out.

    Args:
        is_marked: the two files are known to belong together.

    Raises:
        OSError: the segment cannot be read.
    """

    def read_checks(size: int, offset: int) -> bytes:
        return checksums[offset : offset + size]

    checks = SegmentChecks(
        *(read_checks, read_segment, seed, DEFAULT_MAX_RECORD_BYTES),
        have_same_mark=lambda: is_marked,
    )
    position = start
    size = _READ_BYTES
    while position < end:
        data = read_segment(min(size, end - position), position)
        if not data:
            return
        found = checks.clear(data, position, is_whole=position + len(data) >= end)
        if isinstance(found, Denial):
            stop = min(found.resume, end)
            yield Piece(position, stop, b"", is_covered=True, denied_count=found.record_count)
        elif found.needed_bytes:
            size = found.needed_bytes
            continue
        else:
            stop = found.end
            content = found.data[: stop - position]
            yield Piece(
                *(position, stop, content, found.is_covered), repaired_count=found.repaired_count
            )
        size = _READ_BYTES
        position = stop


def _add(result: Audit, piece: Piece) -> None:
    if piece.denied_count:
        result.denied.append(Denied(piece.start, piece.end, piece.denied_count))
    elif not piece.is_covered:
        if result.uncovered and result.uncovered[-1][1] == piece.start:
            result.uncovered[-1] = (result.uncovered[-1][0], piece.end)
        else:
            result.uncovered.append((piece.start, piece.end))
    result.repaired_count += piece.repaired_count
