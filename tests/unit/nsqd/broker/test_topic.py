import errno
import os
from pathlib import Path
from typing import Any

import pytest

from nsqd.broker.errors import ClosedError, DrainingError
from nsqd.broker.queue.ids import SEQUENCE_COUNT
from nsqd.broker.queue.message_queue import MessageQueue
from nsqd.broker.topic import MAX_MESSAGES_PER_PIECE, RETRY_S, Topic, TopicState
from tests.support.broker_rig import BrokerRig


def numbers(count: int, *, start: int = 0) -> list[bytes]:
    return [b"%05d" % number for number in range(start, start + count)]


@pytest.fixture
def rig(tmp_path: Path) -> BrokerRig:
    return BrokerRig(tmp_path)


def test_every_channel_gets_every_message_with_equal_id_and_timestamp(rig: BrokerRig) -> None:
    # W-107
    clients = [rig.client(name) for name in ("a", "b", "c")]

    rig.publish(*numbers(10))

    first, *others = [client.take() for client in clients]
    assert [delivery.body for delivery in first] == numbers(10)
    assert len({delivery.message_id for delivery in first}) == 10
    assert others == [first, first]


def test_channels_share_one_batch(rig: BrokerRig) -> None:
    # design.md 1: fan-out to N channels costs N appends
    channels = [rig.channel(name) for name in ("a", "b", "c")]

    rig.publish(*numbers(10))

    pieces = [channel.queue.take(100, 1 << 20) for channel in channels]
    batches = {id(piece.batch) for piece in pieces if piece is not None}
    assert len(batches) == 1


def test_ids_grow_across_publishes(rig: BrokerRig) -> None:
    # W-132, also when the clock steps back
    client = rig.client()
    rig.publish(b"a", b"b")
    rig.scheduler.wall_ns -= 10**9
    rig.publish(b"c")
    rig.scheduler.wall_ns += 10**10
    rig.publish(b"d")

    assert client.bodies == [b"a", b"b", b"c", b"d"]
    assert client.sink.ids == sorted(set(client.sink.ids))


def test_more_messages_than_a_block_of_ids_are_published_in_order(rig: BrokerRig) -> None:
    client = rig.client()
    count = 2 * SEQUENCE_COUNT + 10

    rig.publish(*numbers(count))

    assert client.bodies == numbers(count)
    assert client.sink.ids == sorted(set(client.sink.ids))
    assert rig.topic().message_count == count


def test_publishing_nothing_is_nothing(rig: BrokerRig) -> None:
    # H-28
    client = rig.client()
    rig.topic().publish([])
    rig.topic("waiting").publish([])
    rig.settle()

    assert client.bodies == []
    assert rig.topic().message_count == rig.topic("waiting").depth == 0
    assert rig.channel().queue.take(1, 1) is None
    assert rig.topic("waiting").queue.take(1, 1) is None


def test_counters_count_messages_and_bytes(rig: BrokerRig) -> None:
    rig.publish(b"a", b"bcd")
    rig.channel()
    rig.publish(b"ef")

    topic = rig.topic()
    assert (topic.message_count, topic.message_bytes) == (3, 6)


def test_without_channels_the_topic_keeps_messages(rig: BrokerRig) -> None:
    #
    rig.publish(*numbers(3))

    assert rig.topic().depth == 3
    assert rig.topic().backend_depth == 0


def test_the_first_channel_gets_the_backlog_and_later_ones_do_not(rig: BrokerRig) -> None:
    #
    rig.publish(*numbers(3))
    first = rig.client("first")
    second = rig.client("second")
    assert rig.topic().depth == 0

    rig.publish(b"new")

    assert first.bodies == [*numbers(3), b"new"]
    assert second.bodies == [b"new"]


def test_after_the_last_channel_is_deleted_messages_collect_again(rig: BrokerRig) -> None:
    #
    rig.channel()
    rig.publish(b"a")
    rig.topic().delete_channel("c")
    rig.publish(b"b")
    assert rig.topic().depth == 1

    client = rig.client("d")

    assert client.bodies == [b"b"]


def test_a_large_backlog_is_moved_in_turns_and_stays_in_order(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path, mem_queue_size=100)
    rig.scheduler.has_tiny_slices = True
    count = 3 * MAX_MESSAGES_PER_PIECE
    rig.publish(*numbers(count))
    assert rig.topic().backend_depth == count - 100
    channel = rig.topic().ensure_channel("c")

    rig.scheduler.turn()
    assert 0 < channel.depth <= MAX_MESSAGES_PER_PIECE
    rig.topic().publish([b"behind"])
    rig.settle()
    client = rig.client()

    assert client.bodies == [*numbers(count), b"behind"]
    assert rig.topic().depth == 0


def test_a_paused_topic_copies_nothing_and_takes_everything(rig: BrokerRig) -> None:
    #
    client = rig.client()
    rig.topic().pause()
    rig.topic().pause()
    rig.publish(*numbers(3))
    assert client.bodies == []
    assert rig.topic().depth == 3

    rig.topic().unpause()
    rig.settle()
    rig.publish(b"new")

    assert client.bodies == [*numbers(3), b"new"]


def test_a_pause_between_two_turns_stops_the_copying(rig: BrokerRig) -> None:
    topic = rig.topic()
    topic.publish(numbers(3))
    channel = topic.ensure_channel("c")
    topic.pause()
    rig.settle()

    assert (topic.depth, channel.depth) == (3, 0)


def test_a_starting_topic_waits_until_it_is_told_its_channels(rig: BrokerRig) -> None:
    #
    started: list[Topic] = []
    rig.broker.starter = started.append
    topic = rig.topic()
    topic.ensure_channel("a")
    rig.publish(*numbers(3))
    assert topic.state is TopicState.STARTING
    assert topic.depth == 3

    topic.ensure_channel("b")
    started[0].start()
    rig.settle()

    assert [channel.depth for channel in topic.channels.values()] == [3, 3]
    assert topic.depth == 0
    topic.start()
    rig.publish(b"new")
    assert [channel.depth for channel in topic.channels.values()] == [4, 4]


def test_a_deferred_message_is_kept_back_by_each_channel(rig: BrokerRig) -> None:
    # W-63, Q-20
    clients = [rig.client(name) for name in ("a", "b")]

    rig.publish(b"later", delay_s=2.0)
    assert [client.channel.deferred_count for client in clients] == [1, 1]
    rig.advance(2)

    assert [client.bodies for client in clients] == [[b"later"], [b"later"]]
    assert rig.topic().message_count == 1


def test_the_delay_begins_when_the_message_reaches_the_channel(rig: BrokerRig) -> None:
    # queues.md 4
    rig.publish(b"later", delay_s=2.0)
    rig.advance(100)

    client = rig.client()
    rig.advance(1.999)
    assert client.bodies == []
    rig.advance(0.001)

    assert client.bodies == [b"later"]


def test_a_delay_survives_the_topics_disk_while_the_message_is_in_memory_too(
    tmp_path: Path,
) -> None:
    # Q-21, improved where it costs nothing
    rig = BrokerRig(tmp_path, mem_queue_size=0)
    rig.publish(b"later", delay_s=2.0)

    client = rig.client()
    assert client.bodies == []
    rig.advance(2)

    assert client.bodies == [b"later"]


def test_empty_drops_the_topics_backlog_alone(rig: BrokerRig) -> None:
    #
    channel = rig.channel()
    rig.publish(b"a")
    rig.topic().pause()
    rig.publish(b"b")

    rig.topic().empty()
    rig.topic().unpause()
    rig.publish(b"c")

    assert rig.topic().depth == 0
    assert channel.depth == 2


def test_overflow_of_an_unread_topic_goes_to_disk(tmp_path: Path) -> None:
    #
    rig = BrokerRig(tmp_path, mem_queue_size=2)
    rig.publish(*numbers(3))
    assert (rig.topic().depth, rig.topic().backend_depth) == (3, 1)

    assert rig.client().bodies == numbers(3)


def test_what_was_moved_to_the_channels_leaves_the_topics_disk(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path, mem_queue_size=0)
    rig.publish(*numbers(10))
    rig.channel()
    rig.settle()
    assert rig.broker.close() == []

    again = BrokerRig(tmp_path, mem_queue_size=0)
    assert again.topic().depth == 0
    assert again.client().bodies == numbers(10)


def test_a_topic_that_is_deleted_takes_nothing(rig: BrokerRig) -> None:
    topic = rig.topic()
    rig.broker.delete_topic("t")

    with pytest.raises(ClosedError, match=r"^exiting$"):
        topic.publish([b"a"])
    with pytest.raises(ClosedError, match=r"^exiting$"):
        topic.ensure_channel("c")
    topic.start()
    assert topic.state is TopicState.CLOSED


@pytest.mark.parametrize("stubborn", ["t:a.", "t.", "t:b."])
def test_a_file_that_cannot_be_removed_is_told_and_all_else_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stubborn: str
) -> None:
    rig = BrokerRig(tmp_path, mem_queue_size=0)
    rig.publish(*numbers(10))
    rig.settle()
    for name in ("a", "b"):
        rig.channel(name).pause()
    rig.settle()
    rig.topic().pause()
    rig.publish(*numbers(10))
    rig.advance(10)
    unlink = os.unlink

    def refuse(path: str) -> None:
        if os.path.basename(path).startswith(stubborn):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        unlink(path)

    monkeypatch.setattr(os, "unlink", refuse)

    receipt = rig.broker.delete_topic("t")
    rig.settle()

    assert isinstance(receipt.error, PermissionError)
    left = {path.name for path in tmp_path.iterdir() if path.name.startswith("t")}
    assert left
    assert all(name.startswith(stubborn) for name in left)


def test_a_closed_topic_stays_closed_when_publishes_are_accepted_again(rig: BrokerRig) -> None:
    topic = rig.topic()
    assert rig.broker.close() == []

    rig.broker.refuse_publishes(None)

    with pytest.raises(ClosedError, match=r"^exiting$"):
        topic.publish([b"a"])


def test_a_draining_topic_takes_nothing_and_delivers_the_rest(rig: BrokerRig) -> None:
    rig.publish(*numbers(3))
    rig.broker.drain()

    with pytest.raises(DrainingError, match=r"^draining$"):
        rig.topic().publish([b"a"])
    with pytest.raises(DrainingError):
        rig.topic("new").publish([b"a"])
    assert rig.client().bodies == numbers(3)


def test_a_publish_that_the_disk_refuses_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # W-68, Q-36
    rig = BrokerRig(tmp_path, mem_queue_size=0)
    for has_channel in (False, True):
        if has_channel:
            rig.channel()
            rig.settle()
        before = rig.topic().message_count
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", _refuse)
            with pytest.raises(OSError, match="No space left"):
                rig.topic().publish([b"a", b"b"])
        assert rig.topic().message_count == before
        assert rig.topic().depth == 0
        assert not rig.broker.is_healthy
        queue = "t:c" if has_channel else "t"
        assert rig.broker.health == f"NOK - {queue}: no space left on device"

        rig.publish(b"c")
        assert rig.broker.health == "OK"
    assert rig.client().bodies == [b"c", b"c"]


def test_a_copy_that_fails_is_tried_again_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # queues.md quirk 7, improved: the channel whose disk is full gets the messages later
    rig = BrokerRig(tmp_path, mem_queue_size=5)
    rig.topic().pause()
    good = rig.client("good")
    full = rig.channel("full")
    rig.publish(*numbers(5))
    rig.topic().unpause()
    rig.settle()
    rig.topic().pause()
    rig.publish(*numbers(4, start=5))
    assert full.depth == 5

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", _refuse)
        rig.topic().unpause()
        rig.settle()
        rig.advance(RETRY_S * 5)
        assert rig.topic().depth == 4
    rig.advance(RETRY_S)

    assert rig.topic().depth == 0
    assert good.bodies == numbers(9)
    assert rig.client("full").bodies == numbers(9)


def test_a_deleted_channel_does_not_count_for_a_copy_that_another_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = BrokerRig(tmp_path, mem_queue_size=1)
    rig.channel("good#ephemeral")
    full = rig.channel("full")
    topic = rig.topic()
    topic.pause()
    rig.publish(b"1", b"2")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", _refuse)
        topic.unpause()
        rig.settle()
        was_partial = topic.hand_over.is_partial
        topic.delete_channel("good#ephemeral")
        assert (was_partial, topic.hand_over.is_partial) == (True, False)
    rig.advance(RETRY_S)

    assert (topic.depth, full.depth) == (0, 2)


def test_emptying_a_topic_ends_a_copy_that_one_channel_has_and_another_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = BrokerRig(tmp_path, mem_queue_size=1)
    rig.channel("good#ephemeral")
    full = rig.channel("full")
    rig.publish(b"fills the memory")
    rig.topic().pause()
    rig.publish(b"emptied")
    good = rig.client("good#ephemeral")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", _refuse)
        rig.topic().unpause()
        rig.settle()
    assert good.bodies == [b"fills the memory", b"emptied"]

    rig.topic().empty()
    rig.topic().pause()
    rig.publish(b"next")
    rig.topic().unpause()
    rig.advance(RETRY_S)

    assert good.bodies == [b"fills the memory", b"emptied", b"next"]
    assert full.depth == 2


def test_publishes_during_a_failure_cause_no_storm_of_retries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = BrokerRig(tmp_path, mem_queue_size=5)
    rig.topic().pause()
    rig.channel()
    rig.publish(*numbers(5))
    rig.topic().unpause()
    rig.settle()
    rig.topic().pause()
    rig.publish(b"stuck")
    refusals: list[object] = []
    monkeypatch.setattr(os, "pwrite", lambda *arguments: _note(refusals, arguments))
    rig.topic().unpause()

    for _ in range(4):
        rig.publish(b"behind")
    assert len(refusals) == 1
    rig.advance(RETRY_S * 10)

    assert len(refusals) == 11


def test_a_topic_whose_disk_cannot_be_read_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = BrokerRig(tmp_path, mem_queue_size=0)
    rig.publish(*numbers(3))
    assert rig.broker.close() == []
    rig = BrokerRig(tmp_path, mem_queue_size=0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", _refuse)
        rig.channel()
        rig.advance(RETRY_S * 2)
        assert rig.topic().depth == 3

    rig.advance(RETRY_S)

    assert rig.client().bodies == numbers(3)


def test_an_ephemeral_topic_drops_what_exceeds_memory(tmp_path: Path) -> None:
    #
    rig = BrokerRig(tmp_path, mem_queue_size=3)
    rig.publish(*numbers(10), topic="t#ephemeral")

    topic = rig.topic("t#ephemeral")
    assert topic.depth == 3
    assert topic.message_count == 10
    assert rig.client("c", "t#ephemeral").bodies == numbers(3)


@pytest.mark.parametrize("mem_queue_size", [0, 100])
def test_an_ephemeral_channel_with_a_waiting_consumer_gets_everything(
    tmp_path: Path, mem_queue_size: int
) -> None:
    # queues.md 1: a direct hand-off even without a memory queue
    rig = BrokerRig(tmp_path, mem_queue_size=mem_queue_size)
    client = rig.client("c#ephemeral")

    rig.publish(*numbers(50))

    assert client.bodies == numbers(50)


def _refuse(*_arguments: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def _note(calls: list[object], arguments: tuple[object, ...]) -> int:
    calls.append(arguments)
    return _refuse()


@pytest.mark.parametrize("count", [SEQUENCE_COUNT, SEQUENCE_COUNT + 1, 2 * SEQUENCE_COUNT + 3])
@pytest.mark.parametrize("has_channel", [False, True])
def test_more_messages_than_a_block_of_ids_are_deferred_together(
    rig: BrokerRig, count: int, *, has_channel: bool
) -> None:
    if has_channel:
        rig.channel()
    rig.publish(*numbers(count), delay_s=5.0)
    published_ns = rig.scheduler.wall_time_ns()
    client = rig.client()
    rig.advance(4.999)
    assert client.take() == []

    rig.advance(0.002)

    deliveries = client.take()
    assert [delivery.body for delivery in deliveries] == numbers(count)
    ids = [delivery.message_id for delivery in deliveries]
    assert ids == sorted(set(ids))
    assert {(each.timestamp_ns, each.attempts) for each in deliveries} == {(published_ns, 1)}
    assert (rig.topic().message_count, rig.topic().depth) == (count, 0)


@pytest.mark.parametrize("failing", ["t", "t:c", "both"])
def test_a_stop_tells_every_queue_that_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    rig = BrokerRig(tmp_path)
    channel = rig.channel()
    topic = rig.topic()
    topic.pause()
    rig.publish(b"1")

    queues = {"t": [topic.queue], "t:c": [channel.queue], "both": [topic.queue, channel.queue]}
    flush = MessageQueue.flush

    def flush_some(queue: MessageQueue, *arguments: Any) -> None:
        if queue in queues[failing]:
            raise OSError(errno.ENOSPC, "No space left on device")
        flush(queue, *arguments)

    monkeypatch.setattr(MessageQueue, "flush", flush_some)

    errors = topic.flush()

    assert len(errors) == (2 if failing == "both" else 1)
    assert all(error.errno == errno.ENOSPC for error in errors)


@pytest.mark.parametrize("name", ["t", "t#ephemeral"])
def test_a_deleted_topic_is_over_at_once(tmp_path: Path, name: str) -> None:
    rig = BrokerRig(tmp_path)
    topic = rig.topic(name)
    client = rig.client(topic=name)
    rig.publish(b"1", topic=name)
    abandoned: list[str] = []
    topic.on_abandoned = lambda: abandoned.append(name)

    topic.delete()

    assert topic.state is TopicState.CLOSED
    assert (topic.channels, client.sink.is_closed, abandoned) == ({}, True, [])
    assert not topic.hand_over.is_direct
    with pytest.raises(ClosedError):
        topic.publish([b"2"])
    with pytest.raises(ClosedError):
        topic.ensure_channel("new")
    assert topic.on_channel_change is None, "it refers to the topic"
    rig.settle()
    assert (topic.depth, topic.message_count) == (0, 1)


@pytest.mark.parametrize("name", ["t", "t#ephemeral"])
def test_only_an_ephemeral_topic_is_abandoned_with_its_last_channel(
    tmp_path: Path, name: str
) -> None:
    rig = BrokerRig(tmp_path)
    topic = rig.topic(name)
    for channel in ("a", "b"):
        rig.channel(channel, name)
    abandoned: list[str] = []
    topic.on_abandoned = lambda: abandoned.append(name)

    topic.delete_channel("a")
    assert topic.delete_channel("a").is_done  # it is gone
    assert abandoned == []
    topic.delete_channel("b")

    assert abandoned == ([name] if "#" in name else [])
