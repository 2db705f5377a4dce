"""Figures of the client as snapshots, its events through an Observer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ProducerStats:
    """Figures of a producer since its start; `pending` is now."""

    published: int = 0  # messages that an nsqd has accepted
    resent: int = 0  # messages that were sent again, and so may have arrived twice
    refused: int = 0  # error frames
    connects: int = 0
    nodes: frozenset[str] = frozenset()  # the nsqds that have accepted messages
    pending: int = 0
    pending_bytes: int = 0


@dataclass(slots=True)
class ConsumerStats:
    """Figures of a consumer since its start; the last five are now."""

    received: int = 0
    finished: int = 0
    requeued: int = 0
    touched: int = 0
    late: int = 0  # answers that nsqd refused, as the message had timed out
    expired: int = 0  # messages whose time was over before they were handed out
    given_up: int = 0
    connects: int = 0
    connections: int = 0
    in_flight: int = 0
    buffered: int = 0
    max_in_flight: int = 0
    backoff_level: int = 0


class Observer:
    """Events; override those of interest. No method may raise, and none gets a body or secret."""

    def connected(self, nsqd: str) -> None:
        """A connection is ready."""

    def disconnected(self, nsqd: str, reason: str) -> None:
        """A connection has ended; the client connects again by itself."""

    def connect_failed(self, nsqd: str, error: Exception) -> None:
        """An attempt to connect or to subscribe failed; the client tries again by itself."""

    def refused(self, topic: str, text: str) -> None:
        """A publish was refused for the moment, and is tried again."""

    def late_answer(self, nsqd: str, message_id: bytes, text: str) -> None:
        """A FIN, REQ or TOUCH came too late: the message was delivered again."""

    def gave_up(self, message_id: bytes, attempts: int, size: int) -> None:
        """A message was delivered more than max_attempts times."""

    def backed_off(self, level: int, pause_s: float) -> None:
        """Handlers failed: nothing is received for a while; level 0 is the end of it."""

    def discovery_failed(self, lookupd: str, error: Exception) -> None:
        """An nsqlookupd gave no usable answer."""
