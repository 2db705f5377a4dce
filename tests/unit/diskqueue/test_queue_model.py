"""Any order of operations, crashes and failures against a model that is a list.

A crash is a copy of the files as they are, opened anew. All writes have reached the file by then
(the process dies, not the machine), so nothing appended and not committed may be missing. Nothing
that was finished before the last sync that ended well may come again.
"""

import errno
import os
import shutil
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from diskqueue import AppendJob, DiskQueue, RecordChunk, SyncJob, layout
from diskqueue.append_job import JobState
from diskqueue.segment import iter_records
from diskqueue.tools.check import check_queue
from tests.unit.diskqueue.queue_files import drain, frame_all, go_read_all

SIZES = st.lists(st.sampled_from([26, 26, 30, 45, 120]), min_size=1, max_size=12)


class QueueMachine(RuleBasedStateMachine):
    """The model: all records since the last empty, how many of them were read, which are done.

    After a restart the records are those that come again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        # Durability is not tested here, and would take most of the time.
        self.fsync = mock.patch.object(os, "fsync", return_value=None)
        self.fsync.start()
        self.directory = self.root / "0"
        self.directory.mkdir()
        self.crash_count = 0
        self.serial = 0
        self.job: SyncJob | None = None
        self.job_done: set[int] = set()
        self.append_job: AppendJob | None = None
        self.appending: list[bytes] = []
        self.finished: set[bytes] = set()  # of all times
        # Not so after a crash between sidecar and metadata, until the reader is at the tail.
        self.is_depth_exact = True
        self.has_sync_failed = False
        # Records that were forgotten and may come again after a crash, and how many of them will
        # not once the job has run.
        self.ghosts: list[bytes] = []
        self.job_ghost_count = 0
        # The queue was emptied during an append, and leaves the numbers of its segments out.
        self.has_skipped_numbers = False
        self.forget_all()
        self.ordinal_shift = 0  # index in `records` = ordinal - shift

    def forget_all(self) -> None:
        self.records: list[bytes] = []
        self.read_count = 0
        self.done: set[int] = set()
        self.durable_done: set[int] = set()

    @initialize(
        max_bytes_per_file=st.sampled_from([1, 70, 100, 250, 100_000]), has_checksums=st.booleans()
    )
    def open_first(self, max_bytes_per_file: int, has_checksums: bool) -> None:  # noqa: FBT001
        self.max_bytes_per_file = max_bytes_per_file
        self.has_checksums = has_checksums
        self.queue = self.open()

    def open(self) -> DiskQueue:
        return DiskQueue(
            *(self.directory, "t"),
            max_bytes_per_file=self.max_bytes_per_file,
            has_checksums=self.has_checksums,
        )

    def teardown(self) -> None:
        self.fsync.stop()
        if hasattr(self, "queue"):
            self.queue.delete()
        shutil.rmtree(self.root)

    @property
    def low(self) -> int:
        """The index of the first record that is not done."""
        return next(i for i in range(len(self.records) + 1) if i not in self.done)

    def make_payloads(self, sizes: list[int]) -> list[bytes]:
        payloads = []
        for size in sizes:
            self.serial += 1
            payloads.append((b"%026d" % self.serial).ljust(size, b"\x00"))
        return payloads

    @precondition(lambda self: self.append_job is None)
    @rule(sizes=SIZES)
    def append(self, sizes: list[int]) -> None:
        payloads = self.make_payloads(sizes)
        self.queue.append(*frame_all(payloads))
        self.records += payloads

    @precondition(lambda self: self.append_job is None)
    @rule(sizes=SIZES, call_count=st.integers(0, 4), part=st.integers(0, 60))
    def append_to_a_full_disk(self, sizes: list[int], call_count: int, part: int) -> None:
        payloads = self.make_payloads(sizes)
        pwrite = os.pwrite
        left = call_count

        def full_pwrite(fd: int, data: bytes, position: int) -> int:
            nonlocal left
            left -= 1
            if left >= 0:
                return pwrite(fd, data, position)
            if left == -1 and 0 < part < len(data):
                return pwrite(fd, data[:part], position)
            raise OSError(errno.ENOSPC, "No space left on device")

        try:
            with mock.patch.object(os, "pwrite", full_pwrite):
                self.queue.append(*frame_all(payloads))
        except OSError:
            return
        self.records += payloads

    @precondition(lambda self: self.append_job is None)
    @rule(parts=st.lists(SIZES, min_size=1, max_size=3), is_run=st.booleans())
    def begin_append(self, parts: list[list[int]], is_run: bool) -> None:  # noqa: FBT001
        groups = [self.make_payloads(sizes) for sizes in parts]
        self.append_job = self.queue.prepare_append([RecordChunk(*frame_all(g)) for g in groups])
        self.appending = [payload for group in groups for payload in group]
        if is_run:
            self.append_job.run()

    @precondition(lambda self: self.append_job is not None)
    @rule(is_undone=st.booleans())
    def end_append(self, is_undone: bool) -> None:  # noqa: FBT001
        job = self.append_job
        assert job is not None
        appended, self.appending = self.appending, []
        self.append_job = None
        if job.state is JobState.PLANNED:
            job.run()
        if is_undone:
            job.undo()
            assert not job.end()
        elif job.end():
            self.records += appended
        else:
            assert job.is_cancelled
            job.undo()

    @precondition(lambda self: self.append_job is None)
    @rule(sizes=SIZES, is_advanced=st.booleans())
    def append_and_undo(self, sizes: list[int], is_advanced: bool) -> None:  # noqa: FBT001
        data, lengths = frame_all(self.make_payloads(sizes))
        self.queue.append(data, lengths)
        if is_advanced and self.read_count == len(self.records):
            assert self.queue.advance(lengths) == self.read_count + self.ordinal_shift
        self.queue.undo_append(lengths)

    @rule(max_records=st.integers(1, 15), max_bytes=st.integers(1, 400))
    def read(self, max_records: int, max_bytes: int) -> None:
        batch = self.queue.read(max_records, max_bytes)
        if batch is None:
            assert self.read_count == len(self.records)
            return
        found = list(batch)
        assert 1 <= len(found) <= max_records
        assert len(found) == 1 or sum(map(len, found)) + 4 * len(found) <= max_bytes
        assert batch.first == self.read_count + self.ordinal_shift
        assert found == self.records[self.read_count : self.read_count + len(found)]
        self.read_count += len(found)

    @rule(count=st.integers(0, 15))
    def advance(self, count: int) -> None:
        payloads = self.records[self.read_count : self.read_count + count]
        first = self.queue.advance([4 + len(data) for data in payloads])
        assert first == self.read_count + self.ordinal_shift
        self.read_count += len(payloads)

    @rule(max_records=st.integers(1, 15), max_bytes=st.integers(1, 400))
    def peek(self, max_records: int, max_bytes: int) -> None:
        found = self.queue.peek(max_records, max_bytes)
        assert found == self.records[self.read_count : self.read_count + len(found)]
        assert bool(found) == (self.read_count < len(self.records))

    @rule(max_records=st.integers(1, 15), max_bytes=st.integers(1, 400))
    def peek_newest(self, max_records: int, max_bytes: int) -> None:
        found = self.queue.peek(max_records, max_bytes, is_newest=True)
        unread = self.records[self.read_count :]
        assert found == unread[::-1][: len(found)]
        assert len(found) <= max_records
        assert bool(found) == bool(unread)

    @precondition(lambda self: self.read_count > 0)
    @rule(data=st.data())
    def commit_some(self, data: st.DataObject) -> None:
        indexes = data.draw(st.lists(st.integers(0, self.read_count - 1), max_size=10))
        self.commit(indexes)

    @precondition(lambda self: self.read_count > 0)
    @rule(data=st.data())
    def commit_all_but_some(self, data: st.DataObject) -> None:
        spared = data.draw(st.sets(st.integers(0, self.read_count - 1), min_size=1, max_size=3))
        self.commit([index for index in range(self.read_count) if index not in spared])

    def commit(self, indexes: list[int]) -> None:
        self.queue.commit([index + self.ordinal_shift for index in indexes])
        self.done.update(indexes)
        self.finished.update(self.records[index] for index in indexes)

    @rule(count=st.integers(1, 30))
    def commit_in_order(self, count: int) -> None:
        self.commit(list(range(self.low, min(self.low + count, self.read_count))))

    @precondition(lambda self: self.ordinal_shift > 0)
    @rule()
    def commit_what_was_emptied(self) -> None:
        self.queue.commit(range(self.ordinal_shift))

    @precondition(lambda self: self.job is None)
    @rule()
    def sync(self) -> None:
        self.queue.sync()
        self.has_sync_failed = False
        assert self.queue.unsynced_count == 0
        self.durable_done = set(self.done)
        self.ghosts = []
        self.check_segments_are_needed()

    def check_segments_are_needed(self) -> None:
        """A file without an unfinished record is that of the reader, the writer, or between."""
        is_needed = []
        for path in sorted(self.directory.glob("*.[0-9]*.dat"), key=lambda path: path.name):
            payloads = {data for _, data in iter_records(str(path))}
            is_needed.append(bool(payloads - self.finished))
        assert is_needed.count(False) <= 2

    @precondition(lambda self: self.job is None)
    @rule(step=st.sampled_from(["fsync", "replace", "unlink", "pwrite"]), count=st.integers(0, 4))
    def sync_on_a_failing_disk(self, step: str, count: int) -> None:
        """Every step of a sync may be the last one before a crash."""
        call = getattr(os, step)
        left = count

        def fail_at_last(*arguments: object) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(errno.EIO, "Input/output error")
            return call(*arguments)

        try:
            with mock.patch.object(os, step, fail_at_last):
                self.queue.sync()
        except OSError:
            self.has_sync_failed = True
            if step == "unlink":
                self.durable_done = set(self.done)  # only deletions are missing
        else:
            self.durable_done = set(self.done)

    @precondition(lambda self: self.job is None)
    @rule(with_metadata=st.booleans())
    def begin_sync(self, with_metadata: bool) -> None:  # noqa: FBT001
        self.job = self.queue.prepare_sync(with_metadata=with_metadata)
        if self.job is not None:
            assert self.queue.prepare_sync() is None
        self.job_done = set(self.done if with_metadata else self.durable_done)
        self.job_ghost_count = len(self.ghosts) if with_metadata else 0
        if self.job is None:
            self.durable_done = self.job_done
            del self.ghosts[: self.job_ghost_count]

    @precondition(lambda self: self.job is not None)
    @rule(is_lost=st.booleans())
    def end_sync(self, is_lost: bool) -> None:  # noqa: FBT001
        assert self.job is not None
        if is_lost:
            self.queue.complete_sync(self.job, OSError(errno.EIO, "Input/output error"))
        else:
            self.job.run()
            self.queue.complete_sync(self.job)
            self.durable_done = self.job_done
            del self.ghosts[: self.job_ghost_count]
        self.job = None

    @rule()
    def forget(self) -> None:
        self.queue.forget_all()
        # An append that is under way may be there after a crash, too.
        self.ghosts += [
            *self.records,
            *(data for data in self.appending if data not in self.ghosts),
        ]
        self.has_skipped_numbers |= self.append_job is not None
        self.ordinal_shift += self.read_count
        self.forget_all()
        self.job_done = set()

    @rule()
    def empty(self) -> None:
        self.queue.empty()
        assert not list(self.directory.iterdir())
        self.ordinal_shift += self.read_count
        self.forget_all()
        self.ghosts = []
        self.drop_job()

    def drop_job(self) -> None:
        """A job that was overtaken changes nothing any more."""
        if self.append_job is not None:
            before = sorted(path.name for path in self.directory.iterdir())
            self.end_append(is_undone=False)
            assert before == sorted(path.name for path in self.directory.iterdir())
        if self.job is not None:
            before = sorted(path.name for path in self.directory.iterdir())
            self.job.run()
            self.queue.complete_sync(self.job)
            assert before == sorted(path.name for path in self.directory.iterdir())
            self.job = None

    @rule()
    def close_and_reopen(self) -> None:
        self.queue.close()
        self.drop_job()
        unfinished = [data for data in self.records if data not in self.finished]
        # go-diskqueue delivers finished records behind its read position again.
        found = go_read_all(self.directory, is_depth_exact=self.is_depth_exact)
        assert found[:1] == unfinished[:1]
        assert [data for data in found if data not in self.finished] == unfinished
        report = check_queue(str(self.directory), layout.find_queue_files(str(self.directory), "t"))
        assert report.damage == []
        if self.is_depth_exact:
            assert report.record_count - report.finished_count == len(unfinished)
        has_sidecar = (self.directory / "t.diskqueue.finished").exists()
        assert has_sidecar or found == unfinished
        self.start_over(unfinished)

    @rule()
    def crash_and_reopen(self) -> None:
        self.crash_count += 1
        copy = self.root / str(self.crash_count)
        shutil.copytree(self.directory, copy)
        appending = self.appending
        self.queue.delete()
        self.drop_job()
        self.directory = copy
        if self.has_skipped_numbers:
            self.remove_strays()
        scout = self.root / "scout"
        shutil.copytree(copy, scout)
        queue = DiskQueue(
            *(scout, "t"),
            max_bytes_per_file=self.max_bytes_per_file,
            has_checksums=self.has_checksums,
        )
        found = drain(queue)
        queue.close()
        shutil.rmtree(scout)
        # A crash before an append is complete may leave all of it, its beginning, or nothing.
        known = {*self.records, *self.ghosts}
        half = [data for data in found if data in appending and data not in known]
        assert half == appending[: len(half)]
        self.records += half
        again = set(found)
        assert found == [data for data in self.ghosts + self.records if data in again]
        for index, data in enumerate(self.records):
            assert data in again or index in self.done, "lost"
            assert data not in again or index not in self.durable_done, "finished before the sync"
        self.start_over(found)

    def remove_strays(self) -> None:
        """Remove segments that a failed sync left behind a gap in the numbers.

        A start neither delivers nor deletes them, as an operator may have put them there.
        """
        self.has_skipped_numbers = False
        metadata = layout.read_metadata(str(self.directory), "t")
        if metadata is None:
            return
        numbers = layout.find_queue_files(str(self.directory), "t").segments
        first = metadata.read_file
        while first - 1 in numbers:
            first -= 1
        for number in numbers:
            if number < first:
                os.unlink(layout.segment_path(str(self.directory), "t", number))

    def start_over(self, records: list[bytes]) -> None:
        self.forget_all()
        self.ghosts = []
        self.records = list(records)
        self.finished.difference_update(records)  # they have come again
        self.ordinal_shift = 0
        self.is_depth_exact &= not self.has_sync_failed
        self.has_sync_failed = False
        self.queue = self.open()
        assert not [path for path in self.directory.iterdir() if "bad" in path.name]

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "queue"):
            return
        self.is_depth_exact |= self.read_count == len(self.records)
        if self.is_depth_exact:
            assert self.queue.depth == len(self.records) - self.read_count
            unread = self.records[self.read_count :]
            assert self.queue.unread_bytes == sum(map(len, unread)) + 4 * len(unread)
        assert self.queue.outstanding_count == self.read_count - self.low
        if self.append_job is not None:
            return
        segments = [path for path in self.directory.glob("*.dat") if "meta" not in path.name]
        assert self.queue.segment_count == len(segments)
        assert self.queue.disk_bytes == sum(path.stat().st_size for path in segments)

    @rule()
    def read_to_the_end(self) -> None:
        assert drain(self.queue) == self.records[self.read_count :]
        self.read_count = len(self.records)


TestQueue = pytest.mark.timeout(60)(QueueMachine.TestCase)
TestQueue.settings = settings(
    max_examples=80,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow],
)
