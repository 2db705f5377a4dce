"""Cuts bytes into pieces at places that the bytes themselves decide, so that a failure repeats."""

import itertools
import random
import zlib


def cut(data: bytes, *, max_pieces: int = 8) -> list[bytes]:
    """Return the bytes in pieces, none of them empty; sometimes each byte alone."""
    dice = random.Random(zlib.crc32(data))
    if len(data) < 600 and dice.random() < 0.25:
        return [data[place : place + 1] for place in range(len(data))]
    count = dice.randint(1, max_pieces)
    places = sorted({0, len(data), *(dice.randint(0, len(data)) for _ in range(count))})
    return [data[start:end] for start, end in itertools.pairwise(places)]
