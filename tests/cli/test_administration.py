"""`nsq limits`, `nsq config`, `nsq client`: against nsqd of either kind."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.cli.conftest import Shell, node
from tests.support.daemon_process import LOOKUPD, DaemonProcess, WaitingDaemon
from tests.support.waiting import wait_until


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def is_go(daemon: DaemonProcess) -> bool:
    return "built w/go" in daemon.log


def test_limits_are_set_one_by_one(shell: Shell, daemon: DaemonProcess) -> None:
    at = ("-a", node(daemon))
    daemon.request("POST", "/topic/create?topic=t")
    if is_go(daemon):
        assert b"not ours" in shell.run("nsq", "limits", "t", *at, code=3).stderr
        return

    shell.nsq("limits", "t", "--max-depth", "5", *at)
    shell.nsq("limits", "t", "--msg-ttl", "10m", "--max-depth", "9", "--dry-run", *at)
    [found] = objects(shell.nsq("limits", "t", "--msg-ttl", "1h", "--json", *at))

    own = {name: each["value"] for name, each in found["limits"].items()
           if each["source"] == "topic"}  # fmt: skip
    assert own == {"max_depth": 5, "msg_ttl": "1h0m0s"}
    table = shell.nsq("limits", "t", "--max-depth", "default", *at).splitlines()
    assert table[0].split() == ["limit", "value", "source"]
    assert table[1].split() == ["max_depth", "0", "flag"]
    shell.nsq("limits", "t", "--max-depth", "many", *at, code=2)
    shell.nsq("limits", "none", *at, code=3)


def test_options_are_shown_and_set(shell: Shell, daemon: DaemonProcess) -> None:
    at = ("-a", node(daemon))

    rows = objects(shell.nsq("config", "get", "--json", *at))
    assert len(rows) > 30
    assert all(set(row) == {"nsqd", "option", "value", "default"} for row in rows)
    table = shell.nsq("config", "get", "msg_timeout", "max_msg_size", *at).splitlines()
    assert [line.split()[:2] for line in table[1:]] == [
        ["msg_timeout", "1m0s"],
        ["max_msg_size", "1048576"],
    ]

    shell.nsq("config", "set", "log_level", "debug", *at)
    [changed] = objects(shell.nsq("config", "get", "log_level", "--json", *at))
    assert changed["value"] != changed["default"]
    shell.nsq("config", "set", "nsqlookupd_tcp_addresses", "", *at)
    shell.nsq("config", "set", "log_level", "loud", *at, code=1)
    shell.nsq("config", "set", "max_msg_size", "1", *at, code=2)
    assert b"did you mean max_msg_size?" in shell.run(
        "nsq", "config", "get", "max_msg_siz", *at, code=3
    ).stderr  # fmt: skip


def test_clients_are_listed(shell: Shell, daemon: DaemonProcess) -> None:
    at = ("-a", node(daemon))
    daemon.publish("t", b"x")
    with shell.start("nsq", "tail", "t", "--channel", "c", *at) as process:
        assert process.stdout is not None
        process.stdout.readline()
        [found] = objects(shell.nsq("client", "ls", "--topic", "t", "--channel", "c",
                                    "--json", *at))  # fmt: skip
        table = shell.nsq("client", "ls", *at).splitlines()
        process.terminate()
        assert process.wait(30) == 0

    assert (found["kind"], found["topic"], found["channel"]) == ("consumer", "t", "c")
    assert (found["user_agent"], found["messages"]) == ("nsq-tail", 1)
    assert table[0].split()[:3] == ["kind", "topic", "channel"]
    assert "consumer" in table[1]
    shell.nsq("client", "ls", "--topic", "none", *at, code=3)


def test_a_read_only_context_is_not_changed(shell: Shell, our_daemon: DaemonProcess) -> None:
    our_daemon.request("POST", "/topic/create?topic=t")
    shell.nsq("context", "add", "prod", "--nsqd", node(our_daemon), "--read-only")
    shell.nsq("context", "select", "prod")

    shell.nsq("limits", "t", "--max-depth", "5", code=5)
    shell.nsq("config", "set", "log_level", "debug", code=5)
    shell.nsq("limits", "t")
    shell.nsq("config", "get", "log_level")


def test_case_42_three_nodes_of_which_one_is_down(shell: Shell, tmp_path: Path) -> None:
    with ExitStack() as stack:
        lookupds = [
            stack.enter_context(WaitingDaemon(tmp_path / f"lookupd{index}", command=LOOKUPD))
            for index in range(2)
        ]
        flags = [f"--lookupd-tcp-address={each.tcp_address}" for each in lookupds]
        nodes = [
            stack.enter_context(DaemonProcess(tmp_path / f"nsqd{index}", *flags))
            for index in range(3)
        ]
        at = [word for each in lookupds for word in ("-l", each.http_address)]
        for lookupd in lookupds:
            wait_until(lambda: len(json.loads(lookupd.request("GET", "/nodes"))["producers"]) == 3)  # noqa: B023
        shell.nsq("topic", "create", "t", "--all-nodes", *at)
        shell.nsq("channel", "create", "t/c", *at)
        assert json.loads(shell.nsq("topic", "ls", "t", "--json", *at))["channels"] == 1
        nodes[2].suspend()

        quick = (*at, "--timeout", "0.5s", "--json")
        paused = objects(shell.nsq("channel", "pause", "t/c", *quick, code=6))
        shell.nsq("topic", "empty", "t", *quick, code=2)
        nodes[2].resume()

        failed = [each["server"] for each in paused if each["error"] is not None]
        assert failed == [nodes[2].http_address]
        assert len(paused) == 3
        for each in nodes[:2]:
            found = each.find_channel("t", "c")
            assert found is not None
            assert found["paused"]
