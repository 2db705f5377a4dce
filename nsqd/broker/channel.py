"""Channel: gives each message to one of its consumers, and again if it is not finished.

Where a message of a channel can be, and which object owns it; it is in exactly one of these:

* `queue`, a MessageQueue: it waits for a consumer, in memory or on disk;
* `deferred`: it is kept back until it is due (DPUB, or REQ with a delay);
* `consumer.in_flight`: it was delivered and not answered. If the consumer leaves, it stays there
  until its deadline passes: see `Consumers`;
* the limbo of `bounds`: it is on its way to the dead-letter topic, if the topic has limits.

FIN takes a message out of `in_flight` for good. REQ and a timeout take it from there to the queue,
or to `deferred`. `_pump` takes messages from the queue to the consumers that stand in the
`ReadyLine`: a slice of them at a time, in round robin with the other channels, however many puts
and answers ask for it. One delivery is bounded in messages and bytes and is put together column by
column, so that the work per message is done in C.
"""

import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from operator import itemgetter
from typing import cast

from nsqd.broker.consumer import Consumer, Consumers, Locality, ReadyLine, Sink
from nsqd.broker.deferred import Deferred
from nsqd.broker.disposal import Dropped, dispose
from nsqd.broker.durations import Histogram, LatencyQuantiles
from nsqd.broker.errors import ClosedError, ConsumerLimitError, NotInFlightError
from nsqd.broker.in_flight import Entry, InFlight
from nsqd.broker.limits.queue_bounds import Losses, QueueBounds
from nsqd.broker.queue.batch import AnyBatch, Message, Piece
from nsqd.broker.queue.message_queue import MessageQueue
from nsqd.broker.queue.receipt import Receipt
from nsqd.broker.scheduler import Scheduler
from nsqd.protocol.names import is_ephemeral

logger = logging.getLogger(__name__)

MAX_BYTES_PER_WRITE = 512 * 1024
RETRY_READ_S = 1.0
FINISH_TIME_BOUNDS_S = (0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0, 900.0)
TOTAL_TIME_BOUNDS_S = (0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
# Of the messages that are finished together at most so many are looked at, evenly spread.
MAX_TOTAL_TIME_SAMPLES = 8

_delivery_time = itemgetter(1)


@dataclass(frozen=True, slots=True)
class ChannelSettings:
    """The options that a channel obeys."""

    max_msg_timeout_s: float
    max_consumers: int  # 0 = no limit
    latency_quantiles: tuple[float, ...] = ()
    latency_window_s: float = 600.0
    is_topology_aware: bool = False


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
        # Deliveries by the locality of the receiver; without the experiment from memory only.
        self.locality_counts = [0] * len(Locality)
        self._counts_disk = settings.is_topology_aware
        # From delivery to FIN, in seconds.
        self.finish_times = Histogram(FINISH_TIME_BOUNDS_S)
        # From publish to FIN, in seconds.
        self.total_times = Histogram(TOTAL_TIME_BOUNDS_S)
        # The same in a window of time; None unless quantiles of it are asked for.
        self.latencies: LatencyQuantiles | None = None
        if settings.latency_quantiles:
            self.latencies = LatencyQuantiles(settings.latency_quantiles, settings.latency_window_s)
        self.queue = queue
        self.deferred = Deferred(scheduler, self._put_back)
        self.consumers = Consumers()
        # The limits of the topic; None if there are none.
        self.bounds: QueueBounds | None = None
        self.losses = Losses()
        # Called when the last consumer has left; the topic deletes ephemeral channels then.
        self.on_abandoned: Callable[[], object] | None = None
        # Called when it was emptied: a crash would bring back what its topic has on disk as well.
        # The receipt is done when the topic has forgotten that.
        self.on_empty: Callable[[], Receipt] | None = None
        self._take = queue.take  # or that of the bounds
        self._line = ReadyLine(scheduler, self.look_again)
        self._scheduler = scheduler
        self._settings = settings
        self._is_pump_scheduled = False

    @property
    def depth(self) -> int:
        """How many messages wait, in flight and deferred ones not counted."""
        return self.queue.depth - self.queue.count_deferred(self._scheduler.steady_time_ns())

    @property
    def backend_depth(self) -> int:
        """How many of the waiting ones are on disk."""
        now_ns = self._scheduler.steady_time_ns()
        return self.queue.backend_depth - self.queue.count_deferred(now_ns)

    @property
    def deferred_count(self) -> int:
        """How many messages are kept back, those included that lie unread in the queue's files."""
        return len(self.deferred) + self.queue.count_deferred(self._scheduler.steady_time_ns())

    def put(self, batch: AnyBatch, *, is_stored: bool = False) -> None:
        """Add a batch that the topic hands over.

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
            kept = self.queue.put_aside(batch, due_ns, is_stored=is_stored)
            self.deferred.add(kept, self._scheduler.time() + delay_s)
        else:
            self.queue.put(batch, is_stored=is_stored and not self.is_ephemeral)
            if not self._line.is_empty:
                self.look_again()
        self.message_count += len(batch.bodies)

    def undo_put(self, batch: AnyBatch) -> None:
        """Remove the batch of the last put: another channel's disk refused it."""
        if batch.is_deferred:
            self.deferred.undo_add()
            self.queue.undo_put_aside(batch)
        else:
            self.queue.undo_put(batch)
        self.message_count -= len(batch.bodies)

    def set_bounds(self, bounds: QueueBounds | None) -> None:
        """Obey limits, or none, from now on."""
        in_limbo = [] if self.bounds is None else self.bounds.close(bounds)
        self.bounds = bounds
        self._take = self.queue.take if bounds is None else bounds.take
        if in_limbo:
            self.queue.put_back(in_limbo)
        self.look_again()

    def look_again(self) -> None:
        """Deliver in the next turn of the loop, if messages and consumers wait for each other."""
        if not self._is_pump_scheduled and not self._line.is_empty and self.queue.depth:
            self._is_pump_scheduled = True
            self._scheduler.share(self._pump)

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
        self.consumers.add(consumer)

    def unsubscribe(self, consumer: Consumer) -> None:
        """Let a consumer go; its messages stay in flight until their deadlines pass, as in NSQ."""
        if consumer not in self.consumers:
            return
        consumer.ready_count = 0
        self._line.leave(consumer)
        self.consumers.remove(consumer)
        if not self.consumers and self.on_abandoned is not None:
            self.on_abandoned()

    def set_ready(self, consumer: Consumer, count: int) -> None:
        """RDY: set how many messages the consumer may have in flight."""
        consumer.ready_count = count
        consumer.was_filled = False
        self.wake(consumer)

    def finish(self, consumer: Consumer, ids: Sequence[bytes]) -> list[tuple[bytes, str]]:
        """FIN: forget messages for good; return the ids that could not be, each with the reason."""
        in_flight = consumer.in_flight
        finished: list[Entry | None]
        if in_flight.on_change is not None:
            in_flight.tell()
        if in_flight.twin_count:
            finished = in_flight.pop_all(ids)
        else:
            finished = list(map(in_flight.entries.pop, ids, repeat(None)))
        failed = []
        if None in finished:
            pairs = zip(ids, finished, strict=True)
            failed = self.consumers.explain([each for each, entry in pairs if entry is None])
        entries = cast(
            "list[Entry]", [entry for entry in finished if entry] if failed else finished
        )
        if in_flight.had_records and self.queue.backend.outstanding_count:
            self.queue.commit([entry[5] for entry in entries if entry[5] is not None])
        if entries:
            self.finish_count += len(entries)
            consumer.finish_count += len(entries)
            _observe_times(self, entries, self._scheduler)
        self.wake(consumer)
        return failed

    def requeue(
        self, consumer: Consumer, ids: Sequence[bytes], delay_s: float
    ) -> list[tuple[bytes, str]]:
        """REQ: put messages back, now or after a delay; return the ids that could not be.

        Each comes with the reason, as from `finish`.
        """
        messages, missing = consumer.in_flight.pop_messages(ids)
        failed = self.consumers.explain(missing) if missing else []
        self.requeue_count += len(messages)
        consumer.requeue_count += len(messages)
        if self.bounds is not None:
            messages = self.bounds.keep_retriable(messages)
        if delay_s > 0:
            self.deferred.add(messages, self._scheduler.time() + delay_s)
            stored = [message[0] for message in messages if message[4] is not None]
            if stored:
                due_ns = self._scheduler.steady_time_ns() + round(delay_s * 1e9)
                self.queue.backend.note_due(stored, due_ns, are_unread=False)
        elif messages:
            self._put_back(messages)
        self.wake(consumer)
        return failed

    def touch(self, consumer: Consumer, message_id: bytes) -> None:
        """TOUCH: give a message its full timeout again, up to max-msg-timeout since its delivery.

        Raises:
            NotInFlightError: the consumer does not have it in flight.
        """
        deadline = self._scheduler.time() + consumer.msg_timeout_s
        if not consumer.in_flight.touch(message_id, deadline, self._settings.max_msg_timeout_s):
            raise NotInFlightError(self.consumers.explain_one(message_id))

    def wake(self, consumer: Consumer) -> None:
        """Serve a consumer that may have got room: RDY, an answer, a timeout, its socket."""
        if self._line.join(consumer) and not self._is_pump_scheduled:
            self.look_again()

    def pause(self) -> None:
        """Deliver nothing until `unpause`."""
        self.is_paused = True

    def unpause(self) -> None:
        """Deliver again."""
        self.is_paused = False
        self.look_again()

    def empty(self) -> Receipt:
        """Drop all messages: waiting, deferred, in flight and in limbo.

        Return the receipt that is done when no crash brings them back.
        """
        if self.bounds is not None:
            self.bounds.empty()
        pieces, receipt = self.queue.empty()
        if self.on_empty is not None:
            receipt.include(self.on_empty())
        dropped = [pieces, *self.deferred.drop(), *self.consumers.drop_in_flight()]
        dispose(self._scheduler, dropped)
        for consumer in self.consumers:
            self.wake(consumer)
        return receipt

    def flush(self) -> None:
        """Disconnect the consumers and write every message to disk, for the last time.

        Raises:
            OSError: not everything could be written.
        """
        messages = list(self.consumers.iter_messages())
        deferred = list(self.deferred)
        in_limbo, sinks, dropped = self._shut()
        for sink in sinks:
            sink.close()
        dispose(self._scheduler, dropped)
        offset_ns = self._scheduler.steady_time_ns() - round(self._scheduler.time() * 1e9)
        due_times = {message[0]: offset_ns + round(due * 1e9) for due, message in deferred}
        messages += in_limbo
        messages += [message for _, message in deferred]
        self.queue.flush(messages, due_times)

    def delete(self) -> Receipt:
        """Disconnect the consumers and drop every message.

        Return the receipt that is done when the files are gone.
        """
        _, sinks, dropped = self._shut()
        pieces, receipt = self.queue.delete()
        dispose(self._scheduler, [pieces, *dropped])
        if _close_some(sinks, self._scheduler):
            self._scheduler.share(partial(_close_some, sinks, self._scheduler))
        return receipt

    def _shut(self) -> tuple[list[Message], list[Sink], list[Dropped]]:
        """Let go of the consumers, of the limits and of all messages that are not queued.

        Return the messages in limbo, the connections, and the containers to dispose of.
        """
        self.is_closed = True
        self.on_abandoned = None
        self.on_empty = None
        in_limbo: list[Message] = []
        if self.bounds is not None:
            in_limbo = self.bounds.close()
            self.bounds = None
            self._take = self.queue.take
        sinks, dropped = self.consumers.close()
        self._line.close()
        return in_limbo, sinks, [*dropped, *self.deferred.close()]

    def _put_back(self, messages: list[Message]) -> None:
        self.queue.put_back(messages)
        self.look_again()

    def _expired(self, consumer: Consumer, messages: list[Message]) -> None:
        self.timeout_count += len(messages)
        if self.bounds is not None:
            messages = self.bounds.keep_retriable(messages)
        self._put_back(messages)
        if consumer in self.consumers:
            self.wake(consumer)
        else:
            self.consumers.forget_if_done(consumer)

    def _pump(self) -> bool:
        """Deliver a slice; return whether there is more to deliver."""
        has_more = False
        try:
            if not self.is_paused and not self.is_closed:
                has_more = self._line.serve(self.queue, self._deliver)
        except OSError as error:
            # Reading failed, not writing: nothing is lost, and the next try may succeed.
            logger.error("CHANNEL(%s): failed to read from disk - %s", self.name, error)  # noqa: TRY400 - no traceback
            # The pump counts as scheduled until then, so that puts don't start another one.
            share_pump = partial(self._scheduler.share, self._pump)
            self._scheduler.call_at(self._scheduler.time() + RETRY_READ_S, share_pump)
            return False
        self._is_pump_scheduled = has_more
        return has_more

    def _deliver(self, consumer: Consumer, count: int) -> int:
        """Send a consumer up to `count` messages; return how many left the queue for it."""
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
                break  # send those that were read before; the next read may fail again
            if piece is None:
                break
            batch = piece.batch
            taken += piece.stop - piece.start
            if batch.is_deferred and self.deferred.add_if_early(piece):
                continue
            start, stop = piece.start, piece.stop
            if self._counts_disk or not piece.is_on_disk:
                self.locality_counts[consumer.counted_locality] += stop - start
            if consumer.sample_rate:
                piece, dropped = _sample(piece, consumer.sample_rate)
                self.queue.commit(dropped)
                if piece is None:
                    continue
                batch, start, stop = piece.batch, piece.start, piece.stop
            piece_ids = batch.ids(start, stop)
            piece_bodies = batch.bodies[start:stop]
            consumer.in_flight.add_piece(
                piece, piece_ids, piece_bodies, now, now + consumer.msg_timeout_s
            )
            heads += batch.heads(start, stop)
            ids += piece_ids
            bodies += piece_bodies
            budget -= piece.body_bytes
        consumer.was_filled = len(consumer.in_flight.entries) >= consumer.ready_count
        if ids:
            consumer.message_count += len(ids)
            consumer.sink.deliver(heads, ids, bodies)
        return taken


def _close_some(sinks: list[Sink], scheduler: Scheduler) -> bool:
    """Close a slice of connections, the first ones first; return whether there are more."""
    end = scheduler.slice_end()
    sinks.reverse()
    while sinks:
        sinks.pop().close()
        if time.perf_counter() >= end:
            break
    sinks.reverse()
    return bool(sinks)


def _observe_times(channel: Channel, entries: list[Entry], clock: Scheduler) -> None:
    """Count how long FINs took; they mostly answer one delivery of one publish."""
    count = len(entries)
    first, last = entries[0], entries[-1]
    now = clock.time()
    now_ns = clock.wall_time_ns()
    if first[1] == last[1]:
        # Those in between may be of another delivery if a client answers out of order, which is
        # not worth a look at each of them.
        channel.finish_times.observe(now - first[1], count)
    else:
        for delivered, part_count in Counter(map(_delivery_time, entries)).items():
            channel.finish_times.observe(now - delivered, part_count)
    # A wall clock that was set back makes times negative.
    if first[2] == last[2]:
        channel.total_times.observe(max(now_ns - first[2], 0) / 1e9, count)
    else:
        # The samples of 200 messages take 7 us; a look at each would take 20 times as long.
        step = -(-count // MAX_TOTAL_TIME_SAMPLES)
        for start in range(0, count, step):
            age_s = max(now_ns - entries[start][2], 0) / 1e9
            channel.total_times.observe(age_s, min(step, count - start))
    if channel.latencies is not None:
        channel.latencies.insert_many([now_ns - entry[2] for entry in entries], now)


def _sample(piece: Piece, sample_rate: int) -> tuple[Piece | None, list[int]]:
    """Keep a share of a piece; return it, and the records on disk of the messages dropped.

    As in nsqd the share is sample_rate + 1 percent, and a message that is dropped is dropped for
    the whole channel.
    """
    kept: list[Message] = []
    dropped: list[int] = []
    for message in piece.messages():
        if random.randrange(100) <= sample_rate:
            kept.append(message)
        elif message[4] is not None:
            dropped.append(message[4])
    if not kept:
        return None, dropped
    return Piece.from_messages(kept, piece.origin), dropped
