"""A daemon may be started without stdin, and then descriptor 0 is one like any other.

Each descriptor that a queue opens has that number once; the queue does the same as with others, and
closes what it has opened.
"""

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from diskqueue import DiskQueue, RecordChunk
from diskqueue.segment import SegmentState
from diskqueue.writer import Writer
from tests.unit.diskqueue.queue_files import (
    RECORD_BYTES,
    damaged_records,
    drain,
    frame_all,
    numbers,
    payload,
    segment_path,
)


def open_queue(directory: Path, max_count: int = 3, *, has_checksums: bool) -> DiskQueue:
    return DiskQueue(
        *(directory, "t"),
        max_bytes_per_file=max_count * RECORD_BYTES,
        holds_messages=True,
        has_checksums=has_checksums,
    )


def put(queue: DiskQueue, *numbers_put: int) -> list[int]:
    data, lengths = frame_all([payload(number) for number in numbers_put])
    queue.append(data, lengths)
    return lengths


def write_and_read(directory: Path, *, has_checksums: bool) -> list[Any]:
    queue = open_queue(directory, has_checksums=has_checksums)
    seen: list[Any] = []
    put(queue, 0)
    put(queue, 1)
    seen.append(numbers(queue.peek(1, 1000)))
    seen.append(numbers(list(queue.read(1, 1000) or ())))
    queue.sync()
    put(queue, 2)
    put(queue, 3)  # of the next segment
    put(queue, 4, 5, 6, 7)  # by a job, of two
    queue.undo_append(put(queue, 50))
    queue.undo_append(put(queue, 51, 52, 53, 54))
    queue.commit([0])
    # One segment after the other is read, and one is given up while it is read from outside.
    held = queue.view.pin_unread()
    seen.append(numbers(drain(queue, 2)))
    queue.commit(range(1, 5))
    queue.sync()
    for it in held:
        assert it.pin is not None
        fd = queue.view.pins.open(it.pin)
        seen.append(os.pread(fd, it.end - it.start, it.start))
        os.close(fd)
        if has_checksums:
            fd, are_same = queue.view.pins.open_checksums(it.pin)
            os.close(fd)
            seen.append(are_same)
        queue.view.pins.release(it.pin)
    seen.append((queue.depth, queue.disk_bytes, queue.segment_count))
    queue.close()
    queue = open_queue(directory, has_checksums=has_checksums)
    put(queue, 8)
    seen.append(numbers(drain(queue)))
    queue.empty()
    put(queue, 9)
    queue.close()
    return seen


def write_in_jobs(directory: Path, *, has_checksums: bool) -> list[Any]:
    queue = open_queue(directory, has_checksums=has_checksums)
    seen: list[Any] = []
    for first, is_cancelled in ((0, False), (10, True), (20, False), (30, True), (40, False)):
        job = queue.prepare_append([RecordChunk(*frame_all([payload(first), payload(first + 1)]))])
        if is_cancelled:
            job.cancel()
        job.run()
        seen.append(job.end())
        queue.sync()
    job = queue.prepare_append([RecordChunk(*frame_all([payload(90)]))])
    job.run()
    seen.append(numbers(drain(queue)))
    queue.close()  # in the midst of it
    seen.append(job.end())
    return seen


def find_damage(directory: Path, *, has_checksums: bool) -> list[Any]:
    queue = open_queue(directory, 100, has_checksums=has_checksums)
    for number in range(5):
        put(queue, number)
    queue.sync()
    segment_path(directory, 0).write_bytes(damaged_records())
    put(queue, 5)
    seen: list[Any] = [numbers(drain(queue)), queue.segment_count]
    put(queue, 6)
    seen.append(numbers(drain(queue)))
    queue.forget_all()
    queue.sync()
    put(queue, 7)
    queue.close()
    return seen


def start_after_a_crash(directory: Path, *, has_checksums: bool) -> list[Any]:
    queue = open_queue(directory, has_checksums=has_checksums)
    put(queue, 0)
    queue.sync()
    put(queue, 1, 2, 3)
    copy = directory / "crash"
    copy.mkdir()
    for path in directory.iterdir():
        if path.is_file():
            (copy / path.name).write_bytes(path.read_bytes())
    queue.delete()
    queue = open_queue(copy, has_checksums=has_checksums)
    put(queue, 4)
    seen: list[Any] = [numbers(drain(queue))]
    queue.close()
    return seen


def write_an_archive(directory: Path, *, has_checksums: bool) -> list[Any]:
    """As nsqd's archive writes, which says itself where a segment ends."""
    writer = Writer(
        *(str(directory), "t", SegmentState(0), 1000, logging.getLogger("test")),
        has_checksums=has_checksums,
    )
    seen: list[Any] = []
    for number in range(12):
        for _ in range(2):
            data, lengths = frame_all([payload(number)])
            writer.append_buffers([data], [lengths])
        seen.append((writer.segment.number, writer.segment.end))
        writer.start_new_segment()
    writer.close()
    return seen


def finish_out_of_order(directory: Path, *, has_checksums: bool) -> list[Any]:
    queue = open_queue(directory, has_checksums=has_checksums)
    seen: list[Any] = []
    put(queue, *range(8))
    drain(queue, 8)
    for number in (7, 4, 1):
        queue.commit([number])
        queue.sync()
    queue.close()
    queue = open_queue(directory, has_checksums=has_checksums)
    seen.append(numbers(drain(queue)))
    queue.close()
    return seen


SCENARIOS = (
    *(write_and_read, write_in_jobs, find_damage, start_after_a_crash, write_an_archive),
    finish_out_of_order,
)


def open_descriptors() -> set[str]:
    """All that are open, but for the one that lists them."""
    return {name for name in os.listdir("/proc/self/fd") if Path(f"/proc/self/fd/{name}").exists()}


class Numbers:
    """Gives descriptor 0 to the call of `os.open` or `os.dup` that is chosen."""

    def __init__(self) -> None:
        self.chosen = 0
        self.count = 0

    def wrap(self, call: Callable[..., int]) -> Callable[..., int]:
        def open_one(*arguments: Any, **options: Any) -> int:
            self.count += 1
            if self.count == self.chosen:
                os.close(0)
            return call(*arguments, **options)

        return open_one


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Iterator[Numbers]:
    given = Numbers()
    stdin = os.dup(0)
    monkeypatch.setattr(os, "fsync", lambda _fd: None)  # not tested here
    monkeypatch.setattr(os, "open", given.wrap(os.open))
    monkeypatch.setattr(os, "dup", given.wrap(os.dup))
    yield given
    os.dup2(stdin, 0)
    os.close(stdin)


@pytest.mark.parametrize("has_checksums", [False, True])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_descriptor_0_is_one_like_any_other(
    tmp_path: Path,
    given: Numbers,
    scenario: Callable[..., list[Any]],
    has_checksums: bool,  # noqa: FBT001
) -> None:
    stdin = os.dup(0)

    def play(chosen: int) -> tuple[list[Any], int, dict[str, int]]:
        given.chosen, given.count = chosen, 0
        directory = tmp_path / str(chosen)
        directory.mkdir()
        before = open_descriptors()

        seen = scenario(directory, has_checksums=has_checksums)

        assert open_descriptors() == (before - {"0"} if chosen else before), "one stays open"
        os.dup2(stdin, 0)
        sizes = {path.name: path.stat().st_size for path in directory.rglob("*.*")}
        return seen, given.count, sizes

    expected = play(0)

    assert given.count > 10
    for chosen in range(1, given.count + 1):
        assert play(chosen) == expected, chosen
    os.close(stdin)
