"""`nsq limits`: what a topic may hold, for how long, how often it is tried; on every node.

Ours only. nsqd takes all limits of a topic at once, so those that no flag names are read first and
sent again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlencode

from nsqd.cli import arguments, loop
from nsqd.cli.admin.changes import add_arguments as add_changing
from nsqd.cli.admin.changes import print_rows, refuse_read_only, report_failures
from nsqd.cli.cluster import Cluster, Outcome, check, lacks_feature
from nsqd.cli.output import CliError, ExitCode, print_json
from nsqd.cli.target import Node, find_target
from nsqd.config.limits import LIMITS

EXAMPLES: Final = {
    "limits": """examples:
  nsq limits orders
  nsq limits orders --max-depth 1000000 --max-depth-policy drop-oldest
  nsq limits orders --max-depth default --json"""
}
_DEFAULT: Final = "default"
_HEADS: Final = ("limit", "value", "source")


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Add the arguments of `nsq limits`."""
    parser.add_argument("topic", metavar="TOPIC")
    group = parser.add_argument_group("limits", f"'{_DEFAULT}' goes back to the flag of nsqd")
    for limit in LIMITS:
        group.add_argument(f"--{limit.flag.name}", dest=limit.name, metavar="VALUE")
    parser.add_argument("--tsv", action="store_true", help="columns separated by tabs")
    add_changing(parser)
    arguments.add_common(parser)


def run(options: argparse.Namespace, _name: str) -> int:
    """Run `nsq limits`.

    Raises:
        CliError: a value is wrong, there is no such topic, or the daemon cannot do it.
    """
    return loop.run(_run(options), is_busy=False)


async def _run(options: argparse.Namespace) -> int:
    wanted = {
        limit.name: value for limit in LIMITS if (value := getattr(options, limit.name)) is not None
    }
    target = find_target(options)
    if wanted:
        refuse_read_only(options, target)
        _check_values(wanted)
    path = f"/topic/limits?{urlencode({'topic': options.topic})}"
    async with Cluster(target, options.timeout) as cluster:
        nodes = await cluster.find_nodes(options.topic)
        outcomes = await cluster.ask("GET", nodes, path)
        if lacks_feature(outcomes):
            raise CliError("this nsqd has no limits: it is not ours", ExitCode.MISSING)
        if wanted and not options.dry_run:
            outcomes = await _set(cluster, nodes, outcomes, path, wanted)
    code = check(outcomes, options.topic)
    report_failures(outcomes, is_quiet=options.quiet)
    answers = [(each.server, each.answer) for each in outcomes if each.error is None]
    if options.dry_run and wanted:
        answers = [(server, _foresee(answer, wanted)) for server, answer in answers]
    _print(options, answers)
    return code


def _check_values(wanted: dict[str, str]) -> None:
    """Read the values as nsqd will, so that no node is changed if one of them is wrong."""
    for limit in LIMITS:
        text = wanted.get(limit.name)
        if text is None or text == _DEFAULT:
            continue
        try:
            limit.flag.check(limit.kind.parse(text))
        except ValueError as error:
            raise CliError(f"--{limit.flag.name} {text!r}: {error}", ExitCode.USAGE) from error


async def _set(
    cluster: Cluster,
    nodes: Sequence[Node],
    before: Sequence[Outcome],
    path: str,
    wanted: dict[str, str],
) -> list[Outcome]:
    outcomes = []
    for node, outcome in zip(nodes, before, strict=True):
        if outcome.error is None:
            body = json.dumps(_merge(outcome.answer, wanted)).encode()
            [outcome] = await cluster.ask("POST", [node], path, body)
        outcomes.append(outcome)
    return outcomes


def _merge(answer: Any, wanted: dict[str, str]) -> dict[str, Any]:
    """Return the limits that the topic shall have of its own."""
    own = {
        name: limit["value"]
        for name, limit in answer["limits"].items()
        if limit["source"] == "topic"
    }
    return {name: value for name, value in {**own, **wanted}.items() if value != _DEFAULT}


def _foresee(answer: Any, wanted: dict[str, str]) -> Any:
    """Return the limits as nsqd would answer them after the change."""
    limits = dict(answer["limits"])
    for name, value in wanted.items():
        is_default = value == _DEFAULT
        known = limits.get(name, {})
        limits[name] = {
            "value": known.get("value") if is_default else value,
            "source": "flag" if is_default else "topic",
        }
    return {**answer, "limits": limits}


def _print(options: argparse.Namespace, answers: Sequence[tuple[str, Any]]) -> None:
    if options.json:
        for server, answer in answers:
            print_json({"nsqd": server, **answer})
        return
    rows: list[dict[str, Any]] = []
    for server, answer in answers:
        rows += [
            {"node": server, "limit": name, "value": str(limit["value"]), "source": limit["source"]}
            for name, limit in answer["limits"].items()
        ]
    are_equal = all(answer["limits"] == answers[0][1]["limits"] for _, answer in answers)
    if are_equal:
        rows = [row for row in rows if row["node"] == answers[0][0]]
    print_rows(options, rows, _HEADS if are_equal else ("node", *_HEADS))
