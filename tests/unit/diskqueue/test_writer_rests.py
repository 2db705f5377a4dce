"""What a failed append has left in a file is cut off later, if the disk did not let it at once."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from diskqueue import DiskQueue, RecordChunk, layout
from diskqueue.tools.check import check_queue
from tests.unit.diskqueue.queue_files import (
    RECORD_BYTES,
    drain,
    frame_all,
    numbers,
    payload,
    records,
    segment_path,
)


def open_queue(directory: Path, max_bytes_per_file: int = 1 << 20) -> DiskQueue:
    return DiskQueue(
        directory,
        "t",
        max_bytes_per_file=max_bytes_per_file,
        holds_messages=True,
        has_checksums=True,
    )


def fail_with_io_error(*arguments: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def find_damage(directory: Path) -> list[str]:
    return check_queue(str(directory), layout.find_queue_files(str(directory), "t")).damage


@contextmanager
def sick_disk(ending: str, part: int | None = None) -> Iterator[None]:
    """No file can be cut off; a write to a file whose name ends so fails behind its first part.

    Args:
        part: without it all is written, and the failure comes after that.
    """
    pwrite = os.pwrite

    def fail_here(fd: int, data: bytes, position: int) -> int:
        if not os.readlink(f"/proc/self/fd/{fd}").endswith(ending):
            return pwrite(fd, data, position)
        pwrite(fd, data[:part], position)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwrite", fail_here)
        patch.setattr(os, "ftruncate", fail_with_io_error)
        patch.setattr(os, "truncate", fail_with_io_error)
        yield


Append = Callable[[DiskQueue, list[bytes]], None]


def append_at_once(queue: DiskQueue, payloads: list[bytes]) -> None:
    queue.put(payloads)


def append_aside(queue: DiskQueue, payloads: list[bytes]) -> None:
    job = queue.prepare_append([RecordChunk(*frame_all(payloads))])
    try:
        job.run()
    finally:
        job.end()


@pytest.mark.parametrize("append", [append_at_once, append_aside])
@pytest.mark.parametrize(("ending", "part"), [(".dat", 90), (".dat", None), (".crc", 8)])
def test_shorter_record_stands_where_a_failed_append_was(
    tmp_path: Path, append: Append, ending: str, part: int | None
) -> None:
    queue = open_queue(tmp_path)
    queue.put([payload(0)])
    with sick_disk(ending, part), pytest.raises(OSError, match="Input/output"):
        append(queue, [payload(5, 70), payload(6)])
    assert segment_path(tmp_path, 0).stat().st_size > RECORD_BYTES

    append(queue, [payload(1)])

    assert segment_path(tmp_path, 0).read_bytes() == records(0, 2)
    queue.sync()
    assert not find_damage(tmp_path)
    assert numbers(drain(open_queue(tmp_path))) == [0, 1]


@pytest.mark.parametrize("append", [append_at_once, append_aside])
def test_append_fails_while_the_rest_of_another_cannot_be_cut_off(
    tmp_path: Path, append: Append
) -> None:
    queue = open_queue(tmp_path)
    queue.put([payload(0)])
    with sick_disk(".dat", 20), pytest.raises(OSError, match="Input/output"):
        append(queue, [payload(5)])

    with sick_disk("nothing"), pytest.raises(OSError, match="Input/output"):
        append(queue, [payload(6)])
    append(queue, [payload(1)])

    assert segment_path(tmp_path, 0).read_bytes() == records(0, 2)


def test_segment_is_completed_without_the_rest_of_a_failed_append(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, max_bytes_per_file=3 * RECORD_BYTES)
    queue.put([payload(0), payload(1)])
    with sick_disk(".crc"), pytest.raises(OSError, match="Input/output"):
        queue.put([payload(5)])

    queue.put([payload(2, 70)])  # has no room in the first segment

    assert segment_path(tmp_path, 0).read_bytes() == records(0, 2)
    queue.sync()
    assert not find_damage(tmp_path)


def test_sync_cuts_off_the_rest_behind_a_completed_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = open_queue(tmp_path)
    queue.put([payload(0)])
    with sick_disk(".dat", 20):
        with pytest.raises(OSError, match="Input/output"):
            queue.put([payload(5)])
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail_with_io_error)
            with pytest.raises(OSError, match="Input/output"):
                queue.sync()
    assert queue.write_number == 1
    assert segment_path(tmp_path, 0).stat().st_size > RECORD_BYTES

    queue.put([payload(1)])
    queue.sync()

    assert segment_path(tmp_path, 0).read_bytes() == records(0, 1)
    assert not find_damage(tmp_path)
    assert numbers(drain(open_queue(tmp_path))) == [0, 1]


def test_undone_append_is_cut_off_by_the_next_sync_if_need_be(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.put([payload(0)])
    data, lengths = frame_all([payload(5), payload(6)])
    queue.append(data, lengths)
    with sick_disk("nothing"):
        queue.undo_append(lengths)
    assert segment_path(tmp_path, 0).stat().st_size > RECORD_BYTES

    queue.put([payload(1)])
    queue.sync()

    assert segment_path(tmp_path, 0).read_bytes() == records(0, 1)
    assert not find_damage(tmp_path)
    assert numbers(drain(open_queue(tmp_path))) == [0, 1]


def test_entries_of_a_failed_append_say_nothing_about_later_records(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    with sick_disk(".crc"), pytest.raises(OSError, match="Input/output"):
        queue.put([payload(number, 200) for number in range(40, 80)])

    for number in range(40):
        queue.put([payload(number, 200)])
    queue.sync()

    assert not find_damage(tmp_path)
    assert numbers(drain(open_queue(tmp_path))) == list(range(40))


def test_damaged_segment_is_not_cut_at_the_damage(tmp_path: Path) -> None:
    """The rest of a failed append begins where the records ended, not where the damage is."""
    queue = open_queue(tmp_path)
    queue.put([payload(number) for number in range(4)])
    with sick_disk(".dat", 20), pytest.raises(OSError, match="Input/output"):
        queue.put([payload(5)])
    path = segment_path(tmp_path, 0)
    with path.open("r+b") as file:
        file.seek(RECORD_BYTES)
        file.write(b"\xff" * RECORD_BYTES)

    with sick_disk("nothing"):
        assert numbers(drain(queue)) == [0, 2, 3]
    queue.put([payload(4)])
    queue.sync()

    [bad] = tmp_path.glob("*.dat.bad")
    assert bad.read_bytes() == records(0, 1) + b"\xff" * RECORD_BYTES + records(2, 2)


def test_failed_fsync_during_an_append_leaves_no_number_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = open_queue(tmp_path, max_bytes_per_file=3 * RECORD_BYTES)
    queue.put([payload(0), payload(1)])
    job = queue.prepare_append(
        [RecordChunk(*frame_all([payload(number) for number in range(50, 56)]))]
    )
    job.run()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail_with_io_error)
        with pytest.raises(OSError, match="Input/output"):
            queue.sync()
    assert not job.end()

    queue.put([payload(2)])
    queue.sync()

    assert queue.write_number == 1
    assert not find_damage(tmp_path)
    assert numbers(drain(open_queue(tmp_path))) == [0, 1, 2]


def test_file_of_a_cancelled_append_that_cannot_be_removed_is_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = open_queue(tmp_path, max_bytes_per_file=3 * RECORD_BYTES)
    queue.put([payload(0), payload(1)])
    job = queue.prepare_append([RecordChunk(*frame_all([payload(50), payload(51)]))])
    job.run()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail_with_io_error)
        patch.setattr(os, "unlink", fail_with_io_error)
        with pytest.raises(OSError, match="Input/output"):
            queue.sync()
    assert not job.end()

    queue.put([payload(2)])
    queue.sync()

    assert (tmp_path / "t.diskqueue.000001.dat.bad").read_bytes() == records(51, 1)
    assert not find_damage(tmp_path)
    assert numbers(drain(open_queue(tmp_path))) == [0, 1, 2]


def test_queue_is_closed_without_the_rest_of_a_failed_append(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.put([payload(0)])
    queue.sync()
    with sick_disk(".crc"), pytest.raises(OSError, match="Input/output"):
        queue.put([payload(5)])

    queue.close()

    assert numbers(drain(open_queue(tmp_path))) == [0]


@pytest.mark.parametrize("append", [append_at_once, append_aside])
@pytest.mark.parametrize("is_new", [False, True])
def test_first_append_to_a_segment_may_fail(
    tmp_path: Path, append: Append, *, is_new: bool
) -> None:
    queue = open_queue(tmp_path)
    if not is_new:
        queue.put([payload(0)])
        queue.close()
        queue = open_queue(tmp_path)
    with sick_disk(".crc", 8), pytest.raises(OSError, match="Input/output"):
        append(queue, [payload(5)])

    append(queue, [payload(1)])

    queue.sync()
    assert not find_damage(tmp_path)
    assert numbers(drain(open_queue(tmp_path))) == [1] if is_new else [0, 1]
