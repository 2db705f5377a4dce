"""--retain-bytes: all that clients publish is kept, and shows, and its failure hurts nobody."""

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

from diskqueue import DiskQueue, envelope
from diskqueue.__main__ import main as diskqueue_main
from diskqueue.envelope import Envelope
from tests.support.http_client import HttpClient
from tests.support.running_daemon import POLL_S, RunningDaemon, StartNsqd
from tests.support.waiting import PATIENCE_S

KEPT: dict[str, Any] = {"retain_bytes": 2**30, "sync_timeout_s": 0.05}


def read_archive(path: Path, topic: str) -> list[Envelope]:
    """What the files hold, after the same look at them that an operator takes."""
    assert diskqueue_main(["check", str(path / "archive")]) == 0
    queue = DiskQueue(path / "archive", topic)
    found = []
    while (batch := queue.read(1000, 2**20)) is not None:
        found += [envelope.decode(payload) for payload in batch]
    return found


async def wait_for_archive(
    nsqd: RunningDaemon, topic: str, is_met: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            archive: dict[str, Any] = (await nsqd.topic(topic))["archive"]
            if is_met(archive):
                return archive
            await asyncio.sleep(POLL_S)


async def wait_for_ping(http: HttpClient, status: int) -> str:
    """Wait until /ping has that status; return what it says."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            ping = await http.get("/ping")
            if ping.status == status:
                return ping.text
            await asyncio.sleep(POLL_S)


async def connect_http(nsqd: RunningDaemon) -> HttpClient:
    return await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port))


async def test_off_by_default(nsqd: RunningDaemon, tmp_path: Path) -> None:
    await nsqd.publish("t", b"x")

    assert "archive" not in await nsqd.topic("t")
    assert not (tmp_path / "archive").exists()


async def test_all_ways_to_publish_are_kept(start_nsqd: StartNsqd, tmp_path: Path) -> None:
    nsqd = await start_nsqd(**KEPT)
    consumer = await nsqd.consumer("t", rdy=100)
    producer = await nsqd.connect()

    producer.pub("t", b"pub")
    await producer.expect_ok()
    producer.mpub("t", b"mpub 1", b"mpub 2")
    await producer.expect_ok()
    producer.dpub("t", 50, b"dpub")
    await producer.expect_ok()
    async with await connect_http(nsqd) as http:
        assert (await http.request("POST", "/pub?topic=t", b"http pub")).status == 200
        assert (await http.request("POST", "/mpub?topic=t", b"http 1\nhttp 2")).status == 200
    messages = await consumer.read_messages(7)
    for message in messages:
        consumer.fin(message)
    await nsqd.wait_for_channel("t", depth=0, in_flight_count=0, deferred_count=0)
    await nsqd.stop()

    kept = read_archive(tmp_path, "t")
    assert [each.body for each in kept] == [
        *(b"pub", b"mpub 1", b"mpub 2", b"dpub", b"http pub", b"http 1", b"http 2")
    ]
    delivered = {(each.id, each.timestamp_ns, each.body) for each in messages}
    assert {(each.message_id, each.timestamp_ns, each.body) for each in kept} == delivered


async def test_figures_are_shown(start_nsqd: StartNsqd) -> None:
    nsqd = await start_nsqd(**KEPT)
    await nsqd.publish("t", b"x" * 70, b"y" * 70)
    await nsqd.publish("t#ephemeral", b"x")

    archive = await wait_for_archive(
        nsqd, "t", lambda figures: figures["message_count"] == 2 and not figures["waiting_bytes"]
    )

    oldest_ns = archive.pop("oldest_timestamp")
    assert archive == {
        "bytes": 200,
        "segments": 1,
        "message_count": 2,
        "waiting_bytes": 0,
        "dropped_count": 0,
    }
    assert "archive" not in await nsqd.topic("t#ephemeral")
    async with await connect_http(nsqd) as http:
        metrics = (await http.get("/metrics")).text.splitlines()
    for line in (
        "nsqd_archive_healthy 1.0",
        "nsqd_archive_dropped_total 0.0",
        'nsqd_topic_archive_bytes{topic="t"} 200',
        'nsqd_topic_archive_segments{topic="t"} 1',
        'nsqd_topic_archive_messages{topic="t"} 2',
        'nsqd_topic_archive_dropped_total{topic="t"} 0',
        f'nsqd_topic_archive_oldest_timestamp_seconds{{topic="t"}} {oldest_ns // 10**9}',
    ):
        assert line in metrics


async def test_the_oldest_of_topics_that_share_a_row(start_nsqd: StartNsqd) -> None:
    nsqd = await start_nsqd(**KEPT, metrics_max_queues=0)
    await nsqd.publish("a", b"x")
    await nsqd.publish("b", b"x")
    oldest = await wait_for_archive(nsqd, "a", lambda figures: figures["message_count"] == 1)
    await wait_for_archive(nsqd, "b", lambda figures: figures["message_count"] == 1)

    async with await connect_http(nsqd) as http:
        metrics = (await http.get("/metrics")).text.splitlines()

    seconds = oldest["oldest_timestamp"] // 10**9
    assert f'nsqd_topic_archive_oldest_timestamp_seconds{{topic="(other)"}} {seconds}' in metrics
    assert 'nsqd_topic_archive_bytes{topic="(other)"} 62' in metrics


async def test_time_runs_out_without_a_publish(start_nsqd: StartNsqd, tmp_path: Path) -> None:
    nsqd = await start_nsqd(retain_time_s=0.3, sync_timeout_s=0.05)
    await nsqd.publish("t", b"x")

    await wait_for_archive(
        nsqd,
        "t",
        lambda _: (
            [path.name for path in (tmp_path / "archive").glob("t.*.dat")]
            == ["t.diskqueue.meta.dat"]
        ),
    )

    text = (tmp_path / "archive" / "t.diskqueue.meta.dat").read_text()
    assert text == "0\n1,0\n1,0\n"


async def test_deleting_the_topic_deletes_it(start_nsqd: StartNsqd, tmp_path: Path) -> None:
    nsqd = await start_nsqd(**KEPT)
    await nsqd.publish("t", b"x")
    await wait_for_archive(nsqd, "t", lambda figures: figures["message_count"] == 1)

    await nsqd.post("/topic/empty?topic=t")
    assert (await nsqd.topic("t"))["archive"]["message_count"] == 1
    await nsqd.post("/topic/delete?topic=t")

    assert list((tmp_path / "archive").iterdir()) == []


async def test_a_restart_goes_on(start_nsqd: StartNsqd, tmp_path: Path) -> None:
    for body in (b"one", b"two"):
        nsqd = await start_nsqd(**KEPT)
        await nsqd.publish("t", body)
        await nsqd.stop()
    nsqd = await start_nsqd(**KEPT)

    archive = await wait_for_archive(nsqd, "t", lambda figures: figures["message_count"] == 2)

    assert archive["segments"] == 1
    assert [each.body for each in read_archive(tmp_path, "t")] == [b"one", b"two"]


async def test_a_failure_shows_in_health_and_nowhere_else(
    start_nsqd: StartNsqd, tmp_path: Path
) -> None:
    (tmp_path / "archive").write_text("in the way")
    nsqd = await start_nsqd(**KEPT)
    consumer = await nsqd.consumer("t", rdy=1)

    await nsqd.publish("t", b"delivered")
    assert (await consumer.read_message()).body == b"delivered"

    async with await connect_http(nsqd) as http:
        text = await wait_for_ping(http, 500)
        assert text.startswith("NOK - archive of t: [Errno 20] Not a directory")
        assert (await nsqd.stats())["health"] == text
        assert f"Health: {text}\n" in (await http.get("/stats")).text
        assert (await http.get("/ready")).text == "OK", "publishing works"
        metrics = (await http.get("/metrics")).text
        assert "\nnsqd_archive_healthy 0.0\n" in metrics
        assert "\nnsqd_healthy 1.0\n" in metrics

        (tmp_path / "archive").unlink()
        assert await wait_for_ping(http, 200) == "OK"
    await nsqd.stop()
    assert [each.body for each in read_archive(tmp_path, "t")] == [b"delivered"]


async def test_both_kinds_of_trouble_are_told(start_nsqd: StartNsqd, tmp_path: Path) -> None:
    (tmp_path / "archive").write_text("in the way")
    nsqd = await start_nsqd(**KEPT)
    await nsqd.publish("t", b"x")
    async with await connect_http(nsqd) as http:
        await wait_for_ping(http, 500)
        error = OSError(errno.EIO, "Input/output error")
        nsqd.daemon.broker.disk_health.repeated("sync t", error)

        text = (await http.get("/ping")).text

    assert text.startswith("NOK - sync t: input/output error; archive of t: ")
    (tmp_path / "archive").unlink()
