"""Intake: the consumers of a command that hands messages on, one for each topic.

It finds the topics, joins new ones as they appear, ends well after a signal, and shows progress. A
command gives it a coroutine that deals with the messages of one consumer until that is closed.
"""

from __future__ import annotations

import argparse
import asyncio
import fnmatch
import os
import re
import signal
import time
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from nsqd.cli import arguments, signals
from nsqd.cli.cluster import Cluster, Outcome
from nsqd.cli.output import CliError, ExitCode, note
from nsqd.cli.progress import ProgressLine
from nsqd.cli.target import Target, find_exit_code
from nsqd.client import Consumer, NsqError
from nsqd.protocol.names import is_valid_channel_name, is_valid_topic_name

PATTERN: Final = frozenset("*?[")
_EMPTY_POLL_S: Final = 0.2
_LAST_S: Final = 1.0

Handle = Callable[[Consumer, str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Topics:
    """Which topics: names, patterns with * and ?, and a regular expression that filters all."""

    wanted: tuple[str, ...] = ()
    regex: re.Pattern[str] | None = None

    @property
    def names(self) -> list[str]:
        """Those that need no look-up."""
        plain = [name for name in self.wanted if not PATTERN & set(name)]
        return [name for name in dict.fromkeys(plain) if self._passes(name)]

    @property
    def are_patterns(self) -> bool:
        """Whether new topics may appear."""
        return any(PATTERN & set(name) for name in self.wanted) or not self.wanted

    def choose(self, known: Sequence[str]) -> list[str]:
        """Return those of the topics that exist which are wanted."""
        patterns = [name for name in self.wanted if PATTERN & set(name)]
        if not self.wanted:
            patterns = ["*"]
        return [
            name
            for name in sorted(known)
            if any(fnmatch.fnmatchcase(name, each) for each in patterns)
            and self._passes(name)
            and is_valid_topic_name(name)
        ]

    def _passes(self, name: str) -> bool:
        return self.regex is None or self.regex.search(name) is not None


@dataclass(slots=True)
class IntakePlan:
    """Topics, channel and addresses to consume from, and the limits."""

    topics: Topics
    channel: str
    max_in_flight: int
    consumer_options: dict[str, Any] = field(default_factory=dict)
    refresh_s: float = 60.0
    timeout_s: float = 5.0
    connect_timeout_s: float | None = None
    grace_s: float = 30.0
    is_quiet: bool = False
    is_until_empty: bool = False


class Intake:
    """All consumers of a command, from start to end."""

    def __init__(self, plan: IntakePlan, target: Target) -> None:
        """Prepare; `run` connects."""
        self.consumers: dict[str, Consumer] = {}
        self._plan = plan
        self._target = target
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._repeats = signals.Repeats()
        self._failure: BaseException | None = None
        self._started = time.monotonic()
        self._on_hangup: Callable[[], None] = self._stop.set

    @property
    def seconds(self) -> float:
        """How long it has run."""
        return time.monotonic() - self._started

    def stop(self) -> None:
        """End it well: no more messages, those begun are dealt with."""
        self._stop.set()

    def set_hangup(self, callback: Callable[[], None]) -> None:
        """Have SIGHUP do something else than end it."""
        self._on_hangup = callback

    async def run(self, handle: Handle, show: Callable[[], str]) -> None:
        """Consume until a signal comes, or `stop` is called, or something fails.

        Args:
            handle: deals with the messages of a consumer until it is closed.
            show: returns how far it is, for the line of progress.

        Raises:
            CliError: there is no such topic, or no nsqd lets this consumer in.
        """
        running = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            running.add_signal_handler(number, self._interrupted, number)
        if self._on_hangup != self._stop.set or signal.SIGHUP in signals.ending():
            running.add_signal_handler(signal.SIGHUP, lambda: self._on_hangup())
        for topic in self._plan.topics.names:
            self._join(topic, handle)
        helpers: list[asyncio.Task[None]] = []
        if self._plan.topics.are_patterns:
            helpers.append(running.create_task(self._discover(handle)))
        if self._plan.is_until_empty:
            helpers.append(running.create_task(self._watch()))
        try:
            async with ProgressLine(lambda: self._show(show()), is_quiet=self._plan.is_quiet):
                await self._stop.wait()
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            grace_s = 0.0 if self._failure is not None else self._plan.grace_s
            ends_at = running.time() + grace_s
            await asyncio.gather(*(each.close(grace_s) for each in self.consumers.values()))
            if self._tasks:
                # A task that does not end in time is cancelled: its messages were given back.
                left_s = max(ends_at - running.time(), _LAST_S)
                await asyncio.wait(self._tasks, timeout=left_s)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                running.remove_signal_handler(number)
        self._raise_failure()

    def _raise_failure(self) -> None:
        if isinstance(self._failure, NsqError):
            code = find_exit_code(self._failure)
            raise CliError(str(self._failure), code) from self._failure
        if self._failure is not None:
            raise self._failure

    def _join(self, topic: str, handle: Handle) -> None:
        plan = self._plan
        consumer = Consumer(
            topic,
            plan.channel,
            nsqd=self._target.tcp_addresses,
            lookupd=self._target.lookupds,
            max_in_flight=plan.max_in_flight,
            **plan.consumer_options,
        )
        consumer.start()
        self.consumers[topic] = consumer
        task = asyncio.get_running_loop().create_task(self._follow(consumer, topic, handle))
        self._tasks.add(task)

    async def _follow(self, consumer: Consumer, topic: str, handle: Handle) -> None:
        try:
            await handle(consumer, topic)
        except (NsqError, CliError, OSError) as error:
            self._fail(error)
        except Exception as error:
            self._fail(error)
            raise

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._stop.set()

    async def _discover(self, handle: Handle) -> None:
        """Join the topics that match, now and as they appear."""
        is_first = True
        while True:
            try:
                known = await find_topics(self._target, self._plan)
            except CliError as error:
                if is_first and not self._target.lookupds:
                    self._fail(error)
                    return
                note(f"nsq: cannot look topics up: {error}", is_quiet=self._plan.is_quiet)
            else:
                for topic in self._plan.topics.choose(known):
                    if topic not in self.consumers:
                        self._join(topic, handle)
            is_first = False
            await asyncio.sleep(self._plan.refresh_s)

    async def _watch(self) -> None:
        """End it when nothing is left in the channels."""
        plan = self._plan
        async with Cluster(self._target, plan.timeout_s, plan.connect_timeout_s) as cluster:
            while True:
                await asyncio.sleep(_EMPTY_POLL_S)
                stats = await cluster.find_stats(await cluster.find_nodes())
                failed = [outcome for outcome in stats if outcome.error is not None]
                if failed:
                    self._fail(CliError(f"{failed[0].server}: {failed[0].error}"))
                    return
                if not count_left(stats, self.consumers, plan.channel):
                    self.stop()
                    return

    def _show(self, text: str) -> str:
        stats = [consumer.stats() for consumer in self.consumers.values()]
        line = (
            f"{text}, {sum(each.in_flight for each in stats):,} in flight,"
            f" {sum(each.connections for each in stats)} connections"
        )
        level = max((each.backoff_level for each in stats), default=0)
        return f"{line}, backing off ({level})" if level else line

    def _interrupted(self, number: signal.Signals) -> None:
        if self._repeats.is_second():
            os._exit(128 + number)
        self._stop.set()


def count_left(stats: Sequence[Outcome], topics: Container[str], channel: str) -> int:
    """Return how many messages of topics wait for a channel, are in flight there, or deferred."""
    left = 0
    for outcome in stats:
        for topic in outcome.answer.get("topics") or []:
            if topic["topic_name"] not in topics:
                continue
            left += int(topic["depth"])
            for each in topic["channels"] or []:
                if each["channel_name"] == channel:
                    left += int(each["depth"])
                    left += int(each["in_flight_count"]) + int(each["deferred_count"])
    return left


async def find_topics(target: Target, plan: IntakePlan) -> list[str]:
    """Return the topics that the nsqlookupds and the given nsqds know.

    Raises:
        CliError: no nsqd or nsqlookupd answers.
    """
    async with Cluster(target, plan.timeout_s, plan.connect_timeout_s) as cluster:
        asked = await cluster.ask_lookupds("GET", "/topics")
        nodes = [node for node in target.nodes if node.http is not None]
        stats = await cluster.find_stats(nodes)
    failed = [each for each in (*asked, *stats) if each.error is not None]
    if failed and len(failed) == len(asked) + len(stats):
        raise CliError(f"{failed[0].server}: {failed[0].error}")
    known: set[str] = set()
    for outcome in asked:
        if outcome.error is None and isinstance(outcome.answer, dict):
            answer = outcome.answer.get("data") or outcome.answer
            known.update(map(str, answer.get("topics") or []))
    for outcome in stats:
        if outcome.error is None:
            known.update(str(each["topic_name"]) for each in outcome.answer.get("topics") or [])
    return sorted(known)


def check_names(topics: Sequence[str], channel: str) -> None:
    """Check names of topics, patterns excepted, and of the channel.

    Raises:
        CliError: one is wrong.
    """
    for name in topics:
        if not is_valid_topic_name(name) and not PATTERN & set(name):
            raise CliError(f"not the name of a topic: {name!r}", ExitCode.USAGE)
    if not is_valid_channel_name(channel):
        raise CliError(f"not the name of a channel: {channel!r}", ExitCode.USAGE)


def add_arguments(parser: argparse.ArgumentParser, channel: str) -> None:
    """Add --channel, and how it ends."""
    parser.add_argument("--channel", default=channel, help=f"({channel})")
    add_ending(parser)


def add_ending(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say how it ends."""
    parser.add_argument("--grace", type=arguments.duration, default=30.0, metavar="TIME",
                        help="for messages that were begun, after a signal (30s)")  # fmt: skip
    parser.add_argument("--until-empty", action="store_true", help="end when the channel is empty")
