"""A generic HTTP/1.1 server: listening, stopping, and the names that its users need.

It knows nothing of NSQ beyond the style of its replies; nsqd and nsqlookupd bring a `Router`.
Read on in `http_routes.py` (what a request is answered with), `http_parser.py` (bytes to requests)
and `http_connection.py` (one client). Import from here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl as tls
from typing import Final

from nsqd.config.kinds import format_duration
from nsqd.http.connection import HttpConnection, HttpService, RequestHook
from nsqd.http.parser import BeforeHook, HttpLimits
from nsqd.http.routes import (
    DEFAULT_MAX_BODY_BYTES,
    EMPTY,
    JSON_CONTENT_TYPE,
    OK,
    TEXT_CONTENT_TYPE,
    Handler,
    HttpError,
    Request,
    Response,
    Router,
    Style,
)
from nsqd.runtime.listen import port_of, serve

__all__ = [
    "DEFAULT_MAX_BODY_BYTES",
    "EMPTY",
    "JSON_CONTENT_TYPE",
    "OK",
    "TEXT_CONTENT_TYPE",
    "BeforeHook",
    "Handler",
    "HttpError",
    "HttpLimits",
    "HttpServer",
    "Request",
    "RequestHook",
    "Response",
    "Router",
    "Style",
    "log_request",
]

logger = logging.getLogger(__name__)

DEFAULT_GRACE_S: Final = 2.0

# Turns of the loop that asyncio takes between accepting a socket and telling its connection.
_ACCEPT_TURNS = 3


class HttpServer:
    """One listening socket and its connections. `start` once, `close` once."""

    def __init__(
        self,
        router: Router,
        *,
        limits: HttpLimits | None = None,
        before: BeforeHook | None = None,
        on_request: RequestHook | None = None,
        max_connections: int | None = None,
    ) -> None:
        """Args:
        before: sees each request when its head is complete, and may answer instead of its route.
        on_request: called after each reply, except on quiet routes, with the time it took in
            seconds; `log_request` is one.
        max_connections: further ones are answered with 503 and closed.
        """
        self._service = HttpService(
            router,
            limits=limits,
            before=before,
            on_request=on_request,
            max_connections=max_connections,
        )
        self._server: asyncio.Server | None = None
        self.port = 0  # the one that is listened on, -1 for a unix socket

    @property
    def connection_count(self) -> int:
        return len(self._service.connections)

    async def start(self, listener: socket.socket, *, ssl: tls.SSLContext | None = None) -> None:
        """Answer requests from here on.

        Args:
            listener: made by `listen`; closed with the server, but the file of a unix socket is
                for whoever made it to remove.
        """
        assert self._server is None, "a server starts once"
        self.port = port_of(listener)
        self._service.is_tls = ssl is not None
        loop = asyncio.get_running_loop()
        self._server = await serve(
            listener,
            lambda: HttpConnection(self._service, loop),
            ssl=ssl,
            ssl_handshake_timeout_s=self._service.limits.header_timeout_s if ssl else None,
        )

    async def close(self, *, grace_s: float = DEFAULT_GRACE_S) -> None:
        """Stop listening, let the replies under way finish for a while, then cut the rest."""
        if self._server is None:
            return
        self._server.close()
        self._service.is_ending = True
        for _ in range(_ACCEPT_TURNS):
            await asyncio.sleep(0)
        drained = asyncio.Event()
        self._service.on_empty = drained.set
        for connection in list(self._service.connections):
            connection.end()
        if self._service.connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(drained.wait(), grace_s)
        for connection in list(self._service.connections):
            connection.abort()
        if self._service.connections:
            await drained.wait()
        await self._server.wait_closed()
        self._server = None


def log_request(request: Request, response: Response, duration_s: float) -> None:
    """Write the line that nsqd writes for each request, or a warning for what is no request."""
    if not request.target.raw:
        logger.warning("refused status=%d remote=%s", response.status, request.remote)
        return
    logger.info(
        "%d %s %s (%s) %s",
        response.status,
        request.method,
        request.uri,
        request.remote,
        format_duration(duration_s),
    )
