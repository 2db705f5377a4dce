"""`nsq_tail`: Go's tool, by the code of `nsq tail`.

It differs in one thing: what was printed is finished before it leaves, so it does not come again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nsqd.cli import loop
from nsqd.cli.go.options import (
    VERSION,
    UsageError,
    check_addresses,
    check_max_in_flight,
    log_give_up,
    parse,
    read_go_nsq,
    run_tool,
)
from nsqd.cli.messages.follow import Plan, Tail
from nsqd.cli.messages.tail import make_channel
from nsqd.cli.output import CliError
from nsqd.cli.target import Node, Target
from nsqd.client import Message
from nsqd.client.address import Address
from nsqd.config.flags import flag
from nsqd.config.kinds import BOOL, INT, TEXT, TEXTS
from nsqd.protocol.names import is_valid_channel_name, is_valid_topic_name

PROGRAM = "nsq_tail"
_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The flags of nsq_tail."""

    channel: str = flag("channel", "", TEXT, "NSQ channel")
    consumer_opt: tuple[str, ...] = flag(
        "consumer-opt", (), TEXTS, "option of go-nsq's Config, key,value (repeatable)"
    )
    lookupd_http_address: tuple[str, ...] = flag(
        "lookupd-http-address", (), TEXTS, "nsqlookupd HTTP address (repeatable)"
    )
    max_in_flight: int = flag(
        "max-in-flight", 200, INT, "max number of messages to allow in flight"
    )
    n: int = flag("n", 0, INT, "total messages to show (will wait if starved)")
    nsqd_tcp_address: tuple[str, ...] = flag(
        "nsqd-tcp-address", (), TEXTS, "nsqd TCP address (repeatable)"
    )
    print_topic: bool = flag("print-topic", False, BOOL, "print topic name before each message")
    topic: tuple[str, ...] = flag("topic", (), TEXTS, "NSQ topic (repeatable)")
    version: bool = flag("version", False, BOOL, "print version string")


def main(argv: Sequence[str] | None = None) -> int:
    """Run nsq_tail and return its exit code."""
    return run_tool(lambda: _run(parse(Options, argv, PROGRAM)))


def _run(options: Options) -> int:
    if options.version:
        print(f"{PROGRAM} {VERSION}")
        return 0
    config = read_go_nsq(options.consumer_opt, "consumer-opt")
    check_max_in_flight(options.max_in_flight)
    check_addresses(options.nsqd_tcp_address, options.lookupd_http_address, "nsqd-tcp-address")
    if not options.topic:
        raise UsageError("--topic required")
    channel = options.channel or make_channel()
    if not all(map(is_valid_topic_name, options.topic)) or not is_valid_channel_name(channel):
        raise UsageError("invalid topic or channel name")
    try:
        nodes = tuple(Node(Address.parse(each), None) for each in options.nsqd_tcp_address)
    except ValueError as error:
        raise UsageError(str(error)) from error
    plan = Plan(
        options.topic,
        channel,
        _show_with_topic if options.print_topic else _show,
        count=max(options.n, 0),
        is_count_per_topic=True,
        max_in_flight=options.max_in_flight,
        is_quiet=True,
        consumer_options={
            "user_agent": f"{PROGRAM}/{VERSION[1:]}",
            "must_connect": True,
            **config.consumer_options(on_give_up=log_give_up),
        },
    )
    target = Target(nodes, options.lookupd_http_address)
    try:
        return loop.run(Tail(plan, target, _TIMEOUT_S).run(), is_verbose=True)
    except CliError as error:
        raise UsageError(str(error)) from error
    except BrokenPipeError:
        return 0


def _show(message: Message) -> bytes:
    return message.body + b"\n"


def _show_with_topic(message: Message) -> bytes:
    return b"%b | %b\n" % (message.topic.encode(), message.body)
