"""`nsq node`: list the nodes, ping them, drain them, have nsqlookupd forget them for a topic."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

from nsqd.cli import arguments, loop
from nsqd.cli.admin.changes import Change, confirm, print_rows, refuse_read_only, report
from nsqd.cli.admin.changes import add_arguments as add_changing
from nsqd.cli.cluster import Cluster, Outcome, check
from nsqd.cli.figures import read_topics
from nsqd.cli.output import CliError, ExitCode, note, plural
from nsqd.cli.target import Node, Target, find_target

EXAMPLES: Final = {
    "node": """examples:
  nsq node ls
  nsq node ping
  nsq node drain -a 10.0.0.1 -y --wait""",
}
ACTIONS: Final = ("ls", "ping", "drain", "tombstone")
_HEADS: Final = ("node", "version", "health", "topics", "depth", "clients")
_POLL_S: Final = 1.0


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Add the arguments of `nsq node`."""
    parser.add_argument("action", choices=ACTIONS, metavar="ACTION", help=", ".join(ACTIONS))
    parser.add_argument("names", nargs="*", metavar="TOPIC", help="tombstone: of which topics")
    parser.add_argument("--wait", action="store_true", help="drain: until nsqd has stopped")
    parser.add_argument("--tsv", action="store_true", help="columns separated by tabs")
    add_changing(parser)
    arguments.add_common(parser)


def run(options: argparse.Namespace, _name: str) -> int:
    """Run `nsq node`.

    Raises:
        CliError: it could not be done anywhere.
    """
    target = find_target(options)
    if options.action in ("drain", "tombstone"):
        refuse_read_only(options, target)
    if options.action == "tombstone" and not options.names:
        raise CliError("nsq node tombstone needs a topic", ExitCode.USAGE)
    return loop.run(_run(options, target), is_busy=False)


async def _run(options: argparse.Namespace, target: Target) -> int:
    async with Cluster(target, options.timeout) as cluster:
        nodes = await cluster.find_nodes()
        if not nodes:
            raise CliError("no nsqlookupd knows an nsqd", ExitCode.MISSING)
        match options.action:
            case "ls":
                return await _list(options, cluster, nodes)
            case "ping":
                outcomes = await cluster.ask("GET", nodes, "/ping")
                return report(options, [Change("ping", "", outcome) for outcome in outcomes])
            case "tombstone":
                return await _tombstone(options, cluster, nodes)
            case _:
                return await _drain(options, target, cluster, nodes)


async def _list(options: argparse.Namespace, cluster: Cluster, nodes: Sequence[Node]) -> int:
    infos = await cluster.ask("GET", nodes, "/info")
    stats = await cluster.find_stats(nodes)
    rows: list[dict[str, Any]] = []
    for node, info, stat in zip(nodes, infos, stats, strict=True):
        error = info.error or stat.error
        topics = [] if error else stat.answer.get("topics") or []
        channels = [channel for topic in topics for channel in topic["channels"] or []]
        rows.append(
            {
                "node": str(node),
                "version": "" if error else str(info.answer.get("version", "")),
                "health": error or str(stat.answer.get("health", "")),
                "topics": len(topics),
                "depth": sum(topic["depth"] for topic in topics)
                + sum(channel["depth"] for channel in channels),
                "clients": sum(channel.get("client_count", 0) for channel in channels),
            }
        )
    code = check(infos, "info")
    print_rows(options, rows, _HEADS)
    return code


async def _drain(
    options: argparse.Namespace, target: Target, cluster: Cluster, nodes: Sequence[Node]
) -> int:
    confirm(options, target, "drain", f"drain and stop {', '.join(map(str, nodes))}")
    if options.dry_run:
        return report(options, [Change("drain", "", Outcome(str(node))) for node in nodes])
    outcomes = await cluster.ask("POST", nodes, "/drain")
    if all(outcome.status == HTTPStatus.NOT_FOUND for outcome in outcomes):
        raise CliError("this nsqd cannot be drained: it is not ours", ExitCode.MISSING)
    code = report(options, [Change("drain", "", outcome) for outcome in outcomes])
    draining = [
        node for node, outcome in zip(nodes, outcomes, strict=True) if outcome.error is None
    ]
    while options.wait:
        stats = await cluster.find_stats(draining)
        running = [outcome for outcome in stats if outcome.error is None]
        if not running:
            break
        left = sum(
            channel["depth"] + channel["in_flight_count"]
            for topic in read_topics(stats)
            for channel in topic["channels"] or []
        )
        here = f"{plural(len(running), 'node')}, {plural(left, 'message')} left"
        note(here, is_quiet=options.quiet)
        await asyncio.sleep(_POLL_S)
    return code


async def _tombstone(options: argparse.Namespace, cluster: Cluster, nodes: Sequence[Node]) -> int:
    if not cluster.lookupds:
        raise CliError("tombstone needs --lookupd", ExitCode.USAGE)
    changes = []
    for topic in options.names:
        for node in nodes:
            name = f"{topic} on {node}"
            if options.dry_run:
                outcomes = [Outcome(lookupd) for lookupd in cluster.lookupds]
            else:
                query = urlencode({"topic": topic, "node": str(node.http)})
                outcomes = await cluster.ask_lookupds("POST", f"/topic/tombstone?{query}")
            changes += [Change("tombstone", name, each) for each in outcomes]
    return report(options, changes)
