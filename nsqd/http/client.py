"""HttpClient: HTTP/1.1 requests to other daemons, on the event loop, over kept connections.

nsqd asks its auth servers and its nsqlookupds with it. Every request has a time limit, every reply
a bound on its head and on its body. Redirects are replies like any other: they are not followed.
No error text quotes a request, since the target or the body may hold a secret.

`HttpClient` turns a request into bytes for a `_Connection`, which feeds the answer to a
`ReplyParser` (llhttp does the grammar). Bodies are held whole in memory; reading one as a stream
would begin in `ReplyParser.on_body`.
"""

from __future__ import annotations

import asyncio
import base64
import enum
import json
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NoReturn, cast
from urllib.parse import unquote_to_bytes, urlsplit

import httptools

V1_ACCEPT: Final = "application/vnd.nsq; version=1.0"

MAX_HEADER_COUNT: Final = 128
# The reply is parsed in slices of this size, and the bounds are checked after each.
_FEED_SLICE_BYTES: Final = 16 * 1024
# Chunk lengths and trailers may take this many bytes for each byte of the body.
_MAX_CHUNK_OVERHEAD_RATIO: Final = 8

_PORTS: Final = {"http": 80, "https": 443}
_HOST: Final = re.compile(r"[\w.:%-]{1,255}", re.ASCII)
_TARGET: Final = re.compile(r"/[!-~]*")
_LINE_BREAK: Final = re.compile(r"[\r\n]")
_BODILESS_STATUSES: Final = frozenset({204, 304})
# Whether a request with this method does the same if it is sent twice; a POST may publish twice.
_METHODS: Final = {"GET": True, "PUT": True, "DELETE": True, "POST": False}


class UrlError(ValueError):
    """A URL that cannot be requested; the text says why and quotes nothing of the URL."""


class BadReplyError(Exception):
    """The server's answer is no HTTP, breaks a bound, or ends too early; the text says which."""


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """How long a request may take, how large its reply may be, how much is kept open."""

    connect_timeout_s: float = 2.0  # name, TCP and TLS; 0 is no limit
    request_timeout_s: float = 5.0  # from the call to the last byte of the reply; 0 is no limit
    max_head_bytes: int = 64 * 1024  # of status line and headers, interim replies included
    max_body_bytes: int = 1 << 20
    max_idle_connections: int = 16  # to all servers together; the oldest is closed first
    idle_timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Url:
    """Where a request goes: a server, and the target that it is asked for."""

    scheme: str  # http or https
    host: str  # an IPv6 address has no brackets
    port: int
    target: str = "/"
    credentials: bytes | None = field(default=None, repr=False)  # user:password, for Basic auth

    def __post_init__(self) -> None:
        if self.scheme not in _PORTS:
            raise UrlError("not an http or https URL")
        if not _HOST.fullmatch(self.host):
            raise UrlError("no host, or not a host's name")
        if not 0 < self.port < 0x10000:
            raise UrlError("bad port")
        if not _TARGET.fullmatch(self.target):
            raise UrlError("a character in the URL that must be escaped")

    @classmethod
    def parse(cls, text: str) -> Url:
        """Take a URL apart.

        Raises:
            UrlError: it is none.
        """
        try:
            parts = urlsplit(text)
            port = parts.port
            host = parts.hostname or ""
            if not host.isascii():
                host = host.encode("idna").decode("ascii")
        except ValueError as error:
            raise UrlError("not a URL") from error
        if parts.scheme not in _PORTS:
            raise UrlError("not an http or https URL")
        credentials = None
        if parts.username is not None:
            user, password = parts.username, parts.password or ""
            credentials = unquote_to_bytes(user) + b":" + unquote_to_bytes(password)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return cls(parts.scheme, host, port or _PORTS[parts.scheme], target, credentials)

    @property
    def origin(self) -> tuple[str, str, int]:
        """What a kept connection may be used for."""
        return self.scheme, self.host, self.port

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete answer."""

    status: int
    headers: Mapping[bytes, bytes]  # names in lower case; values of one name joined with ", "
    body: bytes

    def json(self) -> object:
        """Decode the body as Go does: broken UTF-8 is replaced, NaN is refused.

        Raises:
            BadReplyError: it is not JSON.
        """
        try:
            value: object = json.loads(
                self.body.decode("utf-8", "replace"), parse_constant=_refuse_constant
            )
        except (ValueError, RecursionError) as error:
            raise BadReplyError("reply is not JSON") from error
        return value


class HttpClient:
    """Sends requests and keeps connections for the next ones. `close` at the end.

    The client bounds what it keeps open, not how many requests are under way: the callers do, so
    that a server that hangs holds up only the requests to it.
    """

    def __init__(
        self, limits: ClientLimits | None = None, *, ssl_context: ssl.SSLContext | None = None
    ) -> None:
        """Args: ssl_context: for https; None trusts the system's authorities."""
        self._limits = limits or ClientLimits()
        self._ssl_context = ssl_context
        # Kept for the next request, the one that was used last at the end.
        self._idle: dict[_Connection, None] = {}
        self._busy: set[_Connection] = set()

    async def request(
        self,
        method: str,
        url: str | Url,
        *,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        is_repeatable: bool | None = None,
    ) -> Reply:
        """Send a request and return the reply; an error status is a reply too.

        Args:
            method: GET, POST, PUT or DELETE.
            is_repeatable: whether the server may get the request twice. Only such a request is sent
                on a kept connection, which the server may be closing; None: all but POST are.

        Raises:
            UrlError: the URL cannot be requested.
            OSError: the server cannot be reached, or has closed; TimeoutError: not in time.
            BadReplyError: the answer is unusable.
        """
        if isinstance(url, str):
            url = Url.parse(url)
        data = _encode_request(method, url, body, headers or {})
        if is_repeatable is None:
            is_repeatable = _METHODS[method]
        timeout_s = self._limits.request_timeout_s
        timer = asyncio.timeout(timeout_s or None)
        try:
            async with timer:
                return await self._send(url, data, is_repeatable=is_repeatable)
        except TimeoutError:
            if timer.expired():
                raise TimeoutError(f"timed out after {timeout_s:g} s") from None
            raise

    async def request_v1(
        self, method: str, url: Url, *, body: bytes = b"", is_repeatable: bool | None = None
    ) -> Reply:
        """Send a request by the rules of NSQ's HTTP APIs, with the same errors as `request`.

        It asks for version 1 of the API. A server that refuses plain HTTP and names its HTTPS port
        is asked there, once.
        """
        headers = {"Accept": V1_ACCEPT}
        if body:
            headers["Content-Type"] = "application/json"
        reply = await self.request(
            method, url, body=body, headers=headers, is_repeatable=is_repeatable
        )
        https_port = _find_https_port(reply) if url.scheme == "http" else None
        if https_port is None:
            return reply
        url = replace(url, scheme="https", port=https_port)
        return await self.request(
            method, url, body=body, headers=headers, is_repeatable=is_repeatable
        )

    def close(self) -> None:
        """Close all connections; requests under way fail."""
        for connection in [*self._idle, *self._busy]:
            connection.abort()
        self._idle.clear()

    async def _send(self, url: Url, data: bytes, *, is_repeatable: bool) -> Reply:
        kept = self._find_idle(url) if is_repeatable else None
        if kept is not None:
            try:
                return await self._exchange(kept, data)
            except _StaleError:
                pass  # The server closed the idle connection: the request goes out again, once.
        return await self._exchange(await self._connect(url), data)

    async def _exchange(self, connection: _Connection, data: bytes) -> Reply:
        self._busy.add(connection)
        try:
            reply = await connection.exchange(data)
        finally:
            # Also when the caller is cancelled: half a reply makes a connection useless.
            self._busy.discard(connection)
            if connection.is_reusable:
                self._keep(connection)
            else:
                connection.abort()
        return reply

    def _keep(self, connection: _Connection) -> None:
        if len(self._idle) >= self._limits.max_idle_connections:
            oldest = next(iter(self._idle))
            del self._idle[oldest]
            oldest.abort()
        self._idle[connection] = None
        connection.rest(self._limits.idle_timeout_s)

    def _find_idle(self, url: Url) -> _Connection | None:
        """Take the most recently used connection to the server, if one is kept."""
        for connection in reversed(self._idle):
            if connection.origin == url.origin:
                del self._idle[connection]
                return connection
        return None

    async def _connect(self, url: Url) -> _Connection:
        context = None
        if url.scheme == "https":
            if self._ssl_context is None:
                self._ssl_context = ssl.create_default_context()
            context = self._ssl_context
        loop = asyncio.get_running_loop()
        timeout_s = self._limits.connect_timeout_s
        timer = asyncio.timeout(timeout_s or None)
        try:
            async with timer:
                _, connection = await loop.create_connection(
                    lambda: _Connection(url.origin, self._limits, self._forget),
                    url.host,
                    url.port,
                    ssl=context,
                )
        except TimeoutError:
            if timer.expired():
                raise TimeoutError(f"no connection in {timeout_s:g} s") from None
            raise
        except UnicodeError as error:  # a name with a part of more than 63 characters
            raise UrlError("not a host's name") from error
        return connection

    def _forget(self, connection: _Connection) -> None:
        self._idle.pop(connection, None)


class _StaleError(ConnectionError):
    """The connection ended before a byte of the reply had come."""


class _State(enum.Enum):
    """FRESH and IDLE take a request; BUSY waits for a reply; SPENT is of no more use."""

    FRESH = enum.auto()
    IDLE = enum.auto()
    BUSY = enum.auto()
    SPENT = enum.auto()


class _Connection(asyncio.Protocol):
    """One connection, for one request at a time."""

    def __init__(
        self,
        origin: tuple[str, str, int],
        limits: ClientLimits,
        on_lost: Callable[[_Connection], None],
    ) -> None:
        self.origin = origin
        self._limits = limits
        self._on_lost = on_lost
        self._state = _State.FRESH
        self._transport: asyncio.Transport | None = None
        self._parser: ReplyParser | None = None
        self._waiter: asyncio.Future[None] | None = None
        # Why there will be no reply.
        self._failure: Exception | None = None
        self._idle_timer: asyncio.TimerHandle | None = None

    @property
    def is_reusable(self) -> bool:
        """Whether another request may follow the last one."""
        return self._state is _State.IDLE

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio's, but not their classes.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._state is not _State.BUSY:
            self.abort()  # A reply that was not asked for: the next one could be mistaken for it.
            return
        assert self._parser is not None
        try:
            self._parser.feed(data)
        except BadReplyError as error:
            self._fail(error)
        else:
            if self._parser.is_complete:
                self._wake()

    def eof_received(self) -> bool:
        if self._state is _State.BUSY:
            self._end(None)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._state is _State.BUSY:
            self._end(exc)
        self._state = _State.SPENT
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._on_lost(self)

    # Called by the client.

    async def exchange(self, data: bytes) -> Reply:
        """Send a request and return its reply.

        Raises:
            _StaleError: the connection has ended without a byte of the reply.
            OSError: the connection broke.
            BadReplyError: the answer is unusable.
        """
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        assert self._transport is not None
        if self._state is _State.SPENT or self._transport.is_closing():
            raise _StaleError("closed the connection")
        self._state = _State.BUSY
        self._parser = ReplyParser(self._limits)
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        try:
            await self._waiter
            if self._failure is not None:
                raise self._failure
            return self._finish(self._parser)
        finally:
            if self._state is _State.BUSY:
                self._state = _State.SPENT
            # llhttp holds the parser's bound methods, and a raised error its traceback: these
            # cycles end here, as the daemon runs without a garbage collector.
            self._parser.close()
            self._parser = self._waiter = self._failure = None

    def rest(self, timeout_s: float) -> None:
        """Wait for the next request, for some time."""
        self._idle_timer = asyncio.get_running_loop().call_later(timeout_s, self.abort)

    def abort(self) -> None:
        """Close at once."""
        self._fail(ConnectionAbortedError("the client was closed"))
        if self._transport is not None:
            self._transport.abort()

    def _finish(self, parser: ReplyParser) -> Reply:
        assert self._transport is not None
        is_sent = not self._transport.get_write_buffer_size()
        is_open = self._state is _State.BUSY and not self._transport.is_closing()
        if is_open and is_sent and parser.is_kept_alive:
            self._state = _State.IDLE
        return parser.reply()

    def _end(self, exc: Exception | None) -> None:
        """Handle the end of the input, which is also the end of some bodies."""
        assert self._parser is not None
        if not self._parser.is_complete:
            if not self._parser.has_input:
                reason = "closed the connection" if exc is None else str(exc)
                self._fail(_StaleError(reason))
            elif exc is not None:
                self._fail(exc)
            elif not self._parser.feed_eof():
                self._fail(BadReplyError("the reply has no end"))
        self._state = _State.SPENT
        self._wake()

    def _fail(self, error: Exception) -> None:
        if self._state is _State.BUSY and self._failure is None:
            self._failure = error
        self._state = _State.SPENT
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class ReplyParser:
    """Turns the bytes of one reply into a `Reply`, however they are split. Made for one use."""

    def __init__(self, limits: ClientLimits) -> None:
        self.is_complete = False
        self.has_input = False
        # Whether the server leaves the connection open after this reply.
        self.is_kept_alive = False
        self._limits = limits
        self._status = 0
        self._headers: dict[bytes, bytes] = {}
        self._header_count = 0
        self._body = bytearray()
        self._raw_bytes = 0
        # Set between the head and the end of a body that only the end of the connection ends.
        self._is_until_eof = False
        # llhttp reports any exception of a callback as its own; this is the real one.
        self._error: BadReplyError | None = None
        self._llhttp: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)

    def close(self) -> None:
        """Let go of llhttp, which holds this parser's methods."""
        self._llhttp = None
        self._error = None

    def reply(self) -> Reply:
        """Return the complete reply."""
        assert self.is_complete
        return Reply(self._status, self._headers, bytes(self._body))

    def feed(self, data: bytes) -> None:
        """Parse some input; bytes after the end of the reply are dropped.

        Raises:
            BadReplyError: it is no HTTP, or breaks a bound.
        """
        self.has_input = True
        rest = memoryview(data)
        while rest and not self.is_complete:
            self._execute(rest[:_FEED_SLICE_BYTES])
            self._raw_bytes += min(len(rest), _FEED_SLICE_BYTES)
            rest = rest[_FEED_SLICE_BYTES:]
            framing_bytes = self._raw_bytes - len(self._body)
            overhead_bytes = _MAX_CHUNK_OVERHEAD_RATIO * len(self._body)
            if framing_bytes > self._limits.max_head_bytes + overhead_bytes:
                raise BadReplyError(f"a head of more than {self._limits.max_head_bytes} bytes")

    def feed_eof(self) -> bool:
        """Note the end of the connection; return whether it is an end of the reply too."""
        if self._is_until_eof:
            self.is_complete = True
        return self.is_complete

    def _execute(self, data: memoryview) -> None:
        assert self._llhttp is not None
        try:
            self._llhttp.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise BadReplyError("the server changes the protocol") from None
        except httptools.HttpParserError as error:
            if self.is_complete:
                # Bytes after the reply spoil the connection, but not the reply.
                self.is_kept_alive = False
            elif self._error is not None:
                raise self._error from None
            elif isinstance(error, httptools.HttpParserCallbackError):
                # A callback has failed by a fault of ours, which the caller has to see.
                raise error.__context__ or error from None
            else:
                raise BadReplyError("the reply is not HTTP") from None

    # Called by llhttp.

    def on_message_begin(self) -> None:
        if self.is_complete:
            self._refuse("bytes after the reply")

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers come here too.
        self._header_count += 1
        if self._header_count > MAX_HEADER_COUNT:
            self._refuse(f"more than {MAX_HEADER_COUNT} headers")
        name = name.lower()
        known = self._headers.get(name)
        self._headers[name] = value if known is None else known + b", " + value

    def on_headers_complete(self) -> None:
        assert self._llhttp is not None
        self._status = self._llhttp.get_status_code()
        if self._status < 200:
            return
        coding = self._headers.get(b"transfer-encoding")
        if coding is not None and coding.lower() != b"chunked":
            self._refuse("an unknown transfer coding")
        length = self._headers.get(b"content-length")
        if length is not None and int(length) > self._limits.max_body_bytes:
            self._refuse_body()
        has_end = coding is not None or length is not None or self._status in _BODILESS_STATUSES
        self._is_until_eof = not has_end
        self.is_kept_alive = has_end and self._llhttp.should_keep_alive()

    def on_body(self, part: bytes) -> None:
        self._body += part
        if len(self._body) > self._limits.max_body_bytes:
            self._refuse_body()

    def on_message_complete(self) -> None:
        if self._status < 200:
            self._headers.clear()  # An interim reply, 100 or 103: the real one follows.
            return
        self.is_complete = True

    def _refuse_body(self) -> NoReturn:
        self._refuse(f"reply of more than {self._limits.max_body_bytes} bytes")

    def _refuse(self, text: str) -> NoReturn:
        self._error = BadReplyError(text)
        raise self._error


def _encode_request(method: str, url: Url, body: bytes, headers: Mapping[str, str]) -> bytes:
    lines = {"Host": url.authority, "Accept-Encoding": "identity", **headers}
    if url.credentials is not None:
        lines["Authorization"] = f"Basic {base64.b64encode(url.credentials).decode()}"
    if body or method in ("POST", "PUT"):
        lines["Content-Length"] = str(len(body))
    for name, value in lines.items():
        if _LINE_BREAK.search(name + value):
            raise ValueError(f"line break in header {name!r}")
    head = [f"{method} {url.target} HTTP/1.1", *(f"{name}: {lines[name]}" for name in lines)]
    return "\r\n".join([*head, "", ""]).encode("latin-1") + body


def _find_https_port(reply: Reply) -> int | None:
    """Return the port that a server names which refuses plain HTTP."""
    if reply.status != 403:
        return None
    try:
        fields = reply.json()
    except BadReplyError:
        return None
    port = fields.get("https_port") if isinstance(fields, dict) else None
    return port if type(port) is int and 0 < port < 0x10000 else None


def _refuse_constant(_name: str) -> NoReturn:
    raise ValueError("not JSON")
