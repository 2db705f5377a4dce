"""SIGTERM: every message is there afterwards, as it was."""

import time
from pathlib import Path

import pytest

from tests.support.faults.client import connected
from tests.support.faults.fork_server import ForkServer
from tests.support.faults.nsqd_process import NsqdProcess

MODES = {
    "defaults": (),
    "no_memory_queue": ("--mem-queue-size=0",),
    "every_fsync": ("--mem-queue-size=0", "--sync-every=1"),
}
DELAY_S = 1.5


@pytest.mark.parametrize("mode", MODES)
async def test_deferred_messages_keep_due_time_and_attempts(
    fork_server: ForkServer, tmp_path: Path, mode: str
) -> None:
    nsqd = NsqdProcess(fork_server, tmp_path, MODES[mode])
    await nsqd.start()
    async with connected(nsqd.tcp_port) as client:
        await client.subscribe("t", "ch")
        await client.publish("t", b"requeued", b"in flight", b"waiting")
        client.rdy(10)
        requeued, in_flight, waiting = [await client.read_message() for _ in range(3)]
        client.rdy(0)
        due = time.monotonic() + DELAY_S
        client.req(requeued, int(DELAY_S * 1000))
        client.req(waiting, 0)
        client.dpub("t", int(DELAY_S * 1000), b"published")
        await client.expect_ok()
        assert await nsqd.stop() == 0

    await nsqd.start()
    async with connected(nsqd.tcp_port) as client:
        await client.subscribe("t", "ch", rdy=10)
        at_once = {message.body: message.attempts for message in await client.read_messages(2)}
        await client.expect_quiet(max(0.0, due - time.monotonic() - 0.3))
        later = {message.body: message.attempts for message in await client.read_messages(2)}

    assert at_once == {in_flight.body: 2, waiting.body: 2}
    assert later == {requeued.body: 2, b"published": 1}
    assert time.monotonic() > due - 0.3
    await nsqd.kill()
