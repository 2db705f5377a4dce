"""Receipts: the writes and syncs that a publish waits for before it is acknowledged.

A publish writes to the disk queue of each channel. Each queue syncs by itself, in a thread and for
many publishes at a time, so a receipt counts the queues whose sync has not ended yet, and the write
itself if that is not done at once. Its callback is called once, with the error if one of them
failed.
"""

from collections.abc import Callable
from typing import Protocol


class Receipt:
    """Done when everything that it waits for has ended."""

    __slots__ = ("_missing_count", "_on_done", "error", "holds_publisher")

    def __init__(self, missing_count: int) -> None:
        self._missing_count = missing_count
        self.error: Exception | None = None  # the first one
        # The publisher may send no more before it is done: its next publishes would overtake this
        # one, or fill the memory.
        self.holds_publisher = False
        self._on_done: Callable[[Exception | None], object] | None = None

    @property
    def is_done(self) -> bool:
        """Whether all of them have ended."""
        return not self._missing_count

    def settle(self, error: Exception | None) -> None:
        """Note that one of them has ended."""
        assert self._missing_count > 0
        self._missing_count -= 1
        self.error = self.error or error
        if not self._missing_count and self._on_done is not None:
            # The callback may hold this receipt; drop it, as the garbage collector is off.
            on_done, self._on_done = self._on_done, None
            on_done(self.error)

    def when_done(self, callback: Callable[[Exception | None], object]) -> None:
        """Call once with the first error or None: now, or when the last has ended."""
        if self._missing_count:
            assert self._on_done is None, "one callback only"
            self._on_done = callback
        else:
            callback(self.error)

    def include(self, other: "Receipt") -> None:
        """Wait for another receipt as well."""
        self._missing_count += 1
        other.when_done(self.settle)


class Written(Protocol):
    """A disk queue that a publish was written to."""

    def add_receipt(self, receipt: Receipt) -> None:
        """Settle the receipt when everything written up to now has been synced."""


class Receipts:
    """Notes the disk queues that a publish is written to, and makes its receipt."""

    def __init__(self, *, needs_sync: bool) -> None:
        """Args: needs_sync: publishes are acknowledged only when they are durable."""
        self.needs_sync = needs_sync
        self._written: dict[Written, None] | None = None  # None outside of begin and make

    def begin(self) -> None:
        """Note the queues that are written to from here on, for one receipt."""
        self._written = {}

    def note(self, queue: Written) -> None:
        """Note that a queue has been written to."""
        if self._written is not None:
            self._written[queue] = None

    def make(self) -> Receipt | None:
        """Return the receipt for the writes since `begin`, None if there were none."""
        written, self._written = self._written, None
        if not written:
            return None
        receipt = Receipt(len(written))
        for queue in written:
            queue.add_receipt(receipt)
        return receipt
