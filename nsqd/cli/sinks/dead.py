"""`nsq dead`: messages that were given up: list, look at, publish again, drop.

Dead letters are messages of a topic of their own, as in `orders.dead`. A replay publishes each one,
waits for the OK, and finishes it then: whenever it is interrupted, every letter is in one of both.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any, Final
from urllib.parse import urlencode

from nsqd.cli import arguments, formats, loop
from nsqd.cli.admin import changes
from nsqd.cli.admin.changes import Change
from nsqd.cli.cluster import Cluster, Outcome, check
from nsqd.cli.consuming import consumer_options
from nsqd.cli.figures import read_topics
from nsqd.cli.messages import peek
from nsqd.cli.output import CliError, ExitCode, note, print_json
from nsqd.cli.sinks.intake import Intake, IntakePlan, Topics
from nsqd.cli.target import Node, Target, find_target
from nsqd.client import Batch, Consumer, Message, Producer, PublishError

EXAMPLES: Final = {
    "dead": """examples:
  nsq dead ls
  nsq dead replay orders --limit 10 --rate 1
  nsq dead drop orders --where 'amount=0' -y"""
}
_SUFFIX: Final = ".dead"
_CHANNEL: Final = "nsq_dead"
_BATCH_COUNT: Final = 500
# Letters that are not chosen come back after the replay, not within it.
_LATER_S: Final = 30.0


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Add the arguments of `nsq dead`."""
    actions = ("ls", "peek", "replay", "drop")
    parser.add_argument("action", choices=actions, metavar="ACTION", help=", ".join(actions))
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help="orders, or orders.dead")
    parser.add_argument("--to", metavar="TOPIC", help="replay to another topic")
    parser.add_argument("--suffix", help="of the topics of dead letters; default: nsqd is asked")
    parser.add_argument("--channel", help=f"that has the letters ({_CHANNEL})")
    parser.add_argument("--limit", type=arguments.positive, metavar="N", help="at most so many")
    parser.add_argument("--rate", type=float, default=0.0, metavar="N", help="letters a second")
    parser.add_argument("--where", action="append", default=[], metavar="FIELD=VALUE",
                        help="only JSON bodies with this; = != < > ~, dotted paths")  # fmt: skip
    parser.add_argument("--grep", metavar="REGEX", help="only bodies that match")
    parser.add_argument("--count", type=arguments.positive, default=10, metavar="N",
                        help="letters to peek at (10)")  # fmt: skip
    parser.add_argument("--tsv", action="store_true", help="columns separated by tabs")
    changes.add_arguments(parser)
    arguments.add_consumer(parser)
    arguments.add_common(parser)


def run(options: argparse.Namespace, _name: str) -> int:
    """Run `nsq dead`.

    Raises:
        CliError: it could not be done.
    """
    target = find_target(options)
    if options.action != "ls" and not options.topic:
        raise CliError(f"nsq dead {options.action} needs a topic", ExitCode.USAGE)
    if options.action in ("replay", "drop"):
        changes.refuse_read_only(options, target)
    is_busy = options.action == "replay"
    place = loop.run(_find(options, target), is_busy=is_busy, is_verbose=options.verbose)
    if isinstance(place, int):
        return place
    if options.action == "peek":
        return _peek(options, place)
    return loop.run(_act(options, target, place), is_busy=is_busy)


class Place:
    """Where the letters of a topic are."""

    def __init__(
        self, topic: str, dead_topic: str, nodes: list[Node], stats: list[Outcome]
    ) -> None:
        """Args: stats: of the topic of the letters."""
        self.topic = topic
        self.dead_topic = dead_topic
        self.nodes = nodes
        self.entries = [each for each in read_topics(stats) if each["topic_name"] == dead_topic]
        channels = [each for entry in self.entries for each in entry["channels"] or []]
        self.channels = sorted({str(each["channel_name"]) for each in channels})

    def choose_channel(self, wish: str | None) -> str:
        """Return the channel to read: without one, letters wait in the topic itself.

        Raises:
            CliError: there are several.
        """
        if wish or not self.channels or _CHANNEL in self.channels:
            return wish or _CHANNEL
        if len(self.channels) > 1:
            names = ", ".join(self.channels)
            text = f"{self.dead_topic} has several channels, --channel names one: {names}"
            raise CliError(text, ExitCode.USAGE)
        return self.channels[0]

    def count(self, channel: str) -> int:
        """Return how many letters a channel has to deal with."""
        return sum(_count(entry, channel) for entry in self.entries)


def _count(entry: dict[str, Any], channel: str) -> int:
    found = int(entry["depth"])
    for each in entry["channels"] or []:
        if each["channel_name"] == channel:
            found += int(each["depth"]) + int(each["deferred_count"])
            found += int(each["in_flight_count"])
    return found


async def _find(options: argparse.Namespace, target: Target) -> Place | int:
    """Ask where the letters are; the list is printed at once."""
    async with Cluster(target, options.timeout) as cluster:
        nodes = await cluster.find_nodes()
        if not nodes:
            raise CliError("no nsqlookupd knows an nsqd", ExitCode.MISSING)
        stats = await cluster.find_stats(nodes)
        code = check(stats, "stats")
        if options.action == "ls":
            changes.report_failures(stats, is_quiet=options.quiet)
            _list(options, stats, await _find_suffix(options, cluster, nodes))
            return code
        suffix = await _find_suffix(options, cluster, nodes)
        topic = str(options.topic)
        if topic.endswith(suffix):
            place = Place(topic.removesuffix(suffix), topic, nodes, stats)
        else:
            dead_topic = await _find_dead_topic(cluster, nodes, topic) or topic + suffix
            place = Place(topic, dead_topic, nodes, stats)
    if not place.entries:
        raise CliError(f"no dead letters: there is no topic {place.dead_topic}", ExitCode.MISSING)
    return place


async def _find_suffix(options: argparse.Namespace, cluster: Cluster, nodes: list[Node]) -> str:
    if options.suffix:
        return str(options.suffix)
    for outcome in await cluster.ask("GET", nodes, "/config/dead_letter_topic_suffix"):
        if outcome.error is None and isinstance(outcome.answer, str) and outcome.answer:
            return outcome.answer
    return _SUFFIX


async def _find_dead_topic(cluster: Cluster, nodes: list[Node], topic: str) -> str | None:
    """Ask for the topic of the letters, which may have a suffix of its own."""
    for outcome in await cluster.ask("GET", nodes, f"/topic/limits?{urlencode({'topic': topic})}"):
        if outcome.error is None and isinstance(outcome.answer, dict):
            found = outcome.answer.get("dead_letter_topic")
            if found:
                return str(found)
    return None


def _list(options: argparse.Namespace, stats: list[Outcome], suffix: str) -> None:
    rows: dict[str, dict[str, Any]] = {}
    for entry in read_topics(stats):
        name = str(entry["topic_name"])
        if not name.endswith(suffix) or options.topic not in (None, name, name[: -len(suffix)]):
            continue
        row = rows.setdefault(name, {"topic": name, "letters": 0, "channels": 0, "ever": 0})
        channels = entry["channels"] or []
        row["letters"] += int(entry["depth"]) + sum(
            int(each["depth"]) + int(each["in_flight_count"]) + int(each["deferred_count"])
            for each in channels
        )
        row["channels"] = max(row["channels"], len(channels))
        row["ever"] += int(entry["message_count"])
    changes.print_rows(
        options, [rows[name] for name in sorted(rows)], ("topic", "letters", "channels", "ever")
    )


def _peek(options: argparse.Namespace, place: Place) -> int:
    options.place = place.dead_topic
    if place.channels:
        options.place += f"/{place.choose_channel(options.channel)}"
    options.where = None
    for name in ("format", "pretty", "time", "print_topic", "is_null", "hex", "framed"):
        setattr(options, name, None)
    return peek.run(options, "peek")


async def _act(options: argparse.Namespace, target: Target, place: Place) -> int:
    is_wanted = formats.make_filter(options)
    channel = place.choose_channel(options.channel)
    count = place.count(channel)
    if options.action == "drop" and is_wanted is None and options.limit is None:
        return await _drop_all(options, target, place, count)
    goal = options.to or place.topic
    verb = f"replay to {goal}" if options.action == "replay" else "drop"
    most = min(count, options.limit or count)
    what = f"{verb} {most:,} letters of {place.dead_topic}"
    if options.dry_run:
        if options.json:
            print_json({"action": options.action, "letters": most, "goal": goal, "dry_run": True})
        else:
            print(f"would {what}{', those that match' if is_wanted else ''}")
        return ExitCode.DONE
    if options.action == "drop":
        changes.confirm(options, target, "drop", what)
    else:
        note(f"nsq: all channels of {goal} get them", is_quiet=options.quiet)
    letters = Letters(options, place, goal, count, is_wanted)
    plan = IntakePlan(
        Topics((place.dead_topic,)),
        channel,
        min(options.max_in_flight, max(most, 1)),
        consumer_options(options, target, user_agent="nsq-dead", backoff=None),
        timeout_s=options.timeout,
        is_quiet=options.quiet,
        is_until_empty=True,
    )
    return await letters.run(Intake(plan, target), target)


async def _drop_all(options: argparse.Namespace, target: Target, place: Place, count: int) -> int:
    changes.confirm(options, target, "drop", f"drop {count:,} letters of {place.dead_topic}")
    made = []
    queries = [{"topic": place.dead_topic}]
    queries += [{"topic": place.dead_topic, "channel": name} for name in place.channels]
    async with Cluster(target, options.timeout) as cluster:
        for query in queries:
            if options.dry_run:
                outcomes = [Outcome(str(node)) for node in place.nodes]
            else:
                kind = "channel" if "channel" in query else "topic"
                path = f"/{kind}/empty?{urlencode(query)}"
                outcomes = await cluster.ask("POST", place.nodes, path)
            made += [Change("drop", "/".join(query.values()), each) for each in outcomes]
    return changes.report(options, made)


class Letters:
    """One replay, or a drop of some letters."""

    def __init__(
        self,
        options: argparse.Namespace,
        place: Place,
        goal: str,
        count: int,
        is_wanted: formats.Filter | None,
    ) -> None:
        """Args: count: letters that there were at the start; later ones are left alone."""
        self.done = 0
        self.kept = 0
        self._options = options
        self._place = place
        self._goal = goal
        self._left = count
        self._is_wanted = is_wanted
        self._producer: Producer | None = None

    async def run(self, running: Intake, target: Target) -> int:
        """Deal with the letters; return the exit code.

        Raises:
            CliError: it could not be done.
        """
        options = self._options
        if options.action == "replay":
            addresses = [node.tcp for node in self._place.nodes if node.tcp is not None]
            self._producer = Producer(
                *addresses,
                timeout=max(options.timeout, 1.0),
                user_agent="nsq-dead",
                **target.connection_options(),
            )
            await self._producer.start()

        async def handle(consumer: Consumer, _topic: str) -> None:
            await self._follow(consumer, running)

        verb = "replayed" if options.action == "replay" else "dropped"
        try:
            await running.run(handle, lambda: f"{self.done:,} {verb}")
        finally:
            if self._producer is not None:
                await self._producer.close(grace=0)
        if options.json:
            print_json({"action": options.action, "done": self.done, "kept": self.kept})
        else:
            note(
                f"{self.done:,} {verb}, {self.kept:,} kept, {running.seconds:.1f} s",
                is_quiet=options.quiet,
            )
        return ExitCode.DONE

    async def _follow(self, consumer: Consumer, running: Intake) -> None:
        """Deal with letters until enough are done, or all were seen.

        Raises:
            NsqError: they could not be published; those come again.
        """
        async for batch in consumer.batches(_BATCH_COUNT, 0.0):
            messages = list(batch)
            wanted = [each for each in messages if self._is_wanted is None or self._is_wanted(each)]
            if self._options.limit is not None:
                wanted = wanted[: self._options.limit - self.done]
            chosen = set(map(id, wanted))
            for message in messages:
                if id(message) not in chosen:
                    self.kept += 1
                    message.req(_LATER_S if self._is_wanted else 0, backoff=False)
            await self._deal_with(wanted)
            self._left -= len(messages)
            if self._left <= 0 or self.done == self._options.limit:
                running.stop()
                return

    async def _deal_with(self, messages: list[Message]) -> None:
        if self._producer is None:
            self._finish(messages)
            return
        step = 1 if self._options.rate else len(messages)
        for start in range(0, len(messages), max(step, 1)):
            group = messages[start : start + step]
            try:
                bodies = [message.body for message in group]
                await self._producer.publish_many(self._goal, bodies)
            except PublishError as error:
                self._finish(group[: error.confirmed_count])
                raise
            self._finish(group)
            if self._options.rate:
                await asyncio.sleep(1 / self._options.rate)

    def _finish(self, messages: list[Message]) -> None:
        Batch(messages).fin()
        self.done += len(messages)
