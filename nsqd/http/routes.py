"""Requests, responses and the routing table: no sockets, no event loop, no clock.

`parser.py` makes a `Request` out of bytes and has a `Router` find its `Route`. The handler of the
route returns a `Response`, or raises `HttpError`. A `Response` encodes itself; `connection.py`
sends it.

The router has an answer for every request. It keeps a bounded cache from the target of a request,
byte for byte, to its path, query and routes: producers repeat a few targets for ever.
"""

from __future__ import annotations

import enum
import html
import json
import logging
import re
import urllib.parse
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, TypeAlias, TypeVar, final

from nsqd.http.file_body import FileBody

logger = logging.getLogger(__name__)

# The bound on a body where the route sets no other; bodies that no handler reads have it too.
DEFAULT_MAX_BODY_BYTES: Final = 64 * 1024

# The cache of targets is emptied when full: the working set is a few topics, so a smarter
# eviction would only serve a client that asks for a new path each time.
MAX_CACHED_TARGETS: Final = 1024
MAX_CACHED_TARGET_BYTES: Final = 512

# A longer reply of unknown length is made while the client reads it.
STREAMED_BYTES: Final = 64 * 1024

TEXT_CONTENT_TYPE: Final = "text/plain; charset=utf-8"
JSON_CONTENT_TYPE: Final = "application/json; charset=utf-8"
BINARY_CONTENT_TYPE: Final = "application/octet-stream"
HTML_CONTENT_TYPE: Final = "text/html; charset=utf-8"

_BODILESS_STATUSES = frozenset((204, 304))
_CLOSE_LINE = b"Connection: close\r\n"
_KEEP_ALIVE_LINE = b"Connection: keep-alive\r\n"
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_ABSOLUTE_FORM = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://[^/?]*")


class Style(enum.Enum):
    """How a route's replies look; the value is the header line that marks them.

    V1 replies carry NSQ's header, which client libraries compare byte for byte, and errors as JSON.
    PLAIN replies are bare text.
    """

    V1 = b"X-NSQ-Content-Type: nsq; version=1.0\r\n"
    PLAIN = b""


class HttpError(Exception):
    """Raised by a handler to refuse a request: a status and the code that names the reason."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(status, code)
        self.status = status
        self.code = code


@final
class Response:
    """A reply and its bytes; treat it as immutable, and share it where it repeats.

    The bytes are kept for the second in which they were made, as only the Date line changes.
    """

    __slots__ = (
        "_wire",
        "_wire_date",
        "_wire_style",
        "body",
        "content_type",
        "file",
        "headers",
        "more",
        "source",
        "status",
    )

    def __init__(
        self,
        status: int = 200,
        body: bytes = b"",
        *,
        content_type: str = TEXT_CONTENT_TYPE,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Args:
            content_type: left out of the reply when the body is empty.

        Raises:
            ValueError: A header holds a line break, which would end it early, or the status
                forbids the body.
        """
        if body and status in _BODILESS_STATUSES:
            raise ValueError(f"a body with status {status}")
        self.status = status
        self.body = body
        # The rest of a large body: ten megabytes are not put together, which takes 10 ms.
        self.more: Sequence[bytes] = ()
        # The rest of a body whose length is not known yet, made while the client reads it.
        self.source: Iterator[bytes] | None = None
        # The body instead of both; the connection closes it.
        self.file: FileBody | None = None
        self.content_type = content_type
        self.headers = dict(headers or {})
        for name, value in self.headers.items():
            _check_header(name, value)
        self._wire = b""
        self._wire_date: bytes | None = None
        self._wire_style = Style.V1

    @classmethod
    def text(cls, text: str, status: int = 200) -> Response:
        return cls(status, text.encode())

    @classmethod
    def in_parts(cls, parts: Sequence[bytes], content_type: str) -> Response:
        """Make a reply with a large body that was rendered in parts, at least one."""
        response = cls(body=parts[0], content_type=content_type)
        response.more = parts[1:]
        return response

    @classmethod
    def streamed(cls, parts: Iterator[bytes], content_type: str) -> Response:
        """Make a reply whose parts are asked for one by one, as the client reads them.

        So the reply takes little memory, however long it is. Each part should take less than a
        millisecond to make. A short reply is put together here and has its length.
        """
        gathered: list[bytes] = []
        size_bytes = 0
        for part in parts:
            gathered.append(part)
            size_bytes += len(part)
            if size_bytes > STREAMED_BYTES:
                break
        response = cls(body=b"".join(gathered), content_type=content_type)
        if size_bytes > STREAMED_BYTES:
            response.source = parts
        return response

    @classmethod
    def from_file(
        cls, file: FileBody, *, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> Response:
        """Make a reply whose body is a part of a file, for one request only."""
        response = cls(status, content_type=BINARY_CONTENT_TYPE, headers=headers)
        response.file = file
        return response

    @property
    def size_bytes(self) -> int:
        """How large the body is."""
        if self.file is not None:
            return self.file.size_bytes
        return len(self.body) + sum(map(len, self.more))

    @classmethod
    def json(cls, value: Any, status: int = 200) -> Response:
        body = json.dumps(value, separators=(",", ":"), allow_nan=False)
        return cls(status, body.encode(), content_type=JSON_CONTENT_TYPE)

    @classmethod
    def error(cls, error: HttpError, style: Style) -> Response:
        if style is Style.PLAIN:
            return cls.text(error.code, error.status)
        return cls.json({"message": error.code}, error.status)

    def encode(self, style: Style, date_line: bytes) -> bytes:
        """Return the whole reply, for a connection that stays open."""
        if self._wire_date is date_line and self._wire_style is style:
            return self._wire
        self._wire = self.encode_head(style, date_line) + self.body
        self._wire_date = date_line
        self._wire_style = style
        return self._wire

    def encode_head(self, style: Style, date_line: bytes, more_lines: bytes = b"") -> bytes:
        """Return status line and headers up to the blank line; `more_lines` end in CRLF."""
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}\r\n"]
        lines += [f"{name}: {value}\r\n" for name, value in self.headers.items()]
        if self.body or self.more or self.file is not None:
            lines.append(f"Content-Type: {self.content_type}\r\n")
        if self.source is None and self.status not in _BODILESS_STATUSES:
            lines.append(f"Content-Length: {self.size_bytes}\r\n")
        head = "".join(lines).encode("latin-1")
        return b"".join((head, style.value, date_line, more_lines, b"\r\n"))


OK: Final = Response(body=b"OK")
EMPTY: Final = Response()


class Target:
    """A request target, taken apart once and shared by all requests that name it."""

    __slots__ = ("_query", "params", "path", "raw", "raw_query", "routes")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        raw_path, _, self.raw_query = raw.partition(b"?")
        # None when the target has no path: a broken escape, or the authority of a CONNECT.
        self.path = _decode_path(raw_path)
        self.params: tuple[str, ...] = ()
        # One entry per method that has come in for this target, filled by the router.
        self.routes: dict[bytes, Route] = {}
        self._query: Mapping[str, str] | None = None

    @property
    def query(self) -> Mapping[str, str]:
        """The first value of each parameter.

        Raises:
            HttpError: 400 INVALID_REQUEST, the query cannot be parsed.
        """
        if self._query is None:
            self._query = parse_query(self.raw_query)
        return self._query


@final
class Request:
    """One request, its body complete by the time a handler sees it.

    A `before` hook sees it earlier, when only the head has come in and `body` is still empty.
    """

    __slots__ = (
        "body",
        "has_chunks",
        "headers",
        "is_last",
        "is_tls",
        "raw_method",
        "remote",
        "reply_lines",
        "route",
        "target",
    )

    def __init__(
        self,
        raw_method: bytes,
        target: Target,
        route: Route,
        headers: dict[bytes, bytes],
        remote: str,
        *,
        is_tls: bool,
    ) -> None:
        self.raw_method = raw_method
        self.target = target
        self.route = route
        self.headers = headers
        self.remote = remote
        self.is_tls = is_tls
        self.body = b""
        # Header lines for the reply beyond those of the response; few requests have any.
        self.reply_lines = b""
        # Whether the connection ends with the reply.
        self.is_last = False
        # Whether the client knows chunks, which came with HTTP/1.1.
        self.has_chunks = True

    def add_reply_header(self, name: str, value: str) -> None:
        """Put a header on the reply, besides those of its response; meant for `before` hooks.

        Raises:
            ValueError: The header holds a line break.
        """
        _check_header(name, value)
        self.reply_lines += f"{name}: {value}\r\n".encode("latin-1")

    def keep_connection(self) -> None:
        """Say in the reply that the connection stays open, where HTTP/1.0 would not expect it."""
        self.reply_lines += _KEEP_ALIVE_LINE

    def end_connection(self) -> None:
        """Make the reply the last one on its connection, and say so in it."""
        if not self.is_last:
            self.is_last = True
            self.reply_lines = self.reply_lines.replace(_KEEP_ALIVE_LINE, b"") + _CLOSE_LINE

    def begin_stream(self) -> None:
        """Say in the reply how its end is to be found, when its length is not known."""
        if self.has_chunks:
            self.reply_lines += b"Transfer-Encoding: chunked\r\n"
        else:
            self.end_connection()

    @property
    def method(self) -> str:
        return self.raw_method.decode("ascii")

    @property
    def uri(self) -> str:
        """The target as the client wrote it."""
        return self.target.raw.decode("ascii", "backslashreplace")

    @property
    def path(self) -> str:
        return self.target.path or ""

    @property
    def raw_query(self) -> bytes:
        return self.target.raw_query

    @property
    def params(self) -> tuple[str, ...]:
        """The segments in place of `:name` in the path of the route, in its order."""
        return self.target.params

    @property
    def query(self) -> Mapping[str, str]:
        """The first value of each query parameter.

        Raises:
            HttpError: 400 INVALID_REQUEST, the query cannot be parsed.
        """
        return self.target.query

    def find(self, name: str) -> str | None:
        """Return the first value of a query parameter, None if it is absent.

        Bytes that are not UTF-8 come as U+FFFD, which no topic or channel name may hold.

        Raises:
            HttpError: 400 INVALID_REQUEST, the query cannot be parsed.
        """
        return self.target.query.get(name)


def parse_query(raw: bytes) -> dict[str, str]:
    """Return the first value of each parameter, by the rules of Go's url.ParseQuery.

    Raises:
        HttpError: 400 INVALID_REQUEST, a semicolon or a broken escape.
    """
    if b";" in raw or _BAD_ESCAPE.search(raw):
        raise HttpError(400, "INVALID_REQUEST")
    values: dict[str, str] = {}
    for pair in raw.split(b"&"):
        if pair:
            name, _, value = pair.partition(b"=")
            values.setdefault(_unescape(name), _unescape(value))
    return values


def _check_header(name: str, value: str) -> None:
    if any(end in text for end in "\r\n" for text in (name, value)):
        raise ValueError(f"line break in header {name!r}")


def _unescape(text: bytes) -> str:
    return urllib.parse.unquote_to_bytes(text.replace(b"+", b" ")).decode("utf-8", "replace")


def _decode_path(raw_path: bytes) -> str | None:
    """Return the path of a target in origin, absolute or asterisk form; None for any other."""
    if not raw_path.startswith(b"/") and raw_path != b"*":
        authority = _ABSOLUTE_FORM.match(raw_path)
        if authority is None:
            return None
        raw_path = raw_path[authority.end() :] or b"/"
    if _BAD_ESCAPE.search(raw_path):
        return None
    return urllib.parse.unquote_to_bytes(raw_path).decode("utf-8", "replace")


_Argument = TypeVar("_Argument")
_Reply = TypeVar("_Reply")

Handler: TypeAlias = Callable[[Request], Response | Awaitable[Response]]


class Route:
    """A handler, the bound on the bodies it takes and the style of its replies."""

    __slots__ = (
        "closes",
        "handler",
        "is_quiet",
        "max_body_bytes",
        "style",
        "takes_body",
        "too_large",
    )

    def __init__(
        self,
        handler: Handler,
        *,
        style: Style = Style.V1,
        max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
        too_large: Route | None = None,
        is_quiet: bool = False,
        closes: bool = False,
    ) -> None:
        self.handler = handler
        self.style = style
        self.max_body_bytes = max_body_bytes
        # The route that answers when the body is larger; a refusal refuses either way.
        self.too_large = too_large or self
        self.takes_body = too_large is not None
        self.is_quiet = is_quiet
        self.closes = closes

    @classmethod
    def fixed(cls, response: Response, style: Style = Style.V1, *, closes: bool = False) -> Route:
        """Make a route that answers every request with one response."""
        return cls(lambda request: response, style=style, closes=closes)

    @classmethod
    def refusal(cls, status: int, code: str, style: Style = Style.V1) -> Route:
        """Make a route that answers with an error and ends the connection."""
        return cls.fixed(Response.error(HttpError(status, code), style), style, closes=True)


BAD_REQUEST: Final = Route.refusal(400, "BAD_REQUEST")
_NOT_FOUND: Final = Route.fixed(Response.error(HttpError(404, "NOT_FOUND"), Style.V1))


class Router:
    """The table of routes; `resolve` has an answer for every target and method."""

    def __init__(self) -> None:
        # Path -> method -> route.
        self._paths: dict[str, dict[bytes, Route]] = {}
        # The same for paths with parameters, as segments.
        self._patterns: dict[tuple[str, ...], dict[bytes, Route]] = {}
        self._targets: dict[bytes, Target] = {}

    def add(
        self,
        method: str,
        path: str,
        handler: Handler,
        *,
        max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
        too_large_code: str = "BODY_TOO_BIG",
        style: Style = Style.V1,
        is_quiet: bool = False,
    ) -> None:
        """Send requests for a path to a handler.

        Args:
            path: `/stats`, or `/topics/:topic/:channel` with segments that are parameters.
            too_large_code: the code of the 413 for a body larger than `max_body_bytes`.
            is_quiet: leave the route's requests out of the access log.

        Raises:
            ValueError: The method of that path is taken, or the path has no leading slash.
        """
        if not path.startswith("/"):
            raise ValueError(f"path {path!r} does not begin with a slash")
        if ":" in path:
            routes = self._patterns.setdefault(tuple(path.split("/")), {})
        else:
            routes = self._paths.setdefault(path, {})
        if method.encode() in routes:
            raise ValueError(f"{method} {path} is taken")
        routes[method.encode()] = Route(
            handler,
            style=style,
            max_body_bytes=max_body_bytes,
            too_large=Route.refusal(413, too_large_code, style),
            is_quiet=is_quiet,
        )
        self._targets.clear()

    def has_path(self, path: str) -> bool:
        """Say whether a route has this path, with any method; parameters do not count."""
        return path in self._paths

    def target(self, raw: bytes) -> Target:
        """Take a request target apart, or find it in the cache."""
        target = self._targets.get(raw)
        if target is None:
            target = Target(raw)
            if len(raw) <= MAX_CACHED_TARGET_BYTES:
                if len(self._targets) >= MAX_CACHED_TARGETS:
                    self._targets.clear()
                self._targets[raw] = target
        return target

    def resolve(self, target: Target, method: bytes) -> Route:
        """Return the route of a request; its target remembers it."""
        route = target.routes.get(method)
        if route is None:
            route = target.routes[method] = self._resolve(target, method)
        return route

    def _resolve(self, target: Target, method: bytes) -> Route:
        if target.path is None:
            return BAD_REQUEST
        if target.path == "*":
            return self._resolve_asterisk(method)
        routes, target.params = self._find(target.path)
        if method in routes:
            return routes[method]
        location = self._find_redirect(target.path, method)
        if location is not None:
            return _redirect(location, target.raw_query, method)
        if not routes:
            return _NOT_FOUND
        return _answer_options(routes) if method == b"OPTIONS" else _refuse_method(routes)

    def _resolve_asterisk(self, method: bytes) -> Route:
        if method != b"OPTIONS":
            return BAD_REQUEST
        tables = (*self._paths.values(), *self._patterns.values())
        return _answer_options(
            {method: route for table in tables for method, route in table.items()}
        )

    def _find(self, path: str) -> tuple[dict[bytes, Route], tuple[str, ...]]:
        """Return the routes of a path by method, and its parameters."""
        routes = self._paths.get(path)
        if routes is not None:
            return routes, ()
        segments = path.split("/")
        for pattern, routes in self._patterns.items():
            if _fits(pattern, segments):
                pairs = zip(pattern, segments, strict=True)
                return routes, tuple(segment for name, segment in pairs if _is_param(name))
        return {}, ()

    def _find_redirect(self, path: str, method: bytes) -> str | None:
        """Return the known path that the client must have meant, if it has the method."""
        cleaned = _clean(path)
        toggled = cleaned[:-1] if cleaned.endswith("/") else f"{cleaned}/"
        for candidate in (cleaned, toggled):
            folded = candidate.lower()
            for known, routes in self._paths.items():
                if known.lower() == folded and method in routes:
                    return known
            segments = candidate.split("/")
            for pattern, routes in self._patterns.items():
                if method in routes and _fits(
                    [name.lower() for name in pattern], folded.split("/")
                ):
                    pairs = zip(pattern, segments, strict=True)
                    return "/".join(segment if _is_param(name) else name for name, segment in pairs)
        return None


def _is_param(name: str) -> bool:
    return name.startswith(":")


def _fits(pattern: Sequence[str], segments: Sequence[str]) -> bool:
    """Say whether a path has the segments of a pattern, with any text for each parameter."""
    return len(pattern) == len(segments) and all(
        segment if _is_param(name) else segment == name
        for name, segment in zip(pattern, segments, strict=True)
    )


def answer(
    request: Request, call: Callable[[_Argument], _Reply], argument: _Argument
) -> _Reply | Response:
    """Return the result of a call made for a request, or the reply to the error that it raised.

    Any error of a handler ends its request only: `HttpError` is an answer, any other exception is
    logged and answered with 500. A failed assertion passes through and stops the daemon.
    """
    try:
        return call(argument)
    except HttpError as error:
        return Response.error(error, request.route.style)
    except AssertionError:
        raise
    except Exception:
        logger.exception("handler failed method=%s uri=%s", request.method, request.uri)
        return Response.error(HttpError(500, "INTERNAL_ERROR"), request.route.style)


def _clean(path: str) -> str:
    """Return the path without empty, `.` and `..` segments; a trailing slash stays."""
    segments: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            del segments[-1:]
        elif segment not in ("", "."):
            segments.append(segment)
    cleaned = "/" + "/".join(segments)
    return f"{cleaned}/" if path.endswith("/") and segments else cleaned


def _redirect(path: str, raw_query: bytes, method: bytes) -> Route:
    location = urllib.parse.quote(path)
    if raw_query:
        location += "?" + raw_query.decode("latin-1")
    if method != b"GET":
        response = Response(307, headers={"Location": location})
    else:
        body = f'<a href="{html.escape(location)}">Moved Permanently</a>.\n\n'
        headers = {"Location": location}
        response = Response(301, body.encode(), content_type=HTML_CONTENT_TYPE, headers=headers)
    return Route.fixed(response, Style.PLAIN)


def _allow(routes: Mapping[bytes, Route]) -> dict[str, str]:
    return {"Allow": ", ".join(sorted({method.decode() for method in routes} | {"OPTIONS"}))}


def _answer_options(routes: Mapping[bytes, Route]) -> Route:
    return Route.fixed(Response(headers=_allow(routes)), Style.PLAIN)


def _refuse_method(routes: Mapping[bytes, Route]) -> Route:
    body = Response.error(HttpError(405, "METHOD_NOT_ALLOWED"), Style.V1).body
    response = Response(405, body, content_type=JSON_CONTENT_TYPE, headers=_allow(routes))
    return Route.fixed(response, Style.V1)
