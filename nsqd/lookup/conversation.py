"""Conversation: one connection to an nsqlookupd, commands out and replies in."""

import asyncio
from collections.abc import Callable
from typing import cast

from nsqd.protocol.lookup import LookupReplyError, ReplyParser, check_ok


class Conversation(asyncio.Protocol):
    """Send commands, many at a time, and wait for one reply to each.

    The first error or the end of the connection ends it for good: `on_end` is called, and every
    later call raises the reason.
    """

    def __init__(
        self, on_end: Callable[[], object], reply_timeout_s: float, *, max_reply_bytes: int
    ) -> None:
        self._on_end = on_end
        self._reply_timeout_s = reply_timeout_s
        self._parser = ReplyParser(max_reply_bytes=max_reply_bytes)
        self._transport: asyncio.Transport | None = None
        self._end = ""  # why it is over
        # The exchange under way: the replies still due, whether each must be OK, the last one.
        self._due_count = 0
        self._is_ok_due = False
        self._reply = b""
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio's, but not their classes.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for reply in self._parser.feed(data):
                self._accept(reply)
        except LookupReplyError as error:
            self._stop(str(error))
        if self._timer is not None:
            # The deadline is for each reply, not for all that were asked for at once.
            self._set_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop(f"connection lost - {exc}" if exc is not None else "closed the connection")

    # Called by the peer.

    async def ask(self, command: bytes) -> bytes:
        """Send a command and return its reply.

        Raises:
            ConnectionError: no reply came.
        """
        await self._exchange(command, 1, is_ok_due=False)
        return self._reply

    async def tell(self, commands: list[bytes]) -> None:
        """Send commands; return once all of them are answered with OK.

        Raises:
            ConnectionError: some are not.
        """
        await self._exchange(b"".join(commands), len(commands), is_ok_due=True)

    def check(self) -> None:
        """Check that the connection is still of use.

        Raises:
            ConnectionError: it has ended; the text says why.
        """
        if self._end:
            raise ConnectionError(self._end)

    def close(self) -> None:
        """Close the connection."""
        self._stop("closed")

    async def _exchange(self, data: bytes, count: int, *, is_ok_due: bool) -> None:
        self.check()
        assert self._transport is not None
        assert self._waiter is None, "one exchange at a time"
        self._due_count = count
        self._is_ok_due = is_ok_due
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        self._set_timer()
        try:
            await self._waiter
        finally:
            self._waiter = None
            self._clear_timer()
        self.check()

    def _accept(self, reply: bytes) -> None:
        if not self._due_count:
            raise LookupReplyError("sent a reply that nobody asked for")
        if self._is_ok_due:
            check_ok(reply)
        self._reply = reply
        self._due_count -= 1
        if not self._due_count:
            self._clear_timer()
            self._wake_up()

    def _time_out(self) -> None:
        self._stop(f"no reply in {self._reply_timeout_s:g} s")

    def _stop(self, reason: str) -> None:
        if self._end:
            return
        self._end = reason
        self._clear_timer()
        # Not close(): that would wait for output that can't be written.
        if self._transport is not None:
            self._transport.abort()
        self._wake_up()
        self._on_end()

    def _wake_up(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _set_timer(self) -> None:
        self._clear_timer()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._reply_timeout_s, self._time_out)

    def _clear_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
