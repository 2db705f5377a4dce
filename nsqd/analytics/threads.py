"""Threads for the blocking work of snapshots: no fsync of a queue stands in line behind it."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")

# Fsyncs that wait together are done together.
COUNT = 8


class Threads:
    """A few threads, made when they are first needed."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    async def run(self, work: Callable[[], _T]) -> _T:
        """Run blocking work; a caller that is cancelled waits for its end all the same.

        Files that the work uses are closed by its caller.
        """
        if self._pool is None:
            self._pool = ThreadPoolExecutor(COUNT, thread_name_prefix="analytics")
        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise

    def close(self) -> None:
        """Wait for the work under way."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
