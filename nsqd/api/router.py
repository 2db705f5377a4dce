"""nsqd's HTTP API: the table of its routes, and the checks that all requests pass.

The routes are thin and live beside this file by noun: `publish.py`, `admin.py`, `peek.py`. The
daemon serves the router of `make_router`.
"""

import socket

from nsqd import PROTOCOL_VERSION
from nsqd.api.access import CorsPolicy, refuse_plain_http
from nsqd.api.admin import LEGACY_PATHS, AdminRoutes
from nsqd.api.analytics import AnalyticsRoutes
from nsqd.api.config import ConfigRoutes
from nsqd.api.console import ConsoleRoutes
from nsqd.api.limits import LimitRoutes
from nsqd.api.move import MoveRoutes
from nsqd.api.peek import PeekRoutes
from nsqd.api.publish import PublishRoutes
from nsqd.broker.health import HEALTHY
from nsqd.config.kinds import TLSRequired, duration_ns
from nsqd.config.options import Options
from nsqd.config.token_file import TokenFile
from nsqd.http.arguments import parse_count
from nsqd.http.bearer import BearerToken
from nsqd.http.debug import DebugRoutes
from nsqd.http.origin import BrowserGuard
from nsqd.http.server import (
    JSON_CONTENT_TYPE,
    OK,
    TEXT_CONTENT_TYPE,
    BeforeHook,
    Request,
    Response,
    Router,
    Style,
)
from nsqd.node import Node
from nsqd.runtime.slices import encode_slices
from nsqd.stats.delta import MAX_SEQ, DeltaStats
from nsqd.stats.json import render_json
from nsqd.stats.prometheus import OPENMETRICS_FORMAT, TEXT_FORMAT, Metrics
from nsqd.stats.snapshot import StatsQuery
from nsqd.stats.text import render_text


def make_router(node: Node) -> Router:
    """Make the router with all routes."""
    router = Router()
    options = node.options
    PublishRoutes(
        node.broker,
        node.doors["http"],
        max_msg_size=options.max_msg_size,
        max_body_size=options.max_body_size,
        max_defer_ms=int(options.defer_limit_s * 1000),
    ).add_to(router)
    AdminRoutes(node).add_to(router)
    LimitRoutes(node).add_to(router)
    ConfigRoutes(node).add_to(router)
    MoveRoutes(node).add_to(router)
    PeekRoutes(node).add_to(router)
    AnalyticsRoutes(node).add_to(router)
    DebugRoutes("nsqd").add_to(router)
    NodeRoutes(node).add_to(router)
    if options.console:
        ConsoleRoutes().add_to(router)
    return router


def make_before_hook(options: Options, https_port: int, token_file: TokenFile | None) -> BeforeHook:
    """Make the check that each request passes before its route."""
    checks: list[BeforeHook] = []
    if options.http_cors_origins:
        checks.append(CorsPolicy(options.http_cors_origins).mark)
    guard = BrowserGuard(
        options.http_address,
        allowed_hosts=options.http_allowed_hosts,
        origins=options.http_cors_origins,
        changes_by_get=LEGACY_PATHS,
    )
    checks.append(guard.check)
    if options.tls_required is TLSRequired.EVERYWHERE:
        checks.append(refuse_plain_http(https_port))
    if token_file is not None:
        guarded_paths = (
            *(*LEGACY_PATHS, *PeekRoutes.PATHS, *DebugRoutes.PATHS),
            *AnalyticsRoutes.PATHS,
        )
        token = BearerToken(
            token_file,
            guarded_paths=guarded_paths,
            guarded_prefixes=AnalyticsRoutes.PREFIXES,
        )
        checks.append(token.check)
    if len(checks) == 1:
        return checks[0]

    def check(request: Request) -> Response | None:
        replies = (each(request) for each in checks)
        return next((reply for reply in replies if reply is not None), None)

    return check


def list_extensions(node: Node) -> list[str]:
    """Name the calls and fields beyond NSQ's, as both say that they are version 1.3.0."""
    names = ["client_close", "disk_bytes", "drain", "drop", "finish_count", "limits", "move"]
    names.append("replay")  # and the origin of dead letters in a peek
    names.append("stats_delta")
    if PeekRoutes(node).is_open:
        names += ("peek", "peek_newest")
    if node.broker.archives is not None:
        names.append("archive")
    return sorted(names)


class NodeRoutes:
    """Health, identity and statistics of the node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._metrics = Metrics(node)
        self._delta = DeltaStats(node)

    def add_to(self, router: Router) -> None:
        """Add the routes."""
        router.add("GET", "/ping", self._ping, style=Style.PLAIN)
        router.add("GET", "/ready", self._ready, style=Style.PLAIN)
        router.add("POST", "/drain", self._drain)
        router.add("GET", "/info", self._info)
        router.add("GET", "/stats", self._stats)
        router.add("GET", "/metrics", self._show_metrics, style=Style.PLAIN)

    def _ping(self, _request: Request) -> Response:
        health = self._node.health
        return OK if health == HEALTHY else Response.text(health, 500)

    def _ready(self, _request: Request) -> Response:
        """Say whether publishers and consumers should be sent here, as Kubernetes asks."""
        broker = self._node.broker
        if broker.is_draining or broker.is_closed:
            return Response.text("NOK - draining", 503)
        return OK if broker.is_healthy else Response.text(broker.health, 503)

    def _drain(self, _request: Request) -> Response:
        drain = self._node.drain
        drain.begin()
        timeout_ns = duration_ns(self._node.options.drain_timeout_s)
        return Response.json({"message_count": drain.left_count(), "timeout": timeout_ns})

    def _info(self, _request: Request) -> Response:
        node = self._node
        options = node.options
        return Response.json(
            {
                "version": PROTOCOL_VERSION,
                "broadcast_address": options.broadcast_address,
                "hostname": socket.gethostname(),
                "http_port": node.http_port,
                "tcp_port": node.tcp_port,
                "start_time": int(node.start_time_s),
                "max_heartbeat_interval": duration_ns(options.max_heartbeat_interval_s),
                "max_output_buffer_size": options.max_output_buffer_size,
                "max_output_buffer_timeout": duration_ns(options.max_output_buffer_timeout_s),
                "max_deflate_level": options.max_deflate_level,
                "topology_zone": options.topology_zone,
                "topology_region": options.topology_region,
                "node_id": node.node_id,
                "analytics": AnalyticsRoutes.are_open(node),
                "extensions": list_extensions(node),
            }
        )

    async def _show_metrics(self, request: Request) -> Response:
        is_openmetrics = b"application/openmetrics-text" in request.headers.get(b"accept", b"")
        parts = await self._metrics.render(is_openmetrics=is_openmetrics)
        return Response.in_parts(parts, OPENMETRICS_FORMAT if is_openmetrics else TEXT_FORMAT)

    async def _stats(self, request: Request) -> Response:
        if request.find("format") == "delta":
            return await self._show_delta(request)
        is_json = request.find("format") == "json"
        query = StatsQuery(
            topic_name=request.find("topic") or "",
            channel_name=request.find("channel") or "",
            has_clients=request.find("include_clients") not in ("false", "0"),
            has_memory=request.find("include_mem") not in ("false", "0"),
        )
        # A topic that was published to just now may be waiting to learn its channels.
        await self._node.registration.wait_for_topics()
        render = render_json if is_json else render_text
        parts = await encode_slices(render(self._node, query, self._node.memory.read()))
        return Response.in_parts(parts, JSON_CONTENT_TYPE if is_json else TEXT_CONTENT_TYPE)

    async def _show_delta(self, request: Request) -> Response:
        # A `since` that is no number is one that is too long ago: the answer has all.
        since = parse_count(request.find("since") or "", MAX_SEQ)
        is_fresh = request.find("fresh") in ("true", "1")
        await self._node.registration.wait_for_topics()
        return Response.in_parts(
            await self._delta.render(since, is_fresh=is_fresh), JSON_CONTENT_TYPE
        )
