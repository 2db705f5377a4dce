"""`nsq topic`, `nsq channel`, `nsq node`: list and change, on every node.

A change goes to every nsqlookupd, then to every nsqd. Deleting and emptying ask on a terminal, and
need -y without one.
"""

from __future__ import annotations

import argparse
import asyncio
import fnmatch
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

from nsqd.cli import arguments, loop
from nsqd.cli.cluster import Cluster, Outcome, check
from nsqd.cli.output import CliError, ExitCode, note, print_json, print_table
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
    "node": """examples:
  nsq node ls
  nsq node ping
  nsq node drain -a 10.0.0.1 -y --wait""",
}
_CHANGES: Final = ("create", "delete", "pause", "unpause", "empty")
_DESTRUCTIVE: Final = ("delete", "empty", "drain")
_POLL_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Change:
    """One request to several servers, as a line or object of output."""

    action: str
    name: str
    outcome: Outcome


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the arguments of the command."""
    actions = ("ls", "ping", "drain", "tombstone") if name == "node" else ("ls", *_CHANGES)
    parser.add_argument("action", choices=actions, metavar="ACTION", help=", ".join(actions))
    what = {"topic": "TOPIC", "channel": "TOPIC[/CHANNEL]", "node": "TOPIC"}[name]
    parser.add_argument("names", nargs="*", metavar=what, help="names, or patterns in quotes")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    parser.add_argument("--write", action="store_true", help="change in a read-only context")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done")
    parser.add_argument("--tsv", action="store_true", help="columns separated by tabs")
    if name == "node":
        parser.add_argument("--wait", action="store_true", help="drain: until nsqd has stopped")
    arguments.add_common(parser)


def run(options: argparse.Namespace, name: str) -> int:
    """Run the command.

    Raises:
        CliError: it could not be done anywhere.
    """
    target = find_target(options)
    if options.action != "ls" and options.action != "ping":
        if target.is_read_only and not options.write:
            text = f"context {target.context} is read-only: --write changes it nevertheless"
            raise CliError(text, ExitCode.FORBIDDEN)
        needs_name = name != "node" or options.action == "tombstone"
        if needs_name and not options.names:
            raise CliError(f"nsq {name} {options.action} needs a name", ExitCode.USAGE)
    return loop.run(_run(options, name, target), is_busy=False)


async def _run(options: argparse.Namespace, name: str, target: Target) -> int:
    async with Cluster(target, options.timeout) as cluster:
        nodes = await cluster.find_nodes()
        if not nodes:
            raise CliError("no nsqlookupd knows an nsqd", ExitCode.MISSING)
        if name == "node":
            return await _run_node(options, target, cluster, nodes)
        stats = await cluster.find_stats(nodes)
        if options.action == "ls":
            return _list(options, name, stats)
        return await _change(options, name, target, cluster, nodes, stats)


# Listing.


def _list(options: argparse.Namespace, name: str, stats: Sequence[Outcome]) -> int:
    code = check(stats, "stats")
    _report_failures(stats, is_quiet=options.quiet)
    sums = _sum_topics(stats) if name == "topic" else _sum_channels(stats)
    patterns = options.names or ["*"]
    rows = [row for key, row in sorted(sums.items()) if _fits(key, row["topic"], patterns)]
    if options.names and not rows:
        raise CliError(f"no such {name}: {' '.join(options.names)}", ExitCode.MISSING)
    if options.json:
        for row in rows:
            print_json(row)
        return code
    heads = list(rows[0]) if rows else ["topic", "depth"]
    print_table(
        heads, [list(row.values()) for row in rows], is_tsv=options.tsv, colour=options.color
    )
    return code


def _fits(key: str, topic: str, patterns: Sequence[str]) -> bool:
    return any(
        fnmatch.fnmatchcase(key, each) or fnmatch.fnmatchcase(topic, each) for each in patterns
    )


def _entries(stats: Sequence[Outcome]) -> list[dict[str, Any]]:
    return [
        topic
        for outcome in stats
        if outcome.error is None
        for topic in outcome.answer.get("topics") or []
    ]


def _sum_topics(stats: Sequence[Outcome]) -> dict[str, dict[str, Any]]:
    sums: dict[str, dict[str, Any]] = {}
    for entry in _entries(stats):
        name = str(entry["topic_name"])
        counts = dict.fromkeys(("depth", "messages", "channels", "clients"), 0)
        row = sums.setdefault(name, {"topic": name, **counts, "paused": False})
        channels = entry.get("channels") or []
        row["depth"] += entry["depth"] + sum(channel["depth"] for channel in channels)
        row["messages"] += entry["message_count"]
        row["channels"] = max(row["channels"], len(channels))
        row["clients"] += sum(channel.get("client_count", 0) for channel in channels)
        row["paused"] = row["paused"] or bool(entry["paused"])
    return sums


def _sum_channels(stats: Sequence[Outcome]) -> dict[str, dict[str, Any]]:
    sums: dict[str, dict[str, Any]] = {}
    names = ("depth", "in_flight", "deferred", "messages", "clients")
    for entry in _entries(stats):
        for channel in entry.get("channels") or []:
            topic, name = str(entry["topic_name"]), str(channel["channel_name"])
            counts = dict.fromkeys(names, 0)
            first = {"topic": topic, "channel": name, **counts, "paused": False}
            row = sums.setdefault(f"{topic}/{name}", first)
            row["depth"] += channel["depth"]
            row["in_flight"] += channel["in_flight_count"]
            row["deferred"] += channel["deferred_count"]
            row["messages"] += channel["message_count"]
            row["clients"] += channel.get("client_count", 0)
            row["paused"] = row["paused"] or bool(channel["paused"])
    return sums


# Changing.


async def _change(
    options: argparse.Namespace,
    name: str,
    target: Target,
    cluster: Cluster,
    nodes: Sequence[Node],
    stats: Sequence[Outcome],
) -> int:
    sums = _sum_topics(stats) if name == "topic" else _sum_channels(stats)
    names = _resolve(options, name, list(sums))
    depth = sum(int(sums[each]["depth"]) for each in names if each in sums)
    _confirm(options, target, f"{options.action} {', '.join(names)} with {depth:,} messages")
    changes: list[Change] = []
    for each in names:
        if options.dry_run:
            changes += [Change(options.action, each, Outcome(str(node))) for node in nodes]
            continue
        path = f"/{name}/{options.action}?{urlencode(_query(name, each))}"
        # nsqlookupd first, so that no consumer is sent to what is going away.
        if options.action in ("create", "delete"):
            outcomes = await cluster.ask_lookupds("POST", path)
            changes += [Change(options.action, each, outcome) for outcome in outcomes]
        outcomes = await cluster.ask("POST", nodes, path)
        changes += [Change(options.action, each, outcome) for outcome in outcomes]
    return _report(options, _forgive_missing(changes))


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


def _confirm(options: argparse.Namespace, target: Target, what: str) -> None:
    if options.action not in _DESTRUCTIVE or options.yes or options.dry_run:
        return
    if not sys.stdin.isatty():
        raise CliError(f"{options.action} needs -y where nobody can be asked", ExitCode.USAGE)
    where = f" in context {target.context}" if target.context else ""
    sys.stderr.write(f"{what}{where}? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CliError("nothing was changed")


def _report(options: argparse.Namespace, changes: Sequence[Change]) -> int:
    for change in changes:
        outcome = change.outcome
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
            mark = "would be done" if options.dry_run else "done"
            print(f"{outcome.server}: {change.action} {change.name}: {mark}")
        else:
            note(f"{outcome.server}: {change.action} {change.name}: {outcome.error}")
    return check([change.outcome for change in changes], changes[0].action if changes else "")


def _report_failures(outcomes: Sequence[Outcome], *, is_quiet: bool) -> None:
    for outcome in outcomes:
        if outcome.error is not None:
            note(f"nsq: {outcome.server}: {outcome.error}", is_quiet=is_quiet)


# Nodes.


async def _run_node(
    options: argparse.Namespace, target: Target, cluster: Cluster, nodes: list[Node]
) -> int:
    if options.action == "ls":
        return await _list_nodes(options, cluster, nodes)
    if options.action == "ping":
        outcomes = await cluster.ask("GET", nodes, "/ping")
        return _report(options, [Change("ping", "", outcome) for outcome in outcomes])
    if options.action == "tombstone":
        return await _tombstone(options, cluster, nodes)
    _confirm(options, target, f"drain and stop {', '.join(map(str, nodes))}")
    if options.dry_run:
        return _report(options, [Change("drain", "", Outcome(str(node))) for node in nodes])
    outcomes = await cluster.ask("POST", nodes, "/drain")
    if all(outcome.status == HTTPStatus.NOT_FOUND for outcome in outcomes):
        raise CliError("this nsqd cannot be drained: it is not ours", ExitCode.MISSING)
    code = _report(options, [Change("drain", "", outcome) for outcome in outcomes])
    while options.wait:
        stats = await cluster.find_stats(nodes)
        running = [outcome for outcome in stats if outcome.error is None]
        if not running:
            break
        left = sum(
            channel["depth"] + channel["in_flight_count"]
            for topic in _entries(stats)
            for channel in topic["channels"] or []
        )
        note(f"{len(running)} nodes, {left:,} messages left", is_quiet=options.quiet)
        await asyncio.sleep(_POLL_S)
    return code


async def _tombstone(options: argparse.Namespace, cluster: Cluster, nodes: Sequence[Node]) -> int:
    if not cluster.lookupds:
        raise CliError("tombstone needs --lookupd", ExitCode.USAGE)
    changes = []
    for topic in options.names:
        for node in nodes:
            query = urlencode({"topic": topic, "node": str(node.http)})
            outcomes = await cluster.ask_lookupds("POST", f"/topic/tombstone?{query}")
            changes += [Change("tombstone", f"{topic} on {node}", each) for each in outcomes]
    return _report(options, changes)


async def _list_nodes(options: argparse.Namespace, cluster: Cluster, nodes: Sequence[Node]) -> int:
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
    if options.json:
        for row in rows:
            print_json(row)
    else:
        print_table(
            list(rows[0]),
            [list(row.values()) for row in rows],
            is_tsv=options.tsv,
            colour=options.color,
        )
    return code
