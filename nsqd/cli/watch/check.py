"""`nsq check`: one line and an exit code, as Nagios, Icinga and Sensu read them.

    WARNING - orders/mail: depth 20,908 > 10,000 | depth=20908 oldest=65s clients=1

0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN: the check itself could not be made.
"""

from __future__ import annotations

import argparse
import asyncio
import enum
import fnmatch
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from diskqueue.tools.plain_text import escape_text
from nsqd.cli import arguments, loop
from nsqd.cli.cluster import Cluster, Outcome
from nsqd.cli.output import CliError, ExitCode, did_you_mean, plural, print_json
from nsqd.cli.target import Node, find_target
from nsqd.cli.watch.rows import Ages, History, Row

EXAMPLES: Final = {
    "check": """examples:
  nsq check
  nsq check orders --max-depth 1000,10000 --min-clients 1
  nsq check 'orders/*' --max-age 1m,10m --max-growth 50"""
}


class Status(enum.IntEnum):
    """The exit codes of Nagios."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


@dataclass(frozen=True, slots=True)
class Bounds:
    """The values above which a figure is a warning, and critical."""

    warning: float
    critical: float

    def judge(self, value: float) -> Status:
        """Return the state that a value stands for."""
        if value > self.critical:
            return Status.CRITICAL
        return Status.WARNING if value > self.warning else Status.OK


@dataclass(slots=True)
class Verdict:
    """The worst status so far, and everything that is wrong, the worst first."""

    status: Status = Status.OK
    problems: list[tuple[Status, str]] = field(default_factory=list)

    def add(self, status: Status, text: str) -> None:
        """Note a problem."""
        self.status = max(self.status, status)
        self.problems.append((status, text))

    def texts(self) -> list[str]:
        """Return the problems, the worst first."""
        ordered = sorted(self.problems, key=lambda each: -each[0])
        return [text for _, text in ordered]


def make_bounds(read: Callable[[str], float]) -> Callable[[str], Bounds]:
    """Return the type of a flag with W,C or one value for both."""

    def bounds(text: str) -> Bounds:
        parts = text.split(",")
        if len(parts) > 2:
            raise argparse.ArgumentTypeError(f"not W,C: {text!r}")
        values = [read(part.strip()) for part in parts]
        if values[0] > values[-1]:
            raise argparse.ArgumentTypeError(f"the warning is above the critical value: {text!r}")
        return Bounds(values[0], values[-1])

    return bounds


def _number(text: str) -> float:
    if not re.fullmatch(r"\d+(\.\d+)?", text):
        raise argparse.ArgumentTypeError(f"not a number: {text!r}")
    return float(text)


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Add the arguments of `nsq check`."""
    parser.add_argument("place", nargs="?", metavar="TOPIC[/CHANNEL]", help="a name or a pattern")
    group = parser.add_argument_group("bounds", "W,C: a warning above W, critical above C")
    group.add_argument("--max-depth", type=make_bounds(_number), metavar="W,C", help="messages")
    group.add_argument("--max-age", type=make_bounds(arguments.duration), metavar="W,C",
                       help="of the oldest message, as 30s,5m (ours only)")  # fmt: skip
    group.add_argument("--max-growth", type=make_bounds(_number), metavar="W,C",
                       help="messages a second by which the depth grows")  # fmt: skip
    group.add_argument("--min-clients", type=arguments.positive, metavar="N", help="of a channel")
    parser.add_argument("--interval", type=arguments.duration, default=2.0, metavar="TIME",
                        help="over which growth is measured (2s)")  # fmt: skip
    arguments.add_common(parser)


def run(options: argparse.Namespace, _name: str) -> int:
    """Run `nsq check`.

    Raises:
        CliError: there is nothing to check; `nsq` calls it UNKNOWN.
    """
    return loop.run(_check(options), is_busy=False)


async def _check(options: argparse.Namespace) -> int:
    verdict = Verdict()
    history = History()
    async with Cluster(find_target(options), options.timeout) as cluster:
        nodes = await cluster.find_nodes()
        stats, ages = await _look(cluster, nodes, options)
        rows = history.update(stats, ages, time.monotonic())
        if options.max_growth is not None:
            await asyncio.sleep(options.interval)
            stats, ages = await _look(cluster, nodes, options)
            rows = history.update(stats, ages, time.monotonic())
    judge_nodes(stats, verdict)
    has_answer = any(outcome.error is None for outcome in stats)
    chosen = choose_rows(rows, options.place) if has_answer else []
    has_channel = any(row.key.channel for row in chosen)
    if options.max_age is not None and has_channel and not any(ages):
        raise CliError("this nsqd tells no ages: it is not ours", ExitCode.MISSING)
    for row in chosen:
        judge_row(row, options, verdict)
    _print(options, chosen, verdict)
    return verdict.status


async def _look(
    cluster: Cluster, nodes: Sequence[Node], options: argparse.Namespace
) -> tuple[list[Outcome], list[Ages]]:
    stats = await cluster.find_stats(nodes)
    ages: list[Ages] = [{} for _ in nodes]
    if options.max_age is not None:
        ages = list(await cluster.find_ages(nodes))
    return stats, ages


def choose_rows(rows: Sequence[Row], place: str | None) -> list[Row]:
    """Return the queues of a topic, one channel, or those that a pattern names.

    Raises:
        CliError: there is none.
    """
    if place is None:
        return list(rows)
    found = [
        row
        for row in rows
        if fnmatch.fnmatchcase(row.key.name, place)
        or ("/" not in place and fnmatch.fnmatchcase(row.key.topic, place))
    ]
    if not found:
        hint = did_you_mean(place, (row.key.name for row in rows))
        raise CliError(f"no such topic or channel: {place}{hint}", ExitCode.MISSING)
    return found


def judge_nodes(stats: Sequence[Outcome], verdict: Verdict) -> None:
    """Note nodes that do not answer, and those that are not healthy."""
    failed = [outcome for outcome in stats if outcome.error is not None]
    is_all = len(failed) == len(stats)
    for outcome in failed:
        status = Status.CRITICAL if is_all else Status.WARNING
        verdict.add(status, f"{outcome.server}: {outcome.error}")
    for outcome in stats:
        if outcome.error is None and outcome.answer.get("health", "OK") != "OK":
            verdict.add(Status.CRITICAL, f"{outcome.server}: {outcome.answer['health']}")


def judge_row(row: Row, options: argparse.Namespace, verdict: Verdict) -> None:
    """Compare one queue with the bounds."""
    growth = 0.0
    if row.in_per_s is not None and row.out_per_s is not None:
        growth = row.in_per_s - row.out_per_s
    figures: list[tuple[str, float | None, Bounds | None]] = [
        ("depth", float(row.depth), options.max_depth),
        ("oldest", row.oldest_s, options.max_age),
        ("growth", growth, options.max_growth),
    ]
    for name, value, bounds in figures:
        if value is None or bounds is None:
            continue
        status = bounds.judge(value)
        if status is not Status.OK:
            bound = bounds.critical if status is Status.CRITICAL else bounds.warning
            unit = {"oldest": " s", "growth": "/s"}.get(name, "")
            verdict.add(status, f"{row.key.name}: {name} {value:,.0f}{unit} > {bound:,.0f}{unit}")
    clients = row.figures.values["client_count"]
    if options.min_clients and row.key.channel and clients < options.min_clients:
        verdict.add(Status.CRITICAL, f"{row.key.name}: {plural(clients, 'client')}")


def _print(options: argparse.Namespace, rows: Sequence[Row], verdict: Verdict) -> None:
    depth = sum(row.depth for row in rows)
    ages = [row.oldest_s for row in rows if row.oldest_s is not None]
    clients = sum(row.figures.values["client_count"] for row in rows)
    texts = verdict.texts()
    if options.json:
        found: dict[str, Any] = {
            "status": verdict.status.name,
            "problems": texts,
            "queues": len(rows),
            "depth": depth,
            "oldest_s": max(ages, default=None),
            "clients": clients,
        }
        print_json(found)
        return
    summary = "; ".join(texts[:3]) or f"{plural(len(rows), 'queue')}, depth {depth:,}"
    more = f" and {len(texts) - 3} more" if len(texts) > 3 else ""
    data = f"depth={depth} clients={clients}" + (f" oldest={max(ages):.0f}s" if ages else "")
    # The bar divides the text from the figures.
    text = escape_text(summary + more).replace("|", "/")
    print(f"{verdict.status.name} - {text} | {data}")
