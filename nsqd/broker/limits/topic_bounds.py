"""TopicBounds: the limits of one topic, for what is published to it and for what it holds.

A bound is one for each queue: the topic's own and that of every channel. What counts is what waits
and what is deferred; not what is in flight, which nothing can refuse or drop. An ephemeral channel
loses its oldest messages rather than have publishes refused for everybody.
"""

import logging
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Protocol

from nsqd.broker.channel import Channel
from nsqd.broker.errors import DepthLimitError
from nsqd.broker.hand_over import HandOver
from nsqd.broker.limits.losses import Losses
from nsqd.broker.limits.queue_bounds import MAX_MESSAGES_PER_TURN, RETRY_S, QueueBounds, Rules
from nsqd.broker.queue.batch import RECORD_OVERHEAD_BYTES
from nsqd.broker.queue.message_queue import MessageQueue
from nsqd.broker.scheduler import Timer
from nsqd.config.limits import DepthPolicy

logger = logging.getLogger(__name__)

# The shortest time between two looks at the fronts of the queues.
MIN_SWEEP_S = 0.01


class BoundedTopic(Protocol):
    """What there is to know of a topic."""

    name: str
    channels: dict[str, Channel]
    losses: Losses
    queue: MessageQueue
    hand_over: HandOver


class TopicBounds:
    """Refuses publishes and drops what is too much or too old, in the topic and its channels."""

    def __init__(self, topic: BoundedTopic, rules: Rules) -> None:
        # What the topic owns and changes, but not the topic, which knows us.
        self._name = topic.name
        self._queue = topic.queue
        self._channels = topic.channels
        self._hand_over = topic.hand_over
        self._losses = topic.losses
        self._rules = rules
        self.limits = rules.limits
        self._drops_oldest = rules.limits.max_depth_policy is DepthPolicy.DROP_OLDEST
        self._scheduler = rules.scheduler
        self._own = QueueBounds(f"TOPIC({self._name})", self._queue, self._losses, rules, _ignore)
        self._is_trim_scheduled = False
        self._timer: Timer | None = None
        self._is_closed = False
        for channel in self._channels.values():
            self.attach(channel)
        self.trim_soon()
        if rules.limits.msg_ttl_s:
            self._sweep_at(self._scheduler.time() + MIN_SWEEP_S)

    @property
    def limbo_count(self) -> int:
        """How many messages of the topic's own queue are becoming dead letters."""
        return self._own.limbo_count

    def attach(self, channel: Channel) -> None:
        """Give a channel the limits of its topic."""
        name = f"CHANNEL({self._name}:{channel.name})"
        bounds = QueueBounds(name, channel.queue, channel.losses, self._rules, channel.look_again)
        channel.set_bounds(bounds)

    def close(self) -> None:
        """Let go of the topic; the channels are let go of by themselves."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        left = self._own.close()
        if left:
            self._queue.put_back(left)

    def empty(self) -> None:
        """Forget what is in limbo: the topic has been emptied."""
        self._own.empty()

    # --- publishes

    def admit(self, bodies: Sequence[bytes]) -> None:
        """Check that there is room for a publish.

        Raises:
            DepthLimitError: there is none, and won't be by dropping what waits.
        """
        if not self.limits.has_bound:
            return
        count = len(bodies)
        size_bytes = sum(map(len, bodies)) + count * RECORD_OVERHEAD_BYTES
        for channel, held_count, held_bytes in self._find_held():
            excess = self._find_excess(held_count + count, held_bytes + size_bytes)
            if excess:
                name = f"topic {self._name}"
                if channel is not None:
                    name = f"channel {self._name}:{channel.name}"
                raise DepthLimitError(f"{name} would hold {excess}", self._count_room(bodies))
        self.trim_soon()

    def _find_held(self) -> Iterator[tuple[Channel | None, int, int]]:
        """Give what each queue, the topic's first, holds and would not drop for a publish."""
        has_bytes = bool(self.limits.max_depth_bytes)
        own_count = own_bytes = 0
        if not self._drops_oldest:
            own_count = self._queue.depth
            own_bytes = self._queue.waiting_bytes if has_bytes else 0
        yield None, own_count, own_bytes
        for channel in self._channels.values():
            if channel.is_ephemeral:
                continue
            # What waits in the topic is on its way to the channel.
            held_count = own_count + len(channel.deferred)
            held_bytes = own_bytes + channel.deferred.size_bytes
            if not self._drops_oldest:
                held_count += channel.queue.depth
                held_bytes += channel.queue.waiting_bytes if has_bytes else 0
            yield channel, held_count, held_bytes

    def _find_excess(self, count: int, size_bytes: int) -> str:
        """Say what would be too much of so much in one queue; nothing if it is not."""
        limits = self.limits
        if 0 < limits.max_depth < count:
            return f"{count} messages, more than --max-depth={limits.max_depth}"
        if 0 < limits.max_depth_bytes < size_bytes:
            return f"{size_bytes} bytes, more than --max-depth-bytes={limits.max_depth_bytes}"
        return ""

    def _count_room(self, bodies: Sequence[bytes]) -> int:
        """For how many of them, from the first on, every queue has room."""
        limits = self.limits
        totals = list(accumulate(len(body) + RECORD_OVERHEAD_BYTES for body in bodies))
        room = len(bodies)
        for _, held_count, held_bytes in self._find_held():
            if limits.max_depth:
                room = min(room, max(limits.max_depth - held_count, 0))
            if limits.max_depth_bytes:
                room = min(room, bisect_right(totals, limits.max_depth_bytes - held_bytes))
        return room

    # --- too many

    def trim_soon(self) -> None:
        """Drop what is too much, in the next turn: once for all that comes in this one."""
        if not self._is_trim_scheduled and self.limits.has_bound:
            self._is_trim_scheduled = True
            self._scheduler.call_soon(self._trim)

    def _trim(self) -> None:
        self._is_trim_scheduled = False
        if self._is_closed:
            return
        is_done = True
        try:
            if self._drops_oldest and not self._hand_over.is_partial:
                is_done = self._own.trim(0, 0)
            for channel in self._channels.values():
                if channel.bounds is not None and (self._drops_oldest or channel.is_ephemeral):
                    deferred = channel.deferred
                    is_done &= channel.bounds.trim(len(deferred), deferred.size_bytes)
        except OSError as error:
            logger.error("TOPIC(%s): failed to drop the oldest messages - %s", self._name, error)  # noqa: TRY400 - no traceback
            self._is_trim_scheduled = True
            self._scheduler.call_at(self._scheduler.time() + RETRY_S, self._trim)
            return
        if not is_done:
            self.trim_soon()

    # --- too old

    def _sweep(self) -> None:
        self._timer = None
        now = self._scheduler.time()
        budget = MAX_MESSAGES_PER_TURN
        queues = list(self._all())
        for bounds in queues:
            if bounds.look_at > now or budget <= 0:
                continue
            try:
                budget -= bounds.sweep()
            except OSError as error:
                logger.error("%s: failed to read from disk - %s", bounds.name, error)  # noqa: TRY400 - no traceback
                bounds.look_at = now + RETRY_S
        next_look = min((bounds.look_at for bounds in queues), default=now + RETRY_S)
        self._sweep_at(max(next_look, now + MIN_SWEEP_S))

    def _all(self) -> Iterator[QueueBounds]:
        if not self._hand_over.is_partial:
            yield self._own
        for channel in self._channels.values():
            if channel.bounds is not None:
                yield channel.bounds

    def _sweep_at(self, when: float) -> None:
        if not self._is_closed:
            self._timer = self._scheduler.call_at(when, self._sweep)


def _ignore() -> None:
    """Nobody takes from the topic's queue through its bounds."""
