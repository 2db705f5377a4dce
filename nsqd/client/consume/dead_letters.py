"""DeadLetters: messages that were delivered too often, and where they go.

Nothing is finished before the callback has returned, or before an nsqd has accepted the message in
the dead-letter topic. If either fails the message is requeued, and comes again.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

from nsqd.client.consume.message import Message
from nsqd.client.settings import ConnectionOptions
from nsqd.client.stats import Observer

if TYPE_CHECKING:
    from nsqd.client.publish.producer import Producer

_logger = logging.getLogger("nsqd.client")

OnGiveUp: TypeAlias = Callable[[Message], Awaitable[None]] | Callable[[Message], None]


class DeadLetters:
    """Give messages up, one way or the other."""

    def __init__(
        self,
        topic: str | None,
        callback: OnGiveUp | None,
        observer: Observer,
        options: ConnectionOptions,
    ) -> None:
        """Args: topic: where they are published, on the nsqd that they came from."""
        self.count = 0
        self._topic = topic
        self._callback = callback
        self._observer = observer
        self._options = options
        self._producers: dict[str, Producer] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def give_up(self, message: Message) -> None:
        """Begin to give up a message that was handed out."""
        task = asyncio.get_running_loop().create_task(self.give_up_now(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel the publishes under way: their messages are requeued."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for producer in self._producers.values():
            await producer.close(grace=0)

    async def give_up_now(self, message: Message) -> None:
        """Give up a message that was handed out: finished when it is safe, requeued otherwise."""
        try:
            if self._topic is not None:
                producer = await self._ensure_producer(message.nsqd)
                await producer.publish(self._topic, message.body)
            if self._callback is not None:
                outcome = self._callback(message)
                if inspect.isawaitable(outcome):
                    await outcome
        except asyncio.CancelledError as error:
            message.settle(error)
            raise
        except Exception as error:  # noqa: BLE001 - whatever fails, the message must not be lost
            _logger.warning("cannot give up message id=%s error=%r", message.id.decode(), error)
            message.settle(error)
            return
        self.count += 1
        self._observer.gave_up(message.id, message.attempts, len(message.body))
        _logger.warning(
            "message given up id=%s attempts=%d bytes=%d",
            message.id.decode("ascii", "replace"),
            message.attempts,
            len(message.body),
        )
        message.settle(None)

    async def _ensure_producer(self, nsqd: str) -> Producer:
        if nsqd not in self._producers:
            # Imported here: most consumers never give a message up.
            from nsqd.client.publish.producer import Producer

            producer = Producer(nsqd, observer=self._observer, **self._options)
            await producer.start()
            self._producers[nsqd] = producer
        return self._producers[nsqd]
