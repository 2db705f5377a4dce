"""Messages that a client library published and consumed, read while nsqd runs and afterwards."""

import asyncio
from pathlib import Path

from ansq.tcp.connection import open_connection
from pyspark.sql import DataFrame, SparkSession

from tests.spark.data_dirs import read_plainly
from tests.support.daemon_process import DaemonProcess
from tests.support.waiting import wait_until

COUNT = 400
FINISHED = 150
PATIENCE_S = 60


async def publish_and_consume(address: str) -> None:
    """Finish the first messages, requeue one, and leave with some in flight."""
    host, _, port = address.partition(":")
    writer = await open_connection(host, int(port))
    for first in range(0, COUNT, 50):
        await writer.mpub("shop", *(f"order {number}" for number in range(first, first + 50)))
    reader = await open_connection(host, int(port))
    await reader.subscribe("shop", "billing", 20)
    taken = 0
    async for message in reader.messages():
        if taken == FINISHED:
            await message.req(0)
            break
        await message.fin()
        taken += 1
    await reader.close()
    await writer.close()


def wait_until_consumed(daemon: DaemonProcess) -> None:
    """Wait until the metadata on disk has the finished messages."""
    path = daemon.data_path / "shop:billing.diskqueue.meta.dat"
    wait_until(lambda: path.exists() and int(path.read_text().split("\n")[0]) == COUNT - FINISHED)


def bodies(frame: DataFrame) -> set[str]:
    return {bytes(row.body).decode() for row in frame.select("body").collect()}


def test_what_is_left_of_a_channel(spark: SparkSession, tmp_path: Path) -> None:
    flags = ("--mem-queue-size=0", "--max-bytes-per-file=4000", "--sync-timeout=50ms")
    unfinished = {f"order {number}" for number in range(FINISHED, COUNT)}
    with DaemonProcess(tmp_path / "nsqd", *flags) as daemon:
        for path in ("/topic/create?topic=shop", "/channel/create?topic=shop&channel=billing"):
            daemon.request("POST", path)
        asyncio.run(asyncio.wait_for(publish_and_consume(daemon.tcp_address), PATIENCE_S))
        wait_until_consumed(daemon)
        live = spark.read.format("nsq").option("mode", "FAILFAST").load(str(daemon.data_path))
        assert bodies(live) == unfinished
        data_path = daemon.data_path

    reader = spark.read.format("nsq").option("mode", "FAILFAST")
    backlog = reader.load(str(data_path))
    assert bodies(backlog) == unfinished
    assert bodies(backlog.where("attempts = 1")) >= {f"order {FINISHED}"}
    assert {row.channel for row in backlog.select("channel").collect()} == {"billing"}
    earliest = reader.option("from", "earliest").load(str(data_path))
    expected = read_plainly(data_path, is_from_earliest=True)
    assert sorted((row.segment, row.offset, row.id) for row in earliest.collect()) == [
        (row.segment, row.offset, row.message_id) for row in expected
    ]
