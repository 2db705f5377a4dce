"""Drain: how a node leaves a cluster without leaving messages behind.

From `begin` on publishes are refused, the node is not ready and no nsqlookupd names it, while
consumers go on until every channel is empty or the time is over. Then the daemon exits as on
SIGTERM: messages that are left are on disk.
"""

import asyncio
import logging
from collections.abc import Callable

from nsqd.broker.broker import Broker
from nsqd.runtime.event_loop import start_task

logger = logging.getLogger(__name__)

# How often the channels are looked at. A callback from each would have to sit on the path of every
# FIN, for something that happens once in the life of a daemon.
POLL_S = 0.1


class Drain:
    """The draining of one node: once begun, never taken back."""

    def __init__(
        self,
        broker: Broker,
        *,
        timeout_s: float,
        withdraw: Callable[[], object],
        finish: Callable[[], object],
    ) -> None:
        """Args:
        withdraw: has the nsqlookupds forget this node.
        finish: stops the daemon.
        """
        self._broker = broker
        self._timeout_s = timeout_s
        self._withdraw = withdraw
        self._finish = finish
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin, if that has not been done."""
        if self._task is not None:
            return
        logger.info("NSQ: draining %d messages, for %gs", self.left_count(), self._timeout_s)
        self._broker.drain()
        self._withdraw()
        self._task = start_task(self._run(), "drain")

    async def close(self) -> None:
        """Wait no longer: the daemon is stopping."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def left_count(self) -> int:
        """Return how many messages the channels still hold."""
        return sum(
            channel.depth + channel.consumers.in_flight_count + channel.deferred_count
            for topic in self._broker.topics.values()
            for channel in topic.channels.values()
        ) + sum(topic.depth for topic in self._broker.topics.values() if topic.channels)

    async def _run(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                while self.left_count():  # noqa: ASYNC110 - see POLL_S
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            logger.warning("NSQ: drained all but %d messages in time", self.left_count())
        else:
            logger.info("NSQ: drained")
        self._finish()
