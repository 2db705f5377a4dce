"""Every column has the values of the records, and bounds go by each record."""

from pathlib import Path

import pyarrow as pa
import pytest

from spark_jobs.read.columns import ALL_COLUMNS
from tests.spark.data_dirs import TIME_NS, Message, messages, write_queue
from tests.spark.in_process import read_bodies, read_table


@pytest.mark.parametrize("column", ALL_COLUMNS)
def test_each_column_alone(column: str, tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [messages(0, 3)])

    only = read_table(tmp_path, (column,), includeBad="true")

    assert only.column_names == [column]
    assert only.num_rows == 3
    assert (
        only[column].to_pylist()
        == read_table(tmp_path, ALL_COLUMNS, includeBad="true")[column].to_pylist()
    )


def test_time_bounds_go_by_each_record_and_not_by_order(tmp_path: Path) -> None:
    times = [50, 10, 40, 20, 30]
    written = [Message(b"%d" % time, TIME_NS + time) for time in times]
    write_queue(tmp_path, "t", [written, [Message(b"99", TIME_NS + 99)]])
    since, until = str(TIME_NS + 20), str(TIME_NS + 50)

    assert read_bodies(tmp_path, since=since, until=until) == [b"40", b"20", b"30"]
    assert read_bodies(tmp_path, since=since) == [b"50", b"40", b"20", b"30", b"99"]
    assert read_bodies(tmp_path, until=since) == [b"10"]
    found = read_table(tmp_path, since=since, until=until)
    assert found["offset"].to_pylist() == [64, 96, 128]
    assert found["timestamp_ns"].to_pylist() == [TIME_NS + 40, TIME_NS + 20, TIME_NS + 30]


def test_ids_that_are_not_text(tmp_path: Path) -> None:
    ids = [b"\xff" * 16, b"0123456789abcde\0", "0123456789abcdé".encode()]
    write_queue(tmp_path, "t", [[Message(b"x", message_id=each) for each in ids]])

    found = read_table(tmp_path)["id"].to_pylist()

    assert found == ["\\xff" * 16, "0123456789abcde\0", "0123456789abcdé"]


def test_times_at_the_ends_of_the_range(tmp_path: Path) -> None:
    times = [-(2**63), -1, 0, 1, 2**63 - 1]
    write_queue(tmp_path, "t", [[Message(b"x", each) for each in times]])

    found = read_table(tmp_path)

    assert found["timestamp_ns"].to_pylist() == times
    microseconds = found["timestamp"].cast(pa.int64()).to_pylist()
    assert microseconds == [each // 1000 for each in times]
