"""RetainedLog: bounds by bytes and by time, whole segments, and files that other tools can read."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from diskqueue import DiskQueue, envelope, layout
from diskqueue.__main__ import main as diskqueue_main
from nsqd.broker.archive import retention as retention_module
from nsqd.broker.archive.retention import MIN_SEGMENT_BYTES, Chunk, RetainedLog, Retention
from nsqd.broker.queue.batch import Batch

NAME = "t"
SECOND_NS = 10**9
START_NS = 1_700_000_000 * SECOND_NS
MESSAGE_BYTES = 8 * 1024 - 30
RECORD_BYTES = MESSAGE_BYTES + 30
PER_SEGMENT = MIN_SEGMENT_BYTES // RECORD_BYTES


def make_chunk(number: int, *, now_ns: int = START_NS) -> Chunk:
    """A chunk with one message of 8 KiB, whose body begins with its number."""
    body = b"%08d" % number + bytes(MESSAGE_BYTES - 8)
    batch = Batch(now_ns, b"0123456789abc", number % 4096, (body,))
    return Chunk(*batch.records(0, 1), now_ns, now_ns)


def open_log(
    path: Path, *, max_bytes: int = 0, max_age_s: float = 0.0, max_bytes_per_file: int = 2**20
) -> RetainedLog:
    return RetainedLog(
        str(path / "archive"),
        NAME,
        Retention(max_bytes, max_age_s),
        max_bytes_per_file=max_bytes_per_file,
        max_record_bytes=2**20,
    )


def write(
    log: RetainedLog, numbers: Sequence[int], *, now_ns: int = START_NS, deletes: bool = True
) -> None:
    for number in numbers:
        assert log.append([make_chunk(number, now_ns=now_ns)], now_ns) == 1
        if log.trim(now_ns) and deletes:
            log.delete_dropped()


def find_expiry(log: RetainedLog) -> int | None:
    return log.expires_ns


def read_numbers(path: Path) -> list[int]:
    """What a queue of those files has to give."""
    queue = DiskQueue(path / "archive", NAME, max_bytes_per_file=2**30)
    numbers = []
    while (batch := queue.read(1000, 2**20)) is not None:
        numbers += [int(envelope.decode(payload).body[:8]) for payload in batch]
    # It is not closed: that would delete what was read.
    return numbers


def files_of(path: Path) -> layout.QueueFiles:
    return layout.find_queue_files(str(path / "archive"), NAME)


def check(path: Path) -> None:
    assert diskqueue_main(["check", str(path / "archive")]) == 0


def test_an_archive_is_a_queue_that_nobody_reads(tmp_path: Path) -> None:
    log = open_log(tmp_path, max_bytes=2**30)
    write(log, range(5))
    log.close()

    metadata = layout.read_metadata(str(tmp_path / "archive"), NAME)

    assert metadata == layout.Metadata(5, 0, 0, 0, 5 * RECORD_BYTES)
    check(tmp_path)
    assert read_numbers(tmp_path) == [0, 1, 2, 3, 4]


def test_several_chunks_are_one_write(tmp_path: Path) -> None:
    log = open_log(tmp_path, max_bytes=2**30)

    assert log.append([make_chunk(number) for number in range(4)], START_NS) == 4
    log.close()

    assert read_numbers(tmp_path) == [0, 1, 2, 3]


def test_chunks_that_do_not_fit_go_into_the_next_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path, max_bytes=2**30, max_bytes_per_file=RECORD_BYTES * 3)
    chunks = [make_chunk(number) for number in range(5)]

    assert log.append(chunks, START_NS) == 3
    assert log.append(chunks[3:], START_NS) == 2
    log.close()

    assert list(files_of(tmp_path).segments.values()) == [RECORD_BYTES * 3, RECORD_BYTES * 2]
    assert read_numbers(tmp_path) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("max_bytes", "expected"),
    [(0, 2**20), (2**30, 2**20), (4 * 2**20, 2**19), (1000, MIN_SEGMENT_BYTES)],
)
def test_segments_are_an_eighth_of_what_is_kept(max_bytes: int, expected: int) -> None:
    assert Retention(max_bytes, 1.0).segment_bytes(2**20) == expected


def test_bytes_are_bounded(tmp_path: Path) -> None:
    max_bytes = 4 * MIN_SEGMENT_BYTES
    log = open_log(tmp_path, max_bytes=max_bytes)

    for number in range(20 * PER_SEGMENT):
        write(log, [number])
        on_disk = sum(files_of(tmp_path).segments.values())
        assert on_disk == log.size_bytes <= max_bytes
        assert log.size_bytes >= min(number * RECORD_BYTES, max_bytes - 2 * MIN_SEGMENT_BYTES)
    log.close()

    numbers = read_numbers(tmp_path)
    assert numbers == list(range(numbers[0], 20 * PER_SEGMENT))
    assert len(numbers) >= 2 * PER_SEGMENT
    check(tmp_path)


def test_a_message_larger_than_the_bound_is_kept_until_the_next(tmp_path: Path) -> None:
    log = open_log(tmp_path, max_bytes=1000)

    write(log, range(3 * PER_SEGMENT))

    assert log.segment_count == 1
    assert log.size_bytes == PER_SEGMENT * RECORD_BYTES


def test_old_segments_go(tmp_path: Path) -> None:
    log = open_log(tmp_path, max_age_s=80.0)
    for number in range(100):
        write(log, [number], now_ns=START_NS + number * SECOND_NS)
    log.close()

    numbers = read_numbers(tmp_path)

    # A message is kept for the time, and at most an eighth longer.
    assert numbers == list(range(numbers[0], 100))
    assert 10 <= 99 - 80 - numbers[0] + 10 <= 22
    check(tmp_path)


def test_everything_goes_when_nothing_comes(tmp_path: Path) -> None:
    log = open_log(tmp_path, max_age_s=80.0)
    write(log, range(3))
    assert find_expiry(log) == START_NS + 80 * SECOND_NS

    assert not log.trim(START_NS + 80 * SECOND_NS)
    assert log.trim(START_NS + 80 * SECOND_NS + 1)
    log.sync()

    assert (log.size_bytes, log.segment_count, log.record_count, log.oldest_ns) == (0, 0, 0, 0)
    assert find_expiry(log) is None
    assert files_of(tmp_path).segments == {}
    check(tmp_path)
    write(log, [3])
    log.close()
    assert read_numbers(tmp_path) == [3]


def test_the_segment_that_went_last_is_written_down(tmp_path: Path) -> None:
    log = open_log(tmp_path, max_age_s=80.0)
    write(log, range(3))
    log.sync()
    end = tuple(log.end)
    assert log.look(is_pinned=False).last_deleted is None

    log.trim(START_NS + 81 * SECOND_NS)

    assert log.look(is_pinned=False).last_deleted == end
    log.close()
    again = open_log(tmp_path, max_age_s=80.0)
    assert again.look(is_pinned=False).last_deleted == end
    again.close()


def test_nothing_goes_before_the_metadata_says_so(tmp_path: Path) -> None:
    """At no moment does the metadata lead to a file that is gone: so no crash damages it."""
    log = open_log(tmp_path, max_bytes=2 * MIN_SEGMENT_BYTES)

    for number in range(6 * PER_SEGMENT):
        write(log, [number], deletes=False)
        check(tmp_path)
        if log.is_dirty and number % 3 == 0:
            log.delete_dropped()
            check(tmp_path)
        if number % 7 == 0:
            log.sync()
            check(tmp_path)


def test_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    for number in range(10):
        log = open_log(tmp_path, max_bytes=2**30)
        write(log, [number])
        log.close()

    assert list(files_of(tmp_path).segments) == [0]
    log = open_log(tmp_path, max_bytes=2**30)
    assert (log.record_count, log.size_bytes, log.oldest_ns) == (10, 10 * RECORD_BYTES, START_NS)
    assert read_numbers(tmp_path) == list(range(10))


@pytest.mark.parametrize("torn_bytes", [0, 10, RECORD_BYTES - 1])
def test_after_a_kill_all_whole_records_are_there(tmp_path: Path, torn_bytes: int) -> None:
    log = open_log(tmp_path, max_bytes=2**30)
    write(log, range(3))
    log.sync()
    write(log, range(3, 6))
    del log  # nothing was closed or synced
    with (tmp_path / "archive" / "t.diskqueue.000000.dat").open("ab") as file:
        file.write(make_chunk(6).data[:torn_bytes])
    check(tmp_path)

    log = open_log(tmp_path, max_bytes=2**30)
    write(log, [7])
    log.close()

    assert read_numbers(tmp_path) == [0, 1, 2, 3, 4, 5, 7]
    assert list(files_of(tmp_path).segments) == [0, 1]


def test_after_a_kill_between_metadata_and_deletion_nothing_comes_back(tmp_path: Path) -> None:
    log = open_log(tmp_path, max_bytes=2 * MIN_SEGMENT_BYTES)
    write(log, range(PER_SEGMENT))
    segment = tmp_path / "archive" / "t.diskqueue.000000.dat"
    content = segment.read_bytes()
    write(log, range(PER_SEGMENT, 4 * PER_SEGMENT))
    log.close()
    assert not segment.exists()
    (tmp_path / "archive" / "t.diskqueue.000001.dat").write_bytes(content)

    log = open_log(tmp_path, max_bytes=2 * MIN_SEGMENT_BYTES)
    log.close()

    assert not (tmp_path / "archive" / "t.diskqueue.000001.dat").exists()


def test_what_an_earlier_life_left_is_deleted_by_its_real_age(tmp_path: Path) -> None:
    """A file that was copied is younger than its records, and its records count."""
    log = open_log(tmp_path, max_age_s=80.0)
    write(log, range(3))
    log.close()
    path = tmp_path / "archive" / "t.diskqueue.000000.dat"
    os.utime(path, ns=(START_NS + SECOND_NS, START_NS - 500 * SECOND_NS))

    log = open_log(tmp_path, max_age_s=80.0)

    assert not log.trim(START_NS + 79 * SECOND_NS), "older than its records"
    assert log.trim(START_NS + 81 * SECOND_NS)
    log.close()
    assert files_of(tmp_path).segments == {}


def test_counts_stay_exact_when_earlier_segments_go(tmp_path: Path) -> None:
    for life in range(4):
        log = open_log(tmp_path, max_bytes=4 * MIN_SEGMENT_BYTES)
        write(log, range(life * 10, life * 10 + 10))
        log.close()

        numbers = read_numbers(tmp_path)
        assert log.record_count == len(numbers)
        assert numbers[-1] == life * 10 + 9
        metadata = layout.read_metadata(str(tmp_path / "archive"), NAME)
        assert metadata is not None
        assert metadata.depth == len(numbers)


def test_all_blocks_of_an_earlier_segment_are_surveyed(tmp_path: Path) -> None:
    """A segment is read in blocks of 1 MiB: the count is of all, the age of the last record."""
    count = 2**21 // RECORD_BYTES + 3
    log = open_log(tmp_path, max_age_s=800.0, max_bytes_per_file=2**30)
    for number in range(count):
        write(log, [number], now_ns=START_NS + number)
    log.close()
    os.utime(tmp_path / "archive" / "t.diskqueue.000000.dat", ns=(START_NS, START_NS))

    log = open_log(tmp_path, max_age_s=800.0, max_bytes_per_file=2**30)
    write(log, [count], now_ns=START_NS + 799 * SECOND_NS)
    expiry_ns = START_NS + count - 1 + 800 * SECOND_NS

    assert not log.trim(expiry_ns)
    assert find_expiry(log) == expiry_ns
    assert log.trim(expiry_ns + 1)
    assert (log.record_count, log.size_bytes) == (1, RECORD_BYTES)
    log.close()
    assert read_numbers(tmp_path) == [count]


def test_segments_of_this_process_are_not_read_to_be_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("the ages and counts are known")

    monkeypatch.setattr(retention_module, "iter_buffers", fail)
    log = open_log(tmp_path, max_bytes=2 * MIN_SEGMENT_BYTES, max_age_s=80.0)
    write(log, range(4 * PER_SEGMENT))

    assert log.trim(START_NS + 81 * SECOND_NS)
    assert log.record_count == 0
    log.close()


def test_earlier_segments_that_stay_are_known_exactly(tmp_path: Path) -> None:
    log = open_log(tmp_path, max_bytes=3 * MIN_SEGMENT_BYTES)
    for number in range(2 * PER_SEGMENT):
        write(log, [number], now_ns=START_NS + number)
    log.close()

    log = open_log(tmp_path, max_bytes=3 * MIN_SEGMENT_BYTES)
    write(log, range(2 * PER_SEGMENT, 3 * PER_SEGMENT + 1))

    # The first has gone. Of the rest, the metadata counts only the records that are durable.
    assert log.oldest_ns == START_NS + PER_SEGMENT
    metadata = layout.read_metadata(str(tmp_path / "archive"), NAME)
    assert metadata == layout.Metadata(PER_SEGMENT, 1, 0, 1, MIN_SEGMENT_BYTES)
    log.close()


def test_a_damaged_segment_of_an_earlier_process_is_as_old_as_its_file(tmp_path: Path) -> None:
    log = open_log(tmp_path, max_age_s=80.0)
    write(log, range(4))
    log.close()
    path = tmp_path / "archive" / "t.diskqueue.000000.dat"
    with path.open("r+b") as file:
        file.seek(2 * RECORD_BYTES)
        file.write(b"\xff\xff\xff\xff")
    os.utime(path, ns=(START_NS, START_NS + 5 * SECOND_NS))

    log = open_log(tmp_path, max_age_s=80.0)

    assert not log.trim(START_NS + 85 * SECOND_NS)
    assert log.trim(START_NS + 85 * SECOND_NS + 1)
    assert log.record_count == 2, "of the four that the metadata counts, two can be read"
    log.close()
    assert files_of(tmp_path).segments == {}


def test_a_segment_of_an_earlier_process_counts_from_the_read_position(tmp_path: Path) -> None:
    log = open_log(tmp_path, max_age_s=800.0)
    for number in range(3):
        write(log, [number], now_ns=START_NS + number)
    log.close()
    metadata = layout.Metadata(2, 0, RECORD_BYTES, 0, 3 * RECORD_BYTES)
    layout.write_atomically(
        layout.metadata_path(str(tmp_path / "archive"), NAME), layout.format_metadata(metadata)
    )

    log = open_log(tmp_path, max_age_s=800.0)

    assert (log.oldest_ns, log.record_count) == (START_NS + 1, 2)
    write(log, [3], now_ns=START_NS + 200 * SECOND_NS)
    os.utime(tmp_path / "archive" / "t.diskqueue.000000.dat", ns=(START_NS, START_NS))
    log.close()
    log = open_log(tmp_path, max_age_s=800.0)
    assert log.trim(START_NS + 801 * SECOND_NS)
    assert log.record_count == 1
    log.close()


def test_smaller_bounds_hold_at_once(tmp_path: Path) -> None:
    log = open_log(tmp_path, max_bytes=2**30, max_bytes_per_file=MIN_SEGMENT_BYTES)
    write(log, range(5 * PER_SEGMENT))
    log.close()

    log = open_log(tmp_path, max_bytes=2 * MIN_SEGMENT_BYTES)
    assert log.trim(START_NS)
    log.close()

    assert sum(files_of(tmp_path).segments.values()) <= 2 * MIN_SEGMENT_BYTES
    assert read_numbers(tmp_path)[-1] == 5 * PER_SEGMENT - 1


def test_a_failed_write_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path, max_bytes=2**30)
    write(log, [0])

    def write_half(fd: int, pieces: list[bytes], position: int) -> int:
        os.pwrite(fd, pieces[0][:100], position)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", write_half)
        with pytest.raises(OSError, match="No space"):
            write(log, [1])
    assert files_of(tmp_path).segments == {0: RECORD_BYTES}
    write(log, [2])
    log.close()

    assert read_numbers(tmp_path) == [0, 2]


def test_a_short_write_is_carried_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path, max_bytes=2**30)

    def write_half(fd: int, pieces: list[bytes], position: int) -> int:
        return os.pwrite(fd, pieces[0][:100], position)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", write_half)
        write(log, [0, 1])
    log.close()

    assert read_numbers(tmp_path) == [0, 1]


def test_a_failed_fsync_ends_the_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path, max_bytes=2**30)
    write(log, [0])

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="Input/output"):
            log.sync()
    assert log.is_dirty
    write(log, [1])
    log.close()

    assert files_of(tmp_path).segments == {0: RECORD_BYTES, 1: RECORD_BYTES}
    assert read_numbers(tmp_path) == [0, 1]


def test_a_segment_that_cannot_be_synced_does_not_end_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path, max_bytes=2**30)
    write(log, [0])

    def fail(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith("000000.dat"):
            raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        for number in range(1, 6):
            with pytest.raises(OSError, match="Input/output"):
                log.sync()
            write(log, [number])
    log.close()

    assert files_of(tmp_path).segments == {0: RECORD_BYTES, 1: 5 * RECORD_BYTES}
    assert read_numbers(tmp_path) == list(range(6))


def test_what_is_appended_during_a_sync_waits_for_the_next(tmp_path: Path) -> None:
    log = open_log(tmp_path, max_bytes=2**30, max_bytes_per_file=RECORD_BYTES * 2)
    write(log, range(3))

    job = log.begin_sync()
    write(log, range(3, 6))
    assert job.run() is None
    log.end_sync(job, None)

    metadata = layout.read_metadata(str(tmp_path / "archive"), NAME)
    assert metadata == layout.Metadata(3, 0, 0, 1, RECORD_BYTES)
    assert log.is_dirty
    check(tmp_path)
    rest = log.begin_sync()
    assert [target.state.number for target in rest.targets] == [1, 2], "0 is durable"
    for target in rest.targets:
        target.close()
    log.close()
    metadata = layout.read_metadata(str(tmp_path / "archive"), NAME)
    assert metadata == layout.Metadata(6, 0, 0, 2, 2 * RECORD_BYTES)
    assert read_numbers(tmp_path) == list(range(6))


def test_the_deletion_of_a_log_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path)
    write(log, range(3))
    log.sync()
    left: list[list[str]] = []
    directory = tmp_path / "archive"
    monkeypatch.setattr(layout, "fsync_directory", lambda path: left.append(os.listdir(path)))

    log.delete()

    assert left[-1:] == [[]]
    assert os.listdir(directory) == []


def test_what_is_deleted_during_a_sync_stays_deleted(tmp_path: Path) -> None:
    log = open_log(tmp_path, max_bytes=2 * MIN_SEGMENT_BYTES)
    write(log, range(PER_SEGMENT))

    job = log.begin_sync()
    write(log, range(PER_SEGMENT, 5 * PER_SEGMENT))
    assert job.run() is None
    log.end_sync(job, None)

    check(tmp_path)
    numbers = read_numbers(tmp_path)
    assert numbers == list(range(numbers[0], 5 * PER_SEGMENT))
    log.close()
    assert log.record_count == len(numbers)


def test_what_is_deleted_during_its_fsync_is_no_failure(tmp_path: Path) -> None:
    """More segments than the writer holds open are fsynced by their path, which may be gone."""
    log = open_log(tmp_path, max_bytes=20 * MIN_SEGMENT_BYTES, max_bytes_per_file=RECORD_BYTES)
    write(log, range(30))
    sync = log.begin_sync()

    write(log, range(30, 30 + 20 * PER_SEGMENT))
    assert 0 not in files_of(tmp_path).segments
    assert sync.run() is None
    log.end_sync(sync, None)

    log.close()
    check(tmp_path)
    numbers = read_numbers(tmp_path)
    assert numbers == list(range(numbers[0], 30 + 20 * PER_SEGMENT))


def test_a_file_that_is_missing_at_its_fsync_is_a_failure(tmp_path: Path) -> None:
    log = open_log(tmp_path, max_bytes=2**30, max_bytes_per_file=RECORD_BYTES)
    write(log, range(30))
    missing = max(files_of(tmp_path).segments) - 5
    (tmp_path / "archive" / f"t.diskqueue.{missing:06d}.dat").unlink()

    with pytest.raises(FileNotFoundError):
        log.sync()


def test_records_of_a_failed_fsync_are_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may have dropped them, and would call them clean the next time."""
    log = open_log(tmp_path, max_bytes=2**30)
    write(log, [0])
    written: list[int] = []

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    def count(fd: int, content: bytes, position: int) -> int:
        written.append(len(content))
        return pwrite(fd, content, position)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="Input/output"):
            log.sync()
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", count)
    log.sync()

    assert RECORD_BYTES in written
    metadata = layout.read_metadata(str(tmp_path / "archive"), NAME)
    assert metadata == layout.Metadata(1, 0, 0, 1, 0)


def test_a_stray_segment_is_set_aside(tmp_path: Path) -> None:
    log = open_log(tmp_path, max_bytes=2**30, max_bytes_per_file=RECORD_BYTES)
    write(log, [0])
    stray = tmp_path / "archive" / "t.diskqueue.000001.dat"
    stray.write_bytes(b"somebody's")

    write(log, [1])
    log.close()

    assert stray.with_name(stray.name + ".bad").read_bytes() == b"somebody's"
    assert read_numbers(tmp_path) == [0, 1]


def test_deleting_leaves_no_file(tmp_path: Path) -> None:
    log = open_log(tmp_path, max_bytes=2**30, max_bytes_per_file=RECORD_BYTES * 2)
    write(log, range(5))
    log.sync()
    write(log, range(5))

    log.delete()

    assert list((tmp_path / "archive").iterdir()) == []


def test_nothing_published_makes_no_file(tmp_path: Path) -> None:
    log = open_log(tmp_path, max_bytes=2**30)

    log.close()

    assert list((tmp_path / "archive").iterdir()) == []


def test_no_directory_is_made_above_the_archive(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_log(tmp_path / "not mounted", max_bytes=2**30)
    assert list(tmp_path.iterdir()) == []


def test_no_descriptor_is_left(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    log = open_log(tmp_path, max_bytes=4 * MIN_SEGMENT_BYTES)
    write(log, range(10 * PER_SEGMENT))

    log.sync()

    assert len(os.listdir("/proc/self/fd")) == before


def test_nobody_else_may_look_into_the_archive(tmp_path: Path) -> None:
    log = open_log(tmp_path, max_bytes=10**6)
    before = os.umask(0)
    try:
        write(log, [0])
    finally:
        os.umask(before)

    assert (tmp_path / "archive").stat().st_mode & 0o777 == 0o700
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "archive").iterdir()}
    assert modes == {0o600}
