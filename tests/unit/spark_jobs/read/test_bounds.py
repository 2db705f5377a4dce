"""Parts of queues between offsets, and segments of archives by their times."""

import json
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.jobs.queues import offsets_of
from spark_jobs.read.files.catalog import find_queues
from spark_jobs.read.files.scan import SegmentLostError
from tests.spark.data_dirs import TIME_NS, Message, messages, segment_path, write_queue
from tests.spark.in_process import parse, read_bodies

RECORD = 50
HOUR_NS = 3600 * 10**9


def bodies(first: int, count: int) -> list[bytes]:
    return [each.body for each in messages(first, count)]


def offsets(path: Path) -> dict[str, Any]:
    """Where the queues end, as `nsqd-spark queues --json` shows it."""
    return offsets_of(find_queues(parse(path)))


def test_a_read_between_two_offsets(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [messages(0, 3)], read=(0, 2 * RECORD))
    start = json.dumps(offsets(tmp_path))
    write_queue(tmp_path, "t", [messages(0, 5), messages(5, 2)])
    end = json.dumps(offsets(tmp_path))
    write_queue(tmp_path, "t", [messages(0, 5), messages(5, 4)], read=(1, RECORD))
    write_queue(tmp_path, "new", [messages(20, 1)])

    both = read_bodies(tmp_path, startingOffsets=start, endingOffsets=end)

    assert both == bodies(20, 1) + bodies(3, 4)
    assert read_bodies(tmp_path, topic="t", startingOffsets=start) == bodies(3, 6)
    assert read_bodies(tmp_path, topic="t", endingOffsets=end) == bodies(6, 1)


def test_offsets_of_a_queue_that_is_gone_or_another(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [messages(0, 3)])
    start = json.dumps(offsets(tmp_path))
    write_queue(tmp_path, "t", [messages(10, 3)])

    with pytest.raises(SegmentLostError, match="was made anew since startingOffsets"):
        read_bodies(tmp_path, startingOffsets=start)
    assert read_bodies(tmp_path, startingOffsets=start, failOnDataLoss="false") == bodies(10, 3)

    write_queue(tmp_path, "t", [messages(0, 3), messages(3, 1)])
    segment_path(tmp_path, "t", 0).unlink()
    with pytest.raises(SegmentLostError, match="begins with segment 1 now, behind"):
        read_bodies(tmp_path, startingOffsets=start)


@pytest.mark.parametrize("text", ["{", "{}", '{"version": 9}'])
def test_texts_that_are_no_offsets(text: str, tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [messages(0, 3)])

    with pytest.raises(ValueError, match=r"[oO]ffset"):
        read_bodies(tmp_path, startingOffsets=text)


def test_a_clock_that_was_set_back_within_a_segment(tmp_path: Path) -> None:
    """By two hours: its last messages are older than its first ones."""
    hours = ((0, 1), (2, 3, 1, 1), (1, 2))
    write_queue(
        tmp_path / "archive",
        "t",
        [[Message(b"%d" % hour, TIME_NS + hour * HOUR_NS) for hour in part] for part in hours],
    )

    def read(**times: int) -> bytes:
        given = {name: str(TIME_NS + hour * HOUR_NS) for name, hour in times.items()}
        return b"".join(read_bodies(tmp_path, **{"from": "archive"}, **given))

    assert read(since=3) == b"3"
    assert read(since=2) == b"232"
    assert read(until=2) == b"01111"


def test_segments_of_an_archive_are_left_out_by_their_times(tmp_path: Path) -> None:
    """The ones in between hold garbage: whoever reads them finds no record."""
    archive = tmp_path / "archive"
    hours = [[Message(b"%d" % hour, TIME_NS + hour * HOUR_NS)] * 2 for hour in range(6)]
    write_queue(archive, "t", hours)
    for number in (0, 5):
        path = segment_path(archive, "t", number)
        path.write_bytes(path.read_bytes()[:12] + b"\xff" * 50)

    found = read_bodies(
        tmp_path,
        mode="FAILFAST",
        since=str(TIME_NS + 2 * HOUR_NS),
        until=str(TIME_NS + 4 * HOUR_NS),
        **{"from": "archive"},
    )

    assert found == [b"2"] * 2 + [b"3"] * 2
