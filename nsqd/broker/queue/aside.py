"""AsideAppends: appends to a disk queue that a thread writes while the queue goes on."""

from collections.abc import Callable, Sequence

from diskqueue import AppendJob, DiskQueue, RecordChunk
from nsqd.broker.queue.pace import Pace
from nsqd.broker.queue.receipt import Receipts
from nsqd.broker.queue.sync_schedule import SyncSchedule


class AsideAppends:
    """The appends of one disk queue that are made aside, one at a time."""

    def __init__(
        self,
        queue: DiskQueue,
        schedule: SyncSchedule,
        receipts: Receipts,
        on_write: Callable[[OSError | None], object],
        pace: Pace,
    ) -> None:
        """Args:
        schedule: syncs the queue.
        receipts: notes each append.
        on_write: called with the outcome of each append.
        """
        # Says whether an append need not be made aside.
        self.pace = pace
        self._job: AppendJob | None = None
        self._queue = queue
        self._schedule = schedule
        self._receipts = receipts
        self._on_write = on_write

    @property
    def is_busy(self) -> bool:
        """Whether a job was prepared that has not ended: no other append may be made."""
        return self._job is not None and not self._job.is_cancelled

    @property
    def is_needed(self) -> bool:
        """Whether an append must not be made on the loop."""
        return not self.pace.is_quick or self.is_busy

    @property
    def is_stalled(self) -> bool:
        """Whether an append on the loop is impossible, or likely to take long."""
        return self.is_busy or self.pace.is_slow

    def prepare(self, chunks: Sequence[RecordChunk]) -> AppendJob:
        """Return the job of writing records, which any thread may run; `end` takes it back.

        Raises:
            OSError: the process has no descriptors left.
        """
        self._job = job = self._queue.prepare_append(chunks)
        return job

    def end(self, job: AppendJob, error: OSError | None = None) -> bool:
        """Append the records that a job has written, and allow other appends again.

        Returns False if nothing was appended: the job has failed with this error, was undone, or
        was cancelled because the queue was emptied meanwhile.
        """
        if job is self._job:
            self._job = None
        if not job.end():
            if error is not None:
                self._on_write(error)
            return False
        self._on_write(None)
        self.pace.note_job(job.seconds, job.size_bytes)
        self._receipts.note(self._schedule)
        self._schedule.note_append()
        return True

    def advance(self, lengths: Sequence[int]) -> int:
        """Mark the next unread records as read: they are in memory; return the first ordinal."""
        return self._queue.advance(lengths)
