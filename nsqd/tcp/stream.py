"""ClientStream: the layers between a client's socket and its commands.

    socket -> [TLS] -> [snappy or deflate] -> commands, and frames back the other way

The layers are put in while the connection lives, after IDENTIFY. Bytes that the client sent ahead
of an upgrade belong to the new layer, and are fed to it.
"""

import asyncio
from collections.abc import Callable, Sequence
from ssl import SSLContext, SSLError

from nsqd.protocol import frames
from nsqd.protocol.compression import Codec
from nsqd.runtime.tls import TlsCodec, describe_tls_error
from nsqd.runtime.turns import Turns
from nsqd.tcp.outgoing import Outgoing

# From here on, bodies are not copied once more to be joined into one write.
WRITELINES_MIN_BYTES = 16 * 1024
# The most that is decompressed at once: a read may hold a thousand times its size.
MAX_DECODED_BYTES = 64 * 1024
# The most that is encrypted at once, in 0.1 ms; codecs know how much they can compress at once.
MAX_ENCRYPTED_BYTES = 64 * 1024


class TlsRefusedError(Exception):
    """The TLS handshake failed; the client can be told so in the clear."""


class TlsEndedError(Exception):
    """The client closed TLS: it sends no more bytes."""


class ClientStream:
    """The bytes of one connection, in both directions, through the negotiated layers."""

    __slots__ = (
        "_codec",
        "_is_shaking_hands",
        "_on_data",
        "_on_tls",
        "_piece_bytes",
        "_transport",
        "is_plain",
        "outgoing",
        "tls",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        turns: Turns,
        on_data: Callable[[bytes], None],
        on_output: Callable[[], object],
    ) -> None:
        """Begin without layers.

        Args:
            on_data: gets the client's bytes, decrypted and decompressed.
            on_output: called when `outgoing.is_busy` has changed.
        """
        # Bytes that wait to be encoded: none while the stream is plain.
        self.outgoing = Outgoing(turns, self._encode, on_output)
        self._piece_bytes = MAX_ENCRYPTED_BYTES
        self.tls: TlsCodec | None = None
        self.is_plain = True  # there is no layer: bytes from the socket are commands
        self._transport = transport
        self._on_data = on_data
        self._on_tls: Callable[[], None] | None = None
        self._codec: Codec | None = None
        self._is_shaking_hands = False

    def feed(self, data: bytes) -> None:
        """Pass bytes from the socket through the layers; none to go on with pending ones.

        A call takes less than a millisecond, and leaves the rest pending.

        Raises:
            TlsRefusedError: the handshake failed.
            TlsEndedError: the client has closed TLS, and all of its bytes have been handed over.
            SSLError, CompressionError: the client sends garbage.
        """
        if self._is_shaking_hands:
            data = self._shake_hands(data)
        elif self.tls is not None:
            data = self.tls.feed(data)
            self._send(self.tls.take_outgoing())
        if self._codec is not None:
            data = self._codec.decode(data, MAX_DECODED_BYTES)
        if data:
            self._on_data(data)
        elif self._has_ended():
            raise TlsEndedError

    def write(self, data: bytes) -> None:
        """Send bytes to the client; if there are many to encode, in later turns of the loop."""
        if self.is_plain:
            self._transport.write(data)
        elif self.outgoing.is_busy or len(data) > self._piece_bytes:
            self.outgoing.add(data, self._piece_bytes)
        else:
            self._encode(data)

    def _encode(self, data: bytes) -> None:
        if self._codec is not None:
            data = self._codec.encode(data)
        if self.tls is not None:
            data = self.tls.encode(data)
        self._transport.write(data)

    def write_messages(self, parts: list[bytes], bodies: Sequence[bytes]) -> None:
        """Send message frames, given as their parts."""
        if not self.is_plain:
            self.write(b"".join(parts))
        elif len(bodies[0]) < WRITELINES_MIN_BYTES:
            self._transport.write(b"".join(parts))
        else:
            self._transport.writelines(parts)

    def start_tls(self, context: SSLContext, on_tls: Callable[[], None], ahead: bytes) -> None:
        """Have the next bytes be a TLS handshake.

        Args:
            on_tls: called when it is done, with TLS in force.
            ahead: the part of it that the client has sent already.

        Raises:
            TlsRefusedError: that part is no TLS.
        """
        self.is_plain = False
        self.tls = TlsCodec(context)
        self._on_tls = on_tls
        self._is_shaking_hands = True
        if ahead:
            self.feed(ahead)

    def drop_tls(self) -> None:
        """Go back to sending in the clear: the handshake failed."""
        self.tls = None
        self._is_shaking_hands = False
        self._on_tls = None

    def start_compression(self, codec: Codec) -> None:
        """Compress both directions from here on."""
        self.is_plain = False
        self._codec = codec
        self._piece_bytes = codec.max_encoded_bytes

    @property
    def is_compressed(self) -> bool:
        """Whether a compression is in force."""
        return self._codec is not None

    @property
    def has_pending(self) -> bool:
        """Whether `feed` has more to hand over, or to raise, without further bytes."""
        if self._codec is not None and self._codec.has_pending:
            return True
        return self.tls is not None and (self.tls.has_pending or self.tls.is_peer_closed)

    @property
    def unsent_bytes(self) -> int:
        """How many bytes wait for the client to read."""
        return self._transport.get_write_buffer_size()

    def close(self) -> None:
        """Drop the callbacks: they refer to the connection, which refers to this stream."""
        self._on_data = _drop
        self._on_tls = None
        self.outgoing.close()

    def _shake_hands(self, data: bytes) -> bytes:
        assert self.tls is not None
        try:
            data = self.tls.feed(data)
        except SSLError as error:
            self.drop_tls()
            raise TlsRefusedError(describe_tls_error(error)) from error
        self._send(self.tls.take_outgoing())
        if self.tls.handshake_done:
            self._is_shaking_hands = False
            on_tls, self._on_tls = self._on_tls, None
            assert on_tls is not None
            self.write(frames.OK)
            on_tls()
        return data

    def _has_ended(self) -> bool:
        is_decoded = self._codec is None or not self._codec.has_pending
        return self.tls is not None and self.tls.is_peer_closed and is_decoded

    def _send(self, data: bytes) -> None:
        if data:
            self._transport.write(data)


def _drop(data: bytes) -> None:
    """Ignore bytes: the connection is over."""
