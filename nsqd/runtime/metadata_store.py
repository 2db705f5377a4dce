"""MetadataStore: keeps nsqd.dat in step with the broker."""

import asyncio
import contextlib
import logging
from pathlib import Path

import nsqd
from nsqd.broker import metadata
from nsqd.broker.broker import Broker
from nsqd.broker.channel import Channel
from nsqd.broker.health import METADATA
from nsqd.broker.topic import Topic
from nsqd.runtime.event_loop import start_task

logger = logging.getLogger(__name__)

RETRY_S = 1.0


class MetadataStore:
    """Write nsqd.dat after a change: off the loop, one write for many changes.

    While the disk refuses it, the write is repeated every second and the broker is not healthy.
    """

    def __init__(self, broker: Broker, data_path: Path) -> None:
        self._broker = broker
        self._data_path = data_path
        self._is_dirty = False
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def on_change(self, topic: Topic, channel: Channel | None) -> None:
        """Note that a topic or channel has come or gone."""
        if not topic.is_ephemeral and not (channel is not None and channel.is_ephemeral):
            self.changed()

    def changed(self) -> None:
        """Have nsqd.dat written soon."""
        self._is_dirty = True
        if self._task is None and not self._closing.is_set():
            self._task = start_task(self._write(), "metadata")

    async def persist(self) -> None:
        """Return once nsqd.dat holds everything up to now, or the store was closed.

        While the disk refuses it this waits; the caller sets a timeout.
        """
        self.changed()
        while self._task is not None:
            await asyncio.wait([self._task])

    def save(self) -> None:
        """Write nsqd.dat here and now; blocks, so only before nsqd serves and after.

        Raises:
            OSError: the old file is still there.
        """
        path = self._data_path / metadata.FILE_NAME
        logger.info("NSQ: persisting topic/channel metadata to %s", path)
        metadata.save(self._data_path, self._encode())

    async def close(self) -> None:
        """Wait for the write under way, and try no other."""
        self._closing.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _write(self) -> None:
        try:
            while self._is_dirty and not self._closing.is_set():
                self._is_dirty = False
                try:
                    await asyncio.to_thread(metadata.save, self._data_path, self._encode())
                except OSError as error:
                    self.refused(error)
                    await self._pause()
                else:
                    self._broker.disk_health.repeated(METADATA, None)
        finally:
            self._task = None

    def _encode(self) -> bytes:
        return metadata.encode(self._broker.records(), nsqd.PROTOCOL_VERSION)

    def refused(self, error: OSError) -> None:
        """Have nsqd.dat written again, as the disk has just refused it."""
        self.changed()
        health = self._broker.disk_health
        if health.find_failure(METADATA) is None:
            logger.error("NSQ: failed to persist metadata, trying again - %s", error)
        health.repeated(METADATA, error)

    async def _pause(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RETRY_S):
                await self._closing.wait()
