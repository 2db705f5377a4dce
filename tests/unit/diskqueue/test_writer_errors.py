"""A write that fails leaves no half record, at any step and with any error."""

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from diskqueue import DiskQueue
from tests.unit.diskqueue.queue_files import (
    RECORD_BYTES,
    consume,
    drain,
    names,
    numbers,
    payload,
    read_metadata,
    records,
    segment_path,
    write_segment,
)

Pwrite = Callable[[int, bytes, int], int]


def fill_disk_after(call_count: int, part: int) -> Pwrite:
    """A pwrite that works some times, writes a part once, and then finds the disk full."""
    pwrite = os.pwrite
    left = [call_count]

    def full_pwrite(fd: int, data: bytes, position: int) -> int:
        left[0] -= 1
        if left[0] >= 0:
            return pwrite(fd, data, position)
        if left[0] == -1 and part:
            return pwrite(fd, data[:part], position)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return full_pwrite


@pytest.mark.parametrize("part", [0, 1, 4, 40, 90])
def test_failed_append_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    queue = DiskQueue(tmp_path, "t")
    queue.put([payload(0)])

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fill_disk_after(0, part))
        with pytest.raises(OSError, match="No space"):
            queue.put([payload(7), payload(8), payload(9)])

    assert segment_path(tmp_path, 0).read_bytes() == records(0, 1)
    assert (queue.depth, queue.unsynced_count) == (1, 1)
    queue.put([payload(1)])
    assert numbers(drain(queue)) == [0, 1]


@pytest.mark.parametrize("call_count", [0, 1, 2, 3])
@pytest.mark.parametrize("part", [0, 5, 40])
@pytest.mark.parametrize("before", [0, 1, 3])
def test_failed_append_across_segments_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call_count: int, part: int, before: int
) -> None:
    queue = DiskQueue(tmp_path, "t", max_bytes_per_file=3 * RECORD_BYTES)
    queue.put([payload(number) for number in range(before)])

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fill_disk_after(call_count, part))
        with pytest.raises(OSError, match="No space"):
            queue.put([payload(50 + number) for number in range(12)])

    assert queue.depth == before
    left = b"".join(path.read_bytes() for path in sorted(tmp_path.iterdir()))
    assert left == records(0, before)
    queue.put([payload(number) for number in range(before, 9)])
    assert numbers(consume(queue)) == list(range(9))
    queue.close()
    assert read_metadata(tmp_path)[0] == 0


def test_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, position: pwrite(fd, data[:10], position))
    queue = DiskQueue(tmp_path, "t")
    queue.put([payload(0), payload(1)])

    assert segment_path(tmp_path, 0).read_bytes() == records(0, 2)


def test_file_that_cannot_be_cut_back_is_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = DiskQueue(tmp_path, "t")
    queue.put([payload(0)])

    def fail(fd: int, size: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fill_disk_after(0, 20))
        patch.setattr(os, "ftruncate", fail)
        with pytest.raises(OSError, match="No space"):
            queue.put([payload(1)])
    queue.put([payload(2)])

    assert segment_path(tmp_path, 0).read_bytes() == records(0, 1) + records(2, 1)


def test_failed_creation_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = DiskQueue(tmp_path, "t", max_bytes_per_file=RECORD_BYTES)
    queue.put([payload(0)])
    os_open = os.open

    def fail(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return os_open(path, flags, mode)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fail)
        with pytest.raises(OSError, match="Too many open files"):
            queue.put([payload(1)])

    assert queue.depth == 1
    queue.put([payload(2)])
    assert numbers(drain(queue)) == [0, 2]


def test_failed_rescue_keeps_the_records_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytearray(records(0, 3))
    content[RECORD_BYTES : RECORD_BYTES + 4] = b"\xff\xff\xff\xff"
    write_segment(tmp_path, 0, bytes(content))
    (tmp_path / "t.diskqueue.meta.dat").write_text("3\n0,0\n0,96\n")
    queue = DiskQueue(tmp_path, "t")
    queue.put([payload(3)])
    assert numbers(list(queue.read(10, 1000) or [])) == [0]

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fill_disk_after(0, 7))
        with pytest.raises(OSError, match="No space"):
            queue.read(10, 1000)

    assert names(tmp_path) == ["000000.dat", "meta.dat"]
    assert numbers(drain(queue)) == [3]


def test_real_file_size_limit(tmp_path: Path) -> None:
    """The kernel's own short write and error, not ours: RLIMIT_FSIZE in a process of its own."""
    program = """
import resource, sys
from diskqueue import DiskQueue
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
queue = DiskQueue(sys.argv[1], "t")
accepted = 0
for number in range(50):
    try:
        queue.put([b"%026d" % number] * 3)
        accepted += 3
    except OSError as error:
        assert error.errno == 27, error
        break
print(accepted, queue.depth)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
        env=environment,
    )

    assert result.stdout.split() == ["33", "33"]
    assert segment_path(tmp_path, 0).stat().st_size == 33 * 30
    assert len(drain(DiskQueue(tmp_path, "t"))) == 33
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1000
