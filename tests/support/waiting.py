"""Waiting for the state of another process or task, in one place.

How long a wait takes is up to the machine. A wait has no deadline of its own, or `PATIENCE_S` where
one has to be named; the timeout of the test ends a wait in vain, and its traceback shows which one.
"""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

POLL_S = 0.01
# Shorter than the timeout of a test, so that the error names what did not come.
PATIENCE_S = 50.0

T = TypeVar("T")


def wait_until(find: Callable[[], T | None]) -> T:
    """Look until something is found; return it."""
    while not (found := find()):
        time.sleep(POLL_S)
    return found


async def until(find: Callable[[], T | None]) -> T:
    """Look until something is found, while the loop runs; return it."""
    while not (found := find()):  # noqa: ASYNC110 - a test looks from outside
        await asyncio.sleep(POLL_S)
    return found
