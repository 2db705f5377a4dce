"""Messages as requests: URLs, headers, what a reply means."""

from datetime import UTC, datetime

import pytest

from nsqd.cli.sinks.requests import (
    check_url,
    find_retry_after_s,
    parse_headers,
    render,
    render_as_go,
)
from nsqd.http.client import Reply, UrlError
from tests.support.client_messages import make_message

BODY = b"a b&c=%s/\xff~"


def test_placeholders_are_filled_in_and_escaped() -> None:
    message = make_message(1, body=BODY)

    url = render("http://h/{topic}/{id}?b={body}&p=%20&again=%s", message)

    escaped = "a+b%26c%3D%25s%2F%FF~"
    name = "0" * 15 + "1"
    assert url == f"http://h/topic/{name}?b={escaped}&p=%20&again={escaped}"


def test_urls_of_go_have_one_place_and_doubled_percents() -> None:
    message = make_message(1, body=BODY)

    url = render_as_go("http://h/?p=%%20&b=%s&c=%%&{body}", message)

    assert url == "http://h/?p=%20&b=a+b%26c%3D%25s%2F%FF~&c=%&{body}"


def test_urls_that_cannot_be_requested() -> None:
    check_url("http://h/?b={body}")
    for url in ("ftp://h/", "http://", "http://h:99999/", "h", "http://h/ "):
        with pytest.raises(UrlError):
            check_url(url)


def test_headers() -> None:
    assert parse_headers(["A: b", "C:d:e"]) == {"A": "b", "C": "d:e"}
    for wrong in ("A", "A:", ": b", ":", "A: b\r\nC: d"):
        with pytest.raises(ValueError, match="not a header"):
            parse_headers([wrong])


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (b"", None),
        (b"17", 17.0),
        (b"1000000", 3600.0),
        (b"Wed, 01 May 2024 13:00:30 GMT", 30.0),
        (b"Wed, 01 May 2024 12:00:30 GMT", 0.0),
        (b"soon", None),
        (b"-3", None),
    ],
)
def test_retry_after(value: bytes, wanted: float | None) -> None:
    now = datetime(2024, 5, 1, 13, 0, 0, tzinfo=UTC)

    assert find_retry_after_s(Reply(503, {b"retry-after": value}, b""), now) == wanted
