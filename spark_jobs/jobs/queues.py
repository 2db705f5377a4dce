"""List nodes and queues: lag, messages by place, offsets, history. No Spark is started.

    nsqd-spark queues --lookupd 127.0.0.1:4161
    nsqd-spark queues /var/lib/nsqd --json

The figures are those that nsqd keeps; `count` reads the messages and counts them. In a directory
only what is on disk can be seen. With --json also the offsets, as the options startingOffsets and
endingOffsets take them.

The lag of a channel is what its consumers have not finished of all that was published: what the
channel has, in any place, and what waits in the topic's own queue to be handed to it (the topic is
paused, or just gets its channels). The lag of a topic's own queue is what waits there. History is
nobody's to finish, and has no lag.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from diskqueue.layout import join_queue_name
from spark_jobs.jobs.job import (
    add_place_arguments,
    format_bytes,
    parse_arguments,
    place_options,
    plural,
    run_job,
)
from spark_jobs.jobs.sql import format_table
from spark_jobs.read.files.catalog import find_directories
from spark_jobs.read.files.directory import Directory
from spark_jobs.read.files.identity import find_identity
from spark_jobs.read.files.nsqd_dat import read_known_queues
from spark_jobs.read.fleet.client import NodeError, RefusedError
from spark_jobs.read.fleet.lookup import find_nodes
from spark_jobs.read.fleet.manifest import Manifest, ManifestCache
from spark_jobs.read.inventory import check_names, take_inventory
from spark_jobs.read.look import first_time_ns
from spark_jobs.read.offsets import Mark, Position, StreamOffset, key_of
from spark_jobs.read.options import Origin, ReadOptions, parse_read_options
from spark_jobs.read.queue import Queue
from spark_jobs.session import JobError

_COLUMNS = (
    *("node", "topic", "channel", "lag", "lag_bytes", "memory", "in_flight", "deferred", "disk"),
    *("memory_share", "oldest", "read", "write", "kept", "kept_bytes", "kept_since"),
)
_PLACES = ("memory", "in_flight", "deferred", "disk")
_BYTES = ("lag_bytes", "kept_bytes")
_UNSEEN = "not seen"

_Row = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this command."""
    add_place_arguments(parser)
    parser.add_argument("--topic", metavar="NAMES", help="topics: names or patterns, with commas")
    parser.add_argument("--channel", metavar="NAMES", help="channels, likewise")
    parser.add_argument("--json", action="store_true", help="print JSON, with the offsets")


def run(args: argparse.Namespace) -> None:
    """List the queues.

    Raises:
        JobError: the arguments are wrong, or a node does not answer.
    """
    given = place_options(args)
    for name in ("topic", "channel"):
        if getattr(args, name) is not None:
            given[name] = getattr(args, name)
    try:
        options = parse_read_options(given | ({"path": "x"} if args.data_dir else {}))
        if args.data_dir:
            options = replace(options, paths=tuple(args.data_dir))
            found = _look_at_directories(options)
        else:
            found = _ask_nodes(options)
    except (ValueError, OSError, NodeError) as error:
        raise JobError(str(error)) from error
    rows = [
        row
        for row in make_rows(found.queues, found.kept)
        if options.selects(row["topic"], row["channel"])
    ]
    if args.json:
        selected = [each for each in found.queues if options.selects(each.topic, each.channel)]
        document = {
            "nodes": found.nodes,
            "queues": rows,
            "offsets": offsets_of(selected),
            "unreachable": found.failures,
        }
        print(json.dumps(document))
    else:
        _show(rows, len(found.nodes))
    if found.failures:
        raise JobError("; ".join(found.failures))


@dataclass(slots=True)
class _Found:
    """Nodes, all queues of the topics, the history of these, and why others did not answer."""

    nodes: list[str]
    queues: list[Queue]
    kept: list[Queue]
    failures: list[str] = field(default_factory=list)


def _look_at_directories(options: ReadOptions) -> _Found:
    for text in take_inventory(options).unseen:
        print(f"warning: {text}", file=sys.stderr)
    of_topics = replace(options, channels=None, allows_missing=True)
    queues = take_inventory(of_topics).queues
    kept = take_inventory(replace(of_topics, origin=Origin.ARCHIVE)).queues
    places = find_directories(options)
    queues += _known_only(places, queues, of_topics)
    return _Found([node for node, _ in places], queues, kept)


def _known_only(
    places: Iterable[tuple[str, Directory]], queues: Iterable[Queue], options: ReadOptions
) -> Iterator[Queue]:
    """Give the queues that nsqd.dat names and that have no files: they may be in memory."""
    seen = {(queue.directory, queue.name) for queue in queues}
    for node, directory in places:
        for topic, channel in read_known_queues(directory).names:
            name = join_queue_name(topic, channel)
            if (directory.name, name) not in seen and options.selects(topic, channel):
                yield Queue(node, directory.name, name)


def _ask_nodes(options: ReadOptions) -> _Found:
    fleet = options.fleet
    assert fleet is not None
    urls = find_nodes(fleet)
    of_topics = replace(options, channels=None)
    cache = ManifestCache()
    nodes: dict[str, str] = {}  # process -> address
    failures: dict[str, str] = {}
    found: dict[str, list[Queue]] = {"queue": [], "archive": []}
    for origin, queues in found.items():
        for url, answer in cache.fetch_all(urls, origin, fleet).items():
            address = url.partition("://")[2]
            if not isinstance(answer, Manifest):
                if not (isinstance(answer, RefusedError) and answer.code == "ARCHIVE_DISABLED"):
                    failures[address] = str(answer)
            elif nodes.setdefault(answer.run_id, address) == address:
                # Else it is the same node, asked under another address.
                queues += [
                    each
                    for each in answer.queues(address)
                    if of_topics.selects(each.topic, each.channel)
                ]
    if not failures:
        check_names(options, {(each.topic, each.channel) for each in found["queue"]})
    addresses = sorted({*nodes.values(), *failures})
    return _Found(addresses, found["queue"], found["archive"], list(failures.values()))


def make_rows(queues: Iterable[Queue], kept: Iterable[Queue]) -> list[_Row]:
    """Make a row of each queue, with its lag, and the history of its topic."""
    history = {(queue.node, queue.topic): queue for queue in kept}
    found = {(queue.node, queue.topic, queue.channel): queue for queue in queues}
    rows = []
    for (node, topic, channel), queue in found.items():
        lagging = [queue]
        if channel is not None and (own := found.get((node, topic, None))) is not None:
            lagging.append(own)
        row = _row(queue, history.get((node, topic)))
        row["lag"] = _add(each.unfinished_count for each in lagging)
        row["lag_bytes"] = _add(each.unfinished_bytes for each in lagging)
        rows.append(row)
    return sorted(rows, key=lambda row: (row["node"], row["topic"], row["channel"] or ""))


def _add(counts: Iterable[int | None]) -> int | None:
    """Add what is known; None if nothing is."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _row(queue: Queue, kept: Queue | None) -> _Row:
    counts: dict[str, int | None] = dict.fromkeys(_PLACES)
    counts |= queue.counts
    if not queue.counts:
        counts["disk"] = queue.unfinished_count
    total = sum(count for count in counts.values() if count is not None)
    memory = counts["memory"]
    metadata = queue.metadata
    return {
        "node": queue.node,
        "topic": queue.topic,
        "channel": queue.channel,
        "messages": total,
        **{name: counts[name] for name in _PLACES},
        "memory_share": None if memory is None else round(memory / total, 3) if total else 0.0,
        "bytes": sum(each.end - each.start for each in queue.ranges(ReadOptions(()))),
        "oldest": _moment(_find_oldest(queue)) if total else None,
        "read": None if metadata is None else f"{metadata.read_file}:{metadata.read_pos}",
        "write": None if metadata is None else f"{metadata.write_file}:{metadata.write_pos}",
        "kept": None if kept is None else kept.unfinished_count,
        "kept_bytes": None if kept is None else sum(kept.sizes.values()),
        "kept_since": None if kept is None else _moment(first_time_ns(kept)),
    }


def _find_oldest(queue: Queue) -> int | None:
    """Return the time of the oldest message that is known: memory may have older ones than disk."""
    known = [each for each in (queue.front_ns, first_time_ns(queue)) if each is not None]
    return min(known, default=None)


def _moment(time_ns: int | None) -> str | None:
    if time_ns is None:
        return None
    return datetime.fromtimestamp(time_ns // 10**9, UTC).isoformat().replace("+00:00", "Z")


def offsets_of(queues: Iterable[Queue]) -> dict[str, Any]:
    """Return where the queues end, as a checkpoint has it."""
    marks = {}
    for queue in queues:
        if queue.metadata is not None:
            position = Position(*queue.synced_position())
            marks[key_of(queue)] = Mark(position, find_identity(queue, *position))
    return StreamOffset(marks, {}).to_json()


def _show(rows: list[_Row], node_count: int) -> None:
    has_history = any(row["kept"] is not None for row in rows)
    columns = [name for name in _COLUMNS if has_history or not name.startswith("kept")]
    print(format_table(columns, [tuple(_cell(row, name) for name in columns) for row in rows]))
    total = sum(row["messages"] for row in rows)
    size = format_bytes(sum(row["bytes"] for row in rows))
    counts = f"{plural(node_count, 'node')}, {plural(len(rows), 'queue')}"
    print(f"{counts}, {plural(total, 'message')}, {size} on disk")


def _cell(row: _Row, name: str) -> object:
    value = row[name]
    if value is None and name in (*_PLACES, "lag", "lag_bytes"):
        return _UNSEEN
    if value is None:
        return ""
    if name in _BYTES:
        return format_bytes(value)
    return f"{value:.0%}" if name == "memory_share" else value


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser("queues.py", description="List the queues of nsqd.")
    add_arguments(parser)
    return run_job(run, parse_arguments(parser, argv))


if __name__ == "__main__":
    sys.exit(main())
