"""`nsq client`: who is connected to nsqd, and how each of them is doing."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from nsqd.cli import arguments, loop
from nsqd.cli.admin.changes import print_rows, report_failures
from nsqd.cli.cluster import Cluster, Outcome, check
from nsqd.cli.output import CliError, ExitCode, show_age
from nsqd.cli.target import find_target

EXAMPLES: Final = {
    "client": """examples:
  nsq client ls
  nsq client ls --topic orders --channel billing
  nsq client ls --json"""
}
_HEADS: Final = (
    *("kind", "topic", "channel", "hostname", "address", "user_agent", "ready", "in_flight"),
    *("messages", "finished", "requeued", "connected"),
)

_WIDE: Final = 140
_NARROW_HEADS: Final = (
    "topic",
    "channel",
    "address",
    "ready",
    "in_flight",
    "messages",
    "connected",
)


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Add the arguments of `nsq client`."""
    parser.add_argument("action", choices=("ls",), metavar="ACTION", help="ls")
    parser.add_argument("--topic", default="", help="of this topic only")
    parser.add_argument("--channel", default="", help="of this channel only")
    parser.add_argument("--tsv", action="store_true", help="columns separated by tabs")
    arguments.add_common(parser)


def run(options: argparse.Namespace, _name: str) -> int:
    """Run `nsq client`.

    Raises:
        CliError: no node answers, or there is no such topic.
    """
    return loop.run(_list(options), is_busy=False)


async def _list(options: argparse.Namespace) -> int:
    async with Cluster(find_target(options), options.timeout) as cluster:
        nodes = await cluster.find_nodes(options.topic or None)
        stats = await cluster.find_stats(nodes, options.topic, options.channel, has_clients=True)
    code = check(stats, "stats")
    report_failures(stats, is_quiet=options.quiet)
    answers = [each.answer for each in stats if each.error is None]
    if options.topic and not any(answer.get("topics") for answer in answers):
        raise CliError(f"no such topic: {options.topic}", ExitCode.MISSING)
    rows = [row for outcome in stats if outcome.error is None for row in _rows(outcome)]
    if options.channel:
        rows = [row for row in rows if row["channel"] == options.channel]
    if not options.json:
        now_s = time.time()
        for row in rows:
            row["connected"] = show_age(max(0.0, now_s - row["connected"]))
    heads: Sequence[str] = _HEADS if len(nodes) < 2 else ("nsqd", *_HEADS)
    if sys.stdout.isatty() and shutil.get_terminal_size().columns < _WIDE:
        heads = _NARROW_HEADS
    print_rows(options, rows, _drop_empty(heads, rows))
    return code


def _drop_empty(heads: Sequence[str], rows: Sequence[dict[str, Any]]) -> Sequence[str]:
    """Leave out a column of text in which nothing stands: no topic of a lone producer, say."""
    return [head for head in heads if not rows or any(row[head] != "" for row in rows)]


def _rows(outcome: Outcome) -> Iterator[dict[str, Any]]:
    for topic in outcome.answer.get("topics") or []:
        for channel in topic.get("channels") or []:
            for client in channel.get("clients") or []:
                place = (str(topic["topic_name"]), str(channel["channel_name"]))
                yield _row(outcome.server, "consumer", place, client)
    for client in outcome.answer.get("producers") or []:
        row = _row(outcome.server, "producer", ("", ""), client)
        counts = client.get("pub_counts") or []
        row["messages"] = sum(int(each.get("count", 0)) for each in counts)
        row["topic"] = ",".join(str(each.get("topic", "")) for each in counts)
        yield row


def _row(server: str, kind: str, place: tuple[str, str], client: dict[str, Any]) -> dict[str, Any]:
    compression = "snappy" if client.get("snappy") else "deflate" if client.get("deflate") else ""
    return {
        "nsqd": server,
        "kind": kind,
        "topic": place[0],
        "channel": place[1],
        "client_id": str(client.get("client_id", "")),
        "hostname": str(client.get("hostname", "")),
        "address": str(client.get("remote_address", "")),
        "user_agent": str(client.get("user_agent", "")),
        "ready": int(client.get("ready_count", 0)),
        "in_flight": int(client.get("in_flight_count", 0)),
        "messages": int(client.get("message_count", 0)),
        "finished": int(client.get("finish_count", 0)),
        "requeued": int(client.get("requeue_count", 0)),
        "connected": int(client.get("connect_ts", 0)),
        "tls": bool(client.get("tls")),
        "compression": compression,
    }
