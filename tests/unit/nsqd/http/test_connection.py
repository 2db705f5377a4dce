import asyncio
import gc
import itertools
import weakref
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqd.http import connection
from nsqd.http.connection import (
    FLUSH_BYTES,
    LINGER_BYTES,
    LINGER_TIMEOUT_S,
    MAX_REFUSED_CONNECTIONS,
    HttpConnection,
    HttpService,
)
from nsqd.http.parser import FEED_SLICE_BYTES, HttpLimits, RequestParser
from nsqd.http.routes import OK, HttpError, Request, Response, Router, Style
from nsqd.http.server import log_request
from tests.support.fake_loop import FakeLoop, FakeTransport, FakeTurns

LIMITS = HttpLimits(header_timeout_s=10, body_timeout_s=20, idle_timeout_s=100, write_timeout_s=30)


class Client:
    """A connection with its fakes; `send` and read what came back."""

    def __init__(self, service: HttpService, loop: FakeLoop | None = None) -> None:
        self.loop = loop or FakeLoop()
        self.transport = FakeTransport()
        self.turns = FakeTurns(self.loop)
        with patch.object(connection, "turns_of", lambda _: self.turns):
            self.connection = HttpConnection(service, self.loop.as_loop())
        self.connection.connection_made(self.transport)

    def send(self, *parts: bytes) -> bytes:
        for part in parts:
            self.connection.data_received(part)
        return self.received

    @property
    def received(self) -> bytes:
        return b"".join(self.transport.written)

    def replies(self) -> list[tuple[int, bytes]]:
        return [(status, body) for status, _, body in split_replies(self.received)]


def split_replies(data: bytes, *, is_head: bool = False) -> Iterator[tuple[int, bytes, bytes]]:
    """Status, head and body of each reply; fails where a length is wrong."""
    while data:
        head, separator, data = data.partition(b"\r\n\r\n")
        assert separator
        assert head.startswith(b"HTTP/1.1 ")
        status = int(head[9:12])
        (length,) = [
            int(line[16:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length: ")
        ] or [0]
        length = 0 if is_head else length
        assert len(data) >= length
        yield status, head, data[:length]
        data = data[length:]


class App:
    """Handlers that note what they saw, and futures that the test resolves."""

    def __init__(self, loop: FakeLoop | None = None) -> None:
        self.loop = loop or FakeLoop()
        self.seen: list[bytes] = []
        self.futures: list[asyncio.Future[Response]] = []
        self.big = Response(body=b"b" * FLUSH_BYTES)
        self.router = Router()
        self.router.add("GET", "/ping", self.ping, style=Style.PLAIN)
        self.router.add("POST", "/echo", self.echo, max_body_bytes=1000, is_quiet=True)
        self.router.add("GET", "/big", lambda request: self.big)
        self.router.add("GET", "/future", self.wait)
        self.router.add("GET", "/task", self.run)
        self.router.add("GET", "/crash", self.crash)
        self.router.add("GET", "/assert", self.fail)
        self.router.add("GET", "/none", lambda request: None)  # type: ignore[arg-type,return-value]

    def client(self, **options: Any) -> Client:
        options.setdefault("limits", LIMITS)
        return Client(HttpService(self.router, **options), self.loop)

    def ping(self, request: Request) -> Response:
        return OK

    def echo(self, request: Request) -> Response:
        self.seen.append(request.body)
        return Response(body=request.body)

    def wait(self, request: Request) -> asyncio.Future[Response]:
        self.futures.append(self.loop.create_future())
        return self.futures[-1]

    async def run(self, request: Request) -> Response:
        return await self.wait(request)

    def crash(self, request: Request) -> Response:
        raise ValueError("boom")

    def fail(self, request: Request) -> Response:
        raise AssertionError("broken invariant")


def get(path: str, *lines: str, method: str = "GET") -> bytes:
    return "\r\n".join((f"{method} {path} HTTP/1.1", "Host: h", *lines, "", "")).encode()


def post(body: bytes, path: str = "/echo") -> bytes:
    return get(path, f"Content-Length: {len(body)}", method="POST") + body


PING = get("/ping")


# Replies


def test_a_request_is_answered_and_the_connection_stays() -> None:
    client = App().client()

    client.send(PING)
    client.send(PING)

    assert client.replies() == [(200, b"OK"), (200, b"OK")]
    assert client.transport.is_open


def test_replies_to_one_read_leave_in_one_write() -> None:
    client = App().client()

    client.send(b"".join(post(b"%d" % number) for number in range(50)))

    assert len(client.transport.written) == 1
    assert client.replies() == [(200, b"%d" % number) for number in range(50)]


def test_every_reply_has_a_date_that_moves_with_the_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = App()
    client = app.client()
    wall = 1_700_000_000.25
    monkeypatch.setattr("time.time", lambda: wall)

    client.send(PING)
    app.loop.advance(0.5)
    client.send(PING)
    wall += 1
    app.loop.advance(0.5)
    client.send(PING)

    dates = [line for line in client.received.split(b"\r\n") if line.startswith(b"Date: ")]
    assert dates == [b"Date: Tue, 14 Nov 2023 22:13:%d GMT" % second for second in (20, 20, 21)]


@pytest.mark.parametrize(("path", "status"), [("/ping", 405), ("/nope", 404), ("/PING", 404)])
def test_a_reply_to_head_has_a_length_but_no_body(path: str, status: int) -> None:
    client = App().client()

    client.send(get(path, method="HEAD"))

    ((seen, head, body),) = split_replies(client.received, is_head=True)
    assert (seen, body) == (status, b"")
    assert b"Content-Length: 0" not in head


@pytest.mark.parametrize("sizes", [(3, 4), (0, 5), (10, FLUSH_BYTES, 7), (FLUSH_BYTES + 1,) * 3])
def test_a_body_in_parts_arrives_whole_and_in_order(sizes: tuple[int, ...]) -> None:
    app = App()
    parts = [b"%d" % index * size for index, size in enumerate(sizes)]
    app.big = Response.in_parts(parts, "text/plain")
    client = app.client()

    client.send(get("/big") + PING)

    assert client.replies() == [(200, b"".join(parts)), (200, b"OK")]


def test_connection_close_is_said_and_done() -> None:
    client = App().client()

    client.send(get("/ping", "Connection: close"))

    assert b"\r\nConnection: close\r\n" in client.received
    assert client.transport.is_closed


def test_before_headers_are_on_replies_and_refusals() -> None:
    def before(request: Request) -> None:
        request.add_reply_header("X-Hook", "1")

    client = App().client(before=before)

    client.send(PING, get("/echo", "Content-Length: 9999", method="POST"))

    assert [b"\r\nX-Hook: 1" in head for _, head, _ in split_replies(client.received)] == [True] * 2


def test_a_crash_is_500_and_the_connection_stays(caplog: pytest.LogCaptureFixture) -> None:
    client = App().client()

    client.send(get("/crash"), PING)

    assert client.replies() == [(500, b'{"message":"INTERNAL_ERROR"}'), (200, b"OK")]
    assert len(caplog.records) == 1


def test_a_handler_that_returns_nothing_is_500(caplog: pytest.LogCaptureFixture) -> None:
    client = App().client()

    client.send(get("/none"), PING)

    assert [status for status, _ in client.replies()] == [500, 200]
    assert len(caplog.records) == 1


def test_a_failed_assertion_reaches_the_loop() -> None:
    client = App().client()

    with pytest.raises(AssertionError, match="broken invariant"):
        client.send(get("/assert"))


# The access log


def test_requests_are_logged_but_for_quiet_routes() -> None:
    lines: list[tuple[int, str, str, str]] = []

    def on_request(request: Request, response: Response, duration_s: float) -> None:
        assert duration_s >= 0
        lines.append((response.status, request.method, request.uri, request.remote))

    client = App().client(on_request=on_request)

    client.send(get("/ping?x=1"), post(b"quiet"), get("/nope"))

    assert lines == [
        (200, "GET", "/ping?x=1", "127.0.0.1:5"),
        (404, "GET", "/nope", "127.0.0.1:5"),
    ]


def test_what_is_no_request_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    App().client(on_request=log_request).send(b"\x00")

    assert [record.getMessage() for record in caplog.records] == [
        "refused status=400 remote=127.0.0.1:5"
    ]


# Refusals and lingering


def test_a_refusal_is_sent_and_the_rest_of_the_input_dropped() -> None:
    app = App()
    client = app.client()

    client.send(get("/echo", "Content-Length: 5000", method="POST"), b"x" * 5000, PING)

    assert client.replies() == [(413, b'{"message":"BODY_TOO_BIG"}')]
    assert client.transport.has_eof
    assert not client.transport.is_closed
    assert app.seen == []
    client.connection.eof_received()
    assert client.connection.eof_received() is False


def test_lingering_ends_after_a_while() -> None:
    client = App().client()
    client.send(b"\x00")
    assert not client.transport.is_closed

    client.loop.advance(LINGER_TIMEOUT_S)

    assert client.transport.is_closed


def test_lingering_ends_after_many_bytes() -> None:
    client = App().client()
    client.send(b"\x00")

    client.send(b"x" * LINGER_BYTES)
    assert not client.transport.is_closed
    client.send(b"x")

    assert client.transport.is_closed


def test_expect_is_answered_before_the_body() -> None:
    client = App().client()

    client.send(get("/echo", "Expect: 100-continue", "Content-Length: 2", method="POST"))
    assert client.received == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.send(b"ab")

    assert client.replies() == [(100, b""), (200, b"ab")]


def test_expect_waits_for_the_replies_before_it() -> None:
    app = App()
    client = app.client()

    client.send(
        get("/future"), get("/echo", "Expect: 100-continue", "Content-Length: 2", method="POST")
    )
    assert client.received == b""
    app.futures[0].set_result(OK)
    app.loop.advance()

    assert client.replies() == [(200, b"OK"), (100, b"")]


def test_end_of_input_within_a_request_is_400() -> None:
    client = App().client()
    client.send(get("/echo", "Content-Length: 5", method="POST") + b"ab")

    client.connection.eof_received()

    assert client.replies() == [(400, b'{"message":"BAD_REQUEST"}')]
    assert client.transport.is_closed


def test_end_of_input_between_requests_closes() -> None:
    client = App().client()
    client.send(PING)

    client.connection.eof_received()

    assert client.transport.is_closed


def test_a_half_closed_client_gets_its_slow_reply() -> None:
    app = App()
    client = app.client()
    client.send(get("/future"))

    assert client.connection.eof_received() is True
    assert not client.transport.is_closed
    app.futures[0].set_result(OK)
    app.loop.advance()

    assert client.replies() == [(200, b"OK")]
    assert client.transport.is_closed


# Slow calls


@pytest.mark.parametrize("path", ["/future", "/task"])
def test_replies_keep_their_order_behind_a_slow_call(path: str) -> None:
    app = App()
    client = app.client()

    client.send(get(path) + post(b"a"), post(b"b"))
    app.loop.advance()
    assert (client.received, app.seen) == (b"", [])
    app.futures[0].set_result(Response.text("slow"))
    app.loop.advance()

    assert client.replies() == [(200, b"slow"), (200, b"a"), (200, b"b")]
    assert client.transport.is_read


def test_input_is_paused_behind_a_slow_call_and_bounded() -> None:
    app = App()
    client = app.client()
    count = 20 * FEED_SLICE_BYTES // len(PING)

    client.send(get("/future") + PING * count)
    assert not client.transport.is_read
    app.futures[0].set_result(OK)
    app.loop.advance()

    assert client.replies() == [(200, b"OK")] * (count + 1)
    assert client.transport.is_read


def test_a_slow_call_may_fail(caplog: pytest.LogCaptureFixture) -> None:
    app = App()
    client = app.client()
    client.send(get("/task") * 4)
    for outcome in (HttpError(503, "EXITING"), ValueError("boom"), None):
        app.loop.advance()
        if outcome is None:
            app.futures[-1].cancel()
        else:
            app.futures[-1].set_exception(outcome)
    app.loop.advance()
    app.futures[-1].set_result("no response")  # type: ignore[arg-type]
    app.loop.advance()

    assert client.replies() == [
        (503, b'{"message":"EXITING"}'),
        (500, b'{"message":"INTERNAL_ERROR"}'),
        (503, b'{"message":"CANCELLED"}'),
        (500, b'{"message":"INTERNAL_ERROR"}'),
    ]
    assert len(caplog.records) == 2


def test_a_task_is_cancelled_when_its_client_is_gone() -> None:
    app = App()
    client = app.client()
    client.send(get("/task") + PING)
    app.loop.advance()

    client.connection.connection_lost(None)
    app.loop.advance()

    assert app.futures[0].cancelled()
    assert client.received == b""


def test_a_future_of_others_is_left_alone_when_the_client_is_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = App()
    client = app.client()
    client.send(get("/future"))

    client.connection.connection_lost(None)
    app.loop.advance()
    assert not app.futures[0].cancelled()
    app.futures[0].set_exception(ValueError("boom"))
    app.loop.advance()

    assert len(caplog.records) == 1


def test_a_slow_call_outlasts_the_timeouts() -> None:
    app = App()
    client = app.client()
    client.send(get("/future"), b"GET /pi")

    app.loop.advance(1000)
    assert client.transport.is_open
    app.futures[0].set_result(OK)
    app.loop.advance()
    client.send(b"ng HTTP/1.1\r\nHost: h\r\n\r\n")

    assert client.replies() == [(200, b"OK")] * 2


# Output


def test_a_client_that_does_not_read_is_not_served_on() -> None:
    app = App()
    client = app.client()
    client.transport.buffered_bytes = 1000

    client.connection.pause_writing()
    client.send(post(b"a"), post(b"b"))
    assert app.seen == []
    assert not client.transport.is_read
    client.connection.resume_writing()

    assert client.replies() == [(200, b"a"), (200, b"b")]
    assert client.transport.is_read


def test_large_replies_are_written_one_by_one_so_that_pausing_can_work() -> None:
    client = App().client()

    class PausingTransport(FakeTransport):
        def write(self, data: Any) -> None:
            super().write(data)
            client.connection.pause_writing()

    transport = PausingTransport()
    client.connection.connection_made(transport)

    client.connection.data_received(get("/big") * 100)

    assert len(transport.written) == 1
    client.connection.resume_writing()
    assert len(transport.written) == 2


def test_a_client_that_reads_nothing_is_cut() -> None:
    client = App().client()
    client.transport.buffered_bytes = 1000
    client.connection.pause_writing()

    client.loop.advance(LIMITS.write_timeout_s - 1)
    assert client.transport.is_open
    client.transport.buffered_bytes = 999
    client.loop.advance(LIMITS.write_timeout_s)
    assert client.transport.is_open
    client.loop.advance(1)

    assert client.transport.is_aborted


def test_a_closing_client_that_reads_nothing_is_cut() -> None:
    client = App().client()
    client.transport.buffered_bytes = 1000
    client.send(get("/ping", "Connection: close"))

    client.loop.advance(LIMITS.write_timeout_s)

    assert client.transport.is_aborted


# Timeouts


def test_an_idle_connection_is_closed() -> None:
    client = App().client()

    client.loop.advance(60)
    client.send(PING)
    client.loop.advance(99)
    assert client.transport.is_open
    client.loop.advance(1)

    assert client.transport.is_closed
    assert client.replies() == [(200, b"OK")]


def test_a_slow_head_is_408_however_it_trickles() -> None:
    client = App().client()
    client.loop.advance(50)

    for byte in PING[:9]:
        client.send(bytes([byte]))
        client.loop.advance(1)
    assert client.received == b""
    client.loop.advance(1)

    assert client.replies() == [(408, b'{"message":"REQUEST_TIMEOUT"}')]
    assert client.transport.has_eof


def test_a_slow_body_is_408_however_it_trickles() -> None:
    client = App().client()
    client.send(get("/echo", "Content-Length: 99", method="POST"))

    for _ in range(19):
        client.loop.advance(1)
        client.send(b"x")
    assert client.received == b""
    client.loop.advance(1)

    assert client.replies() == [(408, b'{"message":"REQUEST_TIMEOUT"}')]


def test_each_request_has_its_own_time() -> None:
    client = App().client()

    for _ in range(5):
        client.send(PING[:10])
        client.loop.advance(9)
        client.send(PING[10:])

    assert client.replies() == [(200, b"OK")] * 5


def test_requests_cost_no_timers() -> None:
    client = App().client()

    for _ in range(100):
        client.send(PING)
        client.send(PING[:10])
        client.send(PING[10:])

    assert client.loop.timer_count == 1


# Ending


def test_an_idle_connection_ends_at_once() -> None:
    client = App().client()
    client.send(PING)

    client.connection.end()

    assert client.transport.is_closed


def test_a_busy_connection_ends_after_its_replies() -> None:
    app = App()
    client = app.client()
    client.send(get("/future") + PING)

    client.connection.end()
    assert not client.transport.is_closed
    app.futures[0].set_result(OK)
    app.loop.advance()

    heads = [head for _, head, _ in split_replies(client.received)]
    assert [b"\r\nConnection: close" in head for head in heads] == [False, True]
    assert client.transport.is_closed


def test_a_request_half_way_in_is_answered_before_the_end() -> None:
    client = App().client()
    client.send(PING[:10])

    client.connection.end()
    client.send(PING[10:])

    assert client.replies() == [(200, b"OK")]
    assert client.transport.is_closed


def test_too_many_connections_are_told_so() -> None:
    app = App()
    service = HttpService(app.router, limits=LIMITS, max_connections=2)
    clients = [Client(service) for _ in range(2 + MAX_REFUSED_CONNECTIONS + 1)]

    assert [client.received for client in clients[:2]] == [b"", b""]
    for client in clients[2:-1]:
        assert client.replies() == [(503, b'{"message":"TOO_MANY_CONNECTIONS"}')]
    assert clients[-1].transport.is_aborted


def count_parsers() -> int:
    return sum(isinstance(each, RequestParser) for each in gc.get_objects())


def test_a_lost_connection_leaves_nothing_behind() -> None:
    app = App()
    service = HttpService(app.router, limits=LIMITS)
    gc.collect()
    parser_count = count_parsers()
    gc.disable()
    try:
        client = Client(service, app.loop)
        client.send(PING, get("/echo", "Content-Length: 3", method="POST"), b"ab")
        reference = weakref.ref(client.connection)
        client.connection.connection_lost(None)
        timer_count = client.loop.timer_count
        del client
        assert reference() is None
        # The parser and llhttp hold each other, so the connection's end has to part them.
        assert count_parsers() == parser_count
    finally:
        gc.enable()

    assert (len(service.connections), timer_count) == (0, 0)


def test_a_connection_never_made_leaves_nothing_behind() -> None:
    """A client that fails in the TLS handshake: no connection_made, no connection_lost."""
    gc.disable()
    try:
        connection = HttpConnection(HttpService(App().router, limits=LIMITS), FakeLoop().as_loop())
        reference = weakref.ref(connection)
        del connection
        assert reference() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("path", ["/future", "/task"])
@pytest.mark.parametrize("is_answered", [False, True])
def test_a_client_lost_in_a_slow_call_leaves_nothing_behind(
    path: str, *, is_answered: bool
) -> None:
    app = App()
    service = HttpService(app.router, limits=LIMITS)
    gc.collect()
    gc.disable()
    try:
        client = Client(service, app.loop)
        client.send(get(path))
        app.loop.turn()
        reference = weakref.ref(client.connection)
        future = weakref.ref(app.futures[0])
        if is_answered:
            app.futures[0].set_result(OK)
            app.loop.advance()
        client.connection.connection_lost(None)
        app.loop.advance()
        app.futures.clear()
        del client
        assert reference() is None
        assert future() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_slow_call_that_fails_leaves_no_cycle(*, is_lost: bool) -> None:
    app = App()
    gc.collect()
    gc.disable()
    try:
        client = app.client()
        client.send(get("/future"))
        reference = weakref.ref(app.futures[0])
        app.futures.pop().set_exception(HttpError(503, "DISK_FULL"))
        if is_lost:
            client.connection.connection_lost(None)
        app.loop.advance()
        assert reference() is None
    finally:
        gc.enable()

    assert client.replies() == ([] if is_lost else [(503, b'{"message":"DISK_FULL"}')])


def test_refusals_and_errors_leave_no_cycles(caplog: pytest.LogCaptureFixture) -> None:
    app = App()
    service = HttpService(app.router, limits=LIMITS)
    gc.collect()
    gc.disable()
    try:
        for data in (b"\x00", get("/echo", "Content-Length: 9999", method="POST"), get("/task")):
            client = Client(service, app.loop)
            client.send(data)
            app.loop.advance()
            reference = weakref.ref(client.connection)
            client.connection.connection_lost(None)
            app.loop.advance()
            del client
            assert reference() is None
    finally:
        gc.enable()


# Any split, any bytes

MESSAGES = [
    PING,
    post(b"hello"),
    get("/nope"),
    get("/PING/?a=b"),
    get("/crash"),
    get("/ping", method="OPTIONS"),
    get("/echo", "Transfer-Encoding: chunked", method="POST") + b"3\r\nabc\r\n0\r\n\r\n",
    b"GET /ping HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
]


def without_dates(data: bytes) -> bytes:
    return b"\r\n".join(line for line in data.split(b"\r\n") if not line.startswith(b"Date: "))


@given(
    st.lists(st.sampled_from(MESSAGES), min_size=1, max_size=8),
    st.sampled_from([b"", get("/ping", "Connection: close"), post(b"x" * 1001), b"\x00"]),
    st.lists(st.integers(min_value=0), max_size=20),
)
@settings(max_examples=150)
def test_any_split_of_a_stream_gives_the_same_replies(
    messages: list[bytes], last: bytes, cuts: list[int]
) -> None:
    data = b"".join(messages) + last
    edges = [0, *sorted(cut % len(data) for cut in cuts), len(data)]
    whole = App().client()
    whole.send(data)

    parts = App().client()
    parts.send(*(data[start:end] for start, end in itertools.pairwise(edges) if start < end))

    assert without_dates(parts.received) == without_dates(whole.received)
    assert len(parts.replies()) == len(messages) + bool(last)
    assert parts.transport.is_open == whole.transport.is_open == (not last)


@given(st.lists(st.one_of(st.binary(min_size=1, max_size=100), st.sampled_from(MESSAGES))))
@settings(max_examples=150)
def test_any_input_is_answered_or_ended_in_time(parts: list[bytes]) -> None:
    client = App().client()

    client.send(*parts)
    client.loop.advance(LIMITS.idle_timeout_s + LINGER_TIMEOUT_S)

    assert client.transport.is_closed
    list(split_replies(client.received))
