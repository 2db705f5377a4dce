"""PublishQueue: messages on their way to nsqd, from `publish` to the answer; bounded.

Messages of one topic gather in its open batch until a sender takes that: while nsqd is busy,
batches grow. Batches leave in the order in which they were begun. No I/O here; the Futures are
those of the publishers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from nsqd.client.errors import InvalidNameError, MessageTooLargeError
from nsqd.client.publish.batch import MAX_BATCH_BYTES, MAX_BATCH_COUNT, Batch
from nsqd.protocol.names import is_valid_topic_name

# A batch takes no more messages after this share of its timeout, so that the last of them has
# nearly all of its own.
_OPEN_SHARE: Final = 0.05
_MAX_KNOWN_TOPICS: Final = 4096


@dataclass(slots=True)
class Bounds:
    """How much may wait, and how large a message and a command may be."""

    max_pending_count: int = 10_000
    max_pending_bytes: int = 16 << 20
    # Learnt from nsqd's refusals: it does not tell its --max-msg-size and --max-body-size.
    max_message_bytes: int = 1 << 20
    max_batch_count: int = MAX_BATCH_COUNT
    max_batch_bytes: int = MAX_BATCH_BYTES


class _RoomWaiter(NamedTuple):
    """A publisher that waits until its messages fit."""

    admitted: asyncio.Future[None]
    message_count: int
    body_bytes: int
    deadline: float


class PublishQueue:
    """Unanswered messages: those that wait here, and those that senders have taken."""

    def __init__(self, loop: asyncio.AbstractEventLoop, bounds: Bounds, wake: Callable[[], None]):
        """Args: wake: called when there is something to take, at most once until `take`."""
        self.bounds = bounds
        # Unanswered, waiting or sent.
        self.count = 0
        self.body_bytes = 0
        self._loop = loop
        self._create_future: Callable[[], asyncio.Future[None]] = loop.create_future
        self._now = loop.time
        self._wake = wake
        self._is_awake = False
        self._waiting: deque[Batch] = deque()
        self._open: dict[str, Batch] = {}
        self._known_topics: set[str] = set()
        # Publishers that wait for room, in their order.
        self._room_waiters: deque[_RoomWaiter] = deque()
        self._empty: asyncio.Future[None] | None = None

    def has_room(self, count: int, body_bytes: int) -> bool:
        """Say whether so many messages may be added now; publishers that wait go first."""
        bounds = self.bounds
        return not self._room_waiters and (
            (
                self.count + count <= bounds.max_pending_count
                and self.body_bytes + body_bytes <= bounds.max_pending_bytes
            )
            or not self.count  # One that is larger than the bounds alone goes alone.
        )

    @property
    def has_waiting(self) -> bool:
        """Whether there is something to take."""
        return bool(self._waiting)

    def check_topic(self, topic: str) -> None:
        """Check a name, once.

        Raises:
            InvalidNameError: it is none.
        """
        if topic not in self._known_topics:
            if not is_valid_topic_name(topic):
                raise InvalidNameError(f"not the name of a topic: {topic[:100]!r}")
            if len(self._known_topics) >= _MAX_KNOWN_TOPICS:
                self._known_topics.clear()
            self._known_topics.add(topic)

    def check_size(self, size: int) -> None:
        """Check the size of a body.

        Raises:
            MessageTooLargeError: it is 0, or more than nsqd takes.
        """
        if not size:
            raise MessageTooLargeError("the body is empty, which nsqd refuses")
        if size > self.bounds.max_message_bytes:
            limit = self.bounds.max_message_bytes
            raise MessageTooLargeError(f"a body of {size} bytes, more than {limit}")

    def add(
        self, topic: str, body: bytes, timeout_s: float, defer_ms: int = 0
    ) -> asyncio.Future[None]:
        """Put a message in, full or not; return the Future of its outcome.

        Raises:
            InvalidNameError, MessageTooLargeError: nsqd would refuse it.
        """
        size = len(body)
        bounds = self.bounds
        batch = self._open.get(topic)
        if batch is None:
            self.check_topic(topic)
        if not 0 < size <= bounds.max_message_bytes:
            self.check_size(size)
        future = self._create_future()
        if (
            batch is None
            or defer_ms
            or batch.timeout_s != timeout_s
            or len(batch.bodies) >= bounds.max_batch_count
            or batch.body_bytes + size > bounds.max_batch_bytes
            or self._now() - batch.created_at > timeout_s * _OPEN_SHARE
        ):
            batch = Batch(topic, self._now(), timeout_s, defer_ms=defer_ms)
            self._waiting.append(batch)
            if not defer_ms:
                self._open[topic] = batch
        batch.bodies.append(body)
        batch.futures.append(future)
        batch.body_bytes += size
        self.count += 1
        self.body_bytes += size
        if not self._is_awake:
            self._is_awake = True
            self._wake()
        return future

    def add_whole(self, topic: str, bodies: list[bytes], timeout_s: float) -> asyncio.Future[None]:
        """Put checked messages in that leave in one command; return the Future of them all."""
        batch = Batch(topic, self._loop.time(), timeout_s)
        batch.is_whole = True
        batch.bodies = bodies
        batch.body_bytes = sum(map(len, bodies))
        future: asyncio.Future[None] = self._loop.create_future()
        batch.futures.append(future)
        self._open.pop(topic, None)
        self._waiting.append(batch)
        self.count += len(bodies)
        self.body_bytes += batch.body_bytes
        if not self._is_awake:
            self._is_awake = True
            self._wake()
        return future

    def take(self) -> Batch | None:
        """Take the next batch to send; None if nothing waits."""
        self._is_awake = False
        while self._waiting:
            batch = self._waiting.popleft()
            if self._open.get(batch.topic) is batch:
                del self._open[batch.topic]
            dropped_count, dropped_bytes = batch.drop_abandoned()
            if dropped_count:
                self._release(dropped_count, dropped_bytes)
            if batch.bodies:
                return batch
        return None

    def put_back(self, batches: list[Batch]) -> None:
        """Put batches that were taken before all that wait, in their order."""
        self._waiting.extendleft(reversed(batches))
        if batches and not self._is_awake:
            self._is_awake = True
            self._wake()

    def settle(self, batch: Batch, error: Exception | None = None) -> None:
        """End a batch that was taken, well or not."""
        if error is None:
            batch.succeed()
        else:
            batch.fail(error)
        self._release(len(batch.bodies), batch.body_bytes)

    def fail_expired(self, now: float, make_error: Callable[[Batch | None], Exception]) -> None:
        """Fail the waiting batches and publishers whose time is over."""
        if any(batch.deadline <= now for batch in self._waiting):
            self._fail_where(lambda batch: batch.deadline <= now, make_error)
        if self._room_waiters:
            self._fail_publishers(lambda waiter: waiter.deadline <= now, make_error)

    def fail_all(self, make_error: Callable[[Batch | None], Exception]) -> None:
        """Fail all waiting batches and publishers."""
        self._fail_where(lambda _batch: True, make_error)
        self._fail_publishers(lambda _waiter: True, make_error)

    async def wait_for_room(self, count: int, body_bytes: int, timeout_s: float) -> None:
        """Wait until so much fits and it is this publisher's turn; the caller adds at once.

        Raises:
            PublishError: the time is over; ClosedError: the producer was closed.
        """
        deadline = self._loop.time() + timeout_s
        waiter = _RoomWaiter(self._loop.create_future(), count, body_bytes, deadline)
        self._room_waiters.append(waiter)
        try:
            await waiter.admitted
        except asyncio.CancelledError:
            if waiter in self._room_waiters:
                self._room_waiters.remove(waiter)
            else:
                self._release(count, body_bytes)  # The room was given already: hand it on.
            raise
        # `_admit` has counted these messages, and so will `add`.
        self.count -= count
        self.body_bytes -= body_bytes

    async def wait_until_empty(self) -> None:
        """Wait until every message has its answer."""
        while self.count:
            if self._empty is None or self._empty.done():
                self._empty = self._loop.create_future()
            await asyncio.shield(self._empty)

    def _fits(self, waiter: _RoomWaiter) -> bool:
        bounds = self.bounds
        if not self.count:
            return True
        return (
            self.count + waiter.message_count <= bounds.max_pending_count
            and self.body_bytes + waiter.body_bytes <= bounds.max_pending_bytes
        )

    def _release(self, count: int, body_bytes: int) -> None:
        self.count -= count
        self.body_bytes -= body_bytes
        if self._room_waiters:
            self._admit()
        if not self.count and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    def _admit(self) -> None:
        """Wake the publishers whose messages fit, in order; count them as added already."""
        waiters = self._room_waiters
        while waiters:
            first = waiters[0]
            if not first.admitted.done():
                if not self._fits(first):
                    return
                first.admitted.set_result(None)
                self.count += first.message_count
                self.body_bytes += first.body_bytes
            waiters.popleft()

    def _fail_where(
        self, is_over: Callable[[Batch], bool], make_error: Callable[[Batch], Exception]
    ) -> None:
        over = [batch for batch in self._waiting if is_over(batch)]
        self._waiting = deque(batch for batch in self._waiting if not is_over(batch))
        for batch in over:
            if self._open.get(batch.topic) is batch:
                del self._open[batch.topic]
            self.settle(batch, make_error(batch))

    def _fail_publishers(
        self, is_over: Callable[[_RoomWaiter], bool], make_error: Callable[[None], Exception]
    ) -> None:
        over = [waiter for waiter in self._room_waiters if is_over(waiter)]
        self._room_waiters = deque(waiter for waiter in self._room_waiters if not is_over(waiter))
        for waiter in over:
            if not waiter.admitted.done():
                waiter.admitted.set_exception(make_error(None))
