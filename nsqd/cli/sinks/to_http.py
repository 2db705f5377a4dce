"""`nsq to-http`: a request for each message, which is finished after a 2xx."""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass, field
from typing import Any, Final, cast

from nsqd.cli import arguments, loop
from nsqd.cli.consuming import consumer_options
from nsqd.cli.output import CliError, ExitCode, note, print_json
from nsqd.cli.sinks import intake
from nsqd.cli.sinks.budget import ByteBudget
from nsqd.cli.sinks.hostpool import MODES, HostPool, Mode
from nsqd.cli.sinks.intake import Intake, IntakePlan, Topics
from nsqd.cli.sinks.requests import (
    RequestError,
    RequestPlan,
    Requests,
    check_url,
    parse_headers,
    render,
)
from nsqd.cli.sinks.timings import HostTimings
from nsqd.cli.target import Target, find_target
from nsqd.client import Consumer, Message, Observer, Requeue
from nsqd.client.consume.dead_letters import DeadLetters
from nsqd.client.settings import ConnectionOptions
from nsqd.http.client import ClientLimits, HttpClient, UrlError

EXAMPLES: Final = {
    "to-http": """examples:
  nsq to-http orders --post http://127.0.0.1:8080/orders
  nsq to-http orders --post http://a/in --post http://b/in --mode round-robin -j 20
  nsq to-http orders --get 'http://127.0.0.1:8080/?id={id}&body={body}' --drop-on 400,422"""
}
_MAX_REPLY_BYTES: Final = 4 << 20
_SHOWN_FAILURES: Final = 10


@dataclass(frozen=True, slots=True)
class HttpPlan:
    """Which requests are made, and how many at a time."""

    requests: RequestPlan
    mode: Mode = "hostpool"
    concurrency: int = 100
    connect_timeout_s: float = 2.0
    request_timeout_s: float = 20.0
    status_every: int = 250
    # The share of the messages that are sent; the rest is finished.
    sample: float = 1.0
    # Statuses that give a message up: to the dead-letter topic, or for good.
    drop_on: frozenset[int] = frozenset()
    dead_letter: str | None = None
    connection_options: ConnectionOptions = field(default_factory=ConnectionOptions)
    is_quiet: bool = False


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Add the arguments of `nsq to-http`."""
    parser.add_argument("topic", metavar="TOPIC")
    intake.add_arguments(parser, "nsq_to_http")
    requests = parser.add_argument_group("requests")
    requests.add_argument("--post", action="append", default=[], metavar="URL",
                          help="the message is the body; {id}, {topic}; repeatable")  # fmt: skip
    requests.add_argument("--get", action="append", default=[], metavar="URL",
                          help="with {body} or %%s, {id}, {topic}; repeatable")  # fmt: skip
    requests.add_argument("--mode", choices=(*MODES, "all"), default="hostpool",
                          help="which of several URLs is next")  # fmt: skip
    requests.add_argument("-j", "--jobs", type=arguments.positive, default=100, metavar="N",
                          help="requests at a time (100)")  # fmt: skip
    requests.add_argument("--content-type", default="application/octet-stream", metavar="TYPE")
    requests.add_argument("--header", action="append", default=[], metavar="'NAME: VALUE'")
    requests.add_argument("--no-metadata", action="store_true", help="no X-NSQ- headers")
    requests.add_argument("--connect-timeout", type=arguments.duration, default=2.0, metavar="TIME")
    requests.add_argument("--request-timeout", type=arguments.duration, default=20.0,
                          metavar="TIME", help="with the whole reply (20s)")  # fmt: skip
    requests.add_argument("--drop-on", type=_statuses, default=frozenset(), metavar="400,422",
                          help="give these up: to --dead-letter, or for good")  # fmt: skip
    requests.add_argument("--status-every", type=int, default=0, metavar="N",
                          help="a line of times after so many requests")  # fmt: skip
    arguments.add_consumer(parser)
    parser.set_defaults(max_in_flight=200)
    arguments.add_common(parser)


def _statuses(text: str) -> frozenset[int]:
    try:
        found = frozenset(int(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not a list of statuses: {text!r}") from error
    if not all(300 <= status <= 599 for status in found):
        raise argparse.ArgumentTypeError(f"not statuses of failures: {text!r}")
    return found


def run(options: argparse.Namespace, _name: str) -> int:
    """Run `nsq to-http`.

    Raises:
        CliError: it could not be done.
    """
    target = find_target(options)
    intake.check_names([options.topic], options.channel)
    if bool(options.post) == bool(options.get):
        raise CliError("either --post or --get is needed", ExitCode.USAGE)
    try:
        headers = parse_headers(options.header)
    except ValueError as error:
        raise CliError(str(error), ExitCode.USAGE) from error
    urls = check_urls(tuple(options.post or options.get))
    if options.get and not all("{body}" in url or "%s" in url or "{id}" in url for url in urls):
        raise CliError("a URL of --get has {body} or {id} in it", ExitCode.USAGE)
    plan = HttpPlan(
        RequestPlan(
            urls,
            "POST" if options.post else "GET",
            render,
            headers,
            options.content_type,
            has_metadata=not options.no_metadata,
            is_to_all=options.mode == "all",
        ),
        "round-robin" if options.mode == "all" else options.mode,
        options.jobs,
        options.connect_timeout,
        options.request_timeout,
        options.status_every,
        drop_on=options.drop_on,
        dead_letter=options.dead_letter,
        connection_options=cast(ConnectionOptions, target.connection_options()),
        is_quiet=options.quiet,
    )
    consuming = IntakePlan(
        Topics((options.topic,)),
        options.channel,
        options.max_in_flight,
        consumer_options(options, target, user_agent="nsq-to-http"),
        timeout_s=options.timeout,
        grace_s=options.grace,
        is_quiet=options.quiet,
        is_until_empty=options.until_empty,
    )
    report = loop.run(deliver(plan, consuming, target), is_verbose=options.verbose)
    if options.json:
        print_json(report)
    else:
        note(
            f"{report['delivered']:,} delivered, {report['failed']:,} tries failed,"
            f" {report['dropped']:,} given up, {report['seconds']:.1f} s",
            is_quiet=options.quiet,
        )
    return ExitCode.DONE


def check_urls(urls: tuple[str, ...]) -> tuple[str, ...]:
    """Check that URLs can be requested.

    Raises:
        CliError: one cannot.
    """
    for url in urls:
        try:
            check_url(url)
        except UrlError as error:
            raise CliError(f"{url}: {error}", ExitCode.USAGE) from error
    return urls


async def deliver(plan: HttpPlan, consuming: IntakePlan, target: Target) -> dict[str, Any]:
    """Consume and deliver until a signal comes; return the counts.

    Raises:
        CliError: it could not be done.
    """
    limits = ClientLimits(
        connect_timeout_s=plan.connect_timeout_s,
        request_timeout_s=plan.request_timeout_s,
        max_body_bytes=_MAX_REPLY_BYTES,
        max_idle_connections=plan.concurrency,
    )
    http = HttpClient(limits)
    letters = DeadLetters(plan.dead_letter, None, Observer(), plan.connection_options)
    urls = list(plan.requests.urls)
    requests = Requests(
        plan.requests, http, HostPool(urls, plan.mode), HostTimings(urls, plan.status_every)
    )
    handler = Delivery(plan, requests, letters)
    running = Intake(consuming, target)

    async def handle(consumer: Consumer, _topic: str) -> None:
        handler.budget = ByteBudget(consumer, consuming.max_in_flight)
        await consumer.run(
            handler.handle, concurrency=plan.concurrency, grace=consuming.grace_s, signals=()
        )

    def show() -> str:
        rate = handler.delivered / max(running.seconds, 1e-9)
        return f"{handler.delivered:,} delivered, {rate:,.0f}/s, {handler.failed:,} tries failed"

    try:
        await running.run(handle, show)
    finally:
        await letters.close()
        http.close()
    return {
        "delivered": handler.delivered,
        "failed": handler.failed,
        "dropped": handler.dropped,
        "seconds": round(running.seconds, 3),
    }


class Delivery:
    """The end of a delivery: delivered, to be tried again, or given up."""

    def __init__(self, plan: HttpPlan, requests: Requests, letters: DeadLetters) -> None:
        """Args: letters: takes the messages given up, if there is a dead-letter topic."""
        self.delivered = 0
        self.failed = 0
        self.dropped = 0
        self.budget: ByteBudget | None = None
        self._plan = plan
        self._requests = requests
        self._letters = letters

    async def handle(self, message: Message) -> None:
        """Deliver a message.

        Raises:
            Requeue: it has to come again.
        """
        if self.budget is not None:
            self.budget.note([message])
        if self._plan.sample < 1.0 and random.random() > self._plan.sample:
            return
        try:
            await self._requests.send(message)
        except RequestError as error:
            await self._fail(message, error)
        else:
            self.delivered += 1
        if self.budget is not None:
            self.budget.grow()

    async def _fail(self, message: Message, error: RequestError) -> None:
        name = message.id.decode("ascii", "replace")
        if error.status in self._plan.drop_on:
            self.dropped += 1
            text = f"message {name} of {len(message.body):,} bytes given up: {error}"
            note(f"nsq: {text}", is_quiet=self._plan.is_quiet)
            if self._plan.dead_letter is not None:
                await self._letters.give_up_now(message)
            return
        self.failed += 1
        if self.failed <= _SHOWN_FAILURES:
            note(f"nsq: message {name} comes again: {error}", is_quiet=self._plan.is_quiet)
        if self.failed == _SHOWN_FAILURES:
            note("nsq: later failures are only counted", is_quiet=self._plan.is_quiet)
        raise Requeue(error.retry_after_s)
