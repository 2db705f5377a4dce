"""MetadataStore: keeps nsqd.dat in step with the broker."""

import asyncio
import contextlib
import logging
from pathlib import Path

import nsqd
from nsqd.broker import metadata
from nsqd.broker.broker import Broker, make_record
from nsqd.broker.channel import Channel
from nsqd.broker.health import METADATA
from nsqd.broker.topic import Topic
from nsqd.runtime.event_loop import start_task
from nsqd.runtime.slices import gather_slices

logger = logging.getLogger(__name__)

RETRY_S = 1.0


class MetadataStore:
    """Write nsqd.dat after a change: off the loop, one write for many changes.

    The text of each topic is kept, so that a change costs the loop the text of one topic, however
    many there are; a thread joins the texts and writes the file. While the disk refuses it, the
    write is repeated every second and the broker is not healthy.
    """

    def __init__(self, broker: Broker, data_path: Path) -> None:
        self._broker = broker
        self._data_path = data_path
        # The texts of topics, and the names of topics that have changed since.
        self._texts: dict[str, bytes] = {}
        self._stale: dict[str, None] = dict.fromkeys(broker.topics)
        # Changes are counted: how many there were, and how many of them nsqd.dat has.
        self._change_count = 0
        self._saved_count = 0
        # Set, and replaced, after each attempt to write.
        self._attempted = asyncio.Event()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def on_change(self, topic: Topic, channel: Channel | None) -> None:
        """Note that a topic or channel has come or gone."""
        if not topic.is_ephemeral and not (channel is not None and channel.is_ephemeral):
            self.changed(topic.name)

    def changed(self, topic_name: str) -> None:
        """Have nsqd.dat written soon, as a topic or one of its channels has changed."""
        self._stale[topic_name] = None
        self._change_count += 1
        self._start()

    async def persist(self, topic_name: str) -> None:
        """Return once nsqd.dat holds a topic as it is now, or the store was closed.

        While the disk refuses it this waits; the caller sets a timeout.
        """
        self.changed(topic_name)
        change_count = self._change_count
        while self._saved_count < change_count and self._task is not None:
            await self._attempted.wait()

    def save(self) -> None:
        """Write nsqd.dat here and now; blocks, so only before nsqd serves and after.

        Raises:
            OSError: the old file is still there.
        """
        path = self._data_path / metadata.FILE_NAME
        logger.info("NSQ: persisting topic/channel metadata to %s", path)
        for name in self._take_stale():
            self._refresh(name)
        _save(self._data_path, list(self._texts.values()))

    async def close(self) -> None:
        """Wait for the write under way, and try no other."""
        self._closing.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    def _start(self) -> None:
        if self._task is None and not self._closing.is_set():
            self._task = start_task(self._write(), "metadata")

    async def _write(self) -> None:
        try:
            while self._saved_count < self._change_count and not self._closing.is_set():
                change_count = self._change_count
                await gather_slices(map(self._refresh, self._take_stale()))
                try:
                    await asyncio.to_thread(_save, self._data_path, list(self._texts.values()))
                except OSError as error:
                    self.refused(error)
                    self._note_attempt()
                    await self._pause()
                else:
                    self._saved_count = change_count
                    self._broker.disk_health.repeated(METADATA, None)
                    self._note_attempt()
        finally:
            self._task = None
            self._note_attempt()

    def _take_stale(self) -> list[str]:
        names = list(self._stale)
        self._stale.clear()
        return names

    def _refresh(self, topic_name: str) -> None:
        """Make the text of a topic anew, or forget the text of a topic that has gone."""
        topic = self._broker.find_topic(topic_name)
        if topic is None or topic.is_ephemeral:
            self._texts.pop(topic_name, None)
        else:
            self._texts[topic_name] = metadata.encode_topic(make_record(topic))

    def _note_attempt(self) -> None:
        self._attempted.set()
        self._attempted = asyncio.Event()

    def refused(self, error: OSError) -> None:
        """Have nsqd.dat written again, as the disk has just refused it."""
        self._change_count += 1
        self._start()
        health = self._broker.disk_health
        if health.find_failure(METADATA) is None:
            logger.error("NSQ: failed to persist metadata, trying again - %s", error)
        health.repeated(METADATA, error)

    async def _pause(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RETRY_S):
                await self._closing.wait()


def _save(data_path: Path, texts: list[bytes]) -> None:
    """Write nsqd.dat; in a thread, as joining thousands of texts takes a while too.

    Raises:
        OSError: the old file is still there.
    """
    metadata.save(data_path, metadata.join(texts, nsqd.PROTOCOL_VERSION))
