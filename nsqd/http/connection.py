"""One HTTP connection: replies in order, timeouts and flow control. `server.py` listens.

A connection owns its parser, its queue of requests, one timer and at most one future: the slow call
for whose reply all later requests wait. Handlers that return a `Response` run inside
`data_received`, and all replies of one read leave in one write.
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from typing import Final, TypeAlias, cast

from nsqd.http.parser import (
    BETWEEN,
    FEED_SLICE_BYTES,
    HEAD,
    BeforeHook,
    HttpLimits,
    Phase,
    RequestParser,
)
from nsqd.http.routes import BAD_REQUEST, HttpError, Request, Response, Route, Router, answer
from nsqd.runtime.listen import format_address

# Replies are handed to the transport at this size even if more are to come from the same read,
# so that a client that does not read is noticed before the rest is computed.
FLUSH_BYTES: Final = 64 * 1024

# A connection closed with input unread resets, and the client may lose the reply that told it
# why. So the rest of the input is read and dropped for a while.
LINGER_BYTES: Final = 16 * 1024 * 1024
LINGER_TIMEOUT_S: Final = 5.0

# Beyond the maximum, this many connections at a time are told why before they are closed.
MAX_REFUSED_CONNECTIONS: Final = 64

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_REQUEST_TIMEOUT = Route.refusal(408, "REQUEST_TIMEOUT")
_TOO_MANY_CONNECTIONS = Route.refusal(503, "TOO_MANY_CONNECTIONS")

_NOTHING = memoryview(b"")

RequestHook: TypeAlias = Callable[[Request, Response, float], None]


class _State(enum.Enum):
    """OPEN takes requests; LINGERING has sent its last reply and drops input; CLOSING flushes."""

    OPEN = enum.auto()
    LINGERING = enum.auto()
    CLOSING = enum.auto()


# As in `parser.py`: globals, as looking up an Enum's attribute costs too much.
_OPEN: Final = _State.OPEN
_LINGERING: Final = _State.LINGERING
_CLOSING: Final = _State.CLOSING


class HttpService:
    """The state that all connections of one server share."""

    def __init__(
        self,
        router: Router,
        *,
        limits: HttpLimits | None = None,
        before: BeforeHook | None = None,
        on_request: RequestHook | None = None,
        max_connections: int | None = None,
        is_tls: bool = False,
    ) -> None:
        self.router = router
        self.limits = limits or HttpLimits()
        self.before = before
        self.on_request = on_request
        self.max_connections = max_connections
        self.is_tls = is_tls
        self.connections: set[HttpConnection] = set()
        self.is_ending = False
        # Called when the last connection is gone.
        self.on_empty: Callable[[], None] | None = None
        self._date_line = b""
        self._date_deadline = 0.0

    def excess_count(self) -> int:
        """Return the number of connections beyond the maximum, those being refused included."""
        return len(self.connections) - self.max_connections if self.max_connections else 0

    def forget(self, connection: HttpConnection) -> None:
        self.connections.discard(connection)
        if self.on_empty is not None and not self.connections:
            self.on_empty()

    def date_line(self, now: float) -> bytes:
        """Return the Date header; the same object within a second, as replies are cached by it."""
        if now >= self._date_deadline:
            timestamp = time.time()
            self._date_line = f"Date: {formatdate(timestamp, usegmt=True)}\r\n".encode()
            self._date_deadline = now + 1.0 - timestamp % 1.0
        return self._date_line


class HttpConnection(asyncio.Protocol):
    """One client: replies in the order of its requests, within the limits of the server."""

    __slots__ = (
        "__weakref__",
        "_deadline",
        "_future",
        "_is_ending",
        "_is_eof",
        "_is_future_ours",
        "_is_reading_paused",
        "_is_write_paused",
        "_linger_bytes",
        "_loop",
        "_out",
        "_out_bytes",
        "_parser",
        "_service",
        "_state",
        "_time",
        "_timed",
        "_timer",
        "_transport",
        "_unparsed",
        "_unsent_bytes",
        "_waiting",
    )

    def __init__(self, service: HttpService, loop: asyncio.AbstractEventLoop) -> None:
        self._service = service
        self._loop = loop
        self._time = loop.time
        self._state: _State = _OPEN
        self._transport: asyncio.Transport | None = None
        self._parser: RequestParser | None = None
        # Read but not parsed, because replies before it do not flow; at most one read's worth.
        self._unparsed = memoryview(b"")
        self._out: list[bytes] = []
        self._out_bytes = 0
        # The slow call under way, and the request it answers.
        self._future: asyncio.Future[Response] | None = None
        self._waiting: tuple[Request, float] | None = None
        self._is_future_ours = False
        self._is_write_paused = False
        self._is_reading_paused = False
        self._is_eof = False
        # Set when the server stops: the reply under way is the last.
        self._is_ending = False
        self._linger_bytes = 0
        # The one timer is not moved when the deadline is put off; it starts anew when it fires.
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0
        # Which part of which request the deadline is for.
        self._timed: tuple[int, Phase] | None = None
        self._unsent_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        service = self._service
        self._parser = RequestParser(
            service.router,
            service.limits,
            format_address(transport.get_extra_info("peername")),
            is_tls=service.is_tls,
            before=service.before,
        )
        service.connections.add(self)
        self._arm(self._time() + service.limits.idle_timeout_s)
        excess_count = service.excess_count()
        if excess_count > MAX_REFUSED_CONNECTIONS or service.is_ending:
            self._transport.abort()
        elif excess_count > 0:
            self._parser.refuse(_TOO_MANY_CONNECTIONS)
            self._pump()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        future, self._future = self._future, None
        if future is not None and self._is_future_ours:
            future.cancel()
        self._state = _CLOSING
        self._out.clear()
        self._unparsed = _NOTHING
        if self._parser is not None:
            self._parser.close()
        self._transport = None
        self._service.forget(self)

    def data_received(self, data: bytes) -> None:
        if self._state is not _OPEN:
            self._drop(len(data))
            return
        parser = self._parser
        assert parser is not None
        if len(data) <= FEED_SLICE_BYTES and not self._is_blocked():
            parser.feed(data)
        else:
            self._unparsed = memoryview(bytes(self._unparsed) + data)
        self._pump()

    def eof_received(self) -> bool:
        if self._state is not _OPEN:
            return False
        self._is_eof = True
        self._pump()
        # Half open while a reply is due; TLS has no such state.
        return not self._service.is_tls

    def pause_writing(self) -> None:
        self._is_write_paused = True
        self._watch_output()

    def resume_writing(self) -> None:
        self._is_write_paused = False
        if self._state is _OPEN:
            self._timed = None
            self._pump()

    def end(self) -> None:
        """Close now if idle, else after the replies under way."""
        self._is_ending = True
        if self._state is _OPEN and not self._is_busy():
            self._close()

    def abort(self) -> None:
        """Close without waiting for anything."""
        if self._transport is not None:
            self._transport.abort()

    def _is_blocked(self) -> bool:
        return self._future is not None or self._is_write_paused

    def _is_busy(self) -> bool:
        parser = self._parser
        assert parser is not None
        is_reading = parser.phase is not BETWEEN or bool(self._unparsed)
        return is_reading or bool(parser.ready) or self._is_blocked()

    def _pump(self) -> None:
        """Parse and answer until there is nothing to parse or replies stop flowing."""
        parser = self._parser
        assert parser is not None
        ready = parser.ready
        while self._state is _OPEN:
            while ready and self._future is None and not self._is_write_paused:
                self._respond(ready.popleft())
            if self._is_blocked() or not self._feed_more(parser):
                break
        if self._state is _OPEN:
            self._flush()
            self._set_reading()
            self._set_deadline(parser)

    def _feed_more(self, parser: RequestParser) -> bool:
        """Take the next step of the input, if there is one; nothing waits to be answered."""
        if self._unparsed:
            parser.feed(self._unparsed[:FEED_SLICE_BYTES])
            self._unparsed = self._unparsed[FEED_SLICE_BYTES:]
            return True
        if parser.is_continue_due:
            parser.is_continue_due = False
            self._send(_CONTINUE)
        if self._is_eof and parser.phase is BETWEEN:
            self._close()
        elif self._is_eof:
            parser.refuse(BAD_REQUEST)
            return True
        return False

    def _respond(self, request: Request) -> None:
        route = request.route
        started = 0.0 if route.is_quiet else time.perf_counter()
        reply = answer(request, route.handler, request)
        if isinstance(reply, Response):
            self._reply(request, reply, started)
        else:
            self._wait_for(request, reply, started)

    def _wait_for(self, request: Request, reply: Awaitable[Response], started: float) -> None:
        """Let the rest of the connection wait for a slow call."""
        future = answer(request, self._schedule, reply)
        if isinstance(future, Response):
            self._reply(request, future, started)
            return
        self._future = future
        self._is_future_ours = future is not reply
        self._waiting = (request, started)
        future.add_done_callback(self._finish_waiting)

    def _schedule(self, reply: Awaitable[Response]) -> asyncio.Future[Response]:
        return asyncio.ensure_future(reply, loop=self._loop)

    def _finish_waiting(self, future: asyncio.Future[Response]) -> None:
        assert self._waiting is not None
        request, started = self._waiting
        self._waiting = None
        is_lost = self._future is None
        self._future = None
        if future.cancelled():
            reply = Response.error(HttpError(503, "CANCELLED"), request.route.style)
        else:
            # Also if the client has left: the error of a handler has to be logged.
            reply = answer(request, _get_response, future)
        if not is_lost:
            self._reply(request, reply, started)
            self._timed = None
            self._pump()

    def _reply(self, request: Request, response: Response, started: float) -> None:
        service = self._service
        style = request.route.style
        date_line = service.date_line(self._time())
        parser = self._parser
        assert parser is not None
        if self._is_ending and not parser.ready:
            request.end_connection()
        if not request.reply_lines and request.raw_method != b"HEAD":
            self._send(response.encode(style, date_line))
        else:
            self._send(response.encode_head(style, date_line, request.reply_lines))
            if request.raw_method != b"HEAD":
                self._send(response.body)
        if service.on_request is not None and not request.route.is_quiet:
            service.on_request(request, response, time.perf_counter() - started)
        if request.is_last:
            self._finish(parser)

    def _send(self, data: bytes) -> None:
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes >= FLUSH_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._out:
            assert self._transport is not None
            self._transport.write(self._out[0] if len(self._out) == 1 else b"".join(self._out))
            self._out.clear()
            self._out_bytes = 0

    def _finish(self, parser: RequestParser) -> None:
        """Close after the last reply, at once unless the client may still be sending."""
        self._flush()
        is_mid_input = parser.has_refused or parser.phase is not BETWEEN or self._unparsed
        parser.ready.clear()
        self._unparsed = _NOTHING
        if self._is_eof or not is_mid_input:
            self._close()
            return
        assert self._transport is not None
        self._state = _LINGERING
        self._set_reading()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._arm(self._time() + LINGER_TIMEOUT_S)

    def _drop(self, size_bytes: int) -> None:
        self._linger_bytes += size_bytes
        if self._linger_bytes > LINGER_BYTES:
            self._close()

    def _close(self) -> None:
        self._state = _CLOSING
        if self._transport is not None:
            self._flush()
            self._watch_output()
            self._transport.close()

    def _set_reading(self) -> None:
        """Read on unless input is waiting for output."""
        assert self._transport is not None
        if bool(self._unparsed) != self._is_reading_paused:
            self._is_reading_paused = not self._is_reading_paused
            if self._is_reading_paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _watch_output(self) -> None:
        assert self._transport is not None
        self._unsent_bytes = self._transport.get_write_buffer_size()
        self._arm(self._time() + self._service.limits.write_timeout_s)

    def _set_deadline(self, parser: RequestParser) -> None:
        limits = self._service.limits
        if self._is_blocked():
            if not self._is_write_paused:
                self._deadline = self._time() + limits.idle_timeout_s
        elif parser.phase is BETWEEN:
            self._deadline = self._time() + limits.idle_timeout_s
        else:
            timed = (parser.request_count, parser.phase)
            if timed != self._timed:
                self._timed = timed
                is_head = parser.phase is HEAD
                timeout_s = limits.header_timeout_s if is_head else limits.body_timeout_s
                self._arm(self._time() + timeout_s)

    def _arm(self, deadline: float) -> None:
        self._deadline = deadline
        if self._timer is not None:
            if self._timer.when() <= deadline:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = self._time()
        if now < self._deadline:
            self._arm(self._deadline)
        elif self._state is _LINGERING:
            self._close()
        elif self._state is _CLOSING or self._is_write_paused:
            self._check_output()
        elif self._future is not None:
            self._arm(now + self._service.limits.idle_timeout_s)
        else:
            self._expire_input()

    def _check_output(self) -> None:
        """Abort if the client has read nothing since the last look."""
        assert self._transport is not None
        if self._transport.get_write_buffer_size() < self._unsent_bytes:
            self._watch_output()
        else:
            self._transport.abort()

    def _expire_input(self) -> None:
        parser = self._parser
        assert parser is not None
        if parser.phase is BETWEEN:
            self._close()
        else:
            parser.refuse(_REQUEST_TIMEOUT)
            self._pump()


def _get_response(future: asyncio.Future[Response]) -> Response:
    response: object = future.result()
    if not isinstance(response, Response):
        raise TypeError(f"a handler answered with {type(response).__name__}")
    return response
