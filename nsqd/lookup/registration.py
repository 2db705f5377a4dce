"""Registration: every configured nsqlookupd knows our topics and channels, and we know theirs.

It owns one `LookupPeer` per address and the tasks that run them. The broker tells it of changes
(`on_change`) and leaves new topics to it (`start_topic`): a topic starts when the nsqlookupds have
said which channels the cluster has for it, so that none misses its first message. The topic takes
messages all the while, and what an nsqlookupd does or does not do delays nothing else.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nsqd.broker.channel import Channel
from nsqd.broker.topic import Topic, TopicState
from nsqd.lookup.channel_query import ChannelQuery, ChannelQueryError, usable_channels
from nsqd.lookup.peer import LookupPeer, PeerSettings, PeerState, PeerStatus

logger = logging.getLogger(__name__)

# Questions under way to one nsqlookupd; further new topics wait their turn.
MAX_QUERIES_PER_PEER = 16
# How long somebody who looks at the channels may have to wait for a slow nsqlookupd.
TOPICS_PATIENCE_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupSettings:
    """The options that concern nsqlookupds, but for their addresses."""

    peer: PeerSettings
    query: ChannelQuery
    query_timeout_s: float  # how long a topic waits for an nsqlookupd that answers nobody


@dataclass(slots=True)
class _Member:
    """A peer, its task, and the line of those who want to ask it something."""

    peer: LookupPeer
    task: asyncio.Task[None]
    slots: asyncio.Semaphore
    last_answer_at: float  # loop clock


class Registration:
    """All nsqlookupds of this nsqd. `run` is to be cancelled, and awaited, at the end."""

    def __init__(
        self, addresses: Iterable[str], settings: LookupSettings, topics: Mapping[str, Topic]
    ) -> None:
        """Args: topics: the topics of the broker."""
        self._addresses = tuple(dict.fromkeys(addresses))
        self._settings = settings
        self._topics = topics
        self._members: dict[str, _Member] = {}
        # Of the peers and the questions; None when there can be none.
        self._tasks: asyncio.TaskGroup | None = None
        # The topics that wait to learn their channels, each with those it made or lost meanwhile.
        self._starting: dict[Topic, set[str]] = {}
        self._is_nothing_starting = asyncio.Event()
        self._is_withdrawn = False

    @property
    def peers(self) -> list[PeerStatus]:
        """How it stands with each nsqlookupd."""
        return [member.peer.status for member in self._members.values()]

    async def run(self) -> None:
        """Keep all nsqlookupds up to date until cancelled; connections are just closed then."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                self.set_addresses(self._addresses)
                await asyncio.get_running_loop().create_future()
        finally:
            self._tasks = None
            self._members.clear()

    def set_addresses(self, addresses: Iterable[str]) -> None:
        """Leave the nsqlookupds that are not among these, connect to the new ones."""
        self._addresses = () if self._is_withdrawn else tuple(dict.fromkeys(addresses))
        if self._tasks is None:
            return
        for address in self._members.keys() - set(self._addresses):
            logger.info("LOOKUPD(%s): removing peer", address)
            self._members.pop(address).task.cancel()
        if not self._can_register():
            return
        for address in self._addresses:
            if address not in self._members:
                logger.info("LOOKUPD(%s): adding peer", address)
                self._members[address] = self._add(self._tasks, address)

    def withdraw(self) -> None:
        """Leave all nsqlookupds for good, whatever addresses may still be set."""
        self._is_withdrawn = True
        self.set_addresses(())

    def on_change(self, topic: Topic, channel: Channel | None) -> None:
        """Announce a topic (channel None) or channel that has come or gone."""
        channel_name = None if channel is None else channel.name
        if topic in self._starting and channel_name is not None:
            # nsqlookupd has it from us, and must not bring it back if it is deleted.
            self._starting[topic].add(channel_name)
        for member in self._members.values():
            member.peer.note(topic.name, channel_name)

    def start_topic(self, topic: Topic) -> None:
        """Start a new topic, at once or when its channels are known."""
        if self._tasks is None or not self._addresses:
            topic.start()
        elif not any(_may_know(member.peer) for member in self._members.values()):
            _log_nobody_to_ask(topic)
            topic.start()
        else:
            self._starting[topic] = set()
            self._is_nothing_starting.clear()
            self._tasks.create_task(self._start_with_channels(topic))

    async def wait_for_topics(self) -> None:
        """Return when no topic is waiting to learn its channels, or soon in any case.

        For whoever looks at the channels right after a publish: nsqd answers that publish only when
        they are there, ours answers at once.
        """
        if self._starting:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TOPICS_PATIENCE_S):
                    await self._is_nothing_starting.wait()

    def _can_register(self) -> bool:
        """Whether nsqlookupd would take our registration; it refuses one without ports."""
        identity = self._settings.peer.identity
        if not self._addresses or (identity.tcp_port > 0 and identity.http_port > 0):
            return True
        logger.error(
            "LOOKUPD: not registering, as there is no %s port to announce:"
            " give --broadcast-tcp-port and --broadcast-http-port",
            "TCP" if identity.tcp_port <= 0 else "HTTP",
        )
        return False

    def _add(self, tasks: asyncio.TaskGroup, address: str) -> _Member:
        peer = LookupPeer(address, self._settings.peer, self._topics)
        slots = asyncio.Semaphore(MAX_QUERIES_PER_PEER)
        return _Member(peer, tasks.create_task(peer.run()), slots, -math.inf)

    async def _start_with_channels(self, topic: Topic) -> None:
        try:
            found = await self._find_channels(topic)
            # It may have been deleted meanwhile.
            if topic.state is TopicState.STARTING:
                self._make_channels(topic, found - self._starting[topic])
                topic.start()
        finally:
            del self._starting[topic]
            if not self._starting:
                self._is_nothing_starting.set()

    async def _find_channels(self, topic: Topic) -> set[str]:
        """Return what the nsqlookupds know in time, together."""
        found: set[str] = set()
        async with asyncio.TaskGroup() as tasks:
            for member in self._members.values():
                if _may_know(member.peer):
                    tasks.create_task(self._ask(member, topic.name, found))
        return found

    async def _ask(self, member: _Member, topic_name: str, found: set[str]) -> None:
        """Add what one nsqlookupd knows; why it is nothing is logged."""
        asked_at = asyncio.get_running_loop().time()
        peer = member.peer
        # A daemon that was just started is asked too soon: give it a chance to be known.
        await peer.has_tried.wait()
        try:
            await self._wait_for_turn(member, asked_at)
            try:
                if peer.http_address is None:
                    raise ChannelQueryError("not connected")
                async with asyncio.timeout_at(self._deadline(member, asked_at)):
                    found.update(await self._settings.query.fetch(peer.http_address, topic_name))
                member.last_answer_at = asyncio.get_running_loop().time()
            finally:
                member.slots.release()
        except (OSError, ChannelQueryError) as error:
            logger.error(  # noqa: TRY400 - no traceback
                "LOOKUPD(%s): failed to ask for channels of topic %s - %s",
                peer.address,
                topic_name,
                str(error) or "no answer in time",
            )

    async def _wait_for_turn(self, member: _Member, asked_at: float) -> None:
        """Stand in line for as long as it moves, however long it is.

        Raises:
            TimeoutError: nsqlookupd no longer answers those in front.
        """
        loop = asyncio.get_running_loop()
        while (deadline := self._deadline(member, asked_at)) > loop.time():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await member.slots.acquire()
                    return
        raise TimeoutError

    def _deadline(self, member: _Member, asked_at: float) -> float:
        return max(asked_at, member.last_answer_at) + self._settings.query_timeout_s

    def _make_channels(self, topic: Topic, found: set[str]) -> None:
        for name in usable_channels(found):
            try:
                topic.ensure_channel(name)
            except OSError as error:
                logger.error("TOPIC(%s): failed to create channel %s - %s", topic.name, name, error)  # noqa: TRY400 - no traceback


def _may_know(peer: LookupPeer) -> bool:
    """Whether it can be asked, or may be soon."""
    return peer.http_address is not None or peer.state is PeerState.NEW


def _log_nobody_to_ask(topic: Topic) -> None:
    logger.error(
        "no available nsqlookupd to query for channels to pre-create for topic %s", topic.name
    )
