"""The manifest of a node: where its queues begin and end, without a lease.

Streams and `nsqd-spark queues` look at it, again and again: a manifest that has not changed costs
one small answer.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from diskqueue.layout import Metadata, join_queue_name
from spark_jobs.read.fleet.client import NodeClient, NodeError, find_client
from spark_jobs.read.fleet.options import FleetOptions
from spark_jobs.read.queue import Queue

_FORMAT = 1
_THREADS = 16


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of one node, as it answered."""

    url: str
    document: Mapping[str, Any]
    etag: str | None = None

    @property
    def names(self) -> set[tuple[str, str]]:
        """Topics and channels; the channel of a topic's own queue is empty."""
        return {(each["topic"], each["channel"] or "") for each in self.document["queues"]}

    @property
    def node_id(self) -> str:
        """The id of the node; its archive is told apart."""
        node_id: str = self.document["node_id"]
        return f"{node_id}/archive" if self.document["from"] == "archive" else node_id

    @property
    def run_id(self) -> str:
        """The id of the process, by which a node is known that was asked under two addresses."""
        # An nsqd of before this was told has its data's only.
        run_id: str = self.document.get("run_id") or self.node_id
        return run_id

    def queues(self, node: str) -> list[Queue]:
        """Return the queues; records behind the synced position are not part of them."""
        return [self._queue(node, entry) for entry in self.document["queues"]]

    def _queue(self, node: str, entry: Mapping[str, Any]) -> Queue:
        queue = Queue(node, self.url, join_queue_name(entry["topic"], entry["channel"]))
        queue.node_id = self.node_id
        queue.generation = entry["generation"]
        queue.counts = dict(entry["counts"])
        queue.metadata = Metadata(queue.counts.get("disk", 0), *entry["read"], *entry["synced"])
        # An nsqd of before these were written down does not tell them.
        queue.waiting_bytes = entry.get("waiting_bytes")
        queue.front_ns = entry.get("front_ns")
        if (deleted := entry.get("last_deleted")) is not None:
            queue.last_deleted = deleted[0], deleted[1]
        for each in entry["segments"]:
            queue.sizes[each["number"]] = each["end"]
            if each["first_ns"] is not None:
                queue.first_ns[each["number"]] = each["first_ns"]
        return queue


def fetch_manifest(
    client: NodeClient, origin: str, *, known: Manifest | None = None, topic: str = "*"
) -> Manifest:
    """Ask a node for its manifest; `known` is the answer if nothing has changed since.

    Raises:
        NodeError: the node cannot be reached, or refuses.
    """
    headers = {"If-None-Match": known.etag} if known is not None and known.etag else {}
    target = f"/segments?{urlencode({'from': origin, 'topic': topic})}"
    document, etag = client.fetch_json("GET", target, None, headers)
    if document is None:
        if known is None:
            raise NodeError(f"node {client.name}: an empty answer for its manifest")
        return known
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise NodeError(f"node {client.name}: not a manifest of format {_FORMAT}")
    return Manifest(client.url, document, etag)


class ManifestCache:
    """The last manifest of each node, so that the next look asks only for changes."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], Manifest] = {}

    def fetch_all(
        self, urls: list[str], origin: str, options: FleetOptions, *, topic: str = "*"
    ) -> dict[str, Manifest | NodeError]:
        """Ask all nodes at a time; a node that does not answer has its error in the result."""

        def fetch(url: str) -> Manifest | NodeError:
            client = find_client(url, options, "manifest")
            try:
                known = self._known.get((url, origin, topic))
                return fetch_manifest(client, origin, known=known, topic=topic)
            except NodeError as error:
                return error

        with ThreadPoolExecutor(max(min(_THREADS, len(urls)), 1)) as pool:
            answers = dict(zip(urls, pool.map(fetch, urls), strict=True))
        for url, answer in answers.items():
            if isinstance(answer, Manifest):
                self._known[url, origin, topic] = answer
        return answers

    def __getstate__(self) -> dict[str, object]:
        """Leave the documents on the driver when Spark pickles the reader."""
        return {"_known": {}}
