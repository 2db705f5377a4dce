"""What the limits do: publishes refused, messages dropped or dead-lettered, each counted once."""

import errno
from collections.abc import Sequence
from pathlib import Path

import pytest

from nsqd.broker.channel import Channel
from nsqd.broker.errors import DepthLimitError
from nsqd.broker.limits import dead_letter
from nsqd.broker.limits.losses import DropReason
from nsqd.broker.limits.overrides import LimitOverrides
from nsqd.broker.limits.queue_bounds import MAX_MESSAGES_PER_TURN
from nsqd.broker.topic import Topic
from nsqd.config.limits import DepthPolicy, Limits
from tests.support.broker_rig import BrokerRig

DROP = DepthPolicy.DROP_OLDEST
# Without a memory queue, in memory, and both.
SIZES = pytest.mark.parametrize("mem_queue_size", [0, 3, 1000])


def dropped(channel: Channel | Topic) -> dict[str, int]:
    """Return why how many messages were dropped."""
    counts = channel.losses.dropped_counts
    return {reason.value: count for reason, count in counts.items() if count}


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


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

    def test_a_topic_drops_its_own(self, tmp_path: Path) -> None:
        rig = BrokerRig(tmp_path, limits=Limits(max_depth=3, max_depth_policy=DROP))
        for number in range(5):
            rig.publish(b"%d" % number)

        assert (rig.topic().depth, dropped(rig.topic())) == (3, {"depth": 2})
        assert rig.client().bodies == numbered(3, 2)

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
        count = MAX_MESSAGES_PER_TURN + 1000
        rig.publish(*numbered(count))

        overrides = LimitOverrides(max_depth=10, max_depth_policy=DROP)
        rig.broker.limits.set(rig.topic(), overrides)
        rig.scheduler.turn()

        assert 10 < channel.depth < count
        rig.settle()
        assert channel.depth == 10
        assert rig.client().bodies == numbered(10, count - 10)

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


def refuse(*_args: object, **_kwargs: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


class TestTtl:
    @SIZES
    def test_old_messages_are_not_delivered(self, tmp_path: Path, mem_queue_size: int) -> None:
        limits = Limits(msg_ttl_s=10)
        rig = BrokerRig(tmp_path, mem_queue_size=mem_queue_size, limits=limits)
        channel = rig.channel()
        channel.pause()
        rig.publish(*numbered(4))
        rig.advance(9)
        rig.publish(*numbered(4, 4))
        rig.scheduler.now += 2  # without the timers, which would come first
        rig.scheduler.wall_ns += 2 * 10**9

        channel.unpause()

        assert rig.client().bodies == numbered(4, 4)
        assert dropped(channel) == {"ttl": 4}

    @SIZES
    def test_a_channel_without_consumers_shrinks(self, tmp_path: Path, mem_queue_size: int) -> None:
        limits = Limits(msg_ttl_s=10)
        rig = BrokerRig(tmp_path, mem_queue_size=mem_queue_size, limits=limits)
        channel = rig.channel()
        rig.publish(*numbered(10))
        rig.advance(5)
        rig.publish(*numbered(10, 10))

        rig.advance(5.1)
        assert (channel.depth, dropped(channel)) == (10, {"ttl": 10})
        rig.advance(5)

        assert (channel.depth, dropped(channel)) == (0, {"ttl": 20})

    @pytest.mark.parametrize("mem_queue_size", [0, 1000])
    def test_a_backlog_of_before_the_restart_shrinks(
        self, tmp_path: Path, mem_queue_size: int
    ) -> None:
        rig = BrokerRig(tmp_path, mem_queue_size=mem_queue_size)
        rig.channel()
        rig.publish(*[b"x" * 1000] * 50)
        records = rig.broker.records()
        rig.broker.close()
        again = BrokerRig(tmp_path, limits=Limits(msg_ttl_s=60), mem_queue_size=mem_queue_size)
        again.broker.load(records)
        assert again.channel().depth == 50

        again.advance(61)

        assert again.channel().depth == 0
        again.advance(5)  # a sync, by which the files go, but for one that is small
        assert sum(file.stat().st_size for file in tmp_path.glob("t:c.diskqueue.0*.dat")) < 4096

    def test_an_expired_topic_shrinks_too(self, tmp_path: Path) -> None:
        rig = BrokerRig(tmp_path, limits=Limits(msg_ttl_s=10))
        rig.publish(*numbered(3))

        rig.advance(10.1)

        assert (rig.topic().depth, dropped(rig.topic())) == (0, {"ttl": 3})

    def test_in_flight_is_left_alone_until_it_comes_back(self, tmp_path: Path) -> None:
        rig = BrokerRig(tmp_path, limits=Limits(msg_ttl_s=10))
        client = rig.client()
        rig.publish(b"slow", b"slower")
        [slow, slower] = client.take()
        rig.advance(20)
        assert client.in_flight_count == 2

        client.finish(slow.message_id)
        client.requeue(slower.message_id)
        rig.settle()

        assert client.take() == []
        assert dropped(client.channel) == {"ttl": 1}
        assert client.channel.finish_count == 1

    def test_retries_among_fresh_ones_go_alone(self, tmp_path: Path) -> None:
        rig = BrokerRig(tmp_path, limits=Limits(msg_ttl_s=10))
        client = rig.client()
        rig.publish(b"old")
        [old] = client.take()
        rig.advance(6)
        rig.publish(b"new")
        [new] = client.take()
        client.ready(0)
        client.requeue(new.message_id)
        client.requeue(old.message_id)
        rig.scheduler.now += 5
        rig.scheduler.wall_ns += 5 * 10**9

        client.ready(10)
        rig.settle()

        assert [delivery.body for delivery in client.take()] == [b"new"]
        assert dropped(client.channel) == {"ttl": 1}

    def test_many_go_bit_by_bit_and_the_fresh_ones_are_delivered(self, tmp_path: Path) -> None:
        rig = BrokerRig(tmp_path, mem_queue_size=0, limits=Limits(msg_ttl_s=10))
        client = rig.client(ready=0)
        count = 3 * MAX_MESSAGES_PER_TURN
        rig.publish(*numbered(count))
        rig.advance(9)
        rig.publish(b"fresh")
        rig.scheduler.now += 2
        rig.scheduler.wall_ns += 2 * 10**9

        client.ready(100)
        rig.scheduler.turn()
        assert client.channel.depth >= MAX_MESSAGES_PER_TURN
        rig.settle()

        assert client.bodies == [b"fresh"]
        assert dropped(client.channel) == {"ttl": count}

    def test_a_clock_that_steps_makes_nothing_old(self, tmp_path: Path) -> None:
        rig = BrokerRig(tmp_path, limits=Limits(msg_ttl_s=60))
        channel = rig.channel()
        rig.publish(*numbered(3))

        rig.scheduler.wall_ns += 3600 * 10**9
        rig.advance(30)

        assert rig.client().bodies == numbered(3)
        assert dropped(channel) == {}


class TestAttempts:
    LIMITS = Limits(max_attempts=2)

    @SIZES
    def test_requeued_for_the_last_time(self, tmp_path: Path, mem_queue_size: int) -> None:
        rig = BrokerRig(tmp_path, mem_queue_size=mem_queue_size, limits=self.LIMITS)
        client = rig.client()
        rig.publish(b"poison")
        for attempt in (1, 2):
            [delivery] = client.take()
            assert delivery.attempts == attempt
            client.requeue(delivery.message_id, delay_s=attempt - 1)
            rig.settle()

        rig.advance(10)

        assert client.take() == []
        assert dropped(client.channel) == {"attempts": 1}
        assert client.channel.requeue_count == 2
        assert client.channel.queue.backend.outstanding_count == 0

    @SIZES
    def test_timed_out_for_the_last_time(self, tmp_path: Path, mem_queue_size: int) -> None:
        rig = BrokerRig(tmp_path, mem_queue_size=mem_queue_size, limits=self.LIMITS)
        client = rig.client()
        rig.publish(b"poison", b"more of it")
        for attempt in (1, 2):
            assert [delivery.attempts for delivery in client.take()] == [attempt] * 2
            rig.advance(60)

        assert client.take() == []
        assert dropped(client.channel) == {"attempts": 2}
        assert client.channel.timeout_count == 4

    def test_what_is_deferred_comes_back_without_counting(self, tmp_path: Path) -> None:
        rig = BrokerRig(tmp_path, limits=Limits(max_attempts=1))
        client = rig.client()
        rig.publish(b"later", delay_s=10)

        rig.advance(10)

        assert client.bodies == [b"later"]


class TestDeadLetters:
    LIMITS = Limits(max_attempts=1, msg_ttl_s=100, dead_letter_topic_suffix=".dead")

    @SIZES
    def test_a_worn_out_message_is_published_again(
        self, tmp_path: Path, mem_queue_size: int
    ) -> None:
        rig = BrokerRig(tmp_path, mem_queue_size=mem_queue_size, limits=self.LIMITS)
        client = rig.client()
        rig.publish(b"poison")
        [delivery] = client.take()

        client.requeue(delivery.message_id)
        rig.settle()

        assert client.channel.losses.dead_lettered_count == 1
        assert dropped(client.channel) == {}
        [dead] = rig.client(topic="t.dead").take()
        assert (dead.body, dead.attempts) == (b"poison", 1)
        assert client.channel.queue.backend.outstanding_count == 0

    @SIZES
    def test_what_is_too_old_is_published_again(self, tmp_path: Path, mem_queue_size: int) -> None:
        rig = BrokerRig(tmp_path, mem_queue_size=mem_queue_size, limits=self.LIMITS)
        channel = rig.channel()
        rig.publish(*numbered(10))

        rig.advance(101)

        assert (channel.depth, channel.losses.dead_lettered_count) == (0, 10)
        assert rig.client(topic="t.dead").bodies == numbered(10)

    def test_dead_letters_do_not_die_again(self, tmp_path: Path) -> None:
        rig = BrokerRig(tmp_path, limits=self.LIMITS)
        rig.channel()
        rig.publish(b"poison")
        rig.advance(101)
        client = rig.client(topic="t.dead")
        for attempt in range(1, 5):
            [delivery] = client.take()
            assert delivery.attempts == attempt
            client.requeue(delivery.message_id)
            rig.settle()

        rig.advance(1000)

        assert client.channel.losses.dead_lettered_count == 0
        assert set(rig.broker.topics) == {"t", "t.dead"}

    def test_a_refused_dead_letter_is_tried_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rig = BrokerRig(tmp_path, mem_queue_size=0, limits=self.LIMITS)
        client = rig.client()
        dead = rig.topic("t.dead")
        rig.publish(b"poison")
        [delivery] = client.take()
        with monkeypatch.context() as patch:
            patch.setattr(dead.queue.backend, "append", refuse)
            client.requeue(delivery.message_id)
            rig.advance(3)
            assert client.channel.losses.dead_lettered_count == 0
            assert client.channel.bounds is not None
            assert client.channel.bounds.limbo_count == 1
            assert client.channel.queue.backend.outstanding_count == 1

        rig.advance(1)

        assert client.channel.losses.dead_lettered_count == 1
        assert dead.depth == 1
        assert client.channel.queue.backend.outstanding_count == 0

    def test_what_is_in_limbo_survives_a_stop(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rig = BrokerRig(tmp_path, limits=self.LIMITS)
        client = rig.client()
        rig.topic("t.dead")
        rig.publish(b"poison")
        [delivery] = client.take()
        monkeypatch.setattr(Topic, "publish", refuse)
        client.requeue(delivery.message_id)
        records = rig.broker.records()
        assert rig.broker.close() == []
        monkeypatch.undo()

        again = BrokerRig(tmp_path)
        again.broker.load(records)

        [delivery] = again.client().take()
        assert (delivery.body, delivery.attempts) == (b"poison", 2)

    def test_too_many_in_limbo_go_back_to_their_queue(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rig = BrokerRig(tmp_path, limits=self.LIMITS)
        client = rig.client()
        rig.publish(*numbered(9000))
        deliveries = client.take()
        publish = Topic.publish
        monkeypatch.setattr(Topic, "publish", refuse)
        for delivery in deliveries[:8000:500]:
            client.requeue(delivery.message_id)
        rig.advance(59)
        assert client.channel.depth == 0
        client.ready(0)

        rig.advance(1)
        assert client.channel.bounds is not None
        in_limbo = client.channel.bounds.limbo_count
        rig.advance(100)  # and they become too old there
        assert client.channel.depth + client.channel.bounds.limbo_count == 9000
        monkeypatch.setattr(Topic, "publish", publish)
        rig.advance(10)

        assert in_limbo >= 16
        assert client.channel.depth == 0
        assert client.channel.losses.dead_lettered_count == 9000
        bodies = rig.client(topic="t.dead").bodies
        assert sorted(bodies, key=int) == numbered(9000)

    def test_an_emptied_channel_has_nothing_in_limbo(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rig = BrokerRig(tmp_path, limits=self.LIMITS)
        client = rig.client()
        rig.publish(b"poison")
        [delivery] = client.take()
        with monkeypatch.context() as patch:
            patch.setattr(Topic, "publish", refuse)
            client.requeue(delivery.message_id)

        client.channel.empty()
        rig.advance(10)

        assert client.channel.losses.dead_lettered_count == 0
        assert rig.broker.find_topic("t.dead") is None or rig.topic("t.dead").depth == 0

    def test_a_full_dead_letter_topic_holds_them_up(self, tmp_path: Path) -> None:
        limits = Limits(max_depth=1, max_attempts=1, dead_letter_topic_suffix=".dead")
        rig = BrokerRig(tmp_path, limits=limits)
        client = rig.client()
        for body in (b"1", b"2"):
            rig.publish(body)
            [delivery] = client.take()
            client.requeue(delivery.message_id)
        rig.advance(5)
        assert client.channel.losses.dead_lettered_count == 1
        reader = rig.client(topic="t.dead")
        [first] = reader.take()

        reader.finish(first.message_id)
        rig.advance(2)

        assert first.body == b"1"
        assert [delivery.body for delivery in reader.take()] == [b"2"]

    def test_with_group_commit_the_original_waits_for_the_disk(self, tmp_path: Path) -> None:
        rig = BrokerRig(tmp_path, mem_queue_size=0, sync_every=1, limits=self.LIMITS)
        client = rig.client()
        rig.publish(b"poison")
        rig.advance(1)
        [delivery] = client.take()
        rig.scheduler.holds_threads = True

        client.requeue(delivery.message_id)
        rig.settle()

        assert client.channel.losses.dead_lettered_count == 0
        assert client.channel.queue.backend.outstanding_count == 1
        rig.scheduler.holds_threads = False
        while rig.scheduler.held_work:
            rig.scheduler.finish_thread()
            rig.settle()
        assert client.channel.losses.dead_lettered_count == 1
        assert client.channel.queue.backend.outstanding_count == 0

    def test_a_disk_that_hangs_stops_the_burying(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dead_letter, "MAX_UNSYNCED_COUNT", 10)
        rig = BrokerRig(tmp_path, mem_queue_size=0, sync_every=1, limits=self.LIMITS)
        channel = rig.channel()
        for number in range(30):
            rig.publish(*numbered(5, number * 5))
        rig.advance(1)
        rig.scheduler.holds_threads = True

        rig.advance(110)

        assert channel.bounds is not None
        assert 10 <= channel.bounds.limbo_count < 150
        assert channel.depth + channel.bounds.limbo_count == 150
        rig.scheduler.holds_threads = False
        while rig.scheduler.held_work:
            rig.scheduler.finish_thread()
            rig.settle()
        rig.advance(200)
        assert channel.losses.dead_lettered_count == 150
        assert sorted(rig.client(topic="t.dead").bodies, key=int) == numbered(150)

    def test_a_failed_sync_buries_again(self, tmp_path: Path) -> None:
        rig = BrokerRig(tmp_path, mem_queue_size=0, sync_every=1, limits=self.LIMITS)
        client = rig.client()
        rig.topic("t.dead")
        rig.publish(b"poison")
        rig.advance(1)
        [delivery] = client.take()
        rig.scheduler.holds_threads = True
        client.requeue(delivery.message_id)
        rig.settle()

        while rig.scheduler.held_work:
            rig.scheduler.finish_thread(OSError(errno.EIO, "Input/output error"))
            rig.scheduler.turn()
        rig.scheduler.holds_threads = False
        rig.advance(5)

        assert client.channel.losses.dead_lettered_count == 1
        assert client.channel.queue.backend.outstanding_count == 0
        bodies = rig.client(topic="t.dead").bodies
        assert set(bodies) == {b"poison"}


def test_limits_set_anew_leave_every_message_where_it_belongs(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path, limits=Limits(max_attempts=1, dead_letter_topic_suffix=".dead"))
    client = rig.client()
    rig.publish(b"a", b"b")
    refusing = [delivery.message_id for delivery in client.take()]
    rig.broker.drain()  # dead letters are refused like everything else
    client.requeue(refusing[0])
    assert client.channel.depth == 0

    rig.broker.limits.set(rig.topic(), LimitOverrides(max_attempts=0))
    rig.settle()

    [delivery] = client.take()
    assert delivery.body == b"a"


def test_reasons_have_names_for_metrics() -> None:
    names: Sequence[str] = [reason.value for reason in DropReason]

    assert names == ["depth", "ttl", "attempts"]
