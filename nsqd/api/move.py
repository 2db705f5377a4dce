"""POST /topic/move, /topic/replay, /topic/drop, and the same of channels: messages go elsewhere.

For dead letters that are to be tried again, and for those that are not. A message is published to
its new topic first and forgotten when that is durable: a crash may bring it twice, and loses none.
A replay brings dead letters back to the channel that each of them failed in, and to no other.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from nsqd.api.topics import disk_error, get_channel, get_topic, get_valid_topic_name
from nsqd.broker.broker import Broker
from nsqd.broker.errors import ClosedError, DepthLimitError
from nsqd.broker.move import MoveSource, MoveTarget, find_target, group
from nsqd.broker.queue.batch import Piece
from nsqd.broker.topic import Topic
from nsqd.http.arguments import get_argument, get_names, parse_count
from nsqd.http.server import HttpError, Request, Response, Router
from nsqd.node import Node

MAX_COUNT = 10_000
# Messages are found by their ids only as far as a peek shows them.
MAX_IDS = 100
MAX_BODY_BYTES = 4096
# Replayed in one turn: each cause that is far from the last one takes 20 us to find.
MAX_REPLAYED_PER_STEP = 64
# Bodies that are published and not yet durable.
MAX_UNSYNCED_BYTES = 16 * 1024 * 1024
# Bodies of dead letters that can't go back; those behind them wait for another call.
MAX_KEPT_BYTES = 16 * 1024 * 1024
# Reasons that are told apart, each with the name of a channel.
MAX_REASONS = 50

_FindSource: TypeAlias = Callable[[Request], MoveSource]
# The target of each message, or the reason why it has none, by their ids.
_FindTargets: TypeAlias = Callable[[Sequence[bytes]], Sequence[MoveTarget | str]]


class MoveRoutes:
    """Moves, replays and drops messages that wait, from the front of a queue or by their ids."""

    def __init__(self, node: Node) -> None:
        self._broker = node.broker

    def add_to(self, router: Router) -> None:
        """Add the routes."""
        verbs = {"move": self._move, "replay": self._replay, "drop": self._drop}
        for noun, find_source in (("topic", self._find_topic), ("channel", self._find_channel)):
            for verb, handler in verbs.items():
                router.add(
                    *("POST", f"/{noun}/{verb}", partial(handler, find_source)),
                    max_body_bytes=MAX_BODY_BYTES,
                    too_large_code="BODY_TOO_BIG",
                )

    async def _move(self, find_source: _FindSource, request: Request) -> Response:
        source = find_source(request)
        target = self._find_target(request)
        return await _run(request, Move(source, lambda ids: [target] * len(ids)))

    async def _replay(self, find_source: _FindSource, request: Request) -> Response:
        source = find_source(request)
        find_targets = partial(find_origins, self._broker, source.topic)
        return await _run(request, Move(source, find_targets, MAX_REPLAYED_PER_STEP))

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

    def _find_target(self, request: Request) -> MoveTarget:
        name = get_argument(request, "to")
        channel_name = request.find("to_channel")
        topic = get_topic(self._broker, name)
        channel = None
        if channel_name is not None:
            _, channel = get_channel(self._broker, name, channel_name)
        is_same_topic = name == get_argument(request, "topic")
        if is_same_topic and (channel is None or channel_name == request.find("channel")):
            raise HttpError(400, "INVALID_ARG_TO")
        return MoveTarget(topic, channel)


def find_origins(
    broker: Broker, dead_letter_topic: Topic, ids: Sequence[bytes]
) -> list[MoveTarget | str]:
    """Return the channel that each dead letter failed in, or why it can't go back there."""
    causes = broker.causes.find(dead_letter_topic, ids)
    targets: dict[tuple[str, str], MoveTarget | str] = {}
    found: list[MoveTarget | str] = []
    for each in ids:
        cause = causes.get(each)
        if cause is None:
            found.append("ORIGIN_UNKNOWN")
            continue
        names = (cause.topic_name, cause.channel_name)
        if names not in targets:
            targets[names] = find_target(broker.topics, *names) or _name_missing(broker, *names)
        found.append(targets[names])
    return found


def _name_missing(broker: Broker, topic_name: str, channel_name: str) -> str:
    if topic_name not in broker.topics:
        return f"TOPIC_NOT_FOUND {topic_name}"
    return f"CHANNEL_NOT_FOUND {topic_name}:{channel_name}"


async def _run(request: Request, move: "Move") -> Response:
    count, ids = _parse_selection(request)
    source = move.source
    try:
        if ids is not None:
            await move.run_all(source.take_by_id(ids, MAX_IDS))
        else:
            await move.run(min(count, source.left_count))
    except OSError as error:  # of the source: its disk cannot be read
        raise disk_error(error) from error
    if move.refusal is not None and not move.moved_count:
        raise move.refusal
    reply: dict[str, object] = {"moved": move.moved_count, "left": source.left_count}
    if move.kept_counts:
        reply["kept"] = dict(move.kept_counts.most_common())
    if move.refusal is not None:
        reply["message"] = move.refusal.code
    return Response.json(reply)


class Move:
    """Messages on their way from a queue to topics or channels, published step by step."""

    def __init__(
        self, source: MoveSource, find_targets: _FindTargets, step_count: int = MAX_COUNT
    ) -> None:
        """Args: step_count: so many messages at most are taken in one turn."""
        self.source = source
        self.moved_count = 0
        self.refusal: HttpError | None = None  # ends the move; its messages are back in the queue
        # How many have no target, by the reason. They stay at the front.
        self.kept_counts: Counter[str] = Counter()
        self._kept_ids: set[bytes] = set()
        self._kept_bytes = 0
        self._done_count = 0  # published or kept
        self._step_count = step_count
        self._find_targets = find_targets
        # Pieces that are published and not yet durable, their bodies, and the end of that.
        self._unsynced_count = 0
        self._unsynced_bytes = 0
        self._settled = asyncio.Event()

    async def run(self, count: int) -> None:
        """Move up to so many messages from the front of the queue.

        Raises:
            OSError: the queue cannot be read; messages that were read before are moved.
        """
        source = self.source
        try:
            while self.refusal is None and not source.is_closed and not source.is_busy:
                left = count - self._done_count
                if not left or self._kept_bytes > MAX_KEPT_BYTES:
                    break
                kept, pieces = source.take_some(min(left, self._step_count), self._kept_ids)
                await self._step(pieces, kept)
                if not pieces:
                    break
        finally:
            await self._settle()

    async def run_all(self, pieces: Sequence[Piece]) -> None:
        """Move these messages, which were taken from the queue."""
        await self._step(pieces)
        await self._settle()

    async def _step(self, pieces: Sequence[Piece], kept: Sequence[Piece] = ()) -> None:
        """Publish messages, or put them back if they have no target or are refused.

        Each is published or back in the queue before another turn of the loop.

        Args: kept: pieces that stood before them and go back, too.
        """
        others = list(kept)
        for target, piece in group(pieces, self._find_targets):
            if isinstance(target, str):
                self._keep(piece, target)
            elif self.refusal is None and self._publish(piece, target):
                self._done_count += piece.count
                continue
            others.append(piece)
        for piece in reversed(others):
            self.source.give_back(piece)
        if self._unsynced_bytes > MAX_UNSYNCED_BYTES:
            await self._settle()
        await asyncio.sleep(0)  # a turn for the others after each step

    def _publish(self, piece: Piece, target: MoveTarget) -> bool:
        """Publish a piece; return False if it was refused."""
        try:
            receipt = target.publish(piece)
        except (DepthLimitError, ClosedError, OSError) as error:
            if isinstance(error, DepthLimitError) and 0 < error.room_count < piece.count:
                self._step_count = error.room_count  # so many fit into the next step
            else:
                self.refusal = _refusal(error)
            return False
        self._unsynced_count += 1
        self._unsynced_bytes += piece.body_bytes
        if receipt is None:
            self._end(piece, None)
        else:
            # Not after an `await`: a client that leaves has its call cancelled there.
            receipt.when_done(partial(self._end, piece))
        return True

    def _end(self, piece: Piece, error: Exception | None) -> None:
        """Let the queue forget a published piece that is durable, or have it back."""
        if error is None:
            self.source.forget(piece)
            self.moved_count += piece.count
        else:
            self.source.give_back(piece)
            self.refusal = self.refusal or _refusal(error)
        self._unsynced_count -= 1
        self._unsynced_bytes -= piece.body_bytes
        if not self._unsynced_count:
            self._settled.set()

    def _keep(self, piece: Piece, reason: str) -> None:
        self._done_count += piece.count
        self._kept_ids.update(piece.batch.ids(piece.start, piece.stop))
        self._kept_bytes += piece.body_bytes
        if reason not in self.kept_counts and len(self.kept_counts) >= MAX_REASONS:
            reason = reason.split()[0]
        self.kept_counts[reason] += piece.count

    async def _settle(self) -> None:
        """Wait until the published messages are durable, or back in their queue."""
        if self._unsynced_count:
            self._settled.clear()
            await self._settled.wait()


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
