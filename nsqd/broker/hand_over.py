"""HandOver: gives every channel of a topic its copy of each message; all of them get it or none.

*Direct*: while the topic serves its channels and its own queue is empty, a publish goes straight to
the channels. If the disk of one refuses it, it is taken back from the others and the publish fails.

*Through the queue*: otherwise messages gather in the topic's queue, and `move` hands them over from
its front, piece by piece and in order. Their publishers have had their OK, so that a refusal can't
be passed on: a piece that the disk of one channel refuses goes back to the front of the queue, and
`_copied` remembers the channels that have it, which the next try leaves out. Until then the
hand-over is *partial*, and the front of the queue must stay as it is: limits drop nothing there.

A record on the topic's disk may go only when the message is as safe in every channel. So it waits
in `_unsynced` until all files that took a copy have been synced. If a sync fails the record stays,
and a restart hands it over again: a message may come twice, but is not lost.
"""

from collections.abc import Iterable, Mapping, Sequence

from nsqd.broker.channel import Channel
from nsqd.broker.queue.batch import AnyBatch
from nsqd.broker.queue.message_queue import MessageQueue
from nsqd.broker.queue.receipt import Receipt, Receipts

MAX_MESSAGES_PER_TURN = 4096
MAX_BYTES_PER_TURN = 1024 * 1024


class HandOver:
    """Knows which channel has which messages of a topic, until all of them have them safely."""

    __slots__ = (
        "_channels",
        "_copied",
        "_copy_receipts",
        "_queue",
        "_receipts",
        "_unsynced",
        "is_direct",
    )

    def __init__(
        self, queue: MessageQueue, channels: Mapping[str, Channel], receipts: Receipts
    ) -> None:
        """Args:
        channels: those of the topic, which adds and removes them.
        """
        # Set by the topic. Publishes go straight to the channels, or else to the queue.
        self.is_direct = False
        self._queue = queue
        self._channels = channels
        self._receipts = receipts
        # The channels that have the front piece of the queue while others have not, and the
        # receipts for their copies of it.
        self._copied: set[Channel] = set()
        self._copy_receipts: list[Receipt] = []
        # Records of messages that all channels have, by the receipt for all their copies.
        self._unsynced: dict[Receipt, Sequence[int]] = {}

    @property
    def is_partial(self) -> bool:
        """Whether some channels have the front of the queue and others have not."""
        return bool(self._copied)

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

    def move(self) -> None:
        """Hand over messages from the queue, as many as one turn of the loop may.

        Raises:
            OSError: the queue can't be read, or the disk of a channel refused a piece; that piece
                is still in the queue.
        """
        budget = MAX_MESSAGES_PER_TURN
        while budget > 0:
            piece = self._queue.take(budget, MAX_BYTES_PER_TURN)
            if piece is None:
                return
            part = piece.batch.part(piece.start, piece.stop)
            self._receipts.begin()
            try:
                for channel in self._channels.values():
                    if channel not in self._copied:
                        channel.put(part, is_stored=piece.is_on_disk)
                        self._copied.add(channel)
            except OSError:
                self._queue.untake(piece)
                self._note_copies()
                raise
            self._note_copies()
            copy_receipts = self._copy_receipts
            self._forget_copies()
            if piece.is_on_disk:
                self._forget_when_synced(piece.ordinals, copy_receipts)
            budget -= piece.count

    def remove_channel(self, channel: Channel) -> None:
        """Forget a deleted channel."""
        self._copied.discard(channel)

    def clear(self) -> None:
        """Forget which channels have which messages: the queue is being emptied."""
        self._forget_copies()
        self._unsynced.clear()

    def forget_records(self) -> None:
        """Forget all records of messages that the channels have: their disks have been synced."""
        for ordinals in self._unsynced.values():
            self._queue.commit(ordinals)
        self._unsynced.clear()

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

        def forget(error: OSError | None) -> None:
            # Absent after `clear` or `forget_records`.
            synced = self._unsynced.pop(receipt, None)
            if error is None and synced is not None:
                self._queue.commit(synced)

        receipt.when_done(forget)
