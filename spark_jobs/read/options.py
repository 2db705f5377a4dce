"""The options of a read, parsed once from Spark's strings."""

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from diskqueue.envelope import HEADER_BYTES
from diskqueue.segment import RecordLimits
from spark_jobs.option_values import (
    parse_bool,
    parse_count,
    parse_duration_s,
    parse_enum,
    parse_size,
    parse_time_ns,
    refuse_unknown,
)
from spark_jobs.read.columns import ALL_COLUMNS, BAD_COLUMN, MESSAGE_COLUMNS

_DEFAULT_LIMITS = RecordLimits()
# Spark itself adds these.
_SPARKS_OWN = ("path", "paths")

READ_OPTIONS = (
    "path",
    "topic",
    "channel",
    "since",
    "until",
    "from",
    "mode",
    "table",
    "columns",
    "node",
    "splitBytes",
    "maxRowsPerTrigger",
    "lookInterval",
    "maxMsgSize",
    "includeBad",
    "includeUnsynced",
    "failOnDataLoss",
)


class Origin(enum.Enum):
    """Where in a queue reading starts."""

    BACKLOG = "backlog"  # at the persisted read position: messages that are not consumed
    EARLIEST = "earliest"  # at the oldest record on disk, consumed or not
    ARCHIVE = "archive"  # at the read position of the queues under archive/: all that is kept
    LATEST = "latest"  # at the end, for streams


class Table(enum.Enum):
    """The rows to make: of messages, or of damage."""

    MESSAGES = "messages"
    CORRUPT_RECORDS = "corrupt_records"


class Mode(enum.Enum):
    """The answer to damage: skip it and log it, or fail."""

    PERMISSIVE = "PERMISSIVE"
    FAILFAST = "FAILFAST"


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The selection of messages and the way to read them; picklable, executors get it whole.

    `spark_jobs.source` explains the options.
    """

    paths: tuple[str, ...]
    topics: tuple[str, ...] = ("*",)
    channels: tuple[str, ...] | None = None
    since_ns: int | None = None
    until_ns: int | None = None
    origin: Origin = Origin.BACKLOG
    mode: Mode = Mode.PERMISSIVE
    table: Table = Table.MESSAGES
    columns: tuple[str, ...] = MESSAGE_COLUMNS
    node: str | None = None
    split_bytes: int | None = None
    max_rows_per_trigger: int | None = None
    look_interval_s: float = 1.0
    limits: RecordLimits = _DEFAULT_LIMITS
    includes_bad: bool = False
    includes_unsynced: bool = False
    fails_on_data_loss: bool = True

    def selects(self, topic: str, channel: str | None) -> bool:
        """Say whether a queue is one of those to read."""
        if not any(fnmatchcase(topic, pattern) for pattern in self.topics):
            return False
        if self.channels is None:
            return True
        if channel is None:
            return "" in self.channels
        return any(fnmatchcase(channel, pattern) for pattern in self.channels)


def parse_read_options(options: Mapping[str, str], *, is_stream: bool = False) -> ReadOptions:
    """Parse the options of `spark.read.format("nsq")`, or of `spark.readStream`.

    A stream commits what it has read, so damage that it passed would stay unread for ever: there
    the default of `mode` is FAILFAST.

    Raises:
        ValueError: an option is unknown or has no valid value.
    """
    given = {name.lower(): value for name, value in options.items()}
    default_mode = Mode.FAILFAST if is_stream else Mode.PERMISSIVE
    refuse_unknown(given, READ_OPTIONS, _SPARKS_OWN)
    includes_bad = parse_bool("includeBad", given.get("includebad", "false"))
    since, until = given.get("since"), given.get("until")
    channels = given.get("channel")
    split, rows = given.get("splitbytes"), given.get("maxrowspertrigger")
    return ReadOptions(
        paths=_parse_paths(given),
        topics=_split(given.get("topic", "*")),
        channels=None if channels is None else _split(channels),
        since_ns=None if since is None else parse_time_ns("since", since),
        until_ns=None if until is None else parse_time_ns("until", until),
        origin=parse_enum("from", Origin, given.get("from", "backlog").lower()),
        mode=parse_enum("mode", Mode, given.get("mode", default_mode.value).upper()),
        table=parse_enum("table", Table, given.get("table", "messages").lower()),
        columns=_parse_columns(given.get("columns"), includes_bad=includes_bad),
        node=given.get("node"),
        split_bytes=None if split is None else parse_size("splitBytes", split),
        max_rows_per_trigger=(
            None if rows is None else parse_count("maxRowsPerTrigger", rows, maximum=2**63 - 1)
        ),
        look_interval_s=parse_duration_s("lookInterval", given.get("lookinterval", "1s")),
        limits=RecordLimits(
            max_record_bytes=_parse_max_record_bytes(given.get("maxmsgsize", "1m"))
        ),
        includes_bad=includes_bad,
        includes_unsynced=parse_bool("includeUnsynced", given.get("includeunsynced", "false")),
        fails_on_data_loss=parse_bool("failOnDataLoss", given.get("failondataloss", "true")),
    )


def _parse_paths(given: Mapping[str, str]) -> tuple[str, ...]:
    """Collect the paths: `load("a")` comes as path, `load(["a", "b"])` as a JSON list in paths."""
    paths: list[str] = []
    if given.get("path"):
        paths.append(given["path"])
    if given.get("paths"):
        paths += json.loads(given["paths"])
    if not paths:
        raise ValueError('format nsq needs the path of a data directory: .load("/var/lib/nsqd")')
    return tuple(paths)


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


def _parse_columns(text: str | None, *, includes_bad: bool) -> tuple[str, ...]:
    if text is None:
        return (*MESSAGE_COLUMNS, BAD_COLUMN) if includes_bad else MESSAGE_COLUMNS
    columns = _split(text)
    for name in columns:
        if name == BAD_COLUMN and not includes_bad:
            raise ValueError(f"column {BAD_COLUMN!r} needs the option includeBad=true")
        if name not in ALL_COLUMNS:
            known = ", ".join(ALL_COLUMNS)
            raise ValueError(f"no column {name!r} in format nsq; there are {known}")
    if len(set(columns)) < len(columns):
        raise ValueError(f"a column is named twice: columns={text}")
    return columns


def _parse_max_record_bytes(text: str) -> int:
    size = parse_size("maxMsgSize", text)
    if size > 2**31 - 1 - HEADER_BYTES:
        raise ValueError(f"option maxMsgSize is less than 2 GiB, not {size}")
    return size + HEADER_BYTES
