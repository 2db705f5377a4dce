"""PublishLine: the publishes of one topic that can't be done at once, in their order.

Most publishes never see it: their messages are put into the queues in the call of `Topic.publish`.
Two kinds take more time than a turn of the loop has, and wait here:

* *large* ones, of more messages than a block has ids. `prepare` gives them ids and encodes their
  records in slices, while other publishers go on; only then do they get in line.
* those whose records a thread writes, because they are large or the disk is slow, and all publishes
  to the topic that come meanwhile: they stand behind, so that order is kept.

The messages of a publish appear in all channels in one step, when all their records are written.
The publisher has a receipt until then. If the topic is deleted, or the disk refuses the records, no
channel has any of them and the receipt tells why.

    publish --- large ---> prepare --- slices ---.
       `------ the line is busy ------------------`--> add --> transfer (thread) --> the queues
"""

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from itertools import accumulate
from typing import Protocol

from nsqd.broker.archive.archive import Archive
from nsqd.broker.errors import ClosedError, DepthLimitError
from nsqd.broker.queue.batch import AnyBatch, Batch
from nsqd.broker.queue.ids import MessageIdFactory
from nsqd.broker.queue.pending_put import Part, PutTarget, Transfer
from nsqd.broker.queue.receipt import Receipt, Receipts
from nsqd.broker.scheduler import Scheduler

# A part of a large publish: encoding one takes about 0.1 ms. With its headers it is smaller than
# the 128 KB from which on malloc asks the kernel for new pages each time, which takes longer.
PART_MAX_COUNT = 1024
PART_MAX_BYTES = 64 * 1024
# Publishes that are written together. To plan and to complete their put into one queue takes 2.5 us
# for each, beside 0.2 us for each of their messages, once, to encode it.
GROUP_MAX_BYTES = 1024 * 1024
GROUP_MAX_COUNT = 4096
GROUP_MAX_PUTS = 256
# A publisher whose publish makes the line longer than this may send no more before it is done.
LINE_MAX_BYTES = 1024 * 1024
# Half a million messages are freed in 16 ms: a few parts in each step.
PARTS_PER_FREEING = 8


@dataclass(frozen=True, slots=True)
class Destination:
    """The queues for messages that leave another queue, which forgets them once they are synced."""

    find_targets: Callable[[], "Sequence[PutTarget]"]
    is_topic: bool  # all channels of the topic get them, and it counts them


class Publish:
    """The messages of one publish that waits."""

    __slots__ = ("count", "destination", "is_large", "parts", "receipt", "size_bytes")

    def __init__(self, *, is_large: bool, destination: Destination | None = None) -> None:
        """Args: destination: of messages that leave another queue; None for a client's publish."""
        self.is_large = is_large
        self.destination = destination
        self.parts: list[Part] = []
        self.count = 0
        self.size_bytes = 0
        self.receipt = Receipt(1)

    def add(self, batch: AnyBatch) -> Part:
        """Add messages."""
        part = Part(batch)
        self.parts.append(part)
        self.count += len(batch.bodies)
        self.size_bytes += batch.body_bytes
        return part

    def free(self) -> bool:
        """Let go of some messages, which are in the queues by now; return whether there are more.

        The memory of those that are on disk only is freed here.
        """
        del self.parts[-PARTS_PER_FREEING:]
        return bool(self.parts)

    @property
    def stands_alone(self) -> bool:
        """Whether it can't be written together with others."""
        return self.is_large or self.destination is not None or self.parts[0].batch.is_deferred


class Entrance(Protocol):
    """The topic, as its line sees it."""

    archive: Archive | None

    def admit_large(self, publish: Publish) -> None:
        """Check that a large publish is accepted, when it gets in line.

        Raises:
            ClosedError: the topic is being deleted.
            DepthLimitError: a queue has no room for it.
            OSError: the disk is almost full.
        """

    def note_published(self, publish: Publish) -> None:
        """Count messages that have appeared in the queues."""


class Queues(Protocol):
    """The queues of the topic and its channels, as the line sees them."""

    # The messages that wait here or are being written, for the limits.
    line_count: int
    line_bytes: int

    def find_targets(self) -> Sequence[PutTarget]:
        """Return the queues that get the messages of a publish."""

    def count_room(self) -> int:
        """Return how many messages can be published now without a write to disk."""

    def put(self, batch: AnyBatch) -> None:
        """Put a batch into the queues.

        Raises:
            OSError: the disk refused it, and no queue has it.
        """


class LineState(Enum):
    """Whether publishes have to get in line."""

    IDLE = auto()
    BUSY = auto()
    CLOSED = auto()


class PublishLine:
    """Large publishes, those that a thread writes, and those behind them."""

    def __init__(
        self,
        entrance: Entrance,
        queues: Queues,
        ids: MessageIdFactory,
        scheduler: Scheduler,
        receipts: Receipts,
    ) -> None:
        self.state = LineState.IDLE
        # None when closed: it refers to this line, and the garbage collector is off.
        self._entrance: Entrance | None = entrance
        self._queues = queues
        self._ids = ids
        self._scheduler = scheduler
        self._receipts = receipts
        self._waiting: deque[Publish] = deque()
        # The publishes that a thread writes.
        self._group: list[Publish] = []
        self._transfer: Transfer | None = None

    def publish_large(
        self, bodies: Sequence[bytes], now_ns: int, *, needs_records: bool = False
    ) -> Receipt | None:
        """Publish more messages than a block has ids; return and raise as `publish` does.

        Args:
            needs_records: encode them even if no queue needs their records.
        """
        publish = Publish(is_large=True)
        unwritten_count = 0 if needs_records else self._queues.count_room()
        preparation = Preparation(publish, bodies, now_ns, self._ids, unwritten_count)

        def step() -> bool:
            if self.state is LineState.CLOSED:
                publish.receipt.settle(ClosedError())
                return False
            if preparation.step(self._scheduler.slice_end()):
                return True
            self._append(publish)
            return False

        if step():
            publish.receipt.holds_publisher = True
            self._scheduler.share(step)
            return publish.receipt
        return _unless_done(publish.receipt)

    def publish(self, batch: AnyBatch, destination: Destination | None = None) -> Receipt | None:
        """Publish a batch behind those that wait.

        Return the receipt, None if it is done already.

        Args:
            destination: the batch leaves another queue; not for deferred messages.

        Raises:
            ClosedError: the topic is being deleted.
            DepthLimitError: a queue has no room for the messages.
            OSError: the disk refused them.
        """
        publish = Publish(is_large=False, destination=destination)
        publish.add(batch)
        self._append(publish)
        return _unless_done(publish.receipt)

    def finish(self) -> None:
        """Wait for the records that a thread writes, and refuse all other publishes for good."""
        transfer = self._transfer
        if transfer is not None:
            transfer.run()
            if not self._end(transfer):
                transfer.undo()
                transfer.give_up()
                self._fail(self._group, ClosedError())
            self._transfer, self._group = None, []
        self.close()

    def close(self) -> None:
        """Refuse all publishes for good, those that wait included: the topic is being deleted."""
        self.state = LineState.CLOSED
        self._entrance = None
        waiting, self._waiting = self._waiting, deque()
        self._fail(waiting, ClosedError())

    def _append(self, publish: Publish) -> None:
        if publish.is_large:
            assert self._entrance is not None
            try:
                self._entrance.admit_large(publish)
            except (ClosedError, DepthLimitError, OSError) as error:
                publish.receipt.settle(error)
                return
        self._waiting.append(publish)
        queues = self._queues
        queues.line_count += publish.count
        queues.line_bytes += publish.size_bytes
        if publish.is_large or queues.line_bytes > LINE_MAX_BYTES:
            publish.receipt.holds_publisher = True
        if self.state is LineState.IDLE:
            self._go_on()

    def _go_on(self) -> None:
        """Put publishes into the queues until one has to wait for its records to be written."""
        self.state = LineState.BUSY
        while self._waiting:
            destination = self._waiting[0].destination
            targets = (destination or self._queues).find_targets()
            group = self._take_group(len(targets))
            try:
                transfer = self._begin(group, targets)
            except OSError as error:
                self._fail(group, error)
                continue
            if transfer is not None:
                self._group, self._transfer = group, transfer
                self._scheduler.run_in_thread(transfer.run, self._on_written)
                return
        # Receipts run the code of their owners, which may have closed the line.
        if self.state is LineState.BUSY:
            self.state = LineState.IDLE

    def _take_group(self, target_count: int) -> list[Publish]:
        """Take the publishes from the front that can be written together to so many queues."""
        group = [self._waiting.popleft()]
        if group[0].stands_alone:
            return group
        count, size_bytes = group[0].count, group[0].size_bytes
        while self._waiting and not self._waiting[0].stands_alone:
            count += self._waiting[0].count
            size_bytes += self._waiting[0].size_bytes
            if (
                count > GROUP_MAX_COUNT
                or size_bytes > GROUP_MAX_BYTES
                or (len(group) + 1) * target_count > GROUP_MAX_PUTS
            ):
                break
            group.append(self._waiting.popleft())
        return group

    def _begin(self, group: list[Publish], targets: Sequence[PutTarget]) -> Transfer | None:
        """Put publishes into the queues, or return the transfer that has to be run first.

        Raises:
            OSError: the disk refused them.
        """
        parts = [part for publish in group for part in publish.parts]
        if parts[0].batch.is_deferred:
            self._note_writes(group)
            self._queues.put(parts[0].batch)
            self._succeed(group)
            return None
        transfer = Transfer(targets, parts)
        if transfer.has_jobs:
            return transfer
        transfer.complete()
        self._succeed(group)
        return None

    def _must_sync(self, group: list[Publish]) -> bool:
        """Whether publishes are done only when they are durable."""
        return self._receipts.needs_sync or group[0].destination is not None

    def _note_writes(self, group: list[Publish]) -> None:
        """Note the queues that are written to from here on, if the publishes have to be durable."""
        if self._must_sync(group):
            self._receipts.begin()

    def _on_written(self, _error: OSError | None) -> None:
        transfer = self._transfer
        if transfer is None:
            return  # `finish` was here
        if self._end(transfer):
            self._leave_transfer()
        else:
            self._scheduler.run_in_thread(transfer.undo, self._on_undone)

    def _on_undone(self, _error: OSError | None) -> None:
        """Write publishes once more: a queue was emptied while they were being written."""
        if self._transfer is not None:
            self._transfer.give_up()
            self._waiting.extendleft(reversed(self._group))
            self._leave_transfer()

    def _leave_transfer(self) -> None:
        self._transfer, self._group = None, []
        if self.state is LineState.CLOSED:
            waiting, self._waiting = self._waiting, deque()
            self._fail(waiting, ClosedError())
        else:
            self._go_on()

    def _end(self, transfer: Transfer) -> bool:
        """Let the messages appear that were written, or tell why they were not.

        Returns False if they have to be written once more.
        """
        if self.state is LineState.CLOSED:
            self._scheduler.run_in_thread(transfer.undo, partial(_give_up, transfer))
            self._fail(self._group, ClosedError())
        elif transfer.error is not None:
            transfer.give_up()
            self._fail(self._group, transfer.error)
        else:
            self._note_writes(self._group)
            if not transfer.complete():
                return False
            self._succeed(self._group)
        return True

    def _succeed(self, group: list[Publish]) -> None:
        """Count publishes whose messages have appeared, and settle their receipts."""
        assert self._entrance is not None
        synced = self._receipts.make() if self._must_sync(group) else None
        for publish in group:
            self._leave(publish)
            self._entrance.note_published(publish)
            if publish.is_large:
                self._scheduler.share(publish.free)
        if self._entrance.archive is not None:
            synced = self._entrance.archive.await_written(synced)
        if synced is None:
            _settle(group, None)
        else:
            synced.when_done(partial(_settle, group))

    def _fail(self, group: Iterable[Publish], error: Exception) -> None:
        for publish in group:
            self._leave(publish)
        _settle(group, error)

    def _leave(self, publish: Publish) -> None:
        self._queues.line_count -= publish.count
        self._queues.line_bytes -= publish.size_bytes


class Preparation:
    """Gives the messages of a large publish their ids and encodes their records, in slices."""

    def __init__(
        self,
        publish: Publish,
        bodies: Sequence[bytes],
        now_ns: int,
        ids: MessageIdFactory,
        unwritten_count: int,
    ) -> None:
        """Args: unwritten_count: the records of so many messages from the first on are not needed.

        If they are in the end, because other messages have come meanwhile, they are encoded then.
        """
        self._publish = publish
        self._bodies = bodies
        self._now_ns = now_ns
        self._ids = ids
        self._unwritten_count = unwritten_count

    def step(self, end: float) -> bool:
        """Prepare messages until `end`; return whether there are more."""
        publish, bodies = self._publish, self._bodies
        while publish.count < len(bodies):
            messages = self._take(publish.count)
            prefix, first = self._ids.reserve(len(messages), self._now_ns)
            part = publish.add(Batch(self._now_ns, prefix, first, messages))
            if publish.count > self._unwritten_count:
                part.encode()
            if time.perf_counter() >= end:
                break
        return publish.count < len(bodies)

    def _take(self, start: int) -> tuple[bytes, ...]:
        """Return the bodies of the next part."""
        bodies = tuple(self._bodies[start : start + PART_MAX_COUNT])
        ends = list(accumulate(map(len, bodies)))
        if ends[-1] > PART_MAX_BYTES:
            bodies = bodies[: max(bisect_right(ends, PART_MAX_BYTES), 1)]
        return bodies


def _settle(group: Iterable[Publish], error: Exception | None) -> None:
    for publish in group:
        publish.receipt.settle(error)


def _give_up(transfer: Transfer, _error: OSError | None) -> None:
    transfer.give_up()


def _unless_done(receipt: Receipt) -> Receipt | None:
    """Return a receipt that is not done yet, None for one that is.

    Raises:
        ClosedError, DepthLimitError, OSError: it is done, and this is its error.
    """
    if not receipt.is_done:
        return receipt
    if receipt.error is not None:
        raise receipt.error
    return None
