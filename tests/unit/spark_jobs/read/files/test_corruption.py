"""The table corrupt_records has a row for each damaged place; messages around it are read."""

import struct
from pathlib import Path

from spark_jobs.read.columns import MESSAGE_COLUMNS
from tests.spark.data_dirs import (
    content,
    message,
    messages,
    write_metadata,
    write_queue,
    write_segment,
)
from tests.spark.in_process import read_bodies, read_corruptions, read_table

RECORD = 50


def places(path: Path, **options: str) -> list[tuple[str, int | None, int | None, int | None]]:
    """The damage: kind, segment, offset and number of bytes."""
    return [
        (row["kind"], row["segment"], row["offset"], row["bytes"])
        for row in read_corruptions(path, **options)
    ]


def test_damage_ends_its_segment_only(tmp_path: Path) -> None:
    damaged = bytearray(content(messages(0, 5)))
    damaged[2 * RECORD : 2 * RECORD + 4] = struct.pack(">i", -1)
    write_segment(tmp_path, "t", 0, bytes(damaged))
    write_segment(tmp_path, "t", 1, content(messages(5, 2))[:-7])
    write_segment(tmp_path, "t", 2, content(messages(7, 1)))

    assert read_bodies(tmp_path) == [message(n).body for n in (0, 1, 5, 7)]
    assert places(tmp_path) == [
        ("damaged", 0, 2 * RECORD, 3 * RECORD),
        ("torn", 1, RECORD, RECORD - 7),
    ]


def test_bad_files_are_salvaged_and_marked(tmp_path: Path) -> None:
    damaged = bytearray(content(messages(0, 5)))
    damaged[2 * RECORD : 2 * RECORD + 4] = b"\xff\xff\xff\xff"
    bad = write_segment(tmp_path, "t", 0, bytes(damaged))
    bad.rename(f"{bad}.bad")
    write_queue(tmp_path, "u", [messages(9, 1)])

    found = read_table(tmp_path, (*MESSAGE_COLUMNS, "is_bad"), includeBad="true").to_pylist()

    assert [(row["body"], row["is_bad"], row["segment"], row["offset"]) for row in found] == [
        (message(0).body, True, 0, 0),
        (message(1).body, True, 0, RECORD),
        (message(3).body, True, 0, 3 * RECORD),
        (message(4).body, True, 0, 4 * RECORD),
        (message(9).body, False, 0, 0),
    ]
    assert read_bodies(tmp_path) == [message(9).body]
    assert places(tmp_path) == [("lost", 0, 2 * RECORD, RECORD)]


def test_an_empty_bad_file(tmp_path: Path) -> None:
    path = write_segment(tmp_path, "t", 0, b"")
    path.rename(f"{path}.bad")

    assert read_bodies(tmp_path, includeBad="true") == []


def test_zeros_behind_the_records_are_damage(tmp_path: Path) -> None:
    """A put past the end of a file that was cut short leaves a hole."""
    data = content(messages(0, 2)) + struct.pack(">i", 0) * 10 + content(messages(2, 1))
    write_segment(tmp_path, "t", 0, data)
    write_metadata(tmp_path, "t", read=(0, 0), write=(0, len(data)))

    assert len(read_bodies(tmp_path)) == 2
    assert places(tmp_path) == [("damaged", 0, 2 * RECORD, len(data) - 2 * RECORD)]


def test_a_file_that_ends_before_its_synced_end_is_torn(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [messages(0, 3)])
    path = write_segment(tmp_path, "t", 0, content(messages(0, 2)))

    assert len(read_bodies(tmp_path)) == 2
    [row] = read_corruptions(tmp_path)
    assert (row["kind"], row["offset"], row["bytes"]) == ("short", 2 * RECORD, RECORD)
    assert row["path"] == str(path)


def test_a_gap_is_one_problem_however_wide(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [messages(0, 1)])
    first = tmp_path / "t.diskqueue.000000.dat"
    first.rename(tmp_path / "t.diskqueue.000007.dat")
    (tmp_path / "t.diskqueue.9000000000.dat").write_bytes(content(messages(1, 1)))
    (tmp_path / "t.diskqueue.meta.dat").write_text("2\n5,0\n9000000000,50\n")

    rows = [(row["kind"], row["segment"], row["reason"]) for row in read_corruptions(tmp_path)]
    assert rows == [
        ("missing", 5, "segments 5 to 6 are missing"),
        ("missing", 8, "segments 8 to 8999999999 are missing"),
    ]
