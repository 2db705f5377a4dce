"""Moment: one queue as it was at one moment, while producers and consumers go on.

A message that waits, is deferred or in flight is in exactly one of these places:

    segments      unread records on disk, which are pinned
    ready         in memory: waiting, also with a record on disk; or becoming a dead letter
    deferred      in memory, not due
    in flight     at a consumer

Records that were read are in memory until they are finished, so the segments begin at the read
position. The moment is when the object is made, between two turns of the loop. Then its owner calls
`step` until the copies are complete, and takes the messages out as records, some at a time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from struct import Struct

from diskqueue.views.pins import Pins
from diskqueue.views.view import SegmentRange
from nsqd.broker.channel import Channel
from nsqd.broker.disposal import Dropped, dispose
from nsqd.broker.queue.backend import DiskBackend, NullBackend
from nsqd.broker.queue.batch import RECORD_OVERHEAD_BYTES, Message, MixedBatch, Piece
from nsqd.broker.queue.due_log import DueCopy
from nsqd.broker.queue.memory import PiecesCopy
from nsqd.broker.queue.message_queue import MessageQueue
from nsqd.broker.scheduler import Scheduler
from nsqd.broker.snapshot.copies import MAX_GROUP_COUNT, DeferredCopy, InFlightCopy
from nsqd.broker.topic import Topic

# Records are encoded so many bytes at a time, but for a single larger one: 0.1 ms.
MAX_CHUNK_BYTES = 256 * 1024
# Single messages up to this size are put together, so many at a time.
MAX_SMALL_BYTES = 1024
MAX_SMALL_COUNT = 128

_pack_due = Struct(">q").pack


class State(Enum):
    """The state of a message in memory: what it waits for."""

    READY = "ready"
    DEFERRED = "deferred"
    IN_FLIGHT = "in_flight"


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some messages as records of a segment file."""

    records: bytes
    count: int
    # An int64 in ns of the wall clock for each, when it is due; empty for those that are ready.
    due_times: bytes = b""


class Moment:
    """One queue at the moment when this was made; it belongs to one owner, who ends it."""

    def __init__(self, topic: Topic, channel: Channel | None, scheduler: Scheduler) -> None:
        """Args: channel: None for the topic's own queue.

        Raises:
            OSError: the process has no descriptors left.
        """
        queue = topic.queue if channel is None else channel.queue
        self._scheduler = scheduler
        self.topic_name = topic.name
        self.channel_name = None if channel is None else channel.name
        self.taken_ns = scheduler.wall_time_ns()
        self._steady_ns = scheduler.steady_time_ns()
        self._now = scheduler.time()
        self.generation: str | None = find_generation(queue)
        self.disk_count = queue.backend.unread_count
        self.segments: list[SegmentRange] = []
        self.pins: Pins | None = None
        self.due_times = DueCopy(self.taken_ns)
        backend = queue.backend
        if isinstance(backend, DiskBackend):
            self.due_times = backend.due_log.open_copy(self.taken_ns)
            self.pins = backend.queue.view.pins
            self.segments = backend.queue.view.pin_unread()
        self._memory = queue.memory
        self._pieces: PiecesCopy | None = queue.memory.begin_copy()
        self._deferred_pieces: list[Piece] = []
        bounds = topic.bounds if channel is None else channel.bounds
        self._limbo = [] if bounds is None else bounds.copy_limbo()
        self._in_flight: InFlightCopy | None = None
        self._deferred: DeferredCopy | None = None
        self._channel = channel
        if channel is not None:
            self._in_flight = InFlightCopy(channel.consumers.list_in_flight())
            self._deferred = channel.deferred.begin_copy()

    def open_segment(self, segment: SegmentRange) -> int:
        """Return a new descriptor of one of the segments, as long as it is pinned.

        Raises:
            OSError: the file cannot be opened.
        """
        assert self.pins is not None
        assert segment.pin is not None
        return self.pins.open(segment.pin)

    def step(self) -> bool:
        """Copy some more; return whether there is more to copy."""
        if self._pieces is not None and self._pieces.step():
            return True
        if self._in_flight is not None and self._in_flight.step():
            return True
        return self._deferred is not None and self._deferred.step()

    def end(self) -> None:
        """Copy no more, and let go of everything but the pins."""
        if self._in_flight is not None:
            self._in_flight.end()
        if self._channel is not None:
            self._channel.deferred.end_copy()
            self._channel = None
        dropped: list[Dropped] = []
        if self._pieces is not None:
            self._memory.end_copy()
            dropped += self._pieces.let_go()
        if self._deferred is not None:
            dropped += self._deferred.let_go()
        dispose(self._scheduler, dropped)
        self._pieces = None
        self._deferred_pieces = []
        self._limbo = []
        self._in_flight = self._deferred = None
        self.due_times.close()

    def iter_chunks(self, state: State) -> Iterator[Chunk]:
        """Give the messages of a state and forget them; READY comes before DEFERRED."""
        if state is State.READY:
            return self._iter_ready()
        if state is State.DEFERRED:
            return self._iter_deferred()
        return self._iter_in_flight()

    def _iter_ready(self) -> Iterator[Chunk]:
        if self._limbo:
            yield from _encode_messages(self._limbo)
        small: list[bytes] = []  # records of pieces of one message each
        for piece in self._pieces.take_all() if self._pieces is not None else ():
            if piece.batch.is_deferred and piece.batch.due_ns > self._steady_ns:
                self._deferred_pieces.append(piece)
            elif piece.count == 1 and piece.body_bytes <= MAX_SMALL_BYTES:
                small.append(piece.batch.records(piece.start, piece.stop)[0])
                if len(small) >= MAX_SMALL_COUNT:
                    yield Chunk(b"".join(small), len(small))
                    small.clear()
            else:
                if small:
                    yield Chunk(b"".join(small), len(small))
                    small.clear()
                yield from _encode_piece(piece)
        if small:
            yield Chunk(b"".join(small), len(small))

    def _iter_deferred(self) -> Iterator[Chunk]:
        for piece in self._deferred_pieces:
            due_ns = self.taken_ns + piece.batch.due_ns - self._steady_ns
            yield from _encode_piece(piece, due_ns)
        if self._deferred is not None:
            for due, messages in self._deferred.iter_groups():
                yield from _encode_messages(messages, self._wall_ns(due))

    def _iter_in_flight(self) -> Iterator[Chunk]:
        if self._in_flight is None:
            return
        for ids, entries in self._in_flight.iter_groups():
            messages: list[Message] = [
                (message_id, *entry[2:]) for message_id, entry in zip(ids, entries, strict=True)
            ]
            due_times = [_pack_due(self._wall_ns(entry[0])) for entry in entries]
            start = 0
            for chunk in _encode_messages(messages):
                stop = start + chunk.count
                yield Chunk(chunk.records, chunk.count, b"".join(due_times[start:stop]))
                start = stop

    def _wall_ns(self, when: float) -> int:
        return self.taken_ns + round((when - self._now) * 1e9)


def find_generation(queue: MessageQueue) -> str | None:
    """Return the name that tells a queue from others, if it is known and durable."""
    backend = queue.backend
    if isinstance(backend, DiskBackend):
        return backend.queue.generation.stored
    assert isinstance(backend, NullBackend)
    return backend.generation


def _encode_piece(piece: Piece, due_ns: int | None = None) -> Iterator[Chunk]:
    rest: Piece | None = piece
    while rest is not None:
        part, rest = _cut(rest)
        records, _ = part.batch.records(part.start, part.stop)
        yield _make_chunk(records, part.count, due_ns)


def _cut(piece: Piece) -> tuple[Piece, Piece | None]:
    count = min(piece.count, MAX_GROUP_COUNT)
    if piece.body_bytes + piece.count * RECORD_OVERHEAD_BYTES > MAX_CHUNK_BYTES:
        count = piece.count_fitting(count, MAX_CHUNK_BYTES)
    return piece.split(count) if count < piece.count else (piece, None)


def _encode_messages(messages: Sequence[Message], due_ns: int | None = None) -> Iterator[Chunk]:
    start = 0
    while start < len(messages):
        stop, size_bytes = start, 0
        while stop < len(messages) and size_bytes < MAX_CHUNK_BYTES:
            size_bytes += len(messages[stop][3])
            stop += 1
        records, _ = MixedBatch.from_messages(messages[start:stop]).records(0, stop - start)
        yield _make_chunk(records, stop - start, due_ns)
        start = stop


def _make_chunk(records: bytes, count: int, due_ns: int | None) -> Chunk:
    return Chunk(records, count, b"" if due_ns is None else _pack_due(due_ns) * count)
