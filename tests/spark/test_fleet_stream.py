"""Streams over HTTP: every message once, across kills of nsqd; or an error that names the reason.

The calls of a reader come in Spark's order, but from here: a query of Spark's own is in
test_stream.py, and what decides about offsets is the same for directories and for nodes.
"""

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.read.columns import arrow_schema, message_schema
from spark_jobs.read.files.scan import SegmentLostError
from spark_jobs.read.fleet.client import NodeError
from spark_jobs.read.options import parse_read_options
from spark_jobs.read.stream import NsqStreamReader
from tests.support.daemon_process import DaemonProcess
from tests.support.waiting import wait_until

FLAGS = (
    "--mem-queue-size=0",
    "--max-bytes-per-file=5000",
    "--sync-timeout=20ms",
    "--retain-bytes=1000000",
)


class Query:
    """A query that keeps its offset, as a checkpoint does."""

    def __init__(self, *, offset: Any = None, **options: str) -> None:
        given = {"lookInterval": "0"} | options
        if "path" not in given:
            given["retries"] = "0"
        parsed = parse_read_options(given, is_stream=True)
        self.reader = NsqStreamReader(parsed, arrow_schema(message_schema(("topic", "body"))))
        self.offset = offset or self.reader.initialOffset()
        self.limit = self.reader.getDefaultReadLimit()

    def batch(self) -> list[bytes]:
        """The bodies of the next micro-batch; Spark makes none of an offset that has not moved."""
        end = json.loads(json.dumps(self.reader.latestOffset(self.offset, self.limit)))
        if end == self.offset:
            return []
        partitions = self.reader.partitions(self.offset, end)
        executor = pickle.loads(pickle.dumps(self.reader))
        self.offset = end
        return [
            body
            for partition in partitions
            for batch in executor.read(pickle.loads(pickle.dumps(partition)))
            for body in batch["body"].to_pylist()
        ]

    def take(self, count: int) -> list[bytes]:
        """Run batches until there are so many bodies."""
        found: list[bytes] = []

        def is_enough() -> bool:
            found.extend(self.batch())
            return len(found) >= count

        wait_until(is_enough)
        return sorted(found)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[DaemonProcess]:
    """An nsqd that has all on disk, in segments of some hundred messages, and keeps a history."""
    with DaemonProcess(tmp_path / "nsqd", *FLAGS) as daemon:
        daemon.keeps_ports = True
        yield daemon


def publish(daemon: DaemonProcess, first: int, count: int, topic: str = "t") -> None:
    body = "\n".join(f"m{number:05d}" for number in range(first, first + count)).encode()
    daemon.request("POST", f"/mpub?topic={topic}", body)


def bodies(first: int, count: int) -> list[bytes]:
    return [b"m%05d" % number for number in range(first, first + count)]


@pytest.mark.parametrize("origin", ["backlog", "archive"])
def test_every_message_once_across_rolls_limits_and_kills(node: DaemonProcess, origin: str) -> None:
    options = {"nsqd": node.http_address, "topic": "t", "from": origin}
    publish(node, 0, 500)
    first = Query(maxOffsetsPerTrigger="200", **options)
    assert first.take(500) == bodies(0, 500)

    publish(node, 500, 100)
    assert first.take(100) == bodies(500, 100)
    wait_until(lambda: first.batch() == [])
    node.kill()
    with pytest.raises(SegmentLostError, match=r"node .* cannot be reached"):
        first.batch()
    node.start()
    publish(node, 600, 300)

    second = Query(offset=first.offset, **options)
    assert second.take(300) == bodies(600, 300)
    assert second.batch() == []
    metrics = second.reader.reportLatestOffset()["metrics"]
    assert (metrics["queues"], metrics["lagBytes"], metrics["lagMessages"]) == (1, 0, 0)


def test_a_topic_made_anew_is_an_error_and_then_a_new_beginning(node: DaemonProcess) -> None:
    options = {"nsqd": node.http_address, "topic": "t"}
    publish(node, 0, 300)
    query = Query(**options)
    assert query.take(300) == bodies(0, 300)

    node.request("POST", "/topic/delete?topic=t")
    publish(node, 1000, 300)
    wait_until(lambda: _is_synced(node))

    with pytest.raises(SegmentLostError, match=r"queue t in http.* was deleted and made anew"):
        query.batch()
    lenient = Query(offset=query.offset, failOnDataLoss="false", **options)
    assert lenient.take(300) == bodies(1000, 300)


@pytest.mark.parametrize("is_remote", [True, False])
def test_a_query_that_had_read_all_goes_on_after_nsqd_deleted_it(
    node: DaemonProcess, *, is_remote: bool
) -> None:
    """Stopped, as a caught-up query; consumers finish everything, and nsqd is started anew."""
    place = {"nsqd": node.http_address} if is_remote else {"path": str(node.data_path)}
    options = place | {"topic": "t", "startingOffsets": "earliest"}
    publish(node, 0, 10)
    wait_until(lambda: _is_synced(node))
    ahead, behind = Query(**options), Query(maxOffsetsPerTrigger="4", **options)
    assert ahead.take(10) == bodies(0, 10)
    assert behind.batch() == bodies(0, 4)
    ahead.reader.stop()
    behind.reader.stop()
    node.request("POST", "/topic/empty?topic=t")
    node.stop()
    node.start()

    assert Query(offset=ahead.offset, **options).batch() == []
    publish(node, 10, 5)
    assert Query(offset=ahead.offset, **options).take(5) == bodies(10, 5)
    with pytest.raises(SegmentLostError, match=r"segment 0 of queue t .* was deleted before"):
        Query(offset=behind.offset, **options).batch()


def test_an_archive_is_not_held_up_by_consumers(node: DaemonProcess) -> None:
    """The queue is emptied; its history is read, and goes on in the directory of the node."""
    options = {"topic": "t", "from": "archive"}
    publish(node, 0, 300)
    node.request("POST", "/topic/empty?topic=t")
    query = Query(nsqd=node.http_address, **options)
    assert query.take(300) == bodies(0, 300)

    publish(node, 300, 100)
    local = Query(path=str(node.data_path), offset=query.offset, **options)
    assert local.take(100) == bodies(300, 100)
    publish(node, 400, 100)
    remote = Query(nsqd=node.http_address, offset=local.offset, **options)
    assert remote.take(100) == bodies(400, 100)


def test_where_a_stream_begins(node: DaemonProcess) -> None:
    options = {"nsqd": node.http_address, "topic": "t"}
    publish(node, 0, 300)
    earliest = Query(startingOffsets="earliest", **options)
    assert earliest.take(300) == bodies(0, 300)

    latest = Query(startingOffsets="latest", **options)
    given = Query(startingOffsets=json.dumps(earliest.offset), **options)
    late = Query(startingTimestamp="1s", **options)
    later = Query(startingTimestamp="2999-01-01", **options)
    publish(node, 300, 50)

    for query in (latest, given, later):
        assert query.take(50) == bodies(300, 50)
    assert late.take(350) == bodies(0, 350)


def test_a_node_that_is_away_is_waited_for_if_that_is_allowed(node: DaemonProcess) -> None:
    publish(node, 0, 10)
    query = Query(nsqd=node.http_address, topic="t", failOnDataLoss="false")
    assert query.take(10) == bodies(0, 10)
    node.kill()
    assert query.batch() == []
    assert query.reader.reportLatestOffset()["metrics"]["unreachable"] == 1
    node.start()
    publish(node, 10, 10)

    assert query.take(10) == bodies(10, 10)
    publish(node, 20, 10)
    begin = query.offset
    wait_until(lambda: query.reader.latestOffset(begin, query.limit) != begin)
    end = query.reader.latestOffset(begin, query.limit)
    node.kill()
    again = Query(nsqd=node.http_address, topic="t", failOnDataLoss="false", offset=begin)
    with pytest.raises(NodeError, match=r"batch has messages of queue t of .* cannot be reached"):
        again.reader.partitions(begin, end)
    with pytest.raises(NodeError, match="knows no nsqd"):
        Query(lookupd="127.0.0.1:1", topic="t")


def _is_synced(node: DaemonProcess) -> bool:
    manifest = json.loads(node.request("GET", "/segments?topic=t"))
    return any(queue["synced"] != [0, 0] for queue in manifest["queues"])
