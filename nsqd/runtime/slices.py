"""Long documents, rendered a slice at a time so that messages are delivered in between."""

import asyncio
import time
from collections.abc import Iterable
from typing import TypeVar

# Delivery stands still for a slice at most, plus one part. A message needs about three turns of the
# loop from PUB to FIN, so its latency grows by three slices while a document is made.
SLICE_S = 0.001

_Part = TypeVar("_Part")


async def gather_slices(parts: Iterable[_Part]) -> list[_Part]:
    """Gather parts, and let the rest of the daemon run after each slice."""
    clock = time.perf_counter
    gathered: list[_Part] = []
    deadline = clock() + SLICE_S
    for part in parts:
        gathered.append(part)
        if clock() >= deadline:
            await asyncio.sleep(0)
            deadline = clock() + SLICE_S
    return gathered


async def encode_slices(parts: Iterable[str]) -> list[bytes]:
    """Gather the parts of a document, each slice encoded: a large text takes a while at the end."""
    clock = time.perf_counter
    encoded: list[bytes] = []
    piece: list[str] = []
    deadline = clock() + SLICE_S
    for part in parts:
        piece.append(part)
        if clock() >= deadline:
            encoded.append("".join(piece).encode())
            piece.clear()
            await asyncio.sleep(0)
            deadline = clock() + SLICE_S
    encoded.append("".join(piece).encode())
    return encoded


async def join_slices(parts: Iterable[str]) -> bytes:
    """Gather the parts of a document and put them together."""
    return b"".join(await encode_slices(parts))
