"""RequestParser: bytes become requests, however they are split. No sockets, no clock.

llhttp (through httptools) does the grammar, strictly; here are the limits, the routing at the end
of the head, and the refusals. Two rules follow from llhttp giving no position and no pause:

- A refusal raises out of the callback and ends the parser for good. It is queued as a request whose
  route is the error, so replies to requests before it keep their order, and it is always the last.
- The caller feeds slices of at most FEED_SLICE_BYTES, which bounds the requests that one call can
  put on the queue, and lets it stop between slices when replies do not flow.
"""

from __future__ import annotations

import enum
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn

import httptools

from nsqd.http.known_heads import KnownHeads
from nsqd.http.routes import BAD_REQUEST, Request, Response, Route, Router, Target, answer

# Some hundred of the smallest requests, which take a millisecond to parse.
FEED_SLICE_BYTES: Final = 8 * 1024

# Chunk lengths, extensions and trailers may take this many bytes for each byte of the body
# (a chunk of one byte takes five), and as much as a head on top.
_MAX_CHUNK_OVERHEAD_RATIO = 8

# A head without these is plain: nothing to look at but the host and the length.
_SPECIAL_HEADERS = frozenset((b"connection", b"transfer-encoding", b"upgrade"))

# RFC 9112, 3.2: a Host that is no uri-host with an optional port is refused; an empty one is not.
_HOST = re.compile(
    rb"(?:\[(?:[0-9A-Fa-f:.]+|v[0-9A-Fa-f]+\.[A-Za-z0-9._~!$&'()*+,;=:-]+)\]"
    rb"|(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(?::[0-9]*)?"
)
# A request line of another protocol, which llhttp takes for one of HTTP.
_OTHER_PROTOCOL = b" RTSP/"
_OTHER_LINE = re.compile(rb"(?:\A|\n)([A-Z_]{1,16} [^ \n]+ RTSP/)")

_NO_TARGET = Target(b"")
_URI_TOO_LONG = Route.refusal(414, "URI_TOO_LONG")
_HEADERS_TOO_LARGE = Route.refusal(431, "HEADERS_TOO_LARGE")
_EXPECTATION_FAILED = Route.refusal(417, "EXPECTATION_FAILED")
_UNKNOWN_CODING = Route.refusal(501, "NOT_IMPLEMENTED")
_UNKNOWN_VERSION = Route.refusal(505, "VERSION_NOT_SUPPORTED")

BeforeHook = Callable[[Request], Response | None]


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Bounds on size and time of a client's requests. Bodies have a limit per route."""

    max_target_bytes: int = 8 * 1024
    max_header_count: int = 128
    max_header_bytes: int = 64 * 1024  # target, names and values of one request
    header_timeout_s: float = 10.0  # from the first byte of a request to the end of its head
    body_timeout_s: float = 60.0  # from there to the end of its body
    # Longer than the 90 s after which Go's client drops an idle connection: if the server is
    # first, a request may already be on its way.
    idle_timeout_s: float = 120.0
    write_timeout_s: float = 30.0  # without the client reading a byte of its replies


class Phase(enum.Enum):
    """Which part of a request comes next."""

    BETWEEN = enum.auto()
    HEAD = enum.auto()
    BODY = enum.auto()


# An attribute of an Enum takes 95 ns to look up in Python 3.11, a global 6, and every request
# passes all three phases.
BETWEEN: Final = Phase.BETWEEN
HEAD: Final = Phase.HEAD
BODY: Final = Phase.BODY


class _Refused(Exception):  # noqa: N818 - leaves llhttp, is never an error of ours
    """Raised in a callback to leave llhttp at once; the refusal is on the queue by then."""


class RequestParser:
    """One connection's requests: feed it bytes, take requests from `ready` in order."""

    __slots__ = (
        "_before",
        "_body",
        "_body_bytes",
        "_cheap_head_bytes",
        "_headers",
        "_heads",
        "_is_tls",
        "_is_upgrade",
        "_known_host",
        "_limits",
        "_llhttp",
        "_max_header_count",
        "_merged_count",
        "_open_line",
        "_raw_bytes",
        "_remote",
        "_request",
        "_router",
        "_url",
        "has_refused",
        "is_continue_due",
        "phase",
        "ready",
        "request_count",
    )

    def __init__(
        self,
        router: Router,
        limits: HttpLimits,
        remote: str,
        *,
        is_tls: bool,
        before: BeforeHook | None = None,
        heads: KnownHeads | None = None,
    ) -> None:
        """Args: heads: shared by the parsers of one server."""
        self._router = router
        self._limits = limits
        self._remote = remote
        self._is_tls = is_tls
        self._before = before
        self._heads = heads or KnownHeads()
        self.ready: deque[Request] = deque()
        self.phase: Phase = BETWEEN
        self.request_count = 0
        # Set for good when a request was refused before its end: no more input is parsed.
        self.has_refused = False
        # Set while the client waits for "100 Continue" to send a body that will be taken.
        self.is_continue_due = False
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._merged_count = 0
        self._request: Request | None = None
        self._body: bytes | bytearray = b""
        self._body_bytes = 0
        # Bytes of earlier slices that went into the current head, or the current body.
        self._raw_bytes = 0
        self._is_upgrade = False
        # The Host of the last request, which the next one mostly has too.
        self._known_host = b""
        # The beginning of a request line whose end has not come yet.
        self._open_line = b""
        # A head of which earlier slices hold no more than this cannot be too large: no need to
        # add it up.
        self._cheap_head_bytes = limits.max_header_bytes - FEED_SLICE_BYTES
        self._max_header_count = limits.max_header_count
        self._llhttp: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)

    def close(self) -> None:
        """Let go of llhttp, which holds our bound methods: the garbage collector is off."""
        self._llhttp = None
        self._request = None
        self.ready.clear()

    def find_repeated(self, data: bytes) -> Request | None:
        """Return the request that these bytes are, if they are exactly one whose head is known.

        It is the same as `feed` would make of them. A producer that waits for each reply sends
        this (bench: http-pub).
        """
        if self.phase is not BETWEEN or self._open_line or self.ready or self.has_refused:
            return None
        head = self._heads.find(data)
        if head is None:
            return None
        request = Request(
            head.method, head.target, head.route, head.headers, self._remote, is_tls=self._is_tls
        )
        if self._before is not None and answer(request, self._before, request) is not None:
            return None
        request.body = data[head.size_bytes :]
        return request

    def feed(self, data: bytes | memoryview) -> None:
        """Parse one slice; complete requests and at most one refusal are then in `ready`."""
        is_first = self.phase is BETWEEN and not self.ready
        rest: bytes | memoryview = data
        if self._open_line or self.phase is BETWEEN:
            line = data if type(data) is bytes else bytes(data)
            if self._open_line or b"\n" not in line or _OTHER_PROTOCOL in line:
                rest = self._check_protocol(line)
        while rest and not self.has_refused:
            rest = self._execute(rest)
        if self.phase is not BETWEEN:
            self._check_partial(len(data))
        elif is_first and len(self.ready) == 1 and type(data) is bytes:
            request = self.ready[0]
            route = self._router.resolve(request.target, request.raw_method)
            self._heads.add(data, request, route)

    def _check_protocol(self, data: bytes) -> bytes:
        """Refuse a request line of RTSP; return what is left to parse of a slice.

        llhttp says nothing of the protocol. A line is a request line if it begins between requests.
        """
        is_begun = bool(self._open_line)
        begun, self._open_line = self._open_line + data, b""
        if _OTHER_PROTOCOL not in begun:
            if b"\n" not in begun and len(begun) <= self._limits.max_target_bytes:
                self._open_line = begun
            return data
        if is_begun and _OTHER_LINE.match(begun):
            self.refuse(BAD_REQUEST)
            return b""
        fed = 0
        for line in _OTHER_LINE.finditer(data):
            rest: bytes | memoryview = data[fed : line.start(1)]
            while rest and not self.has_refused:
                rest = self._execute(rest)
            fed = line.start(1)
            if self.phase is BETWEEN:
                self.refuse(BAD_REQUEST)
                return b""
        return data[fed:]

    def _execute(self, data: bytes | memoryview) -> bytes | memoryview:
        """Run llhttp over the data; return the rest if it stopped early."""
        assert self._llhttp is not None
        try:
            self._llhttp.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return self._decline_upgrade() + bytes(data[upgrade.args[0] :])
        except httptools.HttpParserCallbackError as error:
            # Not by its context, which is another one while the caller handles an exception.
            if not self.has_refused:
                # A callback has failed by a fault of ours, which the caller has to see.
                raise error.__context__ or error from None
        except httptools.HttpParserError:
            self.refuse(BAD_REQUEST)
        return b""

    def refuse(self, route: Route) -> None:
        """Queue an error as the last reply; the rest of the input is not looked at."""
        if self.has_refused:
            return
        request = self._request
        if request is None:
            # The method counts even now: a reply to HEAD has no body.
            method = self._llhttp.get_method() if self._llhttp and self._url else b""
            request = Request(method, _NO_TARGET, route, {}, self._remote, is_tls=self._is_tls)
        self._request = None
        self._body = b""
        request.route = route
        request.end_connection()
        self.has_refused = True
        self.is_continue_due = False
        self.phase = BETWEEN
        self.ready.append(request)

    def on_message_begin(self) -> None:
        self.phase = HEAD
        self.request_count += 1

    def on_url(self, part: bytes) -> None:
        self._url += part
        if len(self._url) > self._limits.max_target_bytes:
            self._refuse_now(_URI_TOO_LONG)

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers come here too, after the head's own dict has gone to its request.
        name = name.lower()
        headers = self._headers
        if name in headers:
            if name == b"host":
                self._refuse_now(BAD_REQUEST)
            self._merged_count += 1
            value = headers[name] + b", " + value
        headers[name] = value

    def on_headers_complete(self) -> None:
        llhttp = self._llhttp
        assert llhttp is not None
        headers = self._headers
        header_count = len(headers) + self._merged_count
        is_suspect = self._raw_bytes > self._cheap_head_bytes
        if (is_suspect or header_count > self._max_header_count) and self._is_too_large(headers):
            # Before there is a request: a head refused half way in has none either, and the log
            # must not depend on how the network cut the input.
            self._refuse_now(_HEADERS_TOO_LARGE)
        self._headers = {}
        method = llhttp.get_method()
        target = self._router.target(self._url)
        route = self._router.resolve(target, method)
        request = Request(method, target, route, headers, self._remote, is_tls=self._is_tls)
        self._request = request
        self._url = b""
        self._merged_count = 0
        host = headers.get(b"host", b"")
        if host != self._known_host:
            self._check_host(host)
        self._raw_bytes = 0
        self.phase = BODY
        if _SPECIAL_HEADERS.isdisjoint(headers) and llhttp.should_keep_alive():
            # Only HTTP/1.1 keeps a connection without being asked to.
            if b"host" not in headers:
                self._refuse_now(BAD_REQUEST)
        else:
            self._check_special_headers(request, llhttp)
            if self._is_upgrade:
                return
        if self._before is not None:
            route = self._run_before(request, self._before)
        if route.closes:
            request.end_connection()
        length = headers.get(b"content-length")
        if length is not None and int(length) > route.max_body_bytes:
            self._refuse_now(route.too_large)
        if b"expect" in headers:
            self._check_expect(request)

    def on_body(self, part: bytes) -> None:
        self.is_continue_due = False
        self._body_bytes += len(part)
        if not self._body:
            self._body = part
        elif isinstance(self._body, bytearray):
            self._body += part
        else:
            # A bytearray, not a list of parts: chunks of a byte or two would cost 50 each.
            self._body = bytearray(self._body)
            self._body += part
        request = self._request
        assert request is not None
        if self._body_bytes > request.route.max_body_bytes:
            self._refuse_now(request.route.too_large)

    def on_message_complete(self) -> None:
        if self._is_upgrade:
            return
        request = self._request
        assert request is not None
        self._request = None
        body = self._body
        request.body = body if isinstance(body, bytes) else bytes(body)
        self._body = b""
        self._body_bytes = 0
        self._raw_bytes = 0
        if self._headers:
            self._headers = {}
            self._merged_count = 0
        self.is_continue_due = False
        self.phase = BETWEEN
        self.ready.append(request)

    def _refuse_now(self, route: Route) -> NoReturn:
        """Refuse from inside a callback, so that llhttp stops where it is."""
        self.refuse(route)
        raise _Refused

    def _check_host(self, host: bytes) -> None:
        if _HOST.fullmatch(host) is None:
            self._refuse_now(BAD_REQUEST)
        self._known_host = host

    def _run_before(self, request: Request, before: BeforeHook) -> Route:
        reply = answer(request, before, request)
        if reply is not None:
            request.route = Route.fixed(reply)
        return request.route

    def _is_too_large(self, headers: dict[bytes, bytes]) -> bool:
        size_bytes = len(self._url) + sum(len(name) + len(headers[name]) + 4 for name in headers)
        count = len(headers) + self._merged_count
        return size_bytes > self._limits.max_header_bytes or count > self._max_header_count

    def _check_partial(self, slice_bytes: int) -> None:
        """Bound the memory for a request whose end has not come yet, llhttp's included."""
        self._raw_bytes += slice_bytes
        # Twice, as padding around values is not counted in a complete head; and the slice in
        # which a request begins may have held others before it.
        max_raw_bytes = 2 * self._limits.max_header_bytes + FEED_SLICE_BYTES
        if self.phase is BODY:
            max_raw_bytes += _MAX_CHUNK_OVERHEAD_RATIO * self._body_bytes
        is_suspect = self._raw_bytes > self._limits.max_header_bytes
        if self._raw_bytes > max_raw_bytes or (is_suspect and self._is_too_large(self._headers)):
            self.refuse(_HEADERS_TOO_LARGE)

    def _check_special_headers(self, request: Request, llhttp: httptools.HttpRequestParser) -> None:
        """Look at version, persistence, transfer coding and upgrade, absent from most heads."""
        headers = request.headers
        version = llhttp.get_http_version()
        if version not in ("1.0", "1.1"):
            self._refuse_now(_UNKNOWN_VERSION)
        if b"upgrade" in headers and llhttp.should_upgrade():
            self._is_upgrade = True
            return
        if not llhttp.should_keep_alive():
            request.end_connection()
        elif version == "1.0":
            request.keep_connection()
        coding = headers.get(b"transfer-encoding")
        if version == "1.0":
            request.has_chunks = False
            # Chunks came with 1.1; an older proxy in between would frame the body otherwise.
            if coding is not None:
                self._refuse_now(BAD_REQUEST)
            headers.pop(b"expect", None)
        elif b"host" not in headers:
            self._refuse_now(BAD_REQUEST)
        elif coding is not None and coding.lower() != b"chunked":
            self._refuse_now(_UNKNOWN_CODING)

    def _check_expect(self, request: Request) -> None:
        headers = request.headers
        if headers[b"expect"].lower() != b"100-continue":
            self._refuse_now(_EXPECTATION_FAILED)
        if not request.route.takes_body:
            # Answered without the body, which may or may not come: only closing is unambiguous.
            self._refuse_now(request.route)
        self.is_continue_due = (
            b"transfer-encoding" in headers or int(headers.get(b"content-length", b"0")) > 0
        )

    def _decline_upgrade(self) -> bytes:
        """Return the head of a request that asked for another protocol, without that wish.

        llhttp skips the body of such a request, but HTTP lets a server ignore the wish, and
        `curl --http2` counts on that.
        """
        if not self._is_upgrade:
            # A CONNECT, whose refusal is queued. The rest of the input would be the tunnel's.
            self.has_refused = True
            return b""
        request = self._request
        assert request is not None
        assert self._llhttp is not None
        self._is_upgrade = False
        self._request = None
        version = self._llhttp.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (request.raw_method, request.target.raw, version)]
        if not self._llhttp.should_keep_alive():
            lines.append(b"connection: close")
            # llhttp takes no more input after a head that closes.
            self._llhttp = httptools.HttpRequestParser(self)
        lines += [
            b"%b: %b" % (name, value)
            for name, value in request.headers.items()
            if name not in (b"upgrade", b"connection")
        ]
        return b"\r\n".join(lines) + b"\r\n\r\n"
