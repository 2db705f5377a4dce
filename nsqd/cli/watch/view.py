"""View: the rows and order that `nsq top` shows, changed by keys. No terminal here.

    s sort   / filter   up, down, j, k select   p pause   u unpause   e empty   q quit

A change is asked about, and made only after y.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from nsqd.cli.watch.rows import Key, Row

SORTS: Final[dict[str, Callable[[Row], Any]]] = {
    "depth": lambda row: (-row.depth, row.key.name),
    "in": lambda row: (-(row.in_per_s or 0.0), row.key.name),
    "out": lambda row: (-(row.out_per_s or 0.0), row.key.name),
    "age": lambda row: (-(row.oldest_s or 0.0), row.key.name),
    "clients": lambda row: (-row.figures.values["client_count"], row.key.name),
    "name": lambda row: row.key.name,
}
_ACTIONS: Final = {"p": "pause", "u": "unpause", "e": "empty"}
_MAX_FILTER: Final = 64


class Mode(enum.Enum):
    """The list, or a question that the next key answers."""

    LIST = enum.auto()
    FILTER = enum.auto()
    CONFIRM = enum.auto()


@dataclass(frozen=True, slots=True)
class Order:
    """A change that the user has confirmed."""

    action: str
    key: Key


class View:
    """The rows in their order, the selected one, and the question that is open."""

    def __init__(self, sort: str = "depth", *, is_read_only: bool = False) -> None:
        """Start without rows."""
        self.sort = sort
        self.filter = ""
        self.mode = Mode.LIST
        self.message = ""
        self.is_over = False
        self.selected: Key | None = None
        self.order: Order | None = None  # while it is asked about
        self._is_read_only = is_read_only
        self._rows: list[Row] = []

    def set_rows(self, rows: Sequence[Row]) -> None:
        """Show other rows; the selection stays with its queue."""
        self._rows = list(rows)

    @property
    def rows(self) -> list[Row]:
        """The rows that pass the filter, sorted."""
        found = [row for row in self._rows if self.filter in row.key.name]
        return sorted(found, key=SORTS[self.sort])

    def find_selected(self) -> int:
        """Return the index of the selected row, or of the first one."""
        keys = [row.key for row in self.rows]
        return keys.index(self.selected) if self.selected in keys else 0

    def press(self, key: str) -> Order | None:
        """Take a key; return a change that is to be made now."""
        if self.mode is Mode.CONFIRM:
            return self._answer(key)
        if self.mode is Mode.FILTER:
            self._type(key)
            return None
        self.message = ""
        if key in ("up", "k", "down", "j"):
            self._move(-1 if key in ("up", "k") else 1)
        elif key == "s":
            names = list(SORTS)
            self.sort = names[(names.index(self.sort) + 1) % len(names)]
        elif key == "/":
            self.mode = Mode.FILTER
        elif key in ("q", "ctrl-c"):
            self.is_over = True
        elif key in _ACTIONS:
            self._ask(_ACTIONS[key])
        return None

    def question(self) -> str:
        """Return the question that is open."""
        assert self.order is not None
        rows = {row.key: row for row in self._rows}
        row = rows.get(self.order.key)
        depth = f" with {row.depth:,} messages" if row is not None else ""
        node = f" on {self.order.key.node}" if self.order.key.node else ""
        return f"{self.order.action} {self.order.key.name}{depth}{node}? y/N"

    def _move(self, step: int) -> None:
        rows = self.rows
        if rows:
            index = min(max(self.find_selected() + step, 0), len(rows) - 1)
            self.selected = rows[index].key

    def _ask(self, action: str) -> None:
        rows = self.rows
        if not rows:
            return
        if self._is_read_only:
            self.message = "the context is read-only: nsq top --write"
            return
        self.selected = rows[self.find_selected()].key
        self.order = Order(action, self.selected)
        self.mode = Mode.CONFIRM

    def _answer(self, key: str) -> Order | None:
        order, self.order, self.mode = self.order, None, Mode.LIST
        if key in ("y", "Y"):
            return order
        self.message = "nothing was changed"
        return None

    def _type(self, key: str) -> None:
        if key == "enter":
            self.mode = Mode.LIST
        elif key in ("escape", "ctrl-c"):
            self.mode, self.filter = Mode.LIST, ""
        elif key == "backspace":
            self.filter = self.filter[:-1]
        elif len(key) == 1 and key.isprintable() and len(self.filter) < _MAX_FILTER:
            self.filter += key
