"""ArchiveKeeper: all archives of a broker, and when threads write, sync and trim them.

Disk work is done in rounds. A round of writes takes all archives that had a publish in the last
`GATHER_S`, so a thousand quiet topics cost one hop to a thread and not a thousand. A round of syncs
takes those that were written `sync_timeout_s` ago, or 0.1 s if publishers wait for fsyncs, and
those whose oldest segment is too old. One round of each kind may be under way at a time: an fsync
takes as long as the disk needs for seconds of traffic, and no write waits for that, unless
publishers do: then a round of writes syncs the records as well.
"""

import contextlib
import functools
import logging
import math
import time
from collections.abc import Callable, Iterable
from itertools import islice, takewhile

from diskqueue.envelope import HEADER_BYTES
from diskqueue.layout import QueueFiles, list_queues
from nsqd.broker.archive.archive import ROUND_BYTES, Archive, Backlog, Commit, Safety
from nsqd.broker.archive.direct import DirectWrites
from nsqd.broker.archive.retention import RetainedLog, Retention
from nsqd.broker.queue.backend import DiskSettings
from nsqd.broker.queue.pace import Pace
from nsqd.broker.queue.receipt import Receipt
from nsqd.broker.queue.sync_schedule import PROMPT_METADATA_S
from nsqd.broker.scheduler import Scheduler, Timer

logger = logging.getLogger(__name__)

DIRECTORY_NAME = "archive"

# How long messages gather before they are written: the history that a kill loses.
GATHER_S = 0.05
# In how many archives a round writes; the others wait for the next.
MAX_WRITES_PER_ROUND = 256
# So much a round writes on the loop, of all archives, if publishers wait for its sync; each counts
# as so much at least.
NOW_BYTES = 256 * 1024
NOW_MIN_BYTES = 4 * 1024
# How long to wait after a failure.
RETRY_S = 1.0
# Publishers wait no longer than this for a round of writes, unless messages must be on disk.
MAX_HOLD_S = 0.25
# How often, within the time to keep, to look for segments that are too old.
TICKS_PER_AGE = 16
MIN_TICK_S = 0.05
MAX_TICK_S = 60.0


class ArchiveKeeper:
    """All archives of this node, and when their disk work is done."""

    def __init__(
        self,
        retention: Retention,
        disk: DiskSettings,
        scheduler: Scheduler,
        safety: Safety = Safety.GATHERED,
    ) -> None:
        self._safety = safety
        # How long after a write all of it becomes durable.
        self._sync_delay_s = disk.sync_timeout_s
        if safety is Safety.SYNCED:
            self._sync_delay_s = min(disk.sync_timeout_s, PROMPT_METADATA_S)
        self._retention = retention
        self._disk = disk
        self._directory = disk.data_path / DIRECTORY_NAME
        self._scheduler = scheduler
        self._archives: dict[str, Archive] = {}
        # The files at the start of archives that have not been open yet; None before the listing.
        self._unopened: dict[str, QueueFiles] | None = None
        # Deleted archives whose files are not gone yet, by the name of the topic.
        self._leaving: dict[str, Archive] = {}
        self._pace = Pace(scheduler.time, is_trusted=disk.is_trusted)
        self._backlog = Backlog(self._wake, self._plan_sync, self._pace)
        self._direct = DirectWrites(is_trusted=disk.is_trusted)
        # Archives with something to sync, and when that is due, in the order of these times.
        self._sync_due: dict[Archive, float] = {}
        self._failing: dict[Archive, OSError] = {}
        self._tick_s = 0.0
        self._next_tick = math.inf
        if retention.max_age_s:
            self._tick_s = min(max(retention.max_age_s / TICKS_PER_AGE, MIN_TICK_S), MAX_TICK_S)
            self._next_tick = scheduler.time() + self._tick_s
        # A thread is at work.
        self._is_writing = False
        self._is_syncing = False
        self._timer: Timer | None = None
        self._timer_when = math.inf
        # Until publishers wait no longer for the round of writes.
        self._hold_timer: Timer | None = None
        self._is_closed = False

    @property
    def dropped_count(self) -> int:
        """How many messages no archive has, because too much was waiting for the disk."""
        return self._backlog.dropped_count

    @property
    def health(self) -> str:
        """Why history is not being kept; empty if it is."""
        for archive, error in self._failing.items():
            return f"archive of {archive.name}: {error}"
        if self._backlog.is_overflowing:
            return f"archive: the disk is too slow, {self.dropped_count} messages not kept"
        return ""

    def open(self, topic_name: str) -> Archive:
        """Return the archive of a topic; its files are opened by the next round."""
        files = self._find_files(topic_name)
        deleted = self._leaving.get(topic_name)

        def open_log() -> RetainedLog:
            nonlocal files, deleted
            if deleted is not None:
                # The topic was deleted and made again; this is a thread, which may wait.
                with contextlib.suppress(OSError):  # told to the caller who deleted the topic
                    deleted.remove_files()
                deleted = None
            first_files, files = files, None  # true only until the log is opened
            return RetainedLog(
                *(str(self._directory), topic_name, self._retention),
                max_bytes_per_file=self._disk.max_bytes_per_file,
                max_record_bytes=self._disk.max_msg_size + HEADER_BYTES,
                has_checksums=self._disk.has_checksums,
                files=first_files,
            )

        segment_bytes = self._retention.segment_bytes(self._disk.max_bytes_per_file)
        archive = Archive(
            *(topic_name, self._backlog, segment_bytes, open_log, self._remove), self._safety
        )
        self._archives[topic_name] = archive
        self._backlog.announce(archive)
        return archive

    def _find_files(self, topic_name: str) -> QueueFiles | None:
        """Return the files of an archive that has not been open yet, None if it has to look.

        The directory is listed once: for each of thousands of topics it would take quadratic time.
        """
        if self._unopened is None:
            self._unopened = {}
            with contextlib.suppress(OSError):  # the archive that opens its files tells the error
                self._unopened = list_queues(self._directory)
        return self._unopened.pop(topic_name, None)

    def close(self) -> list[Callable[[], None]]:
        """Begin no more rounds; return the work that is left, which blocks."""
        self._is_closed = True
        for timer in (self._timer, self._hold_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._hold_timer = None
        now_ns = self._scheduler.wall_time_ns()
        for archive in self._archives.values():
            archive.gathering.hand_over()
        return [functools.partial(archive.close, now_ns) for archive in self._archives.values()]

    def _remove(self, archive: Archive) -> Receipt:
        """Forget an archive that is deleted, and have its files removed."""
        self._archives.pop(archive.name, None)
        self._sync_due.pop(archive, None)
        self._failing.pop(archive, None)
        self._leaving[archive.name] = archive
        receipt = Receipt(1)
        self._scheduler.run_in_thread(
            archive.remove_files, functools.partial(self._end_removal, archive, receipt)
        )
        return receipt

    def _end_removal(self, archive: Archive, receipt: Receipt, error: OSError | None) -> None:
        if self._leaving.get(archive.name) is archive:
            del self._leaving[archive.name]
        receipt.settle(error)

    # --- when

    def _wake(self) -> None:
        """Begin a round of writes soon, unless one is under way: its end looks for more."""
        if not self._is_writing:
            gather_s = 0.0 if self._backlog.is_large else GATHER_S
            self._arm(self._scheduler.time() + gather_s)

    def _arm(self, when: float) -> None:
        """Begin the rounds that are due then, unless the timer is set to an earlier time."""
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
        backlog = self._backlog
        if backlog.archives and not self._is_writing:
            gather_s = 0.0 if backlog.is_large else GATHER_S
            when = max(min(backlog.archives.values()), now) + gather_s
        if not self._is_syncing:
            when = min(when, self._next_tick, next(iter(self._sync_due.values()), math.inf))
        if when < math.inf:
            self._arm(max(when, now))

    def _begin(self) -> None:
        self._timer = None
        now = self._scheduler.time()
        now_ns = self._scheduler.wall_time_ns()
        if not self._is_writing:
            self._begin_writing(now, now_ns)
        if not self._is_syncing:
            self._begin_syncing(now, now_ns)
        self._arm_next()

    # --- rounds of writes

    def _begin_writing(self, now: float, now_ns: int) -> None:
        waiting = self._backlog.archives
        ready = (archive for archive, when in waiting.items() if when <= now)
        archives = list(islice(ready, MAX_WRITES_PER_ROUND))
        if not archives:
            return
        self._backlog.is_urgent = len(archives) < len(waiting) and self._backlog.is_urgent
        for archive in archives:
            del waiting[archive]
            archive.gathering.hand_over()
        self._is_writing = True
        self._hold_timer = self._scheduler.call_at(now + MAX_HOLD_S, self._release)

        commits = _begin_commits(archives)
        pace, size_bytes, direct = self._pace, self._backlog.size_bytes, self._direct

        def work() -> None:
            seconds = 0.0
            begun = {archive: commit for archive, commit in commits.items() if commit is not None}
            try:
                for archive in archives:
                    commit = begun.pop(archive, None)
                    if commit is None:
                        began = time.perf_counter()
                        archive.write(now_ns, direct)
                        seconds += time.perf_counter() - began
                    archive.commit(commit)
            finally:
                for archive, commit in begun.items():
                    archive.give_up(commit)
                if self._backlog.size_bytes - size_bytes < ROUND_BYTES:  # what has come meanwhile
                    direct.release()
            if seconds:
                pace.note_job(seconds, size_bytes)

        self._scheduler.run_in_thread(work, functools.partial(self._end_writing, archives))

    def _release(self) -> None:
        """Let publishers go on: a round takes long."""
        self._hold_timer = None
        self._backlog.is_stuck = True
        for archive in self._archives.values():
            archive.release()

    def _end_writing(self, archives: list[Archive], error: OSError | None) -> None:
        assert error is None, "archives keep their errors"
        self._is_writing = False
        self._backlog.is_stuck = False
        if self._hold_timer is not None:
            self._hold_timer.cancel()
            self._hold_timer = None
        if self._is_closed:
            return
        now = self._scheduler.time()
        for archive in archives:
            if archive.is_closed:
                continue
            archive.settle()
            if archive.write_error is not None:
                self._backlog.archives[archive] = now + RETRY_S
            if archive.is_dirty:
                self._sync_due.setdefault(archive, now + self._sync_delay_s)
            self._note_health(archive)
        # Now that all have counted what was written.
        for archive in archives:
            archive.release(if_little=True)
        self._arm_next()

    # --- rounds of syncs

    def _plan_sync(self, archive: Archive) -> None:
        """Sync an archive that was written to, when that is due."""
        due = self._scheduler.time() + self._sync_delay_s
        if self._sync_due.setdefault(archive, due) == due and not self._is_syncing:
            self._arm(due)

    def _begin_syncing(self, now: float, now_ns: int) -> None:
        archives = list(takewhile(lambda archive: self._sync_due[archive] <= now, self._sync_due))
        if now >= self._next_tick:
            self._next_tick = now + self._tick_s
            archives = list(dict.fromkeys([*archives, *self._find_expired(now_ns)]))
        if not archives:
            return
        self._is_syncing = True

        def sync() -> None:
            for archive in archives:
                archive.sync(now_ns)

        self._scheduler.run_in_thread(sync, functools.partial(self._end_syncing, archives))

    def _find_expired(self, now_ns: int) -> list[Archive]:
        return [
            archive
            for archive in self._archives.values()
            if (expires_ns := archive.expires_ns) is not None and expires_ns < now_ns
        ]

    def _end_syncing(self, archives: list[Archive], error: OSError | None) -> None:
        assert error is None, "archives keep their errors"
        self._is_syncing = False
        if self._is_closed:
            return
        now = self._scheduler.time()
        for archive in archives:
            if archive.is_closed:
                continue
            self._sync_due.pop(archive, None)
            if archive.is_dirty:
                # The sync failed, and at once it would fail again; or more was written meanwhile.
                self._sync_due[archive] = now + self._sync_delay_s
            self._note_health(archive)
        self._arm_next()

    def _note_health(self, archive: Archive) -> None:
        error = archive.error
        if error is not None:
            if archive not in self._failing:
                logger.error("ARCHIVE(%s): failed to write - %s", archive.name, error)
            self._failing[archive] = error
        elif self._failing.pop(archive, None) is not None:
            logger.info("ARCHIVE(%s): goes on", archive.name)


def _begin_commits(archives: Iterable[Archive]) -> dict[Archive, Commit | None]:
    """Write on the loop what has gathered, as far as there is time; a thread does the rest."""
    commits: dict[Archive, Commit | None] = {}
    room_bytes = NOW_BYTES
    for archive in archives:
        size_bytes = max(archive.gathering.handed_over_bytes, NOW_MIN_BYTES)
        commit = archive.begin_commit() if size_bytes <= room_bytes else None
        if commit is not None:
            room_bytes -= size_bytes
        commits[archive] = commit
    return commits
