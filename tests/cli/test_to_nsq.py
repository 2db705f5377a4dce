"""Case 39: `nsq to-nsq` and `nsq_to_nsq`: what is finished is at its destination."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import FindTool, Shell, drain, mpub, node, running
from tests.support.daemon_process import DaemonProcess
from tests.support.waiting import wait_until

BODIES = [b"message %d" % number for number in range(1200)]
JSON = [
    b'{"a": 1, "b": "<x>", "n": 1234567890123456789}',
    b'{"a": "1", "z": {"y": 1, "x": [true, null]}, "b": "\xc3\xa4"}',
    b'{"a": 2}',
    b'{"b": 1, "b": 2, "a": 1}',
]


@pytest.fixture
def goal(tmp_path: Path) -> Iterator[DaemonProcess]:
    """The destination."""
    with DaemonProcess(tmp_path / "goal", "--max-msg-size=2000") as nsqd:
        yield nsqd


def bodies_at(shell: Shell, daemon: DaemonProcess, topic: str) -> list[bytes]:
    argv = ("tail", topic, "--channel", "look", "--until-empty", "-a", node(daemon))
    return shell.run("nsq", *argv).stdout.splitlines()


def test_messages_arrive_and_large_ones_hold_nobody_up(
    shell: Shell, daemon: DaemonProcess, goal: DaemonProcess
) -> None:
    mpub(daemon, "t", [*BODIES, b"x" * 3000])
    argv = ("to-nsq", "t", "--destination-topic", "u", "--json", "-a", node(daemon))
    with running(shell, "nsq", *argv, "--destination-nsqd", goal.tcp_address) as process:
        daemon.wait_for_channel("t", "nsq_to_nsq", depth=0, in_flight_count=0, deferred_count=1)
    report = json.loads(process.stdout)

    assert sorted(bodies_at(shell, goal, "u")) == sorted(BODIES)
    assert (report["forwarded"], report["failed"]) == (1200, 1)


def test_filters_and_dead_letters(
    shell: Shell, our_daemon: DaemonProcess, goal: DaemonProcess
) -> None:
    mpub(our_daemon, "t", [*JSON, b"no json"])
    argv = ("--where", "a!=2", "--whitelist-json-field", "n", "--whitelist-json-field", "a")
    bad = ("--on-bad", "dead-letter", "--dead-letter", "t.dead", "--until-empty")
    to = ("--destination-nsqd", goal.tcp_address, "-a", node(our_daemon))
    shell.nsq("to-nsq", "t", *argv, *bad, *to)

    assert bodies_at(shell, goal, "t") == [
        b'{"a":1,"n":1234567890123456789}',
        b'{"a":"1"}',
        b'{"a":1}',
    ]
    assert bodies_at(shell, our_daemon, "t.dead") == [b"no json"]


def test_a_destination_that_is_down_for_long_loses_nothing(
    shell: Shell, our_daemon: DaemonProcess, tmp_path: Path
) -> None:
    goal = DaemonProcess(tmp_path / "goal")
    goal.keeps_ports = True
    with goal:
        goal.kill()
        mpub(our_daemon, "t", BODIES[:5])
        # Six attempts of go-nsq take 23 minutes: here the pauses are short.
        hasty = ("default_requeue_delay=1ms", "max_backoff_duration=0")
        options = [part for each in hasty for part in ("--opt", each)]
        argv = ("to-nsq", "t", "--destination-nsqd", goal.tcp_address, "--timeout", "200ms", "-q")
        with running(shell, "nsq", *argv, *options, "-a", node(our_daemon)):
            wait_until(
                lambda: our_daemon.wait_for_channel("t", "nsq_to_nsq")["requeue_count"] > 5 * 6
            )
            goal.start()
            drain(our_daemon, "t", "nsq_to_nsq", 5)
        assert set(bodies_at(shell, goal, "t")) == set(BODIES[:5])


def test_one_of_two_destinations_is_down(
    shell: Shell, our_daemon: DaemonProcess, goal: DaemonProcess
) -> None:
    mpub(our_daemon, "t", BODIES)
    to = ("--destination-nsqd", "127.0.0.1:1", "--destination-nsqd", goal.tcp_address)
    at = ("-a", node(our_daemon), "--timeout", "1s", "-q")
    shell.nsq("to-nsq", "t", *to, *at, "--until-empty")

    assert sorted(set(bodies_at(shell, goal, "t"))) == sorted(BODIES)


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--require-json-field=a", "--require-json-value=1"),
        ("--require-json-field=b",),
        ("--whitelist-json-field=b", "--whitelist-json-field=z", "--whitelist-json-field=a"),
    ],
)
def test_messages_are_those_of_go(
    shell: Shell,
    our_daemon: DaemonProcess,
    goal: DaemonProcess,
    find_go_tool: FindTool,
    flags: tuple[str, ...],
) -> None:
    our_daemon.request("POST", "/topic/create?topic=t")
    for channel in ("theirs", "ours"):
        our_daemon.request("POST", f"/channel/create?topic=t&channel={channel}")
    mpub(our_daemon, "t", [*JSON, b"no json"])
    at = (
        f"--nsqd-tcp-address={our_daemon.tcp_address}",
        f"--destination-nsqd-tcp-address={goal.tcp_address}",
    )
    found = {}
    for channel, program in (("theirs", find_go_tool("nsq_to_nsq")), ("ours", "nsq_to_nsq")):
        argv = ("--topic=t", f"--channel={channel}", f"--destination-topic={channel}", *at)
        with running(shell, program, *argv, *flags) as process:
            drain(our_daemon, "t", channel, 5)
        found[channel] = sorted(bodies_at(shell, goal, channel))
        assert not flags or b"no json" in process.stderr

    assert found["ours"] == found["theirs"]
    assert found["ours"]
