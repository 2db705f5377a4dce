"""Backends: the disk behind the memory of a queue, or none for ephemeral topics and channels.

A `DiskBackend` owns a DiskQueue (records), a DueLog (due times of deferred messages) and a
SyncSchedule (when both become durable). Appends and reads run on the event loop (2 us against 67 us
through a thread), but for large appends and those to a disk that is slow (`aside`, `pace`). Syncs
run in threads. Emptying forgets all records at once, and the sync that makes that durable removes
their files.

A queue that is deleted is emptied in the same way, and is *leaving* until that sync has ended. If a
queue of the same name is made meanwhile, it is this one, which stays. So no thread ever removes
files of one queue while another writes files of the same names.
"""

import errno
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from diskqueue import DiskQueue, layout
from diskqueue.checksums.verifier import ChecksumFailures
from diskqueue.envelope import HEADER_BYTES
from diskqueue.identity import make_identity
from nsqd.broker.disposal import dispose
from nsqd.broker.durations import SyncTimes
from nsqd.broker.queue.aside import AsideAppends
from nsqd.broker.queue.batch import MixedBatch, Origin, Piece
from nsqd.broker.queue.due_log import DueLog
from nsqd.broker.queue.front import NO_FRONT, DiskFront, Front
from nsqd.broker.queue.pace import Pace
from nsqd.broker.queue.receipt import Receipt, Receipts
from nsqd.broker.queue.sync_schedule import SyncRules, SyncSchedule
from nsqd.broker.scheduler import Scheduler, Timer

logger = logging.getLogger(__name__)

MAX_STORED_BYTES = 2**31 - 1
# A block that could not be read so many times, a second apart, is taken for lost.
GIVE_UP_COUNT = 10
_NO_TIMES: Mapping[bytes, int] = {}


class Backend(Protocol):
    """The disk behind a message queue."""

    @property
    def front(self) -> Front:
        """A look at the first unread record."""

    @property
    def unread_count(self) -> int:
        """How many records are waiting to be read."""

    @property
    def unread_bytes(self) -> int:
        """How large the unread records are."""

    @property
    def outstanding_count(self) -> int:
        """How many records have been read but not committed."""

    def append(self, data: bytes, lengths: Sequence[int], *, keep: bool) -> int | None:
        """Append records; with `keep`, mark them read at once and return the first one's ordinal.

        Raises:
            OSError: nothing was appended.
        """

    @property
    def aside(self) -> AsideAppends | None:
        """Makes appends that a thread writes; None if records are dropped."""

    def read(self, max_records: int, max_bytes: int) -> Piece | None:
        """Read the next records, or None if there are none.

        Raises:
            OSError: the disk can't be read.
        """

    def undo_append(self, lengths: Sequence[int]) -> None:
        """Undo the last append, which has not been acknowledged."""

    def commit(self, ordinals: Iterable[int]) -> None:
        """Forget records whose messages are finished."""

    @property
    def due_times(self) -> Mapping[bytes, int]:
        """The due times of the deferred messages among the unread records."""

    def count_early(self, now_ns: int) -> int:
        """Return how many due times there are of unread records that are not due."""

    def note_due(self, ids: Sequence[bytes], due_ns: int, *, are_unread: bool) -> None:
        """Record across a restart when messages are due that are or will be on disk."""

    def pop_due_time(self, message_id: bytes) -> int:
        """Remove the due time of a message that was just read and return it, 0 without one."""

    def replace_due_times(self, due_times: Mapping[bytes, int]) -> None:
        """Record these due times beside the ones recorded before that are not past.

        Raises:
            OSError: not all of them are on disk.
        """

    def leave_trace(self) -> None:
        """Leave a file by which a new queue without records is found after a crash."""

    def empty(self) -> Receipt:
        """Forget all records; the receipt is done when no crash brings them back."""

    def sync(self) -> Receipt:
        """Make everything durable, soon; the receipt is done when that has ended."""

    def free_room(self) -> None:
        """Have files removed that hold finished records only."""

    def stop(self) -> None:
        """Start no sync any more: `close` or `delete` follows."""

    def close(self) -> None:
        """Make everything durable and close the files; block, in any thread.

        Raises:
            OSError: it may not be durable.
        """

    def delete(self) -> Receipt:
        """Forget all records and remove the files; the receipt is done when they are gone."""


@dataclass(frozen=True, slots=True)
class DiskSettings:
    """How disk queues are kept: the values of the options, passed once."""

    data_path: Path
    max_bytes_per_file: int
    max_msg_size: int
    sync_every: int
    sync_timeout_s: float
    # Write checksums beside the records, and look at them.
    has_checksums: bool = False
    # Make all appends on the loop, however long they take.
    is_trusted: bool = False


class Retry:
    """One action that is planned after a delay, or none."""

    def __init__(self, scheduler: Scheduler, delay_s: float) -> None:
        self._scheduler = scheduler
        self._delay_s = delay_s
        self._timer: Timer | None = None

    def plan(self, action: Callable[[], object]) -> None:
        """Do this after the delay, instead of what was planned."""
        self.cancel()
        self._timer = self._scheduler.call_at(self._scheduler.time() + self._delay_s, action)

    def cancel(self) -> None:
        """Do nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class DiskBackend:
    """Records and due times on disk, synced by a schedule of their own."""

    def __init__(
        self,
        name: str,
        settings: DiskSettings,
        scheduler: Scheduler,
        on_write: Callable[[OSError | None], object],
        sync_times: SyncTimes | None = None,
        receipts: Receipts | None = None,
        on_repeat: Callable[[str, OSError | None], object] | None = None,
        files: layout.QueueFiles | None = None,
        leaving: "dict[str, DiskBackend] | None" = None,
        checksum_failures: ChecksumFailures | None = None,
    ) -> None:
        """Args:
        on_write: called with the outcome of each append, for the daemon's health.
        sync_times: is told when each sync begins and ends.
        receipts: notes each append, and makes the receipts that are settled here.
        on_repeat: called with the outcome of a sync or a read that failed, or succeeded after a
            failure; without it, on_write is called.
        files: the files of the queue, if the caller has listed the data path.
        checksum_failures: counts the records that checksums have denied.
        leaving: has the backends that are being deleted, by name; this one adds itself.
        """
        self._leaving = {} if leaving is None else leaving
        self._queue = DiskQueue(
            settings.data_path,
            name,
            max_bytes_per_file=settings.max_bytes_per_file,
            max_record_bytes=settings.max_msg_size + HEADER_BYTES,
            # A message is checked when it is published, by the --max-msg-size of that run.
            max_append_bytes=MAX_STORED_BYTES,
            holds_messages=True,
            stores_generation=True,
            has_checksums=settings.has_checksums,
            checksum_failures=checksum_failures,
            files=files,
        )
        self._name = name
        self._data_path = os.fspath(settings.data_path)
        self._scheduler = scheduler
        now_ns = scheduler.steady_time_ns()
        self.due_log = DueLog(
            *(settings.data_path, name, now_ns, _find_step(self._scheduler, now_ns)),
            has_files=files is None or files.has_due,
        )
        self._on_write = on_write
        # Holds no reference to the backend: the garbage collector is off.
        self._report = partial(_report, name, on_repeat, on_write)
        self._receipts = receipts or Receipts(needs_sync=False)
        rules = SyncRules(
            every_count=settings.sync_every,
            timeout_s=settings.sync_timeout_s,
            is_group_commit=self._receipts.needs_sync,
        )
        # The last deletion, None for a queue that stays.
        self._deletion: Receipt | None = None
        # Tries a deletion again that has failed.
        self._retry = Retry(scheduler, rules.full_sync_delay_s)
        self._schedule = SyncSchedule(
            name,
            self._queue,
            scheduler,
            rules,
            on_outcome=partial(self._report, "sync"),
            sync_times=sync_times,
        )
        self._pace = Pace(scheduler.time, is_trusted=settings.is_trusted)
        self.aside = AsideAppends(self._queue, self._schedule, self._receipts, on_write, self._pace)
        self._failed_read_count = 0  # since the last that succeeded
        self.front = DiskFront(self._queue, self.due_log)

    @property
    def queue(self) -> DiskQueue:
        """The records, for statistics and for peeking."""
        return self._queue

    @property
    def unread_count(self) -> int:
        """How many records are waiting to be read."""
        return self._queue.depth

    @property
    def unread_bytes(self) -> int:
        """How large the unread records are."""
        return self._queue.unread_bytes

    @property
    def outstanding_count(self) -> int:
        """How many records have been read but not committed."""
        return self._queue.outstanding_count

    @property
    def due_times(self) -> Mapping[bytes, int]:
        """The due times of the deferred messages among the unread records."""
        return self.due_log.unread

    def count_early(self, now_ns: int) -> int:
        """Return how many due times there are of unread records that are not due."""
        return self.due_log.count_early(now_ns)

    def append(self, data: bytes, lengths: Sequence[int], *, keep: bool) -> int | None:
        """Append records; with `keep`, mark them read and return the first one's ordinal.

        Raises:
            OSError: nothing was appended.
        """
        started = time.perf_counter()
        try:
            self._queue.append(data, lengths)
        except OSError as error:
            self._on_write(error)
            raise
        self._pace.note_append(time.perf_counter() - started)
        self._on_write(None)
        first = self._queue.advance(lengths) if keep else None
        self._receipts.note(self)
        self._schedule.note_append()
        return first

    def undo_append(self, lengths: Sequence[int]) -> None:
        """Undo the last append, which has not been acknowledged."""
        self._queue.undo_append(lengths)

    def add_receipt(self, receipt: Receipt) -> None:
        """Settle the receipt when everything written up to now has been synced."""
        self._schedule.add_receipt(receipt)

    def read(self, max_records: int, max_bytes: int) -> Piece | None:
        """Read the next records, or None if there are none.

        Raises:
            OSError: the disk can't be read; after some failures in a row the block is skipped.
        """
        self.front.forget()
        try:
            records = self._queue.read(max_records, max_bytes)
        except OSError as error:
            self._failed_read_count += 1
            self._report("read", error)
            if error.errno == errno.EIO and self._failed_read_count % GIVE_UP_COUNT == 0:
                self._queue.skip_unreadable()
            raise
        if self._failed_read_count:
            self._failed_read_count = 0
            self._report("read", None)
        if records is None:
            self._schedule.note_change()  # the rest may have been quarantined
            return None
        batch = MixedBatch.from_records(records.data, records.starts, records.ends)
        count = len(batch.bodies)
        ordinals = range(records.first, records.first + count)
        return Piece(batch, 0, count, Origin.WRITTEN, ordinals)

    def commit(self, ordinals: Iterable[int]) -> None:
        """Forget records whose messages are finished."""
        self._queue.commit(ordinals)
        self._schedule.note_change()

    def note_due(self, ids: Sequence[bytes], due_ns: int, *, are_unread: bool) -> None:
        """Record when messages are due; if that fails, a crash delivers them early."""
        now_ns = self._scheduler.steady_time_ns()
        step_ns = _find_step(self._scheduler, now_ns)
        try:
            self.due_log.add(ids, due_ns, now_ns, are_unread=are_unread, step_ns=step_ns)
        except OSError as error:
            logger.error("DISKQUEUE(%s): failed to note due times - %s", self._name, error)  # noqa: TRY400 - no traceback
            self._on_write(error)

    def pop_due_time(self, message_id: bytes) -> int:
        """Remove the due time of a message that was just read and return it, 0 without one."""
        return self.due_log.pop(message_id)

    def replace_due_times(self, due_times: Mapping[bytes, int]) -> None:
        """Record these due times beside the ones recorded before that are not past.

        Raises:
            OSError: not all of them are on disk.
        """
        now_ns = self._scheduler.steady_time_ns()
        self.due_log.replace(due_times, now_ns, _find_step(self._scheduler, now_ns))

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

    def empty(self) -> Receipt:
        """Forget all records; the receipt is done when no crash brings them back."""
        receipt = Receipt(1)
        dispose(self._scheduler, [self.due_log.unread])
        try:
            self.due_log.remove()
        except OSError as error:
            receipt.error = error
        self._queue.forget_all()
        self.front.forget()
        self._pace.doubt()
        self._schedule.settle_all()
        self._schedule.sync_fully(receipt)
        return receipt

    def sync(self) -> Receipt:
        """Make everything durable, soon; the receipt is done when that has ended."""
        if self._deletion is not None and self._leaving.get(self._name) is not self:
            return Receipt(0)  # the queue is gone
        receipt = Receipt(1)
        self._schedule.sync_fully(receipt)
        return receipt

    def free_room(self) -> None:
        """Have files removed that hold finished records only, if there are any."""
        queue = self._queue
        queue.wants_room = True
        if not queue.depth and not queue.outstanding_count and queue.disk_bytes:
            self._schedule.note_change()

    def close(self) -> None:
        """Make everything durable and close the files.

        Raises:
            OSError: it may not be durable.
        """
        self.stop()
        try:
            self.due_log.close()
        finally:
            self._queue.close()

    def delete(self) -> Receipt:
        """Forget all records and remove the files; the receipt is done when they are gone.

        If that fails, the receipt has the error, and it is tried again until it succeeds, or a new
        queue of the name gets this backend.
        """
        self._retry.cancel()
        self._leaving[self._name] = self
        receipt = self._deletion = Receipt(1)
        self.empty().when_done(partial(self._finish_delete, receipt))
        return receipt

    def stay(self) -> None:
        """Be the backend of a new queue of the same name: the old one was being deleted."""
        self._retry.cancel()
        self._deletion = None
        del self._leaving[self._name]
        self._queue.generation.end()

    def remove_files(self) -> None:
        """Remove the files of a queue that is leaving, for the last time; block, in any thread.

        Raises:
            OSError: a file could not be removed.
        """
        self._queue.delete()

    def _finish_delete(self, receipt: Receipt, error: OSError | None) -> None:
        """Remove the files that are left, few and small.

        Not those of a new queue, nor those that a later deletion has yet to empty.
        """
        if receipt is not self._deletion:
            receipt.settle(error)
            return
        was_there = False
        if error is None:
            try:
                was_there = self._queue.delete()
            except OSError as raised:
                logger.error("DISKQUEUE(%s): failed to delete - %s", self._name, raised)  # noqa: TRY400 - no traceback
                error = raised
        if error is not None:
            # Records that a start would find must not come back when the disk is well again, and
            # the topic is deleted a second time.
            self._retry.plan(self.delete)
            receipt.settle(error)
            return
        del self._leaving[self._name]
        self._retry.cancel()
        self._schedule.end()
        for verb in ("sync", "read"):
            self._report(verb, None)
        if not was_there:
            receipt.settle(None)
            return
        # Without their names in the directory no start takes the queue for one that exists.
        sync_directory = partial(layout.fsync_directory, self._data_path)
        self._scheduler.run_in_thread(sync_directory, receipt.settle)

    def stop(self) -> None:
        """Start no sync any more."""
        self._retry.cancel()
        self._schedule.stop()


def _find_step(scheduler: Scheduler, now_ns: int) -> int:
    """Return how far the wall clock has been set ahead since the start."""
    return scheduler.wall_time_ns() - now_ns


class NullBackend:
    """The backend of ephemeral queues: drops every record."""

    front: Front = NO_FRONT
    unread_count = 0
    unread_bytes = 0
    outstanding_count = 0
    aside = None
    due_times: Mapping[bytes, int] = _NO_TIMES

    def __init__(self) -> None:
        # Tells this queue from another of its name; it ends with the process.
        self.generation = make_identity()

    def append(self, data: bytes, lengths: Sequence[int], *, keep: bool) -> int | None:
        """Drop the records."""

    def read(self, max_records: int, max_bytes: int) -> Piece | None:
        """Return None."""

    def undo_append(self, lengths: Sequence[int]) -> None:
        """Do nothing."""

    def commit(self, ordinals: Iterable[int]) -> None:
        """Do nothing: no record is ever outstanding."""

    def count_early(self, now_ns: int) -> int:
        """Return 0."""
        return 0

    def note_due(self, ids: Sequence[bytes], due_ns: int, *, are_unread: bool) -> None:
        """Do nothing: no message survives a restart."""

    def pop_due_time(self, message_id: bytes) -> int:
        """Return 0."""
        return 0

    def replace_due_times(self, due_times: Mapping[bytes, int]) -> None:
        """Do nothing: no message survives a restart."""

    def leave_trace(self) -> None:
        """Do nothing: no message survives a restart."""

    def empty(self) -> Receipt:
        """Do nothing."""
        return Receipt(0)

    def sync(self) -> Receipt:
        """Do nothing."""
        return Receipt(0)

    def free_room(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def delete(self) -> Receipt:
        """Do nothing."""
        return Receipt(0)


def _report(
    name: str,
    on_repeat: Callable[[str, OSError | None], object] | None,
    on_write: Callable[[OSError | None], object],
    verb: str,
    error: OSError | None,
) -> None:
    """Report how a sync or a read of a queue ended that failed, or had failed before."""
    if on_repeat is not None:
        on_repeat(f"{verb} {name}", error)
    else:
        on_write(error)
