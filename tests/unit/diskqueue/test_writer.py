"""Writer: several buffers in one write, and the records that an fsync covers."""

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from diskqueue.checksums.audit import audit
from diskqueue.segment import SegmentState
from diskqueue.writer import Writer
from tests.unit.diskqueue.queue_files import framed, payload

pytestmark = pytest.mark.usefixtures("closes_files")

NAME = "q"


def open_writer(path: Path, *, max_bytes_per_file: int = 100) -> Writer:
    return Writer(str(path), NAME, SegmentState(0), max_bytes_per_file, logging.getLogger("test"))


def content_of(path: Path, number: int) -> bytes:
    return (path / f"{NAME}.diskqueue.{number:06d}.dat").read_bytes()


def test_buffers_are_one_write_into_the_current_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = open_writer(tmp_path, max_bytes_per_file=10)
    writes: list[int] = []
    pwritev: Callable[[int, list[bytes], int], int] = os.pwritev

    def write(fd: int, buffers: list[bytes], position: int) -> int:
        writes.append(len(buffers))
        return pwritev(fd, buffers, position)

    monkeypatch.setattr(os, "pwritev", write)
    writer.append_buffers([b"first", b"and more than fits"], [[5], [18]])
    writer.append_buffers([b"third"], [[5]])
    writer.close()

    assert writes == [2, 1]
    assert content_of(tmp_path, 0) == b"firstand more than fitsthird"
    assert (writer.segment.number, writer.segment.end) == (0, 28)


def test_a_short_write_of_buffers_is_carried_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = open_writer(tmp_path)

    def write_a_part(fd: int, buffers: list[bytes], position: int) -> int:
        return os.pwrite(fd, b"".join(buffers)[:7], position)

    writer.append_buffers([b"before"], [[6]])
    monkeypatch.setattr(os, "pwritev", write_a_part)
    writer.append_buffers([b"first", b"second"], [[5], [6]])
    writer.close()

    assert content_of(tmp_path, 0) == b"beforefirstsecond"


def test_a_failed_write_of_buffers_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = open_writer(tmp_path)
    writer.append_buffers([b"before"], [[6]])

    def write_a_part(fd: int, buffers: list[bytes], position: int) -> int:
        os.pwrite(fd, b"".join(buffers)[:7], position)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", write_a_part)
        with pytest.raises(OSError, match="No space"):
            writer.append_buffers([b"first", b"second"], [[5], [6]])

    assert content_of(tmp_path, 0) == b"before"
    assert writer.segment.end == 6
    writer.close()


def test_a_segment_stays_dirty_if_it_grew_since_its_fsync(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    writer.append_buffers([b"completed"], [[9]])
    writer.start_new_segment()
    writer.append_buffers([b"grows"], [[5]])

    targets = writer.fsync_targets()
    writer.append_buffers([b"more"], [[4]])
    for target in targets:
        target.fsync()
        target.close()
    writer.note_durable(targets)

    assert [segment.number for segment in writer.dirty] == [1]
    assert writer.dirty[0].synced_end == 5
    writer.close()


def test_no_descriptor_is_left_of_targets_that_could_not_all_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = open_writer(tmp_path)
    writer.append_buffers([b"completed"], [[9]])
    writer.start_new_segment()
    writer.append_buffers([b"grows"], [[5]])
    dup = os.dup
    made: list[int] = []

    def run_out(fd: int) -> int:
        if made:
            raise OSError(errno.EMFILE, "Too many open files")
        made.append(dup(fd))
        return made[0]

    with monkeypatch.context() as patch:
        patch.setattr(os, "dup", run_out)
        with pytest.raises(OSError, match="Too many open files"):
            writer.fsync_targets()

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(made[0])
    writer.close()


def test_a_segment_with_a_successor_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = open_writer(tmp_path, max_bytes_per_file=30)
    pwrite: Callable[[int, bytes, int], int] = os.pwrite
    seen: list[list[int]] = []

    def write(fd: int, data: bytes, position: int) -> int:
        written = pwrite(fd, data, position)
        seen.append([path.stat().st_size for path in sorted(tmp_path.iterdir())])
        return written

    writer.append(bytes(20), [10, 10])
    monkeypatch.setattr(os, "pwrite", write)
    writer.append(bytes(60), [10] * 6)
    writer.close()

    assert seen == [[30], [30, 30], [30, 30, 20]]


def test_a_durable_segment_is_completed_without_another_fsync(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    writer.append_buffers([b"completed"], [[9]])
    targets = writer.fsync_targets()
    for target in targets:
        target.fsync()
        target.close()
    writer.note_durable(targets)

    writer.start_new_segment()

    assert writer.dirty == []
    assert writer.fsync_targets() == []
    writer.close()


def test_buffers_have_checksums_as_appends_have(tmp_path: Path) -> None:
    records = [framed(payload(number)) for number in range(6)]
    contents = []
    for step in (1, 2, 6):
        directory = tmp_path / str(step)
        directory.mkdir()
        writer = Writer(
            *(str(directory), NAME, SegmentState(0), 10_000, logging.getLogger("test")),
            has_checksums=True,
        )
        groups = [records[start : start + step] for start in range(0, 6, step)]
        if step == 6:
            for record in records:
                writer.append(record, [len(record)])
        else:
            writer.append_buffers(
                [b"".join(group) for group in groups], [[len(each) for each in g] for g in groups]
            )
        writer.close()
        path = directory / f"{NAME}.diskqueue.000000.dat"
        found = audit(str(path))
        assert (found.denied, found.uncovered, found.garbage_bytes) == ([], [], 0)
        contents.append((path.read_bytes(), path.with_suffix(".crc").read_bytes()))

    assert contents[0] == contents[2]
    assert contents[0][0] == contents[1][0]
    assert contents[0][1] != contents[1][1]


def test_a_file_that_was_cut_is_not_called_durable_after_a_failed_fsync(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    writer.append_buffers([b"some bytes"], [[10]])
    [target] = writer.fsync_targets()
    target.state.is_suspect = True
    os.truncate(tmp_path / f"{NAME}.diskqueue.000000.dat", 4)

    with pytest.raises(OSError, match="ends at 4, not at 10"):
        target.fsync()

    assert target.state.is_suspect
    target.close()
    writer.close()
