"""Any sequence of publishes, answers and waiting under any limits: no message is lost or counted
twice. What was published is finished, dropped, dead-lettered, or still there.
"""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from nsqd.broker.errors import DepthLimitError, DrainingError
from nsqd.broker.limits.overrides import LimitOverrides
from nsqd.broker.peek import Place, peek_channel
from nsqd.broker.queue.batch import RECORD_OVERHEAD_BYTES
from nsqd.config.limits import DepthPolicy, Limits
from tests.support.broker_rig import BrokerRig
from tests.support.channel_rig import Client
from tests.support.recording_sink import Delivery

EVERYTHING = 1_000_000
LIMITS = st.builds(
    Limits,
    max_depth=st.sampled_from([20, 0, 5, 1]),
    max_depth_bytes=st.sampled_from([0, 1000, 100]),
    max_depth_policy=st.sampled_from(DepthPolicy),
    msg_ttl_s=st.sampled_from([30.0, 0.0, 90.0]),
    max_attempts=st.sampled_from([1, 0, 2, 3]),
    dead_letter_topic_suffix=st.sampled_from([".dead", ""]),
)


class BoundsModel(RuleBasedStateMachine):
    """One topic with a channel and a consumer; the dead letters are counted where they arrive."""

    @initialize(
        limits=LIMITS,
        mem_queue_size=st.sampled_from([0, 3, 1000]),
        sync_every=st.sampled_from([1, 2500]),
    )
    def start(self, limits: Limits, mem_queue_size: int, sync_every: int) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="bounds-model-"))
        self.limits = limits
        self.make_rig: Callable[[], BrokerRig] = lambda: BrokerRig(
            self.directory, mem_queue_size=mem_queue_size, sync_every=sync_every, limits=limits
        )
        self.rig = self.make_rig()
        self.client: Client = self.rig.client(ready=0)
        dead = self.rig.topic("t.dead")
        self.rig.broker.limits.set(dead, LimitOverrides(max_depth=0, max_depth_bytes=0))
        self.published = 0
        self.finished: list[bytes] = []
        self.dropped_before = 0
        self.buried_before = 0
        self.in_hand: list[Delivery] = []

    def teardown(self) -> None:
        if not hasattr(self, "directory"):
            return
        try:
            self.check_where_everything_went()
        finally:
            self.rig.broker.close()
            shutil.rmtree(self.directory)

    @rule(count=st.integers(1, 12), size=st.sampled_from([0, 40]), is_deferred=st.booleans())
    def publish(self, count: int, size: int, *, is_deferred: bool) -> None:
        first = self.published
        bodies = [b"%06d" % number + b"." * size for number in range(first, first + count)]
        try:
            self.rig.publish(*bodies, delay_s=20.0 if is_deferred else 0.0)
        except DepthLimitError:
            return
        self.published += count
        bounds = self.rig.topic().bounds
        if bounds is not None and bounds.limits.max_depth:
            channel = self.client.channel
            assert channel.queue.depth + len(channel.deferred) <= bounds.limits.max_depth

    @rule(count=st.integers(1, 8))
    def receive(self, count: int) -> None:
        self.client.ready(self.client.in_flight_count + count)
        self.rig.settle()
        self.client.ready(0)
        self.take_in_hand()

    @rule(count=st.integers(1, 8))
    def finish(self, count: int) -> None:
        for _ in range(min(count, len(self.in_hand))):
            delivery = self.in_hand.pop(0)
            assert self.client.finish(delivery.message_id) == []
            self.finished.append(delivery.body)

    @rule(count=st.integers(1, 8), delay_s=st.sampled_from([0.0, 5.0]))
    def requeue(self, count: int, delay_s: float) -> None:
        for _ in range(min(count, len(self.in_hand))):
            self.client.requeue(self.in_hand.pop().message_id, delay_s)
        self.rig.settle()

    @rule(seconds=st.sampled_from([1.0, 10.0, 40.0, 100.0]))
    def wait(self, seconds: float) -> None:
        self.rig.advance(seconds)
        held = self.client.consumer.in_flight.entries
        self.in_hand = [each for each in self.in_hand if each.message_id in held]

    @rule(seconds=st.sampled_from([1.0, 10.0]))
    def wait_while_dead_letters_are_refused(self, seconds: float) -> None:
        self.rig.topic("t.dead").refuse_publishes(DrainingError)
        self.wait(seconds)
        for delivery in self.in_hand[:2]:
            self.client.requeue(delivery.message_id)
        del self.in_hand[:2]
        self.rig.settle()
        self.rig.topic("t.dead").refuse_publishes(None)

    @rule(limits=LIMITS)
    def change_limits(self, limits: Limits) -> None:
        overrides = LimitOverrides(
            max_depth=limits.max_depth,
            max_depth_bytes=limits.max_depth_bytes,
            max_depth_policy=limits.max_depth_policy,
            msg_ttl_s=limits.msg_ttl_s,
            max_attempts=limits.max_attempts,
        )
        self.rig.broker.limits.set(self.rig.topic(), overrides)
        self.rig.settle()

    @rule(is_paused=st.booleans())
    def pause_topic(self, *, is_paused: bool) -> None:
        if is_paused:
            self.rig.topic().pause()
        else:
            self.rig.topic().unpause()
        self.rig.settle()

    @rule()
    def restart(self) -> None:
        self.note_losses()
        records = self.rig.broker.records()
        scheduler = self.rig.scheduler
        assert self.rig.broker.close() == []
        self.rig = self.make_rig()
        # Later, or message ids would begin anew; the daemon sees to that by other means.
        self.rig.scheduler.wall_ns = scheduler.wall_ns + 1_000_000_000
        self.rig.broker.load(records)
        self.client = self.rig.client(ready=0)
        self.in_hand = []

    @invariant()
    def everything_is_somewhere_once(self) -> None:
        if not hasattr(self, "directory"):
            return
        topic, channel = self.rig.topic(), self.client.channel
        limbo_count = 0 if channel.bounds is None else channel.bounds.limbo_count
        if topic.bounds is not None:
            limbo_count += topic.bounds.limbo_count
        here = (
            topic.depth + channel.depth + channel.deferred_count + channel.consumers.in_flight_count
        )
        losses = [topic.losses, channel.losses]
        gone = sum(each.dropped_count + each.dead_lettered_count for each in losses)
        before = self.dropped_before + self.buried_before
        assert len(self.finished) + before + gone + here + limbo_count == self.published

    @invariant()
    def bytes_are_those_of_the_messages(self) -> None:
        if not hasattr(self, "directory"):
            return
        channel = self.client.channel
        waiting = peek_channel(channel, EVERYTHING, {Place.MEMORY, Place.DISK})
        size_bytes = sum(len(message.body) + RECORD_OVERHEAD_BYTES for message in waiting)
        assert channel.queue.waiting_bytes == size_bytes
        kept_back = [message for _, message in channel.deferred]
        size_bytes = sum(len(message[3]) + RECORD_OVERHEAD_BYTES for message in kept_back)
        assert channel.deferred.size_bytes == size_bytes

    def take_in_hand(self) -> None:
        self.in_hand += self.client.take()

    def note_losses(self) -> None:
        for each in (self.rig.topic().losses, self.client.channel.losses):
            self.dropped_before += each.dropped_count
            self.buried_before += each.dead_lettered_count

    def check_where_everything_went(self) -> None:
        """Receive all that is left, and all dead letters; no message is among both."""
        self.rig.topic().unpause()
        self.rig.broker.limits.set(
            self.rig.topic(), LimitOverrides(max_depth=0, max_depth_bytes=0, msg_ttl_s=0.0)
        )
        self.wait(100.0)
        self.client.ready(EVERYTHING)
        self.rig.settle()
        self.take_in_hand()
        self.finish(len(self.in_hand))
        while self.in_hand:
            self.finish(len(self.in_hand))
        self.everything_is_somewhere_once()
        self.note_losses()
        buried = self.rig.client(topic="t.dead").bodies
        assert len(set(buried)) == len(buried) == self.buried_before
        assert len(set(self.finished)) == len(self.finished)
        assert set(buried).isdisjoint(self.finished)
        assert len(self.finished) + len(buried) + self.dropped_before == self.published


TestBoundsModel = BoundsModel.TestCase
TestBoundsModel.settings = settings(max_examples=60, stateful_step_count=25)
