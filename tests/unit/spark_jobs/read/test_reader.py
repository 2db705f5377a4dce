"""The reader refuses a senseless read, and accepts the filters that it can decide early."""

from pathlib import Path

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual, InputPartition
from pyspark.sql.types import StructType

from spark_jobs.read.columns import MESSAGE_COLUMNS, message_schema
from spark_jobs.read.files.corruption import CORRUPTION_SCHEMA
from spark_jobs.read.reader import FilteringNsqReader, NsqReader
from tests.spark.data_dirs import TIME_NS, Message, messages, write_queue
from tests.spark.in_process import parse

MESSAGES = message_schema(MESSAGE_COLUMNS)


def test_a_partition_of_sparks_own_has_no_rows(tmp_path: Path) -> None:
    reader = NsqReader(parse(tmp_path), MESSAGES)

    assert list(reader.partitions()) == []
    assert list(reader.read(InputPartition(0))) == []


@pytest.mark.parametrize(
    ("options", "schema", "text"),
    [
        ({"from": "latest"}, MESSAGES, "from=latest is for streams"),
        ({"table": "corrupt_records"}, MESSAGES, "a schema of its own"),
        ({}, CORRUPTION_SCHEMA, "no column 'bytes' in format nsq"),
    ],
)
def test_a_read_without_sense_is_refused(
    options: dict[str, str], schema: StructType, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        NsqReader(parse("x", **options), schema)


def test_pushed_filters_drop_queues_and_narrow_the_time(tmp_path: Path) -> None:
    write_queue(tmp_path, "a", [[Message(b"%d" % n, TIME_NS + n) for n in range(5)]])
    write_queue(tmp_path, "b", [messages(0, 3)])
    reader = FilteringNsqReader(parse(tmp_path), message_schema(("body",)))
    undecidable = EqualTo(("body",), b"3")
    filters: list[Filter] = [
        EqualTo(("topic",), "a"),
        undecidable,
        GreaterThanOrEqual(("timestamp_ns",), TIME_NS + 3),
    ]

    left = list(reader.pushFilters(filters))

    [partition] = reader.partitions()
    [batch] = reader.read(partition)
    assert left == [undecidable]
    assert batch["body"].to_pylist() == [b"3", b"4"]


def test_the_table_of_damage_leaves_all_filters_to_spark(tmp_path: Path) -> None:
    reader = FilteringNsqReader(parse(tmp_path, table="corrupt_records"), CORRUPTION_SCHEMA)
    each = EqualTo(("topic",), "a")

    assert list(reader.pushFilters([each])) == [each]
