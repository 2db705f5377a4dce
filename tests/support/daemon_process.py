"""DaemonProcess: an nsqd of ours or of Go as a process, for tests that must not share its fate."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

REPOSITORY = Path(__file__).parents[2]
OURS = (sys.executable, "-m", "nsqd")
PATIENCE_S = 20.0
POLL_S = 0.02

_LISTENING = re.compile(r"(TCP|HTTP): listening on \S+:(\d+)$", re.MULTILINE)


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


class DaemonProcess:
    """One nsqd on loopback, with its data and its log in a directory; a context that ends it."""

    def __init__(
        self, directory: Path, *flags: str, command: Sequence[str] = OURS, data: Path | None = None
    ) -> None:
        """Args: data: where its queues are, if not in a place of its own."""
        self.data_path = data or directory / "data"
        self.ports: dict[str, int] = {}
        self._tcp_port = 0
        self._command = (*command, *flags)
        self._log_path = directory / "log"
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        self.data_path.mkdir(parents=True, exist_ok=True)

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
    def log(self) -> str:
        """Everything that it has logged."""
        return self._log_path.read_text(errors="replace")

    @property
    def tcp_address(self) -> str:
        """host:port."""
        return f"127.0.0.1:{self.ports['TCP']}"

    @property
    def http_address(self) -> str:
        """host:port."""
        return f"127.0.0.1:{self.ports['HTTP']}"

    def keep_port(self) -> None:
        """Have it listen on the port that it has now after the next start too."""
        self._tcp_port = self.ports["TCP"]

    def spawn(self) -> "subprocess.Popen[bytes]":
        """Start it without waiting for anything."""
        command = [
            *self._command,
            f"--tcp-address=127.0.0.1:{self._tcp_port}",
            "--http-address=127.0.0.1:0",
            "--https-address=127.0.0.1:0",
            "--broadcast-address=127.0.0.1",
            f"--data-path={self.data_path}",
        ]
        # Reading the authorities of the system takes longer than all else, and no test needs them.
        environment = {**os.environ, "SSL_CERT_FILE": os.devnull}
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stderr=log, env=environment
            )
        return self._process

    def start(self) -> None:
        """Start it and wait until it listens."""
        process = self.spawn()
        deadline = time.monotonic() + PATIENCE_S
        while len(self.ports) < 2:
            assert process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(POLL_S)
            self.ports = {name: int(port) for name, port in _LISTENING.findall(self.log)}

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self) -> int:
        """Return its exit code when it has ended."""
        assert self._process is not None
        self.ports = {}
        return self._process.wait(PATIENCE_S)

    def stop(self) -> None:
        """End it with SIGTERM; it must end well."""
        self.send_signal(signal.SIGTERM)
        assert self.wait() == 0, self.log

    def kill(self) -> None:
        """End it with SIGKILL, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)
            self.ports = {}

    def request(self, method: str, target: str, body: bytes | None = None) -> bytes:
        """Make an HTTP request that must succeed."""
        request = urllib.request.Request(
            f"http://{self.http_address}{target}", method=method, data=body
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
            content: bytes = reply.read()
        return content

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
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = self.find_channel(topic, channel)
            if found is not None and all(found[key] == value for key, value in wanted.items()):
                return found
            assert time.monotonic() < deadline, (wanted, found)
            time.sleep(POLL_S)
