"""Connection: one socket to an nsqd, from connect to close, for producers and consumers.

The handshake is `nsqd.client.handshake`, the bytes `nsqd.protocol.client_wire`; here are transport,
heartbeats and the watch for silence. A `Receiver` gets what arrives, by the read.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Protocol, cast

from nsqd.client.address import Address
from nsqd.client.errors import AuthError, ConnectError, TlsError
from nsqd.client.handshake import Handshake, Negotiated, Step
from nsqd.client.settings import Settings
from nsqd.protocol import client_wire as wire

if TYPE_CHECKING:
    from nsqd.protocol.compression import Codec

_logger = logging.getLogger("nsqd.client")

_DECODE_BYTES: Final = 1 << 20
# Silence of so many heartbeat intervals ends a connection.
_SILENT_INTERVALS: Final = 2
_FAREWELL_S: Final = 1.0


class Receiver(Protocol):
    """The owner of a connection: gets the frames of nsqd, by their kinds."""

    def messages_received(self, messages: list[wire.RawMessage]) -> None:
        """Take the messages of one read."""

    def reply_received(self, data: bytes, *, is_error: bool) -> None:
        """Take a response or an error; heartbeats are answered already."""

    def writing_resumed(self) -> None:
        """Go on: the write buffer has drained."""

    def connection_lost(self, reason: str) -> None:
        """Take leave; nothing comes any more."""


class Connection(asyncio.Protocol):
    """One connection. Made by `connect`; the receiver hears of it only afterwards."""

    def __init__(self, address: Address, settings: Settings, receiver: Receiver) -> None:
        """Prepare; `connect` opens it."""
        self.address = address
        self.is_lost = False
        # Whether the transport holds as much as it should; a producer waits then.
        self.is_writing_paused = False
        self._settings = settings
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._handshake: Handshake | None = Handshake(settings)
        self._shaken = self._make_future()
        self._negotiated = Negotiated()
        self._codec: Codec | None = None
        self._reader = wire.FrameReader()
        self._last_received = self._loop.time()
        self._watch: asyncio.TimerHandle | None = None
        self._reason = ""
        # Whether the end of our commands is written: a transport takes no bytes after it.
        self._has_written_eof = False
        self._ended = self._make_future()

    @property
    def negotiated(self) -> Negotiated:
        """The answer to IDENTIFY."""
        return self._negotiated

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio's, but not their classes.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._last_received = self._loop.time()
        if self._handshake is not None:
            self._shake_hands(data)
            return
        codec = self._codec
        try:
            if codec is None:
                self._dispatch(data)
                return
            for plain in _decompress(codec, data):
                self._dispatch(plain)
        except wire.FrameError as error:
            self.abort(f"the peer does not speak NSQ's protocol: {error}")

    def pause_writing(self) -> None:
        self.is_writing_paused = True

    def resume_writing(self) -> None:
        self.is_writing_paused = False
        if self._handshake is None:
            self._receiver.writing_resumed()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if self._watch is not None:
            self._watch.cancel()
        self._reason = self._reason or str(exc or "nsqd closed the connection")
        if not self._ended.done():
            self._ended.set_result(None)
        if self._handshake is None:
            self._receiver.connection_lost(self._reason)
        elif not self._shaken.done():
            kind = TlsError if isinstance(exc, ssl.SSLError) else ConnectError
            self._shaken.set_exception(kind(self._reason))
        self._transport = None

    # Called by the owner.

    def write(self, data: bytes) -> None:
        """Send commands; after the end they are dropped, as the owner is about to hear of it."""
        transport = self._transport
        if transport is not None and not transport.is_closing() and not self._has_written_eof:
            transport.write(data if self._codec is None else self._codec.encode(data))

    def abort(self, reason: str) -> None:
        """Close at once; the receiver hears of it."""
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """Send the write buffer, and let nsqd close first.

        A socket that is closed with unread bytes is reset, and nsqd may then lose commands that it
        has not read. So only our direction ends here, and nsqd, which sees the end of the commands,
        ends the other one.
        """
        transport = self._transport
        if transport is None:
            return
        self._reason = self._reason or "closed"
        try:
            async with asyncio.timeout(_FAREWELL_S):
                if transport.can_write_eof():
                    self._has_written_eof = True
                    transport.write_eof()
                    await asyncio.shield(self._ended)
        except TimeoutError:
            pass  # nsqd does not answer; the commands were sent, if that was possible at all
        finally:
            transport.close()
        try:
            async with asyncio.timeout(_FAREWELL_S):
                await asyncio.shield(self._ended)
        except TimeoutError:
            transport.abort()

    async def shake_hands(self, context: ssl.SSLContext | None) -> None:
        """Do the handshake, on a connection that was just made.

        Raises:
            ConnectError: the peer is no nsqd, or refuses (NegotiationError), or TLS fails.
            AuthError: the secret is missing or refused.
        """
        assert self._transport is not None
        assert self._handshake is not None
        self._transport.write(self._handshake.start())
        await self._shaken
        if self._handshake is not None:
            assert context is not None
            await self._start_tls(context)
            await self._shaken
        interval_s = self._settings.heartbeat_interval
        due = self._loop.time() + interval_s
        self._watch = self._loop.call_at(due, self._check_silence, due)

    async def _start_tls(self, context: ssl.SSLContext) -> None:
        assert self._transport is not None
        assert self._handshake is not None
        self._shaken = self._make_future()
        self._handshake.confirm_tls()
        tls = self._settings.tls
        name = (tls.server_name if tls else None) or self.address.host
        try:
            transport = await self._loop.start_tls(
                self._transport, self, context, server_hostname=name
            )
        except ssl.SSLCertVerificationError as error:
            raise TlsError(f"not trusted: {error.verify_message}") from error
        except ssl.SSLError as error:
            raise TlsError(f"TLS failed: {error.reason or error}") from error
        except OSError as error:
            raise TlsError(f"TLS failed: {error}") from error
        if transport is None:
            raise TlsError("TLS failed: the connection was closed")
        self._transport = transport

    def _make_future(self) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        # A failure after the caller stopped waiting, as after a timeout, is not worth a log line.
        future.add_done_callback(_retrieve)
        return future

    def _shake_hands(self, data: bytes) -> None:
        handshake = self._handshake
        assert handshake is not None
        assert self._transport is not None
        try:
            outgoing = handshake.feed(data)
        except (ConnectError, AuthError) as error:
            if not self._shaken.done():
                self._shaken.set_exception(error)
            self._transport.abort()
            return
        if outgoing:
            self._transport.write(outgoing)
        if handshake.step is Step.STARTING_TLS:
            self._shaken.set_result(None)
        elif handshake.step is Step.DONE:
            self._negotiated = handshake.negotiated
            self._codec = handshake.codec
            self._handshake = None
            self._shaken.set_result(None)
            if rest := handshake.take_rest():
                self._dispatch(rest)

    def _dispatch(self, data: bytes) -> None:
        messages, replies = self._reader.feed(data)
        if messages:
            self._receiver.messages_received(messages)
        for is_error, reply in replies:
            if reply == wire.HEARTBEAT:
                self.write(wire.NOP)
            else:
                self._receiver.reply_received(reply, is_error=is_error)

    def _check_silence(self, due: float) -> None:
        """End a connection on which nsqd was silent for two heartbeat intervals."""
        interval_s = self._settings.heartbeat_interval
        now = self._loop.time()
        late_s = now - due
        is_held_up = late_s > interval_s / 2
        if is_held_up:
            # This timer is as late as everything else here: heartbeats may wait to be read.
            _logger.warning("the event loop was held up seconds=%.1f", late_s)
        elif now - self._last_received > _SILENT_INTERVALS * interval_s:
            self.abort(f"nsqd was silent for {now - self._last_received:.0f} s")
            return
        next_due = now + interval_s / 2
        self._watch = self._loop.call_at(next_due, self._check_silence, next_due)


def _decompress(codec: Codec, data: bytes) -> Iterator[bytes]:
    from nsqd.protocol.compression import CompressionError

    try:
        while plain := codec.decode(data, _DECODE_BYTES):
            yield plain
            if not codec.has_pending:
                return
            data = b""
    except CompressionError as error:
        raise wire.FrameError(str(error)) from error


def _retrieve(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()


async def connect(
    address: Address,
    settings: Settings,
    receiver: Receiver,
    context: ssl.SSLContext | None = None,
) -> Connection:
    """Open a connection and do the handshake.

    Args:
        context: of `settings.tls`, made once for all connections.

    Raises:
        ConnectError: the nsqd cannot be reached in time, or is none; TlsError, NegotiationError.
        AuthError: the secret is missing or refused.
    """
    loop = asyncio.get_running_loop()
    connection = Connection(address, settings, receiver)
    try:
        async with asyncio.timeout(settings.connect_timeout):
            if address.is_unix:
                await loop.create_unix_connection(lambda: connection, address.host)
            else:
                await loop.create_connection(
                    lambda: connection,
                    address.host,
                    address.port,
                    local_addr=settings.local_address,
                )
            await connection.shake_hands(context)
    except TimeoutError as error:
        connection.abort("not connected in time")
        text = f"{address}: not connected in {settings.connect_timeout:g} s"
        raise ConnectError(text) from error
    except (ConnectError, AuthError) as error:
        connection.abort("the handshake failed")
        raise type(error)(f"{address}: {error}") from error
    except (OSError, UnicodeError) as error:
        connection.abort("not connected")
        raise ConnectError(f"{address}: {error}") from error
    except BaseException:
        connection.abort("cancelled")
        raise
    return connection
