"""Consumer: what a channel knows of one subscribed client."""

from collections.abc import Sequence
from enum import IntEnum
from typing import Protocol

from nsqd.broker.in_flight import InFlight


class Sink(Protocol):
    """The connection behind a consumer."""

    def deliver(self, heads: list[bytes], ids: list[bytes], bodies: Sequence[bytes]) -> None:
        """Send messages, given as columns: timestamp with attempts, id, body."""

    def close(self) -> None:
        """Close the connection: the channel is gone."""


class _Gone:
    """The sink of a consumer that has left, so that consumer and connection are no cycle."""

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
    """One subscription: how much it wants, what it holds, and how it is served."""

    __slots__ = (
        "finish_count",
        "in_flight",
        "is_held",
        "is_queued",
        "is_writable",
        "locality",
        "message_count",
        "msg_timeout_s",
        "ready_count",
        "requeue_count",
        "sample_rate",
        "sink",
        "was_full",
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
        self.is_queued = False  # stands in the channel's queue of ready consumers
        self.is_held = False  # waits for more FINs before it is served again
        self.was_full = False  # the last delivery filled it up to its ready_count
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0

    @property
    def capacity(self) -> int:
        """How many more messages it may be given now."""
        if not self.is_writable:
            return 0
        return self.ready_count - len(self.in_flight)
