"""Frames, server to client: responses, errors, messages.

    | 4: int32 size of the rest | 4: int32 frame type | n: data |

The data of a message is its 26-byte header (see diskqueue.envelope) and its body.
"""

from collections.abc import Sequence
from enum import IntEnum
from struct import Struct

from diskqueue.envelope import HEADER_BYTES

_pack_prefix = Struct(">ii").pack
_TYPE_BYTES = 4
_MAX_CACHED_SIZES = 65536


class FrameType(IntEnum):
    """The kinds of data in a frame."""

    RESPONSE = 0
    ERROR = 1
    MESSAGE = 2


def encode_frame(frame_type: FrameType, data: bytes) -> bytes:
    """Return one frame."""
    return _pack_prefix(len(data) + _TYPE_BYTES, frame_type) + data


OK = encode_frame(FrameType.RESPONSE, b"OK")
CLOSE_WAIT = encode_frame(FrameType.RESPONSE, b"CLOSE_WAIT")
HEARTBEAT = encode_frame(FrameType.RESPONSE, b"_heartbeat_")


class _MessagePrefixes(dict[int, bytes]):
    """Body size to the first 8 bytes of its message frame, filled on demand, bounded."""

    def __missing__(self, body_bytes: int) -> bytes:
        if len(self) >= _MAX_CACHED_SIZES:
            self.clear()
        size = _TYPE_BYTES + HEADER_BYTES + body_bytes
        prefix = self[body_bytes] = _pack_prefix(size, FrameType.MESSAGE)
        return prefix


_message_prefix = _MessagePrefixes().__getitem__


def encode_messages(heads: list[bytes], ids: list[bytes], bodies: Sequence[bytes]) -> list[bytes]:
    """Return message frames as a list of their parts, four for each message.

    Interleaving the columns by slice assignment is the fastest that CPython can do here: 0.1 us
    for each message, against 0.5 us for a concatenation of each.

    Args:
        heads: timestamp and attempts of each message, 10 bytes.
    """
    parts: list[bytes] = [b""] * (4 * len(ids))
    parts[0::4] = map(_message_prefix, map(len, bodies))
    parts[1::4] = heads
    parts[2::4] = ids
    parts[3::4] = bodies
    return parts
