"""LookupPeer: one nsqlookupd, kept up to date for as long as it is wanted.

`run` connects, identifies, registers everything, then sends what changes and a PING now and then.
When the connection breaks it starts over: at once after a good one, then less and less often. The
peer owns its connection and what is still to be said; it only reads the broker's topics. Errors are
kept as text, since an exception that is stored is a reference cycle that nobody would collect.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import cast

from nsqd.broker.topic import Topic
from nsqd.lookup.changes import LookupChanges
from nsqd.protocol.lookup import (
    MAGIC,
    LookupdIdentity,
    LookupReplyError,
    PeerIdentity,
    ReplyParser,
    check_ok,
    decode_lookupd_identity,
    encode_identify,
    encode_ping,
)
from nsqd.runtime.listen import split_address

logger = logging.getLogger(__name__)

# Commands sent before their replies are awaited: a few round trips for thousands of registrations.
MAX_COMMANDS = 512
# Names that may wait for a slow nsqlookupd; with more, it is cheaper to register everything anew.
MAX_CHANGES = 100_000
# Two attempts to connect are at least this far apart, whatever happens.
MIN_ATTEMPT_INTERVAL_S = 0.1
FIRST_BACKOFF_S = 0.1
# One refused connection a second costs nobody anything, and bounds how long one that is back goes
# without us.
MAX_BACKOFF_S = 1.0
# One that was away is met by every nsqd of the cluster: each gives it a moment, at random.
RETURN_DELAYS_S = (0.25, 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSettings:
    """What every nsqlookupd is told of this nsqd, and how long it may take."""

    identity: PeerIdentity
    max_reply_bytes: int
    # nsqd's fixed values.
    connect_timeout_s: float = 1.0
    reply_timeout_s: float = 1.0
    ping_interval_s: float = 15.0


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """How it stands with one nsqlookupd."""

    address: str
    is_connected: bool  # and identified
    connected_at_s: float | None  # wall clock
    last_error: str  # of the last connection or attempt that failed; "" if none has


class PeerState(Enum):
    """How far a peer has got."""

    NEW = auto()  # its first attempt is not over
    CONNECTED = auto()
    DISCONNECTED = auto()


class Backoff:
    """How long to wait after each failure: not at all after a success, then twice as long."""

    def __init__(self) -> None:
        self._next_s = FIRST_BACKOFF_S

    def reset(self) -> None:
        """Note that all went well."""
        self._next_s = 0.0

    def next_delay_s(self) -> float:
        """Return the next time to wait, somewhat at random, so that a cluster spreads out."""
        delay_s = self._next_s
        self._next_s = min(max(2 * delay_s, FIRST_BACKOFF_S), MAX_BACKOFF_S)
        return delay_s * random.uniform(0.5, 1.0)


class LookupPeer:
    """One nsqlookupd and what it knows of us."""

    def __init__(self, address: str, settings: PeerSettings, topics: Mapping[str, Topic]) -> None:
        self.address = address
        self.state = PeerState.NEW
        # Where it answers HTTP, while it is connected and if it said so.
        self.http_address: tuple[str, int] | None = None
        # Set once the first attempt to connect is over, well or not.
        self.has_tried = asyncio.Event()
        self._settings = settings
        self._changes = LookupChanges(topics)
        self._wake = asyncio.Event()
        self._backoff = Backoff()
        self._connected_at_s: float | None = None
        self._last_error = ""
        self._logged_error = ""
        self._was_away = False  # the last attempt did not even connect

    @property
    def status(self) -> PeerStatus:
        """How it stands."""
        return PeerStatus(
            self.address,
            self.state is PeerState.CONNECTED,
            self._connected_at_s,
            self._last_error,
        )

    def note(self, topic: str, channel: str | None) -> None:
        """Have it told of a topic (channel None) or channel that has come or gone.

        While it is not connected this only hurries the next attempt, which registers everything.
        """
        if self.state is PeerState.CONNECTED:
            self._changes.note(topic, channel)
        self._wake.set()

    async def run(self) -> None:
        """Keep it up to date until cancelled."""
        try:
            await self._run()
        finally:
            # Nobody shall wait for a peer that was dropped during its first attempt.
            self.has_tried.set()

    async def _run(self) -> None:
        host_port = split_address(self.address)
        if host_port is None or host_port[1] > 0xFFFF:
            self._fail("not host:port, never tried again")
            return
        # Go dials this machine if there is no host.
        host, port = host_port[0] or "localhost", host_port[1]
        loop = asyncio.get_running_loop()
        while True:
            earliest = loop.time() + MIN_ATTEMPT_INTERVAL_S
            try:
                await self._serve(host, port)
            except (OSError, LookupReplyError) as error:
                self._fail(str(error) or type(error).__name__)
            self._wake.clear()  # What woke us up to now is the failure itself.
            latest = max(loop.time() + self._backoff.next_delay_s(), earliest)
            await self._rest(latest)
            if loop.time() < earliest:
                await asyncio.sleep(earliest - loop.time())

    async def _serve(self, host: str, port: int) -> None:
        """Speak to it until something goes wrong.

        Raises:
            OSError: it can't be reached, does not answer in time, or has gone.
            LookupReplyError: it answered something else than it should.
        """
        logger.debug("LOOKUPD(%s): connecting", self.address)
        was_away, self._was_away = self._was_away, True
        conversation = await self._connect(host, port)
        self._was_away = False
        try:
            if was_away:
                await asyncio.sleep(random.uniform(*RETURN_DELAYS_S))
            await self._identify(conversation)
            await self._keep_up_to_date(conversation)
        finally:
            self.state = PeerState.DISCONNECTED
            self.http_address = None
            self._connected_at_s = None
            self._changes.clear()
            conversation.close()

    async def _connect(self, host: str, port: int) -> "Conversation":
        settings = self._settings
        loop = asyncio.get_running_loop()

        def make() -> Conversation:
            return Conversation(
                self._wake.set, settings.reply_timeout_s, max_reply_bytes=settings.max_reply_bytes
            )

        try:
            async with asyncio.timeout(settings.connect_timeout_s):
                _, conversation = await loop.create_connection(make, host, port)
        except TimeoutError:
            raise TimeoutError(f"no connection in {settings.connect_timeout_s:g} s") from None
        except UnicodeError as error:  # a name with a part of more than 63 characters
            raise OSError(str(error)) from error
        return conversation

    async def _identify(self, conversation: "Conversation") -> None:
        reply = await conversation.ask(MAGIC + encode_identify(self._settings.identity))
        self._introduce(decode_lookupd_identity(reply))
        self._changes.note_everything()

    def _introduce(self, identity: LookupdIdentity) -> None:
        self.state = PeerState.CONNECTED
        self._connected_at_s = time.time()
        self._last_error = self._logged_error = ""
        if identity.broadcast_address and 0 < identity.http_port < 0x10000:
            self.http_address = (identity.broadcast_address, identity.http_port)
        self.has_tried.set()
        logger.info(
            "LOOKUPD(%s): peer info address=%s tcp_port=%d http_port=%d version=%s",
            self.address,
            ascii(identity.broadcast_address)[1:-1],
            identity.tcp_port,
            identity.http_port,
            ascii(identity.version)[1:-1],
        )

    async def _keep_up_to_date(self, conversation: "Conversation") -> None:
        loop = asyncio.get_running_loop()
        ping_interval_s = self._settings.ping_interval_s
        ping_at = loop.time() + ping_interval_s
        while True:
            if loop.time() >= ping_at:
                # At a fixed pace, whatever else is sent: only PING tells that we are alive.
                ping_at = loop.time() + ping_interval_s
                await conversation.tell([encode_ping()])
            elif commands := self._changes.take(MAX_COMMANDS):
                await conversation.tell(commands)
                self._check_pace()
            else:
                self._backoff.reset()
                await self._rest(ping_at)
                conversation.check()

    def _check_pace(self) -> None:
        if len(self._changes) > MAX_CHANGES:
            raise TimeoutError(f"too slow, {len(self._changes)} changes wait")

    async def _rest(self, until: float) -> None:
        """Wait for news, at most until that time of the loop's clock."""
        timer = asyncio.get_running_loop().call_at(until, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()
        self._wake.clear()

    def _fail(self, text: str) -> None:
        self.state = PeerState.DISCONNECTED
        self._last_error = text
        self.has_tried.set()
        # Only the first of many equal failures: it may be away for days.
        if text != self._logged_error:
            self._logged_error = text
            logger.error("LOOKUPD(%s): %s", self.address, text)


class Conversation(asyncio.Protocol):
    """A connection on which commands go out, many at a time, and one reply comes for each.

    It is of no more use once something went wrong; `on_end` is called then, and whoever asks or
    checks is told why.
    """

    def __init__(
        self, on_end: Callable[[], object], reply_timeout_s: float, *, max_reply_bytes: int
    ) -> None:
        self._on_end = on_end
        self._reply_timeout_s = reply_timeout_s
        self._parser = ReplyParser(max_reply_bytes=max_reply_bytes)
        self._transport: asyncio.Transport | None = None
        self._end = ""  # why it is over
        # What is awaited: the number of replies, whether each must be OK, and the last one.
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
                self._take(reply)
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
            OSError: it did not come.
        """
        await self._exchange(command, 1, is_ok_due=False)
        return self._reply

    async def tell(self, commands: list[bytes]) -> None:
        """Send commands; return once all of them are answered with OK.

        Raises:
            OSError: they are not.
        """
        await self._exchange(b"".join(commands), len(commands), is_ok_due=True)

    def check(self) -> None:
        """See whether it is still of use.

        Raises:
            ConnectionError: it is not.
        """
        if self._end:
            raise ConnectionError(self._end)

    def close(self) -> None:
        """Close the connection, without a word."""
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

    def _take(self, reply: bytes) -> None:
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
        # Not close(): that would wait for what can't be written.
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
