"""Any interleaving of slices and threads with commands: nothing is lost, doubled, torn or revived.

Every slice is as short as can be, threads end when the machine says so, and between any two of
them clients publish, answer and leave, channels are emptied, topics deleted and made again, and the
daemon is killed. The model does not predict who gets what and when. It knows for each channel which
messages must come, which may come and which may not, and looks at every delivery.
"""

import shutil
import tempfile
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nsqd.broker.queue.receipt import Receipt
from tests.support.broker_rig import BrokerRig
from tests.support.channel_rig import MSG_TIMEOUT_S, Client

CHANNELS = ("a", "b")
# More messages than this are a large publish, which is prepared in parts.
LARGE_COUNT = 4
PART_COUNT = 2


@dataclass(eq=False)
class PublishModel:
    """A publish, and whether it has been acknowledged."""

    bodies: list[bytes]
    receipt: Receipt | None

    @property
    def is_pending(self) -> bool:
        return self.receipt is not None and not self.receipt.is_done

    @property
    def is_acknowledged(self) -> bool:
        return self.receipt is None or (self.receipt.is_done and self.receipt.error is None)


@dataclass
class ChannelModel:
    """The messages of one channel."""

    # Publishes that it had no share in, and those that an emptying may have caught or not.
    absent: set[PublishModel] = field(default_factory=set)
    doubtful: set[PublishModel] = field(default_factory=set)
    finished: set[bytes] = field(default_factory=set)
    emptyings: list[Receipt] = field(default_factory=list)
    emptied: set[PublishModel] = field(default_factory=set)
    clients: list[Client] = field(default_factory=list)
    base_count: int = 0  # its message_count is of the publishes behind this many


class SlicedBroker(RuleBasedStateMachine):
    """A broker in whose middle anything may happen."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="slices-"))
        self.rig: BrokerRig
        self.publishes: list[PublishModel] = []
        self.channels = {name: ChannelModel() for name in CHANNELS}
        self.deletions: list[Receipt] = []
        self.message_number = 0
        self.kill_count = 0
        self.is_memory_lost_by_kill = False
        self._patches = [
            patch("nsqd.broker.topic.SEQUENCE_COUNT", LARGE_COUNT),
            patch("nsqd.broker.publish_line.PART_MAX_COUNT", PART_COUNT),
        ]
        for each in self._patches:
            each.start()

    @initialize(mem_queue_size=st.sampled_from([0, 0, 3, 1000]), holds_threads=st.booleans())
    def start(self, mem_queue_size: int, holds_threads: bool) -> None:  # noqa: FBT001 - drawn
        self.is_memory_lost_by_kill = mem_queue_size > 0
        self.rig = BrokerRig(self._new_path(), mem_queue_size=mem_queue_size)
        self.rig.scheduler.has_tiny_slices = True
        self.rig.scheduler.holds_threads = holds_threads
        self._make_channels()
        for name in CHANNELS:
            self.subscribe(name, 100)

    def teardown(self) -> None:
        try:
            if hasattr(self, "rig"):
                self._drain()
        finally:
            for each in self._patches:
                each.stop()
            shutil.rmtree(self.directory)

    def _new_path(self) -> Path:
        path = self.directory / f"data-{self.kill_count}"
        path.mkdir()
        return path

    def _make_channels(self) -> None:
        for name in CHANNELS:
            self.rig.channel(name)

    # --- the clients

    @rule(count=st.sampled_from([1, 1, 2, LARGE_COUNT, LARGE_COUNT + 1, 3 * LARGE_COUNT]))
    def publish(self, count: int) -> None:
        bodies = [b"%d" % (self.message_number + index) for index in range(count)]
        self.message_number += count
        receipt = self.rig.topic().publish(bodies)
        self.publishes.append(PublishModel(bodies, receipt))

    @rule(
        name=st.sampled_from(CHANNELS),
        ready=st.sampled_from([1, 100, 100]),
    )
    def subscribe(self, name: str, ready: int) -> None:
        channel = self.channels[name]
        if len(channel.clients) < 3:
            channel.clients.append(self._client(self.rig, name, channel))
            channel.clients[-1].ready(ready)

    def _client(self, rig: BrokerRig, name: str, channel: ChannelModel) -> Client:
        client = Client(rig.channel(name))
        client.sink.on_deliver = lambda: self._check_delivery(client, channel)
        return client

    def _check_delivery(self, client: Client, channel: ChannelModel) -> None:
        forbidden = {
            body
            for publish in self.publishes
            if publish in channel.absent or publish in channel.emptied
            for body in publish.bodies
        }
        for delivery in client.sink.writes[-1]:
            assert delivery.body not in channel.finished, "delivered after its FIN"
            assert delivery.body not in forbidden, "delivered after it was emptied or deleted"

    @precondition(lambda self: self._has_in_flight())
    @rule(name=st.sampled_from(CHANNELS), share=st.floats(0.0, 1.0))
    def finish(self, name: str, share: float) -> None:
        channel = self.channels[name]
        for client in channel.clients:
            in_flight = client.consumer.in_flight.entries
            ids = list(in_flight)[: round(share * len(in_flight))]
            bodies = [in_flight[each][4] for each in ids]
            assert client.finish(*ids) == []
            channel.finished.update(bodies)

    @precondition(lambda self: self._has_in_flight())
    @rule(name=st.sampled_from(CHANNELS), delay_s=st.sampled_from([0.0, 5.0, 5.0]))
    def requeue(self, name: str, delay_s: float) -> None:
        for client in self.channels[name].clients:
            for message_id in list(client.consumer.in_flight.entries)[:2]:
                client.requeue(message_id, delay_s)

    def _has_in_flight(self) -> bool:
        everybody = (client for each in self.channels.values() for client in each.clients)
        return any(client.in_flight_count for client in everybody)

    @precondition(lambda self: any(channel.clients for channel in self.channels.values()))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        everybody = [
            (channel, client) for channel in self.channels.values() for client in channel.clients
        ]
        channel, client = data.draw(st.sampled_from(everybody))
        channel.clients.remove(client)
        client.leave()

    # --- time, slices and threads

    @rule(count=st.sampled_from([1, 2, 5, 40]))
    def turn(self, count: int) -> None:
        for _ in range(count):
            self.rig.scheduler.turn()

    @precondition(lambda self: self.rig.scheduler.held_work)
    @rule()
    def end_thread(self) -> None:
        self.rig.scheduler.finish_thread()

    @rule(seconds=st.sampled_from([0.01, 0.01, 6.0, 6.0, MSG_TIMEOUT_S + 1]))
    def wait(self, seconds: float) -> None:
        self.rig.advance(seconds)

    # --- operators

    @precondition(lambda self: self.publishes)
    @rule()
    def pause_or_unpause(self) -> None:
        topic = self.rig.topic()
        if topic.is_paused:
            topic.unpause()
        else:
            topic.pause()

    @precondition(lambda self: self.publishes)
    @rule(name=st.sampled_from(CHANNELS))
    def empty(self, name: str) -> None:
        channel = self.channels[name]
        channel.emptyings.append(self.rig.channel(name).empty())
        # Those that wait in the topic, or are not acknowledged, the channel need not have had.
        is_certain = not self.rig.topic().depth
        for publish in self._expected(channel):
            if is_certain and publish.is_acknowledged:
                channel.emptied.add(publish)
            else:
                channel.doubtful.add(publish)

    @precondition(lambda self: len(self.publishes) > 3)
    @rule()
    def delete_and_make_again(self) -> None:
        self.deletions.append(self.rig.broker.delete_topic("t"))
        for channel in self.channels.values():
            channel.clients.clear()
            channel.absent.update(self.publishes)
            channel.emptyings.clear()
            channel.base_count = len(self.publishes)
        self._make_channels()

    # The new channel has a share in what waits in the topic, or is not acknowledged.
    @precondition(lambda self: self.publishes and not self.rig.topic().depth)
    @precondition(lambda self: not any(publish.is_pending for publish in self.publishes))
    @rule(name=st.sampled_from(CHANNELS))
    def delete_channel_and_make_again(self, name: str) -> None:
        self.deletions.append(self.rig.topic().delete_channel(name))
        channel = self.channels[name]
        channel.clients.clear()
        channel.absent.update(self.publishes)
        channel.emptyings.clear()
        channel.base_count = len(self.publishes)
        self._make_channels()

    @rule()
    def kill(self) -> None:
        """Look at the data path as the next daemon finds it; this one goes on."""
        self.kill_count += 1
        copy = self._new_path()
        shutil.copytree(self.rig.data_path, copy, dirs_exist_ok=True)
        rig = BrokerRig(copy, wall_time_ns=self.rig.scheduler.wall_ns + 10**9)
        rig.broker.load(self.rig.broker.records())
        rig.topic().unpause()
        found = {name: rig.client(name) for name in CHANNELS}
        rig.advance(10.0)
        for name, client in found.items():
            self._check_found(self.channels[name], set(client.bodies))
        assert rig.broker.close() == []

    def _check_found(self, channel: ChannelModel, found: set[bytes]) -> None:
        # A kill before the answer may bring them back.
        are_dropped = all(receipt.is_done for receipt in [*channel.emptyings, *self.deletions])
        for publish in self.publishes:
            bodies = set(publish.bodies)
            if publish in channel.absent or publish in channel.emptied:
                assert not (are_dropped and bodies & found), "came back after it was dropped"
                continue
            if publish in channel.doubtful:
                continue
            if not bodies & channel.finished and not self.is_memory_lost_by_kill:
                assert bodies & found in (set(), bodies), "a part of a publish"
            if publish.is_acknowledged and not self.is_memory_lost_by_kill:
                assert bodies - channel.finished <= found, "acknowledged and lost"

    # --- the end

    def _expected(self, channel: ChannelModel) -> list[PublishModel]:
        unexpected = channel.absent | channel.doubtful | channel.emptied
        return [publish for publish in self.publishes if publish not in unexpected]

    def _drain(self) -> None:
        """Consume everything: exactly the expected messages come, and whole publishes only."""
        scheduler = self.rig.scheduler
        scheduler.holds_threads = False
        while scheduler.held_work:
            scheduler.finish_thread()
        scheduler.settle()
        self.rig.topic().unpause()
        for name, channel in self.channels.items():
            for client in channel.clients:
                client.leave()
            channel.clients = [self._client(self.rig, name, channel)]
            channel.clients[0].ready(10_000)
        for _ in range(3):
            self.rig.advance(MSG_TIMEOUT_S / 2 + 1)
            for name in CHANNELS:
                self.finish(name, 1.0)
        self.rig.advance(1.0)
        for name, channel in self.channels.items():
            self.finish(name, 1.0)
            assert not any(publish.is_pending for publish in self.publishes)
            for publish in self._expected(channel):
                missing = set(publish.bodies) - channel.finished
                assert (
                    not missing if publish.is_acknowledged else len(missing) == len(publish.bodies)
                )
            assert self.rig.channel(name).depth == 0
        assert self.rig.broker.close() == []

    @invariant()
    def a_publish_appears_as_a_whole(self) -> None:
        if not hasattr(self, "rig") or self.rig.topic().is_paused or self.rig.topic().depth:
            return
        for name, channel in self.channels.items():
            publishes = self.publishes[channel.base_count :]
            certain = sum(len(each.bodies) for each in publishes if each.is_acknowledged)
            pending = [len(each.bodies) for each in publishes if each.is_pending]
            sums = {
                certain + sum(some)
                for count in range(len(pending) + 1)
                for some in combinations(pending, count)
            }
            assert self.rig.channel(name).message_count in sums


TestSlicedBroker = SlicedBroker.TestCase
TestSlicedBroker.settings = settings(max_examples=40, stateful_step_count=40)
