"""`nsq bench`, `nsq disk`, `nsq spark` as processes."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Shell, node
from tests.support.daemon_process import DaemonProcess


@pytest.mark.parametrize("action", ["pub", "sub", "latency"])
def test_a_bench_counts_every_message_and_leaves_nothing(
    shell: Shell, daemon: DaemonProcess, action: str
) -> None:
    flags = ("-n", "300", "--batch", "50", "--rate", "3000", "--json")

    found = json.loads(shell.nsq("bench", action, *flags, "-a", node(daemon)))

    assert found["published"] == 300
    assert found["received"] == (0 if action == "pub" else 300)
    assert found["latency_ms"]["publish"]["p50"] > 0
    assert ("delivery" in found["latency_ms"]) == (action != "pub")
    assert shell.nsq("topic", "ls", "--json", "-a", node(daemon)) == ""


def test_a_bench_within_a_small_memory_queue_loses_nothing(shell: Shell, tmp_path: Path) -> None:
    with DaemonProcess(tmp_path / "nsqd", "--mem-queue-size=10") as daemon:
        argv = ("-n", "5000", "--batch", "20", "-a", node(daemon), "--json")
        found = json.loads(shell.nsq("bench", "sub", *argv))

        assert found["received"] == 5000
        assert shell.nsq("topic", "ls", "--json", "-a", node(daemon)) == ""


def test_a_bench_without_nsqd_fails(shell: Shell) -> None:
    argv = ("-n", "1", "-a", "127.0.0.1:1", "--timeout", "1s")

    assert b"Traceback" not in shell.run("nsq", "bench", "pub", *argv, code=1).stderr


def test_disk_is_diskqueue(shell: Shell, tmp_path: Path) -> None:
    with DaemonProcess(tmp_path / "nsqd", "--mem-queue-size=0") as daemon:
        daemon.publish("t", b"one", b"two")
        daemon.stop()
        shown = shell.nsq("disk", "check", str(daemon.data_path))

    assert shown.splitlines()[-1] == "1 queue, none damaged"
    assert "records   2" in shown
    shell.nsq("disk", "check", str(tmp_path / "none"), code=2)
