"""Commands that know several nsqds, and a command that was stopped while its nsqd restarted."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import FindTool, Shell, command, node
from tests.support.daemon_process import DaemonProcess
from tests.support.waiting import PATIENCE_S

NOBODY = "127.0.0.1:1"


@pytest.fixture
def other(daemon_command: list[str], tmp_path: Path) -> Iterator[DaemonProcess]:
    """A second nsqd of the same kind."""
    with DaemonProcess(tmp_path / "other", command=daemon_command) as daemon:
        yield daemon


def message_count(daemon: DaemonProcess, topic: str) -> int:
    stats = json.loads(daemon.request("GET", f"/stats?format=json&topic={topic}"))
    return sum(each["message_count"] for each in stats["topics"] or [])


def test_every_address_gets_every_message(
    shell: Shell, daemon: DaemonProcess, other: DaemonProcess, find_go_tool: FindTool
) -> None:
    flags = [f"--nsqd-tcp-address={each.tcp_address}" for each in (daemon, other)]
    for topic, program in (("theirs", find_go_tool("to_nsq")), ("ours", "to_nsq")):
        shell.run(program, f"--topic={topic}", *flags, stdin=b"1\n2\n3\n")
    both = ("-a", node(daemon), "-a", node(other))
    shell.nsq("pub", "all", "--to-all", *both, stdin=b"1\n2\n3\n")

    for topic in ("theirs", "ours", "all"):
        assert [message_count(each, topic) for each in (daemon, other)] == [3, 3]


def test_the_next_address_is_used_when_one_fails(shell: Shell, daemon: DaemonProcess) -> None:
    addresses = ("-a", NOBODY, "-a", node(daemon))

    shell.nsq("pub", "t", *addresses, stdin=b"1\n2\n3\n")

    assert message_count(daemon, "t") == 3


def test_stat_goes_on_without_a_node_and_the_tool_of_go_ends(
    shell: Shell, daemon: DaemonProcess, find_go_tool: FindTool
) -> None:
    daemon.request("POST", "/topic/create?topic=t")
    daemon.request("POST", "/channel/create?topic=t&channel=c")
    stat = ("stat", "t", "--interval", "0.1s", "--count", "2", "-a", f"{NOBODY}:2")

    marked = shell.run("nsq", *stat, "-a", node(daemon), code=6)
    shell.nsq(*stat, code=1)

    assert marked.stdout.count(b"(topic)") == 2
    assert b"127.0.0.1:2" in marked.stderr
    addresses = [f"--nsqd-http-address={each}" for each in (daemon.http_address, "127.0.0.1:2")]
    argv = ("--topic=t", "--channel=c", "--interval=100ms", "--count=1", *addresses)
    for program in (find_go_tool("nsq_stat"), "nsq_stat"):
        assert b"127.0.0.1:2" in shell.run(program, *argv, code=1).stderr


@pytest.mark.parametrize("flags", [(), ("--json",)], ids=["express", "client"])
def test_a_tail_that_was_stopped_connects_again(
    shell: Shell, daemon: DaemonProcess, flags: tuple[str, ...]
) -> None:
    daemon.keeps_ports = True
    daemon.publish("t", b"one")
    argv = ("tail", "t", "--channel", "c", "-a", node(daemon), *flags)
    with shell.start("nsq", *argv) as process:
        assert process.stdout is not None
        assert b"one" in process.stdout.readline()
        daemon.wait_for_channel("t", "c", in_flight_count=0)  # and finished
        process.send_signal(signal.SIGSTOP)
        daemon.stop()
        daemon.start()
        process.send_signal(signal.SIGCONT)
        daemon.publish("t", b"two")
        assert b"two" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


def test_nohup_keeps_a_tail_alive(shell: Shell, daemon: DaemonProcess) -> None:
    daemon.publish("t", b"one")
    tail = command("nsq", "tail", "t", "--channel", "c", "-a", node(daemon))
    script = 'trap "" HUP; exec "$@"'
    with shell.spawn("/bin/sh", "-c", script, "sh", *tail) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"one\n"
        process.send_signal(signal.SIGHUP)
        daemon.publish("t", b"two")
        assert process.stdout.readline() == b"two\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
