"""History is as safe as the queues: what was acknowledged is written, or synced, by then."""

import os
from pathlib import Path

import pytest

from nsqd.broker.queue.receipt import Receipt
from tests.support.archive_rig import ArchiveRig


def publish(rig: ArchiveRig, *bodies: bytes) -> Receipt | None:
    return rig.topic().publish(bodies)


@pytest.fixture
def written(tmp_path: Path) -> ArchiveRig:
    """A broker whose queues survive a kill, with an archive that is open."""
    rig = ArchiveRig(tmp_path, mem_queue_size=0)
    publish(rig, b"first")
    rig.advance(0.1)
    return rig


def test_with_a_memory_queue_nobody_waits(tmp_path: Path) -> None:
    rig = ArchiveRig(tmp_path, sync_every=1)

    assert publish(rig, b"1") is None

    rig.advance(0.1)
    assert rig.bodies() == [b"1"]


def test_the_first_publish_waits_for_the_files(tmp_path: Path) -> None:
    rig = ArchiveRig(tmp_path, mem_queue_size=0)

    receipt = publish(rig, b"1", b"2")

    assert receipt is not None
    states = [receipt.is_done]
    rig.advance(0.001)
    states.append(receipt.is_done)
    assert states == [False, True]
    assert receipt.error is None
    assert rig.bodies() == [b"1", b"2"]


def test_a_quick_disk_takes_it_at_once(written: ArchiveRig) -> None:
    assert publish(written, b"1", b"2") is None
    assert publish(written, b"3") is None

    assert written.bodies() == [b"first", b"1", b"2", b"3"]
    assert written.stats().message_count == 4
    assert written.stats().waiting_bytes == 0


def test_a_large_publish_is_there_when_it_is_acknowledged(written: ArchiveRig) -> None:
    bodies = [b"%d" % number for number in range(9000)]

    receipt = publish(written, *bodies)
    if receipt is not None:
        while not receipt.is_done:
            written.advance(0.0001)
        assert receipt.error is None

    assert written.bodies() == [b"first", *bodies]


def test_what_was_written_at_once_is_synced_after_a_while(
    written: ArchiveRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    written.advance(10)
    publish(written, b"1")
    synced: list[str] = []

    def fsync(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))

    monkeypatch.setattr(os, "fsync", fsync)
    written.advance(2.1)

    assert any("/archive/t.diskqueue.000" in path for path in synced)


def test_segments_end_and_the_oldest_go(tmp_path: Path) -> None:
    rig = ArchiveRig(tmp_path, max_bytes=8 * 65536, mem_queue_size=0)
    for number in range(2000):
        receipt = publish(rig, b"%d" % number + bytes(1000))
        if receipt is not None:
            rig.advance(0.001)
            assert receipt.is_done

    rig.advance(3)

    stats = rig.stats()
    assert stats.size_bytes <= 8 * 65536
    numbers = [int(body.rstrip(b"\0")) for body in rig.bodies()]
    assert numbers == list(range(2000 - len(numbers), 2000))
    assert stats.message_count == len(numbers) > 400


@pytest.mark.parametrize("sync_every", [1, 2500])
def test_a_publish_that_the_archive_refuses_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync_every: int
) -> None:
    rig = ArchiveRig(tmp_path, mem_queue_size=0, sync_every=sync_every)
    publish(rig, b"first")
    rig.advance(0.1)
    fails = True

    def make_failing(name: str) -> None:
        real = getattr(os, name)

        def call(fd: int, *arguments: object) -> object:
            if fails and "/archive/" in os.readlink(f"/proc/self/fd/{fd}"):
                raise OSError(5, "Input/output error")
            return real(fd, *arguments)

        monkeypatch.setattr(os, name, call)

    make_failing("pwrite")
    make_failing("pwritev")

    receipt = publish(rig, b"1")
    assert receipt is not None
    rig.advance(1.1)

    assert isinstance(receipt.error, OSError)
    assert rig.health
    fails = False
    rig.advance(1.1)
    receipt = publish(rig, b"2")
    rig.advance(0.1)
    assert receipt is None or receipt.error is None
    assert rig.bodies() == [b"first", b"1", b"2"]
    assert not rig.health


def test_with_sync_every_1_it_waits_for_the_fsync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = ArchiveRig(tmp_path, mem_queue_size=0, sync_every=1)
    publish(rig, b"first")
    rig.advance(0.1)
    synced: list[str] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    rig.scheduler.holds_threads = True
    receipts = [publish(rig, b"%d" % number) for number in range(5)]
    assert all(receipt is not None and not receipt.is_done for receipt in receipts)

    rig.scheduler.holds_threads = False
    while rig.scheduler.held_work:
        rig.scheduler.finish_thread()
    rig.advance(0.01)

    assert all(receipt is not None and receipt.is_done for receipt in receipts)
    assert len([path for path in synced if "/archive/t.diskqueue.000" in path]) == 1
    assert rig.bodies() == [b"first", *[b"%d" % number for number in range(5)]]
