"""Producer: publish messages and know the result of each.

Concurrent calls become one command: messages wait in a `PublishQueue`, `Sender`s take batches of
them. With `spread="all"` there is a queue for each nsqd, otherwise one for all.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Self, TypeAlias, Unpack

from nsqd.client.address import Address
from nsqd.client.errors import (
    ClosedError,
    PublishError,
    PublishTimeoutError,
    QueueFullError,
    RefusedError,
)
from nsqd.client.publish.batch import Batch
from nsqd.client.publish.queue import Bounds, PublishQueue
from nsqd.client.publish.sender import Sender
from nsqd.client.settings import ConnectionOptions, Settings
from nsqd.client.stats import Observer, ProducerStats
from nsqd.protocol.client_wire import cut

if TYPE_CHECKING:
    from nsqd.client.discovery import Discovery

Spread: TypeAlias = Literal["failover", "round-robin", "all"]
Bodies: TypeAlias = Iterable[bytes] | AsyncIterable[bytes]

# Deadlines are looked at so many times within the shortest timeout.
_LOOKS: Final = 20
_MIN_LOOK_S: Final = 0.01
_MAX_LOOK_S: Final = 1.0


class Producer:
    """Publish to nsqd. `async with` starts it, and waits at the end until all is answered."""

    def __init__(
        self,
        *addresses: str | Address,
        lookupd: Sequence[str] = (),
        spread: Spread = "failover",
        timeout: float = 30.0,
        retries: int | None = None,
        linger: float = 0.0,
        window: int = 4,
        bounds: Bounds | None = None,
        observer: Observer | None = None,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        """Prepare; `start` connects.

        Args:
            addresses: host:port of nsqds, or paths of unix sockets.
            lookupd: host:port of nsqlookupds whose nsqds are added to the addresses.
            spread: one nsqd and the next when it fails; all in turn; every message to every one.
            timeout: seconds until a publish fails that nsqd has not accepted.
            retries: how often a message is sent again after a lost connection or a temporary
                refusal; None for as often as the timeout allows, 0 for at most once delivered.
            linger: seconds for which messages gather before they leave; 0 is one turn of the loop.
            window: commands sent ahead of their answers, for each connection.
            options: the fields of Settings.

        Raises:
            ValueError: an argument cannot be used.
            OSError: a file of `tls` cannot be read.
        """
        if not addresses and not lookupd:
            raise ValueError("neither an address nor an nsqlookupd")
        if spread not in ("failover", "round-robin", "all"):
            raise ValueError(f"unknown spread {spread!r}")
        if timeout <= 0 or window < 1 or linger < 0:
            raise ValueError("timeout and window are positive, linger is not negative")
        self._settings = Settings(**options)
        self._addresses = list(dict.fromkeys(map(Address.parse, addresses)))
        self._spread = spread
        self._timeout_s = timeout
        self._retry_count = retries
        self._linger_s = linger
        self._window_count = window
        self._bounds = bounds or Bounds()
        self._observer = observer or Observer()
        self._context = self._settings.tls.make_context() if self._settings.tls else None
        self._discovery: Discovery | None = None
        if lookupd:
            # Imported here: without an nsqlookupd the HTTP client would be loaded for nothing.
            from nsqd.client.discovery import Discovery

            secret = self._settings.auth_secret
            self._discovery = Discovery(lookupd, None, auth_secret=secret, observer=self._observer)
        self._stats = ProducerStats()
        self._senders: dict[Sender, asyncio.Task[None]] = {}
        self._queues: list[PublishQueue] = []
        self._known: set[Address] = set()
        self._discovering: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._shortest_s = timeout
        self._look: asyncio.TimerHandle | None = None
        self._turn = 0
        self._is_closed = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Begin to connect; publishes wait until there is a connection.

        Raises:
            DiscoveryError: no nsqlookupd gives a usable answer.
        """
        assert self._loop is None, "started twice"
        self._loop = asyncio.get_running_loop()
        if self._spread != "all":
            self._queues.append(self._make_queue())
        self._add_nodes(self._addresses)
        if self._discovery is not None:
            self._add_nodes(sorted(await self._discovery.ask(), key=str))
            self._discovering = self._loop.create_task(self._discovery.run(self._found))
        self._look = self._loop.call_later(self._look_interval_s(), self._look_at_deadlines)

    async def close(self, grace: float | None = None) -> None:
        """Wait until every message is answered, at most `grace` seconds; then disconnect.

        Args:
            grace: None for the producer's timeout.
        """
        if self._is_closed or self._loop is None:
            return
        try:
            async with asyncio.timeout(self._timeout_s if grace is None else grace):
                await asyncio.gather(*(queue.wait_until_empty() for queue in self._queues))
        except TimeoutError:
            pass  # The rest fails below, and its publishers hear of it.
        finally:
            self._is_closed = True
            await self._end()

    async def publish(
        self,
        topic: str,
        body: bytes,
        *,
        defer: timedelta | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - one timer for all calls, not one for each
    ) -> None:
        """Publish a message and return when nsqd has accepted it.

        Args:
            defer: how long nsqd keeps the message before it delivers it.
            timeout: seconds, instead of the producer's.

        Raises:
            PublishError: the message was not published, or it is not known; see its subclasses.
            AuthError, ConnectError: no nsqd lets this client in.
            ClosedError: the producer is closed.
        """
        timeout_s = self._timeout_s if timeout is None else timeout
        if len(self._queues) == 1:
            queue = self._queues[0]
            if not queue.has_room(1, len(body)):
                await queue.wait_for_room(1, len(body), timeout_s)
            if defer is None and timeout is None and not self._is_closed:
                await queue.add(topic, body, timeout_s)  # The usual call, in few steps.
            else:
                await self._add(queue, topic, body, defer, timeout_s)
            return
        await asyncio.gather(
            *(
                self._publish_to(queue, topic, body, defer, timeout_s)
                for queue in self._usable_queues()
            )
        )

    def publish_soon(
        self,
        topic: str,
        body: bytes,
        *,
        defer: timedelta | None = None,
        timeout: float | None = None,
    ) -> asyncio.Future[None]:
        """Begin to publish a message; return the Future of its outcome, with `publish`'s errors.

        Raises:
            QueueFullError: as much is unanswered as may be.
            InvalidNameError, MessageTooLargeError: nsqd would refuse it.
            ClosedError: the producer is closed.
        """
        queues = self._usable_queues()
        for queue in queues:
            if not queue.has_room(1, len(body)):
                raise QueueFullError(f"{queue.count} messages are unanswered")
        if len(queues) == 1 and defer is None and timeout is None:
            return queues[0].add(topic, body, self._timeout_s)
        timeout_s = self._timeout_s if timeout is None else timeout
        return _combine([self._add(queue, topic, body, defer, timeout_s) for queue in queues])

    async def publish_many(
        self,
        topic: str,
        bodies: Bodies,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - one timer for all calls, not one for each
    ) -> int:
        """Publish messages in order, in commands of up to 1,000; return how many there were.

        Raises:
            PublishError: as `publish`; its `confirmed_count` tells how many were accepted.
        """
        timeout_s = self._timeout_s if timeout is None else timeout
        confirmed = 0
        under_way: deque[tuple[asyncio.Future[None], int]] = deque()
        try:
            async for chunk in _cut(bodies, self._bounds):
                futures = [
                    await self._add_chunk(queue, topic, chunk, timeout_s)
                    for queue in self._usable_queues()
                ]
                future = futures[0] if len(futures) == 1 else _combine(futures)
                under_way.append((future, len(chunk)))
                while under_way and under_way[0][0].done():
                    confirmed += _confirm(under_way)
            while under_way:
                await under_way[0][0]
                confirmed += _confirm(under_way)
        except BaseException as error:
            for future, count in under_way:
                if future.done() and not future.cancelled() and future.exception() is None:
                    confirmed += count
                future.cancel()
            if isinstance(error, PublishError):
                error.confirmed_count = confirmed
            raise
        return confirmed

    def stats(self) -> ProducerStats:
        """Return the figures as they are now."""
        return replace(
            self._stats,
            pending=sum(queue.count for queue in self._queues),
            pending_bytes=sum(queue.body_bytes for queue in self._queues),
        )

    def _usable_queues(self) -> list[PublishQueue]:
        if self._is_closed or self._loop is None:
            raise ClosedError("the producer is closed, or was not started")
        if not self._queues:
            raise PublishError("no nsqd is known yet", is_certainly_not_published=True)
        return self._queues

    async def _publish_to(
        self,
        queue: PublishQueue,
        topic: str,
        body: bytes,
        defer: timedelta | None,
        timeout_s: float,
    ) -> None:
        if not queue.has_room(1, len(body)):
            await queue.wait_for_room(1, len(body), timeout_s)
        await self._add(queue, topic, body, defer, timeout_s)

    def _add(
        self,
        queue: PublishQueue,
        topic: str,
        body: bytes,
        defer: timedelta | None,
        timeout_s: float,
    ) -> asyncio.Future[None]:
        if self._is_closed:
            raise ClosedError("the producer is closed")
        if timeout_s < self._shortest_s:
            self._look_more_often(timeout_s)
        if defer is None:
            return queue.add(topic, body, timeout_s)
        return queue.add(topic, body, timeout_s, max(0, round(defer / timedelta(milliseconds=1))))

    async def _add_chunk(
        self, queue: PublishQueue, topic: str, chunk: list[bytes], timeout_s: float
    ) -> asyncio.Future[None]:
        queue.check_topic(topic)
        sizes = list(map(len, chunk))
        queue.check_size(min(sizes))
        queue.check_size(max(sizes))
        size = sum(sizes)
        if not queue.has_room(len(chunk), size):
            await queue.wait_for_room(len(chunk), size, timeout_s)
        if self._is_closed:
            raise ClosedError("the producer is closed")
        if timeout_s < self._shortest_s:
            self._look_more_often(timeout_s)
        return queue.add_whole(topic, chunk, timeout_s)

    # Nodes.

    def _found(self, addresses: set[Address], gone: set[Address]) -> None:
        self._add_nodes(sorted(addresses, key=str))
        gone = gone.difference(self._addresses)  # Those that the program named are called for ever.
        for sender in self._senders:
            if self._spread == "failover":
                sender.addresses = [each for each in sender.addresses if each not in gone]
                self._known -= gone
            elif not addresses.isdisjoint(sender.addresses):
                sender.is_gone = False
            elif not gone.isdisjoint(sender.addresses):
                sender.is_gone = True

    def _add_nodes(self, addresses: Sequence[Address]) -> None:
        assert self._loop is not None
        new = [address for address in addresses if address not in self._known]
        self._known.update(new)
        if self._spread == "failover":
            if not self._senders:
                self._start_sender(self._queues[0], [])
            [sender] = self._senders
            sender.addresses = [*sender.addresses, *new]
            return
        for address in new:
            if self._spread == "all":
                self._queues.append(self._make_queue())
            self._start_sender(self._queues[-1], [address])

    def _start_sender(self, queue: PublishQueue, addresses: list[Address]) -> None:
        assert self._loop is not None
        sender = Sender(
            queue,
            self._settings,
            self._stats,
            self._observer,
            self._discovery.hurry if self._discovery is not None else None,
            window_count=self._window_count,
            retry_count=self._retry_count,
            context=self._context,
        )
        sender.addresses = addresses
        self._senders[sender] = self._loop.create_task(self._keep(sender, queue))

    async def _keep(self, sender: Sender, queue: PublishQueue) -> None:
        await sender.run()
        # No nsqlookupd knows its nsqd any more.
        del self._senders[sender]
        self._known.difference_update(sender.addresses)
        if self._spread == "all":
            self._queues.remove(queue)
            queue.fail_all(self._make_timeout)

    def _make_queue(self) -> PublishQueue:
        assert self._loop is not None
        return PublishQueue(self._loop, self._bounds, self._wake)

    # Sending.

    def _wake(self) -> None:
        """Have the senders take the waiting messages, at the end of this turn of the loop."""
        assert self._loop is not None
        if self._linger_s:
            self._loop.call_later(self._linger_s, self._send_waiting)
        else:
            self._loop.call_soon(self._send_waiting)

    def _send_waiting(self) -> None:
        senders = list(self._senders)
        if len(senders) > 1:
            self._turn = (self._turn + 1) % len(senders)
            senders = senders[self._turn :] + senders[: self._turn]
        for sender in senders:
            sender.send_waiting()

    # Deadlines.

    def _look_interval_s(self) -> float:
        return max(_MIN_LOOK_S, min(_MAX_LOOK_S, self._shortest_s / _LOOKS))

    def _look_more_often(self, timeout_s: float) -> None:
        assert self._loop is not None
        self._shortest_s = timeout_s
        if self._look is not None:
            self._look.cancel()
        self._look = self._loop.call_later(self._look_interval_s(), self._look_at_deadlines)

    def _look_at_deadlines(self) -> None:
        assert self._loop is not None
        now = self._loop.time()
        for sender in self._senders:
            sender.check_deadline(now, self._make_timeout)
        for queue in self._queues:
            queue.fail_expired(now, self._make_timeout)
        self._look = self._loop.call_later(self._look_interval_s(), self._look_at_deadlines)

    def _make_timeout(self, batch: Batch | None) -> Exception:
        is_unsent = batch is None or not batch.sent_count
        error: PublishError
        if batch is not None and batch.refusal:
            error = RefusedError(batch.refusal, is_certainly_not_published=is_unsent)
        else:
            error = PublishTimeoutError(
                "nsqd has not answered in time", is_certainly_not_published=is_unsent
            )
        error.__cause__ = next(filter(None, (s.last_error for s in self._senders)), None)
        return error

    async def _end(self) -> None:
        if self._look is not None:
            self._look.cancel()
        if self._discovering is not None:
            self._discovering.cancel()
        if self._discovery is not None:
            self._discovery.close()
        for task in self._senders.values():
            task.cancel()
        await asyncio.gather(*(sender.close() for sender in self._senders))
        tasks = [*self._senders.values(), *filter(None, [self._discovering])]
        await asyncio.gather(*tasks, return_exceptions=True)
        for queue in self._queues:
            queue.fail_all(lambda _batch: ClosedError("the producer was closed"))


def _confirm(under_way: deque[tuple[asyncio.Future[None], int]]) -> int:
    """Take the first off, which is done; return how many messages it confirms.

    Raises:
        NsqError: they were not published.
    """
    future, count = under_way[0]
    future.result()
    under_way.popleft()
    return count


def _combine(futures: list[asyncio.Future[None]]) -> asyncio.Future[None]:
    """Return a Future that succeeds with all of them, and fails with the first that fails."""
    combined: asyncio.Future[None] = futures[0].get_loop().create_future()
    left = len(futures)

    def note(future: asyncio.Future[None]) -> None:
        nonlocal left
        left -= 1
        error = None if future.cancelled() else future.exception()
        if combined.done():
            return
        if error is not None:
            combined.set_exception(error)
        elif not left:
            combined.set_result(None)

    for future in futures:
        future.add_done_callback(note)
    return combined


async def _cut(bodies: Bodies, bounds: Bounds) -> AsyncIterator[list[bytes]]:
    """Cut messages into lists that fit into a command each."""
    if isinstance(bodies, AsyncIterable):
        chunk: list[bytes] = []
        async for body in bodies:
            chunk.append(body)
            if len(chunk) >= bounds.max_batch_count:
                for piece in cut(chunk, bounds.max_batch_bytes):
                    yield piece
                chunk = []
        for piece in cut(chunk, bounds.max_batch_bytes):
            yield piece
        return
    iterator = iter(bodies)
    while chunk := list(islice(iterator, bounds.max_batch_count)):
        for piece in cut(chunk, bounds.max_batch_bytes):
            yield piece
