"""Listening sockets: host:port is TCP, anything else the path of a unix socket, as in nsqd.

The caller of `listen` owns the socket: connections queue up in it until `serve` takes them, and the
caller ends with `remove_unix_socket`.
"""

import asyncio
import contextlib
import errno
import logging
import os
import re
import resource
import socket
import ssl as tls
import stat
from collections.abc import Callable

logger = logging.getLogger(__name__)

BACKLOG = 0xFFFF  # as much as the system allows: it has its own, lower limit
KEEP_ALIVE_S = 15  # Go's default, by which a peer that lost power is gone in about two minutes
KEEP_ALIVE_OPTIONS = ("TCP_KEEPIDLE", "TCP_KEEPALIVE", "TCP_KEEPINTVL")  # macOS lacks the first
_HOST_PORT = re.compile(r"(?:\[(?P<bracketed>[^\]]*)\]|(?P<host>[^:]*)):(?P<port>[0-9]{1,5})")


class ListenError(Exception):
    """The address can't be listened on; the text says which and why."""


def split_address(address: str) -> tuple[str, int] | None:
    """Return host and port, or None if the address is a path."""
    match = _HOST_PORT.fullmatch(address)
    if match is None:
        return None
    return match["bracketed"] or match["host"] or "", int(match["port"])


def listen(address: str) -> socket.socket:
    """Return a socket that listens on the address; connections queue up until they are served.

    Raises:
        ListenError: the port is in use, the host unknown, the path taken.
    """
    try:
        host_port = split_address(address)
        if host_port is None:
            return _listen_unix(address)
        # Made anew it knows its protocol number, and asyncio sets TCP_NODELAY on its connections.
        listener = socket.socket(fileno=_listen_tcp(*host_port).detach())
        _tune(listener)
        return listener
    except (OSError, OverflowError) as error:
        raise ListenError(f"listen ({address}) failed - {_describe(error)}") from error


async def serve(
    listener: socket.socket,
    make_protocol: Callable[[], asyncio.BaseProtocol],
    *,
    ssl: tls.SSLContext | None = None,
    ssl_handshake_timeout_s: float | None = None,
) -> asyncio.Server:
    """Accept connections, first those that have queued up; the server closes the socket."""
    loop = asyncio.get_running_loop()
    is_unix = listener.family == socket.AF_UNIX
    create_server = loop.create_unix_server if is_unix else loop.create_server
    return await create_server(
        make_protocol,
        sock=listener,
        backlog=BACKLOG,  # asyncio would shorten the queue to 100
        ssl=ssl,
        ssl_handshake_timeout=ssl_handshake_timeout_s,
    )


def _tune(listener: socket.socket) -> None:
    """Have TCP connections send at once, and notice a peer that is gone, as nsqd's do.

    They inherit it from their listener: to set it for each took a quarter of its accept.
    """
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name in KEEP_ALIVE_OPTIONS:
        if hasattr(socket, name):
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), KEEP_ALIVE_S)


def format_address(name: object) -> str:
    """Return the name of a socket, or of its peer, as Go shows it.

    Args:
        name: from `getsockname` or the transport's `peername`.
    """
    if isinstance(name, tuple):
        host, port = name[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    # The client of a unix socket seldom has a name.
    return name if isinstance(name, str) and name else "@"


def port_of(listener: socket.socket | None) -> int:
    """Return the port in use: -1 for a unix socket, 0 for none, as /info has it."""
    if listener is None:
        return 0
    return -1 if listener.family == socket.AF_UNIX else int(listener.getsockname()[1])


def remove_unix_socket(listener: socket.socket) -> None:
    """Remove the file of a unix socket, which is not served any more.

    Another file in its place by now belongs to another process and stays.
    """
    if isinstance(listener, _UnixListener) and listener.file == _find_file(listener.path):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(listener.path)


def raise_open_files_limit() -> None:
    """Raise the limit of open files as far as the system allows, as the Go runtime does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError) as error:  # macOS refuses its own hard limit, "unlimited"
            logger.warning("at most %d open files, more are not allowed - %s", soft, error)


class _UnixListener(socket.socket):
    """A listener that knows its file, even when it is closed."""

    __slots__ = ("file", "path")

    def __init__(self, path: str) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        self.path = path
        self.file: tuple[int, int, int] | None = None


def _listen_unix(path: str) -> socket.socket:
    listener = _UnixListener(path)
    try:
        try:
            listener.bind(path)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not _is_stale(path):
                raise
            os.unlink(path)
            listener.bind(path)
        listener.file = _find_file(path)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _find_file(path: str) -> tuple[int, int, int] | None:
    """Return the identity of a file, which another of that name does not have; None for none."""
    with contextlib.suppress(FileNotFoundError):
        status = os.stat(path)
        return status.st_dev, status.st_ino, status.st_mtime_ns
    return None


def _is_stale(path: str) -> bool:
    """Say whether this is a socket without a listener, left behind by a killed process."""
    if not stat.S_ISSOCK(os.stat(path).st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(path) == errno.ECONNREFUSED


def _listen_tcp(host: str, port: int) -> socket.socket:
    if port > 0xFFFF:
        raise OverflowError(f"invalid port {port}")
    if not host:
        # Every address of the machine, IPv6 and IPv4 alike, as Go does for an empty host.
        if socket.has_dualstack_ipv6():
            try:
                return socket.create_server(
                    ("", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True
                )
            except OSError as error:
                if not _has_no_ipv6(error):
                    raise
        host = "0.0.0.0"
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    # A name may have several addresses. Go takes one, of IPv4 if it can.
    family, _, _, _, name = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return socket.create_server(name, family=family, backlog=BACKLOG)


def _has_no_ipv6(error: OSError) -> bool:
    return error.errno in {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL}


def _describe(error: OSError | OverflowError) -> str:
    cause = str(error)
    if isinstance(error, socket.gaierror):
        cause = str(error.strerror)
    elif isinstance(error, OSError) and error.errno is not None:
        # Not the error's own text, which may name the address once more.
        cause = os.strerror(error.errno)
    return cause[:1].lower() + cause[1:]
