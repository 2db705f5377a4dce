"""The part of each segment that is read, and the faults that show without reading it."""

from pathlib import Path

from spark_jobs.read.files.catalog import find_queues
from spark_jobs.read.queue import Queue, find_gaps
from tests.spark.data_dirs import content, messages, write_metadata, write_queue, write_segment
from tests.spark.in_process import parse

RECORD = 50  # 30 bytes and a body of 20


def find(path: Path, **options: str) -> list[Queue]:
    return find_queues(parse(path, **options))


def ranges(queue: Queue, **options: str) -> list[tuple[int, int, int]]:
    return [(each.number, each.start, each.end) for each in queue.ranges(parse("x", **options))]


def kinds(queue: Queue) -> list[tuple[str, int | None]]:
    return [(problem.kind, problem.segment) for problem in queue.problems()]


def test_backlog_starts_at_the_read_position(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [messages(0, 3), messages(3, 3), messages(6, 3)], read=(1, RECORD))

    [queue] = find(tmp_path)

    assert ranges(queue) == [(1, RECORD, 3 * RECORD), (2, 0, 3 * RECORD)]
    assert kinds(queue) == []


def test_earliest_is_all_that_is_there(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [messages(0, 3), messages(3, 3)], read=(1, RECORD))

    [queue] = find(tmp_path)

    assert ranges(queue, **{"from": "earliest"}) == [(0, 0, 3 * RECORD), (1, 0, 3 * RECORD)]


def test_nothing_behind_the_synced_position_is_read(tmp_path: Path) -> None:
    write_segment(tmp_path, "t", 0, content(messages(0, 5)))
    write_segment(tmp_path, "t", 1, content(messages(5, 5)))
    write_metadata(tmp_path, "t", read=(0, 0), write=(0, 2 * RECORD))

    [queue] = find(tmp_path)

    assert ranges(queue) == [(0, 0, 2 * RECORD)]
    assert kinds(queue) == [("unsynced", 0), ("unsynced", 1)]


def test_unsynced_records_are_read_when_asked_for(tmp_path: Path) -> None:
    write_segment(tmp_path, "t", 0, content(messages(0, 5)))
    write_segment(tmp_path, "t", 1, content(messages(5, 5)))
    write_metadata(tmp_path, "t", read=(0, RECORD), write=(0, 2 * RECORD))

    [queue] = find(tmp_path)

    expected = [(0, RECORD, 5 * RECORD), (1, 0, 5 * RECORD)]
    assert ranges(queue, includeUnsynced="true") == expected


def test_without_metadata_everything_is_read(tmp_path: Path) -> None:
    write_segment(tmp_path, "t", 2, content(messages(0, 2)))
    write_segment(tmp_path, "t", 7, content(messages(2, 1)))

    [queue] = find(tmp_path)

    assert ranges(queue) == [(2, 0, 2 * RECORD), (7, 0, RECORD)]


def test_missing_segments_are_skipped_and_told(tmp_path: Path) -> None:
    write_segment(tmp_path, "t", 1, content(messages(0, 2)))
    write_segment(tmp_path, "t", 3, content(messages(2, 2)))
    write_metadata(tmp_path, "t", read=(0, RECORD), write=(3, 2 * RECORD))

    [queue] = find(tmp_path)

    assert ranges(queue) == [(1, 0, 2 * RECORD), (3, 0, 2 * RECORD)]
    assert kinds(queue) == [("missing", 0), ("missing", 2)]


def test_files_that_are_too_short_are_told(tmp_path: Path) -> None:
    write_segment(tmp_path, "t", 0, content(messages(0, 2)))
    write_metadata(tmp_path, "t", read=(0, RECORD), write=(0, 3 * RECORD))

    [queue] = find(tmp_path)

    assert ranges(queue) == [(0, RECORD, 2 * RECORD)]
    assert kinds(queue) == [("short", 0)]


def test_a_drained_queue_has_nothing(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [messages(0, 2)], read=(0, 2 * RECORD))
    write_metadata(tmp_path, "u", read=(4, 0), write=(4, 0))

    first, second = find(tmp_path)

    assert ranges(first) == ranges(second) == []
    assert kinds(first) == kinds(second) == []


def test_gaps_are_the_numbers_that_ranges_leave_out() -> None:
    assert find_gaps([range(3, 4), range(5, 9)], 1, 10) == [range(1, 3), range(4, 5), range(9, 10)]
    assert find_gaps([range(20)], 1, 10) == []
    assert find_gaps([range(3), range(12, 15)], 5, 10) == [range(5, 10)]
    assert find_gaps([], 5, 5) == []
