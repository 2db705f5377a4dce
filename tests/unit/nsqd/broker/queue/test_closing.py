"""Many queues closed together: the same files as one by one, in an order that a crash can cut."""

import errno
import os
import platform
from collections.abc import Sequence
from pathlib import Path

import pytest

from diskqueue import DiskQueue, layout
from diskqueue.checksums.marks import have_same_mark, mark
from nsqd.broker.broker import run_in_turn
from nsqd.broker.queue.closing import FileSystem, Work, close_together

HISTORIES = ("unused", "new", "read", "finished", "partly finished", "reopened")


def make_queues(directory: Path) -> list[DiskQueue]:
    """Make a queue of each history."""
    queues = []
    for name in HISTORIES:
        queue = DiskQueue(directory, name, max_bytes_per_file=200)
        if name != "unused":
            queue.put([b"%026d" % number for number in range(50)])
        if name == "reopened":
            queue.close()
            queue = DiskQueue(directory, name, max_bytes_per_file=200)
        if name in ("read", "finished", "partly finished"):
            records = queue.read(50, 10_000)
            assert records is not None
            ordinals = range(records.first, records.first + len(records.starts))
            queue.commit({"read": [], "finished": ordinals}.get(name, ordinals[5::2]))
        queues.append(queue)
    return queues


def read_files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


@pytest.fixture
def one_by_one(tmp_path: Path) -> dict[str, bytes]:
    """The files that queues leave which are closed one by one."""
    (tmp_path / "expected").mkdir()
    for queue in make_queues(tmp_path / "expected"):
        queue.close()
    return read_files(tmp_path / "expected")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "queues"
    path.mkdir()
    return path


class FakeFileSystem(FileSystem):
    """A file system that notes what was there when it was synced, and whose syncs may fail."""

    def __init__(self, directory: Path, *, can_sync: bool = True) -> None:
        super().__init__(directory)
        self.can_sync = can_sync
        self.synced: list[set[str]] = []
        self.directory_sync_count = 0

    def sync(self) -> bool:
        self.synced.append(set(os.listdir(self._directory)))
        return self.can_sync

    def sync_directory(self) -> None:
        self.directory_sync_count += 1
        super().sync_directory()


def test_the_files_are_those_of_queues_closed_one_by_one(
    directory: Path, one_by_one: dict[str, bytes]
) -> None:
    file_system = FileSystem(directory)
    queues = make_queues(directory)

    assert close_together(queues, file_system, run_in_turn) == []

    file_system.close()
    assert read_files(directory) == one_by_one
    assert one_by_one["unused.diskqueue.meta.dat"] == b"0\n0,0\n0,0\n"
    for queue in queues:
        queue.close()  # is closed already
    assert read_files(directory) == one_by_one


def test_metadata_counts_only_after_the_sync_of_records_and_metadata(directory: Path) -> None:
    file_system = FakeFileSystem(directory)
    [queue] = [each for each in make_queues(directory) if each.name == "new"]

    close_together([queue], file_system, run_in_turn)

    [names] = file_system.synced
    assert "new.diskqueue.000000.dat" in names
    assert "new.diskqueue.meta.dat" not in names
    assert [name for name in names if name.startswith("new.diskqueue.meta.dat.")]
    assert file_system.directory_sync_count == 1
    assert (directory / "new.diskqueue.meta.dat").exists()
    assert not list(directory.glob("*.tmp"))


def test_without_a_sync_of_all_each_file_is_synced(
    directory: Path, one_by_one: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = make_queues(directory)
    synced: list[str] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    jobs: list[Work] = []

    def run_all(works: Sequence[Work]) -> list[OSError]:
        jobs.extend(works)
        return run_in_turn(works)

    assert close_together(queues, FakeFileSystem(directory, can_sync=False), run_all) == []

    assert read_files(directory) == one_by_one
    assert len(jobs) == len(HISTORIES) - 1  # nothing is to do for the one that was not used again
    assert {"new.diskqueue.000000.dat", "read.diskqueue.000000.dat"} <= set(synced)


def test_a_queue_whose_metadata_finds_no_room_keeps_its_records(
    directory: Path, one_by_one: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = make_queues(directory)
    write = layout.write_all

    def refuse(fd: int, content: bytes | memoryview, position: int) -> None:
        if Path(os.readlink(f"/proc/self/fd/{fd}")).name.startswith("new.diskqueue.meta"):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(fd, content, position)

    monkeypatch.setattr(layout, "write_all", refuse)

    [error] = close_together(queues, FileSystem(directory), run_in_turn)

    assert error.errno == errno.ENOSPC
    del one_by_one["new.diskqueue.meta.dat"]
    assert read_files(directory) == one_by_one
    again = DiskQueue(directory, "new", max_bytes_per_file=200)
    assert again.depth == 50


def test_a_failed_rename_is_reported_and_the_others_are_in_place(
    directory: Path, one_by_one: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = make_queues(directory)
    replace = os.replace

    def refuse(source: str, target: str) -> None:
        if target.endswith("/new.diskqueue.meta.dat"):
            raise OSError(errno.EIO, "Input/output error")
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse)

    [error] = close_together(queues, FileSystem(directory), run_in_turn)

    assert error.errno == errno.EIO
    del one_by_one["new.diskqueue.meta.dat"]
    assert read_files(directory) == one_by_one


def test_a_file_system_that_failed_once_is_not_believed_again(directory: Path) -> None:
    file_system = FileSystem(directory)
    results = iter((0, -1, 0))
    file_system._syncfs = lambda _fd: next(results)  # noqa: SLF001 - no disk fails on demand

    assert [file_system.sync() for _ in range(3)] == [True, False, False]
    assert next(results) == 0


def test_a_queue_that_finds_no_descriptor_is_told_and_closed_with_the_others(
    directory: Path, one_by_one: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = make_queues(directory)
    prepare_sync = DiskQueue.prepare_sync

    def refuse(queue: DiskQueue, **options: bool) -> object:
        if queue.name == "new":
            raise OSError(errno.EMFILE, "Too many open files")
        return prepare_sync(queue, **options)

    with monkeypatch.context() as patch:
        patch.setattr(DiskQueue, "prepare_sync", refuse)
        [error] = close_together(queues, FakeFileSystem(directory), run_in_turn)

    assert error.errno == errno.EMFILE
    files = read_files(directory)
    assert {name: data for name, data in files.items() if not name.startswith("new.")} == {
        name: data for name, data in one_by_one.items() if not name.startswith("new.")
    }
    again = DiskQueue(directory, "new", max_bytes_per_file=200)
    assert again.depth == 50
    again.close()


def test_a_directory_that_is_not_durable_is_told(
    directory: Path, one_by_one: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = make_queues(directory)

    def refuse(_file_system: FileSystem) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(FileSystem, "sync_directory", refuse)
    monkeypatch.setattr(FileSystem, "sync", lambda _file_system: True)

    [error] = close_together(queues, FileSystem(directory), run_in_turn)

    assert error.errno == errno.EIO
    assert read_files(directory) == one_by_one


def test_metadata_beside_a_sync_of_all_needs_no_fsync_of_its_own(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_system = FakeFileSystem(directory)
    queues = [each for each in make_queues(directory) if each.name in ("new", "read")]
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))

    assert close_together(queues, file_system, run_in_turn) == []

    assert synced == [str(directory)]


@pytest.mark.parametrize(
    ("system", "release", "is_found"),
    [
        ("Linux", "5.8.0-generic", True),
        ("Linux", "6.1", True),
        ("Linux", "5.7.19", False),
        ("Linux", "4.19.0", False),
        ("Linux", "unknown", False),
        ("Darwin", "23.1.0", False),
    ],
)
def test_a_sync_of_all_is_believed_where_it_reports_errors(
    directory: Path, monkeypatch: pytest.MonkeyPatch, system: str, release: str, *, is_found: bool
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "release", lambda: release)
    file_system = FileSystem(directory)

    assert file_system.sync() is is_found
    file_system.close()


def test_segments_and_their_checksums_have_their_mark_before_metadata_leads_to_them(
    directory: Path,
) -> None:
    queue = DiskQueue(directory, "new", has_checksums=True)
    queue.put([b"%026d" % number for number in range(5)])
    segment, checksums = (str(directory / f"new.diskqueue.000000.{it}") for it in ("dat", "crc"))
    assert not have_same_mark(segment, checksums)

    assert close_together([queue], FakeFileSystem(directory), run_in_turn) == []

    assert have_same_mark(segment, checksums) is can_mark(directory)


def can_mark(directory: Path) -> bool:
    """Tell whether the file system has extended attributes."""
    paths = [str(directory / name) for name in ("one", "other")]
    for path in paths:
        Path(path).touch()
    mark(paths[0], paths[1])
    return have_same_mark(paths[0], paths[1])
