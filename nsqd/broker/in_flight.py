"""InFlight: the messages that one consumer has been given and has not answered.

A message whose deadline has passed goes back to the channel. A million of them may have one
deadline: they leave in slices, in round robin with those of other consumers, and the consumer can
still answer a message until it has left.
"""

import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, repeat
from typing import TypeAlias

from nsqd.broker.disposal import Dropped
from nsqd.broker.queue.batch import Batch, Message, Origin, Piece
from nsqd.broker.scheduler import Scheduler, Timer

# How many messages go back to the channel together, and between two looks at the clock.
MAX_EXPIRED_TOGETHER = 512
# How many ids are noted at once for the slices that follow. To find the front of a dict takes up to
# 3 ms after a million messages have left it, so that it is not done in each slice.
MAX_NOTED_IDS = 16384
# Deadlines that may be obsolete in `_early`, beside as many as there are messages.
_MAX_OBSOLETE_COUNT = 1024

# Python 3.11 calls a function for each `Origin.MEMORY`: 0.3 us.
_MEMORY = Origin.MEMORY

# deadline, time of delivery, timestamp_ns, attempts (this delivery included), body, ordinal or None
Entry: TypeAlias = tuple[float, float, int, int, bytes, int | None]


class InFlight:
    """The unanswered messages of one consumer, with one timer for the earliest deadline.

    Entries are keyed by message id, as FIN names it. With one timeout per consumer, insertion order
    is deadline order, so one timer for the first entry of the dict suffices; a FIN is a dict pop
    and never touches the timer. Only a TOUCH that runs into max-msg-timeout breaks the order: such
    an entry stands behind others with a later deadline, and has its own in the heap `_early`.

    Two messages may have one id, in a data directory that another tool has written. Both are kept:
    the second waits in `_twins` until the first is answered.
    """

    __slots__ = (
        "_early",
        "_is_expiring",
        "_noted",
        "_on_expired",
        "_scheduler",
        "_timer",
        "_timer_at",
        "_twins",
        "entries",
        "had_records",
        "on_change",
        "twin_count",
    )

    def __init__(self, scheduler: Scheduler, on_expired: Callable[[list[Message]], object]) -> None:
        """Args: on_expired: called with the messages whose deadline has passed; they have left."""
        self._scheduler = scheduler
        self._on_expired = on_expired
        self._timer: Timer | None = None
        self._timer_at = 0.0
        # Messages leave, slice by slice; no timer is set meanwhile.
        self._is_expiring = False
        # Ids from the front whose deadlines had passed when they were noted.
        self._noted: Iterator[bytes] = iter(())
        # A heap of deadlines and ids; obsolete ones are of messages that have left or were touched.
        self._early: list[tuple[float, bytes]] = []
        self._twins: dict[bytes, list[Entry]] = {}
        # How many messages wait in `_twins`; while there are any, `entries` is not all.
        self.twin_count = 0
        # The channel pops from this dict itself: a method call per FIN would show in the bench.
        self.entries: dict[bytes, Entry] = {}
        # Whether messages with records on disk have ever been among them.
        self.had_records = False
        # Called once, with ids and entries, before the next change; None if no snapshot is waiting.
        self.on_change: Callable[[list[bytes], list[Entry]], object] | None = None

    def tell(self) -> None:
        """Tell who asked for it which messages are here; 20 ns for each."""
        on_change, self.on_change = self.on_change, None
        if on_change is None:
            return
        ids, entries = list(self.entries), list(self.entries.values())
        for message_id, twins in self._twins.items():
            ids += [message_id] * len(twins)
            entries += twins
        on_change(ids, entries)

    def __len__(self) -> int:
        return len(self.entries) + self.twin_count

    def add_piece(
        self,
        piece: Piece,
        ids: Sequence[bytes],
        bodies: Sequence[bytes],
        now: float,
        deadline: float,
    ) -> None:
        """Note a piece of a queue that is delivered now; the caller has its ids and bodies."""
        batch = piece.batch
        if piece.origin is _MEMORY and isinstance(batch, Batch):
            self.add_published(batch.timestamp_ns, ids, bodies, now, deadline)
            return
        start, stop, ordinals = piece.start, piece.stop, piece.ordinals
        self.had_records = self.had_records or bool(ordinals)
        entries = zip(
            repeat(deadline),
            repeat(now),
            batch.timestamps(start, stop),
            batch.attempts(start, stop),
            bodies,
            ordinals or repeat(None),
            strict=False,
        )
        if isinstance(batch, Batch):
            self.add(ids, entries, deadline)  # its ids were made by this daemon, and are unique
        else:
            self.add_any(ids, entries, deadline)

    def add_published(
        self,
        timestamp_ns: int,
        ids: Sequence[bytes],
        bodies: Sequence[bytes],
        now: float,
        deadline: float,
    ) -> None:
        """Note messages of one publish, delivered now for the first time and without records.

        The loop takes a third of the time of `add` for five messages, and no more for hundreds.
        """
        if self.on_change is not None:
            self.tell()
        entries = self.entries
        for message_id, body in zip(ids, bodies, strict=True):
            entries[message_id] = (deadline, now, timestamp_ns, 1, body, None)
        if self._timer is None:
            self._arm(deadline)

    def add(self, ids: Sequence[bytes], entries: Iterable[Entry], deadline: float) -> None:
        """Note messages delivered now, with one deadline, later than all before."""
        if self.on_change is not None:
            self.tell()
        self.entries.update(zip(ids, entries, strict=True))
        if self._timer is None:
            self._arm(deadline)

    def add_any(self, ids: Sequence[bytes], entries: Iterable[Entry], deadline: float) -> None:
        """Note messages as `add` does, whose ids may not be unique."""
        if len(set(ids)) == len(ids) and self.entries.keys().isdisjoint(ids):
            self.add(ids, entries, deadline)
            return
        self.tell()
        for message_id, entry in zip(ids, entries, strict=True):
            if message_id in self.entries:
                self._twins.setdefault(message_id, []).append(entry)
                self.twin_count += 1
            else:
                self.add([message_id], [entry], deadline)

    def pop(self, message_id: bytes) -> Entry | None:
        """Remove and return one message; None if it is not here."""
        if self.on_change is not None:
            self.tell()
        entry = self.entries.pop(message_id, None)
        if self.twin_count:
            self._promote(message_id)
        return entry

    def pop_all(self, ids: Sequence[bytes]) -> list[Entry | None]:
        """Remove and return messages, None in the place of each that is not here."""
        return list(map(self.pop, ids))

    def pop_messages(self, ids: Sequence[bytes]) -> tuple[list[Message], list[bytes]]:
        """Remove and return messages, and the ids of those that are not here."""
        messages: list[Message] = []
        missing: list[bytes] = []
        for message_id in ids:
            entry = self.pop(message_id)
            if entry is None:
                missing.append(message_id)
            else:
                messages.append((message_id, *entry[2:]))
        return messages, missing

    def touch(self, message_id: bytes, deadline: float, max_timeout_s: float) -> bool:
        """Move a message's deadline, at most to `max_timeout_s` after its delivery.

        Return False if the message is not here.
        """
        entry = self.entries.get(message_id)
        if entry is None:
            return False
        self.tell()
        limit = entry[1] + max_timeout_s
        if deadline > limit:
            if entry[0] == limit:
                return True  # an earlier TOUCH has used up the time
            deadline = limit
            self._note_early(message_id, deadline)
        del self.entries[message_id]
        self.entries[message_id] = (deadline, *entry[1:])
        return True

    def __iter__(self) -> Iterator[Message]:
        """Give all messages, which stay here."""
        for message_id, entry in self.entries.items():
            yield _message(message_id, entry)
        for message_id, twins in self._twins.items():
            for entry in twins:
                yield _message(message_id, entry)

    def drop(self) -> list[Dropped]:
        """Forget all messages; return the containers to dispose of."""
        self.tell()
        dropped: list[Dropped] = [self.entries, self._twins, self._early]
        self.entries = {}
        self._twins = {}
        self.twin_count = 0
        self._early = []
        self._noted = iter(())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return dropped

    def close(self) -> list[Dropped]:
        """Let go of the channel, the consumer and all messages, as `drop` does."""
        self._on_expired = _ignore_expired
        return self.drop()

    def _promote(self, message_id: bytes) -> None:
        twins = self._twins.get(message_id)
        if twins:
            self.entries[message_id] = twin = twins.pop(0)
            self.twin_count -= 1
            self._note_early(message_id, twin[0])
            if not twins:
                del self._twins[message_id]

    def _note_early(self, message_id: bytes, deadline: float) -> None:
        """Note the deadline of a message that stands behind others with a later one."""
        if len(self._early) > len(self.entries) + _MAX_OBSOLETE_COUNT:
            live = self.entries.items()
            known = set(self._early)
            self._early = [pair for key, entry in live if (pair := (entry[0], key)) in known]
            heapq.heapify(self._early)
        heapq.heappush(self._early, (deadline, message_id))
        self._arm(deadline)

    def _arm(self, deadline: float) -> None:
        """Have the timer fire at a deadline, unless it does so earlier."""
        if self._is_expiring:
            return  # armed when that ends
        if self._timer is not None:
            if self._timer_at <= deadline:
                return
            self._timer.cancel()
        self._timer = self._scheduler.call_at(deadline, self._begin_to_expire)
        self._timer_at = deadline

    def _begin_to_expire(self) -> None:
        self._timer = None
        self._is_expiring = True
        # Not a slice at once: the timers of a thousand consumers may fire in one turn.
        self._scheduler.share(self._expire)

    def _expire(self) -> bool:
        """Let a slice of the messages leave whose deadline has passed; return whether more may."""
        end = self._scheduler.slice_end()
        while True:
            expired = self._pop_due(self._scheduler.time())
            if not expired:
                self._is_expiring = False
                self._arm_for_earliest()
                return False
            self._on_expired(expired)
            if time.perf_counter() >= end:
                return True

    def _pop_due(self, now: float) -> list[Message]:
        """Remove some messages whose deadline has passed; none if there are no more."""
        expired: list[Message] = []
        while len(expired) < MAX_EXPIRED_TOGETHER:
            room = MAX_EXPIRED_TOGETHER - len(expired)
            ids = list(islice(self._noted, room)) or self._note_due(now) or self._pop_early(now)
            if not ids:
                break
            for message_id in ids:
                entry = self.entries.get(message_id)
                # Answered or touched since it was noted, or due.
                if entry is not None and entry[0] <= now:
                    self.pop(message_id)
                    expired.append(_message(message_id, entry))
        return expired

    def _note_due(self, now: float) -> list[bytes]:
        """Note the ids at the front whose deadline has passed; return the first of them."""
        noted = []
        for message_id, entry in islice(self.entries.items(), MAX_NOTED_IDS):
            if entry[0] > now:
                break
            noted.append(message_id)
        self._noted = iter(noted)
        return list(islice(self._noted, 1))

    def _pop_early(self, now: float) -> list[bytes]:
        """Return the next id of the heap whose deadline has passed."""
        if self._early and self._early[0][0] <= now:
            return [heapq.heappop(self._early)[1]]
        return []

    def _arm_for_earliest(self) -> None:
        if not self.entries:
            self._early.clear()
            return
        earliest = next(iter(self.entries.values()))[0]
        if self._early:
            earliest = min(earliest, self._early[0][0])
        self._arm(earliest)


def _ignore_expired(messages: list[Message]) -> None:
    """Call no channel: this InFlight has been closed."""


def _message(message_id: bytes, entry: Entry) -> Message:
    _, _, timestamp_ns, attempts, body, ordinal = entry
    return message_id, timestamp_ns, attempts, body, ordinal
