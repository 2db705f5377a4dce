"""Replies with files, and connections that are refused or come while the server ends."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest

from nsqd.http import connection
from nsqd.http.connection import HttpConnection, HttpService
from nsqd.http.file_body import FileBody
from nsqd.http.parser import HttpLimits
from nsqd.http.routes import OK, Request, Response, Router
from nsqd.runtime.descriptors import Descriptors
from nsqd.runtime.door_counts import Failure
from tests.support.fake_loop import FakeLoop, FakeTransport, FakeTurns

LIMITS = HttpLimits(header_timeout_s=10, body_timeout_s=20, idle_timeout_s=100, write_timeout_s=30)
PING = b"GET /ping HTTP/1.1\r\nHost: h\r\n\r\n"
FILE = b"GET /file HTTP/1.1\r\nHost: h\r\n\r\n"
HEAD = b"HEAD /file HTTP/1.1\r\nHost: h\r\n\r\n"
LAST_FILE = b"GET /file HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"


class SentFile:
    """A file on its way; the test says when it has come."""

    def __init__(self, head: bytes, body: FileBody, on_end: Callable[..., None]) -> None:
        self.head = head
        self.body = body
        self.on_end = on_end
        self.is_abandoned = False

    def abandon(self) -> None:
        self.is_abandoned = True


class Rig:
    """A connection to a server whose route /file answers with a file."""

    def __init__(self, path: Path, **options: Any) -> None:
        path.write_bytes(b"content")
        self.path = path
        self.loop = FakeLoop()
        self.files: list[SentFile] = []
        router = Router()
        router.add("GET", "/ping", lambda _request: OK)
        router.add("POST", "/echo", lambda request: Response(body=request.body))
        for method in ("GET", "HEAD"):
            router.add(method, "/file", self._answer)
        self.service = HttpService(router, limits=LIMITS, **options)
        self.connect()

    def connect(self) -> None:
        """Connect once more."""
        self.transport = FakeTransport()
        with patch.object(connection, "turns_of", lambda _: FakeTurns(self.loop)):
            self.connection = HttpConnection(self.service, self.loop.as_loop())
        self.connection.connection_made(self.transport)

    def _answer(self, _request: Request) -> Response:
        return Response.from_file(FileBody(os.open(self.path, os.O_RDONLY), 0, 7))

    def send(self, data: bytes) -> None:
        def send_file(
            head: bytes, body: FileBody, transport: object, on_end: Callable[..., None]
        ) -> Any:
            assert transport is self.transport
            self.files.append(SentFile(head, body, on_end))
            return self.files[-1]

        with patch.object(self.service, "send_file", send_file):
            self.connection.data_received(data)

    @property
    def reply_count(self) -> int:
        return b"".join(self.transport.written).count(b"HTTP/1.1 200 OK")


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path / "file")


def test_a_file_goes_behind_the_replies_before_it_and_holds_up_those_behind(rig: Rig) -> None:
    rig.send(PING + FILE + PING)

    assert rig.reply_count == 1, "the reply before the file has gone to the transport"
    [sent] = rig.files
    assert sent.head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nContent-Length: 7\r\n" in sent.head
    assert (sent.body.offset, sent.body.size_bytes) == (0, 7)
    rig.loop.advance(1000.0)
    assert rig.transport.is_open, "a file takes as long as it takes"

    sent.on_end(None)

    assert rig.reply_count == 2
    assert rig.transport.is_open
    rig.loop.advance(LIMITS.idle_timeout_s - 0.01)
    assert rig.transport.is_open
    rig.loop.advance(0.02)
    assert rig.transport.is_closed


def test_a_file_that_cannot_be_sent_whole_cuts_the_connection(rig: Rig) -> None:
    rig.send(FILE + PING)

    rig.files[0].on_end(OSError("the file is shorter than it was"))

    assert (rig.transport.is_aborted, rig.reply_count) == (True, 0)


def test_the_last_file_is_followed_by_the_end(rig: Rig) -> None:
    rig.send(LAST_FILE)
    assert rig.transport.is_open

    rig.files[0].on_end(None)

    assert rig.transport.is_closed
    assert b"Connection: close\r\n" in rig.files[0].head


def test_a_server_that_ends_waits_for_a_file(rig: Rig) -> None:
    rig.send(FILE)
    rig.connection.end()
    assert rig.transport.is_open

    rig.files[0].on_end(None)
    assert rig.transport.is_open
    rig.send(PING)

    assert (rig.reply_count, rig.transport.is_closed) == (1, True)


def test_head_sends_no_file(rig: Rig) -> None:
    rig.send(HEAD + PING)

    assert (rig.files, rig.reply_count) == ([], 2)
    assert b"\r\nContent-Length: 7\r\n" in rig.transport.written[0]


def test_a_client_that_leaves_ends_its_file(rig: Rig) -> None:
    rig.send(FILE)

    rig.connection.connection_lost(None)

    assert rig.files[0].is_abandoned
    rig.files[0].on_end(None)  # it may end all the same
    assert (rig.service.connections, rig.loop.timer_count) == (set(), 0)


# --- refused


def scarce(*, is_scarce: bool) -> Descriptors:
    return cast(Descriptors, SimpleNamespace(is_scarce=lambda _transport, _count: is_scarce))


@pytest.mark.parametrize("is_scarce", [False, True])
def test_without_descriptors_a_client_is_cut(tmp_path: Path, *, is_scarce: bool) -> None:
    rig = Rig(tmp_path / "file", descriptors=scarce(is_scarce=is_scarce))

    assert rig.transport.is_aborted is is_scarce
    assert rig.service.counts.failures == ({Failure.NO_DESCRIPTORS: 1} if is_scarce else {})
    assert rig.transport.written == []


def test_a_client_that_comes_while_the_server_ends_is_cut(rig: Rig) -> None:
    rig.service.is_ending = True

    rig.connect()

    assert rig.transport.is_aborted
    assert sum(rig.service.counts.failures.values()) == 0


def test_clients_beyond_the_greatest_number_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MAX_REFUSED_CONNECTIONS", 2)
    rig = Rig(tmp_path / "file", max_connections=1)
    ends = []
    for _ in range(3):
        rig.connect()
        ends.append((rig.transport.is_aborted, rig.transport.has_eof, rig.transport.is_closed))

    assert ends == [(False, True, False), (False, True, False), (True, False, False)]
    assert rig.service.counts.failures == {Failure.TOO_MANY: 3}


def test_the_server_is_told_when_the_last_client_is_gone(rig: Rig) -> None:
    first = rig.connection
    rig.connect()
    calls: list[int] = []
    rig.service.on_empty = lambda: calls.append(len(rig.service.connections))

    first.connection_lost(None)
    assert calls == []
    rig.connection.connection_lost(None)

    assert calls == [0]


# --- deadlines


def test_a_request_has_its_time_again_after_a_client_that_did_not_read(rig: Rig) -> None:
    rig.send(PING + PING[:10])
    rig.connection.pause_writing()
    rig.loop.advance(5.0)
    rig.connection.resume_writing()

    rig.loop.advance(LIMITS.header_timeout_s - 0.01)
    assert rig.transport.is_open
    rig.loop.advance(0.02)

    assert rig.transport.has_eof
    assert b"408" in rig.transport.written[-1]


def test_a_client_that_reads_slowly_is_cut_when_it_reads_no_more(rig: Rig) -> None:
    rig.transport.buffered_bytes = 1000
    rig.connection.pause_writing()
    for left in (900, 800):
        rig.transport.buffered_bytes = left
        rig.loop.advance(LIMITS.write_timeout_s)
        assert rig.transport.is_open

    rig.loop.advance(LIMITS.write_timeout_s - 0.01)
    assert rig.transport.is_open
    rig.loop.advance(0.02)

    assert rig.transport.is_aborted


@pytest.mark.parametrize("method", [b"GET", b"POST"])
def test_the_time_of_a_head_and_of_a_body(rig: Rig, method: bytes) -> None:
    timeout_s = LIMITS.header_timeout_s
    data = b"GET /ping HTTP/1.1\r\n"
    if method == b"POST":
        timeout_s = LIMITS.body_timeout_s
        data = b"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nab"
    rig.loop.advance(50.0)
    rig.send(data)

    rig.loop.advance(timeout_s - 0.01)
    assert rig.transport.written == []
    rig.loop.advance(0.02)

    assert b"408" in rig.transport.written[0]
