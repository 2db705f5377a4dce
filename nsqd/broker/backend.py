"""Where a queue puts what memory does not hold: a DiskQueue with its fsync schedule, or nowhere.

Appends and reads happen on the loop (2 us against 67 us through a thread), syncs never do: they are
prepared here, run in a thread and completed here. Emptying and deleting are rare, and done on the
loop with all they need: the files, one fsync of the directory, and a sync under way that must end.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from diskqueue import DiskQueue, SyncJob
from diskqueue.envelope import HEADER_BYTES
from nsqd.broker.batch import StoredBatch
from nsqd.broker.histogram import Histogram
from nsqd.broker.scheduler import Scheduler, Timer

logger = logging.getLogger(__name__)

MAX_STORED_BYTES = 2**31 - 1


class Backend(Protocol):
    """The disk part of a message queue."""

    @property
    def unread_count(self) -> int:
        """How many records are waiting to be read."""

    @property
    def outstanding_count(self) -> int:
        """How many records have been read but not committed."""

    def append(self, data: bytes, lengths: Sequence[int], *, keep: bool) -> int | None:
        """Append records; with `keep`, mark them read at once and return the first one's ordinal.

        Raises:
            OSError: nothing has been appended.
        """

    def read(self, max_records: int, max_bytes: int) -> StoredBatch | None:
        """Read the next records, or None if there are none."""

    def commit(self, ordinals: Iterable[int]) -> None:
        """Forget records for good."""

    def empty(self) -> None:
        """Forget all records."""

    def stop(self) -> None:
        """Sync no more by itself: it is going to be closed."""

    def close(self) -> None:
        """Make everything durable and let go of the files; blocks, and may run in any thread.

        Raises:
            OSError: it may not be durable.
        """

    def delete(self) -> None:
        """Remove the files."""


@dataclass(frozen=True, slots=True)
class DiskSettings:
    """How disk queues are kept: the values of the options, passed once."""

    data_path: Path
    max_bytes_per_file: int
    max_msg_size: int
    sync_every: int
    sync_timeout_s: float


class DiskBackend:
    """A DiskQueue that syncs itself after `sync_every` records or `sync_timeout_s`."""

    def __init__(
        self,
        name: str,
        settings: DiskSettings,
        scheduler: Scheduler,
        on_write: Callable[[OSError | None], object],
        sync_times: Histogram | None = None,
    ) -> None:
        """Args:
        on_write: told how each write to disk ended: the daemon's health.
        sync_times: gets the duration of each sync in seconds.
        """
        self._queue = DiskQueue(
            settings.data_path,
            name,
            max_bytes_per_file=settings.max_bytes_per_file,
            max_record_bytes=settings.max_msg_size + HEADER_BYTES,
            # Messages were checked when they were published, under the limit of that day.
            max_append_bytes=MAX_STORED_BYTES,
        )
        self._name = name
        self._sync_every = settings.sync_every
        self._sync_timeout_s = settings.sync_timeout_s
        self._scheduler = scheduler
        self._on_write = on_write
        self._sync_times = sync_times
        self._sync_started = 0.0
        self._timer: Timer | None = None
        self._job: SyncJob | None = None
        self._has_sync_failed = False  # then the next one waits for the timer
        self._is_closed = False

    @property
    def queue(self) -> DiskQueue:
        """The queue itself, for statistics."""
        return self._queue

    @property
    def unread_count(self) -> int:
        """How many records are waiting to be read."""
        return self._queue.depth

    @property
    def outstanding_count(self) -> int:
        """How many records have been read but not committed."""
        return self._queue.outstanding_count

    def append(self, data: bytes, lengths: Sequence[int], *, keep: bool) -> int | None:
        """Append records; with `keep`, mark them read and return the first one's ordinal."""
        try:
            self._queue.append(data, lengths)
        except OSError as error:
            self._on_write(error)
            raise
        self._on_write(None)
        first = self._queue.advance(lengths) if keep else None
        self._changed()
        return first

    def read(self, max_records: int, max_bytes: int) -> StoredBatch | None:
        """Read the next records, or None if there are none."""
        records = self._queue.read(max_records, max_bytes)
        if records is None:
            self._changed()  # what was left may have been quarantined, which wants a sync
            return None
        return StoredBatch.from_records(records.data, records.starts, records.ends, records.first)

    def commit(self, ordinals: Iterable[int]) -> None:
        """Forget records for good."""
        self._queue.commit(ordinals)
        self._changed()

    def empty(self) -> None:
        """Forget all records."""
        self._queue.empty()
        self._changed()

    def close(self) -> None:
        """Make everything durable and let go of the files."""
        self.stop()
        self._queue.close()

    def delete(self) -> None:
        """Remove the files."""
        self.stop()
        self._queue.delete()

    def stop(self) -> None:
        """Sync no more by itself."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _changed(self) -> None:
        if self._job is not None:
            return  # looked at again when it is done
        if self._queue.unsynced_count >= self._sync_every and not self._has_sync_failed:
            self._sync()
        elif self._timer is None:
            when = self._scheduler.time() + self._sync_timeout_s
            self._timer = self._scheduler.call_at(when, self._sync)

    def _sync(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._job is None and not self._is_closed:
            try:
                self._job = self._queue.prepare_sync()
            except OSError as error:
                self._sync_failed(error)
                return
            if self._job is not None:
                self._sync_started = time.perf_counter()
                self._scheduler.run_in_thread(self._job.run, self._synced)

    def _synced(self, error: OSError | None) -> None:
        job, self._job = self._job, None
        assert job is not None
        if self._sync_times is not None:
            self._sync_times.observe(time.perf_counter() - self._sync_started)
        if self._is_closed:
            return  # close() has waited for the job and synced again
        self._queue.complete_sync(job, error)
        if error is not None:
            self._sync_failed(error)
            return
        if self._has_sync_failed:
            self._has_sync_failed = False
            self._on_write(None)
        if self._queue.unsynced_count:
            self._changed()

    def _sync_failed(self, error: OSError) -> None:
        """Tell, and try again after the timeout: at once would only fail again, and again."""
        logger.error("DISKQUEUE(%s): failed to sync - %s", self._name, error)
        self._has_sync_failed = True
        self._on_write(error)
        self._changed()


class NullBackend:
    """The backend of what is ephemeral: takes everything and has nothing."""

    unread_count = 0
    outstanding_count = 0

    def append(self, data: bytes, lengths: Sequence[int], *, keep: bool) -> int | None:
        """Drop the records."""

    def read(self, max_records: int, max_bytes: int) -> StoredBatch | None:
        """Return None: nothing is ever there."""

    def commit(self, ordinals: Iterable[int]) -> None:
        """Nothing is ever outstanding."""

    def empty(self) -> None:
        """Nothing is there."""

    def stop(self) -> None:
        """Nothing is going on."""

    def close(self) -> None:
        """Nothing is open."""

    def delete(self) -> None:
        """Nothing is on disk."""
