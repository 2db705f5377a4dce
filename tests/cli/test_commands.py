"""Cases 33, 34, 42 to 45: `nsq` in a shell."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Shell, command, environment, node
from tests.support.auth_server import AuthServer, allow, answer
from tests.support.certs import make_authority, make_server
from tests.support.daemon_process import DaemonProcess, WaitingDaemon
from tests.support.waiting import PATIENCE_S, wait_until


def channel_of(daemon: DaemonProcess, topic: str, channel: str) -> dict[str, int]:
    found = daemon.find_channel(topic, channel)
    assert found is not None
    return found


def test_what_is_published_is_tailed(shell: Shell, daemon: DaemonProcess) -> None:
    at = ("-a", node(daemon))
    done = shell.run("nsq", "pub", "t", "one", "two", *at)
    shell.nsq("pub", "t", *at, stdin=b"three\n\nfour")
    summary = json.loads(shell.nsq("pub", "t", "--json", *at, stdin=b"five\n\n"))

    shown = shell.nsq("tail", "t", "--channel", "c", "-n", "5", *at)

    assert shown.splitlines() == ["one", "two", "three", "four", "five"]
    assert done.stdout == b""
    assert done.stderr.startswith(b"2 published to t on 1 node, 6 B, 0 sent twice")
    assert summary["published"] == 1
    assert summary["empty"] == 1
    fields = {"topic", "published", "bytes", "nodes", "sent_twice", "empty", "seconds"}
    assert set(summary) == fields


def test_a_count_finishes_what_was_printed_and_nothing_else(
    shell: Shell, daemon: DaemonProcess
) -> None:
    at = ("-a", node(daemon))
    shell.nsq("pub", "t", "1", "2", "3", *at)

    assert shell.nsq("tail", "t", "--channel", "c", "-n", "2", *at) == "1\n2\n"

    found = channel_of(daemon, "t", "c")
    assert (found["depth"], found["in_flight_count"], found["requeue_count"]) == (1, 0, 0)
    assert shell.nsq("tail", "t", "--channel", "c", "--until-empty", *at) == "3\n"
    assert shell.nsq("tail", "t", "--channel", "c", "-n", "1", "--wait", "0.3s", *at, code=4) == ""


def test_a_reader_that_goes_away_ends_it(shell: Shell, daemon: DaemonProcess) -> None:
    at = ("-a", node(daemon))
    shell.nsq("pub", "t", "-n", "20000", "x" * 50 + "{n}", *at)
    with shell.start("nsq", "tail", "t", "--channel", "c", *at) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(30) == 0

    found = channel_of(daemon, "t", "c")
    assert found["in_flight_count"] == 0
    assert found["depth"] > 10_000  # what was not printed waits for the next one


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_tail_well(
    shell: Shell, daemon: DaemonProcess, number: signal.Signals
) -> None:
    shell.nsq("pub", "t", "x", "-a", node(daemon))
    with shell.start("nsq", "tail", "t", "--channel", "c", "-a", node(daemon)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"x\n"
        process.send_signal(number)
        assert process.wait(30) == 0

    assert channel_of(daemon, "t", "c")["in_flight_count"] == 0


def test_a_publisher_that_is_interrupted_says_so(shell: Shell, daemon: DaemonProcess) -> None:
    with shell.start("nsq", "pub", "t", "-a", node(daemon)) as process:
        assert process.stdin is not None
        process.stdin.write(b"one\ntwo\nhalf")
        process.stdin.flush()
        wait_until(lambda: b'"message_count":2' in daemon.request("GET", "/stats?format=json"))
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130


@pytest.mark.parametrize(
    ("argv", "stdin", "wanted"),
    [
        (("--delimiter", ","), b"a,b,,c", [b"a", b"b", b"c"]),
        (("-0",), b"a\nb\0c\0", [b"a\nb", b"c"]),
        (("--whole",), b"a\nb\n", [b"a\nb\n"]),
        (("--skip", "2"), b"1\n2\n3\n4\n", [b"3", b"4"]),
        (("--rate", "50"), b"1\n2\n3\n", [b"1", b"2", b"3"]),
        (("--framed",), b"\0\0\0\x03a\nb\0\0\0\x01c", [b"a\nb", b"c"]),
        (("--batch", "1"), b"1\n2\n", [b"1", b"2"]),
    ],
)
def test_ways_to_cut_the_input(
    shell: Shell,
    our_daemon: DaemonProcess,
    argv: tuple[str, ...],
    stdin: bytes,
    wanted: list[bytes],
) -> None:
    at = ("-a", node(our_daemon))
    shell.nsq("pub", "t", *argv, *at, stdin=stdin)

    done = shell.run("nsq", "tail", "t", "-n", str(len(wanted)), "--framed", "--channel", "c", *at)

    assert done.stdout == b"".join(len(body).to_bytes(4) + body for body in wanted)


def test_every_byte_comes_back_through_json_and_frames(
    shell: Shell, our_daemon: DaemonProcess
) -> None:
    at = ("-a", node(our_daemon))
    bodies = [b"\x1b[2Jplain", b"two\nlines", b"\xff\x00\xfe", "ä".encode()]
    frames = b"".join(len(body).to_bytes(4) + body for body in bodies)
    shell.nsq("pub", "a", "--framed", *at, stdin=frames)

    lines = shell.run("nsq", "tail", "a", "-n", "4", "--json", "--channel", "c", *at).stdout
    shell.nsq("pub", "b", "--envelope", *at, stdin=lines)
    back = shell.run("nsq", "tail", "b", "-n", "4", "--framed", "--channel", "c", *at).stdout

    assert back == frames
    fields = {"topic", "channel", "nsqd", "id", "timestamp_ns", "attempts"}
    for line in lines.splitlines():
        assert json.loads(line).keys() - {"body", "body_base64"} == fields


def test_files_and_deferred_messages(shell: Shell, our_daemon: DaemonProcess) -> None:
    at = ("-a", node(our_daemon))
    (shell.home / "one").write_bytes(b"a\nb")
    shell.nsq("pub", "t", "-f", "one", *at)
    shell.nsq("pub", "t", "later", "--defer", "1h", *at)
    shell.nsq("pub", "t", "-f", "missing", *at, code=1)
    shell.nsq("pub", "t", "--dry-run", "x", *at)

    assert shell.nsq("tail", "t", "--channel", "c", "-n", "1", *at) == "a\nb\n"
    assert channel_of(our_daemon, "t", "c")["deferred_count"] == 1


def test_a_message_that_is_too_large_is_one_clear_error(
    shell: Shell, daemon: DaemonProcess
) -> None:
    done = shell.run("nsq", "pub", "t", "-a", node(daemon), stdin=b"x" * 10_000_000, code=1)

    assert b"10000000 bytes, more than 1048576" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_name_that_is_none_is_wrong_usage(shell: Shell, daemon: DaemonProcess) -> None:
    for argv in (("pub", "bad topic", "x"), ("pub", "bad topic"), ("tail", "bad topic")):
        done = shell.run("nsq", *argv, "-a", node(daemon), stdin=b"x\n", code=2)
        assert done.stderr == b"nsq: not the name of a topic: 'bad topic'\n"


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_full_stdout_finishes_nothing(
    shell: Shell, daemon: DaemonProcess, flags: tuple[str, ...]
) -> None:
    at = ("-a", node(daemon))
    shell.nsq("pub", "t", "1", "2", *at)

    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command("nsq", "tail", "t", "--channel", "c", "-n", "1", *flags, *at),
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(shell.home),
            timeout=PATIENCE_S,
            check=False,
        )

    assert done.returncode == 1
    assert b"No space left on device" in done.stderr
    assert b"Traceback" not in done.stderr
    daemon.wait_for_channel("t", "c", depth=2, in_flight_count=0)


def test_an_nsqd_that_is_not_there(shell: Shell) -> None:
    at = ("-a", "127.0.0.1:1", "--timeout", "1s")

    done = shell.run("nsq", "pub", "t", "x", *at, code=1)
    assert b"Connect" in done.stderr or b"refused" in done.stderr
    assert done.stderr.endswith(b"\nnothing is published\n")
    shell.nsq("topic", "ls", *at, code=1)
    shell.nsq("stat", "t", *at, code=1)
    error = json.loads(shell.run("nsq", "topic", "ls", "--json", *at, code=1).stderr)
    assert error["code"] == 1


def test_a_certificate_that_is_not_trusted_is_exit_5(shell: Shell, tmp_path: Path) -> None:
    authority, other = (make_authority(_folder(tmp_path / name)) for name in ("one", "other"))
    server = make_server(_folder(tmp_path / "server"), authority)
    flags = (f"--tls-cert={server.cert_file}", f"--tls-key={server.key_file}")
    with DaemonProcess(tmp_path / "nsqd", *flags) as daemon:
        at = ("-a", daemon.tcp_address, "--timeout", "5s", "--tls-ca")

        shell.nsq("pub", "t", "x", *at, authority.cert_file)
        refused = shell.run("nsq", "pub", "t", "x", *at, other.cert_file, code=5)
        shell.nsq("tail", "t", "-n", "1", *at, other.cert_file, code=5)
        shell.nsq("to-file", "t", "--output-dir", str(tmp_path), *at, other.cert_file, code=5)
        shell.nsq("to-http", "t", "--post", "http://127.0.0.1:1/", *at, other.cert_file, code=5)
        destination = ("--destination-nsqd", "127.0.0.1:1", "--destination-topic", "x")
        shell.nsq("to-nsq", "t", *destination, *at, other.cert_file, code=5)
        shell.nsq("each", "t", "c", *at, other.cert_file, "--", "cat", code=5)

    assert refused.stderr.endswith(b"\nnothing is published\n")


def test_a_secret_that_is_missing_or_wrong_is_exit_5(shell: Shell, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("wrong")
    with (
        AuthServer() as auth,
        DaemonProcess(tmp_path / "nsqd", f"--auth-http-address={auth.address}") as daemon,
    ):
        auth.answers["right"] = (200, answer(allow()))
        for flags in ((), ("--auth-secret-file", str(secret))):
            at = ("-a", daemon.tcp_address, *flags)
            shell.nsq("pub", "t", "x", *at, code=5)
            shell.nsq("tail", "t", "-n", "1", *at, code=5)
            shell.nsq("to-file", "t", "--output-dir", str(tmp_path), *at, code=5)
            shell.nsq("each", "t", "c", *at, "--", "cat", code=5)
        secret.write_text("right")
        shell.nsq("pub", "t", "x", "-a", daemon.tcp_address, "--auth-secret-file", str(secret))


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_topics_and_channels_are_changed_and_listed(shell: Shell, daemon: DaemonProcess) -> None:
    at = ("-a", node(daemon))
    shell.nsq("topic", "create", "a", "b", *at)
    shell.nsq("channel", "create", "a/c", *at)
    shell.nsq("pub", "a", "1", "2", *at)
    shell.nsq("channel", "pause", "a/c", *at)

    row = json.loads(shell.nsq("channel", "ls", "a", "--json", *at))
    assert (row["topic"], row["channel"], row["depth"], row["paused"]) == ("a", "c", 2, True)
    rows = shell.nsq("topic", "ls", "--tsv", *at).splitlines()
    assert rows[0].split("\t")[:2] == ["topic", "depth"]
    assert [each.split("\t")[0] for each in rows[1:]] == ["a", "b"]

    shell.nsq("channel", "empty", "a/c", *at, code=2)  # nobody can be asked
    assert channel_of(daemon, "a", "c")["depth"] == 2
    assert "would be done" in shell.nsq("channel", "empty", "a/*", "--dry-run", *at)
    assert channel_of(daemon, "a", "c")["depth"] == 2
    shell.nsq("channel", "empty", "a/*", "-y", *at)
    assert channel_of(daemon, "a", "c")["depth"] == 0
    shell.nsq("topic", "delete", "a", "-y", *at)
    shell.nsq("topic", "delete", "a", "-y", *at, code=3)
    shell.nsq("topic", "ls", "a", *at, code=3)


def test_a_read_only_context_refuses(shell: Shell, our_daemon: DaemonProcess) -> None:
    shell.nsq("context", "add", "prod", "--nsqd", node(our_daemon), "--read-only")
    shell.nsq("context", "select", "prod")

    shell.nsq("topic", "create", "t", code=5)
    shell.nsq("topic", "create", "t", "--write")
    assert "t" in shell.nsq("topic", "ls")


def test_a_cluster_of_which_a_part_is_down(
    shell: Shell, lookupd: WaitingDaemon, tmp_path: Path
) -> None:
    flag = f"--lookupd-tcp-address={lookupd.tcp_address}"
    at = ("-l", lookupd.http_address, "-l", "127.0.0.1:1")
    with (
        DaemonProcess(tmp_path / "a", flag) as first,
        DaemonProcess(tmp_path / "b", flag) as second,
    ):
        wait_until(lambda: len(json.loads(lookupd.request("GET", "/nodes"))["producers"]) == 2)
        assert len(shell.nsq("node", "ls", "--json", *at).splitlines()) == 2
        changed = shell.nsq("topic", "create", "t", "--json", *at, code=6)
        failed = [json.loads(line) for line in changed.splitlines() if '"error":null' not in line]
        assert [each["server"] for each in failed] == ["127.0.0.1:1"]

        shell.nsq("pub", "t", "x", "-l", lookupd.http_address)
        both = ("-a", node(first), "-a", node(second))
        second.kill()
        shell.nsq("topic", "ls", *both, code=6)
        pinged = shell.nsq("node", "ping", "--json", *both, code=6)
        errors = [json.loads(line)["error"] for line in pinged.splitlines()]
        assert [error is None for error in errors] == [True, False]


def test_peek_shows_and_touches_nothing(shell: Shell, our_daemon: DaemonProcess) -> None:
    at = ("-a", node(our_daemon))
    our_daemon.request("POST", "/topic/create?topic=t")
    our_daemon.request("POST", "/channel/create?topic=t&channel=c")
    shell.nsq("pub", "t", "--framed", *at, stdin=b"\0\0\0\x04a\x1bbc")

    shown = shell.nsq("peek", "t/c", *at)
    message = json.loads(shell.nsq("peek", "t/c", "--json", *at))

    assert shown.splitlines()[0].split() == ["where", "id", "age", "attempts", "size", "body"]
    assert r"a\x1bbc" in shown
    assert (message["attempts"], message["where"], message["body"]) == (0, "memory", "a\x1bbc")
    assert channel_of(our_daemon, "t", "c")["depth"] == 1
    shell.nsq("peek", "none", *at, code=3)


def test_peek_has_the_formats_of_tail(shell: Shell, our_daemon: DaemonProcess) -> None:
    at = ("-a", node(our_daemon))
    our_daemon.publish("t", b'{"a":1}')

    assert shell.nsq("peek", "t", "--format", "%t %a %S %s\\n", *at) == 't 0 7 {"a":1}\n'
    assert shell.nsq("peek", "t", "--pretty", *at) == '{\n  "a": 1\n}\n'
    assert shell.run("nsq", "peek", "t", "--framed", *at).stdout == b'\0\0\0\x07{"a":1}'


def test_a_file_for_each_message(shell: Shell, daemon: DaemonProcess) -> None:
    daemon.publish("t", b"one\n", b"two")
    argv = ("--channel", "c", "-n", "2", "--dir", "out/files", "-a", node(daemon))

    assert shell.nsq("tail", "t", *argv) == ""

    files = sorted((shell.home / "out" / "files").iterdir())
    assert sorted(file.read_bytes() for file in files) == [b"one\n", b"two"]
    assert all(file.name.startswith("t.") and len(file.name) == 18 for file in files)
    assert channel_of(daemon, "t", "c")["depth"] == 0


def test_a_pattern_is_joined_by_topics_that_appear(shell: Shell, our_daemon: DaemonProcess) -> None:
    our_daemon.publish("a.1", b"one")
    argv = ("tail", "a.*", "--channel", "c", "-n", "2", "--print-topic", "-a", node(our_daemon))
    with shell.start("nsq", *argv) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"a.1 | one\n"
        our_daemon.publish("a.2", b"two")
        assert process.stdout.readline() == b"a.2 | two\n"
        assert process.wait(30) == 0


def test_a_rate_is_kept(shell: Shell, our_daemon: DaemonProcess) -> None:
    at = ("-a", node(our_daemon), "--json")

    summary = json.loads(shell.nsq("pub", "t", "-n", "60", "{n}", "--rate", "60", *at))

    assert summary["seconds"] > 0.9  # it was five times too fast once
    assert summary["published"] == 60


def test_what_needs_our_nsqd_says_so(shell: Shell, daemon: DaemonProcess) -> None:
    if "built w/go" not in daemon.log:
        pytest.skip("this is ours")
    at = ("-a", node(daemon))
    shell.nsq("topic", "create", "t", *at)

    assert b"not ours" in shell.run("nsq", "peek", "t", *at, code=3).stderr
    assert b"not ours" in shell.run("nsq", "node", "drain", "-y", *at, code=3).stderr


def test_a_node_is_drained(shell: Shell, our_daemon: DaemonProcess) -> None:
    shell.nsq("node", "drain", "-y", "--wait", "-a", node(our_daemon))

    assert our_daemon.wait() == 0


def test_stat_reports(shell: Shell, daemon: DaemonProcess) -> None:
    at = ("-a", node(daemon), "--interval", "0.2s", "--count", "2")
    daemon.request("POST", "/topic/create?topic=t")
    daemon.request("POST", "/channel/create?topic=t&channel=c")
    daemon.publish("t", b"1", b"2")

    lines = shell.nsq("stat", "t", *at).splitlines()
    rows = [json.loads(line) for line in shell.nsq("stat", "t", "c", "--json", *at).splitlines()]

    assert lines[0].split()[:3] == ["channel", "in/s", "out/s"]
    assert [line.split()[0] for line in lines[1:]] == ["(topic)", "c", "(topic)", "c"]
    assert [row["depth"] for row in rows] == [2, 2]
    shell.nsq("stat", "none", *at, code=3)


def test_patterns_and_several_topics(shell: Shell, our_daemon: DaemonProcess) -> None:
    at = ("-a", node(our_daemon))
    shell.nsq("pub", "orders.a", "1", *at)
    shell.nsq("pub", "orders.b", "2", *at)
    shell.nsq("pub", "other", "3", *at)

    shown = shell.nsq("tail", "orders.*", "--print-topic", "-n", "2", "--channel", "c", *at)

    assert sorted(shown.splitlines()) == ["orders.a | 1", "orders.b | 2"]
    shell.nsq("tail", "none.*", *at, code=3)


def test_filters_show_a_part_and_finish_all(shell: Shell, our_daemon: DaemonProcess) -> None:
    at = ("-a", node(our_daemon), "--channel", "c", "--until-empty")
    shell.nsq("pub", "t", '{"n": 1}', '{"n": 20}', "no json", "-a", node(our_daemon))

    assert shell.nsq("tail", "t", "--where", "n>5", *at) == '{"n": 20}\n'
    assert channel_of(our_daemon, "t", "c")["depth"] == 0


def test_a_terminal_gets_no_escapes_of_messages(shell: Shell, our_daemon: DaemonProcess) -> None:
    shell.nsq("pub", "t", "\x1b]0;owned\x07", "-a", node(our_daemon))
    inner = f"{' '.join(['nsq', 'tail', 't', '-n', '1', '-q', '-a', node(our_daemon)])} --channel c"
    program = f"""
import os, pty, shlex, sys
from tests.cli.conftest import command
argv = shlex.split({inner!r})
pty.spawn(command(argv[0], *argv[1:]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        timeout=40,
        check=False,
        stdin=subprocess.DEVNULL,
    )

    assert rb"\x1b]0;owned\x07" in done.stdout
    assert b"\x1b]0" not in done.stdout
