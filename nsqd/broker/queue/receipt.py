"""Receipts: what has to be on disk for good before a publish may be acknowledged.

A publish writes to a handful of disk queues, one for each channel. Each syncs by itself, in threads
and many publishes at a time, so a receipt counts the queues whose sync is still to come. Those who
wait for it are told once, with the error if a sync failed that covered the publish.
"""

from collections.abc import Callable
from typing import Protocol


class Receipt:
    """Done when every sync that it waits for has ended."""

    __slots__ = ("_missing_count", "_on_done", "error")

    def __init__(self, missing_count: int) -> None:
        self._missing_count = missing_count
        self.error: OSError | None = None  # the first one
        self._on_done: Callable[[OSError | None], object] | None = None

    @property
    def is_done(self) -> bool:
        """Whether nothing is waited for any more."""
        return not self._missing_count

    def settle(self, error: OSError | None) -> None:
        """One of the syncs has ended."""
        assert self._missing_count > 0
        self._missing_count -= 1
        self.error = self.error or error
        if not self._missing_count and self._on_done is not None:
            on_done, self._on_done = self._on_done, None  # it knows us: no cycle may stay
            on_done(self.error)

    def when_done(self, callback: Callable[[OSError | None], object]) -> None:
        """Call once with the first error or None: now, or when the last sync has ended."""
        if self._missing_count:
            assert self._on_done is None, "somebody waits already"
            self._on_done = callback
        else:
            callback(self.error)

    def include(self, other: "Receipt") -> None:
        """Wait for another receipt as well."""
        self._missing_count += 1
        other.when_done(self.settle)


class Written(Protocol):
    """A queue that has been written to and will be synced."""

    def add_receipt(self, receipt: Receipt) -> None:
        """Settle the receipt when what is written now has been synced."""


class Receipts:
    """Finds out which queues a publish writes to, and makes its receipt."""

    def __init__(self, *, needs_sync: bool) -> None:
        """Args: needs_sync: publishes are acknowledged only when they are durable."""
        self.needs_sync = needs_sync
        self._written: dict[Written, None] | None = None  # not asked for

    def begin(self) -> None:
        """What is written from here on belongs to one receipt."""
        self._written = {}

    def note(self, queue: Written) -> None:
        """A queue has been written to."""
        if self._written is not None:
            self._written[queue] = None

    def make(self) -> Receipt | None:
        """Return the receipt for what was written since `begin`, None if that is nothing."""
        written, self._written = self._written, None
        if not written:
            return None
        receipt = Receipt(len(written))
        for queue in written:
            queue.add_receipt(receipt)
        return receipt
