"""Consumer: receive messages of a channel from every nsqd that has the topic.

Three ways to take them: `async for`, batches, or handlers with `run`. All draw from the inbox of a
`Session`, which is the running consumer.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from concurrent import futures
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, Unpack

from nsqd.client.address import Address
from nsqd.client.consume.backoff import BackoffPolicy
from nsqd.client.consume.dead_letters import DeadLetters, OnGiveUp
from nsqd.client.consume.handlers import Handler, in_threads, is_async, work
from nsqd.client.consume.inbox import Inbox
from nsqd.client.consume.message import Batch, Message, RequeueDelays
from nsqd.client.consume.session import Session
from nsqd.client.errors import ClosedError
from nsqd.client.settings import ConnectionOptions, Settings
from nsqd.client.stats import ConsumerStats, Observer
from nsqd.protocol.names import is_valid_channel_name, is_valid_topic_name

if TYPE_CHECKING:
    from nsqd.client.discovery import Discovery

_DEFAULT_BACKOFF: Final = BackoffPolicy()


class Consumer:
    """Messages of one channel. `async with` connects, and gives back messages at the end."""

    def __init__(
        self,
        topic: str,
        channel: str,
        *,
        nsqd: Sequence[str | Address] = (),
        lookupd: Sequence[str] = (),
        max_in_flight: int = 200,
        max_attempts: int = 0,
        on_give_up: OnGiveUp | None = None,
        dead_letter_topic: str | None = None,
        auto_touch: bool = True,
        backoff: BackoffPolicy | None = _DEFAULT_BACKOFF,
        requeue_delay: float = 90.0,
        max_requeue_delay: float = 900.0,
        lookupd_interval: float = 60.0,
        lookupd_authorization: bool | None = None,
        must_connect: bool = False,
        observer: Observer | None = None,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        """Prepare; `start` connects.

        Args:
            nsqd: addresses of nsqds.
            lookupd: addresses of nsqlookupds, which tell the nsqds of the topic.
            max_in_flight: the most messages that are here at a time, over all connections.
            max_attempts: deliveries after which a message is given up; 0 for never.
            on_give_up: called with a message that is given up, before its FIN; the result of a
                coroutine function is awaited.
            dead_letter_topic: where messages that are given up are published before their FIN.
            auto_touch: whether messages that are being handled get more time by themselves.
            backoff: None receives at full speed, even if handlers fail.
            requeue_delay: seconds until a message comes again whose handler failed, times its
                attempts, but no more than `max_requeue_delay`.
            lookupd_authorization: whether nsqlookupds get `auth_secret` as a token; None for those
                with https.
            must_connect: whether an nsqd of `nsqd` that lets nobody in at the first try ends the
                consumer with its error; otherwise it is called again and again.
            options: the fields of Settings.

        Raises:
            ValueError: an argument cannot be used.
            OSError: a file of `tls` cannot be read.
        """
        if not is_valid_topic_name(topic) or not is_valid_channel_name(channel):
            raise ValueError(f"not the names of a topic and a channel: {topic!r}, {channel!r}")
        if not nsqd and not lookupd:
            raise ValueError("neither an nsqd nor an nsqlookupd")
        if max_in_flight < 0:
            raise ValueError("max_in_flight is not negative")
        if max_attempts and on_give_up is None and dead_letter_topic is None:
            raise ValueError("max_attempts needs on_give_up or dead_letter_topic")
        self._topic = topic
        self._channel = channel
        self._settings = Settings(**options)
        self._addresses = list(dict.fromkeys(map(Address.parse, nsqd)))
        self._max_in_flight = max_in_flight
        self._max_attempts = max_attempts
        self._has_auto_touch = auto_touch
        self._policy = backoff
        self._delays = RequeueDelays(requeue_delay, max_requeue_delay)
        self._must_connect = must_connect
        self._observer = observer or Observer()
        self._context = self._settings.tls.make_context() if self._settings.tls else None
        self._dead_letters = DeadLetters(dead_letter_topic, on_give_up, self._observer, options)
        self._discovery: Discovery | None = None
        if lookupd:
            # Imported here: without an nsqlookupd the HTTP client would be loaded for nothing.
            from nsqd.client.discovery import Discovery

            self._discovery = Discovery(
                lookupd,
                topic,
                interval_s=lookupd_interval,
                auth_secret=self._settings.auth_secret,
                sends_secret=lookupd_authorization,
                observer=self._observer,
            )
        self._session: Session | None = None
        self._closing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def start(self) -> None:
        """Begin to connect; must be called on the event loop, once."""
        assert self._session is None, "started twice"
        self._session = Session(
            self._topic,
            self._channel,
            self._settings,
            self._observer,
            self._dead_letters,
            context=self._context,
            max_in_flight=self._max_in_flight,
            max_attempts=self._max_attempts,
            has_auto_touch=self._has_auto_touch,
            policy=self._policy,
            delays=self._delays,
            discovery=self._discovery,
            must_connect=self._must_connect,
        )
        self._session.start(self._addresses)

    async def close(self, grace: float = 0.0) -> None:
        """Take no more messages, give back those that were not begun, and disconnect.

        Args:
            grace: seconds for messages that were handed out to be answered; after that they are
                requeued.
        """
        if self._session is None:
            return
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._session.close(grace))
        await asyncio.shield(self._closing)

    def set_max_in_flight(self, count: int) -> None:
        """Change how many messages are here at a time; 0 pauses.

        Raises:
            ValueError: it is negative.
        """
        if count < 0:
            raise ValueError("max_in_flight is not negative")
        self._max_in_flight = count
        if self._session is not None:
            self._session.flow.set_max_in_flight(count)

    def is_starved(self, share: float = 0.85) -> bool:
        """Say whether an nsqd has sent most of its RDY count: it waits for answers.

        A program that answers many messages together does so now at the latest.
        """
        return self._session is not None and self._session.is_starved(share)

    def stats(self) -> ConsumerStats:
        """Return the figures as they are now."""
        return ConsumerStats() if self._session is None else self._session.stats()

    def __aiter__(self) -> AsyncIterator[Message]:
        """Yield messages, to be answered by the program, until the consumer is closed.

        Raises:
            ClosedError: the consumer was not started.
        """
        return _Messages(self._started().inbox)

    async def batches(self, max_count: int = 500, max_wait: float = 0.5) -> AsyncIterator[Batch]:
        """Yield messages in batches, for programs that store many at a time.

        A batch is complete with max_count messages, or max_wait seconds after its first one, or
        when nsqd sends no more until some are answered.

        Raises:
            ClosedError: the consumer was not started.
        """
        session = self._started()
        inbox, flow = session.inbox, session.flow
        loop = asyncio.get_running_loop()
        while True:
            first = await inbox.take()
            if first is None:
                return
            messages = [first]
            longest_s = max((first.deadline - loop.time()) / 2, 0.0)
            deadline = loop.time() + min(max_wait, longest_s)
            while len(messages) < max_count:
                taken = inbox.take_many(max_count - len(messages))
                if taken:
                    messages += taken
                    continue
                wait_s = deadline - loop.time()
                is_used_up = inbox.handed_count >= flow.rdy_total
                if wait_s <= 0 or is_used_up or inbox.is_closed:
                    break
                await inbox.wait(wait_s)
            yield Batch(messages)

    async def run(
        self,
        handler: Handler,
        *,
        concurrency: int = 1,
        grace: float = 30.0,
        signals: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM),
    ) -> None:
        """Call a handler for each message until a signal comes or `close` is called.

        The message is finished when the handler returns, and requeued when it raises. A coroutine
        function runs on the loop, a plain function in a thread.

        Args:
            concurrency: handlers at a time.
            grace: seconds for running handlers after a signal; then they are cancelled.
            signals: those that end it.

        Raises:
            NsqError: no nsqd lets this consumer in.
        """
        if self._session is None:
            self.start()
        session = self._started()
        loop = asyncio.get_running_loop()
        pool = None if is_async(handler) else futures.ThreadPoolExecutor(concurrency, "nsqd.client")
        handle = handler if pool is None else in_threads(handler, pool)
        stop = asyncio.Event()
        for number in signals:
            loop.add_signal_handler(number, stop.set)
        workers = [loop.create_task(work(session.inbox, handle)) for _ in range(concurrency)]
        stopping = loop.create_task(stop.wait())
        try:
            await asyncio.wait([*workers, stopping], return_when=asyncio.FIRST_COMPLETED)
            session.begin_close()
            await asyncio.wait(workers, timeout=grace)
        finally:
            for number in signals:
                loop.remove_signal_handler(number)
            for task in (*workers, stopping):
                task.cancel()
            await asyncio.wait([*workers, stopping])
            await self.close()
            if pool is not None:
                pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            if not worker.cancelled():
                worker.result()

    def _started(self) -> Session:
        if self._session is None:
            raise ClosedError("the consumer was not started")
        return self._session


class _Messages:
    """The iterator of `async for`."""

    __slots__ = ("_inbox",)

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        message = self._inbox.take_now() or await self._inbox.take()
        if message is None:
            raise StopAsyncIteration
        return message
