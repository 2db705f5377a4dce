"""Long documents, rendered a slice at a time so that messages are delivered in between."""

import time
from collections.abc import Iterable
from typing import TypeVar

from nsqd.runtime.turns import running_turns

_Part = TypeVar("_Part")


async def gather_slices(parts: Iterable[_Part]) -> list[_Part]:
    """Gather parts, and let the rest of the daemon run after each slice."""
    clock = time.perf_counter
    gathered: list[_Part] = []
    turns = running_turns()
    deadline = turns.slice_end()
    for part in parts:
        gathered.append(part)
        if clock() >= deadline:
            await turns.next_turn()
            deadline = turns.slice_end()
    return gathered


async def encode_slices(parts: Iterable[str]) -> list[bytes]:
    """Gather the parts of a document, each slice encoded: a large text takes a while at the end."""
    clock = time.perf_counter
    encoded: list[bytes] = []
    piece: list[str] = []
    turns = running_turns()
    deadline = turns.slice_end()
    for part in parts:
        piece.append(part)
        if clock() >= deadline:
            encoded.append("".join(piece).encode())
            piece.clear()
            await turns.next_turn()
            deadline = turns.slice_end()
    encoded.append("".join(piece).encode())
    return encoded


async def join_slices(parts: Iterable[str]) -> bytes:
    """Gather the parts of a document and put them together."""
    return b"".join(await encode_slices(parts))
