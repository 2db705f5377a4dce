"""Figures of a stream, part of `latestOffset` in a query's lastProgress.

Spark asks a Python source for no metrics of its own, but for the latest offset, which it shows and
stores nowhere: the figures stand there, beside the positions.

    {"queues": 3, "lagBytes": 52000, "lagMessages": 260, "oldestUnread": "2026-01-31T12:00:00Z",
     "damage": 0, "unreachable": 0}

`lagMessages` is exact for queues that are read to their end, and estimated from the mean size of a
record on disk for others. `oldestUnread` is the time of the oldest record that is not read yet.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from spark_jobs.read.look import Look, read_time_ns
from spark_jobs.read.offsets import Position, QueueKey
from spark_jobs.read.options import ReadOptions
from spark_jobs.read.queue import Queue


def measure(
    look: Look, reached: Mapping[QueueKey, Position], options: ReadOptions
) -> dict[str, Any]:
    """Measure how far a query, which has reached these positions, is behind.

    Raises:
        OSError: a file cannot be read.
    """
    lag_bytes = lag_messages = damage = 0
    oldest: list[int] = []
    for key, queue in look.queues.items():
        first = reached.get(key) or Position(min(queue.sizes, default=0), 0)
        behind = _bytes_behind(queue, first)
        damage += sum(each.kind not in ("unsynced", "missing") for each in queue.problems())
        if behind:
            lag_bytes += behind
            lag_messages += _estimate_messages(queue, behind, options)
            time_ns = read_time_ns(queue, *first)
            oldest += [] if time_ns is None else [time_ns]
    return {
        "queues": len(look.queues),
        "lagBytes": lag_bytes,
        "lagMessages": lag_messages,
        "oldestUnread": _moment(min(oldest)) if oldest else None,
        "damage": damage + len(look.unreadable),
        "unreachable": len(look.unreachable),
    }


def _bytes_behind(queue: Queue, first: Position) -> int:
    last = Position(*queue.synced_position())
    total = 0
    for number, size in queue.sizes.items():
        start = first.offset if number == first.segment else 0
        end = last.offset if number == last.segment else size
        if first.segment <= number <= last.segment:
            total += max(end - start, 0)
    return total


def _estimate_messages(queue: Queue, behind: int, options: ReadOptions) -> int:
    """Estimate by the mean size of the records that nsqd counts: those that are not consumed."""
    depth = 0 if queue.metadata is None else queue.metadata.depth
    size = sum(each.end - each.start for each in queue.ranges(options))
    return max(round(behind * depth / size), 1) if size and depth > 0 else 0


def _moment(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns // 10**9, UTC).isoformat().replace("+00:00", "Z")
