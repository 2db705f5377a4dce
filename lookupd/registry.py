"""Registry: the producers of each topic and channel, nsqlookupd's database, in memory only.

The registry owns peers, topics and channels; the two doors (TCP and HTTP) only ask it. It is pure:
it reads no clock, `now` is seconds of any clock that does not step. Entries are linked both ways,

    _Topic.producers --> Peer        _Channel.producers --> Peer
    Peer.topics --> _Topic           Peer.channels --> _Channel

so a lookup costs the producers of its topic and a disconnect the registrations of its peer, however
many there are in all. Two invariants keep that simple: a channel exists only within its topic, and
a producer of a channel is a producer of its topic.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from nsqd.protocol.lookup import NsqdIdentity
from nsqd.protocol.names import is_ephemeral


class Peer:
    """One identified connection of an nsqd."""

    __slots__ = ("channels", "identity", "last_update", "remote_address", "topics")

    def __init__(self, remote_address: str, identity: NsqdIdentity, *, now: float) -> None:
        self.remote_address = remote_address
        self.identity = identity
        self.last_update = now
        # The registry's books: it alone changes them. A dictionary without values is a set that
        # keeps its order, so that answers do not shuffle.
        self.topics: dict[_Topic, None] = {}
        self.channels: dict[_Channel, None] = {}

    @property
    def node(self) -> str:
        """The address by which operators and nsqadmin name this nsqd."""
        return f"{self.identity.broadcast_address}:{self.identity.http_port}"


class _Channel:
    __slots__ = ("is_ephemeral", "name", "producers", "topic")

    def __init__(self, name: str, topic: "_Topic") -> None:
        self.name = name
        self.topic = topic
        self.is_ephemeral = is_ephemeral(name)
        self.producers: dict[Peer, None] = {}


class _Topic:
    __slots__ = ("channels", "is_ephemeral", "name", "producers", "tombstones")

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_ephemeral = is_ephemeral(name)
        self.producers: dict[Peer, None] = {}
        self.channels: dict[str, _Channel] = {}
        # When a producer was tombstoned; most topics have none.
        self.tombstones: dict[Peer, float] = {}


@dataclass(frozen=True, slots=True)
class ActivePeer:
    """A peer that is not silent: its topics and, index by index, whether each is tombstoned."""

    peer: Peer
    topics: list[str]
    tombstones: list[bool]


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of the database with its producers, of which there is at least one."""

    category: str
    key: str
    subkey: str
    producers: list[Peer]
    # The producers that are tombstoned under this key, with the time of it.
    tombstones: dict[Peer, float]


@dataclass(frozen=True, slots=True)
class Counts:
    """The size of the database."""

    peers: int
    active_peers: int
    topics: int
    channels: int
    topic_producers: int
    channel_producers: int
    tombstones: int


class Registry:
    """The database: every question and every change is one call that runs to completion."""

    def __init__(
        self, *, inactive_producer_timeout_s: float = 300.0, tombstone_lifetime_s: float = 45.0
    ) -> None:
        self._inactive_producer_timeout_s = inactive_producer_timeout_s
        self._tombstone_lifetime_s = tombstone_lifetime_s
        self._peers: dict[Peer, None] = {}
        self._topics: dict[str, _Topic] = {}

    # Changes by peers.

    def add_peer(self, remote_address: str, identity: NsqdIdentity, *, now: float) -> Peer:
        """Add a peer that has identified itself."""
        peer = Peer(remote_address, identity, now=now)
        self._peers[peer] = None
        return peer

    def touch(self, peer: Peer, *, now: float) -> None:
        """Note a sign of life."""
        peer.last_update = now

    def register(self, peer: Peer, topic_name: str, channel_name: str | None = None) -> None:
        """Make the peer a producer of the topic, and of the channel if one is named.

        A peer that is one already stays as it is: a tombstone is not lifted.
        """
        assert peer in self._peers, "registration of a peer that has left"
        topic = self._ensure_topic(topic_name)
        topic.producers[peer] = None
        peer.topics[topic] = None
        if channel_name is not None:
            channel = self._ensure_channel(topic, channel_name)
            channel.producers[peer] = None
            peer.channels[channel] = None

    def unregister(self, peer: Peer, topic_name: str, channel_name: str | None = None) -> None:
        """Remove the peer from the channel, or from the topic and all its channels."""
        topic = self._topics.get(topic_name)
        if topic is None:
            return
        if channel_name is not None:
            channel = topic.channels.get(channel_name)
            if channel is not None and peer in channel.producers:
                self._leave_channel(peer, channel)
            return
        if peer not in topic.producers:
            return
        for channel in [c for c in topic.channels.values() if peer in c.producers]:
            self._leave_channel(peer, channel)
        self._leave_topic(peer, topic)

    def remove_peer(self, peer: Peer) -> None:
        """Forget a peer whose connection is gone. Names stay, except ephemeral ones left empty."""
        # Channels first, so that a channel's producers are the topic's at every step.
        for channel in list(peer.channels):
            self._leave_channel(peer, channel)
        for topic in list(peer.topics):
            self._leave_topic(peer, topic)
        del self._peers[peer]

    # Changes by operators.

    def create_topic(self, topic_name: str) -> None:
        """Make the topic known, with or without producers."""
        self._ensure_topic(topic_name)

    def create_channel(self, topic_name: str, channel_name: str) -> None:
        """Make the channel and its topic known, with or without producers."""
        self._ensure_channel(self._ensure_topic(topic_name), channel_name)

    def delete_topic(self, topic_name: str) -> None:
        """Forget the topic, its channels and all their producers, if it is known."""
        topic = self._topics.pop(topic_name, None)
        if topic is None:
            return
        for channel in topic.channels.values():
            for peer in channel.producers:
                del peer.channels[channel]
        for peer in topic.producers:
            del peer.topics[topic]

    def delete_channel(self, topic_name: str, channel_name: str) -> bool:
        """Forget the channel and its producers; say whether it was known."""
        topic = self._topics.get(topic_name)
        channel = topic.channels.pop(channel_name, None) if topic is not None else None
        if channel is None:
            return False
        for peer in channel.producers:
            del peer.channels[channel]
        return True

    def tombstone(self, topic_name: str, node: str, *, now: float) -> None:
        """Hide the producers of the topic at this ``broadcast_address:http_port`` for a while."""
        topic = self._topics.get(topic_name)
        if topic is not None:
            topic.tombstones.update((peer, now) for peer in topic.producers if peer.node == node)

    # Questions.

    def topic_names(self) -> list[str]:
        """List the known topics."""
        return list(self._topics)

    def channel_names(self, topic_name: str) -> list[str]:
        """List the known channels of the topic; none if it is unknown."""
        topic = self._topics.get(topic_name)
        return list(topic.channels) if topic is not None else []

    def find_producers(self, topic_name: str, *, now: float) -> list[Peer] | None:
        """List the topic's producers that are active and not tombstoned; None: unknown topic."""
        topic = self._topics.get(topic_name)
        if topic is None:
            return None
        active = [peer for peer in topic.producers if self._is_active(peer, now)]
        if not topic.tombstones:
            return active
        return [peer for peer in active if not self._is_tombstoned(topic, peer, now)]

    def nodes(self, *, now: float) -> Iterator[ActivePeer]:
        """Go through the active peers, tombstoned or not; each is read when it is asked for."""
        for peer in list(self._peers):
            if self._is_active(peer, now):
                yield ActivePeer(
                    peer,
                    [topic.name for topic in peer.topics],
                    # Most topics have no tombstone: a peer may have thousands of topics.
                    [
                        bool(topic.tombstones) and self._is_tombstoned(topic, peer, now)
                        for topic in peer.topics
                    ],
                )

    def registrations(self, *, now: float) -> Iterator[Entry]:
        """Go through all keys that have producers, silent ones included.

        A topic is read when it is asked for: the registry may change in between.
        """
        if self._peers:
            yield Entry("client", "", "", list(self._peers), {})
        for topic in list(self._topics.values()):
            if topic.producers:
                tombstones = {
                    peer: at
                    for peer, at in topic.tombstones.items()
                    if self._is_tombstoned(topic, peer, now)
                }
                yield Entry("topic", topic.name, "", list(topic.producers), tombstones)
            for channel in list(topic.channels.values()):
                if channel.producers:
                    producers = list(channel.producers)
                    yield Entry("channel", topic.name, channel.name, producers, {})

    def count(self, *, now: float) -> Counts:
        """Measure the database."""
        topics = self._topics.values()
        return Counts(
            peers=len(self._peers),
            active_peers=sum(self._is_active(peer, now) for peer in self._peers),
            topics=len(topics),
            channels=sum(len(topic.channels) for topic in topics),
            topic_producers=sum(len(peer.topics) for peer in self._peers),
            channel_producers=sum(len(peer.channels) for peer in self._peers),
            tombstones=sum(
                self._is_tombstoned(topic, peer, now)
                for topic in topics
                for peer in topic.tombstones
            ),
        )

    def _is_active(self, peer: Peer, now: float) -> bool:
        return now - peer.last_update <= self._inactive_producer_timeout_s

    def _is_tombstoned(self, topic: _Topic, peer: Peer, now: float) -> bool:
        at = topic.tombstones.get(peer)
        return at is not None and now - at < self._tombstone_lifetime_s

    def _ensure_topic(self, name: str) -> _Topic:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = _Topic(name)
        return topic

    def _ensure_channel(self, topic: _Topic, name: str) -> _Channel:
        channel = topic.channels.get(name)
        if channel is None:
            channel = topic.channels[name] = _Channel(name, topic)
        return channel

    def _leave_channel(self, peer: Peer, channel: _Channel) -> None:
        del channel.producers[peer]
        del peer.channels[channel]
        # The Go nsqlookupd cleans up on UNREGISTER only, so a crash leaves ephemeral names forever.
        if channel.is_ephemeral and not channel.producers:
            del channel.topic.channels[channel.name]

    def _leave_topic(self, peer: Peer, topic: _Topic) -> None:
        del topic.producers[peer]
        del peer.topics[topic]
        topic.tombstones.pop(peer, None)
        if topic.is_ephemeral and not topic.producers:
            # Its channels have no producers either, and go with it.
            del self._topics[topic.name]
