"""The archive and SIGKILL: it stays whole, and loses no more than what was just published."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from diskqueue import DiskQueue, envelope
from tests.crash.conftest import Play
from tests.support.cluster import Cluster, Nsqd
from tests.support.daemon_process import HOST
from tests.support.faults.rounds import RoundFailedError
from tests.support.v2_client import V2Client

TOPIC = "t"
LIVES = 4
BATCH_COUNT = 10
# Half a second of publishing; the last 50 ms of it may be lost.
BATCHES_PER_LIFE = 50
COUNT_PER_LIFE = BATCHES_PER_LIFE * BATCH_COUNT
FLAGS = ("--retain-bytes=100000000", "--max-bytes-per-file=20000", "--sync-timeout=100ms")


def check_archive(path: Path) -> None:
    command = [sys.executable, "-m", "diskqueue", "check", str(path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def read_archive(path: Path) -> list[tuple[int, int]]:
    """The life and the number of every message."""
    queue = DiskQueue(path, TOPIC)
    found = []
    while (batch := queue.read(1000, 2**20)) is not None:
        for payload in batch:
            life, number = envelope.decode(payload).body.split(b" ")[:2]
            found.append((int(life), int(number)))
    return found


async def publish(nsqd: Nsqd, life: int) -> None:
    """Publish for a while."""
    producer = await V2Client.connect((HOST, nsqd.tcp_port))
    for batch in range(BATCHES_PER_LIFE):
        first = batch * BATCH_COUNT
        bodies = [b"%d %d " % (life, first + index) + bytes(100) for index in range(BATCH_COUNT)]
        await producer.publish(TOPIC, *bodies)
        await asyncio.sleep(0.01)
    await producer.close()


async def test_kills_leave_an_archive_without_gaps(cluster: Cluster) -> None:
    nsqd = cluster.nsqd(flags=FLAGS)
    path = nsqd.data_path / "archive"
    for life in range(LIVES):
        await nsqd.start()
        await nsqd.create(TOPIC, "ch")
        await publish(nsqd, life)
        if life == LIVES - 1:
            await nsqd.stop()
        else:
            nsqd.kill()
        check_archive(path)

    kept = read_archive(path)

    counts = [0] * LIVES
    for life, number in kept:
        assert number == counts[life], f"life {life} has a gap"
        counts[life] += 1
    assert [life for life, _ in kept] == sorted(life for life, _ in kept)
    assert min(counts) >= COUNT_PER_LIFE / 2
    assert counts[-1] == COUNT_PER_LIFE, "a clean stop loses nothing"


async def test_kills_between_deletions_leave_no_litter(cluster: Cluster) -> None:
    flags = ("--retain-bytes=200000", "--sync-timeout=100ms")
    nsqd = cluster.nsqd(flags=flags)
    path = nsqd.data_path / "archive"
    for life in range(LIVES):
        await nsqd.start()
        await nsqd.create(TOPIC, "ch")
        await publish(nsqd, life)
        nsqd.kill()
        check_archive(path)

    await nsqd.start()
    await nsqd.stop()

    assert sum(each.stat().st_size for each in path.glob("*.0*.dat")) <= 200_000
    kept = read_archive(path)
    assert kept == sorted(kept)
    assert kept[-1][0] == LIVES - 1
    assert not list(path.glob("*.bad"))


@pytest.mark.parametrize("number", range(2))
async def test_kills_leave_all_that_was_acknowledged_in_the_archive(
    play_round: Play, number: int
) -> None:
    """With the flags by which a queue survives a kill, its history does."""
    tally = await play_round(f"history-{number}")

    assert tally.kills
    assert tally.messages


async def test_power_cuts_leave_all_that_was_acknowledged_in_the_archive(play_round: Play) -> None:
    tally = await play_round("historycut-1")

    assert tally.cuts


async def test_history_that_is_not_synced_is_noticed(play_round: Play) -> None:
    """The harness itself: it must be able to fail."""

    async def play_rounds() -> None:
        for number in range(10):
            await play_round(f"historycut-{number}", "lie:fsync:archive:1+")

    with pytest.raises(RoundFailedError, match="archive of"):
        await play_rounds()
