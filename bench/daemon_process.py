"""The daemon under test: started on free loopback ports, watched through /proc, ended.

A `Target` says which daemon; `running(target, flags)` gives one that answers, with an empty
data directory of its own, and ends it afterwards. A target may also be the address of a daemon
that somebody else runs: that one is only spoken to.
"""

import contextlib
import http.client
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

HOST: Final = "127.0.0.1"
START_TIMEOUT_S: Final = 30.0
START_ATTEMPTS: Final = 3
HTTP_TIMEOUT_S: Final = 10.0
STOP_TIMEOUT_S: Final = 5.0
LOG_LINES: Final = 15
# In a flag, this stands for the data directory of the daemon that gets the flag.
DATA_PATH: Final = "{data_path}"
REPOSITORY: Final = Path(__file__).resolve().parent.parent

_ADDRESS = re.compile(r"(?P<host>[\w.-]+):(?P<tcp>\d+)(?::(?P<http>\d+))?")


class DaemonError(Exception):
    """The daemon does not start, does not answer, or answers nonsense."""


@dataclass(frozen=True, slots=True)
class Target:
    """A daemon to measure: a command to start, or the address of a running one."""

    label: str
    command: tuple[str, ...] = ()
    tcp: tuple[str, int] | None = None
    http: tuple[str, int] | None = None
    # Run the code of this repository; any other command must find its own.
    is_own: bool = False

    @property
    def is_startable(self) -> bool:
        return self.tcp is None

    def __str__(self) -> str:
        return shlex.join(self.command) if self.tcp is None else f"{self.tcp[0]}:{self.tcp[1]}"


def own_target(label: str) -> Target:
    """The nsqd of this repository, run by this interpreter."""
    return Target(label, (sys.executable, "-m", "nsqd"), is_own=True)


def parse_target(label: str, text: str) -> Target:
    """`host:tcp_port[:http_port]` of a running daemon (HTTP is the next port), else a command.

    Raises:
        ValueError: neither.
    """
    match = _ADDRESS.fullmatch(text.strip())
    if match:
        host, tcp_port = match["host"], int(match["tcp"])
        http_port = int(match["http"] or tcp_port + 1)
        return Target(label, (), (host, tcp_port), (host, http_port))
    command = tuple(shlex.split(text))
    if not command:
        raise ValueError(f"no command and no address: {text!r}")
    return Target(label, command)


class Daemon:
    """A daemon that answers: its addresses, its HTTP API, its use of CPU and memory."""

    def __init__(self, tcp: tuple[str, int], http_address: tuple[str, int], pid: int | None):
        self.tcp = tcp
        self.http = http_address
        self.pid = pid

    def request(self, method: str, path: str, **query: str) -> bytes:
        """One HTTP request; the body of its 200.

        Raises:
            DaemonError: no answer, or another status.
        """
        if query:
            path = f"{path}?{urllib.parse.urlencode(query)}"
        connection = http.client.HTTPConnection(*self.http, timeout=HTTP_TIMEOUT_S)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise DaemonError(f"{method} {path}: {error}") from error
        finally:
            connection.close()
        if answer.status != 200:
            raise DaemonError(f"{method} {path}: {answer.status} {body[:200]!r}")
        return body

    def topic_stats(self, topic: str) -> dict[str, Any]:
        """The topic's entry in /stats.

        Raises:
            DaemonError: there is none.
        """
        body = self.request(
            "GET",
            "/stats",
            format="json",
            topic=topic,
            include_clients="false",
            include_mem="false",
        )
        topics = json.loads(body)["topics"]
        if not topics:
            raise DaemonError(f"/stats does not know the topic {topic}")
        stats: dict[str, Any] = topics[0]
        return stats

    def version(self) -> str:
        """What /info says it is."""
        return str(json.loads(self.request("GET", "/info"))["version"])

    def option(self, name: str) -> int:
        """A numeric option of the running daemon, from /config."""
        return int(self.request("GET", f"/config/{name}"))

    def cpu_s(self) -> float | None:
        """User and system time of the process and its children, if it is on this machine."""
        if self.pid is None:
            return None
        ticks = 0
        for pid in _process_tree(self.pid):
            # utime, stime, cutime and cstime: the last two are the children that have ended.
            ticks += sum(int(field) for field in _stat_fields(pid)[11:15])
        return ticks / os.sysconf("SC_CLK_TCK")

    def rss_bytes(self) -> int | None:
        """Resident memory of the process and its children, if it is on this machine."""
        if self.pid is None:
            return None
        return sum(_rss_bytes(pid) for pid in _process_tree(self.pid))


@dataclass(frozen=True, slots=True)
class Setting:
    """What a daemon finds when it starts: more variables, and files that `seed` made for it."""

    environment: Mapping[str, str] = field(default_factory=dict)
    seed: Callable[[Path], None] | None = None


@contextlib.contextmanager
def running(
    target: Target, flags: Sequence[str], setting: Setting | None = None
) -> Iterator[Daemon]:
    """A daemon that answers; one we started is ended and its data removed.

    Args:
        setting: what the daemon finds when it starts; a daemon that runs already ignores it.

    Raises:
        DaemonError: it does not answer; the text ends with its last log lines.
    """
    if target.tcp is not None and target.http is not None:
        daemon = Daemon(target.tcp, target.http, _listener_pid(target.tcp))
        daemon.request("GET", "/ping")
        yield daemon
        return
    with tempfile.TemporaryDirectory(prefix="nsqd-bench-") as directory:
        process, daemon = _start(target, flags, Path(directory), setting or Setting())
        try:
            yield daemon
        finally:
            _end(process)


def _start(
    target: Target, flags: Sequence[str], directory: Path, setting: Setting
) -> tuple[subprocess.Popen[bytes], Daemon]:
    """Start until it answers; again on other ports if somebody took ours meanwhile."""
    log = directory / "nsqd.log"
    for _ in range(START_ATTEMPTS):
        tcp_port, http_port = _free_ports(2)
        data_path = directory / f"data-{tcp_port}"
        data_path.mkdir()
        if setting.seed:
            setting.seed(data_path)
        # A Ctrl-C between the start of the process and the `try` would leave it running.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        process = _spawn(
            target,
            [
                f"--tcp-address={HOST}:{tcp_port}",
                f"--http-address={HOST}:{http_port}",
                f"--broadcast-address={HOST}",
                f"--data-path={data_path}",
                "--log-level=warn",
                *(flag.replace(DATA_PATH, str(data_path)) for flag in flags),
            ],
            log,
            setting.environment,
        )
        daemon = Daemon((HOST, tcp_port), (HOST, http_port), process.pid)
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            _wait_for_ping(daemon, process)
        except BaseException as error:
            _end(process)
            if not isinstance(error, DaemonError):
                raise
            lines = log.read_text(errors="replace").splitlines()
            if any("in use" in line for line in lines):
                continue
            raise DaemonError(f"{target}: {error}; its log:{_excerpt(lines)}") from error
        return process, daemon
    raise DaemonError(f"{target}: no free ports in {START_ATTEMPTS} attempts")


def _excerpt(lines: Sequence[str]) -> str:
    """The end of a log, and its start, where a wrong flag is named before the usage text."""
    if len(lines) > LOG_LINES:
        lines = [*lines[:2], "...", *lines[2 - LOG_LINES :]]
    return "".join(f"\n    {line}" for line in lines) or " nothing"


def _spawn(
    target: Target, flags: Sequence[str], log: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    variables = {**os.environ, **environment}
    if target.is_own:
        paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
        variables["PYTHONPATH"] = os.pathsep.join(paths)
    with log.open("wb") as file:
        try:
            # A session of its own: Ctrl-C must reach us first, and its children die with it.
            return subprocess.Popen(
                [*target.command, *flags],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=variables,
                start_new_session=True,
            )
        except OSError as error:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            raise DaemonError(f"cannot start {target}: {error}") from error


def _wait_for_ping(daemon: Daemon, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        if process.poll() is not None:
            raise DaemonError(f"ended with status {process.returncode} instead of starting")
        try:
            daemon.request("GET", "/ping")
        except DaemonError as error:
            if time.monotonic() > deadline:
                raise DaemonError(f"no answer after {START_TIMEOUT_S:.0f} s ({error})") from error
            time.sleep(0.02)
        else:
            return


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the daemon's session; a clean stop would first write a queue that nobody reads."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(STOP_TIMEOUT_S)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind((HOST, 0))
        return [int(sock.getsockname()[1]) for sock in sockets]


def _stat_fields(pid: int) -> list[str]:
    """/proc/PID/stat from its third field on; the second may contain spaces and parentheses."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ["0"] * 50
    return text.rpartition(")")[2].split()


def _process_tree(root: int) -> list[int]:
    """The process and all its living descendants."""
    parents = {
        int(entry.name): int(_stat_fields(int(entry.name))[1])
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit()
    }
    tree = [root]
    for pid in tree:
        tree.extend(child for child, parent in parents.items() if parent == pid)
    return tree


def _rss_bytes(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    match = re.search(r"^VmRSS:\s+(\d+) kB$", text, re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def _listener_pid(address: tuple[str, int]) -> int | None:
    """The local process that listens on this port, if we may see it."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(FileNotFoundError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == address[1]:
                    inodes.add(f"socket:[{fields[9]}]")
    try:
        is_local = socket.gethostbyname(address[0]).startswith("127.")
    except OSError:
        is_local = False
    if not inodes or not is_local:
        return None
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.readlink(link) in inodes:
                return int(link.parts[2])
    return None
