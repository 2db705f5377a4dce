"""The push to statsd over real UDP (S-14 to S-20)."""

import asyncio
import re
import socket
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.running_daemon import RunningDaemon, StartNsqd
from tests.support.waiting import PATIENCE_S, until

LINE = re.compile(rb"[^\n:]+:-?\d+\|[cg]\n")


class Receiver:
    """A statsd that keeps what it gets."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.setblocking(False)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._socket.getsockname()[1]}"

    async def receive(self, timeout_s: float = PATIENCE_S) -> bytes:
        """Return the next datagram."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            try:
                return self._socket.recv(65536)
            except BlockingIOError:
                assert asyncio.get_running_loop().time() < deadline, "nothing came"
                await asyncio.sleep(0.005)

    async def receive_until(self, last_key: bytes) -> list[bytes]:
        """Return the datagrams of one push, whose last line has that key."""
        packets = [await self.receive()]
        while last_key not in packets[-1]:
            packets.append(await self.receive())
        return packets

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


def lines(packets: list[bytes]) -> dict[str, str]:
    """Return values with their types by key."""
    found = {}
    for packet in packets:
        for line in packet.decode().splitlines():
            key, _, value = line.partition(":")
            found[key] = value
    return found


async def start(
    start_nsqd: StartNsqd, receiver: Receiver, interval_s: float = 0.2, **options: Any
) -> RunningDaemon:
    return await start_nsqd(
        statsd_address=receiver.address,
        statsd_interval_s=interval_s,
        broadcast_address="box.example",
        **options,
    )


@pytest.mark.both_loops("datagrams")
async def test_pushes_counters_and_gauges(start_nsqd: StartNsqd, receiver: Receiver) -> None:
    nsqd = await start(start_nsqd, receiver)
    await nsqd.post("/topic/create?topic=t")
    await nsqd.post("/channel/create?topic=t&channel=c.d")
    await nsqd.publish("t", b"123", b"45")
    prefix = f"nsq.box_example_{nsqd.daemon.http_port}."  # S-15

    # A push may have come between any two of these calls: counters are what adds up to 2 and 5.
    counted = Counter[str]()
    found: dict[str, str] = {}
    while counted["message_count"] < 2:
        first = await receiver.receive_until(b".mem.gc_runs:")
        for packet in first:
            assert len(packet) <= 508  # S-14
            assert b"".join(LINE.findall(packet)) == packet
        found = lines(first)
        for key in ("message_count", "message_bytes"):
            counted[key] += int(found.get(f"{prefix}topic.t.{key}", "0|c").removesuffix("|c"))
    second = await receiver.receive_until(b".mem.gc_runs:")

    assert counted == {"message_count": 2, "message_bytes": 5}
    assert found[f"{prefix}topic.t.channel.c.d.depth"] == "2|g"
    assert found[f"{prefix}topic.t.channel.c.d.clients"] == "0|g"
    assert int(found[f"{prefix}mem.heap_objects"].removesuffix("|g")) > 0
    again = lines(second)
    assert again[f"{prefix}topic.t.message_count"] == "0|c"  # S-16
    assert again[f"{prefix}topic.t.channel.c.d.depth"] == "2|g"


@pytest.mark.parametrize(
    ("given", "expected"),
    [("x.%s.y.%s", "x.box_example_{0}.y.box_example_{0}."), ("plain.", "plain."), ("", "")],
)
async def test_prefix(start_nsqd: StartNsqd, receiver: Receiver, given: str, expected: str) -> None:
    nsqd = await start(start_nsqd, receiver, statsd_prefix=given)  # S-15

    packet = await receiver.receive()

    assert packet.startswith(f"{expected.format(nsqd.daemon.http_port)}mem.heap_objects:".encode())


async def test_memory_and_ephemeral_ones_can_be_left_out(
    start_nsqd: StartNsqd, receiver: Receiver
) -> None:
    nsqd = await start(  # S-17, S-18
        start_nsqd, receiver, statsd_mem_stats=False, statsd_exclude_ephemeral=True
    )
    nsqd.daemon.broker.ensure_topic("x#ephemeral").ensure_channel("c")
    nsqd.daemon.broker.ensure_topic("y").ensure_channel("d#ephemeral")
    nsqd.daemon.broker.ensure_topic("y").ensure_channel("e")

    packets = await receiver.receive_until(b".channel.e.clients:")

    keys = " ".join(lines(packets))
    assert "mem." not in keys
    assert "ephemeral" not in keys
    assert ".topic.y.depth" in keys


async def test_datagrams_are_spread_over_the_interval(
    start_nsqd: StartNsqd, receiver: Receiver
) -> None:
    nsqd = await start(start_nsqd, receiver, interval_s=1.4, statsd_mem_stats=False)  # S-20
    for number in range(40):
        nsqd.daemon.broker.ensure_topic(f"topic{number:02}")
    loop = asyncio.get_running_loop()

    first = await receiver.receive()
    began = loop.time()
    packets = [first]
    while b".topic.topic39.backend_depth:" not in packets[-1]:
        packets.append(await receiver.receive())

    # A push of n packets takes 0.4 s, the last one leaves at (n-1)/n of that.
    assert len(packets) > 5
    assert loop.time() - began > 0.4 * (len(packets) - 1) / len(packets) - 0.05


async def test_at_exit_the_rest_is_sent_at_once(start_nsqd: StartNsqd, receiver: Receiver) -> None:
    nsqd = await start(start_nsqd, receiver, interval_s=0.05, statsd_mem_stats=False)
    for number in range(40):
        nsqd.daemon.broker.ensure_topic(f"topic{number:02}")
    await receiver.receive_until(b".topic.topic39.backend_depth:")
    packets = [await receiver.receive()]

    await nsqd.shut_down()

    while b".topic.topic39.backend_depth:" not in packets[-1]:
        packets.append(await receiver.receive())


@pytest.mark.both_loops("datagrams")
@pytest.mark.parametrize("address", ["127.0.0.1:9", "no.such.host.invalid:8125", "nonsense"])
async def test_a_dead_statsd_disturbs_nobody(
    start_nsqd: StartNsqd, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    nsqd = await start_nsqd(statsd_address=address, statsd_interval_s=0.05)
    await nsqd.post("/topic/create?topic=t")
    await until(
        lambda: any("statsd" in record.name and record.levelno > 20 for record in caplog.records)
    )

    await nsqd.publish("t", b"x")

    assert (await nsqd.topic("t"))["depth"] == 1
