"""`nsq stat`: the figures of a topic's channels, again and again, over all nodes."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import signal
import sys
import time
from collections.abc import Sequence
from typing import Final

from nsqd.cli import arguments, loop
from nsqd.cli.cluster import Cluster, Outcome
from nsqd.cli.figures import Figures, read_figures
from nsqd.cli.output import CliError, ExitCode, has_colour, note, print_json
from nsqd.cli.target import find_target

EXAMPLES: Final = {
    "stat": """examples:
  nsq stat orders
  nsq stat orders billing --interval 5s --count 3
  nsq stat orders --json --count 1"""
}
_HEAD_EVERY: Final = 25


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Add the arguments of `nsq stat`."""
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("channel", nargs="?", metavar="CHANNEL")
    parser.add_argument("--interval", type=arguments.duration, default=2.0, metavar="TIME")
    parser.add_argument("--count", type=arguments.positive, metavar="N", help="end after N reports")
    arguments.add_common(parser)


def run(options: argparse.Namespace, _name: str) -> int:
    """Run `nsq stat`.

    Raises:
        CliError: no node answers, or there is no such topic or channel.
    """
    return loop.run(_report(options), is_busy=False)


async def _report(options: argparse.Namespace) -> int:
    target = find_target(options)
    stop = asyncio.Event()
    running = asyncio.get_running_loop()
    for ending in (signal.SIGINT, signal.SIGTERM):
        running.add_signal_handler(ending, stop.set)
    before: dict[str, Figures] = {}
    code = ExitCode.DONE
    async with Cluster(target, options.timeout) as cluster:
        for number in itertools.count():
            nodes = await cluster.find_nodes(options.topic)
            outcomes = await cluster.find_stats(nodes, options.topic, options.channel or "")
            code = _check(outcomes, is_quiet=options.quiet)
            figures = read_figures(outcomes, options.topic, options.channel, time.monotonic())
            if not figures:
                name = "/".join(filter(None, (options.topic, options.channel)))
                raise CliError(f"no such topic or channel: {name}", ExitCode.MISSING)
            if number:
                _print(options, figures, before, is_first=number % _HEAD_EVERY == 1)
            before = {each.name: each for each in figures}
            if number == options.count:
                break
            try:
                async with asyncio.timeout(options.interval):
                    await stop.wait()
                break
            except TimeoutError:
                pass  # The interval is over: the next report.
    return code


def _check(outcomes: Sequence[Outcome], *, is_quiet: bool) -> ExitCode:
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    if outcomes and len(failed) == len(outcomes):
        raise CliError(f"{failed[0].server}: {failed[0].error}")
    for outcome in failed:
        note(f"nsq: {outcome.server}: {outcome.error}", is_quiet=is_quiet)
    return ExitCode.PARTIAL if failed else ExitCode.DONE


def _print(
    options: argparse.Namespace,
    figures: list[Figures],
    before: dict[str, Figures],
    *,
    is_first: bool,
) -> None:
    width = max(7, *(len(each.name) for each in figures))
    if is_first and not options.json:
        print(
            f"{'channel':<{width}}  {'in/s':>9} {'out/s':>9} | {'depth':>9} {'disk':>8}"
            f" {'inflt':>6} {'def':>6} | {'req':>7} {'t-o':>7} {'msgs':>13} {'clients':>7}"
        )
    is_coloured = has_colour(sys.stdout, options.color)
    for each in figures:
        rates = each.rates(before[each.name]) if each.name in before else (0.0, 0.0)
        if options.json:
            _print_json(options, each, rates)
            continue
        value = each.values
        grows = each.name in before and value["depth"] > before[each.name].values["depth"]
        line = (
            f"{each.name or '(topic)':<{width}}  {rates[0]:>9,.0f} {rates[1]:>9,.0f} |"
            f" {value['depth']:>9,}{'↑' if grows else ' '}{value['backend_depth']:>8,}"
            f" {value['in_flight_count']:>6,} {value['deferred_count']:>6,} |"
            f" {value['requeue_count']:>7,} {value['timeout_count']:>7,}"
            f" {value['message_count']:>13,} {value['client_count']:>7,}"
            f"{'  paused' if each.is_paused else ''}"
        )
        is_alarming = grows and each.name and not value["client_count"]
        print(f"\x1b[31m{line}\x1b[0m" if is_coloured and is_alarming else line)
    sys.stdout.flush()


def _print_json(options: argparse.Namespace, figures: Figures, rates: tuple[float, float]) -> None:
    print_json(
        {
            "topic": options.topic,
            "channel": figures.name,
            "in_per_s": round(rates[0], 3),
            "out_per_s": round(rates[1], 3),
            **figures.values,
            "paused": figures.is_paused,
        }
    )
    sys.stdout.flush()
