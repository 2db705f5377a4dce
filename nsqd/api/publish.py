"""POST /pub and /mpub: messages over HTTP.

/pub is the hot route: producers repeat one target, which the router has parsed already; the topic
is looked up, and the body handed over.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from itertools import chain
from struct import Struct
from typing import TypeAlias

from nsqd.api.topics import disk_error, get_valid_topic_name
from nsqd.broker.broker import Broker
from nsqd.broker.errors import ClosedError, DepthLimitError, DrainingError
from nsqd.broker.queue.receipt import Receipt
from nsqd.http.server import OK, HttpError, Request, Response, Router
from nsqd.protocol.command_parser import read_sized
from nsqd.runtime.door_counts import DoorCounts
from nsqd.runtime.refusals import find_refusal
from nsqd.runtime.slices import gather_slices

logger = logging.getLogger(__name__)

# At once, or when the messages are durable.
Reply: TypeAlias = Response | asyncio.Future[Response]

_INT32 = Struct(">i")
_SIGNED_DECIMAL = re.compile(r"[+-]?[0-9]{1,19}")
# A larger body is split in parts, each of which takes a fraction of a millisecond.
PART_BYTES = 16 * 1024
_MAX_PART_COUNT = 1024
# The smallest message of a binary body: four bytes of length and one of message.
_MIN_BINARY_MESSAGE_BYTES = 5


class PublishRoutes:
    """Publish the bodies of requests."""

    def __init__(
        self,
        broker: Broker,
        counts: DoorCounts,
        *,
        max_msg_size: int,
        max_body_size: int,
        max_defer_ms: int,
    ) -> None:
        """Args: counts: gets the publishes that the broker refused."""
        self._broker = broker
        self._counts = counts
        self._topics = broker.topics
        self._max_msg_size = max_msg_size
        self._max_body_size = max_body_size
        self._max_defer_ms = max_defer_ms

    def add_to(self, router: Router) -> None:
        """Add the routes, with the names that they had in NSQ 0.2 as aliases."""
        for path in ("/pub", "/put"):
            router.add(
                *("POST", path, self.publish),
                max_body_bytes=self._max_msg_size,
                too_large_code="MSG_TOO_BIG",
                is_quiet=True,
            )
        for path in ("/mpub", "/mput"):
            router.add(
                *("POST", path, self.publish_many),
                max_body_bytes=self._max_body_size,
                too_large_code="BODY_TOO_BIG",
                is_quiet=True,
            )

    def publish(self, request: Request) -> Reply:
        """Take the body as one message."""
        body = request.body
        if not body:
            raise HttpError(400, "MSG_EMPTY")
        query = request.target.query
        topic = self._topics.get(query.get("topic", ""))
        if topic is None or "defer" in query or topic.refusal is not None:
            return self._publish(request, (body,))
        # A topic that exists has a valid name; another check would take half a microsecond of ten.
        try:
            receipt = topic.publish((body,))
        except (DepthLimitError, OSError) as error:
            raise self._refuse_now(topic.name, error) from error
        return OK if receipt is None else self._wait_for(receipt, topic.name)

    def publish_many(self, request: Request) -> Reply | Awaitable[Response]:
        """Take each line of the body, or each message of a binary one; all of them or none."""
        get_valid_topic_name(request)
        is_binary = _is_binary(request.find("binary"))
        parts = self._split_binary(request.body) if is_binary else self._split_lines(request.body)
        if len(request.body) > PART_BYTES:
            return self._publish_parts(request, parts)
        return self._publish(request, list(chain.from_iterable(parts)))

    async def _publish_parts(self, request: Request, parts: Iterable[list[bytes]]) -> Response:
        """Gather the messages of a large body a slice at a time, then publish them at once."""
        bodies: list[bytes] = []
        for part in await gather_slices(parts):
            bodies += part
        reply = self._publish(request, bodies)
        return reply if isinstance(reply, Response) else await reply

    def _publish(self, request: Request, bodies: Sequence[bytes]) -> Reply:
        name = get_valid_topic_name(request)
        delay_s = self._delay_s(request)
        try:
            topic = self._broker.topics.get(name) or self._broker.ensure_topic(name)
            receipt = topic.publish(bodies, delay_s=delay_s) if bodies else None
        except (ClosedError, DepthLimitError, OSError) as error:
            raise self._refuse_now(name, error) from error
        return OK if receipt is None else self._wait_for(receipt, name)

    def _refuse_now(self, name: str, error: Exception) -> HttpError:
        """Refuse a publish as `_refuse` does, and count it for a full queue of its topic.

        Of a publish that is refused later the topic has counted that itself.
        """
        if isinstance(error, DepthLimitError):
            self._broker.count_refusal(name)
        return self._refuse(name, error)

    def _refuse(self, name: str, error: Exception) -> HttpError:
        """Count a publish that the broker refused; return the answer."""
        refusal = find_refusal(error)
        if refusal is not None:
            self._counts.refusals[refusal] += 1
        if isinstance(error, DepthLimitError):
            return HttpError(503, f"QUEUE_FULL - {error}")
        if isinstance(error, OSError):
            logger.error("TOPIC(%s): failed to publish - %s", name, error)
            return disk_error(error)
        return HttpError(503, "DRAINING" if isinstance(error, DrainingError) else "EXITING")

    def _wait_for(self, receipt: Receipt, name: str) -> asyncio.Future[Response]:
        """Return the answer that comes when the receipt is settled: the messages are safe."""
        reply: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

        def answer(error: Exception | None) -> None:
            if reply.cancelled():
                return
            match error:
                case None:
                    reply.set_result(OK)
                case ClosedError() | DepthLimitError() | OSError():
                    reply.set_exception(self._refuse(name, error))
                case _:
                    reply.set_exception(error)

        receipt.when_done(answer)
        return reply

    def _delay_s(self, request: Request) -> float:
        text = request.find("defer")
        if text is None:
            return 0.0
        if not _SIGNED_DECIMAL.fullmatch(text):
            raise HttpError(400, "INVALID_DEFER")
        delay_ms = int(text)
        if not 0 <= delay_ms <= self._max_defer_ms:
            raise HttpError(400, "INVALID_DEFER")
        return delay_ms / 1000

    def _split_lines(self, body: bytes) -> Iterator[list[bytes]]:
        """Yield the lines of a body, some at a time."""
        position = 0
        while position < len(body):
            end = body.find(b"\n", position + PART_BYTES)
            if end < 0:
                end = len(body)
            lines = [line for line in body[position:end].split(b"\n") if line]
            if lines and max(map(len, lines)) > self._max_msg_size:
                raise HttpError(413, "MSG_TOO_BIG")
            yield lines
            position = end + 1

    def _split_binary(self, body: bytes) -> Iterator[list[bytes]]:
        """Yield the messages of a body that counts and measures them, some at a time.

        | 4: int32 count | then count times: 4: int32 size | size: message |

        Bytes after the last one are ignored.
        """
        if len(body) < _INT32.size:
            raise HttpError(413, "BAD_BODY")
        (count,) = _INT32.unpack_from(body)
        max_count = (self._max_body_size - _INT32.size) // _MIN_BINARY_MESSAGE_BYTES
        if not 0 < count <= max_count:
            raise HttpError(413, "BAD_BODY")
        position = _INT32.size
        while count:
            bodies, position = read_sized(
                *(body, position, len(body)),
                line=b"",
                max_count=min(count, _MAX_PART_COUNT),
                max_size=self._max_msg_size,
            )
            if not bodies:
                raise HttpError(413, "BAD_MESSAGE")
            yield bodies
            count -= len(bodies)


def _is_binary(value: str | None) -> bool:
    if value in (None, "false", "0"):
        return False
    if value not in ("true", "1"):
        logger.warning("deprecated value %r used for /mpub binary param", value)
    return True
