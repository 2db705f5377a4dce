"""Registration: keep the configured nsqlookupds told of the topics and channels of this nsqd.

It owns one `LookupPeer` per address and the tasks that run them. The broker reports changes to it
(`on_change`) and leaves the start of new topics to it (`start_topic`).
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nsqd.broker.channel import Channel
from nsqd.broker.topic import Topic
from nsqd.lookup.channel_query import ChannelQuery, PeerQuestions
from nsqd.lookup.peer import LookupPeer, PeerSettings, PeerStatus
from nsqd.lookup.topic_starter import TopicStarter

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupSettings:
    """The options that concern nsqlookupds, but for their addresses."""

    peer: PeerSettings
    query: ChannelQuery
    query_timeout_s: float  # how long a topic waits for an nsqlookupd that answers no question


@dataclass(frozen=True, slots=True)
class _Member:
    """A peer, the task that runs it, and the questions to it."""

    peer: LookupPeer
    task: asyncio.Task[None]
    questions: PeerQuestions


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
        # Runs the peers and the questions; None before `run` and after it.
        self._tasks: asyncio.TaskGroup | None = None
        self._starter = TopicStarter()
        self._is_withdrawn = False

    @property
    def peers(self) -> list[PeerStatus]:
        """The state of each nsqlookupd."""
        return [member.peer.status for member in self._members.values()]

    async def run(self) -> None:
        """Keep all nsqlookupds up to date until cancelled; then just close the connections."""
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
        """Leave all nsqlookupds for good; addresses that are set later are ignored."""
        self._is_withdrawn = True
        self.set_addresses(())

    def on_change(self, topic: Topic, channel: Channel | None) -> None:
        """Announce a topic (channel None) or channel that has come or gone."""
        channel_name = None if channel is None else channel.name
        if channel_name is not None:
            self._starter.note_channel(topic, channel_name)
        for member in self._members.values():
            member.peer.note(topic.name, channel_name)

    def start_topic(self, topic: Topic) -> None:
        """Start a new topic, at once or when its channels are known."""
        if self._tasks is None or not self._addresses:
            topic.start()
            return
        members = self._members.values()
        questions = [member.questions for member in members if member.peer.is_worth_asking]
        if questions:
            self._starter.begin(topic, questions, self._tasks)
            return
        logger.error(
            "no available nsqlookupd to query for channels to pre-create for topic %s", topic.name
        )
        topic.start()

    async def wait_for_topics(self) -> None:
        """Return when no topic is waiting to learn its channels, or soon in any case."""
        await self._starter.wait()

    def _can_register(self) -> bool:
        """Say whether nsqlookupd would take the registration; it refuses one without ports."""
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
        settings = self._settings
        peer = LookupPeer(address, settings.peer, self._topics)
        questions = PeerQuestions(peer, settings.query, settings.query_timeout_s)
        return _Member(peer, tasks.create_task(peer.run()), questions)
