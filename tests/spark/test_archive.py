"""The history that a running nsqd keeps, read by Spark after all messages were consumed."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from diskqueue import layout
from spark_jobs.__main__ import main
from tests.support.daemon_process import DaemonProcess
from tests.support.v2_client import Message, V2Client

PATIENCE_S = 120
COUNT = 300


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[DaemonProcess]:
    """An nsqd that keeps about 128 KiB of each topic."""
    flags = ("--retain-bytes=130000", "--sync-timeout=50ms")
    with DaemonProcess(tmp_path / "nsqd", *flags) as daemon:
        yield daemon


def address(daemon: DaemonProcess) -> tuple[str, int]:
    return daemon.address


async def publish(daemon: DaemonProcess, topic: str, first: int, count: int, size: int) -> None:
    producer = await V2Client.connect(address(daemon))
    for start in range(first, first + count, 100):
        stop = min(start + 100, first + count)
        await producer.publish(topic, *(b"%06d" % n + bytes(size - 6) for n in range(start, stop)))
    await producer.close()


async def publish_and_finish(daemon: DaemonProcess, topic: str, count: int) -> list[Message]:
    """Publish, and consume it all; return the messages delivered."""
    consumer = await V2Client.connect(address(daemon))
    await consumer.subscribe(topic, "ch", rdy=1000)
    await publish(daemon, topic, 0, count, 10)
    messages = await consumer.read_messages(count)
    for message in messages:
        consumer.fin(message)
    await consumer.settle()
    await consumer.close()
    return messages


def wait_until_kept(daemon: DaemonProcess, topic: str, last: int) -> None:
    """Wait until the synced end of the archive is behind message number `last`."""
    directory = str(daemon.data_path / "archive")
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        metadata = layout.read_metadata(directory, topic)
        if metadata is not None:
            path = Path(layout.segment_path(directory, topic, metadata.write_file))
            data = path.read_bytes()[: metadata.write_pos] if path.exists() else b""
            if b"%06d" % last in data:
                return
        time.sleep(0.02)
    raise AssertionError("nsqd does not keep it")


def test_all_traffic_is_there_after_it_was_consumed(
    spark: SparkSession, nsqd: DaemonProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    delivered = asyncio.run(publish_and_finish(nsqd, "orders", COUNT))
    wait_until_kept(nsqd, "orders", COUNT - 1)
    reader = spark.read.format("nsq").option("columns", "topic,channel,id,timestamp_ns,body")

    assert reader.load(str(nsqd.data_path)).count() == 0, "nothing is left in the queues"
    rows = reader.option("from", "archive").load(str(nsqd.data_path)).collect()

    assert {(row.topic, row.channel) for row in rows} == {("orders", None)}
    kept = [(row.id.encode(), row.timestamp_ns, bytes(row.body)) for row in rows]
    expected = [(each.id, each.timestamp_ns, each.body) for each in delivered]
    assert sorted(kept) == sorted(expected)

    replay = ["replay", str(nsqd.data_path), "--from", "archive", "--topic", "orders"]
    assert main([*replay, "--to", "again", "--addresses", nsqd.tcp_address]) == 0
    assert f"{COUNT} messages published" in capsys.readouterr().err


def test_an_archive_is_tailed_until_it_is_faster(
    spark: SparkSession, nsqd: DaemonProcess, tmp_path: Path
) -> None:
    stream = spark.readStream.format("nsq").option("from", "archive").load(str(nsqd.data_path))
    writer = (
        stream.selectExpr("substring(cast(body AS string), 1, 6) AS number")
        .writeStream.format("json")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    for first in (0, 10):
        asyncio.run(publish(nsqd, "t", first, 10, 1000))
        wait_until_kept(nsqd, "t", first + 9)
        assert writer.start(str(tmp_path / "lake")).awaitTermination(PATIENCE_S)
    rows = spark.read.schema("number string").json(str(tmp_path / "lake")).collect()
    assert sorted(int(row.number) for row in rows) == list(range(20))

    asyncio.run(publish(nsqd, "t", 20, 400, 1000))  # three times the bytes that are kept
    wait_until_kept(nsqd, "t", 419)

    query = writer.start(str(tmp_path / "lake"))
    with pytest.raises(StreamingQueryException, match="was deleted before the stream had read it"):
        query.awaitTermination(PATIENCE_S)
