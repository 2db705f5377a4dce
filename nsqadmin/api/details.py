"""Details of /api/v2: one topic, channel or node, and the list of nodes.

Figures are the collector's; with `fresh=1` the nodes concerned are asked now. Options, memory and
the time that a tombstone has left are always asked for.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final
from urllib.parse import quote

from nsqadmin.access.roles import Caller, Right
from nsqadmin.api.detail_shapes import (
    Object,
    show_channel,
    show_node,
    show_node_topics,
    show_nodes,
    show_topic,
)
from nsqadmin.api.figures import find_since
from nsqadmin.api.go_shapes import find_newest
from nsqadmin.api.replies import ApiRouter, encode, json_reply, not_modified
from nsqadmin.api.shared import RoundDocuments, SharedQuestions
from nsqadmin.cluster.collector import Collector
from nsqadmin.cluster.figures import BadStatsError, KeyTable, Sample, read_sample
from nsqadmin.cluster.upstream import Upstream, UpstreamError
from nsqadmin.cluster.view import Node, View
from nsqd.http.server import HttpError, Request, Response
from nsqd.protocol.names import is_valid_channel_name, is_valid_topic_name

# Of nsqlookupd, unless its flag says otherwise; it does not tell.
TOMBSTONE_LIFETIME_S: Final = 45.0
OPTIONS: Final = (
    *("log_level", "msg_timeout", "max_msg_timeout", "max_msg_size", "max_body_size"),
    *("mem_queue_size", "max_rdy_count", "sync_every", "sync_timeout", "max_bytes_per_file"),
    *("nsqlookupd_tcp_addresses", "data_path"),
)


class DetailRoutes:
    """Topics, channels and nodes, one at a time."""

    def __init__(
        self, collector: Collector, upstream: Upstream, questions: SharedQuestions
    ) -> None:
        self._collector = collector
        self._upstream = upstream
        self._questions = questions
        self._documents = RoundDocuments()

    def add_to(self, router: ApiRouter) -> None:
        """Add the routes."""
        for path, handler in (
            ("/api/v2/topics", self._queue),
            ("/api/v2/topics/:topic", self._queue),
            ("/api/v2/topics/:topic/:channel", self._queue),
            ("/api/v2/nodes", self._nodes),
            ("/api/v2/nodes/:node", self._nodes),
        ):
            router.add("GET", path, handler, Right.VIEW)

    async def _queue(self, request: Request, _caller: Caller) -> Response:
        topic, channel = find_names(request)
        self._collector.note_viewer()
        view = self._collector.view
        if not is_valid_topic_name(topic):
            raise HttpError(404, "TOPIC_NOT_FOUND")
        samples, errors = await self._find_samples(request, view, topic)
        now = time.monotonic()
        is_known = topic in view.merged.channels or topic in view.known_topics
        if not is_known and not any((topic, "") in each.queues for each in samples.values()):
            raise HttpError(404, "TOPIC_NOT_FOUND")
        if channel:
            shown = show_channel(view, (topic, channel), samples, now)
            if shown is None:
                raise HttpError(404, "CHANNEL_NOT_FOUND")
        else:
            shown = show_topic(view, topic, samples, now)
            await self._add_tombstones(topic, shown["node_list"])
        return json_reply(shown | {"warnings": errors})

    async def _find_samples(
        self, request: Request, view: View, topic: str
    ) -> tuple[dict[str, Sample], list[str]]:
        """Return the figures of a topic by node, and the errors."""
        samples = {
            node.name: node.sample for node in view.nodes_with(topic) if node.sample is not None
        }
        if not is_fresh(request):
            return samples, []
        nodes = [node for node in view.nodes.values() if node.gone_at is None]
        having = [node for node in nodes if topic in node.producer.topics or node.name in samples]

        async def find() -> list[tuple[str, Sample | None, str]]:
            return list(await asyncio.gather(*(self._ask_topic(each, topic) for each in having)))

        errors = []
        for name, sample, error in await self._questions.ask(("topic", topic), find):
            if sample is not None:
                samples[name] = sample
            else:
                errors.append(f"{name}: {error}")
        return samples, errors

    async def _ask_topic(self, node: Node, topic: str) -> tuple[str, Sample | None, str]:
        target = f"/stats?format=json&include_clients=false&include_mem=false&topic={quote(topic)}"
        try:
            document = await self._upstream.get(node.producer.address, target, is_node=True)
            return node.name, read_sample(document, time.monotonic(), KeyTable()), ""
        except (UpstreamError, BadStatsError) as error:
            return node.name, None, str(error)

    async def _add_tombstones(self, topic: str, parts: Iterable[Object]) -> None:
        """Put into the nodes that are hidden for a topic how long they still are."""
        hidden = [part for part in parts if part["tombstoned_s"] is not None]
        if not hidden:
            return
        since = await self._questions.ask(
            ("tombstones", topic), lambda: self._collector.discovery.find_tombstones(topic)
        )
        now_ns = time.time_ns()
        for part in hidden:
            at_ns = since.get(part["node"])
            if at_ns:
                left_s = TOMBSTONE_LIFETIME_S - (now_ns - at_ns) / 1e9
                part["tombstoned_s"] = round(max(left_s, 0.0), 1)

    async def _nodes(self, request: Request, _caller: Caller) -> Response:
        self._collector.note_viewer()
        view = self._collector.view
        name = request.params[0] if request.params else request.find("node")
        if name is not None:
            return await self._node(request, view, name)
        if find_since(request) == view.seq:
            return not_modified()
        document = await self._documents.get(view.seq, "nodes", lambda: _show_nodes(view))
        return await document.reply(request)

    async def _node(self, request: Request, view: View, name: str) -> Response:
        node = view.nodes.get(name)
        if node is None:
            raise HttpError(404, "NODE_NOT_FOUND")
        errors: list[str] = []
        sample, options, memory = node.sample, None, None
        if node.gone_at is None:
            sample, options, memory, errors = await self._questions.ask(
                ("node", name, is_fresh(request)),
                lambda: self._ask_node(node, is_fresh=is_fresh(request)),
            )
        newest = find_newest(each.producer for each in view.nodes.values())
        shown = show_node(view, node, newest, time.monotonic())
        return json_reply(
            {
                "seq": view.seq,
                "time_ms": time.time_ns() // 1_000_000,
                **shown,
                "memory_bytes": memory,
                "topic_list": [] if sample is None else show_node_topics(node, sample),
                "options": options,
                "errors": errors,
            }
        )

    async def _ask_node(
        self, node: Node, *, is_fresh: bool
    ) -> tuple[Sample | None, Object | None, int | None, list[str]]:
        """Ask a node for its memory and options, which no list shows; figures too, if wanted."""
        sample, memory = node.sample, None
        # A topic that no node has: the figures of the process without those of its queues.
        target = "/stats?format=json&include_clients=false"
        target += "" if is_fresh else "&topic=nsqadmin.asks.for.memory"
        try:
            document, options = await asyncio.gather(
                self._upstream.get(node.producer.address, target, is_node=True),
                self._ask_options(node),
            )
            memory = _find_memory(document)
            if is_fresh:
                sample = read_sample(document, time.monotonic(), KeyTable(), node.sample)
        except (UpstreamError, BadStatsError) as error:
            return sample, None, None, [str(error)]
        return sample, options, memory, []

    async def _ask_options(self, node: Node) -> Object | None:
        async def ask(name: str) -> tuple[str, object] | None:
            try:
                target = f"/config/{name}"
                return name, await self._upstream.get_value(node.producer.address, target)
            except UpstreamError:
                return None  # One that this node does not have, or does not show.

        pairs = await asyncio.gather(*map(ask, OPTIONS))
        return dict(pair for pair in pairs if pair is not None) or None


def find_names(request: Request) -> tuple[str, str]:
    """Return the topic and the channel that a request names, in its path or its query."""
    params = (*request.params, None, None)
    topic = params[0] if params[0] is not None else request.find("topic") or ""
    channel = params[1] if params[1] is not None else request.find("channel") or ""
    if channel and not is_valid_channel_name(channel):
        raise HttpError(404, "CHANNEL_NOT_FOUND")
    return topic, channel


def is_fresh(request: Request) -> bool:
    """Whether the nodes are to be asked now."""
    return request.find("fresh") in ("1", "true")


def _show_nodes(view: View) -> Iterator[str]:
    """Give the list of nodes in parts, with ages as of the end of the round."""
    yield (
        f'{{"seq":{view.seq},"time_ms":{view.time_ms},'
        f'"lookupd_count":{len(view.lookupds)},"nodes":['
    )
    separator = ""
    for node in show_nodes(view, view.at):
        yield separator + encode(node).decode()
        separator = ","
    yield "]}"


def _find_memory(document: Any) -> int | None:
    memory = document.get("memory") if isinstance(document, dict) else None
    value = memory.get("heap_in_use_bytes") if isinstance(memory, dict) else None
    return value if type(value) is int else None
