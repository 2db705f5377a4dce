"""One look at all queues of a stream: where each ends, and which queue it is.

A stream looks once per micro-batch, and decides everything about the batch by that look.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from spark_jobs.read.files.catalog import find_queues
from spark_jobs.read.files.identity import find_identity, find_same, is_path, node_of_path
from spark_jobs.read.offsets import Mark, Position, QueueKey
from spark_jobs.read.options import Origin, ReadOptions
from spark_jobs.read.queue import Queue


@dataclass(frozen=True, slots=True)
class Look:
    """The queues that were there, by node and name; `taken_s` is on the monotonic clock."""

    queues: Mapping[QueueKey, Queue]
    # Queues that are there, but whose positions cannot be known: without metadata the end of a
    # queue may be within a record.
    unreadable: Mapping[QueueKey, Queue]
    taken_s: float

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


def take_look(options: ReadOptions) -> Look:
    """Look at the queues that the options select.

    Raises:
        OSError: a directory cannot be read.
        ValueError: two directories belong to one node.
    """
    taken_s = time.monotonic()
    queues: dict[QueueKey, Queue] = {}
    unreadable: dict[QueueKey, Queue] = {}
    for queue in find_queues(options):
        key = key_of(queue)
        other = queues.get(key) or unreadable.get(key)
        if other is not None:
            raise ValueError(
                f"{other.directory} and {queue.directory} are directories of the same nsqd; a"
                " stream can read one of them only, or each message would come twice"
            )
        (unreadable if queue.metadata is None else queues)[key] = queue
    return Look(queues, unreadable, taken_s)


def key_of(queue: Queue) -> QueueKey:
    """Return the key of a queue in offsets."""
    return queue.node_id or node_of_path(queue.directory), queue.name


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
