"""UnitFile and UnitService: a service unit, read and run as systemd would, on loopback."""

import asyncio
import itertools
import os
import re
import shlex
import socket
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from tests.support.waiting import until

# The places that the units in deploy/ name, and which a test replaces.
BIN_DIRECTORY = "/opt/nsqd/bin"
STATE_DIRECTORY = "/var/lib/nsqd"

_numbers = itertools.count()
_VARIABLE = re.compile(r"\$\{(\w+)\}")


class UnitFile:
    """The [Service] section of a unit, with the specifier %i filled in."""

    def __init__(self, path: Path, instance: str = "") -> None:
        self._values: defaultdict[str, list[str]] = defaultdict(list)
        section = ""
        for line in path.read_text().splitlines():
            if line.startswith("["):
                section = line.strip("[]")
            elif section == "Service" and line and line[0] not in "#;":
                key, _, value = line.partition("=")
                self._values[key].append(value.replace("%i", instance))

    def get(self, key: str) -> str:
        """Return the only value of a key."""
        [value] = self._values[key]
        return value

    def command(self, key: str, variables: dict[str, str]) -> list[str]:
        """Return a command line, its variables filled in as systemd does.

        `${NAME}` is filled in within its word; `$NAME` as a word is split into words.
        """
        given = dict(value.split("=", 1) for value in self._values["Environment"])
        given |= variables
        words: list[str] = []
        for word in shlex.split(self.get(key)):
            if word.startswith("$") and word[1:].isidentifier():
                words += given.get(word[1:], "").split()
            else:
                words.append(_VARIABLE.sub(lambda match: given.get(match[1], ""), word))
        return words


class UnitService:
    """One service of type notify: started, ready, stopped, by the commands of its unit."""

    def __init__(self, unit: UnitFile, directory: Path, variables: dict[str, str]) -> None:
        """Args: directory: stands for the state directory, and holds the log."""
        assert unit.get("Type") == "notify"
        self._unit = unit
        self._directory = directory
        self._variables = variables
        self._process: subprocess.Popen[bytes] | None = None
        self._notified = ""
        self._state_directory = directory / "state"
        # systemd makes it below /var/lib.
        state = Path("/var/lib") / unit.get("StateDirectory")
        (self._state_directory / state.relative_to(STATE_DIRECTORY)).mkdir(parents=True)
        # An abstract address: the path of a file in the directory of a test may be too long.
        self._notify_name = f"nsqd-test-{os.getpid()}-{next(_numbers)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{self._notify_name}")
        self._socket.setblocking(False)

    @property
    def log(self) -> str:
        """What the service has logged, in all its lives."""
        return (self._directory / "log").read_text()

    @property
    def notified(self) -> str:
        """What the service has told its manager since its start."""
        while True:
            try:
                self._notified += self._socket.recv(4096).decode() + "\n"
            except BlockingIOError:
                return self._notified

    async def start(self) -> None:
        """Run ExecStart, and wait until the service is ready."""
        self._notified = ""
        self._spawn()
        await until(self._is_ready)

    def _spawn(self) -> None:
        environment = {**os.environ, "NOTIFY_SOCKET": f"@{self._notify_name}"}
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command("ExecStart"), stdin=subprocess.DEVNULL, stderr=log, env=environment
            )

    async def stop(self) -> None:
        """Run ExecStop, after which the service must have ended well without a signal."""
        assert self._process is not None
        command = self._command("ExecStop")
        stopping = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        output, _ = await stopping.communicate()
        assert stopping.returncode == 0, output
        await until(lambda: self._process is None or self._process.poll() is not None)
        assert self._process.returncode == 0, self.log
        assert "STOPPING=1" in self.notified

    def close(self) -> None:
        """Kill it if it runs."""
        self._socket.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log
        return "READY=1" in self.notified

    def _command(self, key: str) -> list[str]:
        words = self._unit.command(key, self._variables)
        places = {
            BIN_DIRECTORY: os.fspath(Path(sys.executable).parent),
            STATE_DIRECTORY: os.fspath(self._state_directory),
            "0.0.0.0": "127.0.0.1",
        }
        for place, replacement in places.items():
            words = [word.replace(place, replacement) for word in words]
        return words
