"""MoveSource: which messages it takes from a queue, and that the others stay where they were."""

import errno
from collections.abc import Iterable
from pathlib import Path

import pytest

from nsqd.broker import move
from nsqd.broker.move import MoveSource
from nsqd.broker.queue.batch import Piece
from nsqd.broker.queue.message_queue import MessageQueue
from tests.support.broker_rig import BrokerRig

SIZES = pytest.mark.parametrize("mem_queue_size", [0, 100])
KINDS = pytest.mark.parametrize("has_channel", [False, True])


def make_source(path: Path, mem_queue_size: int, *, has_channel: bool) -> MoveSource:
    """Return a source with twelve messages, of batches of four."""
    rig = BrokerRig(path, mem_queue_size=mem_queue_size)
    channel = rig.channel() if has_channel else None
    for first in range(0, 12, 4):
        rig.publish(*numbered(range(first, first + 4)))
    return MoveSource(rig.topic(), channel)


def numbered(numbers: Iterable[int]) -> list[bytes]:
    return [b"%02d" % number for number in numbers]


def bodies_of(pieces: Iterable[Piece]) -> list[bytes]:
    return [message[3] for piece in pieces for message in piece.messages()]


def find_ids(source: MoveSource) -> list[bytes]:
    """Return the ids of all messages in their order, which stay."""
    pieces = take_all(source)
    ids = [message[0] for piece in pieces for message in piece.messages()]
    for piece in reversed(pieces):
        source.give_back(piece)
    return ids


def take_all(source: MoveSource) -> list[Piece]:
    pieces = []
    while (piece := source.take(100)) is not None:
        pieces.append(piece)
    return pieces


@SIZES
@KINDS
@pytest.mark.parametrize("max_count", [1, 3, 4, 5, 11, 12, 13])
def test_so_many_are_taken_and_the_rest_stays(
    tmp_path: Path, mem_queue_size: int, max_count: int, *, has_channel: bool
) -> None:
    source = make_source(tmp_path, mem_queue_size, has_channel=has_channel)

    kept, taken = source.take_some(max_count)

    assert (kept, bodies_of(taken)) == ([], numbered(range(min(max_count, 12))))
    assert source.left_count == max(12 - max_count, 0)
    assert bodies_of(take_all(source)) == numbered(range(max_count, 12))


@SIZES
@KINDS
def test_a_step_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mem_queue_size: int, *, has_channel: bool
) -> None:
    source = make_source(tmp_path, mem_queue_size, has_channel=has_channel)
    monkeypatch.setattr(move, "MAX_MESSAGES_PER_STEP", 5)

    assert bodies_of(source.take_some(100)[1]) == numbered(range(5))
    monkeypatch.setattr(move, "MAX_MESSAGES_PER_STEP", 100)
    monkeypatch.setattr(move, "MAX_BYTES_PER_STEP", 3)
    # A message more than fits, as the one that reaches the bound is the last.
    assert bodies_of(source.take_some(100)[1]) == numbered(range(5, 7))


@SIZES
@KINDS
def test_pieces_that_were_kept_are_passed_over(
    tmp_path: Path, mem_queue_size: int, *, has_channel: bool
) -> None:
    source = make_source(tmp_path, mem_queue_size, has_channel=has_channel)
    ids = find_ids(source)
    first = source.take(4)
    assert first is not None
    source.give_back(first)

    kept, taken = source.take_some(3, ids[:4])

    assert bodies_of(kept) == numbered(range(4))
    assert bodies_of(taken) == numbered(range(4, 7))
    for piece in reversed([*kept, *taken]):
        source.give_back(piece)
    assert find_ids(source) == ids


@SIZES
@KINDS
@pytest.mark.parametrize("max_looked_at", [1, 3, 4, 6, 12, 100])
def test_messages_are_found_by_id_among_the_first(
    tmp_path: Path, mem_queue_size: int, max_looked_at: int, *, has_channel: bool
) -> None:
    source = make_source(tmp_path, mem_queue_size, has_channel=has_channel)
    ids = find_ids(source)
    wanted = [0, 3, 5, 7, 9, 11]

    found = source.take_by_id([ids[number] for number in wanted], max_looked_at)

    expected = [number for number in wanted if number < max_looked_at]
    assert bodies_of(found) == numbered(expected)
    assert source.left_count == 12 - len(expected)
    rest = [number for number in range(12) if number not in expected]
    assert bodies_of(take_all(source)) == numbered(rest)


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_records_go_only_when_they_are_forgotten(tmp_path: Path, *, is_forgotten: bool) -> None:
    source = make_source(tmp_path, 0, has_channel=True)
    _, taken = source.take_some(5)
    backend = source.topic.channels["c"].queue.backend
    assert backend.outstanding_count == 12

    for piece in reversed(taken):
        (source.forget if is_forgotten else source.give_back)(piece)

    assert source.left_count == backend.outstanding_count == (7 if is_forgotten else 12)


@pytest.mark.parametrize("end", ["channel", "topic"])
def test_what_was_taken_is_gone_with_its_queue(tmp_path: Path, end: str) -> None:
    source = make_source(tmp_path, 0, has_channel=True)
    _, taken = source.take_some(5)
    was_closed = source.is_closed

    if end == "channel":
        source.topic.delete_channel("c")
    else:
        source.topic.delete()

    assert (was_closed, source.is_closed) == (False, True)
    source.give_back(taken[0])
    for piece in taken[1:]:
        source.forget(piece)
    assert source.left_count == 0


def test_a_paused_channel_hands_over_what_comes_back(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path)
    client = rig.client()
    client.channel.pause()
    rig.publish(b"1", b"2")
    source = MoveSource(rig.topic(), client.channel)
    _, taken = source.take_some(1)
    client.channel.unpause()
    rig.settle()
    assert client.bodies == [b"2"]

    source.give_back(taken[0])
    rig.settle()

    assert client.bodies == [b"2", b"1"]


class FailingTake:
    """Takes of a queue that fail from a number on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, good_count: int) -> None:
        self.left = good_count
        self._take = MessageQueue.take
        monkeypatch.setattr(MessageQueue, "take", lambda *arguments: self._run(*arguments))

    def _run(self, queue: MessageQueue, max_count: int, max_bytes: int) -> Piece | None:
        if not self.left:
            raise OSError(errno.EIO, "Input/output error")
        self.left -= 1
        return self._take(queue, max_count, max_bytes)


@SIZES
@KINDS
@pytest.mark.parametrize("good_count", range(4))
@pytest.mark.parametrize("kept_count", [0, 4, 8, 12])
def test_a_disk_that_fails_under_a_step_loses_nothing(
    tmp_path: Path,
    mem_queue_size: int,
    good_count: int,
    kept_count: int,
    *,
    has_channel: bool,
) -> None:
    source = make_source(tmp_path, mem_queue_size, has_channel=has_channel)
    ids = find_ids(source)
    for start in reversed(range(0, 12, 4)):  # pieces of four, as they were published
        pieces = source.take_by_id(ids[start : start + 4], 12)
        for piece in reversed(pieces):
            source.give_back(piece)
    ids = find_ids(source)
    with pytest.MonkeyPatch.context() as patch:
        FailingTake(patch, good_count)
        try:
            kept, taken = source.take_some(12, ids[:kept_count])
        except OSError:
            kept, taken = [], []
        else:
            assert taken, "a step that takes nothing has the error"
    for piece in reversed([*kept, *taken]):
        source.give_back(piece)

    assert find_ids(source) == ids


def test_messages_that_are_not_due_yet_are_not_taken(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path, mem_queue_size=0)
    channel = rig.channel()
    rig.publish(b"later", delay_s=50.0)
    rig.publish(b"now")
    records = rig.broker.records()
    rig.advance(5)
    assert rig.broker.close() == []
    again = BrokerRig(tmp_path, mem_queue_size=0, wall_time_ns=rig.scheduler.wall_time_ns())
    again.broker.load(records)
    channel = again.channel()
    source = MoveSource(again.topic(), channel)

    assert bodies_of(take_all(source)) == [b"now"]
    assert channel.deferred_count == 1
    again.advance(60)
    assert bodies_of(take_all(source)) == [b"later"]
