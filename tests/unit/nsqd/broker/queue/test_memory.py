"""Memory: pieces come and go, and the counts follow."""

import pytest

from nsqd.broker.queue.batch import Batch, MixedBatch, Origin, Piece
from nsqd.broker.queue.memory import Memory


def piece_of(origin: Origin, *bodies: bytes, is_on_disk: bool, is_deferred: bool = False) -> Piece:
    batch = Batch(1, b"0" * 13, 0, bodies, delay_s=1.0 if is_deferred else 0.0)
    return Piece(batch, 0, len(bodies), origin, range(len(bodies)) if is_on_disk else None)


def counts_of(memory: Memory) -> tuple[int, ...]:
    return (
        *(memory.count, memory.size_bytes, memory.kept_count, memory.kept_bytes),
        *(memory.written_count, len(memory.deferred)),
    )


PIECES = [
    piece_of(Origin.MEMORY, b"a", b"bb", is_on_disk=False),
    piece_of(Origin.RETURNED, b"ccc", is_on_disk=False),
    piece_of(Origin.RETURNED, b"dddd", is_on_disk=True),
    piece_of(Origin.WRITTEN, b"eeeee", b"f", is_on_disk=True, is_deferred=True),
]
ALL = (3, 6, 3, 10, 2, 1)


def test_pieces_are_counted_by_where_their_messages_are() -> None:
    memory = Memory()
    for piece in PIECES:
        memory.enter(piece)

    assert counts_of(memory) == ALL
    for piece in PIECES:
        assert memory.pieces.popleft() is piece
        memory.leave(piece)

    assert counts_of(memory) == (0,) * 6


def test_a_piece_can_enter_at_the_front() -> None:
    memory = Memory()
    memory.enter(PIECES[0])
    memory.enter(PIECES[1], at_front=True)

    assert list(memory.pieces) == [PIECES[1], PIECES[0]]


def test_clearing_gives_the_pieces_back() -> None:
    memory = Memory()
    for piece in PIECES:
        memory.enter(piece)

    assert list(memory.clear()) == PIECES
    assert counts_of(memory) == (0,) * 6
    assert not memory.pieces


@pytest.mark.parametrize("size", [0, 1, 40_000])
def test_a_copy_is_of_one_moment(size: int) -> None:
    memory = Memory()
    pieces = [make_single(number) for number in range(size)]
    for piece in pieces:
        memory.enter(piece)
    copy = memory.begin_copy()

    memory.enter(make_single(-1), at_front=True)
    memory.enter(make_single(-2))
    for count in (1, 3, 20_000):
        copy.step()
        for _ in range(min(count, len(memory.pieces))):
            copy.note_leaving()
            memory.leave(memory.pieces.popleft())
        memory.enter(make_single(-3), at_front=True)
    dropped = memory.clear()
    while copy.step():
        pass

    assert list(copy.take_all()) == pieces
    assert not dropped
    assert len(copy.let_go()) == 1
    memory.end_copy()


def test_a_copy_has_a_piece_whole_that_is_cut_meanwhile() -> None:
    memory = Memory()
    pieces = [piece_of(Origin.MEMORY, b"a", b"b", b"c", is_on_disk=False) for _ in range(3)]
    for piece in pieces:
        memory.enter(piece)
    copy = memory.begin_copy()

    memory.cut_front(1)
    memory.cut_front(1)
    while copy.step():
        pass

    assert list(copy.take_all()) == pieces


def make_single(number: int) -> Piece:
    return Piece(MixedBatch([b"%016d" % number], [1], [0], [b"x"]), 0, 1, Origin.MEMORY)
