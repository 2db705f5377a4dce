"""The data source `nsq`: queues on disk as a DataFrame or a stream, and a sink into a running nsqd.

    from spark_jobs import register
    register(spark)

    spark.read.format("nsq").load("/var/lib/nsqd")            # the backlog, all topics and channels
    spark.read.format("nsq").option("topic", "orders").option("since", "1h").load("/copies/*")

Options of a read (names are case-insensitive):

    topic            names or patterns, with commas; default `*`
    channel          the same; `` (empty) is a topic's own queue; default: these and all channels
    from             backlog (messages not consumed), earliest (all on disk), archive
    since, until     2026-01-31T12:00:00Z, 15m (ago), or nanoseconds; until is exclusive
    columns          which to build, with commas; a schema given to Spark does the same; also size,
                     the length of the body, which costs less than the body
    mode             PERMISSIVE (damage is skipped and logged) or FAILFAST
    table            messages, or corrupt_records: places damaged, missing or not synced
    includeBad       also messages salvaged from `.bad` files, marked in a column is_bad
    includeUnsynced  also records behind the synced position, for copies after a crash
    failOnDataLoss   true: a segment that was consumed meanwhile fails the job
    splitBytes       cut larger segments, and gather smaller ones, to partitions of about this size
    node             the value of the column node; default: the directory's name
    maxMsgSize       nsqd's --max-msg-size, if that was raised

`spark_jobs.write.sink` has the options of a write, `spark_jobs.read.stream` those of a stream.
The directory may belong to a running nsqd: nothing is written or locked.
"""

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from spark_jobs.read.columns import arrow_schema, message_schema
from spark_jobs.read.files.corruption import CORRUPTION_SCHEMA
from spark_jobs.read.options import Table, parse_read_options
from spark_jobs.read.reader import FilteringNsqReader, NsqReader, ignore_closed_pipes
from spark_jobs.read.stream import NsqStreamReader
from spark_jobs.write.options import SinkOptions, parse_sink_options
from spark_jobs.write.sink import NsqStreamWriter, NsqWriter, check_sink_schema

FORMAT = "nsq"
PUSHDOWN_SETTING = "spark.sql.python.filterPushdown.enabled"


class NsqDataSource(DataSource):
    """The format `nsq`; the options alone decide which rows are read."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        ignore_closed_pipes()
        options = parse_read_options(self.options)
        if options.table is Table.CORRUPT_RECORDS:
            return CORRUPTION_SCHEMA
        return message_schema(options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        return NsqReader(parse_read_options(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        options = parse_read_options(self.options, is_stream=True)
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
        return FilteringNsqReader(parse_read_options(self.options), schema)


def register(spark: SparkSession, *, pushes_filters: bool = False) -> None:
    """Make the format `nsq` known to a session.

    Args:
        pushes_filters: apply a query's filters before the read; `FilteringNsqDataSource` says when
            that gives wrong results.
    """
    if pushes_filters:
        spark.conf.set(PUSHDOWN_SETTING, "true")
        spark.dataSource.register(FilteringNsqDataSource)
    else:
        spark.dataSource.register(NsqDataSource)


def read_corrupt_records(spark: SparkSession, path: str | list[str], **options: str) -> DataFrame:
    """Return the table of every damaged, missing or unsynced place, with its reason."""
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
