"""`nsq_to_nsq`: Go's tool, by the code of `nsq to-nsq`.

It differs where Go's loses something: nothing is given up after five attempts, numbers keep their
digits, and a batch that one destination refuses goes to the next before it comes again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

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
from nsqd.cli.output import CliError
from nsqd.cli.sinks.hostpool import MODES, Mode
from nsqd.cli.sinks.intake import IntakePlan, Topics
from nsqd.cli.sinks.json_filter import JsonFilter
from nsqd.cli.sinks.to_nsq import ForwardPlan, forward
from nsqd.cli.target import Node, Target
from nsqd.client.address import Address
from nsqd.client.settings import ConnectionOptions
from nsqd.config.flags import flag
from nsqd.config.kinds import BOOL, INT, TEXT, TEXTS
from nsqd.protocol.names import is_valid_channel_name, is_valid_topic_name

PROGRAM = "nsq_to_nsq"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The flags of nsq_to_nsq."""

    channel: str = flag("channel", "nsq_to_nsq", TEXT, "nsq channel")
    consumer_opt: tuple[str, ...] = flag(
        "consumer-opt", (), TEXTS, "option of go-nsq's Config, key,value (repeatable)"
    )
    destination_nsqd_tcp_address: tuple[str, ...] = flag(
        "destination-nsqd-tcp-address", (), TEXTS, "destination nsqd TCP address (repeatable)"
    )
    destination_topic: str = flag(
        "destination-topic", "", TEXT, "destination for all topics (default is consumed topic name)"
    )
    lookupd_http_address: tuple[str, ...] = flag(
        "lookupd-http-address", (), TEXTS, "nsqlookupd HTTP address (repeatable)"
    )
    max_in_flight: int = flag(
        "max-in-flight", 200, INT, "max number of messages to allow in flight"
    )
    mode: str = flag("mode", "hostpool", TEXT, "hostpool, round-robin or epsilon-greedy")
    nsqd_tcp_address: tuple[str, ...] = flag(
        "nsqd-tcp-address", (), TEXTS, "nsqd TCP address (repeatable)"
    )
    producer_opt: tuple[str, ...] = flag(
        "producer-opt", (), TEXTS, "option of go-nsq's Config, key,value (repeatable)"
    )
    require_json_field: str = flag(
        "require-json-field", "", TEXT, "only pass JSON messages that contain this field"
    )
    require_json_value: str = flag(
        "require-json-value", "", TEXT, "only pass messages whose required field has this value"
    )
    status_every: int = flag(
        "status-every", 250, INT, "the # of requests between logging status, 0 disables"
    )
    topic: tuple[str, ...] = flag("topic", (), TEXTS, "nsq topic (repeatable)")
    version: bool = flag("version", False, BOOL, "print version string")
    whitelist_json_field: tuple[str, ...] = flag(
        "whitelist-json-field", (), TEXTS, "for JSON messages: pass this field (repeatable)"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run nsq_to_nsq and return its exit code."""
    return run_tool(lambda: _run(parse(Options, argv, PROGRAM)))


def _run(options: Options) -> int:
    if options.version:
        print(f"{PROGRAM} {VERSION}")
        return 0
    consumer = read_go_nsq(options.consumer_opt, "consumer-opt")
    producer = read_go_nsq(options.producer_opt, "producer-opt")
    _check(options)
    agent = f"{PROGRAM}/{VERSION[1:]}"
    try:
        plan = ForwardPlan(
            options.destination_nsqd_tcp_address,
            topic=options.destination_topic,
            # An unknown mode is round-robin, as in Go.
            mode=cast(Mode, options.mode) if options.mode in MODES else "round-robin",
            json_filter=JsonFilter(
                options.require_json_field,
                options.require_json_value,
                options.whitelist_json_field,
            ),
            on_bad="as-go",
            status_every=options.status_every,
            producer_options=cast(
                ConnectionOptions, {"user_agent": agent, **producer.connection_options()}
            ),
        )
        nodes = tuple(Node(Address.parse(each), None) for each in options.nsqd_tcp_address)
        for each in options.destination_nsqd_tcp_address:
            Address.parse(each)
        consuming = IntakePlan(
            Topics(options.topic),
            options.channel,
            options.max_in_flight,
            {
                "user_agent": agent,
                "must_connect": True,
                **consumer.consumer_options(on_give_up=log_give_up),
            },
        )
        target = Target(nodes, options.lookupd_http_address)
        loop.run(forward(plan, consuming, target), is_verbose=True)
    except (CliError, ValueError) as error:
        raise UsageError(str(error)) from error
    return 0


def _check(options: Options) -> None:
    """Refuse the combinations of flags that Go refuses."""
    if not options.topic or not options.channel:
        raise UsageError("--topic and --channel are required")
    if not all(map(is_valid_topic_name, options.topic)):
        raise UsageError("--topic is invalid")
    if options.destination_topic and not is_valid_topic_name(options.destination_topic):
        raise UsageError("--destination-topic is invalid")
    if not is_valid_channel_name(options.channel):
        raise UsageError("--channel is invalid")
    check_max_in_flight(options.max_in_flight)
    check_addresses(options.nsqd_tcp_address, options.lookupd_http_address, "nsqd-tcp-address")
    if not options.destination_nsqd_tcp_address:
        raise UsageError("--destination-nsqd-tcp-address required")
