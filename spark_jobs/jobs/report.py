"""Report on the backlog: tables as Parquet and JSON, and one HTML page with plots.

    nsqd-spark report /var/lib/nsqd --output report
    spark-submit --py-files nsqd_spark.zip spark_jobs/jobs/report.py DATA_DIR --output DIR

Per topic and channel: messages, bytes, oldest and newest, rate, sizes, attempts, likely poison
messages, duplicate ids; by node, with what is in memory, in flight and deferred where a node can be
asked; per topic the fields of JSON bodies. With an earlier look, growth and the time to drain. DIR
gets report.html, report.json and tables/*.parquet.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark_jobs.jobs.growth import Look, look_at, read_look
from spark_jobs.jobs.job import (
    Selection,
    add_source_arguments,
    format_bytes,
    plural,
    run_job,
    store_settings,
)
from spark_jobs.jobs.progress import Progress
from spark_jobs.jobs.report_figures import Counting, Places, Report
from spark_jobs.jobs.report_page import render
from spark_jobs.jobs.sql import format_table
from spark_jobs.option_values import parse_duration_s
from spark_jobs.read.files.directory import OutputDirectory
from spark_jobs.session import JobError, open_session

_FIELD_ROWS = 10_000
_SUMMARY_ROWS = 20
_TOP = pa.list_(pa.struct([("value", pa.string()), ("count", pa.int64())]))
# The tables and their columns; a column means the same in each of them.
_TABLES = {
    "queues": (
        "topic channel nodes messages bytes oldest newest rate_per_minute"
        " size_p50 size_p90 size_p99 size_max attempts_max retried duplicates"
        " memory in_flight deferred disk growth_per_minute drained_in_s latency"
    ),
    "nodes": "node queues messages bytes oldest memory in_flight deferred disk failure",
    "over_time": "topic channel moment messages",
    "attempts": "topic channel attempts messages",
    "sizes": "topic channel size_power_of_two messages",
    "poison": "node topic channel segment offset timestamp attempts id size body",
    "duplicates": "node topic channel id copies attempts",
    "bodies": "topic type count",
    "fields": "topic path types present nulls null_share cardinality top",
    "corrupt_records": "node topic channel segment offset bytes kind reason path",
}
# Written out, since an empty table shows no types. All other columns are whole numbers.
_TYPES = {
    **dict.fromkeys(
        ("node", "topic", "channel", "id", "body", "type", "path", "kind", "reason", "failure"),
        pa.string(),
    ),
    **dict.fromkeys(("oldest", "newest", "moment", "timestamp"), pa.timestamp("us", tz="UTC")),
    **dict.fromkeys(
        ("rate_per_minute", "null_share", "growth_per_minute", "drained_in_s"), pa.float64()
    ),
    "types": pa.list_(pa.string()),
    "top": _TOP,
    "latency": pa.list_(pa.struct([("quantile", pa.float64()), ("seconds", pa.float64())])),
}
TABLE_SCHEMAS = {
    table: pa.schema([(name, _TYPES.get(name, pa.int64())) for name in names.split()])
    for table, names in _TABLES.items()
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this job."""
    add_source_arguments(parser)
    parser.add_argument("--output", metavar="DIR", required=True, help="directory for the report")
    parser.add_argument(
        "--field-rows",
        type=int,
        metavar="N",
        default=_FIELD_ROWS,
        help="messages per topic to look into for JSON fields, default 10000; 0 for none",
    )
    earlier = parser.add_mutually_exclusive_group()
    earlier.add_argument(
        "--compare", metavar="FILE", help="an earlier report.json: show growth, and time to drain"
    )
    earlier.add_argument(
        "--two-looks", metavar="TIME", help="look twice, so far apart, such as 30s: the same"
    )


def run(args: argparse.Namespace) -> None:
    """Make the report.

    Raises:
        JobError: the arguments are wrong, or the output cannot be written.
    """
    progress = Progress()
    earlier = _look_before(args, progress)
    selection = Selection(args)
    later = None if args.compare else look_at(selection.queues)
    output = _make_output(args)
    progress.step(f"reading {selection.describe()}")
    report = Report(selection.places, args.origin, datetime.now(UTC))
    with (
        open_session("nsqd report", master=args.master, memory=args.memory) as spark,
        progress.watching(spark),
    ):
        counting = Counting(spark, selection, progress, field_rows=args.field_rows)
        try:
            counting.count(report)
            if earlier is not None:
                report.compare(earlier, later)
        finally:
            counting.close()
    try:
        write_report(report, output)
    except OSError as error:
        raise JobError(f"cannot write to {output.name}: {error}") from error
    _summarise(report, output.name, progress)


def _make_output(args: argparse.Namespace) -> OutputDirectory:
    try:
        output = OutputDirectory(args.output, store_settings(args))
    except (OSError, ValueError) as error:
        raise JobError(f"--output: {error}") from error
    try:
        output.make()
    except OSError as error:
        raise JobError(f"cannot write to {output.name}: {error}") from error
    return output


def _look_before(args: argparse.Namespace, progress: Progress) -> Look | None:
    """Return the earlier look that this report is compared with, if it is."""
    try:
        if args.compare:
            earlier, origin = read_look(args.compare, store_settings(args))
            if origin != args.origin:
                raise ValueError(f"--compare has a report from {origin}, not from {args.origin}")
            return earlier
        if not args.two_looks:
            return None
        span_s = parse_duration_s("--two-looks", args.two_looks)
        if not 1 <= span_s <= 86400:
            raise ValueError(f"--two-looks is from 1s to 1d, not {args.two_looks}")
        first = Selection(args)
        earlier = look_at(first.queues)
        # Nothing is kept at the nodes meanwhile.
        first.close()
    except (OSError, ValueError) as error:
        raise JobError(str(error)) from error
    progress.step(f"looked once; the second look is in {args.two_looks}")
    time.sleep(span_s)
    return earlier


def write_report(report: Report, directory: OutputDirectory) -> None:
    """Write the page and the tables.

    Raises:
        OSError: they cannot be written.
    """
    tables = table_rows(report)
    for name, schema in TABLE_SCHEMAS.items():
        buffer = pa.BufferOutputStream()
        pq.write_table(_arrow_table(tables[name], schema), buffer)
        directory.write(f"tables/{name}.parquet", buffer.getvalue().to_pybytes())
    document = {
        "data_dirs": report.data_dirs,
        "from": report.origin,
        "created": report.created,
        "step_seconds": report.step_s,
        "corrupt_count": report.corrupt_count,
        "unseen": report.unseen,
        "compared_with": report.compared_with,
        **tables,
    }
    text = json.dumps(document, default=_to_json, indent=1)
    directory.write("report.json", text.encode())
    directory.write("report.html", render(report).encode("utf-8", "backslashreplace"))


def table_rows(report: Report) -> dict[str, Sequence[dict[str, Any]]]:
    """Return the report as tables of plain values, by name."""
    queues = [
        {
            "topic": queue.topic,
            "channel": queue.channel,
            "nodes": queue.node_count,
            "messages": queue.message_count,
            "bytes": queue.byte_count,
            "oldest": queue.oldest,
            "newest": queue.newest,
            "rate_per_minute": queue.rate_per_minute,
            "size_p50": queue.size_p50,
            "size_p90": queue.size_p90,
            "size_p99": queue.size_p99,
            "size_max": queue.size_max,
            "attempts_max": queue.attempts_max,
            "retried": queue.retried_count,
            "duplicates": queue.duplicate_count,
            **_places(queue.places),
            "growth_per_minute": queue.growth and queue.growth.per_minute,
            "drained_in_s": queue.growth and queue.growth.drained_in_s,
            "latency": [
                {"quantile": quantile, "seconds": seconds}
                for quantile, seconds in sorted(queue.latency.items())
            ],
        }
        for queue in report.queues
    ]

    def long(name: str, attribute: str) -> list[dict[str, Any]]:
        return [
            {"topic": queue.topic, "channel": queue.channel, name: value, "messages": count}
            for queue in report.queues
            for value, count in getattr(queue, attribute)
        ]

    return {
        "queues": queues,
        "nodes": [
            {
                "node": node.node,
                "queues": node.queue_count,
                "messages": node.message_count,
                "bytes": node.byte_count,
                "oldest": node.oldest,
                **_places(node.places),
                "failure": node.failure or None,
            }
            for node in report.nodes
        ],
        "over_time": long("moment", "over_time"),
        "attempts": long("attempts", "attempts"),
        "sizes": long("size_power_of_two", "sizes"),
        "poison": report.poison,
        "duplicates": report.duplicates,
        "bodies": report.bodies,
        "fields": [
            {**row, "top": [{"value": value, "count": count} for value, count in row["top"]]}
            for row in report.fields
        ],
        "corrupt_records": report.corrupt_records,
    }


def _places(places: Places | None) -> dict[str, int | None]:
    names = ("memory", "in_flight", "deferred", "disk")
    return {name: None if places is None else getattr(places, name) for name in names}


def _arrow_table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist([dict(row) for row in rows], schema=schema)


def _to_json(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"not for JSON: {value!r}")


def _summarise(report: Report, output: str, progress: Progress) -> None:
    columns = ["topic", "channel", "messages", "bytes", "oldest", "newest", "attempts_max"]
    queues = sorted(table_rows(report)["queues"], key=lambda row: -row["messages"])
    shown = [tuple(row[name] for name in columns) for row in queues[:_SUMMARY_ROWS]]
    print(format_table(columns, shown))
    if len(queues) > _SUMMARY_ROWS:
        print(f"... and {len(queues) - _SUMMARY_ROWS} more queues")
    total = sum(row["messages"] for row in queues)
    size = format_bytes(sum(row["bytes"] for row in queues))
    damage = f", {plural(report.corrupt_count, 'damaged place')}" if report.corrupt_count else ""
    progress.step(f"{plural(total, 'message')}, {size}{damage}; see {output}/report.html")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; return the exit code."""
    parser = argparse.ArgumentParser("report.py", description="Report on the backlog of nsqd.")
    add_arguments(parser)
    return run_job(run, parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
