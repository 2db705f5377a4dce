"""Finished records in any order, and many of them behind one that is not finished."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, cast
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskqueue import DiskQueue
from diskqueue.finished import progress
from diskqueue.finished.progress import Outstanding
from diskqueue.finished.sidecar import Fingerprints
from diskqueue.segment import SegmentState
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


def test_records_behind_those_that_were_undone_join_the_run(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    data, lengths = frame_all([payload(0), payload(1, 60)])
    for _ in range(10):
        queue.append(data, lengths)
        queue.advance(lengths)
        queue.append(data, lengths)
        queue.advance(lengths)
        queue.undo_append(lengths)
    queue.commit(range(1, 20))

    job = queue.prepare_sync()

    assert job is not None
    assert job.finished is not None
    assert job.finished.snapshot is not None
    assert len(job.finished.snapshot.runs) == 1


def test_a_sync_steps_over_finished_records_at_the_beginning_of_the_next_segment(
    tmp_path: Path,
) -> None:
    queue = DiskQueue(tmp_path, "t", max_bytes_per_file=3 * RECORD_BYTES)
    queue.put([payload(number) for number in range(5)])
    drain(queue)
    queue.commit([3, 4])
    queue.close()
    queue = DiskQueue(tmp_path, "t", max_bytes_per_file=3 * RECORD_BYTES)
    found = queue.read(3, 1000)
    assert found is not None
    assert numbers(list(found)) == [0, 1, 2]

    queue.commit(range(3))
    queue.sync()

    assert read_metadata(tmp_path) == (0, 1, 2 * RECORD_BYTES, 1, 2 * RECORD_BYTES)
    queue.close()


class Records(NamedTuple):
    """Records of one segment that are added together."""

    sizes: list[int]
    are_lengths: bool


STEPS = st.lists(
    st.one_of(
        st.builds(Records, st.lists(st.integers(30, 90), min_size=1, max_size=9), st.booleans()),
        st.sampled_from(["commit", "commit all", "undo", "next segment", "snapshot", "clear"]),
    ),
    max_size=40,
)


class OutstandingModel:
    """Each record that was added: its segment, where it begins and ends, whether it is finished."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.outstanding = Outstanding()
        self.segment = SegmentState(0, exists=True)
        self.end = 0
        # By ordinal; those before the first that is not finished may be forgotten.
        self.records: dict[int, tuple[SegmentState, int, int]] = {}
        self.finished: set[int] = set()
        self.next_ordinal = 0
        # Of an append that may be undone.
        self.last_count = 0

    @property
    def lowest(self) -> int:
        left = [ordinal for ordinal in self.records if ordinal not in self.finished]
        return min(left, default=self.next_ordinal)

    def add(self, added: Records) -> None:
        start, starts = self.end, []
        for size in added.sizes:
            starts.append(self.end)
            self.records[self.next_ordinal] = (self.segment, self.end, self.end + size)
            self.end += size
            self.next_ordinal += 1
        origin, numbers = (start, added.sizes)
        if not added.are_lengths:
            # As a reader does: a buffer that begins somewhere before.
            origin = self.data.draw(st.integers(0, start))
            numbers = [each - origin for each in starts]
        first = self.outstanding.add(
            self.segment, origin, numbers, self.end, are_lengths=added.are_lengths
        )
        assert first == self.next_ordinal - len(added.sizes)
        self.last_count = len(added.sizes) if added.are_lengths else 0

    def undo(self) -> None:
        count, self.last_count = self.last_count, 0
        last = range(self.next_ordinal - count, self.next_ordinal)
        if not count or self.finished & set(last):
            return
        self.outstanding.remove_last(count)
        self.end -= sum(end - start for _, start, end in (self.records.pop(each) for each in last))
        self.next_ordinal -= count

    def commit(self, *, are_all: bool) -> None:
        if not self.records:
            return
        ordinals = sorted(self.records)
        if not are_all:
            ordinals = self.data.draw(st.lists(st.sampled_from(ordinals), max_size=6))
        self.outstanding.commit(ordinals)
        self.finished.update(ordinals)

    def check(self) -> None:
        lowest = self.lowest
        assert self.outstanding.next_ordinal == self.next_ordinal
        assert self.outstanding.lowest_ordinal == lowest
        assert len(self.outstanding) == self.next_ordinal - lowest
        if lowest < self.next_ordinal:
            assert self.outstanding.find_lowest() == self.records[lowest][:2]
        else:
            assert self.outstanding.find_lowest() is None

    def check_snapshot(self) -> None:
        snapshot = self.outstanding.take_snapshot()
        behind = {ordinal for ordinal in self.finished if ordinal > self.lowest}
        assert (snapshot is not None) == bool(behind)
        if snapshot is None:
            return
        found = []
        for run, block, encoded in snapshot.find_blocks(cast(Fingerprints, EveryFingerprint())):
            assert block.encode() == encoded
            assert run.segment.number == block.number
            found += [
                (block.number, each.start, each.end, each.item_count) for each in block.records
            ]
            assert (block.first_crc, block.last_crc) == (block.records.start, block.last_start)
        covered = [
            (number, place) for number, start, end, _ in found for place in range(start, end)
        ]
        assert covered == [
            (segment.number, place)
            for ordinal, (segment, start, end) in sorted(self.records.items())
            if ordinal in behind
            for place in range(start, end)
        ]
        assert sum(count for *_, count in found) == len(behind)


class EveryFingerprint:
    """Fingerprints that tell where a record begins."""

    def find(self, _number: int, offset: int) -> int:
        return offset


@settings(max_examples=150)
@given(steps=STEPS, trim_count=st.sampled_from([1, 4, 4096]), data=st.data())
def test_records_finished_in_any_order_are_known(
    steps: list[Records | str], trim_count: int, data: st.DataObject
) -> None:
    model = OutstandingModel(data)
    with (
        mock.patch.object(progress, "_TRIM_COUNT", trim_count),
        mock.patch.object(progress, "_MAX_RUN_COUNT", 12),
    ):
        for step in steps:
            if isinstance(step, Records):
                model.add(step)
            elif step == "undo":
                model.undo()
            elif step == "next segment":
                model.segment = SegmentState(model.segment.number + 1, exists=True)
                model.end = 0
                model.last_count = 0
            elif step == "clear":
                model.outstanding.clear()
                model.records.clear()
                model.last_count = 0
            elif step == "snapshot":
                model.check()
                model.check_snapshot()
            else:
                model.commit(are_all=step == "commit all")
            model.check()
        model.check_snapshot()
