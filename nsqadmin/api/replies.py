"""Replies of the API: JSON that no cache keeps, compressed if accepted; JSON in requests."""

import asyncio
import inspect
import json
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

from nsqadmin.access.guard import Guard
from nsqadmin.access.roles import Caller, Right
from nsqd.http.server import JSON_CONTENT_TYPE, HttpError, Request, Response, Router, Style

NO_STORE: Final = {"Cache-Control": "no-store"}
MAX_BODY_BYTES: Final = 64 * 1024
_MIN_ZIPPED_BYTES: Final = 1400
# Larger bodies are compressed in a thread, which takes milliseconds.
_THREAD_BYTES: Final = 32 * 1024
_GZIP_WBITS: Final = 31
_DEFLATE_WBITS: Final = 15
_LEVEL: Final = 5

ApiHandler: TypeAlias = Callable[[Request, Caller], Response | Awaitable[Response]]


class ApiRouter:
    """Adds routes below the base path, each with the right that it needs."""

    def __init__(self, router: Router, guard: Guard, base: str) -> None:
        self.router = router
        self.guard = guard
        self.base = base

    def add(
        self,
        method: str,
        path: str,
        handler: ApiHandler,
        right: Right,
        *,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        """Add a route for callers who have a right."""

        async def run(request: Request) -> Response:
            caller = self.guard.demand(request, right)
            reply = handler(request, caller)
            response = await reply if inspect.isawaitable(reply) else reply
            return await compress(request, response)

        self.router.add(
            *(method, self.base + path, run),
            max_body_bytes=max_body_bytes,
            too_large_code="BODY_TOO_BIG",
            style=Style.V1,
            # Each open page asks for figures every few seconds; who reads bodies is logged.
            is_quiet=method == "GET" and right is Right.VIEW and path.startswith("/api/v2/"),
        )


class Document:
    """A JSON body that many viewers get: encoded once, compressed once."""

    __slots__ = ("_zipped", "body")

    def __init__(self, body: bytes) -> None:
        self.body = body
        self._zipped: dict[str, bytes] = {}

    async def reply(self, request: Request) -> Response:
        """Return it as the client accepts it."""
        coding = find_coding(request)
        if coding is None or len(self.body) < _MIN_ZIPPED_BYTES:
            return Response(body=self.body, content_type=JSON_CONTENT_TYPE, headers=NO_STORE)
        if coding not in self._zipped:
            self._zipped[coding] = await _zip(self.body, coding)
        headers = NO_STORE | {"Content-Encoding": coding, "Vary": "Accept-Encoding"}
        body = self._zipped[coding]
        return Response(body=body, content_type=JSON_CONTENT_TYPE, headers=headers)


def encode(value: object) -> bytes:
    """Return a value as JSON."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def json_reply(
    value: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a value as a reply that no cache keeps."""
    return Response(
        status,
        encode(value),
        content_type=JSON_CONTENT_TYPE,
        headers=NO_STORE | dict(headers or {}),
    )


def not_modified() -> Response:
    """Return the reply to a poll that has everything already."""
    return Response(304, headers=NO_STORE)


async def compress(request: Request, response: Response) -> Response:
    """Compress a reply, if its client accepts it and it is worth it."""
    coding = find_coding(request)
    if (
        coding is None
        or len(response.body) < _MIN_ZIPPED_BYTES
        or response.more
        or "Content-Encoding" in response.headers
    ):
        return response
    headers = response.headers | {"Content-Encoding": coding, "Vary": "Accept-Encoding"}
    body = await _zip(response.body, coding)
    return Response(response.status, body, content_type=response.content_type, headers=headers)


def find_coding(request: Request) -> str | None:
    """Return how the reply may be compressed: gzip, deflate or not at all."""
    accepted = {}
    for item in request.headers.get(b"accept-encoding", b"").lower().split(b","):
        name, _, weight = item.strip().partition(b";")
        accepted[name.strip()] = weight.replace(b" ", b"") not in (b"q=0", b"q=0.0", b"q=0.00")
    for coding in (b"gzip", b"deflate"):
        if accepted.get(coding, False):
            return coding.decode()
    return None


async def _zip(body: bytes, coding: str) -> bytes:
    wbits = _GZIP_WBITS if coding == "gzip" else _DEFLATE_WBITS
    if len(body) < _THREAD_BYTES:
        return _compress(body, wbits)
    return await asyncio.to_thread(_compress, body, wbits)


def _compress(body: bytes, wbits: int) -> bytes:
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, wbits)
    return compressor.compress(body) + compressor.flush()


def read_object(request: Request) -> dict[str, Any]:
    """Return the JSON object in a request's body, of any content type.

    Raises:
        HttpError: 400, it is something else, which the text names.
    """
    try:
        value = json.loads(request.body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise HttpError(400, "INVALID_BODY: not UTF-8") from error
    except RecursionError as error:
        raise HttpError(400, "INVALID_BODY: nested too deeply") from error
    except ValueError as error:
        raise HttpError(400, f"INVALID_BODY: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise HttpError(400, "INVALID_BODY: not a JSON object")
    return value
