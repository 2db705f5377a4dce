"""The commands of `nsqd-spark`: the jobs, and a bundle of this code for spark-submit."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import spark_jobs.jobs.count
import spark_jobs.jobs.export
import spark_jobs.jobs.queues
import spark_jobs.jobs.replay
import spark_jobs.jobs.report
import spark_jobs.jobs.ship
import spark_jobs.jobs.sql
from spark_jobs.bundle import write_bundle
from spark_jobs.jobs.job import parse_arguments, run_job

_JOBS = {
    "report": (spark_jobs.jobs.report, "what is in the backlog: tables and one HTML page"),
    "export": (spark_jobs.jobs.export, "write messages to Parquet, by topic and date"),
    "replay": (spark_jobs.jobs.replay, "publish messages again, to a running nsqd"),
    "sql": (spark_jobs.jobs.sql, "ask a question in SQL"),
    "queues": (spark_jobs.jobs.queues, "list nodes and queues, without Spark"),
    "ship": (spark_jobs.jobs.ship, "copy the history that nsqd keeps to where it may grow"),
    "count": (spark_jobs.jobs.count, "count messages by reading them, without Spark"),
}


def _run_bundle(args: argparse.Namespace) -> None:
    write_bundle(Path(args.file))
    print(f"{args.file} written: spark-submit --py-files {args.file} ...")


def run_command(argv: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code."""
    parser = argparse.ArgumentParser("nsqd-spark", description="Spark over the queues of nsqd.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (job, text) in _JOBS.items():
        command = commands.add_parser(
            name,
            help=text,
            description=(job.__doc__ or "").strip(),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        job.add_arguments(command)
        command.set_defaults(run=job.run)
    bundle = commands.add_parser("bundle", help="write a zip for spark-submit --py-files")
    bundle.add_argument("file", metavar="FILE.zip")
    bundle.set_defaults(run=_run_bundle)
    args = parse_arguments(parser, argv)
    return run_job(args.run, args)
