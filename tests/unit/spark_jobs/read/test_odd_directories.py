"""Directories as they are found in the wild come out as a plain walk reads them."""

import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from spark_jobs.read import plan
from spark_jobs.read.columns import MESSAGE_COLUMNS, arrow_schema, message_schema
from spark_jobs.read.corruption import corruption_batches
from spark_jobs.read.options import parse_read_options
from spark_jobs.read.predicate import Predicate
from spark_jobs.read.scan import SlicePack, read_batches
from tests.spark.data_dirs import Row, content, messages, read_plainly, write_queue
from tests.spark.odd_dirs import ODD_DIRECTORIES


def rows(path: Path, **options: str) -> list[Row]:
    """Reads as Spark does, but in this process."""
    parsed = parse_read_options({"path": str(path)} | options)
    schema = arrow_schema(message_schema(MESSAGE_COLUMNS))
    found: list[Row] = []
    for pack in plan.plan_scan(parsed, Predicate()):
        assert isinstance(pack, SlicePack)
        slices = pickle.loads(pickle.dumps(pack)).slices
        for batch in read_batches(slices, schema, plan.settings(parsed)):
            for row in pa.Table.from_batches([batch]).to_pylist():
                assert row.pop("node") == path.name
                del row["timestamp"]
                found.append(Row(message_id=row.pop("id"), **row))
    return found


def damage(path: Path, **options: str) -> list[tuple[str, str, int | None, str]]:
    parsed = parse_read_options({"path": str(path)} | options)
    return [
        (row["topic"], row["kind"], row["segment"], row["reason"])
        for pack in plan.plan_corruption_scan(parsed)
        for batch in corruption_batches(pack, plan.settings(parsed))
        for row in batch.to_pylist()
    ]


@pytest.mark.parametrize("origin", ["backlog", "earliest"])
@pytest.mark.parametrize("make", ODD_DIRECTORIES, ids=lambda make: make.__name__)
def test_rows_equal_a_plain_walk(make: Callable[[Path], None], origin: str, tmp_path: Path) -> None:
    path = tmp_path / "node"
    path.mkdir()
    make(path)
    expected = read_plainly(path, is_from_earliest=origin == "earliest")

    assert rows(path, **{"from": origin}) == expected
    assert rows(path, splitBytes="1k", **{"from": origin}) == expected
    assert expected
    damage(path, **{"from": origin})


def test_a_directory_that_is_a_link(tmp_path: Path) -> None:
    write_queue(tmp_path / "real", "t", [messages(0, 3)])
    (tmp_path / "link").symlink_to(tmp_path / "real")

    assert rows(tmp_path / "link") == read_plainly(tmp_path / "real")


def test_a_gap_is_one_problem_however_wide(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [messages(0, 1)])
    first = tmp_path / "t.diskqueue.000000.dat"
    first.rename(tmp_path / "t.diskqueue.000007.dat")
    (tmp_path / "t.diskqueue.9000000000.dat").write_bytes(content(messages(1, 1)))
    (tmp_path / "t.diskqueue.meta.dat").write_text("2\n5,0\n9000000000,50\n")

    assert damage(tmp_path) == [
        ("t", "missing", 5, "segments 5 to 6 are missing"),
        ("t", "missing", 8, "segments 8 to 8999999999 are missing"),
    ]


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read everything")
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [messages(0, 1)])
    (tmp_path / "t.diskqueue.000000.dat").chmod(0)

    with pytest.raises(PermissionError, match=r"t\.diskqueue\.000000\.dat"):
        rows(tmp_path)


def test_names_that_are_no_text_are_nobodys_queue(tmp_path: Path) -> None:
    """nsqd makes no such files; a listing must not fail at them."""
    write_queue(tmp_path, "t", [messages(0, 3)])
    strange = os.fsencode(tmp_path) + b"/\xff.diskqueue.000000.dat"
    with open(strange, "wb") as file:
        file.write(struct.pack(">i", 5))

    assert rows(tmp_path) == read_plainly(tmp_path)
