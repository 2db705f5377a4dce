"""KnownHeads: heads of requests that were parsed before, found again byte for byte.

Producers repeat their heads for ever, one for each topic and length of a message. To parse a head
takes 2 us, to find it here 0.3 us. The same bytes mean the same request, so that the parser need
not check them again; the `before` hook sees every request.
"""

from __future__ import annotations

from typing import Final

from nsqd.http.routes import Request, Route, Target

# Emptied when full, as the cache of targets is. A head of this size, taken apart, is 30 KB at most.
MAX_KNOWN_HEADS: Final = 256
MAX_KNOWN_HEAD_BYTES: Final = 1024

_END: Final = b"\r\n\r\n"
# A request with one of these has no plain body, or changes its connection.
_SPECIAL_HEADERS: Final = frozenset((b"connection", b"expect", b"transfer-encoding", b"upgrade"))


class Head:
    """A head that was parsed: all of its request but the body."""

    __slots__ = ("body_bytes", "headers", "method", "route", "size_bytes", "target")

    def __init__(self, request: Request, route: Route, size_bytes: int) -> None:
        self.method = request.raw_method
        self.target: Target = request.target
        self.route = route
        self.headers = request.headers
        self.size_bytes = size_bytes
        self.body_bytes = len(request.body)


class KnownHeads:
    """The heads that the connections of one server have seen last."""

    def __init__(self) -> None:
        self._heads: dict[bytes, Head] = {}

    def find(self, data: bytes) -> Head | None:
        """Return the head of these bytes, if it is known and they are exactly its request."""
        head = self._heads.get(data[: data.find(_END) + len(_END)])
        if head is None or len(data) != head.size_bytes + head.body_bytes:
            return None
        return head

    def add(self, data: bytes, request: Request, route: Route) -> None:
        """Remember the head of a request, if the data is exactly this request and it is plain.

        Args:
            route: that of target and method; the `before` hook may have given it another one.
        """
        size_bytes = data.find(_END) + len(_END)
        raw = data[:size_bytes]
        if (
            size_bytes + len(request.body) == len(data)
            and size_bytes <= MAX_KNOWN_HEAD_BYTES
            # Else the first blank line need not be the end of the head.
            and raw.count(b"\n") == raw.count(b"\r\n")
            and request.route is route
            and not request.is_last
            and _SPECIAL_HEADERS.isdisjoint(request.headers)
        ):
            if len(self._heads) >= MAX_KNOWN_HEADS:
                self._heads.clear()
            self._heads[raw] = Head(request, route, size_bytes)
