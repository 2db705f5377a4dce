"""TopicBounds: enforces the limits of one topic, on publishes and on the queues of the topic.

`--max-depth` and `--max-depth-bytes` bound each queue by itself: the topic's own and that of every
channel. Messages that wait and that are deferred count. Messages in flight do not, since they can
neither be refused nor dropped. A full ephemeral channel drops its oldest messages, so that it does
not refuse publishes that other channels have room for.
"""

import logging
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Protocol, TypeAlias

from nsqd.broker.channel import Channel
from nsqd.broker.errors import DepthLimitError
from nsqd.broker.limits.queue_bounds import (
    RETRY_S,
    Losses,
    QueueBounds,
    Rules,
)
from nsqd.broker.queue.batch import RECORD_OVERHEAD_BYTES, Message
from nsqd.broker.queue.message_queue import MessageQueue
from nsqd.broker.scheduler import Timer
from nsqd.config.limits import DepthPolicy

logger = logging.getLogger(__name__)

# The shortest time between two looks at the fronts of the queues.
MIN_SWEEP_S = 0.01


class HandedOver(Protocol):
    """The hand-over of a topic to its channels, as its bounds see it."""

    # Publishes go straight to the channels.
    is_direct: bool
    # The messages of publishes that wait in line.
    line_count: int
    line_bytes: int

    @property
    def is_partial(self) -> bool:
        """Whether the front of the queue must stay as it is."""


class BoundedTopic(Protocol):
    """The parts of a topic that its bounds need."""

    name: str
    channels: dict[str, Channel]
    losses: Losses
    queue: MessageQueue

    @property
    def hand_over(self) -> HandedOver:
        """Which channels have which messages."""


# The messages in one queue that a publish could not push out: the channel, None for the topic's own
# queue, their number and their bytes. A plain tuple: every publish to a topic with a bound asks for
# those of all queues, which takes 1.7 µs for one channel, and 2.5 µs with a class of their own.
_Load: TypeAlias = tuple[Channel | None, int, int]


class TopicBounds:
    """Refuses publishes beyond the bound, and removes messages that are too many or too old."""

    def __init__(
        self, topic: BoundedTopic, rules: Rules, before: "TopicBounds | None" = None
    ) -> None:
        """Args: before: the bounds whose place these take, if there are any."""
        # Not the topic itself, which holds a reference to these bounds.
        self._name = topic.name
        self._queue = topic.queue
        self._channels = topic.channels
        self._hand_over = topic.hand_over
        self._rules = rules
        self.limits = rules.limits
        self._drops_oldest = rules.limits.max_depth_policy is DepthPolicy.DROP_OLDEST
        self._scheduler = rules.scheduler
        self._own = QueueBounds("", self._queue, topic.losses, rules, _ignore)
        if before is not None:
            before.close(self._own)
        # Publishes have come since the queues were last looked at; and a slice is planned.
        self._is_trim_due = False
        self._is_trimming = False
        # The channels that are still to be looked at, by name; None is the topic's own queue.
        self._untrimmed: deque[str | None] = deque()
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

    def copy_limbo(self) -> list[Message]:
        """Return the messages of the topic's own queue that are becoming dead letters."""
        return self._own.copy_limbo()

    def attach(self, channel: Channel) -> None:
        """Give a channel the limits of its topic."""
        bounds = QueueBounds(
            *(channel.name, channel.queue, channel.losses, self._rules), channel.look_again
        )
        channel.set_bounds(bounds)

    @property
    def has_limbo(self) -> bool:
        """Whether messages of the topic or of a channel are becoming dead letters."""
        bounds = (self._own, *(channel.bounds for channel in self._channels.values()))
        return any(each is not None and each.limbo_count for each in bounds)

    def close(self, successor: QueueBounds | None = None) -> None:
        """Enforce no limit on the topic any more; channels close their bounds themselves.

        Args:
            successor: the bounds of the topic's own queue that follow.
        """
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        left = self._own.close(successor)
        if left:
            self._queue.put_back(left)

    def empty(self) -> None:
        """Forget the messages in limbo, after the topic was emptied."""
        self._own.empty()

    # --- publishes

    def admit(self, bodies: Sequence[bytes]) -> None:
        """Check that there is room for a publish.

        Raises:
            DepthLimitError: there is none, not even after dropping messages that wait.
        """
        if not self.limits.has_bound:
            return
        self._admit(len(bodies), sum(map(len, bodies)), bodies)

    def admit_sizes(self, count: int, body_bytes: int) -> None:
        """Check that there is room for a publish of so many messages, all of them or none.

        Raises:
            DepthLimitError: there is none, not even after dropping messages that wait.
        """
        if self.limits.has_bound:
            self._admit(count, body_bytes, ())

    def _admit(self, count: int, body_bytes: int, bodies: Sequence[bytes]) -> None:
        size_bytes = body_bytes + count * RECORD_OVERHEAD_BYTES
        for channel, load_count, load_bytes in self._find_loads():
            excess = self._find_excess(load_count + count, load_bytes + size_bytes)
            if excess:
                name = f"topic {self._name}"
                if channel is not None:
                    name = f"channel {self._name}:{channel.name}"
                raise DepthLimitError(f"{name} would hold {excess}", self._count_room(bodies))
        self.trim_soon()

    def _find_loads(self) -> Iterator[_Load]:
        """Yield the load of each queue that can refuse a publish, the topic's own first."""
        has_bytes = bool(self.limits.max_depth_bytes)
        line = self._hand_over
        own_count = own_bytes = line_count = line_bytes = 0
        if not self._drops_oldest:
            own_count = self._queue.depth
            own_bytes = self._queue.waiting_bytes if has_bytes else 0
            line_count = line.line_count
            line_bytes = line.line_bytes + line_count * RECORD_OVERHEAD_BYTES
        # Publishes that wait in line are on their way to the channels, or to the topic's queue.
        if line.is_direct:
            yield None, own_count, own_bytes
        own_count += line_count
        own_bytes += line_bytes
        if not line.is_direct:
            yield None, own_count, own_bytes
        for channel in self._channels.values():
            if channel.is_ephemeral:
                continue
            # The messages in the topic's queue are on their way to the channel.
            count = own_count + len(channel.deferred)
            size_bytes = own_bytes + channel.deferred.size_bytes
            if not self._drops_oldest:
                count += channel.queue.depth
                size_bytes += channel.queue.waiting_bytes if has_bytes else 0
            yield channel, count, size_bytes

    def _find_excess(self, count: int, size_bytes: int) -> str:
        """Say which bound so many messages in one queue exceed; empty if none."""
        limits = self.limits
        if 0 < limits.max_depth < count:
            return f"{count} messages, more than --max-depth={limits.max_depth}"
        if 0 < limits.max_depth_bytes < size_bytes:
            return f"{size_bytes} bytes, more than --max-depth-bytes={limits.max_depth_bytes}"
        return ""

    def _count_room(self, bodies: Sequence[bytes]) -> int:
        """Return for how many of the bodies, from the first on, every queue has room."""
        limits = self.limits
        totals = list(accumulate(len(body) + RECORD_OVERHEAD_BYTES for body in bodies))
        room = len(bodies)
        for _, load_count, load_bytes in self._find_loads():
            if limits.max_depth:
                room = min(room, max(limits.max_depth - load_count, 0))
            if limits.max_depth_bytes:
                room = min(room, bisect_right(totals, limits.max_depth_bytes - load_bytes))
        return room

    # --- too many

    def trim_soon(self) -> None:
        """Drop messages beyond the bound in the next turn, once for all publishes of this one."""
        if not self.limits.has_bound:
            return
        self._is_trim_due = True
        if not self._is_trimming:
            self._is_trimming = True
            self._scheduler.share(self._trim)

    def _trim(self) -> bool:
        """Drop a slice of the messages beyond the bound; return whether there may be more."""
        end = self._scheduler.slice_end()
        untrimmed = self._untrimmed
        while not self._is_closed:
            if not untrimmed:
                if not self._is_trim_due:
                    break
                self._is_trim_due = False
                untrimmed += [None, *self._channels]
            name = untrimmed.popleft()
            try:
                is_done = self._trim_queue(name)
            except OSError as error:
                untrimmed.append(name)
                self._try_again(error)
                return False
            if not is_done:
                untrimmed.append(name)  # the other queues have a step first
            if time.perf_counter() >= end:
                break
        self._is_trimming = not self._is_closed and bool(untrimmed or self._is_trim_due)
        return self._is_trimming

    def _try_again(self, error: OSError) -> None:
        """Go on with `_trim` after a while, and count as trimming until then."""
        logger.error("TOPIC(%s): failed to drop the oldest messages - %s", self._name, error)
        share_trim = partial(self._scheduler.share, self._trim)
        self._scheduler.call_at(self._scheduler.time() + RETRY_S, share_trim)

    def _trim_queue(self, name: str | None) -> bool:
        """Drop some messages of a channel, or of the topic's own queue; return False if more go.

        Raises:
            OSError: the disk can't be read.
        """
        if name is None:
            if self._drops_oldest and not self._hand_over.is_partial:
                return self._own.trim(0, 0)
            return True
        channel = self._channels.get(name)
        if channel is None or channel.bounds is None:
            return True
        if not self._drops_oldest and not channel.is_ephemeral:
            return True
        return channel.bounds.trim(len(channel.deferred), channel.deferred.size_bytes)

    # --- too old

    def _begin_sweep(self) -> None:
        self._timer = None
        self._scheduler.share(self._sweep)

    def _sweep(self) -> bool:
        """Remove a slice of the messages that are too old from the fronts of the queues.

        Return whether there may be more; else set the time of the next look.
        """
        if self._is_closed:
            return False
        now = self._scheduler.time()
        end = self._scheduler.slice_end()
        queues = sorted(self._find_sweepable(), key=_look_at)
        for bounds in queues:
            if bounds.look_at > now:
                break
            try:
                if not bounds.sweep():
                    bounds.look_at = max(bounds.look_at, now + MIN_SWEEP_S)
            except OSError as error:
                logger.error("%s: failed to read from disk - %s", bounds.name, error)  # noqa: TRY400 - no traceback
                bounds.look_at = now + RETRY_S
            if time.perf_counter() >= end:
                break
        next_look = min((bounds.look_at for bounds in queues), default=now + RETRY_S)
        if next_look <= now:
            return True
        self._sweep_at(max(next_look, now + MIN_SWEEP_S))
        return False

    def _find_sweepable(self) -> Iterator[QueueBounds]:
        # The front of the topic's queue must stay while some of the channels have taken it.
        if not self._hand_over.is_partial:
            yield self._own
        for channel in self._channels.values():
            if channel.bounds is not None:
                yield channel.bounds

    def _sweep_at(self, when: float) -> None:
        if not self._is_closed:
            self._timer = self._scheduler.call_at(when, self._begin_sweep)


def _look_at(bounds: QueueBounds) -> float:
    return bounds.look_at


def _ignore() -> None:
    """Do nothing after a rest: the topic does not take through the bounds of its queue."""
