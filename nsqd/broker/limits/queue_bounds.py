"""QueueBounds: enforces the limits of a topic on one queue, the topic's own or a channel's.

While a limit is set, a channel takes its messages through the bounds of its queue; without limits
there are no bounds. A message beyond a limit is removed from the queue, and then either dropped and
counted, or published as a dead letter. Messages in flight are left alone until they come back.

The work is done in bounded steps, of which `TopicBounds` makes slices. If `take` has removed
`MAX_MESSAGES_PER_STEP` the bounds *rest* until the next turn of the loop, and `take` gives no
message meanwhile.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from struct import Struct

from nsqd.broker.limits.dead_letter import Limbo, Publish
from nsqd.broker.queue.backend import DiskBackend
from nsqd.broker.queue.batch import RECORD_OVERHEAD_BYTES, Batch, Message, Piece
from nsqd.broker.queue.message_queue import MessageQueue
from nsqd.broker.scheduler import Scheduler
from nsqd.config.limits import Limits

logger = logging.getLogger(__name__)

MAX_MESSAGES_PER_STEP = 512
MAX_BYTES_PER_STEP = 1024 * 1024
# How long to rest while dead letters are refused, or the disk can't be read.
RETRY_S = 1.0
# How often the front of a queue is looked at in the life of a message.
LOOKS_PER_TTL = 4
# A difference between the wall clock and the steady clock up to this is drift, not a step.
DRIFT_S = 1.0

_unpack_timestamp = Struct(">q").unpack_from


class DropReason(Enum):
    """The limit for which a message was dropped."""

    DEPTH = "depth"
    TTL = "ttl"
    ATTEMPTS = "attempts"


class Losses:
    """Messages that a queue refused or removed since the start of the process.

    Each message is in one of the counts.
    """

    __slots__ = ("dead_lettered_count", "dropped_counts", "rejected_count")

    def __init__(self) -> None:
        self.dropped_counts = dict.fromkeys(DropReason, 0)
        self.dead_lettered_count = 0
        # Messages of publishes that the topic refused; they never were in the queue.
        self.rejected_count = 0

    @property
    def dropped_count(self) -> int:
        """How many are gone for good."""
        return sum(self.dropped_counts.values())

    def copy(self) -> "Losses":
        """Return the figures of this moment."""
        same = Losses()
        same.dropped_counts = dict(self.dropped_counts)
        same.dead_lettered_count = self.dead_lettered_count
        same.rejected_count = self.rejected_count
        return same


class AgeClock:
    """Wall-clock time for the age of messages, which a step of the clock does not make old.

    Messages carry the wall clock of their publish. If that clock steps forward, all of them would
    be too old at once. So the earlier of the wall clock and the steady clock counts, until the step
    is as long ago as messages may become old: those published before it are too old by then, and
    those published after it carry the new time.
    """

    __slots__ = ("_offset_ns", "_scheduler", "_stepped_at", "_ttl_s")

    def __init__(self, scheduler: Scheduler, ttl_s: float) -> None:
        """Args: ttl_s: how old messages may become."""
        self._scheduler = scheduler
        self._ttl_s = ttl_s
        self._stepped_at: float | None = None
        # From the steady clock to the wall clock.
        self._offset_ns = scheduler.wall_time_ns() - round(scheduler.time() * 1e9)

    def now_ns(self) -> int:
        """Return the time in nanoseconds since 1970."""
        now = self._scheduler.time()
        wall_ns = self._scheduler.wall_time_ns()
        steady_ns = round(now * 1e9) + self._offset_ns
        if abs(wall_ns - steady_ns) <= DRIFT_S * 1e9:
            self._stepped_at = None
        elif self._stepped_at is None:
            self._stepped_at = now
            return min(wall_ns, steady_ns)
        elif now - self._stepped_at < self._ttl_s:
            return min(wall_ns, steady_ns)
        else:
            self._stepped_at = None
        self._offset_ns += wall_ns - steady_ns
        return wall_ns


@dataclass(frozen=True, slots=True)
class Rules:
    """The limits of all queues of a topic, and the means to enforce them."""

    topic_name: str
    limits: Limits
    clock: AgeClock
    scheduler: Scheduler
    # None: messages that are too old or were tried too often are dropped.
    dead_letter_name: str | None
    publish: Publish


class QueueBounds:
    """Keeps one queue within its limits."""

    def __init__(
        self,
        channel_name: str,
        queue: MessageQueue,
        losses: Losses,
        rules: Rules,
        resume: Callable[[], object],
    ) -> None:
        """Args:
        channel_name: empty for the topic's own queue.
        resume: called after a rest, when `take` may give messages again.
        """
        # For the log.
        self.name = f"CHANNEL({rules.topic_name}:{channel_name})"
        if not channel_name:
            self.name = f"TOPIC({rules.topic_name})"
        # When the front of the queue may be too old, on the scheduler's clock.
        self.look_at = 0.0
        self._queue = queue
        self._losses = losses
        self._limits = rules.limits
        self._ttl_ns = round(rules.limits.msg_ttl_s * 1e9)
        self._clock = rules.clock
        self._scheduler = rules.scheduler
        self._resume: Callable[[], object] | None = resume
        self._limbo: Limbo | None = None
        self._dead_letter_name = rules.dead_letter_name
        if rules.dead_letter_name is not None:
            self._limbo = Limbo(
                rules.dead_letter_name,
                (rules.topic_name, channel_name),
                *(rules.publish, rules.scheduler, self._note_dead_lettered),
            )
        # Messages removed since the last rest.
        self._removed_count = 0
        self._is_resting = False

    @property
    def limbo_count(self) -> int:
        """How many messages are becoming dead letters, and are in no queue."""
        return 0 if self._limbo is None else len(self._limbo)

    def copy_limbo(self) -> list[Message]:
        """Return the messages that are becoming dead letters."""
        return [] if self._limbo is None else self._limbo.copy()

    def close(self, successor: "QueueBounds | None" = None) -> list[Message]:
        """Enforce no limit any more; return the messages in limbo, which go back to the queue.

        Args:
            successor: the bounds with other limits that follow; its limbo keeps dead letters which
                only wait for their sync.
        """
        self._resume = None
        # The limbo holds a callback of these bounds: without a cycle no collector is needed.
        limbo, self._limbo = self._limbo, None
        if limbo is None:
            return []
        return limbo.clear() if successor is None else successor.inherit(limbo)

    def inherit(self, limbo: Limbo) -> list[Message]:
        """Take over the limbo of the bounds before; return its messages that stay out of limbo."""
        if self._dead_letter_name is None:
            return limbo.clear()
        self._limbo = limbo
        return limbo.move(self._dead_letter_name, self._note_dead_lettered)

    def empty(self) -> None:
        """Forget the messages in limbo, after the queue was emptied."""
        if self._limbo is not None:
            self._limbo.clear()

    # --- too old

    def take(self, max_count: int, max_bytes: int) -> Piece | None:
        """Take messages as `MessageQueue.take` does, but none that is too old.

        Return None while the bounds rest, too.

        Raises:
            OSError: the disk can't be read.
        """
        while not self._is_resting:
            piece = self._queue.take(max_count, max_bytes)
            if piece is None or not self._ttl_ns:
                return piece
            piece = self._remove_expired(piece)
            if piece is not None:
                return piece
            if self._removed_count >= MAX_MESSAGES_PER_STEP:
                self._rest(0.0)
        return None

    def sweep(self) -> int:
        """Remove some messages that are too old from the front; return how many.

        Raises:
            OSError: the disk can't be read.
        """
        now = self._scheduler.time()
        self.look_at = now + self._limits.msg_ttl_s / LOOKS_PER_TTL
        if self._is_resting:
            self.look_at = min(self.look_at, now + RETRY_S)
            return 0
        timestamp_ns = self._find_front_timestamp()
        if timestamp_ns is None:
            return 0
        left_s = (timestamp_ns + self._ttl_ns - self._clock.now_ns()) / 1e9
        if left_s > 0:
            self.look_at = min(self.look_at, now + left_s)
            return 0
        self.look_at = now
        before = self._queue.depth
        piece = self._queue.take(MAX_MESSAGES_PER_STEP, MAX_BYTES_PER_STEP)
        if piece is not None:
            piece = self._remove_expired(piece)
        if piece is not None:
            self._queue.untake(piece)
        self._removed_count = 0
        return before - self._queue.depth

    def _find_front_timestamp(self) -> int | None:
        """Return when the next message was published, None if there is none."""
        loaded = next(self._queue.iter_loaded(), None)
        if loaded is not None:
            message, _ = loaded
            return message[1]
        backend = self._queue.backend
        if backend.unread_count and isinstance(backend, DiskBackend):
            # Peeked, not read: the sweep must not load thousands of idle queues into memory.
            for record in backend.queue.peek(1, 1):
                timestamp_ns: int = _unpack_timestamp(record)[0]
                return timestamp_ns
        return None

    def _remove_expired(self, piece: Piece) -> Piece | None:
        """Remove the front of a piece if it is too old, else return the part that is not.

        The rest of the piece goes back to the queue.
        """
        batch = piece.batch
        oldest_ns = self._clock.now_ns() - self._ttl_ns
        if isinstance(batch, Batch):
            is_old = batch.timestamp_ns < oldest_ns
        else:
            timestamps = batch.timestamps(piece.start, piece.stop)
            are_old = [timestamp_ns < oldest_ns for timestamp_ns in timestamps]
            is_old = are_old[0]
            if (not is_old) in are_old:
                piece, rest = piece.split(are_old.index(not is_old))
                self._queue.untake(rest)
        if not is_old:
            return piece
        if self._limbo is None:
            self._drop(piece, DropReason.TTL)
        elif self._limbo.has_room:
            self._limbo.add(piece.messages(), DropReason.TTL.value)
        else:
            self._queue.untake(piece)
            self._rest(RETRY_S)
            return None
        self._removed_count += piece.count
        return None

    def _rest(self, delay_s: float) -> None:
        self._is_resting = True
        if delay_s:
            self._scheduler.call_at(self._scheduler.time() + delay_s, self._end_rest)
        else:
            self._scheduler.call_soon(self._end_rest)

    def _end_rest(self) -> None:
        self._is_resting = False
        self._removed_count = 0
        if self._resume is not None:
            self._resume()

    # --- tried too often

    def keep_retriable(self, messages: list[Message]) -> list[Message]:
        """Remove messages that were tried too often; return those that go back to the queue."""
        limit = self._limits.max_attempts
        if not limit:
            return messages
        worn_out = [message for message in messages if message[2] >= limit]
        if not worn_out:
            return messages
        if self._limbo is None:
            self._commit(worn_out)
            self._losses.dropped_counts[DropReason.ATTEMPTS] += len(worn_out)
        elif self._limbo.has_room:
            self._limbo.add(worn_out, DropReason.ATTEMPTS.value)
        else:
            return messages  # delivered once more; the limbo may have room when they come back
        return [message for message in messages if message[2] < limit]

    def _note_dead_lettered(self, messages: list[Message]) -> None:
        """Forget messages that are safe in the dead-letter topic."""
        self._commit(messages)
        self._losses.dead_lettered_count += len(messages)

    def _commit(self, messages: list[Message]) -> None:
        self._queue.commit([message[4] for message in messages if message[4] is not None])

    # --- too many

    def trim(self, deferred_count: int, deferred_bytes: int) -> bool:
        """Drop the oldest messages until the queue is within its bound, but only some at a time.

        Return False if there are more to drop.

        Args:
            deferred_count, deferred_bytes: deferred messages, which count but are not dropped.

        Raises:
            OSError: the disk can't be read.
        """
        queue, limits = self._queue, self._limits
        budget = MAX_MESSAGES_PER_STEP
        while queue.depth:
            surplus = surplus_bytes = 0
            if limits.max_depth:
                surplus = queue.depth + deferred_count - limits.max_depth
            if limits.max_depth_bytes:
                surplus_bytes = queue.waiting_bytes + deferred_bytes - limits.max_depth_bytes
            if surplus <= 0 and surplus_bytes <= 0:
                return True
            if budget <= 0:
                return False
            piece = queue.take(budget, MAX_BYTES_PER_STEP)
            if piece is None:
                return True
            count = _count_to_drop(piece, surplus, surplus_bytes)
            if count < piece.count:
                piece, rest = piece.split(count)
                queue.untake(rest)
            self._drop(piece, DropReason.DEPTH)
            budget -= count
        return True

    def _drop(self, piece: Piece, reason: DropReason) -> None:
        if piece.is_on_disk:
            self._queue.commit(piece.ordinals)
        self._losses.dropped_counts[reason] += piece.count


def _count_to_drop(piece: Piece, surplus: int, surplus_bytes: int) -> int:
    """Return how many messages of a piece have to go, from the front; at least one."""
    count = min(max(surplus, 0), piece.count)
    if surplus_bytes > 0:
        bodies = piece.batch.bodies[piece.start : piece.stop]
        sizes = (len(body) + RECORD_OVERHEAD_BYTES for body in bodies)
        enough = (
            index for index, total in enumerate(accumulate(sizes), 1) if total >= surplus_bytes
        )
        count = max(count, next(enough, piece.count))
    return count
