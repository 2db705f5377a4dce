"""Topic: takes what is published and gives every channel a share in it.

While a topic is running and has channels, a publish goes straight into the channels' queues and the
topic's own queue stays empty. The topic queues only what nobody can take yet: it is paused, has no
channel, or is still *starting*, waiting to be told which channels the cluster knows. `_pump` moves
what has gathered to the channels, some messages a turn; until it is through, new messages queue up
behind, so order is kept.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from enum import Enum, auto

from nsqd.broker.archive.archive import Archive
from nsqd.broker.channel import Channel
from nsqd.broker.errors import ClosedError, DrainingError
from nsqd.broker.limits.losses import Losses
from nsqd.broker.limits.overrides import NO_OVERRIDES
from nsqd.broker.limits.topic_bounds import TopicBounds
from nsqd.broker.queue.batch import AnyBatch, Batch, MixedBatch
from nsqd.broker.queue.ids import SEQUENCE_COUNT, MessageIdFactory
from nsqd.broker.queue.message_queue import MessageQueue
from nsqd.broker.queue.receipt import Receipt, Receipts
from nsqd.broker.scheduler import Scheduler
from nsqd.protocol.names import is_ephemeral

logger = logging.getLogger(__name__)

MAX_MESSAGES_PER_TURN = 4096
MAX_BYTES_PER_TURN = 1024 * 1024
RETRY_S = 1.0


class TopicState(Enum):
    """The life of a topic."""

    STARTING = auto()  # takes messages, but waits to learn its channels
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
        self.takes_messages = True
        # Makes the error of a publish while it takes none, unless it is closed.
        self.refusal: Callable[[], Exception] = DrainingError
        self.channels: dict[str, Channel] = {}
        self.message_count = 0
        self.message_bytes = 0
        # Keeps what is published here for a while, if history is kept.
        self.archive: Archive | None = None
        # What it has of its own instead of the flags, and what keeps to it; None if nothing has to.
        self.limit_overrides = NO_OVERRIDES
        self.bounds: TopicBounds | None = None
        self.losses = Losses()
        # Called when a channel has come or gone, and when an ephemeral topic has lost its last one.
        self.on_channel_change: Callable[[Channel], object] | None = None
        self.on_abandoned: Callable[[], object] | None = None
        self._queue = queue
        self._ids = ids
        self._scheduler = scheduler
        self._make_channel = make_channel
        self._is_pump_scheduled = False
        self._is_direct = False  # publishes go straight to the channels
        self._receipts = receipts or Receipts(needs_sync=False)
        self._needs_sync = self._receipts.needs_sync
        # The channels that have the front of our queue already, while another's disk refuses it,
        # and what their disks have still to sync of it.
        self._copied: set[Channel] = set()
        self._copies: list[Receipt] = []
        # Records that the channels have, but not yet safely enough to be forgotten here.
        self._moved: dict[Receipt, Sequence[int]] = {}

    @property
    def queue(self) -> MessageQueue:
        """What no channel has taken yet."""
        return self._queue

    @property
    def copied(self) -> Collection[Channel]:
        """The channels that have the front of our queue already, while others have not."""
        return self._copied

    @property
    def depth(self) -> int:
        """How many messages no channel has taken yet."""
        return self._queue.depth

    @property
    def backend_depth(self) -> int:
        """How many of them are on disk."""
        return self._queue.backend_depth

    def start(self) -> None:
        """Begin to serve the channels."""
        if self.state is TopicState.STARTING:
            self.state = TopicState.RUNNING
            self._rearrange()

    def publish(self, bodies: Sequence[bytes], *, delay_s: float = 0.0) -> Receipt | None:
        """Take messages, each kept back for `delay_s` by the channels: all of them or none.

        Returns what has to happen before they may be acknowledged, None if that is nothing.

        Raises:
            ClosedError: the topic is being deleted.
            DrainingError: the node takes no new messages.
            DepthLimitError: a queue has no room for them.
            OSError: the disk refused them, or is almost full.
        """
        if not self.takes_messages:
            raise ClosedError if self.state is TopicState.CLOSED else self.refusal()
        if self.bounds is not None:
            self.bounds.admit(bodies)
        count = len(bodies)
        if not count:
            return None
        now_ns = self._scheduler.wall_time_ns()
        if count <= SEQUENCE_COUNT and not delay_s:
            prefix, first = self._ids.reserve(count, now_ns)
            batch: AnyBatch = Batch(now_ns, prefix, first, tuple(bodies))
        else:
            batch = self._make_batch(bodies, delay_s, now_ns)
        if not self._needs_sync:
            self._put(batch)
            return None
        self._receipts.begin()
        self._put(batch)
        return self._receipts.make()

    def _make_batch(self, bodies: Sequence[bytes], delay_s: float, now_ns: int) -> AnyBatch:
        """Make what is deferred, or has more messages than a block of ids."""
        count = len(bodies)
        due_ns = self._scheduler.steady_time_ns() + round(delay_s * 1e9) if delay_s else 0
        if count <= SEQUENCE_COUNT:
            prefix, first = self._ids.reserve(count, now_ns)
            return Batch(now_ns, prefix, first, tuple(bodies), delay_s, due_ns)
        # Columns of their own, so that it is one put nevertheless.
        ids: list[bytes] = []
        for start in range(0, count, SEQUENCE_COUNT):
            part = bodies[start : start + SEQUENCE_COUNT]
            ids += Batch(now_ns, *self._ids.reserve(len(part), now_ns), ()).ids(0, len(part))
        return MixedBatch(ids, [now_ns] * count, [0] * count, bodies, due_ns)

    def _put(self, batch: AnyBatch) -> None:
        if self._is_direct:
            channel: Channel | None = None
            try:
                for channel in self.channels.values():
                    channel.put(batch)
            except OSError:
                self._undo_put(batch, refused_by=channel)
                raise
        else:
            self._queue.put(batch)
            self._schedule_pump()
        self.message_count += len(batch.bodies)
        self.message_bytes += batch.body_bytes
        if self.archive is not None:
            self.archive.add(batch)

    def _undo_put(self, batch: AnyBatch, *, refused_by: Channel | None) -> None:
        for channel in self.channels.values():
            if channel is refused_by:
                return
            channel.undo_put(batch)

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
            if channel.is_ephemeral:
                channel.on_abandoned = lambda: self.delete_channel(name)
            logger.info("TOPIC(%s): new channel(%s)", self.name, name)
            if self.state is TopicState.RUNNING and (self.is_paused or self._queue.depth):
                # It has a share in what waits here, and nsqd.dat will know it only in a moment.
                channel.queue.backend.leave_trace()
            self._rearrange()
            self._announce(channel)
        return channel

    def delete_channel(self, name: str) -> None:
        """Delete a channel with its messages and disconnect its consumers."""
        channel = self.channels.pop(name, None)
        if channel is None:
            return
        logger.info("TOPIC(%s): deleting channel %s", self.name, name)
        self._copied.discard(channel)
        self._rearrange()
        try:
            channel.delete()
        finally:
            self._announce(channel)
            if self.is_ephemeral and not self.channels and self.on_abandoned is not None:
                self.on_abandoned()

    def pause(self) -> None:
        """Keep what is published here until `unpause`."""
        self.is_paused = True
        self._rearrange()

    def unpause(self) -> None:
        """Serve the channels again."""
        self.is_paused = False
        self._rearrange()

    def empty(self) -> None:
        """Drop what no channel has taken yet.

        Raises:
            OSError: a file could not be removed.
        """
        self._copied.clear()
        self._copies.clear()
        self._moved.clear()
        if self.bounds is not None:
            self.bounds.empty()
        self._queue.empty()
        self._rearrange()

    def flush(self) -> list[OSError]:
        """Write everything to disk, for the last time; return what went wrong."""
        self.state = TopicState.CLOSED
        self.takes_messages = False
        self._unbind()
        errors = []
        for channel in self.channels.values():
            try:
                channel.flush()
            except OSError as error:
                errors.append(error)
        try:
            self._queue.flush(())
        except OSError as error:
            errors.append(error)
        return errors

    def queues(self) -> list[MessageQueue]:
        """Return the topic's queue and those of its channels."""
        return [self._queue, *(channel.queue for channel in self.channels.values())]

    def delete(self) -> None:
        """Delete the topic, its channels, all their messages and its history.

        Raises:
            OSError: a file could not be removed; everything else is done all the same.
        """
        self.state = TopicState.CLOSED
        self.takes_messages = False
        self.on_abandoned = None
        self._is_direct = False
        self._unbind()
        errors = []
        for name in list(self.channels):
            try:
                self.delete_channel(name)
            except OSError as error:
                errors.append(error)
        self.on_channel_change = None  # it knows us, and would keep us alive
        self._moved.clear()
        steps = [self._queue.empty, self._queue.backend.delete]
        if self.archive is not None:
            steps.append(self.archive.delete)
        for step in steps:
            try:
                step()
            except OSError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _unbind(self) -> None:
        if self.bounds is not None:
            self.bounds.close()
            self.bounds = None

    def _announce(self, channel: Channel) -> None:
        if self.on_channel_change is not None:
            self.on_channel_change(channel)

    @property
    def _can_serve(self) -> bool:
        return self.state is TopicState.RUNNING and not self.is_paused and bool(self.channels)

    def _rearrange(self) -> None:
        self._is_direct = self._can_serve and not self._queue.depth
        self._schedule_pump()

    def _schedule_pump(self) -> None:
        if not self._is_pump_scheduled and self._can_serve and self._queue.depth:
            self._is_pump_scheduled = True
            self._scheduler.call_soon(self._pump)

    def _pump(self) -> None:
        self._is_pump_scheduled = False
        if not self._can_serve:
            return
        try:
            self._move()
        except OSError as error:
            logger.error("TOPIC(%s): failed to copy to a channel - %s", self.name, error)  # noqa: TRY400 - no traceback
            # It counts as scheduled until then, so that publishes don't start more of them.
            self._is_pump_scheduled = True
            self._scheduler.call_at(self._scheduler.time() + RETRY_S, self._pump)
            return
        if self.bounds is not None:
            self.bounds.trim_soon()
        self._rearrange()

    def _move(self) -> None:
        """Hand messages to the channels; they leave our disk once every channel's disk has them."""
        budget = MAX_MESSAGES_PER_TURN
        while budget > 0:
            piece = self._queue.take(budget, MAX_BYTES_PER_TURN)
            if piece is None:
                return
            part = piece.batch.part(piece.start, piece.stop)
            self._receipts.begin()
            try:
                for channel in self.channels.values():
                    if channel not in self._copied:
                        channel.put(part, is_stored=piece.is_on_disk)
                        self._copied.add(channel)
            except OSError:
                self._queue.untake(piece)
                self._note_copies()
                raise
            self._copied.clear()
            self._note_copies()
            if piece.is_on_disk:
                self._forget_when_safe(piece.ordinals)
            self._copies.clear()
            budget -= piece.count

    def _note_copies(self) -> None:
        receipt = self._receipts.make()
        if receipt is not None:
            self._copies.append(receipt)

    def _forget_when_safe(self, ordinals: Sequence[int]) -> None:
        """Forget records when the channels' disks have them for good.

        If a sync of theirs fails we keep ours: a restart brings them again, which is better than
        not at all.
        """
        receipt = Receipt(0)
        for copy in self._copies:
            receipt.include(copy)
        self._moved[receipt] = ordinals

        def forget(error: OSError | None) -> None:
            moved = self._moved.pop(receipt, None)
            if error is None and moved is not None:
                self._queue.commit(moved)

        receipt.when_done(forget)

    def forget_moved(self) -> None:
        """Forget what the channels have, before a close: their disks have been synced."""
        for ordinals in self._moved.values():
            self._queue.commit(ordinals)
        self._moved.clear()
