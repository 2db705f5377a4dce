"""Changes: the question before one is made, and its result on each server."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from nsqd.cli.cluster import Outcome, check
from nsqd.cli.output import CliError, ExitCode, note, print_json, print_table
from nsqd.cli.target import Target

_DESTRUCTIVE: Final = ("delete", "drop", "empty", "drain")


@dataclass(frozen=True, slots=True)
class Change:
    """One request to one server, as a line or object of output."""

    action: str
    name: str
    outcome: Outcome


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of commands that change something."""
    group = parser.add_argument_group("changing")
    group.add_argument("-y", "--yes", action="store_true", help="do not ask")
    group.add_argument("--write", action="store_true", help="change in a read-only context")
    group.add_argument("--dry-run", action="store_true", help="say what would be done")


def refuse_read_only(options: argparse.Namespace, target: Target) -> None:
    """Check that the context may be changed.

    Raises:
        CliError: it is read-only, and --write was not given.
    """
    if target.is_read_only and not options.write:
        text = f"context {target.context} is read-only: --write changes it nevertheless"
        raise CliError(text, ExitCode.FORBIDDEN)


def confirm(options: argparse.Namespace, target: Target, action: str, what: str) -> None:
    """Ask on a terminal before something is lost.

    Raises:
        CliError: the user says no, or there is no terminal to ask on.
    """
    if action not in _DESTRUCTIVE or options.yes or options.dry_run:
        return
    if not sys.stdin.isatty():
        raise CliError(f"{action} needs -y where nobody can be asked", ExitCode.USAGE)
    where = f" in context {target.context}" if target.context else ""
    sys.stderr.write(f"{what}{where}? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CliError("nothing was changed")


def report(options: argparse.Namespace, changes: Sequence[Change]) -> ExitCode:
    """Print the result of a change on each server; return the exit code.

    Raises:
        CliError: nothing could be done anywhere.
    """
    for change in changes:
        outcome = change.outcome
        what = " ".join(filter(None, (change.action, change.name)))
        if options.json:
            print_json(
                {
                    "action": change.action,
                    "name": change.name,
                    "server": outcome.server,
                    "error": outcome.error,
                }
            )
        elif outcome.error is None:
            mark = "would be done" if getattr(options, "dry_run", False) else "done"
            print(f"{outcome.server}: {what}: {mark}")
        else:
            note(f"{outcome.server}: {what}: {outcome.error}")
    return check([change.outcome for change in changes], changes[0].action if changes else "")


def report_failures(outcomes: Sequence[Outcome], *, is_quiet: bool) -> None:
    """Say which servers did not answer."""
    for outcome in outcomes:
        if outcome.error is not None:
            note(f"nsq: {outcome.server}: {outcome.error}", is_quiet=is_quiet)


def print_rows(
    options: argparse.Namespace, rows: Sequence[dict[str, Any]], heads: Sequence[str]
) -> None:
    """Print rows as objects, as a table, or separated by tabs."""
    if options.json:
        for row in rows:
            print_json(row)
        return
    cells = [[row[head] for head in heads] for row in rows]
    print_table(heads, cells, is_tsv=options.tsv, colour=options.color)
