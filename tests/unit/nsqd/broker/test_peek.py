"""Peeking: everything is shown in its order and place, and nothing has happened."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from nsqd.broker import peek
from nsqd.broker.peek import MAX_BYTES, PeekedMessage, Place, peek_channel, peek_topic
from nsqd.broker.queue.batch import Batch
from tests.support.broker_rig import BrokerRig
from tests.support.channel_rig import MSG_TIMEOUT_S, ChannelRig

ALL = tuple(Place)


def bodies(messages: Sequence[PeekedMessage]) -> list[bytes]:
    return [message.body for message in messages]


def places(messages: Sequence[PeekedMessage]) -> list[Place]:
    return [message.place for message in messages]


def test_waiting_messages_are_shown_with_id_time_and_attempts() -> None:
    rig = ChannelRig()
    ids = rig.put(b"one", b"two")

    first, second = peek_channel(rig.channel, 10, ALL)

    assert [first.message_id, second.message_id] == ids
    assert (first.body, first.attempts, first.deadline) == (b"one", 0, None)
    assert first.timestamp_ns == rig.scheduler.wall_time_ns()
    assert first.place is Place.MEMORY


def test_what_overflows_is_shown_behind_as_on_disk(tmp_path: Path) -> None:
    rig = ChannelRig(tmp_path, mem_queue_size=2)
    sent = [b"%d" % number for number in range(300)]
    for body in sent:
        rig.put(body)

    peeked = peek_channel(rig.channel, 100, ALL)

    assert bodies(peeked) == sent[:100]
    assert places(peeked) == [Place.MEMORY] * 2 + [Place.DISK] * 98


def test_the_newest_come_from_the_back_of_the_queue(tmp_path: Path) -> None:
    rig = ChannelRig(tmp_path, mem_queue_size=2)
    sent = [b"%d" % number for number in range(300)]
    for body in sent:
        rig.put(body)

    peeked = peek_channel(rig.channel, 300, ALL, is_newest=True)

    assert bodies(peeked) == sent[::-1]
    assert places(peeked) == [Place.DISK] * 298 + [Place.MEMORY] * 2
    assert bodies(peek_channel(rig.channel, 3, ALL, is_newest=True)) == sent[:-4:-1]
    assert bodies(peek_channel(rig.channel, 1, [Place.MEMORY], is_newest=True)) == [b"1"]
    assert bodies(peek_channel(rig.channel, 300, ALL)) == sent


def test_what_only_the_disk_holds_is_shown(tmp_path: Path) -> None:
    rig = ChannelRig(tmp_path, mem_queue_size=0)
    sent = [b"%d" % number for number in range(300)]
    rig.put(*sent)
    rig.channel.flush()
    rig.channel.queue.backend.close()
    reopened = ChannelRig(tmp_path, mem_queue_size=0)

    peeked = peek_channel(reopened.channel, 100, ALL)

    assert bodies(peeked) == sent[:100]
    assert set(places(peeked)) == {Place.DISK}


def test_what_is_not_asked_for_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = ChannelRig()
    rig.put(b"one", b"of a million")
    monkeypatch.setattr(Batch, "messages", None)

    assert peek_channel(rig.channel, 10, (Place.DISK, Place.IN_FLIGHT, Place.DEFERRED)) == []


def test_memory_and_disk_can_be_chosen(tmp_path: Path) -> None:
    rig = ChannelRig(tmp_path, mem_queue_size=1)
    for body in (b"memory", b"disk 1", b"disk 2"):
        rig.put(body)

    assert bodies(peek_channel(rig.channel, 10, (Place.MEMORY,))) == [b"memory"]
    assert bodies(peek_channel(rig.channel, 10, (Place.DISK,))) == [b"disk 1", b"disk 2"]


def test_in_flight_messages_are_shown_by_deadline() -> None:
    rig = ChannelRig()
    slow = rig.client(1)
    rig.put(b"slow")
    fast = rig.client(1, msg_timeout_s=1.0)
    rig.put(b"fast")

    peeked = peek_channel(rig.channel, 10, ALL)

    assert (slow.bodies, fast.bodies) == ([b"slow"], [b"fast"])
    assert bodies(peeked) == [b"fast", b"slow"]
    assert places(peeked) == [Place.IN_FLIGHT] * 2
    assert [message.attempts for message in peeked] == [1, 1]
    assert [message.deadline for message in peeked] == [
        rig.scheduler.now + 1.0,
        rig.scheduler.now + MSG_TIMEOUT_S,
    ]


def test_messages_of_a_consumer_that_left_are_shown() -> None:
    rig = ChannelRig()
    client = rig.client(1)
    rig.put(b"orphan")
    client.leave()

    assert places(peek_channel(rig.channel, 10, ALL)) == [Place.IN_FLIGHT]


def test_deferred_messages_are_shown_last_and_by_due_time() -> None:
    rig = ChannelRig()
    for delay_s in (50.0, 10.0, 30.0, 20.0, 60.0, 40.0):
        rig.put(b"%d" % delay_s, delay_s=delay_s)
    rig.put(b"waiting")

    peeked = peek_channel(rig.channel, 5, ALL)

    assert bodies(peeked) == [b"waiting", b"10", b"20", b"30", b"40"]
    assert places(peeked)[1:] == [Place.DEFERRED] * 4
    assert peeked[1].deadline == rig.scheduler.now + 10.0


def test_a_requeued_message_shows_its_attempts() -> None:
    rig = ChannelRig()
    client = rig.client(1)
    [message_id] = rig.put(b"again")
    client.ready(0)
    client.requeue(message_id)
    rig.settle()

    [message] = peek_channel(rig.channel, 10, ALL)

    assert (message.attempts, message.place) == (1, Place.MEMORY)


def test_places_can_be_chosen() -> None:
    rig = ChannelRig()
    rig.client(1)
    rig.put(b"flying")
    rig.put(b"waiting")
    rig.put(b"later", delay_s=5.0)

    for chosen, expected in (
        (Place.MEMORY, b"waiting"),
        (Place.IN_FLIGHT, b"flying"),
        (Place.DEFERRED, b"later"),
    ):
        assert bodies(peek_channel(rig.channel, 10, [chosen])) == [expected]
    assert peek_channel(rig.channel, 10, [Place.DISK]) == []


def test_a_peek_is_bounded_in_bytes_but_shows_one() -> None:
    rig = ChannelRig()
    rig.put(b"x" * (MAX_BYTES + 1), b"y", b"z")

    assert len(peek_channel(rig.channel, 10, ALL)) == 1


def test_nothing_happens_to_what_is_shown(tmp_path: Path) -> None:
    rig = ChannelRig(tmp_path, mem_queue_size=5)
    client = rig.client(2)
    rig.put(*[b"%d" % number for number in range(50)])
    rig.put(b"later", delay_s=5.0)
    channel = rig.channel
    before = (
        channel.depth,
        channel.backend_depth,
        channel.consumers.in_flight_count,
        channel.deferred_count,
    )
    first = peek_channel(channel, 100, ALL)

    assert peek_channel(channel, 100, ALL) == first

    after = (
        channel.depth,
        channel.backend_depth,
        channel.consumers.in_flight_count,
        channel.deferred_count,
    )
    assert after == before == (48, 45, 2, 1)
    client.ready(100)
    rig.settle()
    assert client.bodies == [b"%d" % number for number in range(50)]
    assert {delivery.attempts for delivery in client.take()} == {1}


@pytest.mark.parametrize(
    ("sizes", "count", "shown"),
    [
        ([5, 5, 1], 10, 2),
        ([5, 6, 1], 10, 1),
        ([20, 1], 10, 1),
        ([1, 20, 1], 10, 1),
        ([1, 1, 1], 2, 2),
        ([1, 1, 1], 3, 3),
        ([1, 1, 1], 4, 3),
    ],
)
def test_a_peek_ends_at_its_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: list[int], count: int, shown: int
) -> None:
    monkeypatch.setattr(peek, "MAX_BYTES", 10)
    rig = BrokerRig(tmp_path)
    rig.publish(*(bytes(size) for size in sizes))

    found = peek_topic(rig.topic(), count, list(Place))

    assert [len(message.body) for message in found] == sizes[:shown]
