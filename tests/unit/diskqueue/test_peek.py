"""Peeking: what `read` would give next, and nothing has happened."""

from pathlib import Path

import pytest

from diskqueue import DiskQueue, QueueClosedError
from tests.unit.diskqueue.queue_files import RECORD_BYTES, drain, payload, segment_path

ALL = 1 << 20


def open_queue(directory: Path, count: int) -> DiskQueue:
    queue = DiskQueue(directory, "t", max_bytes_per_file=10 * RECORD_BYTES)
    queue.put(payload(index) for index in range(count))
    return queue


def test_peek_gives_what_read_gives_across_segments(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, 25)

    peeked = queue.peek(100, ALL)

    assert peeked == [payload(index) for index in range(25)]
    assert (queue.depth, queue.outstanding_count) == (25, 0)
    assert drain(queue) == peeked


def test_peek_begins_behind_what_was_read(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, 25)
    batch = queue.read(4, ALL)
    assert batch is not None

    assert queue.peek(2, ALL) == [payload(len(batch)), payload(len(batch) + 1)]


@pytest.mark.parametrize("count", [1, 10, 11])
def test_peek_keeps_to_the_number_asked_for(tmp_path: Path, count: int) -> None:
    assert len(open_queue(tmp_path, 25).peek(count, ALL)) == count


def test_peek_keeps_to_the_size_asked_for(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, 25)

    assert len(queue.peek(25, 5 * RECORD_BYTES)) == 5
    assert len(queue.peek(25, 15 * RECORD_BYTES)) == 15
    assert len(queue.peek(25, 1)) == 1, "one, however large"


def test_peek_at_an_empty_queue_is_empty(tmp_path: Path) -> None:
    assert open_queue(tmp_path, 0).peek(10, ALL) == []


def test_peek_stops_at_damage_and_leaves_it_to_the_reader(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, 25)
    path = segment_path(tmp_path, 1)
    data = bytearray(path.read_bytes())
    data[3 * RECORD_BYTES : 3 * RECORD_BYTES + 4] = b"\xff\xff\xff\xff"
    path.write_bytes(data)

    assert queue.peek(100, ALL) == [payload(index) for index in range(13)]
    assert queue.depth == 25


def test_peek_at_a_closed_queue_fails(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, 1)
    queue.close()

    with pytest.raises(QueueClosedError):
        queue.peek(1, ALL)
