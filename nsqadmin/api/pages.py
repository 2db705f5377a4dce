"""Routes beside the API: the page and its files, /ping, /config, Graphite.

Files are looked up in a table; no path of a request is joined to a directory.
"""

import asyncio
import dataclasses
import json
import logging
from typing import Final
from urllib.parse import quote

from console.assets import PAGES, Assets, Mode, load_assets
from nsqadmin.access.changes import Changes
from nsqadmin.access.roles import Caller, Network, Right, is_within
from nsqadmin.api.replies import ApiRouter, compress, json_reply
from nsqadmin.cluster.discovery import Discovery
from nsqadmin.cluster.upstream import Address, describe_error
from nsqadmin.options import SECRET_KEYS, Options, parse_cidr
from nsqd.config import logs
from nsqd.config.flags import config_value
from nsqd.http.client import BadReplyError, ClientLimits, HttpClient, Reply, Url, UrlError
from nsqd.http.server import OK, HttpError, Request, Response, Style

logger = logging.getLogger(__name__)

HTML_CONTENT_TYPE: Final = "text/html; charset=utf-8"
MAX_CONFIG_BYTES: Final = 1 << 20
MAX_GRAPHITE_BYTES: Final = 16 * 1024 * 1024
# The version, folders, and the name of a file.
_MAX_ASSET_DEPTH: Final = 6
_NO_STORE: Final = {"Cache-Control": "no-store"}


class PageRoutes:
    """The page, its files and the small routes beside them."""

    def __init__(self, options: Options, assets: Assets | None = None) -> None:
        """Args: assets: the files, if not those of the package."""
        self._base = options.base
        self._assets = assets

    def add_to(self, router: ApiRouter) -> None:
        """Add the routes."""
        plain = router.router
        for path in PAGES:
            plain.add("GET", f"{self._base}{path}", self._page, style=Style.PLAIN, is_quiet=True)
        plain.add("GET", f"{self._base}/ping", lambda _: OK, style=Style.PLAIN, is_quiet=True)
        for depth in range(1, _MAX_ASSET_DEPTH + 1):
            path = "".join(f"/:part{number}" for number in range(depth))
            for folder in ("static", "fonts"):
                plain.add(
                    *("GET", f"{self._base}/{folder}{path}", self._file),
                    style=Style.PLAIN,
                    is_quiet=True,
                )

    async def _load(self) -> Assets:
        if self._assets is None:
            self._assets = await asyncio.to_thread(load_assets)
        return self._assets

    async def _page(self, request: Request) -> Response:
        assets = await self._load()
        page = assets.page(f"{self._base}/", Mode.CLUSTER)
        reply = Response(body=page, content_type=HTML_CONTENT_TYPE, headers=_NO_STORE)
        return await compress(request, reply)

    async def _file(self, request: Request) -> Response:
        assets = await self._load()
        version, *rest = request.params
        asset = assets.find(version, "/".join(rest))
        if asset is None:
            raise HttpError(404, "NOT_FOUND")
        if asset.etag.encode() in request.headers.get(b"if-none-match", b""):
            return Response(304, headers={"ETag": asset.etag})
        body, headers = asset.select(request.headers.get(b"accept-encoding", b""))
        # The guard puts the headers of safety on every reply.
        own = {name: headers[name] for name in headers if name in _FILE_HEADERS}
        return Response(body=body, content_type=asset.content_type, headers=own)


_FILE_HEADERS: Final = ("Cache-Control", "ETag", "Vary", "Content-Encoding")


class ConfigRoutes:
    """GET and PUT /config/:opt."""

    def __init__(self, options: Options, discovery: Discovery, changes: Changes) -> None:
        self._options = options
        self._discovery = discovery
        self._changes = changes
        cidr = options.allow_config_from_cidr
        self._networks: tuple[Network, ...] = (parse_cidr(cidr),) if cidr else ()

    def add_to(self, router: ApiRouter) -> None:
        """Add the routes."""
        router.add("GET", "/config/:opt", self._get, Right.VIEW)
        router.add(*("PUT", "/config/:opt", self._put, Right.VIEW), max_body_bytes=MAX_CONFIG_BYTES)

    async def _get(self, request: Request, _caller: Caller) -> Response:
        self._check_remote(request)
        return self._show(request.params[0])

    def _show(self, key: str) -> Response:
        try:
            value = config_value(self._options, key)
        except KeyError as error:
            raise HttpError(400, "INVALID_OPTION") from error
        if key in SECRET_KEYS and value:
            value = "***"
        if isinstance(value, str):
            return Response(body=value.encode(), headers=_NO_STORE)
        return json_reply(value)

    async def _put(self, request: Request, caller: Caller) -> Response:
        self._check_remote(request)
        self._changes.demand(request, caller, Right.ADMIN, "config")
        if not request.body:
            raise HttpError(413, "INVALID_VALUE")
        [key] = request.params
        if key not in ("log_level", "nsqlookupd_http_addresses"):
            raise HttpError(400, "INVALID_OPTION")
        try:
            # Before it is written down.
            change = _read_level if key == "log_level" else _read_addresses
            changed = change(request.body)
        except ValueError as error:
            raise HttpError(400, "INVALID_VALUE") from error
        entry = await self._changes.begin(request, caller, f"set_{key}")
        self._apply(changed)
        await self._changes.finish(entry, [])
        return self._show(key)

    def _apply(self, value: logs.LogLevel | tuple[str, ...]) -> None:
        if isinstance(value, logs.LogLevel):
            logs.set_level(value)
            self._options = dataclasses.replace(self._options, log_level=value)
        else:
            self._discovery.set_lookupds([Address.parse(text) for text in value])
            self._options = dataclasses.replace(self._options, lookupd_http_addresses=value)

    def _check_remote(self, request: Request) -> None:
        host = request.remote.rpartition(":")[0]
        if not host:
            raise HttpError(400, "INVALID_REMOTE_ADDR")
        if self._networks and not is_within(request.remote, self._networks):
            raise HttpError(403, "FORBIDDEN")


def _read_level(body: bytes) -> logs.LogLevel:
    return logs.parse_log_level(body.decode())


def _read_addresses(body: bytes) -> tuple[str, ...]:
    try:
        items = json.loads(body)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(items, list) or not items or len(items) > 100:
        raise ValueError("not a list of addresses")
    if not all(isinstance(item, str) for item in items):
        raise ValueError("not a list of texts")
    for item in items:
        Address.parse(item)
    return tuple(items)


class GraphiteRoutes:
    """/render and /api/graphite, if there is a Graphite."""

    def __init__(self, options: Options) -> None:
        self._url = Url.parse(options.graphite_url) if options.graphite_url else None
        self._is_proxy = options.proxy_graphite
        self._interval_s = options.statsd_interval_s
        self._client = HttpClient(ClientLimits(max_body_bytes=MAX_GRAPHITE_BYTES))

    def add_to(self, router: ApiRouter) -> None:
        """Add the routes."""
        router.add("GET", "/api/graphite", self._rate, Right.VIEW)
        if self._is_proxy and self._url is not None:
            router.add("GET", "/render", self._render, Right.VIEW)

    def close(self) -> None:
        """Cut the connections to Graphite."""
        self._client.close()

    async def _render(self, request: Request, _caller: Caller) -> Response:
        reply = await self._ask(request.raw_query.decode("latin-1"))
        kind = reply.headers.get(b"content-type", b"application/octet-stream").decode("latin-1")
        return Response(reply.status, reply.body, content_type=_plain(kind))

    async def _rate(self, request: Request, _caller: Caller) -> Response:
        if request.find("metric") != "rate":
            raise HttpError(400, "INVALID_ARG_METRIC")
        target = request.find("target")
        if not target:
            raise HttpError(400, "INVALID_ARG_TARGET")
        if self._url is None:
            return json_reply({"rate": "N/A"})
        query = (
            f"target={quote(target)}&format=json&from=-{3 * round(self._interval_s)}s"
            f"&until=-{round(self._interval_s)}s"
        )
        reply = await self._ask(query)
        try:
            points = reply.json()[0]["datapoints"]  # type: ignore[index] # checked by the except
            value = points[-2][0] if len(points) > 1 else points[-1][0]
        except (BadReplyError, LookupError, TypeError):
            raise HttpError(500, "INTERNAL_ERROR") from None
        if not isinstance(value, int | float) or value < 0:
            return json_reply({"rate": "N/A"})
        return json_reply({"rate": f"{value / self._interval_s:.2f}"})

    async def _ask(self, query: str) -> Reply:
        assert self._url is not None
        path = self._url.target.partition("?")[0].rstrip("/")
        try:
            url = dataclasses.replace(self._url, target=f"{path}/render?{query}")
            return await self._client.request("GET", url)
        except (OSError, BadReplyError, UrlError) as error:
            logger.warning("Graphite does not answer: %s", describe_error(error))
            raise HttpError(500, "INTERNAL_ERROR") from error


def _plain(content_type: str) -> str:
    """Return a content type that can stand in a header."""
    return content_type if content_type.isprintable() and content_type.isascii() else "text/plain"
