"""nsqadmin in process, in front of real daemons in process, or of a farm that is made up."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Protocol

import pytest
import uvloop

from lookupd.daemon import Daemon as Lookupd
from lookupd.options import Options as LookupdOptions
from tests.support.fake_farm import Farm
from tests.support.running_admin import HOST, RunningAdmin
from tests.support.running_daemon import RunningDaemon


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Any]:
    """Run coroutines of tests on the loop of the daemon."""
    return {"uvloop": uvloop.new_event_loop}


class StartAdmin(Protocol):
    """Starts nsqadmin with these options."""

    async def __call__(self, **options: Any) -> RunningAdmin: ...


@pytest.fixture
async def start_admin(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> AsyncIterator[StartAdmin]:
    """Start nsqadmin; at the end it is stopped and must be without fault."""
    # Reading the authorities of the system takes longer than all else, and no test needs them.
    monkeypatch.setenv("SSL_CERT_FILE", os.devnull)
    started: list[RunningAdmin] = []

    async def start(**options: Any) -> RunningAdmin:
        admin = RunningAdmin(**options)
        started.append(admin)
        await admin.start()
        return admin

    yield start
    for admin in started:
        await admin.stop()
    faults = [record.getMessage() for record in caplog.get_records("call") if record.exc_info]
    assert not faults


class Cluster:
    """An nsqlookupd and two nsqds that register with it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.lookupds: list[Lookupd] = []
        self.nsqds: list[RunningDaemon] = []

    @property
    def options(self) -> dict[str, Any]:
        """What nsqadmin needs to find it."""
        return {
            "lookupd_http_addresses": tuple(f"{HOST}:{each.http_port}" for each in self.lookupds)
        }

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes."""
        return [f"{HOST}:{nsqd.daemon.http_port}" for nsqd in self.nsqds]

    async def add_lookupd(self) -> Lookupd:
        """Start another nsqlookupd."""
        address = f"{HOST}:0"
        lookupd = Lookupd(
            LookupdOptions(tcp_address=address, http_address=address, broadcast_address=HOST)
        )
        await lookupd.start()
        self.lookupds.append(lookupd)
        return lookupd

    async def add_nsqd(self, **options: Any) -> RunningDaemon:
        """Start another nsqd; it is registered when this returns."""
        path = Path(tempfile.mkdtemp(dir=self._directory))
        addresses = tuple(f"{HOST}:{each.tcp_port}" for each in self.lookupds)
        given = {"lookupd_tcp_addresses": addresses, "broadcast_address": HOST} | options
        nsqd = RunningDaemon(path, **given)
        await nsqd.start()
        self.nsqds.append(nsqd)
        for lookupd in self.lookupds:
            while len(list(lookupd.registry.nodes(now=0.0))) < len(self.nsqds):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        return nsqd

    async def create(self, topic: str, *channels: str) -> None:
        """Create a topic with channels on all nodes, and wait until it is registered."""
        for nsqd in self.nsqds:
            await nsqd.post(f"/topic/create?topic={topic}")
            for channel in channels:
                await nsqd.post(f"/channel/create?topic={topic}&channel={channel}")
        for lookupd in self.lookupds:
            while len(lookupd.registry.find_producers(topic, now=0.0) or []) < len(self.nsqds):  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def close(self) -> None:
        """Stop everything."""
        for nsqd in self.nsqds:
            await nsqd.stop()
        for lookupd in self.lookupds:
            await lookupd.close()


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    """One nsqlookupd and two nsqds."""
    monkeypatch.setenv("SSL_CERT_FILE", os.devnull)
    cluster = Cluster(tmp_path)
    try:
        await cluster.add_lookupd()
        await cluster.add_nsqd()
        await cluster.add_nsqd()
        yield cluster
    finally:
        await cluster.close()


@pytest.fixture
async def farm() -> AsyncIterator[Farm]:
    """Four nodes that only look like nsqds."""
    farm = Farm(nodes=4, topics=6, per_node=3)
    await farm.start()
    yield farm
    await farm.close()
