"""`nsq_stat`: Go's tool, with its rows byte for byte."""

from __future__ import annotations

import asyncio
import itertools
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from nsqd.cli import loop
from nsqd.cli.cluster import Cluster
from nsqd.cli.figures import Figures, read_figures
from nsqd.cli.go.options import VERSION, UsageError, check_addresses, parse, run_tool
from nsqd.cli.output import CliError
from nsqd.cli.target import Node, Target
from nsqd.config.flags import flag
from nsqd.config.kinds import BOOL, DURATION, INT, TEXT, TEXTS

PROGRAM = "nsq_stat"
_HEAD_EVERY = 25
_HEAD = (
    "------rate------+----------------depth----------------"
    "+--------------metadata---------------\n"
    "ingress  egress |   total     mem    disk inflt   def |     req     t-o         msgs clients"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The flags of nsq_stat."""

    channel: str = flag("channel", "", TEXT, "NSQ channel")
    count: int = flag("count", 0, INT, "number of reports", default_text="no end")
    http_client_connect_timeout_s: float = flag(
        "http-client-connect-timeout", 2.0, DURATION, "timeout for HTTP connect"
    )
    http_client_request_timeout_s: float = flag(
        "http-client-request-timeout", 5.0, DURATION, "timeout for HTTP request"
    )
    interval_s: float = flag(
        "interval", 2.0, DURATION, "duration of time between polling/printing output"
    )
    lookupd_http_address: tuple[str, ...] = flag(
        "lookupd-http-address", (), TEXTS, "nsqlookupd HTTP address (repeatable)"
    )
    nsqd_http_address: tuple[str, ...] = flag(
        "nsqd-http-address", (), TEXTS, "nsqd HTTP address (repeatable)"
    )
    topic: str = flag("topic", "", TEXT, "NSQ topic")
    version: bool = flag("version", False, BOOL, "print version")


def main(argv: Sequence[str] | None = None) -> int:
    """Run nsq_stat and return its exit code."""
    given = sys.argv[1:] if argv is None else argv
    return run_tool(lambda: _run(parse(Options, given, PROGRAM), has_count=_has_count(given)))


def _has_count(argv: Sequence[str]) -> bool:
    # A count of 0 that was given is an error, one that was not given is no end.
    return any(each.lstrip("-").partition("=")[0] == "count" for each in argv if each[:1] == "-")


def _run(options: Options, *, has_count: bool) -> int:
    if options.version:
        print(f"{PROGRAM} {VERSION}")
        return 0
    if not options.topic or not options.channel:
        raise UsageError("--topic and --channel are required")
    for name, value in (
        ("interval", options.interval_s),
        ("http-client-connect-timeout", options.http_client_connect_timeout_s),
        ("http-client-request-timeout", options.http_client_request_timeout_s),
    ):
        if value <= 0:
            raise UsageError(f"--{name} should be positive")
    if has_count and options.count <= 0:
        raise UsageError("--count should be positive")
    check_addresses(options.nsqd_http_address, options.lookupd_http_address, "nsqd-http-address")
    for name, addresses in (
        ("nsqd", options.nsqd_http_address),
        ("lookupd", options.lookupd_http_address),
    ):
        if any(address.startswith("http") for address in addresses):
            text = "address should not contain scheme"
            raise UsageError(f"--{name}-http-address error - {text}")
    try:
        return loop.run(_report(options), is_busy=False)
    except CliError as error:
        raise UsageError(f"ERROR: {error}") from error
    except BrokenPipeError:
        return 0


async def _report(options: Options) -> int:
    stop = asyncio.Event()
    running = asyncio.get_running_loop()
    for ending in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        running.add_signal_handler(ending, stop.set)
    nodes = tuple(Node(None, address) for address in options.nsqd_http_address)
    target = Target(nodes, options.lookupd_http_address)
    before: Figures | None = None
    connect_s = options.http_client_connect_timeout_s
    async with Cluster(target, options.http_client_request_timeout_s, connect_s) as cluster:
        for number in itertools.count():
            if options.count and number > options.count:
                return 0
            figures = await _ask(cluster, options)
            if number % _HEAD_EVERY == 0:
                print(_HEAD)
            if before is not None:
                print(_row(figures, before, options.interval_s), flush=True)
            before = figures
            try:
                async with asyncio.timeout(options.interval_s):
                    await stop.wait()
                return 0
            except TimeoutError:
                pass  # The interval is over: the next report.
    return 0


async def _ask(cluster: Cluster, options: Options) -> Figures:
    outcomes = await cluster.find_stats(
        await cluster.find_nodes(options.topic), options.topic, options.channel
    )
    for outcome in outcomes:
        if outcome.error is not None:
            raise CliError(f"failed to get nsqd stats - {outcome.server}: {outcome.error}")
    found = read_figures(outcomes, options.topic, options.channel, 0.0)
    if not found:
        where = f"channel({options.channel}) in stats metadata for topic({options.topic})"
        raise CliError(f"failed to find {where}")
    return found[0]


def _row(figures: Figures, before: Figures, interval_s: float) -> str:
    """Return a row; the rates are by the nominal interval, as in Go."""
    now, then = figures.values, before.values
    came = now["message_count"] - then["message_count"]
    left = came - (now["depth"] - then["depth"])
    return (
        f"{int(came / interval_s):7d} {int(left / interval_s):7d} |"
        f" {now['depth']:7d} {now['depth'] - now['backend_depth']:7d} {now['backend_depth']:7d}"
        f" {now['in_flight_count']:5d} {now['deferred_count']:5d} |"
        f" {now['requeue_count']:7d} {now['timeout_count']:7d} {now['message_count']:12d}"
        f" {now['client_count']:7d}"
    )
