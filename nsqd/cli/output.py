"""What the commands print: tables, JSON, text that cannot drive a terminal; exit codes."""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Final, Literal, TextIO

# Between the columns of a table, and what is left of a text where the terminal is narrow.
_GAP_COLUMNS: Final = 2
_MIN_TEXT_COLUMNS: Final = 8


class ExitCode(enum.IntEnum):
    """The exit codes of `nsq`; see nsqd.cli.main."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    MISSING = 3
    TIMEOUT = 4
    FORBIDDEN = 5
    PARTIAL = 6
    HUNG_UP = 129
    INTERRUPTED = 130
    TERMINATED = 143


class CliError(Exception):
    """A failure of a command; the text is for people."""

    def __init__(self, text: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(text)
        self.code = code


def has_colour(stream: TextIO, wish: str = "auto") -> bool:
    """Say whether to colour the output: on a terminal, unless NO_COLOR or a flag forbids it."""
    if wish != "auto":
        return wish == "always"
    return stream.isatty() and not os.environ.get("NO_COLOR")


def can_redraw(stream: TextIO) -> bool:
    """Say whether lines can be written anew: on a terminal that knows how to move its cursor."""
    return stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def print_json(value: object) -> None:
    """Print one object on one line."""
    import json  # Here, as others below: text for people needs none.

    print(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def show_count(value: object) -> str:
    """Return a number with thousands separators, and anything else as it is."""
    if isinstance(value, bool):
        return "yes" if value else ""
    return f"{value:,}" if isinstance(value, int) else str(value)


def print_table(
    heads: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    is_tsv: bool = False,
    colour: str = "auto",
) -> None:
    """Print rows: aligned, or separated by tabs; on a terminal with the heads set off."""
    # Imported here: with its package it takes twice as long as `nsq --help`.
    from diskqueue.tools.plain_text import escape_text

    if is_tsv:
        print("\t".join(heads))
        for row in rows:
            print("\t".join(escape_text(_plain(cell)) for cell in row))
        return
    cells = [[escape_text(show_count(cell)) for cell in row] for row in rows]
    are_numbers = [
        bool(rows) and all(isinstance(row[index], int | float) for row in rows)
        for index in range(len(heads))
    ]
    if sys.stdout.isatty():
        _print_rich(heads, cells, are_numbers, is_coloured=has_colour(sys.stdout, colour))
        return
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    for row in [list(heads), *cells]:
        padded = [
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(row, widths, are_numbers, strict=True)
        ]
        print("  ".join(padded).rstrip())


def _plain(cell: object) -> str:
    """Return a cell for programs, as in JSON."""
    return str(cell).lower() if isinstance(cell, bool) else str(cell)


def _print_rich(
    heads: Sequence[str],
    cells: Sequence[Sequence[str]],
    are_numbers: Sequence[bool],
    *,
    is_coloured: bool,
) -> None:
    # Imported here: it takes longer than a whole command without a terminal.
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(no_color=not is_coloured, highlight=False)
    # Without colour no escape sequence at all: what is recorded from a terminal is plain text.
    table = Table(box=None, pad_edge=False, header_style="bold" if is_coloured else "not bold")
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    least = [
        width if is_number else max(len(head), _MIN_TEXT_COLUMNS)
        for head, width, is_number in zip(heads, widths, are_numbers, strict=True)
    ]
    widths = fit_widths(widths, least, console.width - _GAP_COLUMNS * (len(heads) - 1))
    for head, is_number in zip(heads, are_numbers, strict=True):
        justify: Literal["left", "right"] = "right" if is_number else "left"
        table.add_column(head, justify=justify, no_wrap=True)
    for row in cells:
        shown = [shorten(cell, width) for cell, width in zip(row, widths, strict=True)]
        table.add_row(*map(escape, shown))
    console.print(table)


def print_wrapped(label: str, text: str) -> None:
    """Print a text behind a label: on a terminal in lines that begin below each other."""
    if not sys.stdout.isatty():
        print(label + text)
        return
    import shutil
    import textwrap

    lines = textwrap.wrap(
        text,
        shutil.get_terminal_size().columns - 1,
        initial_indent=label,
        subsequent_indent=" " * len(label),
        break_long_words=False,
        break_on_hyphens=False,
    )
    print("\n".join(lines) or label)


def fit_widths(widths: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Return widths that add up to the room, if the least ones do; the widest column gives way."""
    fitted = list(widths)
    while sum(fitted) > room:
        narrower = [index for index, width in enumerate(fitted) if width > least[index]]
        if not narrower:
            break
        fitted[max(narrower, key=fitted.__getitem__)] -= 1
    return fitted


def shorten(text: str, width: int) -> str:
    """Return text of at most this width; the middle of longer text is left out."""
    if len(text) <= width:
        return text
    tail = max(0, (width - 1) // 2)
    return f"{text[: max(0, width - 1 - tail)]}…{text[len(text) - tail :] if tail else ''}"


def cut(text: str, width: int) -> str:
    """Return the start of a text, with a mark where the rest is left out."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint at the name that was probably meant, or nothing."""
    import difflib

    # Names of channels are compared without their topic, which alone would make them alike.
    topic = name[: name.rfind("/") + 1]
    names = [each.removeprefix(topic) for each in known if each.startswith(topic)]
    near = difflib.get_close_matches(name.removeprefix(topic), names, 1)
    return f"; did you mean {topic}{near[0]}?" if near else ""


def note(text: str, *, is_quiet: bool = False) -> None:
    """Print a line for people on stderr."""
    if not is_quiet:
        print(text, file=sys.stderr)


def show_bytes(size: int) -> str:
    """Return a size for people."""
    amount = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def show_age(seconds: float) -> str:
    """Return for how long something has been, for people."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 or not seconds else f"{seconds:.1f} s"
