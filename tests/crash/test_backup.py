"""Copies of a data directory, made as docs/operations.md says, have the messages."""

import asyncio
import shutil
from pathlib import Path

from tests.support.faults.client import connected
from tests.support.faults.fork_server import ForkServer
from tests.support.faults.nsqd_process import NsqdProcess

DURABLE = ("--mem-queue-size=0", "--sync-every=1", "--max-bytes-per-file=4096")


async def read_all(nsqd: NsqdProcess, channel: str) -> set[bytes]:
    """Return all bodies that a channel has, until none comes for a while."""
    bodies: set[bytes] = set()
    async with connected(nsqd.tcp_port) as client:
        await client.subscribe("t", channel, rdy=100)
        while True:
            try:
                async with asyncio.timeout(1):
                    message = await client.read_message()
            except TimeoutError:
                return bodies
            bodies.add(message.body)
            client.fin(message)


async def test_a_copy_of_a_stopped_node_has_everything(
    fork_server: ForkServer, tmp_path: Path
) -> None:
    nsqd = NsqdProcess(fork_server, tmp_path / "node", ())
    await nsqd.start()
    async with connected(nsqd.tcp_port) as client:
        await client.subscribe("t", "ch")
        await client.publish("t", *(b"%d" % number for number in range(500)))
        assert await nsqd.stop() == 0
    shutil.copytree(nsqd.data_path, tmp_path / "other" / "data")

    restored = NsqdProcess(fork_server, tmp_path / "other", ())
    await restored.start()

    assert await read_all(restored, "ch") == {b"%d" % number for number in range(500)}
    await restored.kill()


async def test_a_copy_of_a_node_at_work_has_what_was_acknowledged_before(
    fork_server: ForkServer, tmp_path: Path
) -> None:
    """Metadata first, as a segment may then only be longer than it says; half of it is consumed."""
    nsqd = NsqdProcess(fork_server, tmp_path / "node", DURABLE)
    await nsqd.start()
    before = {b"before %d" % number for number in range(500)}
    async with connected(nsqd.tcp_port) as client, connected(nsqd.tcp_port) as consumer:
        await consumer.subscribe("t", "ch")
        await client.publish("t", *sorted(before))
        is_copied = asyncio.Event()

        async def go_on() -> int:
            number = 0
            while not is_copied.is_set():
                await client.publish("t", *(b"during %d" % (number + n) for n in range(20)))
                number += 20
            return number

        async def consume() -> set[bytes]:
            finished = set()
            consumer.rdy(10)
            for _ in range(250):
                message = await consumer.read_message()
                consumer.fin(message)
                finished.add(message.body)
            consumer.rdy(0)
            return finished

        publisher, finisher = asyncio.create_task(go_on()), asyncio.create_task(consume())
        await asyncio.to_thread(copy_live, nsqd.data_path, tmp_path / "other" / "data")
        finished = await finisher
        is_copied.set()
        during = {b"during %d" % number for number in range(await publisher)}
    await nsqd.kill()

    restored = NsqdProcess(fork_server, tmp_path / "other", DURABLE)
    await restored.start()
    found = await read_all(restored, "ch")

    assert before - finished <= found <= before | during
    await restored.kill()


def copy_live(source: Path, target: Path) -> None:
    """Do what the two rsyncs of docs/operations.md do: all but the segments, then the segments."""
    target.mkdir(parents=True)
    paths = sorted(source.iterdir())
    segments = [path for path in paths if path.suffix == ".dat" and path.stem[-6:].isdigit()]
    for path in [path for path in paths if path not in segments and path.is_file()]:
        shutil.copy2(path, target)
    for path in sorted(source.glob("*.diskqueue.[0-9]*")):
        try:
            shutil.copy2(path, target)
        except FileNotFoundError:
            continue  # consumed since the listing
