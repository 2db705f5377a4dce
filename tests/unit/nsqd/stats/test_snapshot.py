"""Snapshots: right after any sequence of operations, and of one moment."""

import contextlib
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from nsqd.broker.broker import Broker, BrokerSettings
from nsqd.broker.channel import ChannelSettings
from nsqd.broker.errors import NotInFlightError
from nsqd.broker.queue.ids import MessageIdFactory
from nsqd.stats.snapshot import (
    ALL_TOPICS,
    DiskUse,
    LatencyStats,
    StatsQuery,
    TopicStats,
    is_unknown,
    name_losses,
    read_topic,
    read_topics,
)
from tests.support.channel_rig import MSG_TIMEOUT_S, Client, disk_settings
from tests.support.fake_scheduler import FakeScheduler
from tests.support.snapshots import make_losses


def make_broker(
    data_path: Path, scheduler: FakeScheduler, *, quantiles: tuple[float, ...] = ()
) -> Broker:
    broker_settings = BrokerSettings(
        mem_queue_size=5,
        disk=disk_settings(data_path),
        channel=ChannelSettings(
            max_msg_timeout_s=900.0, max_consumers=0, latency_quantiles=quantiles
        ),
    )
    return Broker(broker_settings, scheduler, MessageIdFactory(1))


def read(broker: Broker, name: str = "t#ephemeral") -> TopicStats:
    return read_topic(broker.topics[name], broker.now)


def test_channels_are_in_the_order_of_their_names(tmp_path: Path) -> None:
    broker = make_broker(tmp_path, FakeScheduler())
    topic = broker.ensure_topic("t#ephemeral")
    for name in ("b", "c", "a"):
        topic.ensure_channel(f"{name}#ephemeral")

    names = [channel.name for channel in read(broker).channels]

    assert names == ["a#ephemeral", "b#ephemeral", "c#ephemeral"]


def test_one_channel_can_be_asked_for(tmp_path: Path) -> None:
    broker = make_broker(tmp_path, FakeScheduler())
    topic = broker.ensure_topic("t#ephemeral")
    for name in ("a", "b"):
        topic.ensure_channel(f"{name}#ephemeral")

    [found] = read_topics(broker, StatsQuery(channel_name="b#ephemeral"))

    assert [channel.name for channel in found.channels] == ["b#ephemeral"]
    assert read_topic(topic, broker.now, channels=()).channels == ()


def test_topics_are_in_the_order_of_their_names(tmp_path: Path) -> None:
    broker = make_broker(tmp_path, FakeScheduler())
    for name in ("b", "c", "a"):
        broker.ensure_topic(name)

    assert [topic.name for topic in read_topics(broker, ALL_TOPICS)] == ["a", "b", "c"]


def test_a_query_chooses_one_topic_or_those_with_a_channel(tmp_path: Path) -> None:
    broker = make_broker(tmp_path, FakeScheduler())
    broker.ensure_topic("a").ensure_channel("x")
    broker.ensure_topic("b").ensure_channel("y")

    def names(query: StatsQuery) -> list[str]:
        return [topic.name for topic in read_topics(broker, query)]

    assert names(StatsQuery(topic_name="b")) == ["b"]
    assert names(StatsQuery(channel_name="x")) == ["a"]
    assert names(StatsQuery(topic_name="b", channel_name="x")) == []
    assert names(StatsQuery(topic_name="nope")) == []


def test_a_query_for_a_topic_that_does_not_exist_is_told_apart(tmp_path: Path) -> None:
    broker = make_broker(tmp_path, FakeScheduler())
    broker.ensure_topic("t")

    assert is_unknown(broker, StatsQuery(topic_name="nope"))
    assert not is_unknown(broker, StatsQuery(topic_name="t"))
    assert not is_unknown(broker, ALL_TOPICS)


def test_losses_that_are_zero_have_no_name() -> None:
    assert name_losses(make_losses()) == []
    assert name_losses(make_losses(depth=1, ttl=0, attempts=2, rejected=4, dead_lettered=3)) == [
        ("rejected_count", 4),
        ("dropped_depth_count", 1),
        ("dropped_attempts_count", 2),
        ("dead_lettered_count", 3),
    ]


def test_the_use_of_the_disk_is_read(tmp_path: Path) -> None:
    scheduler = FakeScheduler()
    broker = make_broker(tmp_path, scheduler)
    topic = broker.ensure_topic("t")
    topic.ensure_channel("c")
    topic.ensure_channel("c#ephemeral")
    topic.publish([b"x" * 74] * 8)
    scheduler.settle()

    stats = read_topic(topic, broker.now)

    assert [channel.disk for channel in stats.channels] == [DiskUse(3 * 104, 1), DiskUse(0, 0)]
    assert stats.disk.size_bytes == 0


def test_depth_tells_memory_from_disk(tmp_path: Path) -> None:
    scheduler = FakeScheduler()
    broker = make_broker(tmp_path, scheduler)
    broker.ensure_topic("t").publish([b"xy"] * 8)
    scheduler.settle()

    stats = read(broker, "t")

    assert (stats.depth, stats.backend_depth) == (8, 3)
    assert (stats.message_count, stats.message_bytes) == (8, 16)


def test_latencies_are_absent_unless_asked_for(tmp_path: Path) -> None:
    broker = make_broker(tmp_path, FakeScheduler())
    broker.ensure_topic("t#ephemeral").ensure_channel("c#ephemeral")

    stats = read(broker)

    assert stats.latency == stats.channels[0].latency == LatencyStats(0, None)


def test_a_topics_latencies_are_those_of_all_its_channels(tmp_path: Path) -> None:
    scheduler = FakeScheduler()
    broker = make_broker(tmp_path, scheduler, quantiles=(1.0, 0.5))
    topic = broker.ensure_topic("t#ephemeral")
    assert read(broker).latency == LatencyStats(0, None), "no channel, no latencies"
    clients = [Client(topic.ensure_channel(f"{name}#ephemeral")) for name in "ab"]
    topic.publish([b"x"])
    for seconds, client in zip((1.0, 2.0), clients, strict=True):
        client.ready(1)
        scheduler.advance(seconds)
        client.finish(client.take()[0].message_id)

    stats = read(broker)

    assert [channel.latency.count for channel in stats.channels] == [1, 1]
    assert stats.channels[0].latency.percentiles == ((1.0, 1e9), (0.5, 1e9))
    assert stats.channels[1].latency.percentiles == ((1.0, 3e9), (0.5, 3e9))
    assert stats.latency == LatencyStats(2, ((1.0, 3e9), (0.5, 1e9)))


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 6)),
        st.tuples(st.just("defer"), st.integers(1, 3)),
        st.tuples(st.just("ready"), st.integers(0, 8)),
        st.tuples(st.just("finish"), st.integers(1, 5)),
        st.tuples(st.just("requeue"), st.integers(0, 1)),
        st.tuples(st.just("wait"), st.sampled_from([1, 5, int(MSG_TIMEOUT_S)])),
        st.tuples(st.just("empty"), st.just(0)),
    ),
    max_size=40,
)


class Ledger:
    """One channel with one consumer, and the operations on it, counted on the outside."""

    def __init__(self) -> None:
        self.scheduler = FakeScheduler()
        self.broker = Broker(
            BrokerSettings(
                mem_queue_size=10_000,  # never full, so nothing is dropped
                disk=disk_settings(Path("unused")),
                channel=ChannelSettings(max_msg_timeout_s=900.0, max_consumers=0),
            ),
            self.scheduler,
            MessageIdFactory(1),
        )
        self.topic = self.broker.ensure_topic("t#ephemeral")
        self.client = Client(self.topic.ensure_channel("c#ephemeral"))
        self.published = self.delivered = self.finished = self.requeued = 0
        self.emptied = self.emptied_in_flight = 0
        self.last_ids: list[bytes] = []

    def publish(self, count: int) -> None:
        self.topic.publish([b"xyz"] * count)
        self.published += count

    def defer(self, count: int) -> None:
        self.topic.publish([b"xyz"] * count, delay_s=5.0)
        self.published += count

    def ready(self, count: int) -> None:
        self.client.ready(count)

    def finish(self, count: int) -> None:
        ids, self.last_ids = self.last_ids[:count], self.last_ids[count:]
        self.finished += len(ids) - len(self.client.finish(*ids))

    def requeue(self, delay: int) -> None:
        if self.last_ids:
            with contextlib.suppress(NotInFlightError):
                self.client.requeue(self.last_ids.pop(), 5.0 * delay)
                self.requeued += 1

    def wait(self, seconds: int) -> None:
        self.scheduler.advance(seconds)

    def empty(self, _: int) -> None:
        [channel] = read(self.broker).channels
        self.emptied += channel.depth + channel.in_flight_count + channel.deferred_count
        self.emptied_in_flight += channel.in_flight_count
        self.client.channel.empty()

    def settle(self) -> None:
        self.scheduler.settle()
        deliveries = self.client.take()
        self.delivered += len(deliveries)
        self.last_ids += [delivery.message_id for delivery in deliveries]


@settings(max_examples=200)
@given(operations=OPERATIONS)
def test_figures_add_up_after_any_sequence(operations: list[tuple[str, int]]) -> None:
    ledger = Ledger()

    for operation, number in operations:
        getattr(ledger, operation)(number)
        ledger.settle()

        topic = read(ledger.broker)
        [channel] = topic.channels
        assert (topic.message_count, topic.message_bytes) == (
            ledger.published,
            3 * ledger.published,
        )
        assert channel.message_count == ledger.published
        assert channel.finish_count == ledger.finished == channel.finish_times.count
        assert channel.requeue_count == ledger.requeued
        assert channel.in_flight_count == (
            ledger.delivered
            - ledger.finished
            - ledger.requeued
            - channel.timeout_count
            - ledger.emptied_in_flight
        )
        assert channel.depth + channel.in_flight_count + channel.deferred_count == (
            ledger.published - ledger.finished - ledger.emptied
        )
        consumer = ledger.client.consumer
        assert (consumer.message_count, consumer.finish_count, consumer.requeue_count) == (
            ledger.delivered,
            ledger.finished,
            ledger.requeued,
        )
