"""Count messages by reading them, without Spark: per queue, with sizes, times and damage.

    nsqd-spark count /var/lib/nsqd --topic orders --since 1h
    nsqd-spark count --lookupd 127.0.0.1:4161

For questions that need no SQL: the answer is there before a JVM would have started.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from spark_jobs.jobs.job import (
    Selection,
    add_source_arguments,
    format_bytes,
    parse_arguments,
    plural,
    run_job,
)
from spark_jobs.jobs.progress import Progress
from spark_jobs.jobs.sql import format_table
from spark_jobs.read.columns import DAMAGE_COLUMN, arrow_schema, message_schema
from spark_jobs.read.files.scan import DamagedSegmentError, SegmentLostError
from spark_jobs.read.fleet.client import NodeError
from spark_jobs.read.plan import plan_with_damage
from spark_jobs.read.reader import read_partition
from spark_jobs.session import JobError

_COLUMNS = ("node", "topic", "channel", "timestamp_ns", "attempts", "size", DAMAGE_COLUMN)
_SHOWN = ("node", "topic", "channel", "messages", "bytes", "oldest", "newest", "attempts")

_Key = tuple[str, str, str | None]


@dataclass(slots=True)
class Count:
    """The messages of one queue."""

    message_count: int = 0
    byte_count: int = 0
    oldest_ns: int | None = None
    newest_ns: int | None = None
    attempts_max: int = 0

    def add(self, other: "Count") -> None:
        """Add another count of the same queue."""
        self.message_count += other.message_count
        self.byte_count += other.byte_count
        oldest = [each.oldest_ns for each in (self, other) if each.oldest_ns is not None]
        newest = [each.newest_ns for each in (self, other) if each.newest_ns is not None]
        self.oldest_ns = min(oldest, default=None)
        self.newest_ns = max(newest, default=None)
        self.attempts_max = max(self.attempts_max, other.attempts_max)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this command."""
    add_source_arguments(parser)


def run(args: argparse.Namespace) -> None:
    """Count the messages.

    Raises:
        JobError: the arguments are wrong, or messages cannot be read.
    """
    progress = Progress()
    selection = Selection(args)
    progress.step(f"reading {selection.describe()}")
    counts: dict[_Key, Count] = {
        (queue.node, queue.topic, queue.channel): Count() for queue in selection.queues
    }
    try:
        damage_count = count_messages(selection, counts)
    except (ValueError, OSError, NodeError, SegmentLostError, DamagedSegmentError) as error:
        raise JobError(str(error)) from error
    rows = [
        (
            *key,
            count.message_count,
            format_bytes(count.byte_count),
            _moment(count.oldest_ns),
            _moment(count.newest_ns),
            count.attempts_max,
        )
        for key, count in sorted(counts.items(), key=lambda item: (*item[0][:2], item[0][2] or ""))
    ]
    print(format_table(_SHOWN, rows))
    total = sum(count.message_count for count in counts.values())
    size = format_bytes(sum(count.byte_count for count in counts.values()))
    damage = f", {plural(damage_count, 'damaged place')} skipped" if damage_count else ""
    progress.step(f"{plural(total, 'message')}, {size}{damage}")


def count_messages(selection: Selection, counts: dict[_Key, Count]) -> int:
    """Add the messages of a selection to counts by queue; return how many places are damaged."""
    options = selection.options
    schema = arrow_schema(message_schema(_COLUMNS))

    def count(partition: InputPartition) -> tuple[dict[_Key, Count], int]:
        found: dict[_Key, Count] = {}
        damage_count = 0
        for batch in read_partition(partition, schema, options):
            if batch[DAMAGE_COLUMN].null_count < batch.num_rows:
                damage_count += batch.num_rows
                continue
            node, topic, channel = (batch[name][0].as_py() for name in _COLUMNS[:3])
            found.setdefault((node, topic, channel), Count()).add(_count_batch(batch))
        return found, damage_count

    total = 0
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for found, damage_count in pool.map(count, plan_with_damage(options)):
            total += damage_count
            for key, each in found.items():
                counts.setdefault(key, Count()).add(each)
    return total


def _count_batch(batch: pa.RecordBatch) -> Count:
    times = pc.min_max(batch["timestamp_ns"]).as_py()
    return Count(
        batch.num_rows,
        pc.sum(batch["size"]).as_py(),
        times["min"],
        times["max"],
        pc.max(batch["attempts"]).as_py(),
    )


def _moment(time_ns: int | None) -> str:
    if time_ns is None:
        return ""
    return datetime.fromtimestamp(time_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser("count.py", description="Count the messages of nsqd.")
    add_arguments(parser)
    return run_job(run, parse_arguments(parser, argv))


if __name__ == "__main__":
    sys.exit(main())
