"""A stream over the directory of a running nsqd: every message once, across rolls and restarts."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.support.daemon_process import DaemonProcess
from tests.support.waiting import wait_until

PATIENCE_S = 120


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[DaemonProcess]:
    """An nsqd whose segments hold about a hundred messages."""
    flags = ("--mem-queue-size=0", "--max-bytes-per-file=5000", "--sync-timeout=50ms")
    with DaemonProcess(tmp_path / "nsqd", *flags) as daemon:
        yield daemon


def publish(daemon: DaemonProcess, topic: str, first: int, count: int) -> None:
    body = "\n".join(f"{topic}-{number}" for number in range(first, first + count)).encode()
    daemon.request("POST", f"/mpub?topic={topic}", body)


def post(daemon: DaemonProcess, path: str) -> None:
    daemon.request("POST", path)


def wait_until_synced(daemon: DaemonProcess, topic: str, depth: int) -> None:
    """Wait until the metadata on disk speaks of so many messages."""
    path = daemon.data_path / f"{topic}.diskqueue.meta.dat"
    wait_until(lambda: path.exists() and path.read_text().split("\n")[0] == str(depth))


def expected(topic: str, count: int) -> list[str]:
    return [f"{topic}-{number}" for number in range(count)]


class Tail:
    """A query from a data directory into Parquet, which can be stopped and started again."""

    def __init__(self, spark: SparkSession, daemon: DaemonProcess, scratch: Path) -> None:
        self._spark = spark
        self._daemon = daemon
        self._checkpoint = str(scratch / "checkpoint")
        self._output = str(scratch / "lake")

    def start(self, *, is_available_now: bool = False, **options: str) -> StreamingQuery:
        stream: DataFrame = (
            self._spark.readStream.format("nsq")
            .options(**options)
            .load(str(self._daemon.data_path))
        )
        writer = stream.writeStream.format("parquet").option("checkpointLocation", self._checkpoint)
        if is_available_now:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime="100 milliseconds")
        return writer.start(self._output)

    def bodies(self) -> list[str]:
        frame = self._spark.read.schema("body binary").parquet(self._output)
        return sorted(bytes(row.body).decode() for row in frame.collect())

    def wait_for(self, query: StreamingQuery, bodies: list[str]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            assert query.isActive, query.exception()
            if query.lastProgress is not None and len(self.bodies()) >= len(bodies):
                break
            time.sleep(0.2)
        assert self.bodies() == sorted(bodies)


def test_every_message_once_across_rolls_topics_and_restarts(
    spark: SparkSession, nsqd: DaemonProcess, tmp_path: Path
) -> None:
    tail = Tail(spark, nsqd, tmp_path)
    publish(nsqd, "a", 0, 500)
    wait_until_synced(nsqd, "a", 500)

    query = tail.start(is_available_now=True, maxRowsPerTrigger="200")
    assert query.awaitTermination(PATIENCE_S)
    assert query.exception() is None
    assert tail.bodies() == sorted(expected("a", 500))
    rows = [progress["numInputRows"] for progress in query.recentProgress]
    assert rows[:3] == [200, 200, 100]
    assert query.lastProgress is not None
    [source] = query.lastProgress["sources"]
    assert json.loads(source["endOffset"])["end"] == json.loads(source["latestOffset"])["end"]

    query = tail.start()
    publish(nsqd, "a", 500, 300)
    publish(nsqd, "b", 0, 120)
    tail.wait_for(query, expected("a", 800) + expected("b", 120))
    query.stop()

    publish(nsqd, "a", 800, 50)
    query = tail.start()
    publish(nsqd, "b", 120, 200)
    tail.wait_for(query, expected("a", 850) + expected("b", 320))
    query.stop()
    assert len(list(nsqd.data_path.glob("a.diskqueue.0*.dat"))) > 5


def test_messages_deleted_before_they_were_read(
    spark: SparkSession, nsqd: DaemonProcess, tmp_path: Path
) -> None:
    tail = Tail(spark, nsqd, tmp_path)
    publish(nsqd, "t", 0, 250)
    wait_until_synced(nsqd, "t", 250)
    query = tail.start(is_available_now=True, maxRowsPerTrigger="50")
    assert query.awaitTermination(PATIENCE_S)
    publish(nsqd, "t", 250, 300)
    post(nsqd, "/topic/empty?topic=t")
    publish(nsqd, "t", 550, 10)
    wait_until_synced(nsqd, "t", 10)

    query = tail.start(is_available_now=True)
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(PATIENCE_S)
    assert f"of queue t in {nsqd.data_path} was deleted before the stream had read it" in str(
        caught.value
    )

    query = tail.start(is_available_now=True, failOnDataLoss="false")
    assert query.awaitTermination(PATIENCE_S)
    assert tail.bodies() == sorted(expected("t", 250) + [f"t-{n}" for n in range(550, 560)])


def test_damage_that_is_skipped_is_counted(
    spark: SparkSession, nsqd: DaemonProcess, tmp_path: Path
) -> None:
    """By default it ends the query; with PERMISSIVE the next progress has the places."""
    publish(nsqd, "t", 0, 500)
    wait_until_synced(nsqd, "t", 500)
    nsqd.stop()
    second = nsqd.data_path / "t.diskqueue.000001.dat"
    content = second.read_bytes()
    second.write_bytes(b"\xff" * 4 + content[4:])
    lost = content.count(b"t-")

    query = Tail(spark, nsqd, tmp_path / "strict").start(is_available_now=True)
    with pytest.raises(StreamingQueryException, match=r"t\.diskqueue\.000001\.dat at offset 0"):
        query.awaitTermination(PATIENCE_S)

    tail = Tail(spark, nsqd, tmp_path / "lenient")
    query = tail.start(is_available_now=True, mode="PERMISSIVE", maxRowsPerTrigger="150")
    assert query.awaitTermination(PATIENCE_S)
    assert query.lastProgress is not None
    [source] = query.lastProgress["sources"]
    metrics = json.loads(source["latestOffset"])["metrics"]
    assert len(tail.bodies()) == 500 - lost
    assert (metrics["damage"], metrics["lagBytes"]) == (1, 0)
