import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqd.protocol.names import (
    decode_name,
    is_ephemeral,
    is_valid_channel_name,
    is_valid_topic_name,
)

VALID = [
    "a",
    ".",
    "..",
    "-",
    "_",
    "0",
    "orders.v2_EU-1",
    "x" * 64,
    "orders#ephemeral",
    "x" * 54 + "#ephemeral",
]
INVALID = [
    "",
    "x" * 65,
    "x" * 55 + "#ephemeral",
    "#ephemeral",
    "a#eph",
    "a#ephemeral#ephemeral",
    "a#ephemeralx",
    "a#EPHEMERAL",
    "a b",
    "a\tb",
    "a\n",
    "a#ephemeral\n",
    "a/b",
    "a:b",
    "*",
    "é",
    "\N{FULLWIDTH LATIN SMALL LETTER A}",
    "٣",
    "a\x00",
]


@pytest.mark.parametrize("name", VALID)
def test_valid_names_are_accepted(name: str) -> None:
    # W-130, W-131
    assert is_valid_topic_name(name)
    assert is_valid_channel_name(name)
    assert decode_name(name.encode()) == name


@pytest.mark.parametrize("name", INVALID)
def test_invalid_names_are_refused(name: str) -> None:
    # W-130, W-131
    assert not is_valid_topic_name(name)
    assert not is_valid_channel_name(name)
    assert decode_name(name.encode()) is None


def test_bytes_that_are_no_text_are_no_name() -> None:
    assert decode_name(b"a\xff") is None


def test_only_the_suffix_makes_a_name_ephemeral() -> None:
    assert is_ephemeral("orders#ephemeral")
    assert not is_ephemeral("orders")
    assert not is_ephemeral("#ephemeral.orders")


@given(st.text(alphabet=".-_aZ9#ephmral\n é", max_size=80))
def test_text_and_bytes_agree_with_the_documented_rule(name: str) -> None:
    documented = re.match(r"^[.a-zA-Z0-9_-]+(#ephemeral)?\Z", name) is not None
    expected = documented and 1 <= len(name.encode()) <= 64

    assert is_valid_topic_name(name) is expected
    assert (decode_name(name.encode()) is not None) is expected


@given(st.binary(max_size=80))
def test_any_bytes_decode_or_are_refused(raw: bytes) -> None:
    name = decode_name(raw)

    assert name is None or (name.encode() == raw and is_valid_channel_name(name))
