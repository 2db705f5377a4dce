"""The CRC32 of records is that of zlib, whoever computes it."""

import importlib
import random
import sys
import zlib

import pytest

from diskqueue.checksums import crc


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
