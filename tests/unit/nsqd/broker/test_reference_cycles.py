"""The daemon runs without the cyclic garbage collector: objects go with their last reference."""

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqd.broker.broker import Broker, BrokerSettings
from nsqd.broker.channel import Channel, ChannelSettings
from nsqd.broker.consumer import Consumer
from nsqd.broker.limits.overrides import LimitOverrides
from nsqd.broker.queue.ids import MessageIdFactory
from nsqd.broker.topic import Topic
from nsqd.config.limits import NO_LIMITS, Limits
from tests.support.channel_rig import ChannelRig, disk_settings
from tests.support.fake_scheduler import FakeScheduler
from tests.support.recording_sink import RecordingSink


class TrackedConsumer(Consumer):
    """A consumer that a test can tell to be gone."""

    __slots__ = ("__weakref__",)


class Connection(RecordingSink):
    """A sink that knows its consumer and channel, as a real connection does."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self.channel = channel
        self.consumer = TrackedConsumer(self, msg_timeout_s=60)
        channel.subscribe(self.consumer)

    def ready(self, count: int) -> None:
        self.channel.set_ready(self.consumer, count)

    def finish_all(self) -> None:
        ids = [delivery.message_id for delivery in self.take()]
        assert self.channel.finish(self.consumer, ids) == []

    def leave(self) -> None:
        self.consumer.is_writable = False
        self.channel.unsubscribe(self.consumer)


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


LIMITS = Limits(max_depth=5, msg_ttl_s=60, max_attempts=1, dead_letter_topic_suffix=".dead")


def make_broker(data_path: Path, limits: Limits = NO_LIMITS) -> tuple[Broker, FakeScheduler]:
    scheduler = FakeScheduler()
    settings = BrokerSettings(
        mem_queue_size=10,
        disk=disk_settings(data_path),
        channel=ChannelSettings(max_msg_timeout_s=900, max_consumers=0),
        limits=limits,
    )
    return Broker(settings, scheduler, MessageIdFactory(1)), scheduler


def test_a_consumer_that_has_answered_everything_is_gone_when_it_leaves() -> None:
    rig = ChannelRig()
    connection = Connection(rig.channel)
    connection.ready(10)
    rig.put(b"a", b"b")
    connection.finish_all()
    reference = weakref.ref(connection)
    consumer = weakref.ref(connection.consumer)

    connection.leave()
    rig.settle()
    del connection

    assert reference() is None
    assert consumer() is None


def test_a_consumer_of_an_idle_channel_is_gone_when_it_leaves() -> None:
    rig = ChannelRig()
    connection = Connection(rig.channel)
    connection.ready(10)
    rig.settle()
    reference = weakref.ref(connection)

    connection.leave()
    del connection

    assert reference() is None


def test_a_consumer_that_lingered_is_gone_soon_after_it_leaves() -> None:
    rig = ChannelRig()
    connection = Connection(rig.channel)
    connection.ready(100)
    rig.put(*[b"x"] * 200)
    assert rig.channel.finish(connection.consumer, [connection.ids[0]]) == []
    reference = weakref.ref(connection)

    connection.leave()
    rig.advance(0.001)
    del connection

    assert reference() is None


def test_what_a_departed_consumer_holds_does_not_hold_its_connection() -> None:
    rig = ChannelRig()
    connection = Connection(rig.channel)
    connection.ready(10)
    rig.put(b"a")
    reference = weakref.ref(connection)
    consumer = weakref.ref(connection.consumer)

    connection.leave()
    rig.settle()
    del connection
    assert reference() is None
    assert rig.channel.consumers.in_flight_count == 1

    rig.advance(60)
    assert rig.channel.consumers.in_flight_count == 0
    assert consumer() is None


def test_the_consumers_of_a_deleted_channel_are_gone() -> None:
    rig = ChannelRig()
    connections = [Connection(rig.channel) for _ in range(3)]
    for connection in connections:
        connection.ready(1)
    rig.put(b"a", b"b")
    references = [weakref.ref(connection) for connection in connections]
    channel = weakref.ref(rig.channel)

    rig.channel.delete()
    for connection in connections:
        connection.leave()
    rig.advance(1)
    del connection, connections, rig

    assert [reference() for reference in references] == [None] * 3
    assert channel() is None


def test_deleted_topics_and_channels_are_gone(tmp_path: Path) -> None:
    broker, scheduler = make_broker(tmp_path)
    topic = broker.ensure_topic("t")
    channel = topic.ensure_channel("c")
    topic.publish([b"a"] * 20)
    topic.publish([b"later"], delay_s=5)
    connection = Connection(channel)
    connection.ready(2)
    scheduler.settle()
    references: list[weakref.ref[Topic] | weakref.ref[Channel] | weakref.ref[Connection]] = [
        weakref.ref(topic),
        weakref.ref(channel),
        weakref.ref(connection),
    ]

    broker.delete_topic("t")
    connection.leave()
    scheduler.advance(10)
    del topic, channel, connection

    assert [reference() for reference in references] == [None] * 3


@pytest.mark.parametrize("limits", [NO_LIMITS, LIMITS])
def test_ephemeral_channels_that_come_and_go_leave_nothing(tmp_path: Path, limits: Limits) -> None:
    broker, scheduler = make_broker(tmp_path, limits)
    topic = broker.ensure_topic("t")
    references = []
    for _ in range(5):
        channel = topic.ensure_channel("tail#ephemeral")
        connection = Connection(channel)
        connection.ready(5)
        topic.publish([b"a", b"b"])
        scheduler.settle()
        connection.finish_all()
        references.append(weakref.ref(channel))
        connection.leave()
        scheduler.settle()
        del channel, connection

    assert [reference() for reference in references] == [None] * 5


def test_topics_with_limits_that_come_and_go_leave_nothing(tmp_path: Path) -> None:
    broker, scheduler = make_broker(tmp_path, LIMITS)
    references = []
    for number in range(5):
        topic = broker.ensure_topic(f"t{number}")
        connection = Connection(topic.ensure_channel("c"))
        connection.ready(5)
        topic.publish([b"a", b"b"])
        scheduler.settle()
        connection.finish_all()
        broker.limits.set(topic, LimitOverrides(max_depth=number))
        references.append(weakref.ref(topic))
        broker.delete_topic(topic.name)
        connection.leave()
        scheduler.advance(61)
        del topic, connection

    assert [reference() for reference in references] == [None] * 5
    assert gc.collect() == 0
    assert scheduler.pending_timers == []


def test_many_connections_leave_no_garbage_at_all(tmp_path: Path) -> None:
    broker, scheduler = make_broker(tmp_path)
    topic = broker.ensure_topic("t")
    channel = topic.ensure_channel("c")

    def connect_and_go(number: int) -> None:
        connection = Connection(channel)
        connection.ready(50)
        topic.publish([b"%d" % number] * 30)  # more than memory takes: some go through the disk
        scheduler.settle()
        connection.finish_all()
        topic.publish([b"next"] * 5)
        scheduler.settle()
        channel.requeue(connection.consumer, connection.ids[:1], 0.0)
        channel.requeue(connection.consumer, connection.ids[1:2], 1.0)
        channel.touch(connection.consumer, connection.ids[2])
        connection.leave()
        scheduler.advance(100)
        channel.empty()

    connect_and_go(0)
    gc.collect()
    for number in range(50):
        connect_and_go(number)

    assert gc.collect() == 0
    scheduler.advance(10)
    assert scheduler.pending_timers == []
