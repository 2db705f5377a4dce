"""Deferred: the messages of one channel that are kept back in memory until they are due.

More of them may lie unread in the files of the channel's queue, which knows their due times.
"""

import heapq
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import count

from nsqd.broker.queue.batch import RECORD_OVERHEAD_BYTES, Message, Piece
from nsqd.broker.scheduler import Scheduler, Timer


class Deferred:
    """A heap of messages by due time, with one timer for its first."""

    __slots__ = ("_heap", "_on_due", "_order", "_scheduler", "_timer", "_timer_at", "size_bytes")

    def __init__(self, scheduler: Scheduler, on_due: Callable[[list[Message]], object]) -> None:
        """Args: on_due: called with the messages that are due, in the order of their due times."""
        self._scheduler = scheduler
        self._on_due = on_due
        # The running number keeps messages of one due time in order and bodies out of comparisons.
        self._heap: list[tuple[float, int, Message]] = []
        self._order = count()
        self._timer: Timer | None = None
        self._timer_at = 0.0
        self.size_bytes = 0  # of the records that the messages have, or would have, on disk

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, messages: Sequence[Message], due: float) -> None:
        """Keep messages back until `due`."""
        self.size_bytes += _size_bytes(messages)
        for message in messages:
            heapq.heappush(self._heap, (due, next(self._order), message))
        self._arm()

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
        next_up = [(*self._heap[0][:2], 0)] if self._heap else []
        while next_up:
            due, _, index = heapq.heappop(next_up)
            yield due, self._heap[index][2]
            for child in range(2 * index + 1, min(2 * index + 3, len(self._heap))):
                heapq.heappush(next_up, (*self._heap[child][:2], child))

    def discard(self, ids: Collection[bytes]) -> None:
        """Forget some messages; slow, as it looks at all of them."""
        self._heap = [item for item in self._heap if item[2][0] not in ids]
        heapq.heapify(self._heap)
        self.size_bytes = _size_bytes([message for _, _, message in self._heap])

    def clear(self) -> list[tuple[float, Message]]:
        """Forget all messages and return them with their due times, earliest first."""
        messages = [(due, message) for due, _, message in sorted(self._heap, key=_order)]
        self._heap.clear()
        self.size_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return messages

    def close(self) -> list[tuple[float, Message]]:
        """Let go of the channel; return the messages as `clear` does."""
        self._on_due = _ignore
        return self.clear()

    def _arm(self) -> None:
        if not self._heap:
            return
        due = self._heap[0][0]
        if self._timer is not None:
            if self._timer_at <= due:
                return
            self._timer.cancel()
        self._timer = self._scheduler.call_at(due, self._fire)
        self._timer_at = due

    def _fire(self) -> None:
        self._timer = None
        now = self._scheduler.time()
        messages = []
        while self._heap and self._heap[0][0] <= now:
            messages.append(heapq.heappop(self._heap)[2])
        self.size_bytes -= _size_bytes(messages)
        self._arm()
        if messages:
            self._on_due(messages)


def _order(item: tuple[float, int, Message]) -> tuple[float, int]:
    return item[:2]


def _size_bytes(messages: Sequence[Message]) -> int:
    return sum(len(message[3]) for message in messages) + len(messages) * RECORD_OVERHEAD_BYTES


def _ignore(messages: list[Message]) -> None:
    """Call no channel: this Deferred has been closed."""
