"""Directories in an object store, a local server of S3's protocol: options, URIs, Hadoop, jobs."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from diskqueue.checksums.entries import encode, make_seed
from spark_jobs import register
from spark_jobs.__main__ import main
from spark_jobs.jobs.growth import read_look
from spark_jobs.jobs.report import write_report
from spark_jobs.read.files.directory import OutputDirectory
from tests.spark.data_dirs import content, messages, write_queue
from tests.spark.in_process import parse, read_bodies, read_corruptions, read_stream
from tests.spark.made_reports import made_fleet_report
from tests.support.s3_server import KEYS, Store

HADOOP = {
    "fs.s3a.endpoint.region": "eu-test-1",
    "fs.s3a.access.key": KEYS[0],
    "fs.s3a.secret.key": KEYS[1],
}


@pytest.fixture
def fleet(store: Store, tmp_path: Path) -> str:
    """Two nodes in a bucket, with 6 and 2 messages; the first has a history of 9."""
    write_queue(tmp_path / "n1", "t", [messages(0, 3), messages(3, 3)])
    write_queue(tmp_path / "n1" / "archive", "t", [messages(0, 9)])
    write_queue(tmp_path / "n2", "t", [messages(6, 2)])
    store.upload(tmp_path, "fleet")
    return f"s3://{store.bucket}/fleet"


@pytest.fixture
def key_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    directory = tmp_path_factory.mktemp("keys")
    for name, key in zip(("access", "secret"), KEYS, strict=True):
        (directory / name).write_text(f"{key}\n")
    return str(directory / "access"), str(directory / "secret")


@pytest.mark.parametrize(
    ("path", "count"),
    [("/n1", 6), ("/n?", 8), ("/*", 8), ("/{n2,n3}", 2), ("/n2/", 2)],
)
def test_paths_and_globs_with_options(fleet: str, store: Store, path: str, count: int) -> None:
    assert len(read_bodies(fleet + path, **store.options)) == count
    assert len(read_bodies(fleet.replace("s3:", "s3a:") + path, **store.options)) == count


def test_a_query_is_no_part_of_the_place(
    fleet: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEYS[0])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEYS[1])

    assert len(read_bodies(f"{fleet}/n?{store.query}")) == 8
    assert len(read_bodies(f"{fleet}/n1{store.query}", **{"from": "archive"})) == 9
    with pytest.raises(FileNotFoundError, match=r"no such data directory: s3://[\w/-]+/n3$"):
        read_bodies(f"{fleet}/n3{store.query}")
    with pytest.raises(FileNotFoundError, match=r"no data directory matches s3://[\w/-]+/x\*$"):
        read_bodies(f"{fleet}/x*{store.query}")


def test_keys_in_a_uri_are_shown_nowhere(
    fleet: str, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    place = fleet.replace("s3://", f"s3://{KEYS[0]}:{KEYS[1]}@")

    assert main(["count", f"{place}/n2{store.query}"]) == 0
    assert main(["count", f"{place}/n3{store.query}"]) == 1
    assert main(["queues", f"{place}/n1{store.query}&secret={KEYS[1]}"]) == 1

    printed = "".join(capsys.readouterr())
    assert "2 messages" in printed
    assert not any(key in printed for key in KEYS)


def test_spark_reads_a_bucket_with_the_settings_of_hadoop(
    spark: SparkSession, fleet: str, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {**HADOOP, "fs.s3a.endpoint": store.endpoint}
    for name, text in settings.items():
        spark.conf.set(name, text)
    try:
        register(spark)
        reader = spark.read.format("nsq").option("columns", "node,size")
        rows = reader.load(f"{fleet}/n?").groupBy("node").count().collect()
        kept = reader.option("from", "archive").load(f"{fleet.replace('s3', 's3a')}/n1")
        assert {(row.node, row["count"]) for row in rows} == {("n1", 6), ("n2", 2)}
        assert kept.count() == 9
        kept.explain(extended=True)
        assert main(["count", f"{fleet}/n2"]) == 0
    finally:
        for name in settings:
            spark.conf.unset(name)
        register(spark)
    explicit = spark.read.format("nsq").options(**store.options).load(f"{fleet}/n2")
    assert explicit.count() == 2
    explicit.explain(extended=True)
    plans = capsys.readouterr().out
    assert "Physical Plan" in plans
    assert not any(key in plans for key in KEYS)


def test_jobs_read_and_write_a_bucket(
    fleet: str, store: Store, key_files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    access, secret = key_files
    flags = ["--s3-endpoint", store.endpoint, "--s3-region", "eu-test-1"]
    flags += ["--s3-access-key-file", access, "--s3-secret-key-file", secret]

    assert main(["count", f"{fleet}/n1", "--from", "archive", *flags]) == 0
    assert main(["queues", f"{fleet}/*", *flags]) == 0

    printed = capsys.readouterr()
    assert "9 messages" in printed.err
    assert "2 nodes, 2 queues, 8 messages" in printed.out
    settings = parse(f"{fleet}/n1", **store.options).store
    write_report(made_fleet_report(3), OutputDirectory(f"{fleet}/report", settings))
    assert {"fleet/report/report.html", "fleet/report/tables/nodes.parquet"} <= set(store.names())
    earlier, _ = read_look(f"{fleet}/report", settings)
    assert len(earlier.counts) == 3


def test_history_is_shipped_to_a_bucket_and_read_there(
    store: Store, tmp_path: Path, key_files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    archive = tmp_path / "node" / "archive"
    segments = [messages(0, 3), messages(3, 3), messages(6, 3)]
    write_queue(archive, "t", segments)
    (archive / "t.diskqueue.generation").write_text("1" * 32)
    for number, records in enumerate(segments):
        lengths = [len(each.record()) for each in records]
        checksums = encode(make_seed("t", number), 0, content(records), lengths)
        (archive / f"t.diskqueue.{number:06d}.crc").write_bytes(checksums)
    # A body that is no more what it was: shipped as it is, and denied where it is read.
    path = archive / "t.diskqueue.000001.dat"
    path.write_bytes(path.read_bytes().replace(b"message 4", b"massage 4"))
    (tmp_path / "node" / "nsqd.node").write_text("2" * 32)
    access, secret = key_files
    flags = ["--s3-endpoint", store.endpoint]
    flags += ["--s3-access-key-file", access, "--s3-secret-key-file", secret]
    place = f"s3://{store.bucket}/history/node"

    for _ in range(2):
        assert main(["ship", str(tmp_path / "node"), "--to", place, *flags]) == 0
    assert main(["ship", str(tmp_path / "node"), "--to", place, "--verify", *flags]) == 0

    printed = capsys.readouterr().err
    assert "2 segments shipped, 6 messages" in printed
    assert "0 segments shipped" in printed
    options = {**store.options, "from": "archive"}
    sent = [each.body for part in segments[:2] for each in part]
    shipped = [each.replace(b"message 4", b"massage 4") for each in sent]
    assert read_bodies(place, **options) == shipped
    assert read_stream(place, **options)[0] == shipped
    verified = options | {"verifyChecksums": "true"}
    assert read_bodies(place, **verified) == sent[:4] + sent[5:]
    [row] = read_corruptions(place, **verified)
    assert (row["kind"], row["segment"], row["offset"]) == ("denied", 1, 50)
