"""Session: the inside of a running consumer: its links, their RDY, its inbox, its clock."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from nsqd.client.address import Address
from nsqd.client.consume.backoff import BackoffPolicy
from nsqd.client.consume.dead_letters import DeadLetters
from nsqd.client.consume.flow import Flow
from nsqd.client.consume.inbox import Inbox
from nsqd.client.consume.link import Link, LinkState
from nsqd.client.consume.message import Message, RequeueDelays
from nsqd.client.errors import AuthError, NegotiationError, NsqError, TlsError
from nsqd.client.settings import Settings
from nsqd.client.stats import ConsumerStats, Observer

if TYPE_CHECKING:
    from nsqd.client.discovery import Discovery

_logger = logging.getLogger("nsqd.client")

_TICK_S: Final = 1.0
# The clock looks so many times within msg_timeout, so that a TOUCH after half of it is in time.
_LOOKS: Final = 8
# These will not go away by themselves: the program hears of them.
_LASTING: Final = (TlsError, NegotiationError, AuthError)


class Session:
    """All connections of a consumer, from start to close."""

    def __init__(
        self,
        topic: str,
        channel: str,
        settings: Settings,
        observer: Observer,
        dead_letters: DeadLetters,
        *,
        context: ssl.SSLContext | None,
        max_in_flight: int,
        max_attempts: int,
        has_auto_touch: bool,
        policy: BackoffPolicy | None,
        delays: RequeueDelays,
        discovery: Discovery | None,
        must_connect: bool,
    ) -> None:
        """Prepare on the running loop; `start` connects."""
        self._links: dict[Address, Link] = {}
        self.inbox = Inbox(max_attempts=max_attempts, give_up=dead_letters.give_up)
        self.flow = Flow(
            max_in_flight, policy, on_backoff=self._backed_off, on_limit=self._set_limit
        )
        self._topic = topic
        self._channel = channel
        self._settings = settings
        self._observer = observer
        self._dead_letters = dead_letters
        self._context = context
        self._has_auto_touch = has_auto_touch
        self._delays = delays
        self._discovery = discovery
        self._must_connect = must_connect
        self._stats = ConsumerStats()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._clock: asyncio.TimerHandle | None = None
        self._has_ever_subscribed = False
        self._is_closing = False

    def start(self, addresses: list[Address]) -> None:
        """Begin to connect."""
        for address in addresses:
            self._add_link(address)
        if self._discovery is not None:
            self._spawn(self._discovery.run(self._found))
        self._set_clock()

    def is_starved(self, share: float) -> bool:
        """Say whether a link has so much of its RDY in flight."""
        return any(
            len(link.in_flight) >= share * link.rdy for link in self._links.values() if link.rdy
        )

    def stats(self) -> ConsumerStats:
        """Return the figures as they are now."""
        links = self._links.values()
        return replace(
            self._stats,
            touched=sum(link.touched_count for link in links),
            expired=self.inbox.expired_count,
            given_up=self._dead_letters.count,
            connections=sum(link.state is LinkState.SUBSCRIBED for link in links),
            in_flight=sum(len(link.in_flight) for link in links),
            buffered=len(self.inbox),
            max_in_flight=self.flow.max_in_flight,
            backoff_level=self.flow.level,
        )

    def begin_close(self) -> None:
        """Hand out nothing any more, and have nsqd send nothing; answers still go out."""
        if self._is_closing:
            return
        self._is_closing = True
        self.flow.stop()
        self.inbox.close()
        for link in self._links.values():
            link.begin_close()

    async def close(self, grace_s: float) -> None:
        """Close everything; messages that were handed out have some time for their answers."""
        self.begin_close()
        try:
            async with asyncio.timeout(grace_s):
                await self.inbox.wait_until_answered()
        except TimeoutError:
            pass  # The rest is requeued below.
        await self._dead_letters.close()
        if self._clock is not None:
            self._clock.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*(link.close() for link in self._links.values()))
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._discovery is not None:
            self._discovery.close()

    # Called by the links; see `nsqd.client.consume.link.Owner`.

    def link_up(self, link: Link) -> None:
        """Give the link its RDY."""
        self._has_ever_subscribed = True
        self._stats.connects += 1
        self._observer.connected(link.nsqd)
        _logger.info("subscribed nsqd=%s topic=%s channel=%s", link.nsqd, link.topic, link.channel)
        self.flow.add(link)
        if not self._is_closing:
            self._set_clock()  # This nsqd may give less time than the others.

    def link_down(self, link: Link, error: NsqError) -> None:
        """Give its RDY to the others; end the consumer if no nsqd will ever let it in."""
        if self.flow.remove(link):
            self._observer.disconnected(link.nsqd, str(error))
        else:
            self._observer.connect_failed(link.nsqd, error)
        _logger.warning("no connection nsqd=%s error=%s", link.nsqd, error)
        if self._discovery is not None:
            self._discovery.hurry()
        is_refused = self._must_connect and not link.is_found and not link.has_ever_subscribed
        if is_refused or (
            not self._has_ever_subscribed
            and all(isinstance(each.last_error, _LASTING) for each in self._links.values())
        ):
            self.inbox.close(error)

    def messages_arrived(self, link: Link, messages: list[Message]) -> None:
        """Put messages into the inbox; a paused consumer gives them back."""
        self._stats.received += len(messages)
        self.flow.note_message(link)
        if self.inbox.limit:
            self.inbox.put(messages)
        else:
            link.return_buffered()

    def messages_finished(self, count: int) -> None:
        """Count FINs."""
        self._stats.finished += count
        self.inbox.answered(count)
        if self.flow.is_careful:
            for _ in range(count):
                self.flow.note_success()

    def message_requeued(self, *, backoff: bool) -> None:
        """Count a REQ."""
        self._stats.requeued += 1
        self.inbox.answered()
        if backoff:
            self.flow.note_failure()

    def messages_gone(self, count: int) -> None:
        """Count messages that cannot be answered any more."""
        self.inbox.answered(count)

    def answer_late(self, link: Link, message_id: bytes, text: str) -> None:
        """Report an answer that came too late, and ask for fewer messages."""
        self._stats.late += 1
        self._observer.late_answer(link.nsqd, message_id, text)
        _logger.warning("answer too late nsqd=%s error=%s", link.nsqd, text)
        self.flow.note_late()

    # Inside.

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _found(self, addresses: set[Address], gone: set[Address]) -> None:
        """Add new nsqds; have those that are gone not called again."""
        for address, link in self._links.items():
            if address in addresses:
                link.is_gone = False
            elif address in gone:
                link.is_gone = link.is_found
        for address in sorted(addresses - self._links.keys(), key=str):
            self._add_link(address, is_found=True)

    def _add_link(self, address: Address, *, is_found: bool = False) -> None:
        link = Link(
            address,
            self._topic,
            self._channel,
            self._settings,
            self,
            self._context,
            self._delays,
        )
        link.is_found = is_found
        self._links[address] = link
        self._spawn(self._keep(link))

    async def _keep(self, link: Link) -> None:
        await link.run()
        del self._links[link.address]  # No nsqlookupd knows it any more.

    def _tick_s(self) -> float:
        timeouts = [link.msg_timeout_s for link in self._links.values() if link.msg_timeout_s]
        return min([_TICK_S, *(timeout_s / _LOOKS for timeout_s in timeouts)])

    def _tick(self) -> None:
        self.flow.apply()
        self.inbox.drop_expired()
        if self._has_auto_touch:
            now = self._loop.time()
            for link in self._links.values():
                link.touch_due(now)
        self._set_clock()

    def _set_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
        self._clock = self._loop.call_later(self._tick_s(), self._tick)

    def _set_limit(self, limit: int) -> None:
        """Bound the messages held here; with 0, others may have those that were not begun."""
        self.inbox.set_limit(limit)
        if not limit:
            self.inbox.clear()
            for link in self._links.values():
                link.return_buffered()

    def _backed_off(self, level: int, pause_s: float) -> None:
        self._observer.backed_off(level, pause_s)
        _logger.warning("backoff level=%d pause_s=%.1f", level, pause_s)
