"""Manifest: the segments and positions of queues and archives as they are now, for polling."""

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Any

from diskqueue.layout import find_checked_name, parse_segment_name, split_queue_name
from diskqueue.views.pins import Pins
from diskqueue.views.view import SegmentRange
from nsqd.analytics.leases import LeaseError
from nsqd.analytics.query import Query, Source
from nsqd.analytics.segments import OpenFile, SegmentBook, open_checksums
from nsqd.analytics.snapshot import encode, flush, iter_archives, iter_queues, name_all, name_queues
from nsqd.analytics.threads import Threads
from nsqd.broker.archive.archive import Archive
from nsqd.broker.broker import Broker
from nsqd.broker.channel import Channel
from nsqd.broker.queue.backend import DiskBackend
from nsqd.broker.queue.message_queue import MessageQueue
from nsqd.broker.scheduler import Scheduler
from nsqd.broker.snapshot.moment import find_generation
from nsqd.broker.topic import Topic
from nsqd.http.file_body import FileBody
from nsqd.runtime.turns import Turns


class Manifest:
    """Lists segments, and opens one without a lease."""

    def __init__(
        self,
        broker: Broker,
        scheduler: Scheduler,
        book: SegmentBook,
        threads: Threads,
        turns: Turns,
    ) -> None:
        self._broker = broker
        self._scheduler = scheduler
        self._book = book
        self._threads = threads
        self._turns = turns

    async def describe(self, query: Query) -> list[bytes]:
        """Return an entry in JSON for each queue.

        Raises:
            OSError: a file cannot be read, or the disk refused a generation.
        """
        is_archive = query.source is Source.ARCHIVE
        look = self._look_at_archives if is_archive else self._look_at_queues
        return [encode(entry) async for entry in look(query)]

    async def _look_at_queues(self, query: Query) -> AsyncIterator[dict[str, Any]]:
        await name_all(self._broker, query, self._threads, self._turns)
        for name in query.find_topics(self._broker):
            topic = self._broker.find_topic(name)
            if topic is None:
                continue
            queues = list(iter_queues(topic, query))
            await name_queues([queue for _, queue in queues], self._threads)
            for channel, queue in queues:
                generation = find_generation(queue)
                if generation is not None:
                    entry, ranges = _describe_queue(topic, channel, queue, generation)
                    entry["front_ns"] = queue.find_front_timestamp(self._scheduler.wall_time_ns())
                    entry["segments"] = await self._book.describe(
                        generation, ranges, _open_path, has_ranges=False
                    )
                    yield entry
            await self._turns.next_turn()

    async def _look_at_archives(self, query: Query) -> AsyncIterator[dict[str, Any]]:
        for name, archive in iter_archives(self._broker, query):
            await flush(archive)
            look = await self._threads.run(partial(archive.look, is_pinned=False))
            if look is None:
                continue  # deleted meanwhile
            segments = await self._book.describe(
                look.generation, look.segments, look.open_segment, has_ranges=False
            )
            yield {
                "topic": name,
                "channel": None,
                "generation": look.generation,
                "read": look.read,
                "synced": look.synced,
                "write": look.written,
                "last_deleted": look.last_deleted,
                "counts": {"disk": look.record_count},
                "segments": segments,
            }

    async def open_segment(self, source: Source, file_name: str, generation: str) -> OpenFile:
        """Open a segment as it is now, up to the last byte written, or its checksum file.

        Raises:
            LeaseError: there is no such queue or segment, or it was made anew.
            OSError: the file cannot be read.
        """
        checked_name = find_checked_name(file_name)
        parsed = parse_segment_name(checked_name or file_name)
        if parsed is None:
            raise LeaseError(404, "SEGMENT_NOT_FOUND")
        queue_name, number = parsed
        topic_name, channel_name = split_queue_name(queue_name)
        topic = self._broker.find_topic(topic_name)
        if source is Source.ARCHIVE:
            archive = None if topic is None or channel_name is not None else topic.archive
            return await self._open_archived(
                archive, number, generation, is_checksums=checked_name is not None
            )
        channel = (
            None if topic is None or channel_name is None else topic.channels.get(channel_name)
        )
        if topic is None or (channel is None and channel_name is not None):
            raise LeaseError(404, "QUEUE_NOT_FOUND")
        queue = topic.queue if channel is None else channel.queue
        await name_queues([queue], self._threads)
        if find_generation(queue) != generation:
            raise LeaseError(412, "GENERATION_CHANGED")
        if not isinstance(queue.backend, DiskBackend):
            raise LeaseError(404, "SEGMENT_NOT_FOUND")
        view = queue.backend.queue.view
        segment = _find(view.list_segments(), number)
        pin = view.pins.pin(segment.path)
        segment = replace(segment, pin=pin)
        try:
            return await self._open(view.pins, segment, is_checksums=checked_name is not None)
        finally:
            view.pins.release(pin)

    async def _open_archived(
        self, archive: Archive | None, number: int, generation: str, *, is_checksums: bool
    ) -> OpenFile:
        look = None
        if archive is not None:
            look = await self._threads.run(partial(archive.look, is_pinned=True))
        if look is None:
            raise LeaseError(404, "QUEUE_NOT_FOUND")
        try:
            if look.generation != generation:
                raise LeaseError(412, "GENERATION_CHANGED")
            segment = _find(look.segments, number)
            return await self._open(look.pins, segment, is_checksums=is_checksums)
        finally:
            for each in look.segments:
                assert each.pin is not None
                look.pins.release(each.pin)

    async def _open(self, pins: Pins, segment: SegmentRange, *, is_checksums: bool) -> OpenFile:
        pin = segment.pin
        assert pin is not None
        try:
            if is_checksums:
                return await self._threads.run(
                    lambda: open_checksums(lambda: pins.open_checksums(pin))
                )
            return await self._threads.run(
                lambda: OpenFile(FileBody(pins.open(pin), 0, segment.end))
            )
        except FileNotFoundError:
            raise LeaseError(404, "SEGMENT_NOT_FOUND") from None


def _describe_queue(
    topic: Topic, channel: Channel | None, queue: MessageQueue, generation: str
) -> tuple[dict[str, Any], list[SegmentRange]]:
    disk_count = queue.backend.unread_count
    counts = {"disk": disk_count, "memory": queue.depth - disk_count, "in_flight": 0, "deferred": 0}
    if channel is not None:
        counts["in_flight"] = channel.consumers.in_flight_count
        counts["deferred"] = len(channel.deferred)
    entry: dict[str, Any] = {
        "topic": topic.name,
        "channel": None if channel is None else channel.name,
        "generation": generation,
        "counts": counts,
        "waiting_bytes": queue.waiting_bytes,
    }
    if not isinstance(queue.backend, DiskBackend):
        nowhere = (0, 0)
        entry |= dict.fromkeys(("read", "unread", "synced", "write"), nowhere)
        entry["last_deleted"] = None
        return entry, []
    view = queue.backend.queue.view
    entry["read"] = view.committed
    entry["unread"] = view.unread
    entry["synced"] = view.synced
    entry["write"] = view.written
    entry["last_deleted"] = view.last_deleted
    return entry, view.list_segments()


def _find(segments: list[SegmentRange], number: int) -> SegmentRange:
    for segment in segments:
        if segment.number == number:
            return segment
    raise LeaseError(404, "SEGMENT_NOT_FOUND")


def _open_path(segment: SegmentRange) -> int:
    return os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
