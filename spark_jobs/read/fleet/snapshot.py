"""Snapshots of nodes as queues: everything that waits there at one moment, wherever it is.

A snapshot is taken by the driver, one of each node, and read by the executors under its lease. The
documents can be put into a file, so that several reads see the same moment: `keep_snapshot`.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np

from diskqueue.layout import join_queue_name
from spark_jobs.read.fleet.client import NodeError, find_client
from spark_jobs.read.fleet.leases import Lease, LeaseKeeper, format_lease, release
from spark_jobs.read.fleet.lookup import find_nodes
from spark_jobs.read.fleet.manifest import fetch_manifest
from spark_jobs.read.fleet.options import FleetOptions
from spark_jobs.read.options import Origin, ReadOptions
from spark_jobs.read.queue import FinishedRecords, Part, Problem, Queue

_FORMAT = 1
_THREADS = 16
_READY = "ready"


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """The answer of one node to POST /snapshot; or the reason why there is none."""

    url: str
    document: Mapping[str, Any] | None
    failure: str = ""

    @property
    def lease(self) -> Lease | None:
        """The lease, if there is one."""
        return None if self.document is None else Lease(self.url, self.document["lease"]["id"])


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """The snapshots of all nodes."""

    nodes: tuple[NodeSnapshot, ...]

    @property
    def leases(self) -> list[Lease]:
        """The leases of all nodes."""
        return [each.lease for each in self.nodes if each.lease is not None]

    @property
    def failures(self) -> list[NodeSnapshot]:
        """The nodes that did not answer."""
        return [each for each in self.nodes if each.document is None]

    def queues(self, options: ReadOptions) -> list[Queue]:
        """Return the queues that the options select, by node and name."""
        found: list[Queue] = []
        for each in self.nodes:
            if each.document is not None:
                found += _queues_of(each.url, each.document, options)
        return found


def take_snapshot(options: ReadOptions) -> FleetSnapshot:
    """Take a snapshot of every node, or read those that are taken already.

    Raises:
        NodeError: nsqlookupd does not answer; or a node does not, and failOnDataLoss is true.
    """
    fleet = options.fleet
    assert fleet is not None
    if fleet.snapshot_file is not None:
        return _read_file(fleet.snapshot_file)
    urls = find_nodes(fleet)
    with ThreadPoolExecutor(min(_THREADS, len(urls))) as pool:
        nodes = list(pool.map(lambda url: _take_of_node(url, options, fleet), urls))
    taken = FleetSnapshot(tuple(_without_copies(nodes, fleet)))
    if taken.failures and options.fails_on_data_loss:
        release(taken.leases, fleet)
        reasons = "; ".join(each.failure for each in taken.failures)
        raise NodeError(
            f"{reasons}; set failOnDataLoss=false (jobs: --skip-consumed) to read the other nodes"
        )
    return taken


@contextmanager
def keep_snapshot(options: ReadOptions) -> Iterator[tuple[FleetSnapshot, str]]:
    """Take a snapshot and keep it until the block ends; yield it, and a file for snapshotFile.

    Raises:
        NodeError: a node cannot be reached, as in `take_snapshot`.
    """
    fleet = options.fleet
    assert fleet is not None
    taken = take_snapshot(options)
    keeper = LeaseKeeper(taken.leases, fleet)
    try:
        with tempfile.TemporaryDirectory(prefix="nsqd-spark-") as directory:
            path = Path(directory) / "snapshot.json"
            document = [
                {"url": each.url, "document": each.document, "failure": each.failure}
                for each in taken.nodes
            ]
            path.write_text(json.dumps(document))
            yield taken, str(path)
    finally:
        keeper.close()


def _read_file(path: str) -> FleetSnapshot:
    try:
        return FleetSnapshot(
            tuple(NodeSnapshot(**each) for each in json.loads(Path(path).read_text()))
        )
    except FileNotFoundError:
        raise NodeError(
            "the snapshot has ended: it lasts as long as its `with snapshot(...)`"
        ) from None


def _take_of_node(url: str, options: ReadOptions, fleet: FleetOptions) -> NodeSnapshot:
    try:
        client = find_client(url, fleet, "snapshot")
        query = {"from": _origin(options), "lease": format_lease(fleet.lease_s)}
        body = None
        is_by_names = options.topic_pattern is not None or "" in (options.channels or ())
        if is_by_names:
            names = fetch_manifest(client, query["from"]).names
            selected = sorted(
                [topic, channel]
                for topic, channel in names
                if options.selects(topic, channel or None)
            )
            body = json.dumps(
                {"queues": [[topic, channel or None] for topic, channel in selected]}
            ).encode()
        else:
            query["topic"] = ",".join(options.topics)
            if options.channels is not None and options.origin is not Origin.ARCHIVE:
                query["channel"] = ",".join(options.channels)
        document, _ = client.fetch_json("POST", f"/snapshot?{urlencode(query)}", body)
        _check(url, document)
    except NodeError as error:
        return NodeSnapshot(url, None, str(error))
    return NodeSnapshot(url, document)


def _origin(options: ReadOptions) -> str:
    return "archive" if options.origin is Origin.ARCHIVE else "queue"


def _check(url: str, document: Any) -> None:
    version = document.get("format") if isinstance(document, dict) else None
    if version != _FORMAT:
        raise NodeError(f"node {url}: its snapshot has the format {version!r}, not {_FORMAT}")


def _without_copies(nodes: list[NodeSnapshot], fleet: FleetOptions) -> Iterator[NodeSnapshot]:
    """Drop a node that was asked under two addresses."""
    seen: set[str] = set()
    for each in nodes:
        if each.document is not None:
            # Two nodes may have the same node_id: one was started with a copy of the other's data.
            run_id = each.document.get("run_id") or each.document["node_id"]
            if run_id in seen:
                assert each.lease is not None
                release([each.lease], fleet)
                continue
            seen.add(run_id)
        yield each


def _queues_of(url: str, document: Mapping[str, Any], options: ReadOptions) -> Iterator[Queue]:
    node = options.node or url.partition("://")[2]
    for entry in document["queues"]:
        topic, channel = entry["topic"], entry["channel"]
        if options.selects(topic, channel):
            name = join_queue_name(topic, channel)
            queue = Queue(node, url, name, lease=document["lease"]["id"])
            _fill(queue, document, entry)
            yield queue


def _fill(queue: Queue, document: Mapping[str, Any], entry: Mapping[str, Any]) -> None:
    queue.node_id = document["node_id"]
    if document["from"] == "archive":
        queue.node_id += "/archive"
    queue.generation = entry["generation"]
    queue.taken_ns = entry["taken_ns"]
    queue.counts = dict(entry["counts"])
    bounds = {}
    faults = []
    for each in entry["segments"]:
        number = each["number"]
        if "error" in each:
            faults.append(
                Problem("missing", number, each["start"], None, each["error"], each["file"])
            )
            continue
        queue.sizes[number] = each["end"]
        queue.starts[number] = each["start"]
        if each["first_ns"] is not None:
            queue.first_ns[number] = each["first_ns"]
        if each["finished"]:
            bounds[number] = np.array(each["finished"], np.int64).tobytes()
    queue.finished = FinishedRecords(bounds)
    queue.faults = tuple(faults)
    queue.parts = tuple(
        Part(each["file"], each["state"], each["count"], each["bytes"], each["due_file"] or "")
        for each in entry.get("parts", ())
        if each["count"]
    )
    due = entry.get("due")
    if due is not None and due["count"]:
        queue.due = Part(due["file"], _READY, due["count"], due["bytes"])


def with_file(options: ReadOptions, path: str) -> ReadOptions:
    """Return the options of a read of a snapshot that is taken already."""
    assert options.fleet is not None
    return replace(options, fleet=replace(options.fleet, snapshot_file=path))
