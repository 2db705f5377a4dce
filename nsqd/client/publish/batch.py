"""Batch: messages of one topic that leave in one command and share its outcome.

One message leaves as PUB or DPUB, several as MPUB. The bodies and the Futures of their publishers
are two columns, so that encoding and settling are a few calls for a thousand messages.
"""

from __future__ import annotations

import asyncio
from operator import methodcaller
from typing import Final

from nsqd.protocol import client_wire as wire

MAX_BATCH_COUNT: Final = 1000
MAX_BATCH_BYTES: Final = 1 << 20
# Each body of an MPUB stands behind its size.
_SIZE_BYTES: Final = 4

_is_done = methodcaller("done")


class Batch:
    """Some messages, before and while they are published. Plain attributes: it is hot."""

    __slots__ = (
        "bodies",
        "body_bytes",
        "created_at",
        "deadline",
        "defer_ms",
        "futures",
        "is_whole",
        "lost_count",
        "refusal",
        "refusal_count",
        "sent_count",
        "timeout_s",
        "topic",
    )

    def __init__(
        self, topic: str, created_at: float, timeout_s: float, *, defer_ms: int = 0
    ) -> None:
        """Start without messages; `bodies`, `futures` and `body_bytes` are filled by the queue."""
        self.topic = topic
        self.created_at = created_at
        self.timeout_s = timeout_s
        self.deadline = created_at + timeout_s
        self.defer_ms = defer_ms
        self.bodies: list[bytes] = []
        # One for each body, or a single one for all if the batch is whole.
        self.futures: list[asyncio.Future[None]] = []
        self.body_bytes = 0
        self.is_whole = False
        self.sent_count = 0
        # On how many lost connections in a row this batch was the first without an answer.
        self.lost_count = 0
        # The text of the last temporary refusal.
        self.refusal = ""
        self.refusal_count = 0

    def drop_abandoned(self) -> tuple[int, int]:
        """Take out the messages whose publishers have gone; return their count and bytes."""
        futures = self.futures
        if not any(map(_is_done, futures)):
            return 0, 0
        count, body_bytes = len(self.bodies), self.body_bytes
        if self.is_whole:
            self.bodies, self.body_bytes = [], 0
            return count, body_bytes
        kept = [index for index, future in enumerate(futures) if not future.done()]
        self.bodies = [self.bodies[index] for index in kept]
        self.futures = [futures[index] for index in kept]
        self.body_bytes = sum(map(len, self.bodies))
        return count - len(kept), body_bytes - self.body_bytes

    def encode(self) -> bytes:
        """Return the command."""
        if self.defer_ms:
            return wire.encode_dpub(self.topic, self.bodies[0], self.defer_ms)
        if len(self.bodies) == 1:
            return wire.encode_pub(self.topic, self.bodies[0])
        return wire.encode_mpub(self.topic, self.bodies)

    def succeed(self) -> None:
        """Tell the publishers that nsqd said OK."""
        for future in self.futures:
            try:
                future.set_result(None)
            except asyncio.InvalidStateError:
                continue  # Cancelled, or told of a timeout.

    def fail(self, error: Exception) -> None:
        """Tell the publishers; each gets a copy, as raising an error adds to its traceback."""
        for future in self.futures:
            if not future.done():
                future.set_exception(_copy(error))

    def split(self) -> list[Batch]:
        """Return the messages as two batches, in order; a whole batch cannot be split."""
        middle = len(self.bodies) // 2
        return [self._part(0, middle), self._part(middle, len(self.bodies))]

    def split_off_larger(self, max_bytes: int) -> Batch:
        """Take out the bodies of more than so many bytes; return them as a batch."""
        large = Batch(self.topic, self.created_at, self.timeout_s, defer_ms=self.defer_ms)
        bodies, futures = self.bodies, self.futures
        self.bodies, self.futures = [], []
        for body, future in zip(bodies, futures, strict=True):
            part = large if len(body) > max_bytes else self
            part.bodies.append(body)
            part.futures.append(future)
        self.body_bytes = sum(map(len, self.bodies))
        large.body_bytes = sum(map(len, large.bodies))
        return large

    def _part(self, start: int, end: int) -> Batch:
        part = Batch(self.topic, self.created_at, self.timeout_s)
        part.bodies = self.bodies[start:end]
        part.futures = self.futures[start:end]
        part.body_bytes = sum(map(len, part.bodies))
        part.sent_count = self.sent_count
        # One more loss, and the suspicion falls on this part.
        part.lost_count = max(self.lost_count - 1, 0)
        return part


def _copy(error: Exception) -> Exception:
    copied: Exception = type(error).__new__(type(error), *error.args)
    copied.__dict__.update(error.__dict__)
    copied.__cause__ = error.__cause__
    return copied


def mpub_bytes(body_bytes: int, count: int) -> int:
    """Return the size that nsqd's --max-body-size bounds."""
    return _SIZE_BYTES + _SIZE_BYTES * count + body_bytes
