"""A data directory that goes from Go's nsqd to ours and back (D-12, D-13)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansq.tcp.connection import NSQConnection, open_connection

from tests.support.daemon_process import OURS, DaemonProcess

FindGo = Callable[[str], str]


async def connect(process: DaemonProcess) -> NSQConnection:
    return await open_connection(*process.address)


async def take(
    process: DaemonProcess, topic: str, *, finish: int = 0, hold: int = 0
) -> list[tuple[bytes, int]]:
    """Consume messages of channel "ch", some of them without an answer; return what they were."""
    connection = await connect(process)
    await connection.subscribe(topic, "ch", finish + hold)
    messages: list[Any] = [await connection.wait_for_message() for _ in range(finish + hold)]
    await connection.rdy(0)  # or each FIN would bring one more
    for message in messages[:finish]:
        await message.fin()
    process.wait_for_channel(topic, "ch", in_flight_count=hold)
    await connection.close()
    return [(message.body, message.attempts) for message in messages]


def fill(process: DaemonProcess) -> None:
    """Make queues of all kinds: in memory and on disk, with and without channels, paused or not."""
    for topic in ("orders", "paused-topic", "lonely"):
        process.request("POST", f"/topic/create?topic={topic}")
    for channel in ("ch", "paused-channel"):
        process.request("POST", f"/channel/create?topic=orders&channel={channel}")
    process.request("POST", "/channel/pause?topic=orders&channel=paused-channel")
    process.request("POST", "/topic/pause?topic=paused-topic")
    process.publish("orders", *[b"order %d" % number for number in range(100)])
    process.publish("lonely", *[b"lonely %d" % number for number in range(20)])
    process.publish("paused-topic", b"waiting")
    process.wait_for_channel("orders", "ch", depth=100)


@pytest.mark.parametrize("mem_queue_size", [10, 10_000])
@pytest.mark.parametrize("is_ours_first", [False, True], ids=["go-ours-go", "ours-go-ours"])
async def test_data_directory_is_handed_over(
    tmp_path: Path, find_go: FindGo, mem_queue_size: int, *, is_ours_first: bool
) -> None:
    flags = (f"--mem-queue-size={mem_queue_size}", "--max-bytes-per-file=1000")
    daemons = [(find_go("nsqd"),), OURS, (find_go("nsqd"),)]
    if is_ours_first:
        daemons = [OURS, (find_go("nsqd"),), OURS]
    expected = {b"order %d" % number: 1 for number in range(100)}

    with DaemonProcess(tmp_path, *flags, command=daemons[0]) as process:
        fill(process)
        taken = await take(process, "orders", finish=5, hold=3)
        for body, _ in taken[:5]:
            del expected[body]
        for body, _ in taken[5:]:
            expected[body] += 1
        process.stop()

    with DaemonProcess(tmp_path, *flags, command=daemons[1]) as process:
        stats = process.wait_for_channel("orders", "ch", depth=95)
        assert stats["paused"] is False
        assert process.wait_for_channel("orders", "paused-channel", depth=100)["paused"] is True
        taken = await take(process, "orders", finish=50, hold=10)
        assert all(expected[body] == attempts for body, attempts in taken)
        for body, _ in taken[:50]:
            del expected[body]
        for body, _ in taken[50:]:
            expected[body] += 1
        process.request("POST", "/topic/unpause?topic=paused-topic")
        process.stop()

    with DaemonProcess(tmp_path, *flags, command=daemons[2]) as process:
        process.wait_for_channel("orders", "ch", depth=45)
        assert dict(await take(process, "orders", finish=45)) == expected
        process.wait_for_channel("orders", "ch", depth=0)
        lonely = await take(process, "lonely", finish=20)
        assert sorted(lonely) == sorted((b"lonely %d" % number, 1) for number in range(20))
        assert await take(process, "paused-topic", finish=1) == [(b"waiting", 1)]
        process.stop()
    assert not list(process.data_path.glob("*.bad"))


async def test_an_archive_is_a_data_directory(tmp_path: Path, find_go: FindGo) -> None:
    """What ours keeps of its history is a queue for Go's."""
    bodies = [b"order %d" % number + bytes(1000) for number in range(400)]
    flags = ("--retain-bytes=200000", "--sync-timeout=50ms", "--max-bytes-per-file=20000")
    with DaemonProcess(tmp_path / "ours", *flags) as process:
        process.request("POST", "/topic/create?topic=orders")
        process.request("POST", "/channel/create?topic=orders&channel=ch")
        for start in range(0, len(bodies), 50):
            process.publish("orders", *bodies[start : start + 50])
        taken = await take(process, "orders", finish=len(bodies))
        assert len(taken) == len(bodies)
        archive = process.data_path / "archive"
        process.stop()
    files = sorted(archive.glob("orders.diskqueue.0*.dat"))
    kept = [body for body in bodies if any(body in path.read_bytes() for path in files)]
    assert 100 < len(kept) < 200
    assert kept[-1] == bodies[-1]

    with DaemonProcess(tmp_path / "go", command=(find_go("nsqd"),), data=archive) as process:
        process.request("POST", "/topic/create?topic=orders")
        found = await take(process, "orders", finish=len(kept))
        assert [body for body, _ in found] == kept
        process.stop()
    assert not list(archive.glob("*.bad"))
