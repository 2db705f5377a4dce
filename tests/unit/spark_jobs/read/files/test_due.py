"""Due times of records, in order or by id."""

import struct

import numpy as np
import pyarrow as pa

from spark_jobs.read.columns import Constants, arrow_schema, message_schema
from spark_jobs.read.files.due import DueTimes
from spark_jobs.read.files.records import Records
from tests.spark.data_dirs import content, message, messages

RECORD = 50
SCHEMA = arrow_schema(message_schema(("id", "state", "due")))
SECOND_NS = 10**9


def records(first: int, count: int) -> Records:
    data = bytearray(content(messages(first, count)))
    offsets = np.arange(count, dtype=np.int64) * RECORD
    return Records(data, len(data), offsets, len(data), base=0)


def rows(found: Records, state: str) -> list[tuple[str, float | None]]:
    constants = Constants("n", "t", None, -1, is_bad=False, state=state)
    batch: pa.RecordBatch = found.batch(SCHEMA, constants)
    return [(row["state"], row["due"] and row["due"].timestamp()) for row in batch.to_pylist()]


def test_times_in_the_order_of_the_records() -> None:
    data = struct.pack(">5q", *(number * SECOND_NS for number in range(1, 6)))
    times = DueTimes("f", len(data), has_ids=False, taken_ns=0).parse(data)
    first, second = records(0, 2), records(2, 4)

    times.add_to(first)
    times.add_to(second)

    assert rows(first, "in_flight") == [("in_flight", 1.0), ("in_flight", 2.0)]
    # The file was too short for the last one.
    assert [due for _, due in rows(second, "deferred")] == [3.0, 4.0, 5.0, None]


def test_times_by_id_are_of_records_that_are_due_later() -> None:
    entries = [(3, 30), (1, 5), (2, 20), (77, 50)]
    data = b"".join(
        message(number).message_id + struct.pack(">q", due * SECOND_NS) for number, due in entries
    )
    times = DueTimes("f", len(data), has_ids=True, taken_ns=10 * SECOND_NS).parse(data)
    found = records(0, 5)

    times.add_to(found)
    found.drop_within(np.array([0, RECORD], np.int64))

    assert rows(found, "ready") == [
        ("ready", None),
        ("deferred", 20.0),
        ("deferred", 30.0),
        ("ready", None),
    ]


def test_no_times_at_all() -> None:
    found = records(0, 1)
    DueTimes("f", 0, has_ids=True, taken_ns=0).parse(b"").add_to(found)

    assert rows(found, "ready") == [("ready", None)]
