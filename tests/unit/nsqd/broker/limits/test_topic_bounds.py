"""TopicBounds: publishes to full queues are refused, or push out the oldest messages."""

from pathlib import Path

import pytest

from diskqueue import DiskQueue
from nsqd.broker.errors import DepthLimitError
from nsqd.broker.limits.overrides import LimitOverrides
from nsqd.broker.limits.queue_bounds import MAX_MESSAGES_PER_STEP, RETRY_S
from nsqd.broker.limits.topic_bounds import MIN_SWEEP_S
from nsqd.broker.queue.message_queue import MessageQueue
from nsqd.broker.topic import Topic
from nsqd.config.limits import DepthPolicy, Limits
from tests.support.broker_rig import BrokerRig
from tests.support.limit_counts import SIZES, dropped, numbered, refuse

DROP = DepthPolicy.DROP_OLDEST


class TestReject:
    @SIZES
    def test_a_full_channel_refuses(self, tmp_path: Path, mem_queue_size: int) -> None:
        rig = BrokerRig(tmp_path, mem_queue_size=mem_queue_size, limits=Limits(max_depth=5))
        channel = rig.channel()
        rig.publish(*numbered(5))

        with pytest.raises(DepthLimitError) as caught:
            rig.publish(b"one too many")

        text = "channel t:c would hold 6 messages, more than --max-depth=5"
        assert str(caught.value) == text
        assert channel.depth == 5
        assert rig.topic().message_count == 5
        assert rig.broker.is_healthy
        assert rig.client().bodies == numbered(5)
        assert dropped(channel) == {}

    def test_a_publish_is_refused_as_a_whole_by_any_channel(self, tmp_path: Path) -> None:
        rig = BrokerRig(tmp_path, limits=Limits(max_depth=5))
        first, last = rig.channel("a"), rig.channel("b")
        rig.publish(*numbered(3))
        client = rig.client("a")
        client.finish(*[delivery.message_id for delivery in client.take()])

        with pytest.raises(DepthLimitError, match="channel t:b would hold 6"):
            rig.publish(*numbered(3))

        assert (first.depth, last.depth) == (0, 3)

    @pytest.mark.parametrize("mem_queue_size", [0, 1000])
    def test_bytes_are_counted_as_on_disk(self, tmp_path: Path, mem_queue_size: int) -> None:
        limits = Limits(max_depth_bytes=400)
        rig = BrokerRig(tmp_path, mem_queue_size=mem_queue_size, limits=limits)
        rig.channel()
        rig.publish(b"x" * 70, b"y" * 70)
        rig.publish(b"z" * 170)

        with pytest.raises(DepthLimitError, match="t:c would hold 431 bytes, more than --max-dep"):
            rig.publish(b"!")

    @pytest.mark.parametrize("mem_queue_size", [0, 1000])
    def test_bytes_are_right_after_a_restart(self, tmp_path: Path, mem_queue_size: int) -> None:
        limits = Limits(max_depth_bytes=20_000)
        rig = BrokerRig(tmp_path, mem_queue_size=mem_queue_size, limits=limits)
        queue = rig.channel().queue
        rig.publish(*[b"x" * 970] * 15)
        assert queue.waiting_bytes == 15_000
        records = rig.broker.records()
        assert rig.broker.close() == []

        again = BrokerRig(tmp_path, mem_queue_size=mem_queue_size, limits=limits)
        again.broker.load(records)

        queue = again.channel().queue
        assert queue.waiting_bytes == 15_000
        again.client(ready=7)
        assert queue.waiting_bytes == 8_000
        with pytest.raises(DepthLimitError):
            again.publish(*[b"x" * 970] * 13)
        again.publish(*[b"x" * 970] * 12)

    def test_a_topic_without_channels_is_bounded_too(self, tmp_path: Path) -> None:
        rig = BrokerRig(tmp_path, limits=Limits(max_depth=2))
        rig.publish(*numbered(2))

        with pytest.raises(DepthLimitError, match="topic t would hold 3"):
            rig.publish(b"x")

    def test_what_waits_in_the_topic_counts_for_its_channels(self, tmp_path: Path) -> None:
        rig = BrokerRig(tmp_path, limits=Limits(max_depth=4))
        channel = rig.channel()
        rig.publish(*numbered(2))
        rig.topic().pause()
        rig.publish(*numbered(2))

        with pytest.raises(DepthLimitError, match="channel t:c would hold 5"):
            rig.publish(b"x")

        rig.topic().unpause()
        rig.settle()
        assert channel.depth == 4

    @pytest.mark.parametrize("mem_queue_size", [0, 1000])
    def test_deferred_messages_count(self, tmp_path: Path, mem_queue_size: int) -> None:
        limits = Limits(max_depth=3, max_depth_bytes=10_000)
        rig = BrokerRig(tmp_path, mem_queue_size=mem_queue_size, limits=limits)
        channel = rig.channel()
        rig.publish(*numbered(3), delay_s=60)

        with pytest.raises(DepthLimitError):
            rig.publish(b"x")

        assert channel.deferred.size_bytes == 3 * 31
        rig.advance(60)
        assert channel.deferred.size_bytes == 0
        assert rig.client().bodies == numbered(3)

    def test_what_is_in_flight_does_not_count_and_comes_back(self, tmp_path: Path) -> None:
        rig = BrokerRig(tmp_path, limits=Limits(max_depth=2))
        client = rig.client()
        rig.publish(*numbered(2))
        ids = [delivery.message_id for delivery in client.take()]
        client.ready(0)
        rig.publish(*numbered(2, 2))

        client.requeue(ids[0])
        rig.advance(60)

        assert client.channel.depth == 4
        assert dropped(client.channel) == {}
        with pytest.raises(DepthLimitError):
            rig.publish(b"x")

    def test_a_lower_bound_drops_nothing(self, tmp_path: Path) -> None:
        rig = BrokerRig(tmp_path)
        channel = rig.channel()
        rig.publish(*numbered(5))

        rig.broker.limits.set(rig.topic(), LimitOverrides(max_depth=2))
        rig.settle()

        assert (channel.depth, dropped(channel)) == (5, {})

    def test_an_ephemeral_channel_refuses_nothing(self, tmp_path: Path) -> None:
        rig = BrokerRig(tmp_path, limits=Limits(max_depth=2))
        rig.channel("tail#ephemeral")

        rig.publish(*numbered(2))
        rig.client("c").ready(10)
        rig.publish(*numbered(2, 2))

        channel = rig.channel("tail#ephemeral")
        assert (channel.depth, dropped(channel)) == (2, {"depth": 2})


class TestDropOldest:
    @SIZES
    def test_the_newest_stay(self, tmp_path: Path, mem_queue_size: int) -> None:
        limits = Limits(max_depth=5, max_depth_policy=DROP)
        rig = BrokerRig(tmp_path, mem_queue_size=mem_queue_size, limits=limits)
        channel = rig.channel()

        for start in range(0, 12, 4):
            rig.publish(*numbered(4, start))

        assert (channel.depth, dropped(channel)) == (5, {"depth": 7})
        assert rig.client().bodies == numbered(5, 7)

    @SIZES
    def test_records_of_what_was_dropped_are_gone(
        self, tmp_path: Path, mem_queue_size: int
    ) -> None:
        limits = Limits(max_depth=5, max_depth_policy=DROP)
        rig = BrokerRig(tmp_path, mem_queue_size=mem_queue_size, limits=limits)
        rig.channel()
        for start in range(0, 100, 5):
            rig.publish(*numbered(5, start))
        records = rig.broker.records()
        assert rig.broker.close() == []

        again = BrokerRig(tmp_path, mem_queue_size=mem_queue_size)
        again.broker.load(records)

        assert again.client().bodies == numbered(5, 95)

    @pytest.mark.parametrize("mem_queue_size", [0, 1000])
    def test_not_more_bytes_go_than_have_to(self, tmp_path: Path, mem_queue_size: int) -> None:
        limits = Limits(max_depth_bytes=500, max_depth_policy=DROP)
        rig = BrokerRig(tmp_path, mem_queue_size=mem_queue_size, limits=limits)
        channel = rig.channel()
        rig.publish(*[b"x" * 70] * 5)

        rig.publish(b"y" * 71)

        assert (channel.depth, dropped(channel)) == (4, {"depth": 2})
        assert channel.queue.waiting_bytes == 3 * 100 + 101

    def test_what_could_never_fit_is_refused(self, tmp_path: Path) -> None:
        rig = BrokerRig(tmp_path, limits=Limits(max_depth=3, max_depth_policy=DROP))
        channel = rig.channel()
        rig.publish(b"here")

        with pytest.raises(DepthLimitError):
            rig.publish(*numbered(4))

        assert (channel.depth, dropped(channel)) == (1, {})

    def test_deferred_messages_are_not_dropped(self, tmp_path: Path) -> None:
        rig = BrokerRig(tmp_path, limits=Limits(max_depth=3, max_depth_policy=DROP))
        channel = rig.channel()
        rig.publish(*numbered(2), delay_s=60)
        rig.publish(b"2")
        rig.publish(b"3")

        assert (channel.depth, channel.deferred_count, dropped(channel)) == (1, 2, {"depth": 1})
        rig.publish(b"4", delay_s=60)
        assert (channel.depth, channel.deferred_count, dropped(channel)) == (0, 3, {"depth": 2})
        with pytest.raises(DepthLimitError):
            rig.publish(b"5")

    def test_the_bytes_of_deferred_messages_count(self, tmp_path: Path) -> None:
        rig = BrokerRig(tmp_path, limits=Limits(max_depth_bytes=5 * 31, max_depth_policy=DROP))
        channel = rig.channel()
        rig.publish(*numbered(2), delay_s=60)
        rig.publish(*numbered(3, 2))
        assert dropped(channel) == {}

        rig.publish(b"5")

        assert (channel.depth, channel.deferred_count, dropped(channel)) == (3, 2, {"depth": 1})
        assert rig.client().bodies == numbered(3, 3)

    def test_a_topic_drops_its_own(self, tmp_path: Path) -> None:
        rig = BrokerRig(tmp_path, limits=Limits(max_depth=3, max_depth_policy=DROP))
        for number in range(5):
            rig.publish(b"%d" % number)

        assert (rig.topic().depth, dropped(rig.topic())) == (3, {"depth": 2})
        assert rig.client().bodies == numbered(3, 2)

    def test_a_topic_drops_its_own_by_bytes(self, tmp_path: Path) -> None:
        rig = BrokerRig(tmp_path, limits=Limits(max_depth_bytes=3 * 31, max_depth_policy=DROP))
        for number in range(5):
            rig.publish(b"%d" % number)

        assert (rig.topic().depth, dropped(rig.topic())) == (3, {"depth": 2})

    def test_what_the_topic_hands_on_is_trimmed(self, tmp_path: Path) -> None:
        rig = BrokerRig(tmp_path, limits=Limits(max_depth=3, max_depth_policy=DROP))
        channel = rig.channel()
        rig.publish(*numbered(3))
        rig.topic().pause()
        rig.publish(*numbered(2, 3))

        rig.topic().unpause()
        rig.settle()

        assert (channel.depth, dropped(channel)) == (3, {"depth": 2})
        assert rig.client().bodies == numbered(3, 2)

    def test_a_lower_bound_takes_effect_bit_by_bit(self, tmp_path: Path) -> None:
        rig = BrokerRig(tmp_path, mem_queue_size=0)
        channel = rig.channel()
        count = 3 * MAX_MESSAGES_PER_STEP
        rig.publish(*numbered(count))

        rig.scheduler.has_tiny_slices = True
        overrides = LimitOverrides(max_depth=10, max_depth_policy=DROP)
        rig.broker.limits.set(rig.topic(), overrides)
        rig.scheduler.turn()  # for the topic's own queue
        rig.scheduler.turn()

        assert channel.depth == count - MAX_MESSAGES_PER_STEP
        rig.settle()
        assert channel.depth == 10
        assert rig.client().bodies == numbered(10, count - 10)

    def test_all_channels_have_their_turn(self, tmp_path: Path) -> None:
        rig = BrokerRig(tmp_path)
        channels = [rig.channel(name) for name in "abc"]
        count = 3 * MAX_MESSAGES_PER_STEP
        rig.publish(*numbered(count))
        rig.scheduler.has_tiny_slices = True
        overrides = LimitOverrides(max_depth=10, max_depth_policy=DROP)
        rig.broker.limits.set(rig.topic(), overrides)
        rig.scheduler.turn()  # for the topic's own queue

        for step in range(1, 4):
            rig.scheduler.turn()
            dropped_count = sum(count - channel.depth for channel in channels)
            assert dropped_count == step * MAX_MESSAGES_PER_STEP
        assert {channel.depth for channel in channels} == {count - MAX_MESSAGES_PER_STEP}
        rig.settle()

        assert [channel.depth for channel in channels] == [10] * 3
        assert rig.client("c").bodies == numbered(10, count - 10)

    def test_the_front_stays_while_some_channels_have_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        limits = Limits(max_depth=3, max_depth_policy=DROP, msg_ttl_s=1)
        rig = BrokerRig(tmp_path, mem_queue_size=0, limits=limits)
        first, second = rig.channel("a"), rig.channel("b")
        rig.topic().pause()
        rig.publish(*numbered(3))
        with monkeypatch.context() as patch:
            patch.setattr(second.queue.backend, "append", refuse)
            rig.topic().unpause()
            rig.settle()
            assert (first.depth, second.depth, rig.topic().depth) == (3, 0, 3)

            rig.advance(0.5)
            assert rig.topic().depth == 3

        rig.advance(0.6)
        assert rig.topic().depth == 0


class TestFailingDisk:
    """A disk that cannot be read is asked again after RETRY_S, not before."""

    def test_trimming_goes_on_after_a_while(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rig = BrokerRig(tmp_path, limits=Limits(max_depth=3, max_depth_policy=DROP))
        channel = rig.channel()
        rig.publish(*numbered(3))
        start = rig.scheduler.now
        tried_at: list[float] = []

        def fail(*_: object) -> None:
            tried_at.append(rig.scheduler.now - start)
            refuse()

        with monkeypatch.context() as patch:
            patch.setattr(MessageQueue, "take", fail)
            rig.publish(b"3")
            rig.publish(b"4")
            rig.advance(2.5)
        assert tried_at == [0.0, RETRY_S, 2 * RETRY_S]
        assert (channel.depth, dropped(channel)) == (5, {})

        rig.advance(RETRY_S)

        assert (channel.depth, dropped(channel)) == (3, {"depth": 2})

    def test_sweeping_goes_on_after_a_while(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        rig = BrokerRig(tmp_path, mem_queue_size=0)
        rig.channel()
        rig.publish(*[b"x" * 1000] * 50)
        records = rig.broker.records()
        rig.broker.close()
        rig = BrokerRig(tmp_path, limits=Limits(msg_ttl_s=1000), mem_queue_size=0)
        start = rig.scheduler.now
        tried_at: list[float] = []

        def fail(*_: object) -> None:
            tried_at.append(rig.scheduler.now - start)
            refuse()

        with monkeypatch.context() as patch:
            patch.setattr(DiskQueue, "peek", fail)
            rig.broker.load(records)
            rig.advance(MIN_SWEEP_S + 2.5)

        first = MIN_SWEEP_S
        assert tried_at == pytest.approx([first, first + RETRY_S, first + 2 * RETRY_S])
        assert "CHANNEL(t:c): failed to read from disk" in caplog.text
        rig.advance(1001)
        assert rig.channel().depth == 0


class TestRoom:
    """A refusal says for how many of the messages there was room."""

    @pytest.mark.parametrize(
        ("limits", "room"),
        [
            (Limits(max_depth=5), 3),
            (Limits(max_depth=2), 0),
            (Limits(max_depth_bytes=5 * 31), 3),
            (Limits(max_depth_bytes=5 * 31 - 1), 2),
            (Limits(max_depth=4, max_depth_bytes=5 * 31), 2),
        ],
    )
    def test_from_the_first_on(self, tmp_path: Path, limits: Limits, room: int) -> None:
        rig = BrokerRig(tmp_path, limits=limits)
        rig.channel()
        rig.publish(*numbered(2))

        with pytest.raises(DepthLimitError) as caught:
            rig.publish(*numbered(6))

        assert caught.value.room_count == room
        if room:
            rig.publish(*numbered(room))


def test_a_sweep_is_done_in_slices(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path, limits=Limits(msg_ttl_s=10))
    channels = [rig.channel(name) for name in ("a", "b")]
    count = 2 * MAX_MESSAGES_PER_STEP
    rig.publish(*numbered(count))
    rig.advance(9.9)
    rig.scheduler.has_tiny_slices = True
    assert {channel.depth for channel in channels} == {count}
    [sweep] = [timer for timer in rig.scheduler.pending_timers if timer.when < 1011]

    rig.scheduler.now = sweep.when
    rig.scheduler.wall_ns += 10**9
    sweep.fire()
    assert {channel.depth for channel in channels} == {count}
    rig.scheduler.turn()
    assert sorted(channel.depth for channel in channels) == [count - MAX_MESSAGES_PER_STEP, count]
    rig.scheduler.settle()

    assert {channel.depth for channel in channels} == {0}


def test_an_emptied_topic_has_nothing_in_limbo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = BrokerRig(tmp_path, limits=Limits(msg_ttl_s=10, dead_letter_topic_suffix=".dead"))
    topic = rig.topic()
    rig.publish(*numbered(3))
    with monkeypatch.context() as patch:
        patch.setattr(Topic, "publish_moved", refuse)
        rig.advance(15)
    assert topic.bounds is not None
    assert (topic.bounds.limbo_count, topic.bounds.has_limbo) == (3, True)
    assert [message[3] for message in topic.bounds.copy_limbo()] == numbered(3)

    topic.empty()
    rig.advance(10)

    assert (topic.bounds.limbo_count, topic.bounds.has_limbo) == (0, False)
    assert topic.losses.dead_lettered_count == 0
    assert rig.topic("t.dead").depth == 0


@pytest.mark.parametrize("end", ["channel", "topic", "limits"])
def test_a_trim_between_whose_slices_its_queue_goes_ends_well(tmp_path: Path, end: str) -> None:
    rig = BrokerRig(tmp_path)
    first, second = rig.channel("a"), rig.channel("b")
    topic = rig.topic()
    rig.publish(*numbered(2000))
    rig.scheduler.has_tiny_slices = True
    rig.broker.limits.set(topic, LimitOverrides(max_depth=5, max_depth_policy=DROP))
    for _ in range(3):
        rig.scheduler.turn()

    if end == "channel":
        topic.delete_channel("a")
    elif end == "topic":
        rig.broker.delete_topic("t")
    else:
        rig.broker.limits.set(topic, LimitOverrides(max_depth=100, max_depth_policy=DROP))
    rig.settle()

    depths = {"channel": (0, 5), "topic": (0, 0), "limits": (100, 100)}
    assert (first.depth, second.depth) == depths[end]


@pytest.mark.parametrize("is_late", [False, True])
def test_a_closed_topic_is_not_swept(tmp_path: Path, *, is_late: bool) -> None:
    rig = BrokerRig(tmp_path, limits=Limits(msg_ttl_s=10))
    topic = rig.topic()
    rig.publish(b"1")
    bounds = topic.bounds
    assert bounds is not None
    if is_late:  # after its timer, before its slice
        rig.scheduler.now += 20
        for timer in rig.scheduler.pending_timers:
            if timer.when <= rig.scheduler.now:
                timer.fire()
    bounds.close()

    rig.advance(100)

    assert topic.depth == 1
    assert dropped(topic) == {}


def test_closed_bounds_leave_no_timer_that_refers_to_their_topic(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path)
    topic = rig.topic()
    rig.settle()
    before = rig.scheduler.pending_timers
    rig.broker.limits.set(topic, LimitOverrides(msg_ttl_s=10))
    assert len(rig.scheduler.pending_timers) == len(before) + 1

    rig.broker.limits.set(topic, LimitOverrides())

    assert topic.bounds is None
    assert rig.scheduler.pending_timers == before


def test_a_full_channel_behind_an_ephemeral_one_refuses(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path, limits=Limits(max_depth=2))
    rig.channel("a#ephemeral")
    rig.channel("b")
    rig.publish(*numbered(2))

    with pytest.raises(DepthLimitError, match="channel t:b would hold 3"):
        rig.publish(b"x")
