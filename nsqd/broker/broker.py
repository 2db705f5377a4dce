"""Broker: the registry of topics, the health of the disk, and who wants to know of changes.

It makes topics and channels with the settings they need, so that nothing below it knows of options.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from diskqueue.layout import QueueFiles
from nsqd.broker.archive.keeper import ArchiveKeeper
from nsqd.broker.archive.retention import NO_RETENTION, Retention
from nsqd.broker.channel import Channel, ChannelSettings
from nsqd.broker.durations import Histogram
from nsqd.broker.errors import ClosedError, DrainingError
from nsqd.broker.health import Health
from nsqd.broker.limits.book import LimitBook
from nsqd.broker.limits.overrides import NO_OVERRIDES
from nsqd.broker.metadata import ChannelRecord, TopicRecord
from nsqd.broker.queue.backend import DiskBackend, DiskSettings, NullBackend
from nsqd.broker.queue.ids import MessageIdFactory
from nsqd.broker.queue.message_queue import MessageQueue
from nsqd.broker.queue.receipt import Receipt, Receipts
from nsqd.broker.scheduler import Scheduler
from nsqd.broker.topic import Topic
from nsqd.config.limits import NO_LIMITS, Limits
from nsqd.protocol.names import is_ephemeral, is_valid_channel_name, is_valid_topic_name

logger = logging.getLogger(__name__)

EPHEMERAL_HANDOVER_COUNT = 1024
SYNC_TIME_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


# Something that blocks, and may raise OSError.
Work: TypeAlias = Callable[[], None]


def run_in_turn(works: Sequence[Work]) -> list[OSError]:
    """Run everything here and now; return what went wrong."""
    errors = []
    for work in works:
        try:
            work()
        except OSError as error:
            errors.append(error)
    return errors


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
        # Told of each topic (channel None) or channel that has come or gone, after the fact.
        self.listeners: list[Callable[[Topic, Channel | None], object]] = []
        # Starts each new topic, at once or when it knows which channels the cluster has.
        self.starter: Callable[[Topic], object] = Topic.start
        self.is_closed = False
        self.is_draining = False
        # Of all syncs of disk queues, in seconds.
        self.sync_times = Histogram(SYNC_TIME_BOUNDS_S)
        # Keeps the history of all topics; None unless it was asked for.
        self.archives: ArchiveKeeper | None = None
        if settings.retention.is_on:
            self.archives = ArchiveKeeper(settings.retention, settings.disk, scheduler)
        self._settings = settings
        self._scheduler = scheduler
        self._ids = ids
        # The files of all queues, while `load` opens them.
        self._queue_files: Mapping[str, QueueFiles] | None = None
        self.limits = LimitBook(settings.limits, self.topics, scheduler, self._publish)
        # Go syncs after so many records, and answers before that; we answer after.
        self._receipts = Receipts(needs_sync=settings.disk.sync_every == 1)
        # Makes the error that publishes are refused with, while they are.
        self._refusal: Callable[[], Exception] | None = None

    @property
    def health(self) -> str:
        """`OK`, or `NOK - ` and the reason."""
        return self.disk_health.status

    @property
    def is_healthy(self) -> bool:
        """Whether the disk does what it is asked to."""
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

    def delete_topic(self, name: str) -> None:
        """Delete a topic, its channels and all their messages.

        Raises:
            KeyError: there is no such topic.
            OSError: some of its files could not be removed.
        """
        topic = self.topics.pop(name)
        logger.info("TOPIC(%s): deleting", name)
        self.limits.forget(topic)
        try:
            topic.delete()
        finally:
            self._announce(topic, None)

    def drain(self) -> None:
        """Take no new messages from here on; those that are here go on to the consumers."""
        self.refuse_publishes(DrainingError)
        self.is_draining = True

    def refuse_publishes(self, refusal: Callable[[], Exception] | None) -> None:
        """Refuse what is published with errors that `refusal` makes; with None take it again."""
        if self.is_draining:
            return  # that is never taken back
        self._refusal = refusal
        for topic in self.topics.values():
            self._open_or_shut(topic)

    def free_room(self) -> None:
        """Have every queue give back what room on disk it can: others are short of it."""
        for topic in self.topics.values():
            for queue in topic.queues():
                queue.backend.free_room()

    def _open_or_shut(self, topic: Topic) -> None:
        topic.accepts_messages = self._refusal is None
        if self._refusal is not None:
            topic.refusal = self._refusal

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
        self._queue_files = queue_files
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
        self._queue_files = None  # files come and go from now on
        for topic in self.topics.values():
            topic.start()

    def records(self) -> list[TopicRecord]:
        """Return what nsqd.dat shall hold: everything that is not ephemeral."""
        return [
            TopicRecord(
                topic.name,
                topic.is_paused,
                tuple(
                    ChannelRecord(channel.name, channel.is_paused)
                    for channel in topic.channels.values()
                    if not channel.is_ephemeral
                ),
                topic.limit_overrides,
            )
            for topic in self.topics.values()
            if not topic.is_ephemeral
        ]

    def close(
        self, run_all: Callable[[Sequence[Work]], list[OSError]] = run_in_turn
    ) -> list[OSError]:
        """Put every message on disk and let go of all files; return what went wrong.

        Args:
            run_all: runs the blocking parts, one for each queue, which may be thousands.
        """
        self.is_closed = True
        errors: list[OSError] = []
        topic_closings: list[Work] = []
        channel_closings: list[Work] = []
        for topic in self.topics.values():
            logger.info("TOPIC(%s): closing", topic.name)
            errors += topic.flush()
            topic.queue.backend.stop()
            topic_closings.append(topic.queue.backend.close)
            for channel in topic.channels.values():
                channel.queue.backend.stop()
                channel_closings.append(channel.queue.backend.close)
        if self.archives is not None:
            topic_closings += self.archives.close()
        # The channels first: what topics have handed on may leave their disk only after that.
        channel_errors = run_all(channel_closings)
        if not channel_errors:
            for topic in self.topics.values():
                topic.hand_over.forget_records()
        return errors + channel_errors + run_all(topic_closings)

    def _add_topic(self, name: str) -> Topic:
        if self.is_closed:
            raise ClosedError
        topic = Topic(
            name,
            self._make_queue(name, is_kept=not is_ephemeral(name)),
            self._ids,
            self._scheduler,
            lambda channel_name: self._make_channel(name, channel_name),
            self._receipts,
        )
        self._open_or_shut(topic)
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
        """A publisher is told that there is no room."""
        self.topics[topic_name].losses.rejected_count += 1

    def _publish(self, name: str, bodies: Sequence[bytes]) -> Receipt | None:
        return self.ensure_topic(name).publish(bodies)

    def _make_channel(self, topic_name: str, name: str) -> Channel:
        queue = self._make_queue(f"{topic_name}:{name}", is_kept=not is_ephemeral(name))
        return Channel(topic_name, name, queue, self._scheduler, self._settings.channel)

    def _make_queue(self, name: str, *, is_kept: bool) -> MessageQueue:
        settings = self._settings
        if not is_kept:
            # What is ephemeral has no disk to go to: without a memory queue it still needs hands.
            return MessageQueue(settings.mem_queue_size or EPHEMERAL_HANDOVER_COUNT, NullBackend())
        files = None
        if self._queue_files is not None:
            files = self._queue_files.get(name) or QueueFiles(name)
        health = self.disk_health
        backend = DiskBackend(
            *(name, settings.disk, self._scheduler, partial(health.wrote, name)),
            sync_times=self.sync_times,
            on_repeat=health.repeated,
            receipts=self._receipts,
            files=files,
        )
        return MessageQueue(settings.mem_queue_size, backend)

    def _announce(self, topic: Topic, channel: Channel | None) -> None:
        for listener in self.listeners:
            listener(topic, channel)
