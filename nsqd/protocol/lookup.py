"""The nsqlookupd protocol V1, both directions, sans I/O.

    client to server   "  V1"  then commands:  VERB [SP param]* LF
                                               IDENTIFY LF [int32 size][JSON]
    server to client   one reply per command:  [int32 size][text or JSON]

Integers are big-endian. A reply has no type: an error is the text ``CODE description``, and every
error ends the connection. `CommandParser` is nsqlookupd's half, `ReplyParser` and the ``encode_``
functions are nsqd's. A parser owns the bytes of one connection and nothing else.
"""

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from enum import Enum, auto
from typing import TypeVar

from nsqd.protocol.errors import ErrorCode, FatalClientError
from nsqd.protocol.go_json import decode_fields, read_int64, read_string
from nsqd.protocol.names import decode_name

MAGIC = b"  V1"
OK = b"OK"

# The Go nsqlookupd bounds neither; a real line holds two names of 64 bytes, a real body 300 bytes.
# The bytes of an incomplete command are kept in memory, for thousands of peers at a time.
MAX_LINE_BYTES = 16 * 1024
MAX_IDENTIFY_BYTES = 64 * 1024

# nsqd refuses a longer reply, unless its max-body-size says otherwise.
MAX_REPLY_BYTES = 5 * 1024 * 1024

_SIZE = struct.Struct(">i")

_LOOKUPD_FIELDS: dict[str, Callable[[object], str | int]] = {
    "broadcast_address": read_string,
    "hostname": read_string,
    "http_port": read_int64,
    "tcp_port": read_int64,
    "version": read_string,
}
# Of each text of an identity, as in nsqd's own IDENTIFY: it is shown once for each registration.
MAX_TEXT_BYTES = 255
_TOKEN_FIELD = "auth_token"
_REQUIRED_PEER_FIELDS = ("broadcast_address", "tcp_port", "http_port", "version")
_PEER_FIELDS = _LOOKUPD_FIELDS | {
    "topology_zone": read_string,
    "topology_region": read_string,
    _TOKEN_FIELD: read_string,
}


@dataclass(frozen=True, slots=True)
class NsqdIdentity:
    """An nsqd, as it describes itself in IDENTIFY."""

    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str
    hostname: str = ""
    topology_zone: str = ""
    topology_region: str = ""


@dataclass(frozen=True, slots=True)
class LookupdIdentity:
    """An nsqlookupd, as it describes itself in its reply to IDENTIFY; old ones omit fields."""

    broadcast_address: str = ""
    hostname: str = ""
    http_port: int = 0
    tcp_port: int = 0
    version: str = ""


@dataclass(frozen=True, slots=True)
class Ping:
    """PING: the peer is alive."""


@dataclass(frozen=True, slots=True)
class Identify:
    """IDENTIFY, the first command of a peer that wants to register anything."""

    identity: NsqdIdentity
    # Sent to an nsqlookupd that asks for one; the log shows commands, so not in the repr.
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Register:
    """REGISTER: the peer has this topic, or this channel of it."""

    topic: str
    channel: str | None


@dataclass(frozen=True, slots=True)
class Unregister:
    """UNREGISTER: the peer no longer has this channel, or the topic with all its channels."""

    topic: str
    channel: str | None


Command = Ping | Identify | Register | Unregister
_Registration = TypeVar("_Registration", Register, Unregister)


class LookupReplyError(Exception):
    """An nsqlookupd's answer is an error or no valid reply; the connection is of no more use."""


class _Expect(Enum):
    MAGIC = auto()
    LINE = auto()
    BODY_SIZE = auto()
    BODY = auto()
    NOTHING = auto()


class CommandParser:
    """Turn the bytes of one peer into commands, the same ones however the bytes are split.

    It holds the order of the conversation too (magic, then IDENTIFY once, then registrations), so a
    command that comes out is valid and may be carried out. After an error it takes no more bytes.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._expect = _Expect.MAGIC
        self._body_size = 0
        self._has_identified = False

    @property
    def is_mid_command(self) -> bool:
        """Whether the peer owes the rest of something: the magic, a line, a body."""
        return self._expect is not _Expect.NOTHING and (
            self._expect is not _Expect.LINE or bool(self._buffer)
        )

    def feed(self, data: bytes | memoryview) -> Iterator[Command]:
        """Copy bytes and yield the commands they complete.

        The iterator has to be exhausted (or raise) before the next call.

        Raises:
            FatalClientError: the peer broke the protocol; the commands before that were yielded.
        """
        if self._expect is _Expect.NOTHING:
            return
        self._buffer += data
        try:
            while (command := self._next_command()) is not None:
                yield command
        except FatalClientError:
            self._stop()
            raise

    def feed_eof(self) -> None:
        """Note that the peer will send nothing more.

        Raises:
            FatalClientError: it stopped within the body of an IDENTIFY. Other half commands are
                dropped without a word, as by the Go nsqlookupd.
        """
        expected = self._expect
        self._stop()
        if expected is _Expect.BODY_SIZE:
            raise _bad_body("failed to read body size")
        if expected is _Expect.BODY:
            raise _bad_body("failed to read body")

    def _stop(self) -> None:
        self._expect = _Expect.NOTHING
        self._buffer.clear()

    def _next_command(self) -> Command | None:
        """Take one command off the buffer; None means that it takes more bytes."""
        if self._expect is _Expect.MAGIC:
            magic = self._take(len(MAGIC))
            if magic is None:
                return None
            if magic != MAGIC:
                raise FatalClientError(ErrorCode.E_BAD_PROTOCOL)
            self._expect = _Expect.LINE
        if self._expect is _Expect.LINE:
            line = self._take_line()
            if line is None:
                return None
            command = self._parse_line(line)
            if command is not None:
                return command
            self._expect = _Expect.BODY_SIZE
        if self._expect is _Expect.BODY_SIZE:
            size = self._take(_SIZE.size)
            if size is None:
                return None
            self._body_size = _checked_body_size(size)
            self._expect = _Expect.BODY
        body = self._take(self._body_size)
        if body is None:
            return None
        command = decode_identify(body)
        self._has_identified = True
        self._expect = _Expect.LINE
        return command

    def _take(self, size: int) -> bytes | None:
        if len(self._buffer) < size:
            return None
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    def _take_line(self) -> bytes | None:
        end = self._buffer.find(b"\n", 0, MAX_LINE_BYTES)
        if end >= 0:
            taken = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            return taken
        if len(self._buffer) >= MAX_LINE_BYTES:
            raise FatalClientError(
                ErrorCode.E_INVALID, f"command line is longer than {MAX_LINE_BYTES} bytes"
            )
        return None

    def _parse_line(self, line: bytes) -> Command | None:
        """Parse one line; None stands for an IDENTIFY, whose body has yet to come."""
        verb, *params = line.strip().split(b" ")
        if verb == b"PING":
            return Ping()
        if verb == b"REGISTER":
            return self._parse_registration(Register, verb, params)
        if verb == b"UNREGISTER":
            return self._parse_registration(Unregister, verb, params)
        if verb != b"IDENTIFY":
            raise FatalClientError(ErrorCode.E_INVALID, b"invalid command " + verb)
        if self._has_identified:
            raise FatalClientError(ErrorCode.E_INVALID, "cannot IDENTIFY again")
        return None

    def _parse_registration(
        self, make: Callable[[str, str | None], _Registration], verb: bytes, params: list[bytes]
    ) -> _Registration:
        if not self._has_identified:
            raise FatalClientError(ErrorCode.E_INVALID, "client must IDENTIFY")
        if not params:
            raise FatalClientError(ErrorCode.E_INVALID, verb + b" insufficient number of params")
        topic = decode_name(params[0])
        if topic is None:
            raise _bad_name(ErrorCode.E_BAD_TOPIC, verb, b"topic", params[0])
        if len(params) == 1 or not params[1]:
            return make(topic, None)
        channel = decode_name(params[1])
        if channel is None:
            raise _bad_name(ErrorCode.E_BAD_CHANNEL, verb, b"channel", params[1])
        return make(topic, channel)


class ReplyParser:
    """Cut the bytes an nsqlookupd sends into replies, the same ones however the bytes are split."""

    def __init__(self, *, max_reply_bytes: int = MAX_REPLY_BYTES) -> None:
        self._buffer = bytearray()
        self._max_reply_bytes = max_reply_bytes

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take bytes and yield the content of the replies they complete.

        Raises:
            LookupReplyError: a reply's size is negative or above the limit; nothing after it can be
                understood.
        """
        self._buffer += data
        while len(self._buffer) >= _SIZE.size:
            (size,) = _SIZE.unpack_from(self._buffer)
            if not 0 <= size <= self._max_reply_bytes:
                raise LookupReplyError(
                    f"reply of {size} bytes is not within 0 and {self._max_reply_bytes}"
                )
            end = _SIZE.size + size
            if len(self._buffer) < end:
                return
            reply = bytes(self._buffer[_SIZE.size : end])
            del self._buffer[:end]
            yield reply


def encode_reply(content: bytes) -> bytes:
    """Make a reply of a text or JSON."""
    return _SIZE.pack(len(content)) + content


def encode_lookupd_identity(identity: LookupdIdentity) -> bytes:
    """Make the reply to IDENTIFY."""
    return encode_reply(_compact_json(asdict(identity)))


def encode_ping() -> bytes:
    """Make the command PING."""
    return b"PING\n"


def encode_identify(identity: NsqdIdentity, token: str = "") -> bytes:
    """Make the command IDENTIFY with its body.

    Args:
        token: for an nsqlookupd with --auth-token-file; the Go nsqlookupd ignores the field.
    """
    fields = asdict(identity) | ({_TOKEN_FIELD: token} if token else {})
    return b"IDENTIFY\n" + encode_reply(_compact_json(fields))


def encode_register(topic: str, channel: str | None = None) -> bytes:
    """Make the command REGISTER for a topic, or for a channel and its topic."""
    return _encode_registration("REGISTER", topic, channel)


def encode_unregister(topic: str, channel: str | None = None) -> bytes:
    """Make the command UNREGISTER for a channel, or for a topic with all its channels."""
    return _encode_registration("UNREGISTER", topic, channel)


def decode_identify(body: bytes) -> Identify:
    """Read the body of an IDENTIFY.

    Raises:
        FatalClientError: no JSON object, a field that is too large or of the wrong type, or a
            required one missing.
    """
    try:
        fields = decode_fields(body, _PEER_FIELDS)
    except ValueError as error:
        raise _bad_body("failed to decode JSON body") from error
    if not all(map(fields.get, _REQUIRED_PEER_FIELDS)):
        raise _bad_body("missing fields")
    token = str(fields.pop(_TOKEN_FIELD, ""))
    for name, value in fields.items():
        size = len(value.encode()) if isinstance(value, str) else 0
        if size > MAX_TEXT_BYTES:
            raise _bad_body(f"{name} too large {size} > {MAX_TEXT_BYTES}")
    return Identify(NsqdIdentity(**fields), token)


def decode_lookupd_identity(reply: bytes) -> LookupdIdentity:
    """Read the reply to IDENTIFY.

    Raises:
        LookupReplyError: it is an error (the text is in the message) or no JSON object.
    """
    try:
        return LookupdIdentity(**decode_fields(reply, _LOOKUPD_FIELDS))
    except ValueError as error:
        # A hostile reply may be megabytes long, and this ends up in a log line.
        raise LookupReplyError(f"IDENTIFY was answered with {reply[:200]!r}") from error


def check_ok(reply: bytes) -> None:
    """Check the reply to PING, REGISTER or UNREGISTER.

    Raises:
        LookupReplyError: it is an error; its text is in the message.
    """
    if reply != OK:
        raise LookupReplyError(f"command was answered with {reply[:200]!r}")


def _encode_registration(verb: str, topic: str, channel: str | None) -> bytes:
    words = (verb, topic) if channel is None else (verb, topic, channel)
    return " ".join(words).encode("ascii") + b"\n"


def _compact_json(fields: dict[str, object]) -> bytes:
    return json.dumps(fields, separators=(",", ":"), sort_keys=True).encode("ascii")


def _checked_body_size(raw: bytes) -> int:
    size: int = _SIZE.unpack(raw)[0]
    if size < 0:
        raise _bad_body(f"invalid body size {size}")
    if size > MAX_IDENTIFY_BYTES:
        raise _bad_body(f"body too big {size} > {MAX_IDENTIFY_BYTES}")
    return size


def _bad_body(text: str) -> FatalClientError:
    return FatalClientError(ErrorCode.E_BAD_BODY, f"IDENTIFY {text}")


def _bad_name(code: ErrorCode, verb: bytes, kind: bytes, name: bytes) -> FatalClientError:
    return FatalClientError(code, b"%s %s name '%s' is not valid" % (verb, kind, name))
