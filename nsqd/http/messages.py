"""Requests and responses as values: no sockets, no event loop, no clock.

`parser.py` makes a `Request` out of bytes. A handler takes it and returns a `Response`, or raises
`HttpError`. A `Response` encodes itself; `connection.py` sends it.
"""

from __future__ import annotations

import enum
import json
import re
import urllib.parse
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, final

if TYPE_CHECKING:
    from nsqd.http.routes import Route

TEXT_CONTENT_TYPE: Final = "text/plain; charset=utf-8"
JSON_CONTENT_TYPE: Final = "application/json; charset=utf-8"
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

    __slots__ = ("_wire", "_wire_date", "_wire_style", "body", "content_type", "headers", "status")

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
        if self.body:
            lines.append(f"Content-Type: {self.content_type}\r\n")
        if self.status not in _BODILESS_STATUSES:
            lines.append(f"Content-Length: {len(self.body)}\r\n")
        head = "".join(lines).encode("latin-1")
        return b"".join((head, style.value, date_line, more_lines, b"\r\n"))


OK: Final = Response(body=b"OK")
EMPTY: Final = Response()


class Target:
    """A request target, taken apart once and shared by all requests that name it."""

    __slots__ = ("_query", "param", "path", "raw", "raw_query", "routes")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        raw_path, _, self.raw_query = raw.partition(b"?")
        # None when the target has no path: a broken escape, or the authority of a CONNECT.
        self.path = _decode_path(raw_path)
        self.param: str | None = None
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
    def param(self) -> str | None:
        """The segment in place of `:name` in the path of the route."""
        return self.target.param

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
