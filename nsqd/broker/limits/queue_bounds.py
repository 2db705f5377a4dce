"""QueueBounds: the limits of a topic at work on one of its queues, its own or a channel's.

It stands between the queue and whoever takes from it, and is not there at all while no limit is
set. What it takes out is dropped and counted, or becomes a dead letter; never both, and nothing
that is in flight. It works in bounded steps: when it has taken out enough for one turn of the loop
it *rests* until the next one, and gives nothing out meanwhile.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from struct import Struct

from nsqd.broker.limits.age_clock import AgeClock
from nsqd.broker.limits.dead_letter import Limbo, Publish
from nsqd.broker.limits.losses import DropReason, Losses
from nsqd.broker.queue.backend import DiskBackend
from nsqd.broker.queue.batch import RECORD_OVERHEAD_BYTES, Batch, Message
from nsqd.broker.queue.message_queue import MessageQueue
from nsqd.broker.queue.piece import Piece
from nsqd.broker.scheduler import Scheduler
from nsqd.config.limits import Limits

logger = logging.getLogger(__name__)

MAX_MESSAGES_PER_TURN = 4096
MAX_BYTES_PER_TURN = 4 * 1024 * 1024
# While dead letters are refused, or the disk can't be read.
RETRY_S = 1.0
# How often the front of a queue is looked at in the life of a message.
LOOKS_PER_TTL = 4

_unpack_timestamp = Struct(">q").unpack_from


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds for all queues of a topic, and what it takes to enforce it."""

    limits: Limits
    clock: AgeClock
    scheduler: Scheduler
    dead_letter_name: str | None  # None: what is too old or was tried too often is dropped
    publish: Publish


class QueueBounds:
    """Keeps one queue within its limits."""

    def __init__(
        self,
        name: str,
        queue: MessageQueue,
        losses: Losses,
        rules: Rules,
        resume: Callable[[], object],
    ) -> None:
        """Args:
        name: of the queue, for the log.
        resume: called when it is worth taking again, after it has rested.
        """
        self.name = name
        # When the front of the queue is worth a look, on the scheduler's clock.
        self.look_at = 0.0
        self._queue = queue
        self._losses = losses
        self._limits = rules.limits
        self._ttl_ns = round(rules.limits.msg_ttl_s * 1e9)
        self._clock = rules.clock
        self._scheduler = rules.scheduler
        self._resume: Callable[[], object] | None = resume
        self._limbo: Limbo | None = None
        if rules.dead_letter_name is not None:
            self._limbo = Limbo(
                rules.dead_letter_name, rules.publish, rules.scheduler, self._buried
            )
        self._step_count = 0  # taken out since it rested
        self._is_resting = False

    @property
    def limbo_count(self) -> int:
        """How many messages are becoming dead letters, and are nowhere else."""
        return 0 if self._limbo is None else len(self._limbo)

    def close(self) -> list[Message]:
        """Let go of the queue; return what was in limbo."""
        self._resume = None
        limbo, self._limbo = self._limbo, None  # it knows us
        return [] if limbo is None else limbo.clear()

    def empty(self) -> None:
        """Forget what is in limbo: the queue has been emptied."""
        if self._limbo is not None:
            self._limbo.clear()

    # --- too old

    def take(self, max_count: int, max_bytes: int) -> Piece | None:
        """As MessageQueue.take, but for what is too old; None while it rests, too.

        Raises:
            OSError: the disk can't be read.
        """
        while not self._is_resting:
            piece = self._queue.take(max_count, max_bytes)
            if piece is None or not self._ttl_ns:
                return piece
            piece = self._take_out_expired(piece)
            if piece is not None:
                return piece
        return None

    def sweep(self) -> int:
        """Take out what is too old at the front; return how many that were.

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
        piece = self.take(MAX_MESSAGES_PER_TURN, MAX_BYTES_PER_TURN)
        if piece is not None:
            self._queue.untake(piece)
        return before - self._queue.depth

    def _find_front_timestamp(self) -> int | None:
        """Return when the next message was published, None if there is none."""
        loaded = next(self._queue.iter_loaded(), None)
        if loaded is not None:
            message, _ = loaded
            return message[1]
        backend = self._queue.backend
        if backend.unread_count and isinstance(backend, DiskBackend):
            # Looked at where it is: thousands of idle queues must not be loaded for it.
            for record in backend.queue.peek(1, 1):
                timestamp_ns: int = _unpack_timestamp(record)[0]
                return timestamp_ns
        return None

    def _take_out_expired(self, piece: Piece) -> Piece | None:
        """Take out the front of a piece if it is too old; else return as much as is not."""
        batch = piece.batch
        oldest_ns = self._clock.now_ns() - self._ttl_ns
        if isinstance(batch, Batch):
            is_old = batch.timestamp_ns < oldest_ns
        else:
            timestamps = batch.timestamps(piece.start, piece.stop)
            are_old = [timestamp_ns < oldest_ns for timestamp_ns in timestamps]
            is_old = are_old[0]
            if (not is_old) in are_old:
                rest, piece = piece, piece.cut(are_old.index(not is_old))
                self._queue.untake(rest)
        if not is_old:
            return piece
        if self._limbo is None:
            self._drop(piece, DropReason.TTL)
        elif self._limbo.has_room:
            self._limbo.add(piece.messages())
        else:
            self._queue.untake(piece)
            self._rest(RETRY_S)
            return None
        self._step_count += piece.count
        if self._step_count >= MAX_MESSAGES_PER_TURN:
            self._rest(0.0)
        return None

    # --- tried too often

    def keep_retriable(self, messages: list[Message]) -> list[Message]:
        """Take out what has been tried often enough; return what goes back to the queue."""
        limit = self._limits.max_attempts
        if not limit:
            return messages
        worn_out = [message for message in messages if message[2] >= limit]
        if not worn_out:
            return messages
        if self._limbo is None:
            self._queue.commit([message[4] for message in worn_out if message[4] is not None])
            self._losses.dropped_counts[DropReason.ATTEMPTS] += len(worn_out)
        elif self._limbo.has_room:
            self._limbo.add(worn_out)
        else:
            return messages  # it comes back, and is tried again then
        return [message for message in messages if message[2] < limit]

    def _buried(self, messages: list[Message]) -> None:
        """These are safe in the dead-letter topic."""
        self._queue.commit([message[4] for message in messages if message[4] is not None])
        self._losses.dead_lettered_count += len(messages)

    # --- too many

    def trim(self, deferred_count: int, deferred_bytes: int) -> bool:
        """Drop the oldest messages until the queue is within its bound.

        False if there is more to drop in another turn.

        Args:
            deferred_count, deferred_bytes: what counts too, but can't be dropped.

        Raises:
            OSError: the disk can't be read.
        """
        queue, limits = self._queue, self._limits
        budget = MAX_MESSAGES_PER_TURN
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
            piece = queue.take(budget, MAX_BYTES_PER_TURN)
            if piece is None:
                return True
            count = _count_to_drop(piece, surplus, surplus_bytes)
            if count < piece.count:
                rest, piece = piece, piece.cut(count)
                queue.untake(rest)
            self._drop(piece, DropReason.DEPTH)
            budget -= count
        return True

    # ---

    def _drop(self, piece: Piece, reason: DropReason) -> None:
        if piece.is_on_disk:
            self._queue.commit(piece.ordinals)
        self._losses.dropped_counts[reason] += piece.count

    def _rest(self, delay_s: float) -> None:
        self._is_resting = True
        if delay_s:
            self._scheduler.call_at(self._scheduler.time() + delay_s, self._go_on)
        else:
            self._scheduler.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._is_resting = False
        self._step_count = 0
        if self._resume is not None:
            self._resume()


def _count_to_drop(piece: Piece, surplus: int, surplus_bytes: int) -> int:
    """How many messages of a piece have to go, from the front; at least one."""
    count = min(max(surplus, 0), piece.count)
    if surplus_bytes > 0:
        bodies = piece.batch.bodies[piece.start : piece.stop]
        sizes = (len(body) + RECORD_OVERHEAD_BYTES for body in bodies)
        enough = (
            index for index, total in enumerate(accumulate(sizes), 1) if total >= surplus_bytes
        )
        count = max(count, next(enough, piece.count))
    return count
