"""The columns of a message: names, Spark's and Arrow's types.

A new column is declared here and built in files/records.py; one that is the same for a whole
segment also stands in `Constants`, which plan.py fills, and in predicate.py.

Wherever messages are read from, they become Arrow batches of these columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

# Name -> Spark's type, Arrow's type, whether it may be null.
_COLUMNS: dict[str, tuple[DataType, pa.DataType, bool]] = {
    "node": (StringType(), pa.string(), False),
    "topic": (StringType(), pa.string(), False),
    "channel": (StringType(), pa.string(), True),
    "segment": (LongType(), pa.int64(), False),
    "offset": (LongType(), pa.int64(), False),
    "timestamp": (TimestampType(), pa.timestamp("us", tz="UTC"), False),
    "timestamp_ns": (LongType(), pa.int64(), False),
    "attempts": (IntegerType(), pa.int32(), False),
    "id": (StringType(), pa.string(), False),
    "body": (BinaryType(), pa.binary(), False),
    "is_bad": (BooleanType(), pa.bool_(), False),
    "size": (IntegerType(), pa.int32(), False),
    "state": (StringType(), pa.string(), True),
    "due": (TimestampType(), pa.timestamp("us", tz="UTC"), True),
    "damage": (StringType(), pa.string(), True),
}
# Marks messages that were salvaged from `.bad` files; only there when these are asked for.
BAD_COLUMN = "is_bad"
# The body's size without the body; only there when it is asked for by name.
SIZE_COLUMN = "size"
# Where a message is, and until when: only there in a read over HTTP, or when asked for by name.
FLEET_COLUMNS = ("state", "due")
# Places that cannot be read come as rows with a text here, among the messages; only there when it
# is asked for by name. So one scan finds the messages and the damage.
DAMAGE_COLUMN = "damage"
MESSAGE_COLUMNS = tuple(
    name
    for name in _COLUMNS
    if name not in (BAD_COLUMN, SIZE_COLUMN, DAMAGE_COLUMN, *FLEET_COLUMNS)
)
ALL_COLUMNS = tuple(_COLUMNS)


@dataclass(frozen=True, slots=True)
class Constants:
    """The values that all messages of one segment share."""

    node: str
    topic: str
    channel: str | None
    segment: int
    is_bad: bool
    # ready, in_flight or deferred; None if only the node knew.
    state: str | None = None


def message_schema(names: Sequence[str]) -> StructType:
    """Return the Spark schema of these columns."""
    return StructType([StructField(name, _COLUMNS[name][0], _COLUMNS[name][2]) for name in names])


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects for its own.

    Raises:
        ValueError: a column does not exist or has another type.
    """
    fields = []
    for field in schema.fields:
        if field.name not in _COLUMNS:
            raise ValueError(
                f"no column {field.name!r} in format nsq; there are {', '.join(ALL_COLUMNS)}"
            )
        spark_type, arrow_type, _ = _COLUMNS[field.name]
        if field.dataType != spark_type:
            raise ValueError(
                f"column {field.name!r} of format nsq is {spark_type.simpleString()},"
                f" not {field.dataType.simpleString()}"
            )
        fields.append(pa.field(field.name, arrow_type, nullable=field.nullable))
    return pa.schema(fields)
