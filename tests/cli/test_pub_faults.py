"""Cases 8 to 10 and 36 for `nsq pub`: kill, freeze, refusal, full disk.

What it calls published is there, and no more is doubled than it says.
"""

import json
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Shell, node
from tests.support.daemon_process import OURS, DaemonProcess
from tests.support.resetting_proxy import ResettingProxy
from tests.support.small_disk import SmallDisk
from tests.support.waiting import PATIENCE_S, wait_until

LINES = [b"line %d " % number + b"x" * 150 for number in range(30_000)]


@pytest.fixture
def durable(daemon_command: list[str], tmp_path: Path) -> Iterator[DaemonProcess]:
    """nsqd of either kind that keeps everything on disk, at the same ports in each life."""
    made = DaemonProcess(tmp_path / "nsqd", "--mem-queue-size=0", command=daemon_command)
    with made as nsqd:
        nsqd.keeps_ports = True
        nsqd.request("POST", "/topic/create?topic=t")
        nsqd.request("POST", "/channel/create?topic=t&channel=c")
        yield nsqd


def message_count(daemon: DaemonProcess) -> int:
    found = daemon.find_channel("t", "c")
    assert found is not None
    return int(found["message_count"])


def drain(shell: Shell, daemon: DaemonProcess) -> Counter[bytes]:
    shown = shell.run("nsq", "tail", "t", "--channel", "c", "--until-empty", "-a", node(daemon))
    return Counter(shown.stdout.splitlines())


def certain_count(stderr: bytes) -> int:
    """How many messages it calls published."""
    found = re.search(rb"lines 1-(\d+) are published", stderr)
    return int(found[1]) if found else 0


@pytest.mark.timeout(120)
def test_a_killed_nsqd_gets_the_rest_when_it_is_back(
    shell: Shell, durable: DaemonProcess, daemon_command: list[str]
) -> None:
    patient = ("--retries", "1000", "--timeout", "60s", "--json", "-a", node(durable))
    with shell.start("nsq", "pub", "t", *patient) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for part in range(3):
            process.stdin.write(b"\n".join(LINES[part * 10_000 : (part + 1) * 10_000]) + b"\n")
            process.stdin.flush()
            if part == 2:
                break
            wait_until(lambda: message_count(durable) > 0)  # in this life
            # Go's nsqd would lose what it has acknowledged; ours must not.
            (durable.kill if daemon_command == list(OURS) else durable.stop)()
            durable.start()
        process.stdin.close()
        assert process.wait(PATIENCE_S) == 0
        summary = json.loads(process.stdout.read())

    found = drain(shell, durable)
    assert summary["published"] == len(LINES)
    assert found.keys() == set(LINES)
    assert found.total() - len(LINES) <= summary["sent_twice"]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_network_that_resets_anywhere_loses_nothing(
    shell: Shell, durable: DaemonProcess, seed: int
) -> None:
    """Each connection dies within a dozen of MPUBs of 160 kB."""
    with ResettingProxy(durable.tcp_port, 2_000_000, seed) as proxy:
        at = ("--retries", "1000", "--timeout", "60s", "--json", "-a", f"127.0.0.1:{proxy.port}")
        done = shell.run("nsq", "pub", "t", *at, stdin=b"\n".join(LINES), code=0)
        summary = json.loads(done.stdout)
        resets = proxy.reset_count

    found = drain(shell, durable)
    assert resets > 1
    assert summary["published"] == len(LINES)
    assert found.keys() == set(LINES)
    assert found.total() - len(LINES) <= summary["sent_twice"]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_network_that_lets_little_through_is_an_error_that_says_what_is_certain(
    shell: Shell, durable: DaemonProcess, seed: int
) -> None:
    """Sooner or later one MPUB meets three resets in a row."""
    with ResettingProxy(durable.tcp_port, 200_000, seed) as proxy:
        at = ("--retries", "1000", "--timeout", "60s", "-a", f"127.0.0.1:{proxy.port}")
        done = shell.run("nsq", "pub", "t", *at, stdin=b"\n".join(LINES), code=1)

    certain = certain_count(done.stderr)
    told = re.search(rb"(\d+)-(\d+) may be", done.stderr)
    found = drain(shell, durable)
    assert told is not None
    assert int(told[1]) == certain + 1
    assert set(LINES[:certain]) <= found.keys() <= set(LINES[: int(told[2])])


def test_a_frozen_nsqd_is_an_error_that_says_what_is_certain(
    shell: Shell, durable: DaemonProcess
) -> None:
    with shell.start("nsq", "pub", "t", "--timeout", "1s", "-a", node(durable)) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"one\ntwo\n")
        process.stdin.flush()
        wait_until(lambda: message_count(durable) == 2)
        durable.suspend()
        process.stdin.write(b"three\n")
        process.stdin.close()
        assert process.wait(PATIENCE_S) == 1
        stderr = process.stderr.read()
        durable.resume()

    assert b"lines 1-2 are published, 3-3 may be" in stderr
    assert drain(shell, durable).keys() >= {b"one", b"two"}


def test_a_refusal_is_tried_again_and_then_told(shell: Shell, tmp_path: Path) -> None:
    with DaemonProcess(tmp_path / "nsqd", "--max-depth=100") as nsqd:
        at = ("-a", node(nsqd))
        full = shell.run("nsq", "pub", "t", "--batch", "60", *at, stdin=b"x\n" * 200, code=1)
        nsqd.request("POST", "/topic/empty?topic=t")
        shell.run("nsq", "pub", "t", *at, stdin=b"x\n" * 50)

    assert b"MPUB" in full.stderr
    assert certain_count(full.stderr) == 60


def test_a_full_disk_keeps_what_was_published(shell: Shell, tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path / "disk", 4 << 20)
    lines = [b"%06d" % number + b"x" * 10_000 for number in range(1000)]
    nsqd = DaemonProcess(tmp_path / "nsqd", "--mem-queue-size=0", data=disk.path, command=OURS)
    try:
        with nsqd:
            nsqd.request("POST", "/topic/create?topic=t")
            nsqd.request("POST", "/channel/create?topic=t&channel=c")
            at = ("--batch", "10", "--retries", "1", "-a", node(nsqd))
            full = shell.run("nsq", "pub", "t", *at, stdin=b"\n".join(lines), code=1)
            found = drain(shell, nsqd)
    finally:
        disk.close()

    assert 0 < certain_count(full.stderr) < len(lines)
    assert found.keys() >= set(lines[: certain_count(full.stderr)])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_in_a_long_input_tells_what_is_published(
    shell: Shell, durable: DaemonProcess, number: signal.Signals
) -> None:
    with shell.start("nsq", "pub", "t", "--json", "-a", node(durable)) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"one\ntwo\nhalf")
        process.stdin.flush()
        wait_until(lambda: message_count(durable) == 2)
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 128 + number
        summary = json.loads(process.stdout.read())

    assert summary["published"] == 2
