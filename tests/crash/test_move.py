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


async def count_dead_letters(http: HttpClient) -> int:
    reply = await http.get("/stats?format=json&topic=orders")
    channels = {each["channel_name"]: each for each in reply.json()["topics"][0]["channels"]}
    return int(channels["ch"].get("dead_lettered_count", 0))


@pytest.mark.parametrize("seed", range(2))
async def test_kill_during_a_replay_loses_nothing_and_reaches_no_other_channel(
    fork_server: ForkServer, tmp_path: Path, seed: int
) -> None:
    limits = ("--max-attempts=1", "--dead-letter-topic-suffix=.dead")
    nsqd = NsqdProcess(fork_server, tmp_path, (*DURABLE, *limits))
    await nsqd.start()
    http = await HttpClient.connect(("127.0.0.1", nsqd.http_port))
    await http.post("/topic/create?topic=orders", b"")
    await http.post("/channel/create?topic=orders&channel=ch", b"")
    bodies = sorted(BODIES)[:1000]
    async with connected(nsqd.tcp_port) as client:
        await client.publish("orders", *bodies)
        await client.subscribe("orders", "ch", rdy=1000)
        for _ in bodies:
            client.req(await client.read_message(), 0)
        await client.drain()
    await http.post("/channel/create?topic=orders&channel=other", b"")
    while await count_dead_letters(http) != len(bodies):  # noqa: ASYNC110 - a test looks from outside
        await asyncio.sleep(0.01)

    replay = asyncio.create_task(http.post("/topic/replay?topic=orders.dead", b""))
    await asyncio.sleep(random.Random(seed).uniform(0.0, 0.02))
    await nsqd.kill()
    await asyncio.gather(replay, return_exceptions=True)
    await http.close()

    await nsqd.start()
    http = await HttpClient.connect(("127.0.0.1", nsqd.http_port))
    other = await http.get("/channel/peek?topic=orders&channel=other&format=json")
    shown = await http.get("/topic/peek?topic=orders.dead&format=json&count=100")
    await http.close()
    assert other.json()["messages"] == []
    assert all(each["origin"]["channel"] == "ch" for each in shown.json()["messages"])
    assert await read_all(nsqd, "orders.dead") | await read_all(nsqd, "orders") == set(bodies)
    await nsqd.kill()
