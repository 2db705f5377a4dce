"""LookupPeer: one nsqlookupd, kept up to date until it is cancelled.

`run` connects, identifies, registers all topics, then sends changes and a PING now and then. When
the connection breaks it starts over: at once after a good one, then less and less often. The peer
owns its connection and the changes still to send; it only reads the broker's topics. Errors are
kept as text: a stored exception is a reference cycle, and the garbage collector is off.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from nsqd.broker.topic import Topic
from nsqd.lookup.changes import LookupChanges
from nsqd.lookup.conversation import Conversation
from nsqd.protocol.lookup import (
    MAGIC,
    LookupdIdentity,
    LookupReplyError,
    NsqdIdentity,
    decode_lookupd_identity,
    encode_identify,
    encode_ping,
)
from nsqd.runtime.listen import split_address

logger = logging.getLogger(__name__)

# Commands sent before their replies are awaited: a few round trips for thousands of registrations.
MAX_COMMANDS = 512
# Names that may wait for a slow nsqlookupd; with more, it is cheaper to register all topics anew.
MAX_CHANGES = 100_000
# Two attempts to connect are always at least this far apart.
MIN_ATTEMPT_INTERVAL_S = 0.1
FIRST_BACKOFF_S = 0.1
# One refused connection a second costs next to nothing, and an nsqlookupd that is back has this
# nsqd within a second.
MAX_BACKOFF_S = 1.0
# An nsqlookupd that was away is met by every nsqd of the cluster: each waits a moment, at random.
RETURN_DELAYS_S = (0.25, 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSettings:
    """The identity of this nsqd, and the time limits for every nsqlookupd."""

    identity: NsqdIdentity
    max_reply_bytes: int
    # Finds the token for nsqlookupds that ask for one, empty if there is none.
    find_token: Callable[[], bytes] = bytes
    # nsqd's fixed values.
    connect_timeout_s: float = 1.0
    reply_timeout_s: float = 1.0
    ping_interval_s: float = 15.0


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """The state of the connection to one nsqlookupd."""

    address: str
    is_connected: bool  # and identified
    connected_at_s: float | None  # wall clock
    last_error: str  # of the last connection or attempt that failed; "" if none has


class PeerState(Enum):
    """Whether a peer is connected; NEW before the first attempt is over."""

    NEW = auto()
    CONNECTED = auto()
    DISCONNECTED = auto()


class Backoff:
    """The waits after failures: none after a success, then each twice as long as the last."""

    def __init__(self) -> None:
        self._next_s = FIRST_BACKOFF_S

    def reset(self) -> None:
        """Note a success."""
        self._next_s = 0.0

    def next_delay_s(self) -> float:
        """Return the next wait, somewhat at random, so that the nsqds of a cluster spread out."""
        delay_s = self._next_s
        self._next_s = min(max(2 * delay_s, FIRST_BACKOFF_S), MAX_BACKOFF_S)
        return delay_s * random.uniform(0.5, 1.0)


class LookupPeer:
    """One nsqlookupd, and the changes that it has not been sent yet."""

    def __init__(self, address: str, settings: PeerSettings, topics: Mapping[str, Topic]) -> None:
        self.address = address
        self.state = PeerState.NEW
        # Its HTTP address, while it is connected and if it has named one.
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
        """The state of the connection."""
        return PeerStatus(
            self.address,
            self.state is PeerState.CONNECTED,
            self._connected_at_s,
            self._last_error,
        )

    @property
    def is_worth_asking(self) -> bool:
        """Whether it answers questions over HTTP, or may do so soon."""
        return self.http_address is not None or self.state is PeerState.NEW

    def note(self, topic: str, channel: str | None) -> None:
        """Announce a topic (channel None) or channel that has come or gone.

        Without a connection this only hurries the next attempt, which registers all topics.
        """
        if self.state is PeerState.CONNECTED:
            self._changes.note(topic, channel)
        self._wake.set()

    async def run(self) -> None:
        """Keep the nsqlookupd up to date until cancelled."""
        try:
            await self._run()
        finally:
            # Let go the topics that wait for a peer which is dropped during its first attempt.
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
            self._wake.clear()  # Set by the failure itself.
            latest = max(loop.time() + self._backoff.next_delay_s(), earliest)
            await self._rest(latest)
            if loop.time() < earliest:
                await asyncio.sleep(earliest - loop.time())

    async def _serve(self, host: str, port: int) -> None:
        """Connect, and send changes until an error ends the connection.

        Raises:
            OSError: the nsqlookupd can't be reached, does not answer in time, or has gone.
            LookupReplyError: its reply to IDENTIFY is unusable.
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

    async def _connect(self, host: str, port: int) -> Conversation:
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

    async def _identify(self, conversation: Conversation) -> None:
        settings = self._settings
        token = settings.find_token().decode()
        reply = await conversation.ask(MAGIC + encode_identify(settings.identity, token))
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

    async def _keep_up_to_date(self, conversation: Conversation) -> None:
        loop = asyncio.get_running_loop()
        ping_interval_s = self._settings.ping_interval_s
        ping_at = loop.time() + ping_interval_s
        while True:
            if loop.time() >= ping_at:
                # At a fixed pace also between changes: to nsqlookupd only PING is a sign of life.
                ping_at = loop.time() + ping_interval_s
                await conversation.tell([encode_ping()])
            elif commands := self._changes.pop_commands(MAX_COMMANDS):
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
        """Wait for a change or the end of the connection, at most until a time of the loop."""
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
        # Only the first of many equal failures: an nsqlookupd may be away for days.
        if text != self._logged_error:
            self._logged_error = text
            logger.error("LOOKUPD(%s): %s", self.address, text)
