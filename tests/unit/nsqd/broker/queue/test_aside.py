"""AsideAppends: the outcome of appends that a thread writes."""

from pathlib import Path

from diskqueue import DiskQueue, RecordChunk
from nsqd.broker.queue.aside import AsideAppends
from nsqd.broker.queue.pace import Pace
from nsqd.broker.queue.receipt import Receipts
from nsqd.broker.queue.sync_schedule import SyncRules, SyncSchedule
from tests.support.fake_scheduler import FakeScheduler

CHUNK = RecordChunk(b"\0\0\0\x1a" + bytes(26), [30])


class Rig:
    """A queue with receipts that wait for a sync."""

    def __init__(self, path: Path) -> None:
        self.outcomes: list[OSError | None] = []
        self.scheduler = FakeScheduler()
        self.queue = DiskQueue(path, "q")
        rules = SyncRules(every_count=1, timeout_s=1.0, is_group_commit=True)
        schedule = SyncSchedule("q", self.queue, self.scheduler, rules, self.outcomes.append)
        self.receipts = Receipts(needs_sync=True)
        self.aside = AsideAppends(
            self.queue, schedule, self.receipts, self.outcomes.append, Pace(self.scheduler.time)
        )


def test_an_append_is_told_and_synced_before_its_receipt_is_done(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    job = rig.aside.prepare([CHUNK])
    assert rig.aside.is_busy
    job.run()

    rig.receipts.begin()
    assert rig.aside.end(job)
    receipt = rig.receipts.make()

    assert rig.outcomes == [None]
    assert receipt is not None
    done: list[Exception | None] = []
    receipt.when_done(done.append)
    assert done == []
    rig.scheduler.settle()
    assert done == [None]
    assert rig.aside.advance([30]) == 0
    assert rig.queue.depth == 0


def test_a_failure_is_told_and_leaves_no_receipt(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    error = OSError("refused")
    job = rig.aside.prepare([CHUNK])
    job.undo()

    rig.receipts.begin()
    assert not rig.aside.end(job, error)

    assert rig.receipts.make() is None
    assert rig.outcomes == [error]
    assert not rig.aside.is_busy


def test_a_job_that_was_undone_for_another_queue_is_no_failure(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    job = rig.aside.prepare([CHUNK])
    job.run()
    job.undo()

    assert not rig.aside.end(job)

    assert rig.outcomes == []
