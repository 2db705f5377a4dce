"""`nsq_to_http`: Go's tool, by the code of `nsq to-http`.

It differs where Go's loses something: nothing is given up after five attempts, a POST is not turned
into a GET by a redirect, and messages are touched while a request runs. An unknown --mode is an
error; in Go it sends to all, which is spelt `all` here.
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
from nsqd.cli.sinks.requests import RequestPlan, keep_url, parse_headers, render_as_go
from nsqd.cli.sinks.to_http import HttpPlan, check_urls, deliver
from nsqd.cli.target import Node, Target
from nsqd.client.address import Address
from nsqd.config.flags import flag
from nsqd.config.kinds import BOOL, DURATION, INT, TEXT, TEXTS
from nsqd.protocol.names import is_valid_channel_name, is_valid_topic_name

PROGRAM = "nsq_to_http"
_CONTENT_TYPE = "application/octet-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The flags of nsq_to_http."""

    channel: str = flag("channel", "nsq_to_http", TEXT, "nsq channel")
    consumer_opt: tuple[str, ...] = flag(
        "consumer-opt", (), TEXTS, "option of go-nsq's Config, key,value (repeatable)"
    )
    content_type: str = flag(
        "content-type", _CONTENT_TYPE, TEXT, "the Content-Type used for POST requests"
    )
    get: tuple[str, ...] = flag(
        "get", (), TEXTS, "HTTP address to make a GET request to, with one %s (repeatable)"
    )
    header: tuple[str, ...] = flag(
        "header", (), TEXTS, "Custom header for HTTP requests (repeatable)"
    )
    http_client_connect_timeout_s: float = flag(
        "http-client-connect-timeout", 2.0, DURATION, "timeout for HTTP connect"
    )
    http_client_request_timeout_s: float = flag(
        "http-client-request-timeout", 20.0, DURATION, "timeout for HTTP request"
    )
    lookupd_http_address: tuple[str, ...] = flag(
        "lookupd-http-address", (), TEXTS, "nsqlookupd HTTP address (repeatable)"
    )
    max_in_flight: int = flag(
        "max-in-flight", 200, INT, "max number of messages to allow in flight"
    )
    mode: str = flag("mode", "hostpool", TEXT, "hostpool, round-robin, epsilon-greedy, or all")
    n: int = flag("n", 100, INT, "number of concurrent publishers")
    nsqd_tcp_address: tuple[str, ...] = flag(
        "nsqd-tcp-address", (), TEXTS, "nsqd TCP address (repeatable)"
    )
    post: tuple[str, ...] = flag(
        "post", (), TEXTS, "HTTP address to make a POST request to (repeatable)"
    )
    # As text: the kinds of flags have no single float.
    sample: str = flag("sample", "1", TEXT, "share of messages to publish (0 to 1)")
    status_every: int = flag(
        "status-every", 250, INT, "the # of requests between logging status, 0 disables"
    )
    topic: str = flag("topic", "", TEXT, "nsq topic")
    version: bool = flag("version", False, BOOL, "print version string")


def main(argv: Sequence[str] | None = None) -> int:
    """Run nsq_to_http and return its exit code."""
    return run_tool(lambda: _run(parse(Options, argv, PROGRAM)))


def _run(options: Options) -> int:
    if options.version:
        print(f"{PROGRAM} {VERSION}")
        return 0
    config = read_go_nsq(options.consumer_opt, "consumer-opt")
    sample = _read_sample(options.sample)
    _check(options)
    consumer = config.consumer_options(on_give_up=log_give_up)
    if 0 < sample < 1 and (sample * 100).is_integer() and "sample_rate" not in consumer:
        # nsqd samples by itself: the rest costs no traffic.
        consumer["sample_rate"], sample = int(sample * 100), 1.0
    is_post = bool(options.post)
    try:
        plan = HttpPlan(
            RequestPlan(
                check_urls(options.post or options.get),
                "POST" if is_post else "GET",
                keep_url if is_post else render_as_go,
                {"User-Agent": f"{PROGRAM} {VERSION}", **_read_headers(options.header)},
                options.content_type,
                has_metadata=False,
                is_to_all=options.mode == "all",
                good_statuses=None if is_post else frozenset({200}),
                has_failover=False,
            ),
            "round-robin" if options.mode == "all" else cast(Mode, options.mode),
            options.n,
            max(options.http_client_connect_timeout_s, 0.0),
            max(options.http_client_request_timeout_s, 0.0),
            options.status_every,
            sample,
        )
        nodes = tuple(Node(Address.parse(each), None) for each in options.nsqd_tcp_address)
        consuming = IntakePlan(
            Topics((options.topic,)),
            options.channel,
            options.max_in_flight,
            {"user_agent": f"{PROGRAM}/{VERSION[1:]}", "must_connect": True, **consumer},
        )
        target = Target(nodes, options.lookupd_http_address)
        loop.run(deliver(plan, consuming, target), is_verbose=True)
    except (CliError, ValueError) as error:
        raise UsageError(str(error)) from error
    return 0


def _check(options: Options) -> None:
    """Refuse the combinations of flags that Go refuses."""
    if not options.topic or not options.channel:
        raise UsageError("--topic and --channel are required")
    if not is_valid_topic_name(options.topic) or not is_valid_channel_name(options.channel):
        raise UsageError("invalid topic or channel name")
    if options.content_type != _CONTENT_TYPE and not options.post:
        raise UsageError("--content-type only used with --post")
    if not options.content_type:
        raise UsageError("--content-type requires a value when used")
    check_max_in_flight(options.max_in_flight)
    check_addresses(options.nsqd_tcp_address, options.lookupd_http_address, "nsqd-tcp-address")
    if not options.get and not options.post:
        raise UsageError("--get or --post required")
    if options.get and options.post:
        raise UsageError("use --get or --post not both")
    if any(url.count("%s") != 1 for url in options.get):
        raise UsageError("invalid GET address - must be a printf string")
    if options.mode not in (*MODES, "all"):
        raise UsageError(f'invalid value "{options.mode}" for flag -mode', 2)
    if options.n < 1:
        raise UsageError("--n should be positive")


def _read_sample(text: str) -> float:
    try:
        sample = float(text)
    except ValueError as error:
        raise UsageError(f'invalid value "{text}" for flag -sample: parse error', 2) from error
    if not 0.0 <= sample <= 1.0:
        raise UsageError("ERROR: --sample must be between 0.0 and 1.0")
    return sample


def _read_headers(given: tuple[str, ...]) -> dict[str, str]:
    try:
        return parse_headers(given)
    except ValueError as error:
        raise UsageError("--header value format should be 'key=value'") from error
