import pytest

from nsqd.broker.consumer import GONE, Consumer, Locality
from nsqd.broker.in_flight import InFlight
from tests.support.fake_scheduler import FakeScheduler
from tests.support.recording_sink import RecordingSink


def make_consumer() -> Consumer:
    consumer = Consumer(RecordingSink(), msg_timeout_s=60.0)
    consumer.in_flight = InFlight(FakeScheduler(), lambda messages: None)
    return consumer


def hold(consumer: Consumer, *ids: bytes) -> None:
    consumer.in_flight.add_any(ids, [(60.0, 0.0, 0, 1, b"", None)] * len(ids), 60.0)


def test_a_new_consumer_wants_nothing() -> None:
    # W-70
    consumer = make_consumer()

    assert consumer.ready_count == consumer.capacity == 0
    assert consumer.locality is Locality.GLOBAL


def test_capacity_is_rdy_less_what_is_in_flight() -> None:
    # W-81, W-82
    consumer = make_consumer()
    consumer.ready_count = 3
    assert consumer.capacity == 3

    hold(consumer, b"a", b"b", b"a")
    assert consumer.capacity == 0
    consumer.ready_count = 1
    assert consumer.capacity <= 0
    consumer.in_flight.drop()
    assert consumer.capacity == 1


def test_a_consumer_whose_socket_is_full_has_no_capacity() -> None:
    consumer = make_consumer()
    consumer.ready_count = 3

    consumer.is_writable = False

    assert consumer.capacity == 0


def test_consumers_are_told_apart_by_identity() -> None:
    first, second = make_consumer(), make_consumer()

    assert first != second
    assert len({first, second, first}) == 2


def test_nearer_localities_come_first() -> None:
    # W-136
    assert sorted(Locality) == [Locality.ZONE, Locality.REGION, Locality.GLOBAL]


def test_nothing_can_be_delivered_to_a_consumer_that_has_left() -> None:
    GONE.close()
    with pytest.raises(AssertionError):
        GONE.deliver([bytes(10)], [bytes(16)], [b"a"])
