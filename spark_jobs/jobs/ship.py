"""Copy finished segments of an archive to a directory or an object store. No Spark is started.

    nsqd-spark ship /var/lib/nsqd --to s3://history/node1 --rate 20m --every 1m
    nsqd-spark count s3://history/node1 --from archive

nsqd keeps history for a while (--retain-bytes, --retain-time); where it is shipped to it may grow
for months. Each segment arrives once, whole; a pass that was stopped goes on where it was. The
segment that is being written is shipped once nsqd has begun the next.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from spark_jobs.jobs.job import (
    add_store_arguments,
    format_bytes,
    parse_arguments,
    plural,
    run_job,
    store_options,
)
from spark_jobs.jobs.progress import Progress
from spark_jobs.option_values import parse_duration_s, parse_size
from spark_jobs.pace import Pace
from spark_jobs.read.files.directory import OutputDirectory
from spark_jobs.read.options import parse_read_options
from spark_jobs.session import JobError
from spark_jobs.ship.shipment import Passed, Shipment, ShipmentError

_FAULTS = (OSError, ValueError, ShipmentError)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this command."""
    parser.add_argument("data_dir", metavar="DATA_DIR", help="data path of an nsqd")
    parser.add_argument(
        "--to",
        required=True,
        metavar="PLACE",
        help="a directory, or a URI such as s3://bucket/node1",
    )
    parser.add_argument("--topic", metavar="NAMES", help="topics: names or patterns, with commas")
    parser.add_argument("--rate", metavar="BYTES", help="at most so much a second, such as 20m")
    parser.add_argument(
        "--every", metavar="TIME", help="go on for ever, with a look so often, such as 1m"
    )
    parser.add_argument(
        "--verify", action="store_true", help="read all that has arrived, and compare its hashes"
    )
    add_store_arguments(parser)


def run(args: argparse.Namespace) -> None:
    """Ship finished segments, once or for ever.

    Raises:
        JobError: the arguments are wrong, or a file cannot be read or written.
    """
    progress = Progress()
    given = store_options(args) | {"from": "archive", "allowMissing": "true", "path": "x"}
    if args.topic is not None:
        given["topic"] = args.topic
    try:
        options = replace(parse_read_options(given), paths=(args.data_dir,))
        rate = None if args.rate is None else parse_size("--rate", args.rate)
        every_s = None if args.every is None else parse_duration_s("--every", args.every)
        target = OutputDirectory(args.to, options.store)
        shipment = Shipment(options, target, Pace(rate))
        if args.verify:
            _verify(shipment, progress)
            return
        target.make()
    except _FAULTS as error:
        raise JobError(str(error)) from error
    while True:
        try:
            _tell(shipment.run(), target.name, progress, is_quiet=every_s is not None)
        except _FAULTS as error:
            if every_s is None:
                raise JobError(str(error)) from error
            # The store may be back at the next look.
            progress.step(f"error: {error}")
        if every_s is None:
            return
        time.sleep(every_s)


def _tell(passed: Passed, place: str, progress: Progress, *, is_quiet: bool) -> None:
    for text in passed.warnings:
        print(f"warning: {text}", file=sys.stderr, flush=True)
    if passed.segment_count or not is_quiet:
        progress.step(
            f"{plural(passed.segment_count, 'segment')} shipped,"
            f" {plural(passed.message_count, 'message')},"
            f" {format_bytes(passed.byte_count)}; read it with --from archive {place}"
        )


def _verify(shipment: Shipment, progress: Progress) -> None:
    wrong = list(shipment.verify())
    for text in wrong:
        print(text)
    if wrong:
        raise JobError(f"{plural(len(wrong), 'file')} not as shipped")
    progress.step("all that has arrived is as it was shipped")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser("ship.py", description="Ship the history of nsqd.")
    add_arguments(parser)
    return run_job(run, parse_arguments(parser, argv))


if __name__ == "__main__":
    sys.exit(main())
