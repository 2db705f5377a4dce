"""What a fleet does to a reader: queues that go and come, nodes that move, copies, clocks.

Each case ends with exactly the rows that were acknowledged, or with an error that names the reason.
"""

import asyncio
import json
import pickle
import re
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from spark_jobs import snapshot
from spark_jobs.__main__ import main
from spark_jobs.read.columns import message_schema
from spark_jobs.read.files.scan import SegmentLostError
from spark_jobs.read.fleet.client import NodeError
from spark_jobs.read.fleet.remote_file import BLOCK_BYTES
from spark_jobs.read.reader import NsqReader
from tests.spark.in_process import parse, read_table
from tests.spark.test_fleet import Consumer, create
from tests.spark.test_fleet_stream import FLAGS, Query, bodies, publish
from tests.support.daemon_process import DaemonProcess
from tests.support.http_endpoint import Answer, HttpEndpoint
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import wait_until


@pytest.fixture
def node(tmp_path: Path) -> Iterator[DaemonProcess]:
    """An nsqd that has all on disk, in small segments, and keeps a history."""
    with DaemonProcess(tmp_path / "nsqd", *FLAGS) as daemon:
        yield daemon


class Frame:
    """A DataFrame: planned once, and read later, perhaps."""

    def __init__(self, **options: str) -> None:
        parsed = parse(None, **({"retries": "0"} | options))
        self._reader = NsqReader(parsed, message_schema(("body",)))
        self._partitions = self._reader.partitions()

    def rows(self) -> Iterator[bytes]:
        executor = pickle.loads(pickle.dumps(self._reader))
        for partition in self._partitions:
            for batch in executor.read(pickle.loads(pickle.dumps(partition))):
                yield from batch["body"].to_pylist()


def nodes_answer(*nodes: tuple[str, str]) -> bytes:
    """What nsqlookupd answers: the address and the host of each node."""
    producers = [
        {
            "broadcast_address": address.partition(":")[0],
            "http_port": int(address.partition(":")[2]),
            "tcp_port": 1,
            "hostname": host,
        }
        for address, host in nodes
    ]
    return json.dumps({"producers": producers}).encode()


class Lookupd(HttpEndpoint):
    """An nsqlookupd that knows what the test says."""

    def __init__(self, *nodes: tuple[str, str]) -> None:
        self.nodes = nodes
        super().__init__(lambda *_: (200, {}, nodes_answer(*self.nodes)))

    @property
    def address(self) -> str:
        return self.url.removeprefix("http://")


def make_anew(node: DaemonProcess, first: int, count: int) -> None:
    node.request("POST", "/topic/delete?topic=t")
    publish(node, first, count)
    wait_until(lambda: synced_count(node, "t") > 0)


def synced_count(node: DaemonProcess, topic: str, channel: str | None = None) -> int:
    """How many bytes of a queue a stream may read; counted over its segments."""
    manifest = json.loads(node.request("GET", f"/segments?topic={topic}"))
    for queue in manifest["queues"]:
        if queue["channel"] == channel:
            synced: list[int] = queue["synced"]
            return synced[0] + synced[1]
    return 0


def test_a_topic_made_anew_between_the_plan_and_the_read_of_a_batch(node: DaemonProcess) -> None:
    publish(node, 0, 300)
    frame = Frame(nsqd=node.http_address, topic="t")

    make_anew(node, 1000, 300)

    assert sorted(frame.rows()) == bodies(0, 300)


def test_a_topic_made_anew_between_the_plan_and_the_read_of_a_micro_batch(
    node: DaemonProcess,
) -> None:
    publish(node, 0, 300)
    query = Query(nsqd=node.http_address, topic="t")
    begin = query.offset
    wait_until(lambda: query.reader.latestOffset(begin, query.limit) != begin)
    end = query.reader.latestOffset(begin, query.limit)
    partitions = query.reader.partitions(begin, end)

    make_anew(node, 1000, 300)

    for partition in partitions:
        with pytest.raises(SegmentLostError, match=r"t\.diskqueue\.0.*GENERATION_CHANGED"):
            list(query.reader.read(partition))


@pytest.mark.parametrize("is_lenient", [False, True])
def test_a_lease_that_ends_in_the_middle_of_a_scan(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_lenient: bool
) -> None:
    """A task has read the first of several blocks when the node ends the lease."""
    size = BLOCK_BYTES // 8
    with DaemonProcess(tmp_path, "--mem-queue-size=0") as node:
        for number in range(40):
            node.request("POST", "/pub?topic=t", b"%02d" % number + bytes(size))
        lenient = {"failOnDataLoss": "false"} if is_lenient else {}
        rows = Frame(nsqd=node.http_address, topic="t", **lenient).rows()
        # The first messages are in memory, too, and part of the snapshot as such.
        found = [next(rows)[:2]]
        [lease] = json.loads(node.request("GET", "/snapshot"))["leases"]
        node.request("POST", f"/snapshot/release?id={lease['id']}")

        if not is_lenient:
            with pytest.raises(SegmentLostError, match="LEASE_NOT_FOUND: its snapshot has ended"):
                list(rows)
            return
        found += [body[:2] for body in rows]

    first = int(found[0])
    assert found == [b"%02d" % number for number in range(first, first + len(found))]
    assert len(found) < 40 - first
    # The loss is told, from the place on where it began.
    places = [int(text) for text in re.findall(r"000\.dat at offset (\d+): ", caplog.text)]
    assert places == [(first + len(found)) * (4 + 26 + 2 + size)]


def test_a_segment_that_is_rolled_and_consumed_while_it_is_read(node: DaemonProcess) -> None:
    publish(node, 0, 10)
    frame = Frame(nsqd=node.http_address, topic="t")

    publish(node, 10, 2000)
    node.request("POST", "/topic/empty?topic=t")

    assert sorted(frame.rows()) == bodies(0, 10)


def test_a_channel_that_is_deleted_and_made_anew_in_mid_stream(node: DaemonProcess) -> None:
    node.request("POST", "/topic/create?topic=t")
    node.request("POST", "/channel/create?topic=t&channel=c")
    options = {"nsqd": node.http_address, "topic": "t", "channel": "c"}
    publish(node, 0, 50)
    query = Query(**options)
    assert query.take(50) == bodies(0, 50)

    node.request("POST", "/channel/delete?topic=t&channel=c")
    with pytest.raises(SegmentLostError, match=r"queue t:c of node .* is gone"):
        query.batch()
    lenient = Query(offset=query.offset, failOnDataLoss="false", **options)
    assert lenient.batch() == []
    node.request("POST", "/channel/create?topic=t&channel=c")
    publish(node, 50, 20)

    wait_until(lambda: synced_count(node, "t", "c") > 0)
    with pytest.raises(SegmentLostError, match=r"queue t:c in http.* was deleted and made anew"):
        query.batch()
    assert lenient.take(20) == bodies(50, 20)
    assert lenient.batch() == []


@pytest.mark.parametrize("is_there", [False, True])
def test_an_empty_channel_that_is_filled_later(node: DaemonProcess, *, is_there: bool) -> None:
    """The channel may also not be there yet when the query starts."""

    def create() -> None:
        node.request("POST", "/topic/create?topic=t")
        node.request("POST", "/channel/create?topic=t&channel=c")

    if is_there:
        create()
    query = Query(nsqd=node.http_address, topic="t", channel="c")
    assert query.batch() == []

    if not is_there:
        create()
        assert query.batch() == []
    publish(node, 0, 30)

    assert query.take(30) == bodies(0, 30)
    again = Query(nsqd=node.http_address, topic="t", channel="c", offset=query.offset)
    assert again.batch() == []


def test_a_channel_that_is_emptied_in_mid_stream(node: DaemonProcess) -> None:
    """Who had read all goes on; who had not is told, though the positions do not go back."""
    options = {"nsqd": node.http_address, "topic": "t"}
    publish(node, 0, 200)
    ahead, behind = Query(**options), Query(maxOffsetsPerTrigger="150", **options)
    assert ahead.take(200) == bodies(0, 200)
    assert behind.take(150) == bodies(0, 150)

    node.request("POST", "/topic/empty?topic=t")
    publish(node, 200, 50)

    assert ahead.take(50) == bodies(200, 50)
    with pytest.raises(SegmentLostError, match=r"of queue t .* was deleted before the stream"):
        wait_until(lambda: behind.batch() == [b""])


def test_a_node_that_comes_back_with_other_ports(node: DaemonProcess) -> None:
    publish(node, 0, 300)
    with Lookupd((node.http_address, "a")) as lookupd:
        by_lookupd = Query(lookupd=lookupd.address, topic="t", failOnDataLoss="false")
        by_address = Query(nsqd=node.http_address, topic="t")
        assert by_lookupd.take(300) == by_address.take(300) == bodies(0, 300)
        before = node.http_address
        node.stop()

        assert by_lookupd.batch() == []
        node.start()
        publish(node, 300, 100)
        lookupd.nodes = ((node.http_address, "a"),)

        assert node.http_address != before
        assert by_lookupd.take(100) == bodies(300, 100)
        moved = Query(nsqd=node.http_address, topic="t", offset=by_address.offset)
        assert moved.take(100) == bodies(300, 100)


def test_nsqlookupd_forgets_a_node_for_a_while(tmp_path: Path) -> None:
    """As one does that was started again, until its nodes have come back to it."""
    with (
        DaemonProcess(tmp_path / "a", *FLAGS) as first,
        DaemonProcess(tmp_path / "b", *FLAGS) as second,
        Lookupd((first.http_address, "a"), (second.http_address, "b")) as lookupd,
    ):
        publish(first, 0, 50)
        publish(second, 50, 50)
        query = Query(lookupd=lookupd.address, topic="t")
        assert query.take(100) == bodies(0, 100)

        both, lookupd.nodes = lookupd.nodes, lookupd.nodes[:1]
        publish(first, 100, 10)
        publish(second, 110, 10)
        with pytest.raises(SegmentLostError, match=r"queue t of node [0-9a-f]{32} is gone"):
            query.batch()
        lenient = Query(
            lookupd=lookupd.address, topic="t", failOnDataLoss="false", offset=query.offset
        )
        assert lenient.take(10) == bodies(100, 10)
        lookupd.nodes = both
        assert lenient.take(10) == bodies(110, 10)
        assert query.take(20) == bodies(100, 20)


def test_two_nodes_with_copies_of_one_data_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both have the id of the one; each has gone on by itself."""
    original = DaemonProcess(tmp_path / "a", *FLAGS)
    with original:
        publish(original, 0, 20)
        original.stop()
        shutil.copytree(original.data_path, tmp_path / "copy")
        original.start()
        with DaemonProcess(tmp_path / "b", *FLAGS, data=tmp_path / "copy") as copy:
            publish(original, 20, 10)
            publish(copy, 30, 10)
            addresses = f"{original.http_address},{copy.http_address}"

            # A batch reads what there is, at both.
            found = sorted(Frame(nsqd=addresses, topic="t").rows())
            assert found == sorted(bodies(0, 20) * 2 + bodies(20, 20))
            assert main(["queues", "--nsqd", addresses]) == 0
            assert "2 nodes, 2 queues, 60 messages" in capsys.readouterr().out
            with pytest.raises(ValueError, match=r"http://\S+ and http://\S+ are directories of"):
                Query(nsqd=addresses, topic="t").batch()

            # One of them, under two names, is one.
            port = original.http_address.partition(":")[2]
            twice = f"{original.http_address},localhost:{port}"
            assert sorted(Frame(nsqd=twice, topic="t").rows()) == bodies(0, 30)
            assert Query(nsqd=twice, topic="t").take(30) == bodies(0, 30)


@pytest.mark.parametrize("hosts", [("a", "b"), ("a", "a")])
def test_two_nodes_at_the_same_broadcast_address(
    node: DaemonProcess, hosts: tuple[str, str]
) -> None:
    """To read one would pass for all. A host that is there twice has just come back."""
    publish(node, 0, 10)
    with Lookupd(*((node.http_address, host) for host in hosts)) as lookupd:
        options: dict[str, Any] = {"lookupd": lookupd.address, "topic": "t"}
        if hosts[0] == hosts[1]:
            assert sorted(Frame(**options).rows()) == bodies(0, 10)
            return
        for read in (Frame, Query):
            with pytest.raises(NodeError, match=r"knows two nodes at .*, of the hosts a and b"):
                read(**options)


def test_a_clock_that_is_set_back(tmp_path: Path) -> None:
    """A stream goes by positions; a batch by times, which it finds behind later ones, too."""
    skew = tmp_path / "skew"
    skew.write_text("7200")
    command = (sys.executable, "-m", "tests.support.skewed_nsqd", str(skew))
    with DaemonProcess(tmp_path / "nsqd", *FLAGS, command=command) as node:
        history = {"nsqd": node.http_address, "topic": "t", "from": "archive"}
        publish(node, 0, 400)
        query = Query(**history)
        assert query.take(400) == bodies(0, 400)
        skew.write_text("0")
        publish(node, 400, 400)

        assert query.take(400) == bodies(400, 400)
        in_an_hour = str(time.time_ns() + 3600 * 10**9)
        assert sorted(Frame(since=in_an_hour, **history).rows()) == bodies(0, 400)
        assert sorted(Frame(until=in_an_hour, **history).rows()) == bodies(400, 400)


def test_a_node_that_hangs_is_asked_twice(tmp_path: Path) -> None:
    """Not `retries` times: each try takes `timeout`."""

    def hang(endpoint: HttpEndpoint, _target: str, _body: bytes) -> Answer:
        endpoint.released.wait()
        return 503, {}, b""

    with HttpEndpoint(hang) as endpoint:
        address = endpoint.url.removeprefix("http://")
        with pytest.raises(NodeError, match=rf"{address} cannot be reached: timed out \(tried 2"):
            Frame(nsqd=address, topic="t", timeout="1", retries="6")
        endpoint.released.set()


def test_every_snapshot_is_whole_while_consumers_finish_messages(tmp_path: Path) -> None:
    """What nobody has finished before or after it is there, each message once; nothing else is."""
    flags = ("--msg-timeout=14m", "--max-heartbeat-interval=1h")
    nodes = [DaemonProcess(tmp_path / f"n{number}", *flags) for number in range(3)]
    with ExitStack() as stack:
        consumers = []
        for number, node in enumerate(nodes):
            stack.enter_context(node)
            create(node, "t", "c")
            publish(node, number * 10_000, 3000)
            for _ in range(7):
                node.request("POST", "/pub?topic=t&defer=900000", b"later")
            consumers.append(Consumer(node, "t", "c", 1005))
            stack.callback(consumers[-1].close)
        options = {"nsqd": ",".join(node.http_address for node in nodes), "topic": "t"}

        def ids() -> list[str]:
            with snapshot(**options) as snapped:
                found: list[str] = read_table(None, ("id",), **snapped)["id"].to_pylist()
            return found

        before = ids()
        looks = []
        for _ in range(20):
            for consumer in consumers:
                consumer.finish(50)
            looks.append(ids())
        for node in nodes:
            node.wait_for_channel("t", "c", in_flight_count=5)
        after = ids()

    assert (len(before), len(after)) == (3 * 3007, 3 * 2007)
    for found in (before, *looks, after):
        assert len(set(found)) == len(found)
        assert set(after) <= set(found) <= set(before)
    assert len({len(found) for found in looks}) > 2, "looks while messages are finished"


async def test_a_network_that_breaks_within_answers(tmp_path: Path) -> None:
    """Executors ask again from where they were: every row once."""
    size = BLOCK_BYTES // 64
    with DaemonProcess(tmp_path, "--mem-queue-size=0") as node:
        for first in range(0, 400, 20):
            records = [b"%03d" % number + bytes(size) for number in range(first, first + 20)]
            body = b"".join(len(each).to_bytes(4) + each for each in records)
            framed = len(records).to_bytes(4) + body
            node.request("POST", "/mpub?topic=t&binary=true", framed)
        port = int(node.http_address.rpartition(":")[2])
        async with TcpProxy(port) as network:
            # The whole of it takes some seconds.
            network.delay_s = 0.005
            frame = await asyncio.to_thread(
                Frame, nsqd=network.address, topic="t", retries="20", timeout="5"
            )
            reading = asyncio.create_task(
                asyncio.to_thread(lambda: [row[:3] for row in frame.rows()])
            )
            cuts = 0
            while not reading.done() and cuts < 5:
                await asyncio.sleep(0.3)
                await network.cut()
                network.heal()
                cuts += 1
            found = await reading
            connections = network.connection_count

    assert sorted(found) == [b"%03d" % number for number in range(400)]
    assert connections > cuts > 1
