"""The message inside a record: the same bytes in a segment and in a message frame.

    0         8          10                26
    | int64   | uint16   | 16 bytes        | ...
    | time ns | attempts | id (hex digits) | body

Big-endian. `attempts` counts the deliveries made so far. The queue itself never looks in here.
"""

import struct
from typing import NamedTuple

HEADER = struct.Struct(">qH16s")
HEADER_BYTES = HEADER.size
ID_BYTES = 16

assert HEADER_BYTES == 26


class Envelope(NamedTuple):
    """The parts of a message."""

    timestamp_ns: int
    attempts: int
    message_id: bytes
    body: bytes


def encode(timestamp_ns: int, attempts: int, message_id: bytes, body: bytes) -> bytes:
    """Return the payload of one record.

    Raises:
        ValueError: the id is not 16 bytes long (struct would pad or cut it silently).
    """
    if len(message_id) != ID_BYTES:
        raise ValueError(f"message id of {len(message_id)} bytes, not {ID_BYTES}")
    return HEADER.pack(timestamp_ns, attempts, message_id) + body


def decode(payload: bytes) -> Envelope:
    """Take a payload apart.

    Raises:
        ValueError: the payload is shorter than a header.
    """
    if len(payload) < HEADER_BYTES:
        raise ValueError(
            f"message of {len(payload)} bytes, shorter than its {HEADER_BYTES}-byte header"
        )
    timestamp_ns, attempts, message_id = HEADER.unpack_from(payload)
    return Envelope(timestamp_ns, attempts, message_id, payload[HEADER_BYTES:])
