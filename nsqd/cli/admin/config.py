"""`nsq config`: the options that nsqd runs with, and the two that change at run time."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from functools import cache
from typing import Any, Final
from urllib.parse import quote

from nsqd.cli import arguments, loop
from nsqd.cli.admin.changes import Change, print_rows, refuse_read_only, report, report_failures
from nsqd.cli.admin.changes import add_arguments as add_changing
from nsqd.cli.cluster import Cluster, Outcome, check
from nsqd.cli.output import CliError, ExitCode, did_you_mean, print_json
from nsqd.cli.target import Node, Target, find_target
from nsqd.config.flags import declared_flags
from nsqd.config.kinds import DURATION, format_duration
from nsqd.config.options import Options, config_value

EXAMPLES: Final = {
    "config": """examples:
  nsq config get
  nsq config get max_msg_size log_level --json
  nsq config set log_level debug"""
}
ACTIONS: Final = ("get", "set")
CHANGEABLE: Final = ("log_level", "nsqlookupd_tcp_addresses")
_HEADS: Final = ("node", "option", "value", "default")


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Add the arguments of `nsq config`."""
    parser.add_argument("action", choices=ACTIONS, metavar="ACTION", help="get [OPTION...], or set")
    parser.add_argument(
        "words", nargs="*", metavar="OPTION", help=f"set: OPTION VALUE, of {', '.join(CHANGEABLE)}"
    )
    parser.add_argument("--tsv", action="store_true", help="columns separated by tabs")
    add_changing(parser)
    arguments.add_common(parser)


def run(options: argparse.Namespace, _name: str) -> int:
    """Run `nsq config`.

    Raises:
        CliError: there is no such option, or it cannot be changed.
    """
    target = find_target(options)
    if options.action == "set":
        if len(options.words) != 2:
            raise CliError("nsq config set needs an option and a value", ExitCode.USAGE)
        refuse_read_only(options, target)
        return loop.run(_set(options, target, *options.words), is_busy=False)
    return loop.run(_get(options, target), is_busy=False)


async def _get(options: argparse.Namespace, target: Target) -> int:
    known = {each.toml_key for each in declared_flags(Options).values()} - {None}
    names = options.words or sorted(filter(None, known))
    for name in names:
        if name not in known:
            hint = did_you_mean(name, filter(None, known))
            raise CliError(f"no option {name!r}{hint}", ExitCode.MISSING)
    async with Cluster(target, options.timeout) as cluster:
        nodes = await cluster.find_nodes()
        found = await asyncio.gather(*(_ask(cluster, node, names) for node in nodes))
    outcomes = [outcome for each in found for outcome in each.values()]
    # An option of ours is not an option of Go's nsqd, nor one of another version.
    code = check([each for each in outcomes if each.error != "INVALID_OPTION"], "config")
    if options.words and all(each.error == "INVALID_OPTION" for each in outcomes):
        raise CliError(f"nsqd has no option {' '.join(names)}", ExitCode.MISSING)
    silent = {each.server: each for each in outcomes if not each.status}
    report_failures(list(silent.values()), is_quiet=options.quiet)
    _print(options, nodes, found)
    return code


async def _ask(cluster: Cluster, node: Node, names: Sequence[str]) -> dict[str, Outcome]:
    """Ask a node for one option after the other, over one connection."""
    found: dict[str, Outcome] = {}
    for name in names:
        [found[name]] = await cluster.ask("GET", [node], f"/config/{name}")
        if not found[name].status:
            break  # It does not answer, so it need not be asked again.
    return found


def _print(
    options: argparse.Namespace, nodes: Sequence[Node], found: Sequence[dict[str, Outcome]]
) -> None:
    defaults = Options()
    rows: list[dict[str, Any]] = [
        {
            "node": str(node),
            "option": name,
            "value": outcome.answer,
            "default": config_value(defaults, name),
        }
        for node, outcomes in zip(nodes, found, strict=True)
        for name, outcome in outcomes.items()
        if outcome.error is None
    ]
    if options.json:
        for row in rows:
            print_json({"nsqd": row.pop("node"), **row})
        return
    shown = [
        {
            **row,
            "value": _show(row["option"], row["value"]),
            "default": ""
            if row["value"] == row["default"]
            else _show(row["option"], row["default"]),
        }
        for row in rows
    ]
    print_rows(options, shown, _HEADS if len(nodes) > 1 else _HEADS[1:])


def _show(name: str, value: object) -> str:
    """Return a value for people: durations as the flag spells them, everything else as it is."""
    if isinstance(value, int) and name in _find_durations():
        return format_duration(value / 1e9)
    return value if isinstance(value, str) else json.dumps(value)


@cache
def _find_durations() -> frozenset[str]:
    flags = declared_flags(Options).values()
    return frozenset(each.toml_key for each in flags if each.kind is DURATION and each.toml_key)


async def _set(options: argparse.Namespace, target: Target, name: str, value: str) -> int:
    if name not in CHANGEABLE:
        text = f"{name!r} does not change at run time; {' and '.join(CHANGEABLE)} do"
        raise CliError(text, ExitCode.USAGE)
    body = value
    if name == "nsqlookupd_tcp_addresses" and not value.startswith("["):
        body = json.dumps([each.strip() for each in value.split(",") if each.strip()])
    async with Cluster(target, options.timeout) as cluster:
        nodes = await cluster.find_nodes()
        if options.dry_run:
            outcomes = [Outcome(str(node)) for node in nodes]
        else:
            outcomes = await cluster.ask("PUT", nodes, f"/config/{quote(name)}", body.encode())
    return report(options, [Change("set", f"{name} {value}", each) for each in outcomes])
