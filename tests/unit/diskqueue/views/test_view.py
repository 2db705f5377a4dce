"""QueueView: which records are unread, and that they stay readable while the queue goes on."""

import os
from pathlib import Path

import pytest

from diskqueue import DiskQueue
from diskqueue.segment import iter_records
from diskqueue.views.pins import Pins
from diskqueue.views.view import SegmentRange


def make_queue(path: Path) -> DiskQueue:
    return DiskQueue(path, "q", max_bytes_per_file=200, min_record_bytes=1)


def records(*numbers: int) -> list[bytes]:
    return [b"record %d " % number + bytes(20) for number in numbers]


def read_all(pins: Pins, ranges: list[SegmentRange]) -> list[int]:
    found = []
    for each in ranges:
        assert each.pin is not None
        fd = pins.open(each.pin)
        path = f"/proc/self/fd/{fd}"
        for offset, record in iter_records(path, each.start, each.end):
            if not any(span.start <= offset < span.end for span in each.finished):
                found.append(int(record.split()[1]))
        os.close(fd)
    return found


def test_records_behind_the_read_position(tmp_path: Path) -> None:
    queue = make_queue(tmp_path)
    queue.put(records(*range(20)))
    queue.read(7, 10_000)

    ranges = queue.view.pin_unread()

    first = queue.outstanding_count
    assert read_all(queue.view.pins, ranges) == list(range(first, 20))
    assert queue.view.committed == (0, 0)
    assert queue.view.unread == (ranges[0].number, ranges[0].start)
    assert queue.view.written == (ranges[-1].number, ranges[-1].end)
    assert len(ranges) > 2


@pytest.mark.parametrize("end", ["consume", "empty", "delete"])
def test_they_stay_when_the_queue_lets_go_of_them(tmp_path: Path, end: str) -> None:
    queue = make_queue(tmp_path)
    queue.put(records(*range(20)))
    queue.sync()
    ranges = queue.view.pin_unread()
    pins = queue.view.pins

    if end == "consume":
        while (found := queue.read(100, 10_000)) is not None:
            queue.commit(range(found.first, found.first + len(found)))
        queue.sync()
    elif end == "empty":
        queue.forget_all()
        queue.sync()
    else:
        queue.delete()
        queue = make_queue(tmp_path)
        queue.put(records(*range(100, 120)))

    assert sum(os.path.exists(each.path) for each in ranges[:-1]) == (
        len(ranges) - 1 if end == "delete" else 0
    )
    assert read_all(pins, ranges) == list(range(20))


def test_a_damaged_segment_that_is_set_aside_stays_for_its_reader(tmp_path: Path) -> None:
    queue = make_queue(tmp_path)
    queue.put(records(*range(12)))
    queue.sync()
    [damaged, *_] = queue.view.pin_unread()
    content = b"\xff" * damaged.end
    Path(damaged.path).write_bytes(content)
    while (found := queue.read(100, 10_000)) is not None:
        queue.commit(range(found.first, found.first + len(found)))

    queue.sync()

    assert not os.path.exists(damaged.path)
    assert damaged.pin is not None
    fd = queue.view.pins.open(damaged.pin)
    assert os.pread(fd, 1000, 0) == content
    os.close(fd)


def test_finished_records_behind_the_position_are_told(tmp_path: Path) -> None:
    queue = make_queue(tmp_path)
    queue.put(records(*range(6)))
    found = queue.read(5, 150)
    assert found is not None
    queue.commit([1, 2])
    queue.sync()
    queue = make_queue(tmp_path)  # as after a crash

    assert read_all(queue.view.pins, queue.view.pin_unread()) == [0, 3, 4, 5]


def test_synced_is_behind_what_was_written(tmp_path: Path) -> None:
    queue = make_queue(tmp_path)
    queue.put(records(0))
    queue.sync()
    synced = queue.view.written
    queue.put(records(1))

    assert queue.view.synced == synced
    assert queue.view.written > synced
    assert [each.end for each in queue.view.list_segments()] == [queue.view.written.offset]


def test_synced_does_not_go_back_when_the_queue_is_opened_again(tmp_path: Path) -> None:
    queue = make_queue(tmp_path)
    queue.put(records(1, 2))
    queue.sync()
    synced = queue.view.synced
    queue.close()

    again = make_queue(tmp_path)
    assert again.view.synced == synced
    again.put(records(3))
    assert again.view.synced == synced
    again.sync()
    assert again.view.synced > synced
