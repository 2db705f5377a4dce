"""Receipts, and the group commit of DiskBackend that settles them."""

import errno
import os
from pathlib import Path

import pytest

from nsqd.broker.durations import SyncTimes
from nsqd.broker.queue.backend import DiskBackend
from nsqd.broker.queue.batch import MixedBatch
from nsqd.broker.queue.receipt import Receipt, Receipts
from nsqd.broker.queue.sync_schedule import PROMPT_METADATA_S
from tests.support.channel_rig import disk_settings
from tests.support.fake_scheduler import FakeScheduler

BROKEN = OSError(errno.EIO, "Input/output error")


class Rig:
    """A DiskBackend whose publishes wait for their sync, and the receipts that are settled."""

    def __init__(self, data_path: Path, *, needs_sync: bool = True) -> None:
        self.data_path = data_path
        self.scheduler = FakeScheduler()
        self.scheduler.holds_threads = True
        self.writes: list[Exception | None] = []
        self.sync_times = SyncTimes((1.0,))
        self.receipts = Receipts(needs_sync=needs_sync)
        settings = disk_settings(data_path, sync_every=1 if needs_sync else 2500)
        self.backend = DiskBackend(
            *("t:c", settings, self.scheduler, self.writes.append, self.sync_times, self.receipts)
        )
        self.settled: list[tuple[bytes, Exception | None]] = []

    def publish(self, body: bytes) -> None:
        self.receipts.begin()
        batch = MixedBatch.from_messages([(b"%016d" % 0, 0, 0, body, None)])
        self.backend.append(*batch.records(0, 1), keep=True)
        receipt = self.receipts.make()
        assert receipt is not None
        receipt.when_done(lambda error: self.settled.append((body, error)))

    def finish_thread(self, error: OSError | None = None) -> None:
        self.scheduler.finish_thread(error)
        self.scheduler.settle()

    @property
    def bodies(self) -> list[bytes]:
        return [body for body, _ in self.settled]

    def metadata(self) -> bytes | None:
        path = self.data_path / "t:c.diskqueue.meta.dat"
        return path.read_bytes() if path.exists() else None


def test_a_receipt_is_done_when_all_syncs_have_ended() -> None:
    receipt = Receipt(2)
    told: list[Exception | None] = []
    receipt.when_done(told.append)

    receipt.settle(None)
    assert (receipt.is_done, told) == (False, [])
    receipt.settle(BROKEN)

    assert (receipt.is_done, told) == (True, [BROKEN])


def test_who_comes_late_is_told_at_once() -> None:
    told: list[Exception | None] = []
    receipt = Receipt(1)
    receipt.settle(None)

    receipt.when_done(told.append)

    assert told == [None]


def test_a_receipt_can_wait_for_others() -> None:
    told: list[Exception | None] = []
    first, second, both = Receipt(1), Receipt(1), Receipt(0)
    both.include(first)
    both.include(second)
    both.when_done(told.append)

    second.settle(None)
    assert told == []
    first.settle(BROKEN)

    assert told == [BROKEN]


def test_there_is_no_receipt_for_what_is_not_on_disk() -> None:
    receipts = Receipts(needs_sync=True)
    receipts.begin()

    assert receipts.make() is None


def test_a_publish_is_settled_after_the_fsync_that_covers_it(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.publish(b"a")
    rig.publish(b"b")
    rig.scheduler.settle()
    assert len(rig.scheduler.held_work) == 1  # one sync for the whole turn
    rig.publish(b"c")
    rig.scheduler.settle()
    assert rig.settled == []

    rig.finish_thread()
    assert rig.settled == [(b"a", None), (b"b", None)]
    assert len(rig.scheduler.held_work) == 1  # what came meanwhile has the next one
    rig.finish_thread()

    assert rig.bodies == [b"a", b"b", b"c"]
    assert len(rig.scheduler.held_work) == 0


def test_a_group_commit_leaves_the_metadata_for_later(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.publish(b"a")
    rig.scheduler.settle()
    rig.finish_thread()
    assert rig.metadata() is None

    rig.scheduler.advance(PROMPT_METADATA_S)
    rig.finish_thread()

    assert rig.metadata() == b"1\n0,0\n0,31\n"
    rig.scheduler.advance(1000)
    assert len(rig.scheduler.held_work) == 0


def test_metadata_is_not_forgotten_under_steady_publishes(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.publish(b"0")
    rig.scheduler.settle()
    for number in range(20):
        rig.publish(b"%d" % number)
        rig.scheduler.advance(PROMPT_METADATA_S / 5)
        rig.finish_thread()

    assert rig.metadata() is not None


def test_a_failed_fsync_fails_what_it_covers_and_no_other(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.publish(b"a")
    rig.scheduler.settle()
    rig.finish_thread()
    rig.publish(b"b")
    rig.scheduler.settle()
    rig.publish(b"c")
    rig.finish_thread(BROKEN)
    assert rig.settled == [(b"a", None), (b"b", BROKEN)]
    assert rig.writes[-1] is BROKEN

    rig.finish_thread()

    assert rig.settled[2:] == [(b"c", None)]
    assert rig.writes[-1] is None


def test_nothing_is_written_behind_what_a_failed_fsync_may_have_lost(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.publish(b"a")
    rig.scheduler.settle()
    rig.finish_thread(BROKEN)

    rig.publish(b"b")

    sizes = {path.name: path.stat().st_size for path in tmp_path.glob("*.0*.dat")}
    assert sizes == {"t:c.diskqueue.000000.dat": 31, "t:c.diskqueue.000001.dat": 31}


def test_a_sync_that_cannot_begin_fails_the_publish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path)
    rig.publish(b"a")

    def dup(_fd: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "dup", dup)
        rig.scheduler.settle()

    [(body, error)] = rig.settled
    assert body == b"a"
    assert isinstance(error, OSError)
    assert error.errno == errno.EMFILE


def test_a_publish_is_settled_if_the_queue_is_emptied_or_deleted(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.publish(b"a")
    rig.scheduler.settle()
    rig.publish(b"b")
    rig.backend.empty()
    while rig.scheduler.held_work:
        rig.finish_thread()
    assert rig.settled == [(b"a", None), (b"b", None)]

    rig.publish(b"c")
    rig.backend.delete()

    assert rig.bodies == [b"a", b"b", b"c"]


def test_without_the_promise_a_receipt_waits_for_the_next_sync(tmp_path: Path) -> None:
    """So a topic's messages leave its disk only when the channels' disks have them."""
    rig = Rig(tmp_path, needs_sync=False)
    rig.publish(b"a")
    rig.scheduler.advance(1.9)
    assert len(rig.scheduler.held_work) == 0
    rig.scheduler.advance(0.2)
    assert rig.settled == []

    rig.finish_thread()

    assert rig.settled == [(b"a", None)]


def test_a_receipt_made_after_its_sync_has_begun_is_settled_by_it(tmp_path: Path) -> None:
    rig = Rig(tmp_path, needs_sync=False)
    batch = MixedBatch.from_messages([(b"%016d" % 0, 0, 0, b"x", None)])
    rig.receipts.begin()
    rig.backend.append(*batch.records(0, 1), keep=True)
    rig.scheduler.advance(2.1)
    receipt = rig.receipts.make()
    assert receipt is not None

    rig.finish_thread()

    assert receipt.is_done
