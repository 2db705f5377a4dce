"""The last records of a queue: found by the end of checksum files, and never by reading all."""

import os
from pathlib import Path

import pytest

from diskqueue import DiskQueue, RecordChunk, TailUnknownError
from diskqueue.layout import checksum_path
from tests.unit.diskqueue.queue_files import RECORD_BYTES, frame_all, payload, segment_path

ALL = 1 << 20
SEGMENT_RECORDS = 40_000


def newest(queue: DiskQueue, count: int) -> list[int]:
    """The numbers in the last bodies."""
    return [int(each[26:]) for each in queue.peek(count, ALL, is_newest=True)]


def body(number: int) -> bytes:
    return payload(0)[:26] + b"%d" % number


def fill(directory: Path, count: int, *, has_checksums: bool = True) -> DiskQueue:
    """A queue of one segment, in appends of a thousand."""
    queue = DiskQueue(directory, "t", has_checksums=has_checksums)
    for first in range(0, count, 1000):
        queue.put(body(number) for number in range(first, min(first + 1000, count)))
    return queue


def test_a_long_segment_is_read_at_its_end_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = fill(tmp_path, SEGMENT_RECORDS)
    read_bytes = 0
    pread = os.pread

    def count_bytes(fd: int, size: int, offset: int) -> bytes:
        nonlocal read_bytes
        data = pread(fd, size, offset)
        read_bytes += len(data)
        return data

    monkeypatch.setattr(os, "pread", count_bytes)
    assert newest(queue, 3) == [SEGMENT_RECORDS - 1, SEGMENT_RECORDS - 2, SEGMENT_RECORDS - 3]
    assert read_bytes <= 2 * 64 * 1024 < os.path.getsize(segment_path(tmp_path, 0)) / 10


def test_the_newest_are_found_before_many_that_a_thread_is_writing(tmp_path: Path) -> None:
    queue = fill(tmp_path, SEGMENT_RECORDS)
    job = queue.prepare_append([RecordChunk(*frame_all([body(number) for number in range(4000)]))])

    job.run()

    assert newest(queue, 2) == [SEGMENT_RECORDS - 1, SEGMENT_RECORDS - 2]
    assert job.end()
    assert newest(queue, 2) == [3999, 3998]


def test_single_appends_and_large_bodies_keep_to_the_size(tmp_path: Path) -> None:
    queue = DiskQueue(tmp_path, "t", has_checksums=True)
    for number in range(5):
        queue.put([payload(number, size=1000)])

    assert queue.peek(10, 2500, is_newest=True) == [payload(4, size=1000), payload(3, size=1000)]
    assert queue.peek(10, 1, is_newest=True) == [payload(4, size=1000)], "one, however large"


def test_finished_records_are_left_out(tmp_path: Path) -> None:
    queue = fill(tmp_path, 10)
    batch = queue.read(10, ALL)
    assert batch is not None
    queue.commit([batch.first + 8, batch.first + 9])
    queue.close()
    reopened = DiskQueue(tmp_path, "t", has_checksums=True)

    assert newest(reopened, 3) == [7, 6, 5]


def test_a_short_queue_without_checksums_is_read_through(tmp_path: Path) -> None:
    queue = fill(tmp_path, 25, has_checksums=False)

    assert not os.path.exists(checksum_path(str(segment_path(tmp_path, 0))))
    assert newest(queue, 3) == [24, 23, 22]


def test_a_long_queue_without_checksums_does_not_tell(tmp_path: Path) -> None:
    queue = fill(tmp_path, SEGMENT_RECORDS, has_checksums=False)

    with pytest.raises(TailUnknownError):
        queue.peek(3, ALL, is_newest=True)
    assert len(queue.peek(3, ALL)) == 3


def test_records_behind_damage_are_shown_and_none_before_it(tmp_path: Path) -> None:
    queue = DiskQueue(tmp_path, "t", has_checksums=True)
    for number in range(20):
        queue.put([payload(number)])
    path = segment_path(tmp_path, 0)
    data = bytearray(path.read_bytes())
    data[15 * RECORD_BYTES + 31] ^= 1
    path.write_bytes(data)

    assert newest(queue, 100) == [19, 18, 17, 16]


def test_nothing_is_left_out_before_messages_of_an_older_segment(tmp_path: Path) -> None:
    queue = DiskQueue(tmp_path, "t", has_checksums=True, max_bytes_per_file=3000)
    for number in range(3):
        queue.put([payload(number, size=1000)])  # the last one does not fit
    assert len(list(tmp_path.glob("*.dat"))) == 2
    queue.put([payload(3, size=1500)])
    queue.put([payload(4, size=100)])

    found = queue.peek(10, 1200, is_newest=True)

    assert found == [payload(4, size=100)]
    everything = queue.peek(10, ALL, is_newest=True)
    assert everything == [
        *(payload(4, size=100), payload(3, size=1500)),
        *(payload(number, size=1000) for number in (2, 1, 0)),
    ]


def test_nothing_comes_before_damage_in_a_newer_segment(tmp_path: Path) -> None:
    queue = DiskQueue(tmp_path, "t", has_checksums=True, max_bytes_per_file=3000)
    for number in range(6):
        queue.put([payload(number, size=900)])
    with open(segment_path(tmp_path, 1), "r+b") as file:
        file.seek(904 + 500)  # in the body of the second record
        file.write(b"damage")

    assert queue.peek(10, ALL, is_newest=True) == [payload(5, size=900)]
