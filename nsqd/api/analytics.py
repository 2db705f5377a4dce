"""POST /snapshot*, GET /segments*: queues and archives for analysis; docs/contract/analytics.md."""

import hashlib
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from nsqd.analytics.leases import Lease, LeaseError
from nsqd.analytics.query import Query, Source, compile_patterns, parse_names
from nsqd.analytics.segments import OpenFile
from nsqd.analytics.service import Analytics
from nsqd.analytics.snapshot import encode
from nsqd.api.topics import internal_error
from nsqd.broker.errors import cause_of
from nsqd.broker.health import FULL_ERRNOS
from nsqd.config.kinds import parse_duration
from nsqd.http.file_body import FileBody
from nsqd.http.server import (
    EMPTY,
    JSON_CONTENT_TYPE,
    HttpError,
    Request,
    Response,
    Router,
)
from nsqd.node import Node
from nsqd.runtime.slices import gather_slices

FORMAT = 1
DEFAULT_LEASE_S = 600.0
MAX_BODY_BYTES = 4 * 2**20

_RANGE = re.compile(rb"bytes=(\d{0,19})-(\d{0,19})")
# Entries of queues that are put together at a time.
_JOINED_COUNT = 128
_ALL = compile_patterns("*")


class AnalyticsRoutes:
    """The routes of snapshots, their leases and segments."""

    PATHS = ("/snapshot", "/snapshot/renew", "/snapshot/release", "/segments")
    PREFIXES = ("/segments/",)

    def __init__(self, node: Node) -> None:
        self._node = node
        self._broker = node.broker
        self._max_lease_s = node.options.snapshot_max_lease_s

    @staticmethod
    def are_open(node: Node) -> bool:
        """Whether the routes are served, if with the token where there is one."""
        return node.analytics is not None and not _needs_token_file(node)

    def add_to(self, router: Router) -> None:
        """Add the routes."""
        refusal = self._find_refusal()
        routes: list[tuple[str, str, Callable[[Analytics, Request], Any]]] = [
            ("POST", "/snapshot", self._take),
            ("GET", "/snapshot", self._list),
            ("POST", "/snapshot/renew", self._renew),
            ("POST", "/snapshot/release", self._release),
            ("GET", "/segments", self._describe),
            ("HEAD", "/segments", self._describe),
            ("GET", "/segments/:file", self._send),
            ("HEAD", "/segments/:file", self._send),
        ]
        for method, path, handler in routes:
            max_body_bytes = MAX_BODY_BYTES if handler == self._take else 0
            router.add(
                *(method, path, self._guard(handler, refusal)),
                max_body_bytes=max(max_body_bytes, 64 * 1024),
            )

    def _find_refusal(self) -> HttpError | None:
        if self._node.analytics is None:
            return HttpError(403, "ANALYTICS_DISABLED")
        if _needs_token_file(self._node):
            return HttpError(403, "HTTP_AUTH_TOKEN_FILE_REQUIRED")
        return None

    def _guard(
        self, handler: Callable[[Analytics, Request], Any], refusal: HttpError | None
    ) -> Callable[[Request], Response | Awaitable[Response]]:
        analytics = self._node.analytics

        def call(request: Request) -> Response | Awaitable[Response]:
            if refusal is not None or analytics is None:
                raise refusal or HttpError(403, "ANALYTICS_DISABLED")
            if self._broker.is_closed:
                raise HttpError(503, "EXITING")
            reply: Response | Awaitable[Response] = handler(analytics, request)
            return reply

        return call

    # --- snapshots

    async def _take(self, analytics: Analytics, request: Request) -> Response:
        query = self._read_query(request)
        seconds = self._read_lease(request)
        try:
            lease, entries = await analytics.snapshots.take(query, request.remote, seconds)
        except LeaseError as error:
            raise HttpError(error.status, error.code) from error
        except OSError as error:
            if error.errno in FULL_ERRNOS:
                raise HttpError(507, f"DISK_FULL: {cause_of(error)}") from error
            raise internal_error("take a snapshot of", query.source.value, error) from error
        head = {**self._head(analytics, query), "lease": _show(analytics, lease)}
        parts, _ = await _document(head, entries)
        return Response.in_parts(parts, JSON_CONTENT_TYPE)

    def _list(self, analytics: Analytics, _request: Request) -> Response:
        leases = [
            {**_show(analytics, lease), "queues": lease.queue_count, "remote": lease.remote}
            for lease in analytics.leases
        ]
        return Response.json({"leases": leases})

    def _renew(self, analytics: Analytics, request: Request) -> Response:
        lease = _get_lease(analytics, request)
        analytics.leases.renew(lease, self._read_lease(request))
        return Response.json({"lease": _show(analytics, lease)})

    def _release(self, analytics: Analytics, request: Request) -> Response:
        analytics.leases.release(_get_id(request))
        return EMPTY

    # --- segments

    async def _describe(self, analytics: Analytics, request: Request) -> Response:
        query = self._read_query(request)
        try:
            entries = await analytics.manifest.describe(query)
        except OSError as error:
            raise internal_error("list the segments of", query.source.value, error) from error
        parts, digest = await _document(self._head(analytics, query), entries)
        tag = f'"{digest}"'
        known = request.headers.get(b"if-none-match", b"").decode("latin-1")
        if known.strip() == "*" or tag in [each.strip() for each in known.split(",")]:
            return Response(304, headers={"ETag": tag})
        response = Response.in_parts(parts, JSON_CONTENT_TYPE)
        response.headers["ETag"] = tag
        return response

    async def _send(self, analytics: Analytics, request: Request) -> Response:
        [file_name] = request.target.params
        try:
            if request.find("id") is not None:
                file = await analytics.open(_get_lease(analytics, request), file_name)
            else:
                file = await self._open_now(analytics, request, file_name)
        except LeaseError as error:
            raise HttpError(error.status, error.code) from error
        except FileNotFoundError:
            if request.find("id") is not None:
                _get_lease(analytics, request)  # which may have ended meanwhile
            raise HttpError(404, "SEGMENT_NOT_FOUND") from None
        except OSError as error:
            raise internal_error("open", file_name, error) from error
        response = _make_response(request, file.body)
        if file.is_marked is not None:
            response.headers["X-NSQ-Same-Mark"] = "true" if file.is_marked else "false"
        return response

    async def _open_now(self, analytics: Analytics, request: Request, file_name: str) -> OpenFile:
        if request.find("from") is None:
            raise HttpError(400, "INVALID_ARG_ID")
        source = self._read_source(request)
        generation = request.find("generation")
        if not generation:
            raise HttpError(400, "MISSING_ARG_GENERATION")
        return await analytics.manifest.open_segment(source, file_name, generation)

    # --- arguments

    def _head(self, analytics: Analytics, query: Query) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "node_id": self._node.node_id,
            "run_id": analytics.run_id,
            "from": query.source.value,
        }

    def _read_source(self, request: Request) -> Source:
        try:
            source = Source(request.find("from") or "queue")
        except ValueError as error:
            raise HttpError(400, "INVALID_ARG_FROM") from error
        if source is Source.ARCHIVE and self._broker.archives is None:
            raise HttpError(404, "ARCHIVE_DISABLED")
        return source

    def _read_query(self, request: Request) -> Query:
        source = self._read_source(request)
        if request.body:
            try:
                return Query(source, _ALL, names=parse_names(request.body))
            except (ValueError, RecursionError) as error:
                raise HttpError(400, "INVALID_BODY") from error
        topics = _read_patterns(request, "topic") or _ALL
        channels = _read_patterns(request, "channel")
        if channels is not None and source is Source.ARCHIVE:
            raise HttpError(400, "INVALID_ARG_CHANNEL")
        return Query(source, topics, channels)

    def _read_lease(self, request: Request) -> float:
        text = request.find("lease")
        if text is None:
            return min(DEFAULT_LEASE_S, self._max_lease_s)
        try:
            seconds = parse_duration(text)
        except ValueError as error:
            raise HttpError(400, "INVALID_ARG_LEASE") from error
        if not 0 < seconds <= self._max_lease_s:
            raise HttpError(400, "INVALID_ARG_LEASE")
        return seconds


def _needs_token_file(node: Node) -> bool:
    """Whether clients must AUTH before SUB, and no token says who may see messages here."""
    return bool(node.options.auth_http_addresses) and not node.options.http_auth_token_file


def _read_patterns(request: Request, name: str) -> "re.Pattern[str] | None":
    text = request.find(name)
    if text is None:
        return None
    try:
        return compile_patterns(text)
    except ValueError as error:
        raise HttpError(400, f"INVALID_ARG_{name.upper()}") from error


def _get_id(request: Request) -> str:
    lease_id = request.find("id")
    if not lease_id:
        raise HttpError(400, "INVALID_ARG_ID")
    return lease_id


def _get_lease(analytics: Analytics, request: Request) -> Lease:
    lease = analytics.leases.find(_get_id(request))
    if lease is None:
        raise HttpError(404, "LEASE_NOT_FOUND")
    return lease


def _show(analytics: Analytics, lease: Lease) -> dict[str, Any]:
    return {
        "id": lease.id,
        "seconds": round(analytics.leases.seconds_left(lease), 3),
        "expires_ns": analytics.leases.expires_ns(lease),
        "bytes": lease.size_bytes,
    }


async def _document(head: dict[str, Any], entries: Sequence[bytes]) -> tuple[list[bytes], str]:
    """Put the entries of queues behind the head, in slices; return the parts and their digest."""
    digest = hashlib.blake2b(digest_size=16)

    def iter_parts() -> Iterator[bytes]:
        yield encode(head)[:-1] + b',"queues":['
        for start in range(0, len(entries), _JOINED_COUNT):
            yield b",\n" if start else b"\n"
            yield b",\n".join(entries[start : start + _JOINED_COUNT])
        yield b"]}\n"

    def note(part: bytes) -> bytes:
        digest.update(part)
        return part

    return await gather_slices(map(note, iter_parts())), digest.hexdigest()


def _make_response(request: Request, body: FileBody) -> Response:
    """Return a file, or the part of it that the request asks for."""
    size_bytes = body.size_bytes
    match = _RANGE.fullmatch(request.headers.get(b"range", b"").replace(b" ", b""))
    if match is None or not (match[1] or match[2]):
        return Response.from_file(body, headers={"Accept-Ranges": "bytes"})
    if match[1]:
        start = int(match[1])
        stop = min(int(match[2]) + 1, size_bytes) if match[2] else size_bytes
        if match[2] and int(match[2]) < start:
            return Response.from_file(body, headers={"Accept-Ranges": "bytes"})
    else:
        start, stop = max(size_bytes - int(match[2]), 0), size_bytes
    if start >= stop:
        body.close()
        error = Response.error(HttpError(416, "RANGE_NOT_SATISFIABLE"), request.route.style)
        return Response(
            error.status,
            error.body,
            content_type=JSON_CONTENT_TYPE,
            headers={"Content-Range": f"bytes */{size_bytes}"},
        )
    body.offset += start
    body.size_bytes = stop - start
    return Response.from_file(
        body, status=206, headers={"Content-Range": f"bytes {start}-{stop - 1}/{size_bytes}"}
    )
