"""What an HTTP client sends: requests, targets, queries."""

import contextlib
import json
from typing import Any

from nsqd.http.arguments import get_names
from nsqd.http.known_heads import KnownHeads
from nsqd.http.parser import FEED_SLICE_BYTES, HttpLimits, RequestParser
from nsqd.http.routes import OK, HttpError, Request, Response, Router, Style, answer
from tests.fuzz.splits import cut

MAX_BODY_BYTES = 1000
DATE = b"Date: now\r\n"


def show_names(request: Request) -> Response:
    return Response.text(" ".join(get_names(request)))


def show_body(request: Request) -> Response:
    return Response(body=request.body)


def make_router() -> Router:
    router = Router()
    router.add("GET", "/ping", lambda _: OK, style=Style.PLAIN)
    router.add("GET", "/names", show_names)
    router.add("POST", "/pub", show_body, max_body_bytes=MAX_BODY_BYTES)
    router.add("PUT", "/config/:opt", lambda request: Response.json(request.params))
    return router


def check_requests(data: bytes) -> None:
    """Requests are the same however the bytes are cut, and their framing leaves no doubt."""
    heads = KnownHeads()
    whole = read_requests(make_parser(heads), [data])

    assert read_requests(make_parser(KnownHeads()), cut(data)) == whole
    repeated = make_parser(heads).find_repeated(data)
    assert repeated is None or [describe(repeated)] == whole


def make_parser(heads: KnownHeads) -> RequestParser:
    """Make a parser that knows these heads."""
    return RequestParser(make_router(), HttpLimits(), "127.0.0.1:5", is_tls=False, heads=heads)


def read_requests(parser: RequestParser, pieces: list[bytes]) -> list[tuple[Any, ...]]:
    """Return what is parsed and answered, in order."""
    for piece in pieces:
        for start in range(0, len(piece), FEED_SLICE_BYTES):
            parser.feed(piece[start : start + FEED_SLICE_BYTES])
    requests = list(parser.ready)
    parser.close()
    return [describe(request) for request in requests]


def describe(request: Request) -> tuple[Any, ...]:
    """Answer a request; return all that matters of both."""
    check_framing(request)
    reply = answer(request, request.route.handler, request)
    assert isinstance(reply, Response)
    assert reply.status != 500, "a handler failed"
    head = reply.encode_head(request.route.style, DATE, request.reply_lines)
    check_reply_head(head)
    if reply.body and "json" in reply.content_type:
        json.loads(reply.body)
    if not request.target.raw:
        # Which of its faults is found first depends on where it was cut.
        assert reply.status >= 400
        return ("no request",)
    raw = request.target.raw
    return (request.raw_method, raw, request.body, request.is_last, head, reply.body)


def check_framing(request: Request) -> None:
    """No request that a proxy before us might have cut in another way comes through."""
    headers = request.headers
    if request.is_last and not request.body:
        return  # It may have been refused before its end, and nothing behind it is read.
    assert not (b"content-length" in headers and b"transfer-encoding" in headers)
    assert headers.get(b"transfer-encoding", b"chunked").lower() == b"chunked"
    if b"transfer-encoding" not in headers:
        assert len(request.body) == int(headers.get(b"content-length", b"0"))
    assert len(request.body) <= request.route.max_body_bytes
    for name, value in headers.items():
        assert not set(b"\r\n\0") & set(name + value), (name, value)


def check_reply_head(head: bytes) -> None:
    """What a client sent must not add a line to the reply."""
    lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    assert lines[0].startswith(b"HTTP/1.1 ")
    for line in lines[1:]:
        name = line.partition(b":")[0]
        assert name in KNOWN_REPLY_HEADERS, line
        assert not set(b"\r\n") & set(line)


KNOWN_REPLY_HEADERS = frozenset(
    b"Content-Type Content-Length Connection Date Location Allow X-NSQ-Content-Type".split()
)


def check_target(data: bytes) -> None:
    """A target leads somewhere or nowhere, and its query is valid or refused."""
    if set(data) & set(b"\r\n\0 "):
        return  # such a target does not get through llhttp
    router = make_router()
    for method in (b"GET", b"POST", b"OPTIONS"):
        target = router.target(data)
        request = Request(method, target, router.resolve(target, method), {}, "", is_tls=False)
        with contextlib.suppress(HttpError):
            for key, value in target.query.items():
                (key + value).encode()
        describe(request)
