from pathlib import Path

import pytest

from nsqd.broker.queue.backend import DiskBackend
from nsqd.broker.queue.batch import Batch, Message
from nsqd.broker.queue.message_queue import MessageQueue
from tests.support.channel_rig import disk_settings
from tests.support.fake_scheduler import FakeScheduler

NOW_NS = 1_700_000_000_000_000_000


def take_one(queue: MessageQueue) -> Message:
    piece = queue.take(1, 1)
    assert piece is not None
    [message] = piece.messages()
    return (*message[:2], message[2] + 1, *message[3:])


@pytest.mark.parametrize("retry_count", [1, 2, 3])
def test_messages_that_always_come_back_do_not_keep_the_disk_from_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retry_count: int
) -> None:
    monkeypatch.setattr("nsqd.broker.queue.message_queue.KEEP_MAX_COUNT", 0)
    monkeypatch.setattr("nsqd.broker.queue.message_queue.READ_MAX_RECORDS", 2)
    backend = DiskBackend("q", disk_settings(tmp_path), FakeScheduler(), lambda _error: None)
    queue = MessageQueue(retry_count, backend)
    bodies = tuple(b"%d" % number for number in range(retry_count + 10))
    queue.put(Batch(NOW_NS, b"0123456789abc", 0, bodies))
    poison = set(bodies[:retry_count])
    finished = []

    for _ in range(100):
        message = take_one(queue)
        if message[3] in poison:
            queue.put_back([message])
        else:
            finished.append(message[3])

    assert finished == list(bodies[retry_count:])
    assert queue.depth == retry_count
    backend.close()


def test_a_message_that_always_comes_back_does_not_hold_up_the_files_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsqd.broker.queue.message_queue.KEEP_MAX_COUNT", 0)
    monkeypatch.setattr("nsqd.broker.queue.message_queue.READ_MAX_RECORDS", 2)
    monkeypatch.setattr("nsqd.broker.queue.message_queue.OUTSTANDING_MAX_COUNT", 10)
    backend = DiskBackend("q", disk_settings(tmp_path), FakeScheduler(), lambda _error: None)
    queue = MessageQueue(1, backend)
    bodies = tuple(b"%d" % number for number in range(100))
    queue.put(Batch(NOW_NS, b"0123456789abc", 0, bodies))
    finished = []
    attempts = 0

    for _ in range(300):
        message = take_one(queue)
        if message[3] == b"1":  # the first that is on disk
            attempts += 1
            assert message[2] == attempts
            queue.put_back([message])
        else:
            finished.append(message[3])
            if message[4] is not None:
                queue.commit([message[4]])
        assert backend.outstanding_count <= 10 + 3

    assert finished == [b"0", *bodies[2:]]
    assert attempts > 100
    assert queue.depth == 1
    backend.close()


@pytest.mark.parametrize(
    ("outstanding_count", "is_written_again"), [(100_000, False), (100_001, True)]
)
def test_a_retry_is_written_again_once_too_many_records_stand_behind_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    outstanding_count: int,
    *,
    is_written_again: bool,
) -> None:
    backend = DiskBackend("q", disk_settings(tmp_path), FakeScheduler(), lambda _error: None)
    queue = MessageQueue(2, backend)
    queue.put(Batch(NOW_NS, b"0123456789abc", 0, (b"a", b"b", b"c")))
    for _ in range(2):
        take_one(queue)
    message = take_one(queue)  # from disk, as memory has room for two
    assert message[4] is not None
    written_bytes = backend.queue.disk_bytes
    monkeypatch.setattr(DiskBackend, "outstanding_count", outstanding_count)

    queue.put_back([message])

    assert (backend.queue.disk_bytes > written_bytes) == is_written_again
    assert take_one(queue)[3] == b"c"
    monkeypatch.undo()
    backend.close()
