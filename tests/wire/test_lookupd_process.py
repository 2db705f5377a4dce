"""nsqlookupd as a process: its log, signals and exit codes (O-2, O-3, O-9 to O-11, L-26)."""

import json
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon_process import LOOKUPD, REPOSITORY, WaitingDaemon
from tests.support.waiting import PATIENCE_S

LOOPBACK = ("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0")


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    """Run nsqlookupd with flags that make it end by itself."""
    return subprocess.run(
        [*LOOKUPD, *flags],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.fixture
def running(tmp_path: Path) -> Iterator[WaitingDaemon]:
    with WaitingDaemon(tmp_path, command=LOOKUPD) as running:
        yield running


def end(running: WaitingDaemon, number: signal.Signals) -> int:
    """Send the signal and return the exit code."""
    running.send_signal(number)
    return running.wait()


def test_start_up_is_logged_in_the_format_of_nsq(running: WaitingDaemon) -> None:  # O-9, O-16
    header = r"\[nsqlookupd\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} INFO: "

    first, second, third = running.log.splitlines()
    assert re.fullmatch(header + r"nsqlookupd v1\.3\.0 \(built w/.*\)", first)
    assert re.fullmatch(header + r"TCP: listening on 127\.0\.0\.1:\d+", second)
    assert re.fullmatch(header + r"HTTP: listening on 127\.0\.0\.1:\d+", third)
    assert json.loads(running.request("GET", "/info")) == {"version": "1.3.0"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it_with_code_0(running: WaitingDaemon, number: signal.Signals) -> None:  # O-3
    with socket.create_connection(running.address, 5) as connection:
        connection.sendall(b"  V")  # O-19

        assert end(running, number) == 0
        assert connection.recv(1) == b""


def test_clients_and_requests_are_logged(running: WaitingDaemon) -> None:
    with socket.create_connection(running.address, 5) as connection:
        connection.sendall(b"  V1NOPE\xff\x1b[0m\n")
        while connection.recv(100):
            pass
        address = "{}:{}".format(*connection.getsockname())
    running.request("GET", "/topics")

    assert end(running, signal.SIGTERM) == 0

    log = running.log
    assert f"INFO: TCP: new client({address})\n" in log
    assert f"INFO: TCP: client({address}) disconnected\n" in log
    # What a stranger sends cannot write to a terminal.
    assert rf"WARNING: CLIENT({address}): E_INVALID invalid command NOPE\udcff\x1b[0m" in log
    assert re.search(r"INFO: 200 GET /topics \(127\.0\.0\.1:\d+\) [\d.]+[mµ]s", log)


def test_sigquit_dumps_and_ends_with_code_2(running: WaitingDaemon) -> None:
    assert end(running, signal.SIGQUIT) == 2
    assert "most recent call first" in running.log


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

    with WaitingDaemon(tmp_path, f"--config={config}", command=LOOKUPD) as running:
        assert end(running, signal.SIGTERM) == 0

    assert all(line.startswith("discovery: ") for line in running.log.splitlines())
