"""Syncs in two halves, with another thread or an error in between."""

import contextlib
import errno
import itertools
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from diskqueue import DiskQueue, layout
from diskqueue.tools.check import check_queue
from tests.unit.diskqueue.queue_files import (
    RECORD_BYTES,
    consume,
    drain,
    metadata_path,
    names,
    numbers,
    payload,
    read_metadata,
    records,
    segment_path,
    write_metadata,
    write_segment,
)


def open_queue(directory: Path, max_bytes_per_file: int = 3 * RECORD_BYTES) -> DiskQueue:
    return DiskQueue(directory, "t", max_bytes_per_file=max_bytes_per_file)


def open_fd_count() -> int:
    return len(os.listdir("/proc/self/fd"))


def open_files() -> list[str]:
    targets = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            targets.append(os.readlink(f"/proc/self/fd/{fd}"))
    return targets


def fail_with_io_error(*arguments: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of files that are made durable, replaced or removed, in order."""
    log: list[str] = []
    fsync, replace, unlink, rename = os.fsync, os.replace, os.unlink, os.rename

    def short(path: str) -> str:
        return os.path.basename(path).removeprefix("t.diskqueue.")

    def logged_fsync(fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if os.path.isdir(path):
            log.append("fsync directory")
        else:
            log.append("fsync tmp" if path.endswith(".tmp") else f"fsync {short(path)}")
        fsync(fd)

    def logged_replace(source: str, target: str) -> None:
        log.append(f"replace {short(target)}")
        replace(source, target)

    def logged_unlink(path: str) -> None:
        log.append(f"unlink {short(path)}")
        unlink(path)

    def logged_rename(source: str, target: str) -> None:
        log.append(f"rename {short(target)}")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", logged_fsync)
    monkeypatch.setattr(os, "replace", logged_replace)
    monkeypatch.setattr(os, "unlink", logged_unlink)
    monkeypatch.setattr(os, "rename", logged_rename)
    return log


def test_steps_come_in_the_safe_order(tmp_path: Path, calls: list[str]) -> None:
    queue = open_queue(tmp_path)
    queue.put([payload(number) for number in range(5)])
    batch = queue.read(3, 1000)
    assert batch is not None
    queue.commit([0, 1, 2])

    queue.sync()

    assert calls == [
        "fsync 000001.dat",  # segment 0 goes at once, so it needs none
        "fsync tmp",
        "replace meta.dat",
        "fsync directory",
        "unlink 000000.dat",
        "fsync directory",
    ]


def test_all_segments_written_since_the_last_sync_are_made_durable(
    tmp_path: Path, calls: list[str]
) -> None:
    queue = open_queue(tmp_path)
    for number in range(8):
        queue.put([payload(number)])

    queue.sync()

    assert calls[:3] == ["fsync 000000.dat", "fsync 000001.dat", "fsync 000002.dat"]
    calls.clear()
    queue.put([payload(8)])
    queue.sync()
    assert calls[0] == "fsync 000002.dat"
    assert "fsync 000001.dat" not in calls


def test_damaged_segment_is_renamed_before_the_metadata_leaves_it(
    tmp_path: Path, calls: list[str]
) -> None:
    """The other order would let the next start delete it as consumed."""
    write_segment(tmp_path, 0, records(0, 1) + b"junk")
    write_metadata(tmp_path, "1\n0,0\n1,0\n")
    queue = open_queue(tmp_path)

    consume(queue)

    assert calls.index("rename 000000.dat.bad") < calls.index("replace meta.dat")


def test_sync_without_metadata_only_makes_appends_durable(tmp_path: Path, calls: list[str]) -> None:
    queue = open_queue(tmp_path)
    queue.put([payload(0)])
    drain(queue)
    queue.commit([0])
    queue.put([payload(1)])

    job = queue.prepare_sync(with_metadata=False)
    assert job is not None
    job.run()
    queue.complete_sync(job)

    assert calls == ["fsync 000000.dat", "fsync directory"]
    assert queue.unsynced_count == 1
    assert queue.prepare_sync(with_metadata=False) is None
    assert numbers(drain(open_queue(tmp_path))) == [0, 1]


def test_sync_without_metadata_covers_a_roll(tmp_path: Path, calls: list[str]) -> None:
    queue = open_queue(tmp_path)
    queue.put([payload(0)])
    job = queue.prepare_sync(with_metadata=False)
    assert job is not None
    job.run()
    queue.complete_sync(job)
    calls.clear()

    queue.put([payload(number) for number in range(1, 5)])
    job = queue.prepare_sync(with_metadata=False)
    assert job is not None
    job.run()
    queue.complete_sync(job)

    assert calls == ["fsync 000000.dat", "fsync 000001.dat", "fsync directory"]
    assert queue.unsynced_count == 0


def test_failed_sync_without_metadata_ends_the_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = open_queue(tmp_path, 1 << 20)
    queue.put([payload(0)])
    job = queue.prepare_sync(with_metadata=False)
    assert job is not None
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail_with_io_error)
        with pytest.raises(OSError, match="Input/output") as caught:
            job.run()

    queue.complete_sync(job, caught.value)
    queue.put([payload(1)])

    assert queue.unsynced_count == 2
    assert segment_path(tmp_path, 0).read_bytes() == records(0, 1)
    assert segment_path(tmp_path, 1).read_bytes() == records(1, 1)


@pytest.mark.parametrize("is_more_appended", [False, True])
def test_new_files_stay_to_be_made_durable_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: list[str], *, is_more_appended: bool
) -> None:
    queue = open_queue(tmp_path)
    queue.put([payload(0)])
    job = queue.prepare_sync(with_metadata=False)
    assert job is not None
    with monkeypatch.context() as patch:
        patch.setattr(layout, "fsync_directory", fail_with_io_error)
        with pytest.raises(OSError, match="Input/output") as caught:
            job.run()
    queue.complete_sync(job, caught.value)
    if is_more_appended:
        queue.put([payload(1)])

    job = queue.prepare_sync(with_metadata=False)
    assert job is not None
    job.run()

    assert calls[-1] == "fsync directory"


def test_nothing_is_written_while_idle(tmp_path: Path, calls: list[str]) -> None:
    """D-10."""
    queue = open_queue(tmp_path)
    queue.put([payload(0)])
    queue.sync()
    calls.clear()

    assert queue.prepare_sync() is None
    queue.sync()
    assert drain(queue) == [payload(0)]
    assert queue.prepare_sync() is None, "a read alone changes nothing that is persisted"

    assert calls == []


def test_queue_recovered_without_metadata_gets_some(tmp_path: Path) -> None:
    write_segment(tmp_path, 0, records(0, 2))
    queue = open_queue(tmp_path)

    queue.sync()

    assert read_metadata(tmp_path) == (2, 0, 0, 1, 0)


def test_commit_behind_an_unfinished_record_leaves_the_metadata(
    tmp_path: Path, calls: list[str]
) -> None:
    """D-10: it would be the same."""
    queue = open_queue(tmp_path)
    queue.put([payload(0), payload(1)])
    drain(queue)
    queue.sync()
    calls.clear()

    queue.commit([1])
    assert queue.unsynced_count == 1
    queue.sync()

    assert calls == ["fsync tmp", "replace finished", "fsync directory"]
    assert queue.unsynced_count == 0
    assert queue.prepare_sync() is None
    queue.commit([0])
    queue.sync()
    assert read_metadata(tmp_path) == (0, 0, 64, 0, 64)


def test_unsynced_count_counts_appends_and_commits(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.put([payload(0), payload(1)])
    drain(queue)
    queue.commit([1])
    assert queue.unsynced_count == 3

    job = queue.prepare_sync()
    assert job is not None
    queue.put([payload(2)])
    queue.commit([0])
    job.run()
    assert queue.unsynced_count == 5
    queue.complete_sync(job)

    assert queue.unsynced_count == 2


def test_one_job_at_a_time(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.put([payload(0)])
    job = queue.prepare_sync()
    assert job is not None

    queue.put([payload(1)])
    assert queue.prepare_sync() is None
    job.run()
    queue.complete_sync(job)

    assert read_metadata(tmp_path) == (1, 0, 0, 0, 32)
    queue.sync()
    assert read_metadata(tmp_path) == (2, 0, 0, 0, 64)


def test_job_runs_in_another_thread_while_the_queue_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = open_queue(tmp_path)
    queue.put([payload(number) for number in range(4)])
    drain(queue)
    queue.commit([0, 1, 2])
    is_running, may_end = threading.Event(), threading.Event()
    fsync = os.fsync

    def slow_fsync(fd: int) -> None:
        is_running.set()
        assert may_end.wait(10)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", slow_fsync)
    job = queue.prepare_sync()
    assert job is not None
    thread = threading.Thread(target=job.run)
    thread.start()
    assert is_running.wait(10)

    # Rolls, so that the descriptor the job syncs is closed meanwhile, and commits everything.
    queue.put([payload(number) for number in range(4, 9)])
    assert numbers(drain(queue)) == list(range(4, 9))
    queue.commit(range(9))
    may_end.set()
    thread.join()
    queue.complete_sync(job)

    assert read_metadata(tmp_path) == (1, 1, 0, 1, 32)
    assert names(tmp_path) == ["000001.dat", "000002.dat", "meta.dat"]
    queue.sync()
    assert names(tmp_path) == ["000002.dat", "meta.dat"]


def test_bytes_appended_and_rolled_during_a_job_are_synced_by_the_next(
    tmp_path: Path, calls: list[str]
) -> None:
    queue = open_queue(tmp_path)
    queue.put([payload(0)])
    job = queue.prepare_sync()
    assert job is not None
    queue.put([payload(number) for number in range(1, 5)])
    job.run()
    queue.complete_sync(job)
    calls.clear()

    queue.sync()

    assert calls[:2] == ["fsync 000000.dat", "fsync 000001.dat"]


@pytest.mark.parametrize("operation", [DiskQueue.close, DiskQueue.empty, DiskQueue.delete])
def test_waits_for_a_running_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: Callable[[DiskQueue], None]
) -> None:
    queue = open_queue(tmp_path)
    queue.put([payload(0)])
    job = queue.prepare_sync()
    assert job is not None
    is_running, may_end = threading.Event(), threading.Event()
    order: list[str] = []
    write = layout.write_atomically

    def slow_write(path: str, content: bytes) -> None:
        is_running.set()
        assert may_end.wait(10)
        write(path, content)
        order.append("write")

    monkeypatch.setattr(layout, "write_atomically", slow_write)
    thread = threading.Thread(target=job.run)
    thread.start()
    assert is_running.wait(10)

    def operate() -> None:
        operation(queue)
        order.append("operation")

    other = threading.Thread(target=operate)
    other.start()
    may_end.set()
    thread.join()
    other.join()
    queue.complete_sync(job)

    assert order[0] == "write"
    assert order[-1] == "operation"
    expected = {"close": ["000000.dat", "meta.dat"], "empty": [], "delete": []}
    assert names(tmp_path) == expected[operation.__name__]


@pytest.mark.parametrize("operation", [DiskQueue.close, DiskQueue.empty, DiskQueue.delete])
def test_job_overtaken_before_it_ran_does_nothing(
    tmp_path: Path, operation: Callable[[DiskQueue], None]
) -> None:
    """Its metadata would lead to segments that are gone."""
    before = open_fd_count()
    queue = open_queue(tmp_path)
    queue.put([payload(0)])
    job = queue.prepare_sync()
    assert job is not None

    operation(queue)
    left = names(tmp_path)
    job.run()
    queue.complete_sync(job)

    assert names(tmp_path) == left
    queue.delete()
    assert open_fd_count() == before


def test_failed_fsync_ends_the_segment_and_stays_unsynced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = open_queue(tmp_path, 1 << 20)
    queue.put([payload(0)])
    queue.sync()
    queue.put([payload(1)])
    drain(queue)
    queue.commit([0])

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail_with_io_error)
        with pytest.raises(OSError, match="Input/output"):
            queue.sync()

    assert queue.unsynced_count == 2
    assert read_metadata(tmp_path) == (1, 0, 0, 0, 32)
    queue.put([payload(2)])
    assert segment_path(tmp_path, 0).read_bytes() == records(0, 2)
    assert segment_path(tmp_path, 1).read_bytes() == records(2, 1)

    queue.sync()
    assert queue.unsynced_count == 0
    assert read_metadata(tmp_path) == (2, 0, 32, 1, 32)
    assert numbers(drain(queue)) == [2]


@pytest.mark.parametrize("has_checksums", [False, True])
def test_what_a_failed_fsync_was_to_cover_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_checksums: bool
) -> None:
    """The kernel calls the pages clean after the error: another fsync alone would save nothing."""
    queue = DiskQueue(tmp_path, "t", has_checksums=has_checksums)
    queue.put([payload(0)])
    queue.sync()
    queue.put([payload(1)])
    job = queue.prepare_sync(with_metadata=False)
    assert job is not None
    queue.put([payload(2)])  # while the fsync is under way
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail_with_io_error)
        with pytest.raises(OSError, match="Input/output") as caught:
            job.run()
    queue.complete_sync(job, caught.value)
    checksums = tmp_path / "t.diskqueue.000000.crc"
    expected = [("t.diskqueue.000000.dat", RECORD_BYTES, 2 * RECORD_BYTES)]
    if has_checksums:
        entry_bytes = checksums.stat().st_size // 3
        expected.append((checksums.name, entry_bytes, 2 * entry_bytes))
    written: list[tuple[str, int, int]] = []
    pwrite = os.pwrite

    def logged_pwrite(fd: int, data: bytes, position: int) -> int:
        path = os.readlink(f"/proc/self/fd/{fd}")
        written.append((os.path.basename(path), position, len(data)))
        return pwrite(fd, data, position)

    monkeypatch.setattr(os, "pwrite", logged_pwrite)
    for _ in range(2):
        job = queue.prepare_sync(with_metadata=False)
        if job is not None:
            job.run()
            queue.complete_sync(job)

    assert written == expected, "and only once"
    assert segment_path(tmp_path, 0).read_bytes() == records(0, 3)
    assert queue.unsynced_count == 0


def test_failed_metadata_deletes_nothing_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = open_queue(tmp_path)
    queue.put([payload(number) for number in range(4)])
    drain(queue)
    queue.commit(range(4))

    def fail(source: str, target: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="Input/output"):
            queue.sync()
        assert names(tmp_path) == ["000000.dat", "000001.dat"]
        assert queue.unsynced_count == 8
        queue.put([payload(4)])
        assert "000002.dat" not in names(tmp_path), "the segment itself is durable and trusted"

    queue.sync()
    assert names(tmp_path) == ["000001.dat", "meta.dat"]
    assert (queue.segment_count, queue.unsynced_count) == (1, 0)


def test_a_full_disk_is_relieved_of_consumed_segments_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metadata finds room only where a segment was, and a crash in between loses nothing."""
    queue = open_queue(tmp_path)
    queue.put([payload(number) for number in range(4)])
    queue.sync()
    drain(queue)
    queue.commit(range(3))
    replace = os.replace

    def need_room(source: str, target: str) -> None:
        if "000000.dat" in names(tmp_path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        crashed = tmp_path.parent / "crashed"
        shutil.copytree(tmp_path, crashed)
        replace(source, target)

    monkeypatch.setattr(os, "replace", need_room)
    queue.sync()

    assert names(tmp_path) == ["000001.dat", "meta.dat"]
    after_crash = open_queue(tmp_path.parent / "crashed")
    assert payload(3) in drain(after_crash)


def test_a_queue_gives_up_a_small_consumed_segment_if_room_is_wanted(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.put([payload(0)])
    drain(queue)
    queue.commit([0])
    queue.sync()
    assert names(tmp_path) == ["000000.dat", "meta.dat"]

    queue.wants_room = True
    queue.sync()

    assert names(tmp_path) == ["meta.dat"]
    held = [target for target in open_files() if target.startswith(str(tmp_path))]
    assert held == [], "deleted, but it would still take room"
    queue.put([payload(1)])
    assert drain(queue) == [payload(1)]


def test_failed_deletion_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = open_queue(tmp_path)
    queue.put([payload(number) for number in range(4)])
    drain(queue)
    queue.commit(range(3))

    def fail(path: str) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", fail)
        with pytest.raises(PermissionError):
            queue.sync()

    assert names(tmp_path) == ["000000.dat", "000001.dat", "meta.dat"]
    assert queue.segment_count == 2
    queue.sync()
    assert names(tmp_path) == ["000001.dat", "meta.dat"]


def test_failed_close_releases_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = open_fd_count()
    queue = open_queue(tmp_path)
    queue.put([payload(number) for number in range(8)])
    queue.read(1, 1)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail_with_io_error)
        with pytest.raises(OSError, match="Input/output"):
            queue.close()

    assert open_fd_count() == before
    assert numbers(drain(open_queue(tmp_path))) == list(range(8))


def test_metadata_is_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = open_queue(tmp_path)
    queue.put([payload(0)])
    queue.sync()
    queue.put([payload(1)])
    write = os.pwrite

    def half(fd: int, data: bytes, position: int) -> int:
        write(fd, data[: len(data) // 2], position)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", half)
    with pytest.raises(OSError, match="No space"):
        queue.sync()

    assert metadata_path(tmp_path).read_text() == "1\n0,0\n0,32\n"
    assert names(tmp_path) == ["000000.dat", "meta.dat"], "no temporary file is left"


def test_segment_goes_before_an_older_one_only_if_the_sidecar_will_be_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the fingerprint of the read position `check` would call the segment lost."""
    queue = open_queue(tmp_path)
    queue.put([payload(number) for number in range(9)])
    assert len(drain(queue)) == 9
    queue.commit([0, 3, 4, 5])
    pread = os.pread

    def fail_at_read_position(fd: int, size: int, offset: int) -> bytes:
        if offset == RECORD_BYTES and os.readlink(f"/proc/self/fd/{fd}").endswith("000000.dat"):
            fail_with_io_error()
        return pread(fd, size, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", fail_at_read_position)
        with pytest.raises(OSError, match="Input/output"):
            queue.sync()
    assert segment_path(tmp_path, 1).exists()

    queue.sync()
    assert not segment_path(tmp_path, 1).exists()
    files = layout.find_queue_files(str(tmp_path), "t")
    assert not check_queue(str(tmp_path), files).damage


@pytest.mark.parametrize("has_checksums", [False, True])
def test_no_fsync_is_made_in_vain(tmp_path: Path, calls: list[str], *, has_checksums: bool) -> None:
    queue = DiskQueue(
        *(tmp_path, "t"), max_bytes_per_file=3 * RECORD_BYTES, has_checksums=has_checksums
    )

    def sync(*, with_metadata: bool = True) -> list[str]:
        calls.clear()
        job = queue.prepare_sync(with_metadata=with_metadata)
        if job is not None:
            job.run()
            queue.complete_sync(job)
        return sorted(calls)

    crc = ["fsync 000000.crc"] if has_checksums else []
    metadata = ["fsync directory", "fsync tmp", "replace meta.dat"]
    queue.put([payload(0)])
    # The names are durable once, and checksums when metadata leads to them.
    assert sync(with_metadata=False) == ["fsync 000000.dat", "fsync directory"]
    queue.put([payload(1)])
    assert sync(with_metadata=False) == ["fsync 000000.dat"]
    assert sync(with_metadata=False) == []
    # A segment whose records are durable already is synced for its checksums alone.
    assert sync() == sorted([*crc, *(["fsync 000000.dat"] if crc else []), *metadata])
    assert sync() == []
    queue.put([payload(2)])
    assert sync() == sorted([*crc, "fsync 000000.dat", *metadata])
    # It is full: the next one has a file of its own, and this one is not synced again.
    queue.put([payload(3)])
    assert sync() == sorted(
        [*[each.replace("0.", "1.") for each in crc], "fsync 000001.dat", *metadata]
    )
    queue.read(1, 1)
    queue.commit([0])
    assert sync() == metadata
    queue.close()


def test_a_segment_that_is_durable_is_not_synced_when_it_is_complete(
    tmp_path: Path, calls: list[str]
) -> None:
    queue = open_queue(tmp_path)
    queue.put([payload(number) for number in range(3)])
    queue.sync()
    drain(queue)
    queue.commit(range(3))
    queue.wants_room = True
    calls.clear()

    queue.sync()

    assert calls == [
        *("fsync tmp", "replace meta.dat", "fsync directory"),
        *("unlink 000000.dat", "fsync directory"),
    ]


def test_a_segment_deleted_before_older_ones_leaves_the_list(tmp_path: Path) -> None:
    """Also if it is the first behind the oldest, and in whatever order they go."""
    for order in itertools.permutations([3, 6, 9]):
        directory = tmp_path / "-".join(map(str, order))
        directory.mkdir()
        queue = open_queue(directory)
        queue.put([payload(number) for number in range(15)])
        drain(queue)
        for first in order:
            queue.commit(range(first, first + 3))
            queue.sync()
            left = [
                int(name[:6])
                for name in names(directory)
                if name.endswith(".dat") and "meta" not in name
            ]
            gone = {each // 3 for each in order[: order.index(first) + 1]}
            assert left == [number for number in range(5) if number not in gone]
            assert queue.segment_count == len(left)
            assert queue.disk_bytes == 96 * len(left)
        queue.commit([0, 1, 2])
        queue.sync()
        assert read_metadata(directory)[1:] == (4, 0, 4, 96)
        queue.close()


@pytest.mark.usefixtures("closes_files")
@pytest.mark.parametrize("has_checksums", [False, True])
def test_a_job_that_never_runs_leaves_nothing_open(tmp_path: Path, *, has_checksums: bool) -> None:
    queue = DiskQueue(tmp_path, "t", has_checksums=has_checksums)
    queue.put([payload(0)])
    job = queue.prepare_sync()
    assert job is not None
    before = open_fd_count()

    queue.complete_sync(job, OSError(errno.EIO, "no thread was free"))

    assert open_fd_count() == before - (2 if has_checksums else 1)
    assert queue.unsynced_count == 1
    queue.close()


def test_to_forget_all_is_one_change_to_be_synced(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.put([payload(number) for number in range(5)])
    queue.sync()

    queue.forget_all()

    assert queue.unsynced_count == 1
    queue.sync()
    assert queue.unsynced_count == 0
    assert names(tmp_path) == ["meta.dat"]
