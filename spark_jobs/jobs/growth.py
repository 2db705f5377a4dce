"""Growth of queues between two looks, and the words for ages and times to drain.

The earlier look is a report of before (`--compare last/report.json`), or one that the report takes
itself, some time ahead (`--two-looks 30s`).
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

from spark_jobs.object_store import StoreSettings, split_uri
from spark_jobs.read.files.directory import Directory
from spark_jobs.read.queue import Queue

_MAX_REPORT_BYTES = 1024 * 1024 * 1024
_UNITS = ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))
# A longer forecast is not credible.
_MAX_DRAIN_S = 3650 * 86400

QueueKey = tuple[str, str | None]  # topic, channel


@dataclass(frozen=True, slots=True)
class Growth:
    """How the messages of a queue, or of several, changed between two looks."""

    before_count: int
    after_count: int
    span_s: float

    @property
    def per_minute(self) -> float:
        """Messages more in a minute; below 0 if they become fewer."""
        return (self.after_count - self.before_count) / self.span_s * 60

    @property
    def drained_in_s(self) -> float | None:
        """The time until nothing is left if this goes on; None if it does not end."""
        if self.after_count == 0:
            return 0.0
        if self.per_minute >= 0:
            return None
        seconds = self.after_count / -self.per_minute * 60
        return seconds if seconds <= _MAX_DRAIN_S else None

    def describe(self) -> str:
        """Say in a few words where this leads."""
        if self.after_count == 0:
            return "empty"
        if self.after_count == self.before_count:
            return "as it was"
        if self.per_minute > 0:
            return "grows"
        seconds = self.drained_in_s
        return "drains in years" if seconds is None else f"drained in {in_words(seconds)}"


@dataclass(frozen=True, slots=True)
class Look:
    """The messages of each queue at one moment."""

    moment: datetime
    counts: Mapping[QueueKey, int]

    def compare(self, later: "Look") -> dict[QueueKey, Growth]:
        """Return the growth of each queue that the later look has.

        A queue that the earlier one does not have was empty, or not there, then.
        """
        span_s = max((later.moment - self.moment).total_seconds(), 1e-3)
        return {
            key: Growth(self.counts.get(key, 0), count, span_s)
            for key, count in later.counts.items()
        }


def look_at(queues: Iterable[Queue]) -> Look:
    """Count the messages of queues by the figures that nsqd keeps, without reading them."""
    counts: dict[QueueKey, int] = {}
    for queue in queues:
        key = queue.topic, queue.channel
        counts[key] = counts.get(key, 0) + (queue.unfinished_count or 0)
    return Look(datetime.now(UTC), counts)


def read_look(name: str, store: StoreSettings) -> tuple[Look, str]:
    """Read the counts of an earlier report; return also what it was a report of: `from`.

    Args:
        name: a report.json, or the directory that it is in.

    Raises:
        ValueError: it is no report.
        OSError: it cannot be read.
    """
    place, reached = split_uri(name, store)
    place = place.rstrip("/")
    parent, _, file_name = place.rpartition("/")
    if not file_name.endswith(".json"):
        parent, file_name = place, "report.json"
    try:
        text = Directory(parent or ".", reached).read_start(file_name, _MAX_REPORT_BYTES)
    except NotADirectoryError:
        text = None
    if text is None:
        raise FileNotFoundError(f"no such report: {place}")
    try:
        document = json.loads(text)
        moment = datetime.fromisoformat(document["created"])
        counts = {
            (str(row["topic"]), row["channel"]): int(row["messages"]) for row in document["queues"]
        }
        return Look(moment, counts), str(document["from"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{place} is no report of nsqd-spark: {error!r}") from error


def in_words(seconds: float) -> str:
    """Write a time with its largest unit and the next one: 3 days 4 hours."""
    rest = round(seconds)
    for (size, unit), (smaller_size, smaller_unit) in pairwise(_UNITS):
        if rest >= size:
            count, smaller_count = rest // size, rest % size // smaller_size
            text = _amount(count, unit)
            return f"{text} {_amount(smaller_count, smaller_unit)}" if smaller_count else text
    return _amount(rest, "second") if rest else "less than a second"


def _amount(count: int, unit: str) -> str:
    return f"{count:,} {unit}{'' if count == 1 else 's'}"
