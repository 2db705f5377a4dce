"""The report as one HTML page that needs nothing else: style, plots and a little script inside.

The page itself is templates/report.html. Every value in it is escaped, since topics, ids and bodies
come from messages, and characters that HTML cannot have are replaced.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from spark_jobs.jobs.charts import (
    Chart,
    column_chart,
    format_count,
    join_counts,
    rank_chart,
    sparkline,
    time_chart,
)
from spark_jobs.jobs.growth import in_words
from spark_jobs.jobs.job import format_bytes, plural
from spark_jobs.jobs.report_figures import NodeFigures, QueueFigures, Report, time_span

# More queues than that are only in the table; their figures are in report.json and in the tables.
_MAX_DETAILS = 200
# The table of queues gives topics with longer names more room.
_LONG_NAME = 24
_MAX_RANKS = 10
_MIN_RANKS = 2
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
    title: str = ""


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
    details = list(_details(report))
    page: str = _TEMPLATE.render(
        report=report,
        tiles=_tiles(report),
        overview=_overview(report),
        ranks=_ranks(report),
        ages=[_age_s(queue.oldest, report) for queue in report.queues],
        nodes=_nodes(report),
        has_messages=any(queue.message_count for queue in report.queues),
        has_latency=any(queue.latency for queue in report.queues),
        has_places=any(queue.places for queue in report.queues),
        kinds=Counter(row["kind"] for row in report.corrupt_records).most_common(),
        sparklines=_sparklines(report),
        damage=report.corrupt_records[:_MAX_CORRUPT_SHOWN],
        details=details,
        detailed={each.index for each in details},
        has_long_names=any(len(queue.topic) > _LONG_NAME for queue in report.queues),
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


def _signed(value: float) -> str:
    sign = "+" if value > 0 else "-" if value < 0 else ""
    return f"{sign}{format_count(abs(value))}"


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else in_words(seconds)


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
    "signed": _signed,
    "time": _time,
    "words": in_words,
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
        _age_tile("age of the oldest", oldest, report),
        _age_tile("age of the newest", newest, report),
        *_growth_tiles(report),
        *_place_tiles(report),
        *(Tile(name, f"{count:,}", "warn" if count else "") for name, count in warnings.items()),
    ]


def _age_s(moment: datetime | None, report: Report) -> float | None:
    """Return how long ago it was; clocks of nodes may be ahead of ours."""
    return None if moment is None else max((report.created - moment).total_seconds(), 0.0)


def _age_tile(name: str, moment: datetime | None, report: Report) -> Tile:
    age_s = _age_s(moment, report)
    if age_s is None:
        return Tile(name, "none", "small")
    return Tile(name, in_words(age_s), "small", f"{_minute(moment)} UTC")


def _growth_tiles(report: Report) -> list[Tile]:
    growth = report.growth
    if growth is None:
        return []
    since = f"since {_minute(report.compared_with)} UTC"
    is_growing = growth.per_minute > 0
    return [
        Tile("more per minute", _signed(growth.per_minute), "warn" if is_growing else "", since),
        Tile(since, growth.describe(), "small warn" if is_growing else "small"),
    ]


def _place_tiles(report: Report) -> list[Tile]:
    places = [queue.places for queue in report.queues if queue.places is not None]
    if not places:
        title = "A directory shows what is on disk; ask the nodes: --lookupd or --nsqd"
        return [Tile("memory, in flight, deferred", "not seen", "small", title)]
    return [
        Tile("in memory", f"{sum(each.memory for each in places):,}"),
        Tile("in flight", f"{sum(each.in_flight for each in places):,}"),
        Tile("deferred", f"{sum(each.deferred for each in places):,}"),
    ]


def _nodes(report: Report) -> list[tuple[NodeFigures, float | None, float]]:
    """Return each node with the age of its oldest message and its share of all messages."""
    total = sum(node.message_count for node in report.nodes) or 1
    return [
        (node, _age_s(node.oldest, report), node.message_count / total) for node in report.nodes
    ]


def _overview(report: Report) -> list[Chart]:
    busy = [queue for queue in report.queues if queue.message_count]
    if not busy or len(report.queues) == 1:
        return []  # of a single queue, its own section shows it
    over_time: dict[datetime, int] = {}
    for queue in busy:
        for moment, count in queue.over_time:
            over_time[moment] = over_time.get(moment, 0) + count
    return [_time_chart(sorted(over_time.items()), report)]


def _ranks(report: Report) -> list[Chart]:
    """Plot which topics have most, or, of a single one, which of its queues; one has no rank."""
    is_one_topic = len({queue.topic for queue in report.queues}) == 1
    messages: dict[str, int] = {}
    sizes: dict[str, int] = {}
    ages: dict[str, int] = {}
    for queue in report.queues:
        if queue.message_count:
            name = _queue_title(queue) if is_one_topic else queue.topic
            messages[name] = messages.get(name, 0) + queue.message_count
            sizes[name] = sizes.get(name, 0) + queue.byte_count
            ages[name] = max(ages.get(name, 0), round(_age_s(queue.oldest, report) or 0))
    if len(messages) < _MIN_RANKS:
        return []
    noun = "queues" if is_one_topic else "topics"
    return [
        rank_chart(_largest(messages), label=f"{noun} by messages"),
        rank_chart(_largest(sizes), label=f"{noun} by bytes", show=format_bytes),
        rank_chart(_largest(ages), label=f"{noun} by age of the oldest", show=in_words),
    ]


def _largest(values: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(values.items(), key=lambda item: (-item[1], item[0]))[:_MAX_RANKS]


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
