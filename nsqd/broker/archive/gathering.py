"""Gathering: the messages of one archive that wait in memory, in parts that are written together.

    add -> newest -> hand_over -> handed_over -> (a round encodes and writes)

The loop adds to the newest part and hands it over; a thread takes parts that were handed over, from
the first on. To gather a batch takes 0.3 us; a thread makes its records.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TypeAlias

from diskqueue.envelope import join_records, join_records_into
from nsqd.broker.archive.retention import Chunk
from nsqd.broker.queue.batch import RECORD_OVERHEAD_BYTES, AnyBatch, Batch

# Messages as disk records: the bytes, and the length of each.
Records: TypeAlias = tuple[bytes, Sequence[int]]

# A thread writes a part in few steps, for each of which it may wait until the loop takes a rest: so
# the more waits, the larger the part.
MAX_PART_BYTES = 32 * 1024 * 1024
MAX_PART_COUNT = 200_000
# Messages that are freed without a rest, which takes 1 ms; and the rest, in which the loop goes on.
# Where the loop itself frees messages they are fewer.
_FREE_COUNT = 10_000
_FREE_REST_S = 0.00005
# The records of a batch of this size are shared with the queue; smaller ones are quicker to gather.
_LARGE_BATCH_BYTES = 16 * 1024


class Part:
    """Messages that are written together."""

    __slots__ = ("batches", "chunk", "count", "size_bytes")

    def __init__(self, chunk: Chunk | None = None) -> None:
        """Args: chunk: all of them, if they are encoded already."""
        self.batches: list[Batch] = []
        self.chunk = chunk
        self.count = self.size_bytes = 0
        if chunk is not None:
            self.count, self.size_bytes = len(chunk.lengths), len(chunk.data)

    def encode(self, room: memoryview | None = None) -> Chunk:
        """Return the messages as disk records, in any thread; no more are added from then on.

        Args: room: memory of `size_bytes` for the records, which the caller uses again afterwards.
        """
        if self.chunk is not None:
            return self.chunk
        times_ns = [batch.timestamp_ns for batch in self.batches]
        parts = [batch.record_parts(0, len(batch.bodies)) for batch in self.batches]
        times = min(times_ns), max(times_ns)
        if room is not None:
            return Chunk(room, join_records_into(parts, room), *times)
        self.chunk = Chunk(*join_records(parts), *times)
        del parts  # or all bodies were freed with it, at once
        self.free()
        return self.chunk

    def free(self) -> None:
        """Let go of the messages, a slice at a time: no other thread runs while memory is freed."""
        batches = self.batches
        slice_count = max(_FREE_COUNT * len(batches) // max(self.count, 1), 1)
        while batches:
            del batches[-slice_count:]
            if batches:
                time.sleep(_FREE_REST_S)


class Gathering:
    """Messages in the order of their publishes."""

    def __init__(self, segment_bytes: int) -> None:
        """Args: segment_bytes: no part is larger, but for a single message."""
        self.newest = Part()
        self.handed_over: deque[Part] = deque()
        self._segment_bytes = segment_bytes
        self._part_bytes = min(MAX_PART_BYTES, segment_bytes)

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self.newest.count and not self.handed_over

    @property
    def handed_over_bytes(self) -> int:
        """How large the records are that a round will write."""
        return sum(part.size_bytes for part in list(self.handed_over))

    @property
    def size_bytes(self) -> int:
        """How large the records are of all messages here."""
        return self.newest.size_bytes + self.handed_over_bytes

    def add(self, batch: AnyBatch, size_bytes: int, records: Records | None) -> None:
        """Add a batch.

        Args:
            size_bytes: of its records.
            records: the batch as disk records, if there are any.
        """
        if size_bytes > self._part_bytes and (not records or size_bytes > self._segment_bytes):
            self.hand_over()
            for part in _split(batch, self._segment_bytes):
                self._append(part, part.records(0, len(part.bodies)))
        elif not isinstance(batch, Batch) or (records and size_bytes >= _LARGE_BATCH_BYTES):
            self.hand_over()
            self._append(batch, records or batch.records(0, len(batch.bodies)))
        else:
            newest = self.newest
            if newest.size_bytes + size_bytes > self._part_bytes or newest.count > MAX_PART_COUNT:
                self.hand_over()
                newest = self.newest
            newest.batches.append(batch)
            newest.count += len(batch.bodies)
            newest.size_bytes += size_bytes

    def _append(self, batch: AnyBatch, records: Records) -> None:
        self.handed_over.append(Part(Chunk(*records, *batch.time_span())))

    def hand_over(self) -> None:
        """Leave the messages that have gathered to the rounds."""
        if self.newest.count:
            self.handed_over.append(self.newest)
            self.newest = Part()

    @property
    def first_bytes(self) -> int:
        """How large the records are of the first part, if they are not encoded yet; otherwise 0."""
        first = self.handed_over[0]
        return 0 if first.chunk is not None else first.size_bytes

    def encode_first(self, count: int) -> list[Chunk]:
        """Return as many of the first parts as one call shall write, and no more than `count`."""
        chunks: list[Chunk] = []
        size_bytes = 0
        for part in list(islice(self.handed_over, count)):  # the loop may hand over more meanwhile
            size_bytes += part.size_bytes
            if chunks and size_bytes > MAX_PART_BYTES:
                break
            chunks.append(part.encode())
        return chunks

    def remove_first(self, count: int) -> int:
        """Forget parts that are written; return how many messages those were."""
        removed = [self.handed_over.popleft() for _ in range(count)]
        for part in removed:
            part.free()
        return sum(part.count for part in removed)

    def drop_newest(self) -> None:
        """Forget the messages that were not handed over, on the loop."""
        self.newest = Part()

    def drop_handed_over(self) -> None:
        """Forget the messages that were handed over, where the files are worked on."""
        self.handed_over.clear()


def _split(batch: AnyBatch, max_bytes: int) -> Iterator[AnyBatch]:
    """Cut a batch into parts whose records fit, but for a single larger one."""
    start = used_bytes = 0
    for index, body in enumerate(batch.bodies):
        size_bytes = len(body) + RECORD_OVERHEAD_BYTES
        if used_bytes and used_bytes + size_bytes > max_bytes:
            yield batch.part(start, index)
            start, used_bytes = index, 0
        used_bytes += size_bytes
    yield batch.part(start, len(batch.bodies))
