"""POST /topic/move, /channel/move, /topic/drop, /channel/drop: waiting messages go elsewhere.

For dead letters that are to be tried again, and for those that are not. A message is published to
its new topic first and forgotten when that is durable: a crash may bring it twice, and loses none.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from nsqd.api.admin import await_receipt
from nsqd.api.topics import disk_error, get_channel, get_topic, get_valid_topic_name
from nsqd.broker.errors import ClosedError, DepthLimitError
from nsqd.broker.move import MoveSource
from nsqd.broker.queue.batch import Piece
from nsqd.broker.queue.receipt import Receipt
from nsqd.http.arguments import get_argument, get_names, parse_count
from nsqd.http.server import HttpError, Request, Response, Router
from nsqd.node import Node

MAX_COUNT = 10_000
# Messages are found by their ids only as far as a peek shows them.
MAX_IDS = 100
MAX_BODY_BYTES = 4096
# Bodies that are published and not yet durable.
MAX_UNSYNCED_BYTES = 16 * 1024 * 1024

_Publish: TypeAlias = Callable[[Sequence[bytes], bool], Receipt | None]
_FindSource: TypeAlias = Callable[[Request], MoveSource]


class MoveRoutes:
    """Moves and drops messages that wait, from the front of a queue or by their ids."""

    def __init__(self, node: Node) -> None:
        self._broker = node.broker

    def add_to(self, router: Router) -> None:
        """Add the routes."""
        for noun, find_source in (("topic", self._find_topic), ("channel", self._find_channel)):
            for verb, handler in (("move", self._move), ("drop", self._drop)):
                router.add(
                    *("POST", f"/{noun}/{verb}", partial(handler, find_source)),
                    max_body_bytes=MAX_BODY_BYTES,
                    too_large_code="BODY_TOO_BIG",
                )

    async def _move(self, find_source: _FindSource, request: Request) -> Response:
        source = find_source(request)
        count, ids = _parse_selection(request)
        move = Move(source, self._find_target(request))
        try:
            if ids is not None:
                await move.run_all(source.take_by_id(ids, MAX_IDS))
            else:
                await move.run(count)
        except OSError as error:  # of the source: its disk cannot be read
            raise disk_error(error) from error
        if move.refusal is not None and not move.moved_count:
            raise move.refusal
        reply: dict[str, object] = {"moved": move.moved_count, "left": source.left_count}
        if move.refusal is not None:
            reply["message"] = move.refusal.code
        return Response.json(reply)

    async def _drop(self, find_source: _FindSource, request: Request) -> Response:
        source = find_source(request)
        _, ids = _parse_selection(request)
        if ids is None:
            raise HttpError(400, "MISSING_IDS")
        try:
            pieces = source.take_by_id(ids, MAX_IDS)
        except OSError as error:
            raise disk_error(error) from error
        for piece in pieces:
            source.forget(piece)
        dropped = sum(piece.count for piece in pieces)
        return Response.json({"dropped": dropped, "left": source.left_count})

    def _find_topic(self, request: Request) -> MoveSource:
        source = MoveSource(get_topic(self._broker, get_valid_topic_name(request)))
        if source.is_busy:
            raise HttpError(409, "TOPIC_BUSY")
        return source

    def _find_channel(self, request: Request) -> MoveSource:
        return MoveSource(*get_channel(self._broker, *get_names(request)))

    def _find_target(self, request: Request) -> _Publish:
        name = get_argument(request, "to")
        channel_name = request.find("to_channel")
        topic = get_topic(self._broker, name)
        channel = None
        if channel_name is not None:
            _, channel = get_channel(self._broker, name, channel_name)
        is_same_topic = name == get_argument(request, "topic")
        if is_same_topic and (channel is None or channel_name == request.find("channel")):
            raise HttpError(400, "INVALID_ARG_TO")

        def publish(bodies: Sequence[bytes], is_stored: bool) -> Receipt | None:  # noqa: FBT001
            return topic.publish_moved(bodies, is_stored=is_stored, channel=channel)

        return publish


class Move:
    """Messages on their way from a queue to a topic or channel, published step by step."""

    def __init__(self, source: MoveSource, publish: _Publish) -> None:
        self.moved_count = 0
        self.refusal: HttpError | None = None  # ends the move; its messages are back in the queue
        self._source = source
        self._publish = publish
        # Published, and kept until their receipts are done.
        self._unsynced: list[tuple[Piece, Receipt | None]] = []
        self._unsynced_bytes = 0

    async def run(self, count: int) -> None:
        """Move up to so many messages from the front of the queue.

        Raises:
            OSError: the queue cannot be read; messages that were read before are moved.
        """
        step_count = count
        left = count
        try:
            while left and self.refusal is None and not self._source.is_closed:
                piece = self._source.take(min(left, step_count))
                if piece is None:
                    break
                room_count = await self._step(piece)
                if room_count is None:
                    left -= piece.count
                else:
                    step_count = room_count
        finally:
            await self._settle()

    async def run_all(self, pieces: Sequence[Piece]) -> None:
        """Move these messages, which were taken from the queue."""
        for piece in pieces:
            if self.refusal is None:
                await self._step(piece)
            else:
                self._source.give_back(piece)
        await self._settle()

    async def _step(self, piece: Piece) -> int | None:
        """Publish a piece, or put it back; return the room that there is if it is too large."""
        bodies = piece.batch.bodies[piece.start : piece.stop]
        try:
            receipt = self._publish(bodies, piece.is_on_disk)
        except (DepthLimitError, ClosedError, OSError) as error:
            self._source.give_back(piece)
            if isinstance(error, DepthLimitError) and 0 < error.room_count < piece.count:
                return error.room_count
            self.refusal = _refusal(error)
            return None
        self._unsynced.append((piece, receipt))
        self._unsynced_bytes += piece.body_bytes
        if self._unsynced_bytes > MAX_UNSYNCED_BYTES:
            await self._settle()
        await asyncio.sleep(0)  # a turn for the others after each step
        return None

    async def _settle(self) -> None:
        """Wait until the published messages are durable, and let their queue forget them."""
        steps, self._unsynced = self._unsynced, []
        self._unsynced_bytes = 0
        for piece, receipt in steps:
            error = None if receipt is None else await await_receipt(receipt)
            if error is None:
                self._source.forget(piece)
                self.moved_count += piece.count
            else:
                self._source.give_back(piece)
                self.refusal = self.refusal or _refusal(error)


def _refusal(error: Exception) -> HttpError:
    if isinstance(error, OSError):
        return disk_error(error)
    if isinstance(error, DepthLimitError):
        return HttpError(503, f"QUEUE_FULL: {error}")
    return HttpError(503, str(error).upper())


def _parse_selection(request: Request) -> tuple[int, frozenset[bytes] | None]:
    """Return how many messages are wanted, or their ids."""
    text = request.find("count")
    count = MAX_COUNT if text is None else parse_count(text, MAX_COUNT)
    if count is None:
        raise HttpError(400, "INVALID_ARG_COUNT")
    if not request.body:
        return count, None
    try:
        ids = json.loads(request.body)["ids"]
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise HttpError(400, "INVALID_BODY") from error
    if not isinstance(ids, list) or not 1 <= len(ids) <= MAX_IDS:
        raise HttpError(400, "INVALID_BODY")
    if not all(isinstance(each, str) and each.isascii() for each in ids):
        raise HttpError(400, "INVALID_BODY")
    return count, frozenset(each.encode() for each in ids)
