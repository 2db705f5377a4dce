"""The registration database against the spec's table and, in any order, against a naive model."""

import tracemalloc

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lookupd.registry import Counts, Peer, Registry
from nsqd.protocol.lookup import NsqdIdentity

INACTIVE_S = 300.0
LIFETIME_S = 45.0


def make_registry() -> Registry:
    return Registry(inactive_producer_timeout_s=INACTIVE_S, tombstone_lifetime_s=LIFETIME_S)


def add_peer(registry: Registry, name: str = "a", now: float = 0.0) -> Peer:
    identity = NsqdIdentity(f"{name}.example", 4150, 4151, "1.3.0")
    return registry.add_peer(f"127.0.0.1:{name}", identity, now=now)


def keys(registry: Registry) -> list[tuple[str, str, str]]:
    return [(r.category, r.key, r.subkey) for r in registry.registrations(now=0.0)]


def test_register_of_a_channel_registers_its_topic_too() -> None:  # L-9
    registry = make_registry()
    peer = add_peer(registry)

    registry.register(peer, "t", "c")
    registry.register(peer, "t", "c")

    assert registry.topic_names() == ["t"]
    assert registry.channel_names("t") == ["c"]
    assert registry.find_producers("t", now=0.0) == [peer]
    assert keys(registry) == [("client", "", ""), ("topic", "t", ""), ("channel", "t", "c")]


def test_unregister_of_a_channel_keeps_its_name_and_topic() -> None:  # L-10
    registry = make_registry()
    peer = add_peer(registry)
    registry.register(peer, "t", "c")

    registry.unregister(peer, "t", "c")

    assert registry.channel_names("t") == ["c"]
    assert registry.find_producers("t", now=0.0) == [peer]


def test_an_ephemeral_channel_goes_with_its_last_producer() -> None:  # L-10
    registry = make_registry()
    first, second = add_peer(registry, "a"), add_peer(registry, "b")
    registry.register(first, "t", "c#ephemeral")
    registry.register(second, "t", "c#ephemeral")

    registry.unregister(first, "t", "c#ephemeral")
    assert registry.channel_names("t") == ["c#ephemeral"]

    registry.remove_peer(second)
    assert registry.channel_names("t") == []
    assert registry.topic_names() == ["t"]


def test_unregister_of_a_topic_takes_ephemeral_channels_along() -> None:
    registry = make_registry()
    peer = add_peer(registry)
    registry.register(peer, "t", "c#ephemeral")
    registry.register(peer, "t", "d")

    registry.unregister(peer, "t")

    assert registry.channel_names("t") == ["d"]


def test_an_ephemeral_topic_goes_with_its_last_producer_and_its_channels() -> None:
    registry = make_registry()
    peer = add_peer(registry)
    registry.register(peer, "t#ephemeral", "c")

    registry.remove_peer(peer)

    assert registry.topic_names() == []
    registry.create_topic("t#ephemeral")
    assert registry.channel_names("t#ephemeral") == []


def test_an_ephemeral_name_without_producers_stays_until_one_has_left() -> None:
    registry = make_registry()
    peer = add_peer(registry)
    registry.create_channel("t#ephemeral", "c#ephemeral")

    registry.unregister(peer, "t#ephemeral", "c#ephemeral")
    registry.unregister(peer, "t#ephemeral")

    assert registry.channel_names("t#ephemeral") == ["c#ephemeral"]


def test_unregister_of_a_topic_leaves_all_its_channels() -> None:  # L-11
    registry = make_registry()
    peer, other = add_peer(registry, "a"), add_peer(registry, "b")
    for channel in ("c", "d"):
        registry.register(peer, "t", channel)
        registry.register(other, "t", channel)

    registry.unregister(peer, "t")

    assert registry.find_producers("t", now=0.0) == [other]
    found = {(r.category, r.subkey): r.producers for r in registry.registrations(now=0.0)}
    assert found["channel", "c"] == found["channel", "d"] == [other]


def test_unregister_of_the_unknown_changes_nothing() -> None:  # L-12
    registry = make_registry()
    peer = add_peer(registry)
    registry.create_channel("t", "c")

    registry.unregister(peer, "nope")
    registry.unregister(peer, "nope", "c")
    registry.unregister(peer, "t", "nope")
    registry.unregister(peer, "t", "c")
    registry.unregister(peer, "t")

    assert registry.channel_names("t") == ["c"]


def test_a_peer_that_left_is_gone_everywhere_while_names_stay() -> None:  # L-13
    registry = make_registry()
    peer = add_peer(registry)
    registry.register(peer, "t", "c")

    registry.remove_peer(peer)

    assert registry.find_producers("t", now=0.0) == []
    assert registry.channel_names("t") == ["c"]
    assert not list(registry.nodes(now=0.0))
    assert keys(registry) == []


def test_a_silent_producer_hides_until_it_pings() -> None:  # L-17
    registry = make_registry()
    peer = add_peer(registry)
    registry.register(peer, "t")

    assert registry.find_producers("t", now=INACTIVE_S) == [peer]
    assert registry.find_producers("t", now=INACTIVE_S + 0.1) == []
    assert not list(registry.nodes(now=INACTIVE_S + 0.1))

    registry.touch(peer, now=INACTIVE_S + 1)
    assert registry.find_producers("t", now=INACTIVE_S + 1) == [peer]


def test_a_registration_is_no_sign_of_life() -> None:
    registry = make_registry()
    peer = add_peer(registry)

    registry.register(peer, "t")

    assert registry.find_producers("t", now=INACTIVE_S + 1) == []


def test_a_tombstone_hides_one_topic_for_its_lifetime() -> None:  # L-18, L-23
    registry = make_registry()
    peer = add_peer(registry)
    registry.register(peer, "t")
    registry.register(peer, "u")

    registry.tombstone("t", "a.example:4151", now=1.0)

    assert registry.find_producers("t", now=1.0) == []
    assert registry.find_producers("u", now=1.0) == [peer]
    [node] = registry.nodes(now=1.0)
    assert (node.topics, node.tombstones) == (["t", "u"], [True, False])
    assert registry.find_producers("t", now=LIFETIME_S + 0.9) == []
    assert registry.find_producers("t", now=LIFETIME_S + 1.0) == [peer]
    [node] = registry.nodes(now=LIFETIME_S + 1.0)
    assert node.tombstones == [False, False]


def test_register_does_not_lift_a_tombstone_but_unregister_does() -> None:  # L-19
    registry = make_registry()
    peer = add_peer(registry)
    registry.register(peer, "t")
    registry.tombstone("t", "a.example:4151", now=0.0)

    registry.register(peer, "t")
    assert registry.find_producers("t", now=0.0) == []

    registry.unregister(peer, "t")
    registry.register(peer, "t")
    assert registry.find_producers("t", now=0.0) == [peer]


def test_a_tombstone_of_an_unknown_node_or_topic_changes_nothing() -> None:  # L-20
    registry = make_registry()
    peer = add_peer(registry)
    registry.register(peer, "t")

    registry.tombstone("t", "a.example:4150", now=0.0)
    registry.tombstone("nope", "a.example:4151", now=0.0)

    assert registry.find_producers("t", now=0.0) == [peer]


def test_a_star_is_a_name_like_any_other() -> None:  # L-25
    registry = make_registry()
    peer = add_peer(registry)
    registry.register(peer, "t", "c")

    registry.delete_topic("*")
    registry.tombstone("*", "a.example:4151", now=0.0)

    assert registry.find_producers("*", now=0.0) is None
    assert registry.channel_names("*") == []
    assert not registry.delete_channel("t", "*")
    assert registry.find_producers("t", now=0.0) == [peer]


def test_a_deleted_topic_stays_hidden_until_it_is_registered_again() -> None:
    registry = make_registry()
    peer = add_peer(registry)
    registry.register(peer, "t", "c")
    registry.tombstone("t", "a.example:4151", now=0.0)

    registry.delete_topic("t")
    assert registry.find_producers("t", now=0.0) is None

    registry.register(peer, "t")
    assert registry.find_producers("t", now=0.0) == [peer]
    assert registry.channel_names("t") == []


def test_a_created_topic_has_no_producers() -> None:  # L-16, L-22
    registry = make_registry()

    registry.create_topic("t")
    registry.create_channel("u", "c")

    assert registry.find_producers("t", now=0.0) == []
    assert registry.find_producers("u", now=0.0) == []
    assert registry.delete_channel("u", "c")
    assert not registry.delete_channel("u", "c")
    assert not registry.delete_channel("nope", "c")


def test_a_hundred_thousand_producers_fit_in_memory() -> None:
    topics = [f"topic_{i}" for i in range(1000)]
    channels = [f"channel_{i}" for i in range(5)]
    tracemalloc.start()
    try:
        registry = make_registry()
        for i in range(20):
            peer = add_peer(registry, str(i))
            for topic in topics:
                for channel in channels:
                    registry.register(peer, topic, channel)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert registry.count(now=0.0) == Counts(20, 20, 1000, 5000, 20_000, 100_000, 0)
    assert size < 100 * 1024 * 1024


class RegistryMachine(RuleBasedStateMachine):
    """The real registry beside flat sets of tuples that are scanned for every answer."""

    topics = st.sampled_from(["t", "u#ephemeral"])
    channels = st.sampled_from(["c", "d#ephemeral"])
    index = st.integers(0, 2)

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.registry = make_registry()
        self.peers: dict[int, Peer] = {}
        self.seen: dict[int, float] = {}
        self.keys: set[tuple[str, str]] = set()  # (topic, channel or "")
        self.entries: set[tuple[str, str, int]] = set()
        self.marks: dict[tuple[str, int], float] = {}

    @initialize()
    def populate(self) -> None:
        for i in range(3):
            self.connect_or_ping(i)
            for topic, channel in (("t", "c"), ("u#ephemeral", "d#ephemeral")):
                self.register(i, topic, channel)

    @rule(seconds=st.sampled_from([1.0, 44.0, 45.0, 299.0, 300.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(i=index)
    def connect_or_ping(self, i: int) -> None:
        if i in self.peers:
            self.registry.touch(self.peers[i], now=self.now)
        else:
            self.peers[i] = add_peer(self.registry, str(i % 2), self.now)
        self.seen[i] = self.now

    @rule(i=index)
    def disconnect(self, i: int) -> None:
        if i in self.peers:
            self.registry.remove_peer(self.peers.pop(i))
            self._drop({entry for entry in self.entries if entry[2] == i})

    @rule(i=index, topic=topics, channel=st.none() | channels)
    def register(self, i: int, topic: str, channel: str | None) -> None:
        if i in self.peers:
            self.registry.register(self.peers[i], topic, channel)
            self.keys |= {(topic, ""), (topic, channel or "")}
            self.entries |= {(topic, "", i), (topic, channel or "", i)}

    @rule(i=index, topic=topics, channel=st.none() | channels)
    def unregister(self, i: int, topic: str, channel: str | None) -> None:
        if i in self.peers:
            self.registry.unregister(self.peers[i], topic, channel)
            self._drop(
                {e for e in self.entries if e[::2] == (topic, i) and channel in (None, e[1])}
            )

    @rule(topic=topics, channel=st.none() | channels)
    def create(self, topic: str, channel: str | None) -> None:
        if channel is None:
            self.registry.create_topic(topic)
        else:
            self.registry.create_channel(topic, channel)
        self.keys |= {(topic, ""), (topic, channel or "")}

    @rule(topic=topics)
    def delete_topic(self, topic: str) -> None:
        self.registry.delete_topic(topic)
        self.entries = {e for e in self.entries if e[0] != topic}
        self.keys = {key for key in self.keys if key[0] != topic}
        self.marks = {mark: at for mark, at in self.marks.items() if mark[0] != topic}

    @rule(topic=topics, channel=channels)
    def delete_channel(self, topic: str, channel: str) -> None:
        assert self.registry.delete_channel(topic, channel) is ((topic, channel) in self.keys)
        self.entries = {e for e in self.entries if e[:2] != (topic, channel)}
        self.keys.discard((topic, channel))

    @rule(topic=topics, node=st.integers(0, 1))
    def tombstone(self, topic: str, node: int) -> None:
        self.registry.tombstone(topic, f"{node}.example:4151", now=self.now)
        for i in self.peers:
            if i % 2 == node and (topic, "", i) in self.entries:
                self.marks[topic, i] = self.now

    def _drop(self, gone: set[tuple[str, str, int]]) -> None:
        self.entries -= gone
        for topic, channel, i in gone:
            if not channel:
                self.marks.pop((topic, i), None)
            still_used = any(e[:2] == (topic, channel) for e in self.entries)
            if (channel or topic).endswith("#ephemeral") and not still_used:
                self.keys.discard((topic, channel))
                if not channel:
                    self.keys = {key for key in self.keys if key[0] != topic}

    def _is_marked(self, topic: str, i: int) -> bool:
        return (topic, i) in self.marks and self.now - self.marks[topic, i] < LIFETIME_S

    def _is_active(self, i: int) -> bool:
        return self.now - self.seen[i] <= INACTIVE_S

    @invariant()
    def answers_agree(self) -> None:
        names = {topic for topic, channel in self.keys if not channel}
        assert set(self.registry.topic_names()) == names
        for topic in ("t", "u#ephemeral"):
            expected = {c for t, c in self.keys if t == topic and c}
            assert set(self.registry.channel_names(topic)) == expected
            found = self.registry.find_producers(topic, now=self.now)
            assert (found is not None) is (topic in names)
            assert set(found or ()) == {
                self.peers[i]
                for t, c, i in self.entries
                if (t, c) == (topic, "") and self._is_active(i) and not self._is_marked(t, i)
            }

    @invariant()
    def nodes_agree(self) -> None:
        nodes = {node.peer: node for node in self.registry.nodes(now=self.now)}
        assert set(nodes) == {peer for i, peer in self.peers.items() if self._is_active(i)}
        for i, peer in self.peers.items():
            if peer in nodes:
                shown = zip(nodes[peer].topics, nodes[peer].tombstones, strict=True)
                expected = {
                    t: self._is_marked(t, i) for t, c, j in self.entries if (c, j) == ("", i)
                }
                assert dict(shown) == expected

    @invariant()
    def registrations_agree(self) -> None:
        found = {
            (r.key, r.subkey, peer)
            for r in self.registry.registrations(now=self.now)
            if r.category != "client"
            for peer in r.producers
        }
        assert found == {(t, c, self.peers[i]) for t, c, i in self.entries}
        counts = self.registry.count(now=self.now)
        assert counts.topic_producers + counts.channel_producers == len(self.entries)
        assert counts.topics + counts.channels == len(self.keys)
        assert counts.peers == len(self.peers)
        assert counts.tombstones == sum(self._is_marked(*mark) for mark in self.marks)


RegistryMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestRegistryAgainstModel = RegistryMachine.TestCase
