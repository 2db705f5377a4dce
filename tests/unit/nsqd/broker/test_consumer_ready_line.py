"""Which consumer is served next, and with how much: turns, shares, localities, lingering."""

import pytest

from nsqd.broker.consumer import (
    LINGER_MAX_COUNT,
    LINGER_S,
    MAX_MESSAGES_PER_WRITE,
    Consumer,
    Locality,
    ReadyLine,
)
from nsqd.broker.in_flight import InFlight
from tests.support.channel_rig import ChannelRig
from tests.support.fake_scheduler import FakeScheduler
from tests.support.recording_sink import RecordingSink


def numbers(count: int, *, start: int = 0) -> list[bytes]:
    return [b"%05d" % number for number in range(start, start + count)]


class Rig:
    """A line on its own, with a backlog that is a number."""

    def __init__(self) -> None:
        self.scheduler = FakeScheduler()
        self.joined_count = 0
        self.line = ReadyLine(self.scheduler, self._note_joined)
        self.depth = 0
        # Who was asked to take how many.
        self.served: list[tuple[Consumer, int]] = []
        self.error: OSError | None = None
        self.is_resting = False  # nothing can be taken from the backlog

    def _note_joined(self) -> None:
        self.joined_count += 1

    def consumer(self, ready: int, locality: Locality = Locality.GLOBAL) -> Consumer:
        consumer = Consumer(RecordingSink(), msg_timeout_s=60.0, locality=locality)
        consumer.in_flight = InFlight(self.scheduler, lambda messages: None)
        consumer.ready_count = ready
        return consumer

    def deliver(self, consumer: Consumer, count: int) -> int:
        """Note it, and let the consumer have nothing in flight: it keeps its room."""
        self.served.append((consumer, count))
        if self.error is not None:
            raise self.error
        if self.is_resting:
            return 0
        self.depth -= count
        return count

    def serve(self) -> bool:
        return self.line.serve(self, self.deliver)


def test_a_consumer_stands_in_the_line_once() -> None:
    rig = Rig()
    consumer = rig.consumer(ready=5)

    assert rig.line.join(consumer)
    assert rig.line.join(consumer)
    rig.line.leave(consumer)

    assert rig.line.is_empty
    assert not consumer.is_in_line


def test_a_consumer_without_room_does_not_join() -> None:
    rig = Rig()
    idle, full = rig.consumer(ready=0), rig.consumer(ready=1)
    full.is_writable = False

    assert not rig.line.join(idle)
    assert not rig.line.join(full)

    assert rig.line.is_empty


def test_a_line_with_a_consumer_of_any_locality_is_not_empty() -> None:
    for locality in Locality:
        rig = Rig()
        rig.line.join(rig.consumer(ready=1, locality=locality))
        assert not rig.line.is_empty


def test_the_backlog_is_shared_evenly_rounded_up() -> None:
    rig = Rig()
    consumers = [rig.consumer(ready=100) for _ in range(3)]
    for consumer in consumers:
        rig.line.join(consumer)
    rig.depth = 10

    assert not rig.serve()

    assert rig.served == [(consumers[0], 4), (consumers[1], 4), (consumers[2], 4)]


def test_a_share_is_no_more_than_the_room_and_one_write() -> None:
    rig = Rig()
    small, large = rig.consumer(ready=3), rig.consumer(ready=100_000)
    rig.line.join(small)
    rig.line.join(large)
    rig.depth = 2 * MAX_MESSAGES_PER_WRITE + 2

    rig.serve()

    assert rig.served[:2] == [(small, 3), (large, MAX_MESSAGES_PER_WRITE)]


def test_a_slice_ends_after_a_delivery_and_says_that_there_is_more() -> None:
    rig = Rig()
    rig.scheduler.has_tiny_slices = True
    rig.line.join(rig.consumer(ready=100_000))
    rig.depth = MAX_MESSAGES_PER_WRITE + 1

    assert rig.serve()
    assert rig.depth == 1
    assert not rig.serve()
    assert rig.depth == 0


def test_the_next_slice_begins_with_those_that_had_no_share() -> None:
    rig = Rig()
    rig.scheduler.has_tiny_slices = True
    consumers = [rig.consumer(ready=100) for _ in range(3)]
    for consumer in consumers:
        rig.line.join(consumer)
    rig.depth = 30

    for _ in consumers:
        rig.serve()

    assert [consumer for consumer, _ in rig.served] == consumers


def test_a_slice_that_leaves_nobody_in_line_says_that_there_is_no_more() -> None:
    rig = Rig()
    rig.scheduler.has_tiny_slices = True
    consumer = rig.consumer(ready=1)
    rig.line.join(consumer)
    rig.depth = 10

    def deliver(consumer: Consumer, count: int) -> int:
        consumer.is_writable = False
        return count

    assert not rig.line.serve(rig, deliver)
    assert rig.line.is_empty


def test_a_backlog_that_gives_nothing_ends_the_turn() -> None:
    rig = Rig()
    near, far = rig.consumer(ready=1, locality=Locality.ZONE), rig.consumer(ready=1)
    rig.line.join(near)
    rig.line.join(far)
    rig.depth = 10
    rig.is_resting = True

    assert not rig.serve()

    assert rig.served == [(near, 1)]
    assert near.is_in_line
    assert far.is_in_line


def test_a_consumer_that_lost_its_room_leaves_and_the_next_one_is_served() -> None:
    rig = Rig()
    stalled, ready = rig.consumer(ready=1), rig.consumer(ready=1)
    rig.line.join(stalled)
    rig.line.join(ready)
    stalled.is_writable = False
    rig.depth = 1

    rig.serve()

    assert rig.served == [(ready, 1)]
    assert not stalled.is_in_line


def test_a_consumer_keeps_its_place_when_the_delivery_fails() -> None:
    rig = Rig()
    consumer = rig.consumer(ready=1)
    rig.line.join(consumer)
    rig.depth = 1
    rig.error = OSError("no read")

    with pytest.raises(OSError, match="no read"):
        rig.serve()

    assert consumer.is_in_line
    rig.error = None
    rig.serve()
    assert rig.depth == 0


def test_the_channel_is_called_once_for_all_consumers_that_lingered() -> None:
    rig = Rig()
    consumers = [rig.consumer(ready=100) for _ in range(3)]
    for consumer in consumers:
        consumer.was_filled = True
        consumer.in_flight.add_any(
            [b"%d" % number for number in range(99)], [(60.0, 0.0, 0, 1, b"", None)] * 99, 60.0
        )
        assert not rig.line.join(consumer)

    rig.scheduler.advance(LINGER_S)

    assert rig.joined_count == 1
    assert [consumer.is_in_line for consumer in consumers] == [True] * 3


def test_a_closed_line_calls_no_channel() -> None:
    rig = Rig()
    consumer = rig.consumer(ready=100)
    consumer.was_filled = True
    consumer.in_flight.add_any([b"a"] * 90, [(60.0, 0.0, 0, 1, b"", None)] * 90, 60.0)
    assert not rig.line.join(consumer)

    rig.line.close()
    rig.scheduler.advance(LINGER_S)

    assert rig.joined_count == 0
    assert rig.line.is_empty


def test_a_filled_consumer_lingers_until_a_quarter_is_free() -> None:
    rig = ChannelRig()
    client = rig.client(ready=100)
    ids = rig.put(*numbers(200))
    assert len(client.bodies) == 100

    client.finish(*ids[:24])
    rig.settle()
    assert len(client.bodies) == 100

    client.finish(ids[24])
    rig.settle()
    assert len(client.bodies) == 125


def test_a_consumer_lingers_for_a_millisecond_at_most() -> None:
    rig = ChannelRig()
    client = rig.client(ready=100)
    ids = rig.put(*numbers(200))

    client.finish(ids[0])
    rig.advance(LINGER_S * 0.9)
    assert len(client.bodies) == 100
    client.finish(ids[1])
    rig.advance(LINGER_S * 0.1)

    assert len(client.bodies) == 102
    assert LINGER_S == 0.001


def test_a_consumer_that_lingers_later_does_not_linger_longer() -> None:
    rig = ChannelRig()
    clients = [rig.client(ready=100) for _ in range(2)]
    rig.put(*numbers(300))

    clients[0].finish(clients[0].sink.ids[0])
    rig.advance(LINGER_S * 0.5)
    clients[1].finish(clients[1].sink.ids[0])
    rig.advance(LINGER_S)

    assert [len(client.bodies) for client in clients] == [101, 101]


@pytest.mark.parametrize("ready", [1, 2, 4, 7])
def test_a_consumer_with_a_small_rdy_never_lingers(ready: int) -> None:
    # W-115
    rig = ChannelRig()
    client = rig.client(ready=ready)
    ids = rig.put(*numbers(20))

    client.finish(ids[0])
    rig.settle()

    assert len(client.bodies) == ready + 1


def test_a_consumer_with_nothing_in_flight_never_lingers() -> None:
    rig = ChannelRig()
    client = rig.client(ready=2500)
    ids = rig.put(*numbers(2500))
    client.finish(*ids)

    rig.put(b"next")

    assert client.bodies[-1] == b"next"


def test_the_room_that_a_consumer_lingers_for_is_bounded() -> None:
    rig = ChannelRig()
    client = rig.client(ready=2500)
    ids = rig.put(*numbers(2600))

    client.finish(*ids[:LINGER_MAX_COUNT])
    rig.settle()

    assert len(client.bodies) == 2600


def test_a_consumer_that_was_not_filled_does_not_linger() -> None:
    rig = ChannelRig()
    client = rig.client(ready=100)
    ids = rig.put(*numbers(99))
    client.finish(ids[0])

    rig.put(b"x", b"y")
    rig.settle()

    assert len(client.bodies) == 101


def test_a_consumer_does_not_linger_after_rdy() -> None:
    rig = ChannelRig()
    client = rig.client(ready=100)
    ids = rig.put(*numbers(200))
    client.finish(ids[0])

    client.ready(100)
    rig.settle()

    assert len(client.bodies) == 101


def test_a_consumer_that_leaves_while_it_lingers_gets_nothing() -> None:
    rig = ChannelRig()
    client = rig.client(ready=100)
    ids = rig.put(*numbers(200))
    client.finish(ids[0])

    client.leave()
    rig.advance(1)

    assert len(client.bodies) == 100
    assert rig.channel.depth == 100


def test_near_consumers_get_everything_as_long_as_they_can_take_it() -> None:
    # W-136
    rig = ChannelRig()
    everywhere = rig.client(ready=10, locality=Locality.GLOBAL)
    region = rig.client(ready=4, locality=Locality.REGION)
    zone = rig.client(ready=3, locality=Locality.ZONE)

    rig.put(*numbers(3))
    assert zone.bodies == numbers(3)
    assert region.bodies == everywhere.bodies == []

    rig.put(*numbers(6, start=3))
    assert len(region.bodies) == 4
    assert len(everywhere.bodies) == 2

    zone.finish(*zone.sink.ids)
    rig.put(b"more")
    assert zone.bodies[-1] == b"more"
    assert rig.channel.locality_counts == [4, 4, 2]


def test_two_near_consumers_share_before_far_ones_get_any() -> None:
    # W-136
    rig = ChannelRig()
    far = rig.client(ready=100)
    near = [rig.client(ready=100, locality=Locality.ZONE) for _ in range(2)]

    rig.put(*numbers(50))

    assert [len(client.bodies) for client in near] == [25, 25]
    assert far.bodies == []
