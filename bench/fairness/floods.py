"""Commands sent as fast as the daemon takes them: plain, compressed, over TLS, on many sockets.

A flood is a prebuilt stream of whole commands that repeats itself; answers are read and dropped.
One process with one poller keeps all sockets full, so the load costs little beside the daemon.
"""

import contextlib
import json
import select
import socket
import ssl
import struct
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import snappy

from bench import wire
from bench.fairness.row import CHANNEL, TOPIC, Site
from bench.load import LoadResult, Start
from bench.wire import LoadError

STREAM_BYTES: Final = 1 << 20
SEND_BYTES: Final = 1 << 18
RECEIVE_BYTES: Final = 1 << 20
# A flood of a fixed number of commands ends when all its sockets have been silent for this long.
SILENCE_S: Final = 0.5
# It may take this long at most.
MOST_SECONDS: Final = 60.0

# Longer than any flood: a consumer must have heartbeats.
HEARTBEAT_MS: Final = 60_000

_WAITING: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


@dataclass(frozen=True, slots=True)
class Flood:
    """A load: `unit` again and again on `connections` sockets, until the time is up.

    Attributes:
        unit: whole commands; `unit_commands` of them.
        channels: of the greedy topic.
        subscribes: SUB comes first, for commands that only a consumer may send.
        settings: for IDENTIFY, to negotiate compression or TLS.
        encode: makes the bytes on the wire of the repeated unit: whole, independent blocks.
        preamble: sent once, before the flood.
        is_counted: ends after `Site.size` units, when all are answered with OK, not by time.
    """

    unit: bytes
    unit_commands: int = 1
    connections: int = 1
    channels: int = 1
    subscribes: bool = False
    settings: dict[str, object] | None = None
    encode: Callable[[bytes], bytes] | None = None
    preamble: bytes = b""
    is_counted: bool = False

    def __call__(self, site: Site, start: Start) -> LoadResult:
        """Flood.

        Raises:
            LoadError: the daemon refuses a connection or closes it.
        """
        ensure_channel(site, self.channels)
        repeats = max(1, STREAM_BYTES // len(self.unit))
        stream = self.unit * repeats
        if self.encode:
            stream = self.encode(stream)
        bytes_per_unit = len(stream) / repeats
        most_bytes = int(bytes_per_unit * site.size) if self.is_counted else None
        with contextlib.ExitStack() as stack:
            sockets = [
                stack.enter_context(self._connect(site.daemon.tcp)) for _ in range(self.connections)
            ]
            for sock in sockets:
                sock.sendall(self.preamble)
            start()
            cpu_s, started_ns = time.process_time(), time.monotonic_ns()
            pour = Pour(sockets, stream)
            pour.run(site.seconds if most_bytes is None else MOST_SECONDS, most_bytes)
            ended_ns = time.monotonic_ns()
        commands = int(pour.sent_bytes / bytes_per_unit * self.unit_commands)
        return LoadResult(commands, started_ns, ended_ns, time.process_time() - cpu_s)

    def _connect(self, address: tuple[str, int]) -> socket.socket:
        sock = connect_greedy(address, self.settings or {})
        if self.subscribes:
            sock.sendall(f"SUB {TOPIC} {CHANNEL}\n".encode())
            wire.expect(sock, wire.OK_FRAME)
        return sock


def publish_large_mpubs(site: Site, start: Start) -> LoadResult:
    """MPUB of `Site.size` messages of one byte, each after the OK of the one before.

    Raises:
        LoadError: the daemon refuses one.
    """
    ensure_channel(site)
    command = wire.mpub_command(TOPIC, b"x", site.size)
    count = 0
    with connect_greedy(site.daemon.tcp, {}) as sock:
        sock.settimeout(MOST_SECONDS)
        start()
        cpu_s, started_ns = time.process_time(), time.monotonic_ns()
        deadline = time.monotonic() + site.seconds
        while time.monotonic() < deadline:
            sock.sendall(command)
            wire.expect(sock, wire.OK_FRAME)
            count += site.size
        ended_ns = time.monotonic_ns()
    return LoadResult(count, started_ns, ended_ns, time.process_time() - cpu_s)


def ensure_channel(site: Site, channels: int = 1) -> None:
    """Make the greedy topic and its channels, the first of which is the greedy one."""
    site.daemon.request("POST", "/topic/create", topic=TOPIC)
    for number in range(channels):
        name = f"{CHANNEL}_{number}" if number else CHANNEL
        site.daemon.request("POST", "/channel/create", topic=TOPIC, channel=name)


def connect_greedy(address: tuple[str, int], settings: dict[str, object]) -> socket.socket:
    """A V2 connection that hears no heartbeat for a minute, with these features negotiated.

    Raises:
        LoadError: the daemon refuses.
    """
    sock = wire.connect(address)
    identify = wire.identify_command(
        {
            "client_id": "greedy",
            "heartbeat_interval": HEARTBEAT_MS,
            **settings,
            "feature_negotiation": True,
        }
    )
    sock.sendall(wire.MAGIC + identify)
    agreed = _read_answer(sock)
    for feature in ("snappy", "deflate", "tls_v1"):
        if settings.get(feature) and not agreed.get(feature):
            raise LoadError(f"the daemon does not offer {feature}")
    if settings.get("tls_v1"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        sock = context.wrap_socket(sock)
        wire.expect(sock, wire.OK_FRAME)
    return sock


def _read_answer(sock: socket.socket) -> dict[str, Any]:
    """The JSON that answers IDENTIFY, and no byte more: what follows may be compressed."""
    size, _ = wire.type_and_size.unpack(_read(sock, wire.FRAME_HEADER_BYTES))
    answer = json.loads(_read(sock, size - 4))
    if not isinstance(answer, dict):
        raise LoadError(f"IDENTIFY was answered with {answer!r}")
    return answer


def _read(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = sock.recv(size - len(data))
        if not more:
            raise LoadError("the daemon closed the connection at IDENTIFY")
        data += more
    return data


class Pour:
    """Keeps sockets full of a stream that repeats itself, and drops what they answer."""

    def __init__(self, sockets: Sequence[socket.socket], stream: bytes) -> None:
        self._stream = memoryview(stream)
        self._sink = bytearray(RECEIVE_BYTES)
        self._sockets = {sock.fileno(): sock for sock in sockets}
        self._sent_bytes = dict.fromkeys(self._sockets, 0)

    @property
    def sent_bytes(self) -> int:
        return sum(self._sent_bytes.values())

    def run(self, seconds: float, most_bytes: int | None = None) -> None:
        """Send until the time is up; or `most_bytes` on each socket, until all are silent.

        Raises:
            LoadError: a connection was closed.
        """
        deadline = time.monotonic() + seconds
        quiet_s = SILENCE_S if most_bytes is not None else seconds
        with select.epoll() as poller:
            for sock in self._sockets.values():
                sock.setblocking(False)
                poller.register(sock, select.EPOLLIN | select.EPOLLOUT)
            while (left_s := deadline - time.monotonic()) > 0:
                ready = poller.poll(min(left_s, quiet_s))
                if not ready and most_bytes is not None:
                    break
                for number, events in ready:
                    if events & ~select.EPOLLOUT:
                        self._receive(self._sockets[number])
                    if events & select.EPOLLOUT and not self._send(number, most_bytes):
                        poller.modify(number, select.EPOLLIN)

    def _send(self, number: int, most_bytes: int | None) -> bool:
        """Send a chunk; False if this socket has had all its bytes."""
        sent = self._sent_bytes[number]
        size = SEND_BYTES if most_bytes is None else min(SEND_BYTES, most_bytes - sent)
        if size <= 0:
            return False
        begin = sent % len(self._stream)
        try:
            self._sent_bytes[number] += self._sockets[number].send(
                self._stream[begin : begin + size]
            )
        except _WAITING:
            return True
        except OSError as error:
            raise LoadError(f"the greedy connection broke: {error}; {self._last()}") from error
        return True

    def _receive(self, sock: socket.socket) -> None:
        try:
            count = sock.recv_into(self._sink)
        except _WAITING:
            return
        except OSError as error:
            raise LoadError(f"the greedy connection broke: {error}; {self._last()}") from error
        if not count:
            raise LoadError(f"the daemon closed the greedy connection; {self._last()}")

    def _last(self) -> str:
        return f"it had answered {wire.describe(self._sink[:300])}"


def deflated(stream: bytes) -> bytes:
    """The stream in blocks that need nothing of what came before them, so they may be repeated."""
    compressor = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    return compressor.compress(stream) + compressor.flush(zlib.Z_FULL_FLUSH)


# The stream of snappy frames: "sNaPpY" once, then chunks of type, length and masked CRC-32C.
SNAPPY_HEADER: Final = b"\xff\x06\x00\x00sNaPpY"
# An uncompressed chunk that holds nothing but the checksum of nothing.
SNAPPY_EMPTY_CHUNK: Final = b"\x01\x04\x00\x00" + struct.pack("<I", 0xA282EAD8)


def snappy_compressed(stream: bytes) -> bytes:
    """The stream as chunks of snappy frames, without the header."""
    framed: bytes = snappy.StreamCompressor().compress(stream)
    return framed.removeprefix(SNAPPY_HEADER)
