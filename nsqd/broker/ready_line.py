"""ReadyLine: the consumers of one channel that may be given messages, in the order of their turns.

A consumer joins the line whenever it may have got room (RDY, FIN, REQ, a timeout, a socket that
drains) and stands in it at most once; one that is idle or full does not stand in it, so a thousand
of those cost nothing. There is one lane per `Locality`, and a lane is served only when no consumer
that is nearer can take more.

A consumer that a delivery has filled does not join for the first FIN that it sends. It *lingers*
until a quarter of its ready count is free, at most a millisecond, so that a busy consumer gets few
large writes instead of many small ones.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from nsqd.broker.consumer import Consumer, Locality
from nsqd.broker.scheduler import Scheduler

MAX_MESSAGES_PER_WRITE = 1024
MAX_MESSAGES_PER_TURN = 8192
LINGER_S = 0.001
# With room for so many messages a consumer never lingers, however large its ready count is.
LINGER_MAX_COUNT = 256


class Backlog(Protocol):
    """The messages that wait for the consumers in the line."""

    @property
    def depth(self) -> int:
        """How many they are."""


class ReadyLine:
    """Decides which consumer is served next, and with how many messages at most."""

    __slots__ = ("_lanes", "_lingering", "_on_joined", "_scheduler", "is_empty")

    def __init__(self, scheduler: Scheduler, on_joined: Callable[[], object]) -> None:
        """Args: on_joined: called when consumers have joined after they had lingered."""
        # Whether no consumer stands in the line; an attribute, as every put reads it.
        self.is_empty = True
        self._scheduler = scheduler
        self._on_joined = on_joined
        self._lanes: tuple[deque[Consumer], ...] = tuple(deque() for _ in Locality)
        self._lingering: dict[Consumer, None] = {}

    def join(self, consumer: Consumer) -> bool:
        """Put a consumer at the end of its lane if it has room; return whether it is in the line.

        One that was filled may have to linger first.
        """
        if consumer.is_in_line:
            return True
        room = consumer.capacity
        if room <= 0:
            return False
        if consumer.was_filled and room < min(consumer.ready_count >> 2, LINGER_MAX_COUNT):
            self._linger(consumer)
            return False
        consumer.is_in_line = True
        self._lanes[consumer.locality].append(consumer)
        self.is_empty = False
        return True

    def leave(self, consumer: Consumer) -> None:
        """Take a consumer out: the line of an idle channel would keep its connection alive."""
        if consumer.is_in_line:
            self._lanes[consumer.locality].remove(consumer)
            consumer.is_in_line = False
            self.is_empty = not any(self._lanes)

    def close(self) -> None:
        """Let go of the consumers and of the channel."""
        self._on_joined = _ignore
        self._lingering.clear()
        for lane in self._lanes:
            lane.clear()
        self.is_empty = True

    def serve(self, backlog: Backlog, deliver: Callable[[Consumer, int], int]) -> bool:
        """Give each consumer a fair share of the backlog, in rounds, the nearest lane first.

        Return True if the bound on one turn of the loop ended it: there is more to deliver.

        Args:
            deliver: sends a consumer at most so many messages; returns how many it took from the
                backlog, which are 0 while a limit keeps it from taking any.

        Raises:
            OSError: `deliver` raised it; the consumer that it was called for keeps its place.
        """
        for lane in self._lanes:
            budget = MAX_MESSAGES_PER_TURN
            while lane and (depth := backlog.depth):
                if budget <= 0:
                    return True
                length = len(lane)
                share = min(-(-depth // length), MAX_MESSAGES_PER_WRITE)
                taken = 0
                for _ in range(min(length, depth)):
                    consumer = lane.popleft()
                    consumer.is_in_line = False
                    room = consumer.capacity
                    if room <= 0:
                        continue
                    try:
                        taken += deliver(consumer, min(room, share))
                    finally:
                        if consumer.capacity > 0:
                            consumer.is_in_line = True
                            lane.append(consumer)
                if not taken and len(lane) == length:
                    break  # nothing could be taken, and no consumer has left the lane
                budget -= taken
        self.is_empty = not any(self._lanes)
        return False

    def _linger(self, consumer: Consumer) -> None:
        if not self._lingering:
            self._scheduler.call_at(self._scheduler.time() + LINGER_S, self._end_linger)
        # One that lingers already, since an earlier delivery, does not linger longer.
        self._lingering[consumer] = None

    def _end_linger(self) -> None:
        lingering, self._lingering = self._lingering, {}
        has_joined = False
        for consumer in lingering:
            consumer.was_filled = False
            has_joined |= self.join(consumer)
        if has_joined:
            self._on_joined()


def _ignore() -> None:
    """Call no channel: it has been closed."""
