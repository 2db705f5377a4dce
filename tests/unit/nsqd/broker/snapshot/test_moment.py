"""Moment: every message of a queue in exactly one of its places, while all of them go on moving."""

import os
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskqueue.envelope import decode
from diskqueue.segment import iter_records
from nsqd.broker.snapshot.moment import MAX_CHUNK_BYTES, Moment, State
from nsqd.config.limits import Limits
from tests.support.broker_rig import BrokerRig


def split(records: bytes) -> list[bytes]:
    """Return the bodies of records back to back."""
    bodies = []
    while records:
        size = int.from_bytes(records[:4])
        bodies.append(decode(records[4 : 4 + size]).body)
        records = records[4 + size :]
    return bodies


def read_segments(moment: Moment) -> list[bytes]:
    found = []
    for segment in moment.segments:
        fd = moment.open_segment(segment)
        for offset, record in iter_records(f"/proc/self/fd/{fd}", segment.start, segment.end):
            if not any(span.start <= offset < span.end for span in segment.finished):
                found.append(decode(record).body)
        os.close(fd)
    return found


def read_all(moment: Moment) -> dict[str, list[bytes]]:
    """Complete a moment; return the bodies of each place."""
    while moment.step():
        pass
    places = {"disk": read_segments(moment)}
    for state in State:
        chunks = list(moment.iter_chunks(state))
        places[state.value] = [body for chunk in chunks for body in split(chunk.records)]
        for chunk in chunks:
            assert chunk.count == len(split(chunk.records))
            assert len(chunk.due_times) == (0 if state is State.READY else 8 * chunk.count)
    moment.end()
    return places


class Model:
    """A channel, and what its messages are known to be."""

    def __init__(self, path: Path, mem_queue_size: int) -> None:
        self.rig = BrokerRig(path, mem_queue_size=mem_queue_size)
        self.client = self.rig.client(ready=3)
        self.number = 0
        self.unfinished: set[bytes] = set()
        self.held: dict[bytes, bytes] = {}

    def do(self, action: str, count: int) -> None:
        getattr(self, action)(count)
        self.rig.settle()
        for delivery in self.client.take():
            self.held[delivery.message_id] = delivery.body

    def publish(self, count: int) -> None:
        bodies = [b"message %d" % (self.number + index) for index in range(count)]
        self.number += count
        self.unfinished.update(bodies)
        self.rig.publish(*bodies)

    def defer(self, count: int) -> None:
        self.number += 1
        body = b"deferred %d" % self.number
        self.unfinished.add(body)
        self.rig.publish(body, delay_s=float(count))

    def finish(self, count: int) -> None:
        ids = list(self.held)[:count]
        self.client.finish(*ids)
        self.unfinished -= {self.held.pop(each) for each in ids}

    def requeue(self, count: int) -> None:
        for message_id in list(self.held)[: count % 3]:
            self.client.requeue(message_id, float(count % 2))
            del self.held[message_id]

    def touch(self, count: int) -> None:
        for message_id in list(self.held)[:count]:
            self.client.touch(message_id)

    def ready(self, count: int) -> None:
        self.client.ready(count)

    def wait(self, count: int) -> None:
        self.rig.advance(count * 5.0)  # a consumer has 60 s
        entries = self.client.consumer.in_flight.entries
        self.held = {key: body for key, body in self.held.items() if key in entries}

    def empty(self, _count: int) -> None:
        self.rig.channel().empty()
        self.unfinished.clear()
        self.held.clear()

    def leave(self, _count: int) -> None:
        self.client.leave()
        self.held.clear()
        self.client = self.rig.client(ready=5)

    def take(self) -> Moment:
        channel = self.rig.channel()
        return Moment(self.rig.topic(), channel, self.rig.scheduler)


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "publish",
                "publish",
                "defer",
                "finish",
                "requeue",
                "touch",
                "ready",
                "wait",
                "leave",
                "empty",
            ]
        ),
        st.integers(1, 12),
    ),
    max_size=25,
)


@given(
    mem_queue_size=st.sampled_from([0, 4, 1000]),
    before=ACTIONS,
    during=st.lists(st.tuples(st.booleans(), ACTIONS), max_size=4),
)
def test_every_message_exactly_once(
    mem_queue_size: int,
    before: list[tuple[str, int]],
    during: list[tuple[bool, list[tuple[str, int]]]],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        model = Model(Path(directory), mem_queue_size)
        for action in before:
            model.do(*action)
        expected = Counter(model.unfinished)
        in_flight_count = model.rig.channel().consumers.in_flight_count
        moment = model.take()

        for is_step, actions in during:
            if is_step:
                moment.step()
            for action in actions:
                model.do(*action)
        places = read_all(moment)

        assert Counter(body for bodies in places.values() for body in bodies) == expected
        assert len(places["in_flight"]) == in_flight_count
        assert len(places["disk"]) == moment.disk_count
        again = read_all(model.take())
        assert Counter(body for bodies in again.values() for body in bodies) == Counter(
            model.unfinished
        )
        model.rig.broker.close()


def test_the_topics_own_queue(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path, mem_queue_size=2)
    rig.publish(b"1", b"2")
    rig.publish(b"3")
    rig.publish(b"4", delay_s=10)

    moment = Moment(rig.topic(), None, rig.scheduler)
    rig.client()
    places = read_all(moment)

    assert places["ready"] == [b"1", b"2", b"3"]
    assert places["deferred"] + places["disk"] == [b"4"]


def test_deferred_records_on_disk_have_their_due_times_beside_them(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path, mem_queue_size=0)
    rig.channel().pause()
    rig.publish(*[b"%d" % number for number in range(5000)])  # more than are kept in memory
    rig.publish(b"now")
    due_ns = rig.scheduler.wall_time_ns() + 10 * 10**9
    rig.publish(b"later", delay_s=10)

    moment = Moment(rig.topic(), rig.channel(), rig.scheduler)
    rig.channel().empty()
    rig.settle()

    assert list(moment.due_times.read().values()) == [due_ns]
    assert read_all(moment)["disk"][-1] == b"later"


def test_deferred_messages_of_a_topics_own_queue_have_their_due_times(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path)
    rig.advance(5.0)
    due_ns = rig.scheduler.wall_time_ns() + 10 * 10**9
    rig.publish(b"later", delay_s=10)
    rig.advance(3.0)

    moment = Moment(rig.topic(), None, rig.scheduler)
    while moment.step():
        pass
    assert list(moment.iter_chunks(State.READY)) == []
    [chunk] = moment.iter_chunks(State.DEFERRED)
    moment.end()

    assert int.from_bytes(chunk.due_times, "big") == due_ns


def test_messages_that_become_dead_letters_are_still_here(tmp_path: Path) -> None:
    limits = Limits(max_attempts=1, dead_letter_topic_suffix=".dead")
    rig = BrokerRig(tmp_path, limits=limits)
    client = rig.client(ready=1)
    rig.publish(b"worn out")
    rig.topic("t.dead").refuse_publishes(lambda: OSError(28, "full"))
    [delivery] = client.take()
    client.requeue(delivery.message_id)
    rig.settle()

    moment = Moment(rig.topic(), rig.channel(), rig.scheduler)

    assert read_all(moment)["ready"] == [b"worn out"]


@pytest.mark.parametrize("way", ["ready", "in_flight", "deferred"])
def test_large_messages_are_encoded_a_few_at_a_time(tmp_path: Path, way: str) -> None:
    rig = BrokerRig(tmp_path)
    client = rig.client(ready=100 if way == "in_flight" else 0)
    rig.publish(*[bytes(100_000)] * 20, delay_s=5.0 if way == "deferred" else 0.0)
    rig.settle()
    assert client.in_flight_count == (20 if way == "in_flight" else 0)
    moment = Moment(rig.topic(), rig.channel(), rig.scheduler)
    while moment.step():
        pass

    chunks = [chunk for state in State for chunk in moment.iter_chunks(state)]

    assert sum(chunk.count for chunk in chunks) == 20
    assert max(len(chunk.records) for chunk in chunks) <= MAX_CHUNK_BYTES + 110_000


def test_another_moment_may_follow_one_that_was_given_up(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path)
    client = rig.client(ready=1)
    rig.publish(b"flying", b"waiting")
    Moment(rig.topic(), client.channel, rig.scheduler).end()

    places = read_all(Moment(rig.topic(), client.channel, rig.scheduler))

    assert places[State.IN_FLIGHT.value] == [b"flying"]
    assert places[State.READY.value] == [b"waiting"]


def test_a_message_that_is_finished_meanwhile_was_in_flight(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path)
    client = rig.client(ready=2)
    rig.publish(b"1", b"2")
    deliveries = client.take()
    moment = Moment(rig.topic(), client.channel, rig.scheduler)

    assert client.finish(deliveries[0].message_id) == []

    assert sorted(read_all(moment)[State.IN_FLIGHT.value]) == [b"1", b"2"]


@pytest.mark.parametrize("mem_queue_size", [0, 100_000])
def test_messages_of_all_sizes_are_there_once_and_in_order(
    tmp_path: Path, mem_queue_size: int
) -> None:
    rig = BrokerRig(tmp_path, mem_queue_size=mem_queue_size)
    rig.channel().pause()
    groups = [
        *([b"%d" % number] for number in range(300)),
        *([b"s"], [b"l" * 1025], [b"t"], [b"m" * 1024], [b"u", b"v"], [b"w"], [b"x" * 300_000]),
        *([b"y"], [b"a" * 200_000, b"b" * 100_000, b"c"], [b"z"]),
    ]
    for bodies in groups:
        rig.publish(*bodies)

    places = read_all(Moment(rig.topic(), rig.channel(), rig.scheduler))

    assert places["ready"] + places["disk"] == [body for bodies in groups for body in bodies]
    assert places["deferred"] == places["in_flight"] == []


def test_a_message_in_flight_has_the_time_that_its_consumer_has(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path)
    client = rig.client(ready=1)
    rig.publish(b"held")
    rig.advance(5.0)

    def find_left_s() -> float:
        moment = Moment(rig.topic(), rig.channel(), rig.scheduler)
        while moment.step():
            pass
        [chunk] = moment.iter_chunks(State.IN_FLIGHT)
        moment.end()
        return (int.from_bytes(chunk.due_times) - rig.scheduler.wall_time_ns()) / 1e9

    assert find_left_s() == pytest.approx(55.0)
    [delivery] = client.take()
    client.touch(delivery.message_id)
    assert find_left_s() == pytest.approx(60.0)
