"""Schemas of columns: Spark's types, and their refusal where they do not fit."""

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from spark_jobs.read.columns import ALL_COLUMNS, MESSAGE_COLUMNS, arrow_schema, message_schema


def test_the_arrow_schema_has_the_columns_of_sparks_schema() -> None:
    schema = arrow_schema(message_schema(("body", "timestamp", "channel")))

    assert schema == pa.schema(
        [
            pa.field("body", pa.binary(), nullable=False),
            pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
            pa.field("channel", pa.string()),
        ]
    )


def test_some_columns_are_only_there_when_asked_for() -> None:
    assert set(ALL_COLUMNS) - set(MESSAGE_COLUMNS) == {
        "size",
        "is_bad",
        "state",
        "due",
        "damage",
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("bytes", "no column 'bytes' in format nsq; there are node, topic"),
        ("body", "column 'body' of format nsq is binary, not string"),
    ],
)
def test_a_column_that_does_not_fit_is_refused(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        arrow_schema(StructType([StructField(name, StringType())]))
