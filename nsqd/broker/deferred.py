"""Deferred: the messages of one channel that are kept back in memory until they are due.

More of them may lie unread in the files of the channel's queue, which knows their due times.
"""

import heapq
import time
from collections.abc import Callable, Iterator, Sequence

from nsqd.broker.disposal import Dropped, dispose
from nsqd.broker.queue.batch import RECORD_OVERHEAD_BYTES, Message, Piece
from nsqd.broker.scheduler import Scheduler, Timer
from nsqd.broker.snapshot.copies import DeferredCopy

# How many messages go back to the channel together, and between two looks at the clock.
MAX_DUE_TOGETHER = 512


class Deferred:
    """Messages by due time, with one timer for the first of them.

    The clock of uvloop stands still during a turn and counts milliseconds, so the messages of many
    publishes and requeues have the same due time. They are one run: a message costs a place in a
    list, and one in a thousand a place in the heap of due times.

    A million messages may be due at one time. They leave in slices, in round robin with those of
    other channels.
    """

    __slots__ = (
        "_copy",
        "_count",
        "_heap",
        "_is_releasing",
        "_last_add",
        "_left_count",
        "_on_due",
        "_runs",
        "_scheduler",
        "_timer",
        "_timer_at",
        "size_bytes",
    )

    def __init__(self, scheduler: Scheduler, on_due: Callable[[list[Message]], object]) -> None:
        """Args: on_due: called with the messages that are due, in the order of their due times."""
        self._scheduler = scheduler
        self._on_due = on_due
        # A heap of the keys of `_runs`, each once.
        self._heap: list[float] = []
        self._runs: dict[float, list[Message]] = {}
        # How many messages of the first run have left already.
        self._left_count = 0
        # The due time of the last `add`, and of how many messages.
        self._last_add = (0.0, 0)
        self._count = 0
        # Messages leave, slice by slice; no timer is set meanwhile.
        self._is_releasing = False
        self._timer: Timer | None = None
        self._timer_at = 0.0
        # Is told of each run before it changes; None while there is no copy.
        self._copy: DeferredCopy | None = None
        self.size_bytes = 0  # of the records that the messages have, or would have, on disk

    def __len__(self) -> int:
        return self._count

    def begin_copy(self) -> DeferredCopy:
        """Return a copy of the messages, which its owner completes and ends with `end_copy`."""
        assert self._copy is None, "one copy at a time"
        self._copy = DeferredCopy(self._heap.copy(), self._runs, self._left_count)
        return self._copy

    def end_copy(self) -> None:
        """Tell the copy nothing any more."""
        self._copy = None

    def add(self, messages: Sequence[Message], due: float) -> None:
        """Keep messages back until `due`."""
        self._last_add = (due, len(messages))
        if not messages:
            return
        if self._copy is not None:
            self._copy.note(due)
        run = self._runs.get(due)
        if run is None:
            self._runs[due] = list(messages)
            heapq.heappush(self._heap, due)
            self._arm()
        else:
            run += messages
        self._count += len(messages)
        self.size_bytes += _size_bytes(messages)

    def undo_add(self) -> None:
        """Forget the messages of the last `add`, which was in this turn of the loop."""
        due, count = self._last_add
        if count:
            run = self._runs[due]
            self._count -= count
            self.size_bytes -= _size_bytes(run[-count:])
            del run[-count:]

    def add_if_early(self, piece: Piece) -> bool:
        """Keep a piece of a deferred batch back; False if it is due and shall be delivered.

        Such a piece comes from the queue: it was on disk, after a restart or behind a backlog.
        """
        delay_s = piece.batch.remaining_s(self._scheduler.steady_time_ns())
        if delay_s <= 0:
            return False
        self.add(piece.messages(), self._scheduler.time() + delay_s)
        return True

    def __iter__(self) -> Iterator[tuple[float, Message]]:
        """Give the messages and their due times, earliest first; they stay here."""
        # A walk down the heap: the first few of a million cost as little as those of a few.
        next_up = [(self._heap[0], 0)] if self._heap else []
        start = self._left_count
        while next_up:
            due, index = heapq.heappop(next_up)
            run = self._runs[due]
            for position in range(start, len(run)):
                yield due, run[position]
            start = 0
            for child in range(2 * index + 1, min(2 * index + 3, len(self._heap))):
                heapq.heappush(next_up, (self._heap[child], child))

    def drop(self) -> list[Dropped]:
        """Forget all messages; return the containers to dispose of."""
        dropped: list[Dropped] = [self._heap]
        if self._copy is None:
            dropped.append(self._runs)
        else:
            # The copy needs the runs that it has not noted, and disposes of all of them.
            self._copy.adopt()
            self._copy = None
        self._runs = {}
        self._heap = []
        self._left_count = self._count = self.size_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return dropped

    def close(self) -> list[Dropped]:
        """Let go of the channel and all messages, as `drop` does."""
        self._on_due = _ignore
        return self.drop()

    def _arm(self) -> None:
        if not self._heap or self._is_releasing:
            return
        due = self._heap[0]
        if self._timer is not None:
            if self._timer_at <= due:
                return
            self._timer.cancel()
        self._timer = self._scheduler.call_at(due, self._begin_release)
        self._timer_at = due

    def _begin_release(self) -> None:
        self._timer = None
        self._is_releasing = True
        # Not a slice at once: the timers of a thousand channels may fire in one turn.
        self._scheduler.share(self._release)

    def _release(self) -> bool:
        """Let a slice of the messages leave that are due; return whether more may be due."""
        end = self._scheduler.slice_end()
        while True:
            messages = self._pop_due(self._scheduler.time())
            if not messages:
                self._is_releasing = False
                self._arm()
                return False
            self._count -= len(messages)
            self.size_bytes -= _size_bytes(messages)
            self._on_due(messages)
            if time.perf_counter() >= end:
                return True

    def _pop_due(self, now: float) -> list[Message]:
        """Remove some messages that are due; none if there are no more."""
        messages: list[Message] = []
        while self._heap and self._heap[0] <= now and len(messages) < MAX_DUE_TOGETHER:
            if self._copy is not None:
                self._copy.note(self._heap[0])
            run = self._runs[self._heap[0]]
            start = self._left_count
            stop = min(start + MAX_DUE_TOGETHER - len(messages), len(run))
            messages += run[start:stop]
            if stop < len(run):
                self._left_count = stop
            else:
                self._left_count = 0
                due = heapq.heappop(self._heap)
                del self._runs[due]
                # A run may have a million messages: to free its list takes 20 ms.
                if self._copy is None or not self._copy.has(due, run):
                    dispose(self._scheduler, [run])
        return messages


def _size_bytes(messages: Sequence[Message]) -> int:
    return sum([len(message[3]) for message in messages]) + len(messages) * RECORD_OVERHEAD_BYTES


def _ignore(messages: list[Message]) -> None:
    """Call no channel: this Deferred has been closed."""
