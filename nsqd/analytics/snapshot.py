"""Snapshots: the backlog, each queue at one moment, and a lease on it.

Snapshots are taken one after the other. A topic's own queue and those of its channels are looked at
in one turn of the loop, as far as a slice has time: between two turns a message may move from the
one to the others. What is in memory is copied by reference, and then written to the spill of the
lease (`parts`).
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from pathlib import Path
from struct import Struct

from diskqueue.identity import Generation
from diskqueue.views.view import SegmentRange
from nsqd.analytics.leases import Lease, Leases
from nsqd.analytics.parts import PLACES, PartWriter
from nsqd.analytics.query import Query, Source
from nsqd.analytics.segments import SegmentBook, measure_checksums, name_of
from nsqd.analytics.spill import Spill
from nsqd.analytics.threads import COUNT, Threads
from nsqd.broker.archive.archive import Archive
from nsqd.broker.broker import Broker
from nsqd.broker.channel import Channel
from nsqd.broker.queue.backend import DiskBackend
from nsqd.broker.queue.message_queue import MessageQueue
from nsqd.broker.queue.receipt import Receipt
from nsqd.broker.scheduler import Scheduler
from nsqd.broker.snapshot.moment import Moment, find_generation
from nsqd.broker.topic import Topic, TopicState
from nsqd.runtime.turns import Turns

# A topic that is deleted and made anew each time it is looked at is left out after so many times.
MAX_TRIES = 5

_pack_due = Struct(">16sq").pack


class Snapshots:
    """Takes snapshots, one after the other."""

    def __init__(
        self,
        broker: Broker,
        scheduler: Scheduler,
        leases: Leases,
        book: SegmentBook,
        threads: Threads,
        turns: Turns,
        data_path: Path,
    ) -> None:
        self._broker = broker
        self._scheduler = scheduler
        self._leases = leases
        self._book = book
        self._threads = threads
        self._turns = turns
        self._data_path = data_path
        self._lock = asyncio.Lock()

    async def take(self, query: Query, remote: str, seconds: float) -> tuple[Lease, list[bytes]]:
        """Take a snapshot; return its lease, and an entry in JSON for each queue.

        Raises:
            LeaseError: there are too many, or it would hold too much.
            OSError: there is no room for the messages in memory, or a file cannot be read.
        """
        async with self._lock:
            self._leases.check_count()
            lease = Lease(remote, Spill(self._data_path))
            is_archive = query.source is Source.ARCHIVE
            look = self._look_at_archives if is_archive else self._look_at_queues
            try:
                entries = [entry async for entry in look(query, lease)]
                lease.queue_count = len(entries)
                self._leases.add(lease, seconds)
            except BaseException:
                self._leases.discard(lease)
                raise
            return lease, entries

    async def _look_at_queues(self, query: Query, lease: Lease) -> AsyncIterator[bytes]:
        await name_all(self._broker, query, self._threads, self._turns)
        for name in query.find_topics(self._broker):
            moments: list[Moment] = []
            try:
                await self._look_at_topic(name, query, moments, lease)
                for moment in moments:
                    yield await self._make_entry(moment, lease)
            finally:
                for moment in moments:
                    moment.end()
            await self._turns.next_turn()

    async def _look_at_topic(
        self, name: str, query: Query, moments: list[Moment], lease: Lease
    ) -> None:
        """Look at the queues of a topic that the query names, if it is there."""
        topic = await self._find_topic(name, query)
        if topic is None:
            return
        end = self._turns.slice_end()
        for channel, queue in iter_queues(topic, query):
            if find_generation(queue) is None:
                continue  # made after the others were named
            moment = Moment(topic, channel, self._scheduler)
            moments.append(moment)
            for segment in moment.segments:
                assert moment.pins is not None
                assert segment.pin is not None
                lease.add_pin(name_of(segment), moment.pins, segment.pin, segment.end)
            self._leases.check_size(lease)
            if time.perf_counter() >= end:
                await self._turns.next_turn()
                end = self._turns.slice_end()
        for moment in moments:
            await self._complete(moment)

    async def _find_topic(self, name: str, query: Query) -> Topic | None:
        """Return a topic whose queues have generations, None if it is not there."""
        for _ in range(MAX_TRIES):
            topic = self._broker.find_topic(name)
            if topic is None or topic.state is TopicState.CLOSED:
                return None
            queues = [queue for _, queue in iter_queues(topic, query)]
            if all(find_generation(queue) is not None for queue in queues):
                return topic
            await name_queues(queues, self._threads)
        return None

    async def _complete(self, moment: Moment) -> None:
        end = self._turns.slice_end()
        while moment.step():
            if time.perf_counter() >= end:
                await self._turns.next_turn()
                end = self._turns.slice_end()

    async def _make_entry(self, moment: Moment, lease: Lease) -> bytes:
        name = moment.topic_name
        if moment.channel_name is not None:
            name += f":{moment.channel_name}"
        counts = {"disk": moment.disk_count}
        parts = []
        for state in PLACES:
            writer = PartWriter(lease, self._leases, self._threads, self._turns, name, state)
            await writer.write(moment.iter_chunks(state))
            counts[PLACES[state]] = writer.count
            parts += writer.entries
        due_count, due_bytes = await self._write_due_times(moment, f"{name}.due", lease)
        assert moment.generation is not None
        segments = await self._book.describe(
            moment.generation, moment.segments, moment.open_segment, has_ranges=True
        )
        await self._add_checksums(moment.segments, lease)
        return encode(
            {
                "topic": moment.topic_name,
                "channel": moment.channel_name,
                "generation": moment.generation,
                "taken_ns": moment.taken_ns,
                "counts": counts,
                "segments": segments,
                "parts": parts,
                "due": {"file": f"{name}.due", "count": due_count, "bytes": due_bytes},
            }
        )

    async def _add_checksums(self, segments: Sequence[SegmentRange], lease: Lease) -> None:
        """Count the room of the checksum files that are held with segments."""
        if segments:
            lease.add_checksums(await self._threads.run(partial(measure_checksums, segments)))
            self._leases.check_size(lease)

    async def _write_due_times(self, moment: Moment, name: str, lease: Lease) -> tuple[int, int]:
        """Write when records in the segments are due; return how many times, and bytes."""
        offset = lease.spill.size_bytes

        def write() -> int:
            due_times = moment.due_times.read()
            if due_times:
                lease.spill.append(b"".join(_pack_due(*item) for item in due_times.items()))
            return len(due_times)

        count = await self._threads.run(write) if moment.due_times.has_files else 0
        size_bytes = lease.spill.size_bytes - offset
        lease.add_part(name, offset, size_bytes)
        self._leases.check_size(lease)
        return count, size_bytes

    async def _look_at_archives(self, query: Query, lease: Lease) -> AsyncIterator[bytes]:
        for name, archive in iter_archives(self._broker, query):
            taken_ns = self._scheduler.wall_time_ns()
            await flush(archive)
            look = await self._threads.run(partial(archive.look, is_pinned=True))
            if look is None:
                continue  # deleted meanwhile
            for segment in look.segments:
                assert segment.pin is not None
                lease.add_pin(name_of(segment), look.pins, segment.pin, segment.end)
            self._leases.check_size(lease)
            segments = await self._book.describe(
                look.generation, look.segments, look.open_segment, has_ranges=True
            )
            await self._add_checksums(look.segments, lease)
            lease.add_part(f"{name}.due", 0, 0)
            yield encode(
                {
                    "topic": name,
                    "channel": None,
                    "generation": look.generation,
                    "taken_ns": taken_ns,
                    "counts": {"disk": look.record_count},
                    "segments": segments,
                    "parts": [],
                    "due": {"file": f"{name}.due", "count": 0, "bytes": 0},
                }
            )
            await self._turns.next_turn()


def iter_queues(topic: Topic, query: Query) -> Iterator[tuple[Channel | None, MessageQueue]]:
    """Give the queues of a topic that a query names, its own first, as they are there now."""
    for name in query.find_queues(topic):
        if name is None:
            yield None, topic.queue
        elif (channel := topic.channels.get(name)) is not None:
            yield channel, channel.queue


def iter_archives(broker: Broker, query: Query) -> Iterator[tuple[str, Archive]]:
    """Give the archives that a query names."""
    for name in query.find_topics(broker):
        topic = broker.find_topic(name)
        if topic is None or topic.archive is None:
            continue
        if query.names is None or None in query.names[name]:
            yield name, topic.archive


async def name_queues(queues: list[MessageQueue], threads: Threads) -> None:
    """Make the generations of queues durable, before they are told.

    Raises:
        OSError: one cannot be written.
    """
    missing = [
        queue.backend.queue.generation
        for queue in queues
        if isinstance(queue.backend, DiskBackend) and find_generation(queue) is None
    ]
    groups = [group for index in range(COUNT) if (group := missing[index::COUNT])]
    await asyncio.gather(*(threads.run(partial(_store, group)) for group in groups))


async def name_all(broker: Broker, query: Query, threads: Threads, turns: Turns) -> None:
    """Name all queues of a query that have no generation yet: thousands, on a node's first day.

    Raises:
        OSError: one cannot be written.
    """
    unnamed: list[MessageQueue] = []
    end = turns.slice_end()
    for name in query.find_topics(broker):
        topic = broker.find_topic(name)
        if topic is not None:
            queues = iter_queues(topic, query)
            unnamed += [queue for _, queue in queues if find_generation(queue) is None]
        if time.perf_counter() >= end:
            await turns.next_turn()
            end = turns.slice_end()
    await name_queues(unnamed, threads)


def _store(generations: Sequence[Generation]) -> None:
    for generation in generations:
        generation.ensure()


async def flush(archive: Archive) -> None:
    """Have everything written that was published before.

    Raises:
        OSError: the disk refused it.
    """
    done = asyncio.Event()
    receipt = Receipt(1)
    archive.add_receipt(receipt)
    receipt.when_done(lambda _error: done.set())
    await done.wait()
    if receipt.error is not None:
        raise receipt.error


def encode(entry: object) -> bytes:
    """Return an entry in JSON."""
    return json.dumps(entry, separators=(",", ":")).encode()
