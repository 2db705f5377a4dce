"""Running nodes, read over HTTP: everything that waits there, once, wherever it is."""

import json
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_jobs import read_corrupt_records, snapshot
from spark_jobs.__main__ import main
from spark_jobs.read.files.scan import SegmentLostError
from spark_jobs.read.fleet.client import NodeError
from spark_jobs.read.fleet.lookup import find_nodes
from spark_jobs.read.fleet.options import FleetOptions
from spark_jobs.read.inventory import NoSuchQueueError
from tests.spark.in_process import read_corruptions, read_table
from tests.support.certs import make_authority, make_server
from tests.support.daemon_process import LOOKUPD, DaemonProcess, WaitingDaemon
from tests.support.waiting import wait_until

NOWHERE = "127.0.0.1:1"
MESSAGE_FRAME = 2
COLUMNS = ("node", "topic", "channel", "segment", "attempts", "id", "body", "state", "due")


class Consumer:
    """A client that takes messages and finishes none until it is told."""

    def __init__(self, daemon: DaemonProcess, topic: str, channel: str, count: int) -> None:
        self._socket = socket.create_connection(daemon.address)
        self._file = self._socket.makefile("rb")
        identify = b'{"heartbeat_interval": 3600000}'
        self._socket.sendall(b"  V2IDENTIFY\n" + struct.pack(">i", len(identify)) + identify)
        self._socket.sendall(f"SUB {topic} {channel}\nRDY {count}\n".encode())
        self.ids: list[bytes] = []
        while len(self.ids) < count:
            size, kind = struct.unpack(">ii", self._file.read(8))
            data = self._file.read(size - 4)
            if kind == MESSAGE_FRAME:
                self.ids.append(data[10:26])
        self._socket.sendall(b"RDY 0\n")

    def finish(self, count: int) -> None:
        for _ in range(count):
            self._socket.sendall(b"FIN " + self.ids.pop() + b"\n")

    def requeue(self, count: int) -> None:
        for _ in range(count):
            self._socket.sendall(b"REQ " + self.ids.pop() + b" 0\n")

    def close(self) -> None:
        self._file.close()
        self._socket.close()


def publish(daemon: DaemonProcess, topic: str, first: int, count: int) -> None:
    body = "\n".join(f"m{number}" for number in range(first, first + count)).encode()
    daemon.request("POST", f"/mpub?topic={topic}", body)


def create(daemon: DaemonProcess, topic: str, channel: str) -> None:
    daemon.request("POST", f"/topic/create?topic={topic}")
    daemon.request("POST", f"/channel/create?topic={topic}&channel={channel}")


def read(**options: str) -> pa.Table:
    """Read in this process, as Spark's workers do, and leave no lease behind."""
    with snapshot(retries="0", **options) as snapped:
        return read_table(None, COLUMNS, **snapped)


def leases(daemon: DaemonProcess) -> list[Any]:
    found: list[Any] = json.loads(daemon.request("GET", "/snapshot"))["leases"]
    return found


class Fleet:
    """Two nodes behind an nsqlookupd; of each message it is known where it is."""

    def __init__(self, scratch: Path) -> None:
        self.lookupd = WaitingDaemon(scratch / "lookupd", command=LOOKUPD)
        self.lookupd.start()
        flags = (
            f"--lookupd-tcp-address={self.lookupd.tcp_address}",
            "--mem-queue-size=100",
            # Messages stay in flight, however long the tests take.
            *("--msg-timeout=14m", "--max-heartbeat-interval=1h"),
        )
        self.nodes = [DaemonProcess(scratch / f"node{number}", *flags) for number in (1, 2)]
        self._consumers = []
        for number, node in enumerate(self.nodes):
            node.start()
            create(node, "orders", "mail")
            publish(node, "orders", number * 20000, 10000)
            for index in range(7):
                node.request("POST", "/pub?topic=orders&defer=900000", b"later %d" % index)
            consumer = Consumer(node, "orders", "mail", 15)
            consumer.finish(10)
            node.wait_for_channel("orders", "mail", in_flight_count=5)
            self._consumers.append(consumer)
        wait_until(lambda: len(self._producers()) == len(self.nodes))

    def _producers(self) -> list[Any]:
        found: list[Any] = json.loads(self.lookupd.request("GET", "/nodes"))["producers"]
        return found

    def close(self) -> None:
        for consumer in self._consumers:
            consumer.close()
        for node in self.nodes:
            node.kill()
        self.lookupd.kill()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    made = Fleet(tmp_path_factory.mktemp("fleet"))
    yield made
    made.close()


def test_every_message_is_one_row(fleet: Fleet) -> None:
    """Of 10,000 on each node 10 are finished and 5 in flight; and 7 are deferred."""
    found = read(lookupd=fleet.lookupd.http_address).to_pylist()

    assert len({row["id"] for row in found}) == len(found) == 2 * (9990 + 7)
    for node in fleet.nodes:
        rows = [row for row in found if row["node"] == node.http_address]
        states = [row["state"] for row in rows]
        assert {state: states.count(state) for state in set(states)} == {
            "ready": 9985,
            "in_flight": 5,
            "deferred": 7,
        }
        assert all((row["due"] is None) == (row["state"] == "ready") for row in rows)
        assert all((row["attempts"] == 1) == (row["state"] == "in_flight") for row in rows)
        assert {row["segment"] < 0 for row in rows} == {True, False}
        assert sorted(row["body"] for row in rows if row["state"] == "deferred") == [
            b"later %d" % index for index in range(7)
        ]


def test_sql_over_the_fleet(
    spark: SparkSession, fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    query = "SELECT count(*) AS n, count(DISTINCT id) AS ids, count(due) AS d FROM orders"

    assert spark is not None
    assert main(["sql", "--lookupd", fleet.lookupd.http_address, query]) == 0

    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1].split() == ["19994", "19994", "24"]
    assert "reading 2 nodes, 1 topic, 4 queues" in printed.err
    assert [leases(node) for node in fleet.nodes] == [[], []]


def test_a_report_of_the_fleet(
    spark: SparkSession, fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spark is not None
    address = fleet.nodes[0].http_address
    mail = {"topic": "orders", "channel": "mail", "messages": 10_000_000}
    before = {"created": "2026-01-01T00:00:00+00:00", "from": "backlog", "queues": [mail]}
    (tmp_path / "before.json").write_text(json.dumps(before))
    flags = ["--output", str(tmp_path), "--compare", str(tmp_path / "before.json")]
    code = main(["report", "--nsqd", address, *flags])

    assert code == 0, capsys.readouterr().err
    report = json.loads((tmp_path / "report.json").read_text())
    counts = {(row["topic"], row["channel"]): row["messages"] for row in report["queues"]}
    assert counts["orders", "mail"] == 9997
    [found] = [row for row in report["queues"] if row["channel"] == "mail"]
    assert found["in_flight"] == 5
    assert found["growth_per_minute"] < 0 < found["drained_in_s"]
    [node] = report["nodes"]
    assert (node["node"], node["messages"]) == (address, sum(counts.values()))


def test_an_export_and_a_replay_of_the_fleet(
    spark: SparkSession, fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = str(tmp_path / "lake")
    assert main(["export", "--lookupd", fleet.lookupd.http_address, "--output", lake]) == 0
    assert spark.read.parquet(lake).select("id").distinct().count() == 19_994

    with DaemonProcess(tmp_path / "target") as target:
        replay = ["replay", "--nsqd", fleet.nodes[0].http_address, "--channel", "mail"]
        where = ["--where", "state = 'deferred' OR text = 'm77'"]
        to = ["--to", "again", "--addresses", target.tcp_address]
        assert main([*replay, *where, *to]) == 0, capsys.readouterr().err
        found = read(nsqd=target.http_address, topic="again")["body"].to_pylist()

    assert sorted(found) == [*(b"later %d" % index for index in range(7)), b"m77"]


def test_commands_without_spark(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["count", "--lookupd", fleet.lookupd.http_address, "--channel", "mail"]) == 0
    assert "19,994 messages" in capsys.readouterr().err

    assert main(["queues", "--nsqd", fleet.nodes[0].http_address, "--json"]) == 0
    rows = {row["channel"]: row for row in json.loads(capsys.readouterr().out)["queues"]}
    mail = rows["mail"]
    assert (mail["messages"], mail["in_flight"]) == (9997, 5)
    # Deferred messages may be in memory or on disk.
    assert mail["memory"] + mail["disk"] + mail["deferred"] == 9992
    assert mail["lag"] == 9997
    assert rows[None]["lag"] == rows[None]["lag_bytes"] == 0

    assert main(["queues", "--lookupd", fleet.lookupd.http_address]) == 0
    assert "2 nodes, 4 queues, 19,994 messages" in capsys.readouterr().out


def test_the_lag_of_queues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Messages of any place that no consumer has finished, and those the topic still has."""
    flags = ("--mem-queue-size=4", "--msg-timeout=14m", "--max-heartbeat-interval=1h")
    with DaemonProcess(tmp_path, *flags) as node:
        create(node, "t", "c")
        node.request("POST", "/mpub?topic=t", b"\n".join([b"10 bytes.."] * 10))
        node.request("POST", "/pub?topic=t&defer=900000", b"later")
        consumer = Consumer(node, "t", "c", 3)
        consumer.finish(1)
        node.wait_for_channel("t", "c", in_flight_count=2)
        node.request("POST", "/topic/pause?topic=t")
        node.request("POST", "/mpub?topic=t", b"\n".join([b"10 bytes.."] * 5))

        both = f"{node.http_address},localhost:{node.http_address.rpartition(':')[2]}"
        assert main(["queues", "--nsqd", both, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert main(["queues", "--nsqd", node.http_address, "--channel", "c", "--json"]) == 0
        [chosen] = json.loads(capsys.readouterr().out)["queues"]
        assert main(["queues", "--nsqd", node.http_address, "--topic", "nosuch"]) == 1
        assert "matches topic=nosuch; there are: t, t:c" in capsys.readouterr().err
        consumer.close()

    # The node was asked under two addresses, and is one.
    assert (found["nodes"], len(found["queues"])) == ([node.http_address], 2)
    rows = {row["channel"]: row for row in found["queues"]}
    own, channel = rows[None], rows["c"]
    assert chosen == channel
    # Also of messages that are in memory only.
    assert own["memory"] == 5
    assert own["oldest"].startswith("20")
    assert (own["messages"], own["lag"], own["lag_bytes"]) == (5, 5, 5 * 40)
    assert (channel["messages"], channel["lag"]) == (10, 15)
    # Of those in flight and deferred nsqd keeps no sizes, unless they are on disk.
    assert channel["lag_bytes"] - own["lag_bytes"] in (7 * 40, 7 * 40 + 35)


def test_a_selection_is_made_by_the_nodes(fleet: Fleet) -> None:
    address = fleet.nodes[0].http_address
    assert len(read(nsqd=address, subscribe="orders", channel="mail")) == 9997
    assert len(read(nsqd=address, subscribePattern="ord.*", channel=",mail")) == 9997
    assert len(read(nsqd=address, channel="")) == 0
    assert len(read(nsqd=address, topic="nosuch", allowMissing="true")) == 0
    with pytest.raises(NoSuchQueueError, match=r"topic=nosuch; there are: orders, orders:mail$"):
        read(nsqd=address, topic="nosuch")


def test_several_reads_of_one_snapshot_see_one_moment(spark: SparkSession, fleet: Fleet) -> None:
    node = fleet.nodes[1]
    create(node, "moving", "c")
    publish(node, "moving", 0, 300)
    with snapshot(lookupd=fleet.lookupd.http_address, topic="moving") as options:
        frames = [spark.read.format("nsq").options(**options).load() for _ in range(2)]
        assert frames[0].count() == 300
        publish(node, "moving", 300, 50)
        node.request("POST", "/topic/delete?topic=moving")

        assert frames[1].count() == 300
        assert len(leases(node)) == 1

    assert leases(node) == []
    with pytest.raises(Exception, match="LEASE_NOT_FOUND: its snapshot has ended"):
        frames[0].count()


def test_a_node_that_is_down_is_named(spark: SparkSession, fleet: Fleet) -> None:
    both = f"{fleet.nodes[0].http_address},{NOWHERE}"
    with pytest.raises(NodeError, match=r"node 127\.0\.0\.1:1 cannot be reached: .*refused"):
        read(nsqd=both)
    assert leases(fleet.nodes[0]) == []

    lenient = {"nsqd": both, "retries": "0", "failOnDataLoss": "false"}
    rows = read_corrupt_records(spark, **lenient).collect()
    assert len(read(nsqd=both, failOnDataLoss="false")) == 9997
    assert [(row.kind, row.node, row.path) for row in rows] == [
        ("unreachable", NOWHERE, f"http://{NOWHERE}")
    ]


def test_a_node_that_dies_while_it_is_read(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path) as node:
        create(node, "t", "c")
        publish(node, "t", 0, 50)
        with snapshot(nsqd=node.http_address, retries="0") as options:
            node.kill()
            with pytest.raises(NodeError, match="cannot be reached"):
                read_table(None, COLUMNS, **options)
            lenient = options | {"failOnDataLoss": "false"}
            assert len(read_table(None, COLUMNS, **lenient)) == 0
            [row] = read_corruptions(None, **lenient)

    assert (row["kind"], row["topic"]) == ("unreachable", "t")


def test_a_node_that_forgets_its_snapshot_is_told(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path) as node:
        create(node, "t", "c")
        publish(node, "t", 0, 50)
        with snapshot(nsqd=node.http_address, retries="0") as options:
            # As when nsqd is started again, or runs short of disk.
            [lease] = leases(node)
            node.request("POST", f"/snapshot/release?id={lease['id']}")
            with pytest.raises(SegmentLostError, match=r"LEASE_NOT_FOUND: its snapshot has ended"):
                read_table(None, COLUMNS, **options)
            lenient = options | {"failOnDataLoss": "false"}
            assert len(read_table(None, COLUMNS, **lenient)) == 0
            [row] = read_corruptions(None, **lenient)

    assert (row["kind"], row["topic"], row["bytes"]) == ("unreachable", "t", 50 * 30 + 140)
    assert "LEASE_NOT_FOUND" in row["reason"]


def test_tokens_and_tls(tmp_path: Path) -> None:
    authority = make_authority(tmp_path)
    server = make_server(tmp_path, authority)
    (tmp_path / "token").write_text("secret\n")
    flags = (
        f"--tls-cert={server.cert_file}",
        f"--tls-key={server.key_file}",
        f"--http-auth-token-file={tmp_path / 'token'}",
    )
    with DaemonProcess(tmp_path / "nsqd", *flags) as node:
        port = wait_until(lambda: _https_port(node.log))
        given = {"nsqd": f"127.0.0.1:{port}", "tls": "true", "tlsCa": authority.cert_file}
        with pytest.raises(NodeError, match=r"401 .*see the option authTokenFile"):
            read(**given)
        token = {"authTokenFile": str(tmp_path / "token")}
        with pytest.raises(NodeError, match="certificate"):
            read(nsqd=f"127.0.0.1:{port}", tls="true", **token)

        assert len(read(**given, **token)) == 0


def _https_port(log: str) -> int | None:
    for line in log.splitlines():
        if "HTTPS: listening on" in line:
            return int(line.rpartition(":")[2])
    return None


def test_nsqlookupd_knows_the_nodes(fleet: Fleet) -> None:
    options = FleetOptions(lookupd=(NOWHERE, fleet.lookupd.http_address), retry_count=0)

    assert find_nodes(options) == sorted(f"http://{node.http_address}" for node in fleet.nodes)
    with pytest.raises(NodeError, match=r"knows no nsqd: node 127\.0\.0\.1:1 cannot be reached"):
        find_nodes(FleetOptions(lookupd=(NOWHERE,), retry_count=0))


def test_a_node_that_is_none_is_named(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    address = fleet.lookupd.http_address
    assert main(["count", "--nsqd", address]) == 1

    assert f"error: node {address}: 404 NOT_FOUND: it does not serve" in capsys.readouterr().err
    assert main(["count", "--nsqd", fleet.nodes[0].tcp_address]) == 1
    assert "does not speak HTTP: is that its TCP port?" in capsys.readouterr().err
    assert main(["count", "--lookupd", fleet.nodes[0].http_address]) == 1
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.endswith("is no nsqlookupd: it answers 404 NOT_FOUND")


@pytest.mark.usefixtures("spark")
def test_a_report_reads_each_segment_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with DaemonProcess(tmp_path / "nsqd", "--mem-queue-size=0") as node:
        create(node, "t", "c")
        publish(node, "t", 0, 30_000)
        argv = ["report", "--nsqd", node.http_address, "--output", str(tmp_path / "out")]
        assert main(argv) == 0, capsys.readouterr().err
        log = node.log

    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [row["messages"] for row in report["queues"]] == [0, 30_000]
    [body] = report["bodies"]
    assert (body["topic"], body["type"]) == ("t", "not JSON")
    assert 9_000 < body["count"] < 11_000
    reads = [line for line in log.splitlines() if "GET /segments/" in line and ".dat" in line]
    assert len(reads) == 1, reads
