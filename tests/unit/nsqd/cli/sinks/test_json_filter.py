"""Which JSON messages pass, and which of their fields: the table of Go's nsq_to_nsq."""

import pytest

from nsqd.cli.sinks.json_filter import JsonFilter, MissingFieldError, NotJsonError


@pytest.mark.parametrize(
    ("field", "value", "body", "passes"),
    [
        ("a", "", b'{"a": null}', True),
        ("a", "", b'{"b": 1}', False),
        ("a", "", b"null", False),
        ("a", "x", b'{"a": "x"}', True),
        ("a", "x", b'{"a": "y"}', False),
        ("a", "1", b'{"a": 1.0}', True),
        ("a", "1e2", b'{"a": 100}', True),
        ("a", "1", b'{"a": "1"}', True),
        ("a", "1.0", b'{"a": "1"}', False),
        ("a", "x", b'{"a": 1}', False),
        ("a", "true", b'{"a": true}', False),
        ("a", "1", b'{"a": "x", "a": 1}', True),  # the last of two counts
    ],
)
def test_required_fields(field: str, value: str, body: bytes, *, passes: bool) -> None:
    wanted = body if passes else None

    assert JsonFilter(field, value).apply(body) == wanted


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (b'{"b": 1, "a": 2, "c": 3}', b'{"a":2,"b":1}'),
        (b'{"a": 1234567890123456789}', b'{"a":1234567890123456789}'),
        (b'{"a": 1.50, "b": -0e1}', b'{"a":1.50,"b":-0e1}'),
        (b'{"a": "<b>&\\u2028"}', b'{"a":"\\u003cb\\u003e\\u0026\\u2028"}'),
        (b'{"a": "\\n\\t\\u0001\\"\\\\"}', b'{"a":"\\n\\t\\u0001\\"\\\\"}'),
        (b'{"a": {"z": [1, true, null], "y": 0}}', b'{"a":{"y":0,"z":[1,true,null]}}'),
        (b'{"a": "\xc3\xa4"}', b'{"a":"\xc3\xa4"}'),
        (b'{"a": "\\ud800"}', b'{"a":"\xef\xbf\xbd"}'),
        (b'{"a": "\\ud83d\\ude00"}', '{"a":"😀"}'.encode()),
        (b'{"a": "\xff"}', b'{"a":"\xef\xbf\xbd"}'),
        (b'{"a": 1, "a": 2}', b'{"a":2}'),
        (b"null", b"{}"),
        (b"{}", b"{}"),
    ],
)  # fmt: skip
def test_chosen_fields(body: bytes, wanted: bytes) -> None:
    assert JsonFilter(fields=["b", "a"]).apply(body) == wanted


@pytest.mark.parametrize(
    "body",
    [b"", b"no", b"[1]", b'"x"', b"1", b'{"a": NaN}', b"{} {}", b"\xef\xbb\xbf{}", b"[" * 100_000],
)
def test_what_is_no_json(body: bytes) -> None:
    with pytest.raises(NotJsonError):
        JsonFilter("a").apply(body)


def test_a_value_needs_its_field() -> None:
    with pytest.raises(MissingFieldError):
        JsonFilter("a", "1").apply(b"{}")


def test_without_wishes_nothing_is_read() -> None:
    assert not JsonFilter().is_active
    assert JsonFilter("a").is_active
    assert JsonFilter(fields=["a"]).is_active
