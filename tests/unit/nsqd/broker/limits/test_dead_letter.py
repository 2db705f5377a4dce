"""Dead letters: messages beyond a limit are published to another topic, none is lost on the way."""

import errno
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from nsqd.broker.errors import ClosedError, DrainingError
from nsqd.broker.limits import dead_letter
from nsqd.broker.limits.causes import Cause
from nsqd.broker.limits.dead_letter import DeadLetters, Limbo, Publish, find_dead_letter_name
from nsqd.broker.limits.overrides import LimitOverrides
from nsqd.broker.peek import Place, peek_topic
from nsqd.broker.queue.batch import Message
from nsqd.broker.queue.receipt import Receipt
from nsqd.broker.topic import Topic
from nsqd.config.limits import Limits
from tests.support.broker_rig import BrokerRig
from tests.support.fake_scheduler import FakeScheduler
from tests.support.limit_counts import SIZES, dropped, numbered, refuse


def test_dead_letter_topics_have_valid_names() -> None:
    assert find_dead_letter_name("orders", ".dead") == "orders.dead"
    assert find_dead_letter_name("orders", "") is None
    assert find_dead_letter_name("x" * 59, ".dead") == "x" * 59 + ".dead"
    assert find_dead_letter_name("x" * 60, ".dead") is None
    assert find_dead_letter_name("orders#ephemeral", ".dead") is None


def messages(*bodies: bytes) -> list[Message]:
    return [(b"0123456789abcdef", 1, 1, body, None) for body in bodies]


def has_room(limbo: Limbo) -> bool:
    return limbo.has_room


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
        rig.advance(5)  # a message on disk stays there until its dead letter is synced

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

        rig.advance(110)

        assert (channel.depth, channel.losses.dead_lettered_count) == (0, 10)
        assert rig.client(topic="t.dead").bodies == numbered(10)

    def test_a_message_on_disk_is_a_dead_letter_on_disk(self, tmp_path: Path) -> None:
        rig = BrokerRig(tmp_path, mem_queue_size=3, limits=self.LIMITS)
        client = rig.client(ready=0)
        rig.publish(*numbered(10))  # three of them in memory
        client.ready(10)
        rig.settle()
        for delivery in reversed(client.take()):
            client.requeue(delivery.message_id)
        rig.advance(5)

        shown = peek_topic(rig.topic("t.dead"), 10, Place)
        assert sorted(each.body for each in shown) == numbered(10)
        in_memory = [each.body for each in shown if each.place is Place.MEMORY]
        assert set(in_memory) <= set(numbered(3))
        assert client.channel.losses.dead_lettered_count == 10

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

    def test_a_refused_dead_letter_is_tried_again(self, tmp_path: Path) -> None:
        rig = BrokerRig(tmp_path, mem_queue_size=0, limits=self.LIMITS)
        client = rig.client()
        dead = rig.topic("t.dead")
        rig.publish(b"poison")
        [delivery] = client.take()
        dead.refuse_publishes(lambda: OSError(errno.ENOSPC, "No space left on device"))
        client.requeue(delivery.message_id)
        rig.advance(3)
        assert client.channel.losses.dead_lettered_count == 0
        assert client.channel.bounds is not None
        assert client.channel.bounds.limbo_count == 1
        assert client.channel.queue.backend.outstanding_count == 1
        dead.refuse_publishes(None)

        rig.advance(5)

        assert client.channel.losses.dead_lettered_count == 1
        assert dead.depth == 1
        assert client.channel.queue.backend.outstanding_count == 0

    @pytest.mark.parametrize("has_limits_left", [True, False])
    def test_messages_of_the_topic_that_new_limits_keep_are_delivered(
        self, tmp_path: Path, *, has_limits_left: bool
    ) -> None:
        """They were in limbo, in no queue, when the channels got what waited in the topic."""
        rig = BrokerRig(tmp_path, limits=replace(self.LIMITS, msg_ttl_s=30.0))
        client = rig.client()
        rig.topic().pause()
        rig.publish(b"kept")
        rig.topic("t.dead").refuse_publishes(DrainingError)
        rig.advance(40)
        rig.topic().unpause()
        rig.settle()
        bounds = rig.topic().bounds
        assert bounds is not None
        assert bounds.limbo_count == 1

        suffix = ".dead" if has_limits_left else ""
        overrides = LimitOverrides(max_attempts=0, msg_ttl_s=0.0, dead_letter_topic_suffix=suffix)
        rig.broker.limits.set(rig.topic(), overrides)
        rig.publish(b"next")
        rig.settle()

        assert [delivery.body for delivery in client.take()] == [b"kept", b"next"]

    def test_what_is_in_limbo_survives_a_stop(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rig = BrokerRig(tmp_path, limits=self.LIMITS)
        client = rig.client()
        rig.topic("t.dead")
        rig.publish(b"poison")
        [delivery] = client.take()
        monkeypatch.setattr(Topic, "publish_moved", refuse)
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
        publish = Topic.publish_moved
        monkeypatch.setattr(Topic, "publish_moved", refuse)
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
        monkeypatch.setattr(Topic, "publish_moved", publish)
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
            patch.setattr(Topic, "publish_moved", refuse)
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
        rig.scheduler.finish_thread()  # writes the dead letter
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


def test_limits_set_anew_bring_dead_letters_back_to_their_topic(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path, limits=Limits(msg_ttl_s=10, dead_letter_topic_suffix=".dead"))
    rig.publish(b"a", b"b")
    rig.broker.drain()  # dead letters are refused like everything else
    rig.advance(11)
    topic = rig.topic()
    assert topic.bounds is not None
    assert (topic.depth, topic.bounds.limbo_count) == (0, 2)

    rig.broker.limits.set(topic, LimitOverrides(msg_ttl_s=0.0))

    assert topic.depth == 2
    assert rig.client().bodies == [b"a", b"b"]


@pytest.mark.parametrize("has_channel", [False, True])
@pytest.mark.parametrize("ttl_s", [0.0, 500.0])
def test_limits_set_anew_do_not_bring_published_dead_letters_back(
    tmp_path: Path, ttl_s: float, *, has_channel: bool
) -> None:
    limits = Limits(msg_ttl_s=30, dead_letter_topic_suffix=".dead")
    rig = BrokerRig(tmp_path, mem_queue_size=0, sync_every=2500, limits=limits)
    topic = rig.topic()
    client = rig.client(ready=0) if has_channel else None
    rig.publish(b"old")
    rig.advance(31)
    assert rig.topic("t.dead").depth == 1, "published, and not synced yet"

    rig.broker.limits.set(topic, LimitOverrides(msg_ttl_s=ttl_s))
    rig.advance(5)

    assert rig.client(topic="t.dead").bodies == [b"old"]
    client = client or rig.client(ready=0)
    client.ready(10)
    assert client.bodies == []
    losses = [topic.losses, client.channel.losses]
    assert sum(each.dead_lettered_count for each in losses) == 1


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


class TestLimbo:
    """Limbo: what the dead-letter topic refuses is published again after RETRY_S."""

    def make(self, scheduler: FakeScheduler, publish: Publish) -> tuple[Limbo, list[Message]]:
        safe: list[Message] = []
        return Limbo("t.dead", ("t", "c"), publish, scheduler, safe.extend), safe

    def test_refused_messages_wait_for_the_retry_in_order(self) -> None:
        scheduler = FakeScheduler()
        start = scheduler.now
        tried: list[tuple[float, Sequence[bytes]]] = []

        def publish(name: str, letters: DeadLetters) -> None:
            tried.append((scheduler.now - start, letters.bodies))
            if len(tried) < 3:
                raise ClosedError

        limbo, safe = self.make(scheduler, publish)
        limbo.add(messages(b"a"), "attempts")
        scheduler.advance(0.5)
        limbo.add(messages(b"b"), "attempts")
        assert (len(limbo), safe) == (2, [])
        scheduler.advance(10)

        assert tried == [
            (0.0, [b"a"]),
            (dead_letter.RETRY_S, [b"a", b"b"]),
            (2 * dead_letter.RETRY_S, [b"a", b"b"]),
        ]
        assert (len(limbo), safe) == (0, messages(b"a", b"b"))
        assert scheduler.pending_timers == []

    def test_bounds_of_refused_messages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(dead_letter, "MAX_REFUSED_COUNT", 3)
        monkeypatch.setattr(dead_letter, "MAX_REFUSED_BYTES", 10)
        limbo, _ = self.make(FakeScheduler(), refuse)

        assert has_room(limbo)
        limbo.add(messages(b"12345", b"6789"), "attempts")
        assert has_room(limbo)
        limbo.add(messages(b"x"), "attempts")
        assert not has_room(limbo)
        assert limbo.clear() == messages(b"12345", b"6789", b"x")
        limbo.add(messages(b"1234567890"), "attempts")
        assert not has_room(limbo)

    def test_bounds_of_messages_that_wait_for_the_disk(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dead_letter, "MAX_UNSYNCED_COUNT", 3)
        monkeypatch.setattr(dead_letter, "MAX_UNSYNCED_BYTES", 10)
        receipts: list[Receipt] = []

        def publish(name: str, letters: DeadLetters) -> Receipt:
            receipts.append(Receipt(1))
            return receipts[-1]

        limbo, safe = self.make(FakeScheduler(), publish)
        limbo.add(messages(b"a", b"b"), "attempts")
        assert has_room(limbo)
        limbo.add(messages(b"c"), "attempts")
        assert not has_room(limbo)
        receipts[0].settle(None)
        assert has_room(limbo)
        assert (len(limbo), safe) == (1, messages(b"a", b"b"))
        limbo.add(messages(b"123456789"), "attempts")
        assert not has_room(limbo)
        assert limbo.clear() == messages(b"c", b"123456789")
        assert has_room(limbo)
        receipts[1].settle(None)
        assert safe == messages(b"a", b"b"), "cleared before the disk had it"


class Mailbox:
    """A dead-letter topic that takes letters, refuses them, or has receipts for them."""

    def __init__(self) -> None:
        self.published: list[tuple[str, list[bytes], bool]] = []
        self.causes: list[Cause] = []
        self.error: Exception | None = None
        self.receipts: list[Receipt] = []
        self.is_durable = False

    def publish(self, name: str, letters: DeadLetters) -> Receipt | None:
        if self.error is not None:
            raise self.error
        self.published.append((name, list(letters.bodies), letters.is_stored))
        self.causes += letters.causes
        if not self.is_durable:
            return None
        self.receipts.append(Receipt(1))
        return self.receipts[-1]


class TestMailbox:
    """One limbo with a mailbox; `safe` has the bodies of which the queue was told."""

    def setup_method(self) -> None:
        self.scheduler = FakeScheduler()
        self.mailbox = Mailbox()
        self.safe: list[bytes] = []
        self.limbo = Limbo(
            "t.dead",
            ("t", "c"),
            self.mailbox.publish,
            self.scheduler,
            lambda messages: self.safe.extend(message[3] for message in messages),
        )

    def add(self, *bodies: bytes, stored: str = "") -> None:
        """Add messages; `stored` has a 1 for each that is on disk."""
        marks = stored or "0" * len(bodies)
        self.limbo.add(
            [
                (b"0123456789abcdef", 1, 1, body, 7 if mark == "1" else None)
                for body, mark in zip(bodies, marks, strict=True)
            ],
            "ttl",
        )

    def test_messages_in_memory_and_on_disk_are_published_apart_and_in_order(self) -> None:
        self.add(*numbered(7), stored="0011101")
        self.scheduler.settle()

        parts = [(bodies, is_stored) for _, bodies, is_stored in self.mailbox.published]
        assert parts == [
            ([b"0", b"1"], False),
            ([b"2", b"3", b"4"], True),
            ([b"5"], False),
            ([b"6"], True),
        ]
        assert (self.safe, len(self.limbo)) == (numbered(7), 0)

    def test_many_are_published_a_step_in_each_turn(self) -> None:
        step = dead_letter.MAX_MESSAGES_PER_STEP
        self.add(*numbered(2 * step + 1))
        counts = [len(self.safe)]
        while not self.scheduler.is_idle:
            self.scheduler.turn()
            counts.append(len(self.safe))

        assert counts == [step, 2 * step, 2 * step + 1]
        assert self.safe == numbered(2 * step + 1)

    def test_steps_of_a_cleared_limbo_publish_nothing(self) -> None:
        step = dead_letter.MAX_MESSAGES_PER_STEP
        self.add(*numbered(step + 5))
        assert len(self.limbo.clear()) == 5
        self.scheduler.settle()
        assert len(self.safe) == step

        self.add(b"new")  # at once: no step is planned any more

        assert self.safe[step:] == [b"new"]
        assert self.scheduler.is_idle

    def test_letters_that_come_while_steps_are_planned_wait_behind_the_others(self) -> None:
        step = dead_letter.MAX_MESSAGES_PER_STEP
        self.add(*numbered(step + 1))
        self.add(b"later")
        assert len(self.safe) == step
        self.scheduler.settle()

        assert self.safe == [*numbered(step + 1), b"later"]

    def test_refused_letters_are_tried_again_after_a_while_and_in_order(self) -> None:
        self.mailbox.error = ClosedError()
        self.add(b"1")
        self.add(b"2")
        assert (len(self.limbo), len(self.scheduler.pending_timers)) == (2, 1)
        assert [message[3] for message in self.limbo.copy()] == [b"1", b"2"]
        self.scheduler.advance(dead_letter.RETRY_S)
        assert len(self.scheduler.pending_timers) == 1, "refused again"
        self.mailbox.error = None
        self.scheduler.advance(dead_letter.RETRY_S * 0.99)
        assert self.safe == []

        self.scheduler.advance(dead_letter.RETRY_S * 0.02)

        assert (self.safe, len(self.limbo)) == ([b"1", b"2"], 0)
        assert self.scheduler.pending_timers == []

    @pytest.mark.parametrize("way", ["clear", "move"])
    def test_a_limbo_that_is_cleared_or_moved_has_no_timer(self, way: str) -> None:
        self.mailbox.error = ClosedError()
        self.add(b"1")
        moved: list[bytes] = []

        if way == "clear":
            left = self.limbo.clear()
        else:
            left = self.limbo.move("other", lambda them: moved.extend(it[3] for it in them))

        assert [message[3] for message in left] == [b"1"]
        assert (self.scheduler.pending_timers, len(self.limbo)) == ([], 0)
        self.mailbox.error = None
        self.add(b"2")
        assert self.mailbox.published == [("other" if moved else "t.dead", [b"2"], False)]
        assert (self.safe, moved) == (([], [b"2"]) if moved else ([b"2"], []))

    def test_the_queue_is_told_when_the_letters_are_synced(self) -> None:
        self.mailbox.is_durable = True
        self.add(b"1")
        self.add(b"22", b"33")
        assert (len(self.limbo), self.safe) == (3, [])

        self.mailbox.receipts[1].settle(None)
        assert (len(self.limbo), self.safe) == (1, [b"22", b"33"])
        self.mailbox.receipts[0].settle(OSError(errno.EIO, "Input/output error"))
        assert (len(self.limbo), self.safe) == (1, [b"22", b"33"])
        self.scheduler.advance(dead_letter.RETRY_S)
        self.mailbox.receipts[2].settle(None)

        assert (len(self.limbo), self.safe) == (0, [b"22", b"33", b"1"])

    def test_the_sync_of_letters_that_were_cleared_is_not_told(self) -> None:
        self.mailbox.is_durable = True
        self.add(b"1")
        assert [message[3] for message in self.limbo.clear()] == [b"1"]

        self.mailbox.receipts[0].settle(None)

        assert (len(self.limbo), self.safe) == (0, [])

    @pytest.mark.parametrize("is_durable", [False, True])
    @pytest.mark.parametrize("bound", ["COUNT", "BYTES"])
    def test_room_ends_at_the_bound_and_comes_again(
        self, monkeypatch: pytest.MonkeyPatch, bound: str, *, is_durable: bool
    ) -> None:
        kind = "UNSYNCED" if is_durable else "REFUSED"
        monkeypatch.setattr(dead_letter, f"MAX_{kind}_{bound}", 4 if bound == "COUNT" else 8)
        self.mailbox.is_durable = is_durable
        self.mailbox.error = None if is_durable else ClosedError()

        self.add(b"11", b"22", b"33")
        rooms = [has_room(self.limbo)]
        self.add(b"44")
        rooms.append(has_room(self.limbo))
        if is_durable:
            self.mailbox.receipts[1].settle(None)
        else:
            self.mailbox.error = None
            self.scheduler.advance(dead_letter.RETRY_S)
        rooms.append(has_room(self.limbo))

        assert rooms == [True, False, True]

    def test_a_try_after_a_refusal_is_made_when_its_time_has_come(self) -> None:
        self.mailbox.error = ClosedError()
        self.add(b"1")
        [timer] = self.scheduler.pending_timers
        self.mailbox.error = None

        timer.fire()

        assert (self.safe, self.scheduler.is_idle) == ([b"1"], True)

    def test_a_letter_has_the_cause_of_its_message(self) -> None:
        self.limbo.add([(b"0123456789abcdef", 12, 34, b"body", None)], "ttl")
        self.limbo.add([(b"fedcba9876543210", 56, 78, b"other", 9)], "attempts")

        assert self.mailbox.causes == [
            Cause("t", "c", "ttl", 34, b"0123456789abcdef", 12),
            Cause("t", "c", "attempts", 78, b"fedcba9876543210", 56),
        ]
