"""The age of the oldest message: in memory, on disk, in flight, across a restart."""

from pathlib import Path

import pytest

from diskqueue import DiskQueue
from nsqd.broker.peek import find_oldest_age
from nsqd.broker.queue.backend import NullBackend
from tests.support.channel_rig import ChannelRig


def close(rig: ChannelRig) -> None:
    """Exit cleanly."""
    rig.channel.flush()
    rig.backend.close()


def test_the_oldest_message_waits_in_memory_on_disk_or_in_flight(tmp_path: Path) -> None:
    rig = ChannelRig(tmp_path, mem_queue_size=0)
    assert find_oldest_age(rig.channel, rig.scheduler.wall_ns) == 0.0
    ids = rig.put(b"a")
    rig.advance(5)
    rig.put(b"b")
    rig.advance(2)
    assert find_oldest_age(rig.channel, rig.scheduler.wall_ns) == pytest.approx(7)

    client = rig.client(ready=1)
    rig.settle()
    assert find_oldest_age(rig.channel, rig.scheduler.wall_ns) == pytest.approx(7)  # in flight

    client.ready(0)
    client.finish(*ids)
    assert find_oldest_age(rig.channel, rig.scheduler.wall_ns) == pytest.approx(2)


def test_the_oldest_message_of_a_restart_is_read_once_from_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = ChannelRig(tmp_path, mem_queue_size=0)
    published_ns = rig.scheduler.wall_ns
    rig.put(*[b"x"] * 10)
    close(rig)
    rig = ChannelRig(tmp_path, mem_queue_size=0)
    rig.scheduler.wall_ns = published_ns + 60 * 10**9
    peek = DiskQueue.peek
    peeks: list[int] = []

    def peek_counted(queue: DiskQueue, max_records: int, max_bytes: int) -> list[bytes]:
        peeks.append(max_records)
        return peek(queue, max_records, max_bytes)

    monkeypatch.setattr(DiskQueue, "peek", peek_counted)

    assert find_oldest_age(rig.channel, rig.scheduler.wall_ns) == pytest.approx(60)
    assert find_oldest_age(rig.channel, rig.scheduler.wall_ns) == pytest.approx(60)
    assert peeks == [1]


@pytest.mark.parametrize("has_restarted", [False, True])
def test_a_deferred_message_is_not_old(tmp_path: Path, *, has_restarted: bool) -> None:
    rig = ChannelRig(tmp_path, mem_queue_size=0)
    rig.put(b"later", delay_s=100)
    if has_restarted:
        close(rig)
        rig = ChannelRig(tmp_path, mem_queue_size=0)
    rig.advance(50)

    assert find_oldest_age(rig.channel, rig.scheduler.wall_ns) == 0.0


def test_an_emptied_queue_has_no_oldest_message(tmp_path: Path) -> None:
    rig = ChannelRig(tmp_path, mem_queue_size=0)
    rig.put(b"a")
    close(rig)
    rig = ChannelRig(tmp_path, mem_queue_size=0)
    rig.advance(5)
    assert find_oldest_age(rig.channel, rig.scheduler.wall_ns) == pytest.approx(5)

    rig.channel.empty()
    rig.settle()

    assert find_oldest_age(rig.channel, rig.scheduler.wall_ns) == 0.0


def test_an_ephemeral_queue_has_no_front_on_disk() -> None:
    rig = ChannelRig()

    assert NullBackend().front.find_timestamp(rig.scheduler.wall_ns) is None


def test_a_front_that_cannot_be_read_is_not_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = ChannelRig(tmp_path, mem_queue_size=0)
    rig.put(b"a")
    close(rig)
    rig = ChannelRig(tmp_path, mem_queue_size=0)
    rig.advance(5)

    def fail(_queue: DiskQueue, _max_records: int, _max_bytes: int) -> list[bytes]:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(DiskQueue, "peek", fail)
        assert find_oldest_age(rig.channel, rig.scheduler.wall_ns) == 0.0

    assert find_oldest_age(rig.channel, rig.scheduler.wall_ns) == pytest.approx(5)
