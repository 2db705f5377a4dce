import json
import urllib.parse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqd.http.routes import (
    EMPTY,
    OK,
    HttpError,
    Request,
    Response,
    Route,
    Style,
    Target,
    parse_query,
)

DATE = b"Date: Mon, 16 Nov 2026 00:00:00 GMT\r\n"


def make_request(target: bytes) -> Request:
    return Request(b"POST", Target(target), Route.fixed(OK), {}, "127.0.0.1:1", is_tls=False)


# Query


@pytest.mark.parametrize(
    ("raw", "parsed"),
    [
        (b"", {}),
        (b"topic=t", {"topic": "t"}),
        (b"topic=a&topic=b", {"topic": "a"}),
        (b"topic", {"topic": ""}),
        (b"topic=", {"topic": ""}),
        (b"=x", {"": "x"}),
        (b"&&a=1&", {"a": "1"}),
        (b"a=b=c", {"a": "b=c"}),
        (b"a=b+c%20d%2B", {"a": "b c d+"}),
        (b"%74opic=t%23ephemeral", {"topic": "t#ephemeral"}),
        (b"topic=t#ephemeral", {"topic": "t#ephemeral"}),
        (b"a=%ff", {"a": "�"}),
    ],
)
def test_query_follows_the_rules_of_go(raw: bytes, parsed: dict[str, str]) -> None:
    assert parse_query(raw) == parsed


@pytest.mark.parametrize(
    "raw", [b"topic=%zz", b"topic=%", b"topic=%4", b"a=1;b=2", b"a=1&;", b"%g0"]
)
def test_a_broken_query_is_400(raw: bytes) -> None:  # H-8
    request = make_request(b"/pub?" + raw)

    for _ in range(2):
        with pytest.raises(HttpError) as caught:
            request.find("topic")
        assert (caught.value.status, caught.value.code) == (400, "INVALID_REQUEST")


@given(st.lists(st.tuples(st.text(), st.text())))
def test_any_encoded_query_is_read_back(pairs: list[tuple[str, str]]) -> None:
    expected: dict[str, str] = {}
    for name, value in pairs:
        expected.setdefault(name, value)

    assert parse_query(urllib.parse.urlencode(pairs, errors="replace").encode()) == {
        name.encode(errors="replace").decode(): value.encode(errors="replace").decode()
        for name, value in expected.items()
    }


def test_find_tells_absent_from_empty() -> None:
    request = make_request(b"/pub?topic=")

    assert request.find("topic") == ""
    assert request.find("channel") is None


# Responses


def head_of(response: Response, style: Style = Style.V1) -> list[bytes]:
    head, _, body = response.encode(style, DATE).partition(b"\r\n\r\n")
    assert body == response.body
    return head.split(b"\r\n")


def test_v1_text() -> None:  # H-1
    assert head_of(OK) == [
        b"HTTP/1.1 200 OK",
        b"Content-Type: text/plain; charset=utf-8",
        b"Content-Length: 2",
        b"X-NSQ-Content-Type: nsq; version=1.0",
        DATE.strip(),
    ]


def test_plain_text_has_no_nsq_header() -> None:  # H-1
    assert not any(line.lower().startswith(b"x-nsq") for line in head_of(OK, Style.PLAIN))


def test_an_empty_body_has_no_content_type() -> None:
    lines = head_of(EMPTY)

    assert b"Content-Length: 0" in lines
    assert not any(line.startswith(b"Content-Type") for line in lines)


def test_json_has_no_blanks_and_no_newline() -> None:
    response = Response.json({"a": [1, "é<"]})

    assert response.body == b'{"a":[1,"\\u00e9<"]}'
    assert b"Content-Type: application/json; charset=utf-8" in head_of(response)


def test_json_that_is_not_json_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        Response.json(float("nan"))


def test_errors_are_json_in_v1_and_text_in_plain() -> None:  # H-2
    error = HttpError(400, "INVALID_TOPIC")

    assert json.loads(Response.error(error, Style.V1).body) == {"message": "INVALID_TOPIC"}
    assert Response.error(error, Style.PLAIN).body == b"INVALID_TOPIC"


def test_the_bytes_of_a_response_follow_date_and_style() -> None:
    response = Response.text("x")
    first = response.encode(Style.V1, DATE)

    assert response.encode(Style.V1, DATE) is first
    assert response.encode(Style.PLAIN, DATE) != first
    later = b"Date: Mon, 16 Nov 2026 00:00:01 GMT\r\n"
    assert later in response.encode(Style.V1, later)


@pytest.mark.parametrize("pair", [("X", "a\r\nB: c"), ("X\n", "a"), ("X", "a\n")])
def test_a_header_cannot_hold_a_line_break(pair: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="line break"):
        Response(headers=dict([pair]))


def test_a_bodiless_status_has_no_length() -> None:
    assert not any(line.startswith(b"Content-Length") for line in head_of(Response(204)))
    with pytest.raises(ValueError, match="204"):
        Response(204, b"x")
