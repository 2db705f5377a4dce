"""Transfer: the same messages into several queues, all or none."""

import errno
import os
from pathlib import Path

import pytest

from nsqd.broker.queue.backend import DiskBackend, NullBackend
from nsqd.broker.queue.batch import Batch
from nsqd.broker.queue.ids import MessageIdFactory
from nsqd.broker.queue.message_queue import KEEP_MAX_COUNT, MessageQueue
from nsqd.broker.queue.pending_put import Part, PutTarget, Transfer
from tests.support.channel_rig import disk_settings
from tests.support.fake_scheduler import FakeScheduler

IDS = MessageIdFactory(1)


def part_of(*bodies: bytes) -> Part:
    return Part(Batch(1, *IDS.reserve(len(bodies), 1), bodies))


def open_queue(path: Path, name: str, capacity: int = 0) -> MessageQueue:
    backend = DiskBackend(name, disk_settings(path), FakeScheduler(), lambda _error: None)
    return MessageQueue(capacity, backend)


def transfer_of(queues: list[MessageQueue], *parts: Part) -> Transfer:
    return Transfer([PutTarget(queue, lambda _count: None) for queue in queues], parts)


def take_all(queue: MessageQueue) -> list[bytes]:
    bodies: list[bytes] = []
    while (piece := queue.take(1000, 2**30)) is not None:
        bodies += piece.batch.bodies[piece.start : piece.stop]
    return bodies


def test_records_are_encoded_once() -> None:
    part = part_of(b"a", b"bb")

    assert part.encode() is part.encode()
    assert part.encode().data == part.batch.records(0, 2)[0]


@pytest.mark.parametrize("capacity", range(8))
def test_messages_go_to_memory_as_far_as_there_is_room(tmp_path: Path, capacity: int) -> None:
    queue = open_queue(tmp_path, "a", capacity)
    parts = [part_of(b"1", b"2", b"3"), part_of(b"4"), part_of(b"5", b"6")]

    transfer = transfer_of([queue], *parts)
    assert transfer.has_jobs is (capacity < 6)
    transfer.run()
    assert queue.depth == 0
    assert transfer.complete()

    assert (queue.depth, queue.backend_depth) == (6, max(6 - capacity, 0))
    assert take_all(queue) == [b"1", b"2", b"3", b"4", b"5", b"6"]


def test_those_that_are_written_are_kept_in_memory_up_to_a_bound(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, "a")
    parts = [part_of(*[b"%d" % number] * 3000) for number in range(4)]
    transfer = transfer_of([queue], *parts)
    transfer.run()
    transfer.complete()

    assert queue.backend.unread_count == 6000
    assert KEEP_MAX_COUNT < 6000
    assert queue.depth == 12_000
    assert take_all(queue) == [body for part in parts for body in part.batch.bodies]
    queue.commit(range(12_000))
    assert queue.backend.outstanding_count == 0


def test_those_behind_unread_records_are_not_kept(tmp_path: Path) -> None:
    open_queue(tmp_path, "a").put(part_of(b"old").batch)
    queue = open_queue(tmp_path, "a", capacity=10)
    transfer = transfer_of([queue], part_of(b"new"))
    transfer.run()
    transfer.complete()

    assert queue.backend.unread_count == 2
    assert take_all(queue) == [b"old", b"new"]


def test_an_ephemeral_queue_drops_those_beyond_its_memory() -> None:
    queue = MessageQueue(2, NullBackend())

    transfer = transfer_of([queue], part_of(b"1"), part_of(b"2", b"3"))
    assert not transfer.has_jobs
    transfer.complete()

    assert take_all(queue) == [b"1", b"2"]


def test_a_failure_in_one_is_a_failure_in_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = [open_queue(tmp_path, name) for name in "abc"]
    for queue in queues:
        queue.put(part_of(b"before").batch)
    transfer = transfer_of(queues, part_of(b"x"))
    real = os.pwrite

    def refuse_b(fd: int, data: bytes, position: int) -> int:
        if "/b." in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.EIO, "broken")
        return real(fd, data, position)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refuse_b)
        transfer.run()
    transfer.run()  # no second time
    transfer.give_up()

    assert str(transfer.error) == "[Errno 5] broken"
    sizes = {path.stat().st_size for path in tmp_path.glob("*.dat")}
    assert sizes == {30 + len(b"before")}
    for queue in queues:
        queue.put(part_of(b"after").batch)
        assert take_all(queue) == [b"before", b"after"]


def test_a_process_without_descriptors_begins_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = [open_queue(tmp_path, name) for name in "ab"]
    for queue in queues:
        queue.put(part_of(b"before").batch)
    real = os.dup
    calls = 0

    def fail_second(fd: int) -> int:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError(errno.EMFILE, "too many open files")
        return real(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "dup", fail_second)
        with pytest.raises(OSError, match="too many"):
            transfer_of(queues, part_of(b"x"))

    for queue in queues:
        assert queue.backend.aside is not None
        assert not queue.backend.aside.is_busy
        queue.put(part_of(b"after").batch)
        assert take_all(queue) == [b"before", b"after"]


def test_messages_put_back_meanwhile_stay_in_memory(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, "a")
    queue.put(part_of(b"1").batch)
    piece = queue.take(1, 1)
    assert piece is not None
    transfer = transfer_of([queue], part_of(b"2"))

    queue.put_back(piece.messages())
    assert queue.depth == 1
    transfer.run()
    assert transfer.complete()

    assert take_all(queue) == [b"1", b"2"]


def test_a_queue_that_was_emptied_is_tried_again(tmp_path: Path) -> None:
    queues = [open_queue(tmp_path, name) for name in "ab"]
    part = part_of(b"x")
    transfer = transfer_of(queues, part)
    transfer.run()
    queues[1].empty()

    assert not transfer.complete()
    transfer.undo()
    transfer.give_up()
    again = transfer_of(queues, part)
    again.run()
    assert again.complete()

    assert take_all(queues[0]) == take_all(queues[1]) == [b"x"]


def test_the_owners_are_told_how_many_messages_appeared(tmp_path: Path) -> None:
    told: list[int] = []
    targets = [PutTarget(open_queue(tmp_path, name), told.append) for name in "ab"]

    transfer = Transfer(targets, [part_of(b"1", b"2"), part_of(b"3")])
    transfer.run()
    assert told == []
    transfer.complete()

    assert told == [3, 3]
