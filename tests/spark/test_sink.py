"""The sink against a running nsqd: every row arrives, refusals say why, breaks are survived."""

import contextlib
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from spark_jobs.write.sink import publish
from tests.spark.data_dirs import read_plainly
from tests.support.auth_server import AuthServer, allow, answer
from tests.support.certs import make_authority, make_server
from tests.support.daemon_process import DaemonProcess


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """An nsqd that keeps everything on disk, where it can be read plainly."""
    with DaemonProcess(tmp_path_factory.mktemp("nsqd"), "--mem-queue-size=0") as daemon:
        yield daemon


def bodies(daemon: DaemonProcess, topic: str) -> Counter[bytes]:
    """Return the bodies of a topic on disk; nsqd writes before it answers."""
    found: list[bytes] = []
    for path in sorted(daemon.data_path.glob(f"{topic}.diskqueue.0*.dat")):
        data = path.read_bytes()
        position = 0
        while position < len(data):
            size = int.from_bytes(data[position : position + 4])
            found.append(data[position + 30 : position + 4 + size])
            position += 4 + size
    return Counter(found)


def depth(daemon: DaemonProcess, topic: str) -> int:
    stats = daemon.request("GET", f"/stats?format=json&topic={topic}")
    topics: list[dict[str, Any]] = json.loads(stats)["topics"]
    return sum(each["depth"] for each in topics)


def numbered(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(0, count, 1, 3).select(F.concat(F.lit("m"), "id").alias("body"))


def test_every_row_is_published_once(spark: SparkSession, nsqd: DaemonProcess) -> None:
    published = publish(
        numbered(spark, 25_000), addresses=nsqd.tcp_address, topic="once", batchSize="700"
    )

    assert published.message_count == 25_000
    assert published.resent_count == 0
    assert published.by_topic == {"once": 25_000}
    assert bodies(nsqd, "once") == Counter(b"m%d" % n for n in range(25_000))


def test_save_publishes_and_writes_a_summary(
    spark: SparkSession, nsqd: DaemonProcess, tmp_path: Path
) -> None:
    summary = tmp_path / "summary.json"
    frame = numbered(spark, 10).select(F.col("body").cast("binary"))

    frame.write.format("nsq").mode("append").options(
        addresses=nsqd.tcp_address, topic="saved", summaryPath=str(summary)
    ).save()

    assert json.loads(summary.read_text()) == {"messages": 10, "resent": 0, "topics": {"saved": 10}}
    assert bodies(nsqd, "saved") == Counter(b"m%d" % n for n in range(10))


def test_a_column_says_where_each_row_goes(spark: SparkSession, nsqd: DaemonProcess) -> None:
    frame = numbered(spark, 300).withColumn("topic", F.concat(F.lit("to_"), F.crc32("body") % 3))
    expected = Counter(row.topic for row in frame.collect())

    published = publish(frame, addresses=nsqd.tcp_address)

    assert published.by_topic == expected
    assert {topic: depth(nsqd, topic) for topic in expected} == expected


def test_rows_can_be_deferred(spark: SparkSession, nsqd: DaemonProcess) -> None:
    frame = spark.createDataFrame(
        [("now", None), ("later", 3_000_000), ("at once", 0)], "body string, defer_ms int"
    )

    published = publish(frame, addresses=nsqd.tcp_address, topic="deferred")

    assert published.message_count == 3
    assert depth(nsqd, "deferred") >= 2


def test_bytes_arrive_as_they_are(spark: SparkSession, nsqd: DaemonProcess) -> None:
    values = [bytes(range(256)), b"\0", b"x" * 1_000_000, "zoë".encode()]
    frame = spark.createDataFrame([(bytearray(value),) for value in values], "body binary")

    publish(frame, addresses=nsqd.tcp_address, topic="bytes")

    assert bodies(nsqd, "bytes") == Counter(values)


def test_rows_that_were_read_go_back_to_their_topics(
    spark: SparkSession, nsqd: DaemonProcess, tmp_path: Path
) -> None:
    publish(numbered(spark, 50), addresses=nsqd.tcp_address, topic="round_trip")
    with DaemonProcess(tmp_path, "--mem-queue-size=0") as other:
        frame = (
            spark.read.format("nsq")
            .option("includeUnsynced", "true")
            .option("topic", "round_trip")
            .load(str(nsqd.data_path))
        )
        published = publish(frame, addresses=other.tcp_address)

        assert published.by_topic == {"round_trip": 50}
        assert bodies(other, "round_trip") == bodies(nsqd, "round_trip")


def test_a_stream_can_be_published(
    spark: SparkSession, nsqd: DaemonProcess, tmp_path: Path
) -> None:
    source = tmp_path / "in"
    numbered(spark, 20).write.text(str(source))
    stream = spark.readStream.schema("value string").text(str(source))

    query = (
        stream.select(F.col("value").alias("body"))
        .writeStream.format("nsq")
        .options(addresses=nsqd.tcp_address, topic="streamed")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )

    assert query.awaitTermination(120)
    assert query.exception() is None
    assert bodies(nsqd, "streamed") == Counter(b"m%d" % n for n in range(20))


def test_a_misspelt_option_is_named(spark: SparkSession) -> None:
    with pytest.raises(PySparkException) as caught:
        publish(numbered(spark, 1), topic="t", adresses="x")

    assert "did you mean 'addresses'?" in str(caught.value)


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        (["1 as body"], {"topic": "t"}, "needs a column body of type binary or string"),
        (["'' as body"], {"topic": "t"}, "NSQ has no empty messages"),
        (["repeat('x', 2000000) as body"], {"topic": "t"}, "refuses: E_BAD_MESSAGE"),
    ],
)
def test_a_frame_that_cannot_be_published_is_refused(
    spark: SparkSession,
    nsqd: DaemonProcess,
    columns: list[str],
    options: dict[str, str],
    text: str,
) -> None:
    frame = spark.range(1).selectExpr(*columns)

    with pytest.raises(PySparkException) as caught:
        publish(frame, addresses=nsqd.tcp_address, **options)

    assert text in str(caught.value)


def test_an_nsqd_that_cannot_be_reached_is_named(spark: SparkSession) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"

        with pytest.raises(PySparkException, match=f"cannot publish to {address}"):
            publish(numbered(spark, 1), addresses=address, topic="t", retries="1")


class BreakingProxy:
    """A proxy that cuts the first connections off in the middle."""

    def __init__(self, target: str, breaks: int) -> None:
        host, port = target.split(":")
        self._target = host, int(port)
        self._breaks = breaks
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.connection_count = 0
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(20)

    def _accept(self) -> None:
        workers: list[threading.Thread] = []
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                break
            self.connection_count += 1
            limit = 60_000 if self.connection_count <= self._breaks else 1 << 40
            server = socket.create_connection(self._target)
            for source, sink, count in ((client, server, limit), (server, client, 1 << 40)):
                worker = threading.Thread(target=self._pass, args=(source, sink, count))
                worker.start()
                workers.append(worker)
        for worker in workers:
            worker.join(20)

    @staticmethod
    def _pass(source: socket.socket, sink: socket.socket, left: int) -> None:
        try:
            while left > 0 and (data := source.recv(min(8192, left))):
                sink.sendall(data)
                left -= len(data)
        except OSError:
            pass
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        if left > 1 << 39:
            return
        source.close()


def test_a_broken_connection_loses_nothing(spark: SparkSession, nsqd: DaemonProcess) -> None:
    proxy = BreakingProxy(nsqd.tcp_address, breaks=2)
    try:
        frame = numbered(spark, 20_000).coalesce(1)
        published = publish(frame, addresses=proxy.address, topic="broken", batchSize="500")
    finally:
        proxy.close()

    found = bodies(nsqd, "broken")
    assert proxy.connection_count == 3
    assert published.message_count == 20_000
    assert set(found) == {b"m%d" % n for n in range(20_000)}
    assert sum(found.values()) - 20_000 <= published.resent_count <= 2 * 5 * 500
    assert published.resent_count > 0


def test_the_next_address_is_taken(spark: SparkSession, nsqd: DaemonProcess) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{free.getsockname()[1]}"
        published = publish(
            numbered(spark, 30).coalesce(1),
            addresses=f"{dead},{nsqd.tcp_address}",
            topic="next_address",
        )

    assert published.message_count == 30
    assert depth(nsqd, "next_address") == 30


class Lookupd(BaseHTTPRequestHandler):
    """An nsqlookupd that has one topic, and one node besides."""

    producers: ClassVar[dict[str, list[str]]] = {}

    def do_GET(self) -> None:
        known = self.producers.get(self.path)
        self.send_response(404 if known is None else 200)
        self.end_headers()
        nodes = [address.split(":") for address in known or ()]
        answer = [{"broadcast_address": host, "tcp_port": int(port)} for host, port in nodes]
        self.wfile.write(json.dumps({"producers": answer}).encode())

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.mark.parametrize("topic", ["looked_up", "unknown_there"])
def test_addresses_come_from_nsqlookupd(
    spark: SparkSession, nsqd: DaemonProcess, topic: str
) -> None:
    """A topic that no nsqd has yet goes to any node."""
    Lookupd.producers = {
        "/lookup?topic=looked_up": [nsqd.tcp_address],
        "/nodes": [nsqd.tcp_address],
    }
    with ThreadingHTTPServer(("127.0.0.1", 0), Lookupd) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            lookupd = f"127.0.0.1:{server.server_port}"
            published = publish(numbered(spark, 7), lookupd=lookupd, topic=topic)
        finally:
            server.shutdown()
            thread.join(20)

    assert published.message_count == 7
    assert depth(nsqd, topic) == 7


def test_a_lookupd_that_cannot_be_reached_is_an_error(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="nsqlookupd knows no nsqd"):
        publish(numbered(spark, 1), lookupd="127.0.0.1:1", topic="t")


def test_tls_and_auth(spark: SparkSession, tmp_path: Path) -> None:
    authority = make_authority(tmp_path / "certs")
    server = make_server(tmp_path / "certs", authority)
    with AuthServer() as auth:
        auth.answers["open sesame"] = (200, answer(allow()))
        flags = (
            "--tls-required=true",
            f"--tls-cert={server.cert_file}",
            f"--tls-key={server.key_file}",
            f"--auth-http-address={auth.address}",
            "--mem-queue-size=0",
        )
        with DaemonProcess(tmp_path / "nsqd", *flags) as daemon:
            port = daemon.tcp_port
            good = {
                "addresses": f"127.0.0.1:{port}",
                "topic": "secret",
                "tls": "true",
                "tlsCa": authority.cert_file,
                "authSecretFile": str(tmp_path / "secret"),
                "retries": "1",
            }
            (tmp_path / "secret").write_text("open sesame\n")
            (tmp_path / "wrong").write_text("sesame street\n")
            frame = numbered(spark, 10)

            assert publish(frame, **good).message_count == 10
            assert bodies(daemon, "secret") == Counter(b"m%d" % n for n in range(10))
            for change, text in (
                ({"tls": "false"}, "TLS required"),
                ({"tlsCa": str(make_authority(tmp_path / "other").cert_file)}, "is not trusted"),
                ({"authSecretFile": str(tmp_path / "wrong")}, "E_AUTH_FAILED"),
            ):
                with pytest.raises(PySparkException) as caught:
                    publish(frame, **(good | change))
                assert text in str(caught.value)
                assert "sesame" not in str(caught.value)
            insecure = good | {"tlsInsecure": "true", "topic": "insecure"}
            del insecure["tlsCa"]
            assert publish(frame, **insecure).message_count == 10


def test_source_and_plain_read_agree_on_nsqds_own_files(
    spark: SparkSession, nsqd: DaemonProcess
) -> None:
    frame = spark.read.format("nsq").load(str(nsqd.data_path))

    assert frame.count() == len(read_plainly(nsqd.data_path))
