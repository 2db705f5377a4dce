"""The bytes that the load generator sends and expects, and the sockets they travel on.

Everything is prebuilt: a worker's hot loop only slices, compares and counts.

A message frame, as the daemon sends it:

    0         4         8              16         18        34
    | size i4 | type i4 | timestamp i8 | tries u2 | id 16 B | body …
      size counts everything after itself; type 2 is a message
"""

import json
import socket
import struct

MAGIC = b"  V2"
OK_FRAME = struct.pack(">ii", 6, 0) + b"OK"
HEARTBEAT_FRAME = struct.pack(">ii", 15, 0) + b"_heartbeat_"
FRAME_ERROR = 1
FRAME_MESSAGE = 2
FRAME_HEADER_BYTES = 8
ID_OFFSET = 18
BODY_OFFSET = 34
FIN_BYTES = 21

SOCKET_TIMEOUT_S = 10.0

# The daemon refuses a body of more than 5 MiB; an MPUB of big messages takes fewer of them.
MAX_MPUB_BYTES = 4 << 20

type_and_size = struct.Struct(">ii")


class LoadError(Exception):
    """The load could not be applied: refused, disconnected, an error frame, a reply too late."""


def mpub_batch(body_bytes: int, wanted: int) -> int:
    """How many messages of this size one MPUB can carry, at most `wanted`."""
    return max(1, min(wanted, MAX_MPUB_BYTES // (body_bytes + 4)))


def pub_command(topic: str, body: bytes) -> bytes:
    """One PUB."""
    return b"PUB %s\n%s%s" % (topic.encode(), struct.pack(">i", len(body)), body)


def mpub_command(topic: str, body: bytes, count: int, *, is_mixed: bool = False) -> bytes:
    """One MPUB that carries `body` `count` times.

    Args: is_mixed: bodies from a half of its size to three halves, in no order of size.
    """
    bodies = [body] * count
    if is_mixed:
        doubled = body * 2
        bodies = [doubled[: len(body) // 2 + len(body) * n // count] for n in range(count)]
        bodies[::2] = reversed(bodies[::2])
    messages = b"".join(struct.pack(">i", len(each)) + each for each in bodies)
    sizes = struct.pack(">ii", len(messages) + 4, count)
    return b"MPUB %s\n%s%s" % (topic.encode(), sizes, messages)


def identify_command(settings: dict[str, object]) -> bytes:
    """One IDENTIFY without feature negotiation, so that the answer is OK."""
    body = json.dumps(settings).encode()
    return b"IDENTIFY\n%s%s" % (struct.pack(">i", len(body)), body)


def post_request(host: str, topic: str, body: bytes) -> bytes:
    """One keep-alive POST /pub."""
    head = (
        f"POST /pub?topic={topic} HTTP/1.1\r\n"
        f"Host: {host}\r\n"
        f"Content-Type: application/octet-stream\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def connect(address: tuple[str, int]) -> socket.socket:
    """A connected TCP socket with no delay and a timeout.

    Raises:
        LoadError: nobody listens there.
    """
    try:
        sock = socket.create_connection(address, timeout=SOCKET_TIMEOUT_S)
    except OSError as error:
        raise LoadError(f"cannot connect to {address[0]}:{address[1]}: {error}") from error
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def connect_publisher(address: tuple[str, int]) -> socket.socket:
    """A V2 connection that publishes: no heartbeats, so that all it hears is OK.

    Raises:
        LoadError: the daemon refuses.
    """
    sock = connect(address)
    settings: dict[str, object] = {"client_id": "bench", "heartbeat_interval": -1}
    _converse(sock, MAGIC + identify_command(settings))
    return sock


def connect_consumer(address: tuple[str, int], topic: str, channel: str) -> socket.socket:
    """A V2 connection subscribed to the channel, RDY still 0.

    Raises:
        LoadError: the daemon refuses.
    """
    sock = connect(address)
    subscribe = f"SUB {topic} {channel}\n".encode()
    _converse(sock, MAGIC + identify_command({"client_id": "bench"}), subscribe)
    return sock


def _converse(sock: socket.socket, *commands: bytes) -> None:
    """Send each command and have it answered with OK, or close."""
    try:
        for command in commands:
            sock.sendall(command)
            expect(sock, OK_FRAME)
    except BaseException:
        sock.close()
        raise


def expect(sock: socket.socket, frame: bytes) -> None:
    """Read exactly this frame from a blocking socket.

    Raises:
        LoadError: something else came, or nothing.
    """
    data = b""
    while len(data) < len(frame):
        try:
            more = sock.recv(len(frame) - len(data))
        except OSError as error:
            raise LoadError(f"no answer from the daemon: {error}") from error
        if not more:
            break
        data += more
    if data != frame:
        sock.settimeout(0.2)
        try:
            data += sock.recv(4096)
        except OSError:
            data += b""  # the error frame was short: what we have is all there is
        raise LoadError(f"expected {frame[8:60]!r} but got {describe(data)}")


def describe(data: bytes | bytearray) -> str:
    """The first frame of an unexpected answer, for people."""
    if not data:
        return "a closed connection"
    if len(data) < FRAME_HEADER_BYTES:
        return repr(bytes(data))
    size, kind = type_and_size.unpack_from(data)
    name = {0: "response", FRAME_ERROR: "error", FRAME_MESSAGE: "message"}.get(kind, f"type {kind}")
    return f"{name} {bytes(data[FRAME_HEADER_BYTES : 4 + max(4, min(size, 200))])!r}"
