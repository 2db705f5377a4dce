"""--sync-every=1: a publish is answered after the fsync that covers it, in order, by every door."""

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.certs import make_authority, make_server
from tests.support.http_client import HttpClient
from tests.support.running_daemon import RunningDaemon, StartNsqd
from tests.support.v2_client import QUIET_S, V2Client, client_context, sized

BROKEN = OSError(errno.EIO, "Input/output error")


class Disk:
    """fsync of the segments, which takes as long as the test says, or fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._is_open = threading.Event()
        self._is_open.set()
        self.failure: OSError | None = None
        self.count = 0
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._wrap(getattr(os, name)))

    def hold(self) -> None:
        """Let no fsync return."""
        self._is_open.clear()

    def release(self) -> None:
        """Let them return."""
        self._is_open.set()

    def _wrap(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def sync(fd: int) -> None:
            path = Path(os.readlink(f"/proc/self/fd/{fd}"))
            if ".diskqueue.0" in path.name:
                self.count += 1
                assert self._is_open.wait(10)
                if self.failure is not None:
                    raise self.failure
            real(fd)

        return sync


@pytest.fixture
async def disk(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Disk]:
    disk = Disk(monkeypatch)
    yield disk
    disk.failure = None
    disk.release()


@pytest.fixture
async def nsqd(disk: Disk, start_nsqd: StartNsqd) -> RunningDaemon:
    return await start_nsqd(mem_queue_size=0, sync_every=1)


def send_pub(client: V2Client) -> None:
    client.pub("t", b"x")


def send_mpub(client: V2Client) -> None:
    client.mpub("t", b"x", b"y")


def send_dpub(client: V2Client) -> None:
    client.dpub("t", 1000, b"x")


@pytest.mark.parametrize("send", [send_pub, send_mpub, send_dpub])
@pytest.mark.parametrize("channels", [[], ["one"], ["one", "two"]])
async def test_ok_comes_after_the_fsync(
    nsqd: RunningDaemon, disk: Disk, send: Callable[[V2Client], None], channels: list[str]
) -> None:
    await nsqd.post("/topic/create?topic=t")
    for channel in channels:
        await nsqd.post(f"/channel/create?topic=t&channel={channel}")
    client = await nsqd.connect()
    disk.hold()

    send(client)
    await client.expect_quiet()
    disk.release()

    await client.expect_ok()


@pytest.mark.parametrize("target", ["/pub?topic=t", "/mpub?topic=t", "/pub?topic=t&defer=1000"])
async def test_http_answers_after_the_fsync(nsqd: RunningDaemon, disk: Disk, target: str) -> None:
    disk.hold()
    async with await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port)) as client:
        request = asyncio.create_task(client.post(target, b"x"))
        done, _ = await asyncio.wait([request], timeout=QUIET_S)
        assert not done

        disk.release()

        assert (await request).status == 200


async def test_many_publishes_share_an_fsync(nsqd: RunningDaemon, disk: Disk) -> None:
    clients = [await nsqd.connect() for _ in range(20)]
    await clients[0].publish("t", b"first")
    disk.hold()
    before = disk.count
    for client in clients:
        client.pub("t", b"x")
    for client in clients:
        await client.expect_quiet(0.01)

    disk.release()
    for client in clients:
        await client.expect_ok()

    assert disk.count - before <= 3


async def test_replies_keep_their_order(nsqd: RunningDaemon, disk: Disk) -> None:
    await nsqd.publish("t", b"x")
    client = await nsqd.consumer("t", rdy=1)
    message = await client.read_message()
    client.rdy(0)
    disk.hold()
    client.pub("t", b"slow")
    client.fin(message)
    client.fin(message)  # fails at once, but the publish comes first
    await client.expect_quiet()

    disk.release()

    await client.expect_ok()
    text = b"E_FIN_FAILED FIN " + message.id + b" failed ID not in flight"
    await client.expect_error(text, is_fatal=False)


async def test_what_waits_for_the_disk_is_delivered_and_finished(
    nsqd: RunningDaemon, disk: Disk
) -> None:
    """Consumers don't wait: a message that they finish before its fsync needs none."""
    consumer = await nsqd.consumer("t", rdy=1)
    producer = await nsqd.connect()
    disk.hold()
    producer.pub("t", b"x")

    message = await consumer.read_message()
    consumer.fin(message)

    assert message.body == b"x"
    await nsqd.wait_for_channel("t", in_flight_count=0, depth=0)
    disk.release()
    await producer.expect_ok()


@pytest.mark.parametrize(
    ("send", "text"),
    [
        (send_pub, b"E_PUB_FAILED PUB failed input/output error"),
        (send_mpub, b"E_MPUB_FAILED MPUB failed input/output error"),
        (send_dpub, b"E_DPUB_FAILED DPUB failed input/output error"),
    ],
)
async def test_a_failed_fsync_fails_the_publish(
    nsqd: RunningDaemon, disk: Disk, send: Callable[[V2Client], None], text: bytes
) -> None:
    client = await nsqd.connect()
    disk.failure = BROKEN

    send(client)

    await client.expect_error(text)
    await client.expect_closed()
    status, reason = await nsqd.request("GET", "/ping")
    assert (status, reason[:6]) == (500, b"NOK - ")

    disk.failure = None
    await nsqd.publish("t", b"again")
    assert (await nsqd.request("GET", "/ping"))[0] == 200


async def test_a_failed_fsync_fails_a_post(nsqd: RunningDaemon, disk: Disk) -> None:
    disk.failure = BROKEN
    async with await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port)) as client:
        assert (await client.post("/pub?topic=t", b"x")).status == 503

        disk.failure = None

        assert (await client.post("/pub?topic=t", b"x")).status == 200


async def test_publishes_before_the_failed_one_are_acknowledged(
    nsqd: RunningDaemon, disk: Disk
) -> None:
    client = await nsqd.connect()
    await client.publish("t", b"good")
    disk.hold()
    client.pub("t", b"covered")
    await client.expect_quiet()
    client.pub("t", b"next")
    await client.expect_quiet()

    disk.release()
    await client.expect_ok()
    await client.expect_ok()


async def test_a_client_that_has_said_its_last_word_is_answered(
    nsqd: RunningDaemon, disk: Disk
) -> None:
    client = await nsqd.connect()
    disk.hold()
    client.pub("t", b"x")
    client.end_output()
    await client.expect_quiet()

    disk.release()

    await client.expect_ok()
    await client.expect_closed()


async def test_a_fatal_error_waits_for_the_replies_before_it(
    nsqd: RunningDaemon, disk: Disk
) -> None:
    client = await nsqd.connect()
    disk.hold()
    client.pub("t", b"x")
    client.command("NONSENSE")
    await client.expect_quiet()

    disk.release()

    await client.expect_ok()
    await client.expect_error(b"E_INVALID invalid command NONSENSE")
    await client.expect_closed()


@pytest.mark.both_loops("the end of a connection")
async def test_a_line_that_is_too_long_swallows_no_answer(nsqd: RunningDaemon, disk: Disk) -> None:
    """As in Go: OK, OK, and closed without an error frame."""
    client = await nsqd.connect()
    await client.publish("t", b"0")
    disk.hold()
    publish = b"PUB t\n" + sized(b"x")

    client.send_raw(publish + publish + b"y" * 20_000)
    await client.expect_quiet()
    disk.release()

    await client.expect_ok()
    await client.expect_ok()
    await client.expect_closed()


async def test_a_deleted_channel_swallows_no_answer(nsqd: RunningDaemon, disk: Disk) -> None:
    client = await nsqd.connect()
    await client.subscribe("other", rdy=0)
    disk.hold()
    client.pub("t", b"x")
    await client.expect_quiet()
    await nsqd.request("POST", "/channel/delete?topic=other&channel=ch")
    await client.expect_quiet()

    disk.release()

    await client.expect_ok()
    await client.expect_closed()


async def test_a_stop_swallows_no_answer(nsqd: RunningDaemon, disk: Disk) -> None:
    client = await nsqd.connect()
    disk.hold()
    client.pub("t", b"x")
    await client.expect_quiet()
    stopping = asyncio.create_task(nsqd.shut_down())
    await client.expect_quiet()
    client.pub("t", b"too late")

    disk.release()

    await client.expect_ok()
    await client.expect_closed()
    await stopping


async def test_tls_begins_after_the_replies_in_the_clear(
    disk: Disk, start_nsqd: StartNsqd, tmp_path: Path
) -> None:
    authority = make_authority(tmp_path)
    own = make_server(tmp_path, authority)
    options: dict[str, Any] = {"tls_cert": own.cert_file, "tls_key": own.key_file}
    data_path = tmp_path / "data"
    data_path.mkdir()
    nsqd = await start_nsqd(data_path=data_path, mem_queue_size=0, sync_every=1, **options)
    client = await nsqd.connect()
    disk.hold()
    client.pub("t", b"x")
    client.send_identify(tls_v1=True, feature_negotiation=True)
    await client.expect_quiet()

    disk.release()

    await client.expect_ok()
    await client.read_response()
    await client.start_tls(client_context(authority))
    await client.publish("t", b"y")


async def test_a_client_with_too_much_unanswered_is_not_read(
    nsqd: RunningDaemon, disk: Disk
) -> None:
    client = await nsqd.connect()
    disk.hold()
    count = 5000
    # Turn about, so that no two are one batch.
    for number in range(count):
        client.pub("ab"[number % 2], b"x")
        if number % 100 == 0:
            await client.drain()
            await asyncio.sleep(0)
    await client.expect_quiet()

    disk.release()

    await client.expect_ok(count)


async def test_a_client_that_leaves_harms_nobody(nsqd: RunningDaemon, disk: Disk) -> None:
    client = await nsqd.connect()
    disk.hold()
    client.pub("t", b"x")
    await client.expect_quiet()
    client.reset()
    await asyncio.sleep(QUIET_S)

    disk.release()
    await nsqd.publish("t", b"y")

    assert (await nsqd.topic("t"))["depth"] == 2


async def stall(nsqd: RunningDaemon, client: V2Client) -> None:
    """Give a subscribed client more than it reads."""
    for _ in range(12):
        await nsqd.publish("large", b"x" * 1_000_000)
    client.stop_reading()
    client.rdy(12)
    await asyncio.sleep(QUIET_S)


async def test_a_client_that_does_not_read_its_answers_is_not_read(nsqd: RunningDaemon) -> None:
    client = await nsqd.consumer("large")
    await stall(nsqd, client)
    count = 30
    for _ in range(count):
        client.pub("t", b"x")
        await asyncio.sleep(0.01)

    assert (await nsqd.topic("t"))["depth"] < 5

    client.resume_reading()
    frames = [await client.read_frame() for _ in range(12 + count)]
    assert sum(data == b"OK" for _, data in frames) == count


async def test_answers_that_wait_are_bounded_whatever_they_are(
    nsqd: RunningDaemon, disk: Disk
) -> None:
    client = await nsqd.consumer("t")
    disk.hold()
    client.pub("t", b"x")
    await client.expect_quiet()
    sent_count = 0
    with contextlib.suppress(TimeoutError):
        while sent_count < 300_000:  # their answers take 20 MB
            client.send(b"FIN 0123456789abcdef\n" * 3000)
            sent_count += 3000
            async with asyncio.timeout(QUIET_S):
                await client.drain()
    assert sent_count < 300_000

    disk.release()

    await client.expect_ok()
    for _ in range(sent_count):
        await client.expect_error(
            b"E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight", is_fatal=False
        )


async def test_a_client_that_is_not_read_is_not_silent(nsqd: RunningDaemon, disk: Disk) -> None:
    client = await nsqd.connect()
    await client.identify(heartbeat_interval=1000)
    disk.hold()
    count = 1200
    for number in range(count):
        client.pub("ab"[number % 2], b"x")
    await asyncio.sleep(2.5)

    disk.release()

    answered_count = 0
    while answered_count < count:
        answered_count += await client.read_response() == b"OK"


async def test_a_broken_stream_keeps_nobody_else_waiting(
    disk: Disk, start_nsqd: StartNsqd, tmp_path: Path
) -> None:
    authority = make_authority(tmp_path)
    own = make_server(tmp_path, authority)
    options: dict[str, Any] = {"tls_cert": own.cert_file, "tls_key": own.key_file}
    data_path = tmp_path / "data"
    data_path.mkdir()
    nsqd = await start_nsqd(data_path=data_path, mem_queue_size=0, sync_every=1, **options)
    broken = await nsqd.connect()
    await broken.identify(tls_v1=True)
    await broken.start_tls(client_context(authority))
    await broken.subscribe("large", rdy=0)
    await stall(nsqd, broken)  # so that it is still there when its publish is durable
    client = await nsqd.connect()
    disk.hold()
    broken.pub("t", b"x")
    await client.expect_quiet()
    client.pub("t", b"y")
    broken.send_raw(b"this is no TLS")
    await client.expect_quiet()

    disk.release()

    await client.expect_ok()
