"""MoveSource: a queue whose messages an operator moves to another topic, or drops.

A message is published first and forgotten when that is durable. In between it is in no queue of its
source, but a message with a record on disk keeps it: a crash brings it back, so that it may come
twice and is never lost. A message that was in memory only may be in memory only afterwards.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from nsqd.broker.channel import Channel
from nsqd.broker.queue.batch import Message, Origin, Piece
from nsqd.broker.queue.message_queue import MessageQueue
from nsqd.broker.queue.receipt import Receipt
from nsqd.broker.topic import Topic, TopicState

_T = TypeVar("_T")

# One step of a move: published and synced together.
MAX_MESSAGES_PER_STEP = 512
MAX_BYTES_PER_STEP = 256 * 1024


@dataclass(frozen=True, slots=True)
class MoveTarget:
    """A topic, or the only one of its channels, that gets messages."""

    topic: Topic
    channel: Channel | None = None

    def publish(self, piece: Piece) -> Receipt | None:
        """Publish messages; see `Topic.publish_moved`."""
        bodies = piece.batch.bodies[piece.start : piece.stop]
        return self.topic.publish_moved(bodies, is_stored=piece.is_on_disk, channel=self.channel)


def find_target(
    topics: Mapping[str, Topic], topic_name: str, channel_name: str
) -> MoveTarget | None:
    """Return where messages of that origin go back to, None if it is gone.

    Args: channel_name: empty for the topic's own queue, so that all channels get them.
    """
    topic = topics.get(topic_name)
    if topic is None or not channel_name:
        return None if topic is None else MoveTarget(topic)
    channel = topic.channels.get(channel_name)
    return None if channel is None else MoveTarget(topic, channel)


def group(
    pieces: Iterable[Piece], find: Callable[[Sequence[bytes]], Sequence[_T]]
) -> list[tuple[_T, Piece]]:
    """Put messages together that have the same, as `find` tells for their ids, in few pieces."""
    groups: dict[tuple[_T, Origin, bool], list[Message]] = {}
    for piece in pieces:
        found = find(piece.batch.ids(piece.start, piece.stop))
        for each, message in zip(found, piece.messages(), strict=True):
            groups.setdefault((each, piece.origin, piece.is_on_disk), []).append(message)
    return [
        (each, Piece.from_messages(messages, origin))
        for (each, origin, _), messages in groups.items()
    ]


class MoveSource:
    """The queue of a topic, or of one of its channels; messages that wait, from the front on."""

    __slots__ = ("_channel", "topic")

    def __init__(self, topic: Topic, channel: Channel | None = None) -> None:
        self.topic = topic
        self._channel = channel

    @property
    def left_count(self) -> int:
        """How many messages wait."""
        return self.topic.depth if self._channel is None else self._channel.depth

    @property
    def is_busy(self) -> bool:
        """Whether the front of a topic's queue is on its way to the channels, and must stay."""
        return self._channel is None and self.topic.hand_over.is_partial

    @property
    def is_closed(self) -> bool:
        """Whether the queue has been deleted, or nsqd stops."""
        if self._channel is not None and self._channel.is_closed:
            return True
        return self.topic.state is TopicState.CLOSED

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

    def take_some(
        self, max_count: int, kept_ids: Collection[bytes] = ()
    ) -> tuple[list[Piece], list[Piece]]:
        """Take messages from the front, those of one step.

        Return pieces that stand before them and were kept before, and the others.

        Raises:
            OSError: the disk cannot be read, and nothing was taken.
        """
        kept: list[Piece] = []
        taken: list[Piece] = []
        count = size_bytes = 0
        max_count = min(max_count, MAX_MESSAGES_PER_STEP)
        try:
            while count < max_count and size_bytes < MAX_BYTES_PER_STEP:
                piece = self.take(max_count - count if taken else MAX_MESSAGES_PER_STEP)
                if piece is None:
                    break
                # A piece that was kept is given back whole, so that its first message tells.
                if kept_ids and piece.batch.ids(piece.start, piece.start + 1)[0] in kept_ids:
                    kept.append(piece)
                    continue
                if piece.count > max_count - count:
                    piece, rest = piece.split(max_count - count)
                    self._queue.untake(rest)
                taken.append(piece)
                count += piece.count
                size_bytes += piece.body_bytes
        except OSError:
            if not taken:  # else the next step has the error
                for piece in reversed(kept):
                    self._queue.untake(piece)
                raise
        return kept, taken

    def take_by_id(self, ids: Collection[bytes], max_looked_at: int) -> list[Piece]:
        """Take the messages with these ids, if they are among the first ones.

        Raises:
            OSError: the disk cannot be read, and nothing was taken.
        """
        taken: list[Piece] = []
        looked_at = 0
        try:
            while looked_at < max_looked_at:
                piece = self.take(max_looked_at - looked_at)
                if piece is None:
                    break
                taken.append(piece)
                looked_at += piece.count
        except OSError:
            for piece in reversed(taken):
                self.give_back(piece)
            raise
        found: list[Piece] = []
        for piece in reversed(taken):
            messages = piece.messages()
            wanted = [message for message in messages if message[0] in ids]
            if not wanted:
                self.give_back(piece)
                continue
            found.append(Piece.from_messages(wanted, piece.origin))
            rest = [message for message in messages if message[0] not in ids]
            if rest:
                self.give_back(Piece.from_messages(rest, piece.origin))
        return found[::-1]

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
            self.topic.rearrange()

    @property
    def _queue(self) -> MessageQueue:
        return self.topic.queue if self._channel is None else self._channel.queue
