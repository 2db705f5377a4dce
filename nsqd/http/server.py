"""HttpServer: listen, answer requests by a `Router`, stop. Users import the server's names here.

Of NSQ it has only the style of the replies; nsqd and nsqlookupd bring their routes. One client is
a connection of `connection.py`.
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
from nsqd.runtime.descriptors import Descriptors
from nsqd.runtime.door_counts import DoorCounts
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

# Turns of the loop between asyncio's accept of a socket and the call of `connection_made`.
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
        counts: DoorCounts | None = None,
        descriptors: Descriptors | None = None,
    ) -> None:
        """Args:
        before: sees each request when its head is complete, and may answer instead of its route.
        on_request: called after each reply, except on quiet routes, with the seconds that it
            took; `log_request` is one.
        max_connections: further connections are answered with 503 and closed.
        counts: gets the errors by cause; shared by HTTP and HTTPS.
        descriptors: tells whether the process may open enough files.
        """
        self._service = HttpService(
            router,
            limits=limits,
            before=before,
            on_request=on_request,
            max_connections=max_connections,
            counts=counts,
            descriptors=descriptors,
        )
        self._server: asyncio.Server | None = None
        self.port = 0  # of the listening socket; -1 for a unix socket

    @property
    def connection_count(self) -> int:
        return len(self._service.connections)

    async def start(self, listener: socket.socket, *, ssl: tls.SSLContext | None = None) -> None:
        """Answer requests from here on.

        Args:
            listener: made by `listen` and closed with the server; removing the file of a unix
                socket is left to the caller.
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
        """Stop listening, wait some time for the replies under way, then cut all connections."""
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
                async with asyncio.timeout(grace_s):
                    await drained.wait()
        for connection in list(self._service.connections):
            connection.abort()
        if self._service.connections:
            await drained.wait()
        await self._server.wait_closed()
        self._service.file_threads.close()
        self._server = None


def log_request(request: Request, response: Response, duration_s: float) -> None:
    """Write nsqd's log line of a request, or a warning if the input was no request."""
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
