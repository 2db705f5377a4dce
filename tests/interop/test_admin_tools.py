"""The real nsqadmin and nsq_stat against two of our daemons (S-21)."""

import asyncio
import json
import shutil
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import Cluster, Lookupd, Nsqd, wait_for
from tests.support.daemon_process import find_go_program
from tests.support.http_client import HttpClient, fetch
from tests.support.waiting import PATIENCE_S

# Ours has the same name.
NSQADMIN = find_go_program("nsqadmin")
NSQ_STAT = shutil.which("nsq_stat")

pytestmark = pytest.mark.skipif(
    NSQADMIN is None or NSQ_STAT is None,
    reason="Go's nsqadmin and nsq_stat are not on the PATH",
)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.close()


@pytest.fixture
async def lookupd(cluster: Cluster) -> Lookupd:
    lookupd = cluster.lookupd()
    await lookupd.start()
    return lookupd


@pytest.fixture
async def nsqds(cluster: Cluster, lookupd: Lookupd) -> list[Nsqd]:
    """Two daemons, one of which keeps latencies, with one topic and channel."""
    flags = ("--e2e-processing-latency-percentile=1.0,0.99",)
    nsqds = [cluster.nsqd(lookupd, flags=flags), cluster.nsqd(lookupd)]
    await cluster.start(*nsqds)
    for nsqd in nsqds:
        await nsqd.create("t", "ch")
        await nsqd.publish("t", "one", "two")
    await lookupd.wait_for_producers("t", *nsqds)
    return nsqds


class Admin:
    """nsqadmin's API."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def ask(self, method: str, target: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        address = ("127.0.0.1", self._port)
        # Not HttpClient, which wants to be told how long a reply is: nsqadmin sends chunks.
        reply = await asyncio.to_thread(fetch, address, method, f"/api{target}", data)
        assert reply.status == 200, reply
        return reply.json()


@pytest.fixture
async def admin(lookupd: Lookupd, nsqds: list[Nsqd]) -> AsyncIterator[Admin]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    assert NSQADMIN is not None
    process = await asyncio.create_subprocess_exec(
        NSQADMIN,
        f"--http-address=127.0.0.1:{port}",
        f"--lookupd-http-address={lookupd.http_address}",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await (await HttpClient.connect(("127.0.0.1", port))).close()
                    break
                except OSError:
                    await asyncio.sleep(0.05)
        yield Admin(port)
    finally:
        process.kill()
        await process.wait()


async def test_topic_page(admin: Admin, nsqds: list[Nsqd]) -> None:
    assert (await admin.ask("GET", "/topics"))["topics"] == ["t"]

    topic = await admin.ask("GET", "/topics/t")

    assert (topic["message_count"], topic["depth"]) == (4, 0)
    assert {node["node"] for node in topic["nodes"]} == {nsqd.http_address for nsqd in nsqds}
    [channel] = topic["channels"]
    assert (channel["channel_name"], channel["depth"]) == ("ch", 4)
    assert [entry["quantile"] for entry in channel["e2e_processing_latency"]["percentiles"]] == [
        1,
        0.99,
    ]


async def test_channel_page_shows_clients(admin: Admin, nsqds: list[Nsqd]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", nsqds[0].tcp_port)
    writer.write(b"  V2SUB t ch\nRDY 1\n")
    await asyncio.wait_for(reader.readexactly(10), PATIENCE_S)

    async def in_flight() -> int:
        count: int = (await admin.ask("GET", "/topics/t/ch"))["in_flight_count"]
        return count

    await wait_for(in_flight, 1)
    channel = await admin.ask("GET", "/topics/t/ch")

    [client] = channel["clients"]
    assert (client["node"], client["ready_count"]) == (nsqds[0].http_address, 1)
    writer.close()
    await writer.wait_closed()


async def test_node_pages(admin: Admin, nsqds: list[Nsqd]) -> None:
    nodes = (await admin.ask("GET", "/nodes"))["nodes"]
    assert {node["http_port"] for node in nodes} == {nsqd.http_port for nsqd in nsqds}
    assert not any(node["out_of_date"] for node in nodes)

    node = await admin.ask("GET", f"/nodes/{nsqds[0].http_address}")

    assert (node["total_messages"], node["total_clients"]) == (2, 0)
    counters = (await admin.ask("GET", "/counter"))["stats"]
    assert sum(entry["message_count"] for entry in counters.values()) == 4


async def test_actions(admin: Admin, nsqds: list[Nsqd]) -> None:
    async def channels(nsqd: Nsqd) -> list[tuple[str, int, bool]]:
        [topic] = (await nsqd.get("/stats?format=json&topic=t"))["topics"]
        return [
            (channel["channel_name"], channel["depth"], channel["paused"])
            for channel in topic["channels"]
        ]

    await admin.ask("POST", "/topics/t/ch", {"action": "pause"})
    assert [await channels(nsqd) for nsqd in nsqds] == [[("ch", 2, True)]] * 2
    await admin.ask("POST", "/topics/t/ch", {"action": "unpause"})
    await admin.ask("POST", "/topics/t/ch", {"action": "empty"})
    assert [await channels(nsqd) for nsqd in nsqds] == [[("ch", 0, False)]] * 2
    await admin.ask("POST", "/topics", {"topic": "t", "channel": "new"})
    assert [await channels(nsqd) for nsqd in nsqds] == [[("ch", 0, False), ("new", 0, False)]] * 2
    await admin.ask("DELETE", "/topics/t/new")
    assert [await channels(nsqd) for nsqd in nsqds] == [[("ch", 0, False)]] * 2
    await admin.ask("DELETE", "/topics/t")
    for nsqd in nsqds:
        assert (await nsqd.get("/stats?format=json"))["topics"] == []


@pytest.mark.parametrize("finds_by", ["nsqd", "lookupd"])
async def test_nsq_stat_prints_rows(lookupd: Lookupd, nsqds: list[Nsqd], finds_by: str) -> None:
    addresses = [f"--lookupd-http-address={lookupd.http_address}"]
    if finds_by == "nsqd":
        addresses = [f"--nsqd-http-address={nsqd.http_address}" for nsqd in nsqds]

    assert NSQ_STAT is not None
    process = await asyncio.create_subprocess_exec(
        *(NSQ_STAT, "--topic=t", "--channel=ch", "--count=1", "--interval=100ms", *addresses),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)

    row = output.decode().splitlines()[-1]
    depths = row.split("|")[1].split()
    assert depths == ["4", "4", "0", "0", "0"], output.decode()
