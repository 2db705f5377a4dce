"""The client against nsqd as a process: ours, and the Go one where it is on PATH.

Every test that takes `start_nsqd` runs twice. The loop is uvloop, as in the commands; tests marked
`both_loops` run on asyncio's own loop too.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import uvloop

from tests.support.cluster import ClusterDaemon
from tests.support.daemon_process import OURS, find_go_program
from tests.support.lookupd_in_process import LoopFactory

UVLOOP: dict[str, LoopFactory] = {"uvloop": uvloop.new_event_loop}
BOTH_LOOPS = {**UVLOOP, "asyncio": asyncio.SelectorEventLoop}


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, LoopFactory]:
    """Run coroutines of tests on these loops."""
    return UVLOOP if item.get_closest_marker("both_loops") is None else BOTH_LOOPS


class Nsqd(ClusterDaemon):
    """An nsqd of either kind, on the ports of its first start."""

    is_go = False

    async def create(self, topic: str, *channels: str) -> None:
        """Create a topic with channels."""
        await self.post(f"/topic/create?topic={topic}")
        for channel in channels:
            await self.post(f"/channel/create?topic={topic}&channel={channel}")

    async def channel(self, topic: str, channel: str = "ch") -> dict[str, int]:
        """Return what /stats says of a channel; {} if there is none."""
        stats = await self.get(f"/stats?format=json&topic={topic}")
        for each in stats["topics"] or []:
            for found in each["channels"] or []:
                if (each["topic_name"], found["channel_name"]) == (topic, channel):
                    return dict(found)
        return {}

    async def message_count(self, topic: str) -> int:
        """Return how many messages a topic has had."""
        stats = await self.get(f"/stats?format=json&topic={topic}")
        counts = [int(each["message_count"]) for each in stats["topics"] or []]
        return counts[0] if counts else 0

    async def wait_for_channel(self, topic: str, channel: str = "ch", **wanted: int) -> None:
        """Wait until the channel's figures are these."""
        while True:
            found = await self.channel(topic, channel)
            if found and all(found[name] == value for name, value in wanted.items()):
                return
            await asyncio.sleep(0.01)


MakeNsqd = Callable[..., Nsqd]
StartNsqd = Callable[..., Awaitable[Nsqd]]


@pytest.fixture(params=["ours", "go"])
def command(request: pytest.FixtureRequest) -> list[str]:
    """The command of an nsqd."""
    if request.param == "ours":
        return list(OURS)
    path = find_go_program("nsqd")
    if path is None:
        pytest.skip("Go's nsqd is not on PATH")
    return [path]


@pytest.fixture
def make_nsqd(command: list[str], tmp_path: Path) -> Iterator[MakeNsqd]:
    """Make nsqds that are yet to be started; they are killed at the end."""
    made: list[Nsqd] = []

    def make(*flags: str) -> Nsqd:
        directory = tmp_path / f"nsqd{len(made)}"
        nsqd = Nsqd(
            directory,
            "--https-address=127.0.0.1:0",
            *flags,
            command=command,
            data_path=directory / "data",
            keeps_ports=True,
        )
        nsqd.is_go = command[0] != sys.executable
        made.append(nsqd)
        return nsqd

    yield make
    for nsqd in made:
        nsqd.kill()


@pytest.fixture
async def start_nsqd(make_nsqd: MakeNsqd) -> StartNsqd:
    """Start nsqds; they are killed at the end."""

    async def start(*flags: str) -> Nsqd:
        nsqd = make_nsqd(*flags)
        await nsqd.start()
        return nsqd

    return start


@pytest.fixture
async def nsqd(start_nsqd: StartNsqd) -> Nsqd:
    """nsqd with its defaults."""
    return await start_nsqd()
