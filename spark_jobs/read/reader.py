"""The reader of `spark.read.format("nsq")`: plans on the driver, reads on the executors.

A partition reads itself, so this reader does not know where messages are stored: a planner makes
partitions of coordinates, picklable, and each of them has a method `read`. `read.files` is the one
storage there is.
"""

import functools
import gc
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from spark_jobs.read.columns import DAMAGE_COLUMN, arrow_schema
from spark_jobs.read.files.corruption import corruption_arrow_schema
from spark_jobs.read.options import Origin, ReadOptions, Table
from spark_jobs.read.plan import plan_corruptions, plan_messages, plan_with_damage
from spark_jobs.read.predicate import NO_FILTERS


@runtime_checkable
class ReadablePartition(Protocol):
    """A partition that a planner made; Spark makes one of its own where there is none."""

    def read(self, schema: pa.Schema, options: ReadOptions) -> Iterator[pa.RecordBatch]:
        """Read the rows, on an executor."""


class NsqReader(DataSourceReader):
    """A reader of the rows that the options select; picklable."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Check options and schema.

        Raises:
            ValueError: a column does not exist or has another type, or from=latest.
        """
        ignore_closed_pipes()  # Plans are made in a worker, too.
        if options.origin is Origin.LATEST:
            raise ValueError("from=latest is for streams")
        is_messages = options.table is Table.MESSAGES
        self._options = options
        self.arrow_schema = arrow_schema(schema) if is_messages else corruption_arrow_schema(schema)
        self._predicate = NO_FILTERS

    def partitions(self) -> Sequence[InputPartition]:
        if self._options.table is Table.CORRUPT_RECORDS:
            return plan_corruptions(self._options)
        if DAMAGE_COLUMN in self.arrow_schema.names:
            return plan_with_damage(self._options, self._predicate)
        return plan_messages(self._options, self._predicate)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self.arrow_schema, self._predicate.narrow(self._options))


class FilteringNsqReader(NsqReader):
    """The same for the rows that the query's filters select, too.

    A class of its own: Spark insists on a setting for every reader that has `pushFilters`.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802 (Spark's name)
        """Accept the filters that can be decided early; yield those that are left to Spark."""
        for each in filters:
            predicate = self._predicate.accept(each)
            if predicate is None or self._options.table is not Table.MESSAGES:
                yield each
            else:
                self._predicate = predicate


def read_partition(
    partition: InputPartition, schema: pa.Schema, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """Read a partition in a Python worker of Spark."""
    ignore_closed_pipes()
    settle_worker()
    if isinstance(partition, ReadablePartition):
        return partition.read(schema, options)
    return iter(())


@functools.cache
def settle_worker() -> None:
    """Tell the garbage collector, once per process, to leave alone the objects there are.

    Spark runs a full collection in its Python worker after every task. With all the modules that
    are imported that takes 25-40 ms, as long as reading 50 MB of headers.
    """
    gc.collect()
    gc.freeze()


@functools.cache
def ignore_closed_pipes() -> None:
    """Keep a Python worker of Spark from printing a traceback when Spark has read enough.

    At the end of a LIMIT Spark closes the pipe; pyspark's daemon takes that for an error.
    """
    print_exc = traceback.print_exc

    def print_unless_closed(*args: Any, **options: Any) -> None:
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            print_exc(*args, **options)

    traceback.print_exc = print_unless_closed
