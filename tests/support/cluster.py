"""Processes of nsqd and nsqlookupd on loopback, killed and started again by tests.

A `DaemonProcess` takes free ports at its first start and keeps them. Everything here waits with a
limit and asks the daemons over HTTP, as an operator would.
"""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from tests.support.http_client import HttpClient, Reply

HOST = "127.0.0.1"
REPOSITORY = Path(__file__).parents[2]
START_TIMEOUT_S = 20.0
PATIENCE_S = 15.0
POLL_S = 0.02

_LISTENING = re.compile(r"(TCP|HTTP): listening on \S+:(\d+)$", re.MULTILINE)
_T = TypeVar("_T")


class DaemonProcess:
    """One daemon, running or not."""

    def __init__(self, module: str, directory: Path, *flags: str) -> None:
        self.module = module
        self.flags = flags
        self.tcp_port = 0
        self.http_port = 0
        self._log_path = directory / "log"
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def tcp_address(self) -> str:
        """Where it speaks its own protocol."""
        return f"{HOST}:{self.tcp_port}"

    @property
    def http_address(self) -> str:
        """Where it speaks HTTP."""
        return f"{HOST}:{self.http_port}"

    def is_running(self) -> bool:
        """Say whether there is a process, suspended or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """All it has logged, over all its lives."""
        return self._log_path.read_text(errors="replace")

    async def start(self) -> None:
        """Start it, on the ports it had before if there were any; wait until it listens."""
        assert not self.is_running()
        old_log = self.log if self._log_path.exists() else ""
        self._spawn()
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            new_log = self.log.removeprefix(old_log)
            ports = dict(_LISTENING.findall(new_log))
            if len(ports) == 2:
                break
            assert self.is_running(), new_log
            assert time.monotonic() < deadline, new_log
            await asyncio.sleep(POLL_S)
        self.tcp_port, self.http_port = int(ports["TCP"]), int(ports["HTTP"])

    def _spawn(self) -> None:
        command = [
            *(sys.executable, "-m", self.module),
            f"--tcp-address={self.tcp_address}",
            f"--http-address={self.http_address}",
            f"--broadcast-address={HOST}",
            *self.flags,
        ]
        # Reading the authorities of the system takes longer than all else, and no test needs them.
        environment = {**os.environ, "SSL_CERT_FILE": os.devnull}
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stderr=log, env=environment
            )

    def kill(self) -> None:
        """End it with SIGKILL, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)

    async def stop(self) -> None:
        """End it with SIGTERM; it must end well."""
        assert self._process is not None
        self._process.terminate()
        await wait_until(lambda: not self.is_running())
        assert self._process.returncode == 0, self.log

    async def end(self) -> int:
        """End it with SIGTERM; return its exit code, whatever that is."""
        assert self._process is not None
        self._process.terminate()
        await wait_until(lambda: not self.is_running())
        return self._process.returncode or 0

    def suspend(self) -> None:
        """Have it keep its sockets and say nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Have it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

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


class Lookupd(DaemonProcess):
    """nsqlookupd, and what it knows."""

    def __init__(self, directory: Path, *flags: str) -> None:
        super().__init__("lookupd", directory, *flags)

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


class Nsqd(DaemonProcess):
    """nsqd with a data directory of its own."""

    def __init__(self, directory: Path, *flags: str, lookupd_addresses: list[str]) -> None:
        self.data_path = directory / "data"
        lookupds = (f"--lookupd-tcp-address={address}" for address in lookupd_addresses)
        super().__init__("nsqd", directory, f"--data-path={self.data_path}", *lookupds, *flags)
        self.data_path.mkdir(exist_ok=True)

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
        await wait_until(lambda: text in path.read_text())


class Cluster:
    """All daemons of a test; whatever still runs at the end is killed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._daemons: list[DaemonProcess] = []

    def lookupd(self, *flags: str) -> Lookupd:
        """An nsqlookupd that is yet to be started."""
        lookupd = Lookupd(self._next_directory(), *flags)
        self._daemons.append(lookupd)
        return lookupd

    def nsqd(self, *lookupds: Lookupd | str, flags: tuple[str, ...] = ()) -> Nsqd:
        """An nsqd that is yet to be started, registering with these (or at these addresses)."""
        addresses = [each if isinstance(each, str) else each.tcp_address for each in lookupds]
        nsqd = Nsqd(self._next_directory(), *flags, lookupd_addresses=addresses)
        self._daemons.append(nsqd)
        return nsqd

    async def start(self, *daemons: DaemonProcess) -> None:
        """Start several at the same time."""
        await asyncio.gather(*(daemon.start() for daemon in daemons))

    def close(self) -> None:
        """Kill what still runs."""
        for daemon in self._daemons:
            daemon.kill()

    def _next_directory(self) -> Path:
        return self._directory / f"daemon-{len(self._daemons)}"


async def wait_until(is_true: Callable[[], object]) -> None:
    """Wait until something is so, which it must be before long."""
    async with asyncio.timeout(PATIENCE_S):
        while not is_true():  # noqa: ASYNC110 - a test looks from outside
            await asyncio.sleep(POLL_S)


async def wait_for(ask: Callable[[], Awaitable[_T]], wanted: _T) -> None:
    """Ask until the answer is the wanted one; the last other one fails the test."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := await ask()) != wanted:
        assert time.monotonic() < deadline, (found, wanted)
        await asyncio.sleep(POLL_S)
