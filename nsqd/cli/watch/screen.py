"""The screen of `nsq top`, by rich: nodes, queues, and a line about the keys.

Imported only by a command that runs on a terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from diskqueue.tools.plain_text import escape_text
from nsqd.cli.output import shorten, show_age
from nsqd.cli.watch.rows import Row
from nsqd.cli.watch.view import Mode, View

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

_HELP: Final = "s sort  / filter  ↑↓ select  p pause  u unpause  e empty  q quit"
_BARS: Final = "▁▂▃▄▅▆▇█"
# The columns behind the name, and from which width of the terminal each is shown.
_COLUMNS: Final = (
    ("in/s", 0),
    ("out/s", 0),
    ("depth", 0),
    ("trend", 72),
    ("disk", 120),
    ("in flight", 100),
    ("deferred", 100),
    ("oldest", 0),
    ("requeued", 140),
    ("timed out", 140),
    ("messages", 150),
    ("p99", 160),
    ("clients", 0),
)
_MAX_NODES_SHARE: Final = 3
_GAP: Final = 2
_MIN_NAME: Final = 12


@dataclass(frozen=True, slots=True)
class NodeLine:
    """One node in the upper table."""

    name: str
    health: str
    version: str = ""
    topic_count: int = 0
    depth: int = 0
    client_count: int = 0
    is_down: bool = False

    def as_object(self) -> dict[str, Any]:
        """Return the node for --json."""
        return {
            "nsqd": self.name,
            "version": self.version,
            "health": self.health,
            "topics": self.topic_count,
            "depth": self.depth,
            "clients": self.client_count,
        }


def draw(
    view: View, nodes: Sequence[NodeLine], title: str, *, width: int, height: int
) -> RenderableType:
    """Return the whole screen."""
    from rich.console import Group

    shown = list(nodes)[: max(1, height // _MAX_NODES_SHARE)]
    # Title, heads of two tables, a blank line between them, and the line about the keys.
    room = max(1, height - len(shown) - 5)
    return Group(
        _text(title, "bold", width),
        _draw_nodes(shown, left_out=len(nodes) - len(shown)),
        _text("", "", width),
        _draw_rows(view, room, width),
        _draw_footer(view, width),
    )


def _text(text: str, style: str, width: int) -> Text:
    from rich.text import Text

    line = Text(escape_text(text), style=style, no_wrap=True, overflow="ellipsis")
    line.truncate(width, overflow="ellipsis")
    return line


def _make_table(*heads: tuple[str, str]) -> Table:
    from rich.table import Table

    table = Table(
        box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold", expand=False
    )
    for head, justify in heads:
        table.add_column(
            head, justify="right" if justify == "right" else "left", no_wrap=True,
            overflow="ellipsis",
        )  # fmt: skip
    return table


def _draw_nodes(nodes: Sequence[NodeLine], *, left_out: int) -> Table:
    table = _make_table(
        *(("node", "left"), ("version", "left"), ("topics", "right"), ("depth", "right")),
        *(("clients", "right"), ("health", "left")),
    )
    for index, node in enumerate(nodes):
        more = f" (and {left_out} more)" if left_out and index == len(nodes) - 1 else ""
        style = "red" if node.is_down or node.health != "OK" else ""
        cells = (
            *(node.name, node.version, f"{node.topic_count:,}", f"{node.depth:,}"),
            *(f"{node.client_count:,}", node.health + more),
        )
        table.add_row(*(_cell(cell) for cell in cells), style=style)
    return table


def _cell(text: str) -> Text:
    from rich.text import Text

    return Text(escape_text(text))


def _draw_rows(view: View, room: int, width: int) -> Table:
    rows = view.rows
    selected = view.find_selected()
    first = max(0, min(selected - room // 2, len(rows) - room))
    shown = rows[first : first + room]
    columns = [name for name, least in _COLUMNS if width >= least]
    numbers = [_values(row) for row in shown]
    widths = {name: max([len(name), *(len(each[name]) for each in numbers)]) for name in columns}
    has_node = any(row.key.node for row in shown)
    heads = [("queue", "left"), *((name, "right") for name in columns)]
    table = _make_table(*([("node", "left")] if has_node else []), *heads)
    node_width = max([len(row.key.node) for row in shown], default=0) + _GAP if has_node else 0
    # Numbers have the room that they need, names have the rest.
    rest = max(_MIN_NAME, width - node_width - sum(widths.values()) - _GAP * (len(columns) + 1))
    for index, (row, values) in enumerate(zip(shown, numbers, strict=True), first):
        name = f"{row.key.name} (paused)" if row.figures.is_paused else row.key.name
        cells = [shorten(name, rest), *(values[column] for column in columns)]
        if has_node:
            cells.insert(0, row.key.node)
        style = "red" if row.is_alarming else "yellow" if row.figures.is_paused else ""
        if index == selected:
            style = f"{style} reverse".strip()
        table.add_row(*(_cell(cell) for cell in cells), style=style)
    return table


def _values(row: Row) -> dict[str, str]:
    value = row.figures.values
    is_channel = bool(row.key.channel)

    def count(name: str) -> str:
        return f"{value[name]:,}" if is_channel else ""

    latency = row.figures.latencies.get("p99")
    return {
        "in/s": show_rate(row.in_per_s),
        "out/s": show_rate(row.out_per_s),
        "depth": f"{row.depth:,}",
        "trend": show_trend(row.depths),
        "disk": f"{value['backend_depth']:,}",
        "in flight": count("in_flight_count"),
        "deferred": count("deferred_count"),
        "oldest": "" if not row.oldest_s else show_age(row.oldest_s),
        "requeued": count("requeue_count"),
        "timed out": count("timeout_count"),
        "messages": f"{value['message_count']:,}",
        "p99": "" if latency is None else f"{latency:,.0f} ms",
        "clients": count("client_count"),
    }


def show_rate(rate: float | None) -> str:
    """Return messages a second; nothing before it is known."""
    if rate is None:
        return ""
    return f"{rate:,.1f}" if 0 < rate < 10 else f"{rate:,.0f}"


def show_trend(depths: Sequence[int]) -> str:
    """Return the last depths as bars, between nothing and the largest of them."""
    largest = max(depths, default=0)
    if not largest:
        return ""
    return "".join(_BARS[min(depth * len(_BARS) // largest, 7)] for depth in depths[-8:])


def _draw_footer(view: View, width: int) -> Text:
    if view.mode is Mode.CONFIRM:
        return _text(view.question(), "bold red", width)
    if view.mode is Mode.FILTER:
        return _text(f"filter: {view.filter}▏ enter keeps it, escape shows all", "bold", width)
    if view.message:
        return _text(view.message, "bold", width)
    return _text(_HELP, "dim", width)
