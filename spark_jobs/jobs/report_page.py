"""The report as one HTML page that needs nothing else: style, plots and a little script inside.

The page itself is templates/report.html. Every value in it is escaped, since topics, ids and bodies
come from messages, and characters that HTML cannot have are replaced.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from spark_jobs.jobs.charts import (
    Chart,
    bar_chart,
    column_chart,
    format_count,
    join_counts,
    sparkline,
    time_chart,
)
from spark_jobs.jobs.job import format_bytes, plural
from spark_jobs.jobs.report_figures import QueueFigures, Report, time_span

# More queues than that are only in the table; their figures are in report.json and in the tables.
_MAX_DETAILS = 200
_MAX_BARS = 20
_MAX_FIELDS_SHOWN = 100
_MAX_CORRUPT_SHOWN = 100
_SPARK_BARS = 40
_MAX_ATTEMPT_COLUMNS = 24
_UNPRINTABLE = "\N{SYMBOL FOR SUBSTITUTE}"

_Row = Mapping[str, Any]


class Tile(NamedTuple):
    """A figure at the top of the page; `kind` is its class in the style sheet."""

    name: str
    value: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Detail:
    """The section of one queue."""

    index: int
    queue: QueueFigures
    over_time: Chart
    sizes: Chart
    attempts: Chart
    poison: Sequence[_Row]
    duplicates: Sequence[_Row]


class TopicFields(NamedTuple):
    """The JSON fields of one topic."""

    name: str
    bodies: Sequence[_Row]
    fields: Sequence[_Row]


def render(report: Report) -> str:
    """Return the page."""
    page: str = _TEMPLATE.render(
        report=report,
        tiles=_tiles(report),
        overview=_overview(report),
        sparklines=_sparklines(report),
        damage=report.corrupt_records[:_MAX_CORRUPT_SHOWN],
        details=list(_details(report)),
        topics=list(_topics(report)),
        max_fields=_MAX_FIELDS_SHOWN,
    )
    return page


def _printable(value: object) -> object:
    """Replace the characters that HTML cannot have, such as NUL and lone surrogates."""
    if not isinstance(value, str) or value.isprintable() or hasattr(value, "__html__"):
        return value  # no text, or the page's own HTML
    return "".join(each if each.isprintable() else _UNPRINTABLE for each in value)


def _minute(value: datetime | None) -> str:
    return "" if value is None else f"{value:%Y-%m-%d %H:%M}"


_ENVIRONMENT = Environment(
    # Finds the templates in a zip, too: on a cluster this package is one.
    loader=PackageLoader("spark_jobs.jobs"),
    autoescape=True,
    finalize=_printable,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
)
_ENVIRONMENT.filters |= {
    "bytes": format_bytes,
    "commas": "{:,}".format,
    "minute": _minute,
    "percent": lambda share, digits: f"{share:.{digits}%}",
    "plural": plural,
    "second": "{:%Y-%m-%d %H:%M:%S}".format,
    "short": format_count,
}
_TEMPLATE = _ENVIRONMENT.get_template("report.html")


def _tiles(report: Report) -> list[Tile]:
    queues = report.queues
    oldest, newest = time_span(report.queues)
    warnings = {
        "attempted again": sum(queue.retried_count for queue in queues),
        "duplicates": sum(queue.duplicate_count for queue in queues),
        "damaged places": report.corrupt_count,
    }
    return [
        Tile("messages", f"{sum(queue.message_count for queue in queues):,}"),
        Tile("in bodies", format_bytes(sum(queue.byte_count for queue in queues))),
        Tile("topics", f"{len({queue.topic for queue in queues}):,}"),
        Tile("queues", f"{len(queues):,}"),
        Tile("oldest, UTC", _minute(oldest) or "none", "small"),
        Tile("newest, UTC", _minute(newest) or "none", "small"),
        *(Tile(name, f"{count:,}", "warn" if count else "") for name, count in warnings.items()),
    ]


def _overview(report: Report) -> list[Chart]:
    busy = [queue for queue in report.queues if queue.message_count]
    if not busy:
        return []
    over_time: dict[datetime, int] = {}
    for queue in busy:
        for moment, count in queue.over_time:
            over_time[moment] = over_time.get(moment, 0) + count
    largest = sorted(busy, key=lambda queue: -queue.message_count)[:_MAX_BARS]
    more = f", the {_MAX_BARS} largest queues" if len(busy) > _MAX_BARS else " per queue"
    return [
        _time_chart(sorted(over_time.items()), report),
        bar_chart(
            [(_queue_title(queue), queue.message_count) for queue in largest],
            label=f"messages{more}",
        ),
    ]


def _time_chart(points: Sequence[tuple[datetime, int]], report: Report) -> Chart:
    return time_chart(points, step_s=report.step_s, label="messages by time published")


def _sparklines(report: Report) -> list[str]:
    oldest, newest = time_span(report.queues)
    if oldest is None or newest is None:
        return [""] * len(report.queues)
    return [
        sparkline(join_counts(queue.over_time, oldest, newest, _SPARK_BARS))
        for queue in report.queues
    ]


def _details(report: Report) -> Iterator[Detail]:
    """Yield the sections of the largest queues, in the order of the table."""
    poison, duplicates = _by_queue(report.poison), _by_queue(report.duplicates)
    largest = sorted(
        range(len(report.queues)), key=lambda index: -report.queues[index].message_count
    )
    for index in sorted(largest[:_MAX_DETAILS]):
        queue = report.queues[index]
        key = queue.topic, queue.channel
        yield Detail(
            index,
            queue,
            _time_chart(queue.over_time, report),
            column_chart(_size_columns(queue), label="size of bodies, from … bytes"),
            column_chart(_attempt_columns(queue), label="attempts so far"),
            poison.get(key, ()),
            duplicates.get(key, ()),
        )


def _size_columns(queue: QueueFigures) -> list[tuple[str, int]]:
    powers = dict(queue.sizes)
    if not powers:
        return []
    return [
        (_power_name(power), powers.get(power, 0)) for power in range(min(powers), max(powers) + 1)
    ]


def _power_name(power: int) -> str:
    size = 2**power
    if size < 1024:
        return str(size)
    return f"{size // 1024}k" if size < 1024**2 else f"{size // 1024**2}M"


def _attempt_columns(queue: QueueFigures) -> list[tuple[str, int]]:
    columns = [(str(number), count) for number, count in queue.attempts]
    rest = columns[_MAX_ATTEMPT_COLUMNS:]
    if not rest:
        return columns
    return [*columns[:_MAX_ATTEMPT_COLUMNS], (f"{rest[0][0]}+", sum(count for _, count in rest))]


def _topics(report: Report) -> Iterator[TopicFields]:
    fields: dict[str, list[_Row]] = {}
    for row in report.fields:
        fields.setdefault(row["topic"], []).append(row)
    for name, rows in sorted(fields.items()):
        bodies = [row for row in report.bodies if row["topic"] == name]
        yield TopicFields(name, bodies, rows)


def _by_queue(rows: Sequence[_Row]) -> dict[tuple[str, str | None], list[_Row]]:
    found: dict[tuple[str, str | None], list[_Row]] = {}
    for row in rows:
        found.setdefault((row["topic"], row["channel"]), []).append(row)
    return found


def _queue_title(queue: QueueFigures) -> str:
    return queue.topic if queue.channel is None else f"{queue.topic} / {queue.channel}"
