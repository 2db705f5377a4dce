"""Piece: some consecutive messages of one batch, with their records on disk if they have any.

A queue holds pieces and hands them out. The batch may be shared with the queues of other channels;
a piece belongs to one queue, or to the caller that has taken it from there.
"""

from collections.abc import Sequence
from enum import Enum, auto
from itertools import accumulate

from nsqd.broker.queue.batch import AnyBatch, Message, MixedBatch


class Origin(Enum):
    """Where the messages of a piece come from, and so whether their records are up to date."""

    MEMORY = auto()  # published, never delivered, and without records
    WRITTEN = auto()  # never delivered since their records were written: the records are exact
    RETURNED = auto()  # delivered before: records, if there are any, have too few attempts


class Piece:
    """The messages from `start` to `stop` of a batch.

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

    def cut(self, count: int) -> "Piece":
        """Remove the first `count` messages, fewer than all, and return them as another piece."""
        start, middle = self.start, self.start + count
        assert start < middle < self.stop
        front = Piece(self.batch, start, middle, self.origin, self._batch_ordinals)
        self.start = middle
        self.body_bytes -= front.body_bytes
        return front

    def with_due_time(self, due_ns: int) -> "Piece":
        """Return the same messages, which were read from disk, as a deferred batch."""
        assert isinstance(self.batch, MixedBatch)
        batch = self.batch.deferred_part(self.start, self.stop, due_ns)
        return Piece(batch, 0, self.count, self.origin, self.ordinals)
