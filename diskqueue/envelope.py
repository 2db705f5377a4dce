"""The message inside a record: the same bytes in a segment and in a message frame.

    0         8          10                26
    | int64   | uint16   | 16 bytes        | ...
    | time ns | attempts | id (hex digits) | body

Big-endian. `attempts` counts the deliveries made so far. The queue itself never looks in here.

The records of a whole publish are put together by a compiled loop where that could be built: 10 ns
for a message of 200 bytes instead of 60.
"""

import struct
from array import array
from typing import NamedTuple, TypeAlias

HEADER = struct.Struct(">qH16s")
HEADER_BYTES = HEADER.size
ID_BYTES = 16

PREFIX_BYTES = 4

_pack_length = struct.Struct(">i").pack

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


# Messages of one publish: what all begin with (time, attempts and a part of the id); the rest of
# each id, from a place in a longer tuple on; and the bodies.
RecordParts: TypeAlias = tuple[bytes, tuple[bytes, ...], int, tuple[bytes, ...]]


def join_records_in_python(parts: list[RecordParts]) -> tuple[bytes, "array[int]"]:
    """Return the records of messages back to back, and the length of each with its prefix.

    | 4: int32 length of the rest | 8: timestamp | 2: attempts | 16: id | n: body |
    """
    pieces: list[bytes] = []
    lengths = array("I")
    for head, tails, start, bodies in parts:
        sizes = [HEADER_BYTES + len(body) for body in bodies]
        # Three pieces a record; most often all bodies have one size.
        records = [_pack_length(sizes[0]) + head] * (3 * len(bodies))
        if sizes.count(sizes[0]) < len(sizes):
            records[::3] = [_pack_length(size) + head for size in sizes]
        records[1::3] = tails[start : start + len(bodies)]
        records[2::3] = bodies
        pieces += records
        lengths.extend([PREFIX_BYTES + size for size in sizes])
    return b"".join(pieces), lengths


def join_records_into_in_python(parts: list[RecordParts], room: memoryview) -> "array[int]":
    """Put the records into memory of their size, and return the length of each.

    Raises:
        ValueError: the room is not of the size of the records.
    """
    records, lengths = join_records_in_python(parts)
    if len(records) != len(room):
        raise ValueError("the room is not of the size of the records")
    room[:] = records
    return lengths


try:
    from diskqueue._compiled import join_records as join_records
    from diskqueue._compiled import join_records_into as join_records_into
except ImportError:
    join_records = join_records_in_python
    join_records_into = join_records_into_in_python
