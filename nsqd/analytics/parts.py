"""Parts: the messages that a queue had in memory, as files of a lease.

    spill of the lease:   | records of a part | its due times | records of the next part | ...

Records are encoded in slices on the loop and written in a thread, a buffer at a time: a million
messages take some seconds, a few megabytes of memory, and no client waits for more than a slice.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from nsqd.analytics.leases import Lease, Leases
from nsqd.analytics.threads import Threads
from nsqd.broker.snapshot.moment import Chunk, State
from nsqd.runtime.turns import Turns

MAX_PART_BYTES = 64 * 1024 * 1024
# Encoded records are handed to the thread in buffers of this size.
WRITE_BYTES = 1024 * 1024

# Where messages of a state are, as the snapshot counts them.
PLACES = {State.READY: "memory", State.IN_FLIGHT: "in_flight", State.DEFERRED: "deferred"}


@dataclass(slots=True)
class _Part:
    """A part that is being written."""

    offset: int
    count: int = 0
    size_bytes: int = 0
    due_times: bytearray | None = None


class PartWriter:
    """Writes the messages of one queue that have one state."""

    def __init__(
        self, lease: Lease, leases: Leases, threads: Threads, turns: Turns, name: str, state: State
    ) -> None:
        """Args: name: of the queue."""
        self._lease = lease
        self._leases = leases
        self._threads = threads
        self._turns = turns
        self._name = f"{name}.{PLACES[state]}"
        self._state = state
        self._buffer: list[bytes] = []
        self._buffer_bytes = 0
        self._part = _Part(lease.spill.size_bytes)
        # The parts that are complete, as the snapshot lists them.
        self.entries: list[dict[str, Any]] = []

    @property
    def count(self) -> int:
        """How many messages the parts have."""
        return sum(entry["count"] for entry in self.entries)

    async def write(self, chunks: Iterator[Chunk]) -> None:
        """Write all messages.

        Raises:
            LeaseError: the lease would hold too much.
            OSError: there is no room.
        """
        end = self._turns.slice_end()
        for chunk in chunks:
            size_bytes = len(chunk.records)
            if self._part.count and self._part.size_bytes + size_bytes > MAX_PART_BYTES:
                await self._complete()
            self._add(chunk)
            if self._buffer_bytes >= WRITE_BYTES:
                await self._flush()
                end = self._turns.slice_end()
            elif time.perf_counter() >= end:
                await self._turns.next_turn()
                end = self._turns.slice_end()
        if self._part.count:
            await self._complete()

    def _add(self, chunk: Chunk) -> None:
        part = self._part
        part.count += chunk.count
        part.size_bytes += len(chunk.records)
        if chunk.due_times:
            if part.due_times is None:
                part.due_times = bytearray()
            part.due_times += chunk.due_times
        self._buffer.append(chunk.records)
        self._buffer_bytes += len(chunk.records)

    async def _flush(self) -> None:
        buffer, self._buffer = self._buffer, []
        self._buffer_bytes = 0
        if buffer:
            await self._threads.run(partial(self._append, buffer))
            self._leases.check_size(self._lease)

    def _append(self, buffer: list[bytes]) -> None:
        self._lease.spill.append(b"".join(buffer))

    async def _complete(self) -> None:
        await self._flush()
        part, name = self._part, f"{self._name}.{len(self.entries)}"
        self._lease.add_part(name, part.offset, part.size_bytes)
        due_name = None
        if part.due_times is not None:
            due_name = f"{name}.due"
            self._lease.add_part(due_name, self._lease.spill.size_bytes, len(part.due_times))
            await self._threads.run(partial(self._append, [bytes(part.due_times)]))
        self.entries.append(
            {
                "file": name,
                "state": self._state.value,
                "count": part.count,
                "bytes": part.size_bytes,
                "due_file": due_name,
            }
        )
        self._part = _Part(self._lease.spill.size_bytes)
