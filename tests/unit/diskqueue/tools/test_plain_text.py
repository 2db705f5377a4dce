"""Text of strangers begins no line, drives no terminal, and can be encoded."""

import sys
import unicodedata

import pytest

from diskqueue.tools.plain_text import escape_bytes, escape_text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("Grüße, 世界 \u00a0", "Grüße, 世界 \u00a0"),
        ("a\nb\tc\rd", r"a\nb\tc\rd"),
        ("\x1b[2J\x00\x7f\x9b", r"\x1b[2J\x00\x7f\x9b"),
        ("\u2028\u202e\u2066\u200f\ufeff", r"\u2028\u202e\u2066\u200f\ufeff"),
        ("\udcff", r"\udcff"),
    ],
)
def test_what_could_do_harm_is_escaped(text: str, shown: str) -> None:
    assert escape_text(text) == shown


def test_no_character_that_terminals_obey_gets_through() -> None:
    every = "".join(map(chr, range(sys.maxunicode + 1)))

    shown = escape_text(every)

    shown.encode()
    assert {unicodedata.category(character) for character in shown}.isdisjoint({"Cc", "Cs"})
    assert {unicodedata.bidirectional(character) for character in shown}.isdisjoint(
        {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI", "B"}
    )
    assert len(shown.splitlines()) == 1


def test_bytes_that_are_no_text() -> None:
    assert escape_bytes(b"ok \xff\n") == r"ok \xff\n"


@pytest.mark.parametrize(
    ("first", "last"),
    [
        *((0x7F, 0x9F), (0x61C, 0x61C), (0x200B, 0x200F), (0x2028, 0x202E)),
        *((0x2060, 0x206F), (0xD800, 0xDFFF), (0xFEFF, 0xFEFF)),
    ],
)
def test_neighbours_of_what_could_do_harm_are_shown(first: int, last: int) -> None:
    shown = [
        escape_text(f"{chr(code_point)}\n") == f"{chr(code_point)}\\n"
        for code_point in (first - 1, first, last, last + 1)
    ]

    assert shown == [True, False, False, True]
    assert escape_text(" \n\x1f") == " \\n\\x1f"
