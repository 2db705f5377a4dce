"""`python -m bench`: measure our nsqd, alone or alternately with another one.

    python -m bench --quick
    python -m bench --scenario mpub,sub/200B --against "nsqd" --rounds 5 --json result.json
    python -m bench --against 127.0.0.1:4150
    python -m bench fairness --help
    python -m bench --clients          the client and the commands: bench.clients

Exit status: 0, 1 if a case failed, 2 for wrong arguments, 130 after Ctrl-C.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.console import Progress, allow_open_files, end_on_signals, positive, positive_seconds
from bench.daemon_process import DaemonError, Target, own_target, parse_target, running
from bench.fairness import command as fairness
from bench.measure import Case, Measurement
from bench.report import CaseReport, as_json, tables
from bench.scenarios import DESCRIPTIONS, Limits, memory_needed, select_cases
from bench.wire import LoadError


class _SkippedError(Exception):
    """This case cannot be measured on this daemon; the text says why."""


class _Run:
    """One run over all cases: owns the reports, so that they survive an interruption."""

    def __init__(self, cases: Sequence[Case], targets: Sequence[Target], rounds: int) -> None:
        self.reports: list[CaseReport] = []
        self.versions: dict[str, str] = {}
        self._cases = cases
        self._targets = targets
        self._rounds = rounds
        self._progress = Progress(len(cases) * len(targets) * rounds)

    def measure_all(self) -> None:
        """Case after case; within one, the daemons take turns, so that both see the same hour."""
        try:
            for case in self._cases:
                report = CaseReport(case)
                self.reports.append(report)
                for number in range(self._rounds):
                    for target in self._targets:
                        self._progress.step(f"{case.name} {target.label} round {number + 1}")
                        self._measure(report, target)
        finally:
            self._progress.clear()

    def _measure(self, report: CaseReport, target: Target) -> None:
        try:
            report.add(target.label, self._measurement(report.case, target))
        except _SkippedError as reason:
            report.note(f"skipped for {target.label}: {reason}")
        except (DaemonError, LoadError) as error:
            report.errors.append(f"{target.label}: {error}")

    def _measurement(self, case: Case, target: Target) -> Measurement:
        needed = memory_needed(case)
        if not target.is_startable and needed is None and case.scenario != "latency":
            raise _SkippedError(f"needs a daemon started with {' '.join(case.flags)}")
        with running(target, case.flags) as daemon:
            self.versions[target.label] = daemon.version()
            if not target.is_startable and needed is not None:
                has = daemon.option("mem_queue_size")
                if has < needed:
                    raise _SkippedError(f"needs --mem-queue-size={needed}, it has {has}")
            return case.measure(case, daemon)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, measure, print; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["fairness"]:
        return fairness.main(arguments[1:])
    if "--clients" in arguments:
        # Imported here: it needs more than nsqd does.
        from bench import clients

        return clients.main([each for each in arguments if each != "--clients"])
    parser = _parser()
    options = parser.parse_args(arguments)
    limits = Limits(options.messages, options.seconds, is_quick=options.quick)
    try:
        cases = select_cases(options.scenario, limits)
        targets = [parse_target("ours", options.ours) if options.ours else own_target("ours")]
        if options.against:
            targets.append(parse_target("other", options.against))
    except ValueError as error:
        parser.error(str(error))
    rounds = options.rounds or (1 if options.quick else 3)
    allow_open_files()
    end_on_signals()
    run = _Run(cases, targets, rounds)
    is_interrupted = False
    try:
        run.measure_all()
    except KeyboardInterrupt:
        is_interrupted = True
        print("interrupted", file=sys.stderr)
    print(tables(run.reports))
    if options.json:
        settings = {"rounds": rounds, "quick": options.quick, "interrupted": is_interrupted}
        text = as_json(run.reports, targets, run.versions, settings)
        options.json.write_text(text)
    if is_interrupted:
        return 130
    return 1 if any(report.errors for report in run.reports) else 0


def _parser() -> argparse.ArgumentParser:
    names = "\n".join(f"  {name:14} {text}" for name, text in DESCRIPTIONS.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure nsqd; with --against, two daemons in turns.",
        epilog=f"scenarios:\n{names}\n\n"
        "`python -m bench fairness` measures how long one client waits for another.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--scenario", metavar="A,B", help="only these scenarios or cases (mpub, sub/200B)")
    add("--against", metavar="DAEMON", help="a command, or host:tcp_port[:http_port]")
    add("--ours", metavar="DAEMON", help="the first daemon, instead of this repository's")
    add("--rounds", type=positive, metavar="N", help="medians over N (default 3, quick 1)")
    add("--messages", type=positive, metavar="N", help="messages of each case")
    add("--seconds", type=positive_seconds, metavar="S", help="time limit of each case")
    add("--quick", action="store_true", help="a short smoke run; its numbers mean little")
    add("--json", type=Path, metavar="FILE", help="write everything there")
    return parser


if __name__ == "__main__":
    sys.exit(main())
