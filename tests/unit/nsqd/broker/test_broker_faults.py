"""Each system call under a broker fails, once or for good: what was accepted is delivered."""

import contextlib
from pathlib import Path

import pytest

from nsqd.config.limits import Limits
from tests.support.broker_rig import BrokerRig
from tests.support.call_faults import CallFaults

CALLS = ("open", "dup", "pwrite", "fsync", "ftruncate", "replace", "unlink")
LIMITS = Limits(max_attempts=2, dead_letter_topic_suffix=".dead")


class Player:
    """Publishes, finishes and requeues, and knows which messages were accepted."""

    def __init__(self, path: Path, mem_queue_size: int) -> None:
        self.path = path
        self.mem_queue_size = mem_queue_size
        self.rig = self.open()
        self.rig.channel("a")
        self.rig.channel("b")
        self.accepted: set[bytes] = set()
        self.finished: set[bytes] = set()

    def open(self) -> BrokerRig:
        return BrokerRig(self.path, mem_queue_size=self.mem_queue_size, limits=LIMITS, sync_every=4)

    def publish(self, *bodies: bytes, delay_s: float = 0.0) -> None:
        with contextlib.suppress(OSError):
            self.rig.publish(*bodies, delay_s=delay_s)
            self.accepted |= {*bodies}

    def play(self) -> None:
        self.publish(b"1", b"2", b"3")
        self.publish(b"later", delay_s=3.0)
        self.rig.topic().pause()
        self.publish(b"4", b"5")
        self.rig.topic().unpause()
        self.rig.advance(1)
        client = self.rig.client("a", ready=4)
        for index, delivery in enumerate(client.take()):
            if index == 0:
                client.finish(delivery.message_id)
                self.finished.add(delivery.body)
            elif index < 3:
                client.requeue(delivery.message_id, index - 1.0)
        self.rig.advance(1)
        self.publish(*[b"6-%d" % number for number in range(10)])
        for delivery in client.take():
            client.requeue(delivery.message_id)
        self.rig.advance(4)
        client.leave()
        self.rig.advance(4)

    def close(self) -> None:
        self.records = self.rig.broker.records()
        self.rig.broker.close()

    def read_again(self, *channels: str) -> list[set[bytes]]:
        """Return what the channels deliver after a restart, dead letters among it."""
        rig = self.open()
        rig.broker.load(self.records)
        clients = [[rig.client(name), rig.client(name, "t.dead")] for name in channels]
        rig.advance(10)
        rig.broker.close()  # hundreds of them would use up the descriptors
        return [{body for client in pair for body in client.bodies} for pair in clients]


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("is_lasting", [False, True])
@pytest.mark.parametrize("mem_queue_size", [0, 3])
def test_a_call_that_fails_costs_no_message(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    mem_queue_size: int,
    *,
    is_lasting: bool,
) -> None:
    faults = CallFaults(monkeypatch, CALLS)
    (tmp_path / "0").mkdir()
    Player(tmp_path / "0", mem_queue_size).play()

    for number in range(1, faults.counts[name] + 1):
        directory = tmp_path / str(number)
        directory.mkdir()
        faults.begin()
        player = Player(directory, mem_queue_size)
        faults.begin(name, number, is_lasting=is_lasting)

        player.play()

        faults.begin()
        player.close()
        found_a, found_b = player.read_again("a", "b")
        assert player.accepted - player.finished <= found_a <= player.accepted, number
        assert player.accepted == found_b, number
