"""Tail: follow topics through consumers of nsqd.client, and print what they bring."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nsqd.cli import formats, loop
from nsqd.cli.consuming import consumer_options
from nsqd.cli.messages.express_tail import can_block, write_all
from nsqd.cli.messages.tail import PATTERN
from nsqd.cli.output import CliError, ExitCode
from nsqd.cli.progress import ProgressLine
from nsqd.cli.target import Target, find_exit_code
from nsqd.client import Consumer, NsqError
from nsqd.client.consume.message import Batch, Message

if TYPE_CHECKING:
    from nsqd.cli.cluster import Outcome

_BATCH_COUNT: Final = 2500
_EMPTY_POLL_S: Final = 0.2
_JOIN_POLL_S: Final = 2.0


@dataclass(slots=True)
class Plan:
    """The messages to show, and when to end."""

    topics: Sequence[str]
    channel: str
    show: formats.Format
    is_wanted: formats.Filter | None = None
    count: int = 0  # messages to show; 0 for no end
    is_count_per_topic: bool = False
    wait_s: float | None = None  # silence that ends it
    is_until_empty: bool = False
    max_in_flight: int = 2500
    directory: Path | None = None  # a file for each message, instead of stdout
    consumer_options: dict[str, Any] | None = None
    is_quiet: bool = False


def make_plan(options: argparse.Namespace, target: Target, channel: str) -> Plan:
    """Return what the flags of `nsq tail` ask for.

    Raises:
        CliError: flags contradict each other, or the directory cannot be made.
    """
    plan = Plan(
        options.topics,
        channel,
        formats.make_format(options),
        formats.make_filter(options),
        options.count,
        wait_s=options.wait,
        is_until_empty=options.until_empty,
        max_in_flight=options.max_in_flight,
        directory=_make_directory(options),
        consumer_options=consumer_options(options, target, user_agent="nsq-tail", backoff=None),
        is_quiet=options.quiet,
    )
    if plan.directory is not None and not options.json and not formats.has_format(options):
        plan.show = lambda message: message.body
    return plan


def _make_directory(options: argparse.Namespace) -> Path | None:
    if options.dir is None:
        return None
    directory = Path(options.dir)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CliError(f"{directory}: {error.strerror}") from error
    return directory


class Tail:
    """One run: a consumer for each topic, one stdout for all."""

    def __init__(self, plan: Plan, target: Target, timeout_s: float, shown: int = 0) -> None:
        """Prepare; `run` connects. Args: shown: messages that the express has shown."""
        self._plan = plan
        self._target = target
        self._timeout_s = timeout_s
        self._shown = shown
        self._shown_by_topic: dict[str, int] = {}
        self._consumers: dict[str, Consumer] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._started = 0.0
        self._stop = asyncio.Event()
        self._printing = asyncio.Lock()
        self._last_at = 0.0
        self._code = ExitCode.DONE
        self._failure: BaseException | None = None
        self._can_block = can_block(1)

    async def run(self) -> int:
        """Show messages until the end; return the exit code.

        Raises:
            CliError: no nsqd lets this consumer in.
        """
        running = asyncio.get_running_loop()
        loop.end_with_signals(self._stop)
        self._last_at = self._started = running.time()
        for topic in await self._find_topics():
            self._join(topic)
        helpers = [running.create_task(self._watch())]
        if any(PATTERN & set(topic) for topic in self._plan.topics):
            helpers.append(running.create_task(self._join_new_ones()))
        # Lines on a terminal are progress enough.
        is_quiet = self._plan.is_quiet or os.isatty(1)
        try:
            async with ProgressLine(self._show_progress, is_quiet=is_quiet):
                await self._stop.wait()
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*(consumer.close() for consumer in self._consumers.values()))
            await asyncio.gather(*helpers, *self._tasks, return_exceptions=True)
        if isinstance(self._failure, NsqError):
            raise CliError(str(self._failure), find_exit_code(self._failure))
        if self._failure is not None:
            raise self._failure
        return self._code

    def _join(self, topic: str) -> None:
        consumer = self._consumers[topic] = self._make_consumer(topic)
        consumer.start()
        self._tasks.append(asyncio.get_running_loop().create_task(self._follow(topic, consumer)))

    async def _join_new_ones(self) -> None:
        """Look for topics that fit a pattern and have appeared meanwhile."""
        while True:
            await asyncio.sleep(_JOIN_POLL_S)
            try:
                topics = await self._find_topics()
            except CliError:
                continue  # No server answers at the moment; the consumers go on.
            for topic in topics:
                if topic not in self._consumers:
                    self._join(topic)

    def _show_progress(self) -> str:
        lasted_s = max(asyncio.get_running_loop().time() - self._started, 1e-9)
        stats = [consumer.stats() for consumer in self._consumers.values()]
        in_flight = sum(each.in_flight for each in stats)
        nodes = sum(each.connections for each in stats)
        rate = self._shown / lasted_s
        return f"{self._shown:,} shown, {rate:,.0f}/s, {in_flight:,} in flight, {nodes} connections"

    def _make_consumer(self, topic: str) -> Consumer:
        plan = self._plan
        in_flight = min(plan.max_in_flight, plan.count) if plan.count else plan.max_in_flight
        return Consumer(
            topic,
            plan.channel,
            nsqd=self._target.tcp_addresses,
            lookupd=self._target.lookupds,
            max_in_flight=in_flight,
            **(plan.consumer_options or {}),
        )

    async def _find_topics(self) -> list[str]:
        """Return the topics, patterns resolved."""
        names = [topic for topic in self._plan.topics if not PATTERN & set(topic)]
        patterns = [topic for topic in self._plan.topics if topic not in names]
        if patterns:
            import fnmatch

            stats = await self._find_stats()
            known = {
                str(topic["topic_name"])
                for outcome in stats
                if outcome.error is None
                for topic in outcome.answer.get("topics") or []
            }
            names += sorted(
                name for name in known if any(fnmatch.fnmatchcase(name, p) for p in patterns)
            )
        if not names:
            raise CliError("no such topic", ExitCode.MISSING)
        return list(dict.fromkeys(names))

    async def _find_stats(self) -> list[Outcome]:
        # Imported here: only patterns and --until-empty need HTTP.
        from nsqd.cli.cluster import Cluster

        async with Cluster(self._target, self._timeout_s) as cluster:
            return await cluster.find_stats(await cluster.find_nodes())

    async def _follow(self, topic: str, consumer: Consumer) -> None:
        try:
            async for batch in consumer.batches(_BATCH_COUNT, 0.0):
                async with self._printing:
                    await self._print(topic, consumer, batch)
                if self._stop.is_set():
                    return
        except (NsqError, OSError) as error:
            self._failure = error
            self._stop.set()

    async def _print(self, topic: str, consumer: Consumer, batch: Batch) -> None:
        """Print the messages of a batch, then finish them; those too many go back."""
        plan = self._plan
        running = asyncio.get_running_loop()
        self._last_at = running.time()
        wanted: list[Message] = list(batch)
        if plan.is_wanted is not None:
            wanted = [message for message in wanted if plan.is_wanted(message)]
        room = self._room(topic)
        too_many = [] if room is None else wanted[room:]
        wanted = wanted if room is None else wanted[:room]
        if wanted and plan.directory is not None:
            await loop.in_thread(write_files, plan.directory, wanted, plan.show)
        elif wanted:
            data = b"".join(map(plan.show, wanted))
            if self._can_block:
                # In a thread: a reader that waits must not keep heartbeats from being answered.
                await loop.in_thread(write_all, data)
            else:
                write_all(data)
        for message in too_many:
            if not message.is_answered:
                message.req(0, backoff=False)
        self._shown += len(wanted)
        self._shown_by_topic[topic] = self._shown_by_topic.get(topic, 0) + len(wanted)
        room = self._room(topic)
        if room is not None:
            # Before the FINs, which would have nsqd send messages that are not wanted any more.
            consumer.set_max_in_flight(min(room, plan.max_in_flight))
        batch.fin()
        if room == 0:
            self._stop.set()

    def _room(self, topic: str) -> int | None:
        """Return how many messages may still be shown; None for any number."""
        plan = self._plan
        if not plan.count:
            return None
        shown = self._shown_by_topic.get(topic, 0) if plan.is_count_per_topic else self._shown
        return max(0, plan.count - shown)

    async def _watch(self) -> None:
        """End it after silence, or when the channels are empty."""
        plan = self._plan
        running = asyncio.get_running_loop()
        if plan.wait_s is None and not plan.is_until_empty:
            return
        while True:
            await asyncio.sleep(min(_EMPTY_POLL_S, plan.wait_s or _EMPTY_POLL_S))
            silent_s = running.time() - self._last_at
            is_over = plan.wait_s is not None and silent_s >= plan.wait_s
            if not is_over and plan.is_until_empty and silent_s >= _EMPTY_POLL_S:
                is_over = await self._are_empty(list(self._consumers))
            if is_over:
                if plan.count and self._shown < plan.count:
                    self._code = ExitCode.TIMEOUT
                self._stop.set()
                return

    async def _are_empty(self, topics: list[str]) -> bool:
        stats = await self._find_stats()
        failed = [outcome for outcome in stats if outcome.error is not None]
        if failed:
            self._failure = NsqError(f"{failed[0].server}: {failed[0].error}")
            return True
        found = [topic for each in stats for topic in each.answer["topics"] or []]
        left = 0
        for topic in found:
            if topic["topic_name"] in topics:
                left += int(topic["depth"])
                for channel in topic["channels"] or []:
                    if channel["channel_name"] == self._plan.channel:
                        left += int(channel["depth"]) + int(channel["in_flight_count"])
        return not left


def write_files(directory: Path, messages: Sequence[Message], show: formats.Format) -> None:
    """Write each message into a file of its own, which appears under its name when it is whole."""
    for message in messages:
        path = directory / f"{message.topic}.{message.id.decode('ascii', 'replace')}"
        temporary = path.with_name(f".{path.name}")
        temporary.write_bytes(show(message))
        temporary.replace(path)
