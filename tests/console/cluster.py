"""nsqlookupd, three nsqd and nsqadmin as processes, for the pages of a cluster."""

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.daemon_process import HOST, LOOKUPD, REPOSITORY, DaemonProcess, WaitingDaemon
from tests.support.http_client import fetch
from tests.support.waiting import PATIENCE_S, wait_until

ADMIN = (sys.executable, "-m", "nsqadmin")
_LISTENING = re.compile(r"HTTP: listening on \S+:(\d+)$", re.MULTILINE)


class Admin:
    """nsqadmin with its log; a context that ends it."""

    def __init__(self, directory: Path, *flags: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._log_path = directory / "log"
        self._flags = flags
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def http_address(self) -> str:
        """Where it serves the page."""
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """The process."""
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        """All it has logged."""
        return self._log_path.read_text(errors="replace")

    def start(self) -> None:
        """Start it, on the port of its first start, and wait until it listens."""
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [*ADMIN, f"--http-address={HOST}:{self.port}", *self._flags],
                cwd=REPOSITORY,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.port = int(wait_until(lambda: _LISTENING.search(self.log))[1])

    def wait_for_topic(self, topic: str, channel: str = "") -> None:
        """Wait until a round has found a topic, with a channel if need be."""
        path = f"/api/v2/topics?topic={topic}" + (f"&channel={channel}" if channel else "")
        wait_until(lambda: fetch((HOST, self.port), "GET", path).status == 200)

    def stop(self) -> None:
        """End it with SIGTERM."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(PATIENCE_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


class Cluster:
    """All of them; `nsqds` in the order of their start."""

    def __init__(self, directory: Path, *, nsqd_count: int = 3, flags: Sequence[str] = ()) -> None:
        """Args: flags: of each nsqd."""
        self._directory = directory
        self._stack = contextlib.ExitStack()
        self.lookupd = WaitingDaemon(directory / "lookupd", command=LOOKUPD, keeps_ports=True)
        self.nsqds: list[DaemonProcess] = []
        self._nsqd_count = nsqd_count
        self._flags = flags

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.lookupd)
            for number in range(self._nsqd_count):
                address = f"--lookupd-tcp-address={self.lookupd.tcp_address}"
                nsqd = DaemonProcess(self._directory / f"nsqd-{number}", address, *self._flags)
                nsqd.keeps_ports = True
                self.nsqds.append(stack.enter_context(nsqd))
            self.admin = stack.enter_context(self.make_admin())
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def make_admin(self, *flags: str) -> Admin:
        """Make another nsqadmin for the cluster, yet to be started."""
        return Admin(
            self._directory / f"nsqadmin-{len(flags)}",
            f"--lookupd-http-address={self.lookupd.http_address}",
            "--poll-interval=1s",
            "--http-client-request-timeout=1s",
            *flags,
        )

    def create(self, topic: str, *channels: str) -> None:
        """Create a topic on all nodes, and wait until nsqlookupd knows."""
        for nsqd in self.nsqds:
            nsqd.request("POST", f"/topic/create?topic={topic}")
            for channel in channels:
                nsqd.request("POST", f"/channel/create?topic={topic}&channel={channel}")

        def is_known() -> bool:
            reply = self.lookupd.fetch("GET", f"/lookup?topic={topic}")
            return reply.status == 200 and len(reply.json()["producers"]) == len(self.nsqds)

        wait_until(is_known)
        address = (HOST, self.admin.port)
        wait_until(
            lambda: (
                fetch(address, "GET", f"/api/v2/topics?topic={topic}").json().get("nodes")
                == len(self.nsqds)
            )
        )
