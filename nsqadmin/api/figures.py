"""The figures of /api/v2: all of them read the collector's view, and ask no node.

Documents that many viewers get are made once for each round.
"""

import json
import time
from collections.abc import Iterator
from typing import Final

from nsqadmin.access.roles import Caller, Right
from nsqadmin.api.replies import ApiRouter, json_reply, not_modified
from nsqadmin.api.shared import RoundDocuments
from nsqadmin.cluster.collector import CLUSTER, Collector
from nsqadmin.cluster.history import RANGES, History
from nsqadmin.cluster.merge import COLUMNS
from nsqadmin.cluster.view import NodeStatus, View
from nsqd.http.server import HttpError, Request, Response

MAX_SPARKLINES: Final = 100
_SPARK_STEP_S: Final = 10
_SPARK_POINTS: Final = 60
_MAX_SINCE_DIGITS: Final = 16


class FigureRoutes:
    """Overview, queues, nodes, history."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._documents = RoundDocuments()

    def add_to(self, router: ApiRouter) -> None:
        """Add the routes."""
        for path, handler in (
            ("/api/v2/overview", self._overview),
            ("/api/v2/queues", self._queues),
            ("/api/v2/history", self._history),
            ("/api/v2/sparklines", self._sparklines),
        ):
            router.add("GET", path, handler, Right.VIEW)

    async def _overview(self, request: Request, _caller: Caller) -> Response:
        view = self._look()
        if find_since(request) == view.seq:
            return not_modified()
        # The age of the round differs for each viewer; the rest is small.
        return json_reply(self._show_overview(view))

    def _show_overview(self, view: View) -> dict[str, object]:
        totals = view.merged.totals
        statuses = [node.status for node in view.nodes.values()]
        age_ms = round((time.monotonic() - view.at) * 1000) if view.has_round else None
        return {
            "seq": view.seq,
            "time_ms": time.time_ns() // 1_000_000,
            "started_ms": self._collector.started_ms,
            "round": {
                "age_ms": age_ms,
                "took_ms": view.took_ms,
                "interval_ms": view.interval_ms,
                "is_stretched": view.is_stretched,
            },
            "totals": {
                **{name: getattr(totals, name) for name in ("topics", "channels", "clients")},
                **{name: getattr(totals, name) for name in ("waiting", "depth", "in_flight")},
                "deferred": totals.deferred,
                **{name: getattr(totals, name) for name in ("in_rate", "out_rate")},
                "out_estimated": totals.is_estimated,
                **{name: getattr(totals, name) for name in ("requeue_rate", "timeout_rate")},
                "disk_bytes": totals.disk_bytes,
            },
            "nodes": {
                **{status.value: statuses.count(status) for status in NodeStatus},
                "counted": sum(node.is_counted for node in view.nodes.values()),
            },
            "lookupds": [
                {
                    "address": str(state.address),
                    "ok": state.error is None,
                    "error": state.error,
                    "took_ms": round(state.took_s * 1000),
                    "node_count": len(state.producers),
                    "topic_count": len(state.topics),
                }
                for state in view.lookupds
            ],
            "findings": [finding.as_json() for finding in view.findings],
            "more_findings": view.more_findings,
        }

    async def _queues(self, request: Request, _caller: Caller) -> Response:
        view = self._look()
        since = find_since(request)
        if since == view.seq:
            return not_modified()
        if since is not None and not view.first_seq <= since < view.seq:
            since = None
        document = await self._documents.get(view.seq, since, lambda: _show_queues(view, since))
        return await document.reply(request)

    async def _history(self, request: Request, _caller: Caller) -> Response:
        self._look()
        range_name = request.find("range") or "10m"
        if range_name not in RANGES:
            raise HttpError(400, "INVALID_ARG_RANGE")
        topic, channel, node = (request.find(name) or "" for name in ("topic", "channel", "node"))
        histories = self._collector.histories
        history: History[tuple[str, str]]
        if node or not topic:
            history, key = histories.nodes, (node or CLUSTER, "")
        elif channel:
            history, key = histories.channels, (topic, channel)
        else:
            history, key = histories.topics, (topic, "")
        times, columns = history.read(key, range_name, time.time())
        series = dict(zip(history.series, map(_rounded, columns), strict=True))
        return json_reply(
            {
                "time_ms": time.time_ns() // 1_000_000,
                "range": range_name,
                "step_s": RANGES[range_name].step_s,
                "t": times,
                "series": series,
            }
        )

    async def _sparklines(self, request: Request, _caller: Caller) -> Response:
        self._look()
        names = [name for name in (request.find("topics") or "").split(",") if name]
        if not names or len(names) > MAX_SPARKLINES:
            raise HttpError(400, "INVALID_ARG_TOPICS")
        history = self._collector.histories.topics
        index = history.series.index("waiting")
        now_s = time.time()
        series = {}
        for name in names:
            times, columns = history.read((name, ""), "10m", now_s)
            if times:
                series[name] = _thin(columns[index])
        now_ms = round(now_s * 1000)
        return json_reply({"time_ms": now_ms, "step_s": _SPARK_STEP_S, "series": series})

    def _look(self) -> View:
        self._collector.note_viewer()
        return self._collector.view


def find_since(request: Request) -> int | None:
    """Return the round that a viewer has; None if the text is no number."""
    text = request.find("since") or ""
    is_number = text.isascii() and text.isdecimal() and len(text) <= _MAX_SINCE_DIGITS
    return int(text) if is_number else None


def _show_queues(view: View, since: int | None) -> Iterator[str]:
    """Give the document in parts: two thousand topics are encoded over several turns."""
    rows = view.merged.rows
    if since is None:
        chosen = list(rows)
        removed: list[list[str | None]] = []
    else:
        chosen = [key for key, seq in view.changed.items() if seq > since]
        removed = [
            [topic, channel or None]
            for (topic, channel), seq in view.removed.items()
            if seq > since
        ]
    head = {"seq": view.seq, "time_ms": view.time_ms, "full": since is None, "columns": COLUMNS}
    encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
    yield encode(head)[:-1] + ',"rows":['
    separator = ""
    for topic, channel in chosen:
        yield separator + encode((topic, channel or None, *rows[topic, channel]))
        separator = ","
    yield f'],"removed":{encode(removed)}}}'


def _rounded(values: list[float | None]) -> list[float | None]:
    """Round for the eye: float32 has seven digits, and most figures are counts."""
    return [
        None if value is None else int(value) if value == int(value) else round(value, 2)
        for value in values
    ]


def _thin(values: list[float | None]) -> list[float | None]:
    """Return every second value, as many as a sparkline has, gaps before the first."""
    thinned = _rounded(values[1::2] if len(values) % 2 == 0 else values[::2])
    return [None] * (_SPARK_POINTS - len(thinned)) + thinned
