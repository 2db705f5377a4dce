"""The commands as processes, against nsqd as a process: ours, and Go's where it is on PATH."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import pytest

from nsqd.cli.main import main
from nsqd.cli.output import ExitCode
from tests.support.daemon_process import (
    LOOKUPD,
    OURS,
    REPOSITORY,
    DaemonProcess,
    WaitingDaemon,
    find_go_program,
)
from tests.support.waiting import PATIENCE_S

MODULES = {
    "nsq": "nsqd.cli.main",
    "nsq_tail": "nsqd.cli.go.tail",
    "nsq_stat": "nsqd.cli.go.stat",
    "nsq_to_file": "nsqd.cli.go.nsq_to_file",
    "nsq_to_http": "nsqd.cli.go.nsq_to_http",
    "nsq_to_nsq": "nsqd.cli.go.nsq_to_nsq",
    "to_nsq": "nsqd.cli.go.to_nsq",
}
BRIEFLY_S = 0.4

Done = subprocess.CompletedProcess[bytes]


def command(program: str, *argv: str) -> list[str]:
    """The command line of one of our programs."""
    call = f"import sys; from {MODULES[program]} import main; sys.exit(main())"
    return [sys.executable, "-c", call, *argv]


def environment(home: Path) -> dict[str, str]:
    """An environment without settings of the machine."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("NSQ")}
    return {**kept, "XDG_CONFIG_HOME": str(home), "PYTHONPATH": str(REPOSITORY), "TZ": "UTC"}


class Shell:
    """Runs commands to their end."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def run(self, program: str, *argv: str, stdin: bytes = b"", code: int | None = 0) -> Done:
        """Run a command; its exit code must be this."""
        done = subprocess.run(
            command(program, *argv) if program in MODULES else [program, *argv],
            input=stdin,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
            cwd=self.home,
            env=environment(self.home),
        )
        assert code is None or done.returncode == code, (argv, done)
        return done

    def nsq(self, *argv: str, stdin: bytes = b"", code: int = 0) -> str:
        """Run `nsq`; return its stdout."""
        return self.run("nsq", *argv, stdin=stdin, code=code).stdout.decode()

    def start(self, program: str, *argv: str) -> "subprocess.Popen[bytes]":
        """Start a command of ours."""
        return self.spawn(*command(program, *argv))

    def spawn(self, *argv: str) -> "subprocess.Popen[bytes]":
        """Start a program, by its path."""
        return subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.home,
            env=environment(self.home),
        )


class Running:
    """A command that runs beside the test; its output is there when it has ended."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", stdout: IO[bytes], stderr: IO[bytes]
    ) -> None:
        self.process = process
        self.stdout = b""
        self.stderr = b""
        # Files, not pipes: nobody reads while it runs.
        self._files = (stdout, stderr)

    def end(self, number: signal.Signals = signal.SIGTERM, *, code: int = 0) -> None:
        """End it with a signal; its exit code must be this."""
        self.process.send_signal(number)
        self.process.wait(PATIENCE_S)
        for file in self._files:
            file.seek(0)
        self.stdout, self.stderr = (file.read() for file in self._files)
        assert self.process.returncode == code, (self.process.returncode, self.stderr)


@contextmanager
def running(shell: Shell, program: str, *argv: str) -> Iterator[Running]:
    """A command, of ours or with a path, that is ended with SIGTERM, and ends well."""
    with (
        TemporaryFile() as stdout,
        TemporaryFile() as stderr,
        subprocess.Popen(
            command(program, *argv) if program in MODULES else [program, *argv],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            cwd=shell.home,
            env=environment(shell.home),
        ) as process,
    ):
        try:
            yield (found := Running(process, stdout, stderr))
            if process.poll() is None:
                found.end()
        finally:
            process.kill()


def drain(daemon: DaemonProcess, topic: str, channel: str, count: int) -> None:
    """Wait until all messages of a channel are finished."""
    wanted = {"depth": 0, "in_flight_count": 0, "deferred_count": 0, "message_count": count}
    daemon.wait_for_channel(topic, channel, **wanted)


def mpub(daemon: DaemonProcess, topic: str, bodies: list[bytes]) -> None:
    """Publish bodies without newlines."""
    daemon.request("POST", f"/mpub?topic={topic}", b"\n".join(bodies))


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Commands with a home of their own."""
    home = tmp_path / "home"
    home.mkdir()
    return Shell(home)


@pytest.fixture(params=["ours", "go"])
def daemon_command(request: pytest.FixtureRequest) -> list[str]:
    """The command of an nsqd."""
    if request.param == "ours":
        return list(OURS)
    path = find_go_program("nsqd")
    if path is None:
        pytest.skip("Go's nsqd is not on PATH")
    return [path]


@pytest.fixture
def daemon(daemon_command: list[str], tmp_path: Path) -> Iterator[DaemonProcess]:
    """nsqd of either kind."""
    with DaemonProcess(tmp_path / "nsqd", command=daemon_command) as nsqd:
        yield nsqd


@pytest.fixture
def our_daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    """nsqd of ours."""
    with DaemonProcess(tmp_path / "nsqd") as nsqd:
        yield nsqd


@pytest.fixture
def lookupd(tmp_path: Path) -> Iterator[WaitingDaemon]:
    """nsqlookupd."""
    with WaitingDaemon(tmp_path / "lookupd", command=LOOKUPD) as daemon:
        yield daemon


def node(daemon: DaemonProcess) -> str:
    """The argument of -a."""
    return f"127.0.0.1:{daemon.tcp_port}:{daemon.http_port}"


FindTool = Callable[[str], str]


@pytest.fixture
def find_go_tool() -> FindTool:
    """Return the path of a tool of Go, or skip the test."""

    def find(name: str) -> str:
        for directory in os.get_exec_path():
            path = shutil.which(name, path=directory)
            if path is not None and Path(path).read_bytes()[:4] == b"\x7fELF":
                return path
        pytest.skip(f"Go's {name} is not on PATH")

    return find


def run_briefly(argv: list[str]) -> int:
    """Run a command; what does not end by itself gets a Ctrl-C."""
    timer = threading.Timer(BRIEFLY_S, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        try:
            return main(argv)
        finally:
            timer.cancel()
            timer.join()
            time.sleep(0.001)  # A signal that is under way arrives here.
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
