"""Clients of /api/v2: consumers and publishers, asked from the nodes when a viewer asks.

Nodes answer at different speeds: a reply after two seconds has what there is, and the question goes
on for the next one. All who ask the same within a second share its answer.
"""

import asyncio
import time
from typing import Any, Final
from urllib.parse import urlencode

from nsqadmin.access.roles import Caller, Right
from nsqadmin.api.replies import ApiRouter, json_reply
from nsqadmin.cluster.collector import Collector
from nsqadmin.cluster.upstream import Upstream, UpstreamError
from nsqadmin.cluster.view import Node, View
from nsqd.http.server import HttpError, Request, Response

MAX_ROWS: Final = 5000
PATIENCE_S: Final = 2.0
KEEP_S: Final = 1.0
MAX_QUESTIONS: Final = 32
COLUMNS: Final = (
    *("kind", "topic", "channel", "node", "client_id", "hostname", "remote_address"),
    *("user_agent", "ready_count", "in_flight_count", "finish_count", "requeue_count"),
    *("message_count", "connect_ts", "sample_rate", "tls", "tls_version", "tls_cipher_suite"),
    *("deflate", "snappy", "authed", "auth_identity", "auth_identity_url", "region", "zone"),
    "pub_counts",
)
_TEXTS: Final = frozenset(
    {"client_id", "hostname", "remote_address", "user_agent", "tls_version", "tls_cipher_suite"}
    | {"auth_identity", "auth_identity_url"}
)
_FLAGS: Final = frozenset({"tls", "deflate", "snappy", "authed"})
_KINDS: Final = ("consumer", "producer")
_MAX_PUB_COUNTS: Final = 100

Row = tuple[Any, ...]


class _Question:
    """A question to several nodes, and their answers so far."""

    def __init__(self, nodes: list[Node]) -> None:
        self.asked = len(nodes)
        self.answered = 0
        self.errors: list[dict[str, str]] = []
        self.rows: list[Row] = []
        self.total = 0
        self.task: asyncio.Task[None] | None = None
        self.ended_at: float | None = None

    def is_over(self, now: float) -> bool:
        """Whether it has to be asked again."""
        return self.ended_at is not None and now - self.ended_at > KEEP_S


class ClientRoutes:
    """The route, and the questions under way."""

    def __init__(self, collector: Collector, upstream: Upstream) -> None:
        self._collector = collector
        self._upstream = upstream
        self._questions: dict[tuple[str, ...], _Question] = {}

    def add_to(self, router: ApiRouter) -> None:
        """Add the route."""
        router.add("GET", "/api/v2/clients", self._clients, Right.VIEW)

    async def _clients(self, request: Request, _caller: Caller) -> Response:
        self._collector.note_viewer()
        names = tuple(request.find(name) or "" for name in ("topic", "channel", "node", "kind"))
        _, _, node, kind = names
        if kind and kind not in _KINDS:
            raise HttpError(400, "INVALID_ARG_KIND")
        view = self._collector.view
        if node and node not in view.nodes:
            raise HttpError(404, "NODE_NOT_FOUND")
        question = self._find_question(names, view)
        if question.task is not None:
            await asyncio.wait([question.task], timeout=PATIENCE_S)
        return json_reply(
            {
                "time_ms": time.time_ns() // 1_000_000,
                "asked": question.asked,
                "answered": question.answered,
                "errors": question.errors,
                "total": question.total,
                "truncated": question.total > len(question.rows),
                "columns": COLUMNS,
                "rows": question.rows,
            }
        )

    def _find_question(self, names: tuple[str, ...], view: View) -> _Question:
        now = time.monotonic()
        for key in [key for key, each in self._questions.items() if each.is_over(now)]:
            del self._questions[key]
        question = self._questions.get(names)
        if question is None:
            if len(self._questions) >= MAX_QUESTIONS:
                raise HttpError(429, "TOO_MANY_QUESTIONS")
            nodes = _choose_nodes(view, names[0], names[2])
            question = self._questions[names] = _Question(nodes)
            question.task = asyncio.ensure_future(self._ask_all(question, nodes, names))
        return question

    async def _ask_all(
        self, question: _Question, nodes: list[Node], names: tuple[str, ...]
    ) -> None:
        try:
            await asyncio.gather(*(self._ask(question, node, names) for node in nodes))
        finally:
            question.ended_at = time.monotonic()

    async def _ask(self, question: _Question, node: Node, names: tuple[str, ...]) -> None:
        topic, channel, _, kind = names
        query = {"format": "json", "include_mem": "false"}
        query |= {"topic": topic} if topic else {}
        query |= {"channel": channel} if channel else {}
        try:
            target = f"/stats?{urlencode(query)}"
            stats = await self._upstream.get(node.producer.address, target, is_node=True)
        except UpstreamError as error:
            question.errors.append({"node": node.name, "text": error.text})
            return
        rows = _read_rows(stats, node.name) if kind != "producer" else []
        if kind != "consumer" and not channel:
            rows += _read_producers(stats, node.name)
        question.total += len(rows)
        question.rows += rows[: MAX_ROWS - len(question.rows)]
        question.answered += 1


def _choose_nodes(view: View, topic: str, name: str) -> list[Node]:
    if name:
        return [view.nodes[name]]
    nodes = [node for node in view.nodes.values() if node.gone_at is None]
    if topic:
        having = {node.name for node in view.nodes_with(topic)}
        nodes = [node for node in nodes if node.name in having]
    return nodes


def _read_rows(stats: object, node: str) -> list[Row]:
    return [
        _read_client(
            client, "consumer", _text(topic, "topic_name"), _text(channel, "channel_name"), node
        )
        for topic in _objects(stats, "topics")
        for channel in _objects(topic, "channels")
        for client in _objects(channel, "clients")
    ]


def _read_producers(stats: object, node: str) -> list[Row]:
    return [
        _read_client(client, "producer", "", "", node) for client in _objects(stats, "producers")
    ]


def _read_client(client: dict[str, Any], kind: str, topic: str, channel: str, node: str) -> Row:
    special = {
        "kind": kind,
        "topic": topic or None,
        "channel": channel or None,
        "node": node,
        "region": _text(client, "topology_region"),
        "zone": _text(client, "topology_zone"),
        "pub_counts": [
            [_text(each, "topic"), _count(each, "count")]
            for each in _objects(client, "pub_counts")[:_MAX_PUB_COUNTS]
        ],
    }
    return tuple(
        special[name] if name in special else _read_value(client, name) for name in COLUMNS
    )


def _read_value(client: dict[str, Any], name: str) -> object:
    if name in _TEXTS:
        return _text(client, name)
    if name in _FLAGS:
        return client.get(name) is True
    return _count(client, name)


def _objects(fields: object, name: str) -> list[dict[str, Any]]:
    items = fields.get(name) if isinstance(fields, dict) else None
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    return value[:256] if isinstance(value, str) else ""


def _count(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name)
    return value if type(value) is int and 0 <= value < 2**63 else 0
