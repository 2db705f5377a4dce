"""Peeking: a look at the messages of a topic or channel, which stay as and where they are.

They come in the order in which they would be delivered: those that wait, in memory, then on disk;
then those in flight, by deadline; then the deferred ones, by due time. The newest of those that
wait come from the back of the queue on: on disk, then in memory; the others as before.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from diskqueue import TailUnknownError
from nsqd.broker.channel import Channel
from nsqd.broker.errors import NewestUnknownError
from nsqd.broker.queue.backend import DiskBackend
from nsqd.broker.queue.batch import Message, MixedBatch
from nsqd.broker.queue.message_queue import MessageQueue
from nsqd.broker.topic import Topic

# A peek ends before the body that makes it larger than this, unless that is the first.
MAX_BYTES = 4 * 1024 * 1024


class Place(Enum):
    """Where a message is."""

    MEMORY = "memory"
    DISK = "disk"
    IN_FLIGHT = "in_flight"
    DEFERRED = "deferred"


@dataclass(frozen=True, slots=True)
class PeekedMessage:
    """A message, and where it is."""

    message_id: bytes
    timestamp_ns: int
    attempts: int  # deliveries so far, the one in flight included
    body: bytes
    place: Place
    # When it times out or is due, in seconds of the broker's clock; None if it just waits.
    deadline: float | None = None


def peek_topic(
    topic: Topic, count: int, places: Iterable[Place], *, is_newest: bool = False
) -> list[PeekedMessage]:
    """Return messages that no channel has yet.

    Args:
        is_newest: of those that wait, the last ones, the last one first.

    Raises:
        NewestUnknownError: where the newest on disk are is not known.
        OSError: the disk cannot be read.
    """
    return _limit(_peek_queue(topic.queue, count, set(places), is_newest=is_newest), count)


def peek_channel(
    channel: Channel, count: int, places: Iterable[Place], *, is_newest: bool = False
) -> list[PeekedMessage]:
    """Return messages of a channel.

    Args:
        is_newest: as for `peek_topic`.

    Raises:
        NewestUnknownError: where the newest on disk are is not known.
        OSError: the disk cannot be read.
    """
    return _limit(_peek_channel(channel, count, set(places), is_newest=is_newest), count)


def find_oldest_age(channel: Channel, now_ns: int) -> float:
    """Return the age in seconds of the oldest message of a channel that is due, 0 without any.

    The oldest is the next to be delivered, or one in flight: of those that were put back, those
    behind the next do not count.

    Args:
        now_ns: the wall clock, which may have been set back since the message was published.
    """
    front_ns = channel.queue.find_front_timestamp(now_ns)
    in_flight_ns = channel.consumers.find_oldest_timestamp()
    found = [each for each in (front_ns, in_flight_ns) if each is not None]
    return max(now_ns - min(found), 0) / 1e9 if found else 0.0


def _peek_channel(
    channel: Channel, count: int, places: set[Place], *, is_newest: bool
) -> Iterator[PeekedMessage]:
    yield from _peek_queue(channel.queue, count, places, is_newest=is_newest)
    if Place.IN_FLIGHT in places:
        for message_id, entry in channel.consumers.iter_in_flight():
            deadline, _, timestamp_ns, attempts, body, _ = entry
            yield PeekedMessage(message_id, timestamp_ns, attempts, body, Place.IN_FLIGHT, deadline)
    if Place.DEFERRED in places:
        for due, message in channel.deferred:
            yield _peeked(message, Place.DEFERRED, due)


def _peek_queue(
    queue: MessageQueue, count: int, places: set[Place], *, is_newest: bool
) -> Iterator[PeekedMessage]:
    parts = [_peek_loaded(queue, places, is_newest=is_newest)]
    if Place.DISK in places and isinstance(queue.backend, DiskBackend):
        parts.append(_peek_unread(queue.backend, count, is_newest=is_newest))
    # All of memory stands before the unread records.
    for part in reversed(parts) if is_newest else parts:
        yield from part


def _peek_loaded(
    queue: MessageQueue, places: set[Place], *, is_newest: bool
) -> Iterator[PeekedMessage]:
    loaded = queue.iter_loaded(
        in_memory=Place.MEMORY in places, on_disk=Place.DISK in places, is_backward=is_newest
    )
    for message, is_on_disk in loaded:
        yield _peeked(message, Place.DISK if is_on_disk else Place.MEMORY)


def _peek_unread(backend: DiskBackend, count: int, *, is_newest: bool) -> Iterator[PeekedMessage]:
    try:
        records = backend.queue.peek(count, MAX_BYTES, is_newest=is_newest)
    except TailUnknownError as error:
        raise NewestUnknownError from error
    for record in records:
        [message] = MixedBatch.from_records(record, [0], [len(record)]).messages(0, 1)
        yield _peeked(message, Place.DISK)


def _peeked(message: Message, place: Place, deadline: float | None = None) -> PeekedMessage:
    message_id, timestamp_ns, attempts, body, _ = message
    return PeekedMessage(message_id, timestamp_ns, attempts, body, place, deadline)


def _limit(messages: Iterator[PeekedMessage], count: int) -> list[PeekedMessage]:
    found: list[PeekedMessage] = []
    size_bytes = 0
    for message in messages:
        size_bytes += len(message.body)
        if found and size_bytes > MAX_BYTES:
            break
        found.append(message)
        if len(found) >= count:
            break
    return found
