"""`nsq to-nsq`: messages to other nsqds. One is finished after its destination said OK."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, cast

from diskqueue.tools.plain_text import escape_bytes
from nsqd.cli import arguments, formats, loop
from nsqd.cli.consuming import consumer_options
from nsqd.cli.go.options import UsageError, read_go_nsq
from nsqd.cli.output import CliError, ExitCode, note, print_json
from nsqd.cli.sinks import intake
from nsqd.cli.sinks.budget import ByteBudget
from nsqd.cli.sinks.hostpool import MODES, HostPool, Mode
from nsqd.cli.sinks.intake import Intake, IntakePlan, Topics
from nsqd.cli.sinks.json_filter import JsonFilter, MissingFieldError, NotJsonError
from nsqd.cli.sinks.timings import HostTimings
from nsqd.cli.target import Target, find_exit_code, find_target
from nsqd.client import (
    Address,
    Batch,
    Consumer,
    Message,
    MessageTooLargeError,
    NsqError,
    Observer,
    Producer,
    PublishError,
)
from nsqd.client.consume.dead_letters import DeadLetters
from nsqd.client.settings import ConnectionOptions
from nsqd.protocol.names import is_valid_topic_name

EXAMPLES: Final = {
    "to-nsq": """examples:
  nsq to-nsq orders --destination-nsqd 10.0.0.2
  nsq to-nsq 'orders.*' --destination-nsqd 10.0.0.2 --destination-topic all-orders
  nsq to-nsq orders --destination-nsqd 10.0.0.2 --where 'amount>100'"""
}
OnBad: TypeAlias = Literal["requeue", "drop", "dead-letter", "as-go"]
_BATCH_COUNT: Final = 500
_BATCHES_AHEAD: Final = 4
_LOOKUPD: Final = "nsqlookupd"


@dataclass(frozen=True, slots=True)
class ForwardPlan:
    """Where messages go, and which."""

    addresses: tuple[str, ...]
    lookupds: tuple[str, ...] = ()
    topic: str = ""  # "" for that of the message
    mode: Mode = "hostpool"
    json_filter: JsonFilter = field(default_factory=JsonFilter)
    is_wanted: formats.Filter | None = None
    # The action for a message that the JSON filter cannot read.
    on_bad: OnBad = "requeue"
    dead_letter: str | None = None
    status_every: int = 0
    timeout_s: float = 5.0
    producer_options: ConnectionOptions = field(default_factory=ConnectionOptions)
    source_options: ConnectionOptions = field(default_factory=ConnectionOptions)
    is_quiet: bool = False


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Add the arguments of `nsq to-nsq`."""
    parser.add_argument("topics", nargs="+", metavar="TOPIC", help="a name, or a pattern: 'a.*'")
    intake.add_arguments(parser, "nsq_to_nsq")
    goal = parser.add_argument_group("destination")
    goal.add_argument("--destination-nsqd", action="append", default=[], metavar="HOST[:TCP]",
                      help="repeatable")  # fmt: skip
    goal.add_argument("--destination-lookupd", action="append", default=[], metavar="HOST[:PORT]",
                      help="its nsqds take turns; repeatable")  # fmt: skip
    goal.add_argument("--destination-topic", default="", metavar="TOPIC", help="default: the same")
    goal.add_argument("--destination-opt", action="append", default=[], metavar="KEY=VALUE",
                      help="option of go-nsq's Config: tls_v1, auth_secret=...")  # fmt: skip
    goal.add_argument("--mode", choices=MODES, default="hostpool", help="which nsqd is next")
    goal.add_argument("--status-every", type=int, default=0, metavar="N",
                      help="a line of times after so many messages")  # fmt: skip
    which = parser.add_argument_group("messages")
    which.add_argument("--where", action="append", default=[], metavar="FIELD=VALUE",
                       help="only JSON bodies with this; = != < > ~, dotted paths")  # fmt: skip
    which.add_argument("--grep", metavar="REGEX", help="only bodies that match")
    which.add_argument("--require-json-field", default="", metavar="FIELD")
    which.add_argument("--require-json-value", default="", metavar="VALUE")
    which.add_argument("--whitelist-json-field", action="append", default=[], metavar="FIELD",
                       help="pass only these fields; repeatable")  # fmt: skip
    which.add_argument("--on-bad", choices=("requeue", "drop", "dead-letter"), default="requeue",
                       help="what becomes of a body that is no JSON")  # fmt: skip
    arguments.add_consumer(parser)
    arguments.add_common(parser)


def run(options: argparse.Namespace, _name: str) -> int:
    """Run `nsq to-nsq`.

    Raises:
        CliError: it could not be done.
    """
    target = find_target(options)
    intake.check_names(options.topics, options.channel)
    if not options.destination_nsqd and not options.destination_lookupd:
        text = "--destination-nsqd or --destination-lookupd is needed"
        raise CliError(text, ExitCode.USAGE)
    if options.on_bad == "dead-letter" and not options.dead_letter:
        raise CliError("--on-bad dead-letter needs --dead-letter TOPIC", ExitCode.USAGE)
    plan = ForwardPlan(
        tuple(options.destination_nsqd),
        tuple(options.destination_lookupd),
        options.destination_topic,
        options.mode,
        JsonFilter(
            options.require_json_field, options.require_json_value, options.whitelist_json_field
        ),
        formats.make_filter(options),
        options.on_bad,
        options.dead_letter,
        options.status_every,
        options.timeout,
        read_destination(options.destination_opt),
        cast(ConnectionOptions, target.connection_options()),
        options.quiet,
    )
    check_destination(plan, target, options.topics)
    consuming = IntakePlan(
        Topics(tuple(options.topics)),
        options.channel,
        options.max_in_flight,
        consumer_options(options, target, user_agent="nsq-to-nsq"),
        timeout_s=options.timeout,
        grace_s=options.grace,
        is_quiet=options.quiet,
        is_until_empty=options.until_empty,
    )
    report = loop.run(forward(plan, consuming, target), is_verbose=options.verbose)
    if options.json:
        print_json(report)
    else:
        note(
            f"{report['forwarded']:,} forwarded, {report['filtered']:,} filtered out,"
            f" {report['failed']:,} come again, {report['seconds']:.1f} s",
            is_quiet=options.quiet,
        )
    return ExitCode.DONE


def read_destination(given: Sequence[str]) -> ConnectionOptions:
    """Read --destination-opt. Nothing of the source's credentials goes to the destination.

    Raises:
        CliError: a key is unknown, or its value wrong.
    """
    pairs = [text.replace("=", ",", 1) for text in given]
    try:
        options = read_go_nsq(pairs, "destination-opt").connection_options()
    except UsageError as error:
        raise CliError(str(error), ExitCode.USAGE) from error
    return cast(ConnectionOptions, {"user_agent": "nsq-to-nsq", **options})


def check_destination(plan: ForwardPlan, target: Target, topics: Sequence[str]) -> None:
    """Check names and addresses, and that no message comes back to where it is from.

    Raises:
        CliError: one is wrong.
    """
    if plan.topic and not is_valid_topic_name(plan.topic):
        raise CliError(f"not the name of a topic: {plan.topic!r}", ExitCode.USAGE)
    try:
        goals = {Address.parse(address) for address in plan.addresses}
    except ValueError as error:
        raise CliError(str(error), ExitCode.USAGE) from error
    if goals & set(target.tcp_addresses) and (not plan.topic or plan.topic in topics):
        raise CliError("messages would come back to the topic they are from", ExitCode.USAGE)


async def forward(plan: ForwardPlan, consuming: IntakePlan, target: Target) -> dict[str, Any]:
    """Consume and publish until a signal comes; return the counts.

    Raises:
        CliError: it could not be done.
    """
    forwarder = Forwarder(plan)
    running = Intake(consuming, target)

    async def handle(consumer: Consumer, _topic: str) -> None:
        await forwarder.follow(consumer, ByteBudget(consumer, consuming.max_in_flight))

    def show() -> str:
        rate = forwarder.forwarded / max(running.seconds, 1e-9)
        return f"{forwarder.forwarded:,} forwarded, {rate:,.0f}/s"

    try:
        await forwarder.start()
        await running.run(handle, show)
    except NsqError as error:
        raise CliError(str(error), find_exit_code(error)) from error
    finally:
        await forwarder.close()
    return {
        "forwarded": forwarder.forwarded,
        "filtered": forwarder.filtered,
        "bad": forwarder.bad,
        "failed": forwarder.failed,
        "seconds": round(running.seconds, 3),
    }


class Forwarder:
    """Publishes batches, each to one nsqd, and to the next if that fails."""

    def __init__(self, plan: ForwardPlan) -> None:
        """Prepare; `start` connects."""
        self.forwarded = 0
        self.filtered = 0
        self.bad = 0
        self.failed = 0
        self._plan = plan
        options = plan.producer_options
        self._producers = {
            address: Producer(address, timeout=plan.timeout_s, **options)
            for address in plan.addresses
        }
        if plan.lookupds:
            self._producers[_LOOKUPD] = Producer(
                lookupd=plan.lookupds, spread="round-robin", timeout=plan.timeout_s, **options
            )
        names = list(self._producers)
        self._pool = HostPool(names, plan.mode)
        self._timings = HostTimings(names, plan.status_every)
        self._letters = DeadLetters(plan.dead_letter, None, Observer(), plan.source_options)

    async def start(self) -> None:
        """Begin to connect.

        Raises:
            DiscoveryError: no nsqlookupd answers.
        """
        for producer in self._producers.values():
            await producer.start()

    async def close(self) -> None:
        """Disconnect."""
        await self._letters.close()
        for producer in self._producers.values():
            await producer.close(grace=0)

    async def follow(self, consumer: Consumer, budget: ByteBudget) -> None:
        """Forward the messages of a consumer until it is closed, some batches at a time.

        Raises:
            NsqError: no nsqd lets this consumer in.
        """
        ahead = asyncio.Semaphore(_BATCHES_AHEAD)
        tasks: set[asyncio.Task[None]] = set()
        try:
            async for batch in consumer.batches(_BATCH_COUNT, 0.0):
                budget.note(batch)
                await ahead.acquire()
                task = asyncio.get_running_loop().create_task(self._forward(batch, budget))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                task.add_done_callback(lambda _: ahead.release())
        finally:
            await asyncio.gather(*tasks)

    async def _forward(self, batch: Batch, budget: ByteBudget) -> None:
        messages: list[Message] = []
        bodies: list[bytes] = []
        for message in batch:
            body = await self._choose(message)
            if body is not None:
                messages.append(message)
                bodies.append(body)
        if messages:
            await self._publish(self._plan.topic or messages[0].topic, messages, bodies)
        budget.grow()

    async def _choose(self, message: Message) -> bytes | None:
        """Return the body to publish; None for a message that has its answer."""
        plan = self._plan
        body: bytes | None = message.body
        try:
            if plan.is_wanted is not None and not plan.is_wanted(message):
                body = None
            elif plan.json_filter.is_active:
                body = plan.json_filter.apply(message.body)
        except (NotJsonError, MissingFieldError) as error:
            await self._refuse(message, error)
            return None
        if body is None:
            self.filtered += 1
            message.settle(None)
        return body

    async def _refuse(self, message: Message, error: Exception) -> None:
        """Deal with a message that the filter cannot read."""
        self.bad += 1
        on_bad = self._plan.on_bad
        if on_bad == "as-go" and isinstance(error, NotJsonError):
            # It is finished: the log is the only place that has it from now on.
            note(f"ERROR: Unable to decode json: {escape_bytes(message.body)}")
            message.settle(None)
        elif on_bad == "drop":
            name = message.id.decode("ascii", "replace")
            text = f"message {name} of {len(message.body):,} bytes dropped: {error}"
            note(f"nsq: {text}", is_quiet=self._plan.is_quiet)
            message.settle(None)
        elif on_bad == "dead-letter":
            await self._letters.give_up_now(message)
        else:
            message.settle(error)

    async def _publish(self, topic: str, messages: list[Message], bodies: list[bytes]) -> None:
        """Publish messages and finish them; those that no nsqd takes come again."""
        tried: set[str] = set()
        while len(tried) < len(self._pool):
            host = self._pool.take(tried)
            tried.add(host)
            start = time.monotonic()
            done, failure = await self._publish_to(host, topic, bodies)
            Batch(messages[:done]).fin()
            self.forwarded += done
            messages, bodies = messages[done:], bodies[done:]
            seconds = time.monotonic() - start
            is_ok = failure is None or isinstance(failure, MessageTooLargeError)
            self._pool.note(host, is_ok=is_ok, seconds=seconds)
            if done:
                self._timings.add(host, seconds, done)
            if isinstance(failure, MessageTooLargeError):
                await self._publish_singly(host, topic, messages, bodies)
                return
            if not messages:
                return
            note(f"nsq: {host}: {failure}", is_quiet=self._plan.is_quiet)
        self.failed += len(messages)
        Batch(messages).req()

    async def _publish_to(
        self, host: str, topic: str, bodies: list[bytes]
    ) -> tuple[int, NsqError | None]:
        """Return how many of the first messages are published, and the error of the next."""
        try:
            return await self._producers[host].publish_many(topic, bodies), None
        except PublishError as error:
            return error.confirmed_count, error
        except NsqError as error:
            return 0, error

    async def _publish_singly(
        self, host: str, topic: str, messages: list[Message], bodies: list[bytes]
    ) -> None:
        """Publish messages one by one, as some are too large for this nsqd and the others not."""
        producer = self._producers[host]
        outcomes = await asyncio.gather(
            *(producer.publish(topic, body) for body in bodies), return_exceptions=True
        )
        for message, outcome in zip(messages, outcomes, strict=True):
            if outcome is None:
                self.forwarded += 1
            else:
                self.failed += 1
                name = message.id.decode("ascii", "replace")
                note(f"nsq: message {name}: {host}: {outcome}", is_quiet=self._plan.is_quiet)
            message.settle(outcome)
