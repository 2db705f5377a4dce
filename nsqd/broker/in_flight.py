"""InFlight: what one consumer has been given and has not answered yet.

Entries are keyed by message id, as FIN names it. With one timeout per consumer, insertion order is
deadline order, so the front of the dict is the head of the queue and one timer on it suffices; a
FIN is a dict pop and never touches the timer. Only a TOUCH that runs into max-msg-timeout breaks
the order, and then expiry looks at every entry.

Two messages with one id (data directories of other tools may hold anything) are both kept: the
second waits in `_twins` until the first is answered.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TypeAlias

from nsqd.broker.queue.batch import Message
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
    )

    def __init__(self, scheduler: Scheduler, on_expired: Callable[[list[Message]], object]) -> None:
        """Args: on_expired: told of the messages whose deadline has passed, already taken out."""
        self._scheduler = scheduler
        self._on_expired = on_expired
        self._timer: Timer | None = None
        self._timer_at = 0.0
        self._has_order = True
        self._twins: dict[bytes, list[Entry]] = {}
        # The channel reads and pops this dict directly: it is the hottest one of all.
        self.entries: dict[bytes, Entry] = {}

    def __len__(self) -> int:
        if not self._twins:
            return len(self.entries)
        return len(self.entries) + sum(map(len, self._twins.values()))

    def add(self, ids: Sequence[bytes], entries: Iterable[Entry], deadline: float) -> None:
        """Note messages delivered now, all with the same deadline, later than any before."""
        self.entries.update(zip(ids, entries, strict=True))
        if self._timer is None:
            self._arm(deadline)

    def add_any(self, ids: Sequence[bytes], entries: Iterable[Entry], deadline: float) -> None:
        """As `add`, for ids that may not be unique."""
        if len(set(ids)) == len(ids) and self.entries.keys().isdisjoint(ids):
            self.add(ids, entries, deadline)
            return
        for message_id, entry in zip(ids, entries, strict=True):
            if message_id in self.entries:
                self._twins.setdefault(message_id, []).append(entry)
            else:
                self.add([message_id], [entry], deadline)

    def pop(self, message_id: bytes) -> Entry | None:
        """Take one message out; None if it is not here."""
        entry = self.entries.pop(message_id, None)
        if self._twins and entry is not None:
            self._promote(message_id)
        return entry

    def pop_all(self, ids: Sequence[bytes]) -> list[Entry | None]:
        """Take messages out, None standing for each that is not here."""
        return list(map(self.pop, ids))

    @property
    def has_twins(self) -> bool:
        """Whether some id is here more than once, so that `entries` alone is not the truth."""
        return bool(self._twins)

    def touch(self, message_id: bytes, deadline: float, max_timeout_s: float) -> bool:
        """Move a message's deadline, at most to `max_timeout_s` after its delivery.

        False if the message is not here.
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
        """Forget everything and return it."""
        everything = chain(
            self.entries.items(),
            ((message_id, entry) for message_id, twins in self._twins.items() for entry in twins),
        )
        messages = [_message(message_id, entry) for message_id, entry in everything]
        self.entries.clear()
        self._twins.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return messages

    def close(self) -> list[Message]:
        """As `clear`, for the last time: the channel and the consumer are let go of."""
        self._on_expired = _ignore
        return self.clear()

    def _promote(self, message_id: bytes) -> None:
        twins = self._twins.get(message_id)
        if twins:
            self.entries[message_id] = twin = twins.pop(0)
            self._has_order = False
            self._arm(twin[0])  # it may be due for long: only the front one of twins is watched
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
    """Nothing expires once everything has been cleared."""


def _message(message_id: bytes, entry: Entry) -> Message:
    _, _, timestamp_ns, attempts, body, ordinal = entry
    return message_id, timestamp_ns, attempts, body, ordinal
