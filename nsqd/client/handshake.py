"""Handshake: the beginning of a connection, sans I/O: IDENTIFY, TLS, compression, AUTH.

Each step begins where the last byte of the one before ends, and nsqd does not wait in between: the
answer to TLS and compressed bytes may arrive in one read. So a frame is taken at a time.

    IDENTIFYING -> STARTING_TLS -> CONFIRMING_TLS
                -> CONFIRMING_COMPRESSION -> AUTHENTICATING -> DONE
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Final

from nsqd.client.errors import AuthError, ConnectError, NegotiationError
from nsqd.client.settings import Settings
from nsqd.protocol import client_wire as wire

if TYPE_CHECKING:
    from nsqd.protocol.compression import Codec

_PREFIX: Final = Struct(">ii")
_TYPE_BYTES: Final = 4
_ERROR: Final = 1
# An answer to IDENTIFY or AUTH is small; more is another protocol.
_MAX_ANSWER_BYTES: Final = 1 << 20
_DECODE_BYTES: Final = 1 << 20
_AUTH_ERRORS: Final = (b"E_AUTH", b"E_UNAUTHORIZED")


class Step(enum.Enum):
    """The step of a handshake that waits for nsqd; STARTING_TLS waits for the caller."""

    IDENTIFYING = enum.auto()
    STARTING_TLS = enum.auto()
    CONFIRMING_TLS = enum.auto()
    CONFIRMING_COMPRESSION = enum.auto()
    AUTHENTICATING = enum.auto()
    DONE = enum.auto()


@dataclass(frozen=True, slots=True)
class Negotiated:
    """The answer to IDENTIFY, as far as a client acts on it. Times are seconds."""

    max_rdy_count: int = 2500
    msg_timeout: float = 60.0
    max_msg_timeout: float = 900.0
    has_tls: bool = False
    has_snappy: bool = False
    has_deflate: bool = False
    wants_auth: bool = False
    version: str = ""

    @classmethod
    def parse(cls, answer: bytes) -> Negotiated:
        """Read the answer; an nsqd that negotiates nothing says OK.

        Raises:
            ConnectError: it is not the answer of an nsqd.
        """
        if answer == wire.OK:
            return cls()
        try:
            fields = json.loads(answer)
            return cls(
                max_rdy_count=int(fields.get("max_rdy_count", 2500)),
                msg_timeout=int(fields.get("msg_timeout", 60_000)) / 1000,
                max_msg_timeout=int(fields.get("max_msg_timeout", 900_000)) / 1000,
                has_tls=bool(fields.get("tls_v1")),
                has_snappy=bool(fields.get("snappy")),
                has_deflate=bool(fields.get("deflate")),
                wants_auth=bool(fields.get("auth_required")),
                version=str(fields.get("version", "")),
            )
        except (ValueError, TypeError, AttributeError) as error:
            raise ConnectError("the answer to IDENTIFY is not that of an nsqd") from error


class Handshake:
    """One connection's beginning. `feed` it until `step` is DONE, then `take_rest`."""

    def __init__(self, settings: Settings) -> None:
        """Begin; `start` returns the first bytes."""
        self.step = Step.IDENTIFYING
        self.negotiated = Negotiated()
        # From CONFIRMING_COMPRESSION on, all bytes of both directions go through it.
        self.codec: Codec | None = None
        self._settings = settings
        self._received = bytearray()

    def start(self) -> bytes:
        """Return the first bytes for nsqd."""
        fields = json.dumps(self._settings.identify_fields(), separators=(",", ":"))
        return wire.MAGIC + wire.encode_with_body("IDENTIFY\n", fields.encode())

    def feed(self, data: bytes) -> bytes:
        """Take bytes (behind TLS, before decompression) and return those to send now.

        Raises:
            ConnectError: the peer is no nsqd, or refuses a setting (NegotiationError).
            AuthError: the secret is missing or refused.
        """
        self._received += self._decode(data)
        outgoing = []
        while self.step not in (Step.STARTING_TLS, Step.DONE):
            answer = self._take_answer()
            if answer is None:
                break
            outgoing.append(self._advance(answer))
        if self.step is Step.STARTING_TLS and self._received:
            raise ConnectError("bytes in the clear where TLS should begin")
        return b"".join(outgoing)

    def confirm_tls(self) -> None:
        """Go on, as TLS has begun: further bytes come from inside it."""
        assert self.step is Step.STARTING_TLS
        self.step = Step.CONFIRMING_TLS

    def take_rest(self) -> bytes:
        """Return the bytes that came behind the handshake, decompressed."""
        assert self.step is Step.DONE
        rest = bytes(self._received)
        self._received.clear()
        return rest

    def _decode(self, data: bytes) -> bytes:
        codec = self.codec
        if codec is None:
            return data
        from nsqd.protocol.compression import CompressionError

        try:
            plain = codec.decode(data, _DECODE_BYTES)
            while codec.has_pending and (more := codec.decode(b"", _DECODE_BYTES)):
                plain += more
        except CompressionError as error:
            raise ConnectError(f"bad compressed data: {error}") from error
        return plain

    def _take_answer(self) -> bytes | None:
        """Take one frame and return its data; None if it is not complete yet."""
        received = self._received
        if len(received) < _PREFIX.size:
            return None
        size, kind = _PREFIX.unpack_from(received)
        if not _TYPE_BYTES <= size <= _MAX_ANSWER_BYTES or kind not in (0, _ERROR):
            raise ConnectError("the peer does not speak NSQ's protocol")
        end = _PREFIX.size - _TYPE_BYTES + size
        if len(received) < end:
            return None
        data = bytes(received[_PREFIX.size : end])
        del received[:end]
        if kind == _ERROR:
            text = data.decode("utf-8", "replace")
            if data.startswith(_AUTH_ERRORS):
                raise AuthError(text)
            raise NegotiationError(text)
        return data

    def _advance(self, answer: bytes) -> bytes:
        """Take the answer to the present step and begin the next one."""
        if answer == wire.HEARTBEAT:
            return self._encode(wire.NOP)
        if self.step is Step.IDENTIFYING:
            self.negotiated = Negotiated.parse(answer)
            self._check_features()
            if self._settings.tls is not None:
                self.step = Step.STARTING_TLS
                return b""
            return self._begin_compression()
        if self.step is Step.AUTHENTICATING:
            self.step = Step.DONE
            return b""
        if answer != wire.OK:
            raise ConnectError("an unexpected answer during the handshake")
        if self.step is Step.CONFIRMING_TLS:
            return self._begin_compression()
        return self._begin_auth()

    def _begin_compression(self) -> bytes:
        settings = self._settings
        if settings.compression is None:
            return self._begin_auth()
        # Imported here and above: most clients do not compress, and snappy is slow to load.
        from nsqd.protocol.compression import DeflateCodec, SnappyCodec

        is_snappy = settings.compression == "snappy"
        self.codec = SnappyCodec() if is_snappy else DeflateCodec(settings.deflate_level)
        self.step = Step.CONFIRMING_COMPRESSION
        # Bytes behind the last plain frame are compressed already.
        compressed = bytes(self._received)
        self._received.clear()
        self._received += self._decode(compressed)
        return b""

    def _begin_auth(self) -> bytes:
        if not self.negotiated.wants_auth:
            self.step = Step.DONE
            return b""
        secret = self._settings.auth_secret
        if secret is None:
            raise AuthError("the nsqd wants a secret, and there is none")
        self.step = Step.AUTHENTICATING
        raw = secret.encode() if isinstance(secret, str) else secret
        return self._encode(wire.encode_with_body("AUTH\n", raw))

    def _encode(self, data: bytes) -> bytes:
        return data if self.codec is None else self.codec.encode(data)

    def _check_features(self) -> None:
        """Refuse an nsqd that lacks a feature that was asked for: none is silently left out."""
        settings, negotiated = self._settings, self.negotiated
        if settings.tls is not None and not negotiated.has_tls:
            raise NegotiationError("the nsqd does not offer TLS")
        if settings.compression == "snappy" and not negotiated.has_snappy:
            raise NegotiationError("the nsqd does not offer snappy")
        if settings.compression == "deflate" and not negotiated.has_deflate:
            raise NegotiationError("the nsqd does not offer deflate")
