"""Any sequence of publishes, answers, timeouts and departures: every message is in one place.

The model does not predict who gets which message. It watches each delivery as it is made, checks
that it was allowed, and knows from then on where the message is.
"""

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nsqd.broker.consumer import LINGER_S, NOT_IN_FLIGHT, NOT_OWNER, Locality
from nsqd.broker.errors import NotInFlightError
from tests.support.channel_rig import ChannelRig, Client
from tests.support.fake_scheduler import FakeScheduler

MAX_MSG_TIMEOUT_S = 25.0
UNKNOWN = b"unknown message!"


@dataclass
class InFlightModel:
    """A message that was delivered and not answered."""

    deadline: float
    delivered: float


@dataclass
class ClientModel:
    """A client and the messages it has in flight, also after it has left."""

    client: Client
    msg_timeout_s: float
    ready: int = 0
    is_writable: bool = True
    in_flight: dict[bytes, InFlightModel] = field(default_factory=dict)
    message_count: int = 0
    finish_count: int = 0
    requeue_count: int = 0

    @property
    def capacity(self) -> int:
        return self.ready - len(self.in_flight) if self.is_writable else 0


class ChannelModel(RuleBasedStateMachine):
    """One channel over a real disk queue, and where each of its messages is."""

    def __init__(self) -> None:
        super().__init__()
        self.data_path = Path(tempfile.mkdtemp(prefix="channel-"))
        self.rig: ChannelRig
        self.clients: list[ClientModel] = []
        self.departed: list[ClientModel] = []
        self.attempts: dict[bytes, int] = {}  # of everything that is not finished
        self.bodies: dict[bytes, bytes] = {}
        self.waiting: set[bytes] = set()
        self.deferred: dict[bytes, float] = {}
        self.is_paused = False
        self.message_count = self.finish_count = self.requeue_count = self.timeout_count = 0

    @initialize(mem_queue_size=st.sampled_from([0, 2, 1000]), has_tiny_slices=st.booleans())
    def start(self, mem_queue_size: int, has_tiny_slices: bool) -> None:  # noqa: FBT001 - drawn
        self.rig = ChannelRig(
            self.data_path, mem_queue_size=mem_queue_size, max_msg_timeout_s=MAX_MSG_TIMEOUT_S
        )
        self.rig.scheduler.has_tiny_slices = has_tiny_slices

    def teardown(self) -> None:
        try:
            if hasattr(self, "rig"):
                self._restart()
        finally:
            shutil.rmtree(self.data_path)

    def _restart(self) -> None:
        """Everything that is not finished is delivered once more, with its attempts, when due."""
        before = self.rig.scheduler
        self.rig.channel.flush()
        self.rig.backend.close()
        rig = ChannelRig(self.data_path, scheduler=FakeScheduler(wall_time_ns=before.wall_ns))
        client = rig.client(ready=1_000_000, msg_timeout_s=100_000.0)
        rig.settle()
        early = {delivery.message_id for delivery in client.sink.deliveries}
        assert early == self.attempts.keys() - self.deferred.keys()
        if self.deferred:
            rig.advance(max(self.deferred.values()) - before.now + 0.001)
        found = {(delivery.message_id, delivery.attempts) for delivery in client.sink.deliveries}
        assert found == {(message_id, count + 1) for message_id, count in self.attempts.items()}
        assert len(client.sink.deliveries) == len(self.attempts)
        rig.backend.close()

    # --- the channel by itself

    def _on_deliver(self, model: ClientModel) -> None:
        self._let_time_pass()
        now = self.rig.scheduler.now
        assert not self.is_paused
        assert model.is_writable
        write = model.client.sink.writes[-1]
        for delivery in write:
            message_id = delivery.message_id
            assert model.capacity > 0, "delivered beyond RDY"
            self.waiting.remove(message_id)
            self.attempts[message_id] += 1
            assert delivery.attempts == self.attempts[message_id]
            assert delivery.body == self.bodies[message_id]
            model.in_flight[message_id] = InFlightModel(now + model.msg_timeout_s, now)
            model.message_count += 1

    def _let_time_pass(self) -> None:
        now = self.rig.scheduler.now
        for model in [*self.clients, *self.departed]:
            for message_id, entry in list(model.in_flight.items()):
                if entry.deadline <= now:
                    del model.in_flight[message_id]
                    self.waiting.add(message_id)
                    self.timeout_count += 1
        for message_id, due in list(self.deferred.items()):
            if due <= now:
                del self.deferred[message_id]
                self.waiting.add(message_id)

    def _settle(self, seconds: float = 0.0) -> None:
        """Let time pass for the channel, longer than a consumer may linger."""
        self.rig.advance(seconds + LINGER_S * 1.5)
        self._let_time_pass()

    # --- clients and publishers

    @rule(
        ready=st.sampled_from([0, 1, 2, 5, 30]),
        msg_timeout_s=st.sampled_from([10.0, 20.0]),
        locality=st.sampled_from(Locality),
    )
    @precondition(lambda self: len(self.clients) < 4)
    def connect(self, ready: int, msg_timeout_s: float, locality: Locality) -> None:
        client = self.rig.client(msg_timeout_s=msg_timeout_s, locality=locality)
        model = ClientModel(client, msg_timeout_s, ready)
        client.sink.on_deliver = lambda: self._on_deliver(model)
        self.clients.append(model)
        client.ready(ready)
        self._settle()

    @rule(
        count=st.sampled_from([1, 1, 1, 2, 3, 7, 40]),
        delay_s=st.sampled_from([0.0, 0.0, 0.0, 3.0, 30.0]),
    )
    def publish(self, count: int, delay_s: float) -> None:
        bodies = [b"%d-%d" % (self.message_count, index) for index in range(count)]
        batch = self.rig.batch(*bodies, delay_s=delay_s)
        for message_id, body in zip(batch.ids(0, count), bodies, strict=True):
            self.attempts[message_id] = 0
            self.bodies[message_id] = body
            if delay_s:
                self.deferred[message_id] = self.rig.scheduler.now + delay_s
            else:
                self.waiting.add(message_id)
        self.message_count += count
        self.rig.channel.put(batch)
        self._settle()

    @rule(seconds=st.sampled_from([0.5, 2.0, 5.0, 11.0, 20.0]))
    def wait(self, seconds: float) -> None:
        self._settle(seconds)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), ready=st.sampled_from([0, 1, 2, 5, 30]))
    def set_ready(self, data: st.DataObject, ready: int) -> None:
        model = data.draw(st.sampled_from(self.clients))
        model.ready = ready
        model.client.ready(ready)
        self._settle()

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), share=st.floats(0.0, 1.0), extra=st.booleans())
    def finish(self, data: st.DataObject, share: float, extra: bool) -> None:  # noqa: FBT001
        model = data.draw(st.sampled_from(self.clients))
        ids = list(model.in_flight)[: round(share * len(model.in_flight))]
        others = self._held_elsewhere(model)
        expected = []
        if extra:
            ids.append(UNKNOWN)
            expected.append((UNKNOWN, NOT_IN_FLIGHT))
            if others:
                ids.insert(0, others[0])
                expected.insert(0, (others[0], NOT_OWNER))
        assert model.client.finish(*ids) == expected
        for message_id in ids:
            if model.in_flight.pop(message_id, None) is not None:
                del self.attempts[message_id]
                model.finish_count += 1
                self.finish_count += 1
        self._settle()

    @precondition(lambda self: any(model.in_flight for model in self.clients))
    @rule(data=st.data(), delay_s=st.sampled_from([0.0, 0.0, 4.0, 12.0]))
    def requeue(self, data: st.DataObject, delay_s: float) -> None:
        model, message_id = self._draw_in_flight(data)
        del model.in_flight[message_id]
        if delay_s:
            self.deferred[message_id] = self.rig.scheduler.now + delay_s
        else:
            self.waiting.add(message_id)
        model.requeue_count += 1
        self.requeue_count += 1
        model.client.requeue(message_id, delay_s)
        self._settle()

    @precondition(lambda self: any(model.in_flight for model in self.clients))
    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        model, message_id = self._draw_in_flight(data)
        entry = model.in_flight[message_id]
        deadline = self.rig.scheduler.now + model.msg_timeout_s
        entry.deadline = min(deadline, entry.delivered + MAX_MSG_TIMEOUT_S)
        model.client.touch(message_id)
        self._settle()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def answer_for_another(self, data: st.DataObject) -> None:
        model = data.draw(st.sampled_from(self.clients))
        others = self._held_elsewhere(model)
        message_id, reason = (others[0], NOT_OWNER) if others else (UNKNOWN, NOT_IN_FLIGHT)
        for answer in (model.client.requeue, model.client.touch):
            with pytest.raises(NotInFlightError, match=f"^{reason}$"):
                answer(message_id)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def stall_or_drain(self, data: st.DataObject) -> None:
        model = data.draw(st.sampled_from(self.clients))
        model.is_writable = not model.is_writable
        if model.is_writable:
            model.client.drain()
        else:
            model.client.stall()
        self._settle()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        model = data.draw(st.sampled_from(self.clients))
        self.clients.remove(model)
        self.departed.append(model)
        model.is_writable = False
        model.client.leave()
        self._settle()

    @rule()
    def pause_or_unpause(self) -> None:
        self.is_paused = not self.is_paused
        if self.is_paused:
            self.rig.channel.pause()
        else:
            self.rig.channel.unpause()
        self._settle()

    @rule()
    def empty(self) -> None:
        self.rig.channel.empty()
        self.waiting.clear()
        self.deferred.clear()
        self.attempts.clear()
        for model in [*self.clients, *self.departed]:
            model.in_flight.clear()
        self._settle()

    def _draw_in_flight(self, data: st.DataObject) -> tuple[ClientModel, bytes]:
        holders = [model for model in self.clients if model.in_flight]
        model = data.draw(st.sampled_from(holders))
        return model, data.draw(st.sampled_from(sorted(model.in_flight)))

    def _held_elsewhere(self, model: ClientModel) -> list[bytes]:
        return [
            message_id
            for other in [*self.clients, *self.departed]
            if other is not model
            for message_id in other.in_flight
        ]

    # --- invariants

    @invariant()
    def every_message_is_where_the_model_says(self) -> None:
        if not hasattr(self, "rig"):
            return
        channel = self.rig.channel
        everyone = [*self.clients, *self.departed]
        in_flight_count = sum(len(model.in_flight) for model in everyone)
        assert channel.depth == len(self.waiting)
        assert channel.deferred_count == len(self.deferred)
        assert channel.consumers.in_flight_count == in_flight_count
        assert len(self.waiting) + len(self.deferred) + in_flight_count == len(self.attempts)
        assert channel.backend_depth <= channel.depth
        assert len(channel.consumers) == len(self.clients)

    @invariant()
    def the_counters_are_right(self) -> None:
        if not hasattr(self, "rig"):
            return
        channel = self.rig.channel
        assert channel.message_count == self.message_count
        assert channel.finish_count == channel.finish_times.count == self.finish_count
        assert channel.requeue_count == self.requeue_count
        assert channel.timeout_count == self.timeout_count
        for model in self.clients:
            consumer = model.client.consumer
            assert consumer.message_count == model.message_count
            assert consumer.finish_count == model.finish_count
            assert consumer.requeue_count == model.requeue_count
            assert set(consumer.in_flight.entries) == set(model.in_flight)

    @invariant()
    def nothing_waits_while_somebody_could_take_it(self) -> None:
        if self.waiting and not self.is_paused:
            assert all(model.capacity <= 0 for model in self.clients)


TestChannelModel = ChannelModel.TestCase
TestChannelModel.settings = settings(max_examples=60, stateful_step_count=30)
