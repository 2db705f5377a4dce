"""The table corrupt_records: one row per place that is damaged, missing or not synced."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import LongType, StringType, StructField, StructType

from spark_jobs.read.files.scan import Corruption, SegmentSlice, find_corruptions
from spark_jobs.read.options import ReadOptions
from spark_jobs.read.queue import Problem, Queue

CORRUPTION_SCHEMA = StructType(
    [
        StructField("node", StringType(), False),
        StructField("topic", StringType(), False),
        StructField("channel", StringType(), True),
        StructField("segment", LongType(), True),
        StructField("offset", LongType(), True),
        StructField("bytes", LongType(), True),
        # torn, damaged, denied, lost (in a .bad file); missing, short, unsynced, metadata,
        # unreachable
        StructField("kind", StringType(), False),
        StructField("reason", StringType(), False),
        StructField("path", StringType(), False),
    ]
)
_BATCH_ROWS = 8192

# The values of CORRUPTION_SCHEMA, in its order.
CorruptionRow = tuple[str, str, str | None, int | None, int | None, int | None, str, str, str]


def corruption_arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of the table.

    Raises:
        ValueError: Spark was given another schema.
    """
    if schema != CORRUPTION_SCHEMA:
        raise ValueError("the table corrupt_records has a schema of its own")
    return pa.schema(
        [
            pa.field(
                field.name,
                pa.int64() if isinstance(field.dataType, LongType) else pa.string(),
                nullable=field.nullable,
            )
            for field in schema.fields
        ]
    )


@dataclass(frozen=True)
class CorruptionPartition(InputPartition):
    """The slices that one task looks through, and rows that planning made already."""

    slices: tuple[SegmentSlice, ...]
    rows: tuple[CorruptionRow, ...]

    def read(self, schema: pa.Schema, options: ReadOptions) -> Iterator[pa.RecordBatch]:
        """Return the rows of this partition.

        Raises:
            SegmentLostError: a segment was consumed meanwhile.
            OSError: a file cannot be read.
        """
        rows = list(self.rows)
        for found in find_corruptions(self.slices, options):
            rows.append(corruption_row(found))
            if len(rows) >= _BATCH_ROWS:
                yield _batch(rows, schema)
                rows = []
        if rows:
            yield _batch(rows, schema)


def problem_row(queue: Queue, problem: Problem) -> CorruptionRow:
    """Return the row of a fault that shows without reading segments."""
    return (
        queue.node,
        queue.topic,
        queue.channel,
        problem.segment,
        problem.offset,
        problem.byte_count,
        problem.kind,
        problem.reason,
        f"{queue.directory}/{problem.file_name}",
    )


def unreachable_row(url: str, reason: str) -> CorruptionRow:
    """Return the row of a node that could not be asked."""
    return url.partition("://")[2], "", None, None, None, None, "unreachable", reason, url


def corruption_row(found: Corruption) -> CorruptionRow:
    """Return the row of a place that a scan has found."""
    constants = found.slice.constants
    return (
        constants.node,
        constants.topic,
        constants.channel,
        constants.segment,
        found.offset,
        found.byte_count,
        found.kind,
        found.reason,
        f"{found.slice.directory}/{found.slice.file_name}",
    )


def _batch(rows: list[CorruptionRow], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.record_batch(arrays, schema=schema)
