"""The driver of a query from nsqd into a sink that knows batches; a process that others kill.

    python -m tests.support.streams.driver '{"kind": "bare", "directory": "...", "options": {...}}'

A query that fails is told in a line of JSON on stdout, then run once with failOnDataLoss=false, and
started again. With `"is_last": true` it ends when everything was read, and writes `rows.json`.

Two kinds: `spark` is a query of Spark's into Parquet; `bare` calls the reader in Spark's order,
with logs of offsets and commits as Spark's, and starts in a second.
"""

import json
import logging
import os
import pickle
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadLimit

from spark_jobs.read.columns import arrow_schema, message_schema
from spark_jobs.read.files.scan import SegmentLostError
from spark_jobs.read.fleet.client import NodeError
from spark_jobs.read.options import parse_read_options
from spark_jobs.read.stream import NsqStreamReader
from spark_jobs.session import open_session

# What a query may fail with here; anything else ends the driver with a traceback.
REASONS = (
    "was deleted and made anew",
    "is gone: it was deleted",
    "went back from",
    "was deleted before",
    "was deleted with its topic",
    "was consumed, deleted with its topic",
    "is gone since this job was planned",
    "cannot be reached",
)
_PAUSE_S = 0.1
_JOB_MEMORY = "512m"


class DriverError(Exception):
    """Raised when a query fails without one of the reasons."""


def tell(**fact: object) -> None:
    """Write a line for the one who started this process."""
    sys.stdout.write(json.dumps(fact | {"at": time.monotonic()}) + "\n")
    sys.stdout.flush()


class _TellingHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        tell(report=record.getMessage())


class SparkQuery:
    """A query of Spark's, into Parquet."""

    def __init__(self, spark: SparkSession, directory: Path, options: dict[str, str]) -> None:
        self._spark = spark
        self._directory = directory
        self._options = options

    def run(self, *, is_lenient: bool, is_last: bool) -> None:
        """Run until everything was read, or for ever.

        Raises:
            StreamingQueryException: the query failed.
        """
        options = self._options | {"failOnDataLoss": str(not is_lenient).lower()}
        writer = (
            self._spark.readStream.format("nsq")
            .options(**options)
            .load()
            .select("topic", "body")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(self._directory / "checkpoint"))
        )
        if is_last or is_lenient:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime="100 milliseconds")
        query = writer.start(str(self._directory / "lake"))
        tell(started=True)
        while not query.awaitTermination(1):
            if query.lastProgress is not None:
                tell(batch=query.lastProgress["batchId"])

    def rows(self) -> Iterator[str]:
        """Give the bodies that were committed."""
        lake = self._spark.read.schema("topic string, body binary")
        for row in lake.parquet(str(self._directory / "lake")).toLocalIterator():
            yield bytes(row.body).decode()


class BareQuery:
    """The reader as Spark calls it: the offset is logged before a batch, the commit after it."""

    def __init__(self, directory: Path, options: dict[str, str]) -> None:
        self._options = options
        self._offsets = directory / "offsets"
        self._sink = directory / "sink"
        for path in (self._offsets, self._sink):
            path.mkdir(parents=True, exist_ok=True)

    def run(self, *, is_lenient: bool, is_last: bool) -> None:
        """Run until everything was read, or for ever.

        Raises:
            SegmentLostError, NodeError: the query failed.
        """
        options = self._options | {"failOnDataLoss": str(not is_lenient).lower()}
        parsed = parse_read_options(options, is_stream=True)
        reader = NsqStreamReader(parsed, arrow_schema(message_schema(("topic", "body"))))
        try:
            self._run(reader, is_single=is_lenient, is_last=is_last)
        finally:
            reader.stop()

    def _run(self, reader: NsqStreamReader, *, is_single: bool, is_last: bool) -> None:
        tell(started=True)
        limit = reader.getDefaultReadLimit()
        if is_single or is_last:
            reader.prepareForTriggerAvailableNow()
        # Of offsets and batches: batch 0 goes from the initial offset to the one numbered 1.
        number = len(list(self._offsets.iterdir())) - 1
        if number < 0:
            self._write(self._offsets / "0", reader.initialOffset())
            number = 0
        if number > 0 and not (self._sink / str(number)).exists():
            self._write(self._sink / str(number), self._read(reader, number))
        while True:
            if not self._advance(reader, number + 1, limit):
                if is_last or is_single:
                    return
                time.sleep(_PAUSE_S)
                continue
            number += 1
            self._write(self._sink / str(number), self._read(reader, number))
            tell(batch=number)

    def _advance(self, reader: NsqStreamReader, number: int, limit: ReadLimit) -> bool:
        start = self._load(number - 1)
        end = json.loads(json.dumps(reader.latestOffset(start, limit)))
        if end == start:
            return False
        self._write(self._offsets / str(number), end)
        return True

    def _read(self, reader: NsqStreamReader, number: int) -> list[str]:
        partitions = reader.partitions(self._load(number - 1), self._load(number))
        executor = pickle.loads(pickle.dumps(reader))
        return [
            body.decode()
            for partition in partitions
            for batch in executor.read(pickle.loads(pickle.dumps(partition)))
            for body in batch["body"].to_pylist()
        ]

    def _load(self, number: int) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self._offsets / str(number)).read_text())
        return loaded

    @staticmethod
    def _write(path: Path, content: object) -> None:
        # In the directory above: the names in this one are counted.
        temporary = path.parent.parent / f"{path.parent.name}.{path.name}.tmp"
        temporary.write_text(json.dumps(content))
        os.replace(temporary, path)

    def rows(self) -> Iterator[str]:
        """Give the bodies that were committed."""
        for path in self._sink.iterdir():
            yield from json.loads(path.read_text())


def drive(query: SparkQuery | BareQuery, directory: Path, *, is_last: bool) -> None:
    """Run a query again and again, leniently after each failure; with is_last until all is read.

    Raises:
        DriverError: it failed without a reason that it may have.
    """
    is_lenient = False
    while True:
        try:
            query.run(is_lenient=is_lenient, is_last=is_last)
        except (SegmentLostError, NodeError, StreamingQueryException) as error:
            text = str(error)
            if not any(reason in text for reason in REASONS):
                raise DriverError(f"a failure without a reason: {text[:2000]}") from error
            tell(report=text[:4000])
            time.sleep(_PAUSE_S)
            is_lenient = True
            continue
        tell(ended=True, is_lenient=is_lenient)
        if is_last and not is_lenient:
            break
        is_lenient = False
    (directory / "rows.json").write_text(json.dumps(list(query.rows())))
    tell(rows=True)


def main() -> None:
    """Run what the argument says."""
    given = json.loads(sys.argv[1])
    directory = Path(given["directory"])
    handler = _TellingHandler(logging.WARNING)
    logging.getLogger("spark_jobs").addHandler(handler)
    with suppress(KeyboardInterrupt):
        if given["kind"] == "bare":
            drive(BareQuery(directory, given["options"]), directory, is_last=given["is_last"])
            return
        with open_session("stream kills", master="local[2]", memory=_JOB_MEMORY) as spark:
            query = SparkQuery(spark, directory, given["options"])
            drive(query, directory, is_last=given["is_last"])


if __name__ == "__main__":
    main()
