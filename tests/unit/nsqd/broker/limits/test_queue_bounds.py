"""QueueBounds: messages that are too old or were tried too often are dropped, and counted once."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from nsqd.broker.limits import dead_letter
from nsqd.broker.limits.dead_letter import Publish
from nsqd.broker.limits.queue_bounds import (
    LOOKS_PER_TTL,
    MAX_MESSAGES_PER_STEP,
    RETRY_S,
    AgeClock,
    DropReason,
    Losses,
    QueueBounds,
    Rules,
)
from nsqd.broker.queue.message_queue import MessageQueue
from nsqd.config.limits import Limits
from tests.support.broker_rig import BrokerRig
from tests.support.fake_scheduler import FakeScheduler
from tests.support.limit_counts import SIZES, dropped, numbered, refuse

HOUR_NS = 3600 * 10**9


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

    @SIZES
    def test_messages_of_exactly_that_age_are_delivered(
        self, tmp_path: Path, mem_queue_size: int
    ) -> None:
        rig = BrokerRig(tmp_path, mem_queue_size=mem_queue_size, limits=Limits(msg_ttl_s=10))
        channel = rig.channel()
        rig.publish(*numbered(5))
        rig.scheduler.now += 10  # without the timers, which would come first
        rig.scheduler.wall_ns += 10 * 10**9

        assert rig.client().bodies == numbered(5)
        assert dropped(channel) == {}

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
        count = 3 * MAX_MESSAGES_PER_STEP
        rig.publish(*numbered(count))
        rig.advance(9)
        rig.publish(b"fresh")
        rig.scheduler.now += 2
        rig.scheduler.wall_ns += 2 * 10**9

        client.ready(100)
        rig.scheduler.turn()
        assert client.channel.depth >= MAX_MESSAGES_PER_STEP
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


class TestRest:
    """Bounds that cannot go on rest, and say so to the channel when they have rested."""

    def make(
        self, tmp_path: Path, publish: Publish, limits: Limits
    ) -> tuple[QueueBounds, MessageQueue, FakeScheduler, list[float]]:
        rig = BrokerRig(tmp_path)
        queue = rig.channel().queue
        rig.publish(*numbered(10))
        scheduler = rig.scheduler
        resumed_at: list[float] = []
        start = scheduler.now
        clock = AgeClock(scheduler, limits.msg_ttl_s)
        rules = Rules("t", limits, clock, scheduler, "t.dead", publish)
        bounds = QueueBounds(
            *("c", queue, Losses(), rules),
            lambda: resumed_at.append(scheduler.now - start),
        )
        return bounds, queue, scheduler, resumed_at

    def test_a_full_limbo_is_tried_again_after_a_while(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dead_letter, "MAX_REFUSED_COUNT", 4)
        bounds, queue, scheduler, resumed_at = self.make(tmp_path, refuse, Limits(msg_ttl_s=100))
        scheduler.wall_ns += 101 * 10**9
        scheduler.now += 101

        assert bounds.take(4, 1000) is None
        assert (bounds.limbo_count, queue.depth) == (4, 6)
        assert bounds.take(4, 1000) is None
        assert bounds.sweep() == 0
        assert bounds.look_at == scheduler.now + RETRY_S
        scheduler.advance(RETRY_S)

        assert resumed_at == [101.0 + RETRY_S]
        assert queue.depth == 6
        bounds.close()

    def test_a_sweep_says_when_to_look_again(self, tmp_path: Path) -> None:
        bounds, queue, scheduler, _ = self.make(tmp_path, refuse, Limits(msg_ttl_s=100))

        assert bounds.sweep() == 0
        assert bounds.look_at == scheduler.now + 100 / LOOKS_PER_TTL
        scheduler.advance(90)
        assert bounds.sweep() == 0
        assert bounds.look_at == scheduler.now + 10
        scheduler.advance(9)
        assert bounds.sweep() == 0
        assert bounds.look_at == scheduler.now + 1
        scheduler.advance(1)
        assert bounds.sweep() == 0, "not older than the limit"
        assert bounds.look_at == scheduler.now
        scheduler.advance(0.001)
        assert bounds.sweep() == 10
        assert (queue.depth, bounds.limbo_count) == (0, 10)
        assert bounds.sweep() == 0
        assert bounds.look_at == scheduler.now + 100 / LOOKS_PER_TTL
        bounds.close()

    def test_closed_bounds_resume_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dead_letter, "MAX_REFUSED_COUNT", 4)
        bounds, _, scheduler, resumed_at = self.make(tmp_path, refuse, Limits(msg_ttl_s=100))
        scheduler.wall_ns += 101 * 10**9
        scheduler.now += 101
        assert bounds.take(4, 1000) is None
        assert bounds.take(4, 1000) is None

        assert len(bounds.close()) == 4
        scheduler.advance(10)

        assert resumed_at == []


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


class TestAgeClock:
    def test_it_is_the_wall_clock(self) -> None:
        scheduler = FakeScheduler()
        clock = AgeClock(scheduler, 60.0)

        scheduler.advance(1000.0)

        assert clock.now_ns() == scheduler.wall_time_ns()

    def test_drift_is_followed(self) -> None:
        scheduler = FakeScheduler()
        clock = AgeClock(scheduler, 60.0)

        for _ in range(10):
            scheduler.advance(10.0)
            scheduler.wall_ns += 500_000_000
            assert clock.now_ns() == scheduler.wall_time_ns()

    def test_a_step_forward_counts_after_the_ttl(self) -> None:
        scheduler = FakeScheduler()
        clock = AgeClock(scheduler, 60.0)
        before_ns = scheduler.wall_time_ns()

        scheduler.wall_ns += HOUR_NS

        assert clock.now_ns() == before_ns
        scheduler.advance(59.0)
        assert clock.now_ns() == before_ns + 59 * 10**9
        scheduler.advance(1.0)
        assert clock.now_ns() == scheduler.wall_time_ns()

    def test_a_step_back_counts_at_once(self) -> None:
        scheduler = FakeScheduler()
        clock = AgeClock(scheduler, 60.0)

        scheduler.wall_ns -= HOUR_NS

        assert clock.now_ns() == scheduler.wall_time_ns()
        scheduler.advance(100.0)
        assert clock.now_ns() == scheduler.wall_time_ns()

    def test_a_step_that_is_taken_back_leaves_no_trace(self) -> None:
        scheduler = FakeScheduler()
        clock = AgeClock(scheduler, 60.0)
        scheduler.wall_ns += HOUR_NS
        clock.now_ns()

        scheduler.wall_ns -= HOUR_NS
        clock.now_ns()
        scheduler.advance(50.0)
        scheduler.wall_ns += HOUR_NS
        clock.now_ns()
        scheduler.advance(20.0)

        assert clock.now_ns() == scheduler.wall_time_ns() - HOUR_NS


def test_a_copy_of_the_losses_stays_as_it_is(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path, limits=Limits(max_depth=1))
    losses = rig.topic().losses
    rig.broker.count_refusal("t")
    losses.dropped_counts[DropReason.TTL] += 2
    losses.dead_lettered_count += 3

    copy = losses.copy()
    rig.broker.count_refusal("t")
    losses.dropped_counts[DropReason.DEPTH] += 1

    assert (copy.rejected_count, copy.dropped_count, copy.dead_lettered_count) == (1, 2, 3)
    assert (losses.rejected_count, losses.dropped_count) == (2, 3)


def test_reasons_have_names_for_metrics() -> None:
    names: Sequence[str] = [reason.value for reason in DropReason]

    assert names == ["depth", "ttl", "attempts"]


@pytest.mark.parametrize("is_consumed", [False, True])
def test_the_young_ones_behind_the_old_ones_of_a_read_stay(
    tmp_path: Path, *, is_consumed: bool
) -> None:
    limits = Limits(msg_ttl_s=10)
    rig = BrokerRig(tmp_path, mem_queue_size=0, limits=limits)
    rig.channel()
    rig.publish(b"old", b"older")
    rig.advance(6)
    rig.publish(b"young", b"younger")
    records = rig.broker.records()
    rig.broker.close()

    again = BrokerRig(
        tmp_path, mem_queue_size=0, limits=limits, wall_time_ns=rig.scheduler.wall_ns + 5 * 10**9
    )
    again.broker.load(records)
    if not is_consumed:
        again.advance(2)
        assert again.channel().depth == 2

    assert again.client().bodies == [b"young", b"younger"]
