"""JSON objects as Go's encoding/json reads them into a struct."""

import pytest

from nsqd.protocol.go_json import (
    MAX_OBJECT_BYTES,
    decode_fields,
    read_bool,
    read_int32,
    read_int64,
    read_string,
    replace_surrogates,
)

READERS = {"text": read_string, "flag": read_bool, "big": read_int64, "small": read_int32}


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (b"{}", {}),
        (b"null", {}),
        (
            b'{"text":"a","flag":true,"big":1,"small":-1}',
            {"text": "a", "flag": True, "big": 1, "small": -1},
        ),
        (b'{"TeXt":"a"}', {"text": "a"}),
        ('{"\N{LATIN SMALL LETTER LONG S}mall":3}'.encode(), {"small": 3}),
        (b'{"text":"a","text":"b"}', {"text": "b"}),
        (b'{"text":"a","text":null}', {"text": "a"}),
        (b'{"text":null}', {}),
        (b'{"other":{"deep":[1,2.5]}}', {}),
        (b'{"text":"\xff"}', {"text": "\ufffd"}),
        (b'{"text":"\\ud800"}', {"text": "\ufffd"}),
        (b'{"big":9223372036854775807}', {"big": 2**63 - 1}),
        (b'{"big":-9223372036854775808}', {"big": -(2**63)}),
        (b'{"small":2147483647}', {"small": 2**31 - 1}),
        (b'{"other":' + b"9" * 5000 + b"}", {}),
    ],
)
def test_known_fields_are_read(body: bytes, fields: dict[str, object]) -> None:
    assert decode_fields(body, READERS) == fields


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'"text"',
        b"{",
        b'{"text":1}',
        b'{"flag":1}',
        b'{"flag":"true"}',
        b'{"big":true}',
        b'{"big":1.0}',
        b'{"big":9223372036854775808}',
        b'{"big":-9223372036854775809}',
        b'{"small":2147483648}',
        b'{"big":' + b"9" * 5000 + b"}",
        b'{"big":NaN}',
        b'{"other":' + b"[" * 50_000 + b"}",
    ],
)
def test_other_values_are_refused(body: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the callers make their own text of it
        decode_fields(body, READERS)


def test_an_object_has_a_bound() -> None:
    body = b'{"text":"' + b"a" * (MAX_OBJECT_BYTES - 11) + b'"}'
    assert len(body) == MAX_OBJECT_BYTES

    assert len(decode_fields(body, READERS)["text"]) == MAX_OBJECT_BYTES - 11
    with pytest.raises(ValueError, match="JSON of 65537 bytes"):
        decode_fields(body + b" ", READERS)


def test_surrogates_are_replaced() -> None:
    assert replace_surrogates("a\ud800b\udfffc") == "a\ufffdb\ufffdc"
