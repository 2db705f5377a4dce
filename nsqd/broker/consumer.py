"""The consumers of a channel: each of them, all of them together, and whose turn it is.

`Consumer` is one subscribed client as its channel sees it, with its messages in flight, `Consumers`
all consumers of a channel, `ReadyLine` those of them that may be given messages.

A consumer that has left may still own messages: they stay in flight until their deadlines pass, as
in NSQ, and come back to the channel then.
"""

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from itertools import chain
from typing import Protocol

from nsqd.broker.disposal import Dropped
from nsqd.broker.in_flight import Entry, InFlight
from nsqd.broker.queue.batch import Message
from nsqd.broker.scheduler import Scheduler

_clock = time.perf_counter

NOT_IN_FLIGHT = "ID not in flight"
NOT_OWNER = "client does not own message"

MAX_MESSAGES_PER_WRITE = 512
LINGER_S = 0.001
# With room for so many messages a consumer never lingers, however large its ready count is.
LINGER_MAX_COUNT = 256


class Sink(Protocol):
    """The connection behind a consumer."""

    def deliver(self, heads: list[bytes], ids: list[bytes], bodies: Sequence[bytes]) -> None:
        """Send messages, given as columns: timestamp with attempts, id, body."""

    def close(self) -> None:
        """Close the connection: the channel is gone."""


class _Gone:
    """The sink of a consumer that has left: consumer and connection are no reference cycle."""

    def deliver(self, heads: list[bytes], ids: list[bytes], bodies: Sequence[bytes]) -> None:
        raise AssertionError("delivered to a consumer that has left")

    def close(self) -> None:
        """There is no connection any more."""


GONE = _Gone()


class Locality(IntEnum):
    """How near a consumer is to this nsqd; the nearest is served first if the experiment is on."""

    ZONE = 0
    REGION = 1
    GLOBAL = 2


class Consumer:
    """One subscription: how many messages it may have, those that it has, and its counters."""

    __slots__ = (
        "counted_locality",
        "finish_count",
        "in_flight",
        "is_in_line",
        "is_writable",
        "locality",
        "message_count",
        "msg_timeout_s",
        "ready_count",
        "requeue_count",
        "sample_rate",
        "sink",
        "was_filled",
    )

    def __init__(
        self,
        sink: Sink,
        *,
        msg_timeout_s: float,
        sample_rate: int = 0,
        locality: Locality = Locality.GLOBAL,
        counted_locality: Locality | None = None,
    ) -> None:
        """Args:
        locality: which consumers it comes before.
        counted_locality: the class that its messages are counted in, if another one.
        """
        self.sink = sink
        self.msg_timeout_s = msg_timeout_s
        self.sample_rate = sample_rate
        self.locality = locality
        self.counted_locality = locality if counted_locality is None else counted_locality
        self.in_flight: InFlight  # made by the channel, at the subscription
        self.ready_count = 0  # RDY: a level, not a credit
        self.is_writable = True  # its socket takes more
        self.is_in_line = False  # stands in the channel's ReadyLine, which sets it
        self.was_filled = False  # the last delivery filled it up to its ready_count
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0

    @property
    def capacity(self) -> int:
        """How many more messages it may be given now."""
        if not self.is_writable:
            return 0
        in_flight = self.in_flight
        return self.ready_count - len(in_flight.entries) - in_flight.twin_count


class Consumers:
    """The consumers of one channel: those that are subscribed, and those that left messages.

    Iteration and length are of the subscribed ones.
    """

    __slots__ = ("_departed", "_subscribed")

    def __init__(self) -> None:
        self._subscribed: dict[Consumer, None] = {}
        # Have left, and are forgotten when the last of their messages has timed out.
        self._departed: set[Consumer] = set()

    def __len__(self) -> int:
        return len(self._subscribed)

    def __iter__(self) -> Iterator[Consumer]:
        return iter(self._subscribed)

    def __contains__(self, consumer: object) -> bool:
        return consumer in self._subscribed

    @property
    def in_flight_count(self) -> int:
        """How many messages have been delivered and not answered."""
        if not self._subscribed and not self._departed:  # as nearly all of thousands of channels
            return 0
        return sum([len(consumer.in_flight) for consumer in self._all()])

    def find_oldest_timestamp(self) -> int | None:
        """Return when the oldest message in flight was published, None if there is none.

        Looks at the message of each consumer that has been in flight for longest.
        """
        each = (consumer.in_flight.entries.values() for consumer in self._all())
        return min((next(iter(entries))[2] for entries in each if entries), default=None)

    def iter_in_flight(self) -> Iterator[tuple[bytes, Entry]]:
        """Give ids and entries of the messages in flight, about in the order of the deadlines."""
        each = (consumer.in_flight.entries.items() for consumer in self._all())
        return heapq.merge(*each, key=_deadline)

    def list_in_flight(self) -> list[InFlight]:
        """Return the messages in flight, of each consumer that has any."""
        each = (consumer.in_flight for consumer in self._all())
        return [in_flight for in_flight in each if len(in_flight)]

    def add(self, consumer: Consumer) -> None:
        """Count a consumer among the subscribed ones."""
        self._subscribed[consumer] = None

    def remove(self, consumer: Consumer) -> None:
        """Let a subscribed consumer go; its messages stay in flight until their deadlines pass."""
        del self._subscribed[consumer]
        consumer.sink = GONE
        self._departed.add(consumer)
        self.forget_if_done(consumer)

    def forget_if_done(self, consumer: Consumer) -> None:
        """Let go of a consumer that has left, once none of its messages is in flight."""
        if not len(consumer.in_flight):
            self._departed.discard(consumer)
            consumer.in_flight.close()

    def explain(self, ids: Sequence[bytes]) -> list[tuple[bytes, str]]:
        """Pair ids that a consumer may not answer with the reason: not in flight, or not its own.

        A client may name thousands at a time, and there may be thousands of consumers: sets are
        compared, not each id with each consumer.
        """
        named = set(ids)
        owned: set[bytes] = set()
        for consumer in self._all():
            owned |= consumer.in_flight.entries.keys() & named
        return [
            (message_id, NOT_OWNER if message_id in owned else NOT_IN_FLIGHT) for message_id in ids
        ]

    def explain_one(self, message_id: bytes) -> str:
        """Return why a consumer may not answer this message."""
        for consumer in self._all():  # 40 ns for each
            if message_id in consumer.in_flight.entries:
                return NOT_OWNER
        return NOT_IN_FLIGHT

    def iter_messages(self) -> Iterator[Message]:
        """Give the messages in flight."""
        return chain.from_iterable(consumer.in_flight for consumer in self._all())

    def drop_in_flight(self) -> list[Dropped]:
        """Forget all messages in flight, and with them the consumers that have left.

        Return the containers to dispose of.
        """
        dropped: list[Dropped] = []
        for consumer in self._subscribed:
            dropped += consumer.in_flight.drop()
        for consumer in self._departed:
            dropped += consumer.in_flight.close()
        self._departed.clear()
        return dropped

    def close(self) -> tuple[list[Sink], list[Dropped]]:
        """Forget all consumers and their messages.

        Return the connections, which have to be closed, and the containers to dispose of.
        """
        dropped: list[Dropped] = []
        for consumer in self._all():
            dropped += consumer.in_flight.close()
        sinks = [consumer.sink for consumer in self._subscribed]
        for consumer in self._subscribed:
            consumer.sink = GONE
        self._subscribed.clear()
        self._departed.clear()
        return sinks, dropped

    def _all(self) -> Iterator[Consumer]:
        return chain(self._subscribed, self._departed)


def _deadline(item: tuple[bytes, Entry]) -> float:
    return item[1][0]


class Backlog(Protocol):
    """The messages that wait for the consumers in the line."""

    @property
    def depth(self) -> int:
        """How many they are."""


class ReadyLine:
    """Decides which consumer is served next, and with how many messages at most.

    A consumer joins the line whenever it may have got room (RDY, FIN, REQ, a timeout, a socket that
    drains) and stands in it at most once; one that is idle or full does not stand in it, so a
    thousand of those cost nothing. There is one lane per `Locality`, and a lane is served only when
    no consumer that is nearer can take more.

    A consumer that a delivery has filled does not join for the first FIN that it sends. It
    *lingers* until a quarter of its ready count is free, at most a millisecond, so that a busy
    consumer gets few large writes instead of many small ones.
    """

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
        if consumer.was_filled and room < consumer.ready_count >> 2 and room < LINGER_MAX_COUNT:
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
        self._on_joined = _ignore_joined
        self._lingering.clear()
        for lane in self._lanes:
            lane.clear()
        self.is_empty = True

    def serve(self, backlog: Backlog, deliver: Callable[[Consumer, int], int]) -> bool:
        """Give each consumer a fair share of the backlog, in rounds, the nearest lane first.

        Return True if the end of the slice ended it: there is more to deliver, and the consumers
        in front of the line are those that had no share yet.

        Args:
            deliver: sends a consumer at most so many messages; returns how many it took from the
                backlog, 0 while a limit keeps all consumers from taking any.

        Raises:
            OSError: `deliver` raised it; the consumer that it was called for keeps its place.
        """
        end = self._scheduler.slice_end()
        for lane in self._lanes:
            while lane and (depth := backlog.depth) > 0:
                share = min(-(-depth // len(lane)), MAX_MESSAGES_PER_WRITE)
                for _ in range(min(len(lane), depth)):
                    consumer = lane.popleft()
                    consumer.is_in_line = False
                    room = consumer.capacity
                    if room <= 0:
                        continue
                    try:
                        taken = deliver(consumer, room if room < share else share)
                    finally:
                        if consumer.capacity > 0:
                            consumer.is_in_line = True
                            lane.append(consumer)
                    if not taken or _clock() >= end:
                        self.is_empty = not any(self._lanes)
                        return bool(taken and backlog.depth and not self.is_empty)
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


def _ignore_joined() -> None:
    """Call no channel: it has been closed."""
