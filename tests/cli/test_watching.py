"""`nsq top` on a terminal of its own, and without one."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cli.conftest import Shell, command, environment, node
from tests.support.daemon_process import DaemonProcess, WaitingDaemon
from tests.support.waiting import PATIENCE_S


class Terminal:
    """A command on a terminal, and all that it wrote."""

    def __init__(self, process: "subprocess.Popen[bytes]", descriptor: int) -> None:
        self.process = process
        self.shown = ""
        self._descriptor = descriptor

    def press(self, keys: str) -> None:
        """Type."""
        self.shown = ""
        os.write(self._descriptor, keys.encode())

    def _text(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.shown)

    def wait_for(self, pattern: str) -> None:
        """Read until the screen has shown something."""
        while not re.search(pattern, self.shown) and not re.search(pattern, self._text()):
            is_readable = bool(select.select([self._descriptor], [], [], PATIENCE_S)[0])
            assert is_readable, self.shown
            self.shown += os.read(self._descriptor, 65536).decode("utf-8", "replace")


@contextmanager
def on_terminal(
    shell: Shell,
    *argv: str,
    columns: int = 100,
    term: str = "xterm-256color",
    variables: dict[str, str] | None = None,
) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {**environment(shell.home), "TERM": term, "COLUMNS": str(columns), **(variables or {})}
    process = subprocess.Popen(
        command("nsq", *argv), stdin=theirs, stdout=theirs, stderr=theirs, env=env,
        start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_top_shows_queues_and_changes_them_after_y(shell: Shell, daemon: DaemonProcess) -> None:
    daemon.request("POST", "/topic/create?topic=orders")
    daemon.request("POST", "/channel/create?topic=orders&channel=billing")
    daemon.publish("orders", b"1", b"2", b"3")
    daemon.wait_for_channel("orders", "billing", depth=3)

    with on_terminal(shell, "top", "--interval", "0.2s", "-a", node(daemon)) as terminal:
        terminal.wait_for("orders/billing .* 3 ")
        terminal.press("e")
        terminal.wait_for(r"empty orders/billing with 3 messages\? y/N")
        terminal.press("n")
        terminal.wait_for("nothing was changed")
        assert daemon.wait_for_channel("orders", "billing", depth=3)
        terminal.press("ey")
        terminal.wait_for("done on 1 node")
        daemon.wait_for_channel("orders", "billing", depth=0)
        terminal.press("q")
        assert terminal.process.wait(PATIENCE_S) == 0


def test_top_gives_the_terminal_back_after_a_signal(
    shell: Shell, our_daemon: DaemonProcess
) -> None:
    with on_terminal(shell, "top", "-a", node(our_daemon)) as terminal:
        terminal.wait_for("s sort")
        terminal.process.send_signal(signal.SIGTERM)
        terminal.wait_for(re.escape("\x1b[?1049l"))  # the screen that was there before
        assert terminal.process.wait(PATIENCE_S) == 0


def test_a_dumb_terminal_gets_reports_and_no_escapes(
    shell: Shell, our_daemon: DaemonProcess
) -> None:
    our_daemon.publish("orders", b"1", b"2", b"3")
    at = ("-a", node(our_daemon))

    top = ("top", "--interval", "0.1s", "--count", "2")
    with on_terminal(shell, *top, *at, term="dumb") as terminal:
        terminal.wait_for("orders .* 3 ")
        assert terminal.process.wait(PATIENCE_S) == 0
        assert "\x1b" not in terminal.shown
    tail = ("tail", "orders", "--channel", "c", "-n", "3", "--pretty")
    with on_terminal(shell, *tail, *at, term="dumb") as terminal:
        terminal.wait_for("3\r\n")
        assert terminal.process.wait(PATIENCE_S) == 0
        assert "\x1b" not in terminal.shown


def test_top_can_be_left_while_nsqd_hangs(shell: Shell, our_daemon: DaemonProcess) -> None:
    flags = ("--interval", "0.1s", "--timeout", "60s")
    with on_terminal(shell, "top", *flags, "-a", node(our_daemon)) as terminal:
        terminal.wait_for("s sort")
        our_daemon.suspend()
        terminal.press("s")
        terminal.wait_for("by in")
        terminal.press("q")
        assert terminal.process.wait(PATIENCE_S) == 0
        our_daemon.resume()


def test_top_reports_without_a_terminal(shell: Shell, daemon: DaemonProcess) -> None:
    daemon.publish("t", b"x")
    at = ("-a", node(daemon), "--interval", "0.1s", "--count", "2")

    reports = [json.loads(line) for line in shell.nsq("top", "--json", *at).splitlines()]
    lines = shell.nsq("top", "--by-node", *at).splitlines()

    assert len(reports) == 2
    assert reports[1]["nodes"][0]["topics"] == 1
    [queue] = reports[1]["queues"]
    assert (queue["topic"], queue["channel"], queue["depth"]) == ("t", "", 1)
    assert lines[0].split()[:2] == ["node", "queue"]
    assert len(lines) == 5


@pytest.mark.parametrize("argv", [("top",), ("top", "--json")])
def test_top_without_nsqd_fails(shell: Shell, argv: tuple[str, ...]) -> None:
    shell.nsq(*argv, "-a", "127.0.0.1:1", code=1)


def test_check_speaks_to_nagios(shell: Shell, daemon: DaemonProcess) -> None:
    at = ("-a", node(daemon))
    daemon.request("POST", "/topic/create?topic=t")
    daemon.request("POST", "/channel/create?topic=t&channel=c")
    daemon.publish("t", b"1", b"2", b"3")
    daemon.wait_for_channel("t", "c", depth=3)

    assert shell.nsq("check", *at).startswith("OK - 2 queues, depth 3 |")
    assert shell.nsq("check", "t", "--max-depth", "2,5", *at, code=1).startswith(
        "WARNING - t/c: depth 3 > 2 | depth=3 clients=0"
    )
    assert "t/c: 0 clients" in shell.nsq("check", "t/c", "--min-clients", "1", *at, code=2)
    growing = ("--max-growth", "0", "--interval", "0.1s", "--json")
    assert json.loads(shell.nsq("check", *growing, *at))["status"] == "OK"
    assert shell.nsq("check", "tt", *at, code=3).startswith("UNKNOWN - no such topic")
    assert shell.nsq("check", "--max-depth", "5,2", *at, code=3).startswith("UNKNOWN - ")
    assert shell.nsq("check", "-a", "127.0.0.1:1", code=2).startswith("CRITICAL - 127.0.0.1:2: ")
    is_go = "built w/go" in daemon.log
    aged = shell.nsq("check", "--max-age", "1h", *at, code=3 if is_go else 0)
    assert aged.startswith("UNKNOWN - this nsqd tells no ages" if is_go else "OK - ")


def test_doctor_finds_what_is_wrong(
    shell: Shell, daemon: DaemonProcess, lookupd: WaitingDaemon
) -> None:
    at = ("-a", node(daemon), "-l", lookupd.http_address, "--interval", "0.1s")
    assert shell.nsq("doctor", *at).endswith("1 nsqd, 1 nsqlookupd: all is well\n")

    daemon.publish("t", b"x")
    shown = shell.nsq("doctor", "--fix", *at, "-l", "127.0.0.1:1", code=1)
    found = [json.loads(line) for line in shell.nsq("doctor", "--json", *at, code=1).splitlines()]

    assert "t: 1 message and no channel\n           nsq channel create t/CHANNEL\n" in shown
    assert "127.0.0.1:1: does not answer" in shown
    assert [(each["level"], each["where"]) for each in found] == [("problem", "t")]


LONG = "a-topic-with-a-very-long-name-that-somebody-has-thought-of.v2"


@pytest.mark.parametrize("columns", [80, 200])
def test_a_narrow_terminal_cuts_names_and_no_figures(
    shell: Shell, our_daemon: DaemonProcess, columns: int
) -> None:
    channel = "a-channel-with-a-rather-long-name-too"
    our_daemon.request("POST", f"/topic/create?topic={LONG}")
    our_daemon.request("POST", f"/channel/create?topic={LONG}&channel={channel}")
    our_daemon.publish(LONG, *[b"x"] * 1234)
    our_daemon.wait_for_channel(LONG, channel, depth=1234)

    for what in ("topic", "channel"):
        argv = (what, "ls", "-a", node(our_daemon))
        with on_terminal(shell, *argv, columns=columns) as terminal:
            terminal.wait_for("1,234.*1,234")
            lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.shown).splitlines()
        assert max(map(len, lines)) <= columns
        assert lines[0].split()[-2:] == ["clients", "paused"]
        assert (LONG in terminal.shown) == (columns == 200)


def test_case_44_peek_shows_escapes_and_does_not_send_them(
    shell: Shell, our_daemon: DaemonProcess
) -> None:
    our_daemon.publish("t", b"\x1b]0;owned\x07[red]\nx")

    with on_terminal(shell, "peek", "t", "-a", node(our_daemon)) as terminal:
        terminal.wait_for(re.escape(r"\x1b]0;owned\x07[red]\nx"))
        assert "\x1b]0" not in terminal.shown


@pytest.mark.parametrize("columns", [80, 200])
def test_peek_marks_a_body_that_it_cuts(
    shell: Shell, our_daemon: DaemonProcess, columns: int
) -> None:
    body = b"x" * 300
    our_daemon.publish("t", body, b"short")
    at = ("peek", "t", "-a", node(our_daemon))

    with on_terminal(shell, *at, columns=columns) as terminal:
        terminal.wait_for("short")
        lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.shown).splitlines()
    assert lines[1].endswith("xxx…")
    assert max(map(len, lines)) <= columns
    assert body.decode() in shell.nsq(*at)  # a pipe gets all of it


@pytest.mark.parametrize(
    ("argv", "variables"), [((), {"NO_COLOR": "1"}), (("--color", "never"), {})]
)
@pytest.mark.parametrize(
    "what",
    [("topic", "ls"), ("channel", "ls"), ("node", "ls"), ("peek", "orders/orders"), ("doctor",)],
)
def test_without_colour_a_terminal_gets_no_escapes(
    shell: Shell,
    our_daemon: DaemonProcess,
    what: tuple[str, ...],
    argv: tuple[str, ...],
    variables: dict[str, str],
) -> None:
    our_daemon.request("POST", "/topic/create?topic=orders")
    our_daemon.request("POST", "/channel/create?topic=orders&channel=orders")
    our_daemon.publish("orders", b"orders")

    at = ("-a", node(our_daemon), *argv)
    with on_terminal(shell, *what, *at, variables=variables) as terminal:
        terminal.wait_for("orders|127.0.0.1")
        assert terminal.process.wait(PATIENCE_S) == (what == ("doctor",))
        assert "\x1b" not in terminal.shown
