"""One bar, what was measured, and the table of all."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """A bar; `is_met` is None for a remark that has no bar."""

    bar: str
    wanted: str
    measured: str
    is_met: bool | None


def spread(values: Sequence[float], unit: str, digits: int = 0) -> str:
    """Show the median of several measurements, and the least and the most."""
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{middle:,.{digits}f} {unit} ({low:,.{digits}f} to {high:,.{digits}f})"


def show(rows: Iterable[Row]) -> str:
    """Lay the rows out as a table."""
    texts = [("bar", "wanted", "measured", "met")]
    verdicts = {True: "yes", False: "NO", None: ""}
    texts += [(row.bar, row.wanted, row.measured, verdicts[row.is_met]) for row in rows]
    widths = [max(len(text[column]) for text in texts) for column in range(4)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(text, widths, strict=True)).rstrip()
        for text in texts
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)
