"""The jobs as a user calls them, in the session of the tests."""

import json
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from diskqueue import DiskQueue, envelope
from spark_jobs.__main__ import main
from tests.spark.data_dirs import (
    TIME_NS,
    Message,
    content,
    messages,
    read_plainly,
    write_queue,
    write_segment,
)
from tests.support.daemon_process import DaemonProcess

DAY_NS = 86400 * 10**9


def order(number: int) -> Message:
    """A message with a JSON body."""
    body: dict[str, object] = {
        "id": number,
        "amount": number * 1.5,
        "user": {"name": "ada" if number % 3 else "bob"},
    }
    if number % 4 == 0:
        body["note"] = None
    return Message(
        json.dumps(body).encode(),
        TIME_NS + number * 60 * 10**9,
        7 if number == 13 else 1,
        b"%016x" % (number if number != 20 else 19),
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two topics, one of them JSON, over more than one day; and damage."""
    path = tmp_path_factory.mktemp("jobs") / "node"
    orders = [order(number) for number in range(100)]
    late = [Message(b'{"id": 1}', TIME_NS + 2 * DAY_NS)]
    mixed = [Message(body) for body in (b'{"id": 1}', b"plain", b'{"id": "x"}', b"{broken")]
    write_queue(path, "orders", [orders[:40], orders[40:] + late])
    write_queue(path, "orders:billing", [orders[:10]])
    write_queue(path, "plain.text", [messages(0, 7)])
    write_queue(path / "mixed", "mixed", [mixed])
    write_segment(path, "torn", 0, content(messages(0, 2))[:-3])
    return path


@pytest.mark.usefixtures("spark")
class TestSql:
    def test_a_table_is_printed(self, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
        query = (
            "SELECT channel, count(*) AS n, max(attempts) AS a FROM orders GROUP BY 1 ORDER BY 1"
        )

        assert main(["sql", str(data), query]) == 0

        printed = capsys.readouterr()
        assert printed.out.splitlines() == [
            "channel    n  a",
            "-------  ---  -",
            "NULL     101  7",
            "billing   10  1",
        ]
        assert "reading 1 node, 3 topics, 4 queues" in printed.err
        assert "2 rows" in printed.err

    def test_views(self, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
        query = (
            "SELECT (SELECT count(*) FROM messages) AS every,"
            " (SELECT count(*) FROM plain_text WHERE text LIKE 'message%') AS plain,"
            " (SELECT min(kind) FROM corrupt_records) AS damage"
        )

        assert main(["sql", str(data), query]) == 0

        assert capsys.readouterr().out.splitlines()[-1].split() == ["119", "7", "torn"]

    def test_json(self, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
        query = "SELECT json.user.name AS name, count(*) AS n FROM orders GROUP BY 1 ORDER BY 2"
        arguments = ["sql", str(data), query, "--json", "--channel", ""]

        assert main(arguments) == 0

        assert [line.split() for line in capsys.readouterr().out.splitlines()[2:]] == [
            ["NULL", "1"],
            ["bob", "34"],
            ["ada", "66"],
        ]

    def test_files(self, data: Path, tmp_path: Path, spark: SparkSession) -> None:
        output = tmp_path / "result"
        query = "SELECT id, text, timestamp FROM plain_text ORDER BY id"

        assert main(["sql", str(data), query, "--output", str(output)]) == 0

        frame = spark.read.option("header", "true").csv(str(output)).orderBy("id")
        assert frame.columns == ["id", "text", "timestamp"]
        assert [row.text for row in frame.collect()] == [
            each.body.decode() for each in messages(0, 7)
        ]

    def test_a_spreadsheet_runs_no_text(
        self, data: Path, tmp_path: Path, spark: SparkSession
    ) -> None:
        """As an option: other readers of the file want the bytes as they are."""
        texts = ["=1+1", "+1", "-1", "@x", " =x", "\t=x", "plain", "1-1"]
        rows = ", ".join(f"('{text}', -1)" for text in texts)
        query = f"SELECT col1 AS `a.b`, col2 AS n FROM VALUES {rows}"
        for flags, mark in ((["--formula-safe"], "'"), ([], "")):
            output = tmp_path / f"result{len(flags)}"

            assert main(["sql", str(data), query, "--output", str(output), *flags]) == 0

            reader = spark.read.option("header", "true").option("ignoreLeadingWhiteSpace", "false")
            found = {tuple(row) for row in reader.csv(str(output)).collect()}
            stripped = {text if flags else text.strip() for text in texts[:6]}
            assert {text.strip() for text, _ in found} >= {mark + text for text in stripped}
            assert {("plain", "-1"), ("1-1", "-1")} <= found


REFUSED_ARGUMENTS = [
    (
        ["replay", "{data}", "--addresses", "127.0.0.1:1", "--auth-secret", "sesame"],
        "error: --auth-secret would show the secret to every user of this machine: use",
    ),
    (["sql", "{tmp}/missing", "SELECT 1"], "error: no such data directory: {tmp}/missing"),
    (
        ["sql", "{data}", "SELECT 1", "--topic", "x*"],
        "error: no queue in {data} matches topic=x*; there are: orders, orders:billing",
    ),
    (["sql", "{data}", "SELECT 1", "--rows", "-1"], "error: --rows is at least 0, not -1"),
    (["sql", "{data}", "SELECT 1", "--since", "soon"], "option since is a time such as"),
    (["export", "{data}"], "say where to write: --output DIR or --table NAME"),
    (
        ["export", "{data}", "--output", "{tmp}", "--json", "--json-schema", "a b c"],
        "error: not a schema: 'a b c'",
    ),
    (["replay", "{data}", "--topic", "orders"], "say where to publish"),
    (
        ["replay", "{data}", "--topic", "orders", "--dry-run"],
        "topic orders has 2 queues (its own queue, billing)",
    ),
    (["replay", "{data}", "--to", "a b", "--dry-run"], "not the name of a topic: 'a b'"),
    (["replay", "{data}", "--addresses", "h:0"], "option addresses has host:port, not 'h:0'"),
    (
        ["replay", "{data}", "--addresses", "127.0.0.1:1"],
        "error: cannot publish to 127.0.0.1:1: [Errno 111]",
    ),
    (["replay", "{data}", "--to-lookupd", "127.0.0.1:1"], "error: nsqlookupd knows no nsqd"),
    (
        ["replay", "{data}", "--addresses", "127.0.0.1:1", "--tls", "--tls-ca", "{tmp}/no"],
        "No such file",
    ),
    (
        ["replay", "{data}", "--addresses", "127.0.0.1:1", "--tls-ca", "{tmp}/no"],
        "error: option tlsCa needs tls=true",
    ),
    (
        ["sql", "{data}", "SELECT 1", "--since", "1h", "--until", "2h"],
        "error: option since is a time before until, not '1h' and '2h'",
    ),
    (
        ["sql", "{data}", "SELECT 1", "--output", "/dev/null/x"],
        "error: cannot write to /dev/null/x: Not a directory",
    ),
    (["export", "{data}", "--output", "/proc/x"], "error: cannot write to /proc/x: "),
    (["count", "--nsqd", "h:1", "--topic", "a b"], "option topic has names or patterns such"),
    (["ship", "{data}", "--to", "s3://"], "error: a URI of S3 names a bucket"),
    (
        ["report", "{data}", "--output", "{tmp}", "--compare", "{data}/nsqd.dat"],
        "error: no such report: {data}/nsqd.dat",
    ),
    (["count", "{data}", "--master", "lokal"], "--master is local[2], spark://host:7077"),
    (["count"], "say what to read: DATA_DIR, --lookupd HOST:PORT or --nsqd HOST:PORT"),
    (["queues", "{data}", "--nsqd", "h:1"], "say what to read"),
    (["count", "--nsqd", "h:x"], "option nsqd has host:port, with commas, not 'h:x'"),
    (["report", "{data}", "--output", "/dev/null/x"], "error: cannot write to /dev/null/x: "),
    (["replay", "{data}", "--dry-run", "--sample", "2"], "--sample is more than 0 and at most"),
]
# Spark alone knows.
REFUSED_BY_SPARK = [
    (["sql", "{data}", "SELECT * FROM nothing"], "views: messages, corrupt_records, orders"),
    (
        ["sql", "{data}", "SELEC 1"],
        "error: [PARSE_SYNTAX_ERROR] Syntax error at",
    ),
    (["sql", "{data}", "SELECT nope FROM orders"], "columns: node, topic, channel"),
    (["sql", "{data}", "SELECT * FROM torn", "--fail-fast"], "at offset 50: "),
    (["export", "{data}", "--output", "{tmp}/x", "--format", "delta"], "no format 'delta'"),
    (
        ["replay", "{data}", "--dry-run", "--distinct", "--where", "nope = 1"],
        "error: --where: [UNRESOLVED_",
    ),
    (
        ["replay", "{data}", "--dry-run", "--distinct", "--where", "a >"],
        "error: --where: [PARSE_SYNTAX_",
    ),
]


class NoSpark:
    """In place of Spark's sessions: whoever asks for one fails."""

    def __getattr__(self, name: str) -> None:
        raise AssertionError(f"Spark is started: {name}")


@pytest.mark.parametrize(("arguments", "text"), REFUSED_ARGUMENTS)
def test_arguments_are_checked_before_spark_is_started(
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    text: str,
) -> None:
    monkeypatch.setattr("spark_jobs.session.SparkSession", NoSpark())

    refuse(data, tmp_path, capsys, arguments, text)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(("arguments", "text"), REFUSED_BY_SPARK)
def test_errors_of_spark_are_one_line(
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    text: str,
) -> None:
    refuse(data, tmp_path, capsys, arguments, text)


def refuse(
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    text: str,
) -> None:
    filled = [each.format(data=data, tmp=tmp_path) for each in arguments]

    assert main(filled) == 1

    errors = capsys.readouterr().err
    assert text.format(data=data, tmp=tmp_path) in errors
    assert "Traceback" not in errors
    assert len(errors.splitlines()) <= 4


@pytest.mark.usefixtures("spark")
class TestExport:
    def test_parquet_by_topic_and_date(
        self, data: Path, tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
    ) -> None:
        output = tmp_path / "lake"

        assert main(["export", str(data), "--output", str(output)]) == 0

        frame = spark.read.parquet(str(output))
        found = Counter((row.topic, row.id, bytes(row.body)) for row in frame.collect())
        assert "1 damaged place skipped" in capsys.readouterr().err
        assert found == Counter((row.topic, row.message_id, row.body) for row in read_plainly(data))
        assert sorted(path.name for path in (output / "topic=orders").glob("date=*")) == [
            "date=2025-10-09",
            "date=2025-10-11",
        ]

    def test_json_gets_columns(self, data: Path, tmp_path: Path, spark: SparkSession) -> None:
        output = tmp_path / "lake"
        arguments = ["export", str(data), "--output", str(output), "--json", "--drop-body"]

        assert main([*arguments, "--topic", "orders,plain*", "--channel", ""]) == 0

        orders = spark.read.parquet(str(output / "topic=orders"))
        assert orders.where("json.user.name = 'bob'").count() == 34
        assert orders.where("body IS NOT NULL").count() == 0
        plain = spark.read.parquet(str(output / "topic=plain.text"))
        assert plain.where("body IS NOT NULL").count() == 7

    def test_no_body_is_dropped_that_is_not_parsed(
        self, data: Path, tmp_path: Path, spark: SparkSession
    ) -> None:
        arguments = ["export", str(data / "mixed"), "--output", str(tmp_path / "x"), "--json"]

        assert main([*arguments, "--drop-body", "--json-schema", "id int"]) == 0

        frame = spark.read.parquet(str(tmp_path / "x" / "topic=mixed"))
        rows = frame.selectExpr("json.id AS id", "CAST(body AS string) AS body").collect()
        found = {(row.id, row.body) for row in rows}
        assert found == {(1, None), (None, "plain"), (None, '{"id": "x"}'), (None, "{broken")}

    def test_a_second_export_needs_a_mode(
        self, data: Path, tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
    ) -> None:
        arguments = ["export", str(data), "--output", str(tmp_path / "x"), "--topic", "plain.text"]
        assert main(arguments) == 0

        assert main(arguments) == 1
        assert "already exists" in capsys.readouterr().err
        assert main([*arguments, "--mode", "append"]) == 0
        assert spark.read.parquet(str(tmp_path / "x")).count() == 14


@pytest.mark.usefixtures("spark")
class TestReplay:
    @pytest.fixture(scope="class")
    def nsqd(self, tmp_path_factory: pytest.TempPathFactory) -> DaemonProcess:
        return DaemonProcess(tmp_path_factory.mktemp("replay"), "--mem-queue-size=0")

    def test_a_dry_run_publishes_nothing(
        self, data: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        arguments = [
            "replay",
            str(data),
            "--topic",
            "orders",
            "--channel",
            "",
            "--json",
            "--dry-run",
        ]

        assert main([*arguments, "--where", "json.amount > 100", "--to", "again"]) == 0

        printed = capsys.readouterr()
        assert "dry run: 33 messages" in printed.err
        first = printed.out.splitlines()[2]
        assert first.split()[:4] == ["orders", "NULL", "again", "33"]

    def test_a_selection_arrives(
        self, data: Path, nsqd: DaemonProcess, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with nsqd as daemon:
            arguments = ["replay", str(data), "--addresses", daemon.tcp_address]
            where = [
                "--topic",
                "orders",
                "--channel",
                "",
                "--where",
                "attempts = 7 OR id LIKE '%a'",
            ]

            assert main([*arguments, *where, "--to", "again", "--rate", "1000"]) == 0
            assert main([*arguments, "--topic", "plain.text", "--limit", "3"]) == 0

            [path] = daemon.data_path.glob("again.diskqueue.0*.dat")
            found = path.read_bytes()
            [other] = daemon.data_path.glob("plain.text.diskqueue.0*.dat")
            assert other.read_bytes().count(b"message") == 3
        for number in range(100):
            assert (order(number).body in found) == (number == 13 or number % 16 == 10)
        errors = capsys.readouterr().err
        assert "again: 7 messages" in errors
        assert "3 messages published" in errors


@pytest.mark.usefixtures("spark")
class TestReport:
    @pytest.fixture(scope="class")
    def output(
        self, data: Path, tmp_path_factory: pytest.TempPathFactory, spark: SparkSession
    ) -> Path:
        path = tmp_path_factory.mktemp("report")
        assert main(["report", str(data), "--output", str(path)]) == 0
        return path

    def test_figures(self, output: Path) -> None:
        report = json.loads((output / "report.json").read_text())
        queues = {(row["topic"], row["channel"]): row for row in report["queues"]}
        assert list(queues) == [
            ("orders", None),
            ("orders", "billing"),
            ("plain.text", None),
            ("torn", None),
        ]
        orders = queues["orders", None]
        sizes = [*(len(order(n).body) for n in range(100)), len(b'{"id": 1}')]
        assert orders["messages"] == 101
        assert orders["bytes"] == sum(sizes)
        assert orders["size_max"] == max(sizes)
        assert orders["oldest"] == "2025-10-09T08:53:20+00:00"
        assert orders["newest"] == "2025-10-11T08:53:20+00:00"
        assert orders["rate_per_minute"] == pytest.approx(101 / 2880)
        assert (orders["attempts_max"], orders["retried"], orders["duplicates"]) == (7, 1, 1)
        assert [row["messages"] for row in report["attempts"] if row["attempts"] == 7] == [1]
        [poison] = [row for row in report["poison"] if row["attempts"] == 7]
        assert poison["id"] == f"{13:016x}"
        assert poison["body"] == order(13).body.decode()
        [duplicate] = report["duplicates"]
        assert (duplicate["id"], duplicate["copies"]) == (f"{19:016x}", 2)
        assert report["corrupt_count"] == 1
        [place] = report["corrupt_records"]
        assert (place["kind"], place["topic"], place["segment"]) == ("torn", "torn", 0)
        assert place["path"].endswith("/torn.diskqueue.000000.dat")
        assert place["bytes"] > 0

    def test_fields_of_a_short_time_are_not_lost_in_a_sample(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Of 30,000 messages 20 are of the time; a share of 30,000 would leave hardly one."""
        (tmp_path / "data").mkdir()
        queue = DiskQueue(tmp_path / "data", "t")
        for start in range(0, 30_000, 1000):
            queue.put(
                envelope.encode(TIME_NS + number, 0, b"%016x" % number, b'{"a": 1}')
                for number in range(start, start + 1000)
            )
        queue.close()
        argv = ["report", str(tmp_path / "data"), "--output", str(tmp_path / "out")]

        assert main([*argv, "--since", str(TIME_NS + 29_980)]) == 0, capsys.readouterr().err

        report = json.loads((tmp_path / "out" / "report.json").read_text())
        assert [(row["type"], row["count"]) for row in report["bodies"]] == [("object", 20)]

    def test_fields_of_json(self, output: Path) -> None:
        """Of 111 messages, since the channel's are looked at too."""
        table = pq.read_table(output / "tables" / "fields.parquet").to_pylist()
        fields = {row["path"]: row for row in table}
        assert set(fields) == {"id", "amount", "user", "user.name", "note"}
        assert {row["topic"] for row in table} == {"orders"}
        assert fields["id"]["types"] == ["integer"]
        assert fields["note"]["null_share"] == 1
        assert fields["user.name"]["null_share"] == pytest.approx(1 / 111)
        assert fields["user.name"]["cardinality"] == 2
        assert fields["user.name"]["top"] == [
            {"value": "ada", "count": 72},
            {"value": "bob", "count": 38},
        ]
        bodies = pq.read_table(output / "tables" / "bodies.parquet").to_pylist()
        assert {(row["topic"], row["type"]): row["count"] for row in bodies} == {
            ("orders", "object"): 111,
            ("plain.text", "not JSON"): 7,
            ("torn", "not JSON"): 1,
        }

    def test_no_messages_at_all(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        empty = tmp_path / "empty"
        empty.mkdir()

        assert main(["report", str(empty), "--output", str(tmp_path / "out")]) == 0

        assert "There are no messages" in (tmp_path / "out" / "report.html").read_text()
        assert pq.read_table(tmp_path / "out" / "tables" / "queues.parquet").num_rows == 0
        assert "0 messages" in capsys.readouterr().err
