"""Broker: the registry of topics, and the listeners that are told of topics and channels.

It makes topics, channels and their queues with the settings that they need, so that no module below
it knows of options.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from diskqueue.checksums.verifier import ChecksumFailures
from diskqueue.layout import QueueFiles, causes_path, has_metadata, split_queue_name
from nsqd.broker.archive.archive import Safety
from nsqd.broker.archive.keeper import ArchiveKeeper
from nsqd.broker.archive.retention import NO_RETENTION, Retention
from nsqd.broker.channel import Channel, ChannelSettings
from nsqd.broker.durations import SyncTimes
from nsqd.broker.errors import ClosedError, DrainingError
from nsqd.broker.health import Health
from nsqd.broker.limits.book import LimitBook
from nsqd.broker.limits.cause_book import CauseBook
from nsqd.broker.limits.dead_letter import DeadLetters
from nsqd.broker.limits.overrides import NO_OVERRIDES
from nsqd.broker.metadata import ChannelRecord, TopicRecord
from nsqd.broker.queue.backend import DiskBackend, DiskSettings, NullBackend
from nsqd.broker.queue.closing import FileSystem, close_together
from nsqd.broker.queue.ids import MessageIdFactory
from nsqd.broker.queue.message_queue import MessageQueue
from nsqd.broker.queue.receipt import Receipt, Receipts
from nsqd.broker.scheduler import Scheduler
from nsqd.broker.topic import Topic
from nsqd.config.limits import NO_LIMITS, Limits
from nsqd.protocol.names import is_ephemeral, is_valid_channel_name, is_valid_topic_name

logger = logging.getLogger(__name__)

EPHEMERAL_HANDOVER_COUNT = 1024
# Each of them may have a file open; common limits are 1024 and, raised at the start, 4096 and more.
CLOSED_TOGETHER_COUNT = 1500
SYNC_TIME_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


# A call that blocks, and may raise OSError.
Work: TypeAlias = Callable[[], None]
# Runs such calls, one after the other or side by side, and returns their errors.
RunAll: TypeAlias = Callable[[Sequence[Work]], list[OSError]]


def run_in_turn(works: Sequence[Work]) -> list[OSError]:
    """Run one after the other, in this thread; return the errors."""
    errors = []
    for work in works:
        try:
            work()
        except OSError as error:
            errors.append(error)
    return errors


def make_record(topic: Topic) -> TopicRecord:
    """Return a topic as nsqd.dat has it, with its channels that are not ephemeral."""
    channels = tuple(
        ChannelRecord(channel.name, channel.is_paused)
        for channel in topic.channels.values()
        if not channel.is_ephemeral
    )
    return TopicRecord(topic.name, topic.is_paused, channels, topic.limit_overrides)


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """The options that the broker obeys or hands on."""

    mem_queue_size: int
    disk: DiskSettings
    channel: ChannelSettings
    retention: Retention = NO_RETENTION
    limits: Limits = NO_LIMITS


class Broker:
    """All topics of this node."""

    def __init__(
        self, settings: BrokerSettings, scheduler: Scheduler, ids: MessageIdFactory
    ) -> None:
        self.topics: dict[str, Topic] = {}
        self.disk_health = Health()
        # Called after a topic (channel None) or a channel has come or gone.
        self.listeners: list[Callable[[Topic, Channel | None], object]] = []
        # Starts each new topic, at once or when it has been told which channels the cluster has.
        self.starter: Callable[[Topic], object] = Topic.start
        self.is_closed = False
        self.is_draining = False
        # How the syncs of all disk queues went.
        self.sync_times = SyncTimes(SYNC_TIME_BOUNDS_S)
        self.checksum_failures = ChecksumFailures()
        # Called with the reason when room on disk is needed.
        self.on_short_room: Callable[[str], object] | None = None
        # Keeps the history of all topics; None unless it was asked for.
        self.archives: ArchiveKeeper | None = None
        if settings.retention.is_on:
            safety = _find_archive_safety(settings)
            self.archives = ArchiveKeeper(settings.retention, settings.disk, scheduler, safety)
        self._settings = settings
        self._scheduler = scheduler
        self._ids = ids
        # The file system of the data path, if the queues are to be closed together.
        self._file_system: FileSystem | None = None
        # The backends of deleted queues whose files are not gone yet, by name.
        self._leaving: dict[str, DiskBackend] = {}
        # The files that queues had at the start, of those that have not been opened since. None if
        # the data path was not listed.
        self._queue_files: dict[str, QueueFiles] | None = None
        self.limits = LimitBook(settings.limits, self.topics, scheduler, self._bury)
        disk = settings.disk
        self.causes = CauseBook(disk.data_path, self.topics, scheduler, disk.sync_timeout_s)
        # Go syncs after each `sync_every` records, and answers before; with 1 we answer after.
        self._receipts = Receipts(needs_sync=settings.disk.sync_every == 1)
        # Makes the error of every publish; None while publishes are accepted.
        self._refusal: Callable[[], Exception] | None = None

    @property
    def health(self) -> str:
        """`OK`, or `NOK - ` and the reason."""
        return self.disk_health.status

    @property
    def is_healthy(self) -> bool:
        """Whether the disk works and has room."""
        return self.disk_health.is_healthy

    @property
    def now(self) -> float:
        """The time of the clock of deadlines and latencies, in seconds."""
        return self._scheduler.time()

    def ensure_topic(self, name: str) -> Topic:
        """Return the topic of that name, made if need be.

        Raises:
            ClosedError: the daemon is shutting down.
        """
        topic = self.topics.get(name)
        if topic is None:
            topic = self._add_topic(name)
            self._announce(topic, None)
            self.starter(topic)
        return topic

    def find_topic(self, name: str) -> Topic | None:
        """Return the topic of that name if there is one."""
        return self.topics.get(name)

    def delete_topic(self, name: str) -> Receipt:
        """Delete a topic, its channels and all their messages.

        Return the receipt that is done when the files are gone, as far as they could be removed.

        Raises:
            KeyError: there is no such topic.
        """
        topic = self.topics.pop(name)
        logger.info("TOPIC(%s): deleting", name)
        self.limits.forget(topic)
        # Channels whose files could not be removed when they were deleted.
        left = [
            backend
            for queue_name, backend in self._leaving.items()
            if split_queue_name(queue_name)[0] == name
        ]
        receipt = topic.delete()
        for backend in left:
            receipt.include(backend.delete())
        self.causes.remove(name)
        self._announce(topic, None)
        return receipt

    def drain(self) -> None:
        """Refuse new messages for good; those that are here still go to the consumers."""
        self.refuse_publishes(DrainingError)
        self.is_draining = True

    def refuse_publishes(self, refusal: Callable[[], Exception] | None) -> None:
        """Refuse publishes with errors that `refusal` makes; with None accept them again."""
        if self.is_draining:
            return  # a drain is for good
        self._refusal = refusal
        for topic in self.topics.values():
            topic.refuse_publishes(refusal)

    def free_room(self) -> None:
        """Have every queue free the room on disk that it can spare: other queues need it.

        Readers that hold files are told first.
        In slices: a node has thousands of queues, and is asked to every second while room is short.
        """
        if self.on_short_room is not None:
            self.on_short_room("the disk runs short")
        topics = iter(list(self.topics.values()))

        def free_some() -> bool:
            end = self._scheduler.slice_end()
            for topic in topics:
                for queue in topic.queues():
                    queue.backend.free_room()
                if time.perf_counter() >= end:
                    return True
            return False

        if free_some():
            self._scheduler.share(free_some)

    def load(
        self,
        records: Iterable[TopicRecord],
        queue_files: Mapping[str, QueueFiles] | None = None,
    ) -> None:
        """Make the topics and channels of nsqd.dat; each starts once its channels are there.

        Args:
            queue_files: the files of all queues, if the caller has listed the data path; else each
                queue lists it again.
        """
        if queue_files is not None:
            self._queue_files = dict(queue_files)
        for record in records:
            if not is_valid_topic_name(record.name):
                logger.warning("skipping creation of invalid topic %s", record.name)
                continue
            topic = self.topics.get(record.name) or self._add_topic(record.name)
            topic.is_paused = record.is_paused
            if record.limits != NO_OVERRIDES:  # a topic can have more than one record
                self.limits.set(topic, record.limits)
            for channel_record in record.channels:
                if not is_valid_channel_name(channel_record.name):
                    logger.warning("skipping creation of invalid channel %s", channel_record.name)
                    continue
                topic.ensure_channel(channel_record.name).is_paused = channel_record.is_paused
        for name, files in (self._queue_files or {}).items():
            is_left = not files.segments and name not in self.topics
            if files.has_causes and is_left:
                self.causes.open(name)  # of a topic that another nsqd deleted: removed soon
        for topic in self.topics.values():
            topic.start()

    def records(self) -> list[TopicRecord]:
        """Return the content of nsqd.dat: all topics and channels that are not ephemeral."""
        return [make_record(topic) for topic in self.topics.values() if not topic.is_ephemeral]

    def open_file_system(self) -> None:
        """Have `close` sync all queues together; to be called before any queue is opened.

        Raises:
            OSError: the data path can't be opened.
        """
        self._file_system = FileSystem(self._settings.disk.data_path)

    def sync_dead_letters(self) -> Receipt:
        """Begin to sync the dead letters; return the receipt that is done when they are durable.

        They have left their old queues then. A close before puts those that have not into both.
        """
        receipt = Receipt(1)
        for topic in filter(None, map(self.topics.get, self.causes.topic_names)):
            for queue in topic.queues():
                if isinstance(queue.backend, DiskBackend):
                    receipt.include(queue.backend.sync())
        receipt.settle(None)
        return self.causes.sync_with(receipt) or receipt

    def close(self, run_all: RunAll = run_in_turn) -> list[OSError]:
        """Put every message on disk and let go of all files; return the errors.

        Args:
            run_all: runs the blocking parts, one for each queue, which may be thousands.
        """
        self.is_closed = True
        errors: list[OSError] = []
        for topics in _group(self.topics.values()):
            errors += self._close_topics(topics, run_all)
        closings = self.archives.close() if self.archives is not None else []
        closings += self.causes.close()
        for backend in self._leaving.values():
            backend.stop()
            closings.append(backend.remove_files)
        errors += run_all(closings)
        if self._file_system is not None:
            self._file_system.close()
            self._file_system = None
        return errors

    def _close_topics(self, topics: Sequence[Topic], run_all: RunAll) -> list[OSError]:
        errors: list[OSError] = []
        for topic in topics:
            logger.info("TOPIC(%s): closing", topic.name)
            errors += topic.flush()
        # The channels first: a topic may forget the records that it has handed over only when
        # the channels' disks have been synced.
        channels = [channel.queue for topic in topics for channel in topic.channels.values()]
        channel_errors = self._close_queues(channels, run_all)
        if not channel_errors:
            for topic in topics:
                topic.hand_over.forget_records()
        topic_errors = self._close_queues([topic.queue for topic in topics], run_all)
        return errors + channel_errors + topic_errors

    def _close_queues(self, queues: Iterable[MessageQueue], run_all: RunAll) -> list[OSError]:
        backends = [queue.backend for queue in queues if isinstance(queue.backend, DiskBackend)]
        for backend in backends:
            backend.stop()
        closings = [backend.close for backend in backends]
        if self._file_system is None:
            return run_all(closings)
        disk_queues = [backend.queue for backend in backends]
        return close_together(disk_queues, self._file_system, run_all) + run_in_turn(closings)

    def _add_topic(self, name: str) -> Topic:
        if self.is_closed:
            raise ClosedError
        if self._has_causes(name):
            self.causes.open(name)
        topic = Topic(
            name,
            self._make_queue(name, is_kept=not is_ephemeral(name)),
            self._ids,
            self._scheduler,
            lambda channel_name: self._make_channel(name, channel_name),
            self._receipts,
        )
        topic.refuse_publishes(self._refusal)
        if self.archives is not None and not topic.is_ephemeral:
            topic.archive = self.archives.open(name)
        topic.on_channel_change = lambda channel: self._announce(topic, channel)
        if topic.is_ephemeral:
            topic.on_abandoned = lambda: self.delete_topic(name)
        self.topics[name] = topic
        self.limits.apply(topic)
        logger.info("TOPIC(%s): created", name)
        return topic

    def count_refusal(self, topic_name: str) -> None:
        """Count a publish that was refused because a queue of the topic is full."""
        self.topics[topic_name].losses.rejected_count += 1

    def _bury(self, name: str, letters: DeadLetters) -> Receipt | None:
        """Publish dead letters, and note where they come from; see `Topic.publish_moved`."""
        topic = self.ensure_topic(name)
        note = self.causes.begin(topic, letters.causes)
        try:
            receipt = topic.publish_moved(
                letters.bodies, is_stored=letters.is_stored, note_ids=note.add
            )
        except (ClosedError, OSError):
            note.undo()
            raise
        return self.causes.sync_with(receipt)

    def _make_channel(self, topic_name: str, name: str) -> Channel:
        queue = self._make_queue(f"{topic_name}:{name}", is_kept=not is_ephemeral(name))
        return Channel(topic_name, name, queue, self._scheduler, self._settings.channel)

    def _make_queue(self, name: str, *, is_kept: bool) -> MessageQueue:
        settings = self._settings
        if not is_kept:
            # An ephemeral queue has no disk behind it. Even with --mem-queue-size=0 it needs some
            # memory, for the messages between a publish and its delivery.
            return MessageQueue(settings.mem_queue_size or EPHEMERAL_HANDOVER_COUNT, NullBackend())
        health = self.disk_health
        backend = self._leaving.get(name)
        if backend is not None:
            backend.stay()
        else:
            backend = DiskBackend(
                *(name, settings.disk, self._scheduler, partial(health.wrote, name)),
                sync_times=self.sync_times,
                on_repeat=health.repeated,
                receipts=self._receipts,
                files=self._find_files(name),
                leaving=self._leaving,
                checksum_failures=self.checksum_failures,
            )
        return MessageQueue(settings.mem_queue_size, backend)

    def _find_files(self, name: str) -> QueueFiles | None:
        """Return the files of a queue that is opened now, None if it has to list the data path.

        A listing takes 10 ms with thousands of queues. A queue that had no files at the start, or
        was deleted since, has none, unless its metadata could not be removed.
        """
        if self._queue_files is None:
            return None
        files = self._queue_files.pop(name, None)
        if files is None and not has_metadata(self._settings.disk.data_path, name):
            files = QueueFiles(name)
        return files

    def _has_causes(self, name: str) -> bool:
        """Return whether a topic that is made now has files of dead letters' causes."""
        if self._queue_files is None:
            return os.path.lexists(causes_path(os.fspath(self._settings.disk.data_path), name))
        files = self._queue_files.get(name)
        return files is not None and files.has_causes

    def _announce(self, topic: Topic, channel: Channel | None) -> None:
        for listener in self.listeners:
            listener(topic, channel)


def _find_archive_safety(settings: BrokerSettings) -> Safety:
    """Return how safe the archives are to be: as safe as the queues."""
    if settings.mem_queue_size:
        return Safety.GATHERED
    return Safety.SYNCED if settings.disk.sync_every == 1 else Safety.WRITTEN


def _group(topics: Iterable[Topic]) -> Iterator[list[Topic]]:
    """Give topics in groups that are closed together, as their files are open at the same time."""
    group: list[Topic] = []
    queue_count = 0
    for topic in topics:
        group.append(topic)
        queue_count += 1 + len(topic.channels)
        if queue_count >= CLOSED_TOGETHER_COUNT:
            yield group
            group, queue_count = [], 0
    if group:
        yield group
