"""Messages that were finished behind the read position are no backlog any more."""

import zlib
from pathlib import Path

import pytest

from diskqueue import DiskQueue, sidecar
from diskqueue.intervals import Interval, Intervals
from diskqueue.sidecar import Block, Position
from spark_jobs.read import plan
from spark_jobs.read.catalog import find_gaps, find_queues
from spark_jobs.read.columns import arrow_schema, message_schema
from spark_jobs.read.options import parse_read_options
from spark_jobs.read.predicate import Predicate
from spark_jobs.read.scan import SlicePack, read_batches
from tests.spark.data_dirs import (
    content,
    message,
    messages,
    segment_path,
    write_queue,
    write_segment,
)

RECORD = 50


def numbers(path: Path, **options: str) -> list[int]:
    """Which messages a read has, told by their ids."""
    parsed = parse_read_options({"path": str(path)} | options)
    schema = arrow_schema(message_schema(("id", "body")))
    found: list[int] = []
    for pack in plan.plan_scan(parsed, Predicate()):
        assert isinstance(pack, SlicePack)
        for batch in read_batches(pack.slices, schema, plan.settings(parsed)):
            found += [int(value, 16) for value in batch["id"].to_pylist()]
            assert batch["body"].to_pylist() == [message(n).body for n in found[-len(batch) :]]
    return found


def block(path: Path, number: int, *records: tuple[int, int]) -> bytes:
    """A block of ranges of records, each given by its first one and the one behind its last."""
    data = segment_path(path, "t", number).read_bytes()

    def crc(start: int) -> int:
        return zlib.crc32(data[start : start + 30])

    finished = Intervals(Interval(a * RECORD, b * RECORD, b - a) for a, b in records)
    last = finished.end - RECORD
    return Block(number, finished, last, crc(finished.start), crc(last)).encode()


def write_sidecar(
    path: Path,
    blocks: list[bytes],
    *,
    previous: tuple[int, int] = (0, 0),
    read: tuple[int, int] = (0, RECORD),
    gaps: tuple[int, ...] = (),
) -> Path:
    data = segment_path(path, "t", read[0]).read_bytes()
    crc = zlib.crc32(data[read[1] : read[1] + 30])
    body = sidecar.encode_body(Position(*read), crc, Intervals.of_numbers(gaps), blocks)
    file = path / "t.diskqueue.finished"
    file.write_bytes(sidecar.encode(Position(*previous), body))
    return file


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two segments of ten messages; the first message is finished."""
    write_queue(tmp_path, "t", [messages(0, 10), messages(10, 10)], read=(0, RECORD))
    return tmp_path


def test_the_backlog_leaves_them_out(data: Path) -> None:
    write_sidecar(data, [block(data, 0, (2, 4), (4, 5), (9, 10)), block(data, 1, (0, 3), (5, 6))])

    backlog = numbers(data)

    assert backlog == [1, 5, 6, 7, 8, 13, 14, *range(16, 20)]
    assert numbers(data, splitBytes="100") == backlog
    assert numbers(data, since=str(message(6).timestamp_ns)) == backlog[2:]
    assert numbers(data, until=str(message(14).timestamp_ns)) == [1, 5, 6, 7, 8, 13]
    assert numbers(data, **{"from": "earliest"}) == list(range(20))


def test_without_the_file_all_are_unfinished(data: Path) -> None:
    assert numbers(data) == list(range(1, 20))


@pytest.mark.parametrize("size", [0, 20, 100])
def test_a_damaged_file_proves_nothing(data: Path, size: int) -> None:
    file = write_sidecar(data, [block(data, 0, (2, 4))])
    file.write_bytes(file.read_bytes()[:size])

    assert numbers(data) == list(range(1, 20))


@pytest.mark.parametrize(
    ("previous", "read"), [((0, 0), (0, 0)), ((0, 2 * RECORD), (1, 0)), ((1, 0), (1, 0))]
)
def test_a_file_for_another_read_position_proves_nothing(
    data: Path, previous: tuple[int, int], read: tuple[int, int]
) -> None:
    write_sidecar(data, [block(data, 0, (2, 4))], previous=previous, read=read)

    assert numbers(data) == list(range(1, 20))


def test_other_records_in_the_same_place_are_unfinished(data: Path) -> None:
    """Another nsqd has worked on the directory meanwhile."""
    write_sidecar(data, [block(data, 0, (2, 4)), block(data, 1, (2, 4))])
    write_segment(data, "t", 1, content(messages(100, 10)))

    assert numbers(data) == [1, *range(4, 10), *range(100, 110)]


def test_segments_deleted_out_of_order_are_not_missing(data: Path) -> None:
    write_queue(data, "t", [messages(n * 10, 10) for n in range(4)], read=(0, RECORD))
    write_sidecar(data, [block(data, 0, (2, 4))], gaps=(1, 2))
    for number in (1, 2):
        segment_path(data, "t", number).unlink()

    [queue] = find_queues(parse_read_options({"path": str(data), "from": "earliest"}))

    assert list(queue.problems()) == []
    assert numbers(data, mode="FAILFAST") == [1, *range(4, 10), *range(30, 40)]


def test_a_crash_between_the_two_files(data: Path) -> None:
    """The sidecar knows a newer read position than the metadata."""
    write_sidecar(data, [block(data, 0, (7, 8))], previous=(0, RECORD), read=(0, 5 * RECORD))

    assert numbers(data) == [5, 6, *range(8, 20)]


def test_nsqds_own_file(tmp_path: Path) -> None:
    """Of messages that are finished in any order, what is left is the backlog."""
    queue = DiskQueue(tmp_path, "t", max_bytes_per_file=10 * RECORD)
    queue.put([each.record()[4:] for each in messages(0, 60)])
    left = {0, 3, 4, 17, 29, 41, 58}
    ordinals: list[int] = []
    while (batch := queue.read(60, 1 << 20)) is not None:
        ordinals += range(batch.first, batch.first + len(batch))
    queue.commit([ordinal for number, ordinal in enumerate(ordinals) if number not in left])
    queue.sync()
    try:
        assert len(ordinals) == 60
        assert numbers(tmp_path, mode="FAILFAST") == sorted(left)
        [found] = find_queues(parse_read_options({"path": str(tmp_path)}))
        assert list(found.problems()) == []
    finally:
        queue.close()


def test_gaps() -> None:
    assert find_gaps([range(3, 4), range(5, 9)], 1, 10) == [range(1, 3), range(4, 5), range(9, 10)]
    assert find_gaps([range(20)], 1, 10) == []
    assert find_gaps([range(3), range(12, 15)], 5, 10) == [range(5, 10)]
    assert find_gaps([], 5, 5) == []
