"""`nsq topic`, `nsq channel`: list and change, on every node that has it.

A change goes the way nsqadmin's do: to every nsqlookupd, then to the nodes. Deleting and emptying
ask on a terminal, and need -y without one.
"""

from __future__ import annotations

import argparse
import fnmatch
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

from nsqd.cli import arguments, loop
from nsqd.cli.admin.changes import (
    Change,
    confirm,
    print_rows,
    refuse_read_only,
    report,
    report_failures,
)
from nsqd.cli.admin.changes import add_arguments as add_changing
from nsqd.cli.cluster import Cluster, Outcome, check
from nsqd.cli.figures import sum_channels, sum_topics
from nsqd.cli.output import CliError, ExitCode, did_you_mean
from nsqd.cli.target import Node, Target, find_target

EXAMPLES: Final = {
    "topic": """examples:
  nsq topic ls
  nsq topic create orders
  nsq topic empty 'test.*' -y""",
    "channel": """examples:
  nsq channel ls orders
  nsq channel create orders/billing
  nsq channel pause orders/billing""",
}
ACTIONS: Final = ("ls", "create", "delete", "pause", "unpause", "empty")
_HEADS: Final = {
    "topic": ("topic", "depth", "messages", "channels", "clients", "paused"),
    "channel": (
        *("topic", "channel", "depth", "in_flight", "deferred", "messages", "clients", "paused"),
    ),
}


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the arguments of the command."""
    parser.add_argument("action", choices=ACTIONS, metavar="ACTION", help=", ".join(ACTIONS))
    what = {"topic": "TOPIC", "channel": "TOPIC[/CHANNEL]"}[name]
    parser.add_argument("names", nargs="*", metavar=what, help="names, or patterns in quotes")
    parser.add_argument(
        "--all-nodes", action="store_true", help="also nodes that do not have the topic yet"
    )
    parser.add_argument("--tsv", action="store_true", help="columns separated by tabs")
    add_changing(parser)
    arguments.add_common(parser)


def run(options: argparse.Namespace, name: str) -> int:
    """Run the command.

    Raises:
        CliError: it could not be done anywhere.
    """
    target = find_target(options)
    if options.action != "ls":
        refuse_read_only(options, target)
        if not options.names:
            raise CliError(f"nsq {name} {options.action} needs a name", ExitCode.USAGE)
    return loop.run(_run(options, name, target), is_busy=False)


async def _run(options: argparse.Namespace, name: str, target: Target) -> int:
    async with Cluster(target, options.timeout) as cluster:
        nodes = await cluster.find_nodes()
        if not nodes and options.action == "ls":
            raise CliError("no nsqlookupd knows an nsqd", ExitCode.MISSING)
        stats = await cluster.find_stats(nodes)
        sums = sum_topics(stats) if name == "topic" else sum_channels(stats)
        if options.action == "ls":
            return _list(options, name, stats, sums)
        names = _resolve(options, name, list(sums))
        depth = sum(int(sums[each]["depth"]) for each in names if each in sums)
        what = f"{options.action} {', '.join(names)} with {depth:,} messages"
        confirm(options, target, options.action, what)
        places = list(zip(nodes, stats, strict=True))
        changes: list[Change] = []
        for each in names:
            topic = each.partition("/")[0]
            chosen = _choose_nodes(options, target, places, topic)
            changes += await _change(options, name, each, cluster, chosen)
        return _report(options, name, _forgive_missing(changes), list(sums))


def _list(
    options: argparse.Namespace,
    name: str,
    stats: Sequence[Outcome],
    sums: dict[str, dict[str, Any]],
) -> int:
    code = check(stats, "stats")
    report_failures(stats, is_quiet=options.quiet)
    patterns = options.names or ["*"]
    rows = [row for key, row in sorted(sums.items()) if _fits(key, row["topic"], patterns)]
    if options.names and not rows:
        given = " ".join(options.names)
        hint = did_you_mean(options.names[0], sums)
        raise CliError(f"no such {name}: {given}{hint}", ExitCode.MISSING)
    print_rows(options, rows, _HEADS[name])
    return code


def _fits(key: str, topic: str, patterns: Sequence[str]) -> bool:
    return any(
        fnmatch.fnmatchcase(key, each) or fnmatch.fnmatchcase(topic, each) for each in patterns
    )


def _resolve(options: argparse.Namespace, name: str, known: list[str]) -> list[str]:
    """Return the names, patterns resolved."""
    found: dict[str, None] = {}
    for given in options.names:
        if name == "channel" and "/" not in given:
            raise CliError(f"not TOPIC/CHANNEL: {given!r}", ExitCode.USAGE)
        if not set("*?[") & set(given):
            found[given] = None
            continue
        matching = fnmatch.filter(known, given)
        if not matching:
            raise CliError(f"no such {name}: {given}", ExitCode.MISSING)
        found.update(dict.fromkeys(sorted(matching)))
    return list(found)


def _choose_nodes(
    options: argparse.Namespace,
    target: Target,
    places: Sequence[tuple[Node, Outcome]],
    topic: str,
) -> list[Node]:
    """Return the nodes that were named, those that have the topic, those that could not say."""

    def has_topic(outcome: Outcome) -> bool:
        if outcome.error is not None:
            return str(options.action) != "create"
        found = outcome.answer.get("topics") or []
        return any(entry["topic_name"] == topic for entry in found)

    return [
        node
        for node, outcome in places
        if options.all_nodes or node in target.nodes or has_topic(outcome)
    ]


async def _change(
    options: argparse.Namespace, name: str, given: str, cluster: Cluster, nodes: Sequence[Node]
) -> list[Change]:
    has_lookupds = options.action in ("create", "delete")
    if options.dry_run:
        servers = [*(cluster.lookupds if has_lookupds else ()), *map(str, nodes)]
        return [Change(options.action, given, Outcome(server)) for server in servers]
    path = f"/{name}/{options.action}?{urlencode(_query(name, given))}"
    outcomes: list[Outcome] = []
    # nsqlookupd first, so that no consumer is sent to a topic that is being deleted.
    if has_lookupds:
        outcomes += await cluster.ask_lookupds("POST", path)
    outcomes += await cluster.ask("POST", nodes, path)
    return [Change(options.action, given, outcome) for outcome in outcomes]


def _query(name: str, given: str) -> dict[str, str]:
    if name == "topic":
        return {"topic": given}
    topic, _, channel = given.partition("/")
    return {"topic": topic, "channel": channel}


def _forgive_missing(changes: list[Change]) -> list[Change]:
    """Leave out servers that do not have the topic or channel, if another one has it."""
    done = {change.name for change in changes if change.outcome.error is None}
    return [
        change
        for change in changes
        if change.outcome.error is None
        or change.outcome.status != HTTPStatus.NOT_FOUND
        or change.name not in done
    ]


def _report(
    options: argparse.Namespace, name: str, changes: Sequence[Change], known: list[str]
) -> int:
    if not changes:
        given = " ".join(options.names)
        hint = did_you_mean(options.names[0], known)
        raise CliError(f"no such {name}: {given}{hint}", ExitCode.MISSING)
    try:
        return report(options, changes)
    except CliError as error:
        if error.code != ExitCode.MISSING:
            raise
        hint = did_you_mean(changes[0].name, known)
        raise CliError(f"{error}{hint}", ExitCode.MISSING) from error
