"""The wall clock goes back or forward an hour: under the daemon, and while it is down."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from diskqueue.layout import write_atomically
from tests.support.clock import not_before
from tests.support.daemon_process import DaemonProcess
from tests.support.v2_client import Message, V2Client

HOUR_S = 3600
FLAGS = ("--msg-timeout=1s", "--e2e-processing-latency-percentile=1.0,0.5", "--mem-queue-size=0")


class SkewedDaemon(DaemonProcess):
    """nsqd with a clock that can be set."""

    def __init__(self, directory: Path) -> None:
        self._skew_path = directory / "skew"
        command = (sys.executable, "-m", "tests.support.skewed_nsqd", str(self._skew_path))
        super().__init__(directory, *FLAGS, command=command)
        self.set_clock(0)

    def set_clock(self, skew_s: int) -> None:
        """Have its clock be so far ahead of the true one."""
        write_atomically(self._skew_path, str(skew_s).encode())

    async def connect(self) -> V2Client:
        """Open a connection."""
        return await V2Client.connect(self.address)


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[SkewedDaemon]:
    with SkewedDaemon(tmp_path) as nsqd:
        yield nsqd


async def finish_next(client: V2Client) -> Message:
    message = await client.read_message()
    client.fin(message)
    return message


@pytest.mark.parametrize("step_s", [-HOUR_S, HOUR_S])
async def test_delivery_timeouts_and_delays_do_not_notice_a_step(
    nsqd: SkewedDaemon, step_s: int
) -> None:
    producer, consumer = await nsqd.connect(), await nsqd.connect()
    await consumer.subscribe("t", rdy=1)
    await producer.publish("t", b"in flight")
    held = await consumer.read_message()
    producer.dpub("t", 500, b"deferred")
    await producer.expect_ok()

    with not_before(0.8):
        nsqd.set_clock(step_s)
        await consumer.expect_quiet(0.2)  # neither the timeout nor the delay is over
        deferred = await finish_next(consumer)  # due after half a second, but there is no room
        again = await finish_next(consumer)

    assert (again.id, again.attempts) == (held.id, 2)
    assert deferred.body == b"deferred"
    await producer.publish("t", b"after")
    after = await finish_next(consumer)
    assert int(after.id, 16) > int(deferred.id, 16) > int(held.id, 16)
    await consumer.settle()
    stats = nsqd.find_channel("t", "ch")
    assert stats is not None
    latencies = stats["e2e_processing_latency"]
    assert latencies["count"] == 3
    assert all(entry["value"] >= 0 for entry in latencies["percentiles"])
    text = nsqd.request("GET", "/stats")
    assert b"uptime -" not in text
    await producer.close()
    await consumer.close()


async def test_ids_do_not_repeat_across_lives_and_steps(nsqd: SkewedDaemon) -> None:
    ids: list[bytes] = []
    for index, skew_s in enumerate((0, HOUR_S, 0, -HOUR_S, 0)):
        if index:
            nsqd.set_clock(skew_s)
            nsqd.start()
        client = await nsqd.connect()
        await client.subscribe("t", rdy=100)
        for step_s in (0, HOUR_S, -HOUR_S):
            nsqd.set_clock(skew_s + step_s)
            producer = await nsqd.connect()
            await producer.publish("t", *[b"x"] * 10)
            ids += [(await finish_next(client)).id for _ in range(10)]
            await producer.close()
        await client.settle()
        await client.close()
        nsqd.stop()

    assert ids == sorted(set(ids))
