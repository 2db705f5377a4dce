"""MetadataStore: keeps nsqd.dat in step with the broker."""

import asyncio
import logging
from pathlib import Path

import nsqd
from nsqd.broker import metadata
from nsqd.broker.broker import Broker
from nsqd.broker.channel import Channel
from nsqd.broker.topic import Topic

logger = logging.getLogger(__name__)

RETRY_S = 1.0


class MetadataStore:
    """Writes nsqd.dat when something changed: off the loop, one write for many changes."""

    def __init__(self, broker: Broker, data_path: Path) -> None:
        self._broker = broker
        self._data_path = data_path
        self._is_dirty = False
        self._is_closed = False
        self._task: asyncio.Task[None] | None = None

    def on_change(self, topic: Topic, channel: Channel | None) -> None:
        """Note that a topic or channel has come or gone."""
        if not topic.is_ephemeral and not (channel is not None and channel.is_ephemeral):
            self.changed()

    def changed(self) -> None:
        """Have nsqd.dat written soon."""
        self._is_dirty = True
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._write())

    async def persist(self) -> None:
        """Return once nsqd.dat holds everything up to now."""
        self.changed()
        while self._task is not None:
            await asyncio.shield(self._task)

    async def close(self) -> None:
        """Wait for the write under way, and try no other."""
        self._is_closed = True
        if self._task is not None:
            await self._task

    async def _write(self) -> None:
        try:
            while self._is_dirty and not self._is_closed:
                self._is_dirty = False
                text = metadata.encode(self._broker.records(), nsqd.PROTOCOL_VERSION)
                try:
                    await asyncio.to_thread(metadata.save, self._data_path, text)
                except OSError:
                    logger.exception("failed to persist metadata, trying again")
                    self._is_dirty = True
                    await asyncio.sleep(RETRY_S)
        finally:
            self._task = None
