"""What was measured, summed up: medians, ratios, tables for people, JSON for programs.

A ratio is always such that more than 1 means ours is better: ours / other for rates,
other / ours for latency, CPU and memory. The spread of the rounds says how much of it is noise.
"""

import itertools
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from bench.daemon_process import REPOSITORY, Target
from bench.measure import Case, Measurement

_LOWER_IS_BETTER: Final = ("_ms", "_us_per_message", "_bytes_per_message")
_CPU: Final = "cpu_us_per_message"
_LATENCIES: Final = ("p50_ms", "p90_ms", "p99_ms", "p99.9_ms", "max_ms")


@dataclass(slots=True)
class CaseReport:
    """One case: its measurements by daemon, round after round, and what went wrong."""

    case: Case
    rounds: dict[str, list[Measurement]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def add(self, label: str, measurement: Measurement) -> None:
        self.rounds.setdefault(label, []).append(measurement)
        self.note(*(f"{label}: {note}" for note in measurement.notes))

    def note(self, *texts: str) -> None:
        """Remember a remark, once."""
        self.notes.extend(text for text in texts if text not in self.notes)

    def medians(self, label: str) -> dict[str, float]:
        """The median of each metric over the rounds."""
        measurements = self.rounds.get(label, [])
        names = measurements[0].metrics if measurements else {}
        return {n: statistics.median(m.metrics[n] for m in measurements) for n in names}

    def spread(self, label: str, metric: str) -> float:
        """How far apart the rounds are, as a part of the median: a smaller difference is noise."""
        values = [measurement.metrics[metric] for measurement in self.rounds[label]]
        return (max(values) - min(values)) / (statistics.median(values) or 1.0)

    def ratios(self) -> dict[str, float]:
        """For each metric, how much better the first daemon is than the second."""
        if len(self.rounds) != 2:
            return {}
        ours, other = (self.medians(label) for label in self.rounds)
        ratios = {}
        for name in ours.keys() & other.keys():
            better, worse = ours[name], other[name]
            if name.endswith(_LOWER_IS_BETTER):
                better, worse = worse, better
            if worse > 0:
                ratios[name] = better / worse
        return ratios


def tables(reports: Sequence[CaseReport]) -> str:
    """The tables: rates first, then latencies and memory where there are any, then remarks."""
    rates = [
        ("msg/s", "messages_per_s", ",.0f"),
        ("MB/s", "megabytes_per_s", ",.1f"),
        ("CPU µs/msg", _CPU, ".2f"),
        ("client µs/msg", "client_cpu_us_per_message", ".2f"),
    ]
    latencies = [(name.replace("_", " "), name, ".3f") for name in _LATENCIES]
    memory = [("RSS B/msg", "rss_bytes_per_message", ",.0f")]
    parts = [
        _table(reports, rates, "messages_per_s"),
        _table(reports, latencies, "p99_ms"),
        _table(reports, memory, "rss_bytes_per_message"),
        "\n".join(f"{r.case.name}: {note}" for r in reports for note in r.notes),
        "\n".join(f"FAILED {r.case.name}: {error}" for r in reports for error in r.errors),
    ]
    return "\n\n".join(part for part in parts if part)


def _table(
    reports: Sequence[CaseReport], columns: Sequence[tuple[str, str, str]], ratio_of: str
) -> str:
    titles = [title for title, _, _ in columns]
    rows = [["case", "daemon", *titles, "spread", "ratio", "CPU ratio"]]
    for report in reports:
        ratios = report.ratios()
        # On a busy machine the rates waver and the CPU time per message hardly does.
        shown = [f"{ratios[m]:.2f}" if m in ratios else "" for m in (ratio_of, _CPU)]
        for number, label in enumerate(report.rounds):
            medians = report.medians(label)
            if ratio_of not in medians:
                continue
            cells = [format(medians[m], f) if m in medians else "" for _, m, f in columns]
            is_repeated = len(report.rounds[label]) > 1
            spread = f"{report.spread(label, ratio_of):.0%}" if is_repeated else ""
            is_first = number == 0
            name, last = (report.case.name, shown) if is_first else ("", ["", ""])
            rows.append([name, label, *cells, spread, *last])
    if len(rows) == 1:
        return ""
    used = [any(row[i] for row in rows[1:]) for i in range(len(rows[0]))]
    rows = [list(itertools.compress(row, used)) for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def as_json(
    reports: Sequence[CaseReport],
    targets: Sequence[Target],
    versions: dict[str, str],
    settings: dict[str, Any],
) -> str:
    """Everything: each round, medians, ratios, and where and when it was."""
    document = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "settings": settings,
        "daemons": {t.label: {"target": str(t), "version": versions.get(t.label)} for t in targets},
        "cases": [
            {
                "name": report.case.name,
                "parameters": _parameters(report.case),
                "rounds": {k: [m.metrics for m in v] for k, v in report.rounds.items()},
                "medians": {label: report.medians(label) for label in report.rounds},
                "ratios": report.ratios(),
                "notes": report.notes,
                "errors": report.errors,
            }
            for report in reports
        ],
    }
    return json.dumps(document, indent=2) + "\n"


def _parameters(case: Case) -> dict[str, Any]:
    fields = asdict(case)
    return {name: value for name, value in fields.items() if name not in ("name", "measure")}


def machine() -> dict[str, Any]:
    """What this was measured on."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
    }


def commit() -> str:
    """The commit this tree is at, with a mark if files differ from it; empty outside of git."""
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=False,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip()
