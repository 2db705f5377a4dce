"""nsqlookupd as a process: its log, signals and exit codes (O-2, O-3, O-9 to O-11, L-26)."""

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
TIMEOUT_S = 20.0
LOOPBACK = ("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0")


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    """Run nsqlookupd with flags that make it end by itself."""
    return subprocess.run(
        [sys.executable, "-m", "lookupd", *flags],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


class Running:
    """A process whose start-up lines have been read."""

    def __init__(self, *flags: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lookupd", *flags],
            cwd=REPOSITORY,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self.ports: dict[str, int] = {}
        assert self.process.stderr is not None
        while len(self.ports) < 2:
            line = self.process.stderr.readline()
            assert line, self.lines
            self.lines.append(line.rstrip("\n"))
            found = re.search(r"(TCP|HTTP): listening on \S+:(\d+)$", self.lines[-1])
            if found:
                self.ports[found[1]] = int(found[2])

    def end(self, number: signal.Signals) -> int:
        """Send the signal and return the exit code; what is logged after it is added to lines."""
        self.process.send_signal(number)
        _, rest = self.process.communicate(timeout=TIMEOUT_S)
        self.lines += rest.splitlines()
        return self.process.returncode


@contextlib.contextmanager
def started(*flags: str) -> Iterator[Running]:
    running = Running(*flags)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.communicate(timeout=TIMEOUT_S)


@pytest.fixture
def running() -> Iterator[Running]:
    with started(*LOOPBACK) as running:
        yield running


def test_start_up_is_logged_in_the_format_of_nsq(running: Running) -> None:  # O-9, O-16
    header = r"\[nsqlookupd\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} INFO: "

    assert re.fullmatch(header + r"nsqlookupd v1\.3\.0 \(built w/.*\)", running.lines[0])
    assert re.fullmatch(header + r"TCP: listening on 127\.0\.0\.1:\d+", running.lines[1])
    assert re.fullmatch(header + r"HTTP: listening on 127\.0\.0\.1:\d+", running.lines[2])
    with urllib.request.urlopen(f"http://127.0.0.1:{running.ports['HTTP']}/info", timeout=5) as got:
        assert json.load(got) == {"version": "1.3.0"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_end_it_with_code_0(running: Running, number: signal.Signals) -> None:  # O-3
    with socket.create_connection(("127.0.0.1", running.ports["TCP"]), 5) as connection:
        connection.sendall(b"  V")  # O-19

        assert running.end(number) == 0
        assert connection.recv(1) == b""


def test_clients_and_requests_are_logged(running: Running) -> None:
    with socket.create_connection(("127.0.0.1", running.ports["TCP"]), 5) as connection:
        connection.sendall(b"  V1NOPE\xff\x1b[0m\n")
        while connection.recv(100):
            pass
        address = "{}:{}".format(*connection.getsockname())
    urllib.request.urlopen(f"http://127.0.0.1:{running.ports['HTTP']}/topics", timeout=5).close()

    assert running.end(signal.SIGTERM) == 0

    log = "\n".join(running.lines)
    assert f"INFO: TCP: new client({address})\n" in log
    assert f"INFO: TCP: client({address}) disconnected\n" in log
    # What a stranger sends cannot write to a terminal.
    assert rf"WARNING: CLIENT({address}): E_INVALID invalid command NOPE\udcff\x1b[0m" in log
    assert re.search(r"INFO: 200 GET /topics \(127\.0\.0\.1:\d+\) [\d.]+[mµ]s", log)


def test_sigquit_dumps_and_ends_with_code_2(running: Running) -> None:
    assert running.end(signal.SIGQUIT) == 2
    assert any("most recent call first" in line for line in running.lines)


def test_version_goes_to_stdout() -> None:  # O-2
    done = run("--version", "--config=/nonexistent")

    assert done.returncode == 0
    assert re.match(r"nsqlookupd v1\.3\.0 \(built w/", done.stdout)
    assert done.stderr == ""


def test_help_goes_to_stderr() -> None:  # O-2
    done = run("--help")

    assert (done.returncode, done.stdout) == (0, "")
    assert "--inactive-producer-timeout" in done.stderr


def test_a_bad_flag_ends_with_code_2() -> None:  # O-3
    done = run("--tombstone-lifetime=5")

    assert done.returncode == 2
    assert 'invalid value "5" for flag -tombstone-lifetime: parse error' in done.stderr


@pytest.mark.parametrize("door", ["tcp", "http"])
def test_a_port_in_use_is_one_clear_line_and_code_1(door: str) -> None:  # O-11
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run(*LOOPBACK, f"--{door}-address=127.0.0.1:{port}", "--log-level=fatal")

    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.endswith(
        "FATAL: failed to instantiate nsqlookupd - "
        f"listen (127.0.0.1:{port}) failed - address already in use"
    )


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("--config=/nonexistent", "FATAL: failed to load config file /nonexistent - "),
        ("--tcp-address=nowhere", "FATAL: failed to instantiate nsqlookupd - --tcp-address: "),
    ],
)
def test_what_prevents_the_start_is_one_line_and_code_1(flag: str, text: str) -> None:  # O-3, O-10
    done = run(flag)

    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("[nsqlookupd] ")
    assert text in line


def test_a_config_file_is_read(tmp_path: Path) -> None:  # L-26, O-6
    config = tmp_path / "nsqlookupd.cfg"
    config.write_text(
        'log_prefix = "discovery: "\nlog_level = "info"\nhttp_address = "127.0.0.1:1"\n'
    )

    running = Running(*LOOPBACK, f"--config={config}")

    assert running.end(signal.SIGTERM) == 0
    assert all(line.startswith("discovery: ") for line in running.lines)
