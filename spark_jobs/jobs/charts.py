"""The geometry of the report's plots: where bars, lines and texts stand, in pixels.

`templates/parts.html` draws them as SVG: no scripts, no network, colours from the page's style. The
title of a bar is shown by browsers on hover.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import ceil, log10
from typing import NamedTuple

_LEFT = 56
_BOTTOM = 22
_TOP = 8
_RIGHT = 8
_TICKS = 4
_WIDE = 1120
_NARROW = 540
_HEIGHT = 170
_PLOT_HEIGHT = _HEIGHT - _TOP - _BOTTOM
_MAX_TIME_BARS = 120
# A short time is not stretched over the whole width.
_MIN_TIME_BARS = 12
# The distance of labels on an axis of time, from a minute to a year; beyond, years are doubled.
_TICK_STEPS_S = (
    *(60, 120, 300, 600, 900, 1800),
    *(3600, 2 * 3600, 3 * 3600, 6 * 3600, 12 * 3600),
    *(86400, 2 * 86400, 7 * 86400, 14 * 86400, 28 * 86400, 91 * 86400, 364 * 86400),
)
_MIN_TICK_PIXELS = 90
_TIME_LABEL_PIXELS = 70
_COLUMN_LABEL_PIXELS = 44
_MAX_COLUMN_PIXELS = 56
_ROW_PIXELS = 22
_RANK = 400
_NAME_PIXELS = 180
_VALUE_PIXELS = 150
_MAX_NAME_CHARACTERS = 28
_SPARK_WIDTH = 120
_SPARK_HEIGHT = 22


class Line(NamedTuple):
    """A line of the grid."""

    x1: float
    y1: float
    x2: float
    y2: float


class Bar(NamedTuple):
    """A mark that stands for a count."""

    x: float
    y: float
    width: float
    height: float
    title: str
    radius: int = 0


class Text(NamedTuple):
    """A label; `kind` is its class in the style sheet."""

    x: float
    y: float
    text: str
    kind: str = "tick"
    anchor: str = "start"
    title: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """One plot."""

    label: str
    width: int
    height: int
    lines: Sequence[Line] = ()
    bars: Sequence[Bar] = ()
    texts: Sequence[Text] = ()


def format_count(value: float) -> str:
    """Shorten a count for an axis: 950, 1.2k, 3M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def nice_ceiling(value: float) -> float:
    """Return the next round number that four ticks divide well."""
    if value <= 0:
        return 1
    power = 10.0 ** int(log10(value) // 1)
    for step in (1, 2, 4, 6, 8):
        if value <= step * power:
            return step * power
    return 10 * power


def column_chart(columns: Sequence[tuple[str, int]], *, label: str) -> Chart:
    """Plot columns with a name below each, as for a histogram."""
    if not columns:
        return Chart(label, _NARROW, _HEIGHT)
    top = nice_ceiling(max(count for _, count in columns))
    lines, texts = _y_axis(top, _NARROW)
    plot_width = _NARROW - _LEFT - _RIGHT
    step = plot_width / len(columns)
    width = min(step * 0.8, _MAX_COLUMN_PIXELS)
    every = ceil(len(columns) * _COLUMN_LABEL_PIXELS / plot_width)
    bars = []
    for index, (name, count) in enumerate(columns):
        middle = _LEFT + (index + 0.5) * step
        bars.append(_column(middle - width / 2, width, count, top, f"{name}: {count:,}"))
        if index % every == 0:
            texts.append(Text(round(middle, 1), _HEIGHT - 8, name, anchor="middle"))
    return Chart(label, _NARROW, _HEIGHT, lines, bars, texts)


def time_chart(points: Sequence[tuple[datetime, int]], *, step_s: int, label: str) -> Chart:
    """Plot messages per step over time; steps are joined until they fit."""
    if not points:
        return Chart(label, _WIDE, _HEIGHT)
    start = points[0][0].timestamp()
    zone = points[0][0].tzinfo
    step_count = round((points[-1][0].timestamp() - start) / step_s) + 1
    join = ceil(step_count / _MAX_TIME_BARS)
    counts = [0] * ceil(step_count / join)
    for moment, count in points:
        counts[round((moment.timestamp() - start) / step_s) // join] += count
    bar_s = step_s * join
    top = nice_ceiling(max(counts))
    lines, texts = _y_axis(top, _WIDE)
    step = (_WIDE - _LEFT - _RIGHT) / max(len(counts), _MIN_TIME_BARS)
    bars = []
    for index, count in enumerate(counts):
        if count:
            begin = datetime.fromtimestamp(start + index * bar_s, zone)
            title = f"{begin:%Y-%m-%d %H:%M} UTC, {_duration(bar_s)}: {count:,}"
            bars.append(_column(_LEFT + index * step, step - 0.6, count, top, title))
    form = _time_format(bar_s * len(counts))
    for pixels, tick_s in _time_ticks(start, bar_s / step, bar_s * len(counts)):
        x = round(_LEFT + pixels, 1)
        if x > _WIDE - _TIME_LABEL_PIXELS:
            break  # it would be cut off
        texts.append(Text(x, _HEIGHT - 8, datetime.fromtimestamp(tick_s, zone).strftime(form)))
        lines.append(Line(x, _TOP + _PLOT_HEIGHT, x, _TOP + _PLOT_HEIGHT + 5))
    return Chart(f"{label}, per {_duration(bar_s)}", _WIDE, _HEIGHT, lines, bars, texts)


def rank_chart(
    rows: Sequence[tuple[str, int]], *, label: str, show: Callable[[int], str] = "{:,}".format
) -> Chart:
    """Plot horizontal bars with their names at the left and values at the right.

    Three stand side by side, about as large as they are drawn, so that their texts can be read.
    """
    top = max((value for _, value in rows), default=0) or 1
    bars, texts = [], []
    for index, (name, value) in enumerate(rows):
        y = index * _ROW_PIXELS + 4
        width = max((_RANK - _NAME_PIXELS - _VALUE_PIXELS) * value / top, 1)
        bars.append(Bar(_NAME_PIXELS, y, round(width, 1), 15, f"{name}: {show(value)}", 2))
        texts.append(Text(_NAME_PIXELS - 8, y + 12, _shorten(name), "name", "end", name))
        texts.append(Text(round(_NAME_PIXELS + width + 6, 1), y + 12, show(value)))
    return Chart(label, _RANK, _ROW_PIXELS * len(rows) + 4, bars=bars, texts=texts)


def _shorten(name: str) -> str:
    """Cut a long name in the middle: the end of a topic often tells it from its neighbours."""
    if len(name) <= _MAX_NAME_CHARACTERS:
        return name
    tail = _MAX_NAME_CHARACTERS // 2
    return f"{name[: _MAX_NAME_CHARACTERS - 1 - tail]}…{name[-tail:]}"


def sparkline(counts: Sequence[int]) -> str:
    """Return a small shape without axes, as the path of an SVG; empty without counts."""
    top = max(counts, default=0)
    step = _SPARK_WIDTH / max(len(counts), 1)
    width = max(step - 0.5, 0.5)
    parts = []
    for index, count in enumerate(counts):
        if count:
            height = max(_SPARK_HEIGHT * count / top, 1)
            parts.append(
                f"M{index * step:.1f} {_SPARK_HEIGHT}v-{height:.1f}h{width:.1f}v{height:.1f}z"
            )
    return "".join(parts)


def join_counts(
    points: Sequence[tuple[datetime, int]], first: datetime, last: datetime, bar_count: int
) -> list[int]:
    """Add up counts in bar_count equal parts of the time from first to last."""
    counts = [0] * bar_count
    span_s = max((last - first).total_seconds(), 1)
    for moment, count in points:
        share = (moment - first).total_seconds() / span_s
        counts[min(max(int(share * bar_count), 0), bar_count - 1)] += count
    return counts


def _column(x: float, width: float, count: int, top: float, title: str) -> Bar:
    """Return a bar that stands on the axis; a count above 0 is always visible."""
    height = max(_PLOT_HEIGHT * count / top, 1 if count else 0)
    y = _TOP + _PLOT_HEIGHT - height
    return Bar(round(x, 1), round(y, 1), round(max(width, 0.5), 1), round(height, 1), title)


def _y_axis(top: float, width: int) -> tuple[list[Line], list[Text]]:
    lines, texts = [], []
    for index in range(_TICKS + 1):
        value = top * index / _TICKS
        if value != int(value) and top < _TICKS:
            continue  # counts are whole numbers
        y = round(_TOP + _PLOT_HEIGHT * (1 - index / _TICKS), 1)
        lines.append(Line(_LEFT, y, width - _RIGHT, y))
        texts.append(Text(_LEFT - 6, y + 4, format_count(value), anchor="end"))
    return lines, texts


def _time_ticks(start: float, pixel_s: float, span_s: float) -> list[tuple[float, float]]:
    """Say where to write which time, in pixels from the left: at round moments, not too close."""
    step = next((each for each in _TICK_STEPS_S if each >= _MIN_TICK_PIXELS * pixel_s), None)
    if step is None:
        step = _TICK_STEPS_S[-1] * ceil(_MIN_TICK_PIXELS * pixel_s / _TICK_STEPS_S[-1])
    first = float(ceil(start / step) * step)
    count = max(ceil((start + span_s - first) / step), 0)
    ticks = [((first + n * step - start) / pixel_s, first + n * step) for n in range(count)]
    return ticks or [(0.0, start)]


def _time_format(span_s: float) -> str:
    if span_s <= 86400:
        return "%H:%M"
    return "%m-%d %H:%M" if span_s <= 5 * 86400 else "%Y-%m-%d"


def _duration(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
