"""Case 35: `nsq to-file` is killed at each step, and loses its power: what is finished is there.

It runs on a watched disk, which kills it at named operations, or keeps a journal of them. The
journal also has what was finished and when, so that each cut can be asked for it.
"""

import gzip
import os
import random
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from tests.support.daemon_process import REPOSITORY, DaemonProcess
from tests.support.faults.journal import read_journal
from tests.support.faults.power_cut import PowerCut

# Runs `nsq` on a watched disk, with asyncio's own loop; notes the bodies of what is finished.
DRIVER = """
import sys
sys.modules["uvloop"] = None
from pathlib import Path
from tests.support.faults.journal import JournalWriter
from tests.support.faults.plan import Rule
from tests.support.faults.watched_disk import WatchedDisk
from nsqd.client.consume.link import Link
root, rule, journal_path, *argv = sys.argv[1:]
journal = JournalWriter(Path(journal_path)) if journal_path else None
finish_many = Link.finish_many
def finish(link, messages):
    if journal is not None:
        journal.add("finished", b"\\n".join(message.body for message in messages))
    finish_many(link, messages)
Link.finish_many = finish
WatchedDisk(root, [Rule.parse(rule)] if rule else [], journal).install()
from nsqd.cli.main import main
sys.exit(main(argv))
"""
# Named points: within a write, before and after the fsync of a file and of its directory, before
# FIN, between the link and the unlink of a move, in the middle of the adoption after that.
KILLS = (
    "tear:write:other:4",
    "before:fsync:other:5",
    "after:fsync:other:6",
    "after:create:other:2",
    "after:link:other:1",
    "before:unlink:other:2",
    "after:unlink:other:1",
)


def start(root: Path, daemon: DaemonProcess, rule: str, journal: str, *flags: str) -> list[str]:
    """The command line of a run in this directory."""
    where = ("--output-dir", f"{root}/out", "--work-dir", f"{root}/work")
    argv = ("to-file", "t", *where, "--no-context", "-a", daemon.tcp_address, *flags)
    # Small groups, so that there are many; what a killed run had comes again soon.
    small = ("--max-in-flight", "10", "--msg-timeout", "1s", "--sync-interval", "50ms")
    rotation = ("--rotate-size", "300", "--skip-empty-files", "-q")
    return [sys.executable, "-c", DRIVER, str(root), rule, journal, *argv, *small, *rotation]


def read_bodies(directory: Path) -> list[bytes]:
    """All messages in all files, as far as they can be read."""
    found = []
    for path in sorted(directory.rglob("*.*")):
        if path.is_file():
            data = path.read_bytes()
            found += (unpack(data) if ".gz" in path.name else data).split(b"\n")
    return found


def unpack(data: bytes) -> bytes:
    """The whole members of a file."""
    parts = []
    while data:
        member = zlib.decompressobj(31)
        try:
            part = member.decompress(data)
        except zlib.error:
            break
        if not member.eof:
            break
        parts.append(part)
        data = member.unused_data
    return b"".join(parts)


def make_root(path: Path) -> Path:
    for name in ("out", "work"):
        (path / name).mkdir(parents=True)
    return path


@pytest.mark.parametrize("flags", [(), ("--gzip",)])
def test_nothing_is_lost_in_kills(tmp_path: Path, flags: tuple[str, ...]) -> None:
    root = make_root(tmp_path / "root")
    published: list[bytes] = []
    with DaemonProcess(tmp_path / "nsqd") as daemon:
        for rule in (*KILLS, ""):
            bodies = [b"%06d" % (len(published) + number) for number in range(80)]
            daemon.request("POST", "/mpub?topic=t", b"\n".join(bodies))
            published += bodies
            command = start(root, daemon, rule, "", *flags)
            with subprocess.Popen(command, cwd=REPOSITORY) as process:
                if rule:
                    assert process.wait(50) == -9, rule
                    continue
                wanted = {"depth": 0, "in_flight_count": 0, "message_count": len(published)}
                daemon.wait_for_channel("t", "nsq_to_file", **wanted)
                process.terminate()
                assert process.wait(30) == 0

    assert set(read_bodies(root / "out")) >= set(published)
    assert os.listdir(root / "work") == []  # what kills had left was adopted
    for path in (root / "out").iterdir():
        data = path.read_bytes()
        lines = (gzip.decompress(data) if flags else data).split(b"\n")
        assert all(len(line) == 6 for line in lines[:-1])
        assert lines[-1] == b""


@pytest.mark.parametrize("flags", [(), ("--gzip",)])
def test_what_is_finished_survives_a_power_cut(tmp_path: Path, flags: tuple[str, ...]) -> None:
    root = make_root(tmp_path / "root")
    bodies = [b"%06d" % number for number in range(200)]
    journal = tmp_path / "journal"
    with DaemonProcess(tmp_path / "nsqd") as daemon:
        daemon.request("POST", "/mpub?topic=t", b"\n".join(bodies))
        command = start(root, daemon, "", str(journal), *flags)
        with subprocess.Popen(command, cwd=REPOSITORY) as process:
            daemon.wait_for_channel("t", "nsq_to_file", depth=0, in_flight_count=0)
            process.terminate()
            assert process.wait(30) == 0
    records = list(read_journal(journal))
    assert sum(record.name == "link" for record in records) >= 4
    finishes = [record for record in records if record.name == "finished"]
    assert len(finishes) > 10

    chance = random.Random(35)
    for number in range(60):
        position = chance.choice(records).position
        cut = PowerCut(records, position)
        found = tmp_path / "cuts" / str(number)
        cut.rebuild(found, chance)
        finished = {
            body
            for record in finishes
            if record.position < position
            for body in record.values[0].split(b"\n")
        }
        assert finished <= set(read_bodies(found)), (number, position)
