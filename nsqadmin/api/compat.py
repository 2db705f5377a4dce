"""The API of the Go nsqadmin, for scripts and bookmarks: paths, JSON, statuses and messages.

Reads ask the daemons now, as the Go one does; its faults are mended (docs/nsqadmin.md lists them).
"""

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar
from urllib.parse import quote

from nsqadmin.access.changes import Changes
from nsqadmin.access.roles import Caller, Right
from nsqadmin.api.go_shapes import (
    Object,
    find_newest,
    merge_channel,
    merge_topic,
    read_topics,
    show_node,
)
from nsqadmin.api.replies import ApiRouter, json_reply, read_object
from nsqadmin.cluster.collector import Collector
from nsqadmin.cluster.commands import Commands, Outcome, gather, warn_of
from nsqadmin.cluster.discovery import Answer, Discovery, Producer
from nsqadmin.cluster.upstream import Upstream, UpstreamError
from nsqd.http.server import HttpError, Request, Response
from nsqd.protocol.names import is_valid_channel_name, is_valid_topic_name

_T = TypeVar("_T")

_RIGHTS = {"pause": Right.OPERATE, "unpause": Right.OPERATE, "empty": Right.ADMIN}


class CompatRoutes:
    """The routes below /api that the Go nsqadmin has."""

    def __init__(
        self,
        upstream: Upstream,
        discovery: Discovery,
        commands: Commands,
        collector: Collector,
        changes: Changes,
    ) -> None:
        self._upstream = upstream
        self._discovery = discovery
        self._commands = commands
        self._collector = collector
        self._changes = changes

    def add_to(self, router: ApiRouter) -> None:
        """Add the routes."""
        for method, path, handler in (
            ("GET", "/api/topics", self._topics),
            ("GET", "/api/topics/:topic", self._topic),
            ("GET", "/api/topics/:topic/:channel", self._channel),
            ("GET", "/api/nodes", self._nodes),
            ("GET", "/api/nodes/:node", self._node),
            ("GET", "/api/counter", self._counter),
            # The role that these need depends on the request.
            ("POST", "/api/topics", self._create),
            ("POST", "/api/topics/:topic", self._change_queue),
            ("POST", "/api/topics/:topic/:channel", self._change_queue),
            ("DELETE", "/api/topics/:topic", self._delete),
            ("DELETE", "/api/topics/:topic/:channel", self._delete),
            ("DELETE", "/api/nodes/:node", self._tombstone),
        ):
            router.add(method, path, handler, Right.VIEW)

    # Reads.

    async def _topics(self, request: Request, _caller: Caller) -> Response:
        self._collector.note_viewer()
        if request.find("inactive") == "true":
            inactive = await self._discovery.find_inactive()
            if self._discovery.has_lookupds:
                self._check(inactive)
            return json_reply({"topics": inactive.value, "message": _warn(inactive.errors)})
        topics = await self._discovery.find_topics()
        self._check(topics)
        return json_reply({"topics": topics.value, "message": _warn(topics.errors)})

    async def _topic(self, request: Request, _caller: Caller) -> Response:
        [topic] = request.params
        producers, steps = await self._find_producers(topic)
        parts, errors = await self._ask_stats(producers, topic=topic, has_clients=False)
        found = merge_topic(topic, [part for part in parts if part["topic_name"] == topic])
        return json_reply({**found, "message": _warn(*steps, errors)})

    async def _channel(self, request: Request, _caller: Caller) -> Response:
        topic, channel = request.params
        producers, steps = await self._find_producers(topic)
        parts, errors = await self._ask_stats(producers, topic=topic, channel=channel)
        channels = [
            each
            for part in parts
            if part["topic_name"] == topic
            for each in part["channels"]
            if each["channel_name"] == channel
        ]
        if not channels and not errors:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        found = merge_channel(topic, channel, channels)
        return json_reply({**found, "message": _warn(*steps, errors)})

    async def _nodes(self, _request: Request, _caller: Caller) -> Response:
        self._collector.note_viewer()
        nodes = await self._discovery.find_nodes()
        self._check(nodes)
        newest = find_newest(nodes.value)
        shown = [show_node(node, newest) for node in sorted(nodes.value, key=_name)]
        return json_reply({"nodes": shown, "message": _warn(nodes.errors)})

    async def _node(self, request: Request, _caller: Caller) -> Response:
        [name] = request.params
        producer, errors = await self._find_node(name)
        parts, more = await self._ask_stats([producer])
        if more:
            raise _upstream_error("nsqd", more)
        channels = [channel for topic in parts for channel in topic["channels"]]
        return json_reply(
            {
                "node": producer.name,
                "topics": sorted(parts, key=lambda topic: str(topic["topic_name"])),
                "total_messages": sum(topic["message_count"] for topic in parts),
                "total_clients": sum(len(channel["clients"]) for channel in channels),
                "message": _warn(errors),
            }
        )

    async def _counter(self, _request: Request, _caller: Caller) -> Response:
        self._collector.note_viewer()
        nodes = await self._discovery.find_nodes()
        self._check(nodes)
        parts, errors = await self._ask_stats(nodes.value, has_clients=False)
        stats = {
            f"{channel['topic_name']}:{channel['channel_name']}:{channel['node']}": {
                name: channel[name]
                for name in ("node", "topic_name", "channel_name", "message_count")
            }
            for topic in parts
            for channel in topic["channels"]
        }
        return json_reply({"stats": stats, "message": _warn(nodes.errors, errors)})

    # Writes.

    async def _create(self, request: Request, caller: Caller) -> Response:
        self._changes.demand(request, caller, Right.OPERATE, "create_topic")
        fields = read_object(request)
        topic, channel = _text(fields, "topic"), _text(fields, "channel")
        if not is_valid_topic_name(topic):
            raise HttpError(400, "INVALID_TOPIC")
        if channel and not is_valid_channel_name(channel):
            raise HttpError(400, "INVALID_CHANNEL")
        entry = await self._changes.begin(request, caller, "create_topic", topic=topic)
        if channel:
            self._changes.notify(request, "create_channel", topic=topic, channel=channel)
            entry.channel = channel
        outcomes = await self._create_everywhere(topic, channel)
        await self._changes.finish(entry, outcomes)
        return json_reply({"message": _warn(warn_of(outcomes))})

    async def _create_everywhere(self, topic: str, channel: str) -> list[Outcome]:
        if self._discovery.has_lookupds:
            outcomes = await self._commands.create_in_lookupds(topic, channel)
            if channel:
                found = await self._discovery.find_producers(topic)
                outcomes += await gather(
                    self._commands.create(node, topic, channel) for node in found.value or ()
                )
            return outcomes
        nodes = await self._discovery.find_nodes()
        outcomes = await gather(self._commands.create(node, topic) for node in nodes.value)
        if channel:
            outcomes += await gather(
                self._commands.create(node, topic, channel) for node in nodes.value
            )
        return outcomes + [Outcome("nsqd", error) for error in nodes.errors]

    async def _change_queue(self, request: Request, caller: Caller) -> Response:
        topic, channel = _read_names(request)
        fields = read_object(request)
        action = _text(fields, "action")
        if action not in _RIGHTS:
            self._changes.demand(request, caller, Right.OPERATE, "change")
            raise HttpError(400, "INVALID_ACTION")
        name = f"{action}_{'channel' if channel else 'topic'}"
        self._changes.demand(request, caller, _RIGHTS[action], name)
        producers, steps = await self._find_producers(topic)
        entry = await self._changes.begin(request, caller, name, topic=topic, channel=channel)
        outcomes = await gather(
            self._commands.change_queue(node, action, topic, channel) for node in producers
        )
        await self._changes.finish(entry, outcomes)
        return json_reply({"message": _warn(*steps, warn_of(outcomes))})

    async def _delete(self, request: Request, caller: Caller) -> Response:
        topic, channel = _read_names(request)
        name = "delete_channel" if channel else "delete_topic"
        self._changes.demand(request, caller, Right.ADMIN, name)
        # Before they are forgotten.
        producers, steps = await self._find_producers(topic)
        entry = await self._changes.begin(request, caller, name, topic=topic, channel=channel)
        outcomes = await self._commands.delete_in_lookupds(topic, channel)
        outcomes += await gather(
            self._commands.change_queue(node, "delete", topic, channel) for node in producers
        )
        await self._changes.finish(entry, outcomes)
        return json_reply({"message": _warn(*steps, warn_of(outcomes))})

    async def _tombstone(self, request: Request, caller: Caller) -> Response:
        [name] = request.params
        action = "tombstone_topic_producer"
        self._changes.demand(request, caller, Right.ADMIN, action)
        topic = _text(read_object(request), "topic")
        if not is_valid_topic_name(topic):
            raise HttpError(400, "INVALID_TOPIC")
        node, errors = await self._find_node(name)
        entry = await self._changes.begin(request, caller, action, topic=topic, node=node.name)
        outcomes = await self._commands.tombstone(node, topic)
        outcomes.append(await self._commands.change_queue(node, "delete", topic))
        await self._changes.finish(entry, outcomes)
        return json_reply({"message": _warn(errors, warn_of(outcomes))})

    # Shared by the routes of topics and channels.

    async def _find_producers(self, topic: str) -> tuple[list[Producer], list[list[str]]]:
        """Return the nodes that have a topic, and the errors on the way there.

        Raises:
            HttpError: 404, no daemon knows it; 502, no daemon answers.
        """
        self._collector.note_viewer()
        if not is_valid_topic_name(topic):
            raise HttpError(404, "TOPIC_NOT_FOUND")
        found = await self._discovery.find_producers(topic)
        self._check(found)
        if found.value is None and not found.errors:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        return found.value or [], [found.errors]

    async def _find_node(self, name: str) -> tuple[Producer, list[str]]:
        """Return a node that discovery knows; nothing else is ever called.

        Raises:
            HttpError: 404 or 502.
        """
        nodes = await self._discovery.find_nodes()
        self._check(nodes)
        for node in nodes.value:
            if node.name == name:
                return node, nodes.errors
        raise HttpError(404, "NODE_NOT_FOUND")

    async def _ask_stats(
        self,
        producers: Sequence[Producer],
        *,
        topic: str = "",
        channel: str = "",
        has_clients: bool = True,
    ) -> tuple[list[Object], list[str]]:
        """Return the topics in the /stats of some nodes, and the errors of the others.

        Raises:
            HttpError: 502, there are nodes and none of them answers.
        """
        target = "/stats?format=json"
        if topic:
            target += f"&topic={quote(topic)}"
        if channel:
            target += f"&channel={quote(channel)}"
        if not has_clients:
            target += "&include_clients=false"

        async def ask(producer: Producer) -> list[Object] | UpstreamError:
            try:
                stats = await self._upstream.get(producer.address, target, is_node=True)
            except UpstreamError as error:
                return UpstreamError(f"{producer.name}: {error.text}")
            return read_topics(stats, producer)

        outcomes = await asyncio.gather(*map(ask, producers))
        errors = [each.text for each in outcomes if isinstance(each, UpstreamError)]
        if errors and len(errors) == len(producers):
            raise _upstream_error("nsqd", errors)
        topics = [each for each in outcomes if not isinstance(each, UpstreamError)]
        return [found for each in topics for found in each], errors

    def _check(self, answer: Answer[_T]) -> None:
        """Raise HttpError 502 if no daemon has answered."""
        if answer.is_complete_failure:
            kind = "nsqlookupd" if self._discovery.has_lookupds else "nsqd"
            raise _upstream_error(kind, answer.errors)


def _upstream_error(kind: str, errors: Sequence[str]) -> HttpError:
    lines = "\n".join(errors)
    return HttpError(502, f"UPSTREAM_ERROR: failed to query any {kind}: {lines}")


def _warn(*steps: Sequence[str]) -> str:
    """Return the message of a reply: the errors of each step by lines, the steps by semicolons."""
    texts = ["\n".join(errors) for errors in steps if errors]
    return f"WARNING: {'; '.join(texts)}" if texts else ""


def _read_names(request: Request) -> tuple[str, str]:
    """Return the topic and the channel, if any, that a change names.

    Raises:
        HttpError: 400.
    """
    topic, channel = (*request.params, "")[:2]
    if not is_valid_topic_name(topic):
        raise HttpError(400, "INVALID_TOPIC")
    if channel and not is_valid_channel_name(channel):
        raise HttpError(400, "INVALID_CHANNEL")
    return topic, channel


def _text(fields: dict[str, Any], name: str) -> str:
    """Return a text of a JSON body, "" if it is absent.

    Raises:
        HttpError: 400, it is something else.
    """
    value = fields.get(name, "")
    if not isinstance(value, str):
        raise HttpError(400, f"INVALID_BODY: {name} is no text")
    return value


def _name(producer: Producer) -> str:
    return producer.name
