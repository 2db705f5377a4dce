"""Taking back an append, for a publish that another queue's disk refused."""

import errno
import logging
import os
from pathlib import Path

import pytest

from diskqueue import DiskQueue, QueueClosedError, layout
from diskqueue.tools.check import check_queue
from tests.unit.diskqueue.queue_files import (
    RECORD_BYTES,
    consume,
    drain,
    frame_all,
    names,
    numbers,
    payload,
    read_metadata,
    records,
    segment_path,
)


def open_queue(
    directory: Path, max_bytes_per_file: int = 3 * RECORD_BYTES, *, has_checksums: bool = False
) -> DiskQueue:
    return DiskQueue(
        directory, "t", max_bytes_per_file=max_bytes_per_file, has_checksums=has_checksums
    )


def open_fd_count() -> int:
    return len(os.listdir("/proc/self/fd"))


def fail(*arguments: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("has_checksums", [False, True])
@pytest.mark.parametrize("is_advanced", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("before", [0, 1, 2, 3, 4])
def test_undone_append_leaves_no_trace(
    tmp_path: Path,
    before: int,
    count: int,
    *,
    is_advanced: bool,
    has_checksums: bool,
) -> None:
    queue = open_queue(tmp_path, has_checksums=has_checksums)
    queue.put([payload(number) for number in range(before)])
    if is_advanced:
        drain(queue)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    state = (queue.depth, queue.outstanding_count, queue.unsynced_count, queue.disk_bytes)
    data, lengths = frame_all([payload(50 + number) for number in range(count)])

    queue.append(data, lengths)
    if is_advanced:
        assert queue.advance(lengths) == before
    queue.undo_append(lengths)

    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files
    left = (queue.depth, queue.outstanding_count, queue.unsynced_count, queue.disk_bytes)
    assert left == state
    assert numbers(drain(open_queue(tmp_path))) == list(range(before)), "after a crash"
    queue.put([payload(before)])
    batch = queue.read(1000, 1)
    assert batch is not None
    assert batch.first == (before if is_advanced else 0)
    queue.commit(range(batch.first + 1))
    consume(queue)
    queue.close()


@pytest.mark.parametrize("count", [1, 12])
def test_undo_leaks_no_descriptor(tmp_path: Path, count: int) -> None:
    before = open_fd_count()
    queue = open_queue(tmp_path)
    queue.put([payload(0)])
    data, lengths = frame_all([payload(1)] * count)

    for _ in range(3):
        queue.append(data, lengths)
        queue.undo_append(lengths)
        queue.append(data, lengths)
    queue.close()

    assert open_fd_count() == before


def test_undo_while_an_older_sync_is_under_way(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.put([payload(0)])
    job = queue.prepare_sync()
    assert job is not None
    data, lengths = frame_all([payload(number) for number in range(1, 8)])
    queue.append(data, lengths)

    queue.undo_append(lengths)
    job.run()
    queue.complete_sync(job)

    assert read_metadata(tmp_path) == (1, 0, 0, 0, 32)
    assert queue.unsynced_count == 0
    queue.put([payload(1)])
    queue.sync()
    assert read_metadata(tmp_path) == (2, 0, 0, 0, 64)


def test_undo_of_what_a_sync_covers_is_our_bug(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.put([payload(0)])
    queue.put([payload(1)])
    assert queue.prepare_sync() is not None

    with pytest.raises(AssertionError, match="sync"):
        queue.undo_append([RECORD_BYTES])


def test_undo_of_what_was_synced_is_our_bug(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.put([payload(0)])
    queue.sync()

    with pytest.raises(AssertionError, match="sync"):
        queue.undo_append([RECORD_BYTES])


@pytest.mark.parametrize("before", [0, 1])
def test_file_that_cannot_be_cut_back_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, before: int
) -> None:
    """The positions move back all the same; a shorter append must not mix with the rest."""
    queue = open_queue(tmp_path, 1 << 20)
    queue.put([payload(number) for number in range(before)])
    data, lengths = frame_all([payload(50, 100)])
    queue.append(data, lengths)
    queue.advance([RECORD_BYTES] * before)
    assert queue.advance(lengths) == before

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(os, "ftruncate", fail)
        patch.setattr(os, "truncate", fail)
        patch.setattr(os, "unlink", fail)
        queue.undo_append(lengths)

    assert "append not undone" in caplog.text
    assert (queue.depth, queue.outstanding_count) == (0, before)
    queue.put([payload(before)])
    assert segment_path(tmp_path, 1).read_bytes() == records(before, 1)
    batch = queue.read(10, 1000)
    assert batch is not None
    assert (batch.first, numbers(list(batch))) == (before, [before])
    after_crash = [data[26:28] for data in drain(open_queue(tmp_path, 1 << 20))]
    assert after_crash == ([b"00", b"50", b"01"] if before else [b"50", b"00"])
    queue.commit(range(before + 1))
    queue.sync()
    assert names(tmp_path) == ["000001.dat", "meta.dat"]


def test_segment_that_cannot_be_removed_is_emptied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue = open_queue(tmp_path)
    queue.put([payload(0)])
    data, lengths = frame_all([payload(50 + number) for number in range(8)])
    queue.append(data, lengths)

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(os, "unlink", fail)
        queue.undo_append(lengths)

    assert caplog.text == ""
    assert numbers(drain(open_queue(tmp_path))) == [0]
    queue.put([payload(number) for number in range(1, 9)])
    assert numbers(drain(queue)) == list(range(9))


def test_undo_of_nothing_is_harmless(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.put([payload(0)])

    queue.undo_append([])

    assert queue.depth == 1
    queue.close()
    with pytest.raises(QueueClosedError):
        queue.undo_append([RECORD_BYTES])


def test_checksums_are_beside_what_comes_after_an_undone_first_append(tmp_path: Path) -> None:
    queue = DiskQueue(tmp_path, "t", has_checksums=True)
    data, lengths = frame_all([payload(5)])
    queue.append(data, lengths)
    queue.undo_append(lengths)

    queue.put([payload(0)])

    [crc] = tmp_path.glob("*.crc")
    assert crc.stat().st_size > 0
    queue.close()
    assert not check_queue(str(tmp_path), layout.find_queue_files(str(tmp_path), "t")).damage


def test_sync_does_without_a_checksum_file_that_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = DiskQueue(tmp_path, "t", has_checksums=True)
    queue.put([payload(0)])
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="Input/output"):
            queue.sync()
    for crc in tmp_path.glob("*.crc"):
        crc.unlink()

    queue.sync()

    assert queue.unsynced_count == 0
    queue.close()
    assert numbers(drain(open_queue(tmp_path))) == [0]
