"""Cases 31, 32, 36, 37: `nsq to-file` and `nsq_to_file` as processes."""

import contextlib
import gzip
import json
import os
import signal
import socket
from pathlib import Path

import pytest

from tests.cli.conftest import FindTool, Shell, command, drain, mpub, node, running
from tests.support.daemon_process import DaemonProcess, WaitingDaemon
from tests.support.small_disk import SmallDisk
from tests.support.waiting import wait_until

HOST = socket.gethostname().partition(".")[0]
BODIES = [b"message %d" % number for number in range(300)]


def read_all(directory: Path) -> dict[str, bytes]:
    """The files of a directory, unpacked."""
    return {
        path.name: gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        for path in sorted(directory.iterdir())
    }


@pytest.mark.parametrize("flags", [(), ("--gzip", "--work-dir", "work", "--rotate-size", "1k")])
def test_all_messages_are_in_files_and_finished(
    shell: Shell, daemon: DaemonProcess, flags: tuple[str, ...]
) -> None:
    mpub(daemon, "t", BODIES)
    argv = ("to-file", "t", "--output-dir", "out", "--datetime-format", "now", "--json", *flags)
    with running(shell, "nsq", *argv, "-a", node(daemon)) as process:
        drain(daemon, "t", "nsq_to_file", 300)
    report = json.loads(process.stdout)

    files = read_all(shell.home / "out")
    assert b"".join(files.values()).split(b"\n") == [*BODIES, b""]
    assert len(files) == (1 if not flags else 4)
    suffix = ".gz" if flags else ""
    assert next(iter(files)) == f"t.{HOST}-000000.now.log{suffix}"
    assert (report["messages"], report["files"]) == (300, len(files))
    assert not flags or list((shell.home / "work").iterdir()) == []


def test_topics_by_pattern_are_joined_as_they_appear(
    shell: Shell, daemon: DaemonProcess, tmp_path: Path
) -> None:
    mpub(daemon, "a.1", BODIES[:1])
    mpub(daemon, "b", BODIES[:1])
    argv = ("--output-dir", str(tmp_path / "out"), "--topic-refresh", "50ms", "--timeout", "20s")
    with running(shell, "nsq", "to-file", "a.*", *argv, "-a", node(daemon)):
        drain(daemon, "a.1", "nsq_to_file", 1)
        mpub(daemon, "a.2", BODIES[:2])
        drain(daemon, "a.2", "nsq_to_file", 2)

    names = {name.partition(f".{HOST}")[0] for name in read_all(tmp_path / "out")}
    assert names == {"a.1", "a.2"}


def test_sighup_closes_the_file_and_two_processes_share_a_directory(
    shell: Shell, our_daemon: DaemonProcess
) -> None:
    argv = ("--output-dir", "out", "--work-dir", "work", "--datetime-format", "now")
    at = ("-a", node(our_daemon), "--sync-interval", "20ms", "--skip-empty-files")
    hook = ("--on-rotate", 'test ! "${1%%*000001*}" || echo "$1" >> hooked; exit 3')
    out = shell.home / "out"
    # A crash has left a file in the work directory, with a torn line.
    (shell.home / "work").mkdir()
    (shell.home / "work" / f"t.{HOST}-000000.now.log").write_bytes(b"left\nov")
    with (
        running(shell, "nsq", "to-file", "t", *argv, *at, *hook) as first,
        running(shell, "nsq", "to-file", "t", *argv, *at),
    ):
        our_daemon.wait_for_channel("t", "nsq_to_file", client_count=2)
        mpub(our_daemon, "t", BODIES)
        drain(our_daemon, "t", "nsq_to_file", 300)
        before = len(list(out.iterdir()))
        first.process.send_signal(signal.SIGHUP)
        wait_until(lambda: len(list(out.iterdir())) > before)
        mpub(our_daemon, "t", BODIES)
        drain(our_daemon, "t", "nsq_to_file", 600)

    files = read_all(out)
    lines = b"".join(files.values()).split(b"\n")
    assert sorted(lines) == sorted([b"left", *BODIES, *BODIES, b""])
    assert files[f"t.{HOST}-000000.now.log"] == b"left\n"
    assert b"--on-rotate ended with 3 for" in first.stderr  # and nothing else came of it
    assert list((shell.home / "work").iterdir()) == []


def read_between_attempts(daemon: DaemonProcess, directory: Path) -> tuple[int, list[bytes]]:
    """The depth of the channel "gzip" and the lines in its files, while none is being written."""
    figures = ("depth", "requeue_count", "finish_count")
    while True:
        before = daemon.wait_for_channel("t", "gzip", in_flight_count=0)
        with contextlib.suppress(EOFError):  # A member is being written.
            kept = b"".join(read_all(directory).values()).split(b"\n")[:-1]
            after = daemon.wait_for_channel("t", "gzip", in_flight_count=0)
            if all(before[name] == after[name] for name in figures):
                return before["depth"], kept


def test_a_full_disk_is_waited_for_and_leaves_no_torn_file(
    shell: Shell, our_daemon: DaemonProcess, tmp_path: Path
) -> None:
    bodies = [b"%06d" % number + os.urandom(500).hex().encode() for number in range(1500)]
    disk = SmallDisk(tmp_path / "small", 4 << 20)
    try:
        disk.fill(leave_bytes=400_000)
        for channel in ("plain", "gzip"):
            our_daemon.request("POST", "/topic/create?topic=t")
            our_daemon.request("POST", f"/channel/create?topic=t&channel={channel}")
        for start in range(0, 1500, 500):
            mpub(our_daemon, "t", bodies[start : start + 500])
        argv = ("to-file", "t", "--sync-interval", "50ms", "-a", node(our_daemon))
        with (
            running(shell, "nsq", *argv, "--channel", "plain", "--output-dir", f"{disk.path}/p"),
            running(
                shell, "nsq", *argv, "--channel", "gzip", "--output-dir", f"{disk.path}/g", "--gzip"
            ),
        ):
            for channel in ("plain", "gzip"):
                wait_until(lambda: our_daemon.wait_for_channel("t", channel)["requeue_count"])  # noqa: B023
            # As long as the disk is full: whole members, all lines of them finished.
            depth, kept = read_between_attempts(our_daemon, disk.path / "g")
            assert len(kept) == 1500 - depth
            disk.relieve()
            drain(our_daemon, "t", "plain", 1500)
            drain(our_daemon, "t", "gzip", 1500)
        for name in ("p", "g"):
            lines = b"".join(read_all(disk.path / name).values()).split(b"\n")
            assert sorted(lines) == [b"", *bodies]
    finally:
        disk.close()


# Go's name.

NSQ_TO_FILE = ("--topic=t", "--datetime-format=now", "--sync-interval=100ms")


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--gzip", "--gzip-level=1"),
        ("--rotate-size=1000", "--host-identifier=h-<SHORT_HOST>"),
        ("--work-dir=WORK", "--filename-format=<TOPIC>/<DATETIME><REV>.txt"),
    ],
)
def test_names_and_bytes_are_those_of_go(
    shell: Shell, daemon: DaemonProcess, find_go_tool: FindTool, flags: tuple[str, ...]
) -> None:
    daemon.request("POST", "/topic/create?topic=t")
    for channel in ("theirs", "ours"):
        daemon.request("POST", f"/channel/create?topic=t&channel={channel}")
    mpub(daemon, "t", BODIES[:100])
    found = {}
    for channel, program in (("theirs", find_go_tool("nsq_to_file")), ("ours", "nsq_to_file")):
        used = [flag.replace("WORK", str(shell.home / f"work-{channel}")) for flag in flags]
        out = shell.home / channel
        out.mkdir()
        argv = (f"--nsqd-tcp-address={daemon.tcp_address}", *NSQ_TO_FILE, *used)
        with running(shell, program, *argv, f"--channel={channel}", f"--output-dir={out}"):
            drain(daemon, "t", channel, 100)
        found[channel] = read_all(out / "t" if "--work-dir=WORK" in flags else out)

    assert found["ours"] == found["theirs"]
    assert b"".join(found["ours"].values()).split(b"\n") == [*BODIES[:100], b""]


def test_a_file_is_continued_behind_a_torn_line(shell: Shell, our_daemon: DaemonProcess) -> None:
    (shell.home / f"t.{HOST}.now.log").write_bytes(b"whole\ntor")
    mpub(our_daemon, "t", BODIES[:2])
    at = f"--nsqd-tcp-address={our_daemon.tcp_address}"
    with running(shell, "nsq_to_file", *NSQ_TO_FILE, at, f"--output-dir={shell.home}"):
        drain(our_daemon, "t", "nsq_to_file", 2)

    written = (shell.home / f"t.{HOST}.now.log").read_bytes()
    assert written == b"whole\ntor\nmessage 0\nmessage 1\n"


def test_what_was_tried_often_is_written_all_the_same(
    shell: Shell, our_daemon: DaemonProcess
) -> None:
    shell.nsq("pub", "t", "stubborn", "-a", node(our_daemon))
    script = "import asyncio,sys\nfrom nsqd.client import Consumer\n"
    script += (
        "async def main():\n"
        " async with Consumer('t','nsq_to_file',nsqd=[sys.argv[1]],backoff=None) as consumer:\n"
        "  async for message in consumer:\n"
        "   if message.attempts == 7: break\n"
        "   message.req(0)\n"
        "asyncio.run(main())\n"
    )
    shell.run(command("nsq")[0], "-c", script, our_daemon.tcp_address)
    at = f"--nsqd-tcp-address={our_daemon.tcp_address}"
    with running(shell, "nsq_to_file", *NSQ_TO_FILE, at, f"--output-dir={shell.home}"):
        drain(our_daemon, "t", "nsq_to_file", 1)

    assert (shell.home / f"t.{HOST}.now.log").read_bytes() == b"stubborn\n"


def test_topics_are_looked_up_at_once(shell: Shell, lookupd: WaitingDaemon, tmp_path: Path) -> None:
    flag = f"--lookupd-tcp-address={lookupd.tcp_address}"
    with DaemonProcess(tmp_path / "nsqd", flag) as daemon:
        mpub(daemon, "yes-1", BODIES[:3])
        mpub(daemon, "no-1", BODIES[:3])
        wait_until(lambda: b"yes-1" in lookupd.request("GET", "/topics"))
        argv = ("--topic-pattern=^yes", "--sync-interval=50ms", f"--output-dir={tmp_path}/out")
        with running(shell, "nsq_to_file", *argv, f"--lookupd-http-address={lookupd.http_address}"):
            drain(daemon, "yes-1", "nsq_to_file", 3)

    assert [name[:5] for name in read_all(tmp_path / "out")] == ["yes-1"]
