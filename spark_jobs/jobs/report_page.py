"""The report as one HTML page that needs nothing else: styles, plots and a little script inside.

Everything that comes from messages goes through `clean`.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from spark_jobs.jobs.charts import (
    bar_chart,
    clean,
    column_chart,
    format_count,
    join_counts,
    sparkline,
    time_chart,
)
from spark_jobs.jobs.job import format_bytes, plural
from spark_jobs.jobs.report_style import SCRIPT, STYLE
from spark_jobs.jobs.report_tables import QueueFigures, Report

# More queues than that are only in the table; their figures are in report.json and in the tables.
_MAX_DETAILS = 200
_MAX_BARS = 20
_MAX_FIELDS_SHOWN = 100
_MAX_CORRUPT_SHOWN = 100
_SPARK_BARS = 40
_MAX_ATTEMPT_COLUMNS = 24


def render(report: Report) -> str:
    """The page."""
    parts = [
        "<!DOCTYPE html><html lang=en><head><meta charset=utf-8>",
        '<meta name=viewport content="width=device-width, initial-scale=1">',
        # Without it, browsers ask for /favicon.ico.
        '<link rel=icon href="data:,">',
        f"<title>Backlog of {clean(_shorten_dirs(report.data_dirs))}</title>",
        f"<style>{STYLE}</style></head><body><main>",
        _head(report),
        _overview(report),
        _queue_table(report),
        _damage(report),
        _details(report),
        f"</main><script>{SCRIPT}</script></body></html>",
    ]
    return "".join(parts)


def _head(report: Report) -> str:
    total = sum(queue.message_count for queue in report.queues)
    size = sum(queue.byte_count for queue in report.queues)
    oldest = min((queue.oldest for queue in report.queues if queue.oldest), default=None)
    newest = max((queue.newest for queue in report.queues if queue.newest), default=None)
    topics = len({queue.topic for queue in report.queues})
    retried = sum(queue.retried_count for queue in report.queues)
    duplicates = sum(queue.duplicate_count for queue in report.queues)
    tiles = [
        ("messages", f"{total:,}", ""),
        ("in bodies", format_bytes(size), ""),
        ("topics", f"{topics:,}", ""),
        ("queues", f"{len(report.queues):,}", ""),
        ("oldest, UTC", _minute(oldest) or "none", "small"),
        ("newest, UTC", _minute(newest) or "none", "small"),
        ("attempted again", f"{retried:,}", "warn" if retried else ""),
        ("duplicates", f"{duplicates:,}", "warn" if duplicates else ""),
        ("damaged places", f"{report.corrupt_count:,}", "warn" if report.corrupt_count else ""),
    ]
    cells = "".join(
        f'<div class="tile {kind}"><b>{clean(value)}</b><span>{name}</span></div>'
        for name, value, kind in tiles
    )
    dirs = ", ".join(clean(name) for name in report.data_dirs)
    return (
        f"<header><h1>Backlog report</h1><p>{dirs} · from {clean(report.origin)} ·"
        f' {report.created:%Y-%m-%d %H:%M} UTC</p></header><section class="tiles">{cells}</section>'
    )


def _overview(report: Report) -> str:
    busy = [queue for queue in report.queues if queue.message_count]
    if not busy:
        return '<section class="card"><p class="quiet">There are no messages.</p></section>'
    largest = sorted(busy, key=lambda queue: -queue.message_count)[:_MAX_BARS]
    over_time: dict[datetime, int] = {}
    for queue in busy:
        for moment, count in queue.over_time:
            over_time[moment] = over_time.get(moment, 0) + count
    more = f", the {_MAX_BARS} largest queues" if len(busy) > _MAX_BARS else " per queue"
    return (
        '<section class="card">'
        + time_chart(
            sorted(over_time.items()), step_s=report.step_s, label="messages by time published"
        )
        + bar_chart(
            [(_queue_title(queue), queue.message_count) for queue in largest],
            label=f"messages{more}",
            form="{:,}".format,
        )
        + "</section>"
    )


def _queue_table(report: Report) -> str:
    if not report.queues:
        return ""
    oldest = min((queue.oldest for queue in report.queues if queue.oldest), default=None)
    newest = max((queue.newest for queue in report.queues if queue.newest), default=None)
    head = [
        "topic",
        "channel",
        "messages",
        "over time",
        "per minute",
        "bytes",
        "oldest",
        "newest",
        "size p50",
        "p99",
        "max",
        "attempts",
        "duplicates",
    ]
    rows = []
    for index, queue in enumerate(report.queues):
        counts: list[int] = []
        if oldest is not None and newest is not None:
            counts = join_counts(queue.over_time, oldest, newest, _SPARK_BARS)
        rate = queue.rate_per_minute
        link = f'<a href="#q{index}">{clean(queue.topic)}</a>'
        rows.append(
            [
                (queue.topic, link),
                (queue.channel or "", clean(queue.channel or "") or "<i>topic</i>"),
                _number(queue.message_count),
                ("", sparkline(counts, label="messages over time")),
                (f"{rate or 0:.6f}", "" if rate is None else format_count(rate)),
                (str(queue.byte_count), format_bytes(queue.byte_count)),
                (_sort_key(queue.oldest), _minute(queue.oldest)),
                (_sort_key(queue.newest), _minute(queue.newest)),
                *(_number(value) for value in (queue.size_p50, queue.size_p99, queue.size_max)),
                *(_number(value) for value in (queue.attempts_max, queue.duplicate_count)),
            ]
        )
    search = '<input id=search type=search placeholder="Find a topic or channel" aria-label=Find>'
    return (
        f'<section class="card"><h2>Queues</h2>{search if len(rows) > 10 else ""}'
        f"{_table(head, rows, identity='queues')}</section>"
    )


def _damage(report: Report) -> str:
    if not report.corrupt_records:
        return ""
    rows = [
        [
            _text(row["topic"]),
            _text(row["channel"] or ""),
            _text(row["kind"]),
            _text(row["reason"]),
            _text("" if row["offset"] is None else str(row["offset"])),
            _text("" if row["bytes"] is None else str(row["bytes"])),
            _text(row["path"]),
        ]
        for row in report.corrupt_records[:_MAX_CORRUPT_SHOWN]
    ]
    head = ["topic", "channel", "kind", "reason", "offset", "bytes", "file"]
    note = ""
    if len(report.corrupt_records) > len(rows):
        note = f'<p class="quiet">The first {len(rows)}; report.json has more.</p>'
    return (
        f'<section class="card"><h2>Damaged, missing or unsynced</h2>{_table(head, rows)}{note}'
        "</section>"
    )


def _details(report: Report) -> str:
    poison = _by_queue(report.poison)
    duplicates = _by_queue(report.duplicates)
    largest = sorted(
        range(len(report.queues)), key=lambda index: -report.queues[index].message_count
    )
    shown = sorted(largest[:_MAX_DETAILS])
    parts = []
    for index in shown:
        queue = report.queues[index]
        key = queue.topic, queue.channel
        is_open = " open" if len(shown) == 1 else ""
        parts.append(
            f'<details class="card" id="q{index}"{is_open}><summary><b>{clean(queue.topic)}</b>'
            f" {clean(queue.channel or '')} <span>{plural(queue.message_count, 'message')},"
            f" {format_bytes(queue.byte_count)}</span></summary>"
            f"{_queue_plots(queue, report.step_s)}"
            f"{_poison_table(poison.get(key, ()))}{_duplicate_table(duplicates.get(key, ()))}"
            "</details>"
        )
    if len(report.queues) > len(shown):
        parts.append(f'<p class="quiet">Details of the {_MAX_DETAILS} largest queues.</p>')
    parts += _field_sections(report)
    return "".join(parts)


def _queue_plots(queue: QueueFigures, step_s: int) -> str:
    if not queue.message_count:
        return '<p class="quiet">No messages.</p>'
    attempts = [(str(number), count) for number, count in queue.attempts]
    if len(attempts) > _MAX_ATTEMPT_COLUMNS:
        rest = sum(count for _, count in attempts[_MAX_ATTEMPT_COLUMNS:])
        attempts = [
            *attempts[:_MAX_ATTEMPT_COLUMNS],
            (f"{attempts[_MAX_ATTEMPT_COLUMNS][0]}+", rest),
        ]
    powers = dict(queue.sizes)
    low, high = min(powers), max(powers)
    sizes = [(_power_name(power), powers.get(power, 0)) for power in range(low, high + 1)]
    return (
        time_chart(queue.over_time, step_s=step_s, label="messages by time published")
        + '<div class="pair">'
        + column_chart(sizes, label="size of bodies, from … bytes")
        + column_chart(attempts, label="attempts so far")
        + "</div>"
    )


def _power_name(power: int) -> str:
    size = 2**power
    if size < 1024:
        return str(size)
    return f"{size // 1024}k" if size < 1024**2 else f"{size // 1024**2}M"


def _poison_table(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    cells = [
        [
            _number(row["attempts"]),
            _text(row["id"]),
            (_sort_key(row["timestamp"]), _moment(row["timestamp"])),
            _text(row["node"]),
            _text(f"{row['segment']}:{row['offset']}"),
            ("", f"<code>{clean(row['body'] or '')}</code>"),
        ]
        for row in rows
    ]
    head = ["attempts", "id", "published", "node", "segment:offset", "body begins"]
    return f"<h3>Likely poison: most attempts</h3>{_table(head, cells)}"


def _duplicate_table(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    cells = [
        [_number(row["copies"]), _text(row["id"]), _text(row["node"]), _number(row["attempts"])]
        for row in rows
    ]
    return (
        "<h3>Ids that occur more than once</h3>"
        f"{_table(['copies', 'id', 'node', 'attempts max'], cells)}"
    )


def _field_sections(report: Report) -> Iterable[str]:
    fields: dict[str, list[Mapping[str, Any]]] = {}
    for row in report.fields:
        fields.setdefault(row["topic"], []).append(row)
    for topic, rows in sorted(fields.items()):
        kinds = ", ".join(
            f"{row['count']:,} {clean(row['type'])}"
            for row in report.bodies
            if row["topic"] == topic
        )
        cells = [
            [
                ("", f"<code>{clean(row['path'])}</code>"),
                _text(", ".join(row["types"])),
                (f"{row['null_share']:.6f}", f"{row['null_share']:.1%}"),
                _number(row["cardinality"]),
                ("", _top_values(row["top"], row["present"] - row["nulls"])),
            ]
            for row in rows[:_MAX_FIELDS_SHOWN]
        ]
        head = ["field", "types", "null or absent", "different values", "most frequent"]
        note = (
            f"Bodies looked at: {kinds} (about {report.field_sample_rows:,} messages per topic at"
            " most)."
        )
        is_open = " open" if len(fields) == 1 else ""
        yield (
            f'<details class="card"{is_open}><summary><b>{clean(topic)}</b> <span>JSON fields:'
            f' {len(rows):,}</span></summary><p class="quiet">{note}</p>{_table(head, cells)}'
            "</details>"
        )


def _top_values(top: Sequence[tuple[str, int]], total: int) -> str:
    return ", ".join(
        f"<code>{clean(value)}</code> <small>{count / max(total, 1):.0%}</small>"
        for value, count in top
    )


def _by_queue(
    rows: Sequence[Mapping[str, Any]],
) -> dict[tuple[str, str | None], list[Mapping[str, Any]]]:
    found: dict[tuple[str, str | None], list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["topic"], row["channel"]), []).append(row)
    return found


def _table(
    head: Sequence[str], rows: Sequence[Sequence[tuple[str, str]]], *, identity: str = ""
) -> str:
    """A table that sorts at a click; a cell is (what to sort by, HTML)."""
    numeric = [
        bool(rows) and all(_is_number(row[index][0]) for row in rows) for index in range(len(head))
    ]
    titles = "".join(
        f"<th scope=col{' class=n' if is_number else ''}>{clean(name)}</th>"
        for name, is_number in zip(head, numeric, strict=True)
    )
    lines = []
    for row in rows:
        cells = "".join(
            f'<td class=n data-sort="{clean(key)}">{html}</td>'
            if _is_number(key)
            else f'<td data-sort="{clean(key)}">{html}</td>'
            for key, html in row
        )
        lines.append(f"<tr>{cells}</tr>")
    name = f" id={identity}" if identity else ""
    return (
        f'<div class="scroll"><table{name}><thead><tr>{titles}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _is_number(text: str) -> bool:
    return bool(text) and text.replace(".", "", 1).isdigit()


def _number(value: int) -> tuple[str, str]:
    return str(value), f"{value:,}"


def _text(value: str) -> tuple[str, str]:
    return ("" if _is_number(value) else value), clean(value)


def _minute(value: datetime | None) -> str:
    return "" if value is None else f"{value:%Y-%m-%d %H:%M}"


def _moment(value: datetime | None) -> str:
    return "" if value is None else f"{value:%Y-%m-%d %H:%M:%S}"


def _sort_key(value: datetime | None) -> str:
    return "" if value is None else value.isoformat()


def _queue_title(queue: QueueFigures) -> str:
    return queue.topic if queue.channel is None else f"{queue.topic} / {queue.channel}"


def _shorten_dirs(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
