"""Bytes of a terminal as keys."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqd.cli.watch.keys import read_keys


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"q", ["q"]),
        (b"\x1b[A\x1b[Bjk", ["up", "down", "j", "k"]),
        (b"\x1bOA", ["up"]),
        (b"\x1b", ["escape"]),
        (b"\x1b[15~s", ["s"]),  # F5 is nothing here
        (b"\r\x7f\x03", ["enter", "backspace", "ctrl-c"]),
        ("ä/".encode(), ["ä", "/"]),
        (b"\x00\xff\x01y", ["y"]),
    ],
)
def test_keys(data: bytes, keys: list[str]) -> None:
    assert list(read_keys(data)) == keys


@given(st.binary(max_size=50))
def test_any_bytes_are_read(data: bytes) -> None:
    assert all(len(key) == 1 or key.isascii() for key in read_keys(data))
