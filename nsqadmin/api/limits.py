"""Limits and dead letters of /api/v2: the bounds of a topic on each node, and where they differ."""

import asyncio
import time
from typing import Any, Final
from urllib.parse import quote

from nsqadmin.access.roles import Caller, Right
from nsqadmin.api.details import find_names
from nsqadmin.api.replies import ApiRouter, json_reply
from nsqadmin.api.shared import SharedQuestions
from nsqadmin.cluster.collector import Collector
from nsqadmin.cluster.figures import EXTRA
from nsqadmin.cluster.merge import get
from nsqadmin.cluster.upstream import Upstream, UpstreamError
from nsqadmin.cluster.view import Node, View
from nsqd.http.server import HttpError, Request, Response

# Topics with dead letters whose limits are asked for; the others are shown without.
MAX_LIMITS_ASKED: Final = 100
NOT_SUPPORTED: Final = "NOT_SUPPORTED"

Object = dict[str, Any]


class LimitRoutes:
    """Limits of a topic on each node; topics with dead letters."""

    def __init__(
        self, collector: Collector, upstream: Upstream, questions: SharedQuestions
    ) -> None:
        self._collector = collector
        self._upstream = upstream
        self._questions = questions

    def add_to(self, router: ApiRouter) -> None:
        """Add the routes."""
        router.add("GET", "/api/v2/limits", self._limits, Right.VIEW)
        router.add("GET", "/api/v2/limits/:topic", self._limits, Right.VIEW)
        router.add("GET", "/api/v2/dead-letters", self._dead_letters, Right.VIEW)

    async def _limits(self, request: Request, _caller: Caller) -> Response:
        topic, _ = find_names(request)
        self._collector.note_viewer()
        nodes = self._collector.view.nodes_with(topic)
        if not nodes:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        parts = await self._questions.ask(("limits", topic), lambda: self._ask_all(nodes, topic))
        known = [part for part in parts if part["limits"] is not None]
        return json_reply(
            {
                "time_ms": time.time_ns() // 1_000_000,
                "topic": topic,
                "differs": any(part["limits"] != known[0]["limits"] for part in known),
                "dead_letter_topic": known[0]["dead_letter_topic"] if known else None,
                "limits": known[0]["limits"] if known else None,
                "node_list": parts,
            }
        )

    async def _ask_all(self, nodes: list[Node], topic: str) -> list[Object]:
        return list(await asyncio.gather(*(self._ask(node, topic) for node in nodes)))

    async def _ask(self, node: Node, topic: str) -> Object:
        part: Object = {"node": node.name, "error": None, "limits": None}
        part["dead_letter_topic"] = None
        if node.extensions is not None and "limits" not in node.extensions:
            return part | {"error": NOT_SUPPORTED}
        try:
            found = await self._upstream.get(
                node.producer.address, f"/topic/limits?topic={quote(topic)}", is_node=True
            )
        except UpstreamError as error:
            return part | {"error": error.text}
        if not isinstance(found, dict) or not isinstance(found.get("limits"), dict):
            return part | {"error": "an answer without limits"}
        name = found.get("dead_letter_topic")
        return part | {
            "limits": found["limits"],
            "dead_letter_topic": name if isinstance(name, str) and name else None,
        }

    async def _dead_letters(self, _request: Request, _caller: Caller) -> Response:
        self._collector.note_viewer()
        view = self._collector.view
        rows = _find_rows(view)
        unsupported = sum(
            node.extensions is not None and "limits" not in node.extensions
            for node in view.nodes.values()
        )
        asked = [row for row in rows if view.nodes_with(row["topic"])][:MAX_LIMITS_ASKED]
        await asyncio.gather(*(self._add_limits(view, row) for row in asked))
        shown = [row for row in rows if row["dead_letter_topic"]]
        now_ms = time.time_ns() // 1_000_000
        return json_reply({"time_ms": now_ms, "rows": shown, "unsupported_nodes": unsupported})

    async def _add_limits(self, view: View, row: Object) -> None:
        topic = row["topic"]
        nodes = [
            node
            for node in view.nodes_with(topic)
            if node.extensions is None or "limits" in node.extensions
        ]
        if not nodes:
            return
        part = await self._questions.ask(
            ("limits of one", topic), lambda: self._ask(nodes[0], topic)
        )
        row["limits"] = part["limits"]
        if not row["dead_letter_topic"] and part["dead_letter_topic"]:
            row |= _describe(view, part["dead_letter_topic"])


def _find_rows(view: View) -> list[Object]:
    """Return the topics that have a dead-letter topic, or had dead letters since a start."""
    counts: dict[str, dict[str, int]] = {}
    for node in view.nodes.values():
        if node.sample is None or not node.is_counted:
            continue
        for (topic, channel), figures in node.sample.queues.items():
            extra = figures[EXTRA]
            if extra is None:
                continue
            count = dict(extra.losses).get("dead_lettered_count", 0)
            if count or extra.dead_letter_topic:
                by_channel = counts.setdefault(topic, {})
                by_channel[channel] = by_channel.get(channel, 0) + count
    rows = []
    for topic, by_channel in sorted(counts.items()):
        row = view.merged.rows.get((topic, ""))
        name = get(row, "dead_letter_topic") if row is not None else None
        rows.append(
            {
                "topic": topic,
                **_describe(view, name or ""),
                "dead_lettered_count": sum(by_channel.values()),
                "channels": [
                    {"channel": channel, "dead_lettered_count": count}
                    for channel, count in sorted(by_channel.items())
                    if channel and count
                ],
                "limits": None,
            }
        )
    return rows


def _describe(view: View, name: str) -> Object:
    """Return the figures of a dead-letter topic."""
    row = view.merged.rows.get((name, ""))
    return {
        "dead_letter_topic": name or None,
        "exists": row is not None,
        "waiting": 0 if row is None else get(row, "waiting"),
        "clients": 0 if row is None else get(row, "clients"),
        "nodes": 0 if row is None else get(row, "nodes"),
    }
