"""RecordingSink: the connection of a consumer, of which a test sees what it was given."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import unpack


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message as it would be on the wire."""

    message_id: bytes
    timestamp_ns: int
    attempts: int
    body: bytes


class RecordingSink:
    """Keeps what is delivered to it, write by write."""

    def __init__(self) -> None:
        self.writes: list[list[Delivery]] = []
        self.is_closed = False
        # Called after each delivery, as a transport may pause its protocol from within a write.
        self.on_deliver: Callable[[], object] | None = None

    def deliver(self, heads: list[bytes], ids: list[bytes], bodies: Sequence[bytes]) -> None:
        """Take messages."""
        assert not self.is_closed, "delivered to a closed connection"
        assert len(heads) == len(ids) == len(bodies) > 0
        write = []
        for head, message_id, body in zip(heads, ids, bodies, strict=True):
            timestamp_ns, attempts = unpack(">qH", head)
            write.append(Delivery(message_id, timestamp_ns, attempts, body))
        self.writes.append(write)
        if self.on_deliver is not None:
            self.on_deliver()

    def close(self) -> None:
        """Note that the channel is gone."""
        self.is_closed = True

    @property
    def deliveries(self) -> list[Delivery]:
        """All messages, in order."""
        return [delivery for write in self.writes for delivery in write]

    @property
    def bodies(self) -> list[bytes]:
        """The bodies of all messages, in order."""
        return [delivery.body for delivery in self.deliveries]

    @property
    def ids(self) -> list[bytes]:
        """The ids of all messages, in order."""
        return [delivery.message_id for delivery in self.deliveries]

    def take(self) -> list[Delivery]:
        """Return all messages and forget them."""
        deliveries = self.deliveries
        self.writes.clear()
        return deliveries
