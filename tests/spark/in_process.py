"""Reads of a data directory as Spark does them, but in this process: planned, pickled, read."""

import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_jobs.read.columns import MESSAGE_COLUMNS, arrow_schema, message_schema
from spark_jobs.read.files.corruption import CORRUPTION_SCHEMA
from spark_jobs.read.options import ReadOptions, parse_read_options
from spark_jobs.read.reader import NsqReader
from spark_jobs.read.stream import NsqStreamReader
from tests.spark.data_dirs import Row


def parse(path: Path | str | None, **options: str) -> ReadOptions:
    """Parse options; without a path they name nodes."""
    return parse_read_options(({} if path is None else {"path": str(path)}) | options)


def read_table(
    path: Path | str | None, names: tuple[str, ...] = MESSAGE_COLUMNS, /, **options: str
) -> pa.Table:
    """Read messages; the columns are Arrow's."""
    schema = message_schema(names)
    return _read(NsqReader(parse(path, **options), schema), len(names))


def read_rows(path: Path, **options: str) -> list[Row]:
    """Read messages of one directory, to be compared with `read_plainly`."""
    found = []
    for row in read_table(path, **options).to_pylist():
        assert row.pop("node") == path.name
        assert row.pop("timestamp").timestamp() * 1e6 == pytest.approx(row["timestamp_ns"] // 1000)
        found.append(Row(message_id=row.pop("id"), **row))
    return found


def read_bodies(path: Path | str, **options: str) -> list[bytes]:
    column: list[bytes] = read_table(path, ("body",), **options)["body"].to_pylist()
    return column


def read_corruptions(path: Path | str | None, **options: str) -> list[dict[str, Any]]:
    """Read the table corrupt_records."""
    reader = NsqReader(parse(path, table="corrupt_records", **options), CORRUPTION_SCHEMA)
    rows: list[dict[str, Any]] = _read(reader, len(CORRUPTION_SCHEMA.fields)).to_pylist()
    return rows


def read_stream(
    path: Path | str, checkpoint: dict[str, Any] | None = None, /, **options: str
) -> tuple[list[bytes], dict[str, Any]]:
    """Run one micro-batch of a new query, or go on from a checkpoint; return bodies and offset."""
    parsed = parse_read_options({"path": str(path)} | options, is_stream=True)
    reader = NsqStreamReader(parsed, arrow_schema(message_schema(("body",))))
    start = checkpoint or reader.initialOffset()
    end = json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))
    executor = pickle.loads(pickle.dumps(reader))
    bodies = [
        body
        for partition in reader.partitions(start, end)
        for batch in executor.read(pickle.loads(pickle.dumps(partition)))
        for body in batch["body"].to_pylist()
    ]
    reader.stop()
    return bodies, end


def _read(reader: NsqReader, column_count: int) -> pa.Table:
    partitions = reader.partitions()
    executor = pickle.loads(pickle.dumps(reader))
    batches = [
        batch
        for partition in partitions
        for batch in executor.read(pickle.loads(pickle.dumps(partition)))
    ]
    assert all(batch.num_columns == column_count for batch in batches)
    table = pa.Table.from_batches(batches, executor.arrow_schema)
    table.validate(full=True)
    return table
