"""Leases: the files of a snapshot stay readable until its lease ends, even if consumed.

A lease ends when it is released, when its time is up, when the disk runs short, and with the
process. Its files are let go in a thread: to free the room of large files takes the disk a while.
"""

import logging
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from diskqueue.views.pins import Pin, Pins
from nsqd.analytics.spill import Spill
from nsqd.broker.scheduler import Scheduler, Timer

logger = logging.getLogger(__name__)

MAX_FILES = 65_536

_ID_BYTES = 16


class LeaseError(Exception):
    """A lease that cannot be had: the code of the answer, and its status."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True)
class LeasedFile:
    """A part of a file: bytes 0 to `size_bytes` for readers."""

    open: Callable[[], int]
    size_bytes: int
    # Where it begins in the file.
    offset: int = 0
    # Of a segment: opens its checksum file, and tells whether the two have the same mark.
    open_checksums: Callable[[], tuple[int, bool]] | None = None


@dataclass(slots=True, eq=False)
class Lease:
    """The files of one snapshot."""

    remote: str
    spill: Spill
    id: str = field(default_factory=lambda: secrets.token_hex(_ID_BYTES))
    files: dict[str, LeasedFile] = field(default_factory=dict)
    queue_count: int = 0
    # On the clock of the loop.
    expires: float = 0.0
    # Of the files, held on disk.
    pinned_bytes: int = 0
    pins: list[tuple[Pins, Pin]] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        """How much room on disk it may hold."""
        return self.pinned_bytes + self.spill.size_bytes

    def add_pin(self, name: str, pins: Pins, pin: Pin, size_bytes: int) -> None:
        """Let readers have a segment."""
        self.pins.append((pins, pin))
        self.pinned_bytes += size_bytes
        self.files[name] = LeasedFile(
            partial(pins.open, pin), size_bytes, open_checksums=partial(pins.open_checksums, pin)
        )

    def add_checksums(self, size_bytes: int) -> None:
        """Note the size of checksum files, which are held with their segments."""
        self.pinned_bytes += size_bytes

    def add_part(self, name: str, offset: int, size_bytes: int) -> None:
        """Let readers have a part of the spill, which may be empty."""
        open_file = self.spill.open if size_bytes else _open_nothing
        self.files[name] = LeasedFile(open_file, size_bytes, offset)

    def close(self) -> None:
        """Let go of all files; block. Readers that have opened one still have it."""
        for pins, pin in self.pins:
            pins.release(pin)
        self.pins.clear()
        self.spill.close()


class Leases:
    """The leases of this node, within bounds of number and bytes."""

    def __init__(self, scheduler: Scheduler, *, max_count: int, max_bytes: int) -> None:
        self._scheduler = scheduler
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._leases: dict[str, Lease] = {}
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._leases)

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._leases.values())

    def check_count(self) -> None:
        """Check that there may be one more.

        Raises:
            LeaseError: there are too many.
        """
        if len(self._leases) >= self._max_count:
            raise LeaseError(429, "TOO_MANY_LEASES")

    def check_size(self, draft: Lease) -> None:
        """Check that a lease that is being made may hold its bytes.

        Raises:
            LeaseError: it is too large, with the others.
        """
        held_bytes = sum(lease.size_bytes for lease in self._leases.values())
        if held_bytes + draft.size_bytes > self._max_bytes or len(draft.files) > MAX_FILES:
            raise LeaseError(413, "SNAPSHOT_TOO_LARGE")

    def add(self, lease: Lease, seconds: float) -> None:
        """Begin a lease.

        Raises:
            LeaseError: there are too many, or they hold too much.
        """
        self.check_count()
        self.check_size(lease)
        self._leases[lease.id] = lease
        self.renew(lease, seconds)

    def find(self, lease_id: str) -> Lease | None:
        """Return the lease of that id, if it has not ended."""
        return self._leases.get(lease_id)

    def renew(self, lease: Lease, seconds: float) -> None:
        """Have a lease end so many seconds from now."""
        lease.expires = self._scheduler.time() + seconds
        self._arm()

    def seconds_left(self, lease: Lease) -> float:
        """Return how long a lease still lasts."""
        return max(lease.expires - self._scheduler.time(), 0.0)

    def expires_ns(self, lease: Lease) -> int:
        """Return when a lease ends, by the wall clock."""
        return self._scheduler.wall_time_ns() + round(self.seconds_left(lease) * 1e9)

    def release(self, lease_id: str) -> None:
        """End a lease; one that has ended is left alone."""
        lease = self._leases.pop(lease_id, None)
        if lease is not None:
            self.discard(lease)

    def end_all(self, reason: str) -> None:
        """End all leases, so that the room of their files is free."""
        if self._leases:
            logger.warning("ANALYTICS: all %d leases end, %s", len(self._leases), reason)
        for lease_id in list(self._leases):
            self.release(lease_id)

    def close(self) -> None:
        """End all leases, here and now: the process ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for lease in self._leases.values():
            lease.close()
        self._leases.clear()

    def discard(self, lease: Lease) -> None:
        """Have a thread let go of the files of a lease that has ended, or never began."""
        self._scheduler.run_in_thread(lease.close, _ignore)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._leases:
            when = min(lease.expires for lease in self._leases.values())
            self._timer = self._scheduler.call_at(when, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._scheduler.time()
        for lease in list(self._leases.values()):
            if lease.expires <= now:
                logger.info("ANALYTICS: lease %s of %s has expired", lease.id, lease.remote)
                self.release(lease.id)
        self._arm()


def _open_nothing() -> int:
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def _ignore(error: OSError | None) -> None:
    """Go on: the kernel has closed a file even if it reports an error."""
