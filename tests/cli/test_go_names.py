"""Cases 31 to 33: Go's names. The same input through Go's tool and ours gives the same stdout."""

import json
import re

import pytest

from tests.cli.conftest import FindTool, Shell
from tests.support.daemon_process import DaemonProcess

ADDRESS = "--nsqd-tcp-address"


def bodies_of(shell: Shell, daemon: DaemonProcess, topic: str, count: int) -> list[bytes]:
    """What a topic holds, as frames."""
    at = ("-a", daemon.tcp_address, "--channel", "look", "--framed", "-n", str(count))
    data = shell.run("nsq", "tail", topic, *at).stdout
    bodies = []
    while data:
        size = int.from_bytes(data[:4])
        bodies.append(data[4 : 4 + size])
        data = data[4 + size :]
    return bodies


@pytest.mark.parametrize(
    ("flags", "stdin", "wanted"),
    [
        ((), b"one\ntwo\n\nthree\n", [b"one", b"two", b"three"]),
        ((), b"abc\nxyz", [b"abc", b"xyz"]),  # Go cuts the last byte: xy
        (("--delimiter=,",), b"a,b,c\n", [b"a", b"b", b"c"]),  # the example of Go's manual
        (("-delimiter", ","), b"a,,b\nc,d", [b"a", b"b\nc", b"d"]),
        ((), b"a\0b\n", [b"a\0b"]),
        (("--rate=100",), b"1\n2\n", [b"1", b"2"]),
    ],
)
def test_to_nsq_cuts_its_input(
    shell: Shell,
    daemon: DaemonProcess,
    flags: tuple[str, ...],
    stdin: bytes,
    wanted: list[bytes],
) -> None:
    shell.run("to_nsq", "--topic=t", f"{ADDRESS}={daemon.tcp_address}", *flags, stdin=stdin)

    assert bodies_of(shell, daemon, "t", len(wanted)) == wanted


def test_to_nsq_cuts_as_go_does(
    shell: Shell, our_daemon: DaemonProcess, find_go_tool: FindTool
) -> None:
    stdin = b"".join(b"line %d\n\n" % number for number in range(50))
    at = f"{ADDRESS}={our_daemon.tcp_address}"
    shell.run(find_go_tool("to_nsq"), "--topic=theirs", at, stdin=stdin)
    shell.run("to_nsq", "--topic=ours", at, stdin=stdin)

    theirs, ours = (bodies_of(shell, our_daemon, topic, 50) for topic in ("theirs", "ours"))
    assert ours == theirs


def test_to_nsq_fails_at_the_first_error(shell: Shell, daemon: DaemonProcess) -> None:
    large = shell.run(
        "to_nsq", "--topic=t", f"{ADDRESS}={daemon.tcp_address}", stdin=b"x" * 10**7, code=1
    )
    gone = shell.run("to_nsq", "--topic=t", f"{ADDRESS}=127.0.0.1:1", stdin=b"x\n", code=1)

    assert b"10000000" in large.stderr
    assert b"Traceback" not in large.stderr + gone.stderr


@pytest.mark.parametrize("flags", [(), ("--print-topic",)])
def test_nsq_tail_prints_what_go_prints(
    shell: Shell, daemon: DaemonProcess, find_go_tool: FindTool, flags: tuple[str, ...]
) -> None:
    for channel in ("a", "b"):
        daemon.request("POST", "/topic/create?topic=t")
        daemon.request("POST", f"/channel/create?topic=t&channel={channel}")
    daemon.publish("t", b"one", b"two \x1b[1m", b"\xff\n", b"four")
    argv = ("--topic=t", "-n=4", f"{ADDRESS}={daemon.tcp_address}", *flags)

    theirs = shell.run(find_go_tool("nsq_tail"), "--channel=a", *argv)
    ours = shell.run("nsq_tail", "--channel=b", *argv)

    assert ours.stdout == theirs.stdout
    found = daemon.find_channel("t", "b")
    assert found is not None
    assert (found["depth"], found["in_flight_count"]) == (0, 0)  # Go leaves them in flight


def test_nsq_stat_prints_the_rows_of_go(
    shell: Shell, daemon: DaemonProcess, find_go_tool: FindTool
) -> None:
    daemon.request("POST", "/topic/create?topic=t")
    daemon.request("POST", "/channel/create?topic=t&channel=c")
    daemon.publish("t", *[b"x"] * 12)
    argv = (
        "--topic=t",
        "--channel=c",
        "--interval=200ms",
        "--count=3",
        f"--nsqd-http-address={daemon.http_address}",
    )

    theirs = shell.run(find_go_tool("nsq_stat"), *argv)
    ours = shell.run("nsq_stat", *argv)

    assert ours.stdout == theirs.stdout
    assert len(ours.stdout.splitlines()) == 5


def test_nsq_stat_ends_with_1_if_there_is_no_such_channel(
    shell: Shell, daemon: DaemonProcess
) -> None:
    argv = ("--topic=t", "--channel=c", f"--nsqd-http-address={daemon.http_address}")

    shell.run("nsq_stat", *argv, code=1)


@pytest.mark.parametrize(
    "tool", ["nsq_tail", "nsq_stat", "to_nsq", "nsq_to_file", "nsq_to_http", "nsq_to_nsq"]
)
def test_flags_and_defaults_are_those_of_go(
    shell: Shell, find_go_tool: FindTool, tool: str
) -> None:
    theirs = shell.run(find_go_tool(tool), "-h", code=None).stderr.decode()
    ours = shell.run(tool, "-h", code=0).stderr.decode()

    for name in re.findall(r"^  -([a-z-]+)", theirs, re.MULTILINE):
        assert re.search(rf"^  --{name}( |$)", ours, re.MULTILINE)
    for name, default in re.findall(r"^  -([a-z-]+) .*\n.*\(default (.*)\)$", theirs, re.MULTILINE):
        line = re.search(rf"-{name}\b.*?(?=\n +-|\Z)", ours, re.DOTALL)
        assert line is not None
        shown = " ".join(line[0].split())
        assert json.loads(default.strip('"').join('""')).strip() in shown or default in shown


def test_environment_and_contexts_change_nothing(shell: Shell) -> None:
    shell.nsq("context", "add", "x", "--nsqd", "127.0.0.1")
    shell.nsq("context", "select", "x")

    shell.run("nsq_tail", "--topic=t", code=1)


NO_NSQD = f"{ADDRESS}=127.0.0.1:1"
CONSUMERS = {
    "nsq_tail": (),
    "nsq_to_file": (),
    "nsq_to_http": ("--post=http://127.0.0.1:1/",),
    "nsq_to_nsq": ("--destination-nsqd-tcp-address=127.0.0.1:1", "--destination-topic=d"),
}


@pytest.mark.parametrize("tool", ["nsq_tail", "nsq_to_http", "nsq_to_nsq"])
def test_an_nsqd_that_is_not_there_at_the_start_ends_it_with_1(
    shell: Shell, find_go_tool: FindTool, tool: str
) -> None:
    """A script that waits for its nsqd hears of it; nsq_to_file waits, where Go's does nothing."""
    argv = ("--topic=t", NO_NSQD, *CONSUMERS[tool])

    theirs = shell.run(find_go_tool(tool), *argv, code=1)
    ours = shell.run(tool, *argv, code=1)

    assert b"refused" in theirs.stderr
    assert b"127.0.0.1:1" in ours.stderr
    assert b"Traceback" not in ours.stderr


@pytest.mark.parametrize("tool", CONSUMERS)
@pytest.mark.parametrize(
    ("flag", "code"),
    [
        ("--max-in-flight=-1", 1),
        ("--consumer-opt=heartbeat_interval,1ms", 1),
        ("--consumer-opt=sample_rate,200", 2),
        ("--consumer-opt=msg_timeout,60", 2),
        ("--consumer-opt=tls_root_ca_file,/no/such/file", 2),
    ],
)
def test_values_that_cannot_be_used_are_told_and_end_it(
    shell: Shell, tool: str, flag: str, code: int
) -> None:
    done = shell.run(tool, "--topic=t", NO_NSQD, *CONSUMERS[tool], flag, code=code)

    assert b"Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_nsq_to_file_takes_no_arguments(shell: Shell, find_go_tool: FindTool) -> None:
    argv = ("--topic=t", NO_NSQD, "extra", "--gzip")

    theirs = shell.run(find_go_tool("nsq_to_file"), *argv, code=1)
    ours = shell.run("nsq_to_file", *argv, code=1)

    assert b"unknown arguments: [extra --gzip]" in theirs.stderr
    assert ours.stderr == b"unknown arguments: [extra --gzip]\n"


@pytest.mark.parametrize("tool", ["to_nsq", "nsq_stat", *CONSUMERS])
def test_help_tells_of_no_flag_that_is_not_there(shell: Shell, tool: str) -> None:
    assert b"--config" not in shell.run(tool, "-h", code=0).stderr


def test_the_log_on_stderr_tells_of_connections(shell: Shell, daemon: DaemonProcess) -> None:
    daemon.publish("t", b"one")

    done = shell.run(
        "nsq_tail", "--topic=t", "--channel=c", "-n=1", f"{ADDRESS}={daemon.tcp_address}"
    )

    assert done.stdout == b"one\n"
    assert b"subscribed nsqd=" + daemon.tcp_address.encode() in done.stderr
