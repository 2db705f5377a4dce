"""One HTTP connection: replies in order, timeouts and flow control. `server.py` listens.

A connection owns its parser with the queue of requests, its input that waits to be parsed, its
output, its deadline, and at most one slow call, for whose reply all later requests wait. Handlers
that return a `Response` run inside `data_received`, and all replies of one read leave in one write.
Of many requests in one read, those of a slice are answered at once, the rest in later turns of the
loop (nsqd.runtime.turns).
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Awaitable, Callable, Iterator
from email.utils import formatdate
from functools import partial
from time import perf_counter as clock
from typing import Final, TypeAlias, cast

from nsqd.http.file_body import FileBody, FileSend, FileThreads
from nsqd.http.known_heads import KnownHeads
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
from nsqd.runtime.descriptors import HTTP_RESERVE_COUNT, Descriptors
from nsqd.runtime.door_counts import DoorCounts, Failure
from nsqd.runtime.listen import format_address
from nsqd.runtime.turns import turns_of

# Replies are handed to the transport at this size even if more are to come from the same read,
# so that a client that does not read is noticed before the rest is computed.
FLUSH_BYTES: Final = 64 * 1024

# A connection closed with input unread resets, and the client may lose the reply that told it
# why. So the rest of the input is read and dropped for a while.
LINGER_BYTES: Final = 16 * 1024 * 1024
LINGER_TIMEOUT_S: Final = 5.0

# Beyond the maximum, this many connections at a time are told why before they are closed.
MAX_REFUSED_CONNECTIONS: Final = 64

# Replies and parts of this size are not copied to be joined: 500 MB would take 0.2 s.
LARGE_BYTES: Final = 1024 * 1024

# The end of a slice for a lone request.
_NEVER: Final = float("inf")

_LAST_CHUNK = b"0\r\n\r\n"
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
        counts: DoorCounts | None = None,
        descriptors: Descriptors | None = None,
    ) -> None:
        self.router = router
        self.limits = limits or HttpLimits()
        self.before = before
        self.on_request = on_request
        self.max_connections = max_connections
        self.is_tls = is_tls
        self.counts = counts or DoorCounts()
        self.descriptors = descriptors
        self.connections: set[HttpConnection] = set()
        self.is_ending = False
        self.file_threads = FileThreads()
        self.heads = KnownHeads()
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

    def send_file(
        self,
        head: bytes,
        body: FileBody,
        transport: asyncio.Transport,
        on_end: Callable[[Exception | None], None],
    ) -> FileSend:
        """Send a reply with a file; the rest of the connection waits until `on_end` is called."""
        pool = self.file_threads.pool()
        send = FileSend(head, body, transport, pool, self.limits.write_timeout_s)
        send.start(on_end, is_tls=self.is_tls)
        return send

    def date_line(self, now: float) -> bytes:
        """Return the Date header; the same object within a second, as replies are cached by it."""
        if now >= self._date_deadline:
            timestamp = time.time()
            self._date_line = f"Date: {formatdate(timestamp, usegmt=True)}\r\n".encode()
            self._date_deadline = now + 1.0 - timestamp % 1.0
        return self._date_line


class _Deadline:
    """The one timer of a connection.

    `at` may be put off without a call: the timer stays as it is, and starts anew if it fires early.
    """

    __slots__ = ("_loop", "_on_reached", "_timer", "at", "subject")

    def __init__(self, loop: asyncio.AbstractEventLoop, on_reached: Callable[[], None]) -> None:
        self._loop = loop
        self._on_reached: Callable[[], None] | None = on_reached
        self._timer: asyncio.TimerHandle | None = None
        self.at = 0.0
        # The number of the request and its part that must arrive by then; None: no such part.
        self.subject: tuple[int, Phase] | None = None

    def set(self, at: float) -> None:
        """Have this deadline instead of the one before, even if it is earlier."""
        self.at = at
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._on_timer)

    def close(self) -> None:
        """Have no deadline any more, and let go of the callback: it refers to the connection."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._on_reached = None

    def _on_timer(self) -> None:
        self._timer = None
        if self._loop.time() < self.at:
            self.set(self.at)
        elif self._on_reached is not None:
            self._on_reached()


class _SlowCall:
    """A request whose handler has promised its reply for later."""

    __slots__ = ("_on_done", "_task", "request", "started")

    def __init__(
        self,
        request: Request,
        started: float,
        on_done: Callable[[_SlowCall, asyncio.Future[Response]], None],
    ) -> None:
        """Remember the request; `start` gives it the promise.

        Args:
            started: when the handler was called.
            on_done: called with the call and its future, unless the call was abandoned.
        """
        self.request = request
        self.started = started
        self._on_done: Callable[[_SlowCall, asyncio.Future[Response]], None] | None = on_done
        # Only a task made here. A handler's own future is not kept, as it refers to this call.
        self._task: asyncio.Future[Response] | None = None

    def start(self, reply: Awaitable[Response], loop: asyncio.AbstractEventLoop) -> None:
        """Wait for a reply.

        Raises:
            TypeError: the handler answered with an object that cannot be awaited.
            ValueError: it answered with the future of another loop.
        """
        future = asyncio.ensure_future(reply, loop=loop)
        if future is not reply:
            self._task = future
        future.add_done_callback(self._on_future_done)

    def abandon(self) -> None:
        """Cancel the task if one was made here, but no future of a handler: others may wait too."""
        self._on_done = None
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    def read_reply(self, future: asyncio.Future[Response]) -> Response:
        """Return the handler's reply, or the reply to the error that it raised."""
        if future.cancelled():
            return Response.error(HttpError(503, "CANCELLED"), self.request.route.style)
        reply = answer(self.request, _get_response, future)
        error = future.exception()
        if error is not None:
            # The traceback's frames refer to the future, and it to the error: the garbage collector
            # is off.
            error.__traceback__ = None
        return reply

    def _on_future_done(self, future: asyncio.Future[Response]) -> None:
        self._task = None
        on_done, self._on_done = self._on_done, None
        if on_done is not None:
            on_done(self, future)
        else:
            # The client has left, but an error of the handler has to be logged.
            self.read_reply(future)


class _Backlog:
    """Input that is read but not parsed, because replies before it do not flow or take long.

    At most one read's worth: the transport does not read on while there is any.
    """

    __slots__ = ("_is_reading_paused", "_transport", "unparsed")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport: asyncio.Transport | None = transport
        self._is_reading_paused = False
        self.unparsed = _NOTHING

    def add(self, data: bytes) -> None:
        self.unparsed = memoryview(bytes(self.unparsed) + data)

    def pop_slice(self) -> memoryview:
        """Remove and return as much as the parser takes at once."""
        piece = self.unparsed[:FEED_SLICE_BYTES]
        self.unparsed = self.unparsed[FEED_SLICE_BYTES:]
        return piece

    def clear(self) -> None:
        self.unparsed = _NOTHING

    def set_reading(self, *, is_in_line: bool = False) -> None:
        """Let the transport read on, unless there is a backlog or the connection is in line."""
        if (is_in_line or bool(self.unparsed)) != self._is_reading_paused:
            assert self._transport is not None
            self._is_reading_paused = not self._is_reading_paused
            if self._is_reading_paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def close(self) -> None:
        """Drop the input and let go of the transport."""
        self.unparsed = _NOTHING
        self._transport = None


class _Output:
    """Replies on their way to the client: collected here, then handed to the transport at once."""

    __slots__ = ("_parts", "_size_bytes", "_transport", "_unsent_bytes", "is_paused")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport: asyncio.Transport | None = transport
        self._parts: list[bytes] = []
        self._size_bytes = 0
        self._unsent_bytes = 0
        # Set by the connection while the transport takes no more: the client does not read.
        self.is_paused = False

    def send(self, data: bytes) -> None:
        self._parts.append(data)
        self._size_bytes += len(data)
        if self._size_bytes >= FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Hand all parts to the transport: small ones in one write, large ones uncopied."""
        parts = self._parts
        if parts:
            assert self._transport is not None
            if self._size_bytes < LARGE_BYTES:
                self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))
            else:
                for part in parts:
                    self._transport.write(part)
            parts.clear()
            self._size_bytes = 0

    def note_unsent(self) -> None:
        """Remember how many bytes the transport holds, for `has_moved`."""
        assert self._transport is not None
        self._unsent_bytes = self._transport.get_write_buffer_size()

    def has_moved(self) -> bool:
        """Return whether the client has read any byte since `note_unsent`."""
        assert self._transport is not None
        return self._transport.get_write_buffer_size() < self._unsent_bytes

    def close(self) -> None:
        """Drop the parts and let go of the transport."""
        self._parts.clear()
        self._transport = None


class _Stream:
    """A reply under way whose parts are made while the client reads them."""

    __slots__ = ("_source", "request")

    def __init__(self, request: Request, source: Iterator[bytes]) -> None:
        self.request = request
        self._source = source

    def make_part(self) -> bytes | None:
        """Return the next part as it is sent, None after the end.

        An error that ends the source is logged; the reply stays incomplete then.

        Raises:
            BrokenPipeError: there was such an error.
        """
        part = answer(self.request, _next_part, self._source)
        if isinstance(part, Response):
            raise BrokenPipeError
        return None if part is None else self.frame(part)

    def frame(self, part: bytes) -> bytes:
        """Return a part, none of them empty, as it is sent."""
        return b"%x\r\n%b\r\n" % (len(part), part) if self.request.has_chunks else part


class HttpConnection(asyncio.Protocol):
    """One client: replies in the order of its requests, within the limits of the server."""

    __slots__ = (
        "__weakref__",
        "_backlog",
        "_deadline",
        "_is_ending",
        "_is_eof",
        "_is_in_line",
        "_limits",
        "_linger_bytes",
        "_loop",
        "_output",
        "_parser",
        "_service",
        "_slow_call",
        "_state",
        "_stream",
        "_time",
        "_transport",
        "_turns",
    )

    # Made when the transport is there: a client whose TLS handshake fails never has one, and its
    # connection would not be told to break the circle of references through the deadline.
    _backlog: _Backlog
    _deadline: _Deadline
    _output: _Output
    _parser: RequestParser

    def __init__(self, service: HttpService, loop: asyncio.AbstractEventLoop) -> None:
        self._service = service
        self._limits = service.limits
        self._loop = loop
        self._time = loop.time
        self._turns = turns_of(loop)
        self._is_in_line = False  # for a turn, with requests left
        self._state: _State = _OPEN
        self._transport: asyncio.Transport | None = None
        self._slow_call: _SlowCall | FileSend | None = None
        self._stream: _Stream | None = None
        self._is_eof = False
        # Set when the server stops: the reply under way is the last.
        self._is_ending = False
        self._linger_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        service = self._service
        self._parser = RequestParser(
            service.router,
            service.limits,
            format_address(transport.get_extra_info("peername")),
            is_tls=service.is_tls,
            before=service.before,
            heads=service.heads,
        )
        self._transport = cast(asyncio.Transport, transport)
        self._backlog = _Backlog(self._transport)
        self._output = _Output(self._transport)
        self._deadline = _Deadline(self._loop, self._on_deadline)
        service.connections.add(self)
        self._deadline.set(self._time() + self._limits.idle_timeout_s)
        excess_count = service.excess_count()
        descriptors = service.descriptors
        if descriptors is not None and descriptors.is_scarce(transport, HTTP_RESERVE_COUNT):
            service.counts.failures[Failure.NO_DESCRIPTORS] += 1
            self._transport.abort()
        elif excess_count > MAX_REFUSED_CONNECTIONS or service.is_ending:
            service.counts.failures[Failure.TOO_MANY] += excess_count > 0
            self._transport.abort()
        elif excess_count > 0:
            service.counts.failures[Failure.TOO_MANY] += 1
            self._parser.refuse(_TOO_MANY_CONNECTIONS)
            self._pump()

    def connection_lost(self, exc: Exception | None) -> None:
        self._state = _CLOSING
        if self._transport is not None:
            self._transport = None
            self._deadline.close()
            self._output.close()
            self._backlog.close()
            self._parser.close()
        self._stream = None
        call, self._slow_call = self._slow_call, None
        if call is not None:
            call.abandon()
        self._service.forget(self)

    def data_received(self, data: bytes) -> None:
        if self._state is not _OPEN:
            self._linger_bytes += len(data)
            if self._linger_bytes > LINGER_BYTES:
                self._close()
            return
        if self._is_blocked() or len(data) > FEED_SLICE_BYTES:
            self._backlog.add(data)
        elif (request := self._parser.find_repeated(data)) is not None:
            self._respond(request)
            if not request.is_last and not self._is_blocked():
                # It was alone: there is nothing else that `_pump` would have to look at.
                self._output.flush()
                self._deadline.at = self._time() + self._limits.idle_timeout_s
                return
        else:
            self._parser.feed(data)
        self._pump()

    def eof_received(self) -> bool:
        if self._state is not _OPEN:
            return False
        self._is_eof = True
        self._pump()
        # Half open while a reply is due; TLS has no such state.
        return not self._service.is_tls

    def pause_writing(self) -> None:
        self._output.is_paused = True
        self._watch_output()

    def resume_writing(self) -> None:
        self._output.is_paused = False
        if self._state is _OPEN:
            self._deadline.subject = None
            self._pump()

    def end(self) -> None:
        """Close now if idle, else after the replies under way."""
        self._is_ending = True
        parser = self._parser
        is_reading = parser.phase is not BETWEEN or bool(self._backlog.unparsed)
        is_busy = is_reading or bool(parser.ready) or self._is_blocked()
        if self._state is _OPEN and not is_busy:
            self._close()

    def abort(self) -> None:
        """Close without waiting for anything."""
        if self._transport is not None:
            self._transport.abort()

    def _is_blocked(self) -> bool:
        is_under_way = self._slow_call is not None or self._stream is not None
        return is_under_way or self._output.is_paused

    def _pump(self) -> None:
        """Parse and answer until the slice ends, there is nothing to parse, or no reply flows."""
        parser = self._parser
        has_much = len(parser.ready) > 1 or bool(self._backlog.unparsed) or self._stream is not None
        is_left = self._answer_until(self._turns.slice_end() if has_much else _NEVER)
        if is_left and not self._is_in_line:
            self._is_in_line = True
            self._turns.share(self._take_turn)
        if self._state is _OPEN:
            self._output.flush()
            self._backlog.set_reading(is_in_line=self._is_in_line)
            self._set_deadline(parser)

    def _answer_until(self, end: float) -> bool:
        """Parse and answer requests; return whether the time was too short for all of them."""
        parser = self._parser
        output = self._output
        ready = parser.ready
        while self._state is _OPEN:
            if self._stream is not None and not self._send_on(self._stream, end):
                return not output.is_paused
            while ready and self._slow_call is None and not output.is_paused:
                self._respond(ready.popleft())
                if self._stream is not None or clock() >= end:
                    return True
            if self._is_blocked() or not self._feed_more(parser):
                return False
            if clock() >= end:
                return True
        return False

    def _send_on(self, stream: _Stream, end: float) -> bool:
        """Send parts until the slice ends or the client does not read; say whether it was all."""
        output = self._output
        try:
            while not output.is_paused:
                part = stream.make_part()
                if part is None:
                    self._stream = None
                    if stream.request.has_chunks:
                        output.send(_LAST_CHUNK)
                    if stream.request.is_last:
                        self._finish(self._parser)
                    return True
                output.send(part)
                if clock() >= end:
                    return False
        except BrokenPipeError:
            self._stream = None
            self.abort()
            return True
        return False

    def _take_turn(self) -> bool:
        self._is_in_line = False
        if self._state is _OPEN:
            self._pump()
        return False

    def _feed_more(self, parser: RequestParser) -> bool:
        """Take the next step of the input, if there is one; nothing waits to be answered."""
        if self._backlog.unparsed:
            parser.feed(self._backlog.pop_slice())
            return True
        if parser.is_continue_due:
            parser.is_continue_due = False
            self._output.send(_CONTINUE)
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
            return
        # The rest of the connection waits for it.
        call = _SlowCall(request, started, self._finish_slow_call)
        refusal = answer(request, partial(call.start, loop=self._loop), reply)
        if refusal is None:
            self._slow_call = call
        else:
            self._reply(request, refusal, started)

    def _finish_slow_call(self, call: _SlowCall, future: asyncio.Future[Response]) -> None:
        self._slow_call = None
        self._reply(call.request, call.read_reply(future), call.started)
        self._deadline.subject = None
        self._pump()

    def _reply(self, request: Request, response: Response, started: float) -> None:
        service = self._service
        if self._is_ending and not self._parser.ready:
            request.end_connection()
        if response.source is not None:
            request.begin_stream()
        self._send(request, response, service.date_line(self._time()))
        if response.status >= 400:
            service.counts.note_status(response.status)
        if service.on_request is not None and not request.route.is_quiet:
            service.on_request(request, response, time.perf_counter() - started)
        if request.is_last and self._stream is None and self._slow_call is None:
            self._finish(self._parser)

    def _send(self, request: Request, response: Response, date_line: bytes) -> None:
        """Send a reply, or its beginning if the rest is made or read while the client reads it."""
        output = self._output
        style = request.route.style
        is_small = len(response.body) < LARGE_BYTES and not response.more and response.file is None
        is_head = request.raw_method == b"HEAD"
        if not request.reply_lines and not is_head and is_small:
            output.send(response.encode(style, date_line))
            return
        head = response.encode_head(style, date_line, request.reply_lines)
        if response.file is not None and not is_head:
            output.flush()
            assert self._transport is not None
            on_end = partial(self._end_file, request)
            self._slow_call = self._service.send_file(head, response.file, self._transport, on_end)
            return
        output.send(head)
        if response.source is not None and not is_head:
            self._stream = _Stream(request, response.source)
            output.send(self._stream.frame(response.body))
        elif not is_head:
            output.send(response.body)
            for part in response.more:
                output.send(part)

    def _end_file(self, request: Request, error: Exception | None) -> None:
        self._slow_call = None
        if error is not None or self._transport is None:
            self.abort()
        elif request.is_last:
            self._finish(self._parser)
        else:
            self._deadline.subject = None
            self._pump()

    def _finish(self, parser: RequestParser) -> None:
        """Close after the last reply, at once unless the client may still be sending."""
        self._output.flush()
        is_mid_input = parser.has_refused or parser.phase is not BETWEEN or self._backlog.unparsed
        parser.ready.clear()
        self._backlog.clear()
        if self._is_eof or not is_mid_input:
            self._close()
            return
        assert self._transport is not None
        self._state = _LINGERING
        self._backlog.set_reading()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._deadline.set(self._time() + LINGER_TIMEOUT_S)

    def _close(self) -> None:
        self._state = _CLOSING
        if self._transport is not None:
            self._output.flush()
            self._watch_output()
            self._transport.close()

    def _watch_output(self) -> None:
        """Give the client the time of a write timeout to read some of its replies."""
        self._output.note_unsent()
        self._deadline.set(self._time() + self._limits.write_timeout_s)

    def _set_deadline(self, parser: RequestParser) -> None:
        limits = self._limits
        if self._is_blocked():
            if not self._output.is_paused:
                self._deadline.at = self._time() + limits.idle_timeout_s
        elif parser.phase is BETWEEN:
            self._deadline.at = self._time() + limits.idle_timeout_s
        else:
            subject = (parser.request_count, parser.phase)
            if subject != self._deadline.subject:
                self._deadline.subject = subject
                is_head = parser.phase is HEAD
                timeout_s = limits.header_timeout_s if is_head else limits.body_timeout_s
                self._deadline.set(self._time() + timeout_s)

    def _on_deadline(self) -> None:
        if self._state is _LINGERING:
            self._close()
        elif self._state is _CLOSING or self._output.is_paused:
            if self._output.has_moved():
                self._watch_output()
            else:
                self.abort()
        elif self._slow_call is not None or self._is_in_line:
            self._deadline.set(self._time() + self._limits.idle_timeout_s)
        elif self._parser.phase is BETWEEN:
            self._close()  # it was idle
        else:
            self._parser.refuse(_REQUEST_TIMEOUT)
            self._pump()


def _next_part(source: Iterator[bytes]) -> bytes | None:
    return next(filter(None, source), None)


def _get_response(future: asyncio.Future[Response]) -> Response:
    response: object = future.result()
    if not isinstance(response, Response):
        raise TypeError(f"a handler answered with {type(response).__name__}")
    return response
