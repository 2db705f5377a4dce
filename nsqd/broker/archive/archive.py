"""Archives: what is published is also kept for a while, for replay and analysis.

There is one `Archive` per topic, told of each batch that was published, and one `ArchiveKeeper` per
broker, which owns the schedule. All disk work happens in threads, in rounds:

    publish -> add -> batches -> (encoded on the loop) -> chunks -> (a round) -> ArchiveLog -> sync
                      `---------- at most MAX_WAITING_BYTES ------'

A round writes what has gathered for `GATHER_S` in all archives, so a thousand quiet topics cost one
hop to a thread and not a thousand. One round of writes and one of syncs may be under way at a time;
an fsync takes as long as the disk needs for seconds of traffic, and no write waits for that.
Publishing never waits for any of this. If the disk fails or is too slow, history waits in memory up
to the bound, and what comes beyond is left out, counted and told in `health`.
"""

import functools
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

from diskqueue.envelope import HEADER_BYTES
from nsqd.broker.archive.log import ArchiveLog, Chunk, Retention
from nsqd.broker.queue.backend import DiskSettings
from nsqd.broker.queue.batch import RECORD_OVERHEAD_BYTES, AnyBatch
from nsqd.broker.scheduler import Scheduler, Timer

logger = logging.getLogger(__name__)

DIRECTORY_NAME = "archive"

# How long messages gather before they are written: what a kill loses of the history.
GATHER_S = 0.05
# Batches are encoded when so much has gathered, so that the loop is never held up for long.
CHUNK_BYTES = 256 * 1024
# A round begins at once when so much has gathered in all archives: it is still in the caches then.
ROUND_BYTES = 4 * 1024 * 1024
# What may wait in memory for the disk, of all topics together.
MAX_WAITING_BYTES = 64 * 1024 * 1024
# In how many archives a round writes; the others wait for the next.
MAX_WRITES_PER_ROUND = 256
# How long to wait after a failure.
RETRY_S = 1.0
# How often, within the time that is kept, to look for what is too old.
TICKS_PER_AGE = 16
MIN_TICK_S = 0.05
MAX_TICK_S = 60.0


@dataclass(frozen=True, slots=True)
class ArchiveStats:
    """The history of one topic, at one moment."""

    size_bytes: int
    segment_count: int
    message_count: int
    oldest_ns: int  # 0 if there is none
    waiting_bytes: int
    dropped_count: int


class Archive:
    """The history of one topic."""

    def __init__(self, name: str, keeper: "ArchiveKeeper", open_log: Callable[[], ArchiveLog]):
        self.name = name
        self.dropped_count = 0
        self.is_closed = False
        self.write_error: OSError | None = None
        self.sync_error: OSError | None = None
        self._keeper = keeper
        self._open_log = open_log
        self._log: ArchiveLog | None = None
        # The keeper knows that there is something to write.
        self._is_announced = False
        self._batches: list[AnyBatch] = []
        self._batch_bytes = 0
        self._chunks: deque[Chunk] = deque()
        # What the keeper has counted as waiting for us.
        self._counted_bytes = 0
        # Held by whoever works on the files, but not during the long part of a sync.
        self._lock = threading.Lock()
        # Held during a whole sync.
        self._sync_lock = threading.Lock()

    # --- on the loop

    def add(self, batch: AnyBatch) -> None:
        """Keep a batch that was published; never waits and never fails."""
        keeper = self._keeper
        size_bytes = batch.body_bytes + len(batch.bodies) * RECORD_OVERHEAD_BYTES
        if self.is_closed or not keeper.reserve(size_bytes):
            self.dropped_count += len(batch.bodies)
            keeper.dropped_count += len(batch.bodies)
            return
        self._counted_bytes += size_bytes
        if self._batch_bytes + size_bytes > keeper.chunk_bytes:
            self.encode()
        self._batches.append(batch)
        self._batch_bytes += size_bytes
        if not self._is_announced:
            self._is_announced = True
            keeper.announce(self)

    def encode(self) -> None:
        """Make chunks, which a round can write, of what has gathered."""
        batches, self._batches = self._batches, []
        size_bytes, self._batch_bytes = self._batch_bytes, 0
        if size_bytes <= self._keeper.chunk_bytes:
            if batches:
                self._chunks.append(_make_chunk(batches))
            return
        # A single batch, as `add` sees to that. It may be larger than a segment shall be.
        [batch] = batches
        self._chunks.extend(
            _make_chunk([part]) for part in _split(batch, self._keeper.segment_bytes)
        )

    def take(self) -> None:
        """A round is going to write all there is; what comes later is announced again."""
        self.encode()
        self._is_announced = False

    def settle(self) -> int:
        """After a round: return how many bytes wait no longer."""
        left_bytes = self._batch_bytes + sum(len(chunk.data) for chunk in self._chunks)
        freed_bytes, self._counted_bytes = self._counted_bytes - left_bytes, left_bytes
        return freed_bytes

    def release(self) -> int:
        """Give up what waits: return how many bytes that is."""
        freed_bytes, self._counted_bytes = self._counted_bytes, 0
        return freed_bytes

    @property
    def error(self) -> OSError | None:
        """Why history is not safe on disk at the moment."""
        return self.write_error or self.sync_error

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
            waiting_bytes=self._counted_bytes,
            dropped_count=self.dropped_count,
        )

    def delete(self) -> None:
        """Remove the history for good; waits for a round that is at it.

        Raises:
            OSError: a file could not be removed.
        """
        self.is_closed = True
        self._keeper.forget(self)
        self._batches.clear()
        with self._lock:
            self._chunks.clear()
            (self._log or self._open_log()).delete()

    # --- in any thread

    def write(self, now_ns: int) -> None:
        """Write the chunks; what goes wrong is in `write_error`."""
        with self._lock:
            if self.is_closed:
                return
            try:
                self._write(now_ns)
            except OSError as error:
                self.write_error = error
                if isinstance(error, FileNotFoundError) and self._log is not None:
                    self._log.abandon()  # somebody has removed files: look again
                    self._log = None
            else:
                self.write_error = None

    def sync(self, now_ns: int) -> None:
        """Make all durable and delete what is too old; what goes wrong is in `sync_error`."""
        with self._sync_lock:
            try:
                self._sync(now_ns)
            except OSError as error:
                self.sync_error = error
            else:
                self.sync_error = None

    def _sync(self, now_ns: int) -> None:
        with self._lock:
            log = self._log
            if self.is_closed or log is None:
                return
            log.trim(now_ns)
            job = log.begin_sync()
        error = job.run()
        with self._lock:
            if self._log is log and not self.is_closed:
                log.end_sync(job, error)

    def close(self, now_ns: int) -> None:
        """Write and sync the rest, for the last time.

        Raises:
            OSError: a part of the history may be lost.
        """
        with self._sync_lock, self._lock:
            self.is_closed = True
            self._write(now_ns)
            assert self._log is not None
            self._log.close()

    def _write(self, now_ns: int) -> None:
        log = self._log
        if log is None:
            log = self._log = self._open_log()
            if log.trim(now_ns):  # it may have been off for a while, or have had other bounds
                log.delete_dropped()
        # Not what is added meanwhile: a round must end to be counted as written.
        chunks = list(self._chunks)
        done = 0
        while done < len(chunks):
            count = log.append(chunks[done:], now_ns)
            done += count
            for _ in range(count):
                self._chunks.popleft()
            if log.trim(now_ns):
                log.delete_dropped()


def _make_chunk(batches: Sequence[AnyBatch]) -> Chunk:
    parts: list[bytes] = []
    for batch in batches:
        parts += batch.record_parts()
    data = b"".join(parts)
    count = sum(len(batch.bodies) for batch in batches)
    spans = [batch.time_span() for batch in batches]
    return Chunk(data, count, min(span[0] for span in spans), max(span[1] for span in spans))


def _split(batch: AnyBatch, max_bytes: int) -> Iterator[AnyBatch]:
    """Cut a batch into parts whose records fit, but for a single larger one."""
    start = used_bytes = 0
    for index, body in enumerate(batch.bodies):
        size_bytes = len(body) + RECORD_OVERHEAD_BYTES
        if used_bytes and used_bytes + size_bytes > max_bytes:
            yield batch.part(start, index)
            start, used_bytes = index, 0
        used_bytes += size_bytes
    yield batch.part(start, len(batch.bodies))


class ArchiveKeeper:
    """All archives of this node, and when their disk work is done."""

    def __init__(self, retention: Retention, disk: DiskSettings, scheduler: Scheduler) -> None:
        # Messages that no archive has, because too many were waiting.
        self.dropped_count = 0
        self.segment_bytes = retention.segment_bytes(disk.max_bytes_per_file)
        self.chunk_bytes = min(CHUNK_BYTES, self.segment_bytes)
        self._retention = retention
        self._disk = disk
        self._directory = disk.data_path / DIRECTORY_NAME
        self._scheduler = scheduler
        self._archives: dict[str, Archive] = {}
        # Archives with something to write, and not before when: after a failure, later.
        self._waiting: dict[Archive, float] = {}
        self._waiting_bytes = 0
        self._has_overflowed = False
        # Archives with something to sync, and when that is due; the first is the first.
        self._sync_due: dict[Archive, float] = {}
        self._failing: dict[Archive, OSError] = {}
        self._tick_s = 0.0
        self._next_tick = math.inf
        if retention.max_age_s:
            self._tick_s = min(max(retention.max_age_s / TICKS_PER_AGE, MIN_TICK_S), MAX_TICK_S)
            self._next_tick = scheduler.time() + self._tick_s
        # The archives that a thread works on now.
        self._writing: list[Archive] | None = None
        self._syncing: list[Archive] | None = None
        self._timer: Timer | None = None
        self._timer_when = math.inf
        self._is_closed = False

    @property
    def health(self) -> str:
        """What is wrong, or nothing."""
        for archive, error in self._failing.items():
            return f"archive of {archive.name}: {error}"
        if self._has_overflowed:
            return f"archive: the disk is too slow, {self.dropped_count} messages not kept"
        return ""

    def open(self, topic_name: str) -> Archive:
        """Return the archive of a topic; its files are opened by the next round."""

        def open_log() -> ArchiveLog:
            return ArchiveLog(
                str(self._directory),
                topic_name,
                self._retention,
                max_bytes_per_file=self._disk.max_bytes_per_file,
                max_record_bytes=self._disk.max_msg_size + HEADER_BYTES,
            )

        archive = self._archives[topic_name] = Archive(topic_name, self, open_log)
        self.announce(archive)
        return archive

    def reserve(self, size_bytes: int) -> bool:
        """Count what is going to wait, if there is room for it."""
        if self._waiting_bytes and self._waiting_bytes + size_bytes > MAX_WAITING_BYTES:
            if not self._has_overflowed:
                self._has_overflowed = True
                logger.error("ARCHIVE: the disk does not keep up, history will have gaps")
            return False
        self._waiting_bytes += size_bytes
        if self._waiting_bytes >= ROUND_BYTES and self._writing is None:
            self._arm(self._scheduler.time())
        return True

    def announce(self, archive: Archive) -> None:
        """There is something to write."""
        now = self._scheduler.time()
        self._waiting.setdefault(archive, now)
        if self._writing is None:
            self._arm(now + GATHER_S)

    def forget(self, archive: Archive) -> None:
        """An archive is going to be deleted."""
        self._archives.pop(archive.name, None)
        self._waiting.pop(archive, None)
        self._sync_due.pop(archive, None)
        self._failing.pop(archive, None)
        self._waiting_bytes -= archive.release()

    def close(self) -> list[Callable[[], None]]:
        """Do nothing more by itself; return the work that is left, which blocks."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_ns = self._scheduler.wall_time_ns()
        for archive in self._archives.values():
            archive.encode()
        return [functools.partial(archive.close, now_ns) for archive in self._archives.values()]

    # --- rounds

    def _arm(self, when: float) -> None:
        """Look at that time, unless it is done earlier anyway, for what there is to do."""
        if self._is_closed:
            return
        if self._timer is not None:
            if self._timer_when <= when:
                return
            self._timer.cancel()
        self._timer_when = when
        self._timer = self._scheduler.call_at(when, self._begin)

    def _arm_next(self) -> None:
        now = self._scheduler.time()
        when = math.inf
        if self._waiting and self._writing is None:
            gather_s = GATHER_S if self._waiting_bytes < ROUND_BYTES else 0.0
            when = max(min(self._waiting.values()), now) + gather_s
        if self._syncing is None:
            when = min(when, self._next_tick)
            if self._sync_due:
                when = min(when, next(iter(self._sync_due.values())))
        if when < math.inf:
            self._arm(max(when, now))

    def _begin(self) -> None:
        self._timer = None
        now = self._scheduler.time()
        now_ns = self._scheduler.wall_time_ns()
        if self._writing is None:
            self._begin_writing(now, now_ns)
        if self._syncing is None:
            self._begin_syncing(now, now_ns)
        self._arm_next()

    def _begin_writing(self, now: float, now_ns: int) -> None:
        ready = (archive for archive, when in self._waiting.items() if when <= now)
        writes = list(islice(ready, MAX_WRITES_PER_ROUND))
        if not writes:
            return
        for archive in writes:
            del self._waiting[archive]
            archive.take()
        self._writing = writes

        def write() -> None:
            for archive in writes:
                archive.write(now_ns)

        self._scheduler.run_in_thread(write, self._end_writing)

    def _begin_syncing(self, now: float, now_ns: int) -> None:
        syncs = list(takewhile(lambda archive: self._sync_due[archive] <= now, self._sync_due))
        if now >= self._next_tick:
            self._next_tick = now + self._tick_s
            syncs = list(dict.fromkeys([*syncs, *self._find_expired(now_ns)]))
        if not syncs:
            return
        self._syncing = syncs

        def sync() -> None:
            for archive in syncs:
                archive.sync(now_ns)

        self._scheduler.run_in_thread(sync, self._end_syncing)

    def _find_expired(self, now_ns: int) -> list[Archive]:
        return [
            archive
            for archive in self._archives.values()
            if (expires_ns := archive.expires_ns) is not None and expires_ns < now_ns
        ]

    def _end_writing(self, error: OSError | None) -> None:
        assert error is None, "archives keep their errors"
        writes, self._writing = self._writing, None
        assert writes is not None
        if self._is_closed:
            return
        now = self._scheduler.time()
        for archive in writes:
            self._note_written(archive, now)
        if self._has_overflowed and self._waiting_bytes <= MAX_WAITING_BYTES // 2:
            self._has_overflowed = False
            logger.warning("ARCHIVE: goes on, messages_dropped=%d so far", self.dropped_count)
        self._arm_next()

    def _end_syncing(self, error: OSError | None) -> None:
        assert error is None, "archives keep their errors"
        syncs, self._syncing = self._syncing, None
        assert syncs is not None
        if self._is_closed:
            return
        now = self._scheduler.time()
        for archive in syncs:
            self._note_synced(archive, now)
        self._arm_next()

    def _note_written(self, archive: Archive, now: float) -> None:
        if archive.is_closed:
            return
        self._waiting_bytes -= archive.settle()
        if archive.write_error is not None:
            self._waiting[archive] = now + RETRY_S
        if archive.is_dirty:
            self._sync_due.setdefault(archive, now + self._disk.sync_timeout_s)
        self._note_health(archive)

    def _note_synced(self, archive: Archive, now: float) -> None:
        if archive.is_closed:
            return
        self._sync_due.pop(archive, None)
        if archive.is_dirty:
            # It failed, and at once it would only fail again; or more was written meanwhile.
            self._sync_due[archive] = now + self._disk.sync_timeout_s
        self._note_health(archive)

    def _note_health(self, archive: Archive) -> None:
        error = archive.error
        if error is not None:
            if archive not in self._failing:
                logger.error("ARCHIVE(%s): failed to write - %s", archive.name, error)
            self._failing[archive] = error
        elif self._failing.pop(archive, None) is not None:
            logger.info("ARCHIVE(%s): goes on", archive.name)
