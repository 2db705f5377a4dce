"""Link: a consumer's connection to one nsqd, made again whenever it is lost.

It subscribes, turns what arrives into Messages, and gathers their answers, which leave in one write
at the end of the loop's turn.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import ssl
from typing import Final, Protocol

from nsqd.client.address import Address
from nsqd.client.connection import Connection, connect
from nsqd.client.consume.message import (
    ANSWERED,
    BUFFERED,
    EXPIRED,
    HANDED,
    LOST,
    Message,
    RequeueDelays,
)
from nsqd.client.errors import AuthError, ConnectError, NsqError
from nsqd.client.pauses import Pauses
from nsqd.client.settings import Settings
from nsqd.protocol import client_wire as wire

_logger = logging.getLogger("nsqd.client")

_AUTH_ERRORS: Final = (b"E_AUTH", b"E_UNAUTHORIZED")
_LATE_ERRORS: Final = (b"E_FIN_FAILED", b"E_REQ_FAILED", b"E_TOUCH_FAILED")
_FAREWELL_S: Final = 1.0
# The id of a late answer is the third word: "E_FIN_FAILED FIN 0123456789abcdef failed ...".
_LATE_ID_WORD: Final = 2


class LinkState(enum.Enum):
    """DOWN has no connection; SUBSCRIBED receives; CLOSING takes answers only."""

    DOWN = enum.auto()
    SUBSCRIBING = enum.auto()
    SUBSCRIBED = enum.auto()
    CLOSING = enum.auto()


class Owner(Protocol):
    """The consumer, as its links see it."""

    def link_up(self, link: Link) -> None:
        """A link is subscribed."""

    def link_down(self, link: Link, error: NsqError) -> None:
        """A link is lost, or could not be made; it tries again by itself."""

    def messages_arrived(self, link: Link, messages: list[Message]) -> None:
        """Messages of one read."""

    def messages_finished(self, count: int) -> None:
        """So many messages that were handed out are finished."""

    def message_requeued(self, *, backoff: bool) -> None:
        """A message that was handed out goes back."""

    def messages_gone(self, count: int) -> None:
        """So many messages that were handed out cannot be answered any more."""

    def answer_late(self, link: Link, message_id: bytes, text: str) -> None:
        """nsqd, or this link, has refused an answer."""


class Link:
    """One nsqd. `run` keeps it connected; it is the receiver of its connection."""

    def __init__(
        self,
        address: Address,
        topic: str,
        channel: str,
        settings: Settings,
        owner: Owner,
        context: ssl.SSLContext | None,
        delays: RequeueDelays,
    ) -> None:
        """Prepare; `run` connects."""
        self.address = address
        self.delays = delays
        self.nsqd = str(address)
        self.topic = topic
        self.channel = channel
        self.state = LinkState.DOWN
        self.rdy = 0
        self.max_rdy_count = 0
        self.touched_count = 0
        self.last_error: NsqError | None = None
        # Whether no nsqlookupd knows it any more: it is not called again.
        self.is_gone = False
        # Whether nsqlookupd told of it: other nsqds are called for ever.
        self.is_found = False
        self.has_ever_subscribed = False
        # Messages that nsqd has in flight here, by id.
        self.in_flight: dict[bytes, Message] = {}
        self._settings = settings
        self._owner = owner
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._pauses = Pauses()
        self._lost: asyncio.Future[NsqError] = self._loop.create_future()
        self._close_wait: asyncio.Future[None] = self._loop.create_future()
        self._error: NsqError | None = None
        self._msg_timeout_s = 0.0
        self._max_msg_timeout_s = 0.0
        self._finished: list[bytes] = []
        self._commands: list[bytes] = []
        self._is_flush_due = False

    @property
    def msg_timeout_s(self) -> float:
        """The time that nsqd gives for an answer; 0 before the first connection."""
        return self._msg_timeout_s

    async def run(self) -> None:
        """Connect and subscribe, again and again, until cancelled or unknown to nsqlookupd."""
        while not self.is_gone:
            started_at = self._loop.time()
            lived_s = 0.0
            try:
                error = await self._serve()
                lived_s = self._loop.time() - started_at
            except (ConnectError, AuthError) as failure:
                error = failure
            self.last_error = error
            self._owner.link_down(self, error)
            await asyncio.sleep(self._pauses.next_s(lived_s))

    async def _serve(self) -> NsqError:
        """Connect, subscribe, stay; return why it ended."""
        self._lost = self._loop.create_future()
        self._error = None
        connection = await connect(self.address, self._settings, self, self._context)
        if connection.is_lost:
            raise ConnectError(f"{self.nsqd}: lost at once")
        negotiated = connection.negotiated
        self._msg_timeout_s = negotiated.msg_timeout
        self._max_msg_timeout_s = negotiated.max_msg_timeout
        self.max_rdy_count = negotiated.max_rdy_count
        self._connection = connection
        self.state = LinkState.SUBSCRIBING
        connection.write(wire.encode_sub(self.topic, self.channel))
        return await asyncio.shield(self._lost)

    # Called by the connection.

    def messages_received(self, messages: list[wire.RawMessage]) -> None:
        """Hand the messages of one read to the consumer."""
        self._pauses.reset()  # This nsqd is well, however short its connections live.
        now = self._loop.time()
        deadline = now + self._msg_timeout_s
        in_flight = self.in_flight
        arrived = []
        for timestamp_ns, attempts, message_id, body in messages:
            message = Message(self, message_id, attempts, timestamp_ns, body, now, deadline)
            if message_id in in_flight:
                self._expire(in_flight[message_id])
            in_flight[message_id] = message
            arrived.append(message)
        if self.state is LinkState.CLOSING:
            self.return_buffered()
        else:
            self._owner.messages_arrived(self, arrived)

    def reply_received(self, data: bytes, *, is_error: bool) -> None:
        """Take the answer to SUB or CLS, or an error."""
        if is_error:
            self._take_error(data)
        elif self.state is LinkState.SUBSCRIBING and data == wire.OK:
            self.state = LinkState.SUBSCRIBED
            self.has_ever_subscribed = True
            self.last_error = None
            self._owner.link_up(self)
        elif data == wire.CLOSE_WAIT and not self._close_wait.done():
            self._close_wait.set_result(None)

    def writing_resumed(self) -> None:
        """Do nothing: answers are small, and bounded by RDY."""

    def connection_lost(self, reason: str) -> None:
        """Give up the messages in flight: nsqd delivers them again."""
        self._connection = None
        if self.state is not LinkState.CLOSING:
            self.state = LinkState.DOWN
        self.rdy = 0
        handed_count = 0
        for message in self.in_flight.values():
            handed_count += message.state is HANDED
            message.state = LOST
        self.in_flight.clear()
        self._finished.clear()
        self._commands.clear()
        if not self._close_wait.done():
            self._close_wait.set_result(None)
        if not self._lost.done():
            self._lost.set_result(self._error or ConnectError(f"{self.nsqd}: {reason}"))
        if handed_count:
            self._owner.messages_gone(handed_count)

    # Called by messages.

    def finish(self, message: Message) -> None:
        """Send FIN at the end of this turn."""
        message.state = ANSWERED
        del self.in_flight[message.id]
        self._finished.append(message.id)
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self.flush)
        self._owner.messages_finished(1)

    def finish_many(self, messages: list[Message]) -> None:
        """Send FINs at the end of this turn, for messages that were handed out."""
        in_flight, finished = self.in_flight, self._finished
        for message in messages:
            message.state = ANSWERED
            del in_flight[message.id]
            finished.append(message.id)
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self.flush)
        self._owner.messages_finished(len(messages))

    def requeue(self, message: Message, delay_s: float, *, backoff: bool) -> None:
        """Send REQ at the end of this turn."""
        message.state = ANSWERED
        del self.in_flight[message.id]
        self._send_soon(wire.encode_req(message.id, max(0, round(delay_s * 1000))))
        self._owner.message_requeued(backoff=backoff)

    def touch(self, message: Message) -> None:
        """Send TOUCH at the end of this turn."""
        longest = message.received_at + self._max_msg_timeout_s
        message.deadline = min(self._loop.time() + self._msg_timeout_s, longest)
        self.touched_count += 1
        self._send_soon(wire.encode_touches([message.id]))

    def forget(self, message: Message) -> None:
        """Drop a message that waited too long to be handed out: nsqd has it no longer in flight."""
        del self.in_flight[message.id]

    def answer_lost(self, message: Message) -> None:
        """Report an answer whose connection has ended."""
        self._owner.answer_late(self, message.id, "the connection was lost")

    # Called by the consumer.

    def set_rdy(self, count: int) -> None:
        """Send RDY."""
        self.rdy = count
        if self._connection is not None:
            self._connection.write(wire.encode_rdy(count))

    def touch_due(self, now: float) -> None:
        """Touch the messages that were handed out and have used up half of their time."""
        for message in self.in_flight.values():
            if (
                message.state is HANDED
                and message.deadline - now <= self._msg_timeout_s / 2
                and message.deadline < message.received_at + self._max_msg_timeout_s
            ):
                self.touch(message)

    def begin_close(self) -> None:
        """Have nsqd send nothing any more, and give back the messages not handed out."""
        if self.state is LinkState.SUBSCRIBED and self._connection is not None:
            self._connection.write(wire.CLS)
        elif not self._close_wait.done():
            self._close_wait.set_result(None)
        self.state = LinkState.CLOSING
        self.return_buffered()

    def return_buffered(self) -> None:
        """Send REQ 0 for the messages that were not handed out, if nsqd still waits for it."""
        now = self._loop.time()
        waiting = [each for each in self.in_flight.values() if each.state is BUFFERED]
        for message in waiting:
            message.state = ANSWERED
            del self.in_flight[message.id]
        ids = [message.id for message in waiting if message.deadline > now]
        if ids:
            self._send_soon(wire.encode_reqs(ids, 0))

    def return_handed(self) -> None:
        """Send REQ 0 for the messages that were handed out and have no answer."""
        for message in list(self.in_flight.values()):
            if message.state is HANDED:
                self.requeue(message, 0.0, backoff=False)

    async def close(self) -> None:
        """Wait for CLOSE_WAIT, send the last answers, disconnect."""
        try:
            async with asyncio.timeout(_FAREWELL_S):
                await asyncio.shield(self._close_wait)
        except TimeoutError:
            pass  # nsqd does not answer; the requeues below are sent all the same.
        self.return_buffered()
        self.return_handed()
        self.flush()
        if self._connection is not None:
            await self._connection.close()

    def flush(self) -> None:
        """Send the answers of this turn. A TOUCH goes before the FIN of the same message."""
        self._is_flush_due = False
        data = b"".join(self._commands)
        self._commands.clear()
        if self._finished:
            data += wire.encode_fins(self._finished)
            self._finished.clear()
        if data and self._connection is not None:
            self._connection.write(data)

    def _send_soon(self, data: bytes) -> None:
        self._commands.append(data)
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self.flush)

    def _expire(self, message: Message) -> None:
        """Give up a delivery that another one has replaced."""
        was_handed = message.state is HANDED
        message.state = EXPIRED
        if was_handed:
            self._owner.messages_gone(1)

    def _take_error(self, data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        if data.startswith(_LATE_ERRORS):
            words = data.split(b" ")
            message_id = words[_LATE_ID_WORD] if len(words) > _LATE_ID_WORD else b""
            self._owner.answer_late(self, message_id, text)
            return
        # nsqd closes the connection after any other error.
        kind = AuthError if data.startswith(_AUTH_ERRORS) else ConnectError
        self._error = kind(f"{self.nsqd}: {text}")
        if self._connection is not None:
            self._connection.abort(text)
