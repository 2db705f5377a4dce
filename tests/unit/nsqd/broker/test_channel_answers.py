"""The ends of a delivery: FIN, REQ, TOUCH, a timeout, a lost consumer."""

import pytest

from nsqd.broker.consumer import LINGER_S, NOT_IN_FLIGHT, NOT_OWNER
from nsqd.broker.errors import NotInFlightError
from nsqd.broker.peek import find_oldest_age
from nsqd.broker.queue.batch import Message, MixedBatch
from tests.support.channel_rig import ChannelRig
from tests.support.recording_sink import Delivery

UNKNOWN = b"ffffffffffffffff"


def attempts_of(deliveries: list[Delivery]) -> list[tuple[bytes, int]]:
    return [(delivery.body, delivery.attempts) for delivery in deliveries]


def stored(*messages: tuple[bytes, bytes]) -> MixedBatch:
    """Messages with ids of their own, as a topic reads them from its disk."""
    whole: list[Message] = [(message_id, 7, 0, body, None) for message_id, body in messages]
    return MixedBatch.from_messages(whole)


def test_a_finished_message_is_gone() -> None:
    rig = ChannelRig()
    client = rig.client(ready=10)
    ids = rig.put(b"a", b"b")

    assert client.finish(ids[0]) == []
    rig.advance(60)

    assert rig.channel.finish_count == client.consumer.finish_count == 1
    assert rig.channel.timeout_count == 1
    assert attempts_of(client.take()) == [(b"a", 1), (b"b", 1), (b"b", 2)]


def test_finishing_an_unknown_message_fails_alone() -> None:
    # W-84
    rig = ChannelRig()
    client = rig.client(ready=10)
    ids = rig.put(b"a", b"b")

    failed = client.finish(ids[0], UNKNOWN, ids[1], ids[1])

    assert failed == [(UNKNOWN, NOT_IN_FLIGHT), (ids[1], NOT_IN_FLIGHT)]
    assert client.consumer.finish_count == 2
    assert rig.channel.consumers.in_flight_count == 0
    assert NOT_IN_FLIGHT == "ID not in flight"


def test_fin_by_another_client_fails() -> None:
    # W-85
    rig = ChannelRig()
    owner = rig.client(ready=10)
    other = rig.client()
    ids = rig.put(b"a")

    assert other.finish(*ids) == [(ids[0], NOT_OWNER)]
    assert NOT_OWNER == "client does not own message"
    assert other.consumer.finish_count == 0
    assert owner.finish(*ids) == []


def test_requeue_and_touch_by_another_client_fail() -> None:
    # W-95
    rig = ChannelRig()
    owner = rig.client(ready=10)
    other = rig.client()
    ids = rig.put(b"a")

    for answer in (other.requeue, other.touch):
        with pytest.raises(NotInFlightError, match=NOT_OWNER):
            answer(ids[0])
        with pytest.raises(NotInFlightError, match=NOT_IN_FLIGHT):
            answer(UNKNOWN)

    assert rig.channel.requeue_count == other.consumer.requeue_count == 0
    assert owner.in_flight_count == 1


def test_what_a_departed_client_holds_is_not_another_ones() -> None:
    # W-85, W-101
    rig = ChannelRig()
    owner = rig.client(ready=10)
    ids = rig.put(b"a")
    owner.leave()
    other = rig.client(ready=10)

    assert other.finish(*ids) == [(ids[0], NOT_OWNER)]


def test_requeue_without_delay_delivers_again_at_once() -> None:
    # W-90, Q-22
    rig = ChannelRig()
    client = rig.client(ready=10)
    ids = rig.put(b"a")

    client.requeue(ids[0])
    assert rig.channel.depth == 1
    rig.settle()

    assert attempts_of(client.take()) == [(b"a", 1), (b"a", 2)]
    assert rig.channel.requeue_count == client.consumer.requeue_count == 1
    assert rig.channel.message_count == 1
    assert client.consumer.message_count == 2
    assert client.finish(*ids) == []


def test_a_requeued_message_keeps_id_timestamp_and_body() -> None:
    rig = ChannelRig()
    client = rig.client(ready=10)
    ids = rig.put(b"a")
    rig.advance(10)

    client.requeue(ids[0])
    rig.settle()

    first, second = client.take()
    assert (first.message_id, first.timestamp_ns, first.body) == (
        second.message_id,
        second.timestamp_ns,
        second.body,
    )


def test_a_requeued_message_goes_to_the_end_of_the_queue() -> None:
    # queues.md 5
    rig = ChannelRig()
    client = rig.client(ready=1)
    ids = rig.put(b"a", b"b", b"c")

    client.requeue(ids[0])
    rig.settle()

    assert client.bodies == [b"a", b"b"]


def test_requeue_with_delay_defers() -> None:
    # W-91, W-96, Q-20
    rig = ChannelRig()
    client = rig.client(ready=10)
    ids = rig.put(b"a")

    client.requeue(ids[0], 0.5)
    assert rig.channel.deferred_count == 1
    assert rig.channel.depth == rig.channel.consumers.in_flight_count == 0
    assert client.finish(*ids) == [(ids[0], NOT_IN_FLIGHT)]

    rig.advance(0.499)
    assert len(client.bodies) == 1
    rig.advance(0.001)
    assert attempts_of(client.take()) == [(b"a", 1), (b"a", 2)]
    assert rig.channel.deferred_count == 0
    assert rig.channel.timeout_count == 0


def test_requeue_lets_the_next_message_come() -> None:
    # W-81
    rig = ChannelRig()
    client = rig.client(ready=1)
    ids = rig.put(b"a", b"b")

    client.requeue(ids[0], 10.0)
    rig.settle()

    assert client.bodies == [b"a", b"b"]


def test_an_unanswered_message_comes_back_exactly_at_its_timeout() -> None:
    # W-99, W-83, Q-22, Q-24 improved
    rig = ChannelRig()
    client = rig.client(ready=10)
    rig.put(b"a")

    rig.advance(59.999)
    assert len(client.bodies) == 1
    rig.advance(0.001)

    assert attempts_of(client.take()) == [(b"a", 1), (b"a", 2)]
    assert rig.channel.timeout_count == 1
    assert rig.channel.message_count == 1
    assert rig.channel.requeue_count == 0
    assert client.in_flight_count == 1


def test_each_consumer_has_its_own_timeout() -> None:
    # W-100
    rig = ChannelRig()
    quick = rig.client(ready=1, msg_timeout_s=1.0)
    slow = rig.client(ready=1, msg_timeout_s=100.0)
    rig.put(b"a", b"b")

    rig.advance(1)

    assert len(quick.bodies) == 2
    assert len(slow.bodies) == 1


def test_a_message_that_timed_out_may_be_finished_by_its_new_owner_only() -> None:
    # W-85, wire.md FIN: "may be finished by that connection"
    rig = ChannelRig()
    first = rig.client(ready=1)
    ids = rig.put(b"a")
    first.ready(0)
    second = rig.client(ready=1)
    rig.advance(60)
    assert second.bodies == [b"a"]

    assert first.finish(*ids) == [(ids[0], NOT_OWNER)]
    assert second.finish(*ids) == []


def test_a_message_redelivered_to_the_same_connection_may_be_finished() -> None:
    rig = ChannelRig()
    client = rig.client(ready=1)
    ids = rig.put(b"a")
    rig.advance(60)

    assert client.finish(*ids) == []
    rig.advance(120)

    assert len(client.bodies) == 2


def test_a_timeout_makes_room_for_the_next_message() -> None:
    rig = ChannelRig()
    client = rig.client(ready=1)
    rig.put(b"a", b"b")

    rig.advance(60)

    assert client.bodies == [b"a", b"b"]
    assert rig.channel.depth == 1


def test_touch_extends_from_now() -> None:
    # W-97
    rig = ChannelRig()
    client = rig.client(ready=10)
    ids = rig.put(b"a")
    rig.advance(50)

    client.touch(ids[0])
    rig.advance(59.999)
    assert rig.channel.timeout_count == 0
    rig.advance(0.001)

    assert rig.channel.timeout_count == 1


def test_touch_ends_at_max_msg_timeout_after_this_delivery() -> None:
    # W-98
    rig = ChannelRig()
    client = rig.client(ready=10)
    ids = rig.put(b"a")
    for _ in range(19):
        rig.advance(45)
        client.touch(ids[0])

    rig.advance(44.999)
    assert rig.channel.timeout_count == 0
    rig.advance(0.001)

    assert rig.channel.timeout_count == 1
    assert len(client.bodies) == 2


def test_what_a_departed_client_held_waits_for_its_deadlines() -> None:
    # W-101
    rig = ChannelRig()
    gone = rig.client(ready=10)
    rig.put(b"a", b"b")
    rig.advance(10)
    rig.put(b"c")
    gone.leave()
    other = rig.client(ready=10)
    assert rig.channel.consumers.in_flight_count == 3

    rig.advance(49.999)
    assert other.bodies == []
    rig.advance(0.001)
    assert attempts_of(other.take()) == [(b"a", 2), (b"b", 2)]
    assert rig.channel.consumers.in_flight_count == 3
    rig.advance(10)
    assert attempts_of(other.take()) == [(b"c", 2)]
    assert rig.channel.timeout_count == 3
    assert rig.channel.consumers.in_flight_count == 3


def test_leaving_twice_is_leaving_once() -> None:
    rig = ChannelRig()
    client = rig.client(ready=10)
    rig.put(b"a")
    client.leave()
    client.leave()

    assert rig.channel.consumers.in_flight_count == 1
    assert not rig.channel.consumers


def test_twins_are_both_delivered_finished_and_requeued() -> None:
    # Two records with one id: a directory of another tool, or a crash while a topic copied.
    rig = ChannelRig()
    client = rig.client(ready=10)
    twin_id = b"0123456789abcdef"
    rig.channel.put(stored((twin_id, b"one"), (twin_id, b"two")))
    rig.channel.put(stored((twin_id, b"three")))
    rig.settle()
    assert client.bodies == [b"one", b"two", b"three"]
    assert rig.channel.consumers.in_flight_count == 3

    client.requeue(twin_id)
    rig.settle()
    assert client.bodies[3:] == [b"one"]
    assert client.finish(twin_id, twin_id, twin_id, twin_id) == [(twin_id, NOT_IN_FLIGHT)]
    assert rig.channel.consumers.in_flight_count == 0
    assert rig.channel.finish_count == 3


def test_twins_time_out_both() -> None:
    rig = ChannelRig()
    client = rig.client(ready=10)
    twin_id = b"0123456789abcdef"
    rig.channel.put(stored((twin_id, b"one"), (twin_id, b"two")))
    rig.settle()

    rig.advance(60)

    assert attempts_of(client.take()) == [(b"one", 1), (b"two", 1), (b"one", 2), (b"two", 2)]
    assert rig.channel.timeout_count == 2


def test_a_deferred_publish_waits_from_its_arrival_on() -> None:
    # W-63, Q-20
    rig = ChannelRig()
    client = rig.client(ready=10)

    rig.put(b"later", delay_s=2.0)
    rig.put(b"now")
    assert client.bodies == [b"now"]
    assert rig.channel.deferred_count == 1
    assert rig.channel.message_count == 2
    assert rig.channel.depth == 0

    rig.advance(1.999)
    assert client.bodies == [b"now"]
    rig.advance(0.001)
    assert attempts_of(client.take()) == [(b"now", 1), (b"later", 1)]


def test_deferred_messages_come_in_the_order_of_their_due_times() -> None:
    rig = ChannelRig()
    client = rig.client(ready=10)
    for delay_s, body in [(3.0, b"c"), (1.0, b"a"), (2.0, b"b"), (1.0, b"a2")]:
        rig.put(body, delay_s=delay_s)

    rig.advance(3)

    assert client.bodies == [b"a", b"a2", b"b", b"c"]


def test_empty_drops_what_waits_is_in_flight_or_deferred() -> None:
    #
    rig = ChannelRig()
    client = rig.client(ready=1)
    gone = rig.client(ready=1)
    ids = rig.put(b"a", b"b", b"c")
    rig.put(b"later", delay_s=5.0)
    gone.leave()

    rig.channel.empty()

    assert (
        rig.channel.depth
        == rig.channel.consumers.in_flight_count
        == rig.channel.deferred_count
        == 0
    )
    assert client.in_flight_count == 0
    assert client.finish(ids[0]) == [(ids[0], NOT_IN_FLIGHT)]
    assert rig.channel.message_count == 4
    rig.advance(120)
    assert rig.channel.timeout_count == 0
    assert len(client.bodies) == 1


def test_after_empty_consumers_are_served_again() -> None:
    #
    rig = ChannelRig()
    client = rig.client(ready=1)
    rig.put(b"a", b"b")
    rig.channel.empty()

    rig.put(b"c")

    assert client.bodies == [b"a", b"c"]


def test_delete_closes_the_connections_and_drops_everything() -> None:
    #
    rig = ChannelRig()
    clients = [rig.client(ready=1), rig.client()]
    rig.put(b"a", b"b")

    rig.channel.delete()

    assert all(client.sink.is_closed for client in clients)
    assert rig.channel.is_closed
    assert rig.channel.consumers.in_flight_count == 0
    rig.advance(120)
    assert len(clients[0].bodies) == 1
    for client in clients:
        client.leave()


def test_finish_and_requeue_are_harmless_after_delete() -> None:
    # The connection's last commands may have been read before it is closed.
    rig = ChannelRig()
    client = rig.client(ready=1)
    ids = rig.put(b"a")
    rig.channel.delete()

    assert client.finish(*ids) == [(ids[0], NOT_IN_FLIGHT)]
    with pytest.raises(NotInFlightError):
        client.requeue(ids[0])
    with pytest.raises(NotInFlightError):
        client.touch(ids[0])
    client.ready(5)
    rig.settle()


def test_on_abandoned_is_called_when_the_last_consumer_leaves() -> None:
    #
    rig = ChannelRig()
    calls: list[str] = []
    rig.channel.on_abandoned = lambda: calls.append("abandoned")
    first, second = rig.client(), rig.client()

    first.leave()
    assert calls == []
    second.leave()
    assert calls == ["abandoned"]


def test_the_gauges_and_counters_tell_where_every_message_is() -> None:
    # queues.md 14
    rig = ChannelRig()
    client = rig.client(ready=3)
    ids = rig.put(*[b"%d" % number for number in range(6)])
    rig.put(b"later", delay_s=99.0)
    client.finish(ids[0])
    client.requeue(ids[1], 99.0)
    rig.advance(LINGER_S)

    channel = rig.channel
    assert channel.message_count == 7
    assert (channel.depth, channel.backend_depth) == (1, 0)
    assert channel.consumers.in_flight_count == client.in_flight_count == 3
    assert channel.deferred_count == 2
    assert (channel.finish_count, channel.requeue_count, channel.timeout_count) == (1, 1, 0)
    consumer = client.consumer
    assert (consumer.message_count, consumer.finish_count, consumer.requeue_count) == (5, 1, 1)


def test_latencies_are_from_publish_to_fin() -> None:
    #
    rig = ChannelRig(latency_quantiles=(0.99, 0.5))
    client = rig.client(ready=10)
    ids = rig.put(b"a")
    rig.advance(2)
    ids += rig.put(b"b")
    rig.advance(1)

    client.finish(*ids, UNKNOWN)

    assert rig.channel.latencies is not None
    count, quantiles = rig.channel.latencies.result(rig.scheduler.now)
    assert count == 2
    assert quantiles == [(0.99, 1_000_000_000), (0.5, 1_000_000_000)]


def test_the_time_from_delivery_to_fin_is_counted_for_each_message() -> None:
    rig = ChannelRig()
    client = rig.client(ready=10)
    ids = rig.put(b"a", b"b")
    rig.advance(2)
    ids += rig.put(b"c")
    rig.advance(1)

    client.finish(*ids)

    assert rig.channel.finish_times.count == 3
    assert rig.channel.finish_times.total == pytest.approx(3 + 3 + 1)


def test_the_time_from_publish_to_fin_is_counted_for_each_message() -> None:
    rig = ChannelRig()
    client = rig.client()
    ids = rig.put(b"a", b"b")
    rig.advance(2)
    ids += rig.put(b"c")
    client.ready(10)
    rig.advance(1)

    client.finish(*ids)

    assert rig.channel.total_times.count == 3
    assert rig.channel.total_times.total == pytest.approx(3 + 3 + 1)


def test_of_many_messages_finished_together_samples_are_looked_at() -> None:
    rig = ChannelRig()
    client = rig.client(ready=1000)
    ids: list[bytes] = []
    for _ in range(100):
        ids += rig.put(b"x")
        rig.advance(0.1)

    client.finish(*ids)

    times = rig.channel.total_times
    assert times.count == 100
    assert times.total == pytest.approx(sum(0.1 * age for age in range(1, 101)), rel=0.15)
    assert times.cumulative()[times.bounds.index(5.0)] == pytest.approx(50, abs=13)


def test_a_wall_clock_that_was_set_back_makes_no_negative_times() -> None:
    rig = ChannelRig()
    client = rig.client(ready=10)
    ids = rig.put(b"a")
    rig.scheduler.wall_ns -= 10**12

    assert find_oldest_age(rig.channel, rig.scheduler.wall_ns) == 0.0
    client.finish(*ids)

    assert rig.channel.total_times.total == 0.0
