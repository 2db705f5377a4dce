"""The end of a checksum file."""

import errno
import os
from pathlib import Path

import pytest

from diskqueue import DiskQueue
from diskqueue.checksums import entries
from diskqueue.checksums.file import ChecksumFile, drop_stale
from tests.unit.diskqueue.queue_files import NAME, frame_all, payload, segment_path, write_segment

RECORD = frame_all([payload(1)])


@pytest.fixture
def checksums(tmp_path: Path) -> ChecksumFile:
    found = ChecksumFile(str(segment_path(tmp_path, 0)), NAME, 0)
    found.open(is_new=True)
    return found


def starts(checksums: ChecksumFile) -> list[int]:
    content = Path(checksums.path).read_bytes()
    seed = entries.make_seed(NAME, 0)
    return [entry.start for *_, entry in entries.iter_entries(content, seed, is_last=True)]


def test_appends_follow_each_other_and_the_last_can_be_undone(checksums: ChecksumFile) -> None:
    checksums.append(0, *RECORD)
    checksums.append(32, *RECORD)
    checksums.append(64, *RECORD)
    checksums.undo()

    assert starts(checksums) == [0, 32]
    assert checksums.size_bytes == Path(checksums.path).stat().st_size
    checksums.append(64, *RECORD)
    assert starts(checksums) == [0, 32, 64]


def test_file_of_an_older_segment_is_not_continued(checksums: ChecksumFile, tmp_path: Path) -> None:
    checksums.append(0, *RECORD)
    path = str(segment_path(tmp_path, 0))

    going_on = ChecksumFile(path, NAME, 0)
    going_on.open(is_new=False)
    going_on.append(32, *RECORD)
    assert starts(checksums) == [0, 32]

    ChecksumFile(path, NAME, 0).open(is_new=True)
    assert starts(checksums) == []


def test_failed_write_leaves_no_trace(
    checksums: ChecksumFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    checksums.append(0, *RECORD)
    with monkeypatch.context() as patch:

        def fail(*_: object) -> int:
            raise OSError(errno.ENOSPC, "full")

        patch.setattr(os, "pwrite", fail)
        with pytest.raises(OSError, match="full"):
            checksums.append(32, *RECORD)
    checksums.append(64, *RECORD)

    assert starts(checksums) == [0, 64]


def test_fork_is_joined_where_it_ends(checksums: ChecksumFile) -> None:
    checksums.append(0, *RECORD)
    fork = checksums.fork()
    fork.append(32, *RECORD)
    fork.join(checksums)
    checksums.append(64, *RECORD)

    assert starts(checksums) == [0, 32, 64]
    assert fork.fd == -1


def test_directory_in_the_way_is_renamed(tmp_path: Path) -> None:
    (tmp_path / "t.diskqueue.000000.crc").mkdir()
    checksums = ChecksumFile(str(segment_path(tmp_path, 0)), NAME, 0)

    checksums.open(is_new=True)
    checksums.append(0, *RECORD)

    assert starts(checksums) == [0]
    assert (tmp_path / "t.diskqueue.000000.crc.bad").is_dir()


def test_entries_beyond_the_segment_are_cut_off(checksums: ChecksumFile, tmp_path: Path) -> None:
    records = [frame_all([payload(number)]) for number in range(3)]
    for number, record in enumerate(records):
        checksums.append(32 * number, *record)
    path = write_segment(tmp_path, 0, records[0][0])

    drop_stale(str(path), NAME, 0, 32)

    assert starts(checksums) == [0]


def test_file_of_other_records_is_removed(checksums: ChecksumFile, tmp_path: Path) -> None:
    checksums.append(0, *RECORD)
    path = write_segment(tmp_path, 0, frame_all([payload(7)])[0])

    drop_stale(str(path), NAME, 0, 32)

    assert not Path(checksums.path).exists()


@pytest.mark.parametrize("count", [1, 3, 4, 5, 20, 31])
@pytest.mark.parametrize("entry_count", [0, 1, 300])
def test_torn_entry_of_a_crash_is_cut_off(
    checksums: ChecksumFile, tmp_path: Path, entry_count: int, count: int
) -> None:
    for number in range(entry_count + 1):
        checksums.append(32 * number, *RECORD)
    size = checksums.size_bytes - entries.MIN_ENTRY_BYTES
    checksums.close()
    os.truncate(checksums.path, size + count)

    again = ChecksumFile(str(segment_path(tmp_path, 0)), NAME, 0)
    again.open(is_new=False)
    again.append(32 * entry_count, *RECORD)

    assert os.path.getsize(again.path) == size + entries.MIN_ENTRY_BYTES
    assert starts(again) == [32 * number for number in range(entry_count + 1)]
    again.close()


def test_damage_at_the_end_stays(checksums: ChecksumFile, tmp_path: Path) -> None:
    checksums.append(0, *RECORD)
    checksums.close()
    with open(checksums.path, "ab") as file:
        file.write(bytes(10))

    again = ChecksumFile(str(segment_path(tmp_path, 0)), NAME, 0)
    again.open(is_new=False)

    assert again.size_bytes == entries.MIN_ENTRY_BYTES + 10
    again.close()


def test_group_commit_syncs_checksums_that_records_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = DiskQueue(tmp_path, NAME, has_checksums=True)
    queue.put([payload(0)])
    queue.sync()
    synced: list[str] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}").rpartition(".")[2])
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)

    def commit(*records: bytes) -> list[str]:
        synced.clear()
        queue.put(records)
        job = queue.prepare_sync(with_metadata=False)
        assert job is not None
        job.run()
        queue.complete_sync(job)
        return sorted(synced)

    assert commit(payload(1)) == ["dat"]
    assert commit(payload(2) + bytes(9)) == ["crc", "dat"]
    assert commit(payload(3) + bytes(600) + b"end") == ["crc", "dat"]
    assert commit(payload(4)) == ["dat"]
    synced.clear()
    queue.sync()
    assert "crc" in synced
    assert queue.prepare_sync() is None


def test_the_last_append_can_be_undone_after_a_close(checksums: ChecksumFile) -> None:
    checksums.append(0, *RECORD)
    checksums.append(32, *RECORD)
    checksums.close()

    checksums.undo()

    assert starts(checksums) == [0]
    checksums.open(is_new=False)
    checksums.append(64, *RECORD)
    assert starts(checksums) == [0, 64]
    checksums.close()


@pytest.mark.parametrize("window_bytes", [1, 31, 32, 33, 64, 100, 64 * 1024])
def test_entries_beyond_the_segment_are_cut_off_however_the_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window_bytes: int
) -> None:
    monkeypatch.setattr("diskqueue.checksums.file._WINDOW_BYTES", window_bytes)
    records = [frame_all([payload(number)]) for number in range(7)]
    for left in range(8):
        directory = tmp_path / str(left)
        directory.mkdir()
        path = write_segment(directory, 0, b"".join(data for data, _ in records[:left]))
        checksums = ChecksumFile(str(path), NAME, 0)
        checksums.open(is_new=True)
        for number, record in enumerate(records):
            checksums.append(32 * number, *record)
        checksums.close()

        drop_stale(str(path), NAME, 0, 32 * left)

        assert starts(checksums) == [32 * number for number in range(left)]
        drop_stale(str(path), NAME, 0, 32 * left)
        assert starts(checksums) == [32 * number for number in range(left)]
