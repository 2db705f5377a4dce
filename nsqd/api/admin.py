"""POST /topic/* and /channel/*: create, delete, empty, pause, unpause; POST /client/close.

A deletion, pause or unpause is answered when nsqd.dat has it, so that no crash undoes it. If the
disk does not take it for a while the answer comes anyway: the change is in force, and nsqd.dat
follows as soon as it can. A creation does not wait: nsqd.dat is written whole, so thousands of
creations in a row, each waiting for its own write, would take minutes.

An emptying or deletion is in force at once, too. It is answered when the disk has forgotten the
messages, so that no crash brings them back; what is published meanwhile stays.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from nsqd.api.topics import disk_error, get_channel, get_topic, get_valid_topic_name, internal_error
from nsqd.broker.errors import ClosedError
from nsqd.broker.queue.receipt import Receipt
from nsqd.http.arguments import get_argument, get_names
from nsqd.http.server import EMPTY, HttpError, Request, Response, Router
from nsqd.node import Node

logger = logging.getLogger(__name__)

PERSIST_TIMEOUT_S = 5.0

# The names of NSQ 0.2. It did not look at the method, and its users' scripts have GET.
LEGACY_PATHS = frozenset(
    f"/{verb}_{noun}"
    for noun in ("topic", "channel")
    for verb in ("create", "delete", "empty", "pause", "unpause")
)

_Reply: TypeAlias = Response | Awaitable[Response]


class AdminRoutes:
    """The routes of an operator who changes topics and channels."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._broker = node.broker

    def add_to(self, router: Router) -> None:
        """Add the routes, with the names that they had in NSQ 0.2 as aliases."""
        actions: dict[str, dict[str, Callable[[Request], _Reply]]] = {
            "topic": {
                "create": self._create_topic,
                "delete": self._delete_topic,
                "empty": self._empty_topic,
                "pause": self._pause_topic,
                "unpause": self._unpause_topic,
            },
            "channel": {
                "create": self._create_channel,
                "delete": self._delete_channel,
                "empty": self._empty_channel,
                "pause": self._pause_channel,
                "unpause": self._unpause_channel,
            },
        }
        for noun, handlers in actions.items():
            for verb, handler in handlers.items():
                router.add("POST", f"/{noun}/{verb}", handler)
                for method in ("GET", "POST"):
                    router.add(method, f"/{verb}_{noun}", handler)

        router.add("POST", "/client/close", self._close_client)

    def _close_client(self, request: Request) -> Response:
        """Tell a client of the TCP port that it is over, and end its connection.

        Its messages stay in flight until they time out, as when it leaves by itself.
        """
        address = get_argument(request, "remote_address")
        clients = [each for each in self._node.connections if each.remote_address == address]
        if not clients:
            raise HttpError(404, "CLIENT_NOT_FOUND")
        for client in clients:
            logger.info("HTTP: closing client(%s)", address)
            client.close(is_told=True)
        return EMPTY

    def _create_topic(self, request: Request) -> Response:
        name = get_valid_topic_name(request)
        if self._broker.find_topic(name) is None:
            self._check_disk()
        try:
            self._broker.ensure_topic(name)
        except ClosedError as error:
            raise HttpError(503, "EXITING") from error
        except OSError as error:
            raise disk_error(error) from error
        return EMPTY

    def _delete_topic(self, request: Request) -> _Reply:
        topic = get_topic(self._broker, get_argument(request, "topic"))
        return self._deleted(self._broker.delete_topic(topic.name), topic.name, topic.name)

    def _empty_topic(self, request: Request) -> _Reply:
        topic = get_topic(self._broker, get_valid_topic_name(request))
        return _emptied(topic.empty(), topic.name)

    def _pause_topic(self, request: Request) -> _Reply:
        topic = get_topic(self._broker, get_argument(request, "topic"))
        topic.pause()
        return self._persisted(topic.name)

    def _unpause_topic(self, request: Request) -> _Reply:
        topic = get_topic(self._broker, get_argument(request, "topic"))
        topic.unpause()
        return self._persisted(topic.name)

    def _create_channel(self, request: Request) -> Response:
        topic_name, channel_name = get_names(request)
        topic = get_topic(self._broker, topic_name)
        if channel_name not in topic.channels:
            self._check_disk()
        try:
            topic.ensure_channel(channel_name)
        except ClosedError as error:
            raise HttpError(503, "EXITING") from error
        except OSError as error:
            raise disk_error(error) from error
        return EMPTY

    def _check_disk(self) -> None:
        """Refuse a creation that a restart would forget.

        Subscribers may still create channels: the backlog of a topic without channels could never
        be consumed otherwise, and the disk stay full.
        """
        obstacle = self._broker.disk_health.find_creation_obstacle()
        if obstacle is not None:
            raise HttpError(503, f"DISK_FULL: {obstacle}")

    def _delete_channel(self, request: Request) -> _Reply:
        topic, channel = get_channel(self._broker, *get_names(request))
        receipt = topic.delete_channel(channel.name)
        return self._deleted(receipt, f"{topic.name}:{channel.name}", topic.name)

    def _empty_channel(self, request: Request) -> _Reply:
        topic, channel = get_channel(self._broker, *get_names(request))
        return _emptied(channel.empty(), f"{topic.name}:{channel.name}")

    def _pause_channel(self, request: Request) -> _Reply:
        topic, channel = get_channel(self._broker, *get_names(request))
        channel.pause()
        return self._persisted(topic.name)

    def _unpause_channel(self, request: Request) -> _Reply:
        topic, channel = get_channel(self._broker, *get_names(request))
        channel.unpause()
        return self._persisted(topic.name)

    async def _persisted(self, topic_name: str) -> Response:
        await persist(self._node, topic_name)
        return EMPTY

    async def _deleted(self, receipt: Receipt, name: str, topic_name: str) -> Response:
        """Answer the deletion of a topic or channel when its files are gone and nsqd.dat has it.

        Raises:
            HttpError: 500, a file could not be removed.
        """
        error = await await_receipt(receipt)
        if error is not None:
            raise internal_error("delete", name, error) from error
        return await self._persisted(topic_name)


async def _emptied(receipt: Receipt, name: str) -> Response:
    """Answer an emptying when no crash brings the messages back.

    Raises:
        HttpError: 500, the disk has not forgotten them.
    """
    error = await await_receipt(receipt)
    if error is not None:
        raise internal_error("empty", name, error) from error
    return EMPTY


async def await_receipt(receipt: Receipt) -> Exception | None:
    """Wait until a receipt is done; return its error."""
    outcome: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def settle(error: Exception | None) -> None:
        if not outcome.cancelled():
            outcome.set_result(error)

    receipt.when_done(settle)
    return await outcome


async def persist(node: Node, topic_name: str) -> None:
    """Wait until nsqd.dat has a changed topic, but not longer than PERSIST_TIMEOUT_S."""
    try:
        async with asyncio.timeout(PERSIST_TIMEOUT_S):
            await node.persist(topic_name)
    except TimeoutError:
        logger.warning("HTTP: answered before the change is in nsqd.dat")
