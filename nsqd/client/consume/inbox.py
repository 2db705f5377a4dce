"""Inbox: messages of all connections, between their arrival and the program that handles them.

It never hands out more than `limit` at a time, whatever has arrived: an RDY that was lowered may
be overtaken by messages on their way. They wait here, but not for a limit of 0: see `Session`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from nsqd.client.consume.message import BUFFERED, EXPIRED, HANDED, Message


class Inbox:
    """A queue for several takers; each message goes to one of them."""

    def __init__(self, *, max_attempts: int, give_up: Callable[[Message], None]) -> None:
        """Args: give_up: takes over a message that was delivered more than max_attempts times."""
        self.limit = 0
        # Handed out and not answered yet.
        self.handed_count = 0
        self.expired_count = 0
        self._max_attempts = max_attempts
        self._give_up = give_up
        self._messages: deque[Message] = deque()
        self._takers: deque[asyncio.Future[None]] = deque()
        self._loop = asyncio.get_running_loop()
        self._is_closed = False
        self._failure: Exception | None = None
        self._idle: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        """Return how many messages wait, those of lost connections included."""
        return len(self._messages)

    @property
    def is_closed(self) -> bool:
        """Whether nothing will be handed out any more."""
        return self._is_closed

    def put(self, messages: list[Message]) -> None:
        """Take in messages that have arrived."""
        self._messages.extend(messages)
        if self._takers:
            self._wake(len(messages))

    def take_now(self) -> Message | None:
        """Hand out a message, if one waits and may be handed out."""
        messages = self._messages
        while messages and self.handed_count < self.limit:
            message = messages.popleft()
            if message.state is not BUFFERED:
                continue  # Its connection has ended, or it was delivered anew.
            if message.deadline <= self._loop.time():
                self._expire(message)
                continue
            message.state = HANDED
            self.handed_count += 1
            if self._max_attempts and message.attempts > self._max_attempts:
                self._give_up(message)
                continue
            return message
        return None

    def take_many(self, count: int) -> list[Message]:
        """Hand out as many messages as wait and may be handed out, at most `count`."""
        taken: list[Message] = []
        if self._max_attempts:
            while len(taken) < count and (message := self.take_now()) is not None:
                taken.append(message)
            return taken
        messages = self._messages
        room = min(count, self.limit - self.handed_count)
        now = self._loop.time()
        while messages and len(taken) < room:
            message = messages.popleft()
            if message.state is BUFFERED:
                if message.deadline <= now:
                    self._expire(message)
                else:
                    message.state = HANDED
                    taken.append(message)
        self.handed_count += len(taken)
        return taken

    async def take(self) -> Message | None:
        """Wait for a message and hand it out; None when the inbox is closed.

        Raises:
            NsqError: no nsqd lets this consumer in.
        """
        while not self._is_closed:
            message = self.take_now()
            if message is not None:
                return message
            await self.wait()
        if self._failure is not None:
            raise self._failure
        return None

    async def wait(self, timeout_s: float | None = None) -> None:
        """Wait until a message may be there, or the inbox is closed, or the time is over."""
        if self._is_closed:
            return
        taker: asyncio.Future[None] = self._loop.create_future()
        self._takers.append(taker)
        timer = None
        if timeout_s is not None:
            timer = self._loop.call_later(max(timeout_s, 0.0), _wake_one, taker)
        try:
            await taker
        except asyncio.CancelledError:
            if taker.done() and not taker.cancelled() and taker not in self._takers:
                self._wake(1)  # This taker was woken for a message: wake another one for it.
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if taker in self._takers:
                self._takers.remove(taker)

    def answered(self, count: int = 1) -> None:
        """Note that messages that were handed out have their answers, or never will."""
        self.handed_count -= count
        if self._takers and self._messages:
            self._wake(count)
        if not self.handed_count and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def set_limit(self, limit: int) -> None:
        """Hand out no more than so many at a time."""
        self.limit = limit
        if self._takers and self._messages:
            self._wake(len(self._messages))

    def drop_expired(self) -> None:
        """Forget the messages that waited for too long: nsqd delivers them again.

        Without it a program that takes none for hours would have every delivery of them here.
        """
        now = self._loop.time()
        waiting = self._messages
        for _ in range(len(waiting)):
            message = waiting.popleft()
            if message.state is not BUFFERED:
                continue
            if message.deadline <= now:
                self._expire(message)
            else:
                waiting.append(message)

    def clear(self) -> None:
        """Forget the messages that wait here; their links give them back."""
        self._messages.clear()

    async def wait_until_answered(self) -> None:
        """Wait until every message that was handed out is answered."""
        while self.handed_count:
            if self._idle is None or self._idle.done():
                self._idle = self._loop.create_future()
            await asyncio.shield(self._idle)

    def close(self, failure: Exception | None = None) -> None:
        """Hand out nothing any more; takers get None, or the failure."""
        self._is_closed = True
        self._failure = self._failure or failure
        self.clear()
        self._wake(len(self._takers))

    def _expire(self, message: Message) -> None:
        message.state = EXPIRED
        message.origin.forget(message)
        self.expired_count += 1

    def _wake(self, count: int) -> None:
        takers = self._takers
        while count > 0 and takers:
            taker = takers.popleft()
            if not taker.done():
                taker.set_result(None)
                count -= 1


def _wake_one(taker: asyncio.Future[None]) -> None:
    if not taker.done():
        taker.set_result(None)
