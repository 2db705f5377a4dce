"""Batches: messages that move through the queues together, without an object for each of them.

A `Batch` has the messages of one publish: one timestamp, one block of ids, one tuple of bodies. A
`MixedBatch` has a timestamp, an id and attempts for each message: it was read from disk, gathered
from timeouts and requeues, or published with more messages than a block has ids. `AnyBatch` is
either of them. A batch never changes; all channels of a topic share it. Both kinds are read column
by column, so that C code puts frames and records together.

A `Piece` is some consecutive messages of one batch, with their records on disk if they have any. A
queue holds pieces and hands them out: a piece belongs to one queue, or to the caller that has taken
it from there.
"""

from collections.abc import Iterable, Sequence
from enum import Enum, auto
from itertools import accumulate, chain, repeat
from struct import Struct
from typing import TypeAlias

from diskqueue.envelope import HEADER_BYTES, PREFIX_BYTES, RecordParts, join_records
from nsqd.broker.queue.ids import SUFFIXES

# A message outside of any batch: id, timestamp_ns, attempts so far, body, and the ordinal of its
# record on disk (None without a record).
Message: TypeAlias = tuple[bytes, int, int, bytes, int | None]

RECORD_OVERHEAD_BYTES = PREFIX_BYTES + HEADER_BYTES
MAX_ATTEMPTS = 0xFFFF  # attempts is a uint16 on the wire: stop there rather than wrap to 0

_pack_head = Struct(">qH").pack
_unpack_header = Struct(">qH16s").unpack_from
_pack_length = Struct(">i").pack


class _RecordLengths(dict[int, bytes]):
    """Body size to the 4-byte length prefix of its record, filled on demand, bounded."""

    def __missing__(self, body_bytes: int) -> bytes:
        if len(self) >= 65536:
            self.clear()
        prefix = self[body_bytes] = _pack_length(body_bytes + HEADER_BYTES)
        return prefix


_record_length = _RecordLengths().__getitem__


class Batch:
    """The messages of one publish, shared by the topic's channels."""

    __slots__ = (
        "_delay_s",
        "bodies",
        "body_bytes",
        "due_ns",
        "first_sequence",
        "id_prefix",
        "is_deferred",
        "timestamp_ns",
    )

    def __init__(
        self,
        timestamp_ns: int,
        id_prefix: bytes,
        first_sequence: int,
        bodies: tuple[bytes, ...],
        delay_s: float = 0.0,
        due_ns: int = 0,
    ) -> None:
        """Args:
        delay_s: how long each channel defers the messages after it got them.
        due_ns: the steady time when they are due if the channels get them at once.
        """
        self.timestamp_ns = timestamp_ns
        self.id_prefix = id_prefix
        self.first_sequence = first_sequence
        self.bodies = bodies
        self.body_bytes = len(bodies[0]) if len(bodies) == 1 else sum(map(len, bodies))
        self.is_deferred = delay_s > 0
        self._delay_s = delay_s
        self.due_ns = due_ns

    def remaining_s(self, _now_ns: int) -> float:
        """Return how long the messages are to be deferred from now on."""
        return self._delay_s

    def ids(self, start: int, stop: int) -> list[bytes]:
        """Return the ids of the messages from `start` to `stop`."""
        prefix = self.id_prefix
        first = self.first_sequence
        return [prefix + suffix for suffix in SUFFIXES[first + start : first + stop]]

    def timestamps(self, start: int, stop: int) -> Iterable[int]:
        """Return the publish times."""
        return repeat(self.timestamp_ns, stop - start)

    def attempts(self, start: int, stop: int) -> Iterable[int]:
        """Return the attempts, the delivery now being made included."""
        return repeat(1, stop - start)

    def heads(self, start: int, stop: int) -> list[bytes]:
        """Return timestamp and attempts as the wire has them, this delivery included."""
        return [_pack_head(self.timestamp_ns, 1)] * (stop - start)

    def records(self, start: int, stop: int) -> tuple[bytes, list[int]]:
        """Return the messages as disk records: the bytes, and the length of each."""
        data, lengths = join_records([self.record_parts(start, stop)])
        return data, lengths.tolist()

    def record_parts(self, start: int, stop: int) -> RecordParts:
        """Return the messages for `join_records`, which makes them disk records."""
        head = _pack_head(self.timestamp_ns, 0) + self.id_prefix
        return head, SUFFIXES, self.first_sequence + start, self.bodies[start:stop]

    def time_span(self) -> tuple[int, int]:
        """Return the times of the oldest and the newest message."""
        return self.timestamp_ns, self.timestamp_ns

    def part(self, start: int, stop: int) -> "Batch":
        """Return some of the messages as a batch of their own."""
        if stop - start == len(self.bodies):
            return self
        return Batch(
            self.timestamp_ns,
            self.id_prefix,
            self.first_sequence + start,
            self.bodies[start:stop],
            self._delay_s,
            self.due_ns,
        )

    def messages(self, start: int, stop: int) -> list[Message]:
        """Return the messages one by one, without the records that they may have."""
        return [
            (message_id, self.timestamp_ns, 0, body, None)
            for message_id, body in zip(self.ids(start, stop), self.bodies[start:stop], strict=True)
        ]


class RecordedBatch(Batch):
    """A batch whose records are encoded once, for the queues and for the archive."""

    # Not there before the first use: a constructor of its own would take 0.5 us.
    __slots__ = ("_encoded",)
    _encoded: tuple[bytes, list[int]] | None

    def records(self, start: int, stop: int) -> tuple[bytes, list[int]]:
        """Return the messages as disk records: the bytes, and the length of each."""
        if stop - start < len(self.bodies):
            return super().records(start, stop)
        encoded = getattr(self, "_encoded", None)
        if encoded is None:
            encoded = self._encoded = Batch.records(self, start, stop)
        return encoded

    def forget_records(self) -> None:
        """Let go of the records: the batch stays in memory for longer than they are needed."""
        self._encoded = None


class MixedBatch:
    """Messages of different publishes, or of one that is too large for a Batch."""

    __slots__ = (
        "_attempts",
        "_ids",
        "_timestamps",
        "bodies",
        "body_bytes",
        "due_ns",
        "is_deferred",
    )

    def __init__(
        self,
        ids: Sequence[bytes],
        timestamps: Sequence[int],
        attempts: Sequence[int],
        bodies: Sequence[bytes],
        due_ns: int = 0,
    ) -> None:
        """Args: due_ns: the steady time before which none is delivered, 0 if there is none."""
        self._ids = ids
        self._timestamps = timestamps
        self._attempts = attempts
        self.bodies = bodies
        self.body_bytes = sum(map(len, bodies))
        self.is_deferred = due_ns > 0
        self.due_ns = due_ns

    def remaining_s(self, now_ns: int) -> float:
        """Return how long the messages are to be deferred from now on."""
        return max(0.0, (self.due_ns - now_ns) / 1e9)

    @classmethod
    def from_records(cls, data: bytes, starts: Sequence[int], ends: Sequence[int]) -> "MixedBatch":
        """Cut up records as they lie in a segment: data[start:end] is one message."""
        timestamps, attempts, ids = zip(*map(_unpack_header, repeat(data), starts), strict=True)
        bodies = [data[start + HEADER_BYTES : end] for start, end in zip(starts, ends, strict=True)]
        return cls(ids, timestamps, attempts, bodies)

    @classmethod
    def from_messages(cls, messages: Sequence[Message]) -> "MixedBatch":
        """Gather single messages."""
        ids, timestamps, attempts, bodies, _ = zip(*messages, strict=True)
        return cls(ids, timestamps, attempts, bodies)

    def ids(self, start: int, stop: int) -> list[bytes]:
        """Return the ids of the messages from `start` to `stop`."""
        return list(self._ids[start:stop])

    def timestamps(self, start: int, stop: int) -> Iterable[int]:
        """Return the publish times."""
        return self._timestamps[start:stop]

    def attempts(self, start: int, stop: int) -> Iterable[int]:
        """Return the attempts, the delivery now being made included."""
        return [min(attempts + 1, MAX_ATTEMPTS) for attempts in self._attempts[start:stop]]

    def heads(self, start: int, stop: int) -> list[bytes]:
        """Return timestamp and attempts as the wire has them, this delivery included."""
        return list(map(_pack_head, self._timestamps[start:stop], self.attempts(start, stop)))

    def records(self, start: int, stop: int) -> tuple[bytes, list[int]]:
        """Return the messages as disk records: the bytes, and the length of each."""
        heads = map(_pack_head, self._timestamps[start:stop], self._attempts[start:stop])
        return encode_records(list(heads), self._ids[start:stop], self.bodies[start:stop])

    def time_span(self) -> tuple[int, int]:
        """Return the times of the oldest and the newest message."""
        return min(self._timestamps), max(self._timestamps)

    def part(self, start: int, stop: int) -> "MixedBatch":
        """Return some of the messages as a batch of their own."""
        return self.deferred_part(start, stop, self.due_ns)

    def deferred_part(self, start: int, stop: int, due_ns: int) -> "MixedBatch":
        """Return some of the messages as a batch of their own with another due time."""
        return MixedBatch(
            self._ids[start:stop],
            self._timestamps[start:stop],
            self._attempts[start:stop],
            self.bodies[start:stop],
            due_ns,
        )

    def messages(self, start: int, stop: int) -> list[Message]:
        """Return the messages one by one, without the records that they may have."""
        columns = (self._ids, self._timestamps, self._attempts, self.bodies)
        parts = (column[start:stop] for column in columns)
        return list(zip(*parts, repeat(None, stop - start), strict=True))


AnyBatch: TypeAlias = Batch | MixedBatch


def encode_records(
    heads: Sequence[bytes], ids: Sequence[bytes], bodies: Sequence[bytes]
) -> tuple[bytes, list[int]]:
    """Put columns together as disk records, back to back.

    | 4: int32 length of the rest | 8: timestamp | 2: attempts | 16: id | n: body |
    """
    sizes = list(map(len, bodies))
    columns = zip(map(_record_length, sizes), heads, ids, bodies, strict=True)
    data = b"".join(chain.from_iterable(columns))
    return data, [size + RECORD_OVERHEAD_BYTES for size in sizes]


class Origin(Enum):
    """Where the messages of a piece come from, and so whether their records are up to date."""

    MEMORY = auto()  # published, never delivered, and without records
    WRITTEN = auto()  # never delivered since their records were written: the records are exact
    RETURNED = auto()  # delivered before: records, if there are any, have too few attempts


class Piece:
    """The messages from `start` to `stop` of a batch. It never changes.

    A slotted class, as a queue of single messages has one for each: with six fields it takes the
    80 bytes that a tuple of four takes.
    """

    __slots__ = ("_batch_ordinals", "batch", "body_bytes", "origin", "start", "stop")

    def __init__(
        self,
        batch: AnyBatch,
        start: int,
        stop: int,
        origin: Origin,
        batch_ordinals: Sequence[int] | None = None,
    ) -> None:
        """Args:
        batch_ordinals: the ordinals of the records on disk, indexed like the batch, so that a
            piece is cut without a copy; None for messages without records.
        """
        self.batch = batch
        self.start = start
        self.stop = stop
        self.origin = origin
        self._batch_ordinals = batch_ordinals
        if stop - start == len(batch.bodies):
            self.body_bytes = batch.body_bytes
        else:
            self.body_bytes = sum(map(len, batch.bodies[start:stop]))

    @classmethod
    def from_messages(cls, messages: Sequence[Message], origin: Origin) -> "Piece":
        """Gather single messages; all of them have a record on disk, or none has."""
        batch = MixedBatch.from_messages(messages)
        ordinals = [message[4] for message in messages if message[4] is not None]
        assert len(ordinals) in (0, len(messages))
        return cls(batch, 0, len(messages), origin, ordinals or None)

    @property
    def count(self) -> int:
        """How many messages these are."""
        return self.stop - self.start

    @property
    def is_on_disk(self) -> bool:
        """Whether the messages have records on disk."""
        return self._batch_ordinals is not None

    @property
    def ordinals(self) -> Sequence[int]:
        """The ordinals of the records, one for each message; empty without records."""
        ordinals = self._batch_ordinals
        return () if ordinals is None else ordinals[self.start : self.stop]

    def messages(self) -> list[Message]:
        """Return the messages one by one, each with the ordinal of its record."""
        messages = self.batch.messages(self.start, self.stop)
        if self._batch_ordinals is None:
            return messages
        return [
            (*message[:4], ordinal)
            for message, ordinal in zip(messages, self.ordinals, strict=True)
        ]

    def count_fitting(self, max_count: int, max_bytes: int) -> int:
        """Return how many messages from the first on, up to `max_count`, are one delivery.

        The message whose body reaches `max_bytes` is the last; there is at least one.
        """
        bodies = self.batch.bodies[self.start : min(self.stop, self.start + max_count)]
        for count, total_bytes in enumerate(accumulate(map(len, bodies)), start=1):
            if total_bytes >= max_bytes:
                return count
        return len(bodies)

    def split(self, count: int) -> "tuple[Piece, Piece]":
        """Return the first `count` messages, fewer than all, and the rest, as two other pieces."""
        start, middle = self.start, self.start + count
        assert start < middle < self.stop
        front = Piece(self.batch, start, middle, self.origin, self._batch_ordinals)
        rest = Piece.__new__(Piece)  # not to add up the sizes of its bodies
        rest.batch = self.batch
        rest.start = middle
        rest.stop = self.stop
        rest.origin = self.origin
        rest._batch_ordinals = self._batch_ordinals  # noqa: SLF001 - a piece, too
        rest.body_bytes = self.body_bytes - front.body_bytes
        return front, rest

    def with_due_time(self, due_ns: int) -> "Piece":
        """Return the same messages, which were read from disk, as a deferred batch."""
        assert isinstance(self.batch, MixedBatch)
        batch = self.batch.deferred_part(self.start, self.stop, due_ns)
        return Piece(batch, 0, self.count, self.origin, self.ordinals)
