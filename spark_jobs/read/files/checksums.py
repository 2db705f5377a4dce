"""What checksum files say about slices of segments, for the option verifyChecksums.

A checksum file is read whole, and its slice once more than without: CRC32 is far quicker than
Spark. A segment without a checksum file is taken as it is.
"""

from bisect import bisect_left
from dataclasses import dataclass, field

from diskqueue import layout
from diskqueue.checksums.audit import Denied, Piece, iter_pieces
from diskqueue.checksums.entries import make_seed
from diskqueue.checksums.marks import have_same_mark
from diskqueue.segment import PREFIX, PREFIX_BYTES, ReadAt
from spark_jobs.read.files.directory import Directory
from spark_jobs.read.fleet.options import FleetOptions
from spark_jobs.read.fleet.remote_file import read_checksums

REASON = "the checksum is wrong"
# Of a segment of 100 MiB with messages of one byte they are half as large as this.
MAX_CHECKSUM_BYTES = 256 * 1024 * 1024


@dataclass(slots=True)
class Findings:
    """What is wrong with a slice."""

    # Parts whose records are not read.
    denied: list[Denied] = field(default_factory=list)
    # Lengths that are wrong in the file, of records that are right: where, and what they were.
    lengths: list[tuple[int, bytes]] = field(default_factory=list)

    def repair(self, view: memoryview, position: int) -> None:
        """Put the lengths right in bytes that were read at a position."""
        end = position + len(view)
        first = bisect_left(self.lengths, (position - PREFIX_BYTES + 1,))
        for offset, prefix in self.lengths[first:]:
            if offset >= end:
                break
            # A window may begin or end within a length.
            start, stop = max(offset, position), min(offset + PREFIX_BYTES, end)
            view[start - position : stop - position] = prefix[start - offset : stop - offset]


NOTHING_WRONG = Findings()


@dataclass(frozen=True, slots=True)
class Checksums:
    """The checksum file of one segment."""

    content: bytes
    seed: int
    # It is known to be that of the segment, though none of its checksums may be right any more.
    is_marked: bool

    def compare(self, read_at: ReadAt, start: int, end: int) -> Findings:
        """Compare a part of the segment, from record to record.

        Raises:
            OSError: the segment cannot be read.
        """
        findings = Findings()
        read_once = _Forward(read_at).read_at
        for piece in iter_pieces(
            read_once, self.content, self.seed, start, end, is_marked=self.is_marked
        ):
            if piece.denied_count:
                findings.denied.append(Denied(piece.start, piece.end, piece.denied_count))
            elif piece.repaired_count:
                original = read_at(len(piece.data), piece.start)
                findings.lengths += _find_repairs(piece, original)
        return findings


def find_checksums(directory: Directory, file_name: str) -> Checksums | None:
    """Return the checksums of a segment, or of a `.bad` file; None if it has none.

    Raises:
        OSError: the file cannot be read.
    """
    name = layout.parse_any_segment_name(file_name)
    if name is None:
        return None
    content = directory.read_start(layout.checksum_path(file_name), MAX_CHECKSUM_BYTES)
    if content is None:
        return None
    path = directory.find_local_path()
    is_marked = path is not None and have_same_mark(
        f"{path}/{file_name}", f"{path}/{layout.checksum_path(file_name)}"
    )
    return Checksums(content, make_seed(*name), is_marked)


def fetch_checksums(
    url: str, file_name: str, query: dict[str, str], options: FleetOptions
) -> Checksums | None:
    """Return the checksums of a segment of a node; None if it has none, or is a part of memory.

    Raises:
        NodeError: the node cannot be reached, or refuses.
    """
    name = layout.parse_segment_name(file_name)
    if name is None:
        return None
    found = read_checksums(url, layout.checksum_path(file_name), query, MAX_CHECKSUM_BYTES, options)
    return None if found is None else Checksums(found[0], make_seed(*name), found[1])


class _Forward:
    """Reads from front to back: bytes that are asked for again are not fetched again."""

    def __init__(self, read_at: ReadAt) -> None:
        self._read_at = read_at
        self._start = 0
        self._data = b""

    def read_at(self, size: int, offset: int) -> bytes:
        skip = offset - self._start
        if not 0 <= skip <= len(self._data):
            if self._data:
                return self._read_at(size, offset)  # a sample from elsewhere
            skip = 0
        data = self._data[skip:]
        if len(data) < size:
            data += self._read_at(size - len(data), offset + len(data))
        self._start, self._data = offset, data
        return data[:size]


def _find_repairs(piece: Piece, original: bytes) -> list[tuple[int, bytes]]:
    """Return the lengths of a piece that are not those in the file."""
    repairs = []
    position = 0
    while position < len(piece.data):
        prefix = piece.data[position : position + PREFIX_BYTES]
        if original[position : position + PREFIX_BYTES] != prefix:
            repairs.append((piece.start + position, prefix))
        position += PREFIX_BYTES + PREFIX.unpack(prefix)[0]
    return repairs
