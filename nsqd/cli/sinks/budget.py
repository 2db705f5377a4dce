"""ByteBudget: how many messages may be here at a time, so that their bodies fit in memory.

RDY counts messages, whatever their size: 2,500 of a megabyte would fill the memory. A consumer
begins with a few, doubles with each success, and keeps to what fits by the sizes that were seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from nsqd.client import Consumer, Message

_BUDGET_BYTES: Final = 4 << 20
_FIRST_COUNT: Final = 4


class ByteBudget:
    """The max_in_flight of one consumer."""

    def __init__(self, consumer: Consumer, max_in_flight: int) -> None:
        """Args: max_in_flight: the user's limit, never exceeded."""
        self._consumer = consumer
        self._most = max_in_flight
        self._body_bytes = 1.0  # of the larger ones of late
        self._count = 0
        self.restart()

    def restart(self) -> None:
        """Begin again with a few messages."""
        self._set(min(_FIRST_COUNT, self._most))

    def pause(self) -> None:
        """Ask for nothing until `restart`."""
        self._set(0)

    def note(self, messages: Sequence[Message]) -> None:
        """Note the sizes of messages; ask for fewer at once if they are large."""
        largest = max(len(message.body) for message in messages)
        mean = sum(len(message.body) for message in messages) / len(messages)
        # Sizes that were seen are forgotten slowly, as large ones often come again.
        self._body_bytes = max(mean, largest / 8, self._body_bytes * 0.9)
        if self._count > self._room():
            self._set(self._room())

    def grow(self) -> None:
        """Ask for more: the messages asked for are answered."""
        if 0 < self._count < self._room():
            self._set(min(self._count * 2, self._room()))

    def _room(self) -> int:
        return max(1, min(self._most, int(_BUDGET_BYTES / max(self._body_bytes, 1.0))))

    def _set(self, count: int) -> None:
        if count != self._count:
            self._count = count
            self._consumer.set_max_in_flight(count)
