"""Move: a client that leaves in the middle, and a disk that cannot be read."""

import asyncio
import errno
from pathlib import Path

import pytest

from nsqd.api.move import Move, find_origins
from nsqd.broker.move import MoveSource, MoveTarget
from nsqd.broker.queue.batch import Piece
from nsqd.broker.queue.message_queue import MessageQueue
from nsqd.broker.queue.receipt import Receipt
from nsqd.config.limits import Limits
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
