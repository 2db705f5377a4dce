import dataclasses
import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from diskqueue import QueueClosedError
from nsqd.broker.durations import SyncTimes
from nsqd.broker.queue import pace
from nsqd.broker.queue.backend import DiskBackend, NullBackend, Retry
from nsqd.broker.queue.batch import MixedBatch
from tests.support.channel_rig import disk_settings
from tests.support.fake_scheduler import FakeScheduler

NO_SPACE = OSError(errno.ENOSPC, "No space left on device")


class Rig:
    """A DiskBackend, and how its writes ended."""

    def __init__(
        self, data_path: Path, *, sync_every: int = 100, scheduler: FakeScheduler | None = None
    ) -> None:
        self.data_path = data_path
        self.scheduler = scheduler or FakeScheduler()
        self.writes: list[OSError | None] = []
        self.failures: dict[str, OSError | None] = {}  # the last outcome of each kind of work
        self.sync_times = SyncTimes((1.0,))
        settings = disk_settings(data_path, sync_every=sync_every)
        self.backend = DiskBackend(
            *("t:c", settings, self.scheduler, self.writes.append),
            sync_times=self.sync_times,
            on_repeat=self._note_repeat,
        )

    def _note_repeat(self, source: str, error: OSError | None) -> None:
        self.writes.append(error)
        self.failures[source] = error

    def append(self, *bodies: bytes, keep: bool = False) -> int | None:
        batch = MixedBatch.from_messages([(b"%016d" % 0, 0, 0, body, None) for body in bodies])
        data, lengths = batch.records(0, len(bodies))
        return self.backend.append(data, lengths, keep=keep)

    def read(self, count: int = 1000) -> Sequence[bytes]:
        piece = self.backend.read(count, 1 << 20)
        return [] if piece is None else piece.batch.bodies

    def metadata(self) -> str | None:
        path = self.data_path / "t:c.diskqueue.meta.dat"
        return path.read_text() if path.exists() else None


def test_records_come_back_in_order_with_consecutive_ordinals(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    assert rig.append(b"a", b"b", b"c") is None
    assert rig.backend.unread_count == 3

    first = rig.backend.read(2, 1000)
    second = rig.backend.read(2, 1000)

    assert first is not None
    assert second is not None
    assert [*first.batch.bodies, *second.batch.bodies] == [b"a", b"b", b"c"]
    assert (list(first.ordinals), list(second.ordinals)) == ([0, 1], [2])
    assert rig.backend.read(2, 1000) is None
    assert rig.backend.unread_count == 0
    assert rig.backend.outstanding_count == 3


def test_what_is_kept_counts_as_read(tmp_path: Path) -> None:
    rig = Rig(tmp_path)

    assert rig.append(b"a", keep=True) == 0
    assert rig.append(b"b", b"c", keep=True) == 1

    assert rig.backend.unread_count == 0
    assert rig.backend.outstanding_count == 3
    rig.backend.commit([1, 0, 2])
    assert rig.backend.outstanding_count == 0


def test_what_was_not_committed_is_read_again_after_a_restart(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.append(b"a", b"b", b"c")
    rig.read(2)
    rig.backend.commit([0])
    rig.backend.close()

    assert rig.metadata() == "2\n0,31\n0,93\n"
    assert Rig(tmp_path).read() == [b"b", b"c"]


def test_a_sync_is_made_within_the_timeout(tmp_path: Path) -> None:
    # D-9
    rig = Rig(tmp_path)
    rig.append(b"a")

    rig.scheduler.advance(1.999)
    assert rig.metadata() is None
    rig.scheduler.advance(0.001)

    assert rig.metadata() == "1\n0,0\n0,31\n"
    assert rig.sync_times.count == 1


def test_nothing_is_written_while_nothing_happens(tmp_path: Path) -> None:
    # D-10
    rig = Rig(tmp_path)
    rig.append(b"a")
    rig.scheduler.advance(2)

    rig.scheduler.advance(1000)

    assert rig.sync_times.count == 1
    assert rig.scheduler.pending_timers == []


def test_a_sync_is_made_after_so_many_records(tmp_path: Path) -> None:
    # D-9
    rig = Rig(tmp_path, sync_every=3)
    rig.append(b"a", b"b")
    rig.scheduler.settle()
    assert rig.metadata() is None

    rig.append(b"c")
    rig.scheduler.settle()

    assert rig.metadata() == "3\n0,0\n0,93\n"


def test_commits_are_synced_too(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.append(b"a", b"b")
    rig.read()
    rig.scheduler.advance(2)

    rig.backend.commit([0])
    rig.scheduler.advance(2)

    assert rig.metadata() == "1\n0,31\n0,62\n"


def test_one_sync_runs_at_a_time_and_what_came_meanwhile_gets_the_next(tmp_path: Path) -> None:
    rig = Rig(tmp_path, sync_every=1)
    rig.scheduler.holds_threads = True
    rig.append(b"a")
    rig.scheduler.settle()
    rig.append(b"b")
    rig.append(b"c")
    assert len(rig.scheduler.held_work) == 1

    rig.scheduler.finish_thread()
    rig.scheduler.settle()
    assert rig.metadata() == "1\n0,0\n0,31\n"
    assert len(rig.scheduler.held_work) == 1
    rig.scheduler.finish_thread()
    rig.scheduler.settle()

    assert rig.metadata() == "3\n0,0\n0,93\n"
    assert len(rig.scheduler.held_work) == 0


def test_a_write_that_fails_raises_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    #
    rig = Rig(tmp_path)
    rig.append(b"a")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", _raise(NO_SPACE))
        with pytest.raises(OSError, match="No space left"):
            rig.append(b"b", keep=True)
    assert rig.writes == [None, NO_SPACE]
    assert rig.backend.unread_count == 1

    rig.append(b"c")

    assert rig.writes == [None, NO_SPACE, None]
    assert rig.read() == [b"a", b"c"]


def test_a_sync_that_fails_is_told_and_tried_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, sync_every=1)
    failure = OSError(errno.EIO, "Input/output error")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _raise(failure))
        rig.append(b"a")
        rig.scheduler.settle()
        assert rig.writes == [None, failure]
        # It neither spins nor is it started again by each write.
        rig.append(b"b")
        rig.scheduler.settle()
        assert rig.sync_times.count == 1
        rig.scheduler.advance(2)
        assert rig.sync_times.count == 2
        assert rig.writes[-1:] == [failure]

    rig.scheduler.advance(2)

    assert rig.writes[-1:] == [None]
    assert rig.sync_times.count == 3
    rig.scheduler.advance(100)
    assert rig.sync_times.count == 3
    rig.append(b"c")
    rig.scheduler.settle()
    assert rig.sync_times.count == 4


def test_records_survive_a_sync_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, sync_every=1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _raise(OSError(errno.EIO, "Input/output error")))
        rig.append(b"a")
        rig.scheduler.settle()
    rig.append(b"b")

    assert [*rig.read(), *rig.read()] == [b"a", b"b"]
    rig.backend.close()
    again = Rig(tmp_path)
    assert [*again.read(), *again.read()] == [b"a", b"b"]


def test_a_sync_that_cannot_begin_does_not_make_the_write_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The process has no descriptors left, which a sync needs and an append does not.
    rig = Rig(tmp_path, sync_every=1)
    failure = OSError(errno.EMFILE, "Too many open files")
    with monkeypatch.context() as patch:
        patch.setattr(os, "dup", _raise(failure))
        assert rig.append(b"a", keep=True) == 0
        rig.scheduler.settle()
        assert rig.writes == [None, failure]
        rig.backend.commit([0])
        rig.scheduler.advance(2)

    rig.scheduler.advance(2)

    assert rig.writes[-1] is None
    assert (rig.metadata() or "").startswith("0\n")


def test_a_read_that_fails_raises_and_skips_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path)
    rig.append(b"a")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", _raise(OSError(errno.EIO, "Input/output error")))
        with pytest.raises(OSError, match="Input/output error"):
            rig.read()

    assert rig.backend.unread_count == 1
    assert rig.read() == [b"a"]


def test_close_does_not_wait_for_a_sync_that_has_not_begun(tmp_path: Path) -> None:
    rig = Rig(tmp_path, sync_every=1)
    rig.scheduler.holds_threads = True
    rig.append(b"a")
    rig.scheduler.settle()

    rig.backend.close()
    assert rig.metadata() == "1\n0,0\n0,31\n"
    rig.scheduler.finish_thread()
    rig.scheduler.advance(10)

    assert rig.metadata() == "1\n0,0\n0,31\n"
    assert rig.scheduler.pending_timers == []
    with pytest.raises(QueueClosedError):
        rig.append(b"b")


def test_a_closed_queue_has_metadata_even_if_it_was_never_used(tmp_path: Path) -> None:
    # D-11
    rig = Rig(tmp_path)

    rig.backend.close()

    assert rig.metadata() == "0\n0,0\n0,0\n"


def test_empty_drops_everything_and_is_usable_again(tmp_path: Path) -> None:
    # D-20
    rig = Rig(tmp_path)
    rig.append(b"a", b"b")
    rig.read(1)

    rig.backend.empty()
    assert rig.backend.unread_count == rig.backend.outstanding_count == 0
    rig.backend.commit([0])
    rig.append(b"c")

    assert rig.read() == [b"c"]


def test_empty_while_a_sync_is_under_way(tmp_path: Path) -> None:
    rig = Rig(tmp_path, sync_every=1)
    rig.scheduler.holds_threads = True
    rig.append(b"a")
    rig.scheduler.settle()

    rig.backend.empty()
    rig.append(b"b")
    rig.scheduler.finish_thread()
    rig.scheduler.settle()
    while rig.scheduler.held_work:
        rig.scheduler.finish_thread()
        rig.scheduler.settle()

    assert rig.read() == [b"b"]
    assert (rig.metadata() or "").startswith("1\n")


def test_delete_removes_the_files_and_stops_the_timer(tmp_path: Path) -> None:
    #
    rig = Rig(tmp_path)
    rig.append(*[b"x" * 1000] * 20)
    rig.scheduler.advance(2)
    assert len(list(tmp_path.iterdir())) > 2
    rig.append(b"a")

    rig.backend.delete()
    rig.scheduler.advance(10)

    assert list(tmp_path.iterdir()) == []
    assert rig.scheduler.pending_timers == []


def test_a_deleted_queue_fails_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path, sync_every=1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _raise(OSError(errno.EIO, "Input/output error")))
        rig.append(b"a")
        rig.scheduler.settle()
    assert list(filter(None, rig.failures.values()))

    receipt = rig.backend.delete()
    rig.scheduler.settle()

    assert receipt.is_done
    assert not list(filter(None, rig.failures.values()))


def test_segments_that_are_finished_are_removed(tmp_path: Path) -> None:
    # D-7, D-8
    rig = Rig(tmp_path)
    first = rig.append(*[b"x" * 1000] * 40, keep=True)
    assert first == 0
    rig.scheduler.advance(2)

    rig.backend.commit(range(40))
    rig.scheduler.advance(2)

    assert len(list(tmp_path.glob("*.dat"))) <= 2
    assert list(tmp_path.glob("*.bad")) == []


def test_files_have_mode_0600_and_nsqs_names(tmp_path: Path) -> None:
    # D-1, D-4
    rig = Rig(tmp_path)
    rig.append(b"a")
    rig.scheduler.advance(2)

    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {
        "t:c.diskqueue.000000.dat": 0o600,
        "t:c.diskqueue.meta.dat": 0o600,
        "t:c.diskqueue.generation": 0o600,  # ours: Go ignores it
    }


def test_the_null_backend_takes_everything_and_has_nothing() -> None:
    #
    backend = NullBackend()

    assert backend.append(bytes(30), [30], keep=True) is None
    assert backend.append(bytes(30), [30], keep=False) is None
    assert backend.read(10, 1000) is None
    assert backend.unread_count == backend.outstanding_count == 0
    backend.commit([1, 2])
    backend.empty()
    backend.close()
    backend.delete()


def _raise(error: OSError) -> object:
    def fail(*_args: object, **_options: object) -> object:
        raise error

    return fail


def test_a_block_that_stays_unreadable_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path)
    skipped: list[int] = []
    failure = OSError(errno.EIO, "Input/output error")

    def skip() -> None:
        skipped.append(len(rig.writes))

    rig.append(b"a")
    with monkeypatch.context() as patch:
        patch.setattr(rig.backend.queue, "read", _raise(failure))
        patch.setattr(rig.backend.queue, "skip_unreadable", skip)
        for _ in range(25):
            with pytest.raises(OSError, match="Input/output"):
                rig.read()
    assert skipped == [11, 21]

    assert rig.read() == [b"a"]
    assert rig.writes[-2:] == [failure, None]


def found_after_kill(data_path: Path, copy: Path) -> list[bytes]:
    """Return what a start finds on the disk as it is now."""
    shutil.copytree(data_path, copy)
    rig = Rig(copy)
    found: list[bytes] = []
    while bodies := rig.read():
        found += bodies
    return found


def test_an_emptying_is_done_when_a_kill_brings_nothing_back(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    rig = Rig(tmp_path / "data")
    rig.append(b"old", b"old")
    rig.scheduler.holds_threads = True

    outcomes: list[Exception | None] = []
    rig.backend.empty().when_done(outcomes.append)
    rig.append(b"new")
    assert rig.backend.unread_count == 1
    rig.scheduler.settle()
    assert outcomes == []
    assert found_after_kill(rig.data_path, tmp_path / "early") == [b"old", b"old", b"new"]
    rig.scheduler.finish_thread()
    rig.scheduler.settle()

    assert outcomes == [None]
    assert found_after_kill(rig.data_path, tmp_path / "late") == [b"new"]
    assert rig.read() == [b"new"]


def test_an_emptying_overtakes_a_sync_that_runs(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    rig = Rig(tmp_path / "data")
    rig.append(*[b"x" * 1000] * 20)
    rig.scheduler.holds_threads = True
    rig.scheduler.advance(2)
    assert rig.scheduler.held_work

    outcomes: list[Exception | None] = []
    rig.backend.empty().when_done(outcomes.append)
    rig.append(b"new")
    rig.scheduler.finish_thread()
    rig.scheduler.settle()
    assert outcomes == []
    rig.scheduler.finish_thread()
    rig.scheduler.settle()

    assert outcomes == [None]
    assert found_after_kill(rig.data_path, tmp_path / "copy") == [b"new"]


def test_a_deleted_queue_that_is_made_again_keeps_its_new_records_alone(tmp_path: Path) -> None:
    leaving: dict[str, DiskBackend] = {}
    scheduler = FakeScheduler()
    settings = disk_settings(tmp_path / "data")
    (tmp_path / "data").mkdir()
    backend = DiskBackend("t:c", settings, scheduler, lambda error: None, leaving=leaving)
    rig = Rig(tmp_path / "data", scheduler=scheduler)
    rig.backend = backend
    rig.append(b"old")
    rig.scheduler.holds_threads = True
    outcomes: list[Exception | None] = []
    backend.delete().when_done(outcomes.append)
    rig.scheduler.settle()

    leaving["t:c"].stay()
    rig.append(b"new")
    while rig.scheduler.held_work:
        rig.scheduler.finish_thread()
        rig.scheduler.advance(2)

    assert outcomes == [None]
    assert leaving == {}
    assert found_after_kill(rig.data_path, tmp_path / "copy") == [b"new"]


def test_a_deletion_is_done_when_the_directory_is_synced(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.append(b"x")
    rig.scheduler.advance(2)
    rig.scheduler.holds_threads = True

    outcomes: list[Exception | None] = []
    rig.backend.delete().when_done(outcomes.append)
    rig.scheduler.settle()
    rig.scheduler.finish_thread()
    rig.scheduler.settle()
    assert list(tmp_path.iterdir()) == []
    assert outcomes == []
    rig.scheduler.finish_thread()
    rig.scheduler.settle()

    assert outcomes == [None]


@pytest.mark.parametrize("stays", [False, True])
def test_two_deletions_at_a_time_are_both_done(tmp_path: Path, *, stays: bool) -> None:
    rig = Rig(tmp_path)
    leaving: dict[str, DiskBackend] = {}
    rig.backend = DiskBackend(
        *("t:c", disk_settings(tmp_path), rig.scheduler, rig.writes.append), leaving=leaving
    )
    rig.append(b"x")
    rig.scheduler.holds_threads = True
    outcomes: list[Exception | None] = []
    rig.backend.delete().when_done(outcomes.append)
    rig.scheduler.settle()

    if stays:  # a new queue of the name
        rig.backend.stay()
        rig.append(b"new")
    rig.backend.delete().when_done(outcomes.append)
    while rig.scheduler.held_work:
        rig.scheduler.finish_thread()
        rig.scheduler.settle()

    assert outcomes == [None, None]
    assert leaving == {}
    assert list(tmp_path.iterdir()) == []


def test_the_trace_of_a_new_queue_says_that_it_is_empty(tmp_path: Path) -> None:
    rig = Rig(tmp_path)

    rig.backend.leave_trace()

    assert (tmp_path / "t:c.diskqueue.meta.dat").read_text() == "0\n0,0\n0,0\n"


def test_an_append_that_takes_long_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = dataclasses.replace(disk_settings(tmp_path), is_trusted=False)
    backend = DiskBackend("t:c", settings, FakeScheduler(), lambda _error: None)
    assert backend.aside is not None
    batch = MixedBatch.from_messages([(b"%016d" % 0, 0, 0, b"x", None)])

    monkeypatch.setattr(pace, "SLOW_S", 100.0)
    backend.append(*batch.records(0, 1), keep=False)
    was_slow = backend.aside.pace.is_slow
    monkeypatch.setattr(pace, "SLOW_S", -1.0)
    backend.append(*batch.records(0, 1), keep=False)

    assert (was_slow, backend.aside.pace.is_slow) == (False, True)
    backend.close()


def test_a_trace_that_cannot_be_left_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path)

    def refuse(_path: str, _content: bytes) -> None:
        raise NO_SPACE

    with monkeypatch.context() as patch:
        patch.setattr("diskqueue.layout.write_atomically", refuse)
        rig.backend.leave_trace()
    assert rig.writes == [NO_SPACE]
    assert rig.metadata() is None

    rig.backend.leave_trace()

    assert rig.metadata() == "0\n0,0\n0,0\n"
    assert rig.writes == [NO_SPACE]


def test_deleting_a_queue_without_files_is_done_at_once(tmp_path: Path) -> None:
    rig = Rig(tmp_path)

    receipt = rig.backend.delete()
    rig.scheduler.settle()

    assert receipt.is_done
    assert receipt.error is None
    assert list(tmp_path.iterdir()) == []


def test_an_ephemeral_queue_keeps_no_due_times() -> None:
    backend = NullBackend()

    backend.note_due([b"%016d" % 0], 5, are_unread=True)

    assert (backend.pop_due_time(b"%016d" % 0), backend.count_early(0)) == (0, 0)
    assert (backend.unread_count, backend.unread_bytes) == (0, 0)
    assert backend.outstanding_count == 0
    assert all(each.is_done for each in (backend.empty(), backend.sync(), backend.delete()))


@pytest.mark.usefixtures("closes_files")
def test_no_file_is_open_after_a_close(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.append(b"a")
    rig.backend.note_due([b"%016d" % 0], rig.scheduler.steady_time_ns() + 10**9, are_unread=True)

    rig.backend.close()

    assert (tmp_path / "t:c.diskqueue.due").exists()


def test_a_retry_takes_the_place_of_the_one_before_unless_it_is_cancelled() -> None:
    scheduler = FakeScheduler()
    retry = Retry(scheduler, 2.0)
    done: list[str] = []

    retry.plan(lambda: done.append("first"))
    scheduler.advance(1.0)
    retry.plan(lambda: done.append("second"))
    scheduler.advance(1.5)
    assert done == []
    scheduler.advance(0.5)
    assert done == ["second"]
    retry.plan(lambda: done.append("third"))
    retry.cancel()
    scheduler.advance(3.0)

    assert done == ["second"]
