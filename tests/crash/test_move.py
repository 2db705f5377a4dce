"""A kill during POST /topic/move: each message is in its old topic, its new one, or both."""

import asyncio
import random
from pathlib import Path

import pytest

from tests.support.faults.client import connected
from tests.support.faults.fork_server import ForkServer
from tests.support.faults.nsqd_process import NsqdProcess
from tests.support.http_client import HttpClient

DURABLE = ("--mem-queue-size=0", "--sync-every=1", "--max-bytes-per-file=20000")
BODIES = {b"%04d" % number for number in range(3000)}


async def read_all(nsqd: NsqdProcess, topic: str) -> set[bytes]:
    bodies: set[bytes] = set()
    async with connected(nsqd.tcp_port) as client:
        await client.subscribe(topic, "ch", rdy=200)
        while True:
            try:
                async with asyncio.timeout(0.5):
                    message = await client.read_message()
            except TimeoutError:
                return bodies
            bodies.add(message.body)
            client.fin(message)


@pytest.mark.parametrize("seed", range(3))
async def test_kill_during_a_move_loses_nothing(
    fork_server: ForkServer, tmp_path: Path, seed: int
) -> None:
    nsqd = NsqdProcess(fork_server, tmp_path, DURABLE)
    await nsqd.start()
    async with connected(nsqd.tcp_port) as client:
        await client.publish("dead", *sorted(BODIES))
    http = await HttpClient.connect(("127.0.0.1", nsqd.http_port))
    await http.post("/topic/create?topic=orders", b"")

    move = asyncio.create_task(http.post("/topic/move?topic=dead&to=orders", b""))
    await asyncio.sleep(random.Random(seed).uniform(0.0, 0.02))
    await nsqd.kill()
    await asyncio.gather(move, return_exceptions=True)
    await http.close()

    await nsqd.start()
    assert await read_all(nsqd, "dead") | await read_all(nsqd, "orders") == BODIES
    await nsqd.kill()
