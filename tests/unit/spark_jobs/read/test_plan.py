"""Slices share partitions or are cut; FAILFAST refuses faults before anything is read."""

from pathlib import Path

import pytest

from spark_jobs.read.files.scan import DamagedSegmentError
from spark_jobs.read.plan import plan_messages
from tests.spark.data_dirs import (
    content,
    message,
    messages,
    segment_path,
    write_metadata,
    write_queue,
    write_segment,
)
from tests.spark.in_process import parse, read_bodies

RECORD = 50


def test_small_queues_share_partitions(tmp_path: Path) -> None:
    for number in range(200):
        write_queue(tmp_path, f"t{number:03d}", [messages(number, 10)])

    partitions = plan_messages(parse(tmp_path))

    assert [len(each.slices) for each in partitions] == [63, 63, 63, 11]


def test_large_segments_are_cut_between_records(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [messages(0, 10)])

    partitions = plan_messages(parse(tmp_path, splitBytes="200"))

    cuts = [(each.start, each.end) for partition in partitions for each in partition.slices]
    assert cuts == [(0, 200), (200, 400), (400, 500)]


def test_no_part_is_twice_as_large_as_asked_for(tmp_path: Path) -> None:
    """The first record behind a multiple of the size is where a part ends."""
    write_queue(tmp_path, "t", [messages(0, 40)])

    partitions = plan_messages(parse(tmp_path, splitBytes="280"))

    ends = [each.end for partition in partitions for each in partition.slices]
    assert ends == [300, 600, 850, 1150, 1400, 1700, 2000]


@pytest.mark.parametrize("queue_count", [1, 3, 20])
@pytest.mark.parametrize("wanted", [1, 2, 4, 7])
def test_there_are_at_least_as_many_partitions_as_asked_for(
    tmp_path: Path, queue_count: int, wanted: int
) -> None:
    for number in range(queue_count):
        write_queue(tmp_path, f"t{number:03d}", [messages(number * 40, 40)])
    given = {"minPartitions": str(wanted)}

    partitions = plan_messages(parse(tmp_path, **given))

    assert wanted <= len(partitions) <= wanted + queue_count
    assert sorted(read_bodies(tmp_path, **given)) == sorted(read_bodies(tmp_path))


def test_failfast_refuses_gaps(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [messages(0, 1), messages(1, 1)])
    path = segment_path(tmp_path, "t", 0)
    path.unlink()

    with pytest.raises(DamagedSegmentError, match=f"{path} at offset 0: the segment is missing"):
        read_bodies(tmp_path, mode="FAILFAST")
    assert read_bodies(tmp_path) == [message(1).body]


def test_failfast_accepts_records_that_are_not_synced_yet(tmp_path: Path) -> None:
    write_segment(tmp_path, "t", 0, content(messages(0, 2))[:-7])
    write_metadata(tmp_path, "t", read=(0, 0), write=(0, RECORD))

    assert read_bodies(tmp_path, mode="FAILFAST") == [message(0).body]
