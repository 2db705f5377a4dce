"""Commands of nsqadmin to nsqds and nsqlookupds, each with an outcome per daemon.

Nothing here asks whether the caller may; the API does. A daemon that refuses does not stop the
others: its words are the outcome.
"""

import asyncio
import json
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from nsqadmin.cluster.discovery import Discovery, Producer
from nsqadmin.cluster.upstream import Address, Upstream, UpstreamError, clean

# Actions on a topic or a channel of a node, and the end of nsqd's path for each.
QUEUE_VERBS: Final = ("pause", "unpause", "empty", "delete")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer of one daemon; no error is success."""

    daemon: str
    error: str | None = None
    body: bytes = b""

    @property
    def warning(self) -> str:
        """The error with the name of the daemon."""
        return f"{self.daemon}: {self.error}"


class Commands:
    """Sends commands to daemons."""

    def __init__(self, upstream: Upstream, discovery: Discovery) -> None:
        self._upstream = upstream
        self._discovery = discovery

    async def change_queue(
        self, node: Producer, verb: str, topic: str, channel: str = ""
    ) -> Outcome:
        """Pause, unpause, empty or delete a topic, or a channel, on one node."""
        kind = "channel" if channel else "topic"
        return await self.post(node, f"/{kind}/{verb}", **_names(topic, channel))

    async def create(self, node: Producer, topic: str, channel: str = "") -> Outcome:
        """Create a topic, or a channel, on one node."""
        kind = "channel" if channel else "topic"
        return await self.post(node, f"/{kind}/create", **_names(topic, channel))

    async def create_in_lookupds(self, topic: str, channel: str = "") -> list[Outcome]:
        """Register a topic, and a channel of it, with every nsqlookupd."""
        outcomes = await self._tell_lookupds("/topic/create", topic=topic)
        if channel:
            outcomes += await self._tell_lookupds("/channel/create", topic=topic, channel=channel)
        return outcomes

    async def delete_in_lookupds(self, topic: str, channel: str = "") -> list[Outcome]:
        """Remove a topic, or a channel, from every nsqlookupd; one that lacks it is no error."""
        kind = "channel" if channel else "topic"
        outcomes = await self._tell_lookupds(f"/{kind}/delete", **_names(topic, channel))
        return [
            Outcome(each.daemon) if each.error and "NOT_FOUND" in each.error else each
            for each in outcomes
        ]

    async def tombstone(self, node: Producer, topic: str) -> list[Outcome]:
        """Hide a node from consumers of a topic, in every nsqlookupd."""
        return await self._tell_lookupds("/topic/tombstone", topic=topic, node=node.name)

    async def publish(
        self, node: Producer, topic: str, body: bytes, *, defer_ms: int = 0, count: int = 1
    ) -> Outcome:
        """Publish a body, several times if asked to."""
        if count == 1:
            more = {"defer": str(defer_ms)} if defer_ms else {}
            return await self.post(node, "/pub", body, topic=topic, **more)
        part = len(body).to_bytes(4, "big") + body
        batch = count.to_bytes(4, "big") + part * count
        return await self.post(node, "/mpub", batch, topic=topic, binary="true")

    async def set_limits(self, node: Producer, topic: str, limits: dict[str, object]) -> Outcome:
        """Give a topic limits of its own, on one node."""
        # In the body, even if there are none: that takes back those that the topic has.
        body = json.dumps(limits).encode()
        return await self.post(node, "/topic/limits", body, topic=topic)

    async def set_option(self, node: Producer, name: str, value: str) -> Outcome:
        """Change an option of a running node."""
        return await self._tell("PUT", node.address, node.name, f"/config/{name}", value.encode())

    async def post(self, node: Producer, path: str, body: bytes = b"", /, **query: str) -> Outcome:
        """POST to a node."""
        return await self._tell("POST", node.address, node.name, _target(path, query), body)

    async def _tell_lookupds(self, path: str, **query: str) -> list[Outcome]:
        return await gather(
            self._tell("POST", address, str(address), _target(path, query), is_node=False)
            for address in self._discovery.lookupds
        )

    async def _tell(
        self,
        method: str,
        address: Address,
        name: str,
        target: str,
        body: bytes = b"",
        *,
        is_node: bool = True,
    ) -> Outcome:
        try:
            reply = await self._upstream.send(method, address, target, body, is_node=is_node)
        except UpstreamError as error:
            return Outcome(name, clean(error.text))
        return Outcome(name, None, reply)


async def gather(calls: Iterable[Awaitable[Outcome]]) -> list[Outcome]:
    """Make several calls at the same time; `Upstream` bounds how many."""
    return list(await asyncio.gather(*calls))


def warn_of(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the errors among outcomes."""
    return [outcome.warning for outcome in outcomes if outcome.error is not None]


def _names(topic: str, channel: str) -> dict[str, str]:
    return {"topic": topic, "channel": channel} if channel else {"topic": topic}


def _target(path: str, query: dict[str, str]) -> str:
    return f"{path}?{urlencode(query)}" if query else path
