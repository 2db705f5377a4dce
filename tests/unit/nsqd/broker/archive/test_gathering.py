"""The messages of an archive that wait in memory."""

import operator
import sys
import time

import pytest

from diskqueue import envelope
from diskqueue.envelope import Envelope
from nsqd.broker.archive import gathering as gathering_module
from nsqd.broker.archive.gathering import Gathering
from nsqd.broker.queue.batch import RECORD_OVERHEAD_BYTES, AnyBatch, Batch, MixedBatch

PREFIX = b"0123456789abc"


def make_batch(*bodies: bytes, time_ns: int = 1, first: int = 0) -> Batch:
    return Batch(time_ns, PREFIX, first, bodies)


def add(gathering: Gathering, batch: AnyBatch, *, with_records: bool = False) -> None:
    count = len(batch.bodies)
    size_bytes = batch.body_bytes + count * RECORD_OVERHEAD_BYTES
    gathering.add(batch, size_bytes, batch.records(0, count) if with_records else None)


def take_all(gathering: Gathering) -> list[Envelope]:
    """Hand over, and return all messages as the files would have them."""
    gathering.hand_over()
    found: list[Envelope] = []
    while gathering.handed_over:
        chunks = gathering.encode_first(len(gathering.handed_over))
        for chunk in chunks:
            start = 0
            for length in chunk.lengths:
                found.append(envelope.decode(bytes(chunk.data[start + 4 : start + length])))
                start += length
            times_ns = [message.timestamp_ns for message in found[-len(chunk.lengths) :]]
            assert (chunk.oldest_ns, chunk.newest_ns) == (min(times_ns), max(times_ns))
            assert start == len(chunk.data)
        assert gathering.remove_first(len(chunks)) == sum(len(each.lengths) for each in chunks)
    return found


def test_records_in_a_room_are_made_again_if_they_were_not_written() -> None:
    """The room is used for others meanwhile."""
    gathering = Gathering(1 << 20)
    add(gathering, make_batch(b"a", b"bb", time_ns=9))
    add(gathering, make_batch(b"", time_ns=7, first=5))
    gathering.hand_over()
    room = memoryview(bytearray(gathering.first_bytes))

    chunk = gathering.handed_over[0].encode(room)
    written = bytes(chunk.data)
    room[:] = bytes(len(room))

    assert chunk.data is room
    assert (chunk.oldest_ns, chunk.newest_ns) == (7, 9)
    (again,) = gathering.encode_first(1)
    assert (again.data, again.lengths) == (written, chunk.lengths)
    assert gathering.first_bytes == 0, "they are encoded"


@pytest.mark.parametrize("is_in_room", [False, True])
def test_written_messages_are_freed_in_slices(
    monkeypatch: pytest.MonkeyPatch, *, is_in_room: bool
) -> None:
    """While a thread frees memory the loop waits for the interpreter."""
    monkeypatch.setattr(gathering_module, "_FREE_COUNT", 40)
    gathering = Gathering(1 << 20)
    for _ in range(21):
        add(gathering, make_batch(*[b"x"] * 10))
    gathering.hand_over()
    part = gathering.handed_over[0]
    left: list[int] = []
    probes = [batch.bodies for batch in part.batches]
    held_counts = [sys.getrefcount(bodies) for bodies in probes]

    def count_left(_: float) -> None:
        counts = [sys.getrefcount(bodies) for bodies in probes]
        left.append(sum(map(operator.ge, counts, held_counts)))

    monkeypatch.setattr(time, "sleep", count_left)

    part.encode(memoryview(bytearray(part.size_bytes)) if is_in_room else None)
    assert left == ([] if is_in_room else [17, 13, 9, 5, 1])
    removed_count = gathering.remove_first(1)

    assert removed_count == 210
    assert left == [17, 13, 9, 5, 1]
    assert part.batches == []


def test_few_messages_are_freed_without_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be the loop that writes them."""
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("a rest"))
    gathering = Gathering(1 << 20)
    for _ in range(100):
        add(gathering, make_batch(*[b"x"] * 100))

    assert len(take_all(gathering)) == 10_000


def bodies_of(gathering: Gathering) -> list[bytes]:
    return [message.body for message in take_all(gathering)]


def test_batches_become_records_in_their_order() -> None:
    gathering = Gathering(1 << 20)
    states = [gathering.is_empty]
    add(gathering, make_batch(b"a", b"bb", time_ns=9, first=3))
    add(gathering, make_batch(b"", time_ns=7, first=5))

    states.append(gathering.is_empty)
    assert (gathering.size_bytes, gathering.handed_over_bytes) == (3 + 3 * 30, 0)
    found = take_all(gathering)

    assert [(each.timestamp_ns, each.message_id, each.body) for each in found] == [
        (9, PREFIX + b"003", b"a"),
        (9, PREFIX + b"004", b"bb"),
        (7, PREFIX + b"005", b""),
    ]
    assert [*states, gathering.is_empty] == [True, False, True]
    assert gathering.size_bytes == 0


def test_what_is_added_after_a_hand_over_is_another_part() -> None:
    gathering = Gathering(1 << 20)
    add(gathering, make_batch(b"1"))
    gathering.hand_over()
    gathering.hand_over()  # of nothing
    add(gathering, make_batch(b"22"))

    assert len(gathering.handed_over) == 1
    assert not gathering.is_empty
    assert (gathering.size_bytes, gathering.handed_over_bytes) == (31 + 32, 31)
    assert bodies_of(gathering) == [b"1", b"22"]


def test_records_that_are_there_are_taken_if_they_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gathering_module, "_LARGE_BATCH_BYTES", 100)
    gathering = Gathering(1 << 20)
    add(gathering, make_batch(b"small"), with_records=True)
    large = make_batch(b"x" * 70)  # of 100 bytes with its header
    records = large.records(0, 1)
    gathering.add(large, 100, records)
    add(gathering, make_batch(b"y" * 70))  # without records it is gathered

    assert [part.chunk is not None for part in gathering.handed_over] == [False, True]
    assert gathering.handed_over[1].encode().data is records[0]
    assert bodies_of(gathering) == [b"small", b"x" * 70, b"y" * 70]


def test_messages_of_different_publishes_have_their_own_times() -> None:
    gathering = Gathering(1 << 20)
    ids = [PREFIX + b"001", PREFIX + b"002"]
    add(gathering, MixedBatch(ids, [50, 40], [0, 3], [b"a", b"b"], 0))
    add(gathering, make_batch(b"c", time_ns=60))

    assert [(each.timestamp_ns, each.attempts, each.body) for each in take_all(gathering)] == [
        (50, 0, b"a"),
        (40, 3, b"b"),
        (60, 0, b"c"),
    ]


@pytest.mark.parametrize("with_records", [False, True])
def test_a_batch_larger_than_a_segment_is_cut(*, with_records: bool) -> None:
    gathering = Gathering(100)
    add(gathering, make_batch(b"before"))
    bodies = [b"a" * 20, b"b" * 20, b"c" * 21, b"d" * 500, b"", b"e" * 40, b"f"]
    add(gathering, make_batch(*bodies), with_records=with_records)
    add(gathering, make_batch(b"after"))

    gathering.hand_over()
    counts = [part.count for part in gathering.handed_over]
    sizes = [part.size_bytes for part in gathering.handed_over]
    # 50 and 50 fill a segment, 51 does not fit; 530 stands alone.
    assert (counts, sizes) == ([1, 2, 1, 1, 2, 1, 1], [36, 100, 51, 530, 100, 31, 35])
    assert bodies_of(gathering) == [b"before", *bodies, b"after"]


def test_a_part_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering_module, "MAX_PART_COUNT", 2)
    gathering = Gathering(95)
    for number in range(5):
        add(gathering, make_batch(b"%d" % number))
    gathering.hand_over()
    assert [part.count for part in gathering.handed_over] == [3, 2]  # 93 bytes fit into 95

    gathering.drop_handed_over()
    assert gathering.is_empty
    gathering = Gathering(92)
    for number in range(5):
        add(gathering, make_batch(b"%d" % number))
    gathering.hand_over()
    assert [part.count for part in gathering.handed_over] == [2, 2, 1]


def test_what_is_dropped_is_not_written() -> None:
    gathering = Gathering(1 << 20)
    add(gathering, make_batch(b"handed over"))
    gathering.hand_over()
    add(gathering, make_batch(b"newest"))

    gathering.drop_newest()

    assert gathering.size_bytes == 41
    assert bodies_of(gathering) == [b"handed over"]


def test_one_call_writes_a_bounded_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering_module, "MAX_PART_BYTES", 62)
    gathering = Gathering(1 << 20)
    for _ in range(4):
        add(gathering, make_batch(b"1"))
        gathering.hand_over()
    add(gathering, make_batch(b"x" * 70))
    gathering.hand_over()

    assert [len(gathering.encode_first(count)) for count in (5, 2, 1)] == [2, 2, 1]
    assert gathering.remove_first(4) == 4
    assert len(gathering.encode_first(1)) == 1  # one part at least, however large
