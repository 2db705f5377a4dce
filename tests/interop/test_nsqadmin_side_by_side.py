"""Our nsqadmin and Go's in front of the same cluster, with a Go nsqd in it: the same answers.

Where they differ on purpose, the test says so: Go's totals share objects with a node, its empty
lists are null, and what does not exist is an error of the server.
"""

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.conftest import FindGo
from tests.support.cluster import Cluster, Lookupd, Nsqd
from tests.support.daemon_process import HOST, REPOSITORY
from tests.support.http_client import Reply, fetch
from tests.support.waiting import until

# Members that NSQ's release 1.3.0 does not have yet, or that show a moment.
LATER = {"topology_zone", "topology_region", "node_topology_zone", "node_topology_region"}
MOMENTS = {"connected"}


class AdminProcess:
    """One nsqadmin, of ours or of Go."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [*command, f"--http-address={HOST}:0"], cwd=REPOSITORY, stderr=file
            )

    async def find_port(self) -> int:
        pattern = rf"HTTP: listening on {HOST}:(\d+)$"
        found = await until(lambda: re.search(pattern, self._log.read_text(), re.MULTILINE))
        return int(found[1])

    async def ask(self, method: str, path: str, body: bytes | None = None) -> Reply:
        address = HOST, await self.find_port()
        return await asyncio.to_thread(fetch, address, method, path, body)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


class Pair:
    """Both, asked the same."""

    def __init__(self, ours: AdminProcess, go: AdminProcess) -> None:
        self.ours = ours
        self.go = go

    async def compare(self, path: str, method: str = "GET", body: bytes | None = None) -> Any:
        """Ask both; the answers must have the same status, keys, types and values."""
        go = await self.go.ask(method, path, body)
        ours = await self.ours.ask(method, path, body)
        assert ours.status == go.status, (path, ours, go)
        assert ours.headers["content-type"] == go.headers["content-type"]
        assert ours.headers["x-nsq-content-type"] == go.headers["x-nsq-content-type"]
        assert normalize(ours.json()) == normalize(go.json()), path
        return ours.json()


def normalize(value: Any) -> Any:
    """Return an answer without what may differ: null for an empty list, and moments."""
    if isinstance(value, dict):
        return {
            name: normalize(each) for name, each in value.items() if name not in LATER | MOMENTS
        }
    if isinstance(value, list):
        return sorted((normalize(each) for each in value), key=repr) or None
    return value


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
async def nsqds(cluster: Cluster, lookupd: Lookupd, find_go: FindGo) -> list[Nsqd]:
    """One nsqd of ours and one of Go."""
    nsqds = [cluster.nsqd(lookupd), cluster.nsqd(lookupd, command=(find_go("nsqd"),))]
    await cluster.start(*nsqds)
    for nsqd in nsqds:
        await nsqd.create("t", "ch")
        await nsqd.publish("t", "one", "two")
    await lookupd.wait_for_producers("t", *nsqds)
    return nsqds


@pytest.fixture
def pair(tmp_path: Path, lookupd: Lookupd, find_go: FindGo) -> Iterator[Pair]:
    go_command = find_go("nsqadmin")  # or skip, before anything is started
    flag = f"--lookupd-http-address={lookupd.http_address}"
    ours = AdminProcess([sys.executable, "-m", "nsqadmin", flag], tmp_path / "ours.log")
    go = AdminProcess([go_command, flag], tmp_path / "go.log")
    yield Pair(ours, go)
    ours.stop()
    go.stop()


async def test_reads(pair: Pair, nsqds: list[Nsqd], lookupd: Lookupd) -> None:
    reader, writer = await asyncio.open_connection(HOST, nsqds[1].tcp_port)
    writer.write(b"  V2SUB t ch\n")
    await reader.readexactly(10)

    await lookupd.post("/topic/create?topic=idle")
    await lookupd.post("/channel/create?topic=idle&channel=c")
    for path in ("/api/topics", "/api/topics?inactive=true", "/api/nodes", "/api/counter"):
        assert await pair.compare(path)
    for nsqd in nsqds:
        await pair.compare(f"/api/nodes/{nsqd.http_address}")
    channel = await pair.compare("/api/topics/t/ch")
    assert len(channel["clients"]) == 1
    # Go's totals of a topic's channels are the objects of the first node: all but those agree.
    go = (await pair.go.ask("GET", "/api/topics/t")).json()
    ours = (await pair.ours.ask("GET", "/api/topics/t")).json()
    assert ours.keys() == go.keys()
    names = go.keys() - {"channels", "nodes"}
    assert normalize({name: ours[name] for name in names}) == normalize(
        {name: go[name] for name in names}
    )
    assert ours["channels"][0].keys() == go["channels"][0].keys()
    for method, path in (("GET", "/api/none"), ("PUT", "/api/topics"), ("GET", "/api/nodes/x:1")):
        await pair.compare(path, method)
    await pair.compare("/api/graphite?metric=x")
    await pair.compare("/api/graphite?metric=rate")
    writer.close()
    await writer.wait_closed()


async def test_writes_of_one_are_seen_by_the_other(
    pair: Pair, nsqds: list[Nsqd], lookupd: Lookupd
) -> None:
    for admin in (pair.ours, pair.go):
        for method, path, body in (
            ("POST", "/api/topics/t/ch", b'{"action":"pause"}'),
            ("POST", "/api/topics/t", b'{"action":"pause"}'),
            ("POST", "/api/topics/t/ch", b'{"action":"empty"}'),
            ("POST", "/api/topics", b'{"topic":"t","channel":"new"}'),
        ):
            reply = await admin.ask(method, path, body)
            assert (reply.status, reply.json()) == (200, {"message": ""}), (path, reply)
        for nsqd in nsqds:
            [topic] = (await nsqd.get("/stats?format=json&topic=t"))["topics"]
            assert topic["paused"] is True
            found = {each["channel_name"]: each for each in topic["channels"]}
            assert (found["ch"]["paused"], found["ch"]["depth"]) == (True, 0)
            assert "new" in found
        assert (await admin.ask("DELETE", "/api/topics/t/new")).json() == {"message": ""}
        for path in ("/api/topics/t", "/api/topics/t/ch"):
            await admin.ask("POST", path, b'{"action":"unpause"}')
    for body in (b'{"action":"explode"}', b'{"topic":"a b"}'):
        path = "/api/topics/t" if b"action" in body else "/api/topics"
        statuses = [(await each.ask("POST", path, body)).status for each in (pair.ours, pair.go)]
        assert statuses == [400, 400]
    await pair.ours.ask("DELETE", f"/api/nodes/{nsqds[1].http_address}", b'{"topic":"t"}')
    assert await lookupd.producers("t") == {nsqds[0].tcp_port}
    await pair.ours.ask("DELETE", "/api/topics/t")
    assert (await pair.compare("/api/topics"))["topics"] == []


async def test_what_a_go_node_lacks_is_said(pair: Pair, nsqds: list[Nsqd]) -> None:
    async def find_nodes() -> dict[str, Any]:
        nodes = (await pair.ours.ask("GET", "/api/v2/nodes")).json()["nodes"]
        return {node["node"]: node for node in nodes if node["state"] == "up"}

    while len(nodes := await find_nodes()) < 2:  # noqa: ASYNC110 - as a page would
        await asyncio.sleep(0.05)
    ours, go = (nodes[nsqd.http_address] for nsqd in nsqds)
    assert "peek" in ours["extensions"]
    assert go["extensions"] == []
    assert (ours["out_estimated"], go["out_estimated"]) == (False, True)
    target = f"/api/v2/messages?topic=t&channel=ch&node={go['node']}"
    found = (await pair.ours.ask("GET", target)).json()
    assert found["node_list"][0]["error"].startswith("NOT_SUPPORTED")
    published = await pair.ours.ask(
        "POST", "/api/v2/messages", f'{{"topic":"t","body":"x","node":"{go["node"]}"}}'.encode()
    )
    assert published.json() == {"node": go["node"], "published": 1}
