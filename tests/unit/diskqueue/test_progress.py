"""Finished records in any order, and many of them behind one that is not finished."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from diskqueue import DiskQueue
from tests.unit.diskqueue.queue_files import (
    RECORD_BYTES,
    drain,
    frame_all,
    framed,
    numbers,
    payload,
    read_metadata,
)


def open_queue(directory: Path) -> DiskQueue:
    return DiskQueue(directory, "t")


def test_commit_in_any_order_and_twice(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.put([payload(number) for number in range(6)])
    drain(queue)

    queue.commit([5, 3, 1])
    queue.commit([1, 1, 3])
    assert queue.outstanding_count == 6
    queue.commit(iter([0]))
    assert queue.outstanding_count == 4
    queue.commit({2, 4})
    assert queue.outstanding_count == 0
    queue.sync()

    assert read_metadata(tmp_path) == (0, 0, 192, 0, 192)


def test_commit_of_an_ordinal_never_handed_out_is_our_bug(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.put([payload(0)])

    with pytest.raises(IndexError):
        queue.commit([0])


def test_one_unfinished_record_holds_a_long_window(tmp_path: Path) -> None:
    queue = DiskQueue(tmp_path, "t")
    count = 20_000
    queue.append(framed(payload(0)) * count, [RECORD_BYTES] * count)
    while (batch := queue.read(1000, 1 << 20)) is not None:
        last = batch.first + len(batch)
        queue.commit(ordinal for ordinal in range(batch.first, last) if ordinal != 12_345)

    assert queue.outstanding_count == count - 12_345
    queue.sync()
    assert read_metadata(tmp_path)[:3] == (count - 12_345, 0, 12_345 * RECORD_BYTES)
    queue.commit([12_345])
    assert queue.outstanding_count == 0


def test_marks_are_trimmed_and_positions_behind_them_stay(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    count = 10_000
    data, lengths = framed(payload(0)) * 1000, [RECORD_BYTES] * 1000
    for _ in range(count // 1000):
        queue.append(data, lengths)
        queue.advance(lengths)

    for first in range(0, 5500, 500):
        queue.commit(range(first, first + 500))

    assert queue.outstanding_count == 4500
    queue.sync()
    assert read_metadata(tmp_path) == (4500, 0, 5500 * RECORD_BYTES, 0, count * RECORD_BYTES)
    queue.commit(range(5501, count))
    queue.sync()
    assert read_metadata(tmp_path)[:3] == (4500, 0, 5500 * RECORD_BYTES)
    assert len(drain(open_queue(tmp_path))) == 1
    queue.commit([5500])
    assert queue.outstanding_count == 0


@contextlib.contextmanager
def counted_lines() -> Iterator[list[int]]:
    """The line numbers that this thread has run inside."""
    lines: list[int] = []

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            lines.append(frame.f_lineno)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("step", [2, 1000])
def test_many_outstanding_records_are_cheap_for_the_owner(tmp_path: Path, step: int) -> None:
    """The thread that owns the queue takes no step per record when it prepares a sync."""
    queue = DiskQueue(tmp_path, "t")
    count = 200_000
    data, lengths = framed(payload(0)) * 1000, [RECORD_BYTES] * 1000
    for _ in range(count // 1000):
        queue.append(data, lengths)
        queue.advance(lengths)
    queue.commit(ordinal for ordinal in range(count) if ordinal % step)

    with counted_lines() as lines:
        job = queue.prepare_sync()
    assert job is not None
    assert len(lines) < 1000
    job.run()
    queue.complete_sync(job)
    again = DiskQueue(tmp_path, "t")

    assert again.depth == count // step
    assert len(drain(again)) == count // step


def test_runs_of_single_records_are_joined(tmp_path: Path) -> None:
    queue = DiskQueue(tmp_path, "t")
    record, lengths = framed(payload(0)), [RECORD_BYTES]
    for _ in range(10_000):
        queue.append(record, lengths)
        queue.advance(lengths)
    queue.commit(range(1, 10_000))
    job = queue.prepare_sync()

    assert job is not None
    assert job.finished is not None
    assert job.finished.snapshot is not None
    assert len(job.finished.snapshot.runs) == 10
    job.run()
    assert (tmp_path / "t.diskqueue.finished").stat().st_size < 600


def test_undo_within_a_joined_run(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    for number in range(4):
        data, lengths = frame_all([payload(number)])
        queue.append(data, lengths)
        queue.advance(lengths)
    data, lengths = frame_all([payload(50), payload(51, 60)])
    queue.append(data, lengths)
    queue.advance(lengths)

    queue.undo_append(lengths)

    data, lengths = frame_all([payload(4)])
    queue.append(data, lengths)
    assert queue.advance(lengths) == 4
    queue.commit([0, 1, 3, 4])
    queue.sync()
    assert numbers(drain(open_queue(tmp_path))) == [2]
