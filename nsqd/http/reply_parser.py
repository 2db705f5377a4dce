"""ReplyParser: bytes become the reply to one request. No sockets, no clock; for `client.py`.

llhttp (through httptools) does the grammar, strictly. Here are the bounds, and the cases that only
the reader of a reply has: interim replies, and bodies that end with the connection.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NoReturn

import httptools

MAX_HEADER_COUNT: Final = 128
# The reply is parsed in slices of this size, and the bounds are checked after each.
_FEED_SLICE_BYTES: Final = 16 * 1024
# Chunk lengths and trailers may take this many bytes for each byte of the body.
_MAX_CHUNK_OVERHEAD_RATIO: Final = 8
_BODILESS_STATUSES: Final = frozenset({204, 304})


class BadReplyError(Exception):
    """The server's answer is no HTTP, breaks a bound, or ends too early; the text says which."""


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


class ReplyParser:
    """Turn the bytes of one reply into a `Reply`, however they are split. Made for one use."""

    def __init__(self, *, max_head_bytes: int, max_body_bytes: int) -> None:
        """Args: max_head_bytes: of status line, headers and trailers, interim replies included."""
        self.is_complete = False
        self.has_input = False
        # Whether the server leaves the connection open after this reply.
        self.is_kept_alive = False
        self._max_head_bytes = max_head_bytes
        self._max_body_bytes = max_body_bytes
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
            if framing_bytes > self._max_head_bytes + overhead_bytes:
                raise BadReplyError(f"a head of more than {self._max_head_bytes} bytes")

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
        if length is not None and int(length) > self._max_body_bytes:
            self._refuse_body()
        has_end = coding is not None or length is not None or self._status in _BODILESS_STATUSES
        self._is_until_eof = not has_end
        self.is_kept_alive = has_end and self._llhttp.should_keep_alive()

    def on_body(self, part: bytes) -> None:
        self._body += part
        if len(self._body) > self._max_body_bytes:
            self._refuse_body()

    def on_message_complete(self) -> None:
        if self._status < 200:
            self._headers.clear()  # An interim reply, 100 or 103: the real one follows.
            return
        self.is_complete = True

    def _refuse_body(self) -> NoReturn:
        self._refuse(f"reply of more than {self._max_body_bytes} bytes")

    def _refuse(self, text: str) -> NoReturn:
        self._error = BadReplyError(text)
        raise self._error


def _refuse_constant(_name: str) -> NoReturn:
    raise ValueError("not JSON")
