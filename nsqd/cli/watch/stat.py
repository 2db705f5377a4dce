"""`nsq stat`: the figures of a topic's channels, again and again, over all nodes or by node."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from nsqd.cli import arguments, loop
from nsqd.cli.cluster import Cluster, Outcome
from nsqd.cli.figures import read_topics
from nsqd.cli.output import (
    CliError,
    ExitCode,
    did_you_mean,
    has_colour,
    note,
    print_json,
    shorten,
    show_age,
)
from nsqd.cli.target import find_target
from nsqd.cli.watch.rows import History, Row

EXAMPLES: Final = {
    "stat": """examples:
  nsq stat orders
  nsq stat orders billing --interval 5s --count 3
  nsq stat orders --by-node --json --count 1"""
}
_HEAD_EVERY: Final = 25
_MIN_NAME: Final = 7
_BAR: Final = " |"


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its head, its width, and from which width of a terminal it is shown."""

    head: str
    width: int
    least: int
    show: Callable[[Row], str]
    is_end: bool = False  # of a group, behind which a bar stands


def _value(key: str) -> Callable[[Row], str]:
    return lambda row: f"{row.figures.values[key]:,}"


def _show_depth(row: Row) -> str:
    return f"{row.depth:,}{'↑' if row.is_growing else ' '}"


def _show_latency(row: Row) -> str:
    worst = max(row.figures.latencies.values(), default=None)
    return "" if worst is None else f"{worst:,.0f} ms"


COLUMNS: Final = (
    Column("in/s", 9, 0, lambda row: f"{row.in_per_s or 0:,.0f}"),
    Column("out/s", 9, 0, lambda row: f"{row.out_per_s or 0:,.0f}", is_end=True),
    Column("depth ", 11, 0, _show_depth),
    Column("disk", 9, 124, _value("backend_depth")),
    Column("inflt", 6, 0, _value("in_flight_count")),
    Column("def", 6, 112, _value("deferred_count")),
    Column("oldest", 7, 0, lambda row: show_age(row.oldest_s) if row.oldest_s else "", is_end=True),
    Column("req", 7, 112, _value("requeue_count")),
    Column("t-o", 7, 0, _value("timeout_count")),
    Column("msgs", 13, 124, _value("message_count")),
    Column("latency", 9, 140, _show_latency),
    Column("clients", 7, 0, _value("client_count")),
)


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Add the arguments of `nsq stat`."""
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("channel", nargs="?", metavar="CHANNEL")
    parser.add_argument("--interval", type=arguments.duration, default=2.0, metavar="TIME")
    parser.add_argument("--count", type=arguments.positive, metavar="N", help="end after N reports")
    parser.add_argument("--by-node", action="store_true", help="a row for each node")
    arguments.add_common(parser)


def run(options: argparse.Namespace, _name: str) -> int:
    """Run `nsq stat`.

    Raises:
        CliError: no node answers, or there is no such topic or channel.
    """
    return loop.run(_report(options), is_busy=False)


async def _report(options: argparse.Namespace) -> int:
    stop = asyncio.Event()
    loop.end_with_signals(stop)
    history = History(is_by_node=options.by_node)
    code = ExitCode.DONE
    async with Cluster(find_target(options), options.timeout) as cluster:
        for number in itertools.count():
            nodes = await cluster.find_nodes(options.topic)
            outcomes = await cluster.find_stats(nodes, options.topic, options.channel or "")
            code = _check(outcomes, is_quiet=options.quiet)
            rows = history.update(outcomes, await cluster.find_ages(nodes), time.monotonic())
            chosen = choose_rows(rows, options.topic, options.channel)
            if not chosen:
                raise await _explain_missing(cluster, options)
            if number:
                _print(options, chosen, is_first=number % _HEAD_EVERY == 1)
            if number == options.count:
                break
            try:
                async with asyncio.timeout(options.interval):
                    await stop.wait()
                break
            except TimeoutError:
                pass  # The interval is over: the next report.
    return code


def choose_rows(rows: Sequence[Row], topic: str, channel: str | None) -> list[Row]:
    """Return the rows of a channel, or of a topic and all its channels, in their order."""
    of_topic = [row for row in rows if row.key.topic == topic]
    if channel is not None:
        return [row for row in of_topic if row.key.channel == channel]
    return sorted(of_topic, key=lambda row: (row.key.channel, row.key.node))


def _check(outcomes: Sequence[Outcome], *, is_quiet: bool) -> ExitCode:
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    if outcomes and len(failed) == len(outcomes):
        raise CliError(f"{failed[0].server}: {failed[0].error}")
    for outcome in failed:
        note(f"nsq: {outcome.server}: {outcome.error}", is_quiet=is_quiet)
    return ExitCode.PARTIAL if failed else ExitCode.DONE


async def _explain_missing(cluster: Cluster, options: argparse.Namespace) -> CliError:
    """Return the error, with the name that was probably meant."""
    topics = read_topics(await cluster.find_stats(await cluster.find_nodes()))
    names = {str(topic["topic_name"]) for topic in topics}
    name = options.topic
    if options.topic in names:
        name = f"{options.topic}/{options.channel}"
        names = {
            f"{topic['topic_name']}/{channel['channel_name']}"
            for topic in topics
            for channel in topic.get("channels") or []
        }
    hint = did_you_mean(name, names)
    return CliError(f"no such topic or channel: {name}{hint}", ExitCode.MISSING)


def _print(options: argparse.Namespace, rows: Sequence[Row], *, is_first: bool) -> None:
    if options.json:
        for row in rows:
            print_json(row.as_object())
        sys.stdout.flush()
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    is_coloured = has_colour(sys.stdout, options.color)
    lines = make_lines(rows, width, has_head=is_first)
    if is_first:
        print(lines.pop(0))
    for row, line in zip(rows, lines, strict=True):
        print(f"\x1b[31m{line}\x1b[0m" if is_coloured and row.is_alarming else line)
    sys.stdout.flush()


def make_lines(rows: Sequence[Row], width: int | None, *, has_head: bool) -> list[str]:
    """Return the rows as lines, with the columns that a terminal of this width has room for."""
    columns = [each for each in COLUMNS if width is None or width >= each.least]
    taken = sum(each.width + 1 + len(_BAR) * each.is_end for each in columns)
    names = [_name(row) for row in rows]
    room = max(_MIN_NAME, *map(len, names))
    if width is not None:
        room = max(_MIN_NAME, min(room, width - taken))
    lines = [_join("channel", [each.head for each in columns], columns, room)] if has_head else []
    for row, name in zip(rows, names, strict=True):
        cells = [each.show(row) for each in columns]
        paused = "  paused" if row.figures.is_paused else ""
        lines.append(_join(shorten(name, room), cells, columns, room) + paused)
    return lines


def _name(row: Row) -> str:
    name = row.key.channel or "(topic)"
    return f"{row.key.node} {name}" if row.key.node else name


def _join(name: str, cells: Sequence[str], columns: Sequence[Column], room: int) -> str:
    parts = [name.ljust(room)]
    for cell, column in zip(cells, columns, strict=True):
        parts.append(f" {cell:>{column.width}}{_BAR if column.is_end else ''}")
    return "".join(parts)
