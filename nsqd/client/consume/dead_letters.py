"""DeadLetters: messages that were delivered too often, and where they go.

Nothing is finished before the callback has returned, or before an nsqd has accepted the message in
the dead-letter topic. If either fails the message is requeued, and comes again.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from nsqd.client.consume.message import Message
from nsqd.client.settings import ConnectionOptions
from nsqd.client.stats import Observer

if TYPE_CHECKING:
    from nsqd.client.publish.producer import Producer

_logger = logging.getLogger("nsqd.client")

# The connection for dead letters to an nsqd ends after so long without one: nsqds come and go, and
# each of them would be called for ever.
_IDLE_S: Final = 60.0

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
        self._outlets: dict[str, _Outlet] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Task[None]] = set()

    def give_up(self, message: Message) -> None:
        """Begin to give up a message that was handed out."""
        _keep(self._tasks, self.give_up_now(message))

    async def close(self) -> None:
        """Cancel the publishes under way: their messages are requeued."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for nsqd in list(self._outlets):
            self._drop(nsqd)
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def give_up_now(self, message: Message) -> None:
        """Give up a message that was handed out: finished when it is safe, requeued otherwise."""
        try:
            if self._topic is not None:
                await self._publish(self._topic, message)
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

    async def _publish(self, topic: str, message: Message) -> None:
        outlet = self._outlets.get(message.nsqd)
        if outlet is None:
            # Imported here: most consumers never give a message up.
            from nsqd.client.publish.producer import Producer

            producer = Producer(message.nsqd, observer=self._observer, **self._options)
            outlet = self._outlets[message.nsqd] = _Outlet(producer)
            await producer.start()  # This does not wait: there is no nsqlookupd to ask.
        outlet.begin()
        try:
            await outlet.producer.publish(topic, message.body)
        finally:
            outlet.end(lambda: self._drop(message.nsqd))

    def _drop(self, nsqd: str) -> None:
        if nsqd in self._outlets:
            _keep(self._closing, self._outlets.pop(nsqd).close())


def _keep(tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
    """Start a task, and hold it as long as it runs."""
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


class _Outlet:
    """The producer of one nsqd, and how long nothing has needed it."""

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self._use_count = 0
        self._idle: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Note a publish that begins."""
        self._use_count += 1
        if self._idle is not None:
            self._idle.cancel()

    def end(self, on_idle: Callable[[], None]) -> None:
        """Note the end of a publish; if it was the last, `on_idle` is called after some time."""
        self._use_count -= 1
        if not self._use_count:
            self._idle = asyncio.get_running_loop().call_later(_IDLE_S, on_idle)

    async def close(self) -> None:
        """Disconnect; publishes under way fail."""
        if self._idle is not None:
            self._idle.cancel()
        await self.producer.close(grace=0)
