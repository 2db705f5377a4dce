"""Case 45: --json of every command has the fields that the manual names."""

import json
import re
import shlex
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqd.cli.commands import COMMANDS
from nsqd.cli.main import main
from nsqd.cli.setup.completion import read_words
from tests.cli.conftest import node, run_briefly
from tests.support.daemon_process import REPOSITORY, DaemonProcess

MANUAL = REPOSITORY / "docs" / "cli.md"
# The command line of each row of the table.
LINES = {
    "pub": "pub t x",
    "tail": "tail t --channel c -n 1",
    "peek": "peek t/c",
    "to-file": "to-file t --output-dir {directory}",
    "to-http": "to-http t --post http://127.0.0.1:1/",
    "to-nsq": "to-nsq t --destination-nsqd 127.0.0.1:1",
    "each": "each t e --json -- cat",
    "dead ls": "dead ls",
    "dead replay": "dead replay t --limit 1",
    "stat": "stat t --count 1 --interval 0.01s",
    "top": "top --count 1",
    "check": "check",
    "doctor": "doctor --interval 0.01s",
    "topic ls": "topic ls",
    "channel ls": "channel ls",
    "node ls": "node ls",
    "client ls": "client ls",
    "topic create": "topic create u",
    "limits": "limits t",
    "config get": "config get max_msg_size",
    "bench": "bench pub -n 10",
    "context ls": "context ls",
    "context show": "context show here",
    "examples": "examples pub",
    "version": "version",
    "any failure, on stderr": "peek none",
}


def fields_of_manual() -> dict[str, set[str]]:
    """The table: names in backticks, remarks left out."""
    text = MANUAL.read_text(encoding="utf-8").partition("## Fields of --json")[2]
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", text.partition("\n## ")[0], re.MULTILINE)[2:]
    return {
        command.replace("`", ""): set(re.findall(r"`(\w+)`", re.sub(r"\(.*?\)|:.*", "", fields)))
        for command, fields in rows
    }


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """nsqd with a channel that holds messages, and a consumer."""
    with DaemonProcess(tmp_path_factory.mktemp("nsqd")) as nsqd:
        nsqd.request("POST", "/topic/create?topic=t")
        nsqd.request("POST", "/channel/create?topic=t&channel=c")
        nsqd.publish("t", b"one", b"two", b"three")
        nsqd.wait_for_channel("t", "c", depth=3)
        nsqd.request("POST", "/topic/limits?topic=t", b'{"dead_letter_topic_suffix": ".dead"}')
        nsqd.publish("t.dead", b"letter")
        yield nsqd


@pytest.mark.parametrize("command", LINES)
def test_the_fields_are_those_of_the_manual(
    command: str,
    daemon: DaemonProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("NSQD_TCP_ADDRESS", daemon.tcp_address)
    monkeypatch.setenv("NSQD_HTTP_ADDRESS", daemon.http_address)
    main(["context", "add", "here", "--nsqd", node(daemon)])

    with socket.create_connection(("127.0.0.1", daemon.tcp_port)) as client:
        client.sendall(b"  V2SUB t d\n")
        client.recv(10)
        argv = shlex.split(LINES[command].format(directory=tmp_path / "files"))
        run_briefly(argv if "--json" in argv else [*argv, "--json"])

    shown = capfd.readouterr()
    # What reads a stream has stdout for messages, and its report on stderr.
    lines = [line for line in (shown.out + shown.err).splitlines() if line.startswith("{")]
    assert lines
    for line in lines:
        assert set(json.loads(line)) == fields_of_manual()[command]


def test_every_command_with_json_is_in_the_manual() -> None:
    documented = fields_of_manual()
    assert documented.keys() == LINES.keys()
    for name in COMMANDS:
        if "--json" in read_words(name).flags:
            assert any(each.split()[0] == name for each in documented), name
