"""LookupChanges: after any changes between two calls, nsqlookupd ends up with the true state."""

from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lookupd.registry import Registry
from nsqd.broker.topic import Topic
from nsqd.lookup.changes import LookupChanges
from nsqd.protocol.lookup import (
    MAGIC,
    CommandParser,
    Identify,
    NsqdIdentity,
    Register,
    Unregister,
    encode_identify,
)

IDENTITY = NsqdIdentity("here", 4150, 4151, "1.3.0")


class FakeTopic:
    """As much of a Topic as is looked at."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.channels: dict[str, None] = {}


class FakeBroker:
    """Topics that come and go, and each time say so after the fact, as the broker does."""

    def __init__(self) -> None:
        self.topics: dict[str, FakeTopic] = {}
        self.changes = LookupChanges(cast(dict[str, Topic], self.topics))

    def create(self, topic: str, *channels: str) -> None:
        if topic not in self.topics:
            self.topics[topic] = FakeTopic(topic)
            self.changes.note(topic, None)
        for channel in channels:
            if channel not in self.topics[topic].channels:
                self.topics[topic].channels[channel] = None
                self.changes.note(topic, channel)

    def delete(self, topic: str) -> None:
        gone = self.topics.pop(topic, None)
        if gone is not None:
            for channel in list(gone.channels):
                del gone.channels[channel]
                self.changes.note(topic, channel)
            self.changes.note(topic, None)

    def delete_channel(self, topic: str, channel: str) -> None:
        found = self.topics.get(topic)
        if found is not None and channel in found.channels:
            del found.channels[channel]
            self.changes.note(topic, channel)

    def pop_commands(self, max_commands: int = 1000) -> str:
        return b"".join(self.changes.pop_commands(max_commands)).decode()


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


def test_a_topic_without_channels_is_registered_by_name(broker: FakeBroker) -> None:  # N-1
    broker.create("t")

    assert broker.pop_commands() == "REGISTER t\n"


def test_channels_stand_for_their_topic(broker: FakeBroker) -> None:  # N-1
    broker.create("t", "a", "b#ephemeral")

    assert broker.pop_commands() == "REGISTER t a\nREGISTER t b#ephemeral\n"


def test_what_was_taken_is_not_said_again(broker: FakeBroker) -> None:
    broker.create("t")
    broker.pop_commands()

    assert len(broker.changes) == 0
    assert broker.pop_commands() == ""


def test_a_new_channel_is_registered_alone(broker: FakeBroker) -> None:  # N-3
    broker.create("t", "a")
    broker.pop_commands()

    broker.create("t", "b")

    assert broker.pop_commands() == "REGISTER t b\n"


def test_a_deleted_channel_is_unregistered(broker: FakeBroker) -> None:  # N-3
    broker.create("t", "a")
    broker.pop_commands()

    broker.delete_channel("t", "a")

    assert broker.pop_commands() == "UNREGISTER t a\n"


def test_a_deleted_topic_is_unregistered_after_its_channels(broker: FakeBroker) -> None:  # N-3
    broker.create("t", "a#ephemeral")
    broker.pop_commands()

    broker.delete("t")

    assert broker.pop_commands() == "UNREGISTER t a#ephemeral\nUNREGISTER t\n"


def test_a_channel_that_was_deleted_and_made_anew_stays_registered(broker: FakeBroker) -> None:
    broker.create("t", "a")
    broker.pop_commands()

    broker.delete_channel("t", "a")
    broker.create("t", "a")

    assert broker.pop_commands() == "REGISTER t a\n"


def test_a_topic_that_was_deleted_and_made_anew_is_registered_last(broker: FakeBroker) -> None:
    broker.create("t", "a")
    broker.pop_commands()

    broker.delete("t")
    broker.create("t", "b")

    commands = broker.pop_commands().splitlines()
    assert commands[-2:] == ["UNREGISTER t", "REGISTER t b"]


def test_a_topic_that_never_was_told_of_is_gone_without_harm(broker: FakeBroker) -> None:
    broker.create("t")
    broker.delete("t")

    assert broker.pop_commands() == "UNREGISTER t\n"


def test_everything_is_said_to_one_that_knows_nothing(broker: FakeBroker) -> None:  # N-4
    broker.create("t", "a", "b")
    broker.create("u")
    broker.pop_commands()
    broker.delete_channel("t", "b")

    broker.changes.note_everything()

    assert broker.pop_commands() == "REGISTER t a\nREGISTER u\n"


def test_no_more_topics_are_taken_than_asked_for(broker: FakeBroker) -> None:
    for number in range(10):
        broker.create(f"t{number}")

    assert broker.pop_commands(4).count("\n") == 4
    assert broker.pop_commands().count("\n") == 6


def test_a_topic_is_taken_whole(broker: FakeBroker) -> None:
    broker.create("t", "a", "b", "c")

    assert broker.pop_commands(1).count("\n") == 3


def test_churn_takes_no_more_room_than_its_names(broker: FakeBroker) -> None:
    for _ in range(100):
        broker.create("t", "a")
        broker.delete("t")

    assert len(broker.changes) == 2


class FakeLookupd:
    """The other end: nsqlookupd's own parser and database."""

    def __init__(self) -> None:
        self.registry = Registry()
        self._parser = CommandParser()
        [identify] = self._parser.feed(MAGIC + encode_identify(IDENTITY))
        assert isinstance(identify, Identify)
        self._peer = self.registry.add_peer("1.2.3.4:5", identify.identity, now=0.0)

    def feed(self, commands: list[bytes]) -> None:
        for command in self._parser.feed(b"".join(commands)):
            if isinstance(command, Register):
                self.registry.register(self._peer, command.topic, command.channel)
            else:
                assert isinstance(command, Unregister)
                self.registry.unregister(self._peer, command.topic, command.channel)

    @property
    def known(self) -> set[tuple[str, str]]:
        return {
            (entry.key, entry.subkey)
            for entry in self.registry.registrations(now=0.0)
            if entry.category != "client"
        }


TOPICS = st.sampled_from(["t", "u", "v#ephemeral"])
CHANNELS = st.sampled_from(["a", "b", "c#ephemeral"])
OPERATIONS = st.one_of(
    st.tuples(st.just("create"), TOPICS),
    st.tuples(st.just("create"), TOPICS, CHANNELS),
    st.tuples(st.just("delete"), TOPICS),
    st.tuples(st.just("delete_channel"), TOPICS, CHANNELS),
    st.tuples(st.just("send"), st.integers(1, 4)),
    st.tuples(st.just("tombstone"), TOPICS),
    st.tuples(st.just("reconnect")),
)


@settings(max_examples=300)
@given(st.lists(OPERATIONS, max_size=40))
def test_nsqlookupd_ends_up_with_what_there_is(operations: list[tuple[object, ...]]) -> None:
    broker = FakeBroker()
    lookupd = FakeLookupd()
    is_new_since_tombstone: dict[str, bool] = {}
    for name, *arguments in operations:
        match name:
            case "send":
                lookupd.feed(broker.changes.pop_commands(cast(int, arguments[0])))
            case "reconnect":
                lookupd = FakeLookupd()
                broker.changes.note_everything()
                is_new_since_tombstone.clear()
            case "tombstone":
                topic = cast(str, arguments[0])
                lookupd.registry.tombstone(topic, "here:4151", now=0.0)
                is_new_since_tombstone[topic] = topic not in broker.topics
            case _:
                topic = cast(str, arguments[0])
                if topic not in broker.topics:
                    is_new_since_tombstone[topic] = True
                getattr(broker, cast(str, name))(*arguments)

    lookupd.feed(broker.changes.pop_commands(1000))

    assert lookupd.known == {
        (topic.name, channel)
        for topic in broker.topics.values()
        for channel in ("", *topic.channels)
    }
    for name in broker.topics:
        if is_new_since_tombstone.get(name):
            # The tombstone was for the topic that has been deleted since.
            assert lookupd.registry.find_producers(name, now=0.0)
