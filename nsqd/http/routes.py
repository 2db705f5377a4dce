"""Router: the table from path and method to handler; it has an answer for every request.

No sockets, no event loop, no clock. A handler takes a `Request` and returns a `Response` (or an
awaitable of one), or raises `HttpError`. The router keeps a bounded cache from the target of a
request, byte for byte, to its path, query and routes: producers repeat a few targets for ever.
"""

from __future__ import annotations

import html
import logging
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias, TypeVar

from nsqd.http.messages import (
    HTML_CONTENT_TYPE,
    JSON_CONTENT_TYPE,
    HttpError,
    Request,
    Response,
    Style,
    Target,
)

logger = logging.getLogger(__name__)

# The bound on a body where the route sets no other; bodies that no handler reads have it too.
DEFAULT_MAX_BODY_BYTES: Final = 64 * 1024

# The cache of targets is emptied when full: the working set is a few topics, so a smarter
# eviction would only serve a client that asks for a new path each time.
MAX_CACHED_TARGETS: Final = 1024
MAX_CACHED_TARGET_BYTES: Final = 512

_Argument = TypeVar("_Argument")
_Reply = TypeVar("_Reply")

Handler: TypeAlias = Callable[[Request], Response | Awaitable[Response]]


class Route:
    """A handler, the bound on the bodies it takes and the style of its replies."""

    __slots__ = (
        "closes",
        "handler",
        "is_quiet",
        "max_body_bytes",
        "style",
        "takes_body",
        "too_large",
    )

    def __init__(
        self,
        handler: Handler,
        *,
        style: Style = Style.V1,
        max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
        too_large: Route | None = None,
        is_quiet: bool = False,
        closes: bool = False,
    ) -> None:
        self.handler = handler
        self.style = style
        self.max_body_bytes = max_body_bytes
        # The route that answers when the body is larger; a refusal refuses either way.
        self.too_large = too_large or self
        self.takes_body = too_large is not None
        self.is_quiet = is_quiet
        self.closes = closes

    @classmethod
    def fixed(cls, response: Response, style: Style = Style.V1, *, closes: bool = False) -> Route:
        """Make a route that answers every request with one response."""
        return cls(lambda request: response, style=style, closes=closes)

    @classmethod
    def refusal(cls, status: int, code: str, style: Style = Style.V1) -> Route:
        """Make a route that answers with an error and ends the connection."""
        return cls.fixed(Response.error(HttpError(status, code), style), style, closes=True)


BAD_REQUEST: Final = Route.refusal(400, "BAD_REQUEST")
_NOT_FOUND: Final = Route.fixed(Response.error(HttpError(404, "NOT_FOUND"), Style.V1))


class Router:
    """The table of routes; `resolve` has an answer for every target and method."""

    def __init__(self) -> None:
        # Path -> method -> route. A path with a parameter is kept up to its colon.
        self._paths: dict[str, dict[bytes, Route]] = {}
        self._prefixes: dict[str, dict[bytes, Route]] = {}
        self._targets: dict[bytes, Target] = {}

    def add(
        self,
        method: str,
        path: str,
        handler: Handler,
        *,
        max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
        too_large_code: str = "BODY_TOO_BIG",
        style: Style = Style.V1,
        is_quiet: bool = False,
    ) -> None:
        """Send requests for a path to a handler.

        Args:
            path: `/stats`, or `/config/:opt` with one parameter as its last segment.
            too_large_code: the code of the 413 for a body larger than `max_body_bytes`.
            is_quiet: leave the route's requests out of the access log.

        Raises:
            ValueError: The method of that path is taken, or the path has no leading slash.
        """
        if not path.startswith("/"):
            raise ValueError(f"path {path!r} does not begin with a slash")
        prefix, colon, _ = path.partition(":")
        table = self._prefixes if colon else self._paths
        routes = table.setdefault(prefix, {})
        if method.encode() in routes:
            raise ValueError(f"{method} {path} is taken")
        routes[method.encode()] = Route(
            handler,
            style=style,
            max_body_bytes=max_body_bytes,
            too_large=Route.refusal(413, too_large_code, style),
            is_quiet=is_quiet,
        )
        self._targets.clear()

    def has_path(self, path: str) -> bool:
        """Say whether a route has this path, with any method; parameters do not count."""
        return path in self._paths

    def target(self, raw: bytes) -> Target:
        """Take a request target apart, or find it in the cache."""
        target = self._targets.get(raw)
        if target is None:
            target = Target(raw)
            if len(raw) <= MAX_CACHED_TARGET_BYTES:
                if len(self._targets) >= MAX_CACHED_TARGETS:
                    self._targets.clear()
                self._targets[raw] = target
        return target

    def resolve(self, target: Target, method: bytes) -> Route:
        """Return the route of a request; its target remembers it."""
        route = target.routes.get(method)
        if route is None:
            route = target.routes[method] = self._resolve(target, method)
        return route

    def _resolve(self, target: Target, method: bytes) -> Route:
        if target.path is None:
            return BAD_REQUEST
        if target.path == "*":
            return self._resolve_asterisk(method)
        routes, target.param = self._find(target.path)
        if method in routes:
            return routes[method]
        location = self._find_redirect(target.path, method)
        if location is not None:
            return _redirect(location, target.raw_query, method)
        if not routes:
            return _NOT_FOUND
        return _answer_options(routes) if method == b"OPTIONS" else _refuse_method(routes)

    def _resolve_asterisk(self, method: bytes) -> Route:
        if method != b"OPTIONS":
            return BAD_REQUEST
        tables = (*self._paths.values(), *self._prefixes.values())
        return _answer_options(
            {method: route for table in tables for method, route in table.items()}
        )

    def _find(self, path: str) -> tuple[dict[bytes, Route], str | None]:
        """Return the routes of a path by method, and its parameter."""
        routes = self._paths.get(path)
        if routes is not None:
            return routes, None
        prefix, slash, last = path.rpartition("/")
        routes = self._prefixes.get(prefix + slash) if last else None
        return (routes, last) if routes is not None else ({}, None)

    def _find_redirect(self, path: str, method: bytes) -> str | None:
        """Return the known path that the client must have meant, if it has the method."""
        cleaned = _clean(path)
        toggled = cleaned[:-1] if cleaned.endswith("/") else f"{cleaned}/"
        for candidate in (cleaned, toggled):
            folded = candidate.lower()
            for known, routes in self._paths.items():
                if known.lower() == folded and method in routes:
                    return known
            for prefix, routes in self._prefixes.items():
                last = candidate[len(prefix) :]
                is_match = folded.startswith(prefix.lower()) and last and "/" not in last
                if is_match and method in routes:
                    return prefix + last
        return None


def answer(
    request: Request, call: Callable[[_Argument], _Reply], argument: _Argument
) -> _Reply | Response:
    """Return the result of a call made for a request, or the reply to the error that it raised.

    Any error of a handler ends its request only: `HttpError` is an answer, any other exception is
    logged and answered with 500. A failed assertion passes through and stops the daemon.
    """
    try:
        return call(argument)
    except HttpError as error:
        return Response.error(error, request.route.style)
    except AssertionError:
        raise
    except Exception:
        logger.exception("handler failed method=%s uri=%s", request.method, request.uri)
        return Response.error(HttpError(500, "INTERNAL_ERROR"), request.route.style)


def _clean(path: str) -> str:
    """Return the path without empty, `.` and `..` segments; a trailing slash stays."""
    segments: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            del segments[-1:]
        elif segment not in ("", "."):
            segments.append(segment)
    cleaned = "/" + "/".join(segments)
    return f"{cleaned}/" if path.endswith("/") and segments else cleaned


def _redirect(path: str, raw_query: bytes, method: bytes) -> Route:
    location = urllib.parse.quote(path)
    if raw_query:
        location += "?" + raw_query.decode("latin-1")
    if method != b"GET":
        response = Response(307, headers={"Location": location})
    else:
        body = f'<a href="{html.escape(location)}">Moved Permanently</a>.\n\n'
        headers = {"Location": location}
        response = Response(301, body.encode(), content_type=HTML_CONTENT_TYPE, headers=headers)
    return Route.fixed(response, Style.PLAIN)


def _allow(routes: Mapping[bytes, Route]) -> dict[str, str]:
    return {"Allow": ", ".join(sorted({method.decode() for method in routes} | {"OPTIONS"}))}


def _answer_options(routes: Mapping[bytes, Route]) -> Route:
    return Route.fixed(Response(headers=_allow(routes)), Style.PLAIN)


def _refuse_method(routes: Mapping[bytes, Route]) -> Route:
    body = Response.error(HttpError(405, "METHOD_NOT_ALLOWED"), Style.V1).body
    response = Response(405, body, content_type=JSON_CONTENT_TYPE, headers=_allow(routes))
    return Route.fixed(response, Style.V1)
