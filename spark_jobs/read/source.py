"""The data source `nsq`: queues on disk as a DataFrame or a stream, and a sink into a running nsqd.

    from spark_jobs.read.source import register
    register(spark)

    spark.read.format("nsq").load("/var/lib/nsqd")            # the backlog, all topics and channels
    spark.read.format("nsq").option("topic", "orders").option("since", "1h").load("/copies/*")

Options of a read (names are case-insensitive):

    topic            names or patterns, with commas; default `*`
    channel          the same; `` (empty) is a topic's own queue; default: these and all channels
    from             backlog (what is not consumed), earliest (all that is there), archive
    since, until     2026-01-31T12:00:00Z, 15m (ago), or nanoseconds; until is exclusive
    columns          which to build, with commas; a schema given to Spark does the same; also size,
                     the length of the body, which costs less than the body
    mode             PERMISSIVE (damage is skipped and logged) or FAILFAST
    table            messages, or corrupt_records: what is damaged, missing or not synced
    includeBad       also what can be salvaged from `.bad` files, marked in a column is_bad
    includeUnsynced  also what stands behind the synced position, for copies after a crash
    failOnDataLoss   true: a segment that was consumed meanwhile fails the job
    splitBytes       cut larger segments, and gather smaller ones, to partitions of about this size
    node             the value of the column node; default: the directory's name
    maxMsgSize       nsqd's --max-msg-size, if that was raised

`spark_jobs.write.sink` has the options of a write, `spark_jobs.read.stream` those of a stream.
The directory may belong to a running nsqd: nothing is written or locked.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from spark_jobs.read import plan
from spark_jobs.read.columns import arrow_schema, message_schema
from spark_jobs.read.corruption import CORRUPTION_SCHEMA, corruption_batches
from spark_jobs.read.options import Origin, ReadOptions, Table, parse_read_options
from spark_jobs.read.predicate import Predicate
from spark_jobs.read.scan import SlicePack, ignore_closed_pipes, read_batches, settle_worker
from spark_jobs.read.stream import NsqStreamReader
from spark_jobs.write.sink import (
    NsqStreamWriter,
    NsqWriter,
    SinkOptions,
    check_sink_schema,
    parse_sink_options,
)

FORMAT = "nsq"
PUSHDOWN_SETTING = "spark.sql.python.filterPushdown.enabled"


class NsqDataSource(DataSource):
    """Queues on disk; what is read is decided by the options alone."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        ignore_closed_pipes()
        return _schema(parse_read_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        return PlainReader(Scan(parse_read_options(self.options), schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        options = parse_read_options(self.options)
        if options.table is not Table.MESSAGES:
            raise ValueError("a stream has messages only; read the table corrupt_records at once")
        return NsqStreamReader(options, arrow_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001
        return NsqWriter(_sink_options(self.options, schema, overwrites=overwrite))

    def streamWriter(  # noqa: N802 (Spark's name)
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001
    ) -> DataSourceStreamWriter:
        return NsqStreamWriter(_sink_options(self.options, schema, overwrites=overwrite))


class FilteringNsqDataSource(NsqDataSource):
    """The same, with filters pushed down: a query's WHERE prunes queues, segments and times.

    Not the default. Spark (4.3) keeps one plan per DataFrame, and the filters that were pushed
    last replace it: a second query on the same DataFrame or view then silently misses rows. Only
    for DataFrames that are used once. Spark also demands a setting for it, which `register` makes.
    """

    def reader(self, schema: StructType) -> DataSourceReader:
        return FilteringReader(Scan(parse_read_options(self.options), schema))


def register(spark: SparkSession, *, pushes_filters: bool = False) -> None:
    """Makes the format `nsq` known to a session.

    Args:
        pushes_filters: see `FilteringNsqDataSource` before using it.
    """
    if pushes_filters:
        spark.conf.set(PUSHDOWN_SETTING, "true")
        spark.dataSource.register(FilteringNsqDataSource)
    else:
        spark.dataSource.register(NsqDataSource)


def read_corrupt_records(spark: SparkSession, path: str | list[str], **options: str) -> DataFrame:
    """The side table of a read: every damaged, missing or unsynced place, with its reason."""
    reader = spark.read.format(FORMAT).options(**options).option("table", "corrupt_records")
    return reader.load(path)


def _sink_options(
    options: Mapping[str, str], schema: StructType, *, overwrites: bool
) -> SinkOptions:
    if overwrites:
        raise ValueError('a topic cannot be overwritten; use mode("append")')
    parsed = parse_sink_options(options)
    check_sink_schema(schema, parsed)
    return parsed


def _schema(options: ReadOptions) -> StructType:
    if options.table is Table.CORRUPT_RECORDS:
        return CORRUPTION_SCHEMA
    return message_schema(options.columns)


@dataclass
class Scan:
    """A read as both readers do it; picklable."""

    options: ReadOptions
    schema: StructType
    predicate: Predicate = field(default_factory=Predicate)
    arrow: pa.Schema = field(init=False)

    def __post_init__(self) -> None:
        ignore_closed_pipes()  # Plans are made in a worker, too.
        if self.options.origin is Origin.LATEST:
            raise ValueError("from=latest is for streams")
        if self.options.table is Table.MESSAGES:
            self.arrow = arrow_schema(self.schema)
        elif self.schema != CORRUPTION_SCHEMA:
            raise ValueError("the table corrupt_records has a schema of its own")

    def partitions(self) -> list[InputPartition]:
        if self.options.table is Table.CORRUPT_RECORDS:
            return plan.plan_corruption_scan(self.options)
        return plan.plan_scan(self.options, self.predicate)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """What a task does; runs in a Python worker of Spark."""
        ignore_closed_pipes()
        settle_worker()
        if self.options.table is Table.CORRUPT_RECORDS:
            return corruption_batches(partition, plan.settings(self.options))
        # Spark makes a partition of its own where there is none.
        slices = partition.slices if isinstance(partition, SlicePack) else ()
        return read_batches(slices, self.arrow, plan.settings(self.options, self.predicate))


class PlainReader(DataSourceReader):
    """Reads whatever the options select."""

    def __init__(self, scan: Scan) -> None:
        self._scan = scan

    def partitions(self) -> Sequence[InputPartition]:
        return self._scan.partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._scan.read(partition)


class FilteringReader(DataSourceReader):
    """Reads whatever the options and the query's filters select."""

    def __init__(self, scan: Scan) -> None:
        self._scan = scan

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802 (Spark's name)
        for each in filters:
            predicate = self._scan.predicate.accept(each)
            if predicate is None or self._scan.options.table is not Table.MESSAGES:
                yield each
            else:
                self._scan.predicate = predicate

    def partitions(self) -> Sequence[InputPartition]:
        return self._scan.partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._scan.read(partition)
