"""A generic HTTP/1.1 server: listening, stopping, and the names that its users need.

It knows nothing of NSQ beyond the style of its replies; nsqd and nsqlookupd bring a `Router`.
Read on in `http_routes.py` (what a request is answered with), `http_parser.py` (bytes to requests)
and `http_connection.py` (one client). Import from here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl as tls
import stat
from typing import Final, TypeAlias

from nsqd.transport.http_connection import HttpConnection, HttpService, RequestHook
from nsqd.transport.http_parser import BeforeHook, HttpLimits
from nsqd.transport.http_routes import (
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

__all__ = [
    "DEFAULT_MAX_BODY_BYTES",
    "EMPTY",
    "JSON_CONTENT_TYPE",
    "OK",
    "TEXT_CONTENT_TYPE",
    "Address",
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
]

LISTEN_BACKLOG: Final = 0xFFFF  # as much as the system allows: it has its own, lower limit
DEFAULT_GRACE_S: Final = 2.0

# Turns of the loop that asyncio takes between accepting a socket and telling its connection.
_ACCEPT_TURNS = 3

# A host and a port, the path of a unix socket, or a socket that is bound already.
Address: TypeAlias = tuple[str, int] | str | socket.socket


class HttpServer:
    """One listening address and its connections. `start` once, `close` once."""

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
        on_request: called after each reply, except on quiet routes, with status, method, uri,
            remote address and duration in seconds.
        max_connections: further ones are answered with 503 and closed.
        """
        self._service = HttpService(
            router,
            limits=limits,
            before=before,
            on_request=on_request,
            max_connections=max_connections,
        )
        self._listener: asyncio.Server | None = None
        self._name: tuple[str, int] | str = ""
        self._unix_inode: tuple[int, int] | None = None

    @property
    def port(self) -> int:
        """The port that is listened on, -1 for a unix socket."""
        return self._name[1] if isinstance(self._name, tuple) else -1

    @property
    def address(self) -> str:
        """What is listened on, as text: `127.0.0.1:4151`, `[::]:4151` or a path."""
        if isinstance(self._name, str):
            return self._name
        host, port = self._name
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def connection_count(self) -> int:
        return len(self._service.connections)

    async def start(self, address: Address, *, ssl: tls.SSLContext | None = None) -> None:
        """Listen; requests are answered from here on.

        Args:
            address: `(host, port)`, where an empty host means all interfaces and port 0 any port;
                the path of a unix socket; or a bound socket, which is the server's from here on.

        Raises:
            OSError: The address cannot be resolved or is taken.
        """
        assert self._listener is None, "a server starts once"
        loop = asyncio.get_running_loop()
        if isinstance(address, tuple):
            address = await _bind(loop, *address)
        elif isinstance(address, str):
            address = _bind_unix(address)
        name = address.getsockname()
        self._name = (name[0], name[1]) if isinstance(name, tuple) else os.fsdecode(name)
        if isinstance(name, str) and name:
            self._unix_inode = _find_inode(name)
        self._service.is_tls = ssl is not None
        is_unix = address.family == socket.AF_UNIX
        create_server = loop.create_unix_server if is_unix else loop.create_server
        self._listener = await create_server(
            lambda: HttpConnection(self._service, loop),
            sock=address,
            ssl=ssl,
            ssl_handshake_timeout=self._service.limits.header_timeout_s if ssl else None,
            backlog=LISTEN_BACKLOG,
        )

    async def close(self, *, grace_s: float = DEFAULT_GRACE_S) -> None:
        """Stop listening, let the replies under way finish for a while, then cut the rest."""
        if self._listener is None:
            return
        self._listener.close()
        # If the file is another one by now, it is somebody else's.
        if isinstance(self._name, str) and self._unix_inode == _find_inode(self._name) is not None:
            os.unlink(self._name)
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
        await self._listener.wait_closed()
        self._listener = None


async def _bind(loop: asyncio.AbstractEventLoop, host: str, port: int) -> socket.socket:
    """One socket, as Go does: both families for an empty host, else IPv4 if there is a choice."""
    if not host and socket.has_dualstack_ipv6():
        return socket.create_server(
            ("", port), family=socket.AF_INET6, backlog=LISTEN_BACKLOG, dualstack_ipv6=True
        )
    found = await loop.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, _, _, _, name = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return socket.create_server((str(name[0]), int(name[1])), family=family, backlog=LISTEN_BACKLOG)


def _bind_unix(path: str) -> socket.socket:
    if _is_stale(path):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
    except OSError:
        listener.close()
        raise
    return listener


def _is_stale(path: str) -> bool:
    """Whether the path is a socket that nobody listens on, as a killed daemon leaves behind."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return stat.S_ISSOCK(os.stat(path).st_mode)
        except OSError:
            return False
    return False


def _find_inode(path: str) -> tuple[int, int] | None:
    with contextlib.suppress(FileNotFoundError):
        status = os.stat(path)
        return status.st_dev, status.st_ino
    return None
