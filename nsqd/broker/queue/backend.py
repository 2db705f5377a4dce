"""Where a queue puts what memory does not hold: a DiskQueue with its fsync schedule, or nowhere.

Appends and reads happen on the loop (2 us against 67 us through a thread), syncs never do: they are
prepared here, run in a thread and completed here. Emptying and deleting are rare, and done on the
loop with all they need: the files, one fsync of the directory, and a sync under way that must end.

Group commit: where publishes wait for their sync (`--sync-every=1`), one starts at the end of the
loop turn and covers all that was written in it; what comes while it runs is covered by the next. It
makes the records durable and nothing else, which is one fsync; the read position follows within
`PROMPT_METADATA_S`.
"""

import errno
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from diskqueue import DiskQueue, SyncJob, layout
from diskqueue.envelope import HEADER_BYTES
from nsqd.broker.histogram import Histogram
from nsqd.broker.queue.batch import MixedBatch
from nsqd.broker.queue.due_log import DueLog
from nsqd.broker.queue.piece import Origin, Piece
from nsqd.broker.queue.receipt import Receipt, Receipts
from nsqd.broker.scheduler import Scheduler, Timer

logger = logging.getLogger(__name__)

MAX_STORED_BYTES = 2**31 - 1
# A block that could not be read so many times, a second apart, is taken for lost.
GIVE_UP_COUNT = 10
# With --sync-every=1 finished messages are noted on disk this soon: not at each FIN, which would
# take the disk from the publishes that wait for it.
PROMPT_METADATA_S = 0.1
_NO_TIMES: Mapping[bytes, int] = {}


class Backend(Protocol):
    """The disk part of a message queue."""

    @property
    def unread_count(self) -> int:
        """How many records are waiting to be read."""

    @property
    def unread_bytes(self) -> int:
        """How large they are on disk."""

    @property
    def outstanding_count(self) -> int:
        """How many records have been read but not committed."""

    def append(self, data: bytes, lengths: Sequence[int], *, keep: bool) -> int | None:
        """Append records; with `keep`, mark them read at once and return the first one's ordinal.

        Raises:
            OSError: nothing has been appended.
        """

    def read(self, max_records: int, max_bytes: int) -> Piece | None:
        """Read the next records, or None if there are none."""

    def undo_append(self, lengths: Sequence[int]) -> None:
        """Take back the last append, of which nobody has been told yet."""

    def commit(self, ordinals: Iterable[int]) -> None:
        """Forget records for good."""

    @property
    def due_times(self) -> Mapping[bytes, int]:
        """When the messages among the unread records are due that are not to be delivered yet."""

    def note_due(self, ids: Sequence[bytes], due_ns: int, *, are_unread: bool) -> None:
        """Remember across a restart when messages are due that are or will be on disk."""

    def take_due_time(self, message_id: bytes) -> int:
        """Return when a message that has just been read is due, 0 if it always was."""

    def replace_due_times(self, due_times: Mapping[bytes, int]) -> None:
        """Remember these due times, and what has been noted and is not past, before a close.

        Raises:
            OSError: they are not all remembered.
        """

    def leave_trace(self) -> None:
        """Leave a file by which a new queue without records is found after a crash."""

    def empty(self) -> None:
        """Forget all records."""

    def free_room(self) -> None:
        """Have files removed that hold finished records only."""

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
        receipts: Receipts | None = None,
        on_repeat: Callable[[str, OSError | None], object] | None = None,
    ) -> None:
        """Args:
        on_write: told how each append ended: the daemon's health.
        on_repeat: told how a sync or a read ended that failed, or had failed before; on_write is,
            if this is not given.
        sync_times: gets the duration of each sync in seconds.
        receipts: told of each append; what it hands out is settled here.
        """
        self._queue = DiskQueue(
            settings.data_path,
            name,
            max_bytes_per_file=settings.max_bytes_per_file,
            max_record_bytes=settings.max_msg_size + HEADER_BYTES,
            # Messages were checked when they were published, under the limit of that day.
            max_append_bytes=MAX_STORED_BYTES,
            holds_messages=True,
        )
        self._name = name
        self._data_path = os.fspath(settings.data_path)
        self._scheduler = scheduler
        now_ns = scheduler.steady_time_ns()
        self._due_log = DueLog(settings.data_path, name, now_ns, self._find_step(now_ns))
        self._on_write = on_write
        self._on_repeat = on_repeat
        self._sync_times = sync_times
        self._receipts = receipts or Receipts(needs_sync=False)
        self._is_prompt = self._receipts.needs_sync
        self._sync_every = settings.sync_every
        self._sync_timeout_s = settings.sync_timeout_s
        if self._is_prompt:
            self._sync_timeout_s = min(settings.sync_timeout_s, PROMPT_METADATA_S)
        self._sync_started = 0.0
        self._timer: Timer | None = None
        self._job: SyncJob | None = None
        self._is_start_scheduled = False
        self._wants_metadata = False
        self._has_sync_failed = False  # then the next one waits for the timer
        self._has_metadata_failed = False  # and a sync of records alone does not make up for that
        self._failed_read_count = 0  # since the last that succeeded
        self._is_closed = False
        # Appends are numbered, so that a receipt waits for a sync that covers its own.
        self._append_number = 0
        self._covered_number = 0  # by the sync under way, or the last one
        self._waiting: deque[tuple[int, Receipt]] = deque()

    @property
    def queue(self) -> DiskQueue:
        """The queue itself, for statistics."""
        return self._queue

    @property
    def unread_count(self) -> int:
        """How many records are waiting to be read."""
        return self._queue.depth

    @property
    def unread_bytes(self) -> int:
        """How large they are on disk."""
        return self._queue.unread_bytes

    @property
    def outstanding_count(self) -> int:
        """How many records have been read but not committed."""
        return self._queue.outstanding_count

    @property
    def due_times(self) -> Mapping[bytes, int]:
        """When the messages among the unread records are due that are not to be delivered yet."""
        return self._due_log.unread

    def append(self, data: bytes, lengths: Sequence[int], *, keep: bool) -> int | None:
        """Append records; with `keep`, mark them read and return the first one's ordinal."""
        try:
            self._queue.append(data, lengths)
        except OSError as error:
            self._on_write(error)
            raise
        self._on_write(None)
        first = self._queue.advance(lengths) if keep else None
        self._append_number += 1
        self._receipts.note(self)
        self._changed()
        return first

    def undo_append(self, lengths: Sequence[int]) -> None:
        """Take back the last append, of which nobody has been told yet."""
        self._queue.undo_append(lengths)

    def add_receipt(self, receipt: Receipt) -> None:
        """Settle the receipt when what is written now has been synced."""
        self._waiting.append((self._append_number, receipt))
        if self._is_prompt:
            self._start_soon()

    def read(self, max_records: int, max_bytes: int) -> Piece | None:
        """Read the next records, or None if there are none."""
        try:
            records = self._queue.read(max_records, max_bytes)
        except OSError as error:
            self._failed_read_count += 1
            self._tell("read", error)
            if error.errno == errno.EIO and self._failed_read_count % GIVE_UP_COUNT == 0:
                self._queue.skip_unreadable()
            raise
        if self._failed_read_count:
            self._failed_read_count = 0
            self._tell("read", None)
        if records is None:
            self._changed()  # what was left may have been quarantined, which wants a sync
            return None
        batch = MixedBatch.from_records(records.data, records.starts, records.ends)
        count = len(batch.bodies)
        ordinals = range(records.first, records.first + count)
        return Piece(batch, 0, count, Origin.WRITTEN, ordinals)

    def commit(self, ordinals: Iterable[int]) -> None:
        """Forget records for good."""
        self._queue.commit(ordinals)
        self._changed()

    def note_due(self, ids: Sequence[bytes], due_ns: int, *, are_unread: bool) -> None:
        """Remember when messages are due; if that fails, a crash brings them early."""
        now_ns = self._scheduler.steady_time_ns()
        step_ns = self._find_step(now_ns)
        try:
            self._due_log.add(ids, due_ns, now_ns, are_unread=are_unread, step_ns=step_ns)
        except OSError as error:
            logger.error("DISKQUEUE(%s): failed to note due times - %s", self._name, error)  # noqa: TRY400 - no traceback
            self._on_write(error)

    def take_due_time(self, message_id: bytes) -> int:
        """Return when a message that has just been read is due, 0 if it always was."""
        return self._due_log.take(message_id)

    def replace_due_times(self, due_times: Mapping[bytes, int]) -> None:
        """Remember these due times, and what has been noted and is not past, before a close."""
        now_ns = self._scheduler.steady_time_ns()
        self._due_log.replace(due_times, now_ns, self._find_step(now_ns))

    def _find_step(self, now_ns: int) -> int:
        """How far the wall clock has been set ahead since the start."""
        return self._scheduler.wall_time_ns() - now_ns

    def leave_trace(self) -> None:
        """Leave a file by which a new queue without records is found after a crash."""
        path = layout.metadata_path(self._data_path, self._name)
        if self._queue.disk_bytes or os.path.exists(path):
            return
        number = self._queue.write_number
        positions = layout.Metadata(0, number, 0, number, 0)
        try:
            layout.write_atomically(path, layout.format_metadata(positions))
        except OSError as error:
            logger.error("DISKQUEUE(%s): failed to leave a trace - %s", self._name, error)  # noqa: TRY400 - no traceback
            self._on_write(error)

    def empty(self) -> None:
        """Forget all records."""
        try:
            self._due_log.remove()
        finally:
            try:
                self._queue.empty()
            finally:
                self._settle(self._append_number, None)  # nothing is left to be synced
                self._changed()

    def free_room(self) -> None:
        """Have files removed that hold finished records only, if there are any."""
        queue = self._queue
        queue.wants_room = True
        if not queue.depth and not queue.outstanding_count and queue.disk_bytes:
            self._changed()

    def close(self) -> None:
        """Make everything durable and let go of the files."""
        self.stop()
        try:
            self._due_log.close()
        finally:
            self._queue.close()

    def delete(self) -> None:
        """Remove the files."""
        self.stop()
        for verb in ("sync", "read"):
            self._tell(verb, None)
        try:
            self._due_log.remove()
        finally:
            try:
                self._queue.delete()
            finally:
                self._settle(self._append_number, None)

    def stop(self) -> None:
        """Sync no more by itself."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _changed(self) -> None:
        if self._job is not None or self._is_start_scheduled or self._is_closed:
            return  # looked at again when it is done, or never
        is_due = self._queue.unsynced_count >= self._sync_every and not self._is_prompt
        if is_due and not self._has_sync_failed:
            self._wants_metadata = True
            self._start_soon()
        elif self._timer is None:
            when = self._scheduler.time() + self._sync_timeout_s
            self._timer = self._scheduler.call_at(when, self._sync)

    def _sync(self) -> None:
        self._timer = None
        self._wants_metadata = True
        self._start()

    def _start_soon(self) -> None:
        """Begin a sync at the end of the turn, so that it covers all of it."""
        if self._job is None and not self._is_start_scheduled:
            self._is_start_scheduled = True
            self._scheduler.call_soon(self._start)

    def _start(self) -> None:
        self._is_start_scheduled = False
        if self._job is not None or self._is_closed:
            return
        with_metadata, self._wants_metadata = self._wants_metadata, False
        if with_metadata and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._covered_number = self._append_number
        try:
            self._job = self._queue.prepare_sync(with_metadata=with_metadata)
        except OSError as error:
            self._settle(self._covered_number, error)
            self._sync_failed(error)
            return
        if self._job is None:
            self._settle(self._covered_number, None)
            if self._has_sync_failed:
                self._sync_succeeded()  # what it was about has been emptied or undone
            return
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
        self._has_metadata_failed |= error is not None and job.are_segments_durable
        # A new file is found after a power cut only if its directory was synced too.
        are_records_safe = job.are_segments_durable and not job.has_new_files
        self._settle(self._covered_number, None if are_records_safe else error)
        if error is not None:
            self._sync_failed(error)
        elif self._has_sync_failed and (job.metadata is not None or not self._has_metadata_failed):
            self._sync_succeeded()
        if self._wants_metadata or (self._is_prompt and self._waiting):
            self._start()
        elif self._queue.unsynced_count:
            self._changed()

    def _settle(self, number: int, error: OSError | None) -> None:
        """Tell those who wait for appends up to `number`."""
        while self._waiting and self._waiting[0][0] <= number:
            self._waiting.popleft()[1].settle(error)

    def _sync_failed(self, error: OSError) -> None:
        """Tell, and try again after the timeout: at once would only fail again, and again."""
        logger.error("DISKQUEUE(%s): failed to sync - %s", self._name, error)
        self._has_sync_failed = True
        self._tell("sync", error)
        self._changed()

    def _sync_succeeded(self) -> None:
        self._has_sync_failed = self._has_metadata_failed = False
        self._tell("sync", None)

    def _tell(self, verb: str, error: OSError | None) -> None:
        if self._on_repeat is not None:
            self._on_repeat(f"{verb} {self._name}", error)
        else:
            self._on_write(error)


class NullBackend:
    """The backend of what is ephemeral: takes everything and has nothing."""

    unread_count = 0
    unread_bytes = 0
    outstanding_count = 0
    due_times: Mapping[bytes, int] = _NO_TIMES

    def append(self, data: bytes, lengths: Sequence[int], *, keep: bool) -> int | None:
        """Drop the records."""

    def read(self, max_records: int, max_bytes: int) -> Piece | None:
        """Return None: nothing is ever there."""

    def undo_append(self, lengths: Sequence[int]) -> None:
        """Nothing has been appended."""

    def commit(self, ordinals: Iterable[int]) -> None:
        """Nothing is ever outstanding."""

    def note_due(self, ids: Sequence[bytes], due_ns: int, *, are_unread: bool) -> None:
        """Nothing comes back after a restart."""

    def take_due_time(self, message_id: bytes) -> int:
        """Nothing is ever read."""
        return 0

    def replace_due_times(self, due_times: Mapping[bytes, int]) -> None:
        """Nothing comes back after a restart."""

    def leave_trace(self) -> None:
        """Nothing comes back after a restart."""

    def empty(self) -> None:
        """Nothing is there."""

    def free_room(self) -> None:
        """Nothing takes room."""

    def stop(self) -> None:
        """Nothing is going on."""

    def close(self) -> None:
        """Nothing is open."""

    def delete(self) -> None:
        """Nothing is on disk."""
