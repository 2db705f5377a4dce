"""A channel over a real disk queue: order, commits, crashes, clean exits, a disk that fails."""

import errno
import os
import random
import shutil
from pathlib import Path

import pytest

from nsqd.broker.channel import RETRY_READ_S
from tests.support.channel_rig import ChannelRig, Client
from tests.support.fake_scheduler import FakeScheduler


def numbers(count: int, *, start: int = 0) -> list[bytes]:
    return [b"%05d" % number for number in range(start, start + count)]


def close(rig: ChannelRig) -> None:
    """Exit cleanly."""
    rig.channel.flush()
    rig.backend.close()


def receive_all(data_path: Path, *, mem_queue_size: int = 0) -> list[tuple[bytes, int]]:
    """Start again, and return every message with its attempts."""
    rig = ChannelRig(data_path, mem_queue_size=mem_queue_size)
    client = rig.client(ready=100_000, msg_timeout_s=10_000.0)
    rig.advance(1000)  # deferred messages are due by then
    assert rig.channel.depth == 0
    return [(delivery.body, delivery.attempts) for delivery in client.take()]


def crash(data_path: Path) -> Path:
    """Return a copy of the directory as it is at this moment."""
    copy = data_path.with_name(f"{data_path.name}-after-crash")
    shutil.copytree(data_path, copy)
    return copy


@pytest.mark.parametrize("mem_queue_size", [0, 1, 7, 1000])
def test_order_is_kept_across_memory_and_disk(tmp_path: Path, mem_queue_size: int) -> None:
    rig = ChannelRig(tmp_path, mem_queue_size=mem_queue_size)
    for start in range(0, 500, 5):
        rig.put(*numbers(5, start=start))
    assert rig.channel.depth == 500
    assert rig.channel.backend_depth == max(500 - mem_queue_size, 0)

    client = rig.client(ready=100_000)
    rig.settle()

    assert client.bodies == numbers(500)
    assert (rig.channel.depth, rig.channel.backend_depth) == (0, 0)


def test_order_is_kept_while_reader_and_writer_overtake_each_other(tmp_path: Path) -> None:
    rig = ChannelRig(tmp_path, mem_queue_size=10)
    client = rig.client()
    chance = random.Random(1)
    sent = 0
    for _ in range(200):
        count = chance.randrange(1, 20)
        rig.put(*numbers(count, start=sent))
        sent += count
        client.ready(client.in_flight_count + chance.randrange(0, 20))
        rig.settle()
    client.ready(100_000)
    rig.settle()

    assert client.bodies == numbers(sent)


def test_a_message_that_was_delivered_but_not_finished_survives_a_crash(tmp_path: Path) -> None:
    # design.md 3: nothing leaves the disk before its FIN
    (tmp_path / "data").mkdir()
    rig = ChannelRig(tmp_path / "data", mem_queue_size=0)
    client = rig.client(ready=10)
    ids = rig.put(*numbers(10))
    assert client.bodies == numbers(10)
    client.finish(*ids[:3])
    rig.advance(2)

    found = receive_all(crash(tmp_path / "data"))

    assert found == [(body, 1) for body in numbers(7, start=3)]


def test_a_crash_before_the_sync_may_repeat_but_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    rig = ChannelRig(tmp_path / "data", mem_queue_size=0)
    client = rig.client(ready=10)
    ids = rig.put(*numbers(10))
    client.finish(ids[0], ids[9])

    found = receive_all(crash(tmp_path / "data"))

    assert {body for body, _ in found} >= set(numbers(8, start=1))


def test_finished_messages_do_not_come_back_after_a_clean_exit(tmp_path: Path) -> None:
    # D-11, Q-26
    rig = ChannelRig(tmp_path, mem_queue_size=0)
    client = rig.client(ready=6)
    ids = rig.put(*numbers(10))
    client.finish(ids[0], ids[2], ids[5])
    close(rig)

    found = receive_all(tmp_path)

    # Read once: 1, 3 and 4 come back with a second attempt; FINs let 6, 7 and 8 come meanwhile.
    assert sorted(found) == [
        (b"00001", 2),
        (b"00003", 2),
        (b"00004", 2),
        (b"00006", 1),
        (b"00007", 1),
        (b"00008", 1),
        (b"00009", 1),
    ]


@pytest.mark.parametrize("mem_queue_size", [0, 2, 1000])
def test_a_clean_exit_keeps_every_message_and_its_attempts(
    tmp_path: Path, mem_queue_size: int
) -> None:
    #
    rig = ChannelRig(tmp_path, mem_queue_size=mem_queue_size)
    client = rig.client(ready=4)
    ids = rig.put(*numbers(8))
    rig.put(b"deferred", delay_s=100.0)
    client.requeue(ids[0], 50.0)  # deferred after one attempt
    client.requeue(ids[1])  # at the end of the queue after one attempt
    client.ready(0)
    rig.settle()
    expected = dict.fromkeys(numbers(8), 1) | {b"deferred": 1}
    for delivery in client.take():
        expected[delivery.body] = delivery.attempts + 1

    close(rig)

    found = receive_all(tmp_path, mem_queue_size=mem_queue_size)
    assert sorted(found) == sorted(expected.items())


def test_what_a_departed_client_held_survives_a_clean_exit(tmp_path: Path) -> None:
    # Q-26, W-101
    rig = ChannelRig(tmp_path)
    client = rig.client(ready=5)
    rig.put(*numbers(3))
    client.leave()

    close(rig)

    assert receive_all(tmp_path) == [(body, 2) for body in numbers(3)]


def test_a_clean_exit_closes_the_connections(tmp_path: Path) -> None:
    rig = ChannelRig(tmp_path)
    client = rig.client(ready=5)

    close(rig)

    assert client.sink.is_closed
    assert rig.channel.is_closed


def test_restarting_twice_changes_nothing(tmp_path: Path) -> None:
    rig = ChannelRig(tmp_path, mem_queue_size=3)
    rig.put(*numbers(20))
    close(rig)
    for _ in range(3):
        rig = ChannelRig(tmp_path, mem_queue_size=3)
        assert (rig.channel.depth, rig.channel.backend_depth) == (20, 20)
        close(rig)

    # The three that were in memory have been written behind the others.
    assert sorted(receive_all(tmp_path)) == [(body, 1) for body in numbers(20)]


def test_counters_begin_anew_while_the_depth_is_restored(tmp_path: Path) -> None:
    #
    rig = ChannelRig(tmp_path)
    rig.put(*numbers(5))
    close(rig)

    rig = ChannelRig(tmp_path)

    assert rig.channel.depth == 5
    assert rig.channel.message_count == 0


def test_a_timed_out_disk_message_is_not_doubled(tmp_path: Path) -> None:
    rig = ChannelRig(tmp_path, mem_queue_size=0)
    client = rig.client(ready=5)
    ids = rig.put(b"a")
    rig.advance(60)
    assert len(client.bodies) == 2

    assert client.finish(*ids) == []
    close(rig)

    assert receive_all(tmp_path) == []


def test_a_requeued_disk_message_survives_a_crash(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for mem_queue_size in (0, 10):
        rig = ChannelRig(tmp_path / "data", mem_queue_size=mem_queue_size)
        rig.put(*[b"x"] * mem_queue_size, b"a")
        client = rig.client(ready=50)
        rig.settle()
        [delivery] = [delivery for delivery in client.take() if delivery.body == b"a"]
        client.requeue(delivery.message_id, 10.0)
        rig.advance(3)

        copy = crash(tmp_path / "data")
        assert b"a" in [body for body, _ in receive_all(copy)]
        shutil.rmtree(copy)
        rig.channel.empty()
        rig.backend.close()


def test_empty_removes_what_is_on_disk(tmp_path: Path) -> None:
    # Q-10, D-20
    rig = ChannelRig(tmp_path, mem_queue_size=2)
    client = rig.client(ready=3)
    ids = rig.put(*numbers(10))

    rig.channel.empty()
    assert (rig.channel.depth, rig.channel.backend_depth) == (0, 0)
    client.finish(*ids[:3])
    rig.put(b"next")
    close(rig)

    assert receive_all(tmp_path) == [(b"next", 2)]


def test_delete_removes_the_files(tmp_path: Path) -> None:
    #
    rig = ChannelRig(tmp_path, mem_queue_size=2)
    rig.put(*numbers(10))
    rig.advance(2)
    assert list(tmp_path.iterdir())

    receipt = rig.channel.delete()
    rig.settle()

    assert list(tmp_path.iterdir()) == []
    assert receipt.is_done
    assert receipt.error is None


def test_sampling_forgets_the_records_of_what_it_drops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # W-105
    draws = iter([99, 0, 99, 0])
    monkeypatch.setattr(random, "randrange", lambda stop: next(draws))
    rig = ChannelRig(tmp_path, mem_queue_size=0)
    client = rig.client(ready=10, sample_rate=10)
    rig.put(*numbers(4))
    assert client.bodies == [b"00001", b"00003"]
    client.finish(*client.sink.ids)
    close(rig)

    assert receive_all(tmp_path) == []


def test_a_put_that_the_disk_refuses_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # W-68, Q-36
    rig = ChannelRig(tmp_path, mem_queue_size=2)
    client = rig.client()
    rig.put(b"a")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", _fail(errno.ENOSPC))
        with pytest.raises(OSError, match="No space left"):
            rig.channel.put(rig.batch(b"b", b"c"))
    assert rig.channel.message_count == rig.channel.depth == 1
    assert isinstance(rig.write_errors[-1], OSError)

    rig.put(b"d", b"e")
    client.ready(10)
    rig.settle()

    assert client.bodies == [b"a", b"d", b"e"]
    assert rig.write_errors[-1] is None


def test_requeues_and_timeouts_survive_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = ChannelRig(tmp_path, mem_queue_size=0)
    client = rig.client(ready=10)
    ids = rig.put(b"a", b"b")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", _fail(errno.ENOSPC))
        client.requeue(ids[0])
        rig.advance(60)

    assert sorted(client.bodies) == [b"a", b"a", b"a", b"b", b"b"]
    assert client.finish(*ids) == []


@pytest.mark.parametrize("other_count", [0, 3])
def test_a_read_that_fails_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other_count: int
) -> None:
    rig = _with_backlog(tmp_path, 10)
    clients = [rig.client() for _ in range(1 + other_count)]
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", _fail(errno.EIO))
        for client in clients:
            client.ready(10)
        rig.settle()
        rig.advance(RETRY_READ_S * 3)
        assert _bodies(clients) == []

    rig.advance(RETRY_READ_S)

    assert _bodies(clients) == numbers(10)


def test_puts_during_a_read_failure_cause_no_storm_of_retries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = _with_backlog(tmp_path, 10)
    client = rig.client(ready=100)
    reads: list[object] = []

    def fail(*arguments: object) -> object:
        reads.append(arguments)
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", fail)
        for start in range(10, 50, 10):
            rig.put(*numbers(10, start=start))
        assert len(reads) == 1
        rig.advance(RETRY_READ_S * 5)
        assert len(reads) == 6
    rig.advance(RETRY_READ_S)

    assert client.bodies == numbers(50)


def test_what_was_taken_before_a_read_failed_is_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first ten are in memory, those behind them can't be read.
    rig = _with_backlog(tmp_path, 10)
    reader = rig.client(ready=1)
    rig.settle()
    assert reader.bodies == numbers(1)  # which has loaded the others
    monkeypatch.setattr("nsqd.broker.queue.message_queue.KEEP_MAX_COUNT", 0)
    rig.put(*numbers(10, start=10))
    client = rig.client()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", _fail(errno.EIO))
        client.ready(100)
        rig.settle()
        assert client.bodies == numbers(9, start=1)
        assert client.in_flight_count == 9

    rig.advance(RETRY_READ_S)

    assert client.bodies == numbers(19, start=1)


def _with_backlog(data_path: Path, count: int) -> ChannelRig:
    """A channel that has just been started, with everything on disk alone."""
    rig = ChannelRig(data_path, mem_queue_size=0)
    rig.put(*numbers(count))
    close(rig)
    return ChannelRig(data_path, mem_queue_size=0, scheduler=FakeScheduler())


def _bodies(clients: list[Client]) -> list[bytes]:
    return sorted(body for client in clients for body in client.bodies)


def _fail(number: int) -> object:
    def fail(*_arguments: object) -> object:
        raise OSError(number, os.strerror(number))

    return fail
