"""Write messages to Parquet (or Delta, Iceberg, JSON), by topic and date.

    nsqd-spark export /var/lib/nsqd --output /lake/nsq
    spark-submit --py-files nsqd_spark.zip spark_jobs/jobs/export.py DATA_DIR --output DIR --json

With --json each topic gets a schema of its own in the column `json`: given, or inferred from its
first messages. A body that is no JSON object has null there, and one whose values do not fit has
only those that do. With --drop-body a body is left out only where its fields, written as JSON, are
the body again: a field or value that the sample did not know keeps it.
"""

import argparse
import sys
from collections.abc import Sequence

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameWriter, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from spark_jobs.jobs.job import (
    Selection,
    add_source_arguments,
    check_output,
    format_bytes,
    parse_arguments,
    plural,
    run_job,
    tell_damage,
)
from spark_jobs.jobs.json_bodies import (
    JSON_COLUMN,
    add_json_arguments,
    check_json_arguments,
    holds_all,
    json_column,
)
from spark_jobs.jobs.progress import Progress
from spark_jobs.session import JobError, open_session

DATE_COLUMN = "date"
# The packages of formats that are not Spark's own.
_PACKAGES = {
    "delta": "io.delta:delta-spark_2.13:4.0.0",
    "iceberg": "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.0",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this job."""
    add_source_arguments(parser)
    target = parser.add_argument_group("where to")
    target.add_argument("--output", metavar="DIR", help="directory or URI to write to")
    target.add_argument("--table", help="table to write to instead, for Iceberg or Delta")
    target.add_argument(
        "--format", default="parquet", help="parquet (default), json, or what the cluster has"
    )
    target.add_argument(
        "--mode", choices=["error", "append", "overwrite"], default="error", help="default: error"
    )
    add_json_arguments(parser)
    parser.add_argument(
        "--drop-body", action="store_true", help="only the parsed JSON where it is whole"
    )


def run(args: argparse.Namespace) -> None:
    """Write the messages.

    Raises:
        JobError: the arguments are wrong.
    """
    if bool(args.output) == bool(args.table):
        raise JobError("say where to write: --output DIR or --table NAME")
    if args.drop_body and not args.json:
        raise JobError("--drop-body without --json would leave nothing of the messages")
    if args.table and args.json:
        raise JobError("--json gives each topic its own columns; use it with --output")
    check_json_arguments(args)
    if args.output:
        check_output(args, is_new=args.mode == "error" and not args.json)
    progress = Progress()
    selection = Selection(args)
    progress.step(f"reading {selection.describe()}")
    with (
        open_session("nsqd export", master=args.master, memory=args.memory) as spark,
        progress.watching(spark),
    ):
        if args.json:
            total = 0
            for topic in selection.topics:
                total += _export_json(spark, selection, topic, args, progress)
            progress.step(f"{plural(total, 'message')} written to {args.output}")
            return
        damage = Observation()
        frame = with_date(selection.load_observed(spark, damage))
        count, size = _write(frame, args, args.output, ["topic", DATE_COLUMN])
        tell_damage(damage, progress)
        target = args.output or args.table
        progress.step(f"{plural(count, 'message')}, {format_bytes(size)}, written to {target}")


def with_date(frame: DataFrame) -> DataFrame:
    """Add the UTC date of each message, as a column to partition by."""
    return frame.withColumn(DATE_COLUMN, F.to_date("timestamp"))


def _export_json(
    spark: SparkSession,
    selection: Selection,
    topic: str,
    args: argparse.Namespace,
    progress: Progress,
) -> int:
    damage = Observation()
    frame = with_date(selection.load_observed(spark, damage, topic=topic))
    sample = selection.load(spark, topic=topic, columns="body")
    json = json_column(sample, schema=args.json_schema, sample_rows=args.json_sample)
    parsed = frame.withColumn(JSON_COLUMN, json)
    fields = dict(parsed.dtypes)[JSON_COLUMN]
    if args.drop_body:
        # A body stays where the fields do not hold all of it.
        parsed = parsed.withColumn("body", F.when(~holds_all(parsed), F.col("body")))
    # One directory per topic, named as partitionBy would, since their schemas differ.
    path = f"{args.output.rstrip('/')}/topic={_escape(topic)}"
    count, size = _write(parsed.drop("topic"), args, path, [DATE_COLUMN])
    progress.step(f"{topic}: {plural(count, 'message')}, {format_bytes(size)}, {fields}")
    tell_damage(damage, progress)
    return count


def _write(
    frame: DataFrame, args: argparse.Namespace, path: str, partitions: list[str]
) -> tuple[int, int]:
    """Write the frame; return the number of messages and of their bytes."""
    counted = Observation()
    size = F.coalesce(F.sum(F.length("body")), F.lit(0))
    observed = frame.observe(counted, F.count(F.lit(1)).alias("rows"), size.alias("bytes"))
    writer: DataFrameWriter = (
        observed.write.format(args.format).mode(args.mode).partitionBy(*partitions)
    )
    try:
        if args.table:
            writer.saveAsTable(args.table)
        else:
            writer.save(path)
    except (PySparkException, Py4JJavaError) as error:
        if "DATA_SOURCE_NOT_FOUND" in str(error):
            package = _PACKAGES.get(args.format.lower())
            hint = f", as in spark-submit --packages {package}" if package else ""
            raise JobError(
                f"this Spark has no format {args.format!r}: add its package{hint}"
            ) from error
        raise
    return counted.get["rows"], counted.get["bytes"]


def _escape(topic: str) -> str:
    """Escape a topic as Spark does for directories: of its legal characters only `#`."""
    return topic.replace("#", "%23")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; return the exit code."""
    parser = argparse.ArgumentParser("export.py", description="Export the queues of nsqd.")
    add_arguments(parser)
    return run_job(run, parse_arguments(parser, argv))


if __name__ == "__main__":
    sys.exit(main())
