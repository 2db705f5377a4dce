"""Emptying and deleting a queue."""

import errno
import os
from pathlib import Path

import pytest

from diskqueue import DiskQueue, QueueClosedError
from tests.unit.diskqueue.queue_files import (
    RECORD_BYTES,
    consume,
    drain,
    names,
    numbers,
    payload,
    records,
    write_segment,
)


def open_queue(directory: Path, max_bytes_per_file: int = 3 * RECORD_BYTES) -> DiskQueue:
    return DiskQueue(directory, "t", max_bytes_per_file=max_bytes_per_file)


def open_fd_count() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_empty_drops_everything_and_goes_on(tmp_path: Path) -> None:
    """D-20."""
    queue = open_queue(tmp_path)
    queue.put([payload(number) for number in range(8)])
    queue.read(2, 1000)
    queue.sync()

    queue.empty()

    assert names(tmp_path) == []
    assert (queue.depth, queue.outstanding_count, queue.unsynced_count) == (0, 0, 0)
    assert (queue.disk_bytes, queue.segment_count) == (0, 0)
    assert queue.read(10, 1000) is None
    queue.put([payload(8)])
    assert names(tmp_path) == ["000003.dat"]
    batch = queue.read(10, 1000)
    assert batch is not None
    assert (batch.first, numbers(list(batch))) == (2, [8])


def test_commits_of_emptied_records_are_ignored(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.put([payload(0), payload(1)])
    drain(queue)
    queue.empty()
    queue.put([payload(2)])
    drain(queue)

    queue.commit([0, 1])

    assert queue.outstanding_count == 1
    queue.commit([2])
    assert queue.outstanding_count == 0


def test_crash_after_empty_does_not_strand_the_new_segment(tmp_path: Path) -> None:
    """Quirk 3."""
    queue = open_queue(tmp_path)
    queue.put([payload(number) for number in range(8)])
    queue.sync()
    queue.empty()
    queue.put([payload(8)])

    assert numbers(drain(open_queue(tmp_path))) == [8]


def test_empty_twice_and_before_use(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.empty()
    queue.put([payload(0)])
    queue.empty()
    queue.empty()
    queue.put([payload(1)])

    assert numbers(consume(queue)) == [1]


def test_empty_after_a_write_that_failed_on_a_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = open_queue(tmp_path)

    def fail(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fail)
        with pytest.raises(OSError, match="No space"):
            queue.put([payload(0)])
    queue.empty()
    queue.put([payload(1)])

    assert numbers(drain(queue)) == [1]


def test_empty_keeps_a_damaged_segment_aside(tmp_path: Path) -> None:
    """Files found damaged are never removed."""
    write_segment(tmp_path, 0, records(0, 1) + b"junk")
    queue = open_queue(tmp_path)
    drain(queue)

    queue.empty()

    assert names(tmp_path) == ["000000.dat.bad"]


def test_delete_leaves_no_file(tmp_path: Path) -> None:
    before = open_fd_count()
    queue = open_queue(tmp_path)
    queue.put([payload(number) for number in range(8)])
    queue.read(4, 1000)
    queue.sync()
    queue.put([payload(8)])

    queue.delete()

    assert names(tmp_path) == []
    assert open_fd_count() == before


def test_deleted_queue_takes_no_records(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.delete()

    with pytest.raises(QueueClosedError):
        queue.put([payload(0)])
    assert names(tmp_path) == []


def test_empty_that_cannot_remove_a_file_is_empty_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = open_queue(tmp_path)
    queue.put([payload(number) for number in range(4)])
    unlink = os.unlink

    def fail_once(path: str) -> None:
        if path.endswith("000000.dat"):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        unlink(path)

    monkeypatch.setattr(os, "unlink", fail_once)
    with pytest.raises(PermissionError):
        queue.empty()

    assert (queue.depth, queue.read(10, 1000)) == (0, None)
    assert names(tmp_path) == ["000000.dat"]


@pytest.mark.parametrize("later", ["sync", "delete"])
def test_what_empty_could_not_remove_goes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: str
) -> None:
    queue = open_queue(tmp_path)
    queue.put([payload(number) for number in range(8)])
    queue.sync()

    def fail(path: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", fail)
        with pytest.raises(OSError, match="Input/output"):
            queue.empty()
    assert queue.read(10, 1000) is None

    getattr(queue, later)()

    assert names(tmp_path) == ([] if later == "delete" else ["meta.dat"])
