"""The options of a read, parsed once from Spark's strings."""

import difflib
import enum
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import TypeVar

from diskqueue.envelope import HEADER_BYTES
from diskqueue.segment import Limits
from spark_jobs.read.columns import ALL_COLUMNS, BAD_COLUMN, MESSAGE_COLUMNS

_E = TypeVar("_E", bound=enum.Enum)

# A minus is understood, but a command line takes `--since -15m` for two options.
_RELATIVE = re.compile(r"-?(\d{1,9})(ms|[smhdw])")
_UNIT_NS = {
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
    "d": 86400 * 10**9,
    "w": 7 * 86400 * 10**9,
}
# About the year 5138: what would be later than that was meant in a smaller unit.
_MAX_TIME_NS = 10**20
_SIZE = re.compile(r"(\d{1,18})\s*([kmg]?)(?:i?b)?", re.IGNORECASE)
_SIZE_SHIFTS = {"": 0, "k": 10, "m": 20, "g": 30}
_DEFAULT_LIMITS = Limits()
# What Spark itself adds.
_SPARKS_OWN = ("path", "paths")


class Origin(enum.Enum):
    """Where in a queue reading starts."""

    BACKLOG = "backlog"  # at the persisted read position: what has not been consumed
    EARLIEST = "earliest"  # at the oldest record that is still there
    ARCHIVE = "archive"  # at the read position of the queues under archive/: all that is kept
    LATEST = "latest"  # behind what is there, for streams

    @property
    def is_earliest(self) -> bool:
        """Whether files before the read position count, too: consumed and not deleted yet."""
        return self is Origin.EARLIEST


class Table(enum.Enum):
    """What rows are made of."""

    MESSAGES = "messages"
    CORRUPT_RECORDS = "corrupt_records"


class Mode(enum.Enum):
    """What happens at damage."""

    PERMISSIVE = "PERMISSIVE"
    FAILFAST = "FAILFAST"


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What to read, and how; `parse_read_options` explains the fields."""

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
    limits: Limits = _DEFAULT_LIMITS
    includes_bad: bool = False
    includes_unsynced: bool = False
    fails_on_data_loss: bool = True

    def selects(self, topic: str, channel: str | None) -> bool:
        """Whether a queue is one of those to read."""
        if not any(fnmatchcase(topic, pattern) for pattern in self.topics):
            return False
        if self.channels is None:
            return True
        if channel is None:
            return "" in self.channels
        return any(fnmatchcase(channel, pattern) for pattern in self.channels)


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
    "maxMsgSize",
    "includeBad",
    "includeUnsynced",
    "failOnDataLoss",
)


def parse_read_options(options: Mapping[str, str]) -> ReadOptions:
    """The options of `spark.read.format("nsq")`.

    Raises:
        ValueError: an option is unknown or has no valid value.
    """
    given = {name.lower(): value for name, value in options.items()}
    refuse_unknown(given, READ_OPTIONS, _SPARKS_OWN)
    includes_bad = parse_bool("includeBad", given.get("includebad", "false"))
    since, until = given.get("since"), given.get("until")
    channels = given.get("channel")
    return ReadOptions(
        paths=_parse_paths(given),
        topics=_split(given.get("topic", "*")),
        channels=None if channels is None else _split(channels),
        since_ns=None if since is None else parse_time_ns("since", since),
        until_ns=None if until is None else parse_time_ns("until", until),
        origin=parse_enum("from", Origin, given.get("from", "backlog").lower()),
        mode=parse_enum("mode", Mode, given.get("mode", "PERMISSIVE").upper()),
        table=parse_enum("table", Table, given.get("table", "messages").lower()),
        columns=_parse_columns(given.get("columns"), includes_bad=includes_bad),
        node=given.get("node"),
        split_bytes=_parse_optional_size("splitBytes", given),
        max_rows_per_trigger=_parse_optional_count("maxRowsPerTrigger", given),
        limits=Limits(max_record_bytes=_parse_max_record_bytes(given)),
        includes_bad=includes_bad,
        includes_unsynced=parse_bool("includeUnsynced", given.get("includeunsynced", "false")),
        fails_on_data_loss=parse_bool("failOnDataLoss", given.get("failondataloss", "true")),
    )


def refuse_unknown(
    given: Mapping[str, str], known: tuple[str, ...], ignored: tuple[str, ...]
) -> None:
    """A misspelt option that is ignored gives wrong results.

    Raises:
        ValueError: an option is neither known nor ignored.
    """
    names = {name.lower(): name for name in known}
    for name in given:
        if name in names or name in ignored:
            continue
        close = difflib.get_close_matches(name, names, 1)
        hint = f"; did you mean {names[close[0]]!r}?" if close else f": {', '.join(known)}"
        raise ValueError(f"format nsq has no option {name!r}{hint}")


def _parse_paths(given: Mapping[str, str]) -> tuple[str, ...]:
    """`load("a")` comes as path, `load(["a", "b"])` as a JSON list in paths."""
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


def parse_bool(name: str, text: str) -> bool:
    """An option that is true or false.

    Raises:
        ValueError: it is neither.
    """
    if text.lower() not in ("true", "false"):
        raise ValueError(f"option {name} is true or false, not {text!r}")
    return text.lower() == "true"


def parse_enum(name: str, kind: type[_E], text: str) -> _E:
    """An option with a few possible values.

    Raises:
        ValueError: it is none of them.
    """
    try:
        return kind(text)
    except ValueError:
        values = ", ".join(str(member.value) for member in kind)
        raise ValueError(f"option {name} is one of {values}, not {text!r}") from None


def parse_size(name: str, text: str) -> int:
    """A number of bytes such as 67108864, 64m or 64MiB.

    Raises:
        ValueError: it is not that.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or int(match[1]) == 0:
        raise ValueError(f"option {name} is a size such as 64m, not {text!r}")
    return int(match[1]) << _SIZE_SHIFTS[match[2].lower()]


def parse_count(name: str, text: str, *, minimum: int = 1, maximum: int = 2**31 - 1) -> int:
    """A number of things.

    Raises:
        ValueError: it is not that.
    """
    digits = text.strip()
    if not re.fullmatch("[0-9]{1,19}", digits) or not minimum <= int(digits) <= maximum:
        raise ValueError(f"option {name} is a number from {minimum} to {maximum}, not {text!r}")
    return int(digits)


def _parse_optional_size(name: str, given: Mapping[str, str]) -> int | None:
    text = given.get(name.lower())
    return None if text is None else parse_size(name, text)


def _parse_optional_count(name: str, given: Mapping[str, str]) -> int | None:
    text = given.get(name.lower())
    return None if text is None else parse_count(name, text, maximum=2**63 - 1)


def _parse_max_record_bytes(given: Mapping[str, str]) -> int:
    size = _parse_optional_size("maxMsgSize", given) or 1024 * 1024
    if size > 2**31 - 1 - HEADER_BYTES:
        raise ValueError(f"option maxMsgSize is less than 2 GiB, not {size}")
    return size + HEADER_BYTES


def _since_epoch_ns(number: int) -> int:
    """From 1973 on in each of the units, and before 5138 in seconds."""
    for factor in (10**9, 10**6, 10**3):
        if number * factor < _MAX_TIME_NS:
            return number * factor
    return number


def parse_time_ns(name: str, text: str) -> int:
    """A moment in nanoseconds: ISO 8601 (UTC unless it says otherwise), 15m ago, or a number.

    A number counts seconds, milliseconds, microseconds or nanoseconds since 1970, told apart by
    size: taken for nanoseconds, all but the last would silently select everything.

    Raises:
        ValueError: it is none of these.
    """
    text = text.strip()
    if match := _RELATIVE.fullmatch(text):
        return time.time_ns() - int(match[1]) * _UNIT_NS[match[2]]
    if text.isascii() and text.isdigit() and len(text) > len("20261231"):
        return _since_epoch_ns(int(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"option {name} is a time such as 2026-01-31T12:00:00Z or 15m, not {text!r}"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since_epoch = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since_epoch.days * 86400 + since_epoch.seconds) * 10**9 + (
        since_epoch.microseconds * 1000
    )
