"""Marks: damage of a whole segment is told from a segment that go-diskqueue has made anew."""

import errno
import os
import sys
from pathlib import Path

import pytest

from diskqueue import DiskQueue
from diskqueue.checksums.marks import NAME, have_same_mark
from diskqueue.layout import find_queue_files
from diskqueue.tools.check import check_queue
from tests.unit.diskqueue.queue_files import (
    RECORD_BYTES,
    drain,
    framed,
    numbers,
    payload,
    records,
    segment_path,
    write_metadata,
    write_segment,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux has extended attributes")

CHECKSUMS = "t.diskqueue.000000.crc"
# A message of the same length whose time, id and body are others.
STRANGER = framed(payload(77))


def open_queue(directory: Path) -> DiskQueue:
    return DiskQueue(directory, "t", holds_messages=True, has_checksums=True)


def write_queue(directory: Path) -> Path:
    queue = open_queue(directory)
    queue.put([payload(0)])
    queue.close()
    return segment_path(directory, 0)


@pytest.fixture(autouse=True)
def _needs_attributes(tmp_path: Path) -> None:
    probe = tmp_path / "probe"
    probe.touch()
    try:
        os.setxattr(probe, NAME, b"x")
    except OSError as error:
        pytest.skip(f"this file system has no extended attributes: {error}")
    finally:
        probe.unlink()


def test_damage_of_the_whole_segment_is_not_delivered(tmp_path: Path) -> None:
    path = write_queue(tmp_path)
    path.write_bytes(STRANGER)

    assert check_queue(str(tmp_path), find_queue_files(str(tmp_path), "t")).damage
    queue = open_queue(tmp_path)
    queue.put([payload(1)])

    assert numbers(drain(queue)) == [1]
    assert queue.checksum_failures.count == 1


def test_segment_that_go_diskqueue_has_made_anew_is_delivered(tmp_path: Path) -> None:
    path = write_queue(tmp_path)
    path.unlink()  # its checksum file stays
    write_segment(tmp_path, 0, STRANGER)
    write_metadata(tmp_path, f"1\n0,0\n0,{RECORD_BYTES}\n")

    queue = open_queue(tmp_path)

    assert numbers(drain(queue)) == [77]
    assert queue.checksum_failures.count == 0


@pytest.mark.parametrize("count", [1, 3])
def test_records_that_go_diskqueue_has_written_over_others_are_delivered(
    tmp_path: Path, count: int
) -> None:
    queue = open_queue(tmp_path)
    queue.put([payload(0)])
    # A kill before the first sync: without metadata go-diskqueue begins at the beginning.
    with segment_path(tmp_path, 0).open("r+b") as file:
        file.write(records(70, count))
    write_metadata(tmp_path, f"{count}\n0,0\n0,{count * RECORD_BYTES}\n")

    queue = open_queue(tmp_path)

    assert numbers(drain(queue)) == list(range(70, 70 + count))
    assert queue.checksum_failures.count == 0


def test_records_that_go_diskqueue_has_appended_are_delivered(tmp_path: Path) -> None:
    path = write_queue(tmp_path)
    with path.open("ab") as file:
        file.write(records(1, 3))
    write_metadata(tmp_path, f"4\n0,0\n0,{4 * RECORD_BYTES}\n")

    assert numbers(drain(open_queue(tmp_path))) == [0, 1, 2, 3]


def test_checksum_file_of_a_new_segment_loses_the_mark_of_the_old_one(tmp_path: Path) -> None:
    old = write_queue(tmp_path)
    mark = os.getxattr(old, NAME)
    old.unlink()
    (tmp_path / "t.diskqueue.meta.dat").unlink()

    new = write_queue(tmp_path)

    assert have_same_mark(str(new), str(tmp_path / CHECKSUMS))
    assert os.getxattr(new, NAME) != mark


def test_large_append_marks_each_new_segment(tmp_path: Path) -> None:
    queue = DiskQueue(tmp_path, "t", max_bytes_per_file=2 * RECORD_BYTES, has_checksums=True)
    queue.put([payload(number) for number in range(6)])
    queue.sync()

    paths = [segment_path(tmp_path, number) for number in range(3)]
    assert len({os.getxattr(path, NAME) for path in paths}) == 3
    assert all(have_same_mark(str(path), str(path.with_suffix(".crc"))) for path in paths)


def test_queue_is_written_without_marks_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(os, "setxattr", fail)
    path = write_queue(tmp_path)

    assert (tmp_path / CHECKSUMS).stat().st_size
    assert not have_same_mark(str(path), str(tmp_path / CHECKSUMS))
    assert numbers(drain(open_queue(tmp_path))) == [0]
