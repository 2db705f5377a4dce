import errno
import os
from pathlib import Path

import pytest

from nsqd.broker.queue import message_queue
from nsqd.broker.queue.backend import DiskBackend, NullBackend
from nsqd.broker.queue.batch import Batch, Message, Piece
from nsqd.broker.queue.message_queue import (
    KEEP_MAX_BYTES,
    KEEP_MAX_COUNT,
    READ_MAX_RECORDS,
    MessageQueue,
)
from tests.support.channel_rig import disk_settings
from tests.support.fake_scheduler import FakeScheduler

NOW_NS = 1_700_000_000_000_000_000


def make_batch(*bodies: bytes) -> Batch:
    return Batch(NOW_NS, b"0123456789abc", 0, bodies)


def bodies_of(piece: Piece | None) -> list[bytes]:
    if piece is None:
        return []
    return list(piece.batch.bodies[piece.start : piece.stop])


def messages_of(piece: Piece | None) -> list[Message]:
    """What was delivered, as it comes back: attempts counted, with its records."""
    assert piece is not None
    attempts = piece.batch.attempts(piece.start, piece.stop)
    return [
        (*message[:2], attempt, *message[3:])
        for message, attempt in zip(piece.messages(), attempts, strict=True)
    ]


def drain(queue: MessageQueue, max_count: int = 1000, max_bytes: int = 1 << 30) -> list[bytes]:
    bodies: list[bytes] = []
    while piece := queue.take(max_count, max_bytes):
        bodies += bodies_of(piece)
    return bodies


class DiskRig:
    """Queues on one directory, one after the other."""

    def __init__(self, data_path: Path) -> None:
        self.data_path = data_path
        self.writes: list[OSError | None] = []
        self.scheduler = FakeScheduler()

    def open(self, capacity: int) -> MessageQueue:
        settings = disk_settings(self.data_path)
        backend = DiskBackend("q", settings, self.scheduler, self.writes.append)
        return MessageQueue(capacity, backend)


@pytest.fixture
def rig(tmp_path: Path) -> DiskRig:
    return DiskRig(tmp_path)


def test_messages_come_out_in_the_order_they_went_in(rig: DiskRig) -> None:
    queue = rig.open(10)
    queue.put(make_batch(b"a", b"b"))
    queue.put(make_batch(b"c"))

    assert drain(queue) == [b"a", b"b", b"c"]
    assert queue.take(1, 1) is None
    assert queue.depth == 0


def test_a_batch_is_shared_and_never_copied() -> None:
    batch = make_batch(b"a", b"b")
    queues = [MessageQueue(10, NullBackend()) for _ in range(3)]

    for queue in queues:
        queue.put(batch)

    for queue in queues:
        piece = queue.take(10, 10)
        assert piece is not None
        assert piece.batch is batch


def test_take_is_bounded_in_messages(rig: DiskRig) -> None:
    queue = rig.open(10)
    queue.put(make_batch(b"a", b"b", b"c"))

    assert bodies_of(queue.take(2, 1000)) == [b"a", b"b"]
    assert queue.depth == 1
    assert bodies_of(queue.take(2, 1000)) == [b"c"]


def test_take_is_bounded_in_bytes_but_gives_at_least_one(rig: DiskRig) -> None:
    queue = rig.open(10)
    queue.put(make_batch(b"a" * 50, b"b" * 50, b"c" * 50, b"d"))

    assert len(bodies_of(queue.take(10, 100))) == 2
    assert len(bodies_of(queue.take(10, 1))) == 1
    assert bodies_of(queue.take(10, 100)) == [b"d"]


def test_a_batch_that_exceeds_memory_is_split(rig: DiskRig) -> None:
    #
    queue = rig.open(3)
    queue.put(make_batch(b"a", b"b"))
    assert (queue.depth, queue.backend_depth) == (2, 0)

    queue.put(make_batch(b"c", b"d", b"e"))

    assert (queue.depth, queue.backend_depth) == (5, 2)
    assert drain(queue) == [b"a", b"b", b"c", b"d", b"e"]


def test_without_memory_everything_is_on_disk(rig: DiskRig) -> None:
    #
    queue = rig.open(0)
    queue.put(make_batch(b"a", b"b"))

    assert (queue.depth, queue.backend_depth) == (2, 2)
    assert drain(queue) == [b"a", b"b"]
    assert (queue.depth, queue.backend_depth) == (0, 0)


def test_memory_is_used_again_only_when_nothing_waits_on_disk(
    rig: DiskRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsqd.broker.queue.message_queue.KEEP_MAX_COUNT", 1)
    queue = rig.open(1)
    for body in (b"a", b"b", b"c"):
        queue.put(make_batch(body))  # to memory, to disk and kept, to disk only
    assert bodies_of(queue.take(1, 1000)) == [b"a"]

    queue.put(make_batch(b"d"))

    assert queue.backend_depth == 3
    assert drain(queue) == [b"b", b"c", b"d"]


def test_a_queue_that_keeps_up_never_reads_its_files(
    rig: DiskRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = rig.open(0)
    reads: list[object] = []
    monkeypatch.setattr(os, "pread", lambda *arguments: reads.append(arguments))

    for number in range(100):
        queue.put(make_batch(b"%d" % number))
        assert bodies_of(queue.take(10, 1000)) == [b"%d" % number]
    queue.put(make_batch(*[b"x"] * 1000))
    assert len(drain(queue)) == 1000

    assert reads == []


@pytest.mark.parametrize(
    ("count", "size"), [(KEEP_MAX_COUNT + 2000, 10), (3 * KEEP_MAX_BYTES // 100_000, 100_000)]
)
def test_what_is_kept_of_the_disk_in_memory_is_bounded(rig: DiskRig, count: int, size: int) -> None:
    queue = rig.open(0)
    for number in range(count):
        queue.put(make_batch(b"%0*d" % (size, number)))

    assert queue.backend_depth == count
    unread = queue.backend.unread_count
    assert unread > 0
    assert (count - unread) * size <= KEEP_MAX_BYTES + size
    assert count - unread <= KEEP_MAX_COUNT
    assert drain(queue) == [b"%0*d" % (size, number) for number in range(count)]


def test_what_is_taken_makes_room_for_what_is_kept(rig: DiskRig) -> None:
    queue = rig.open(0)
    queue.put(make_batch(b"a"))
    for _ in range(5):
        queue.put(make_batch(bytes(KEEP_MAX_BYTES // 2)))
        assert queue.backend.unread_count == 0
        queue.take(1, 1)  # the queue never becomes empty
        assert queue.depth == 1


def test_of_a_batch_that_is_split_only_the_part_on_disk_counts_as_kept(rig: DiskRig) -> None:
    queue = rig.open(1)
    queue.put(make_batch(bytes(KEEP_MAX_BYTES), b"b"))

    queue.put(make_batch(b"c"))

    assert (queue.depth, queue.backend_depth, queue.backend.unread_count) == (3, 2, 0)


def test_a_long_backlog_is_read_in_pieces(rig: DiskRig) -> None:
    queue = rig.open(0)
    count = 3 * READ_MAX_RECORDS
    queue.put(make_batch(*[b"%d" % number for number in range(count)]))
    queue.backend.close()

    queue = rig.open(0)
    assert queue.depth == count
    assert drain(queue) == [b"%d" % number for number in range(count)]


def test_a_put_that_the_disk_refuses_leaves_nothing(
    rig: DiskRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    # not even the part for which there is room in memory
    queue = rig.open(2)
    queue.put(make_batch(b"a"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", _refuse)
        with pytest.raises(OSError, match="No space left"):
            queue.put(make_batch(b"b", b"c"))

    assert (queue.depth, queue.backend_depth) == (1, 0)
    queue.put(make_batch(b"d", b"e"))
    assert drain(queue) == [b"a", b"d", b"e"]


def test_untake_puts_back_at_the_front(rig: DiskRig) -> None:
    queue = rig.open(1)
    queue.put(make_batch(b"a", b"b", b"c"))
    in_memory = queue.take(5, 1000)
    on_disk = queue.take(1, 1000)
    assert in_memory is not None
    assert on_disk is not None
    assert queue.depth == 1

    queue.untake(on_disk)
    queue.untake(in_memory)

    assert (queue.depth, queue.backend_depth) == (3, 2)
    assert drain(queue) == [b"a", b"b", b"c"]


def test_what_comes_back_queues_up_behind_memory_but_before_the_disk(
    rig: DiskRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsqd.broker.queue.message_queue.KEEP_MAX_COUNT", 0)
    queue = rig.open(2)
    queue.put(make_batch(b"a", b"b", b"c", b"d"))
    taken = messages_of(queue.take(1, 1000))

    queue.put_back(taken)

    assert (queue.depth, queue.backend_depth) == (4, 2)
    assert drain(queue) == [b"b", b"a", b"c", b"d"]


def test_what_comes_back_keeps_its_attempts(rig: DiskRig) -> None:
    for capacity in (0, 10):
        queue = rig.open(capacity)
        queue.put(make_batch(b"a"))
        for attempts in (1, 2, 3):
            [message] = messages_of(queue.take(1, 1000))
            assert message[2] == attempts
            queue.put_back([message])
        assert drain(queue) == [b"a"]
        queue.empty()
        rig.scheduler.settle()


def test_without_room_what_comes_back_is_written_again_and_its_record_forgotten(
    rig: DiskRig,
) -> None:
    queue = rig.open(0)
    queue.put(make_batch(b"a", b"b"))
    taken = messages_of(queue.take(2, 1000))

    queue.put_back(taken)

    assert (queue.depth, queue.backend_depth) == (2, 2)
    assert queue.backend.outstanding_count == 2
    again = messages_of(queue.take(2, 1000))
    assert [message[4] for message in again] == [2, 3]


def test_what_comes_back_is_never_refused(rig: DiskRig, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = rig.open(0)
    queue.put(make_batch(b"a"))
    taken = messages_of(queue.take(1, 1000))
    monkeypatch.setattr(os, "pwrite", _refuse)

    queue.put_back(taken)

    assert (queue.depth, queue.backend_depth) == (1, 1)
    assert isinstance(rig.writes[-1], OSError)
    assert messages_of(queue.take(1, 1000)) == [(*taken[0][:2], 2, b"a", 0)]


def test_a_finished_record_does_not_come_back_after_a_restart(rig: DiskRig) -> None:
    queue = rig.open(0)
    queue.put(make_batch(b"a", b"b"))
    first, _ = messages_of(queue.take(2, 1000))
    assert first[4] is not None

    queue.commit([first[4]])
    queue.backend.close()

    assert drain(rig.open(0)) == [b"b"]


def test_empty_drops_memory_and_disk(rig: DiskRig) -> None:
    #
    queue = rig.open(1)
    queue.put(make_batch(b"a", b"b", b"c"))
    taken = queue.take(2, 1000)

    queue.empty()

    assert (queue.depth, queue.backend_depth) == (0, 0)
    queue.put(make_batch(b"d", b"e"))
    assert drain(queue) == [b"d", b"e"]
    assert taken is not None


def test_flush_writes_memory_and_the_messages_given_with_their_attempts(rig: DiskRig) -> None:
    #
    queue = rig.open(3)
    queue.put(make_batch(b"a", b"b", b"c", b"d", b"e"))
    in_flight = messages_of(queue.take(2, 1000))
    on_disk = messages_of(queue.take(1, 1000)) + messages_of(queue.take(1, 1000))

    queue.flush(in_flight + on_disk)
    queue.backend.close()

    queue = rig.open(3)
    assert queue.depth == queue.backend_depth == 5
    attempts = {}
    while piece := queue.take(1, 1000):
        [message] = messages_of(piece)
        attempts[message[3]] = message[2]
    assert attempts == {b"a": 2, b"b": 2, b"c": 2, b"d": 2, b"e": 1}


def test_after_a_flush_nothing_finished_comes_back(rig: DiskRig) -> None:
    # D-11: "a" was requeued and waits, the others were finished
    queue = rig.open(10)
    queue.put(make_batch(*[b"y"] * 10))
    queue.put(make_batch(b"a", b"b", b"c"))
    queue.take(10, 1000)
    taken = messages_of(queue.take(3, 1000))
    queue.put_back(taken[:1])
    queue.commit([message[4] for message in taken[1:] if message[4] is not None])
    assert (queue.depth, queue.backend_depth) == (1, 1)

    queue.flush(())
    queue.backend.close()

    queue = rig.open(10)
    assert queue.depth == 1
    assert messages_of(queue.take(10, 1000))[0][2:4] == (2, b"a")


def test_flush_tells_when_the_disk_refuses(rig: DiskRig, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = rig.open(10)
    queue.put(make_batch(b"a"))
    monkeypatch.setattr(os, "pwrite", _refuse)

    with pytest.raises(OSError, match="No space left"):
        queue.flush(())


def test_an_ephemeral_queue_drops_what_exceeds_memory() -> None:
    #
    queue = MessageQueue(3, NullBackend())
    queue.put(make_batch(b"a", b"b"))
    queue.put(make_batch(b"c", b"d", b"e"))
    queue.put(make_batch(b"f"))

    assert (queue.depth, queue.backend_depth) == (3, 0)
    assert drain(queue) == [b"a", b"b", b"c"]


def test_an_ephemeral_queue_takes_back_what_there_is_room_for() -> None:
    queue = MessageQueue(2, NullBackend())
    queue.put(make_batch(b"a", b"b"))
    taken = messages_of(queue.take(1, 1000))

    queue.put_back(taken)
    assert queue.depth == 2
    queue.put_back(taken)
    assert queue.depth == 2


def _refuse(*_arguments: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_look_passes_over_a_bounded_number_of_pieces(
    rig: DiskRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = rig.open(2)
    for body in (b"memory 1", b"memory 2", b"disk"):
        queue.put(make_batch(body))

    assert [message[3] for message, _ in queue.iter_loaded(in_memory=False)] == [b"disk"]
    monkeypatch.setattr(message_queue, "MAX_PASSED_PIECES", 2)

    assert list(queue.iter_loaded(in_memory=False)) == []
    assert len(list(queue.iter_loaded())) == 3


@pytest.mark.parametrize("end", ["empty", "delete"])
@pytest.mark.parametrize("capacity", [0, 2])
def test_nothing_is_left_of_what_was_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capacity: int, end: str
) -> None:
    queue = DiskRig(tmp_path).open(capacity)
    queue.put(make_batch(b"a", b"b"))
    monkeypatch.setattr(message_queue, "KEEP_MAX_COUNT", 0)
    queue.put(make_batch(b"c", b"d", b"e"))
    assert queue.depth == 5
    assert queue.backend.unread_count == 3

    getattr(queue, end)()

    assert (queue.depth, queue.memory.count, queue.backend.unread_count) == (0, 0, 0)
    assert queue.room_count == capacity


def test_a_depth_that_a_crash_has_left_too_high_is_corrected(tmp_path: Path) -> None:
    rig = DiskRig(tmp_path)
    queue = rig.open(0)
    queue.put(make_batch(b"a", b"b"))
    queue.backend.close()
    path = tmp_path / "q.diskqueue.meta.dat"
    _, rest = path.read_text().split("\n", maxsplit=1)
    path.write_text(f"7\n{rest}")
    queue = rig.open(0)

    assert drain(queue) == [b"a", b"b"]
    assert queue.take(10, 1000) is None
    assert queue.backend.unread_count == 0


def test_messages_that_are_read_together_are_due_each_at_its_time(tmp_path: Path) -> None:
    rig = DiskRig(tmp_path)
    queue = rig.open(0)
    now_ns = rig.scheduler.steady_time_ns()
    delays_s = [0, 0, 5, 5, 9, 0, 5]
    for number, delay_s in enumerate(delays_s):
        batch = Batch(NOW_NS, b"0123456789abc", number, (b"%d" % number,))
        if delay_s:
            queue.put_aside(batch, now_ns + delay_s * 10**9, is_stored=False)
        else:
            queue.put(batch)
    queue.backend.close()
    queue = rig.open(0)

    found = []
    while piece := queue.take(1000, 1 << 20):
        found.append(
            (piece.batch.due_ns and (piece.batch.due_ns - now_ns) // 10**9, bodies_of(piece))
        )

    assert [(due_s, body) for due_s, bodies in found for body in bodies] == [
        (delay_s, b"%d" % number) for number, delay_s in enumerate(delays_s)
    ]
