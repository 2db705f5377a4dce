"""The records of a slice that its checksums deny, for the option verifyChecksums.

The checksum file is read whole, and the slice once more: CRC32 is far quicker than Spark. A segment
without a checksum file has no such records.
"""

from diskqueue import layout
from diskqueue.checksums.audit import Denied, iter_denied
from diskqueue.checksums.entries import make_seed
from diskqueue.segment import ReadAt
from spark_jobs.read.files.directory import Directory

REASON = "the checksum is wrong"
# Of a segment of 100 MiB with messages of one byte they are half as large as this.
_MAX_BYTES = 256 * 1024 * 1024


def find_denied(
    directory: Directory, file_name: str, read_at: ReadAt, start: int, end: int
) -> list[Denied]:
    """Find the parts of a segment, or of a `.bad` file, whose records their checksums deny.

    Args:
        read_at: reads the segment.

    Raises:
        OSError: a file cannot be read.
    """
    name = layout.parse_any_segment_name(file_name)
    checksums = directory.read_start(layout.checksum_path(file_name), _MAX_BYTES)
    if name is None or checksums is None:
        return []
    return list(iter_denied(read_at, checksums, make_seed(*name), start, end))
