"""MoveSource: a queue whose messages an operator moves to another topic, or drops.

A message is published first and forgotten when that is durable. In between it is in no queue of its
source, but a message with a record on disk keeps it: a crash brings it back, so that it may come
twice and is never lost. A message that was in memory only may be in memory only afterwards.
"""

from collections.abc import Collection

from nsqd.broker.channel import Channel
from nsqd.broker.queue.batch import Piece
from nsqd.broker.queue.message_queue import MessageQueue
from nsqd.broker.topic import Topic, TopicState

# One step of a move: published and synced together.
MAX_MESSAGES_PER_STEP = 512
MAX_BYTES_PER_STEP = 256 * 1024


class MoveSource:
    """The queue of a topic, or of one of its channels; messages that wait, from the front on."""

    __slots__ = ("_channel", "_topic")

    def __init__(self, topic: Topic, channel: Channel | None = None) -> None:
        self._topic = topic
        self._channel = channel

    @property
    def left_count(self) -> int:
        """How many messages wait."""
        return self._topic.depth if self._channel is None else self._channel.depth

    @property
    def is_busy(self) -> bool:
        """Whether the front of a topic's queue is on its way to the channels, and must stay."""
        return self._channel is None and self._topic.hand_over.is_partial

    @property
    def is_closed(self) -> bool:
        """Whether the queue has been deleted, or nsqd stops."""
        if self._channel is not None and self._channel.is_closed:
            return True
        return self._topic.state is TopicState.CLOSED

    def take(self, max_count: int) -> Piece | None:
        """Take messages of one batch from the front; None if none waits.

        Raises:
            OSError: the disk cannot be read.
        """
        while True:
            count = min(max_count, MAX_MESSAGES_PER_STEP)
            piece = self._queue.take(count, MAX_BYTES_PER_STEP)
            if piece is None or self._channel is None or not piece.batch.is_deferred:
                return piece
            if not self._channel.deferred.add_if_early(piece):
                return piece

    def take_by_id(self, ids: Collection[bytes], max_looked_at: int) -> list[Piece]:
        """Take the messages with these ids, if they are among the first ones.

        Raises:
            OSError: the disk cannot be read.
        """
        found: list[Piece] = []
        others: list[Piece] = []
        looked_at = 0
        while looked_at < max_looked_at:
            piece = self.take(max_looked_at - looked_at)
            if piece is None:
                break
            looked_at += piece.count
            messages = piece.messages()
            wanted = [message for message in messages if message[0] in ids]
            if not wanted:
                others.append(piece)
                continue
            found.append(Piece.from_messages(wanted, piece.origin))
            rest = [message for message in messages if message[0] not in ids]
            if rest:
                others.append(Piece.from_messages(rest, piece.origin))
        for piece in reversed(others):
            self.give_back(piece)
        return found

    def forget(self, piece: Piece) -> None:
        """Forget messages that are safe elsewhere, or not wanted any more."""
        if piece.is_on_disk and not self.is_closed:
            self._queue.commit(piece.ordinals)

    def give_back(self, piece: Piece) -> None:
        """Put messages back to the front: they could not be moved."""
        if self.is_closed:
            return
        self._queue.untake(piece)
        if self._channel is not None:
            self._channel.look_again()
        else:
            self._topic.rearrange()

    @property
    def _queue(self) -> MessageQueue:
        return self._topic.queue if self._channel is None else self._channel.queue
