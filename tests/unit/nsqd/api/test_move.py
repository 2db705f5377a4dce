"""Move and its routes: which messages go where, and what is refused, kept and waited for."""

import asyncio
import errno
import json
from pathlib import Path
from typing import Any

import pytest

from nsqd.api import move as move_routes
from nsqd.api.move import Move, MoveRoutes, find_origins
from nsqd.broker.errors import ClosedError, DepthLimitError
from nsqd.broker.move import MoveSource, MoveTarget
from nsqd.broker.queue.batch import Piece
from nsqd.broker.queue.message_queue import MessageQueue
from nsqd.broker.queue.receipt import Receipt
from nsqd.config.limits import Limits
from tests.support.api_rig import ApiRig
from tests.support.broker_rig import BrokerRig

BODIES = [b"%d" % number for number in range(10)]


def make_rig(data_path: Path) -> tuple[BrokerRig, MoveSource]:
    """Return a broker with messages on the disk of a channel, and the channel as a source."""
    rig = BrokerRig(data_path, mem_queue_size=0)
    channel = rig.channel()
    rig.publish(*BODIES)
    rig.advance(5)
    return rig, MoveSource(rig.topic(), channel)


@pytest.mark.parametrize("error", [None, OSError(errno.EIO, "Input/output error")])
async def test_move_whose_client_leaves_ends_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError | None
) -> None:
    rig, source = make_rig(tmp_path)
    target = MoveTarget(rig.topic("other"))
    receipt = Receipt(1)
    monkeypatch.setattr(MoveTarget, "publish", lambda self, piece: receipt)
    move = Move(source, lambda ids: [target] * len(ids))
    call = asyncio.ensure_future(move.run(len(BODIES)))
    for _ in range(5):  # until it waits for the disk
        await asyncio.sleep(0)

    call.cancel()
    await asyncio.wait([call])
    receipt.settle(error)
    rig.settle()

    queue = rig.channel().queue
    assert queue.backend.outstanding_count == (0 if error is None else len(BODIES))
    assert queue.depth == (0 if error is None else len(BODIES))


def test_chosen_messages_stay_if_others_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, source = make_rig(tmp_path)
    piece = source.take(2)
    assert piece is not None
    ids = piece.batch.ids(0, 2)
    source.give_back(piece)

    take = MessageQueue.take
    pieces = [take(rig.channel().queue, 1, 1000)]  # and no other

    def take_once(self: MessageQueue, max_count: int, max_bytes: int) -> Piece | None:
        if not pieces:
            raise OSError(errno.EIO, "Input/output error")
        return pieces.pop()

    with monkeypatch.context() as patch:
        patch.setattr(MessageQueue, "take", take_once)
        with pytest.raises(OSError, match="Input/output"):
            source.take_by_id(ids, 100)

    assert rig.channel().depth == len(BODIES)
    found = source.take_by_id(ids, 100)
    assert [body for each in found for body in each.batch.bodies] == BODIES[:2]
    assert rig.channel().depth == len(BODIES) - 2


@pytest.mark.parametrize("count", [1, 9, 10, 11, 1000])
@pytest.mark.parametrize("step_count", [1, 3, 100])
async def test_move_ends_when_all_is_moved_that_there_is(
    tmp_path: Path, count: int, step_count: int
) -> None:
    rig, source = make_rig(tmp_path)
    target = MoveTarget(rig.topic("other"))
    move = Move(source, lambda ids: [target] * len(ids), step_count)
    call = asyncio.ensure_future(move.run(count))
    while not call.done():
        await asyncio.sleep(0)
        rig.advance(1)

    moved = min(count, len(BODIES))
    assert (move.moved_count, move.refusal) == (moved, None)
    assert source.left_count == len(BODIES) - moved
    assert rig.topic("other").depth == moved


async def test_move_keeps_what_has_no_target_and_moves_the_rest(tmp_path: Path) -> None:
    rig, source = make_rig(tmp_path)
    target = MoveTarget(rig.topic("other"))
    move = Move(source, lambda ids: ["no channel c"] * 4 + [target] * (len(ids) - 4), 6)
    call = asyncio.ensure_future(move.run(6))
    while not call.done():
        await asyncio.sleep(0)
        rig.advance(1)

    assert (move.moved_count, dict(move.kept_counts)) == (2, {"no channel c": 4})
    left = source.take_some(100)[1]
    assert [message[3] for piece in left for message in piece.messages()] == [
        *BODIES[:4],
        *BODIES[6:],
    ]


def test_each_dead_letter_has_its_own_origin(tmp_path: Path) -> None:
    limits = Limits(max_attempts=1, dead_letter_topic_suffix=".dead")
    rig = BrokerRig(tmp_path, limits=limits)
    for name in ("a", "b"):
        client = rig.client(name)
        rig.publish(name.encode())
        for delivery in client.take():
            client.requeue(delivery.message_id)
        rig.advance(5)
        client.leave()
    rig.publish(b"other", topic="t.dead")
    dead = rig.topic("t.dead")
    ids = [message[0] for message, _ in dead.queue.iter_loaded()]
    unknown = ids[-1]

    def names(found: list[MoveTarget | str]) -> list[str]:
        return [
            it if isinstance(it, str) else it.channel.name if it.channel else "" for it in found
        ]

    known = names(find_origins(rig.broker, dead, ids[:-1]))
    assert set(known) == {"a", "b"}
    found = names(find_origins(rig.broker, dead, [unknown, *ids]))
    assert found == ["ORIGIN_UNKNOWN", *known, "ORIGIN_UNKNOWN"]
    rig.topic().delete_channel("a")
    found = names(find_origins(rig.broker, dead, ids[:-1]))
    assert found == ["CHANNEL_NOT_FOUND t:a" if name == "a" else name for name in known]


@pytest.fixture
def api(tmp_path: Path) -> ApiRig:
    """Routes, the topic `t` with a channel on disk that has ten messages, and the topic `o`."""
    rig = ApiRig(tmp_path, mem_queue_size=0)
    MoveRoutes(rig.node).add_to(rig.router)
    rig.channel()
    rig.publish(*BODIES)
    rig.topic("o")
    rig.advance(5)
    return rig


def find_ids(rig: ApiRig) -> list[str]:
    source = MoveSource(rig.topic(), rig.channel())
    piece = source.take(100)
    assert piece is not None
    source.give_back(piece)
    return [message_id.decode() for message_id in piece.batch.ids(piece.start, piece.stop)]


FROM = "topic=t&channel=c"


@pytest.mark.parametrize(
    ("ids", "answer"),
    [
        ([0], 1),
        ([0, 9], 2),
        ([9, 9, 9], 1),
        (range(10), 10),
        ([*range(10), *["x"] * 90], 10),
        ([*range(10), *["x"] * 91], (400, "INVALID_BODY")),
        ([], (400, "INVALID_BODY")),
        (["é"], (400, "INVALID_BODY")),
        ([None], (400, "INVALID_BODY")),
        (None, (400, "INVALID_BODY")),
    ],
)
@pytest.mark.parametrize("verb", ["move", "drop"])
async def test_messages_are_chosen_by_their_ids(
    api: ApiRig, ids: Any, answer: Any, verb: str
) -> None:
    known = find_ids(api)
    named = None if ids is None else [known[it] if isinstance(it, int) else it for it in ids]
    body = json.dumps({"ids": named}).encode()
    key = "moved" if verb == "move" else "dropped"
    done = (200, {key: answer, "left": 10 - answer}) if isinstance(answer, int) else answer

    assert await api.call("POST", f"/channel/{verb}?{FROM}&to=o", body) == done

    count = answer if isinstance(answer, int) else 0
    assert api.topic("o").depth == (count if verb == "move" else 0)
    assert api.channel().depth == 10 - count
    assert bool(api.channel().queue.backend.outstanding_count) is (count < 10)


@pytest.mark.parametrize(
    ("query", "answer"),
    [
        ("to=o", (200, {"moved": 10, "left": 0})),
        ("to=o&count=1", (200, {"moved": 1, "left": 9})),
        ("to=o&count=10", (200, {"moved": 10, "left": 0})),
        ("to=o&count=10000", (200, {"moved": 10, "left": 0})),
        ("to=o&count=10001", (400, "INVALID_ARG_COUNT")),
        ("to=o&count=0", (400, "INVALID_ARG_COUNT")),
        ("to=o&count=-1", (400, "INVALID_ARG_COUNT")),
        ("to=t&to_channel=d", (200, {"moved": 10, "left": 0})),
        ("to=t&to_channel=c", (400, "INVALID_ARG_TO")),
        ("to=t", (400, "INVALID_ARG_TO")),
        ("to=t&to_channel=no", (404, "CHANNEL_NOT_FOUND")),
        ("to=no", (404, "TOPIC_NOT_FOUND")),
        ("", (400, "MISSING_ARG_TO")),
    ],
)
async def test_messages_are_moved_from_the_front(api: ApiRig, query: str, answer: Any) -> None:
    api.channel("d")

    assert await api.call("POST", f"/channel/move?{FROM}&{query}") == answer

    moved = answer[1]["moved"] if answer[0] == 200 else 0
    assert api.channel().depth == 10 - moved


async def test_a_drop_names_what_it_drops(api: ApiRig) -> None:
    assert await api.call("POST", f"/channel/drop?{FROM}") == (400, "MISSING_IDS")
    assert await api.call("POST", "/topic/drop?topic=t") == (400, "MISSING_IDS")


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (ClosedError(), (503, "EXITING")),
        (DepthLimitError("topic o is full", 0), (503, "QUEUE_FULL: topic o is full")),
        (OSError(errno.ENOSPC, "No space"), (503, "DISK_FULL: no space")),
        (OSError(errno.EIO, "Broken"), (503, "DISK_ERROR: broken")),
    ],
)
@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("body", [b"", b"ids"])
async def test_a_move_that_is_refused_leaves_everything(
    api: ApiRig,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    answer: tuple[int, str],
    body: bytes,
    *,
    is_late: bool,
) -> None:
    receipt = Receipt(1)

    def publish(_target: MoveTarget, _piece: Piece) -> Receipt:
        if not is_late:
            raise error
        return receipt

    monkeypatch.setattr(MoveTarget, "publish", publish)
    content = json.dumps({"ids": find_ids(api)}).encode() if body else b""
    call = api.begin("POST", f"/channel/move?{FROM}&to=o", content)
    for _ in range(10):
        await asyncio.sleep(0)
    assert call.done() is (not is_late), "it waits for the disk"
    receipt.settle(error)

    assert await api.end(call) == answer
    assert api.channel().depth == api.channel().queue.backend.outstanding_count == 10


async def test_a_move_by_ids_ends_when_it_is_durable(
    api: ApiRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipt = Receipt(1)
    monkeypatch.setattr(MoveTarget, "publish", lambda *_: receipt)
    content = json.dumps({"ids": find_ids(api)[:3]}).encode()
    call = api.begin("POST", f"/channel/move?{FROM}&to=o", content)
    for _ in range(10):
        await asyncio.sleep(0)
    assert not call.done()
    assert api.channel().queue.backend.outstanding_count == 10

    receipt.settle(None)

    assert await api.end(call) == (200, {"moved": 3, "left": 7})
    assert api.channel().queue.backend.outstanding_count == 7


@pytest.mark.parametrize("room_count", [1, 3, 9])
async def test_a_target_gets_as_many_as_it_has_room_for(
    api: ApiRig, monkeypatch: pytest.MonkeyPatch, room_count: int
) -> None:
    left = room_count

    def publish(_target: MoveTarget, piece: Piece) -> None:
        nonlocal left
        if piece.count > left:
            raise DepthLimitError("topic o is full", left)
        left -= piece.count

    monkeypatch.setattr(MoveTarget, "publish", publish)

    assert await api.call("POST", f"/channel/move?{FROM}&to=o") == (
        200,
        {"moved": room_count, "left": 10 - room_count, "message": "QUEUE_FULL: topic o is full"},
    )


@pytest.mark.parametrize("way", ["move", "replay", "drop"])
@pytest.mark.parametrize("noun", ["topic", "channel"])
async def test_a_source_that_cannot_be_read_says_so(
    api: ApiRig, monkeypatch: pytest.MonkeyPatch, way: str, noun: str
) -> None:
    api.publish(b"1", topic="backlog")
    api.topic("backlog").pause()
    api.channel(topic="backlog")

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Broken")

    monkeypatch.setattr(MessageQueue, "take", fail)
    query = "topic=backlog" if noun == "topic" else FROM
    content = b'{"ids":["0123456789abcdef"]}' if way == "drop" else b""

    answer = await api.call("POST", f"/{noun}/{way}?{query}&to=o", content)

    assert answer == (503, "DISK_ERROR: broken")


async def test_dead_letters_that_cannot_go_back_are_told_by_reason(
    api: ApiRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(move_routes, "MAX_REASONS", 2)
    target = MoveTarget(api.topic("o"))
    reasons = ["A x", "A x", "B y", "C z", "C w", "A x"]
    source = MoveSource(api.topic(), api.channel())
    move = Move(source, lambda ids: [*reasons, *[target] * (len(ids) - len(reasons))])
    call = asyncio.ensure_future(move.run(8))
    while not call.done():
        await asyncio.sleep(0)
        api.advance(1)

    assert move.kept_counts == {"A x": 3, "B y": 1, "C": 2}
    assert (move.moved_count, source.left_count) == (2, 8)


async def test_a_move_ends_when_too_much_cannot_go_back(
    api: ApiRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(move_routes, "MAX_KEPT_BYTES", 2)
    source = MoveSource(api.topic(), api.channel())
    move = Move(source, lambda ids: ["no"] * len(ids), step_count=1)
    call = asyncio.ensure_future(move.run(10))
    while not call.done():
        await asyncio.sleep(0)
        api.advance(1)

    assert move.kept_counts == {"no": 3}, "those of two bytes, and the one that is over it"
    assert source.left_count == 10


async def test_a_move_waits_while_too_much_is_not_durable(
    api: ApiRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(move_routes, "MAX_UNSYNCED_BYTES", 3)
    receipts: list[Receipt] = []

    def publish(_target: MoveTarget, _piece: Piece) -> Receipt:
        receipts.append(Receipt(1))
        return receipts[-1]

    monkeypatch.setattr(MoveTarget, "publish", publish)
    target = MoveTarget(api.topic("o"))
    move = Move(MoveSource(api.topic(), api.channel()), lambda ids: [target] * len(ids), 1)
    call = asyncio.ensure_future(move.run(10))
    counts = []
    while not call.done():
        for _ in range(20):
            await asyncio.sleep(0)
        counts.append(len(receipts))
        for receipt in receipts:
            if not receipt.is_done:
                receipt.settle(None)

    assert counts[:2] == [4, 8]
    assert move.moved_count == 10
