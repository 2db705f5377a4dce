"""Messages of /api/v2: a look at those that wait, on one node or on all, and publishing by hand.

Bodies are in no log, audit entry or cache. Only our nodes can be looked into.
"""

import asyncio
import base64
import binascii
import time
from typing import Any, Final
from urllib.parse import urlencode

from nsqadmin.access.changes import Changes
from nsqadmin.access.roles import Caller, Right
from nsqadmin.api.details import find_names
from nsqadmin.api.replies import ApiRouter, json_reply, read_object
from nsqadmin.cluster.collector import Collector
from nsqadmin.cluster.commands import Commands
from nsqadmin.cluster.upstream import Upstream, UpstreamError
from nsqadmin.cluster.view import Node, NodeStatus
from nsqd.http.arguments import parse_count
from nsqd.http.server import HttpError, Request, Response
from nsqd.protocol.names import is_valid_topic_name

DEFAULT_COUNT: Final = 20
MAX_COUNT: Final = 100
PLACES: Final = frozenset({"memory", "disk", "in_flight", "deferred"})
MAX_PUBLISH_BYTES: Final = 8 * 1024 * 1024
MAX_PUBLISH_COUNT: Final = 1000
MAX_DEFER_MS: Final = 365 * 24 * 3600 * 1000
_TOO_LARGE: Final = "reply of more than"

Object = dict[str, Any]


class MessageRoutes:
    """Peek and publish."""

    def __init__(
        self,
        collector: Collector,
        upstream: Upstream,
        commands: Commands,
        changes: Changes,
        *,
        peek_max_body: int,
    ) -> None:
        self._collector = collector
        self._upstream = upstream
        self._commands = commands
        self._changes = changes
        self._peek_max_body = peek_max_body

    def add_to(self, router: ApiRouter) -> None:
        """Add the routes."""
        router.add("GET", "/api/v2/messages", self._peek, Right.PEEK)
        router.add("GET", "/api/v2/messages/:node/:id", self._show, Right.PEEK)
        router.add(
            *("POST", "/api/v2/messages", self._publish, Right.VIEW),
            max_body_bytes=MAX_PUBLISH_BYTES,
        )

    async def _peek(self, request: Request, _caller: Caller) -> Response:
        topic, channel = _find_queue(request)
        query = {"format": "json", "topic": topic} | ({"channel": channel} if channel else {})
        count = DEFAULT_COUNT
        if (text := request.find("count")) is not None:
            parsed = parse_count(text, MAX_COUNT)
            if parsed is None:
                raise HttpError(400, "INVALID_ARG_COUNT")
            count = parsed
        if where := request.find("where"):
            if not set(where.split(",")) <= PLACES:
                raise HttpError(400, "INVALID_ARG_WHERE")
            query["where"] = where
        query |= _find_order(request)
        nodes = self._find_nodes(request.find("node"), topic)
        parts = await asyncio.gather(*(self._ask(node, query, count) for node in nodes))
        messages = [message for found, _ in parts for message in found]
        messages.sort(key=lambda each: int(each["timestamp"]), reverse="order" in query)
        return json_reply(
            {
                "time_ms": time.time_ns() // 1_000_000,
                "topic": topic,
                "channel": channel or None,
                "messages": [self._cut(message) for message in messages[:count]],
                "node_list": [
                    {"node": node.name, "count": len(found), "error": error}
                    for node, (found, error) in zip(nodes, parts, strict=True)
                ],
            }
        )

    async def _show(self, request: Request, _caller: Caller) -> Response:
        name, message_id = request.params
        topic = request.find("topic") or ""
        channel = request.find("channel") or ""
        if not is_valid_topic_name(topic):
            raise HttpError(400, "INVALID_ARG_TOPIC")
        [node] = self._find_nodes(name, topic)
        query = {"format": "json", "topic": topic} | ({"channel": channel} if channel else {})
        query |= _find_order(request)
        found, error = await self._ask(node, query, MAX_COUNT)
        if error is not None:
            raise HttpError(502, f"UPSTREAM_ERROR: {node.name}: {error}")
        for message in found:
            if message["id"] == message_id:
                return json_reply(message | {"cut": False})
        raise HttpError(404, "MESSAGE_NOT_FOUND")

    async def _publish(self, request: Request, caller: Caller) -> Response:
        self._changes.demand(request, caller, Right.OPERATE, "publish")
        fields = read_object(request)
        topic = fields.get("topic")
        if not isinstance(topic, str) or not is_valid_topic_name(topic):
            raise HttpError(400, "INVALID_TOPIC")
        body = _read_body(fields)
        defer_ms = _read_number(fields, "defer_ms", 0, 0, MAX_DEFER_MS, "INVALID_DEFER")
        count = _read_number(fields, "count", 1, 1, MAX_PUBLISH_COUNT, "INVALID_COUNT")
        if defer_ms and count > 1:
            raise HttpError(400, "INVALID_COUNT: deferred messages are published one by one")
        node = self._choose_node(fields.get("node"), topic)
        entry = await self._changes.begin(request, caller, "publish", topic=topic, node=node.name)
        outcome = await self._commands.publish(
            node.producer, topic, body, defer_ms=defer_ms, count=count
        )
        await self._changes.finish(entry, [outcome])
        if outcome.error is not None:
            raise HttpError(502, f"UPSTREAM_ERROR: {outcome.warning}")
        return json_reply({"node": node.name, "published": count})

    def _find_nodes(self, name: str | None, topic: str) -> list[Node]:
        """Return the nodes to look into: one, or those that have the topic."""
        view = self._collector.view
        if name:
            node = view.nodes.get(name)
            if node is None:
                raise HttpError(404, "NODE_NOT_FOUND")
            return [node]
        nodes = view.nodes_with(topic)
        if not nodes:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        return nodes

    def _choose_node(self, name: object, topic: str) -> Node:
        """Return the node to publish to: the named one, or one that has the topic, or any."""
        view = self._collector.view
        if name is not None:
            node = view.nodes.get(name) if isinstance(name, str) else None
            if node is None or node.gone_at is not None:
                raise HttpError(404, "NODE_NOT_FOUND")
            return node
        up = [node for node in view.nodes.values() if node.status is NodeStatus.UP]
        having = [node for node in view.nodes_with(topic) if node.status is NodeStatus.UP]
        for node in having or sorted(up, key=lambda node: node.name):
            return node
        raise HttpError(409, "NO_NODE")

    async def _ask(
        self, node: Node, query: dict[str, str], count: int
    ) -> tuple[list[Object], str | None]:
        """Look into one node; return its messages, or why there are none."""
        if node.extensions is not None and "peek" not in node.extensions:
            return [], "NOT_SUPPORTED: this nsqd has no peek"
        if "order" in query and "peek_newest" not in (node.extensions or ()):
            return [], "NOT_SUPPORTED: this nsqd shows the oldest messages only"
        path = "/channel/peek" if "channel" in query else "/topic/peek"
        while True:
            target = f"{path}?{urlencode(query | {'count': str(count)})}"
            try:
                found = await self._upstream.get(node.producer.address, target, is_node=True)
            except UpstreamError as error:
                # A hundred messages of some megabytes: less of them.
                if error.text.startswith(_TOO_LARGE) and count > 1:
                    count //= 4
                    continue
                return [], error.text
            return _read_messages(found, node.name), None

    def _cut(self, message: Object) -> Object:
        limit = self._peek_max_body
        if "body_base64" in message:
            # A multiple of four characters is whole bytes.
            limit = -(-limit // 3) * 4
        name = "body" if "body" in message else "body_base64"
        body = message.get(name, "")
        if len(body) <= limit:
            return message | {"cut": False}
        return message | {name: body[:limit], "cut": True}


def _find_order(request: Request) -> dict[str, str]:
    """Return what to ask a node for: nothing for the oldest first, all that older nodes know."""
    order = request.find("order") or "oldest"
    if order not in ("newest", "oldest"):
        raise HttpError(400, "INVALID_ARG_ORDER")
    return {"order": order} if order == "newest" else {}


def _find_queue(request: Request) -> tuple[str, str]:
    topic, channel = find_names(request)
    if not is_valid_topic_name(topic):
        raise HttpError(400, "INVALID_ARG_TOPIC")
    return topic, channel


def _read_messages(found: object, node: str) -> list[Object]:
    items = found.get("messages") if isinstance(found, dict) else None
    messages = []
    for item in items if isinstance(items, list) else []:
        if not isinstance(item, dict):
            continue
        timestamp = item.get("timestamp")
        timestamp = timestamp if type(timestamp) is int else 0
        message = {
            "node": node,
            "id": str(item.get("id", "")),
            # As text: its 19 digits are more than a JavaScript number holds.
            "timestamp": str(timestamp),
            "timestamp_ms": timestamp // 1_000_000,
        }
        for name in ("attempts", "size", "timeout_ms", "due_ms"):
            if type(item.get(name)) is int:
                message[name] = item[name]
        for name in ("where", "body", "body_base64"):
            if isinstance(item.get(name), str):
                message[name] = item[name]
        if isinstance(item.get("origin"), dict):
            message["origin"] = _read_origin(item["origin"])
        messages.append(message)
    return messages


def _read_origin(item: Object) -> Object:
    """Return where a dead letter comes from, as its node tells."""
    origin: Object = {
        name: item[name]
        for name in ("topic", "channel", "reason", "id")
        if isinstance(item.get(name), str)
    }
    if type(item.get("attempts")) is int:
        origin["attempts"] = item["attempts"]
    if type(timestamp := item.get("timestamp")) is int:
        origin |= {"timestamp": str(timestamp), "timestamp_ms": timestamp // 1_000_000}
    return origin


def _read_body(fields: Object) -> bytes:
    text, encoded = fields.get("body"), fields.get("body_base64")
    if isinstance(text, str) and encoded is None:
        return text.encode("utf-8", "surrogatepass")
    if isinstance(encoded, str) and text is None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError) as error:
            raise HttpError(400, "INVALID_BODY: body_base64 is not base64") from error
    raise HttpError(400, "INVALID_BODY: either body or body_base64 must be a text")


def _read_number(
    fields: Object, name: str, default: int, lowest: int, highest: int, code: str
) -> int:
    value = fields.get(name, default)
    if type(value) is not int or not lowest <= value <= highest:
        raise HttpError(400, f"{code}: {name} must be {lowest} to {highest}")
    return value
