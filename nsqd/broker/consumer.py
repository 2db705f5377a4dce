"""Consumer: one subscribed client as its channel sees it; Consumers: all of those of a channel.

A consumer that has left may still own messages: they stay in flight until their deadlines pass, as
in NSQ, and come back to the channel then.
"""

import heapq
from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import chain
from typing import Protocol

from nsqd.broker.in_flight import Entry, InFlight
from nsqd.broker.queue.batch import Message

NOT_IN_FLIGHT = "ID not in flight"
NOT_OWNER = "client does not own message"


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
    ) -> None:
        self.sink = sink
        self.msg_timeout_s = msg_timeout_s
        self.sample_rate = sample_rate
        self.locality = locality
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
        return sum(len(consumer.in_flight) for consumer in self._all())

    def iter_in_flight(self) -> Iterator[tuple[bytes, Entry]]:
        """Give ids and entries of the messages in flight, about in the order of the deadlines."""
        each = (consumer.in_flight.entries.items() for consumer in self._all())
        return heapq.merge(*each, key=_deadline)

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
        [(_, reason)] = self.explain([message_id])
        return reason

    def drop_in_flight(self) -> None:
        """Forget all messages in flight, and with them the consumers that have left."""
        for consumer in self._subscribed:
            consumer.in_flight.clear()
        for consumer in self._departed:
            consumer.in_flight.close()
        self._departed.clear()

    def close(self) -> list[Message]:
        """Disconnect and forget all consumers; return the messages that were in flight."""
        messages: list[Message] = []
        for consumer in self._all():
            messages += consumer.in_flight.close()
        for consumer in list(self._subscribed):
            consumer.sink.close()
            consumer.sink = GONE
        self._subscribed.clear()
        self._departed.clear()
        return messages

    def _all(self) -> Iterator[Consumer]:
        return chain(self._subscribed, self._departed)


def _deadline(item: tuple[bytes, Entry]) -> float:
    return item[1][0]
