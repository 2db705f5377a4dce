"""The CRC32 of records is that of zlib, whoever computes it."""

import importlib
import random
import shutil
import sys
import zlib
from collections.abc import Callable
from struct import pack
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskqueue.checksums import crc

Checksums: TypeAlias = Callable[[bytes | memoryview, list[int]], bytes]


def test_it_gives_the_numbers_of_zlib() -> None:
    dice = random.Random(1)
    for size in (0, 1, 13, 14, 15, 63, 230, 4096, 65_537):
        data = dice.randbytes(size)
        for seed in (0, 1, 0xFFFFFFFF, dice.getrandbits(32)):
            assert crc.crc32(data, seed) == zlib.crc32(data, seed)
            assert crc.crc32(memoryview(data)[1:], seed) == zlib.crc32(data[1:], seed)


def test_without_isal_zlib_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isal", None)
    monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    try:
        assert importlib.reload(crc).crc32 is zlib.crc32
    finally:
        monkeypatch.undo()
        importlib.reload(crc)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_the_loop_over_records_is_compiled() -> None:
    assert crc.checksum_records is not crc.checksum_records_in_python


@pytest.mark.parametrize("checksum_records", [crc.checksum_records, crc.checksum_records_in_python])
@given(
    records=st.lists(st.binary(min_size=1, max_size=300), max_size=40),
    buffer_type=st.sampled_from([bytes, memoryview]),
)
def test_the_sizes_of_records_come_before_their_checksums(
    checksum_records: Checksums, records: list[bytes], buffer_type: type[bytes] | type[memoryview]
) -> None:
    data = buffer_type(b"".join(records))
    lengths = [len(record) for record in records]
    numbers = [*lengths, *map(zlib.crc32, records)]

    found = checksum_records(data, lengths)

    assert found == b"".join(pack(">I", number) for number in numbers)


@pytest.mark.parametrize("lengths", [[4], [1, 3], [0, 3], [-1]])
def test_the_compiled_loop_reads_no_byte_beyond_the_records(lengths: list[int]) -> None:
    compiled = pytest.importorskip("diskqueue._compiled")

    with pytest.raises(ValueError, match="lengths"):
        compiled.checksum_records(b"abc", lengths)
