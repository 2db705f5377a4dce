"""Daemons as processes, for tests that must not share their fate.

`Daemon` is one program on loopback with its log, started again and again on the same data; it waits
for nothing. `DaemonProcess` waits as a test without a loop does, `tests.support.cluster` as one
with a loop, and `tests.support.faults.nsqd_process` for daemons that a fork server starts.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.http_client import Reply, fetch
from tests.support.waiting import PATIENCE_S, wait_until

HOST = "127.0.0.1"
REPOSITORY = Path(__file__).parents[2]
OURS = (sys.executable, "-m", "nsqd")
LOOKUPD = (sys.executable, "-m", "lookupd")
POLL_S = 0.02
# Reading the authorities of the system takes longer than all else, and no test needs them.
ENVIRONMENT = {"SSL_CERT_FILE": os.devnull}

_LISTENING = re.compile(r"(TCP|HTTP): listening on \S+:(\d+)$", re.MULTILINE)


def loopback_flags(
    *, tcp_port: int = 0, http_port: int = 0, data_path: Path | None = None
) -> list[str]:
    """The flags that keep a daemon on loopback: nsqd with a data path, nsqlookupd without one."""
    flags = [
        f"--tcp-address={HOST}:{tcp_port}",
        f"--http-address={HOST}:{http_port}",
        f"--broadcast-address={HOST}",
    ]
    return flags if data_path is None else [*flags, f"--data-path={data_path}"]


def find_ports(log: str) -> tuple[int, int] | None:
    """Return the TCP and the HTTP port that a daemon says it listens on, None before it does."""
    ports = dict(_LISTENING.findall(log))
    return (int(ports["TCP"]), int(ports["HTTP"])) if len(ports) == 2 else None


def find_go_program(name: str) -> str | None:
    """Return the path of a program of NSQ on PATH, unless it is our own of that name."""
    for directory in os.get_exec_path():
        path = shutil.which(name, path=directory)
        if path is not None and _version_of(path).startswith("go"):
            return path
    return None


def _version_of(path: str) -> str:
    done = subprocess.run(
        [path, "--version"], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    return done.stdout.rpartition("built w/")[2]


class Daemon:
    """One daemon, running or not. Its log has all its lives."""

    def __init__(
        self,
        directory: Path,
        *flags: str,
        command: Sequence[str] = OURS,
        data_path: Path | None = None,
        keeps_ports: bool = False,
    ) -> None:
        """Args: keeps_ports: whether a later start takes the ports of the first."""
        self.tcp_port = 0
        self.http_port = 0
        self.keeps_ports = keeps_ports
        self._command = command
        self._flags = flags
        self._data_path = data_path
        self._log_path = directory / "log"
        self._log_start = 0  # of the present life
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        if data_path is not None:
            data_path.mkdir(parents=True, exist_ok=True)

    @property
    def pid(self) -> int:
        """The process."""
        assert self._process is not None
        return self._process.pid

    @property
    def tcp_address(self) -> str:
        """Where it speaks its own protocol."""
        return f"{HOST}:{self.tcp_port}"

    @property
    def http_address(self) -> str:
        """Where it speaks HTTP."""
        return f"{HOST}:{self.http_port}"

    @property
    def whole_log(self) -> str:
        """All it has logged, over all its lives."""
        return self._log_path.read_text(errors="replace") if self._log_path.exists() else ""

    @property
    def log(self) -> str:
        """All it has logged since its last start."""
        return self.whole_log[self._log_start :]

    def is_running(self) -> bool:
        """Say whether there is a process, suspended or not."""
        return self._process is not None and self._process.poll() is None

    def spawn(self) -> "subprocess.Popen[bytes]":
        """Start it without waiting for anything."""
        assert not self.is_running()
        ports = {"tcp_port": self.tcp_port, "http_port": self.http_port} if self.keeps_ports else {}
        loopback = loopback_flags(data_path=self._data_path, **ports)
        command = [*self._command, *loopback, *self._flags]
        self._log_start = len(self.whole_log)
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stderr=log,
                env={**os.environ, **ENVIRONMENT},
            )
        return self._process

    def is_listening(self) -> bool:
        """Say whether it takes connections, and note its ports; it must not have ended."""
        ports = find_ports(self.log)
        if ports is None:
            assert self.is_running(), self.log
            return False
        self.tcp_port, self.http_port = ports
        return True

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def suspend(self) -> None:
        """Have it keep its sockets and say nothing."""
        assert self._process is not None
        self.send_signal(signal.SIGSTOP)
        # Its threads stop one after the other, and each answers until then.
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        """Have it go on."""
        self.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it with SIGKILL, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)


class WaitingDaemon(Daemon):
    """A daemon for a test without a loop; a context that kills it at the end."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()

    @property
    def address(self) -> tuple[str, int]:
        """Where clients connect to."""
        return HOST, self.tcp_port

    def start(self) -> None:
        """Start it and wait until it listens."""
        self.spawn()
        wait_until(self.is_listening)

    def wait(self) -> int:
        """Return its exit code when it has ended."""
        assert self._process is not None
        return self._process.wait(PATIENCE_S)

    def stop(self) -> None:
        """End it with SIGTERM; it must end well."""
        self.send_signal(signal.SIGTERM)
        assert self.wait() == 0, self.log

    def fetch(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        *,
        headers: dict[str, str] | None = None,
    ) -> Reply:
        """Make an HTTP request."""
        address = (HOST, self.http_port)
        return fetch(address, method, target, body, headers=headers, timeout_s=PATIENCE_S)

    def request(self, method: str, target: str, body: bytes | None = None) -> bytes:
        """Make an HTTP request that must succeed; return the body of the reply."""
        reply = self.fetch(method, target, body)
        assert reply.status == 200, (target, reply)
        return reply.body


class DaemonProcess(WaitingDaemon):
    """nsqd, of ours or of Go, with a data directory."""

    def __init__(
        self, directory: Path, *flags: str, command: Sequence[str] = OURS, data: Path | None = None
    ) -> None:
        """Args: data: where its queues are, if not in a place of its own."""
        self.data_path = data or directory / "data"
        https = f"--https-address={HOST}:0"
        super().__init__(directory, https, *flags, command=command, data_path=self.data_path)

    def publish(self, topic: str, *bodies: bytes) -> None:
        """Publish over HTTP."""
        for body in bodies:
            self.request("POST", f"/pub?topic={topic}", body)

    def find_channel(self, topic: str, channel: str) -> dict[str, Any] | None:
        """Return what /stats says of a channel, None if there is no such channel."""
        found = json.loads(self.request("GET", f"/stats?format=json&topic={topic}"))
        for entry in found["topics"] or []:
            for candidate in entry["channels"] or []:
                if (entry["topic_name"], candidate["channel_name"]) == (topic, channel):
                    stats: dict[str, Any] = candidate
                    return stats
        return None

    def wait_for_channel(self, topic: str, channel: str, **wanted: object) -> dict[str, Any]:
        """Wait until the channel is there and its figures are these."""

        def find() -> dict[str, Any] | None:
            found = self.find_channel(topic, channel)
            is_wanted = found is not None and all(
                found[key] == value for key, value in wanted.items()
            )
            return found if is_wanted else None

        return wait_until(find)
