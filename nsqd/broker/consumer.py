"""The consumers of a channel: what each has in flight, all of them together, and whose turn it is.

`Consumer` is one subscribed client as its channel sees it, `InFlight` the messages that it has been
given and has not answered, `Consumers` all consumers of a channel, `ReadyLine` those of them that
may be given messages.

A consumer that has left may still own messages: they stay in flight until their deadlines pass, as
in NSQ, and come back to the channel then.
"""

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from itertools import chain, repeat
from typing import Protocol, TypeAlias

from nsqd.broker.queue.batch import Batch, Message, Piece
from nsqd.broker.scheduler import Scheduler, Timer

_clock = time.perf_counter

# deadline, time of delivery, timestamp_ns, attempts (this delivery included), body, ordinal or None
Entry: TypeAlias = tuple[float, float, int, int, bytes, int | None]


class InFlight:
    """The unanswered messages of one consumer, with one timer for the earliest deadline.

    Entries are keyed by message id, as FIN names it. With one timeout per consumer, insertion order
    is deadline order, so one timer for the first entry of the dict suffices; a FIN is a dict pop
    and never touches the timer. Only a TOUCH that runs into max-msg-timeout breaks the order, and
    then expiry looks at every entry.

    Two messages may have one id, in a data directory that another tool has written. Both are kept:
    the second waits in `_twins` until the first is answered.
    """

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
        self._on_expired = _ignore_expired
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


def _ignore_expired(messages: list[Message]) -> None:
    """Call no channel: this InFlight has been closed."""


def _message(message_id: bytes, entry: Entry) -> Message:
    _, _, timestamp_ns, attempts, body, ordinal = entry
    return message_id, timestamp_ns, attempts, body, ordinal


NOT_IN_FLIGHT = "ID not in flight"
NOT_OWNER = "client does not own message"

MAX_MESSAGES_PER_WRITE = 1024
LINGER_S = 0.001
# With room for so many messages a consumer never lingers, however large its ready count is.
LINGER_MAX_COUNT = 256


class Sink(Protocol):
    """The connection behind a consumer."""

    def deliver(self, heads: list[bytes], ids: list[bytes], bodies: Sequence[bytes]) -> None:
        """Send messages, given as columns: timestamp with attempts, id, body."""

    def close(self) -> None:
        """Close the connection: the channel is gone."""


class _Gone:
    """The sink of a consumer that has left: consumer and connection are no reference cycle."""

    def deliver(self, heads: list[bytes], ids: list[bytes], bodies: Sequence[bytes]) -> None:
        raise AssertionError("delivered to a consumer that has left")

    def close(self) -> None:
        """There is no connection any more."""


GONE = _Gone()


class Locality(IntEnum):
    """How near a consumer is to this nsqd; the nearest is served first if the experiment is on."""

    ZONE = 0
    REGION = 1
    GLOBAL = 2


class Consumer:
    """One subscription: how many messages it may have, those that it has, and its counters."""

    __slots__ = (
        "finish_count",
        "in_flight",
        "is_in_line",
        "is_writable",
        "locality",
        "message_count",
        "msg_timeout_s",
        "ready_count",
        "requeue_count",
        "sample_rate",
        "sink",
        "was_filled",
    )

    def __init__(
        self,
        sink: Sink,
        *,
        msg_timeout_s: float,
        sample_rate: int = 0,
        locality: Locality = Locality.GLOBAL,
    ) -> None:
        self.sink = sink
        self.msg_timeout_s = msg_timeout_s
        self.sample_rate = sample_rate
        self.locality = locality
        self.in_flight: InFlight  # made by the channel, at the subscription
        self.ready_count = 0  # RDY: a level, not a credit
        self.is_writable = True  # its socket takes more
        self.is_in_line = False  # stands in the channel's ReadyLine, which sets it
        self.was_filled = False  # the last delivery filled it up to its ready_count
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0

    @property
    def capacity(self) -> int:
        """How many more messages it may be given now."""
        if not self.is_writable:
            return 0
        in_flight = self.in_flight
        return self.ready_count - len(in_flight.entries) - in_flight.twin_count


class Consumers:
    """The consumers of one channel: those that are subscribed, and those that left messages.

    Iteration and length are of the subscribed ones.
    """

    __slots__ = ("_departed", "_subscribed")

    def __init__(self) -> None:
        self._subscribed: dict[Consumer, None] = {}
        # Have left, and are forgotten when the last of their messages has timed out.
        self._departed: set[Consumer] = set()

    def __len__(self) -> int:
        return len(self._subscribed)

    def __iter__(self) -> Iterator[Consumer]:
        return iter(self._subscribed)

    def __contains__(self, consumer: object) -> bool:
        return consumer in self._subscribed

    @property
    def in_flight_count(self) -> int:
        """How many messages have been delivered and not answered."""
        return sum(len(consumer.in_flight) for consumer in self._all())

    def iter_in_flight(self) -> Iterator[tuple[bytes, Entry]]:
        """Give ids and entries of the messages in flight, about in the order of the deadlines."""
        each = (consumer.in_flight.entries.items() for consumer in self._all())
        return heapq.merge(*each, key=_deadline)

    def add(self, consumer: Consumer) -> None:
        """Count a consumer among the subscribed ones."""
        self._subscribed[consumer] = None

    def remove(self, consumer: Consumer) -> None:
        """Let a subscribed consumer go; its messages stay in flight until their deadlines pass."""
        del self._subscribed[consumer]
        consumer.sink = GONE
        self._departed.add(consumer)
        self.forget_if_done(consumer)

    def forget_if_done(self, consumer: Consumer) -> None:
        """Let go of a consumer that has left, once none of its messages is in flight."""
        if not len(consumer.in_flight):
            self._departed.discard(consumer)
            consumer.in_flight.close()

    def explain(self, ids: Sequence[bytes]) -> list[tuple[bytes, str]]:
        """Pair ids that a consumer may not answer with the reason: not in flight, or not its own.

        A client may name thousands at a time, and there may be thousands of consumers: sets are
        compared, not each id with each consumer.
        """
        named = set(ids)
        owned: set[bytes] = set()
        for consumer in self._all():
            owned |= consumer.in_flight.entries.keys() & named
        return [
            (message_id, NOT_OWNER if message_id in owned else NOT_IN_FLIGHT) for message_id in ids
        ]

    def explain_one(self, message_id: bytes) -> str:
        """Return why a consumer may not answer this message."""
        [(_, reason)] = self.explain([message_id])
        return reason

    def drop_in_flight(self) -> None:
        """Forget all messages in flight, and with them the consumers that have left."""
        for consumer in self._subscribed:
            consumer.in_flight.clear()
        for consumer in self._departed:
            consumer.in_flight.close()
        self._departed.clear()

    def close(self) -> list[Message]:
        """Disconnect and forget all consumers; return the messages that were in flight."""
        messages: list[Message] = []
        for consumer in self._all():
            messages += consumer.in_flight.close()
        for consumer in list(self._subscribed):
            consumer.sink.close()
            consumer.sink = GONE
        self._subscribed.clear()
        self._departed.clear()
        return messages

    def _all(self) -> Iterator[Consumer]:
        return chain(self._subscribed, self._departed)


def _deadline(item: tuple[bytes, Entry]) -> float:
    return item[1][0]


class Backlog(Protocol):
    """The messages that wait for the consumers in the line."""

    @property
    def depth(self) -> int:
        """How many they are."""


class ReadyLine:
    """Decides which consumer is served next, and with how many messages at most.

    A consumer joins the line whenever it may have got room (RDY, FIN, REQ, a timeout, a socket that
    drains) and stands in it at most once; one that is idle or full does not stand in it, so a
    thousand of those cost nothing. There is one lane per `Locality`, and a lane is served only when
    no consumer that is nearer can take more.

    A consumer that a delivery has filled does not join for the first FIN that it sends. It
    *lingers* until a quarter of its ready count is free, at most a millisecond, so that a busy
    consumer gets few large writes instead of many small ones.
    """

    __slots__ = ("_lanes", "_lingering", "_on_joined", "_scheduler", "is_empty")

    def __init__(self, scheduler: Scheduler, on_joined: Callable[[], object]) -> None:
        """Args: on_joined: called when consumers have joined after they had lingered."""
        # Whether no consumer stands in the line; an attribute, as every put reads it.
        self.is_empty = True
        self._scheduler = scheduler
        self._on_joined = on_joined
        self._lanes: tuple[deque[Consumer], ...] = tuple(deque() for _ in Locality)
        self._lingering: dict[Consumer, None] = {}

    def join(self, consumer: Consumer) -> bool:
        """Put a consumer at the end of its lane if it has room; return whether it is in the line.

        One that was filled may have to linger first.
        """
        if consumer.is_in_line:
            return True
        room = consumer.capacity
        if room <= 0:
            return False
        if consumer.was_filled and room < min(consumer.ready_count >> 2, LINGER_MAX_COUNT):
            self._linger(consumer)
            return False
        consumer.is_in_line = True
        self._lanes[consumer.locality].append(consumer)
        self.is_empty = False
        return True

    def leave(self, consumer: Consumer) -> None:
        """Take a consumer out: the line of an idle channel would keep its connection alive."""
        if consumer.is_in_line:
            self._lanes[consumer.locality].remove(consumer)
            consumer.is_in_line = False
            self.is_empty = not any(self._lanes)

    def close(self) -> None:
        """Let go of the consumers and of the channel."""
        self._on_joined = _ignore_joined
        self._lingering.clear()
        for lane in self._lanes:
            lane.clear()
        self.is_empty = True

    def serve(self, backlog: Backlog, deliver: Callable[[Consumer, int], int]) -> bool:
        """Give each consumer a fair share of the backlog, in rounds, the nearest lane first.

        Return True if the end of the slice ended it: there is more to deliver, and the consumers
        in front of the line are those that had no share yet.

        Args:
            deliver: sends a consumer at most so many messages; returns how many it took from the
                backlog, 0 while a limit keeps all consumers from taking any.

        Raises:
            OSError: `deliver` raised it; the consumer that it was called for keeps its place.
        """
        end = self._scheduler.slice_end()
        for lane in self._lanes:
            while lane and (depth := backlog.depth) > 0:
                share = min(-(-depth // len(lane)), MAX_MESSAGES_PER_WRITE)
                for _ in range(min(len(lane), depth)):
                    consumer = lane.popleft()
                    consumer.is_in_line = False
                    room = consumer.capacity
                    if room <= 0:
                        continue
                    try:
                        taken = deliver(consumer, min(room, share))
                    finally:
                        if consumer.capacity > 0:
                            consumer.is_in_line = True
                            lane.append(consumer)
                    if not taken or _clock() >= end:
                        self.is_empty = not any(self._lanes)
                        return bool(taken and backlog.depth and not self.is_empty)
        self.is_empty = not any(self._lanes)
        return False

    def _linger(self, consumer: Consumer) -> None:
        if not self._lingering:
            self._scheduler.call_at(self._scheduler.time() + LINGER_S, self._end_linger)
        # One that lingers already, since an earlier delivery, does not linger longer.
        self._lingering[consumer] = None

    def _end_linger(self) -> None:
        lingering, self._lingering = self._lingering, {}
        has_joined = False
        for consumer in lingering:
            consumer.was_filled = False
            has_joined |= self.join(consumer)
        if has_joined:
            self._on_joined()


def _ignore_joined() -> None:
    """Call no channel: it has been closed."""
