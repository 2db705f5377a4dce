import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqd.broker.queue.batch import Batch, Message, MixedBatch, Origin, Piece

NOW_NS = 1_700_000_000_000_000_000


def make_batch(*sizes: int) -> Batch:
    return Batch(NOW_NS, b"0123456789abc", 0, tuple(bytes(size) for size in sizes))


def make_messages(count: int, *, first_ordinal: int | None = None) -> list[Message]:
    return [
        (
            b"%016d" % index,
            NOW_NS,
            2,
            b"x",
            None if first_ordinal is None else first_ordinal + index,
        )
        for index in range(count)
    ]


def test_a_piece_without_records() -> None:
    piece = Piece(make_batch(1, 2, 3), 1, 3, Origin.MEMORY)

    assert piece.count == 2
    assert piece.body_bytes == 5
    assert not piece.is_on_disk
    assert piece.ordinals == ()
    assert piece.messages() == piece.batch.messages(1, 3)


def test_each_message_of_a_written_piece_has_its_record() -> None:
    batch = make_batch(1, 2, 3)
    piece = Piece(batch, 1, 3, Origin.WRITTEN, range(7, 10))

    assert piece.is_on_disk
    assert list(piece.ordinals) == [8, 9]
    assert [message[4] for message in piece.messages()] == [8, 9]
    assert [message[:4] for message in piece.messages()] == [
        message[:4] for message in batch.messages(1, 3)
    ]


@pytest.mark.parametrize("first_ordinal", [None, 0, 5])
def test_gathered_messages_come_out_as_they_went_in(first_ordinal: int | None) -> None:
    messages = make_messages(3, first_ordinal=first_ordinal)

    piece = Piece.from_messages(messages, Origin.RETURNED)

    assert piece.messages() == messages
    assert piece.origin is Origin.RETURNED
    assert piece.is_on_disk is (first_ordinal is not None)


def test_messages_with_and_without_records_are_not_gathered_into_one_piece() -> None:
    with pytest.raises(AssertionError):
        Piece.from_messages([*make_messages(1), *make_messages(1, first_ordinal=0)], Origin.MEMORY)


@pytest.mark.parametrize(
    ("max_count", "max_bytes", "count"),
    [
        (5, 1000, 3),
        (3, 60, 3),  # exactly all of them
        (2, 1000, 2),
        (3, 59, 3),  # the last one reaches the bound
        (3, 30, 2),
        (3, 31, 3),
        (3, 10, 1),
        (3, 11, 2),
        (3, 1, 1),
        (1, 11, 1),
        (2, 31, 2),
    ],
)
def test_the_message_that_reaches_the_bound_is_the_last(
    max_count: int, max_bytes: int, count: int
) -> None:
    piece = Piece(make_batch(5, 10, 20, 30, 5), 1, 4, Origin.MEMORY)

    assert piece.count_fitting(max_count, max_bytes) == count


@given(sizes=st.lists(st.integers(0, 40), min_size=2, max_size=9), data=st.data())
def test_a_split_loses_nothing(sizes: list[int], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(sizes) - 2))
    stop = data.draw(st.integers(start + 2, len(sizes)))
    ordinals = data.draw(st.sampled_from([None, range(100, 100 + len(sizes))]))
    origin = data.draw(st.sampled_from(Origin))
    piece = Piece(make_batch(*sizes), start, stop, origin, ordinals)
    whole = piece.messages()

    front, rest = piece.split(data.draw(st.integers(1, piece.count - 1)))

    assert front.messages() + rest.messages() == whole == piece.messages()
    for part in (front, rest):
        assert part.body_bytes == sum(len(message[3]) for message in part.messages())
        assert part.origin is origin
        assert part.is_on_disk is (ordinals is not None)


@pytest.mark.parametrize("count", [0, 2])
def test_a_split_leaves_something_on_both_sides(count: int) -> None:
    with pytest.raises(AssertionError):
        Piece(make_batch(1, 1), 0, 2, Origin.MEMORY).split(count)


def test_a_due_time_makes_a_deferred_batch_with_the_same_records() -> None:
    batch = MixedBatch.from_messages(make_messages(3))
    piece = Piece(batch, 1, 3, Origin.WRITTEN, range(7, 10))

    deferred = piece.with_due_time(NOW_NS + 1)

    assert deferred.batch.is_deferred
    assert deferred.batch.due_ns == NOW_NS + 1
    assert deferred.messages() == piece.messages()
    assert deferred.origin is Origin.WRITTEN
