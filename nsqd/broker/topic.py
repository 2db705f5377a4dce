"""Topic: accepts messages and gives every channel a copy of each.

Where a message of a topic can be, and who owns it: while the topic runs and has channels, a publish
goes straight into the channels' queues, and is theirs. Otherwise, while the topic is paused, has no
channel, or is *starting* and waits to be told which channels the cluster has, it waits in the
topic's own queue. `_pump` hands over the messages that have gathered there, a slice at a time;
until the queue is empty new messages go to its end, so order is kept. `HandOver` knows which
channel has which message in the meantime. The archive, if history is kept, has a copy of its own.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, auto
from functools import partial

from nsqd.broker.archive.archive import Archive
from nsqd.broker.channel import Channel
from nsqd.broker.disposal import dispose
from nsqd.broker.errors import ClosedError, DepthLimitError, SlowDiskError
from nsqd.broker.limits.overrides import NO_OVERRIDES
from nsqd.broker.limits.queue_bounds import Losses
from nsqd.broker.limits.topic_bounds import TopicBounds
from nsqd.broker.publish_line import Destination, LineState, Publish, PublishLine
from nsqd.broker.queue.batch import AnyBatch, Batch, MixedBatch, Piece, RecordedBatch
from nsqd.broker.queue.ids import SEQUENCE_COUNT, MessageIdFactory
from nsqd.broker.queue.message_queue import MessageQueue
from nsqd.broker.queue.pending_put import Part, PutTarget, Transfer
from nsqd.broker.queue.receipt import Receipt, Receipts
from nsqd.broker.scheduler import Scheduler
from nsqd.protocol.names import is_ephemeral

logger = logging.getLogger(__name__)

RETRY_S = 1.0
# Handed over to the channels at once.
MAX_MESSAGES_PER_PIECE = 1024
MAX_BYTES_PER_PIECE = 256 * 1024
# Bound once: each look at a member of an Enum takes Python 3.11 0.1 us, and every publish asks.
_LINE_IDLE = LineState.IDLE


class TopicState(Enum):
    """The life of a topic."""

    STARTING = auto()  # accepts messages, but waits to be told its channels
    RUNNING = auto()
    CLOSED = auto()


class Topic:
    """A named stream of messages, copied to each of its channels."""

    def __init__(
        self,
        name: str,
        queue: MessageQueue,
        ids: MessageIdFactory,
        scheduler: Scheduler,
        make_channel: Callable[[str], Channel],
        receipts: Receipts | None = None,
    ) -> None:
        self.name = name
        self.is_ephemeral = is_ephemeral(name)
        self.state = TopicState.STARTING
        self.is_paused = False
        # Makes the error of every publish; None while publishes are accepted.
        self.refusal: Callable[[], Exception] | None = None
        self.channels: dict[str, Channel] = {}
        self.message_count = 0
        self.message_bytes = 0
        # Keeps all messages published here for a while; None if no history is kept.
        self.archive: Archive | None = None
        # The limits of this topic alone, which go before the flags; and the object that enforces
        # both, None if there is no limit.
        self.limit_overrides = NO_OVERRIDES
        self.bounds: TopicBounds | None = None
        self.losses = Losses()
        # Called when a channel has come or gone, and when an ephemeral topic has lost its last one.
        self.on_channel_change: Callable[[Channel], object] | None = None
        self.on_abandoned: Callable[[], object] | None = None
        self.queue = queue
        receipts = receipts or Receipts(needs_sync=False)
        self.hand_over = HandOver(queue, self.channels, receipts, scheduler)
        self._ids = ids
        self._scheduler = scheduler
        self._make_channel = make_channel
        self._is_pump_scheduled = False
        self._receipts = receipts
        self._needs_sync = receipts.needs_sync
        self._line = PublishLine(self, self.hand_over, ids, scheduler, receipts)

    @property
    def depth(self) -> int:
        """How many messages wait here, which no channel has yet."""
        return self.queue.depth

    @property
    def backend_depth(self) -> int:
        """How many of them are on disk."""
        return self.queue.backend_depth

    def start(self) -> None:
        """Begin to serve the channels."""
        if self.state is TopicState.STARTING:
            self.state = TopicState.RUNNING
            self.rearrange()

    def refuse_publishes(self, refusal: Callable[[], Exception] | None) -> None:
        """Refuse publishes with errors that `refusal` makes; with None accept them again."""
        if self.state is not TopicState.CLOSED:
            self.refusal = refusal

    def publish(self, bodies: Sequence[bytes], *, delay_s: float = 0.0) -> Receipt | None:
        """Accept messages, all of them or none; the channels keep each back for `delay_s`.

        Return the receipt that must be done before they may be acknowledged, None if they may be
        at once. Many messages, and those for a slow disk, appear some turns later; see
        `PublishLine`.

        Raises:
            ClosedError: the topic is being deleted.
            DepthLimitError: a queue has no room for them.
            OSError: the disk refused them.
            Exception: made by the refusal of `refuse_publishes`: draining, a disk almost full.
        """
        if self.refusal is not None:
            raise self.refusal()
        count = len(bodies)
        now_ns = self._scheduler.wall_time_ns()
        if count > SEQUENCE_COUNT and not delay_s:
            needs_records = self.archive is not None
            return self._line.publish_large(bodies, now_ns, needs_records=needs_records)
        if self.bounds is not None:
            self.bounds.admit(bodies)
        if not count:
            return None
        if delay_s:
            batch: AnyBatch = self._make_batch(bodies, delay_s, now_ns)
        else:
            prefix, first = self._ids.reserve(count, now_ns)
            make_batch = Batch if self.archive is None else self.archive.batch_type
            batch = make_batch(now_ns, prefix, first, tuple(bodies))
        if self._line.state is not _LINE_IDLE or not self._put(batch):
            return self._line.publish(batch)
        self.message_count += count
        self.message_bytes += batch.body_bytes
        receipt = self._receipts.make() if self._needs_sync else None
        if self.archive is not None:
            self.archive.add(batch)
            receipt = self.archive.await_written(receipt)
            if type(batch) is RecordedBatch:
                batch.forget_records()
        return receipt

    def publish_moved(
        self,
        bodies: Sequence[bytes],
        *,
        is_stored: bool,
        channel: Channel | None = None,
        note_ids: Callable[[Sequence[bytes]], object] | None = None,
    ) -> Receipt | None:
        """Accept messages that leave another queue, all of them or none; see `broker.move`.

        Return the receipt that is done when they are durable, None if none of them is on disk.

        Args:
            bodies: at most `SEQUENCE_COUNT`.
            is_stored: they are on the other queue's disk, so they go to the disk of this one.
            channel: the only channel that gets them; None for all.
            note_ids: told the ids that they will have, before they are written.

        Raises:
            ClosedError, DepthLimitError, OSError, Exception: as `publish`.
        """
        if self.refusal is not None:
            raise self.refusal()
        if self.bounds is not None:
            self.bounds.admit(bodies)
        batch = self._make_batch(bodies, 0.0, self._scheduler.wall_time_ns())
        if note_ids is not None:
            note_ids(batch.ids(0, len(bodies)))
        is_stored = is_stored and not self.is_ephemeral
        find_targets = partial(self.hand_over.find_targets, is_stored=is_stored, channel=channel)
        return self._line.publish(batch, Destination(find_targets, is_topic=channel is None))

    def _put(self, batch: AnyBatch) -> bool:
        """Put a batch into the queues; return False if a thread has to write it.

        Raises:
            OSError: the disk refused it.
        """
        if self._needs_sync:
            self._receipts.begin()
        try:
            if self.hand_over.is_direct:
                self.hand_over.copy(batch)
            else:
                self.queue.put(batch)
                if self.channels:
                    self._schedule_pump()
        except SlowDiskError:
            return False
        return True

    def _make_batch(self, bodies: Sequence[bytes], delay_s: float, now_ns: int) -> AnyBatch:
        """Make a batch that is deferred, or has more messages than a block of ids."""
        count = len(bodies)
        due_ns = self._scheduler.steady_time_ns() + round(delay_s * 1e9) if delay_s else 0
        if count <= SEQUENCE_COUNT:
            prefix, first = self._ids.reserve(count, now_ns)
            return Batch(now_ns, prefix, first, tuple(bodies), delay_s, due_ns)
        # Deferred. Columns of their own, so that it is one put nevertheless.
        ids: list[bytes] = []
        for start in range(0, count, SEQUENCE_COUNT):
            part = bodies[start : start + SEQUENCE_COUNT]
            ids += Batch(now_ns, *self._ids.reserve(len(part), now_ns), ()).ids(0, len(part))
        return MixedBatch(ids, [now_ns] * count, [0] * count, bodies, due_ns)

    # --- publishes in line

    def admit_large(self, publish: Publish) -> None:
        """Check that a large publish is accepted, when it gets in line.

        Raises:
            ClosedError, OSError: made by the refusal of `refuse_publishes`.
            DepthLimitError: a queue has no room for it.
        """
        if self.refusal is not None:
            raise self.refusal()
        if self.bounds is not None:
            try:
                self.bounds.admit_sizes(publish.count, publish.size_bytes)
            except DepthLimitError:
                self.losses.rejected_count += 1
                raise

    def note_published(self, publish: Publish) -> None:
        """Count messages that have appeared in the queues."""
        if publish.destination is not None and not publish.destination.is_topic:
            return
        self.message_count += publish.count
        self.message_bytes += publish.size_bytes
        if self.archive is not None:
            for part in publish.parts:
                chunk = part.chunk
                self.archive.add(part.batch, None if chunk is None else (chunk.data, chunk.lengths))
                if isinstance(part.batch, RecordedBatch):
                    part.batch.forget_records()
        if self.bounds is not None:
            self.bounds.trim_soon()
        self.rearrange()

    # --- channels

    def ensure_channel(self, name: str) -> Channel:
        """Return the channel of that name, made if need be.

        Raises:
            ClosedError: the topic is being deleted.
        """
        channel = self.channels.get(name)
        if channel is None:
            if self.state is TopicState.CLOSED:
                raise ClosedError
            channel = self.channels[name] = self._make_channel(name)
            if self.bounds is not None:
                self.bounds.attach(channel)
            channel.on_empty = self.hand_over.forget_durably
            if channel.is_ephemeral:
                channel.on_abandoned = lambda: self.delete_channel(name)
            logger.info("TOPIC(%s): new channel(%s)", self.name, name)
            if self.state is TopicState.RUNNING and (self.is_paused or self.queue.depth):
                # The channel has a share in the messages here, and stands in nsqd.dat only soon:
                # after a crash its files tell that it existed.
                channel.queue.backend.leave_trace()
            self.rearrange()
            if self.on_channel_change is not None:
                self.on_channel_change(channel)
        return channel

    def delete_channel(self, name: str) -> Receipt:
        """Delete a channel with its messages and disconnect its consumers.

        Return the receipt that is done when its files are gone, and no crash brings its messages
        back to a new channel of the name.
        """
        channel = self.channels.pop(name, None)
        if channel is None:
            return Receipt(0)
        logger.info("TOPIC(%s): deleting channel %s", self.name, name)
        self.hand_over.remove_channel(channel)
        self.rearrange()
        receipt = channel.delete()
        if self.state is not TopicState.CLOSED:
            receipt.include(self.hand_over.forget_durably())
        if self.on_channel_change is not None:
            self.on_channel_change(channel)
        if self.is_ephemeral and not self.channels and self.on_abandoned is not None:
            self.on_abandoned()
        return receipt

    def pause(self) -> None:
        """Keep messages here until `unpause`."""
        self.is_paused = True
        self.rearrange()

    def unpause(self) -> None:
        """Serve the channels again."""
        self.is_paused = False
        self.rearrange()

    def empty(self) -> Receipt:
        """Drop the messages that wait here.

        Return the receipt that is done when no crash brings them back.
        """
        self.hand_over.clear()
        if self.bounds is not None:
            self.bounds.empty()
        pieces, receipt = self.queue.empty()
        dispose(self._scheduler, [pieces])
        self.rearrange()
        return receipt

    def flush(self) -> list[OSError]:
        """Write all messages to disk, for the last time; return the errors."""
        self._line.finish()
        self.hand_over.finish()
        self.state = TopicState.CLOSED
        self.refusal = ClosedError
        self._unbind()
        errors = []
        for channel in self.channels.values():
            try:
                channel.flush()
            except OSError as error:
                errors.append(error)
        try:
            self.queue.flush(())
        except OSError as error:
            errors.append(error)
        return errors

    def queues(self) -> list[MessageQueue]:
        """Return the topic's queue and those of its channels."""
        return [self.queue, *(channel.queue for channel in self.channels.values())]

    def delete(self) -> Receipt:
        """Delete the topic, its channels, all their messages and its history.

        Return the receipt that is done when the files are gone, as far as they could be removed.
        """
        self.state = TopicState.CLOSED
        self.refusal = ClosedError
        self.on_abandoned = None
        self._line.close()
        self.hand_over.is_direct = False
        self._unbind()
        receipt = Receipt(0)
        for name in list(self.channels):
            receipt.include(self.delete_channel(name))
        self.on_channel_change = None  # refers to this topic: the garbage collector is off
        self.hand_over.clear()
        pieces, queue_receipt = self.queue.delete()
        receipt.include(queue_receipt)
        dispose(self._scheduler, [pieces])
        if self.archive is not None:
            receipt.include(self.archive.delete())
        return receipt

    def _unbind(self) -> None:
        if self.bounds is not None:
            self.bounds.close()
            self.bounds = None

    @property
    def _can_serve(self) -> bool:
        return self.state is TopicState.RUNNING and not self.is_paused and bool(self.channels)

    def rearrange(self) -> None:
        """Go on as the state, the pause and the channels now demand."""
        has_backlog = self.queue.depth or self.hand_over.is_writing
        self.hand_over.is_direct = self._can_serve and not has_backlog
        self._schedule_pump()

    def _schedule_pump(self) -> None:
        if not self._is_pump_scheduled and self._can_serve and self.queue.depth:
            self._is_pump_scheduled = True
            self._scheduler.share(self._pump)

    def _pump(self) -> bool:
        """Hand over a slice; return whether there is more to hand over."""
        if not self._can_serve:
            self._is_pump_scheduled = False
            return False
        try:
            self.hand_over.move()
        except SlowDiskError:
            # The pump counts as scheduled until then, so that publishes don't start another one.
            self.hand_over.write_front(self._go_on)
            return False
        except OSError as error:
            self._go_on(error)
            return False
        if self.bounds is not None:
            self.bounds.trim_soon()
        self._is_pump_scheduled = bool(self.queue.depth)
        self.rearrange()
        return self._is_pump_scheduled

    def _go_on(self, error: OSError | None) -> None:
        """Go on with the hand-over: at once, or later if it has failed."""
        if error is None:
            self._is_pump_scheduled = False
            self.rearrange()
            return
        logger.error("TOPIC(%s): failed to copy to a channel - %s", self.name, error)
        # The pump counts as scheduled until then, so that publishes don't start another one.
        share_pump = partial(self._scheduler.share, self._pump)
        self._scheduler.call_at(self._scheduler.time() + RETRY_S, share_pump)


class HandOver:
    """Gives every channel of a topic its copy of each message; all of them get it or none.

    *Direct*: while the topic serves its channels and its own queue is empty, a publish goes
    straight to the channels. If the disk of one refuses it, it is taken back from the others and
    the publish fails.

    *Through the queue*: otherwise messages gather in the topic's queue, and `move` hands them over
    from its front, piece by piece and in order. Their publishers have had their OK, so that a
    refusal can't be passed on: a piece that the disk of one channel refuses goes back to the front
    of the queue, and `_copied` remembers the channels that have it, which the next try leaves out.
    So does the piece that the end of a slice leaves to other channels: there may be thousands.
    Until then the hand-over is *partial*, and the front of the queue must stay as it is: limits
    drop nothing there.

    A record on the topic's disk may go only when the message is as safe in every channel. So it
    waits in `_unsynced` until all files that took a copy have been synced. If a sync fails the
    record stays, and a restart hands it over again: a message may come twice, but is not lost.
    A channel that drops its copies, emptied or deleted, would get them again after a crash. So its
    answer waits for `forget_durably`, which has all these syncs made at once.

    If the disk of a channel is slow, a thread writes the front piece to the channels that don't
    have it (`write_front`), and `move` goes on when they have it.
    """

    __slots__ = (
        "_channels",
        "_copied",
        "_copy_receipts",
        "_missing",
        "_queue",
        "_receipts",
        "_scheduler",
        "_sync_error",
        "_transfer",
        "_unsynced",
        "is_direct",
        "line_bytes",
        "line_count",
    )

    def __init__(
        self,
        queue: MessageQueue,
        channels: Mapping[str, Channel],
        receipts: Receipts,
        scheduler: Scheduler,
    ) -> None:
        """Args:
        channels: those of the topic, which adds and removes them.
        """
        # Set by the topic. Publishes go straight to the channels, or else to the queue.
        self.is_direct = False
        # The messages of publishes that wait in line, on their way to the queue or the channels.
        self.line_count = 0
        self.line_bytes = 0
        self._queue = queue
        self._channels = channels
        self._receipts = receipts
        self._scheduler = scheduler
        # The channels that have the front piece of the queue while others have not, and the
        # receipts for their copies of it.
        self._copied: set[Channel] = set()
        self._copy_receipts: list[Receipt] = []
        # The copies that a thread writes, and for which channels: none if they are not wanted any
        # more, because the queue was emptied.
        self._transfer: Transfer | None = None
        self._missing: list[Channel] = []
        # Records of messages that all channels have, by the receipt for all their copies.
        self._unsynced: dict[Receipt, Sequence[int]] = {}
        # Why records stay although all channels have the messages, None if none does.
        self._sync_error: Exception | None = None

    @property
    def is_partial(self) -> bool:
        """Whether some channels have the front of the queue and others have not."""
        return bool(self._copied) or self._transfer is not None

    @property
    def is_writing(self) -> bool:
        """Whether a thread writes to the queues of the channels."""
        return self._transfer is not None

    def copy(self, batch: AnyBatch) -> None:
        """Put a batch into every channel.

        Raises:
            OSError: the disk of a channel refused it, and no channel has it.
        """
        channel: Channel | None = None
        try:
            for channel in self._channels.values():
                channel.put(batch)
        except OSError:
            for other in self._channels.values():
                if other is channel:
                    break
                other.undo_put(batch)
            raise

    def put(self, batch: AnyBatch) -> None:
        """Put a batch into every channel, or into the queue.

        Raises:
            OSError: a disk refused it, and no queue has it.
        """
        if self.is_direct:
            self.copy(batch)
        else:
            self._queue.put(batch)

    def find_targets(
        self, *, is_stored: bool = False, channel: Channel | None = None
    ) -> list[PutTarget]:
        """Return the queues that get the messages of a publish.

        Args:
            is_stored: they leave the disk of another queue.
            channel: the only channel that gets them; None for all.
        """
        if channel is None and not self.is_direct:
            return [PutTarget(self._queue, _ignore_count, is_stored=is_stored)]
        return [
            PutTarget(
                *(each.queue, partial(_count_in, each)),
                is_stored=is_stored and not each.is_ephemeral,
            )
            for each in (self._channels.values() if channel is None else [channel])
        ]

    def count_room(self) -> int:
        """Return how many messages can be published now without a write to disk."""
        if not self.is_direct:
            return self._queue.room_count
        return min(channel.queue.room_count for channel in self._channels.values())

    def move(self) -> None:
        """Hand over messages from the queue, as many as one slice has time for.

        Raises:
            SlowDiskError: `write_front` has to be called.
            OSError: the queue can't be read, or the disk of a channel refused a piece; that piece
                is still in the queue.
        """
        end = self._scheduler.slice_end()
        has_time = True
        while has_time:
            piece = self._queue.take(MAX_MESSAGES_PER_PIECE, MAX_BYTES_PER_PIECE)
            if piece is None:
                return
            self._receipts.begin()
            try:
                has_time = self._put(piece, end)
            except OSError:
                self._queue.untake(piece)
                self._note_copies()
                raise
            self._note_copies()
            if len(self._copied) < len(self._channels):
                self._queue.untake(piece)
                return
            copy_receipts = self._copy_receipts
            self._forget_copies()
            if piece.is_on_disk:
                self._forget_when_synced(piece.ordinals, copy_receipts)

    def _put(self, piece: Piece, end: float) -> bool:
        """Put a piece into the channels that don't have it; return whether there is time left.

        Raises:
            OSError: the disk of a channel refused it.
        """
        part = piece.batch.part(piece.start, piece.stop)
        for channel in self._channels.values():
            if channel not in self._copied:
                channel.put(part, is_stored=piece.is_on_disk)
                self._copied.add(channel)
                if time.perf_counter() >= end:
                    return False
        return True

    def write_front(self, on_end: Callable[[OSError | None], object]) -> None:
        """Have a thread write the front piece to the channels that don't have it.

        Args:
            on_end: called with the error if they still don't have it, with None to go on.

        Raises:
            OSError: the process has no descriptors left.
        """
        assert self._transfer is None
        piece = self._queue.take(MAX_MESSAGES_PER_PIECE, MAX_BYTES_PER_PIECE)
        assert piece is not None, "`move` has just put it back"
        self._queue.untake(piece)
        missing = [each for each in self._channels.values() if each not in self._copied]
        targets = [
            PutTarget(
                *(channel.queue, partial(_count_in, channel)),
                is_stored=piece.is_on_disk and not channel.is_ephemeral,
            )
            for channel in missing
        ]
        transfer = Transfer(targets, [Part(piece.batch.part(piece.start, piece.stop))])
        self._transfer, self._missing = transfer, missing
        on_written = partial(self._on_written, transfer, on_end)
        self._scheduler.run_in_thread(transfer.run, on_written)

    def _on_written(
        self,
        transfer: Transfer,
        on_end: Callable[[OSError | None], object],
        _error: OSError | None,
    ) -> None:
        if transfer is not self._transfer:
            return  # `finish` was here
        if transfer.error is not None:
            self._end_transfer(transfer, on_end)
            return
        self._receipts.begin()
        is_complete = bool(self._missing) and transfer.complete()
        self._note_copies()
        if is_complete:
            self._copied.update(self._missing)
            self._transfer = None
            on_end(None)
        else:
            end = partial(self._end_transfer, transfer, on_end)
            self._scheduler.run_in_thread(transfer.undo, end)

    def _end_transfer(
        self,
        transfer: Transfer,
        on_end: Callable[[OSError | None], object],
        _error: OSError | None = None,
    ) -> None:
        """Allow the channels other appends, after copies that were not made."""
        transfer.give_up()
        if transfer is self._transfer:
            self._transfer = None
            on_end(transfer.error)

    def finish(self) -> None:
        """Wait for a thread that writes copies, and take them back: the queue has the messages."""
        transfer, self._transfer = self._transfer, None
        if transfer is not None:
            transfer.run()
            transfer.undo()
            transfer.give_up()

    def remove_channel(self, channel: Channel) -> None:
        """Forget a deleted channel."""
        self._copied.discard(channel)

    def clear(self) -> None:
        """Forget which channels have which messages: the queue is being emptied."""
        self._forget_copies()
        self._missing = []
        self._unsynced.clear()
        self._sync_error = None

    def forget_records(self) -> None:
        """Forget all records of messages that the channels have: their disks have been synced."""
        for ordinals in self._unsynced.values():
            self._queue.commit(ordinals)
        self._unsynced.clear()

    def forget_durably(self) -> Receipt:
        """Have the records forgotten of all messages that every channel has.

        Return the receipt that is done when no crash hands these over again. It has an error if
        records stay.
        """
        copies = Receipt(0)
        if self._unsynced:
            for channel in self._channels.values():
                copies.include(channel.queue.backend.sync())
        receipt = Receipt(1)
        copies.when_done(partial(self._sync_queue, receipt))
        return receipt

    def _sync_queue(self, receipt: Receipt, _error: Exception | None) -> None:
        """Make it durable that records were forgotten.

        A sync settles the receipts for copies before its own, so that the records have been
        forgotten, or stay because of an error.
        """
        receipt.error = self._sync_error
        self._queue.backend.sync().when_done(receipt.settle)

    def _note_copies(self) -> None:
        receipt = self._receipts.make()
        if receipt is not None:
            self._copy_receipts.append(receipt)

    def _forget_copies(self) -> None:
        self._copied.clear()
        self._copy_receipts = []

    def _forget_when_synced(
        self, ordinals: Sequence[int], copy_receipts: Iterable[Receipt]
    ) -> None:
        receipt = Receipt(0)
        for copy_receipt in copy_receipts:
            receipt.include(copy_receipt)
        self._unsynced[receipt] = ordinals

        def forget(error: Exception | None) -> None:
            # Absent after `clear` or `forget_records`.
            synced = self._unsynced.pop(receipt, None)
            if synced is None:
                return
            if error is None:
                self._queue.commit(synced)
            else:
                self._sync_error = error

        receipt.when_done(forget)


def _count_in(channel: Channel, count: int) -> None:
    """Tell a channel that messages have appeared in its queue."""
    channel.message_count += count
    channel.look_again()


def _ignore_count(_count: int) -> None:
    """Do nothing for the topic's own queue: `note_published` does all."""
