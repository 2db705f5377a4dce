"""The delays of the pinger, as a table for people and as JSON for programs."""

import json
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from bench.daemon_process import Target
from bench.fairness.measuring import Delays
from bench.fairness.row import Row
from bench.load import percentiles_ms
from bench.report import commit, machine

# What a row may be above the idle daemon of the same run, in milliseconds.
BAR_MS: Final = {"p99.9": 10.0, "max": 50.0}

_SHOWN: Final = ("p50", "p99", "p99.9", "max")


@dataclass(slots=True)
class RowReport:
    """One row: the pings of all rounds by daemon, and what went wrong."""

    row: Row
    delays_ns: dict[str, "array[int]"] = field(default_factory=dict)
    load_per_s: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def add(self, label: str, delays: Delays) -> None:
        """Add a round; the percentiles are those of all rounds together."""
        self.delays_ns.setdefault(label, array("q")).extend(delays.delays_ns)
        self.load_per_s[label] = delays.load_count / delays.load_s if delays.load_s else 0.0

    def milliseconds(self, label: str) -> dict[str, float]:
        """The percentiles of this daemon; empty if it was not measured."""
        return percentiles_ms(self.delays_ns.get(label, array("q")))


def above_idle(report: RowReport, idle: RowReport, label: str) -> dict[str, float]:
    """How much longer than on the idle daemon the pinger waited, for what the bar limits."""
    here, alone = report.milliseconds(label), idle.milliseconds(label)
    if not here or not alone:
        return {}
    return {name: max(0.0, here[name] - alone[name]) for name in BAR_MS}


def is_over(above: dict[str, float]) -> bool:
    """Whether these delays above idle are over the bar."""
    return any(above[name] > limit for name, limit in BAR_MS.items() if name in above)


def table(reports: Sequence[RowReport], labels: Sequence[str]) -> str:
    """The table; a row that is over the bar is marked."""
    title = ["row", "daemon", *(f"{n} ms" for n in _SHOWN), "+p99.9", "+max", "load/s", "", "what"]
    lines = [title]
    for report in reports:
        for label in labels:
            shown = report.milliseconds(label)
            if not shown:
                continue
            above = above_idle(report, reports[0], label) if report is not reports[0] else {}
            lines.append(
                [
                    report.row.name,
                    label,
                    *(f"{shown[name]:.2f}" for name in _SHOWN),
                    *(f"{above[name]:.1f}" if above else "" for name in BAR_MS),
                    f"{report.load_per_s[label]:,.0f}",
                    "OVER" if is_over(above) else "",
                    report.row.text,
                ]
            )
    widths = [max(len(line[i]) for line in lines) for i in range(len(title))]
    text = "\n".join(
        "  ".join(
            cell.ljust(width) if i in (0, 1, 9, 10) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
    remarks = [f"{r.row.name}: {note}" for r in reports for note in r.notes]
    remarks += [f"FAILED {r.row.name}: {error}" for r in reports for error in r.errors]
    return "\n".join([text, *remarks])


def as_json(
    reports: Sequence[RowReport],
    targets: Sequence[Target],
    settings: dict[str, Any],
) -> str:
    """Everything: the percentiles of each row and daemon, and where and when it was."""
    labels = [target.label for target in targets]
    document = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "settings": settings,
        "daemons": {target.label: str(target) for target in targets},
        "rows": [
            {
                "name": report.row.name,
                "text": report.row.text,
                "pings": {label: len(delays) for label, delays in report.delays_ns.items()},
                "ms": {label: report.milliseconds(label) for label in report.delays_ns},
                "above_idle_ms": {n: above_idle(report, reports[0], n) for n in labels},
                "load_per_s": report.load_per_s,
                "notes": report.notes,
                "errors": report.errors,
            }
            for report in reports
        ],
    }
    return json.dumps(document, indent=2) + "\n"
