"""`nsq tail`: show messages as they come. A message is finished after it was printed.

`ExpressTail` shows what is plain, `Tail` everything else, and goes on where the express could not.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Final

from nsqd.cli import arguments
from nsqd.cli.messages.express_tail import ExpressTail
from nsqd.cli.output import CliError, ExitCode, note
from nsqd.cli.target import Target, find_target
from nsqd.protocol.names import is_ephemeral, is_valid_channel_name, is_valid_topic_name

EXAMPLES: Final = {
    "tail": """examples:
  nsq tail orders
  nsq tail orders --channel audit -n 10 --json
  nsq tail orders --where 'amount>100' --format '%T %a %s\\n'"""
}
PATTERN: Final = frozenset("*?[")
# Flags that only `Tail` knows.
_SPECIAL: Final = (
    *("until_empty", "dir", "json", "pretty", "time", "print_topic", "hex", "framed", "grep"),
    *("where", "sample", "max_attempts", "dead_letter", "opt", "snappy", "deflate", "verbose"),
)


def make_channel() -> str:
    """Return the name of a channel that dies with its consumer."""
    return f"tail{int.from_bytes(os.urandom(4)) % 1_000_000:06d}#ephemeral"


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Add the arguments of `nsq tail`."""
    parser.add_argument("topics", nargs="+", metavar="TOPIC", help="a name, or a pattern: 'a.*'")
    parser.add_argument("--channel", help="default: an ephemeral one of its own")
    parser.add_argument("-n", "--count", type=arguments.positive, default=0, metavar="N",
                        help="end after N messages")  # fmt: skip
    parser.add_argument("--until-empty", action="store_true", help="end when the channel is empty")
    parser.add_argument("--dir", metavar="DIR", help="a file for each message, TOPIC.ID")
    parser.add_argument("--wait", type=arguments.duration, metavar="TIME", help="end after silence")
    arguments.add_messages(parser)
    arguments.add_consumer(parser)
    arguments.add_common(parser)


def run(options: argparse.Namespace, _name: str) -> int:
    """Run `nsq tail`.

    Raises:
        CliError: it could not be done.
    """
    target = find_target(options)
    channel = options.channel or make_channel()
    for name in options.topics:
        if not is_valid_topic_name(name) and not PATTERN & set(name):
            raise CliError(f"not the name of a topic: {name!r}", ExitCode.USAGE)
    if not is_valid_channel_name(channel):
        raise CliError(f"not the name of a channel: {channel!r}", ExitCode.USAGE)
    if options.channel and not is_ephemeral(channel) and sys.stdout.isatty():
        note(f"nsq: messages that are shown leave channel {channel}", is_quiet=options.quiet)
    express = _make_express(options, target, channel)
    if express is None:
        return _run_tail(options, target, channel)
    code = express.run()
    return _run_tail(options, target, channel, express.shown) if code is None else code


def _make_express(options: argparse.Namespace, target: Target, channel: str) -> ExpressTail | None:
    """Return the express, if it can do what is asked for; None otherwise."""
    is_plain = not any(getattr(options, name) for name in _SPECIAL) and options.format is None
    is_here = len(target.nodes) == 1 and target.nodes[0].tcp and not target.lookupds
    is_open = not target.tls and not target.auth_secret
    is_one = len(options.topics) == 1 and is_valid_topic_name(options.topics[0])
    if not (is_plain and is_here and is_open and is_one) or sys.stdout.isatty():
        return None
    return ExpressTail(
        target.tcp_addresses[0],
        options.topics[0],
        channel,
        end=b"\0" if options.is_null else b"\n",
        count=options.count,
        wait_s=options.wait,
        max_in_flight=options.max_in_flight,
        msg_timeout_s=options.msg_timeout,
        timeout_s=options.timeout,
        is_quiet=options.quiet,
    )


def _run_tail(options: argparse.Namespace, target: Target, channel: str, shown: int = 0) -> int:
    if options.count and shown >= options.count:
        return ExitCode.DONE
    # Imported here: the express is for those who do not want to wait for asyncio.
    from nsqd.cli import loop
    from nsqd.cli.messages.follow import Tail, make_plan

    plan = make_plan(options, target, channel)
    tail = Tail(plan, target, options.timeout, shown)
    return loop.run(tail.run(), is_verbose=options.verbose)
