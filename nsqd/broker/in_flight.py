"""InFlight: the messages that one consumer has been given and has not answered yet.

Entries are keyed by message id, as FIN names it. With one timeout per consumer, insertion order is
deadline order, so one timer for the first entry of the dict suffices; a FIN is a dict pop and never
touches the timer. Only a TOUCH that runs into max-msg-timeout breaks the order, and then expiry
looks at every entry.

Two messages may have one id, in a data directory that another tool has written. Both are kept: the
second waits in `_twins` until the first is answered.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat
from typing import TypeAlias

from nsqd.broker.queue.batch import Batch, Message
from nsqd.broker.queue.piece import Piece
from nsqd.broker.scheduler import Scheduler, Timer

# deadline, time of delivery, timestamp_ns, attempts (this delivery included), body, ordinal or None
Entry: TypeAlias = tuple[float, float, int, int, bytes, int | None]


class InFlight:
    """The unanswered messages of one consumer, with one timer for the earliest deadline."""

    __slots__ = (
        "_has_order",
        "_on_expired",
        "_scheduler",
        "_timer",
        "_timer_at",
        "_twins",
        "entries",
        "twin_count",
    )

    def __init__(self, scheduler: Scheduler, on_expired: Callable[[list[Message]], object]) -> None:
        """Args: on_expired: called with the messages whose deadline has passed; they have left."""
        self._scheduler = scheduler
        self._on_expired = on_expired
        self._timer: Timer | None = None
        self._timer_at = 0.0
        self._has_order = True
        self._twins: dict[bytes, list[Entry]] = {}
        # How many messages wait in `_twins`; while there are any, `entries` is not all.
        self.twin_count = 0
        # The channel pops from this dict itself: a method call per FIN would show in the bench.
        self.entries: dict[bytes, Entry] = {}

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
        batch, start, stop = piece.batch, piece.start, piece.stop
        entries = zip(
            repeat(deadline),
            repeat(now),
            batch.timestamps(start, stop),
            batch.attempts(start, stop),
            bodies,
            piece.ordinals or repeat(None),
            strict=False,
        )
        if isinstance(batch, Batch):
            self.add(ids, entries, deadline)  # its ids were made by this daemon, and are unique
        else:
            self.add_any(ids, entries, deadline)

    def add(self, ids: Sequence[bytes], entries: Iterable[Entry], deadline: float) -> None:
        """Note messages delivered now, with one deadline, later than all before."""
        self.entries.update(zip(ids, entries, strict=True))
        if self._timer is None:
            self._arm(deadline)

    def add_any(self, ids: Sequence[bytes], entries: Iterable[Entry], deadline: float) -> None:
        """Note messages as `add` does, whose ids may not be unique."""
        if len(set(ids)) == len(ids) and self.entries.keys().isdisjoint(ids):
            self.add(ids, entries, deadline)
            return
        for message_id, entry in zip(ids, entries, strict=True):
            if message_id in self.entries:
                self._twins.setdefault(message_id, []).append(entry)
                self.twin_count += 1
            else:
                self.add([message_id], [entry], deadline)

    def pop(self, message_id: bytes) -> Entry | None:
        """Remove and return one message; None if it is not here."""
        entry = self.entries.pop(message_id, None)
        if self.twin_count and entry is not None:
            self._promote(message_id)
        return entry

    def pop_all(self, ids: Sequence[bytes]) -> list[Entry | None]:
        """Remove and return messages, None in the place of each that is not here."""
        return list(map(self.pop, ids))

    def touch(self, message_id: bytes, deadline: float, max_timeout_s: float) -> bool:
        """Move a message's deadline, at most to `max_timeout_s` after its delivery.

        Return False if the message is not here.
        """
        entry = self.entries.pop(message_id, None)
        if entry is None:
            return False
        limit = entry[1] + max_timeout_s
        if deadline > limit:
            deadline = limit
            self._has_order = False
            self._arm(deadline)
        self.entries[message_id] = (deadline, *entry[1:])
        return True

    def clear(self) -> list[Message]:
        """Forget all messages and return them."""
        everything = chain(
            self.entries.items(),
            ((message_id, entry) for message_id, twins in self._twins.items() for entry in twins),
        )
        messages = [_message(message_id, entry) for message_id, entry in everything]
        self.entries.clear()
        self._twins.clear()
        self.twin_count = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return messages

    def close(self) -> list[Message]:
        """Let go of the channel and the consumer; return the messages."""
        self._on_expired = _ignore
        return self.clear()

    def _promote(self, message_id: bytes) -> None:
        twins = self._twins.get(message_id)
        if twins:
            self.entries[message_id] = twin = twins.pop(0)
            self.twin_count -= 1
            self._has_order = False
            self._arm(twin[0])  # its deadline may have passed: the timer watches `entries` alone
            if not twins:
                del self._twins[message_id]

    def _expire(self) -> None:
        self._timer = None
        now = self._scheduler.time()
        expired: list[Message] = []
        for message_id in self._due(now):
            entry = self.pop(message_id)
            while entry is not None:
                expired.append(_message(message_id, entry))
                twin = self.entries.get(message_id)
                entry = self.pop(message_id) if twin is not None and twin[0] <= now else None
        self._arm_for_earliest()
        if expired:
            self._on_expired(expired)

    def _due(self, now: float) -> list[bytes]:
        due = []
        for message_id, entry in self.entries.items():
            if entry[0] <= now:
                due.append(message_id)
            elif self._has_order:
                break
        return due

    def _arm(self, deadline: float) -> None:
        """Have the timer fire at a deadline, unless it does so earlier."""
        if self._timer is not None:
            if self._timer_at <= deadline:
                return
            self._timer.cancel()
        self._timer = self._scheduler.call_at(deadline, self._expire)
        self._timer_at = deadline

    def _arm_for_earliest(self) -> None:
        if not self.entries:
            self._has_order = True
            return
        if self._has_order:
            earliest = next(iter(self.entries.values()))[0]
        else:
            earliest = min(entry[0] for entry in self.entries.values())
        self._arm(earliest)


def _ignore(messages: list[Message]) -> None:
    """Call no channel: this InFlight has been closed."""


def _message(message_id: bytes, entry: Entry) -> Message:
    _, _, timestamp_ns, attempts, body, ordinal = entry
    return message_id, timestamp_ns, attempts, body, ordinal
