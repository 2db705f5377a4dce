"""Plots as SVG text: no scripts, no network, colours from the page's style.

Every function returns one `<svg>` element. Marks carry a `<title>`, which browsers show on hover.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from html import escape
from math import ceil, log10

_LEFT = 56
_BOTTOM = 22
_TOP = 8
_RIGHT = 8
_TICKS = 4
# The distance of labels on an axis of time, from a minute to a year; beyond, years are doubled.
_TICK_STEPS_S = (
    *(60, 120, 300, 600, 900, 1800),
    *(3600, 2 * 3600, 3 * 3600, 6 * 3600, 12 * 3600),
    *(86400, 2 * 86400, 7 * 86400, 14 * 86400, 28 * 86400, 91 * 86400, 364 * 86400),
)
_MIN_TICK_PIXELS = 90
_MAX_COLUMN_PIXELS = 56
_UNPRINTABLE = "\N{SYMBOL FOR SUBSTITUTE}"


def clean(text: str) -> str:
    """Text for HTML: escaped, and without characters that HTML cannot have."""
    visible = "".join(each if each.isprintable() else _UNPRINTABLE for each in text)
    return escape(visible.encode("utf-8", "replace").decode())


def format_count(value: float) -> str:
    """A count for an axis: 950, 1.2k, 3M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def nice_ceiling(value: float) -> float:
    """The next round number that four ticks divide well."""
    if value <= 0:
        return 1
    power = 10.0 ** int(log10(value) // 1)
    for step in (1, 2, 4, 6, 8):
        if value <= step * power:
            return step * power
    return 10 * power


def column_chart(
    bars: Sequence[tuple[str, int]], *, label: str, width: int = 540, height: int = 170
) -> str:
    """Columns with a name below each, as for a histogram."""
    if not bars:
        return empty_chart("no data", width, height)
    top = nice_ceiling(max(count for _, count in bars))
    plot_width, plot_height = width - _LEFT - _RIGHT, height - _TOP - _BOTTOM
    step = plot_width / len(bars)
    column = min(step * 0.8, _MAX_COLUMN_PIXELS)
    every = ceil(len(bars) * 44 / plot_width)
    parts = [_y_axis(top, width, height)]
    for index, (name, count) in enumerate(bars):
        x = _LEFT + index * step
        size = plot_height * count / top
        if count:
            size = max(size, 1)
        parts.append(
            f'<rect class="mark" x="{x + (step - column) / 2:.1f}"'
            f' y="{_TOP + plot_height - size:.1f}" width="{max(column, 0.5):.1f}"'
            f' height="{size:.1f}">'
            f"<title>{clean(name)}: {count:,}</title></rect>"
        )
        if index % every == 0:
            parts.append(
                f'<text class="tick" x="{x + step / 2:.1f}" y="{height - 8}"'
                f' text-anchor="middle">{clean(name)}</text>'
            )
    return _svg(parts, width, height, label)


def time_chart(
    points: Sequence[tuple[datetime, int]],
    *,
    step_s: int,
    label: str,
    width: int = 1120,
    height: int = 170,
    max_bars: int = 120,
) -> str:
    """Messages per step over time; steps are joined until there are at most max_bars."""
    if not points:
        return empty_chart("no messages", width, height)
    start = points[0][0].timestamp()
    step_count = round((points[-1][0].timestamp() - start) / step_s) + 1
    join = ceil(step_count / max_bars)
    counts = [0] * ceil(step_count / join)
    for moment, count in points:
        counts[round((moment.timestamp() - start) / step_s) // join] += count
    bar_s = step_s * join
    form = _time_format(bar_s * len(counts))
    plot_width, plot_height = width - _LEFT - _RIGHT, height - _TOP - _BOTTOM
    top = nice_ceiling(max(counts))
    step = plot_width / max(len(counts), 12)
    parts = [_y_axis(top, width, height)]
    zone = points[0][0].tzinfo
    for index, count in enumerate(counts):
        if not count:
            continue
        size = max(plot_height * count / top, 1)
        begin = datetime.fromtimestamp(start + index * bar_s, zone)
        parts.append(
            f'<rect class="mark" x="{_LEFT + index * step:.1f}"'
            f' y="{_TOP + plot_height - size:.1f}" width="{max(step - 0.6, 0.6):.1f}"'
            f' height="{size:.1f}"><title>{begin:%Y-%m-%d %H:%M} UTC, {_duration(bar_s)}:'
            f" {count:,}</title></rect>"
        )
    for x, tick_s in _time_ticks(start, bar_s / step, bar_s * len(counts)):
        if _LEFT + x > width - 70:
            break  # it would be cut off
        text = datetime.fromtimestamp(tick_s, zone).strftime(form)
        parts.append(
            f'<text class="tick" x="{_LEFT + x:.1f}" y="{height - 8}">{text}</text>'
            f'<line class="grid" x1="{_LEFT + x:.1f}" y1="{_TOP + plot_height}"'
            f' x2="{_LEFT + x:.1f}" y2="{_TOP + plot_height + 5}"/>'
        )
    return _svg(parts, width, height, f"{label}, per {_duration(bar_s)}")


def _time_ticks(start: float, pixel_s: float, span_s: float) -> list[tuple[float, float]]:
    """Where to write which time, in pixels from the left: at round moments, not too close."""
    step = next((each for each in _TICK_STEPS_S if each >= _MIN_TICK_PIXELS * pixel_s), None)
    if step is None:
        step = _TICK_STEPS_S[-1] * ceil(_MIN_TICK_PIXELS * pixel_s / _TICK_STEPS_S[-1])
    first = float(ceil(start / step) * step)
    count = max(ceil((start + span_s - first) / step), 0)
    ticks = [((first + n * step - start) / pixel_s, first + n * step) for n in range(count)]
    return ticks or [(0.0, start)]


def bar_chart(
    bars: Sequence[tuple[str, float]],
    *,
    label: str,
    form: Callable[[float], str] = format_count,
    width: int = 1120,
) -> str:
    """Horizontal bars with their names at the left and values at the right."""
    if not bars:
        return empty_chart("no messages", width, 60)
    row, name_width = 22, 220
    height = row * len(bars) + 4
    top = max(value for _, value in bars) or 1
    parts = []
    for index, (name, value) in enumerate(bars):
        y = index * row + 4
        size = (width - name_width - 80) * value / top
        shown = name if len(name) <= 32 else name[:31] + "…"
        parts.append(
            f'<text class="name" x="{name_width - 8}" y="{y + 12}" text-anchor="end">'
            f"{clean(shown)}<title>{clean(name)}</title></text>"
            f'<rect class="mark" x="{name_width}" y="{y}" width="{max(size, 1):.1f}" height="15"'
            f' rx="2"><title>{clean(name)}: {clean(form(value))}</title></rect>'
            f'<text class="tick" x="{name_width + max(size, 1) + 6:.1f}" y="{y + 12}">'
            f"{clean(form(value))}</text>"
        )
    return _svg(parts, width, height, label)


def sparkline(counts: Sequence[int], *, label: str, width: int = 120, height: int = 22) -> str:
    """A small shape without axes."""
    if not counts or not max(counts):
        return f'<svg class="spark" viewBox="0 0 {width} {height}" width="{width}"></svg>'
    step = width / len(counts)
    top = max(counts)
    parts = [
        f'<rect class="mark" x="{index * step:.1f}" y="{height - max(height * count / top, 1):.1f}"'
        f' width="{max(step - 0.5, 0.5):.1f}" height="{max(height * count / top, 1):.1f}"/>'
        for index, count in enumerate(counts)
        if count
    ]
    return (
        f'<svg class="spark" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' role="img" aria-label="{clean(label)}">{"".join(parts)}</svg>'
    )


def join_counts(
    points: Sequence[tuple[datetime, int]], first: datetime, last: datetime, bar_count: int
) -> list[int]:
    """Counts in bar_count equal parts of the time from first to last."""
    counts = [0] * bar_count
    span_s = max((last - first).total_seconds(), 1)
    for moment, count in points:
        share = (moment - first).total_seconds() / span_s
        counts[min(max(int(share * bar_count), 0), bar_count - 1)] += count
    return counts


def empty_chart(text: str, width: int, height: int) -> str:
    """A place where a plot would be."""
    return (
        f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="{clean(text)}">'
        f'<text class="tick" x="{width / 2}" y="{height / 2}" text-anchor="middle">'
        f"{clean(text)}</text></svg>"
    )


def _svg(parts: Sequence[str], width: int, height: int, label: str) -> str:
    return (
        f'<figure><figcaption>{clean(label)}</figcaption><svg class="chart"'
        f' viewBox="0 0 {width} {height}" role="img" aria-label="{clean(label)}">'
        f"{''.join(parts)}</svg></figure>"
    )


def _y_axis(top: float, width: int, height: int) -> str:
    plot_height = height - _TOP - _BOTTOM
    lines = []
    for index in range(_TICKS + 1):
        value = top * index / _TICKS
        if value != int(value) and top < _TICKS:
            continue  # counts are whole numbers
        y = _TOP + plot_height * (1 - index / _TICKS)
        lines.append(
            f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{width - _RIGHT}" y2="{y:.1f}"/>'
            f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">'
            f"{format_count(value)}</text>"
        )
    return "".join(lines)


def _time_format(span_s: float) -> str:
    if span_s <= 86400:
        return "%H:%M"
    return "%m-%d %H:%M" if span_s <= 5 * 86400 else "%Y-%m-%d"


def _duration(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
