"""Slices come out as the rows that were written, whatever the layout and the damage."""

import pickle
import shutil
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskqueue import segment
from diskqueue.errors import CorruptSegmentError
from spark_jobs.read import plan, scan
from spark_jobs.read.columns import ALL_COLUMNS, MESSAGE_COLUMNS, arrow_schema, message_schema
from spark_jobs.read.corruption import corruption_batches
from spark_jobs.read.options import ReadOptions, parse_read_options
from spark_jobs.read.predicate import Predicate
from spark_jobs.read.scan import DamagedSegmentError, SegmentLostError, SlicePack, read_batches
from tests.spark.data_dirs import (
    TIME_NS,
    Message,
    Row,
    content,
    message,
    messages,
    read_plainly,
    segment_path,
    write_metadata,
    write_queue,
    write_segment,
)

RECORD = 50


def parse(path: Path, options: dict[str, str]) -> ReadOptions:
    return parse_read_options({"path": str(path)} | options)


def table(path: Path, names: tuple[str, ...] = MESSAGE_COLUMNS, /, **options: str) -> pa.Table:
    """Reads as Spark does, but in this process."""
    parsed = parse(path, options)
    schema = arrow_schema(message_schema(names))
    batches: list[pa.RecordBatch] = []
    for pack in plan.plan_scan(parsed, Predicate()):
        assert isinstance(pack, SlicePack)
        copy = pickle.loads(pickle.dumps(pack))
        batches += read_batches(copy.slices, schema, plan.settings(parsed))
    result = pa.Table.from_batches(batches, schema)
    result.validate(full=True)
    return result


def rows(path: Path, **options: str) -> list[Row]:
    found = []
    for row in table(path, **options).to_pylist():
        assert row.pop("node") == path.name
        assert row.pop("timestamp").timestamp() * 1e6 == pytest.approx(row["timestamp_ns"] // 1000)
        row["message_id"] = row.pop("id")
        found.append(Row(**row))
    return found


def bodies(path: Path, **options: str) -> list[bytes]:
    column: list[bytes] = table(path, **options)["body"].to_pylist()
    return column


def corruptions(path: Path, **options: str) -> list[tuple[str, int | None, int | None, int | None]]:
    parsed = parse(path, options)
    return [
        (row["kind"], row["segment"], row["offset"], row["bytes"])
        for pack in plan.plan_corruption_scan(parsed)
        for batch in corruption_batches(pack, plan.settings(parsed))
        for row in batch.to_pylist()
    ]


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "WINDOW_BYTES", 100)


def test_rows_have_every_value(tmp_path: Path) -> None:
    write_queue(tmp_path, "orders", [messages(0, 3), messages(3, 2)], read=(0, RECORD))
    write_queue(tmp_path, "orders:ch", [messages(9, 2)])

    found = rows(tmp_path)

    assert found == read_plainly(tmp_path)
    assert found[0] == Row(
        "orders", None, 0, RECORD, TIME_NS + 1_000_007, 1, "0000000000000001", message(1).body
    )
    assert [row.channel for row in found] == [None] * 4 + ["ch"] * 2


records = st.builds(
    Message,
    st.one_of(
        st.binary(max_size=40), st.builds(lambda n: content(messages(0, n)), st.integers(0, 5))
    ),
    st.integers(-(2**62), 2**62),
    st.integers(0, 65535),
    st.binary(min_size=16, max_size=16),
)
queues = st.dictionaries(
    st.sampled_from(["a", "a:x", "b#ephemeral:y"]),
    st.lists(st.lists(records, max_size=12), max_size=4),
    max_size=3,
)


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name) / "node"


@settings(deadline=None, max_examples=150)
@given(queues, st.integers(40, 3000), st.sampled_from(["backlog", "earliest"]), st.data())
def test_any_records_in_any_layout(
    scratch: Path,
    segments_by_name: dict[str, list[list[Message]]],
    window_bytes: int,
    origin: str,
    data: st.DataObject,
) -> None:
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    for name, segments in segments_by_name.items():
        read = (0, 0)
        if segments:
            number = data.draw(st.integers(0, len(segments) - 1))
            index = data.draw(st.integers(0, len(segments[number])))
            read = number, len(content(segments[number][:index]))
        write_queue(scratch, name, segments, read=read)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "WINDOW_BYTES", window_bytes)
        found = rows(scratch, **{"from": origin})
        split = rows(scratch, splitBytes="100", **{"from": origin})

    assert found == read_plainly(scratch, is_from_earliest=origin == "earliest")
    assert split == found


@settings(deadline=None, max_examples=200)
@given(st.lists(records, min_size=1, max_size=12), st.integers(40, 500), st.data())
def test_damage_ends_a_segment_where_diskqueue_ends_it(
    scratch: Path, written: list[Message], window_bytes: int, data: st.DataObject
) -> None:
    shutil.rmtree(scratch, ignore_errors=True)
    damaged = bytearray(content(written))
    for _ in range(data.draw(st.integers(0, 3))):
        position = data.draw(st.integers(0, len(damaged) - 1))
        damaged[position] = data.draw(st.integers(0, 255))
    del damaged[data.draw(st.integers(0, len(damaged))) :]
    path = write_segment(scratch, "t", 0, bytes(damaged))
    limits = segment.Limits(max_record_bytes=60)
    expected, damage = [], None
    try:
        for offset, payload in segment.iter_records(str(path), limits=limits):
            expected.append((offset, payload[26:]))
    except CorruptSegmentError as error:
        damage = error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "WINDOW_BYTES", window_bytes)
        found = table(scratch, ("offset", "body"), maxMsgSize=str(60 - 26)).to_pylist()
        reported = corruptions(scratch, maxMsgSize=str(60 - 26))

    assert [(row["offset"], row["body"]) for row in found] == expected
    if damage is None:
        assert reported == []
    else:
        kind = "torn" if damage.is_torn else "damaged"
        assert reported == [(kind, 0, damage.offset, len(damaged) - damage.offset)]


@pytest.mark.usefixtures("small_windows")
def test_records_larger_than_a_window_and_than_the_limit(tmp_path: Path) -> None:
    sizes = [10, 99, 300, 0, 2 * 1024 * 1024, 5]
    write_queue(tmp_path, "t", [[message(n, size) for n, size in enumerate(sizes)]])

    found = bodies(tmp_path)

    assert [len(body) for body in found] == sizes
    assert rows(tmp_path) == read_plainly(tmp_path)


@pytest.mark.parametrize("column", ALL_COLUMNS)
def test_each_column_alone(column: str, tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [messages(0, 3)])

    only = table(tmp_path, (column,), includeBad="true")

    assert only.column_names == [column]
    assert only.num_rows == 3
    assert (
        only[column].to_pylist()
        == table(tmp_path, ALL_COLUMNS, includeBad="true")[column].to_pylist()
    )


def test_time_bounds_go_by_each_record_and_not_by_order(tmp_path: Path) -> None:
    times = [50, 10, 40, 20, 30]
    written = [Message(b"%d" % time, TIME_NS + time) for time in times]
    write_queue(tmp_path, "t", [written, [Message(b"99", TIME_NS + 99)]])
    since, until = str(TIME_NS + 20), str(TIME_NS + 50)

    assert bodies(tmp_path, since=since, until=until) == [b"40", b"20", b"30"]
    assert bodies(tmp_path, since=since) == [b"50", b"40", b"20", b"30", b"99"]
    assert bodies(tmp_path, until=since) == [b"10"]
    found = table(tmp_path, since=since, until=until)
    assert found["offset"].to_pylist() == [64, 96, 128]
    assert found["timestamp_ns"].to_pylist() == [TIME_NS + 40, TIME_NS + 20, TIME_NS + 30]


def test_ids_that_are_not_text(tmp_path: Path) -> None:
    ids = [b"\xff" * 16, b"0123456789abcde\0", "0123456789abcdé".encode()]
    write_queue(tmp_path, "t", [[Message(b"x", message_id=each) for each in ids]])

    found = table(tmp_path)["id"].to_pylist()

    assert found == ["\\xff" * 16, "0123456789abcde\0", "0123456789abcdé"]


def test_times_at_the_ends_of_the_range(tmp_path: Path) -> None:
    times = [-(2**63), -1, 0, 1, 2**63 - 1]
    write_queue(tmp_path, "t", [[Message(b"x", each) for each in times]])

    found = table(tmp_path)

    assert found["timestamp_ns"].to_pylist() == times
    microseconds = found["timestamp"].cast(pa.int64()).to_pylist()
    assert microseconds == [each // 1000 for each in times]


def test_damage_ends_its_segment_only(tmp_path: Path) -> None:
    damaged = bytearray(content(messages(0, 5)))
    damaged[2 * RECORD : 2 * RECORD + 4] = struct.pack(">i", -1)
    write_segment(tmp_path, "t", 0, bytes(damaged))
    write_segment(tmp_path, "t", 1, content(messages(5, 2))[:-7])
    write_segment(tmp_path, "t", 2, content(messages(7, 1)))

    assert bodies(tmp_path) == [message(n).body for n in (0, 1, 5, 7)]
    assert corruptions(tmp_path) == [
        ("damaged", 0, 2 * RECORD, 3 * RECORD),
        ("torn", 1, RECORD, RECORD - 7),
    ]


def test_failfast_names_file_and_offset(tmp_path: Path) -> None:
    path = write_segment(tmp_path, "t", 0, content(messages(0, 2))[:-7])

    with pytest.raises(DamagedSegmentError, match=f"{path} at offset {RECORD}"):
        bodies(tmp_path, mode="FAILFAST")


def test_failfast_does_not_take_gaps_either(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [messages(0, 1), messages(1, 1)])
    path = segment_path(tmp_path, "t", 0)
    path.unlink()

    with pytest.raises(DamagedSegmentError, match=f"{path} at offset 0: the segment is missing"):
        bodies(tmp_path, mode="FAILFAST")
    assert bodies(tmp_path) == [message(1).body]


def test_failfast_does_not_mind_what_is_not_synced_yet(tmp_path: Path) -> None:
    write_segment(tmp_path, "t", 0, content(messages(0, 2))[:-7])
    write_metadata(tmp_path, "t", read=(0, 0), write=(0, RECORD))

    assert bodies(tmp_path, mode="FAILFAST") == [message(0).body]


def test_bad_files_are_salvaged_and_marked(tmp_path: Path) -> None:
    damaged = bytearray(content(messages(0, 5)))
    damaged[2 * RECORD : 2 * RECORD + 4] = b"\xff\xff\xff\xff"
    bad = write_segment(tmp_path, "t", 0, bytes(damaged))
    bad.rename(f"{bad}.bad")
    write_queue(tmp_path, "u", [messages(9, 1)])

    found = table(tmp_path, ALL_COLUMNS, includeBad="true").to_pylist()

    assert [(row["body"], row["is_bad"], row["segment"], row["offset"]) for row in found] == [
        (message(0).body, True, 0, 0),
        (message(1).body, True, 0, RECORD),
        (message(3).body, True, 0, 3 * RECORD),
        (message(4).body, True, 0, 4 * RECORD),
        (message(9).body, False, 0, 0),
    ]
    assert bodies(tmp_path) == [message(9).body]
    assert corruptions(tmp_path) == [("lost", 0, 2 * RECORD, RECORD)]


def test_an_empty_bad_file(tmp_path: Path) -> None:
    path = write_segment(tmp_path, "t", 0, b"")
    path.rename(f"{path}.bad")

    assert bodies(tmp_path, includeBad="true") == []


def test_a_segment_consumed_after_planning(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [messages(0, 1), messages(1, 1)])
    parsed = parse(tmp_path, {})
    schema = arrow_schema(message_schema(("body",)))
    [pack] = plan.plan_scan(parsed, Predicate())
    assert isinstance(pack, SlicePack)
    path = segment_path(tmp_path, "t", 0)
    path.unlink()

    with pytest.raises(SegmentLostError, match=str(path)):
        list(read_batches(pack.slices, schema, plan.settings(parsed)))

    lenient = plan.settings(parse(tmp_path, {"failOnDataLoss": "false"}))
    [batch] = read_batches(pack.slices, schema, lenient)
    assert batch["body"].to_pylist() == [message(1).body]


def test_what_is_appended_while_reading_is_not_read(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [messages(0, 2)])
    parsed = parse(tmp_path, {})
    [pack] = plan.plan_scan(parsed, Predicate())
    assert isinstance(pack, SlicePack)
    with segment_path(tmp_path, "t", 0).open("ab") as file:
        file.write(content(messages(2, 1)) + b"\0\0")

    [batch] = read_batches(
        pack.slices, arrow_schema(message_schema(("body",))), plan.settings(parsed)
    )

    assert batch["body"].to_pylist() == [message(0).body, message(1).body]


def test_small_queues_share_partitions_and_large_segments_are_cut(tmp_path: Path) -> None:
    for number in range(200):
        write_queue(tmp_path, f"t{number:03d}", [messages(number, 10)])
    parsed = parse(tmp_path, {})

    assert len(plan.plan_scan(parsed, Predicate())) == 4
    cut = plan.plan_scan(parse(tmp_path, {"splitBytes": "200", "topic": "t000"}), Predicate())
    assert [
        (each.start, each.end)
        for pack in cut
        if isinstance(pack, SlicePack)
        for each in pack.slices
    ] == [(0, 200), (200, 400), (400, 500)]


def test_a_file_uri_reads_the_same(tmp_path: Path) -> None:
    write_queue(tmp_path, "t#ephemeral:c", [messages(0, 3)])

    options = parse_read_options({"path": f"file://{tmp_path}"})
    [pack] = plan.plan_scan(options, Predicate())
    assert isinstance(pack, SlicePack)
    [batch] = read_batches(
        pack.slices, arrow_schema(message_schema(("body",))), plan.settings(options)
    )

    assert batch["body"].to_pylist() == bodies(tmp_path)
