"""Listening sockets: host:port is TCP, anything else the path of a unix socket, as in nsqd."""

import errno
import os
import re
import socket
import stat

BACKLOG = 0xFFFF  # as much as the system allows: it has its own, lower limit
_HOST_PORT = re.compile(r"(?:\[(?P<bracketed>[^\]]*)\]|(?P<host>[^:]*)):(?P<port>\d{1,5})")


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
        return _listen_tcp(*host_port)
    except (OSError, OverflowError) as error:
        cause = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        cause = cause[:1].lower() + cause[1:]
        raise ListenError(f"listen ({address}) failed - {cause}") from error


def format_address(listener: socket.socket) -> str:
    """Return the address as the log and Go show it, with the real port."""
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return str(name)
    host, port = name[0], name[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def remove_unix_socket(listener: socket.socket) -> None:
    """Remove the file of a unix socket, so that the next start can make it anew."""
    if listener.family == socket.AF_UNIX:
        try:
            os.unlink(listener.getsockname())
        except FileNotFoundError:
            return


def port_of(listener: socket.socket | None) -> int:
    """Return the port in use: -1 for a unix socket, 0 for none, as /info has it."""
    if listener is None:
        return 0
    return -1 if listener.family == socket.AF_UNIX else int(listener.getsockname()[1])


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
    family = found[0][0]
    return socket.create_server(found[0][4][:2], family=family, backlog=BACKLOG)


def _has_no_ipv6(error: OSError) -> bool:
    return error.errno in {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL}


def _listen_unix(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            listener.bind(path)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not _is_stale(path):
                raise
            os.unlink(path)
            listener.bind(path)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _is_stale(path: str) -> bool:
    """Whether this is a socket that nobody listens on: left behind by a process that was killed."""
    if not stat.S_ISSOCK(os.stat(path).st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(path) == errno.ECONNREFUSED
