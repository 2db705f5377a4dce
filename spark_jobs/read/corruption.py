"""The side table of a read: what is damaged, missing or not synced, one row per place."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import LongType, StringType, StructField, StructType

from spark_jobs.read.catalog import Problem
from spark_jobs.read.scan import Corruption, ScanSettings, SegmentSlice, find_corruptions

CORRUPTION_SCHEMA = StructType(
    [
        StructField("node", StringType(), False),
        StructField("topic", StringType(), False),
        StructField("channel", StringType(), True),
        StructField("segment", LongType(), True),
        StructField("offset", LongType(), True),
        StructField("bytes", LongType(), True),
        # torn, damaged, lost (in a .bad file); missing, short, unsynced, metadata
        StructField("kind", StringType(), False),
        StructField("reason", StringType(), False),
        StructField("path", StringType(), False),
    ]
)
_ARROW = pa.schema(
    [
        pa.field(
            field.name,
            pa.int64() if isinstance(field.dataType, LongType) else pa.string(),
            nullable=field.nullable,
        )
        for field in CORRUPTION_SCHEMA.fields
    ]
)
_BATCH_ROWS = 8192

_Row = tuple[str, str, str | None, int | None, int | None, int | None, str, str, str]


@dataclass(frozen=True, slots=True)
class ProblemRow:
    """What planning already knew."""

    node: str
    directory: str
    topic: str
    channel: str | None
    problem: Problem


@dataclass(frozen=True)
class CorruptionPack(InputPartition):
    """What one task looks through, and what it just passes on."""

    slices: tuple[SegmentSlice, ...]
    problems: tuple[ProblemRow, ...]


def corruption_batches(
    partition: InputPartition, settings: ScanSettings
) -> Iterator[pa.RecordBatch]:
    """The rows of one partition.

    Raises:
        SegmentLostError: a segment was consumed meanwhile.
        OSError: a file cannot be read.
    """
    if not isinstance(partition, CorruptionPack):
        return  # Spark makes a partition of its own where there is none.
    rows = [_problem_row(each) for each in partition.problems]
    for found in find_corruptions(partition.slices, settings):
        rows.append(_corruption_row(found))
        if len(rows) >= _BATCH_ROWS:
            yield _batch(rows)
            rows = []
    if rows:
        yield _batch(rows)


def _batch(rows: list[_Row]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _ARROW, strict=True)]
    return pa.record_batch(arrays, schema=_ARROW)


def _problem_row(each: ProblemRow) -> _Row:
    problem = each.problem
    return (
        each.node,
        each.topic,
        each.channel,
        problem.segment,
        problem.offset,
        problem.byte_count,
        problem.kind,
        problem.reason,
        f"{each.directory}/{problem.file_name}",
    )


def _corruption_row(found: Corruption) -> _Row:
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
