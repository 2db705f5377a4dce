"""The selection by the options: queues to read, known empty queues, unseen messages.

A batch read and a job take an inventory first. A topic that does not exist is an error here, once
for both; a stream waits for it.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from diskqueue.layout import join_queue_name
from spark_jobs.read.files.catalog import find_directories, find_queues
from spark_jobs.read.files.nsqd_dat import QueueName, describe_unseen, read_known_queues
from spark_jobs.read.fleet.lookup import find_nodes
from spark_jobs.read.fleet.manifest import Manifest, ManifestCache
from spark_jobs.read.fleet.snapshot import take_snapshot
from spark_jobs.read.options import Origin, ReadOptions
from spark_jobs.read.queue import Queue

_MAX_SHOWN_NAMES = 10


class NoSuchQueueError(ValueError):
    """Raised when a topic or channel that was asked for does not exist."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """The queues found, and the names of those that were not."""

    queues: list[Queue]
    # All queues that are selected and exist, also those with nothing to read.
    names: frozenset[QueueName]
    # Sentences about messages that exist, or may, and are not read.
    unseen: tuple[str, ...] = ()
    # Nodes that did not answer, with the reason.
    unreachable: tuple[tuple[str, str], ...] = ()

    @property
    def topics(self) -> list[str]:
        """The topics, sorted, also the empty ones."""
        return sorted({topic for topic, _ in self.names})


def take_inventory(options: ReadOptions) -> Inventory:
    """Find the queues that the options select.

    Raises:
        NoSuchQueueError: a topic or channel does not exist, and that is not allowed.
        FileNotFoundError: a directory does not exist.
        OSError: a file or directory cannot be read.
    """
    found = _look(options)
    if not options.allows_missing:
        check_names(options, found.names)
    return found


def _look(options: ReadOptions) -> Inventory:
    return _look_at_directories(options) if options.fleet is None else _look_at_nodes(options)


def _look_at_nodes(options: ReadOptions) -> Inventory:
    snapshot = take_snapshot(options)
    queues = snapshot.queues(options)
    names = frozenset((queue.topic, queue.channel) for queue in queues)
    failures = tuple((each.url, each.failure) for each in snapshot.failures)
    return Inventory(queues, names, tuple(reason for _, reason in failures), failures)


def _look_at_directories(options: ReadOptions) -> Inventory:
    queues = find_queues(options)
    names: set[QueueName] = {(queue.topic, queue.channel) for queue in queues}
    unseen = []
    for _, directory in find_directories(options):
        known = read_known_queues(directory)
        selected = {name for name in known.names if options.selects(*name)}
        if options.origin is Origin.ARCHIVE:
            names |= {(topic, None) for topic, _ in selected}
            continue
        here = {(queue.topic, queue.channel) for queue in queues if _is_in(queue, directory.name)}
        text = describe_unseen(replace(known, names=frozenset(selected)), here)
        if text is not None:
            unseen.append(text)
        names |= selected
    return Inventory(queues, frozenset(names), tuple(unseen))


def _is_in(queue: Queue, directory: str) -> bool:
    return queue.directory == directory and bool(queue.sizes)


def check_names(options: ReadOptions, names: Collection[QueueName]) -> None:
    """Refuse names that nothing has; a pattern may describe nothing.

    Raises:
        NoSuchQueueError: a topic or channel does not exist.
    """
    topics = {topic for topic, _ in names}
    channels = {channel for _, channel in names}
    missing = [f"topic={name}" for name in options.exact_topics if name not in topics]
    missing += [f"channel={name}" for name in options.exact_channels if name not in channels]
    if missing:
        _refuse(options, " ".join(missing))


def refuse_nothing(options: ReadOptions, found: Inventory) -> None:
    """Refuse a selection of nothing: people who ask for it have misspelt something.

    Raises:
        NoSuchQueueError: nothing is selected.
    """
    if not found.names:
        channels = "" if options.channels is None else f" channel={','.join(options.channels)}"
        _refuse(options, f"topic={','.join(options.topics)}{channels}")


def _refuse(options: ReadOptions, wanted: str) -> None:
    others = _find_names(replace(options, topics=("*",), topic_pattern=None, channels=None))
    raise NoSuchQueueError(
        f"no queue in {options.place} matches {wanted}; there are: {_join(others)}"
    )


def _find_names(options: ReadOptions) -> Iterable[QueueName]:
    if options.fleet is None:
        return _look_at_directories(options).names
    is_known = options.fleet.lookupd or options.fleet.nsqd
    urls = find_nodes(options.fleet) if is_known else []
    origin = "archive" if options.origin is Origin.ARCHIVE else "queue"
    answers = ManifestCache().fetch_all(urls, origin, options.fleet)
    return {
        (topic, channel or None)
        for answer in answers.values()
        if isinstance(answer, Manifest)
        for topic, channel in answer.names
    }


def _join(names: Iterable[QueueName]) -> str:
    texts = sorted(join_queue_name(topic, channel) for topic, channel in names)
    more = len(texts) - _MAX_SHOWN_NAMES
    return (", ".join(texts[:_MAX_SHOWN_NAMES]) or "none") + (
        f" and {more} more" if more > 0 else ""
    )
