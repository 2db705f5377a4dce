"""One look at all queues of a stream: where each ends, and which queue it is.

A stream looks once per micro-batch, and decides everything about the batch by that look.
"""

import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass

from spark_jobs.read.files.catalog import find_queues
from spark_jobs.read.files.directory import Directory
from spark_jobs.read.files.identity import find_identity, find_same, is_path, node_of_path
from spark_jobs.read.fleet.lookup import find_nodes
from spark_jobs.read.fleet.manifest import Manifest, ManifestCache
from spark_jobs.read.offsets import Mark, Position, QueueKey, key_of
from spark_jobs.read.options import Origin, ReadOptions
from spark_jobs.read.queue import Queue

# The size and the time of a record.
_RECORD_START = struct.Struct(">iq")


@dataclass(frozen=True, slots=True)
class Look:
    """The queues that were there, by node and name; `taken_s` is on the monotonic clock."""

    queues: Mapping[QueueKey, Queue]
    # Queues that are there, but whose positions cannot be known: without metadata the end of a
    # queue may be within a record.
    unreadable: Mapping[QueueKey, Queue]
    taken_s: float
    # Sentences about nodes that did not answer.
    unreachable: tuple[str, ...] = ()

    def end_of(self, key: QueueKey) -> Mark:
        """Return where a queue ends, with its identity.

        Raises:
            OSError: a file cannot be read.
        """
        queue = self.queues[key]
        position = Position(*queue.synced_position())
        return Mark(position, find_identity(queue, *position))

    def find_new_names(self, known: Mapping[QueueKey, Mark]) -> dict[QueueKey, QueueKey]:
        """Find queues that an offset knows by another key, as by a path when there is an id now.

        Raises:
            OSError: a file cannot be read.
        """
        names: dict[QueueKey, QueueKey] = {}
        gone = [key for key in known if key not in self.queues and is_path(key[0])]
        for key, queue in self.queues.items():
            if key in known:
                continue
            by_path = node_of_path(queue.directory), queue.name
            if by_path in known:
                names[by_path] = key
                continue
            for other in gone:
                # A directory without an id that was moved: its first records prove it.
                if other[1] == queue.name and find_same(queue, known[other].identity):
                    names[other] = key
        return names


def take_look(options: ReadOptions, manifests: ManifestCache | None = None) -> Look:
    """Look at the queues that the options select.

    Args:
        manifests: earlier answers of the nodes, so that unchanged answers are small.

    Raises:
        NodeError: no nsqlookupd answers.
        OSError: a directory cannot be read.
        ValueError: two directories belong to one node.
    """
    taken_s = time.monotonic()
    queues: dict[QueueKey, Queue] = {}
    unreadable: dict[QueueKey, Queue] = {}
    found, unreachable = _find(options, manifests or ManifestCache())
    for queue in found:
        key = key_of(queue)
        other = queues.get(key) or unreadable.get(key)
        if other is not None:
            raise ValueError(
                f"{other.directory} and {queue.directory} are directories of the same nsqd, or one"
                " has a copy of the other's (nsqd.node); a stream can read one of them only, or"
                " each message would come twice"
            )
        (unreadable if queue.metadata is None else queues)[key] = queue
    return Look(queues, unreadable, taken_s, unreachable)


def _find(options: ReadOptions, manifests: ManifestCache) -> tuple[list[Queue], tuple[str, ...]]:
    fleet = options.fleet
    if fleet is None:
        return find_queues(options), ()
    origin = "archive" if options.origin is Origin.ARCHIVE else "queue"
    queues: list[Queue] = []
    failures: list[str] = []
    seen: set[str] = set()
    topic = ",".join(options.topics)
    answers = manifests.fetch_all(find_nodes(fleet), origin, fleet, topic=topic)
    for url, answer in answers.items():
        if not isinstance(answer, Manifest):
            failures.append(str(answer))
        elif answer.run_id not in seen:  # else the same node under another address
            seen.add(answer.run_id)
            queues += answer.queues(options.node or url.partition("://")[2])
    selected = [queue for queue in queues if options.selects(queue.topic, queue.channel)]
    return selected, tuple(failures)


def first_position(queue: Queue, origin: Origin) -> Position:
    """Return the position where reading of a queue begins."""
    synced = Position(*queue.synced_position())
    if origin is Origin.LATEST:
        return synced
    if origin is not Origin.EARLIEST and queue.metadata is not None:
        return Position(queue.metadata.read_file, queue.metadata.read_pos)
    if not queue.sizes:
        return synced
    return min(Position(min(queue.sizes), 0), synced)


def first_time_ns(queue: Queue) -> int | None:
    """Return the time of the oldest record on disk that is not consumed; None if nothing tells.

    Of a running node it is that of the first record of its segment.

    Raises:
        OSError: a file cannot be read.
    """
    ranges = queue.ranges(ReadOptions(()))
    return read_time_ns(queue, ranges[0].number, ranges[0].start) if ranges else None


def read_time_ns(queue: Queue, number: int, offset: int) -> int | None:
    """Return the time of the record at a position; over HTTP, of the first in its segment.

    Raises:
        OSError: a file cannot be read.
    """
    if queue.is_remote:
        return queue.first_ns.get(number)
    start = read_at(queue, number, offset, _RECORD_START.size)
    return _RECORD_START.unpack(start)[1] if len(start) == _RECORD_START.size else None


def read_at(queue: Queue, number: int, offset: int, size: int) -> bytes:
    """Read some bytes of a segment; none if it is gone.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        with Directory(queue.directory, queue.store).open_file(queue.file_name(number)) as file:
            file.seek(offset)
            content: bytes = file.read(size)
            return content
    except FileNotFoundError:
        return b""
