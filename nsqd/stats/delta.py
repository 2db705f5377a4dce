"""/stats?format=delta: the queues that have changed since an earlier answer, as rows.

A reader names the `seq` of its last answer and gets the rows that have changed since, and the
queues that are gone; without it, or if that was too long ago, it gets all. Between two answers
`DeltaStats` remembers what it has seen of each queue: a few counts that tell whether anything has
happened, and its row. It is forgotten a minute after the last question, so that a node that nobody
watches pays nothing. Readers share what was seen for a second, unless they ask for fresh figures.

A topic with its channels is of one moment, but messages may come between two topics.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator
from json.encoder import encode_basestring_ascii as quote
from typing import Final, NamedTuple

from nsqd.broker.channel import Channel
from nsqd.broker.topic import Topic
from nsqd.node import Node
from nsqd.runtime.slices import encode_slices, gather_slices
from nsqd.stats.json import encode_boolean, encode_more, render_node
from nsqd.stats.snapshot import read_channel, read_topic

MAX_SEQ: Final = 2**53  # what a JavaScript number holds
COLUMNS: Final = (
    *("topic", "channel", "depth", "backend_depth", "in_flight_count", "deferred_count"),
    *("message_count", "requeue_count", "timeout_count", "client_count", "message_bytes"),
    *("finish_count", "paused", "disk_bytes", "more"),
)
SHARED_S: Final = 1.0
FORGET_S: Final = 60.0
# Of deleted queues. A reader whose last answer is older than the first of them gets all rows.
MAX_REMOVED: Final = 10_000
# So long after a change the row itself is compared: files are deleted some time after the last
# message was finished.
_WARM_S: Final = 10.0

_Counts = tuple[object, ...]
_DUE_LATER: Final = 7  # the place of that count among those of a channel


class _Seen(NamedTuple):
    """A queue as it was when it was last looked at."""

    counts: _Counts
    row: str
    seq: int  # of the round that found the row changed
    warm_until: float


class _SeenTopic:
    """A topic and its channels as they were."""

    __slots__ = ("channels", "own")

    def __init__(self, own: _Seen) -> None:
        self.own = own
        self.channels: dict[str, _Seen] = {}


class DeltaStats:
    """What is remembered of the queues, while readers come back."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._warm_s = _WARM_S + 2 * node.options.sync_timeout_s
        self._seq = 0
        self._first_seq = 0  # answers since this one can be continued
        self._topics: dict[str, _SeenTopic] = {}
        # Topic and channel, None for the topic itself, with the number of the round.
        self._removed: dict[tuple[str, str | None], int] = {}
        self._looked_at = float("-inf")
        self._lock = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def queue_count(self) -> int:
        """How many queues are remembered."""
        return sum(1 + len(seen.channels) for seen in self._topics.values())

    async def render(self, since: int | None, *, is_fresh: bool = False) -> list[bytes]:
        """Return the document in parts.

        Args:
            since: `seq` of an earlier answer.
            is_fresh: look at the queues now, however short the last look is ago.
        """
        loop = asyncio.get_running_loop()
        async with self._lock:
            if is_fresh or loop.time() - self._looked_at >= SHARED_S:
                await self._look(loop.time())
            self._forget_later(loop)
            is_full = since is None or not self._first_seq <= since <= self._seq
            after = -1 if since is None or is_full else since
            return await encode_slices(self._parts(after, is_full=is_full))

    # Looking.

    async def _look(self, now: float) -> None:
        """Find out what has changed since the last look."""
        # Grows across restarts too, if the clock does: an answer of the process before is not
        # taken for one of this process.
        seq = max(self._seq + 1, time.time_ns() // 1_000_000)
        if not self._topics:
            self._first_seq = seq
        broker = self._node.broker
        topics = dict(broker.topics)
        await gather_slices(self._look_at_all(topics.values(), seq, now))
        for name in [name for name in self._topics if name not in topics]:
            seen = self._topics.pop(name)
            self._removed |= {(name, channel): seq for channel in (None, *seen.channels)}
        while len(self._removed) > MAX_REMOVED:
            key = next(iter(self._removed))
            self._first_seq = max(self._first_seq, self._removed.pop(key))
        self._seq = seq
        self._looked_at = asyncio.get_running_loop().time()

    def _look_at_all(self, topics: Iterable[Topic], seq: int, now: float) -> Iterator[None]:
        for topic in topics:
            self._look_at(topic, seq, now)
            yield

    def _look_at(self, topic: Topic, seq: int, now: float) -> None:
        """Look at a topic and its channels, all in one turn of the loop."""
        name = topic.name
        counts = _count_topic(topic)
        seen = self._topics.get(name)
        if seen is None:
            row = self._topic_row(topic)
            seen = self._topics[name] = _SeenTopic(_Seen(counts, row, seq, now + self._warm_s))
            self._removed.pop((name, None), None)
        elif counts != seen.own.counts or now < seen.own.warm_until or topic.archive is not None:
            seen.own = self._update(seen.own, counts, self._topic_row(topic), seq, now)
        channels = seen.channels
        for channel in topic.channels.values():
            counts = _count_channel(channel)
            before = channels.get(channel.name)
            if before is None:
                row = _channel_row(topic, channel, self._node.broker.now)
                channels[channel.name] = _Seen(counts, row, seq, now + self._warm_s)
                self._removed.pop((name, channel.name), None)
            elif (
                counts != before.counts
                or now < before.warm_until
                or channel.latencies
                # Messages of its files become due, without anything that happens.
                or counts[_DUE_LATER]
            ):
                row = _channel_row(topic, channel, self._node.broker.now)
                channels[channel.name] = self._update(before, counts, row, seq, now)
        if len(channels) > len(topic.channels):
            for gone in [each for each in channels if each not in topic.channels]:
                del channels[gone]
                self._removed[name, gone] = seq

    def _update(self, seen: _Seen, counts: _Counts, row: str, seq: int, now: float) -> _Seen:
        if row == seen.row:
            return _Seen(counts, row, seen.seq, seen.warm_until)
        return _Seen(counts, row, seq, now + self._warm_s)

    def _topic_row(self, topic: Topic) -> str:
        broker = self._node.broker
        name = None if topic.bounds is None else broker.limits.find_dead_letter_name(topic)
        stats = read_topic(topic, broker.now, channels=(), dead_letter_topic=name)
        return (
            f"[{quote(stats.name)},null,{stats.depth},{stats.backend_depth},0,0,"
            f"{stats.message_count},0,0,0,{stats.message_bytes},0,"
            f"{encode_boolean(stats.is_paused)},{stats.disk.size_bytes},{encode_more(stats)}]"
        )

    # Forgetting.

    def _forget_later(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_later(FORGET_S, self._forget)

    def _forget(self) -> None:
        self._timer = None
        if self._lock.locked():  # a reader has just come back, and sets the timer anew
            return
        self._topics.clear()
        self._removed.clear()
        self._looked_at = float("-inf")

    # Telling.

    def _parts(self, after: int, *, is_full: bool) -> Iterator[str]:
        yield from render_node(self._node)
        columns = ",".join(map(quote, COLUMNS))
        yield f'"seq":{self._seq},"full":{encode_boolean(is_full)},"columns":[{columns}],"rows":['
        separator = ""
        for topic in self._topics.values():
            if topic.own.seq > after:
                yield separator + topic.own.row
                separator = ","
            for seen in topic.channels.values():
                if seen.seq > after:
                    yield separator + seen.row
                    separator = ","
        yield '],"removed":['
        separator = ""
        for (name, channel), seq in () if is_full else self._removed.items():
            if seq > after:
                yield f"{separator}[{quote(name)},{'null' if channel is None else quote(channel)}]"
                separator = ","
        yield "]}"


def _count_topic(topic: Topic) -> _Counts:
    """Return what differs if anything has happened to a topic's own queue."""
    queue = topic.queue
    return (
        *(topic.message_count, queue.memory.count, queue.backend_depth, topic.is_paused),
        *(topic.losses.rejected_count, topic.bounds),
    )


def _count_channel(channel: Channel) -> _Counts:
    """Return what differs if anything has happened to a channel."""
    queue, consumers = channel.queue, channel.consumers
    on_disk = queue.backend_depth
    return (
        channel.message_count,
        channel.finish_count,
        channel.requeue_count,
        channel.timeout_count,
        queue.memory.count,
        on_disk,
        len(channel.deferred),
        queue.count_deferred(0) if on_disk else 0,
        len(consumers),
        consumers.in_flight_count,
        channel.is_paused,
    )


def _channel_row(topic: Topic, channel: Channel, now: float) -> str:
    stats = read_channel(channel, now)
    return (
        f"[{quote(topic.name)},{quote(stats.name)},{stats.depth},{stats.backend_depth},"
        f"{stats.in_flight_count},{stats.deferred_count},{stats.message_count},"
        f"{stats.requeue_count},{stats.timeout_count},{len(stats.consumers)},0,"
        f"{stats.finish_count},{encode_boolean(stats.is_paused)},{stats.disk.size_bytes},"
        f"{encode_more(stats)}]"
    )
