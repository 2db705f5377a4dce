"""Query: which queues a request for a snapshot or a manifest names."""

import fnmatch
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from nsqd.broker.broker import Broker
from nsqd.broker.topic import Topic

MAX_PATTERN_BYTES = 64 * 1024

_PATTERN = re.compile(r"[.a-zA-Z0-9_\-#*?\[\]!,]+")


class Source(Enum):
    """Where the messages are: those that wait, or the history."""

    QUEUE = "queue"
    ARCHIVE = "archive"


@dataclass(frozen=True, slots=True)
class Query:
    """A choice of queues, by patterns or by exact names."""

    source: Source
    topics: re.Pattern[str]
    # None: all channels, and the topics' own queues; not for archives.
    channels: re.Pattern[str] | None = None
    # Instead of the patterns: the channels of each topic, None for its own queue or its archive.
    names: dict[str, set[str | None]] | None = None

    def find_topics(self, broker: Broker) -> Iterator[str]:
        """Give the names of the topics, each looked at when it is its turn."""
        for name in list(broker.topics):
            if name in self.names if self.names is not None else self.topics.fullmatch(name):
                yield name

    def find_queues(self, topic: Topic) -> Iterator[str | None]:
        """Give the names of the channels of a topic; None, which comes first, is its own queue."""
        if self.names is not None:
            names = self.names.get(topic.name, set())
            if None in names:
                yield None
            yield from (name for name in list(topic.channels) if name in names)
            return
        if self.channels is None:
            yield None
        for name in list(topic.channels):
            if self.channels is None or self.channels.fullmatch(name):
                yield name


def compile_patterns(text: str) -> re.Pattern[str]:
    """Return shell patterns, separated by commas, as one regular expression.

    Raises:
        ValueError: it is no pattern of names.
    """
    if len(text) > MAX_PATTERN_BYTES or _PATTERN.fullmatch(text) is None:
        raise ValueError("not a pattern of names")
    return re.compile("|".join(fnmatch.translate(part) for part in text.split(",")))


def parse_names(body: bytes) -> dict[str, set[str | None]]:
    """Return the exact names in the body of a request.

    Raises:
        ValueError: it is not what the contract says.
    """
    document = json.loads(body)
    if not isinstance(document, dict) or not isinstance(document.get("queues"), list):
        raise ValueError("no list of queues")
    names: dict[str, set[str | None]] = {}
    for pair in document["queues"]:
        match pair:
            case [str() as topic, (str() | None) as channel]:
                names.setdefault(topic, set()).add(channel)
            case _:
                raise ValueError("not a topic and a channel")
    return names
