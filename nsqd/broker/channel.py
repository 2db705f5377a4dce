"""Channel: gives each message to one of its consumers and takes back what they don't finish.

The pump runs at most once per turn of the loop. It looks only at consumers that are *ready*: they
stand in a deque, each at most once, so a thousand idle consumers cost nothing. A consumer enters
it in `wake`, whenever it may have capacity (RDY, FIN, REQ, a timeout, a socket that drains), and
leaves it when it is served. One delivery is a fair share of what waits, bounded in messages and
bytes, and is assembled column by column, so that the work per message is done in C.

A consumer that was filled up is not served again for the first FIN that comes back: it is *held*
until a quarter of its capacity is free, at most a millisecond, so that a busy consumer gets few
large writes rather than many small ones.

Where a message can be, and who owns it: `_queue` (waiting, in memory or on disk), `_deferred`,
`consumer.in_flight` (delivered, unanswered; that of a consumer that has left stays in `_orphans`
until its deadlines have passed). Nothing else holds messages, and each is in exactly one of them.
"""

import heapq
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from operator import itemgetter
from typing import cast

from nsqd.broker.consumer import GONE, Consumer, Locality
from nsqd.broker.deferred import Deferred
from nsqd.broker.errors import ClosedError, ConsumerLimitError, NotInFlightError
from nsqd.broker.histogram import Histogram
from nsqd.broker.in_flight import Entry, InFlight
from nsqd.broker.limits.losses import Losses
from nsqd.broker.limits.queue_bounds import QueueBounds
from nsqd.broker.quantiles import LatencyQuantiles
from nsqd.broker.queue.batch import AnyBatch, Batch, Message
from nsqd.broker.queue.message_queue import MessageQueue
from nsqd.broker.queue.piece import Piece
from nsqd.broker.sampling import sample
from nsqd.broker.scheduler import Scheduler
from nsqd.protocol.names import is_ephemeral

logger = logging.getLogger(__name__)

MAX_MESSAGES_PER_WRITE = 1024
MAX_BYTES_PER_WRITE = 512 * 1024
MAX_MESSAGES_PER_TURN = 8192
HOLD_S = 0.001
HOLD_MAX_COUNT = 256
RETRY_READ_S = 1.0
FINISH_TIME_BOUNDS_S = (0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0, 900.0)

NOT_IN_FLIGHT = "ID not in flight"
NOT_OWNER = "client does not own message"

_delivery_time = itemgetter(1)


def _deadline(item: tuple[bytes, Entry]) -> float:
    return item[1][0]


@dataclass(frozen=True, slots=True)
class ChannelSettings:
    """The options that a channel obeys."""

    max_msg_timeout_s: float
    max_consumers: int  # 0 = no limit
    latency_quantiles: tuple[float, ...] = ()
    latency_window_s: float = 600.0


class Channel:
    """One queue of a topic, shared by its consumers."""

    def __init__(
        self,
        topic_name: str,
        name: str,
        queue: MessageQueue,
        scheduler: Scheduler,
        settings: ChannelSettings,
    ) -> None:
        self.topic_name = topic_name
        self.name = name
        self.is_ephemeral = is_ephemeral(name)
        self.is_paused = False
        self.is_closed = False
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0
        self.timeout_count = 0
        # Deliveries from memory by the locality of the receiver.
        self.locality_counts = [0] * len(Locality)
        # From delivery to FIN, in seconds.
        self.finish_times = Histogram(FINISH_TIME_BOUNDS_S)
        self.consumers: dict[Consumer, None] = {}
        self.latencies: LatencyQuantiles | None = None
        if settings.latency_quantiles:
            self.latencies = LatencyQuantiles(settings.latency_quantiles, settings.latency_window_s)
        # The limits of the topic; None if there are none.
        self.bounds: QueueBounds | None = None
        self.losses = Losses()
        # Called when the last consumer has left; the topic deletes ephemeral channels then.
        self.on_abandoned: Callable[[], object] | None = None
        self._queue = queue
        self._take = queue.take
        self._scheduler = scheduler
        self._settings = settings
        self._deferred = Deferred(scheduler, self._put_back)
        self._orphans: set[Consumer] = set()
        # One for each Locality.
        self._ready: tuple[deque[Consumer], deque[Consumer], deque[Consumer]]
        self._ready = (deque(), deque(), deque())
        self._held: list[Consumer] = []
        self._is_pump_scheduled = False

    @property
    def queue(self) -> MessageQueue:
        """What waits to be delivered."""
        return self._queue

    @property
    def depth(self) -> int:
        """How many messages wait, in flight and deferred ones not counted."""
        return self._queue.depth - self._deferred_on_disk

    @property
    def backend_depth(self) -> int:
        """How many of the waiting ones are on disk."""
        return self._queue.backend_depth - self._deferred_on_disk

    @property
    def in_flight_count(self) -> int:
        """How many messages have been delivered and not answered."""
        return sum(len(consumer.in_flight) for consumer in self._everyone())

    @property
    def deferred_count(self) -> int:
        """How many messages are kept back."""
        return len(self._deferred) + self._deferred_on_disk

    @property
    def _deferred_on_disk(self) -> int:
        """How many of them wait behind others on disk, and have not been read yet."""
        return self._queue.count_deferred(self._scheduler.steady_time_ns())

    @property
    def deferred(self) -> Deferred:
        """What is kept back in memory."""
        return self._deferred

    def iter_in_flight(self) -> Iterator[tuple[bytes, Entry]]:
        """Give the ids and entries of what is in flight, about in the order of the deadlines."""
        each = (consumer.in_flight.entries.items() for consumer in self._everyone())
        return heapq.merge(*each, key=_deadline)

    def iter_deferred(self) -> Iterator[tuple[float, Message]]:
        """Give what is kept back with its due time, earliest first."""
        return iter(self._deferred)

    def put(self, batch: AnyBatch, *, is_stored: bool = False) -> None:
        """Take a batch from the topic.

        Args:
            is_stored: it is on the topic's disk, and leaves it once it is here.

        Raises:
            OSError: the disk refused it, and none of it is here.
        """
        if batch.is_deferred:
            now_ns = self._scheduler.steady_time_ns()
            delay_s = batch.remaining_s(now_ns)
            due_ns = now_ns + round(delay_s * 1e9)
            is_stored = is_stored and not self.is_ephemeral
            kept = self._queue.put_aside(batch, due_ns, is_stored=is_stored)
            self._deferred.add(kept, self._scheduler.time() + delay_s)
        else:
            self._queue.put(batch, is_stored=is_stored and not self.is_ephemeral)
            self._schedule_pump()
        self.message_count += len(batch.bodies)

    def undo_put(self, batch: AnyBatch) -> None:
        """Take back the last put: another channel's disk refused it."""
        if batch.is_deferred:
            self._deferred.discard(set(batch.ids(0, len(batch.bodies))))
            self._queue.undo_put_aside(batch)
        else:
            self._queue.undo_put(batch)
        self.message_count -= len(batch.bodies)

    def set_bounds(self, bounds: QueueBounds | None) -> None:
        """Obey limits, or none, from now on."""
        left = [] if self.bounds is None else self.bounds.close()
        self.bounds = bounds
        self._take = self._queue.take if bounds is None else bounds.take
        if left:
            self._queue.put_back(left)
        self.look_again()

    def look_again(self) -> None:
        """Deliver, if there is something to deliver after all."""
        if self._queue.depth:
            self._schedule_pump()

    def subscribe(self, consumer: Consumer) -> None:
        """Let a consumer in.

        Raises:
            ClosedError: the channel is being deleted.
            ConsumerLimitError: it has as many consumers as it may have.
        """
        if self.is_closed:
            raise ClosedError
        limit = self._settings.max_consumers
        if limit and len(self.consumers) >= limit:
            raise ConsumerLimitError(
                f"consumers for {self.topic_name}:{self.name} exceeds limit of {limit}"
            )
        consumer.in_flight = InFlight(self._scheduler, partial(self._expired, consumer))
        self.consumers[consumer] = None

    def unsubscribe(self, consumer: Consumer) -> None:
        """Let a consumer go; what it holds stays in flight until its deadlines pass, as in NSQ."""
        if self.consumers.pop(consumer, self) is self:
            return
        consumer.ready_count = 0
        if consumer.is_queued:
            # An idle channel would not come across it for long, and keep the connection alive.
            self._ready[consumer.locality].remove(consumer)
            consumer.is_queued = False
        consumer.sink = GONE
        if len(consumer.in_flight):
            self._orphans.add(consumer)
        else:
            consumer.in_flight.close()
        if not self.consumers and self.on_abandoned is not None:
            self.on_abandoned()

    def set_ready(self, consumer: Consumer, count: int) -> None:
        """RDY: how many messages the consumer may have in flight."""
        consumer.ready_count = count
        consumer.was_full = False
        self.wake(consumer)

    def finish(self, consumer: Consumer, ids: Sequence[bytes]) -> list[tuple[bytes, str]]:
        """FIN: forget messages for good; return the ids that could not be, each with the reason."""
        in_flight = consumer.in_flight
        finished: list[Entry | None]
        if in_flight.has_twins:
            finished = in_flight.pop_all(ids)
        else:
            finished = list(map(in_flight.entries.pop, ids, repeat(None)))
        failed = []
        if None in finished:
            failed = self._explain(
                [
                    message_id
                    for message_id, entry in zip(ids, finished, strict=True)
                    if entry is None
                ]
            )
        entries = cast(
            "list[Entry]", [entry for entry in finished if entry] if failed else finished
        )
        if self._queue.backend.outstanding_count:
            self._queue.commit([entry[5] for entry in entries if entry[5] is not None])
        if self.latencies is not None:
            now_ns = self._scheduler.wall_time_ns()
            self.latencies.insert_many(
                [now_ns - entry[2] for entry in entries], self._scheduler.time()
            )
        if entries:
            self._count_finished(entries)
            consumer.finish_count += len(entries)
        self.wake(consumer)
        return failed

    def requeue(self, consumer: Consumer, message_id: bytes, delay_s: float) -> None:
        """REQ: put a message back, now or after a delay.

        Raises:
            NotInFlightError: the consumer does not hold it.
        """
        entry = consumer.in_flight.pop(message_id)
        if entry is None:
            raise NotInFlightError(self._why_not_in_flight(message_id))
        _, _, timestamp_ns, attempts, body, ordinal = entry
        message = (message_id, timestamp_ns, attempts, body, ordinal)
        if self.bounds is not None and not self.bounds.keep_retriable([message]):
            pass  # tried often enough
        elif delay_s > 0:
            self._deferred.add([message], self._scheduler.time() + delay_s)
            if ordinal is not None:
                due_ns = self._scheduler.steady_time_ns() + round(delay_s * 1e9)
                self._queue.note_due(message_id, due_ns)
        else:
            self._put_back([message])
        self.requeue_count += 1
        consumer.requeue_count += 1
        self.wake(consumer)

    def touch(self, consumer: Consumer, message_id: bytes) -> None:
        """TOUCH: give a message its full timeout again, up to max-msg-timeout since its delivery.

        Raises:
            NotInFlightError: the consumer does not hold it.
        """
        deadline = self._scheduler.time() + consumer.msg_timeout_s
        if not consumer.in_flight.touch(message_id, deadline, self._settings.max_msg_timeout_s):
            raise NotInFlightError(self._why_not_in_flight(message_id))

    def wake(self, consumer: Consumer) -> None:
        """Look at a consumer again: it may have become ready."""
        if not consumer.is_queued:
            capacity = consumer.capacity
            if capacity <= 0:
                return
            if consumer.was_full and capacity < min(consumer.ready_count >> 2, HOLD_MAX_COUNT):
                self._hold(consumer)
                return
            consumer.is_queued = True
            self._ready[consumer.locality].append(consumer)
        if self._queue.depth:
            self._schedule_pump()

    def pause(self) -> None:
        """Deliver nothing until `unpause`."""
        self.is_paused = True

    def unpause(self) -> None:
        """Deliver again."""
        self.is_paused = False
        self._schedule_pump()

    def empty(self) -> None:
        """Drop what waits, what is deferred and what is in flight.

        Raises:
            OSError: a file could not be removed.
        """
        self._deferred.clear()
        if self.bounds is not None:
            self.bounds.empty()
        for consumer in self.consumers:
            consumer.in_flight.clear()
        for consumer in self._orphans:
            consumer.in_flight.close()
        self._orphans.clear()
        try:
            self._queue.empty()
        finally:
            for consumer in self.consumers:
                self.wake(consumer)

    def flush(self) -> None:
        """Disconnect the consumers and write every message to disk, for the last time.

        Raises:
            OSError: not everything could be written.
        """
        in_flight, deferred = self._shut()
        offset_ns = self._scheduler.steady_time_ns() - round(self._scheduler.time() * 1e9)
        due_times = {message[0]: offset_ns + round(due * 1e9) for due, message in deferred}
        self._queue.flush([*in_flight, *(message for _, message in deferred)], due_times)

    def delete(self) -> None:
        """Disconnect the consumers and drop every message."""
        self._shut()
        self._queue.backend.delete()

    def _shut(self) -> tuple[list[Message], list[tuple[float, Message]]]:
        """Close the channel to everybody; return what was in flight, and deferred until when."""
        self.is_closed = True
        self.on_abandoned = None
        messages: list[Message] = []
        if self.bounds is not None:
            messages += self.bounds.close()
            self.bounds = None
            self._take = self._queue.take
        for consumer in self._everyone():
            messages += consumer.in_flight.close()
        for consumer in list(self.consumers):
            consumer.sink.close()
            consumer.sink = GONE
        self.consumers.clear()
        self._orphans.clear()
        self._held.clear()
        for ready in self._ready:
            ready.clear()
        return messages, self._deferred.close()

    def _count_finished(self, entries: list[Entry]) -> None:
        """Count FINs and how long they took; they mostly answer one delivery, of one time."""
        self.finish_count += len(entries)
        now = self._scheduler.time()
        delivered = entries[0][1]
        if delivered == entries[-1][1]:
            # Those in between may be of another delivery if a client answers out of order, which
            # is not worth a look at each of them.
            self.finish_times.observe(now - delivered, len(entries))
        else:
            for delivered, count in Counter(map(_delivery_time, entries)).items():
                self.finish_times.observe(now - delivered, count)

    def _everyone(self) -> Iterator[Consumer]:
        return chain(self.consumers, self._orphans)

    def _explain(self, ids: Sequence[bytes]) -> list[tuple[bytes, str]]:
        """Say of each why the consumer that named it can't have it.

        A client may name thousands at a time, and there may be thousands of consumers: sets are
        compared, not one with each.
        """
        wanted = set(ids)
        held: set[bytes] = set()
        for other in self._everyone():
            held |= other.in_flight.entries.keys() & wanted
        return [
            (message_id, NOT_OWNER if message_id in held else NOT_IN_FLIGHT) for message_id in ids
        ]

    def _why_not_in_flight(self, message_id: bytes) -> str:
        [(_, reason)] = self._explain([message_id])
        return reason

    def _put_back(self, messages: list[Message]) -> None:
        self._queue.put_back(messages)
        self._schedule_pump()

    def _expired(self, consumer: Consumer, messages: list[Message]) -> None:
        self.timeout_count += len(messages)
        if self.bounds is not None:
            messages = self.bounds.keep_retriable(messages)
        self._put_back(messages)
        if consumer in self._orphans:
            if not len(consumer.in_flight):
                self._orphans.discard(consumer)
                consumer.in_flight.close()
        else:
            self.wake(consumer)

    def _hold(self, consumer: Consumer) -> None:
        if consumer.is_held:
            return
        consumer.is_held = True
        if not self._held:
            self._scheduler.call_at(self._scheduler.time() + HOLD_S, self._release_held)
        self._held.append(consumer)

    def _release_held(self) -> None:
        held, self._held = self._held, []
        for consumer in held:
            consumer.is_held = consumer.was_full = False
            self.wake(consumer)

    def _schedule_pump(self) -> None:
        zone, region, everywhere = self._ready
        if not self._is_pump_scheduled and (everywhere or zone or region):
            self._is_pump_scheduled = True
            self._scheduler.call_soon(self._pump)

    def _pump(self) -> None:
        self._is_pump_scheduled = False
        if self.is_paused or self.is_closed:
            return
        try:
            for ready in self._ready:
                if ready and not self._serve(ready):
                    break
        except OSError as error:
            # Reading failed, not writing: nothing is lost, and the next try may succeed.
            logger.error("CHANNEL(%s): failed to read from disk - %s", self.name, error)  # noqa: TRY400 - no traceback
            # It counts as scheduled until then, so that puts don't start more of them.
            self._is_pump_scheduled = True
            self._scheduler.call_at(self._scheduler.time() + RETRY_READ_S, self._pump)

    def _serve(self, ready: deque[Consumer]) -> bool:
        """Give the ready consumers of one locality their shares; False if nothing is left."""
        budget = MAX_MESSAGES_PER_TURN
        while ready:
            depth = self._queue.depth
            if not depth:
                return False
            if budget <= 0:
                self._schedule_pump()
                return False
            ready_count = len(ready)
            share = -(-depth // ready_count)
            taken = 0
            for _ in range(min(ready_count, depth)):
                consumer = ready.popleft()
                consumer.is_queued = False
                capacity = consumer.capacity
                if capacity <= 0:
                    continue
                try:
                    taken += self._deliver(consumer, min(capacity, share, MAX_MESSAGES_PER_WRITE))
                finally:
                    if consumer.capacity > 0:
                        consumer.is_queued = True
                        ready.append(consumer)
            if not taken and len(ready) == ready_count:
                return bool(self._queue.depth)
            # Some were served, or were not ready any more: those behind them get their turn.
            budget -= taken
        return True

    def _deliver(self, consumer: Consumer, count: int) -> int:
        """Take up to `count` messages for a consumer and send them; return how many were taken."""
        taken = 0
        budget = MAX_BYTES_PER_WRITE
        heads: list[bytes] = []
        ids: list[bytes] = []
        bodies: list[bytes] = []
        now = self._scheduler.time()
        while taken < count and budget > 0:
            try:
                piece = self._take(count - taken, budget)
            except OSError:
                if not ids:
                    raise
                break  # what has been taken is sent first; the next read may fail again
            if piece is None:
                break
            batch = piece.batch
            taken += piece.stop - piece.start
            if batch.is_deferred and self._defer_again(piece):
                continue
            if not piece.is_on_disk:
                self.locality_counts[consumer.locality] += piece.stop - piece.start
            if consumer.sample_rate:
                piece, dropped = sample(piece, consumer.sample_rate)
                self._queue.commit(dropped)
                if piece is None:
                    continue
                batch = piece.batch
            start, stop = piece.start, piece.stop
            piece_ids = batch.ids(start, stop)
            piece_bodies = batch.bodies[start:stop]
            self._note_in_flight(consumer, piece, piece_ids, piece_bodies, now)
            heads += batch.heads(start, stop)
            ids += piece_ids
            bodies += piece_bodies
            budget -= piece.body_bytes
        consumer.was_full = len(consumer.in_flight.entries) >= consumer.ready_count
        if ids:
            consumer.message_count += len(ids)
            consumer.sink.deliver(heads, ids, bodies)
        return taken

    def _defer_again(self, piece: Piece) -> bool:
        """Keep back what was deferred before a restart, or behind a backlog; False if it is due."""
        delay_s = piece.batch.remaining_s(self._scheduler.steady_time_ns())
        if delay_s > 0:
            self._deferred.add(piece.messages(), self._scheduler.time() + delay_s)
        return delay_s > 0

    def _note_in_flight(
        self,
        consumer: Consumer,
        piece: Piece,
        ids: list[bytes],
        bodies: Sequence[bytes],
        now: float,
    ) -> None:
        batch, start, stop = piece.batch, piece.start, piece.stop
        deadline = now + consumer.msg_timeout_s
        entries = zip(
            repeat(deadline),
            repeat(now),
            batch.timestamps(start, stop),
            batch.attempts(start, stop),
            bodies,
            piece.ordinals if piece.is_on_disk else repeat(None),
            strict=False,
        )
        if isinstance(batch, Batch):
            consumer.in_flight.add(ids, entries, deadline)  # these ids are our own, and fresh
        else:
            consumer.in_flight.add_any(ids, entries, deadline)
