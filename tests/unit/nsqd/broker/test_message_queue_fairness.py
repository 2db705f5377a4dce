from pathlib import Path

import pytest

from nsqd.broker.backend import DiskBackend
from nsqd.broker.batch import Batch, Message
from nsqd.broker.message_queue import MessageQueue
from tests.support.channel_rig import disk_settings
from tests.support.fake_scheduler import FakeScheduler

NOW_NS = 1_700_000_000_000_000_000


def take_one(queue: MessageQueue) -> Message:
    piece = queue.take(1, 1)
    assert piece is not None
    batch, start, stop, ordinals = piece
    [message] = batch.messages(start, stop)
    ordinal = None if ordinals is None else ordinals[start]
    return (*message[:2], message[2] + 1, message[3], ordinal)


@pytest.mark.parametrize("retry_count", [1, 2, 3])
def test_messages_that_always_come_back_do_not_keep_the_disk_from_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retry_count: int
) -> None:
    monkeypatch.setattr("nsqd.broker.message_queue.KEEP_MAX_COUNT", 0)
    monkeypatch.setattr("nsqd.broker.message_queue.READ_MAX_RECORDS", 2)
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
