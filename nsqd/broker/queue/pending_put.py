"""PendingPut: a put whose records a thread writes, before the messages appear in the queue.

`MessageQueue.plan_put` decides which messages go to memory and which to disk, and makes a
PendingPut with the job of writing the latter; `MessageQueue.complete_put` enters all of them. The
messages come in parts, each a batch with its encoded records, which all channels of a topic share.

A `Transfer` is the same messages on their way into several queues: all get them or none does.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from diskqueue import AppendJob, RecordChunk
from nsqd.broker.queue.aside import AsideAppends
from nsqd.broker.queue.batch import AnyBatch


class Part:
    """A batch on its way into queues, and its records for those that write them to disk."""

    __slots__ = ("batch", "chunk")

    def __init__(self, batch: AnyBatch) -> None:
        self.batch = batch
        # All messages as disk records, when they have been encoded.
        self.chunk: RecordChunk | None = None

    def encode(self) -> RecordChunk:
        """Return all messages as disk records; the first call makes them."""
        if self.chunk is None:
            self.chunk = RecordChunk(*self.batch.records(0, len(self.batch.bodies)))
        return self.chunk


class PendingPut:
    """A put into one queue."""

    __slots__ = ("aside", "job", "memory_count", "parts")

    def __init__(
        self,
        parts: Sequence[Part],
        memory_count: int,
        aside: AsideAppends | None,
        job: AppendJob | None,
    ) -> None:
        """Args:
        memory_count: how many messages from the first on go to memory.
        aside: has prepared the job.
        job: writes the others to disk, None if there are none or they are dropped.
        """
        self.parts = parts
        self.memory_count = memory_count
        self.aside = aside
        self.job = job

    def give_up(self, error: OSError | None) -> None:
        """Allow the queue other appends, after the job has failed with this error or was undone."""
        if self.aside is not None and self.job is not None:
            self.aside.end(self.job, error)


class PutQueue(Protocol):
    """A queue that messages can be put into."""

    def plan_put(self, parts: Sequence[Part], *, is_stored: bool = False) -> PendingPut:
        """Begin a put; of stored messages, to disk.

        Raises:
            OSError: the process has no descriptors left.
        """

    def complete_put(self, put: PendingPut) -> None:
        """Let the messages appear, after the job has run."""


@dataclass(frozen=True, slots=True)
class PutTarget:
    """A queue that gets messages, and the call that tells its owner how many it got."""

    queue: PutQueue
    on_put: Callable[[int], object]
    # The messages come from the disk of another queue, so they go to the disk of this one.
    is_stored: bool = False


class TransferState(Enum):
    """How far a transfer is."""

    PLANNED = auto()
    WRITTEN = auto()
    FAILED = auto()


class Transfer:
    """Puts of the same messages into several queues."""

    def __init__(self, targets: Sequence[PutTarget], parts: Sequence[Part]) -> None:
        """Plan the puts.

        Raises:
            OSError: the process has no descriptors left; no put was begun.
        """
        self.error: OSError | None = None
        self._state = TransferState.PLANNED
        # Held while the jobs run: a daemon that stops waits for them.
        self._lock = threading.Lock()
        self._failed: PendingPut | None = None
        self._count = sum(len(part.batch.bodies) for part in parts)
        self._puts: list[tuple[PutTarget, PendingPut]] = []
        try:
            for target in targets:
                self._puts.append(
                    (target, target.queue.plan_put(parts, is_stored=target.is_stored))
                )
        except OSError:
            self.undo()
            self.give_up()
            raise

    @property
    def has_jobs(self) -> bool:
        """Whether records have to be written."""
        return any(put.job is not None for _, put in self._puts)

    def run(self) -> None:
        """Write the records, in any thread; a second call waits for the first.

        If that fails, no queue has them, and `error` says why.
        """
        with self._lock:
            if self._state is not TransferState.PLANNED:
                return
            self._state = TransferState.WRITTEN
            for _, put in self._puts:
                if put.job is None:
                    continue
                try:
                    put.job.run()
                except OSError as error:
                    self._state = TransferState.FAILED
                    self.error = error
                    self._failed = put
                    break
            if self.error is not None:
                self.undo()

    def undo(self) -> None:
        """Make all files as they were before; blocks."""
        for _, put in reversed(self._puts):
            if put.job is not None:
                put.job.undo()

    def complete(self) -> bool:
        """Let the messages appear in all queues, after they were written.

        Returns False if a queue was emptied or deleted meanwhile, or has given up the file: then
        `undo` and `give_up` end this transfer, and another may be tried.
        """
        if any(put.job is not None and put.job.is_cancelled for _, put in self._puts):
            return False
        for target, put in self._puts:
            target.queue.complete_put(put)
            target.on_put(self._count)
        return True

    def give_up(self) -> None:
        """Allow the queues other appends, after a failure or `undo`."""
        for _, put in self._puts:
            put.give_up(self.error if put is self._failed else None)
