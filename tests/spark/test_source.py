"""The format nsq in a real session: the same rows as a plain read of the same directory."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from spark_jobs import read_corrupt_records, register
from tests.spark.data_dirs import (
    TIME_NS,
    Message,
    Row,
    content,
    message,
    messages,
    read_plainly,
    segment_path,
    write_queue,
    write_segment,
)
from tests.spark.odd_dirs import ODD_DIRECTORIES

RECORD = 50


def load(spark: SparkSession, path: Path | str | list[str], **options: str) -> DataFrame:
    return (
        spark.read.format("nsq")
        .options(**options)
        .load(path if isinstance(path, list) else str(path))
    )


def rows(frame: DataFrame) -> list[Row]:
    return [
        Row(
            row.topic,
            row.channel,
            row.segment,
            row.offset,
            row.timestamp_ns,
            row.attempts,
            row.id,
            bytes(row.body),
        )
        for row in frame.orderBy(
            "topic", F.col("channel").asc_nulls_first(), "segment", "offset"
        ).collect()
    ]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a bit of everything."""
    path = tmp_path_factory.mktemp("data") / "node1"
    write_queue(path, "orders", [messages(0, 300), messages(300, 200)], read=(0, 7 * RECORD))
    write_queue(path, "orders:billing", [messages(0, 40)])
    write_queue(path, "pay", [[], messages(500, 3)])
    nested = [Message(content(messages(0, n % 7)), TIME_NS + n) for n in range(60)]
    write_queue(path, "nested", [nested])
    damaged = bytearray(content(messages(900, 6)))
    damaged[4 * RECORD] = 0xFF
    write_segment(path, "torn", 0, bytes(damaged))
    write_segment(path, "torn", 1, content(messages(906, 2))[:-1])
    bad = write_segment(path, "torn", 2, bytes(damaged))
    bad.rename(f"{bad}.bad")
    return path


@pytest.mark.parametrize("origin", ["backlog", "earliest"])
def test_rows_equal_a_plain_read(spark: SparkSession, mixed: Path, origin: str) -> None:
    frame = load(spark, mixed, **{"from": origin})

    found = rows(frame)

    assert found == read_plainly(mixed, is_from_earliest=origin == "earliest")
    assert {row.node for row in frame.select("node").distinct().collect()} == {"node1"}


def test_odd_directories_of_many_nodes_are_read_at_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    for make in ODD_DIRECTORIES:
        (tmp_path / make.__name__).mkdir()
        make(tmp_path / make.__name__)

    frame = load(spark, f"{tmp_path}/*", **{"from": "earliest"})

    found: dict[str, list[Row]] = {}
    for row in frame.drop("timestamp").collect():
        values = row.asDict() | {"body": bytes(row.body), "message_id": row.id}
        del values["id"]
        found.setdefault(values.pop("node"), []).append(Row(**values))
    assert set(found) == {make.__name__ for make in ODD_DIRECTORIES}
    for node, rows_there in found.items():
        expected = read_plainly(tmp_path / node, is_from_earliest=True)
        assert sorted(rows_there, key=_place) == sorted(expected, key=_place), node


def _place(row: Row) -> tuple[str, str, int, int]:
    return row.topic, row.channel or "", row.segment, row.offset


def test_every_column_has_its_type(spark: SparkSession, mixed: Path) -> None:
    types = dict(load(spark, mixed).dtypes)

    assert types == {
        "node": "string",
        "topic": "string",
        "channel": "string",
        "segment": "bigint",
        "offset": "bigint",
        "timestamp": "timestamp",
        "timestamp_ns": "bigint",
        "attempts": "int",
        "id": "string",
        "body": "binary",
    }


def test_only_the_columns_asked_for(spark: SparkSession, mixed: Path) -> None:
    by_option = load(spark, mixed, columns="body,topic")
    by_schema = spark.read.format("nsq").schema("timestamp timestamp, id string").load(str(mixed))

    assert by_option.columns == ["body", "topic"]
    assert by_option.count() == len(read_plainly(mixed))
    assert by_schema.columns == ["timestamp", "id"]
    assert by_schema.count() == len(read_plainly(mixed))


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    """A session that pushes filters down."""
    register(spark, pushes_filters=True)
    yield spark
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    register(spark)


CUTOFF_NS = TIME_NS + 350 * 1_000_007


@pytest.mark.parametrize(
    ("condition", "is_wanted"),
    [
        ("topic = 'orders'", lambda row: row.topic == "orders"),
        (
            "channel is null and topic like 'o%'",
            lambda row: row.topic == "orders" and row.channel is None,
        ),
        ("channel <> 'x'", lambda row: row.channel is not None),
        ("segment >= 1", lambda row: row.segment >= 1),
        (f"timestamp_ns > {CUTOFF_NS}", lambda row: row.timestamp_ns > CUTOFF_NS),
        (
            f"timestamp < timestamp_micros({CUTOFF_NS // 1000})",
            lambda row: row.timestamp_ns // 1000 < CUTOFF_NS // 1000,
        ),
        (
            f"timestamp = timestamp_micros({CUTOFF_NS // 1000})",
            lambda row: row.timestamp_ns // 1000 == CUTOFF_NS // 1000,
        ),
        (
            "attempts = 2 and topic in ('pay', 'orders')",
            lambda row: row.attempts == 2 and row.topic in ("pay", "orders"),
        ),
    ],
)
def test_filters_are_pushed_down(
    pushing: SparkSession, mixed: Path, condition: str, is_wanted: Callable[[Row], bool]
) -> None:
    wanted = [row for row in read_plainly(mixed) if is_wanted(row)]

    found = rows(load(pushing, mixed).where(condition))

    assert found == wanted
    assert wanted


def test_a_pushed_filter_leaves_no_partition_of_other_topics(
    pushing: SparkSession, mixed: Path
) -> None:
    filtered = load(pushing, mixed, splitBytes="1").where("topic = 'pay'")

    assert filtered.rdd.getNumPartitions() == 3
    assert load(pushing, mixed, splitBytes="1").rdd.getNumPartitions() > 500


@pytest.mark.xfail(reason="Spark keeps the filters pushed last for the whole DataFrame")
def test_a_frame_can_be_used_with_several_filters_pushed_down(
    pushing: SparkSession, mixed: Path
) -> None:
    """Once this passes, push-down can become the default."""
    frame = load(pushing, mixed)
    frame.where("topic = 'pay'").count()

    assert frame.count() == len(read_plainly(mixed))


def test_a_frame_can_be_used_with_several_filters(spark: SparkSession, mixed: Path) -> None:
    expected = read_plainly(mixed)
    load(spark, mixed).createOrReplaceTempView("every")

    [found] = spark.sql(
        "select (select count(*) from every where topic = 'pay') as pay,"
        " (select count(*) from every) as total,"
        " (select count(*) from every where topic = 'orders') as orders"
    ).collect()

    assert found.pay == 3
    assert found.total == len(expected)
    assert found.orders == sum(row.topic == "orders" for row in expected)


def test_options_select_topics_channels_and_times(spark: SparkSession, mixed: Path) -> None:
    expected = read_plainly(mixed)
    since = TIME_NS + 100 * 1_000_007

    found = rows(load(spark, mixed, topic="o*,pay", channel="", since=str(since)))

    assert found == [
        row
        for row in expected
        if row.topic in ("orders", "pay") and row.channel is None and row.timestamp_ns >= since
    ]


def test_directories_come_by_list_glob_and_uri(spark: SparkSession, tmp_path: Path) -> None:
    for node in ("n1", "n2"):
        write_queue(tmp_path / node, "t", [messages(0, 2)])

    by_list = load(spark, [f"{tmp_path}/n1", f"{tmp_path}/n2"])
    by_glob = load(spark, f"{tmp_path}/n*")
    by_uri = load(spark, f"file://{tmp_path}/n2", node="other")

    assert sorted(row.node for row in by_list.collect()) == ["n1", "n1", "n2", "n2"]
    assert sorted(row.node for row in by_glob.collect()) == ["n1", "n1", "n2", "n2"]
    assert [row.node for row in by_uri.collect()] == ["other", "other"]


def test_an_empty_directory_and_no_match_are_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    assert load(spark, tmp_path).count() == 0
    write_queue(tmp_path, "t", [messages(0, 2)])
    assert load(spark, tmp_path, topic="x*").count() == 0
    assert load(spark, tmp_path, topic="x", allowMissing="true").count() == 0
    with pytest.raises(Exception, match=r"no queue in .* matches topic=x; there are: t"):
        load(spark, tmp_path, topic="x").count()


def test_corrupt_records_are_a_table(spark: SparkSession, mixed: Path) -> None:
    found = read_corrupt_records(spark, str(mixed)).orderBy("path").collect()

    assert [(row.kind, row.segment, row.offset, row.bytes) for row in found] == [
        ("damaged", 0, 4 * RECORD, 2 * RECORD),
        ("torn", 1, RECORD, RECORD - 1),
        ("lost", 2, 4 * RECORD, RECORD),
    ]
    assert {row.topic for row in found} == {"torn"}
    assert found[0].path == str(segment_path(mixed, "torn", 0))


def test_failfast_names_file_and_offset(spark: SparkSession, mixed: Path) -> None:
    frame = load(spark, mixed, mode="FAILFAST")

    with pytest.raises(PythonException) as caught:
        frame.count()

    path = segment_path(mixed, "torn", 0)
    assert f"{path} at offset {4 * RECORD}: invalid record size" in str(caught.value)


def test_bad_files_are_marked(spark: SparkSession, mixed: Path) -> None:
    frame = load(spark, mixed, includeBad="true", topic="torn")

    assert frame.where("is_bad").select("offset").orderBy("offset").collect() == [
        (offset * RECORD,) for offset in (0, 1, 2, 3, 5)
    ]
    assert frame.where("not is_bad").count() == 5


def test_a_segment_consumed_meanwhile_fails_the_job_or_is_skipped(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_queue(tmp_path, "t", [messages(0, 1), messages(1, 1)])
    strict = load(spark, tmp_path)
    lenient = load(spark, tmp_path, failOnDataLoss="false")
    # Planned, and so with partitions that are remembered.
    strict_rows, lenient_rows = strict.rdd, lenient.rdd
    assert strict_rows.getNumPartitions() == lenient_rows.getNumPartitions() == 1
    segment_path(tmp_path, "t", 0).unlink()

    with pytest.raises(Exception, match=r"t\.diskqueue\.000000\.dat was consumed"):
        strict_rows.collect()
    assert [bytes(row.body) for row in lenient_rows.collect()] == [message(1).body]


def test_reading_changes_nothing(spark: SparkSession, mixed: Path) -> None:
    def state() -> list[tuple[str, int, int]]:
        return sorted(
            (path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in mixed.iterdir()
        )

    before = state()
    load(spark, mixed, includeBad="true", includeUnsynced="true").count()
    read_corrupt_records(spark, str(mixed)).count()

    assert state() == before


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topics": "x"}, "did you mean 'topic'?"),
        ({"columns": "bytes"}, "no column 'bytes'"),
        ({"since": "soon"}, "since is a time"),
    ],
)
def test_a_wrong_option_is_named(
    spark: SparkSession, mixed: Path, options: dict[str, str], text: str
) -> None:
    with pytest.raises(AnalysisException) as caught:
        load(spark, mixed, **options).count()

    assert text in str(caught.value)


def test_a_missing_directory_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(AnalysisException, match=f"no such data directory: {tmp_path}/x"):
        load(spark, tmp_path / "x").count()


def test_a_wrong_schema_is_refused(spark: SparkSession, mixed: Path) -> None:
    with pytest.raises(AnalysisException, match="column 'body' of format nsq is binary"):
        spark.read.format("nsq").schema("body string").load(str(mixed)).count()
