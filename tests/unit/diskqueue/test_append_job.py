"""AppendJob: an append that another thread writes while the queue goes on."""

import contextlib
import errno
import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskqueue import DiskQueue, QueueClosedError, RecordChunk, RecordTooLargeError
from tests.unit.diskqueue.queue_files import drain, frame_all

pytestmark = pytest.mark.usefixtures("closes_files")

NAME = "q"


def open_queue(
    path: Path, *, max_bytes_per_file: int = 200, has_checksums: bool = False
) -> DiskQueue:
    return DiskQueue(path, NAME, max_bytes_per_file=max_bytes_per_file, has_checksums=has_checksums)


def records(*numbers: int) -> list[bytes]:
    return [b"%030d" % number for number in numbers]


def chunks_of(*groups: list[bytes]) -> list[RecordChunk]:
    return [RecordChunk(*frame_all(group)) for group in groups]


def append_aside(queue: DiskQueue, *groups: list[bytes]) -> None:
    job = queue.prepare_append(chunks_of(*groups))
    job.run()
    assert job.end()


def contents(path: Path) -> dict[str, bytes]:
    suffixes = (".dat", ".crc")
    return {each.name: each.read_bytes() for each in path.iterdir() if each.suffix in suffixes}


def test_records_appear_when_the_job_is_complete(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.put(records(1, 2))
    job = queue.prepare_append(chunks_of(records(3, 4, 5), records(6)))

    job.run()
    assert queue.depth == 2
    assert drain(queue) == records(1, 2)
    assert job.end()

    assert queue.depth == 4
    assert drain(queue) == records(3, 4, 5, 6)
    queue.close()


@settings(max_examples=60, deadline=None)
@given(
    before=st.integers(0, 8),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    max_bytes=st.sampled_from([1, 34, 100, 137, 1000]),
)
def test_it_leaves_the_same_files_as_an_append(
    tmp_path_factory: pytest.TempPathFactory, before: int, sizes: list[int], max_bytes: int
) -> None:
    groups = [records(*range(100 * index, 100 * index + n)) for index, n in enumerate(sizes)]
    paths = [tmp_path_factory.mktemp("queue") for _ in range(2)]
    queues = [open_queue(path, max_bytes_per_file=max_bytes) for path in paths]
    for queue in queues:
        queue.put(records(*range(1000, 1000 + before)))

    queues[0].put([record for group in groups for record in group])
    append_aside(queues[1], *groups)

    assert contents(paths[0]) == contents(paths[1])
    for queue in queues:
        queue.put(records(9))
        queue.sync()
    assert contents(paths[0]) == contents(paths[1])
    assert drain(queues[0]) == drain(queues[1])
    for queue in queues:
        queue.close()


def test_reads_commits_and_syncs_go_on_meanwhile(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.put(records(1, 2, 3))
    job = queue.prepare_append(chunks_of(records(*range(10, 30))))

    first = queue.read(1, 1000)
    assert first is not None
    queue.commit([first.first])
    queue.sync()
    job.run()
    queue.sync()
    assert job.end()

    assert drain(queue) == records(2, 3, *range(10, 30))
    queue.close()
    again = open_queue(tmp_path)
    assert drain(again) == records(2, 3, *range(10, 30))
    again.close()


def test_a_sync_that_frees_the_segment_waits_for_the_job(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, max_bytes_per_file=100_000)
    queue.put(records(1))
    read = queue.read(1, 1000)
    assert read is not None
    queue.commit([read.first])
    job = queue.prepare_append(chunks_of(records(2)))

    queue.wants_room = True
    queue.sync()
    job.run()

    assert job.end()
    assert drain(queue) == records(2)
    queue.close()


@pytest.mark.parametrize("has_checksums", [False, True])
@pytest.mark.parametrize("failing_call", [1, 2, 3])
def test_a_job_that_fails_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing_call: int, *, has_checksums: bool
) -> None:
    queue = open_queue(tmp_path, max_bytes_per_file=100, has_checksums=has_checksums)
    queue.put(records(1))
    before = contents(tmp_path)
    calls = 0
    real = os.pwrite

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        nonlocal calls
        calls += 1
        if calls == failing_call:
            real(fd, bytes(data)[:7], offset)
            raise OSError(errno.ENOSPC, "full")
        return real(fd, data, offset)

    job = queue.prepare_append(chunks_of(records(*range(2, 9))))
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        with pytest.raises(OSError, match="full"):
            job.run()
    assert not job.end()

    assert contents(tmp_path) == before
    queue.put(records(10))
    assert drain(queue) == records(1, 10)
    queue.close()


@pytest.mark.parametrize("has_checksums", [False, True])
def test_a_job_is_undone_if_another_queue_refused_its_part(
    tmp_path: Path, *, has_checksums: bool
) -> None:
    queue = open_queue(tmp_path, max_bytes_per_file=100, has_checksums=has_checksums)
    queue.put(records(1))
    before = contents(tmp_path)
    job = queue.prepare_append(chunks_of(records(*range(2, 9))))
    job.run()

    job.undo()
    assert not job.end()

    assert contents(tmp_path) == before
    queue.put(records(10))
    assert drain(queue) == records(1, 10)
    queue.close()


@pytest.mark.parametrize("has_checksums", [False, True])
@pytest.mark.parametrize("is_written", [False, True])
@pytest.mark.parametrize("has_file", [False, True])
def test_emptying_cancels_a_job(
    tmp_path: Path, *, is_written: bool, has_file: bool, has_checksums: bool
) -> None:
    queue = open_queue(tmp_path, max_bytes_per_file=100, has_checksums=has_checksums)
    if has_file:
        queue.put(records(1))
    job = queue.prepare_append(chunks_of(records(*range(2, 9))))
    if is_written:
        job.run()

    queue.empty()
    if not is_written:
        job.run()

    assert not job.end()
    assert contents(tmp_path) == {}
    append_aside(queue, records(20, 21, 22))
    assert drain(queue) == records(20, 21, 22)
    queue.close()


def test_a_job_of_a_deleted_queue_leaves_its_successor_alone(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, max_bytes_per_file=100)
    job = queue.prepare_append(chunks_of(records(*range(2, 9))))
    queue.delete()
    successor = open_queue(tmp_path, max_bytes_per_file=100)
    successor.put(records(1))
    before = contents(tmp_path)

    job.run()

    assert not job.end()
    assert contents(tmp_path) == before
    with pytest.raises(QueueClosedError):
        queue.prepare_append(chunks_of(records(1)))
    successor.close()


def test_a_failed_fsync_cancels_a_job_that_writes_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = open_queue(tmp_path, max_bytes_per_file=1000)
    queue.put(records(1))
    job = queue.prepare_append(chunks_of(records(2)))

    def fsync(_fd: int) -> None:
        raise OSError(errno.EIO, "lost")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(OSError, match="lost"):
            queue.sync()
    job.run()

    assert not job.end()
    append_aside(queue, records(2))
    assert drain(queue) == records(1, 2)
    queue.close()


def test_records_outside_the_limits_are_refused(tmp_path: Path) -> None:
    queue = DiskQueue(tmp_path, NAME, max_record_bytes=100)

    with pytest.raises(RecordTooLargeError):
        queue.prepare_append(chunks_of(records(1), [bytes(101)]))
    with pytest.raises(RecordTooLargeError):
        queue.prepare_append(chunks_of([bytes(3)]))

    queue.put(records(1))
    queue.close()


def test_the_rest_of_a_chunk(tmp_path: Path) -> None:
    [chunk] = chunks_of([bytes(30), bytes(40), bytes(50)])

    assert chunk.since(0) is chunk
    rest = chunk.since(2)

    assert (rest.data, list(rest.lengths)) == (chunk.data[-54:], [54])
    assert (rest.shortest, rest.longest) == (54, 54)
    assert (chunk.shortest, chunk.longest) == (34, 54)


def test_files_in_the_middle_of_an_append_are_closed_once_they_are_written(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, max_bytes_per_file=100, has_checksums=True)
    queue.put(records(1))
    job = queue.prepare_append(chunks_of(records(*range(9))))

    job.run()

    assert find_open_segments(tmp_path) == {0, 4}
    assert job.end()
    queue.close()


def find_open_segments(path: Path) -> set[int]:
    """The numbers of the segments that are open, or have open checksums."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the directory's own
            target = Path(os.readlink(f"/proc/self/fd/{fd}"))
            if target.parent == path:
                found.add(int(target.name.split(".")[2]))
    return found


def test_other_threads_get_the_interpreter_between_many_checksums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = open_queue(tmp_path, max_bytes_per_file=1_000_000, has_checksums=True)
    rests: list[float] = []
    monkeypatch.setattr(time, "sleep", rests.append)

    append_aside(queue, *[records(*range(1000))] * 9)
    assert len(rests) == 2
    append_aside(queue, records(*range(9000)))
    assert len(rests) == 2, "a single chunk has no place to rest"

    queue.close()


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, max_bytes_per_file=100)
    append_aside(queue, records(*range(9)))
    cancelled = queue.prepare_append(chunks_of(records(*range(9))))
    cancelled.run()
    queue.empty()
    cancelled.undo()
    queue.close()

    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the directory's own
            assert str(tmp_path) not in os.readlink(f"/proc/self/fd/{fd}")
