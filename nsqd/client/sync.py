"""The client for programs without an event loop: a thread has one.

`Producer` may be used from any thread, and after a fork; `consume` calls plain functions in
threads. Both are the asyncio client, with its arguments and errors.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from nsqd.client.consume.consumer import Consumer
from nsqd.client.consume.message import Message
from nsqd.client.errors import ClosedError
from nsqd.client.publish import producer as publishing
from nsqd.client.stats import ProducerStats

_T = TypeVar("_T")

_JOIN_S: Final = 5.0


class _Thread:
    """A thread with an event loop and a producer on it."""

    def __init__(self, producer: publishing.Producer) -> None:
        self.producer = producer
        self._loop = asyncio.new_event_loop()
        # A daemon thread does not keep the interpreter from exiting.
        self._thread = threading.Thread(target=self._run, name="nsqd.client", daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def stop(self) -> None:
        """End the loop and the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()


class Producer:
    """Publish from any thread. Close it at the end, or use it as a context."""

    def __init__(self, *addresses: str, **options: Any) -> None:
        """Take the arguments of the asyncio Producer; the first publish connects."""
        self._addresses = addresses
        self._options = options
        self._lock = threading.Lock()
        self._thread: _Thread | None = None
        self._is_closed = False
        _producers.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def publish(
        self,
        topic: str,
        body: bytes,
        *,
        defer: timedelta | None = None,
        timeout: float | None = None,
    ) -> None:
        """Publish a message and return when nsqd has accepted it.

        Raises:
            NsqError: as the asyncio Producer's.
        """
        thread = self._ensure_thread()
        thread.call(thread.producer.publish(topic, body, defer=defer, timeout=timeout))

    def publish_many(
        self, topic: str, bodies: Iterable[bytes], *, timeout: float | None = None
    ) -> int:
        """Publish messages in order; return how many there were.

        Raises:
            NsqError: as the asyncio Producer's.
        """
        thread = self._ensure_thread()
        return thread.call(thread.producer.publish_many(topic, bodies, timeout=timeout))

    def stats(self) -> ProducerStats:
        """Return the figures as they are now."""
        thread = self._thread
        return ProducerStats() if thread is None else thread.producer.stats()

    def close(self) -> None:
        """Wait until every message is answered, and disconnect."""
        with self._lock:
            self._is_closed = True
            if self._thread is not None:
                self._thread.call(self._thread.producer.close())
                self._thread.stop()
                self._thread = None

    def forget_after_fork(self) -> None:
        """Begin anew: a child has neither the thread nor the connection of its parent."""
        self._lock = threading.Lock()
        self._thread = None

    def _ensure_thread(self) -> _Thread:
        with self._lock:
            if self._is_closed:
                raise ClosedError("the producer is closed")
            if self._thread is None:
                thread = _Thread(publishing.Producer(*self._addresses, **self._options))
                try:
                    thread.call(thread.producer.start())
                except BaseException:
                    thread.stop()
                    raise
                self._thread = thread
            return self._thread


_producers: weakref.WeakSet[Producer] = weakref.WeakSet()


def _forget_all() -> None:
    for producer in list(_producers):
        producer.forget_after_fork()


os.register_at_fork(after_in_child=_forget_all)


def publish(address: str, topic: str, body: bytes, **options: Any) -> None:
    """Publish one message over a connection of its own.

    Raises:
        NsqError: as the asyncio Producer's.
    """
    with Producer(address, **options) as producer:
        producer.publish(topic, body)


def consume(
    handler: Callable[[Message], None],
    topic: str,
    channel: str,
    *,
    concurrency: int = 1,
    grace: float = 30.0,
    **options: Any,
) -> None:
    """Call a plain function in threads for each message, until SIGINT or SIGTERM.

    The message is finished when the function returns, and requeued when it raises.

    Raises:
        NsqError: no nsqd lets this consumer in.
    """

    async def run() -> None:
        consumer = Consumer(topic, channel, **options)
        await consumer.run(handler, concurrency=concurrency, grace=grace)

    asyncio.run(run())
