"""Values of flags."""

import argparse

import pytest

from nsqd.cli import arguments


def test_values_are_read() -> None:
    assert arguments.duration("250ms") == 0.25
    assert arguments.duration("1m30s") == 90
    assert arguments.duration("2.5") == 2.5
    assert arguments.size("1000") == 1000
    assert arguments.size("8m") == 8 << 20
    assert arguments.size("1GB") == 1 << 30
    assert arguments.positive("3") == 3
    assert arguments.delimiter(r"\n") == b"\n"
    assert arguments.delimiter(r"\0\x01") == b"\0\x01"
    assert arguments.delimiter(", ") == b", "
    assert arguments.delimiter("é") == "é".encode()


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (arguments.duration, "soon"),
        (arguments.size, "-1"),
        (arguments.size, "1x"),
        (arguments.positive, "0"),
        (arguments.positive, "-3"),
        (arguments.delimiter, ""),
        (arguments.delimiter, r"\x1"),
    ],
)
def test_what_is_none_is_refused(kind: object, text: str) -> None:
    assert callable(kind)
    with pytest.raises(argparse.ArgumentTypeError):
        kind(text)
