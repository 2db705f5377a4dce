"""Archive: the history of one topic, kept for a while for replay and analysis, consumed or not.

    publish -> add -> gathered messages -> (a round encodes and writes) -> RetainedLog -> sync
                      `at most MAX_WAITING_BYTES'

The topic gives each published batch to `add`, which never waits. `ArchiveKeeper` decides when the
gathered messages of an archive are written and synced, most often in threads. Publishers wait
while much of their topic is not written. If the disk fails or takes long they do not: then history
waits in memory up to the bound of the `Backlog`, and messages beyond are counted but not kept.

History is as safe as the queues (`Safety`). Where a publish is acknowledged when its queue has it
on disk, or has synced it, its archive has done so too: `await_written` gives the publisher a
receipt. A write that the disk takes at once is made on the loop, as the queues do it: by `add`, or
if a sync follows, by the round, together for all publishes before it. A sync that publishers wait
for makes the records durable and nothing else; checksums and metadata follow with the next round of
syncs.
"""

import errno
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from nsqd.broker.archive.direct import DirectWrites
from nsqd.broker.archive.gathering import Gathering, Records
from nsqd.broker.archive.retention import ArchiveLook, RetainedLog, Sync
from nsqd.broker.queue.batch import RECORD_OVERHEAD_BYTES, AnyBatch, Batch, RecordedBatch
from nsqd.broker.queue.pace import Pace
from nsqd.broker.queue.receipt import Receipt

logger = logging.getLogger(__name__)

# The backlog is written at once when it is so large.
ROUND_BYTES = 16 * 1024 * 1024
# Publishers wait while more history than this is not written, of all topics, and more than the
# second of their own: a disk that is quick keeps up with as many messages as the loop can take only
# if the loop rests now and then.
HOLD_BYTES = 40 * 1024 * 1024
HOLD_OWN_BYTES = 1024 * 1024
# The bound of the backlog, of all topics together.
MAX_WAITING_BYTES = 64 * 1024 * 1024


class Safety(IntEnum):
    """The state of a message in its archive when its publish is acknowledged."""

    GATHERED = 0  # it waits in memory, for 50 ms
    WRITTEN = 1  # a kill of the daemon does not take it
    SYNCED = 2  # a power cut does not take it


# Python 3.11 calls a function for each `Safety.WRITTEN`: 0.3 us.
_GATHERED, _WRITTEN, _SYNCED = Safety.GATHERED, Safety.WRITTEN, Safety.SYNCED


@dataclass(frozen=True, slots=True)
class ArchiveStats:
    """The history of one topic, at one moment."""

    size_bytes: int
    segment_count: int
    message_count: int
    oldest_ns: int  # 0 if there is none
    waiting_bytes: int
    dropped_count: int


class Backlog:
    """The history in memory that waits for the disk, of all topics together."""

    def __init__(
        self,
        wake: Callable[[], object],
        on_dirty: Callable[["Archive"], object],
        pace: Pace,
    ) -> None:
        """Args:
        wake: called when an archive has something to write, and when there is much.
        on_dirty: told of an archive that has something to sync, and had not before.
        pace: of the disk.
        """
        self.on_dirty = on_dirty
        self.pace = pace
        self.size_bytes = 0
        # Archives with something to write, and not before when: after a failure, later.
        self.archives: dict[Archive, float] = {}
        # Messages that no archive has, because too much was waiting; it still is if overflowing.
        self.dropped_count = 0
        self.is_overflowing = False
        # Someone waits for the next round of writes.
        self.is_urgent = False
        # A round takes long: nobody shall wait for it who need not.
        self.is_stuck = False
        self._wake = wake

    @property
    def is_large(self) -> bool:
        """Whether to write without waiting for more."""
        return self.is_urgent or self.size_bytes >= ROUND_BYTES

    def is_much(self, own_bytes: int) -> bool:
        """Tell whether publishers wait for the disk, to a topic of which so many bytes do."""
        return own_bytes >= HOLD_OWN_BYTES and self.size_bytes >= HOLD_BYTES

    def reserve(self, size_bytes: int) -> bool:
        """Count bytes that are going to wait, if there is room for them."""
        waiting_bytes = self.size_bytes + size_bytes
        if waiting_bytes > MAX_WAITING_BYTES and self.size_bytes:
            if not self.is_overflowing:
                self.is_overflowing = True
                logger.error("ARCHIVE: does not keep up, history will have gaps")
            return False
        self.size_bytes = waiting_bytes
        if waiting_bytes >= ROUND_BYTES or self.is_urgent:
            self._wake()
        return True

    def free(self, size_bytes: int) -> None:
        """Count bytes that wait no longer."""
        self.size_bytes -= size_bytes
        if self.is_overflowing and self.size_bytes <= MAX_WAITING_BYTES // 2:
            self.is_overflowing = False
            logger.warning("ARCHIVE: goes on, messages_dropped=%d so far", self.dropped_count)

    def announce(self, archive: "Archive", *, is_urgent: bool = False) -> None:
        """Have an archive written in one of the next rounds, the very next if it is urgent."""
        self.archives.setdefault(archive, 0.0)
        self.is_urgent |= is_urgent
        self._wake()


@dataclass(frozen=True, slots=True)
class Commit:
    """A sync under way, and how many messages since the start it makes durable."""

    log: RetainedLog
    sync: Sync
    written_count: int


class Archive:
    """The history of one topic."""

    def __init__(
        self,
        name: str,
        backlog: Backlog,
        segment_bytes: int,
        open_log: Callable[[], RetainedLog],
        on_delete: Callable[["Archive"], Receipt],
        safety: Safety = Safety.GATHERED,
    ) -> None:
        """Args:
        open_log: opens the files, which blocks.
        on_delete: told when the archive is deleted; has `remove_files` called in a thread, and
            returns the receipt that is done then.
        """
        self.name = name
        self.safety = safety
        # How publishes shall make batches: their records are needed at once, or much later.
        self.batch_type: type[Batch] = Batch if safety is _GATHERED else RecordedBatch
        self.dropped_count = 0
        self.is_closed = False
        self._are_files_removed = False
        # Why history is not written, not durable, or without its metadata; None if it is.
        self.write_error: OSError | None = None
        self.commit_error: OSError | None = None
        self.sync_error: OSError | None = None
        self._backlog = backlog
        self._open_log = open_log
        self._on_delete = on_delete
        self._log: RetainedLog | None = None
        self.gathering = Gathering(segment_bytes)
        # The part of the backlog that is this archive's.
        self._waiting_bytes = 0
        # Messages added, written and synced since the start, and who waits for how many of them.
        self._added_count = 0
        self._written_count = 0
        self._synced_count = 0
        # The last messages were not kept.
        self._has_lost_last = False
        self._receipts: deque[tuple[int, Receipt]] = deque()
        # Of publishers that wait only because much history does.
        self._holds: deque[Receipt] = deque()
        # Held while the files are worked on, but not during the long part of a sync. The loop only
        # tries to take it.
        self._lock = threading.Lock()
        # Held during a whole sync. `begin_commit` takes it on the loop, and a thread lets go of it.
        self._sync_lock = threading.Lock()

    # --- on the loop

    def add(self, batch: AnyBatch, records: Records | None = None) -> None:
        """Keep a batch that was published; never waits and never fails.

        Args:
            records: the batch as disk records, if a queue has needed them too.
        """
        count = len(batch.bodies)
        if self.safety is _WRITTEN and self._write_now(batch, records):
            self._added_count += count
            self._has_lost_last = False
            return
        backlog = self._backlog
        size_bytes = batch.body_bytes + count * RECORD_OVERHEAD_BYTES
        self._has_lost_last = self.is_closed or not backlog.reserve(size_bytes)
        if self._has_lost_last:
            self.dropped_count += count
            backlog.dropped_count += count
            return
        self._waiting_bytes += size_bytes
        self._added_count += count
        self.gathering.add(batch, size_bytes, records)
        if self not in backlog.archives:
            backlog.announce(self)

    def _write_now(self, batch: AnyBatch, records: Records | None) -> bool:
        """Write a batch on the loop, if the disk is quick and no thread is at work on the files."""
        if not self.gathering.is_empty:
            return False
        log = self._begin_writing_now()
        if log is None:
            return False
        try:
            was_dirty = log.is_dirty
            count = len(batch.bodies)
            data, lengths = records or batch.records(0, count)
            began = time.perf_counter()
            is_written = log.append_now(data, lengths, batch.time_span()[1])
        except OSError as error:
            self.write_error = error  # a round tries again, and tells who waits for it
            return False
        finally:
            self._lock.release()
        if is_written:
            self._backlog.pace.note_append(time.perf_counter() - began)
            self._written_count += count
            if not was_dirty:
                self._backlog.on_dirty(self)
        return is_written

    def _begin_writing_now(self) -> RetainedLog | None:
        """Return the files, locked, if the loop may write to them; None leaves it to a thread."""
        log = self._log
        if log is None or not self._backlog.pace.is_quick:
            return None
        if not self._lock.acquire(blocking=False):
            return None
        if self.is_closed or self._log is not log:
            self._lock.release()
            return None
        return log

    def await_written(self, other: Receipt | None) -> Receipt | None:
        """Return the receipt of a publish that was just added: None if it waits for nothing.

        Args: other: another receipt that the publish waits for.
        """
        safety = self.safety
        if safety is _GATHERED:
            if self._backlog.is_stuck or not self._backlog.is_much(self._waiting_bytes):
                return other
            receipt = Receipt(1)
            self._holds.append(receipt)
        elif self._has_lost_last:
            receipt = Receipt(1)
            receipt.settle(OSError(errno.EBUSY, "the archive's disk does not keep up"))
        elif safety is _WRITTEN and self._written_count >= self._added_count:
            return other
        else:
            receipt = Receipt(1)
            self.add_receipt(receipt)
        if other is not None:
            receipt.include(other)
        return receipt

    def add_receipt(self, receipt: Receipt) -> None:
        """Settle the receipt when everything added up to now is safe, or with the error.

        A closed archive settles it at once.
        """
        if self.is_closed:
            receipt.settle(None)
            return
        self._receipts.append((self._added_count, receipt))
        self._backlog.announce(self, is_urgent=True)

    def settle(self) -> None:
        """After a round, free the part of the backlog that was written, and tell who waits."""
        left_bytes = self.gathering.size_bytes
        freed_bytes, self._waiting_bytes = self._waiting_bytes - left_bytes, left_bytes
        self._backlog.free(freed_bytes)
        is_synced = self.safety is _SYNCED
        error = self.write_error or (self.commit_error if is_synced else None)
        if error is not None:
            self.release()
        done_count = self._synced_count if is_synced else self._written_count
        while self._receipts and (error is not None or self._receipts[0][0] <= done_count):
            self._receipts.popleft()[1].settle(error)

    def release(self, *, if_little: bool = False) -> None:
        """Let publishers go on that wait only because much history does.

        Args: if_little: only if that is over.
        """
        if if_little and self._backlog.is_much(self._waiting_bytes):
            return
        while self._holds:
            self._holds.popleft().settle(None)

    @property
    def error(self) -> OSError | None:
        """Why history is not safe on disk at the moment."""
        return self.write_error or self.commit_error or self.sync_error

    @property
    def is_dirty(self) -> bool:
        """Whether a sync has something to do."""
        return self._log is not None and self._log.is_dirty

    @property
    def expires_ns(self) -> int | None:
        """When the oldest segment is too old, if ever."""
        return None if self._log is None else self._log.expires_ns

    def stats(self) -> ArchiveStats:
        """Return the figures of now."""
        log = self._log
        return ArchiveStats(
            size_bytes=log.size_bytes if log else 0,
            segment_count=log.segment_count if log else 0,
            message_count=log.record_count if log else 0,
            oldest_ns=log.oldest_ns if log else 0,
            waiting_bytes=self._waiting_bytes,
            dropped_count=self.dropped_count,
        )

    def delete(self) -> Receipt:
        """Remove the history for good; return the receipt that is done when its files are gone."""
        self.is_closed = True
        self._backlog.archives.pop(self, None)
        self._backlog.free(self._waiting_bytes)
        self._waiting_bytes = 0
        self.gathering.drop_newest()
        self.release()
        while self._receipts:
            self._receipts.popleft()[1].settle(None)
        return self._on_delete(self)

    def begin_commit(self) -> Commit | None:
        """Write what was handed over, and return the sync that publishers wait for.

        A thread ends it with `commit`, or `give_up` does. None leaves all of it to the thread:
        `write`, and `commit`.
        """
        if self.safety is not _SYNCED or self.write_error is not None:
            return None
        if not self._sync_lock.acquire(blocking=False):
            return None
        commit = None
        try:
            log = self._begin_writing_now()
            if log is not None:
                try:
                    if self._write_gathered_now(log):
                        sync = log.begin_sync(with_metadata=False)
                        commit = Commit(log, sync, self._written_count)
                finally:
                    self._lock.release()
        except OSError:
            pass  # the thread finds it again, and tells it
        finally:
            if commit is None:
                self._sync_lock.release()
        return commit

    def _write_gathered_now(self, log: RetainedLog) -> bool:
        """Write what was handed over; return False if that needs a new segment.

        Raises:
            OSError: a part may be written.
        """
        gathering = self.gathering
        while gathering.handed_over:
            chunk = gathering.handed_over[0].encode()
            began = time.perf_counter()
            if not log.append_now(chunk.data, chunk.lengths, chunk.newest_ns):
                return False
            self._backlog.pace.note_append(time.perf_counter() - began)
            self._written_count += gathering.remove_first(1)
        return True

    # --- in any thread

    def remove_files(self) -> None:
        """Remove the files of a deleted archive, unless that is done; wait for a round that writes.

        Raises:
            OSError: a file could not be removed.
        """
        with self._lock:
            if self._are_files_removed:
                return
            self._are_files_removed = True
            self.gathering.drop_handed_over()
            (self._log or self._open_log()).delete()

    def look(self, *, is_pinned: bool) -> ArchiveLook | None:
        """Return the files as they are, held for a reader or not; None after a delete.

        Raises:
            OSError: the files cannot be opened, or the generation not be stored.
        """
        with self._lock:
            if self.is_closed:
                return None
            log = self._log
            if log is None:
                log = self._log = self._open_log()
            return log.look(is_pinned=is_pinned)

    def write(self, now_ns: int, direct: DirectWrites | None = None) -> None:
        """Write what was handed over; note in `write_error` if that fails.

        Args: direct: for what is large; None has all go through the page cache.
        """
        with self._lock:
            if self.is_closed:
                return
            try:
                # After a failure through the cache: the disk may refuse no more than the other way.
                self._write(now_ns, direct if self.write_error is None else None)
            except OSError as error:
                # The frames of its traceback hold the room.
                self.write_error = error.with_traceback(None)
                if isinstance(error, FileNotFoundError) and self._log is not None:
                    self._log.abandon()  # files were removed: the next round looks again
                    self._log = None
            else:
                self.write_error = None

    def commit(self, begun: Commit | None) -> None:
        """Make durable what publishers wait for; note in `commit_error` if that fails.

        Args: begun: by `begin_commit`; None does all of it here.
        """
        if begun is not None:
            try:
                self._end_sync(begun, begun.sync.run())
            finally:
                self._sync_lock.release()
        elif self.safety is _SYNCED and self.write_error is None:
            with self._sync_lock:
                try:
                    with self._lock:
                        commit = self._begin_sync(with_metadata=False)
                except OSError as error:
                    self.commit_error = error
                else:
                    if commit is not None:
                        self._end_sync(commit, commit.sync.run())

    def give_up(self, begun: Commit) -> None:
        """Let go of a commit that no thread has come to: another has failed badly."""
        begun.sync.close()
        self._sync_lock.release()

    def sync(self, now_ns: int) -> None:
        """Make all durable and delete old segments; note in `sync_error` if that fails."""
        with self._sync_lock:
            try:
                with self._lock:
                    if self._log is not None and not self.is_closed:
                        self._log.trim(now_ns)
                    commit = self._begin_sync(with_metadata=True)
            except OSError as error:
                self.sync_error = error
            else:
                if commit is not None:
                    self._end_sync(commit, commit.sync.run())

    def _begin_sync(self, *, with_metadata: bool) -> Commit | None:
        log = self._log
        if self.is_closed or log is None:
            return None
        return Commit(log, log.begin_sync(with_metadata=with_metadata), self._written_count)

    def _end_sync(self, commit: Commit, error: OSError | None) -> None:
        """Note how a sync went. Without metadata the records are durable nevertheless."""
        with self._lock:
            if self._log is not commit.log or self.is_closed:
                return
            self.commit_error = error
            if error is None:
                self._synced_count = commit.written_count
            try:
                commit.log.end_sync(commit.sync, error)
            except OSError as failure:
                if commit.sync.with_metadata:
                    self.sync_error = failure
            else:
                if commit.sync.with_metadata:
                    self.sync_error = None

    def close(self, now_ns: int) -> None:
        """Write and sync the rest, for the last time.

        Raises:
            OSError: a part of the history may be lost.
        """
        with self._sync_lock, self._lock:
            self.is_closed = True
            self._write(now_ns).close()

    def _write(self, now_ns: int, direct: DirectWrites | None = None) -> RetainedLog:
        log = self._log
        if log is None:
            log = self._log = self._open_log()
            # Segments may have become too old while the daemon was off, or the bounds smaller.
            _trim(log, now_ns)
        # Not those that are handed over meanwhile: a round must end to be counted as written.
        left_count = len(self.gathering.handed_over)
        while left_count:
            count = _append_first(log, self.gathering, now_ns, direct) if direct is not None else 0
            count = count or log.append(self.gathering.encode_first(left_count), now_ns)
            self._written_count += self.gathering.remove_first(count)
            left_count -= count
            _trim(log, now_ns)
        return log


def _append_first(log: RetainedLog, gathering: Gathering, now_ns: int, direct: DirectWrites) -> int:
    """Append the first part past the page cache; return 0 if the cache is better for it."""
    size_bytes = gathering.first_bytes
    room = direct.find_room(size_bytes, log.find_position(size_bytes, now_ns))
    if room is None:
        return 0
    return log.append([gathering.handed_over[0].encode(room)], now_ns, direct.write)


def _trim(log: RetainedLog, now_ns: int) -> None:
    if log.trim(now_ns):
        log.delete_dropped()
