"""GET and POST /topic/limits: how much a topic may hold, for how long, how often it is tried.

A POST gives all limits that the topic has of its own, in a JSON object or in the query; a limit
that is absent or null has the flag's value. The reply waits until nsqd.dat has the new limits.
"""

import json
from collections.abc import Mapping

from nsqd.api.admin import persist
from nsqd.api.topics import get_topic, get_valid_topic_name
from nsqd.broker.limits.dead_letter import find_dead_letter_name
from nsqd.broker.limits.overrides import LimitOverrides
from nsqd.broker.topic import Topic
from nsqd.config.kinds import INT
from nsqd.config.limits import LIMITS, Limit
from nsqd.http.server import HttpError, Request, Response, Router
from nsqd.node import Node

PATH = "/topic/limits"
MAX_BODY_BYTES = 4096

_NAMES = frozenset(limit.name for limit in LIMITS)


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
        overrides = _parse_limits(_read_values(request))
        suffix = overrides.values.get("dead_letter_topic_suffix")
        if suffix and not topic.is_ephemeral and find_dead_letter_name(topic.name, suffix) is None:
            raise _invalid("dead_letter_topic_suffix")  # with it, the name would be too long
        self._broker.limits.set(topic, overrides)
        if not topic.is_ephemeral:
            await persist(self._node, topic.name)
        return self._reply(topic)

    def _reply(self, topic: Topic) -> Response:
        limits, sources = self._broker.limits.find_limits(topic)
        return Response.json(
            {
                "topic": topic.name,
                "limits": {
                    limit.name: {
                        "value": _show_value(limit, limit.read(limits)),
                        "source": sources[limit.field_name],
                    }
                    for limit in LIMITS
                },
                "dead_letter_topic": self._broker.limits.find_dead_letter_name(topic),
            }
        )


def _show_value(limit: Limit, value: object) -> object:
    """Return a count as a number, any other value as the flag spells it."""
    return value if limit.kind is INT else limit.kind.show(value)


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
    if not content.keys() <= _NAMES:
        raise HttpError(400, "UNKNOWN_LIMIT")
    return content


def _parse_limits(values: Mapping[str, object]) -> LimitOverrides:
    found = {}
    for limit in LIMITS:
        value = values.get(limit.name)
        if value is not None:
            try:
                found[limit.field_name] = _parse_value(limit, value)
            except ValueError as error:
                raise _invalid(limit.name) from error
    return LimitOverrides(**found)


def _parse_value(limit: Limit, value: object) -> object:
    """Read a value, a count from a number or decimal digits, others as the flag spells them.

    Raises:
        ValueError: another spelling, such as a duration without its unit, or out of bounds.
    """
    if limit.kind is INT:
        if isinstance(value, str):
            if not (value.isascii() and value.isdecimal()):
                raise ValueError("must be digits")
            value = int(value)
        return limit.from_json(value)
    if not isinstance(value, str):
        raise ValueError("must be text")
    # There and back, as through nsqd.dat: the limit must still be valid after the next start.
    return limit.from_json(limit.kind.to_json(limit.kind.parse(value)))


def _invalid(name: str) -> HttpError:
    return HttpError(400, f"INVALID_{name.upper()}")
