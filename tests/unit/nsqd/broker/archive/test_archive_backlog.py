"""Backlog: how much history may wait for the disk, and what is told when that is too much."""

import pytest

from nsqd.broker.archive import archive as archive_module
from nsqd.broker.archive.archive import MAX_WAITING_BYTES, ROUND_BYTES, Archive, Backlog
from nsqd.broker.archive.retention import RetainedLog
from nsqd.broker.queue.batch import RECORD_OVERHEAD_BYTES, Batch
from nsqd.broker.queue.pace import Pace
from nsqd.broker.queue.receipt import Receipt
from tests.support.fake_scheduler import FakeScheduler

NOW_NS = 1_700_000_000_000_000_000


class Rig:
    """A backlog, and how often it woke its keeper."""

    def __init__(self) -> None:
        self.wake_count = 0
        pace = Pace(FakeScheduler().time, is_trusted=True)
        self.backlog = Backlog(self._wake, lambda _archive: None, pace)

    def _wake(self) -> None:
        self.wake_count += 1

    def archive(self) -> Archive:
        return Archive("t", self.backlog, 2**20, _open_nothing, lambda _archive: Receipt(0))


def _open_nothing() -> RetainedLog:
    raise AssertionError("nothing is written here")


def test_so_much_may_wait_and_not_a_byte_more(caplog: pytest.LogCaptureFixture) -> None:
    backlog = Rig().backlog

    assert backlog.reserve(MAX_WAITING_BYTES - 1)
    assert backlog.reserve(1)
    was_overflowing = backlog.is_overflowing
    assert not backlog.reserve(1)
    assert not backlog.reserve(1)

    assert (was_overflowing, backlog.is_overflowing) == (False, True)
    assert backlog.size_bytes == MAX_WAITING_BYTES
    assert caplog.text.count("does not keep up") == 1


def test_one_that_is_too_large_has_room_alone() -> None:
    backlog = Rig().backlog

    assert backlog.reserve(2 * MAX_WAITING_BYTES)
    assert not backlog.reserve(1)


def test_it_goes_on_when_half_is_written(caplog: pytest.LogCaptureFixture) -> None:
    backlog = Rig().backlog
    backlog.reserve(MAX_WAITING_BYTES)
    backlog.reserve(1)

    backlog.free(MAX_WAITING_BYTES // 2 - 1)
    was_overflowing = backlog.is_overflowing
    backlog.free(1)
    backlog.free(1)

    assert (was_overflowing, backlog.is_overflowing) == (True, False)
    assert caplog.text.count("goes on") == 1
    assert backlog.size_bytes == MAX_WAITING_BYTES // 2 - 1


def test_a_round_is_asked_for_when_much_waits() -> None:
    rig = Rig()
    rig.backlog.reserve(ROUND_BYTES - 1)
    assert (rig.wake_count, rig.backlog.is_large) == (0, False)

    rig.backlog.reserve(1)

    assert (rig.wake_count, rig.backlog.is_large) == (1, True)


def test_a_deleted_archive_takes_its_share_with_it() -> None:
    rig = Rig()
    kept, deleted = rig.archive(), rig.archive()
    batch = Batch(NOW_NS, b"0123456789abc", 0, (b"abc", b"d"))
    size_bytes = 4 + 2 * RECORD_OVERHEAD_BYTES
    for archive in (kept, deleted, deleted):
        archive.add(batch)
    assert rig.backlog.size_bytes == 3 * size_bytes
    assert list(rig.backlog.archives) == [kept, deleted]

    deleted.delete()

    assert rig.backlog.size_bytes == kept.stats().waiting_bytes == size_bytes
    assert list(rig.backlog.archives) == [kept]
    assert deleted.stats().waiting_bytes == 0
    deleted.add(batch)
    assert rig.backlog.size_bytes == size_bytes
    assert (deleted.dropped_count, rig.backlog.dropped_count) == (2, 2)


def test_what_finds_no_room_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    archive = rig.archive()
    batch = Batch(NOW_NS, b"0123456789abc", 0, (b"abc", b"d"))
    monkeypatch.setattr(archive_module, "MAX_WAITING_BYTES", 100)

    archive.add(batch)
    archive.add(batch)
    archive.add(batch)

    assert (archive.dropped_count, rig.backlog.dropped_count) == (4, 4)
    assert archive.stats().waiting_bytes == 4 + 2 * RECORD_OVERHEAD_BYTES
