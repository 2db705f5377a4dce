"""The common part of the jobs: arguments that select messages, and texts of errors."""

import argparse
import logging
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from diskqueue.tools.plain_text import escape_text
from spark_jobs.hadoop_settings import find_settings
from spark_jobs.jobs.progress import Progress
from spark_jobs.object_store import (
    StoreSettings,
    add_defaults,
    find_hadoop_options,
    parse_store_options,
)
from spark_jobs.read.columns import DAMAGE_COLUMN
from spark_jobs.read.files.corruption import CorruptionRow
from spark_jobs.read.fleet.client import NodeError
from spark_jobs.read.fleet.remote_file import read_range
from spark_jobs.read.fleet.snapshot import keep_snapshot, with_file
from spark_jobs.read.inventory import refuse_nothing, take_inventory
from spark_jobs.read.options import Origin, ReadOptions, parse_read_options
from spark_jobs.read.plan import list_problems, look_through_bad_files
from spark_jobs.read.queue import Queue
from spark_jobs.session import DEFAULT_MASTER, DEFAULT_MEMORY, JobError, is_local_session
from spark_jobs.source import FORMAT

_MEMORY = re.compile(r"[1-9][0-9]*[kmgt]b?", re.IGNORECASE)
_MASTER = re.compile(r"local(\[[0-9*]+(,[0-9]+)?\]|-cluster\[.*\])?\Z|yarn\Z|(spark|k8s)://.+")
# Ended by `run_job`.
_open_selections: list["Selection"] = []
# The last line of a Python traceback inside Spark names the error.
_PYTHON_ERROR_MARKS = ("Error: ", "Exception: ")
# Names of classes that say nothing to a user.
_OWN_ERROR = re.compile(r"(?:spark_jobs\.[\w.]+|ValueError|FileNotFoundError): ")


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that select messages."""
    add_place_arguments(parser)
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
        help="skip nodes that do not answer, and segments that nsqd deletes meanwhile",
    )
    chosen.add_argument(
        "--verify-checksums",
        action="store_true",
        help="leave out messages that nsqd's checksums deny, and count them as damage",
    )
    chosen.add_argument("--node", metavar="NAME", help="value of the column node")
    engine = parser.add_argument_group("Spark (not used under spark-submit)")
    engine.add_argument(
        "--master", help=f"where Spark runs, default {DEFAULT_MASTER}: all cores of this machine"
    )
    engine.add_argument(
        "--memory", default=DEFAULT_MEMORY, help=f"of the JVM, default {DEFAULT_MEMORY}"
    )


def add_place_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that say where queues are: directories, or running nodes."""
    parser.add_argument(
        "data_dir",
        nargs="*",
        metavar="DATA_DIR",
        help="data path of an nsqd, or a copy of it; a glob or a URI such as s3://bucket/node1",
    )
    add_store_arguments(parser)
    nodes = parser.add_argument_group("running nodes, instead of DATA_DIR")
    nodes.add_argument(
        "--lookupd", metavar="HOST:PORT,...", help="all nodes of nsqlookupd (HTTP, port 4161)"
    )
    nodes.add_argument("--nsqd", metavar="HOST:PORT,...", help="these nodes (HTTP, port 4151)")
    nodes.add_argument("--auth-token-file", metavar="FILE", help="with the nodes' HTTP token")
    nodes.add_argument("--https", action="store_true", help="speak HTTPS to the nodes (port 4152)")
    nodes.add_argument("--https-port", metavar="PORT", help="of nodes that nsqlookupd knows")
    nodes.add_argument("--https-ca", metavar="FILE")
    nodes.add_argument("--https-cert", metavar="FILE")
    nodes.add_argument("--https-key", metavar="FILE")
    nodes.add_argument("--https-insecure", action="store_true", help="trust any certificate")


def add_store_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare how to reach an object store; a key is in no argument, which others can see."""
    store = parser.add_argument_group("object store, for s3://; default: AWS's variables and files")
    store.add_argument("--s3-endpoint", metavar="URL", help="such as http://127.0.0.1:9000")
    store.add_argument("--s3-region", metavar="NAME")
    store.add_argument("--s3-access-key-file", metavar="FILE", help="with the access key")
    store.add_argument("--s3-secret-key-file", metavar="FILE", help="with the secret key")


def store_options(args: argparse.Namespace) -> dict[str, str]:
    """Return the options that say how to reach an object store: arguments, then Hadoop's settings.

    Raises:
        JobError: a file of Hadoop's settings cannot be read.
    """
    given = {
        "s3.endpoint": args.s3_endpoint,
        "s3.region": args.s3_region,
        "s3.accessKeyFile": args.s3_access_key_file,
        "s3.secretKeyFile": args.s3_secret_key_file,
    }
    try:
        hadoop = find_hadoop_options(find_settings())
    except ValueError as error:
        raise JobError(str(error)) from error
    return add_defaults({name: text for name, text in given.items() if text is not None}, hadoop)


def store_settings(args: argparse.Namespace) -> StoreSettings:
    """Return how to reach an object store.

    Raises:
        JobError: an argument is wrong.
    """
    given = {name.lower(): text for name, text in store_options(args).items()}
    try:
        return parse_store_options(given)
    except ValueError as error:
        raise JobError(str(error)) from error


def place_options(args: argparse.Namespace) -> dict[str, str]:
    """Return the options that say which nodes to read, and how to reach directories.

    Raises:
        JobError: neither directories nor nodes are given, or both.
    """
    given = {
        "lookupd": args.lookupd,
        "nsqd": args.nsqd,
        "authTokenFile": args.auth_token_file,
        "httpsPort": args.https_port,
        "tlsCa": args.https_ca,
        "tlsCert": args.https_cert,
        "tlsKey": args.https_key,
    }
    options: dict[str, str] = {name: text for name, text in given.items() if text is not None}
    if args.https:
        options["tls"] = "true"
    if args.https_insecure:
        options["tlsInsecure"] = "true"
    if bool(args.data_dir) == bool(args.lookupd or args.nsqd):
        raise JobError("say what to read: DATA_DIR, --lookupd HOST:PORT or --nsqd HOST:PORT")
    return options | store_options(args)


def parse_arguments(
    parser: argparse.ArgumentParser, argv: Sequence[str] | None
) -> argparse.Namespace:
    """Parse arguments; argparse alone wants no option between DATA_DIR and SQL."""
    args, rest = parser.parse_known_args(argv)
    if rest and hasattr(args, "query") and not any(text.startswith("-") for text in rest):
        args.data_dir += [args.query, *rest[:-1]]
        args.query = rest[-1]
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return args


def source_options(args: argparse.Namespace) -> dict[str, str]:
    """Return the options of format nsq that the arguments stand for, without the paths."""
    options = {
        "from": args.origin,
        "includeBad": str(args.include_bad).lower(),
        "includeUnsynced": str(args.include_unsynced).lower(),
        "mode": "FAILFAST" if args.fail_fast else "PERMISSIVE",
        "failOnDataLoss": str(not args.skip_consumed).lower(),
        "verifyChecksums": str(args.verify_checksums).lower(),
    }
    for name in ("topic", "channel", "since", "until", "node"):
        value = getattr(args, name)
        if value is not None:
            options[name] = value
    return options


class Selection:
    """The queues that the arguments select, and how to read them.

    Of running nodes a snapshot is taken, so that all reads of a job see the same moment; it is
    kept until the job ends.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        """Find the queues; warn about messages that are not seen.

        Raises:
            JobError: a directory does not exist, a node does not answer, an argument is wrong, or
                no queue matches.
        """
        self._options = source_options(args) | place_options(args)
        self._paths = list(args.data_dir)
        self._resources = ExitStack()
        _open_selections.append(self)
        _check_engine(args)
        try:
            place = {} if "lookupd" in self._options or "nsqd" in self._options else {"path": "x"}
            self._parsed = parse_read_options(self._options | place)
            self._parsed = replace(self._parsed, paths=tuple(self._paths))
            self._places = self._parsed.places
            if self._parsed.fleet is not None:
                _, path = self._resources.enter_context(keep_snapshot(self._parsed))
                self._parsed = with_file(self._parsed, path)
                for name in ("lookupd", "nsqd"):
                    self._options.pop(name, None)
                self._options["snapshotFile"] = path
            found = take_inventory(self._parsed)
            if args.topic is not None or args.channel is not None:
                refuse_nothing(self._parsed, found)
        except (ValueError, OSError, NodeError) as error:
            raise JobError(str(error)) from error
        self._inventory = found
        self.queues = found.queues
        for text in found.unseen:
            print(f"warning: {text}", file=sys.stderr, flush=True)
        # Later reads may find less, and say so.
        self._options["allowMissing"] = "true"

    def close(self) -> None:
        """End the snapshot."""
        self._resources.close()

    @property
    def options(self) -> ReadOptions:
        """The options of a read of the selection, parsed."""
        return replace(self._parsed, allows_missing=True)

    @property
    def places(self) -> list[str]:
        """Where the queues are, for people."""
        return self._places

    @property
    def unseen(self) -> list[str]:
        """Sentences about messages that exist, or may, and are not read."""
        return list(self._inventory.unseen)

    @property
    def unreachable(self) -> tuple[tuple[str, str], ...]:
        """Nodes that did not answer, with the reason."""
        return self._inventory.unreachable

    @property
    def is_fleet(self) -> bool:
        """Whether running nodes are read."""
        return self._parsed.fleet is not None

    @property
    def includes_bad(self) -> bool:
        """Whether `.bad` files are read, too."""
        return self._parsed.includes_bad

    @property
    def topics(self) -> list[str]:
        """The topics, sorted, also those with nothing to read."""
        return self._inventory.topics

    def describe(self) -> str:
        """Say in a line how much is selected."""
        ranges = [each for queue in self.queues for each in queue.ranges(self._parsed)]
        nodes = len({queue.node for queue in self.queues})
        parts = [part for queue in self.queues for part in queue.parts]
        size = sum(each.end - each.start for each in ranges)
        size += sum(part.byte_count for part in parts)
        memory = sum(part.count for part in parts)
        return (
            f"{plural(nodes, 'node')}, {plural(len(self.topics), 'topic')},"
            f" {plural(len(self.queues), 'queue')}, {plural(len(ranges), 'segment')},"
            + (f" {plural(memory, 'message')} in memory," if self.is_fleet else "")
            + f" {format_bytes(size)}"
        )

    def reader(self, spark: SparkSession, **more: str) -> DataFrameReader:
        """Return a reader with all the options, which still needs the paths."""
        return spark.read.format(FORMAT).options(**(self._options | more))

    def load(self, spark: SparkSession, **more: str) -> DataFrame:
        """Return the messages as a frame.

        Args:
            more: further options, or others than the arguments say.
        """
        reader = self.reader(spark, **more)
        return reader.load() if self.is_fleet else reader.load(self._paths)

    def load_observed(self, spark: SparkSession, damage: Observation, **more: str) -> DataFrame:
        """Return the messages as a frame whose first action also counts the damaged places.

        `tell_damage` shows the count. Without this, damage would cost a scan of its own.
        """
        columns = more.pop("columns", ",".join(self._parsed.columns))
        frame = self.load(spark, columns=f"{columns},{DAMAGE_COLUMN}", **more)
        is_damage = F.col(DAMAGE_COLUMN).isNotNull()
        observed = frame.observe(damage, F.count_if(is_damage).alias(DAMAGE_COLUMN))
        return observed.where(~is_damage).drop(DAMAGE_COLUMN)

    def read_bytes(self, queue: Queue, segment: int, offset: int, size: int) -> bytes:
        """Read some bytes of a queue of a running node, at the place of a row.

        Raises:
            JobError: the node cannot be reached.
        """
        assert self._parsed.fleet is not None
        name = queue.file_name(segment) if segment >= 0 else queue.parts[-1 - segment].file_name
        query = {"id": queue.lease}
        try:
            return read_range(queue.directory, name, query, (offset, size), self._parsed.fleet)
        except NodeError as error:
            raise JobError(str(error)) from error

    def list_damage(self) -> list[CorruptionRow]:
        """Return the rows of corrupt_records that a scan of the messages does not find.

        Raises:
            JobError: a `.bad` file cannot be read.
        """
        rows = list(list_problems(self._inventory))
        if not self.includes_bad:
            try:
                rows += look_through_bad_files(self.queues, self._parsed)
            except OSError as error:
                raise JobError(str(error)) from error
        return rows


def tell_damage(damage: Observation, progress: Progress) -> None:
    """Tell the user, after an action, how many places of the selection could not be read."""
    count = damage.get[DAMAGE_COLUMN]
    if count:
        progress.step(f"{plural(count, 'damaged place')} skipped; sql shows corrupt_records")


def check_output(args: argparse.Namespace, *, is_new: bool) -> None:
    """Refuse a local directory that Spark would refuse after its work.

    Args:
        is_new: it may have no results in it.

    Raises:
        JobError: there is something already, or it cannot be made.
    """
    path = Path(args.output.removeprefix("file://"))
    if "://" in str(args.output).removeprefix("file://"):
        return
    if is_new and path.is_dir() and any(path.iterdir()):
        raise JobError(f"{args.output} already exists and is not empty")
    # Elsewhere a path may be one of HDFS.
    if is_local_session(args.master):
        try:
            _try_directory(path)
        except OSError as error:
            raise JobError(f"cannot write to {args.output}: {error.strerror}") from error


def _try_directory(path: Path) -> None:
    """Make a directory and a file in it, and remove what was not there."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    finally:
        for each in missing:
            with suppress(OSError):
                each.rmdir()


def _check_engine(args: argparse.Namespace) -> None:
    """Refuse arguments that Spark would refuse after a minute."""
    memory, master = getattr(args, "memory", DEFAULT_MEMORY), getattr(args, "master", None)
    if not _MEMORY.fullmatch(memory):
        raise JobError(f"--memory is a size such as 512m or 2g, not {memory!r}")
    if master is not None and not _MASTER.match(master):
        raise JobError(f"--master is local[2], spark://host:7077, yarn or such, not {master!r}")


def run_job(run: Callable[[argparse.Namespace], None], args: argparse.Namespace) -> int:
    """Run a job and return its exit code; print errors of users and of Spark in one line."""
    # pyspark would print the stack of each error that is printed below in a line.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    try:
        run(args)
    except JobError as error:
        print(f"error: {escape_text(str(error))}", file=sys.stderr)
        return 1
    except (PySparkException, Py4JJavaError) as error:
        print(f"error: {escape_text(shorten_error(str(error)))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    finally:
        while _open_selections:
            _open_selections.pop().close()
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
