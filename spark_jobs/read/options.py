"""The options of a read, parsed once from Spark's strings."""

import enum
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TypeVar

from diskqueue.envelope import HEADER_BYTES
from diskqueue.segment import RecordLimits
from spark_jobs.object_store import (
    AMBIENT,
    STORE_OPTIONS,
    StoreSettings,
    parse_store_options,
    split_uri,
)
from spark_jobs.option_values import (
    parse_bool,
    parse_count,
    parse_duration_s,
    parse_enum,
    parse_size,
    parse_time_ns,
    refuse_unknown,
)
from spark_jobs.read.columns import (
    ALL_COLUMNS,
    BAD_COLUMN,
    FLEET_COLUMNS,
    MESSAGE_COLUMNS,
)
from spark_jobs.read.fleet.options import FLEET_OPTIONS, FleetOptions, parse_fleet_options
from spark_jobs.read.kafka_names import KAFKA_OPTIONS, translate

_DEFAULT_LIMITS = RecordLimits()
_GLOB = re.compile(r"[*?\[]")
_NAME_OR_PATTERN = re.compile(r"[.a-zA-Z0-9_\-#*?\[\]!]*")
# Spark itself adds these.
_SPARKS_OWN = ("path", "paths")
_T = TypeVar("_T")

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
    "verifyChecksums",
    "failOnDataLoss",
    "allowMissing",
    "minPartitions",
    *STORE_OPTIONS,
    *FLEET_OPTIONS,
    *KAFKA_OPTIONS,
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

    # As they were given: a URI may hold keys.
    paths: tuple[str, ...] = field(repr=False)
    # The nodes to ask over HTTP, instead of paths.
    fleet: FleetOptions | None = None
    # How to reach directories in an object store.
    store: StoreSettings = AMBIENT
    topics: tuple[str, ...] = ("*",)
    # A regular expression that names of topics must match, too.
    topic_pattern: str | None = None
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
    verifies_checksums: bool = False
    fails_on_data_loss: bool = True
    # A stream commits what it passes: it waits for a node that is away, and never leaves it out.
    is_stream: bool = False
    allows_missing: bool = False
    min_partitions: int | None = None
    # Offsets as JSON between which to read, in place of `origin`; the second for batches only.
    start_offsets: str | None = None
    end_offsets: str | None = None
    # Where a new stream begins: at the end, or with the first message of that time.
    starts_at_end: bool = False
    start_ns: int | None = None

    @property
    def exact_topics(self) -> list[str]:
        """The topics that are named, not described by a pattern."""
        return [name for name in self.topics if not _GLOB.search(name)]

    @property
    def exact_channels(self) -> list[str]:
        """The channels that are named; not the empty name, a topic's own queue."""
        return [name for name in self.channels or () if name and not _GLOB.search(name)]

    @property
    def has_times(self) -> bool:
        """Whether the time of a message decides if it is read."""
        return self.since_ns is not None or self.until_ns is not None

    @property
    def places(self) -> list[str]:
        """Where the queues are, for messages to people: without tokens and keys."""
        if self.fleet is not None:
            return [self.fleet.describe()]
        return [split_uri(path, self.store)[0] for path in self.paths]

    @property
    def place(self) -> str:
        """Where the queues are, in a line."""
        return ", ".join(self.places)

    def selects(self, topic: str, channel: str | None) -> bool:
        """Say whether a queue is one of those to read."""
        if not any(fnmatchcase(topic, pattern) for pattern in self.topics):
            return False
        if self.topic_pattern is not None and not re.fullmatch(self.topic_pattern, topic):
            return False
        if self.channels is None:
            return True
        if channel is None:
            return "" in self.channels
        return any(fnmatchcase(channel, pattern) for pattern in self.channels)


def parse_read_options(options: Mapping[str, str], *, is_stream: bool = False) -> ReadOptions:
    """Parse the options of `spark.read.format("nsq")`, or of `spark.readStream`.

    A stream commits its offsets, so damage that it passed would stay unread for ever: there
    the default of `mode` is FAILFAST.

    Raises:
        ValueError: an option is unknown or has no valid value.
    """
    given = {name.lower(): value for name, value in options.items()}
    default_mode = Mode.FAILFAST if is_stream else Mode.PERMISSIVE
    refuse_unknown(given, READ_OPTIONS, _SPARKS_OWN)
    given = translate(given, is_stream=is_stream)
    includes_bad = parse_bool("includeBad", given.get("includebad", "false"))
    channels = given.get("channel")
    fleet = parse_fleet_options(given)
    if fleet is not None:
        _check_patterns(given)
    since_ns = _optional(given, "since", parse_time_ns)
    until_ns = _optional(given, "until", parse_time_ns)
    if since_ns is not None and until_ns is not None and since_ns >= until_ns:
        raise ValueError(
            f"option since is a time before until, not {given['since']!r} and {given['until']!r}"
        )
    return ReadOptions(
        paths=_parse_paths(given, needs_one=fleet is None),
        fleet=fleet,
        store=parse_store_options(given),
        topics=_split(given.get("topic", "*")),
        topic_pattern=_parse_pattern(given.get("subscribepattern")),
        channels=None if channels is None else _split(channels),
        since_ns=since_ns,
        until_ns=until_ns,
        origin=parse_enum("from", Origin, given.get("from", "backlog").lower()),
        mode=parse_enum("mode", Mode, given.get("mode", default_mode.value).upper()),
        table=parse_enum("table", Table, given.get("table", "messages").lower()),
        columns=_parse_columns(
            given.get("columns"), includes_bad=includes_bad, is_fleet=fleet is not None
        ),
        node=given.get("node"),
        split_bytes=_optional(given, "splitBytes", parse_size),
        max_rows_per_trigger=_optional(given, "maxRowsPerTrigger", _parse_rows),
        look_interval_s=parse_duration_s("lookInterval", given.get("lookinterval", "1s")),
        limits=RecordLimits(
            max_record_bytes=_parse_max_record_bytes(given.get("maxmsgsize", "1m"))
        ),
        includes_bad=includes_bad,
        includes_unsynced=parse_bool("includeUnsynced", given.get("includeunsynced", "false")),
        verifies_checksums=parse_bool("verifyChecksums", given.get("verifychecksums", "false")),
        fails_on_data_loss=parse_bool("failOnDataLoss", given.get("failondataloss", "true")),
        is_stream=is_stream,
        allows_missing=parse_bool("allowMissing", given.get("allowmissing", "false")),
        min_partitions=_optional(given, "minPartitions", parse_count),
        start_offsets=given.get("startingoffsets"),
        end_offsets=given.get("endingoffsets"),
        starts_at_end=given.get("starts_at_end") is not None,
        start_ns=_optional(given, "startingTimestamp", parse_time_ns),
    )


def _optional(given: Mapping[str, str], name: str, parse: Callable[[str, str], _T]) -> _T | None:
    text = given.get(name.lower())
    return None if text is None else parse(name, text)


def _parse_rows(name: str, text: str) -> int:
    return parse_count(name, text, maximum=2**63 - 1)


def _parse_pattern(text: str | None) -> str | None:
    if text is not None:
        try:
            re.compile(text)
        except re.error as error:
            raise ValueError(
                f"option subscribePattern is a regular expression, not {text!r}: {error}"
            ) from None
    return text


def _check_patterns(given: Mapping[str, str]) -> None:
    """Refuse what cannot be a name, which nodes would refuse with a word of theirs."""
    for name in ("topic", "channel"):
        for part in _split(given.get(name, "")):
            if not _NAME_OR_PATTERN.fullmatch(part):
                raise ValueError(
                    f"option {name} has names or patterns such as pay*, with commas, not {part!r}"
                )


def _parse_paths(given: Mapping[str, str], *, needs_one: bool) -> tuple[str, ...]:
    """Collect the paths: `load("a")` comes as path, `load(["a", "b"])` as a JSON list in paths."""
    paths: list[str] = []
    if given.get("path"):
        paths.append(given["path"])
    if given.get("paths"):
        paths += json.loads(given["paths"])
    if not paths and needs_one:
        raise ValueError(
            'format nsq needs the path of a data directory: .load("/var/lib/nsqd"),'
            " or the option lookupd or nsqd"
        )
    if paths and not needs_one:
        raise ValueError("a path and the options lookupd or nsqd exclude each other")
    return tuple(paths)


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


def _parse_columns(text: str | None, *, includes_bad: bool, is_fleet: bool) -> tuple[str, ...]:
    if text is None:
        more = (*(FLEET_COLUMNS if is_fleet else ()), *((BAD_COLUMN,) if includes_bad else ()))
        return (*MESSAGE_COLUMNS, *more)
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
