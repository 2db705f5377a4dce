"""The data source `nsq`: queues as a DataFrame or a stream, and a sink into a running nsqd.

    from spark_jobs import register
    register(spark)

    spark.read.format("nsq").load("/var/lib/nsqd")            # the backlog, all topics and channels
    spark.read.format("nsq").option("topic", "orders").option("since", "1h").load("/copies/*")
    spark.read.format("nsq").option("lookupd", "127.0.0.1:4161").load()     # of all running nodes

Options of a read (names are case-insensitive):

    lookupd, nsqd    running nodes, instead of a path: host:port of nsqlookupd's, or of their own
                     HTTP, with commas; authTokenFile, tls, tlsCa, tlsCert, tlsKey, tlsInsecure,
                     httpsPort, timeout, retries say how to reach them; lease how long a snapshot
                     of them waits to be read; snapshotFile is set by `snapshot`
    topic            names or patterns, with commas; default `*`
    channel          the same; `` (empty) is a topic's own queue; default: these and all channels
    from             backlog (messages not consumed), earliest (all on disk), archive
    since, until     2026-01-31T12:00:00Z, 15m (ago), or nanoseconds; until is exclusive
    columns          which to build, with commas; a schema given to Spark does the same; also size,
                     the length of the body, which costs less than the body, state, due and damage
    mode             PERMISSIVE (damage is skipped and logged) or FAILFAST
    table            messages, or corrupt_records: places damaged, missing or not synced
    includeBad       also messages salvaged from `.bad` files, marked in a column is_bad
    verifyChecksums  leave out messages that their checksums deny; each is damage, see mode
    includeUnsynced  also records behind the synced position, for copies after a crash
    failOnDataLoss   true: a segment that was consumed meanwhile, or a node that is down, fails
    allowMissing     true: a topic that does not exist is an empty table, no error
    splitBytes       cut larger segments, and gather smaller ones, to partitions of about this size
    minPartitions    at least so many partitions
    node             the value of the column node; default: the directory's name, or host:port
    maxMsgSize       nsqd's --max-msg-size, if that was raised
    s3.endpoint, s3.region, s3.accessKey, s3.secretKey, s3.accessKeyFile, ...  an object store

`spark_jobs.read.kafka_names` has the options that are named as in spark-sql-kafka.
`spark_jobs.write.sink` has the options of a write, `spark_jobs.read.stream` those of a stream.
The directory may belong to a running nsqd: nothing is written or locked.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from spark_jobs.hadoop_settings import session_settings
from spark_jobs.object_store import add_defaults, find_hadoop_options
from spark_jobs.read.columns import arrow_schema, message_schema
from spark_jobs.read.files.corruption import CORRUPTION_SCHEMA
from spark_jobs.read.fleet.options import PLACE_OPTIONS
from spark_jobs.read.fleet.snapshot import keep_snapshot, with_file
from spark_jobs.read.inventory import take_inventory
from spark_jobs.read.options import ReadOptions, Table, parse_read_options
from spark_jobs.read.reader import FilteringNsqReader, NsqReader, ignore_closed_pipes
from spark_jobs.read.stream import NsqStreamReader
from spark_jobs.write.options import SinkOptions, parse_sink_options
from spark_jobs.write.sink import NsqStreamWriter, NsqWriter, check_sink_schema

FORMAT = "nsq"
PUSHDOWN_SETTING = "spark.sql.python.filterPushdown.enabled"


class NsqDataSource(DataSource):
    """The format `nsq`; the options alone decide which rows are read."""

    # The session's settings of object stores, as options; those of a read come before them.
    store_options: ClassVar[dict[str, str]] = {}
    # How executors know the driver.
    driver_host: ClassVar[str | None] = None

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def _read_options(self, *, is_stream: bool = False) -> ReadOptions:
        given = add_defaults(self.options, self.store_options)
        return parse_read_options(given, is_stream=is_stream)

    def schema(self) -> StructType:
        ignore_closed_pipes()
        options = self._read_options()
        if options.table is Table.CORRUPT_RECORDS:
            return CORRUPTION_SCHEMA
        return message_schema(options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        return NsqReader(self._read_options(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        options = self._read_options(is_stream=True)
        if options.table is not Table.MESSAGES:
            raise ValueError("a stream has messages only; read the table corrupt_records at once")
        return NsqStreamReader(options, arrow_schema(schema), self.driver_host)

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
        return FilteringNsqReader(self._read_options(), schema)


def register(spark: SparkSession, *, pushes_filters: bool = False) -> None:
    """Make the format `nsq` known to a session.

    Hadoop's settings `fs.s3a.*` of the session are taken over as they are now.

    Args:
        pushes_filters: apply a query's filters before the read; `FilteringNsqDataSource` says when
            that gives wrong results.
    """
    if pushes_filters:
        spark.conf.set(PUSHDOWN_SETTING, "true")
    kind = FilteringNsqDataSource if pushes_filters else NsqDataSource
    # Made here, so that Spark's copy of the class has the values: it takes no class by its name
    # that no module has.
    attributes = {
        "store_options": find_hadoop_options(session_settings(spark)),
        "driver_host": spark.conf.get("spark.driver.host", None),
        "__module__": __name__,
    }
    spark.dataSource.register(cast(type[NsqDataSource], type(kind.__name__, (kind,), attributes)))


@contextmanager
def snapshot(**options: str) -> Iterator[dict[str, str]]:
    """Take a snapshot of running nodes and keep it; yield the options of reads that see it.

        with snapshot(lookupd="127.0.0.1:4161", topic="orders") as options:
            orders = spark.read.format("nsq").options(**options).load()

    Several DataFrames see the same moment, for as long as the block lasts; its end frees what the
    nodes keep for it at once.

    Raises:
        ValueError: the options are wrong, name no nodes, or a topic that does not exist.
        NodeError: a node cannot be reached.
    """
    parsed = parse_read_options(options)
    if parsed.fleet is None:
        raise ValueError("a snapshot is one of running nodes: give lookupd or nsqd")
    kept = {name: text for name, text in options.items() if name.lower() not in PLACE_OPTIONS}
    with keep_snapshot(parsed) as (_, path):
        take_inventory(with_file(parsed, path))
        yield kept | {"snapshotFile": path}


def read_corrupt_records(
    spark: SparkSession, path: str | list[str] | None = None, **options: str
) -> DataFrame:
    """Return the table of every damaged, missing or unsynced place, with its reason."""
    reader = spark.read.format(FORMAT).options(**options).option("table", "corrupt_records")
    return reader.load() if path is None else reader.load(path)


def _sink_options(
    options: Mapping[str, str], schema: StructType, *, overwrites: bool
) -> SinkOptions:
    if overwrites:
        raise ValueError('a topic cannot be overwritten; use mode("append")')
    parsed = parse_sink_options(options)
    check_sink_schema(schema, parsed)
    return parsed
