"""docs/spark.md: every snippet runs, and its tables have every option."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.__main__ import main
from spark_jobs.read.columns import ALL_COLUMNS
from spark_jobs.read.options import READ_OPTIONS
from spark_jobs.write.options import SINK_OPTIONS
from tests.spark.data_dirs import Message, content, messages, write_queue, write_segment
from tests.support.daemon_process import LOOKUPD, DaemonProcess, WaitingDaemon
from tests.support.waiting import wait_until

MANUAL = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_BLOCKS = _BLOCK.findall(MANUAL)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The paths and addresses here for those of the manual."""
    scratch = tmp_path_factory.mktemp("manual")
    data = scratch / "nsqd"
    bodies = [json.dumps({"user": f"u{n % 3}", "amount": n * 10}).encode() for n in range(30)]
    now_ns = 1_790_000_000_000_000_000
    orders = [Message(body, now_ns + n, 1, b"%016x" % n) for n, body in enumerate(bodies)]
    write_queue(data, "orders", [orders])
    write_queue(data, "orders:billing", [orders])
    write_segment(data, "torn", 0, content(messages(0, 2))[:-3])
    bad = write_segment(data, "torn", 1, content(messages(0, 2)))
    bad.rename(f"{bad}.bad")
    (scratch / "copies" / "node2").mkdir(parents=True)
    with (
        WaitingDaemon(scratch / "lookupd", command=LOOKUPD) as lookupd,
        DaemonProcess(
            scratch / "running",
            "--mem-queue-size=0",
            f"--lookupd-tcp-address={lookupd.tcp_address}",
        ) as daemon,
    ):
        daemon.publish("orders", *bodies)
        wait_until(lambda: json.loads(lookupd.request("GET", "/nodes"))["producers"])
        yield {
            "/var/lib/nsqd": str(data),
            "/copies/": f"{scratch}/copies/",
            "/lake/": f"{scratch}/lake/",
            "127.0.0.1:4150": daemon.tcp_address,
            "127.0.0.1:4161": lookupd.http_address,
            # Messages are as old as they are.
            '"1h"': '"9000d"',
        }


def fill_in(text: str, places: dict[str, str]) -> str:
    for name, value in places.items():
        text = text.replace(name, value)
    return text


def test_every_snippet_runs(
    spark: SparkSession, places: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """In order and in one session, as a reader of the manual would."""
    names: dict[str, object] = {"spark": spark}
    snippets = [text for kind, text in _BLOCKS if kind == "python"]

    for snippet in snippets:
        exec(compile(fill_in(snippet, places), "docs/spark.md", "exec"), names)

    printed = capsys.readouterr().out
    assert len(snippets) >= 9
    assert "|orders|billing|   30|" in printed
    assert "|   NULL|ready|   30|" in printed
    assert "30 0\n" in printed
    assert "|torn|a record of 46" in printed
    assert "30 0 {'orders.again': 30}" in printed
    lake = f"{places['/lake/']}orders"
    assert spark.read.parquet(lake).count() == 60


def test_every_command_runs(
    spark: SparkSession, places: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [line for kind, text in _BLOCKS if kind == "sh" for line in text.splitlines()]
    commands = [shlex.split(fill_in(line, places)) for line in lines if "nsqd-spark" in line]
    (Path(places["/lake/"])).mkdir(exist_ok=True)

    for command in commands:
        assert command[0] == "nsqd-spark"
        assert main(command[1:]) == 0, (command, capsys.readouterr().err)

    jobs = {"report", "sql", "export", "replay", "queues", "count", "bundle"}
    assert {command[1] for command in commands} == jobs
    assert "orders.replay: 19 messages" in capsys.readouterr().err
    assert spark.read.parquet(f"{places['/lake/']}nsq").where("topic = 'orders'").count() == 60


def first_cells(heading: str) -> set[str]:
    """The names in the first column of the table behind a heading."""
    section = MANUAL.partition(f"\n{heading}\n")[2].partition("\n#")[0]
    cells = re.findall(r"^\| ([^|]*`[^|]*) \|", section, re.MULTILINE)
    return set(re.findall(r"`([\w.]+)`", " ".join(cells)))


def test_the_tables_are_complete() -> None:
    assert first_cells("### Options of a read") == set(READ_OPTIONS)
    assert first_cells("### Columns") == set(ALL_COLUMNS)
    assert first_cells("## Write") == set(SINK_OPTIONS)
