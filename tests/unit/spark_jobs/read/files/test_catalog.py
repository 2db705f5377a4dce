"""Queues of directories: names, selection, archive, nodes, finished records, a busy nsqd."""

import zlib
from pathlib import Path

import pytest

from diskqueue import DiskQueue, layout
from diskqueue.finished import sidecar
from diskqueue.finished.intervals import Interval, Intervals
from diskqueue.finished.sidecar import Block, Position
from spark_jobs.read.files.catalog import find_queues, node_names
from spark_jobs.read.queue import Queue
from tests.spark.data_dirs import (
    content,
    message,
    messages,
    segment_path,
    write_metadata,
    write_queue,
    write_segment,
)
from tests.spark.in_process import parse, read_table

RECORD = 50  # 30 bytes and a body of 20


def find(path: Path, **options: str) -> list[Queue]:
    return find_queues(parse(path, **options))


def ranges(queue: Queue, **options: str) -> list[tuple[int, int, int]]:
    return [(each.number, each.start, each.end) for each in queue.ranges(parse("x", **options))]


def kinds(queue: Queue) -> list[tuple[str, int | None]]:
    return [(problem.kind, problem.segment) for problem in queue.problems()]


@pytest.mark.parametrize("text", ["", "garbage", "1\n5,0\n2,100\n", "1\n0,0\n"])
def test_with_unusable_metadata_everything_is_read(text: str, tmp_path: Path) -> None:
    write_segment(tmp_path, "t", 2, content(messages(0, 2)))
    (tmp_path / "t.diskqueue.meta.dat").write_text(text)

    [queue] = find(tmp_path)

    assert ranges(queue) == [(2, 0, 2 * RECORD)]
    assert kinds(queue) == [("metadata", None)]


def test_only_nsqds_files_name_queues(tmp_path: Path) -> None:
    names = ["a", "a:b", "a.bad", "x#ephemeral:c", "..", "100%s"]
    for name in names:
        write_segment(tmp_path, name, 1_000_000, b"")
    write_segment(tmp_path, "q", 0, b"").rename(tmp_path / "q.diskqueue.000000.dat.bad.1")
    for other in ("nsqd.dat", "b.diskqueue.00000.dat", "c.diskqueue.meta.dat.5.tmp", "d.dat.bad"):
        (tmp_path / other).write_text("x")

    queues = {queue.name: queue for queue in find(tmp_path)}

    assert set(queues) == {*names, "q"}
    assert (queues["a:b"].topic, queues["a:b"].channel) == ("a", "b")
    assert queues["a"].channel is None
    assert list(queues["a.bad"].sizes) == [1_000_000]
    assert queues["q"].bad_files == {"q.diskqueue.000000.dat.bad.1": (0, 0)}


def test_only_selected_queues(tmp_path: Path) -> None:
    for name in ("orders", "orders:a", "pay:a"):
        write_queue(tmp_path, name, [messages(0, 1)])

    assert [queue.name for queue in find(tmp_path, topic="o*", channel="*")] == ["orders:a"]
    assert find(tmp_path, topic="nothing") == []


def test_the_archive_is_a_directory_of_its_own(tmp_path: Path) -> None:
    # nsqd has given up segment 0 and not deleted it yet.
    write_queue(tmp_path / "archive", "t", [messages(0, 2), messages(2, 2)], read=(1, 0))
    write_queue(tmp_path, "t", [messages(0, 1)])

    [queue] = find(tmp_path, **{"from": "archive"})

    assert queue.node == tmp_path.name
    assert queue.directory == str(tmp_path / "archive")
    assert ranges(queue, **{"from": "archive"}) == [(1, 0, 2 * RECORD)]


def test_no_archive_is_an_empty_one(tmp_path: Path) -> None:
    assert find(tmp_path, **{"from": "archive"}) == []


def test_nodes_are_named_by_the_parts_that_differ() -> None:
    assert node_names(["/data/n1", "/other/n2"]) == ["n1", "n2"]
    assert node_names(["/copies/h1/data", "/copies/h2/data"]) == ["h1", "h2"]
    assert node_names(["/a/h1/x/data", "/a/h1/y/data"]) == ["x", "y"]
    assert node_names(["s3://b/h1/data", "s3://b/h2/data"]) == ["h1", "h2"]


def test_a_queue_that_is_consumed_while_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the metadata and the listing the first segment is finished and deleted."""
    write_queue(tmp_path, "t", [messages(0, 2), messages(2, 2)])
    parse = layout.parse_metadata

    def consume_then_parse(text: bytes) -> layout.Metadata:
        metadata = parse(text)
        (tmp_path / "t.diskqueue.000000.dat").unlink(missing_ok=True)
        write_metadata(tmp_path, "t", read=(1, RECORD), write=(1, 2 * RECORD))
        return metadata

    monkeypatch.setattr(layout, "parse_metadata", consume_then_parse)

    [queue] = find(tmp_path)

    assert ranges(queue) == [(1, RECORD, 2 * RECORD)]
    assert kinds(queue) == []


def numbers(path: Path, **options: str) -> list[int]:
    """The messages of a read, told by their ids."""
    table = read_table(path, ("id", "body"), **options)
    found = [int(value, 16) for value in table["id"].to_pylist()]
    assert table["body"].to_pylist() == [message(number).body for number in found]
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


def test_finished_records_are_no_backlog(data: Path) -> None:
    write_sidecar(data, [block(data, 0, (2, 4), (4, 5), (9, 10)), block(data, 1, (0, 3), (5, 6))])

    backlog = numbers(data)

    assert backlog == [1, 5, 6, 7, 8, 13, 14, *range(16, 20)]
    assert numbers(data, splitBytes="100") == backlog
    assert numbers(data, since=str(message(6).timestamp_ns)) == backlog[2:]
    assert numbers(data, until=str(message(14).timestamp_ns)) == [1, 5, 6, 7, 8, 13]
    assert numbers(data, **{"from": "earliest"}) == list(range(20))


def test_without_a_sidecar_all_records_are_unfinished(data: Path) -> None:
    assert numbers(data) == list(range(1, 20))


@pytest.mark.parametrize("size", [0, 20, 100])
def test_a_damaged_sidecar_proves_nothing(data: Path, size: int) -> None:
    file = write_sidecar(data, [block(data, 0, (2, 4))])
    file.write_bytes(file.read_bytes()[:size])

    assert numbers(data) == list(range(1, 20))


@pytest.mark.parametrize(
    ("previous", "read"), [((0, 0), (0, 0)), ((0, 2 * RECORD), (1, 0)), ((1, 0), (1, 0))]
)
def test_a_sidecar_for_another_read_position_proves_nothing(
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

    [queue] = find_queues(parse(data, **{"from": "earliest"}))

    assert list(queue.problems()) == []
    assert numbers(data, mode="FAILFAST") == [1, *range(4, 10), *range(30, 40)]


def test_a_sidecar_newer_than_the_metadata_is_believed(data: Path) -> None:
    """The sidecar knows a newer read position than the metadata."""
    write_sidecar(data, [block(data, 0, (7, 8))], previous=(0, RECORD), read=(0, 5 * RECORD))

    assert numbers(data) == [5, 6, *range(8, 20)]


def test_of_messages_finished_in_any_order_the_rest_is_backlog(tmp_path: Path) -> None:
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
        [found] = find_queues(parse(tmp_path))
        assert list(found.problems()) == []
    finally:
        queue.close()
