"""History is as safe as the queues: what was acknowledged is written, or synced, by then."""

import os
from pathlib import Path

import pytest

from diskqueue import layout
from nsqd.broker.archive.keeper import NOW_BYTES, NOW_MIN_BYTES
from nsqd.broker.archive.retention import RetainedLog
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


@pytest.fixture
def synced(tmp_path: Path) -> ArchiveRig:
    """A broker whose queues survive a power cut, with an archive that is open and durable."""
    rig = ArchiveRig(tmp_path, mem_queue_size=0, sync_every=1, has_checksums=True)
    publish(rig, b"first")
    rig.advance(10)
    return rig


@pytest.fixture
def fsyncs(synced: ArchiveRig, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files of the archive that were fsynced, by the ends of their names."""
    names: list[str] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if "/archive" in path:
            names.append(path.partition("/archive")[2].removeprefix("/t.diskqueue."))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    return names


def test_publishers_wait_for_one_fsync_and_the_rest_follows(
    synced: ArchiveRig, fsyncs: list[str]
) -> None:
    receipts = [publish(synced, b"1"), publish(synced, b"2", b"3")]
    synced.advance(0.001)

    assert all(receipt is not None and receipt.is_done for receipt in receipts)
    assert fsyncs == ["000000.dat"]
    synced.advance(0.2)
    assert "000000.crc" in fsyncs
    assert any(name.startswith("meta.dat") for name in fsyncs)
    assert synced.bodies() == [b"first", b"1", b"2", b"3"]


def test_a_publish_during_an_fsync_waits_for_the_next(
    synced: ArchiveRig, fsyncs: list[str]
) -> None:
    synced.scheduler.holds_threads = True
    first = publish(synced, b"1")
    synced.advance(0)
    second = publish(synced, b"2")
    assert first is not None
    assert second is not None

    while not first.is_done:
        synced.scheduler.finish_thread()
        synced.scheduler.turn()

    assert (fsyncs, second.is_done) == (["000000.dat"], False)
    synced.scheduler.holds_threads = False
    while synced.scheduler.held_work:
        synced.scheduler.finish_thread()
    synced.advance(0.001)
    assert (fsyncs[1], second.is_done, second.error) == ("000000.dat", True, None)


def test_the_name_of_a_new_segment_is_durable_with_its_first_record(tmp_path: Path) -> None:
    synced: list[str] = []
    rig = ArchiveRig(tmp_path, mem_queue_size=0, sync_every=1, max_bytes=8 * 65536)
    publish(rig, b"first")
    rig.advance(0.1)
    fsync = os.fsync
    with pytest.MonkeyPatch.context() as patch:

        def note(fd: int) -> None:
            synced.append(os.readlink(f"/proc/self/fd/{fd}").removeprefix(f"{tmp_path}/"))
            fsync(fd)

        patch.setattr(os, "fsync", note)
        for number in range(100):
            count = len(rig.files())
            synced.clear()
            receipt = publish(rig, b"%d" % number + bytes(1000))
            assert receipt is not None
            while not receipt.is_done:
                rig.advance(0.00001)
            if len(rig.files()) > count:
                assert synced.index(f"archive/t.diskqueue.{count:06}.dat") < synced.index("archive")

    assert len(rig.files()) > 10


def test_after_a_failed_fsync_no_more_goes_into_that_segment(
    synced: ArchiveRig, fsyncs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync
    fails = True

    def fail(fd: int) -> None:
        fsync(fd)
        if fails and fsyncs:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    receipt = publish(synced, b"1")
    synced.advance(0.001)
    assert receipt is not None
    assert isinstance(receipt.error, OSError)
    assert synced.health

    fails = False
    synced.advance(1.1)
    receipt = publish(synced, b"2")
    synced.advance(1.1)

    assert receipt is not None
    assert (receipt.is_done, receipt.error) == (True, None)
    assert synced.bodies() == [b"first", b"1", b"2"]
    assert len(synced.files()) == 2
    assert not synced.health


def test_much_at_a_time_is_written_by_a_thread(synced: ArchiveRig) -> None:
    bodies = [b"%d" % number + bytes(1000) for number in range(400)]
    receipts = [publish(synced, *bodies[start : start + 20]) for start in range(0, 400, 20)]

    synced.scheduler.holds_threads = True
    synced.advance(0)
    assert len(synced.bodies()) == 1
    synced.scheduler.holds_threads = False
    while synced.scheduler.held_work:
        synced.scheduler.finish_thread()
    synced.advance(0.001)

    assert all(receipt is not None and receipt.is_done for receipt in receipts)
    assert synced.bodies() == [b"first", *bodies]


def test_publishes_succeed_while_only_the_metadata_fails(
    synced: ArchiveRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_path: str, _content: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(layout, "write_atomically", refuse)
        healths = []
        for number in range(20):
            receipt = publish(synced, b"%d" % number)
            synced.advance(0.06)
            assert receipt is not None
            assert (receipt.is_done, receipt.error) == (True, None)
            healths.append(synced.health)
        # It does not come and go with each publish.
        assert healths == sorted(healths)
        assert "No space left" in healths[-1]

    synced.advance(3)
    assert not synced.health
    assert len(synced.bodies()) == 21


def test_a_directory_that_cannot_be_synced_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = ArchiveRig(tmp_path, mem_queue_size=0, sync_every=1)
    real = layout.fsync_directory
    fails = True

    def fsync_directory(directory: str) -> None:
        if fails and directory.endswith("archive"):
            raise OSError(5, "Input/output error")
        real(directory)

    monkeypatch.setattr(layout, "fsync_directory", fsync_directory)
    outcomes: list[bool] = []
    for _ in range(3):
        receipt = publish(rig, b"x")
        rig.advance(0.01)
        assert receipt is not None
        outcomes.append(receipt.is_done and receipt.error is None)
    fails = False
    receipt = publish(rig, b"x")
    rig.advance(0.01)
    assert receipt is not None
    outcomes.append(receipt.is_done and receipt.error is None)

    assert outcomes == [False, False, False, True]
    assert len(rig.bodies()) == 4


def finish_threads(rig: ArchiveRig) -> None:
    while rig.scheduler.held_work:
        rig.scheduler.finish_thread()


def test_a_bug_in_one_archive_leaves_the_others_to_be_closed(tmp_path: Path) -> None:
    rig = ArchiveRig(tmp_path, mem_queue_size=0, sync_every=1)
    for name in ("a", "b", "c"):
        rig.topic(name).publish([b"first"])
    rig.advance(0.01)
    rig.scheduler.holds_threads = True
    for name in ("a", "b", "c"):
        rig.topic(name).publish([b"second"])
    rig.advance(0)
    with pytest.MonkeyPatch.context() as patch:

        def fail(_log: RetainedLog, _sync: object, _error: object) -> None:
            raise MemoryError

        patch.setattr(RetainedLog, "end_sync", fail)
        with pytest.raises(MemoryError):
            finish_threads(rig)

    rig.broker.close()

    for name in ("a", "b", "c"):
        assert rig.bodies(name) == [b"first", b"second"]


def test_a_round_writes_little_on_the_loop_however_many_archives_there_are(tmp_path: Path) -> None:
    rig = ArchiveRig(tmp_path, mem_queue_size=0, sync_every=1)
    names = [f"t{number}" for number in range(70)]
    for name in names:
        rig.topic(name).publish([b"first"])
    rig.advance(0.05)
    rig.scheduler.holds_threads = True
    receipts = [rig.topic(name).publish([b"second"]) for name in names]
    rig.advance(0)

    written = sum(len(rig.bodies(name)) == 2 for name in names)
    assert written == NOW_BYTES // NOW_MIN_BYTES < len(names)
    rig.scheduler.holds_threads = False
    while rig.scheduler.held_work:
        rig.scheduler.finish_thread()
    rig.advance(0.01)
    assert all(receipt is not None and receipt.is_done for receipt in receipts)
    assert all(rig.bodies(name) == [b"first", b"second"] for name in names)
    rig.broker.close()
