"""NSQ's protocol V2 as a client speaks it, sans I/O: commands to bytes, bytes to frames.

    a frame:    | int32 size of the rest | int32 type | data |
    a message:  the data is a 26-byte header (diskqueue.envelope) and the body

`FrameReader` works by the read, not by the message: one call for all that arrived. nsqd.client and
the publisher of spark_jobs share it; the bundle for Spark's executors carries it.
"""

from collections.abc import Iterator, Sequence
from itertools import repeat
from struct import Struct
from typing import Final

from diskqueue.envelope import HEADER_BYTES
from nsqd.protocol.frames import FrameType

MAGIC: Final = b"  V2"
NOP: Final = b"NOP\n"
CLS: Final = b"CLS\n"
OK: Final = b"OK"
CLOSE_WAIT: Final = b"CLOSE_WAIT"
HEARTBEAT: Final = b"_heartbeat_"

MAX_FRAME_BYTES: Final = 16 * 1024 * 1024

_SIZE_BYTES: Final = 4
_PREFIX_BYTES: Final = 8
_MESSAGE_PREFIX_BYTES: Final = _PREFIX_BYTES + HEADER_BYTES
_MIN_FRAME_BYTES: Final = 4  # of the type
_MIN_MESSAGE_BYTES: Final = _MIN_FRAME_BYTES + HEADER_BYTES
_MESSAGE: Final = int(FrameType.MESSAGE)
_ERROR: Final = int(FrameType.ERROR)
_RESPONSE: Final = int(FrameType.RESPONSE)

_pack_size = Struct(">i").pack
_pack_sizes = Struct(">ii").pack
_unpack_prefix = Struct(">ii").unpack_from
# The prefix of a frame and the header of its message, in one call.
_unpack_message = Struct(">iiqH16s").unpack_from

# Timestamp in nanoseconds, attempts, id, body.
RawMessage = tuple[int, int, bytes, bytes]
# Whether it is an error, and the data.
Reply = tuple[bool, bytes]


class FrameError(Exception):
    """The peer's bytes are no frames of NSQ; nothing after them can be understood."""


class FrameReader:
    """Cut the bytes of nsqd into messages and replies, however they arrive."""

    __slots__ = ("_held_bytes", "_needed_bytes", "_pieces")

    def __init__(self) -> None:
        # Bytes of a frame that is not complete. They are joined only when it is, so that a large
        # frame costs no more than its size.
        self._pieces: list[bytes] = []
        self._held_bytes = 0
        self._needed_bytes = 0

    def feed(self, data: bytes) -> tuple[list[RawMessage], list[Reply]]:
        """Take bytes and return the messages and the replies that they complete, in order.

        Raises:
            FrameError: a size or a type is impossible.
        """
        if self._pieces:
            self._pieces.append(data)
            self._held_bytes += len(data)
            if self._held_bytes < self._needed_bytes:
                return [], []
            data = b"".join(self._pieces)
            self._pieces.clear()
        messages: list[RawMessage] = []
        replies: list[Reply] = []
        position, end = 0, len(data)
        last_message_start = end - _MESSAGE_PREFIX_BYTES
        while True:
            if position <= last_message_start:
                size, kind, timestamp_ns, attempts, message_id = _unpack_message(data, position)
                if kind == _MESSAGE and _MIN_MESSAGE_BYTES <= size <= MAX_FRAME_BYTES:
                    frame_end = position + _SIZE_BYTES + size
                    if frame_end > end:
                        break
                    body = data[position + _MESSAGE_PREFIX_BYTES : frame_end]
                    messages.append((timestamp_ns, attempts, message_id, body))
                    position = frame_end
                    continue
            elif end - position < _PREFIX_BYTES:
                break
            # Rare: a reply, the beginning of a message, or nonsense.
            frame_end = position + _measure(data, position)
            if frame_end > end:
                break
            is_error = data[position + _PREFIX_BYTES - 1] == _ERROR
            replies.append((is_error, data[position + _PREFIX_BYTES : frame_end]))
            position = frame_end
        if position < end:
            self._hold(data[position:])
        return messages, replies

    def take_rest(self) -> bytes:
        """Return the bytes behind the last complete frame, and forget them."""
        rest = b"".join(self._pieces)
        self._pieces.clear()
        return rest

    def _hold(self, rest: bytes) -> None:
        self._pieces.append(rest)
        self._held_bytes = len(rest)
        has_prefix = len(rest) >= _PREFIX_BYTES
        self._needed_bytes = _measure(rest, 0) if has_prefix else _PREFIX_BYTES


def _measure(data: bytes, position: int) -> int:
    """Return the size of the frame at this position, its own size included.

    Raises:
        FrameError: there is no frame.
    """
    size, kind = _unpack_prefix(data, position)
    is_message = kind == _MESSAGE
    smallest = _MIN_MESSAGE_BYTES if is_message else _MIN_FRAME_BYTES
    if not smallest <= size <= MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {size} bytes")
    if not is_message and kind not in (_RESPONSE, _ERROR):
        raise FrameError(f"a frame of type {kind}")
    return _SIZE_BYTES + int(size)


def encode_with_body(line: str, body: bytes) -> bytes:
    """Return a command whose line is followed by the size of a body, and the body."""
    return b"".join((line.encode(), _pack_size(len(body)), body))


def encode_pub(topic: str, body: bytes) -> bytes:
    """Return a PUB."""
    return encode_with_body(f"PUB {topic}\n", body)


def encode_dpub(topic: str, body: bytes, defer_ms: int) -> bytes:
    """Return a DPUB: a message that is delivered defer_ms later."""
    return encode_with_body(f"DPUB {topic} {defer_ms}\n", body)


def encode_mpub(topic: str, bodies: Sequence[bytes]) -> bytes:
    """Return an MPUB: all of the messages or none."""
    count = len(bodies)
    parts: list[bytes] = [b""] * (2 + 2 * count)
    sizes = list(map(len, bodies))
    parts[0] = f"MPUB {topic}\n".encode()
    parts[1] = _pack_sizes(_SIZE_BYTES + _SIZE_BYTES * count + sum(sizes), count)
    parts[2::2] = map(_pack_size, sizes)
    parts[3::2] = bodies
    return b"".join(parts)


def cut(bodies: list[bytes], max_bytes: int) -> Iterator[list[bytes]]:
    """Cut messages into lists of no more bytes than that, or of a single message."""
    if sum(map(len, bodies)) <= max_bytes:
        if bodies:
            yield bodies
        return
    piece: list[bytes] = []
    size = 0
    for body in bodies:
        if piece and size + len(body) > max_bytes:
            yield piece
            piece, size = [], 0
        piece.append(body)
        size += len(body)
    yield piece


def encode_framed_mpub(topic: str, count: int, framed: bytes) -> bytes:
    """Return an MPUB of messages that stand behind their sizes already."""
    sizes = _pack_sizes(_SIZE_BYTES + len(framed), count)
    return b"".join((f"MPUB {topic}\n".encode(), sizes, framed))


def encode_sub(topic: str, channel: str) -> bytes:
    """Return a SUB."""
    return f"SUB {topic} {channel}\n".encode()


def encode_rdy(count: int) -> bytes:
    """Return an RDY."""
    return b"RDY %d\n" % count


def encode_fins(ids: Sequence[bytes]) -> bytes:
    """Return a FIN for each id."""
    return b"FIN %b\n" % b"\nFIN ".join(ids)


def encode_touches(ids: Sequence[bytes]) -> bytes:
    """Return a TOUCH for each id."""
    return b"TOUCH %b\n" % b"\nTOUCH ".join(ids)


def encode_req(message_id: bytes, delay_ms: int) -> bytes:
    """Return a REQ."""
    return b"REQ %b %d\n" % (message_id, delay_ms)


def encode_reqs(ids: Sequence[bytes], delay_ms: int) -> bytes:
    """Return a REQ with the same delay for each id."""
    return b"".join(map(encode_req, ids, repeat(delay_ms)))
