"""Losses: what a queue has not taken or not delivered because of its limits."""

from enum import Enum


class DropReason(Enum):
    """Which limit a message has fallen victim to."""

    DEPTH = "depth"
    TTL = "ttl"
    ATTEMPTS = "attempts"


class Losses:
    """Counts of messages since the start of the process; each is in one of them."""

    __slots__ = ("dead_lettered_count", "dropped_counts", "rejected_count")

    def __init__(self) -> None:
        self.dropped_counts = dict.fromkeys(DropReason, 0)
        self.dead_lettered_count = 0
        self.rejected_count = 0  # publishes, to a topic: never taken, so not lost by us

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
