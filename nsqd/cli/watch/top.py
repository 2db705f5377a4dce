"""`nsq top`: a full screen of nodes, topics and channels that is drawn anew every two seconds.

Without a terminal, on one that cannot move its cursor (TERM=dumb), or with --json, it prints the
same figures one report after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import signal
import sys
import time
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

from nsqd.cli import arguments, loop, signals
from nsqd.cli.cluster import Cluster, Outcome, check
from nsqd.cli.output import (
    CliError,
    ExitCode,
    can_redraw,
    has_colour,
    plural,
    print_json,
    print_table,
)
from nsqd.cli.target import Node, Target, find_target
from nsqd.cli.watch.rows import History, Row
from nsqd.cli.watch.screen import NodeLine, show_rate
from nsqd.cli.watch.view import SORTS, Order, View

EXAMPLES: Final = {
    "top": """examples:
  nsq top
  nsq top --sort age --interval 5s
  nsq top --json --count 1"""
}


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Add the arguments of `nsq top`."""
    parser.add_argument("--interval", type=arguments.duration, default=2.0, metavar="TIME")
    parser.add_argument("--count", type=arguments.positive, metavar="N", help="end after N reports")
    parser.add_argument("--sort", choices=tuple(SORTS), default="depth", help=", ".join(SORTS))
    parser.add_argument("--by-node", action="store_true", help="a row for each node")
    parser.add_argument("--write", action="store_true", help="change in a read-only context")
    arguments.add_common(parser)


def run(options: argparse.Namespace, _name: str) -> int:
    """Run `nsq top`.

    Raises:
        CliError: no node answers.
    """
    return loop.run(_run(options), is_busy=False)


async def _run(options: argparse.Namespace) -> int:
    target = find_target(options)
    async with Cluster(target, options.timeout) as cluster:
        top = Top(options, target, cluster)
        is_live = can_redraw(sys.stdout) and sys.stdin.isatty() and not options.json
        return await (top.show() if is_live else top.report())


class Top:
    """One run of `nsq top`: the last answers of the nodes, and the view of them."""

    def __init__(self, options: argparse.Namespace, target: Target, cluster: Cluster) -> None:
        """Prepare; `show` or `report` asks the nodes."""
        self._options = options
        self._target = target
        self._cluster = cluster
        self._history = History(is_by_node=options.by_node)
        self._view = View(options.sort, is_read_only=target.is_read_only and not options.write)
        self._nodes: list[Node] = []
        self._lines: list[NodeLine] = []
        self._stop = asyncio.Event()
        self._seen = 0
        self._code = ExitCode.DONE

    async def report(self) -> int:
        """Print the figures again and again, without a terminal."""
        self._end_with_signals()
        for number in itertools.count(1):
            if not await self._look_unless_stopped():
                return self._code
            if self._options.json:
                rows = [row.as_object() for row in self._view.rows]
                nodes = [line.as_object() for line in self._lines]
                print_json({"time": round(time.time(), 3), "nodes": nodes, "queues": rows})
            else:
                self._print_rows(self._view.rows, is_first=number == 1)
            sys.stdout.flush()
            if number == self._options.count or await self._pause():
                return self._code
        raise AssertionError("there is no end without one of these")

    def _print_rows(self, rows: Sequence[Row], *, is_first: bool) -> None:
        if not is_first:
            print()
        table: list[tuple[Any, ...]] = [
            (
                *((row.key.node,) if self._options.by_node else ()),
                row.key.name,
                show_rate(row.in_per_s),
                show_rate(row.out_per_s),
                row.depth,
                row.figures.values["in_flight_count"],
                row.figures.values["client_count"],
                row.figures.is_paused,
            )
            for row in rows
        ]
        heads = ("queue", "in/s", "out/s", "depth", "in flight", "clients", "paused")
        print_table(("node", *heads) if self._options.by_node else heads, table)

    async def show(self) -> int:
        """Fill the screen until q, a signal, or --count reports."""
        # Imported here: it takes longer than a command without a screen.
        from rich.console import Console
        from rich.live import Live

        from nsqd.cli.watch.keys import Keys

        await self._look()
        is_coloured = has_colour(sys.stdout, self._options.color)
        console = Console(no_color=not is_coloured, highlight=False)
        orders: asyncio.Queue[Order] = asyncio.Queue(1)
        self._end_with_signals()
        with Live(console=console, screen=True, auto_refresh=False) as live:

            def redraw() -> None:
                live.update(self._draw(console.width, console.height), refresh=True)

            def press(key: str) -> None:
                order = self._view.press(key)
                if order is not None and orders.empty():
                    orders.put_nowait(order)
                if self._view.is_over:
                    self._stop.set()
                redraw()

            running = asyncio.get_running_loop()
            running.add_signal_handler(signal.SIGWINCH, redraw)
            with Keys(press):
                redraw()
                changing = asyncio.create_task(self._make_changes(orders, redraw))
                try:
                    while not self._is_last() and not await self._pause():
                        if not await self._look_unless_stopped():
                            break
                        redraw()
                finally:
                    changing.cancel()
                    running.remove_signal_handler(signal.SIGWINCH)
        return self._code

    def _is_last(self) -> bool:
        return self._options.count is not None and self._seen >= self._options.count

    def _end_with_signals(self) -> None:
        running = asyncio.get_running_loop()
        for number in signals.ending():
            running.add_signal_handler(number, self._stop.set)

    async def _pause(self) -> bool:
        """Wait for the next report; return whether to end instead."""
        try:
            async with asyncio.timeout(self._options.interval):
                await self._stop.wait()
        except TimeoutError:
            return False
        return True

    async def _look_unless_stopped(self) -> bool:
        """Ask the nodes; return False at once when it ends meanwhile, as one may hang."""
        looking = asyncio.create_task(self._look())
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((looking, stopping), return_when=asyncio.FIRST_COMPLETED)
            if looking.done():
                looking.result()
            return looking.done()
        finally:
            looking.cancel()
            stopping.cancel()
            await asyncio.gather(looking, stopping, return_exceptions=True)

    async def _look(self) -> None:
        """Ask the nodes; keep the last answers if none answers any more."""
        try:
            self._nodes = await self._cluster.find_nodes()
            stats = await self._cluster.find_stats(self._nodes)
            self._code = check(stats, "stats")
        except CliError as error:
            if not self._seen:
                raise
            self._view.message = str(error)
            self._lines = [NodeLine(line.name, str(error), is_down=True) for line in self._lines]
            return
        self._seen += 1
        ages = await self._cluster.find_ages(self._nodes)
        self._view.set_rows(self._history.update(stats, ages, time.monotonic()))
        self._lines = list(map(_read_node, stats))

    def _draw(self, width: int, height: int) -> Any:
        from nsqd.cli.watch.screen import draw

        where = f"context {self._target.context}" if self._target.context else "nsq top"
        rows = self._view.rows
        channels = sum(bool(row.key.channel) for row in rows)
        title = (
            f"{where}: {plural(len(self._lines), 'node')},"
            f" {plural(len(rows) - channels, 'topic')}, {plural(channels, 'channel')},"
            f" by {self._view.sort}"
            + (f", filter {self._view.filter}" if self._view.filter else "")
            + f"  {time.strftime('%H:%M:%S')}"
        )
        return draw(self._view, self._lines, title, width=width, height=height)

    async def _make_changes(self, orders: asyncio.Queue[Order], redraw: Any) -> None:
        while True:
            order = await orders.get()
            self._view.message = await self._change(order)
            await self._look()
            redraw()

    async def _change(self, order: Order) -> str:
        """Make a change on all nodes that have the queue; show the result."""
        key = order.key
        kind = "channel" if key.channel else "topic"
        query = {"topic": key.topic, **({"channel": key.channel} if key.channel else {})}
        nodes = [node for node in self._nodes if key.node in ("", str(node))]
        path = f"/{kind}/{order.action}?{urlencode(query)}"
        outcomes = await self._cluster.ask("POST", nodes, path)
        done = [each for each in outcomes if each.error is None]
        failed = [
            each
            for each in outcomes
            if each.error is not None and (each.status != HTTPStatus.NOT_FOUND or not done)
        ]
        text = f"{order.action} {key.name}: done on {plural(len(done), 'node')}"
        return f"{text}, {failed[0].server}: {failed[0].error}" if failed else text


def _read_node(outcome: Outcome) -> NodeLine:
    if outcome.error is not None:
        return NodeLine(outcome.server, outcome.error, is_down=True)
    topics = outcome.answer.get("topics") or []
    channels = [channel for topic in topics for channel in topic.get("channels") or []]
    return NodeLine(
        outcome.server,
        str(outcome.answer.get("health", "")),
        str(outcome.answer.get("version", "")),
        len(topics),
        sum(int(each["depth"]) for each in (*topics, *channels)),
        sum(int(each.get("client_count", 0)) for each in channels),
    )
