"""A long reply of unknown length is made while its client reads, in turn with other clients."""

from collections.abc import Iterator
from unittest.mock import patch

import pytest

from nsqd.http import connection
from nsqd.http.connection import HttpConnection, HttpService
from nsqd.http.routes import STREAMED_BYTES, Request, Response, Router
from tests.support.fake_loop import FakeLoop, FakeTransport, FakeTurns

PART = b"x" * 10_000
PART_COUNT = 50


class Rig:
    """One client of a server with a long reply, and how many parts of it were made."""

    def __init__(self, part_count: int = PART_COUNT, *, has_failure: bool = False) -> None:
        self.made_count = 0
        self.request_count = 0
        self._part_count = part_count
        self._has_failure = has_failure
        self.loop = FakeLoop()
        self.turns = FakeTurns(self.loop)
        self.turns.has_tiny_slices = True
        router = Router()
        router.add("GET", "/long", lambda _: Response.streamed(self._parts(), "text/plain"))
        router.add("GET", "/short", self._short)
        self.service = HttpService(router)
        self.transport = FakeTransport()
        with patch.object(connection, "turns_of", lambda _: self.turns):
            self.client = HttpConnection(self.service, self.loop.as_loop())
        self.client.connection_made(self.transport)

    def _short(self, _request: Request) -> Response:
        self.request_count += 1
        return Response.text("short")

    def _parts(self) -> Iterator[bytes]:
        for _ in range(self._part_count):
            self.made_count += 1
            yield PART
            yield b""
        if self._has_failure:
            raise ValueError("a bug of the handler")

    def ask(self, head: bytes) -> None:
        self.client.data_received(head + b"\r\nHost: h\r\n\r\n")


def decode_chunks(body: bytes) -> bytes:
    """Return the content of a chunked body, which must be complete, with nothing behind it."""
    content = b""
    while True:
        size, _, body = body.partition(b"\r\n")
        chunk, end, body = (
            body[: int(size, 16)],
            body[int(size, 16) :][:2],
            body[int(size, 16) + 2 :],
        )
        assert end == b"\r\n"
        if not chunk:
            assert body == b""
            return content
        content += chunk


def test_it_comes_in_chunks_and_the_next_request_waits() -> None:
    rig = Rig()
    rig.ask(b"GET /long HTTP/1.1")
    rig.ask(b"GET /short HTTP/1.1")
    assert rig.made_count < PART_COUNT
    assert rig.request_count == 0

    rig.loop.advance()

    reply, end, rest = b"".join(rig.transport.written).partition(
        b"\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n"
    )
    head, _, body = reply.partition(b"\r\n\r\n")
    assert b"\r\nTransfer-Encoding: chunked" in head
    assert b"Content-Length" not in head
    assert decode_chunks(body + b"\r\n0\r\n\r\n") == PART * PART_COUNT
    assert end
    assert rest.endswith(b"\r\n\r\nshort")


def test_nothing_is_made_for_a_client_that_does_not_read() -> None:
    rig = Rig()
    rig.client.pause_writing()
    rig.client.resume_writing()
    rig.ask(b"GET /long HTTP/1.1")
    rig.client.pause_writing()
    made_count = rig.made_count

    rig.loop.advance()

    assert rig.made_count == made_count <= STREAMED_BYTES // len(PART) + 3
    rig.client.resume_writing()
    rig.loop.advance()
    assert rig.made_count == PART_COUNT


def test_a_short_one_has_its_length() -> None:
    rig = Rig(part_count=2)

    rig.ask(b"GET /long HTTP/1.1")

    head, _, body = b"".join(rig.transport.written).partition(b"\r\n\r\n")
    assert b"Content-Length: 20000" in head
    assert body == PART * 2


def test_http_1_0_gets_it_until_the_end_of_the_connection() -> None:
    rig = Rig()

    rig.ask(b"GET /long HTTP/1.0\r\nConnection: keep-alive")
    rig.loop.advance()

    head, _, body = b"".join(rig.transport.written).partition(b"\r\n\r\n")
    assert b"Transfer-Encoding" not in head
    assert b"Connection: close" in head
    assert body == PART * PART_COUNT
    assert rig.transport.is_closing()


def test_a_last_request_is_closed_after_all_of_it() -> None:
    rig = Rig()

    rig.ask(b"GET /long HTTP/1.1\r\nConnection: close")
    assert not rig.transport.is_closing()
    rig.loop.advance()

    assert b"".join(rig.transport.written).endswith(b"\r\n0\r\n\r\n")
    assert rig.transport.is_closing()


def test_head_makes_no_more_of_it() -> None:
    rig = Rig()

    rig.ask(b"HEAD /long HTTP/1.1")
    rig.loop.advance()

    assert b"".join(rig.transport.written).endswith(b"\r\n\r\n")
    assert rig.made_count < PART_COUNT
    rig.ask(b"GET /short HTTP/1.1")
    assert rig.request_count == 1


def test_a_reply_that_fails_half_way_does_not_look_complete(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig(has_failure=True)

    rig.ask(b"GET /long HTTP/1.1")
    rig.loop.advance()

    assert not b"".join(rig.transport.written).endswith(b"0\r\n\r\n")
    assert rig.transport.is_closing()
    assert "handler failed" in caplog.text


def test_a_client_that_leaves_ends_it() -> None:
    rig = Rig()
    rig.ask(b"GET /long HTTP/1.1")
    made_count = rig.made_count

    rig.client.connection_lost(None)
    rig.loop.advance()

    assert rig.made_count == made_count
