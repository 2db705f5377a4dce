"""Who is given which messages: RDY, fair shares, pauses, sampling."""

import random

import pytest

from nsqd.broker.channel import MAX_BYTES_PER_WRITE
from nsqd.broker.consumer import (
    LINGER_S,
    MAX_MESSAGES_PER_WRITE,
    Consumer,
)
from nsqd.broker.errors import ClosedError, ConsumerLimitError
from tests.support.channel_rig import ChannelRig
from tests.support.fake_scheduler import FakeScheduler
from tests.support.recording_sink import RecordingSink


def numbers(count: int, *, start: int = 0) -> list[bytes]:
    return [b"%05d" % number for number in range(start, start + count)]


def test_nothing_is_delivered_before_rdy() -> None:
    # W-70
    rig = ChannelRig()
    client = rig.client()

    rig.put(b"a")

    assert client.bodies == []
    assert rig.channel.depth == 1


def test_messages_come_in_order_with_id_timestamp_and_attempts() -> None:
    # W-6, W-83
    rig = ChannelRig()
    client = rig.client(ready=10)
    published_ns = rig.scheduler.wall_ns

    ids = rig.put(b"a", b"b") + rig.put(b"c")

    deliveries = client.take()
    assert [delivery.body for delivery in deliveries] == [b"a", b"b", b"c"]
    assert [delivery.message_id for delivery in deliveries] == ids
    assert {delivery.timestamp_ns for delivery in deliveries} == {published_ns}
    assert {delivery.attempts for delivery in deliveries} == {1}


def test_rdy_is_a_level_and_is_not_used_up() -> None:
    # W-81
    rig = ChannelRig()
    client = rig.client(ready=3)
    ids = rig.put(*numbers(10))
    assert client.bodies == numbers(3)

    client.finish(ids[1])
    rig.advance(LINGER_S)
    assert client.bodies == numbers(4)

    client.finish(ids[0], ids[2])
    rig.advance(LINGER_S)
    assert client.bodies == numbers(6)
    assert client.in_flight_count == 3
    assert client.consumer.ready_count == 3


def test_lowering_rdy_recalls_nothing_and_stops_until_in_flight_is_below() -> None:
    # W-82, W-77
    rig = ChannelRig()
    client = rig.client(ready=5)
    ids = rig.put(*numbers(10))
    client.ready(2)
    rig.settle()
    assert client.in_flight_count == 5

    client.finish(*ids[:3])
    rig.advance(LINGER_S)
    assert len(client.bodies) == 5

    client.finish(ids[3])
    rig.advance(LINGER_S)
    assert len(client.bodies) == 6

    client.ready(0)
    client.finish(*ids[4:6])
    rig.advance(1)
    assert len(client.bodies) == 6
    assert client.in_flight_count == 0


def test_raising_rdy_delivers_at_once() -> None:
    rig = ChannelRig()
    client = rig.client(ready=1)
    rig.put(*numbers(10))

    client.ready(4)
    rig.settle()

    assert client.bodies == numbers(4)


def test_consumers_share_the_messages_fairly() -> None:
    # W-107
    rig = ChannelRig()
    clients = [rig.client(ready=100) for _ in range(4)]

    rig.put(*numbers(40))

    assert [len(client.bodies) for client in clients] == [10] * 4
    assert sorted(body for client in clients for body in client.bodies) == numbers(40)


def test_what_one_consumer_has_no_room_for_goes_to_the_others() -> None:
    rig = ChannelRig()
    small = rig.client(ready=2)
    large = rig.client(ready=100)

    rig.put(*numbers(40))

    assert len(small.bodies) == 2
    assert len(large.bodies) == 38
    assert rig.channel.depth == 0


def test_single_messages_go_round() -> None:
    rig = ChannelRig()
    clients = [rig.client(ready=100) for _ in range(3)]

    for body in numbers(9):
        rig.put(body)

    assert [len(client.bodies) for client in clients] == [3] * 3


def test_no_consumer_exceeds_its_rdy_and_the_rest_waits() -> None:
    rig = ChannelRig()
    clients = [rig.client(ready=count) for count in (1, 2, 3)]

    rig.put(*numbers(10))

    assert [len(client.bodies) for client in clients] == [1, 2, 3]
    assert rig.channel.depth == 4


def test_a_consumer_that_is_not_writable_gets_nothing_and_others_get_its_share() -> None:
    rig = ChannelRig()
    stalled = rig.client(ready=10)
    other = rig.client(ready=10)
    stalled.stall()

    rig.put(*numbers(6))

    assert stalled.bodies == []
    assert other.bodies == numbers(6)

    stalled.drain()
    rig.put(*numbers(4, start=6))
    assert len(stalled.bodies) > 0


@pytest.mark.parametrize("reason", ["not writable", "not ready", "gone"])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_one_message_finds_the_one_consumer_that_can_take_it(reason: str, count: int) -> None:
    # Those before it in the queue of ready consumers were ready once and are not any more.
    rig = ChannelRig()
    others = [rig.client(ready=1) for _ in range(count)]
    last = rig.client(ready=1)
    for other in others:
        match reason:
            case "not writable":
                other.stall()
            case "not ready":
                other.ready(0)
            case _:
                other.leave()

    rig.put(b"a")

    assert last.bodies == [b"a"]


def test_a_consumer_that_stalls_in_the_middle_of_a_turn_gets_no_more() -> None:
    rig = ChannelRig()
    client = rig.client(ready=2500)
    client.sink.on_deliver = client.stall

    rig.put(*numbers(2000))

    assert len(client.bodies) <= MAX_MESSAGES_PER_WRITE
    waiting = rig.channel.depth
    assert waiting == 2000 - len(client.bodies)

    client.sink.on_deliver = None
    client.drain()
    rig.settle()
    assert client.bodies == numbers(2000)


def test_one_write_is_bounded_in_messages() -> None:
    rig = ChannelRig()
    client = rig.client(ready=2500)

    rig.put(*numbers(2500))

    assert client.bodies == numbers(2500)
    assert max(map(len, client.sink.writes)) <= MAX_MESSAGES_PER_WRITE


def test_one_write_is_bounded_in_bytes() -> None:
    rig = ChannelRig()
    client = rig.client(ready=100)
    bodies = [bytes([number]) * 100_000 for number in range(20)]

    rig.put(*bodies)

    assert client.bodies == bodies
    for write in client.sink.writes:
        assert sum(len(delivery.body) for delivery in write) < MAX_BYTES_PER_WRITE + 100_000


def test_one_write_is_half_a_mebibyte_if_messages_fill_it_exactly() -> None:
    rig = ChannelRig()
    client = rig.client(ready=1000)

    rig.put(*[bytes(1024)] * 1000)

    assert [len(write) for write in client.sink.writes] == [512, 488]


def test_one_turn_is_bounded_and_the_rest_follows_in_the_next() -> None:
    rig = ChannelRig(mem_queue_size=100_000)
    rig.scheduler.has_tiny_slices = True
    count = 8192
    client = rig.client(ready=count)
    for start in range(0, count, 4096):
        rig.channel.put(rig.batch(*numbers(4096, start=start)))

    rig.scheduler.turn()
    assert len(client.bodies) == MAX_MESSAGES_PER_WRITE
    assert not rig.scheduler.is_idle
    rig.settle()

    assert client.bodies == numbers(count)


def test_busy_channels_take_turns() -> None:
    scheduler = FakeScheduler()
    scheduler.has_tiny_slices = True
    rigs = [ChannelRig(scheduler=scheduler, mem_queue_size=100_000) for _ in range(3)]
    clients = [rig.client(ready=100_000) for rig in rigs]
    for rig in rigs:
        rig.channel.put(rig.batch(*numbers(4096)))

    scheduler.turn()
    assert [len(client.bodies) for client in clients] == [MAX_MESSAGES_PER_WRITE] * 3
    scheduler.settle()

    assert [client.bodies for client in clients] == [numbers(4096)] * 3


def test_consumers_are_served_in_turn_across_slices() -> None:
    rig = ChannelRig()
    rig.scheduler.has_tiny_slices = True
    clients = [rig.client(ready=100) for _ in range(4)]

    rig.put(*numbers(40))

    assert all(client.sink.writes for client in clients)
    assert sorted(body for client in clients for body in client.bodies) == numbers(40)


def test_consumers_of_a_deleted_channel_are_closed_some_at_a_time_the_oldest_first() -> None:
    rig = ChannelRig()
    clients = [rig.client(ready=1) for _ in range(4)]
    rig.scheduler.has_tiny_slices = True

    rig.channel.delete()

    closed = [[client.sink.is_closed for client in clients]]
    while not rig.scheduler.is_idle:
        rig.scheduler.turn()
        closed.append([client.sink.is_closed for client in clients])
    assert [flags.count(True) for flags in closed] == [1, 2, 3, 4]
    assert all(flags == sorted(flags, reverse=True) for flags in closed)


def test_puts_of_one_turn_are_delivered_in_one_write() -> None:
    rig = ChannelRig()
    client = rig.client(ready=100)

    for body in numbers(10):
        rig.channel.put(rig.batch(body))
    rig.settle()

    assert client.bodies == numbers(10)
    assert len(client.sink.writes) == 1


def test_a_paused_channel_delivers_nothing_and_takes_everything() -> None:
    #
    rig = ChannelRig()
    client = rig.client(ready=10)
    ids = rig.put(b"a")
    rig.channel.pause()
    rig.channel.pause()

    rig.put(b"b")
    assert client.finish(*ids) == []
    client.ready(20)
    rig.advance(1)
    assert client.bodies == [b"a"]
    assert rig.channel.depth == 1

    rig.channel.unpause()
    rig.settle()
    assert client.bodies == [b"a", b"b"]


def test_timeouts_go_on_while_paused() -> None:
    # queues.md 6
    rig = ChannelRig()
    rig.client(ready=10)
    rig.put(b"a")
    rig.channel.pause()

    rig.advance(60)

    assert rig.channel.timeout_count == 1
    assert rig.channel.depth == 1


def test_sampling_drops_the_rest_for_the_whole_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    # W-105: a message is dropped if the number drawn for it is greater than the rate
    draws = iter([0, 10, 11, 99, 5, 50])
    monkeypatch.setattr(random, "randrange", lambda stop: next(draws))
    rig = ChannelRig()
    client = rig.client(ready=10, sample_rate=10)

    rig.put(*numbers(6))

    assert client.bodies == [b"00000", b"00001", b"00004"]
    assert client.in_flight_count == client.consumer.message_count == 3
    assert rig.channel.depth == 0
    assert rig.channel.message_count == 6


def test_a_consumer_that_samples_everything_away_takes_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(random, "randrange", lambda stop: 99)
    rig = ChannelRig()
    client = rig.client(ready=1, sample_rate=1)

    rig.put(*numbers(100))

    assert client.bodies == []
    assert rig.channel.depth == 0
    assert rig.channel.consumers.in_flight_count == 0


def test_the_highest_sample_rate_delivers_everything() -> None:
    # W-105
    rig = ChannelRig()
    client = rig.client(ready=1000, sample_rate=99)

    rig.put(*numbers(1000))

    assert client.bodies == numbers(1000)


def test_sampled_messages_can_be_requeued_and_finished() -> None:
    rig = ChannelRig()
    client = rig.client(ready=10, sample_rate=99)
    ids = rig.put(b"a")

    client.requeue(ids[0])
    rig.settle()

    assert [delivery.attempts for delivery in client.take()] == [1, 2]
    assert client.finish(*ids) == []


def test_the_number_of_consumers_is_limited() -> None:
    # W-75, Q-37
    rig = ChannelRig(max_consumers=2)
    first = rig.client()
    rig.client()

    with pytest.raises(ConsumerLimitError, match=r"^consumers for t:c exceeds limit of 2$"):
        rig.client()

    first.leave()
    rig.client()


def test_a_closed_channel_lets_nobody_in() -> None:
    rig = ChannelRig()
    rig.channel.delete()

    with pytest.raises(ClosedError, match=r"^exiting$"):
        rig.channel.subscribe(Consumer(RecordingSink(), msg_timeout_s=1))


def test_idle_consumers_cost_nothing_when_messages_come() -> None:
    # Only the consumers that stand in the line are asked.
    rig = ChannelRig()
    idle = [rig.client() for _ in range(1000)]
    busy = rig.client(ready=1)
    asked = 0

    class Counting(Consumer):
        __slots__ = ()

        @property
        def capacity(self) -> int:
            nonlocal asked
            asked += 1
            return 0

    for client in idle:
        client.consumer.__class__ = Counting
    rig.put(b"a")

    assert busy.bodies == [b"a"]
    assert asked == 0
