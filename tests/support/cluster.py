"""Processes of nsqd and nsqlookupd on loopback, killed and started again by tests.

A daemon takes free ports at its first start and keeps them. Everything here waits with a limit and
asks the daemons over HTTP, as an operator would.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tests.support.daemon_process import HOST, LOOKUPD, OURS, Daemon
from tests.support.http_client import HttpClient, Reply
from tests.support.waiting import until

POLL_S = 0.02

_T = TypeVar("_T")


class ClusterDaemon(Daemon):
    """One daemon, on the ports of its first start; a test waits for it on its loop."""

    async def start(self) -> None:
        """Start it and wait until it listens."""
        self.spawn()
        await until(self.is_listening)

    async def stop(self) -> None:
        """End it with SIGTERM; it must end well."""
        assert await self.end() == 0, self.log

    async def end(self) -> int:
        """End it with SIGTERM; return its exit code, whatever that is."""
        self.send_signal(signal.SIGTERM)
        await until(lambda: not self.is_running())
        assert self._process is not None
        return self._process.returncode or 0

    async def request(self, method: str, target: str, body: bytes = b"") -> Reply:
        """Make one HTTP request."""
        async with await HttpClient.connect((HOST, self.http_port)) as client:
            return await client.request(method, target, body)

    async def get(self, target: str) -> Any:
        """GET JSON that must be there."""
        reply = await self.request("GET", target)
        assert reply.status == 200, (target, reply)
        return reply.json()

    async def post(self, target: str, body: bytes = b"") -> None:
        """POST what must succeed."""
        reply = await self.request("POST", target, body)
        assert reply.status == 200, (target, reply)


class Lookupd(ClusterDaemon):
    """nsqlookupd, and what it knows."""

    def __init__(self, directory: Path, *flags: str) -> None:
        super().__init__(directory, *flags, command=LOOKUPD, keeps_ports=True)

    async def producers(self, topic: str) -> set[int]:
        """The TCP ports of the topic's producers; none if the topic is unknown."""
        reply = await self.request("GET", f"/lookup?topic={topic}")
        if reply.status == 404:
            return set()
        assert reply.status == 200, reply
        return {producer["tcp_port"] for producer in reply.json()["producers"]}

    async def wait_for_producers(self, topic: str, *nsqds: "Nsqd | int") -> None:
        """Wait until the topic has exactly these producers (or those at these TCP ports)."""
        ports = {nsqd if isinstance(nsqd, int) else nsqd.tcp_port for nsqd in nsqds}
        await wait_for(lambda: self.producers(topic), ports)

    async def channels(self, topic: str) -> set[str]:
        """The topic's channels."""
        return set((await self.get(f"/channels?topic={topic}"))["channels"])

    async def registrations(self) -> set[str]:
        """What has producers, as "topic:T:" and "channel:T:C"."""
        return {key for key in await self.get("/debug") if not key.startswith("client")}


class Nsqd(ClusterDaemon):
    """nsqd with a data directory of its own."""

    def __init__(
        self,
        directory: Path,
        *flags: str,
        lookupd_addresses: list[str],
        command: Sequence[str] = OURS,
    ) -> None:
        self.data_path = directory / "data"
        lookupds = (f"--lookupd-tcp-address={address}" for address in lookupd_addresses)
        super().__init__(
            directory,
            *lookupds,
            *flags,
            command=command,
            data_path=self.data_path,
            keeps_ports=True,
        )

    async def publish(self, topic: str, *bodies: str) -> None:
        """Publish one by one; each must be accepted."""
        for body in bodies:
            await self.post(f"/pub?topic={topic}", body.encode())

    async def create(self, topic: str, *channels: str) -> None:
        """Create a topic with channels."""
        await self.post(f"/topic/create?topic={topic}")
        for channel in channels:
            await self.post(f"/channel/create?topic={topic}&channel={channel}")

    async def wait_for_metadata(self, text: str) -> None:
        """Wait until nsqd.dat holds this, which is a moment after a creation is acknowledged."""
        path = self.data_path / "nsqd.dat"
        await until(lambda: text in path.read_text())


class Cluster:
    """All daemons of a test; whatever still runs at the end is killed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._daemons: list[ClusterDaemon] = []

    def lookupd(self, *flags: str) -> Lookupd:
        """An nsqlookupd that is yet to be started."""
        lookupd = Lookupd(self._next_directory(), *flags)
        self._daemons.append(lookupd)
        return lookupd

    def nsqd(
        self,
        *lookupds: Lookupd | str,
        flags: tuple[str, ...] = (),
        command: Sequence[str] = OURS,
    ) -> Nsqd:
        """An nsqd that is yet to be started, registering with these (or at these addresses)."""
        addresses = [each if isinstance(each, str) else each.tcp_address for each in lookupds]
        nsqd = Nsqd(self._next_directory(), *flags, lookupd_addresses=addresses, command=command)
        self._daemons.append(nsqd)
        return nsqd

    async def start(self, *daemons: ClusterDaemon) -> None:
        """Start several at the same time."""
        await asyncio.gather(*(daemon.start() for daemon in daemons))

    def close(self) -> None:
        """Kill what still runs."""
        for daemon in self._daemons:
            daemon.kill()

    def _next_directory(self) -> Path:
        return self._directory / f"daemon-{len(self._daemons)}"


async def wait_for(ask: Callable[[], Awaitable[_T]], wanted: _T) -> None:
    """Ask until the answer is the wanted one."""
    while await ask() != wanted:  # noqa: ASYNC110 - a test looks from outside
        await asyncio.sleep(POLL_S)
