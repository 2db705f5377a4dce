"""GET and POST /topic/limits: how much a topic may hold, for how long, how often it is tried.

A POST says all limits that the topic has of its own, in a JSON object or in the query; what it does
not name, or names as null, is the flag's value. It is answered when nsqd.dat has it.
"""

import json
from collections.abc import Mapping

from nsqd.api.admin import persist
from nsqd.api.topics import get_topic, get_valid_topic_name
from nsqd.broker.limits.dead_letter import find_dead_letter_name
from nsqd.broker.limits.values import (
    MAX_COUNT,
    DepthPolicy,
    LimitOverrides,
    Limits,
    is_valid_suffix,
)
from nsqd.broker.topic import Topic
from nsqd.config.kinds import format_duration, parse_duration
from nsqd.http.arguments import parse_count
from nsqd.http.server import HttpError, Request, Response, Router
from nsqd.node import Node

PATH = "/topic/limits"
MAX_BODY_BYTES = 4096
MAX_ATTEMPTS = 65535
MAX_TTL_S = 292 * 365.25 * 86400  # more than an int64 of nanoseconds has no room for

_NAMES = (
    "max_depth",
    "max_depth_bytes",
    "max_depth_policy",
    "msg_ttl",
    "max_attempts",
    "dead_letter_topic_suffix",
)


class LimitRoutes:
    """Shows and sets the limits of topics."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._broker = node.broker

    def add_to(self, router: Router) -> None:
        """Add the routes."""
        router.add("GET", PATH, self._show)
        router.add(
            *("POST", PATH, self._set),
            max_body_bytes=MAX_BODY_BYTES,
            too_large_code="BODY_TOO_BIG",
        )

    def _show(self, request: Request) -> Response:
        return self._reply(get_topic(self._broker, get_valid_topic_name(request)))

    async def _set(self, request: Request) -> Response:
        topic = get_topic(self._broker, get_valid_topic_name(request))
        overrides = parse_limits(_read_values(request))
        suffix = overrides.dead_letter_topic_suffix
        if suffix and not topic.is_ephemeral and find_dead_letter_name(topic.name, suffix) is None:
            raise _invalid("dead_letter_topic_suffix")  # with it, the name would be too long
        self._broker.limits.set(topic, overrides)
        if not topic.is_ephemeral:
            await persist(self._node)
        return self._reply(topic)

    def _reply(self, topic: Topic) -> Response:
        limits, sources = self._broker.limits.find_limits(topic)
        values = show_limits(limits)
        return Response.json(
            {
                "topic": topic.name,
                "limits": {
                    name: {"value": values[name], "source": source}
                    for name, source in zip(_NAMES, sources.values(), strict=True)
                },
                "dead_letter_topic": self._broker.limits.find_dead_letter_name(topic),
            }
        )


def show_limits(limits: Limits) -> dict[str, object]:
    """Return limits as JSON has them, in the order of the flags; the TTL as a flag has it."""
    return {
        "max_depth": limits.max_depth,
        "max_depth_bytes": limits.max_depth_bytes,
        "max_depth_policy": limits.max_depth_policy.value,
        "msg_ttl": format_duration(limits.msg_ttl_s),
        "max_attempts": limits.max_attempts,
        "dead_letter_topic_suffix": limits.dead_letter_topic_suffix,
    }


def parse_limits(values: Mapping[str, object]) -> LimitOverrides:
    """Read limits, counts as numbers or text.

    Raises:
        HttpError: 400, with the limit that is wrong.
    """
    policy = _find_text(values, "max_depth_policy")
    suffix = _find_text(values, "dead_letter_topic_suffix")
    if suffix is not None and not is_valid_suffix(suffix):
        raise _invalid("dead_letter_topic_suffix")
    if policy is not None and policy not in {each.value for each in DepthPolicy}:
        raise _invalid("max_depth_policy")
    return LimitOverrides(
        max_depth=_find_count(values, "max_depth", MAX_COUNT),
        max_depth_bytes=_find_count(values, "max_depth_bytes", MAX_COUNT),
        max_depth_policy=None if policy is None else DepthPolicy(policy),
        msg_ttl_s=_find_duration(values, "msg_ttl"),
        max_attempts=_find_count(values, "max_attempts", MAX_ATTEMPTS),
        dead_letter_topic_suffix=suffix,
    )


def _read_values(request: Request) -> Mapping[str, object]:
    named = {name: request.query[name] for name in _NAMES if name in request.query}
    if not request.body:
        return named
    try:
        content = json.loads(request.body)
    except (ValueError, RecursionError) as error:
        raise HttpError(400, "INVALID_BODY") from error
    if not isinstance(content, dict) or named:
        raise HttpError(400, "INVALID_BODY")
    if not content.keys() <= set(_NAMES):
        raise HttpError(400, "UNKNOWN_LIMIT")
    return content


def _find_text(values: Mapping[str, object], name: str) -> str | None:
    value = values.get(name)
    if value is not None and not isinstance(value, str):
        raise _invalid(name)
    return value


def _find_count(values: Mapping[str, object], name: str, maximum: int) -> int | None:
    value = values.get(name)
    match value:
        case None:
            return None
        case "0":
            return 0
        case str():
            count = parse_count(value, maximum)
            if count is not None:
                return count
        case int() if not isinstance(value, bool) and 0 <= value <= maximum:
            return value
    raise _invalid(name)


def _find_duration(values: Mapping[str, object], name: str) -> float | None:
    """A number without a unit is refused, as nobody knows whether it means seconds."""
    value = values.get(name)
    if value is None:
        return None
    try:
        duration_s = parse_duration(value) if isinstance(value, str) else -1.0
    except ValueError as error:
        raise _invalid(name) from error
    if not 0 <= duration_s <= MAX_TTL_S:
        raise _invalid(name)
    return duration_s


def _invalid(name: str) -> HttpError:
    return HttpError(400, f"INVALID_{name.upper()}")
