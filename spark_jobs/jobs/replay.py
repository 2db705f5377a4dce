"""Publish messages of the queues on disk again, to a running nsqd.

    nsqd-spark replay /var/lib/nsqd --topic orders --since 1h --to orders.replay \\
        --addresses 127.0.0.1:4150 --dry-run
    spark-submit --py-files nsqd_spark.zip spark_jobs/jobs/replay.py DATA_DIR --topic orders ...

--where takes an SQL condition on the columns of format nsq, on `text` (the body) and, with --json,
on `json`. Without --to every message goes to the topic it came from. At least once: after a broken
connection, or when Spark runs a task again, some messages arrive twice; they always get new ids and
times.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from spark_jobs.jobs.job import (
    Selection,
    add_source_arguments,
    first_line,
    format_bytes,
    parse_arguments,
    plural,
    run_job,
    tell_damage,
)
from spark_jobs.jobs.json_bodies import add_json_arguments, check_json_arguments, with_json
from spark_jobs.jobs.progress import Progress
from spark_jobs.jobs.sql import collect_shown, format_table
from spark_jobs.session import JobError, is_local_session, open_session
from spark_jobs.write.options import parse_sink_options
from spark_jobs.write.publisher import PublishError, check_reachable, check_topic
from spark_jobs.write.sink import publish

_SHOWN_ROWS = 10
_MAX_QUEUES = 100_000
_SHOWN_CHARACTERS = 80


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this job."""
    add_source_arguments(parser)
    add_json_arguments(parser)
    chosen = parser.add_argument_group("which of them")
    chosen.add_argument("--where", metavar="SQL", help="for example: json.amount > 100")
    chosen.add_argument("--sample", type=float, metavar="SHARE", help="for example 0.01")
    chosen.add_argument("--seed", type=int, default=0, help="makes a sample come out again")
    chosen.add_argument("--limit", type=int, metavar="COUNT", help="no more than that")
    chosen.add_argument(
        "--distinct", action="store_true", help="each message once, though several channels have it"
    )
    target = parser.add_argument_group("where to")
    target.add_argument("--to", metavar="TOPIC", help="default: the topic of each message")
    target.add_argument("--addresses", metavar="HOST:PORT,...", help="of nsqd")
    target.add_argument("--to-lookupd", metavar="HOST:PORT,...", help="of nsqlookupd, instead")
    target.add_argument("--rate", type=int, metavar="N", help="messages per second at most")
    target.add_argument("--defer", type=int, metavar="MS", help="deliver that much later")
    target.add_argument(
        "--dry-run", action="store_true", help="show what would go, publish nothing"
    )
    target.add_argument("--tls", action="store_true")
    target.add_argument("--tls-ca", metavar="FILE")
    target.add_argument("--tls-cert", metavar="FILE")
    target.add_argument("--tls-key", metavar="FILE")
    target.add_argument("--tls-insecure", action="store_true", help="trust any certificate")
    target.add_argument(
        "--auth-secret-file",
        metavar="FILE",
        help="with the secret for AUTH; else the environment has NSQ_AUTH_SECRET_FILE or"
        " NSQ_AUTH_SECRET",
    )
    # Declared to be refused: as a short form of the other it would be taken for a path and shown.
    target.add_argument("--auth-secret", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> None:
    """Publish the selection, or show it.

    Raises:
        JobError: the arguments are wrong.
    """
    if args.data_dir and args.lookupd and not (args.to_lookupd or args.nsqd):
        # Before nodes could be read, --lookupd said where to publish.
        args.to_lookupd, args.lookupd = args.lookupd, None
    _check(args)
    progress = Progress()
    selection = Selection(args)
    if not args.distinct:
        _refuse_copies(selection)
    progress.step(f"reading {selection.describe()}")
    with (
        open_session("nsqd replay", master=args.master, memory=args.memory) as spark,
        progress.watching(spark),
    ):
        damage = Observation()
        frame = select_messages(spark, selection, args, damage)
        if args.dry_run:
            _show(frame, args, progress)
        else:
            _publish(frame, args, progress)
        tell_damage(damage, progress)


def _refuse_copies(selection: Selection) -> None:
    """Refuse several queues of one topic: each channel has a copy of every message."""
    channels: dict[str, set[str]] = {}
    for queue in selection.queues:
        channels.setdefault(queue.topic, set()).add(queue.channel or "")
    for topic, names in sorted(channels.items()):
        if len(names) > 1:
            listed = ", ".join(name or "its own queue" for name in sorted(names))
            raise JobError(
                f"topic {topic} has {len(names)} queues ({listed}), and a message may be in each of"
                " them: choose one with --channel ('' is the topic's own), or publish each message"
                " once with --distinct"
            )


def _check(args: argparse.Namespace) -> None:
    if args.auth_secret is not None:
        raise JobError(
            "--auth-secret would show the secret to every user of this machine:"
            " use --auth-secret-file, or NSQ_AUTH_SECRET in the environment"
        )
    if not args.dry_run and bool(args.addresses) == bool(args.to_lookupd):
        raise JobError("say where to publish: --addresses or --to-lookupd (or try --dry-run)")
    check_json_arguments(args)
    try:
        if args.to is not None:
            check_topic(args.to)
        if not args.dry_run:
            target = parse_sink_options(sink_options(args)).publisher
            if is_local_session(args.master):
                # Executors elsewhere may reach what this machine does not.
                check_reachable(target, args.to)
    except (OSError, ValueError, PublishError) as error:
        raise JobError(str(error)) from error
    if args.sample is not None and not 0 < args.sample <= 1:
        raise JobError(f"--sample is more than 0 and at most 1, not {args.sample}")
    for name in ("rate", "limit", "defer"):
        value = getattr(args, name)
        if value is not None and value <= 0:
            raise JobError(f"--{name} is more than 0, not {value}")


def select_messages(
    spark: SparkSession, selection: Selection, args: argparse.Namespace, damage: Observation
) -> DataFrame:
    """Return the messages to publish, with their columns; the first action counts damage, too.

    Raises:
        JobError: the condition is wrong.
    """
    frame = selection.load_observed(spark, damage)
    if args.distinct:
        # An id is unique on its node; with several nodes of Go's only there.
        frame = frame.dropDuplicates(["node", "topic", "id"])
    frame = frame.withColumn("text", F.col("body").cast("string"))
    if args.json:
        frame = with_json(
            frame,
            schema=args.json_schema,
            sample_rows=args.json_sample,
            sample=selection.load(spark, columns="body"),
        )
    if args.where:
        try:
            frame = frame.where(args.where)
        except AnalysisException as error:
            raise JobError(f"--where: {first_line(error)}") from error
    if args.sample is not None:
        frame = frame.sample(float(args.sample), int(args.seed))
    if args.limit is not None:
        frame = frame.limit(args.limit)
    return frame


def _show(frame: DataFrame, args: argparse.Namespace, progress: Progress) -> None:
    goal = F.lit(args.to) if args.to else F.col("topic")
    counts = (
        frame.groupBy("topic", "channel", goal.alias("to"))
        .agg(
            F.count(F.lit(1)).alias("messages"),
            F.sum(F.length("body")).alias("bytes"),
            F.min("timestamp").alias("oldest"),
            F.max("timestamp").alias("newest"),
        )
        .orderBy("topic", "channel")
    )
    rows = collect_shown(counts, _MAX_QUEUES)
    print(format_table(counts.columns, rows))
    text = F.substring("text", 1, _SHOWN_CHARACTERS).alias("body")
    examples = frame.select("topic", "channel", "timestamp", "attempts", "id", text)
    print()
    print(format_table(examples.columns, collect_shown(examples, _SHOWN_ROWS)))
    totals = dict(zip(counts.columns, zip(*rows, strict=True), strict=False)) if rows else {}
    total = sum(totals.get("messages", ()))
    size = format_bytes(sum(totals.get("bytes", ())))
    progress.step(f"dry run: {plural(total, 'message')}, {size}, would be published")


def _publish(frame: DataFrame, args: argparse.Namespace, progress: Progress) -> None:
    wanted = frame.select("topic", "body")
    if args.defer:
        wanted = wanted.withColumn("defer_ms", F.lit(args.defer))
    options = sink_options(args)
    if args.rate:
        # The rate of a task is the whole rate divided by the number of tasks that run at a time.
        tasks = min(
            frame.sparkSession.sparkContext.defaultParallelism,
            max(wanted.rdd.getNumPartitions(), 1),
            args.rate,
        )
        wanted = wanted.coalesce(tasks)
        options["maxRate"] = str(args.rate // tasks)
    progress.step("publishing")
    published = publish(wanted, **options)
    for topic, count in sorted(published.by_topic.items()):
        progress.step(f"{topic}: {plural(count, 'message')}")
    again = f", {published.resent_count:,} of them sent again" if published.resent_count else ""
    if published.repeated_count:
        again += f"; tasks that Spark ran again had published {published.repeated_count:,} more"
    progress.step(f"{plural(published.message_count, 'message')} published{again}")


def sink_options(args: argparse.Namespace) -> dict[str, str]:
    """Return the options of the sink that the arguments stand for."""
    given = {
        "topic": args.to,
        "addresses": args.addresses,
        "lookupd": args.to_lookupd,
        "tlsCa": args.tls_ca,
        "tlsCert": args.tls_cert,
        "tlsKey": args.tls_key,
    }
    options: dict[str, str] = {name: text for name, text in given.items() if text is not None}
    options |= secret_options(args.auth_secret_file, os.environ)
    if args.tls:
        options["tls"] = "true"
    if args.tls_insecure:
        options["tlsInsecure"] = "true"
    if args.rate:
        options["batchSize"] = str(max(1, min(1000, args.rate // 10)))
    return options


def secret_options(path: str | None, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the options of the sink for AUTH; every user of the machine could read an argument."""
    path = path or environment.get("NSQ_AUTH_SECRET_FILE")
    if path:
        return {"authSecretFile": path}
    secret = environment.get("NSQ_AUTH_SECRET")
    return {"authSecret": secret} if secret else {}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; return the exit code."""
    parser = argparse.ArgumentParser("replay.py", description="Publish messages again.")
    add_arguments(parser)
    return run_job(run, parse_arguments(parser, argv))


if __name__ == "__main__":
    sys.exit(main())
