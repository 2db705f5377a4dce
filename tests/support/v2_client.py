"""V2Client: one connection to nsqd over asyncio streams, frame by frame.

It sends what it is told, right or wrong, and reads what comes; nothing is answered or hidden unless
a test asks for it. TLS and compression are put in while the connection lives, as the protocol does,
and can be started before the server's reply has been read.
"""

import asyncio
import contextlib
import json
import socket
import ssl
import struct
import zlib
from dataclasses import dataclass
from typing import Any, Protocol, Self

import snappy

from tests.support.certs import Credentials
from tests.support.waiting import PATIENCE_S

MAGIC = b"  V2"
RESPONSE, ERROR, MESSAGE = 0, 1, 2
HEARTBEAT = (RESPONSE, b"_heartbeat_")
# Long enough for a loaded machine; a test that waits for it has failed.
# How long nothing must come before a test believes that nothing will.
QUIET_S = 0.05

Frame = tuple[int, bytes]
Address = tuple[str, int] | str


class ConnectionEndedError(Exception):
    """The server closed the connection; what had come of a frame is the argument."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it was delivered."""

    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Cut up the data of a message frame."""
        timestamp_ns, attempts, message_id = struct.unpack_from(">qH16s", data)
        return cls(timestamp_ns, attempts, message_id, data[26:])


class Codec(Protocol):
    """A compression, both ways."""

    def encode(self, data: bytes) -> bytes:
        """Compress and flush."""

    def decode(self, data: bytes) -> bytes:
        """Decompress."""


class Snappy:
    """The snappy framing format."""

    def __init__(self) -> None:
        self.encode = snappy.StreamCompressor().compress
        self.decode = snappy.StreamDecompressor().decompress


class Deflate:
    """Raw deflate, flushed after each write."""

    def __init__(self, level: int = 6) -> None:
        self._compressor = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._decompressor = zlib.decompressobj(-zlib.MAX_WBITS)

    def encode(self, data: bytes) -> bytes:
        """Compress and flush."""
        return self._compressor.compress(data) + self._compressor.flush(zlib.Z_SYNC_FLUSH)

    def decode(self, data: bytes) -> bytes:
        """Decompress."""
        return self._decompressor.decompress(data)


def sized(body: bytes) -> bytes:
    """Return a body behind its size."""
    return struct.pack(">i", len(body)) + body


def mpub_body(*bodies: bytes) -> bytes:
    """Return the body of an MPUB, without its outer size."""
    return struct.pack(">i", len(bodies)) + b"".join(map(sized, bodies))


def client_context(authority: Credentials, own: Credentials | None = None) -> ssl.SSLContext:
    """Return the TLS of a client that trusts the authority and may have a certificate itself."""
    context = ssl.create_default_context(cafile=authority.cert_file)
    context.check_hostname = False
    if own is not None:
        context.load_cert_chain(own.cert_file, own.key_file)
    return context


class _Tls:
    """The client's end of TLS, between two buffers."""

    def __init__(self, context: ssl.SSLContext, session: ssl.SSLSession | None = None) -> None:
        self.incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        self.object = context.wrap_bio(self.incoming, self.outgoing, session=session)

    def shake_hands(self) -> bool:
        """Make a step; True when it is done."""
        try:
            self.object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def decode(self, data: bytes) -> bytes:
        self.incoming.write(data)
        plain = b""
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            while piece := self.object.read(65536):
                plain += piece
        return plain

    def encode(self, data: bytes) -> bytes:
        self.object.write(data)
        return self.outgoing.read()


class V2Client:
    """The client's end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._tls: _Tls | None = None
        self._codec: Codec | None = None
        self._buffer = b""
        self.read_bytes = 0  # taken out, after decoding

    @classmethod
    async def connect(cls, address: Address, *, magic: bytes = MAGIC) -> Self:
        """Connect and send the magic."""
        if isinstance(address, str):
            client = cls(*await asyncio.open_unix_connection(address))
        else:
            client = cls(*await asyncio.open_connection(*address))
        if magic:
            client.send(magic)
        return client

    @classmethod
    async def connect_with_window(cls, address: Address, window_bytes: int) -> Self:
        """Connect with a small receive buffer, so that little can be sent to us unread."""
        connection = socket.socket()
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window_bytes)
        await asyncio.get_running_loop().sock_connect(connection, address)
        client = cls(*await asyncio.open_connection(sock=connection))
        client.send(MAGIC)
        return client

    @property
    def local_address(self) -> str:
        """This end, as the server shows it."""
        host, port = self._writer.get_extra_info("sockname")
        return f"{host}:{port}"

    async def close(self) -> None:
        """Close this end."""
        self._writer.close()
        with contextlib.suppress(OSError, ssl.SSLError):
            await self._writer.wait_closed()

    # --- bytes

    def send(self, data: bytes) -> None:
        """Send bytes through whatever has been negotiated."""
        if self._codec is not None:
            data = self._codec.encode(data)
        self.send_below(data)

    def send_below(self, data: bytes) -> None:
        """Send bytes under the compression."""
        if self._tls is not None:
            data = self._tls.encode(data)
        self.send_raw(data)

    def send_raw(self, data: bytes) -> None:
        """Send bytes as they are on the socket.

        Raises:
            ConnectionEndedError: it is known to be closed.
        """
        if self._writer.transport.is_closing():
            raise ConnectionEndedError
        self._writer.write(data)

    async def drain(self) -> None:
        """Wait until the kernel has taken what was sent."""
        async with asyncio.timeout(PATIENCE_S):
            await self._writer.drain()

    def end_output(self) -> None:
        """Say that nothing more will be sent."""
        self._writer.write_eof()

    def reset(self) -> None:
        """Cut the connection, with a reset instead of a farewell."""
        linger = struct.pack("ii", 1, 0)
        self._writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, linger
        )
        self._writer.transport.abort()

    def stop_reading(self) -> None:
        """Take nothing more from the socket."""
        transport = self._writer.transport
        assert isinstance(transport, asyncio.ReadTransport) or hasattr(transport, "pause_reading")
        transport.pause_reading()

    def resume_reading(self) -> None:
        """Take from the socket again."""
        transport = self._writer.transport
        assert isinstance(transport, asyncio.ReadTransport) or hasattr(transport, "resume_reading")
        transport.resume_reading()

    async def _fill(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                data = await self._reader.read(65536)
        except ConnectionError as error:
            raise ConnectionEndedError(self._buffer) from error
        if not data:
            raise ConnectionEndedError(self._buffer)
        if self._tls is not None:
            data = self._tls.decode(data)
        if self._codec is not None and data:
            data = self._codec.decode(data)
        self._buffer += data

    async def read_plain(self, count: int) -> bytes:
        """Read bytes as they are on the socket, past TLS and compression."""
        async with asyncio.timeout(PATIENCE_S):
            return await self._reader.readexactly(count)

    async def read_raw(self, count: int, timeout_s: float = PATIENCE_S) -> bytes:
        """Read that many bytes, after decoding.

        Raises:
            ConnectionEndedError: there are not so many.
        """
        while len(self._buffer) < count:
            await self._fill(timeout_s)
        data, self._buffer = self._buffer[:count], self._buffer[count:]
        self.read_bytes += count
        return data

    # --- frames

    async def read_frame(self, timeout_s: float = PATIENCE_S) -> Frame:
        """Read one frame, heartbeats too."""
        size, kind = struct.unpack(">ii", await self.read_raw(8, timeout_s))
        return kind, await self.read_raw(size - 4, timeout_s)

    async def read_response(self) -> bytes:
        """Read a frame that must be a response, and return its data."""
        kind, data = await self.read_frame()
        assert kind == RESPONSE, (kind, data)
        return data

    async def read_message(self, timeout_s: float = PATIENCE_S) -> Message:
        """Read a frame that must be a message."""
        kind, data = await self.read_frame(timeout_s)
        assert kind == MESSAGE, (kind, data)
        return Message.decode(data)

    async def read_messages(self, count: int) -> list[Message]:
        """Read frames that must be messages."""
        return [await self.read_message() for _ in range(count)]

    async def expect_ok(self, count: int = 1) -> None:
        """Read that many OKs and nothing else."""
        for _ in range(count):
            assert await self.read_frame() == (RESPONSE, b"OK")

    async def expect_error(self, text: bytes, *, is_fatal: bool = True) -> None:
        """Read exactly this error, and the end of the connection if it is fatal."""
        assert await self.read_frame() == (ERROR, text)
        if is_fatal:
            await self.expect_closed()

    async def expect_closed(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait for the end of the connection, before which nothing may come."""
        while True:
            try:
                await self._fill(timeout_s)
            except ConnectionEndedError:
                break
        assert self._buffer == b""

    async def wait_closed(self) -> None:
        """Wait for the end of the connection, whatever comes before."""
        with contextlib.suppress(ConnectionEndedError):
            while True:
                await self._fill(PATIENCE_S)

    async def expect_quiet(self, duration_s: float = QUIET_S) -> None:
        """Make sure that nothing comes for a while."""
        with contextlib.suppress(TimeoutError):
            raise AssertionError(f"came: {await self.read_frame(duration_s)!r}")

    async def settle(self) -> None:
        """Wait until the server has run every command sent so far."""
        self.pub("settled#ephemeral", b"?")
        await self.expect_ok()

    # --- commands

    def command(self, *words: str | bytes | int, body: bytes | None = None) -> None:
        """Send a command line, with a sized body if there is one."""
        line = b" ".join(word if isinstance(word, bytes) else str(word).encode() for word in words)
        self.send(line + b"\n" + (b"" if body is None else sized(body)))

    def pub(self, topic: str, body: bytes) -> None:
        """PUB."""
        self.command("PUB", topic, body=body)

    def mpub(self, topic: str, *bodies: bytes) -> None:
        """MPUB."""
        self.command("MPUB", topic, body=mpub_body(*bodies))

    def dpub(self, topic: str, delay_ms: int, body: bytes) -> None:
        """DPUB."""
        self.command("DPUB", topic, delay_ms, body=body)

    def rdy(self, count: int) -> None:
        """RDY."""
        self.command("RDY", count)

    def fin(self, message: Message) -> None:
        """FIN."""
        self.command("FIN", message.id)

    def req(self, message: Message, delay_ms: int) -> None:
        """REQ."""
        self.command("REQ", message.id, delay_ms)

    def touch(self, message: Message) -> None:
        """TOUCH."""
        self.command("TOUCH", message.id)

    def nop(self) -> None:
        """NOP."""
        self.command("NOP")

    async def publish(self, topic: str, *bodies: bytes) -> None:
        """Publish one by one and read the OKs."""
        for body in bodies:
            self.pub(topic, body)
        await self.expect_ok(len(bodies))

    async def subscribe(self, topic: str, channel: str = "ch", *, rdy: int = 0) -> None:
        """SUB, and RDY if it is not 0."""
        self.command("SUB", topic, channel)
        await self.expect_ok()
        if rdy:
            self.rdy(rdy)

    def send_identify(self, **fields: object) -> None:
        """IDENTIFY with these fields and nothing else."""
        self.command("IDENTIFY", body=json.dumps(fields).encode())

    async def identify(self, **fields: object) -> dict[str, Any]:
        """IDENTIFY with feature negotiation; return the decoded reply."""
        self.send_identify(feature_negotiation=True, **fields)
        reply: dict[str, Any] = json.loads(await self.read_response())
        return reply

    # --- upgrades

    def send_client_hello(
        self, context: ssl.SSLContext, session: ssl.SSLSession | None = None
    ) -> None:
        """Begin a TLS handshake without waiting for anything."""
        tls = _Tls(context, session)
        tls.shake_hands()
        self.send_raw(tls.outgoing.read())
        self._tls = tls

    async def finish_handshake(self) -> None:
        """Go on with the handshake to its end; the OK inside TLS comes next.

        Raises:
            ssl.SSLError: the server or this end refused.
            ConnectionEndedError: the server closed the connection.
        """
        assert self._tls is not None
        rest, self._buffer = self._buffer, b""
        self._tls.incoming.write(rest)
        while not self._tls.shake_hands():
            self._send_handshake()
            async with asyncio.timeout(PATIENCE_S):
                data = await self._reader.read(65536)
            if not data:
                raise ConnectionEndedError
            self._tls.incoming.write(data)
        self._send_handshake()
        self._buffer = self._tls.decode(b"")

    def _send_handshake(self) -> None:
        assert self._tls is not None
        data = self._tls.outgoing.read()
        if data:
            self.send_raw(data)

    async def start_tls(
        self, context: ssl.SSLContext, session: ssl.SSLSession | None = None
    ) -> None:
        """Shake hands, asking to resume the session if there is one; read the OK that follows."""
        self.send_client_hello(context, session)
        await self.finish_handshake()
        await self.expect_ok()

    def send_tls_farewell(self) -> None:
        """Say inside TLS that nothing more will be sent."""
        assert self._tls is not None
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.object.unwrap()
        self._send_handshake()

    @property
    def tls(self) -> ssl.SSLObject:
        """The TLS in force."""
        assert self._tls is not None
        return self._tls.object

    def start_codec(self, codec: Codec) -> None:
        """Compress from here on, what has been received already included."""
        self._codec = codec
        if self._buffer:
            self._buffer = codec.decode(self._buffer)
