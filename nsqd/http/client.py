"""HttpClient: HTTP/1.1 requests to other daemons, on the event loop, over kept connections.

nsqd asks its auth servers and its nsqlookupds with it. Every request has a time limit, every reply
a bound on its head and on its body. Redirects are replies like any other: they are not followed.
No error text quotes a request, since the target or the body may hold a secret.

`HttpClient` turns a request into bytes for a `_Connection`, which feeds the answer to a
`ReplyParser`. Bodies are held whole in memory; reading one as a stream would begin there.
"""

from __future__ import annotations

import asyncio
import base64
import enum
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, cast
from urllib.parse import unquote_to_bytes, urlsplit

from nsqd.http.reply_parser import BadReplyError, Reply, ReplyParser

__all__ = ["BadReplyError", "ClientLimits", "HttpClient", "Reply", "Url", "UrlError"]

V1_ACCEPT: Final = "application/vnd.nsq; version=1.0"

_PORTS: Final = {"http": 80, "https": 443}
_HOST: Final = re.compile(r"[\w.:%-]{1,255}", re.ASCII)
_TARGET: Final = re.compile(r"/[!-~]*")
_LINE_BREAK: Final = re.compile(r"[\r\n]")
# Whether a request with this method does the same if it is sent twice; a POST may publish twice.
_METHODS: Final = {"GET": True, "PUT": True, "DELETE": True, "POST": False}


class UrlError(ValueError):
    """A URL that cannot be requested; the text says why and quotes nothing of the URL."""


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """How long a request may take, how large its reply may be, how much is kept open."""

    connect_timeout_s: float = 2.0  # name, TCP and TLS; 0 is no limit
    request_timeout_s: float = 5.0  # from the call to the last byte of the reply; 0 is no limit
    max_head_bytes: int = 64 * 1024  # of status line and headers, interim replies included
    max_body_bytes: int = 1 << 20
    # To all servers together; the oldest is closed first. 0 keeps none.
    max_idle_connections: int = 16
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
        """The server, as far as a kept connection can be used for its next request."""
        return self.scheme, self.host, self.port

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


class HttpClient:
    """Send requests and keep connections for the next ones. `close` at the end.

    The client bounds the idle connections. The callers bound the requests under way, each for its
    own servers: a server that hangs holds up only the requests to it.
    """

    def __init__(
        self, limits: ClientLimits | None = None, *, ssl_context: ssl.SSLContext | None = None
    ) -> None:
        """Args: ssl_context: for https; None trusts the system's authorities."""
        self._limits = limits or ClientLimits()
        self.ssl_context = ssl_context  # may be replaced
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
        self,
        method: str,
        url: Url,
        *,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        is_repeatable: bool | None = None,
    ) -> Reply:
        """Send a request by the rules of NSQ's HTTP APIs, with the same errors as `request`.

        It asks for version 1 of the API. A server that refuses plain HTTP and names its HTTPS port
        is asked there, once.
        """
        headers = {"Accept": V1_ACCEPT, **(headers or {})}
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
        if not self._limits.max_idle_connections:
            connection.abort()
            return
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
            if self.ssl_context is None:
                self.ssl_context = ssl.create_default_context()
            context = self.ssl_context
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
        self._parser = ReplyParser(
            max_head_bytes=self._limits.max_head_bytes, max_body_bytes=self._limits.max_body_bytes
        )
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
