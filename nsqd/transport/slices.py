"""Long documents, rendered a slice at a time so that delivery goes on in between."""

import asyncio
import time
from collections.abc import Iterable
from typing import TypeVar

# Delivery stands still for a slice at most, plus one part.
SLICE_S = 0.004

_Part = TypeVar("_Part")


async def gather_slices(parts: Iterable[_Part]) -> list[_Part]:
    """Gather what comes in parts, giving way to the rest of the daemon after each slice."""
    clock = time.perf_counter
    gathered: list[_Part] = []
    deadline = clock() + SLICE_S
    for part in parts:
        gathered.append(part)
        if clock() >= deadline:
            await asyncio.sleep(0)
            deadline = clock() + SLICE_S
    return gathered


async def join_slices(parts: Iterable[str]) -> bytes:
    """Gather the parts of a document and put them together."""
    return "".join(await gather_slices(parts)).encode()
