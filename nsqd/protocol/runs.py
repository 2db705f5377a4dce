"""Runs: many commands or messages of one kind, found in the bytes at once.

A loop over single messages costs CPython about 0.5 us for each; a split or a strided slice in C
costs a tenth of that. Each function here proves that the cut is the one that parsing message by
message would give, and otherwise returns that there is no run. Errors are left to the parser.
"""

from struct import Struct

from nsqd.protocol.command_lines import MESSAGE_ID_BYTES

FINISH_ROW_BYTES = len(b"FIN ") + MESSAGE_ID_BYTES + 1
SIZE_BYTES = 4

unpack_size = Struct(">i").unpack_from


def split_publishes(data: bytes, position: int, start: bytes, size: int, count: int) -> list[bytes]:
    """Cut up PUBs that all have the same line and size; return no body if some differ.

    If every piece between the starts is as long as the size says, no start is part of a body.

    Args:
        start: line and size of each of them; the data has it at `position`.
        size: of each body.
        count: of the PUBs that the data must hold from `position` on.
    """
    end = position + count * (len(start) + size)
    bodies = data[position:end].split(start)
    del bodies[0]  # the empty bytes before the first start
    if len(bodies) == count and set(map(len, bodies)) == {size}:
        return bodies
    return []


def read_sized(
    data: bytes, position: int, end: int, *, line: bytes, max_count: int, max_size: int
) -> tuple[list[bytes], int]:
    """Read a series of (line, size, body) up to the first that is cut off or wrong.

    Args:
        end: no byte from here on is read.
        line: stands before each size; empty for the messages of an MPUB.
        max_size: of a body.

    Returns:
        The bodies, and the position behind the last one.
    """
    skip = len(line) + SIZE_BYTES
    bodies: list[bytes] = []
    while len(bodies) < max_count and data.startswith(line, position):
        body = position + skip
        if body > end:
            break
        size = unpack_size(data, body - SIZE_BYTES)[0]
        if not 0 < size <= max_size or body + size > end:
            break
        position = body + size
        bodies.append(data[body:position])
    return bodies, position


def split_equal(
    data: bytes, position: int, end: int, *, max_count: int, max_size: int
) -> list[bytes]:
    """Cut up a series of (size, body) if all bodies are as long as the first; else return none.

    Every size is at its place if each of the four bytes of the first one recurs at that stride,
    which four strided slices compare in C.

    Args:
        end: no byte from here on is read.
        max_size: of a body.
    """
    prefix = data[position : position + SIZE_BYTES]
    size = int.from_bytes(prefix, "big")
    stride = SIZE_BYTES + size
    count = min(max_count, (end - position) // stride)
    if count < 2 or not 0 < size <= max_size:
        return []
    end = position + count * stride
    for byte in range(SIZE_BYTES):
        if data[position + byte : end : stride].count(prefix[byte]) != count:
            return []
    return [data[start : start + size] for start in range(position + SIZE_BYTES, end, stride)]


def split_finishes(data: bytes, position: int, max_count: int) -> list[bytes] | None:
    """Return the ids of FINs that are rows of 21 bytes; None if the rows hold anything else.

    The rows end where the column of LFs does. That each row is a FIN and no more, the split proves:
    every id has its length, and no space, CR or LF in it.
    """
    window = position + max_count * FINISH_ROW_BYTES
    ends = data[position + FINISH_ROW_BYTES - 1 : window : FINISH_ROW_BYTES]
    count = len(ends) - len(ends.lstrip(b"\n"))
    if not count:
        return []
    rows = data[position + len(b"FIN ") : position + count * FINISH_ROW_BYTES - 1]
    ids = rows.split(b"\nFIN ")
    if (
        len(ids) != count
        or set(map(len, ids)) != {MESSAGE_ID_BYTES}
        or rows.count(b" ") != count - 1
        or rows.count(b"\n") != count - 1
        or b"\r" in rows
    ):
        return None
    return ids
