"""`python -m bench fairness`: how long a quiet client waits while another one is greedy.

    python -m bench fairness --rows nop,mpub-million --against "/usr/local/bin/nsqd"

Exit status: 0, 1 if a row failed, 2 for wrong arguments, 130 after Ctrl-C. Delays over the bar are
marked in the table and do not change it.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.console import Progress, allow_open_files, end_on_signals, positive, positive_seconds
from bench.daemon_process import DaemonError, Target, own_target, parse_target
from bench.fairness.measuring import Scale, SkippedError, measure
from bench.fairness.row import Row
from bench.fairness.rows import ROWS, select_rows
from bench.fairness.table import RowReport, as_json, table
from bench.wire import LoadError

SECONDS = 3.0
QUICK_SECONDS = 0.5


class _Run:
    """One run over all rows: owns the reports, so that they survive an interruption."""

    def __init__(self, rows: Sequence[Row], targets: Sequence[Target], scale: Scale) -> None:
        self.reports: list[RowReport] = []
        self._rows = rows
        self._targets = targets
        self._scale = scale

    def measure_all(self, rounds: int) -> None:
        """Row after row; within one, the daemons take turns, so that both see the same hour."""
        progress = Progress(len(self._rows) * len(self._targets) * rounds)
        try:
            for row in self._rows:
                report = RowReport(row)
                self.reports.append(report)
                for _ in range(rounds):
                    for target in self._targets:
                        progress.step(f"{row.name} {target.label}")
                        self._measure(report, target)
        finally:
            progress.clear()

    def _measure(self, report: RowReport, target: Target) -> None:
        try:
            report.add(target.label, measure(report.row, target, self._scale))
        except SkippedError as reason:
            report.notes.append(f"skipped for {target.label}: {reason}")
        except (DaemonError, LoadError) as error:
            if report.row.is_ours_only and target.label != "ours":
                report.notes.append(f"skipped for {target.label}: it has no such feature")
                return
            report.errors.append(f"{target.label}: {error}")


def main(arguments: Sequence[str]) -> int:
    """Parse, measure, print; returns the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        rows = select_rows(options.rows)
        targets = [parse_target("ours", options.ours) if options.ours else own_target("ours")]
        if options.against:
            targets.append(parse_target("other", options.against))
    except ValueError as error:
        parser.error(str(error))
    seconds = options.seconds or (QUICK_SECONDS if options.quick else SECONDS)
    allow_open_files()
    end_on_signals()
    run = _Run(rows, targets, Scale(seconds, options.quick, options.deliver))
    is_interrupted = False
    try:
        run.measure_all(options.rounds)
    except KeyboardInterrupt:
        is_interrupted = True
        print("interrupted", file=sys.stderr)
    if run.reports:
        print(table(run.reports, [target.label for target in targets]))
    if options.json:
        settings = {
            "rounds": options.rounds,
            "seconds": seconds,
            "quick": options.quick,
            "deliver": options.deliver,
            "interrupted": is_interrupted,
        }
        options.json.write_text(as_json(run.reports, targets, settings))
    if is_interrupted:
        return 130
    return 1 if any(report.errors for report in run.reports) else 0


def _parser() -> argparse.ArgumentParser:
    names = "\n".join(f"  {row.name:14} {row.text}" for row in ROWS)
    parser = argparse.ArgumentParser(
        prog="python -m bench fairness",
        description="Ping nsqd every millisecond while another client is greedy.",
        epilog=f"rows:\n{names}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--rows", metavar="A,B", help="only these rows, after the idle daemon")
    add("--against", metavar="DAEMON", help="a command, or host:tcp_port[:http_port]")
    add("--ours", metavar="DAEMON", help="the first daemon, instead of this repository's")
    add("--rounds", type=positive, default=1, metavar="N", help="measure each row N times")
    add("--seconds", type=positive_seconds, metavar="S", help=f"of a flood (default {SECONDS:g})")
    add("--deliver", action="store_true", help="a ping waits for its message, not only for its OK")
    add("--quick", action="store_true", help="short floods and small numbers, as a smoke test")
    add("--json", type=Path, metavar="FILE", help="write everything there")
    return parser
