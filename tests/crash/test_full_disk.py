"""A disk that fills up, stays full, and gets room again, under a real process."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from tests.support.cluster import Cluster, Nsqd, wait_for
from tests.support.daemon_process import HOST
from tests.support.small_disk import SmallDisk
from tests.support.v2_client import V2Client

TOPIC, CHANNEL = "t", "ch"
MEBIBYTE = 1024 * 1024
SIZE_BYTES = 4 * MEBIBYTE
BODY_BYTES = 20_000
ON_DISK = ("--mem-queue-size=0", "--max-bytes-per-file=300000", "--sync-timeout=100ms")

StartOnSmallDisk = Callable[..., tuple[Nsqd, SmallDisk]]


@pytest.fixture
def small(cluster: Cluster) -> Iterator[StartOnSmallDisk]:
    """Make nsqd with its data on a disk of four megabytes."""
    disks: list[SmallDisk] = []

    def make(*flags: str) -> tuple[Nsqd, SmallDisk]:
        nsqd = cluster.nsqd(flags=flags)
        disk = SmallDisk(nsqd.data_path, SIZE_BYTES)
        disks.append(disk)
        return nsqd, disk

    yield make
    cluster.close()
    for disk in disks:
        disk.close()


def make_body(number: int) -> bytes:
    return b"%06d" % number * (BODY_BYTES // 6)


async def connect(nsqd: Nsqd) -> V2Client:
    return await V2Client.connect((HOST, nsqd.tcp_port))


async def publish_until_refused(nsqd: Nsqd, first: int = 0) -> tuple[list[bytes], bytes]:
    """Publish one by one; return what was acknowledged, and the refusal."""
    client = await connect(nsqd)
    accepted: list[bytes] = []
    for number in range(first, first + 2 * SIZE_BYTES // BODY_BYTES):
        body = make_body(number)
        client.pub(TOPIC, body)
        kind, data = await client.read_frame()
        if kind == 1:
            await client.expect_closed()
            await client.close()
            return accepted, data
        accepted.append(body)
    raise AssertionError("never refused")


async def consume(nsqd: Nsqd, count: int) -> list[bytes]:
    """Take and finish that many; there must be no more."""
    consumer = await connect(nsqd)
    await consumer.subscribe(TOPIC, CHANNEL, rdy=50)
    bodies = []
    for _ in range(count):
        message = await consumer.read_message()
        consumer.fin(message)
        bodies.append(message.body)
    await consumer.expect_quiet()
    await consumer.close()
    return bodies


async def ping(nsqd: Nsqd) -> tuple[int, str]:
    reply = await nsqd.request("GET", "/ping")
    return reply.status, reply.text


async def test_a_full_disk_refuses_delivers_and_recovers_by_itself(
    small: StartOnSmallDisk,
) -> None:
    nsqd, disk = small(*ON_DISK)
    await nsqd.start()
    await nsqd.create(TOPIC, CHANNEL)

    accepted, refusal = await publish_until_refused(nsqd)
    disk.fill()
    assert refusal == b"E_PUB_FAILED PUB failed no space left on device"
    reply = await nsqd.request("POST", f"/pub?topic={TOPIC}", make_body(0))
    assert reply.error == (503, "DISK_FULL: no space left on device")
    reply = await nsqd.request("POST", f"/mpub?topic={TOPIC}", b"\n".join([make_body(0)] * 5))
    assert reply.error == (503, "DISK_FULL: no space left on device")
    assert await ping(nsqd) == (500, f"NOK - {TOPIC}:{CHANNEL}: no space left on device")
    reply = await nsqd.request("POST", "/topic/create?topic=another")
    assert reply.error == (503, f"DISK_FULL: {TOPIC}:{CHANNEL}: no space left on device")

    # Nobody makes room but the consumer, to the last byte of a disk that had none.
    assert await consume(nsqd, len(accepted)) == accepted

    await wait_for(lambda: ping(nsqd), (200, "OK"))
    disk.relieve()
    again, _ = await publish_until_refused(nsqd, first=10_000)
    assert len(again) > 100
    assert await consume(nsqd, len(again)) == again


async def test_ping_stays_bad_while_the_disk_is_full_and_recovers_without_a_publish(
    small: StartOnSmallDisk,
) -> None:
    nsqd, disk = small(*ON_DISK)
    await nsqd.start()
    await nsqd.create(TOPIC, CHANNEL)
    disk.fill()
    accepted, _ = await publish_until_refused(nsqd)
    assert accepted == []

    for _ in range(25):  # more than two of nsqd's own attempts
        assert (await ping(nsqd))[0] == 500
        await asyncio.sleep(0.1)
    disk.relieve()

    await wait_for(lambda: ping(nsqd), (200, "OK"))


async def test_stopping_and_starting_on_a_full_disk_keeps_everything(
    small: StartOnSmallDisk,
) -> None:
    nsqd, disk = small(*ON_DISK)
    await nsqd.start()
    await nsqd.create(TOPIC, CHANNEL)
    accepted, _ = await publish_until_refused(nsqd)
    disk.fill()

    nsqd.kill()
    await nsqd.start()

    assert (await ping(nsqd))[0] == 500, "nsqd.dat could not be written"
    assert await consume(nsqd, len(accepted)) == accepted
    await wait_for(lambda: ping(nsqd), (200, "OK"))
    await nsqd.stop()


async def test_min_free_disk_keeps_room_for_the_memory_queue(small: StartOnSmallDisk) -> None:
    reserve_bytes = SIZE_BYTES // 2
    nsqd, disk = small("--mem-queue-size=60", f"--min-free-disk={reserve_bytes}")
    await nsqd.start()
    await nsqd.create(TOPIC, CHANNEL)

    accepted, refusal = await publish_until_refused(nsqd)

    assert refusal.startswith(b"E_PUB_FAILED PUB failed disk almost full: ")
    assert disk.free_bytes > 60 * BODY_BYTES, "it must leave room for what is in memory"
    status, text = await ping(nsqd)
    assert (status, text.startswith("NOK - disk almost full: ")) == (500, True)
    reply = await nsqd.request("POST", f"/pub?topic={TOPIC}", b"x")
    assert (reply.status, reply.json()["message"][:10]) == (503, "DISK_FULL:")
    metrics = await nsqd.request("GET", "/metrics")
    assert "nsqd_disk_free_bytes" in metrics.text

    await nsqd.stop()
    await nsqd.start()
    assert (await ping(nsqd))[0] == 500
    assert sorted(await consume(nsqd, len(accepted))) == accepted

    await wait_for(lambda: ping(nsqd), (200, "OK"))
    assert "disk has room again, taking publishes" in nsqd.log
    await nsqd.publish(TOPIC, "goes on")


async def test_nothing_hangs_on_a_full_disk_and_a_stop_says_what_it_could_not_save(
    small: StartOnSmallDisk,
) -> None:
    nsqd, disk = small("--mem-queue-size=100")
    await nsqd.start()
    await nsqd.create(TOPIC, CHANNEL)
    await nsqd.wait_for_metadata(CHANNEL)
    await nsqd.publish(TOPIC, "fits into memory")
    disk.fill()

    # It is in force at once, and answered though nsqd.dat can't have it.
    await nsqd.post(f"/channel/pause?topic={TOPIC}&channel={CHANNEL}")
    status, text = await ping(nsqd)
    assert (status, text) == (500, "NOK - nsqd.dat: no space left on device")
    reply = await nsqd.request("POST", "/topic/create?topic=another")
    assert reply.error == (503, "DISK_FULL: no space left on device")

    assert await nsqd.end() == 1
    assert "failed to save everything - [Errno 28] No space left on device" in nsqd.log
