"""SyncSchedule: when a disk queue is synced, and which appends and receipts a sync covers.

The event loop prepares a sync, a thread runs it, the event loop completes it; one runs at a time. A
full sync makes the records and the metadata (positions, finished records) durable. It starts
`timeout_s` after the first change, or at once after `every_count` changes.

Group commit (`--sync-every=1`): publishes wait for their fsync. A sync then starts at the end of
the turn in which a receipt was added and covers all appends of that turn; receipts that are added
while it runs wait for the next one. Such a sync makes the records durable and nothing else, which
is one fsync; the metadata follows within `PROMPT_METADATA_S`.

    IDLE ----- change ------> WAITING ----- timer ------------.
      |                          |                             v
      `--- receipt or count -----'---> STARTING --- turn ---> RUNNING ---> IDLE, WAITING, RUNNING

A full sync is due at `_full_at`. A timer is set in WAITING and in no other state.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from math import inf
from typing import Protocol

from diskqueue import SyncJob
from nsqd.broker.durations import SyncTimes
from nsqd.broker.queue.receipt import Receipt
from nsqd.broker.scheduler import Scheduler, Timer

logger = logging.getLogger(__name__)

# With group commit the metadata follows this soon: not at each FIN, which would take the disk from
# the publishes that wait for it.
PROMPT_METADATA_S = 0.1
_AT_ONCE = -inf
_NEVER = inf


class SyncState(Enum):
    """The life of a schedule."""

    IDLE = auto()  # everything is durable
    WAITING = auto()  # for the timer of the next full sync
    STARTING = auto()  # at the end of this turn, so that the sync covers all of it
    RUNNING = auto()  # a thread syncs
    CLOSED = auto()


# Python 3.11 calls a function for each `SyncState.IDLE`: 0.3 us, at each append and commit.
_IDLE, _WAITING = SyncState.IDLE, SyncState.WAITING


class SyncFailure(Enum):
    """The part that a failed sync did not make durable, until a later sync has done so."""

    NONE = auto()
    RECORDS = auto()
    METADATA = auto()  # a sync of records alone does not make up for that


class SyncedQueue(Protocol):
    """A queue whose changes become durable by a job that may run in any thread."""

    @property
    def unsynced_count(self) -> int:
        """How many appends and commits are not durable."""

    def prepare_sync(self, *, with_metadata: bool = True) -> SyncJob | None:
        """Return the job of making everything up to now durable, None if it is already.

        Raises:
            OSError: no job can be made.
        """

    def complete_sync(self, job: SyncJob, error: OSError | None = None) -> None:
        """Note that a job has ended, and its error if it failed."""


@dataclass(frozen=True, slots=True)
class SyncRules:
    """How often to sync."""

    every_count: int
    timeout_s: float
    is_group_commit: bool = False

    @property
    def full_sync_delay_s(self) -> float:
        """How long after a change a full sync starts at the latest."""
        return min(self.timeout_s, PROMPT_METADATA_S) if self.is_group_commit else self.timeout_s


class SyncSchedule:
    """Syncs one queue, settles the receipts of its appends and retries after failures."""

    def __init__(
        self,
        name: str,
        queue: SyncedQueue,
        scheduler: Scheduler,
        rules: SyncRules,
        on_outcome: Callable[[OSError | None], object],
        sync_times: SyncTimes | None = None,
    ) -> None:
        """Args:
        name: of the queue, for the log.
        on_outcome: called with each error, and with None once a sync has made up for it.
        sync_times: is told when each sync begins and ends.
        """
        self._name = name
        self._queue = queue
        self._scheduler = scheduler
        self._every_count = rules.every_count
        self._delay_s = rules.full_sync_delay_s
        self._is_group_commit = rules.is_group_commit
        self._on_outcome = on_outcome
        self._sync_times = sync_times
        self._state = SyncState.IDLE
        self._failure = SyncFailure.NONE
        self._full_at = _NEVER
        self._timer: Timer | None = None
        self._job: SyncJob | None = None
        # Appends are numbered, so that a receipt waits for a sync that covers its own.
        self._append_number = 0
        self._covered_number = 0  # by the sync that runs, or the last one
        self._receipts: deque[tuple[int, Receipt]] = deque()
        # Those that wait for a full sync, and those that the one that runs covers.
        self._full_receipts: list[Receipt] = []
        self._covered_receipts: list[Receipt] = []

    @property
    def state(self) -> SyncState:
        """Whether a sync runs, starts, or is waited for."""
        return self._state

    def note_append(self) -> None:
        """Have an append synced."""
        self._append_number += 1
        self.note_change()

    def note_change(self) -> None:
        """Have a change of the queue synced that no receipt can wait for."""
        state = self._state
        if state is not _WAITING and state is not _IDLE:
            return  # a sync that starts covers the change, and `_rest` looks for more
        if self._is_count_reached:
            self._full_at = _AT_ONCE
            self._start_soon()
        elif state is _IDLE:
            self._full_at = self._scheduler.time() + self._delay_s
            self._wait()

    @property
    def _is_resting(self) -> bool:
        """Whether no sync runs or starts."""
        return self._state is _IDLE or self._state is _WAITING

    @property
    def _is_count_reached(self) -> bool:
        """Whether a full sync is due before its time; a retry waits for its time."""
        return (
            self._queue.unsynced_count >= self._every_count
            and not self._is_group_commit
            and self._failure is SyncFailure.NONE
        )

    def add_receipt(self, receipt: Receipt) -> None:
        """Settle the receipt when the appends up to now have been synced."""
        self._receipts.append((self._append_number, receipt))
        if self._is_group_commit and self._is_resting:
            self._start_soon()

    def sync_fully(self, receipt: Receipt) -> None:
        """Begin a full sync at the end of this turn; settle the receipt when it has ended."""
        self._full_receipts.append(receipt)
        self._full_at = _AT_ONCE
        if self._is_resting:
            self._start_soon()

    def settle_all(self) -> None:
        """Settle the receipts of all appends: the queue was emptied, none is left to be synced."""
        self._settle(self._append_number, None)

    def stop(self) -> None:
        """Start no sync any more; receipts that wait are not settled."""
        self._state = SyncState.CLOSED
        self._cancel_timer()

    def end(self) -> None:
        """Start no sync any more: the queue is gone. The receipts that wait are settled."""
        self.stop()
        receipts, self._full_receipts = self._full_receipts, []
        for receipt in receipts:
            receipt.settle(None)

    def _start_soon(self) -> None:
        """Start a sync at the end of this turn, so that it covers all of the turn."""
        self._cancel_timer()
        self._state = SyncState.STARTING
        self._scheduler.call_soon(self._on_turn_end)

    def _on_turn_end(self) -> None:
        if self._state is SyncState.STARTING:
            self._start()

    def _on_timer(self) -> None:
        self._timer = None
        self._full_at = _AT_ONCE  # a timer may ring a moment early
        self._start()

    def _start(self) -> None:
        self._state = SyncState.RUNNING
        is_full = self._full_at <= self._scheduler.time()
        if is_full:
            self._full_at = _NEVER
            self._covered_receipts, self._full_receipts = self._full_receipts, []
        self._covered_number = self._append_number
        try:
            self._job = self._queue.prepare_sync(with_metadata=is_full)
        except OSError as error:
            self._settle(self._covered_number, error)
            self._fail(SyncFailure.RECORDS, error)
            self._settle_full(error)
            self._rest()
            return
        if self._job is None:
            # All is durable, or the changes were undone or emptied.
            self._settle(self._covered_number, None)
            self._succeed(is_full=is_full)
            self._settle_full(None)
            self._rest()
            return
        if self._sync_times is not None:
            self._sync_times.begin(self)
        self._scheduler.run_in_thread(self._job.run, self._on_end)

    def _on_end(self, error: OSError | None) -> None:
        job, self._job = self._job, None
        assert job is not None
        if self._sync_times is not None:
            self._sync_times.end(self, error)
        if self._state is SyncState.CLOSED:
            return  # the queue's close has waited for the job and synced again
        self._queue.complete_sync(job, error)
        # A new file is found after a power cut only if its directory was synced too.
        are_records_safe = job.are_segments_durable and not job.has_new_files
        self._settle(self._covered_number, None if are_records_safe else error)
        if error is None:
            self._succeed(is_full=job.metadata is not None)
        else:
            have_records = job.are_segments_durable
            self._fail(SyncFailure.METADATA if have_records else SyncFailure.RECORDS, error)
        self._settle_full(error)
        # Settling a receipt runs the code of its owner, which may add another or stop the schedule.
        if self._has_urgent_receipts and self._state is SyncState.RUNNING:
            self._start()
        else:
            self._rest()

    @property
    def _has_urgent_receipts(self) -> bool:
        return bool(self._full_receipts or (self._is_group_commit and self._receipts))

    def _rest(self) -> None:
        """Leave RUNNING: wait for the next full sync, or for a change if none is planned."""
        if self._state is SyncState.CLOSED:
            return
        if self._has_urgent_receipts:
            self._start_soon()
        elif self._full_at < _NEVER:
            self._wait()
        else:
            self._state = SyncState.IDLE
            if self._queue.unsynced_count:
                self.note_change()

    def _wait(self) -> None:
        self._state = SyncState.WAITING
        self._timer = self._scheduler.call_at(self._full_at, self._on_timer)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _settle(self, number: int, error: OSError | None) -> None:
        """Settle the receipts of the appends up to `number`."""
        while self._receipts and self._receipts[0][0] <= number:
            self._receipts.popleft()[1].settle(error)

    def _settle_full(self, error: OSError | None) -> None:
        """Settle the receipts that the full sync covers which has ended."""
        receipts, self._covered_receipts = self._covered_receipts, []
        for receipt in receipts:
            receipt.settle(error)

    def _fail(self, failure: SyncFailure, error: OSError) -> None:
        """Report, and plan a full sync after the delay: at once it would only fail again."""
        logger.error("DISKQUEUE(%s): failed to sync - %s", self._name, error)
        if self._failure is not SyncFailure.METADATA:
            self._failure = failure
        self._full_at = min(self._full_at, self._scheduler.time() + self._delay_s)
        self._on_outcome(error)

    def _succeed(self, *, is_full: bool) -> None:
        if self._failure is SyncFailure.NONE:
            return
        if is_full or self._failure is SyncFailure.RECORDS:
            self._failure = SyncFailure.NONE
            self._on_outcome(None)
