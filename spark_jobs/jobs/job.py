"""The common part of the jobs: arguments that select messages, and texts of errors."""

import argparse
import dataclasses
import logging
import re
import sys
from collections.abc import Callable

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession

from spark_jobs.jobs.progress import Progress
from spark_jobs.read.files.catalog import find_queues
from spark_jobs.read.options import Origin, ReadOptions, Table, parse_read_options
from spark_jobs.session import DEFAULT_MASTER, DEFAULT_MEMORY, JobError
from spark_jobs.source import FORMAT

_MAX_SHOWN_NAMES = 10
# The last line of a Python traceback inside Spark names the error.
_PYTHON_ERROR_MARKS = ("Error: ", "Exception: ")
# Names of classes that say nothing to a user.
_OWN_ERROR = re.compile(r"(?:spark_jobs\.[\w.]+|ValueError|FileNotFoundError): ")


def add_source_arguments(parser: argparse.ArgumentParser, *, data_dirs: str = "+") -> None:
    """Declare the arguments that select messages."""
    parser.add_argument(
        "data_dir",
        nargs=data_dirs,
        metavar="DATA_DIR",
        help="data path of an nsqd, or a copy of it; a glob or a URI such as s3://bucket/node1",
    )
    chosen = parser.add_argument_group("which messages")
    chosen.add_argument("--topic", metavar="NAMES", help="topics: names or patterns, with commas")
    chosen.add_argument(
        "--channel", metavar="NAMES", help="channels, likewise; '' is the topic's own queue"
    )
    chosen.add_argument("--since", metavar="TIME", help="2026-01-31T12:00:00Z, or 15m (ago)")
    chosen.add_argument("--until", metavar="TIME", help="likewise, exclusive")
    chosen.add_argument(
        "--from",
        dest="origin",
        choices=[origin.value for origin in Origin if origin is not Origin.LATEST],
        default=Origin.BACKLOG.value,
        help="backlog: not consumed yet (default); earliest: all on disk; archive: kept history",
    )
    chosen.add_argument(
        "--include-bad", action="store_true", help="also what can be salvaged of .bad files"
    )
    chosen.add_argument(
        "--include-unsynced",
        action="store_true",
        help="also what was written after the last sync, for copies after a crash",
    )
    chosen.add_argument(
        "--fail-fast", action="store_true", help="fail at damage instead of skipping it"
    )
    chosen.add_argument(
        "--skip-consumed",
        action="store_true",
        help="skip segments that nsqd deletes meanwhile instead of failing",
    )
    chosen.add_argument("--node", metavar="NAME", help="value of the column node")
    engine = parser.add_argument_group("Spark (not used under spark-submit)")
    engine.add_argument(
        "--master", help=f"where Spark runs, default {DEFAULT_MASTER}: all cores of this machine"
    )
    engine.add_argument(
        "--memory", default=DEFAULT_MEMORY, help=f"of the JVM, default {DEFAULT_MEMORY}"
    )


def source_options(args: argparse.Namespace) -> dict[str, str]:
    """Return the options of format nsq that the arguments stand for, without the paths."""
    options = {
        "from": args.origin,
        "includeBad": str(args.include_bad).lower(),
        "includeUnsynced": str(args.include_unsynced).lower(),
        "mode": "FAILFAST" if args.fail_fast else "PERMISSIVE",
        "failOnDataLoss": str(not args.skip_consumed).lower(),
    }
    for name in ("topic", "channel", "since", "until", "node"):
        value = getattr(args, name)
        if value is not None:
            options[name] = value
    return options


class Selection:
    """The queues that the arguments select, and how to read them."""

    def __init__(self, args: argparse.Namespace) -> None:
        """Find the queues.

        Raises:
            JobError: a directory does not exist, an argument is wrong, or no queue matches.
        """
        self._options = source_options(args)
        self._paths = list(args.data_dir)
        try:
            self._parsed = parse_read_options(self._options | {"path": "x"})
            self._parsed = _with_paths(self._parsed, self._paths)
            self.queues = find_queues(self._parsed)
        except (ValueError, OSError) as error:
            raise JobError(str(error)) from error
        if not self.queues and (args.topic is not None or args.channel is not None):
            raise JobError(self._no_match())

    @property
    def includes_bad(self) -> bool:
        """Whether `.bad` files are read, too."""
        return self._parsed.includes_bad

    @property
    def topics(self) -> list[str]:
        """The topics, sorted."""
        return sorted({queue.topic for queue in self.queues})

    def describe(self) -> str:
        """Say in a line how much is selected."""
        ranges = [each for queue in self.queues for each in queue.ranges(self._parsed)]
        nodes = len({queue.node for queue in self.queues})
        size = sum(each.end - each.start for each in ranges)
        return (
            f"{plural(nodes, 'node')}, {plural(len(self.topics), 'topic')},"
            f" {plural(len(self.queues), 'queue')}, {plural(len(ranges), 'segment')},"
            f" {format_bytes(size)}"
        )

    def reader(self, spark: SparkSession, **more: str) -> DataFrameReader:
        """Return a reader with all the options, which still needs the paths."""
        return spark.read.format(FORMAT).options(**(self._options | more))

    def load(self, spark: SparkSession, **more: str) -> DataFrame:
        """Return the messages as a frame.

        Args:
            more: further options, or others than the arguments say.
        """
        return self.reader(spark, **more).load(self._paths)

    def count_damage(self, spark: SparkSession) -> int:
        """Count the damaged or missing places of the selection; this reads all of it once.

        Records that are not synced yet are no damage.
        """
        found = self.load(spark, table=Table.CORRUPT_RECORDS.value, mode="PERMISSIVE")
        return found.where("kind != 'unsynced'").count()

    def warn_of_damage(self, spark: SparkSession, progress: Progress) -> None:
        """Tell the user if a part of the selection cannot be read."""
        count = self.count_damage(spark)
        if count:
            progress.step(f"skipping {plural(count, 'damaged place')}; sql shows corrupt_records")

    def _no_match(self) -> str:
        every = _with_paths(ReadOptions(("x",), origin=self._parsed.origin), self._paths)
        names = sorted({queue.name for queue in find_queues(every)})
        shown = ", ".join(names[:_MAX_SHOWN_NAMES]) or "none"
        more = len(names) - _MAX_SHOWN_NAMES
        return (
            f"no queue in {', '.join(self._paths)} matches"
            f" topic={','.join(self._parsed.topics)}"
            + (f" channel={self._options['channel']}" if "channel" in self._options else "")
            + f"; there are: {shown}"
            + (f" and {more} more" if more > 0 else "")
        )


def _with_paths(options: ReadOptions, paths: list[str]) -> ReadOptions:
    return dataclasses.replace(options, paths=tuple(paths))


def run_job(run: Callable[[argparse.Namespace], None], args: argparse.Namespace) -> int:
    """Run a job and return its exit code; print errors of users and of Spark in one line."""
    # pyspark would print the stack of each error that is printed below in a line.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    try:
        run(args)
    except JobError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (PySparkException, Py4JJavaError) as error:
        print(f"error: {shorten_error(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def shorten_error(text: str) -> str:
    """Return the cause in an error's text, without Spark's and Python's stack traces."""
    for line in reversed(text.splitlines()):
        line = line.strip()
        if any(mark in line for mark in _PYTHON_ERROR_MARKS) and not line.startswith("at "):
            return _OWN_ERROR.sub("", line, count=1)
    return first_line(text)


def first_line(error: object) -> str:
    """Return the first line of a text of Spark's, some of which begin with an empty line."""
    return str(error).strip().partition("\n")[0]


def plural(count: int, noun: str) -> str:
    """Write a count with its noun."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_bytes(count: float) -> str:
    """Write a number of bytes with a unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
