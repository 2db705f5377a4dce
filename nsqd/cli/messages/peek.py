"""`nsq peek`: messages that wait in a topic or channel, without touching them. Ours only."""

from __future__ import annotations

import argparse
import base64
import shutil
import sys
import time
from typing import Any, Final, cast
from urllib.parse import urlencode

from diskqueue.tools.plain_text import escape_bytes
from nsqd.cli import arguments, formats, loop
from nsqd.cli.cluster import Cluster, check, lacks_feature
from nsqd.cli.output import CliError, ExitCode, cut, print_json, print_table, show_age
from nsqd.cli.target import find_target
from nsqd.client import Message

EXAMPLES: Final = {
    "peek": """examples:
  nsq peek orders
  nsq peek orders/billing --count 3
  nsq peek orders/billing --where in_flight --json"""
}
_LEAST_CHARACTERS: Final = 20
_OTHER_COLUMNS: Final = 56


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Add the arguments of `nsq peek`."""
    parser.add_argument("place", metavar="TOPIC[/CHANNEL]")
    parser.add_argument("--count", type=arguments.positive, default=10, metavar="N")
    parser.add_argument("--where", metavar="PLACES", help="memory,disk,in_flight,deferred")
    parser.add_argument("--tsv", action="store_true", help="columns separated by tabs")
    arguments.add_formats(parser)
    arguments.add_common(parser)


def run(options: argparse.Namespace, _name: str) -> int:
    """Run `nsq peek`.

    Raises:
        CliError: there is no such topic or channel, or the daemon cannot do it.
    """
    return loop.run(_peek(options), is_busy=False)


async def _peek(options: argparse.Namespace) -> int:
    topic, _, channel = options.place.partition("/")
    query = {"topic": topic, "count": str(options.count), "format": "json"}
    if options.where:
        query["where"] = options.where
    kind = "topic"
    if channel:
        kind, query["channel"] = "channel", channel
    async with Cluster(find_target(options), options.timeout) as cluster:
        nodes = await cluster.find_nodes(topic)
        outcomes = await cluster.ask("GET", nodes, f"/{kind}/peek?{urlencode(query)}")
    if lacks_feature(outcomes):
        raise CliError("this nsqd cannot peek: it is not ours", ExitCode.MISSING)
    code = check(outcomes, options.place)
    rows = [
        (outcome.server, message)
        for outcome in outcomes
        if outcome.error is None
        for message in outcome.answer.get("messages") or []
    ]
    if options.json:
        for server, message in rows:
            print_json({"nsqd": server, **message})
    elif formats.has_format(options):
        show = formats.make_format(options)
        for server, message in rows:
            # It has the fields of the client's Message that formats show, and cannot be answered.
            peeked = Peeked(topic, channel, server, message)
            sys.stdout.buffer.write(show(cast(Message, peeked)))
        sys.stdout.buffer.flush()
    else:
        _print(rows, is_tsv=options.tsv, colour=options.color)
    return code


class Peeked:
    """A message that was looked at, for the formats of `nsq tail`."""

    def __init__(self, topic: str, channel: str, nsqd: str, message: dict[str, Any]) -> None:
        """Args: message: as nsqd shows it."""
        self.topic = topic
        self.channel = channel
        self.nsqd = nsqd
        self.id = str(message.get("id", "")).encode()
        self.timestamp_ns = int(message.get("timestamp", 0))
        self.attempts = int(message.get("attempts", 0))
        self.body = _body(message)


def _print(rows: list[tuple[str, dict[str, Any]]], *, is_tsv: bool, colour: str) -> None:
    now_ns = time.time_ns()
    # On a terminal a body takes the width that the other columns leave; elsewhere it is whole.
    room = sys.maxsize
    if sys.stdout.isatty() and not is_tsv:
        width = shutil.get_terminal_size().columns
        room = max(_LEAST_CHARACTERS, width - _OTHER_COLUMNS)
    table = [
        (
            str(message.get("where", "")),
            str(message.get("id", "")),
            show_age(max(0, now_ns - int(message.get("timestamp", now_ns))) / 1e9),
            int(message.get("attempts", 0)),
            len(_body(message)),
            cut(escape_bytes(_body(message)), room),
        )
        for _, message in rows
    ]
    heads = ("where", "id", "age", "attempts", "size", "body")
    print_table(heads, table, is_tsv=is_tsv, colour=colour)


def _body(message: dict[str, Any]) -> bytes:
    if "body_base64" in message:
        return base64.b64decode(message["body_base64"])
    return str(message.get("body", "")).encode("utf-8", "surrogatepass")
