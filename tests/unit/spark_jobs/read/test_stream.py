"""Offsets of a stream: new queues, rolls, limits, resets, deletions; decided without Spark."""

import json
import pickle
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from diskqueue import DiskQueue
from spark_jobs.read.columns import arrow_schema, message_schema
from spark_jobs.read.files.scan import DamagedSegmentError, SegmentLostError
from spark_jobs.read.offsets import StreamOffset
from spark_jobs.read.options import parse_read_options
from spark_jobs.read.stream import NsqStreamReader
from tests.spark.data_dirs import (
    content,
    message,
    messages,
    segment_path,
    write_metadata,
    write_queue,
    write_segment,
)

RECORD = 50


class Query:
    """A query: calls of a reader in the order of Spark's."""

    def __init__(self, path: Path | str, *, offset: Any = None, **options: str) -> None:
        parsed = parse_read_options(
            {"path": str(path), "lookInterval": "0"} | options, is_stream=True
        )
        self.reader = NsqStreamReader(parsed, arrow_schema(message_schema(("topic", "body"))))
        self.offset = offset or self._stored(self.reader.initialOffset())
        self.limit: ReadLimit = self.reader.getDefaultReadLimit()

    @staticmethod
    def _stored(offset: dict[str, Any]) -> dict[str, Any]:
        stored: dict[str, Any] = json.loads(json.dumps(offset))
        return stored

    def batch(self) -> list[bytes] | None:
        """The bodies of the next micro-batch, or None if there is nothing new."""
        end = self._stored(self.reader.latestOffset(self.offset, self.limit))
        if json.dumps(end) == json.dumps(self.offset):
            return None
        partitions = self.reader.partitions(self.offset, end)
        executor = pickle.loads(pickle.dumps(self.reader))
        bodies = [
            body
            for partition in partitions
            for batch in executor.read(pickle.loads(pickle.dumps(partition)))
            for body in batch["body"].to_pylist()
        ]
        self.offset = end
        return bodies

    def close(self) -> None:
        self.reader.stop()


def bodies(first: int, count: int) -> list[bytes]:
    return [each.body for each in messages(first, count)]


def test_a_new_query_begins_with_the_backlog(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [messages(0, 3), messages(3, 2)], read=(0, RECORD))
    query = Query(tmp_path)

    assert query.batch() == bodies(1, 4)
    assert query.batch() is None


@pytest.mark.parametrize(("origin", "expected"), [("earliest", 5), ("latest", None)])
def test_a_new_query_begins_where_from_says(
    origin: str, expected: int | None, tmp_path: Path
) -> None:
    write_queue(tmp_path, "t", [messages(0, 3), messages(3, 2)], read=(0, RECORD))
    query = Query(tmp_path, **{"from": origin})

    assert query.batch() == (expected and bodies(0, expected))
    write_queue(tmp_path, "t", [messages(0, 3), messages(3, 4)], read=(0, RECORD))
    assert query.batch() == bodies(5, 2)


def test_an_archive_is_tailed_from_the_oldest_that_is_kept(tmp_path: Path) -> None:
    """Segments that nsqd has given up may be there for a moment; of a new topic, too."""
    directory = tmp_path / "archive"
    write_queue(directory, "t", [messages(0, 3), messages(3, 2)], read=(1, 0))
    query = Query(tmp_path, **{"from": "archive"})
    assert query.batch() == bodies(3, 2)

    write_queue(directory, "t", [messages(0, 3), messages(3, 2), messages(5, 1)], read=(2, 0))
    write_queue(directory, "new", [messages(10, 1), messages(11, 1)], read=(1, 0))
    assert query.batch() == bodies(11, 1) + bodies(5, 1)
    assert query.batch() is None


def test_an_archive_that_was_faster_than_the_stream(tmp_path: Path) -> None:
    directory = tmp_path / "archive"
    write_queue(directory, "t", [messages(0, 3)])
    query = Query(tmp_path, **{"from": "archive"})
    assert query.batch() == bodies(0, 3)

    write_queue(directory, "t", [messages(0, 3), messages(3, 2), messages(5, 1)], read=(2, 0))
    segment_path(directory, "t", 0).unlink()
    segment_path(directory, "t", 1).unlink()

    with pytest.raises(SegmentLostError, match=r"was deleted before .* let nsqd keep more of it$"):
        query.batch()


def test_growth_and_rolls_are_followed(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [messages(0, 2)])
    query = Query(tmp_path)
    assert query.batch() == bodies(0, 2)

    write_queue(tmp_path, "t", [messages(0, 4)])
    assert query.batch() == bodies(2, 2)
    write_queue(tmp_path, "t", [messages(0, 5), messages(5, 2), messages(7, 1)])
    assert query.batch() == bodies(4, 4)
    write_metadata(tmp_path, "t", read=(0, 0), write=(3, 0))
    assert query.batch() == []
    assert query.batch() is None


def test_records_that_are_not_synced_wait(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [messages(0, 2)])
    query = Query(tmp_path)
    write_segment(tmp_path, "t", 0, content(messages(0, 3))[:-5])

    assert query.batch() == bodies(0, 2)
    assert query.batch() is None
    write_queue(tmp_path, "t", [messages(0, 3)])
    assert query.batch() == bodies(2, 1)


def test_new_topics_are_read_from_their_beginning(tmp_path: Path) -> None:
    write_queue(tmp_path, "a", [messages(0, 1)])
    query = Query(tmp_path)
    assert query.batch() == bodies(0, 1)

    write_queue(tmp_path, "b", [messages(10, 2)], read=(0, RECORD))
    write_queue(tmp_path, "b:ch", [messages(20, 1)])
    assert query.batch() == bodies(10, 2) + bodies(20, 1)
    assert query.batch() is None


def test_a_queue_without_metadata_waits_for_its_first_sync(tmp_path: Path) -> None:
    write_segment(tmp_path, "t", 0, content(messages(0, 2))[:-3])
    query = Query(tmp_path)

    assert query.batch() is None
    write_queue(tmp_path, "t", [messages(0, 2)])
    assert query.batch() == bodies(0, 2)


def test_a_limit_is_shared_by_the_queues(tmp_path: Path) -> None:
    write_queue(tmp_path, "a", [messages(0, 50), messages(50, 50)])
    write_queue(tmp_path, "b", [messages(200, 5)])
    query = Query(tmp_path, maxRowsPerTrigger="20")
    found: list[bytes] = []
    batches = []

    while (batch := query.batch()) is not None:
        batches.append(batch)
        found += batch

    assert [len(batch) for batch in batches] == [20, 20, 20, 20, 20, 5]
    assert sorted(found) == sorted(bodies(0, 100) + bodies(200, 5))
    assert set(bodies(200, 5)) <= set(batches[0])
    query.limit = ReadAllAvailable()
    assert query.batch() is None


def test_a_limit_below_the_number_of_queues(tmp_path: Path) -> None:
    for name in "abcde":
        write_queue(tmp_path, name, [messages(ord(name), 2)])
    query = Query(tmp_path)
    query.limit = ReadMaxRows(3)
    sizes = []

    while (batch := query.batch()) is not None:
        sizes.append(len(batch))

    assert sizes == [3, 3, 3, 1]


def test_a_limit_passes_damage(tmp_path: Path) -> None:
    damaged = bytearray(content(messages(0, 6)))
    damaged[3 * RECORD] = 0xFF
    write_queue(tmp_path, "t", [messages(0, 6), messages(6, 3)])
    write_segment(tmp_path, "t", 0, bytes(damaged))
    query = Query(tmp_path, maxRowsPerTrigger="2", mode="PERMISSIVE")
    found: list[bytes] = []

    while (batch := query.batch()) is not None:
        assert len(batch) <= 2
        found += batch

    assert found == bodies(0, 3) + bodies(6, 3)


def test_available_now_stops_where_the_queues_ended(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [messages(0, 5)])
    query = Query(tmp_path, maxRowsPerTrigger="3")
    query.reader.prepareForTriggerAvailableNow()
    write_queue(tmp_path, "t", [messages(0, 9)])
    write_queue(tmp_path, "u", [messages(20, 1)])

    assert query.batch() == bodies(0, 3)
    assert query.batch() == bodies(3, 2)
    assert query.batch() is None


def test_a_restart_goes_on_from_the_offset(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [messages(0, 5)])
    first = Query(tmp_path)
    assert first.batch() == bodies(0, 5)
    write_queue(tmp_path, "t", [messages(0, 8)], read=(0, 7 * RECORD))

    second = Query(tmp_path, offset=first.offset)

    assert second.batch() == bodies(5, 3)


def test_a_batch_that_is_run_again_has_the_same_rows(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [messages(0, 5)])
    query = Query(tmp_path)
    start = query.offset
    write_queue(tmp_path, "u", [messages(20, 2), messages(22, 1)])
    first = query.batch()
    write_queue(tmp_path, "t", [messages(0, 6), messages(6, 4)], read=(0, 5 * RECORD))
    write_queue(tmp_path, "u", [messages(20, 2), messages(22, 9)], read=(0, RECORD))

    again = query.reader.partitions(start, query.offset)

    rows = [
        body
        for each in again
        for batch in query.reader.read(each)
        for body in batch["body"].to_pylist()
    ]
    assert rows == first == bodies(0, 5) + bodies(20, 3)


def test_a_segment_deleted_before_it_was_read_is_named(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [messages(0, 2), messages(2, 2)])
    query = Query(tmp_path)
    segment_path(tmp_path, "t", 0).unlink()
    write_metadata(tmp_path, "t", read=(1, 0), write=(1, 2 * RECORD))

    with pytest.raises(SegmentLostError, match=r"segment 0 of queue t in .* was deleted before"):
        query.batch()

    lenient = Query(tmp_path, offset=query.offset, failOnDataLoss="false")
    assert lenient.batch() == bodies(2, 2)


def test_a_segment_deleted_after_it_was_read_is_no_loss(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [messages(0, 2)])
    query = Query(tmp_path)
    assert query.batch() == bodies(0, 2)
    segment_path(tmp_path, "t", 0).unlink()
    write_metadata(tmp_path, "t", read=(1, 0), write=(1, 0))

    assert query.batch() == []
    write_segment(tmp_path, "t", 1, content(messages(2, 1)))
    write_metadata(tmp_path, "t", read=(1, 0), write=(1, RECORD))
    assert query.batch() == bodies(2, 1)
    query.close()


def test_a_segment_that_grew_before_it_was_deleted_is_a_loss(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [messages(0, 2)])
    query = Query(tmp_path)
    assert query.batch() == bodies(0, 2)
    with segment_path(tmp_path, "t", 0).open("ab") as file:
        file.write(content(messages(2, 1)))
    segment_path(tmp_path, "t", 0).unlink()
    write_metadata(tmp_path, "t", read=(1, 0), write=(1, 0))

    with pytest.raises(SegmentLostError, match=f"from offset {2 * RECORD} on"):
        query.batch()
    query.close()


def test_a_queue_that_goes_back_is_noticed(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [messages(0, 2), messages(2, 2)])
    query = Query(tmp_path)
    query.batch()
    segment_path(tmp_path, "t", 1).unlink()
    write_queue(tmp_path, "t", [messages(10, 1)])

    with pytest.raises(SegmentLostError, match=r"queue t in .* went back from 1:100 to 0:50"):
        query.batch()

    lenient = Query(tmp_path, offset=query.offset, failOnDataLoss="false")
    assert lenient.batch() == bodies(10, 1)
    assert lenient.batch() is None


def write_generation(directory: Path, name: str, digit: str) -> None:
    (directory / f"{name}.diskqueue.generation").write_text(digit * 32 + "\n")


@pytest.mark.parametrize("has_generation", [True, False])
def test_a_topic_made_anew_between_two_looks(tmp_path: Path, *, has_generation: bool) -> None:
    """The new one has the very positions of the old one, and records of the same sizes."""
    write_queue(tmp_path, "t", [messages(0, 5)])
    if has_generation:
        write_generation(tmp_path, "t", "a")
    query = Query(tmp_path)
    assert query.batch() == bodies(0, 5)
    write_queue(tmp_path, "t", [messages(20, 5)])
    if has_generation:
        write_generation(tmp_path, "t", "b")

    with pytest.raises(SegmentLostError, match=r"queue t in .* was deleted and made anew since"):
        query.batch()

    lenient = Query(tmp_path, offset=query.offset, failOnDataLoss="false")
    assert lenient.batch() == bodies(20, 5)
    assert lenient.batch() is None
    lenient.close()


def test_a_look_in_the_middle_of_a_deletion_reads_nothing_again(tmp_path: Path) -> None:
    """The generation goes first, then the segments from the oldest on, then the metadata."""
    write_queue(tmp_path, "t", [messages(0, 3), messages(3, 3)])
    write_generation(tmp_path, "t", "a")
    lenient = Query(tmp_path, failOnDataLoss="false", maxRowsPerTrigger="5")
    assert lenient.batch() == bodies(0, 5)

    (tmp_path / "t.diskqueue.generation").unlink()
    end = lenient.reader.latestOffset(lenient.offset, lenient.limit)
    segment_path(tmp_path, "t", 0).unlink()
    lenient.batch()
    segment_path(tmp_path, "t", 1).unlink()
    assert not lenient.batch()

    assert [each["id"][:3] for each in end["end"].popitem()[1].values()] == ["g:a"]
    write_queue(tmp_path, "t", [messages(20, 3), messages(23, 4)])
    write_generation(tmp_path, "t", "b")
    assert lenient.batch() == bodies(20, 5)
    assert lenient.batch() == bodies(25, 2)


def test_a_topic_made_anew_with_its_first_records_gone(tmp_path: Path) -> None:
    """Only the generation tells: the records of the fingerprint are deleted in the new one, too."""
    write_queue(tmp_path, "t", [messages(0, 5)])
    write_generation(tmp_path, "t", "a")
    query = Query(tmp_path)
    query.batch()
    query.close()
    write_queue(tmp_path, "t", [messages(20, 5), messages(25, 5)], read=(1, 0))
    segment_path(tmp_path, "t", 0).unlink()
    write_generation(tmp_path, "t", "b")

    with pytest.raises(SegmentLostError, match="deleted and made anew"):
        Query(tmp_path, offset=query.offset).batch()


def test_a_topic_made_anew_between_the_plan_and_the_read(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [messages(0, 5)])
    write_generation(tmp_path, "t", "a")
    query = Query(tmp_path)
    end = query.reader.latestOffset(query.offset, query.limit)
    [partition] = query.reader.partitions(query.offset, end)
    write_queue(tmp_path, "t", [messages(20, 5)])
    write_generation(tmp_path, "t", "b")

    with pytest.raises(SegmentLostError, match="deleted with its topic"):
        list(query.reader.read(partition))

    with pytest.raises(SegmentLostError, match="deleted and made anew"):
        Query(tmp_path, offset=query.offset).reader.partitions(query.offset, end)


def test_a_batch_is_not_run_again_with_rows_of_a_topic_made_anew(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [messages(0, 5)])
    query = Query(tmp_path)
    start = query.offset
    query.batch()
    write_queue(tmp_path, "t", [messages(20, 5)])

    with pytest.raises(SegmentLostError, match="deleted and made anew"):
        Query(tmp_path, offset=start).reader.partitions(start, query.offset)


def test_a_topic_deleted_with_unread_messages_fails(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [messages(0, 5)])
    write_queue(tmp_path, "u", [messages(30, 1)])
    query = Query(tmp_path, maxRowsPerTrigger="2")
    query.batch()
    for path in tmp_path.glob("t.*"):
        path.unlink()

    with pytest.raises(SegmentLostError, match=r"queue t of node .* is gone"):
        query.batch()

    lenient = Query(tmp_path, offset=query.offset, failOnDataLoss="false")
    assert lenient.batch() is None
    write_queue(tmp_path, "t", [messages(20, 1)])
    assert lenient.batch() == bodies(20, 1)


@pytest.mark.parametrize("event", ["empty mount", "garbage metadata", "narrowed topic"])
def test_queues_that_are_away_for_one_look_go_on_where_they_were(
    tmp_path: Path, event: str
) -> None:
    directory = tmp_path / "node"
    write_queue(directory, "t", [messages(0, 5)])
    write_queue(directory, "u", [messages(20, 1)])
    first = Query(directory)
    assert first.batch() == bodies(0, 5) + bodies(20, 1)
    away = {"failOnDataLoss": "false", "mode": "PERMISSIVE"}
    if event == "empty mount":
        directory.rename(tmp_path / "elsewhere")
        directory.mkdir()
        second = Query(directory, offset=first.offset, **away)
        assert second.batch() is None
        directory.rmdir()
        (tmp_path / "elsewhere").rename(directory)
    elif event == "garbage metadata":
        (directory / "t.diskqueue.meta.dat").write_text("garbage")
        second = Query(directory, offset=first.offset, **away)
        assert second.batch() is None
    else:
        second = Query(directory, offset=first.offset, topic="u")
        write_queue(directory, "u", [messages(20, 2)])
        assert second.batch() == bodies(21, 1)

    write_queue(directory, "t", [messages(0, 7)])
    third = Query(directory, offset=second.offset)
    assert third.batch() == bodies(5, 2)


@pytest.mark.parametrize("event", ["empty mount", "garbage metadata"])
def test_queues_that_are_away_fail_by_default(tmp_path: Path, event: str) -> None:
    write_queue(tmp_path, "t", [messages(0, 5)])
    query = Query(tmp_path)
    query.batch()
    if event == "empty mount":
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
        expected: type[Exception] = SegmentLostError
    else:
        (tmp_path / "t.diskqueue.meta.dat").write_text("garbage")
        expected = DamagedSegmentError

    with pytest.raises(expected, match="queue t "):
        query.batch()


def test_another_spelling_of_the_path_is_the_same_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "node"
    write_queue(directory, "t", [messages(0, 5)])
    (tmp_path / "link").symlink_to(directory)
    first = Query(directory)
    assert first.batch() == bodies(0, 5)

    monkeypatch.chdir(tmp_path)
    plain = str(directory)
    for other in (
        *(tmp_path / "link", tmp_path / "node" / ".." / "node"),
        *(f"{plain}/", f"{plain}//", f"/{plain}", "node", "./node/", f"{tmp_path}/nod?"),
        *(f"file://{plain}", f"file://{plain}/", f"file://{tmp_path}/link"),
    ):
        again = Query(other, offset=first.offset)
        assert again.batch() is None, other
        again.reader.stop()


@pytest.mark.parametrize("first", ["{}", "file://{}"])
def test_a_queue_without_records_is_the_same_by_another_spelling(
    tmp_path: Path, first: str
) -> None:
    """Nothing but the path tells which queue it is."""
    write_queue(tmp_path, "t", [[]])
    query = Query(first.format(tmp_path))
    query.batch()
    write_queue(tmp_path, "t", [messages(0, 5)])

    for other in ("file://{}", "{}", "{}/"):
        assert Query(other.format(tmp_path), offset=query.offset).batch() == bodies(0, 5), other


@pytest.mark.parametrize("has_id", [True, False])
def test_a_directory_that_was_moved_goes_on(tmp_path: Path, *, has_id: bool) -> None:
    """By the id of its node; a directory of the original nsqd by its first records."""
    write_queue(tmp_path / "a", "t", [messages(0, 5)])
    if has_id:
        (tmp_path / "a" / "nsqd.node").write_text("c" * 32 + "\n")
    first = Query(tmp_path / "a")
    first.batch()
    (tmp_path / "a").rename(tmp_path / "b")
    write_queue(tmp_path / "b", "t", [messages(0, 6)])

    assert Query(tmp_path / "b", offset=first.offset).batch() == bodies(5, 1)
    assert str(tmp_path) not in json.dumps(first.offset) or not has_id


@pytest.mark.parametrize("count", [0, 5])
def test_a_directory_of_the_original_nsqd_that_ours_takes_over(tmp_path: Path, count: int) -> None:
    """It gets an id, and its queues generations; the query goes on, and back again."""
    write_queue(tmp_path, "t", [messages(0, count)])
    query = Query(tmp_path)
    query.batch()
    (tmp_path / "nsqd.node").write_text("c" * 32 + "\n")
    (tmp_path / "t.diskqueue.generation").write_text("d" * 32 + "\n")
    write_queue(tmp_path, "t", [messages(0, count + 3)])

    ours = Query(tmp_path, offset=query.offset)
    assert ours.batch() == bodies(count, 3)
    assert ours.batch() is None
    # The original one leaves the files as they are.
    write_queue(tmp_path, "t", [messages(0, count + 4)])
    assert Query(tmp_path, offset=ours.offset).batch() == bodies(count + 3, 1)


def test_two_copies_of_one_node_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_queue(tmp_path / name, "t", [messages(0, 5)])
        (tmp_path / name / "nsqd.node").write_text("c" * 32 + "\n")

    with pytest.raises(ValueError, match="are directories of the same nsqd"):
        Query(tmp_path / "*")


def test_a_checkpoint_of_the_first_version_goes_on(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [messages(0, 5)])
    (tmp_path / "nsqd.node").write_text("c" * 32 + "\n")
    old = {"end": {str(tmp_path): {"t": f"0:{3 * RECORD}"}}, "begin": {}}

    query = Query(tmp_path, offset=old)

    assert query.batch() == bodies(3, 2)
    assert list(query.offset["end"]) == ["c" * 32]
    assert query.batch() is None


def test_damage_fails_a_stream_by_default(tmp_path: Path) -> None:
    damaged = bytearray(content(messages(0, 6)))
    damaged[3 * RECORD] = 0xFF
    write_queue(tmp_path, "t", [messages(0, 6), messages(6, 3)])
    write_segment(tmp_path, "t", 0, bytes(damaged))
    query = Query(tmp_path)

    with pytest.raises(DamagedSegmentError, match=f"at offset {3 * RECORD}"):
        query.batch()

    lenient = Query(tmp_path, mode="PERMISSIVE")
    assert lenient.batch() == bodies(0, 3) + bodies(6, 3)


def test_a_limit_below_the_number_of_queues_starves_none(tmp_path: Path) -> None:
    names = [f"t{number:02d}" for number in range(20)]
    for number, name in enumerate(names):
        write_queue(tmp_path, name, [messages(100 * number, 50)])
    query = Query(tmp_path, maxRowsPerTrigger="10")
    seen: set[bytes] = set()

    for _ in range(2):
        seen |= set(query.batch() or ())

    assert seen == {message(100 * number).body for number in range(20)}


def test_an_idle_stream_looks_once_per_interval(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [messages(0, 2)])
    query = Query(tmp_path, lookInterval="1h")
    assert query.batch() == bodies(0, 2)
    assert query.batch() is None

    write_queue(tmp_path, "t", [messages(0, 3)])
    assert query.batch() is None
    assert Query(tmp_path, offset=query.offset).batch() == bodies(2, 1)


def test_the_lag_is_the_distance_to_the_end(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [messages(0, 5)])
    query = Query(tmp_path, maxRowsPerTrigger="1")
    query.batch()

    latest = StreamOffset.from_json(query.reader.reportLatestOffset())

    node = f"path:{tmp_path}"
    assert query.offset["end"][node]["t"]["at"] == f"0:{RECORD}"
    assert latest.positions() == {(node, "t"): (0, 5 * RECORD)}


@pytest.mark.parametrize("option", ["since", "until", "includeBad", "includeUnsynced"])
def test_options_that_make_no_sense_are_refused(option: str, tmp_path: Path) -> None:
    value = "true" if option.startswith("include") else "-1h"

    with pytest.raises(ValueError, match="a stream"):
        Query(tmp_path, **{option: value})


def test_a_strange_offset_is_refused() -> None:
    with pytest.raises(ValueError, match="not an offset of format nsq"):
        StreamOffset.from_json({"end": {"d": {"t": "x"}}, "begin": {}})


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name) / "node"


steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("abc"), st.integers(1, 12)),
        st.tuples(st.just("read"), st.just(""), st.integers(1, 9)),
        st.tuples(st.just("restart"), st.just(""), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=60)
@given(steps)
def test_every_message_comes_once_in_any_order_of_events(
    scratch: Path, script: list[tuple[str, str, int]]
) -> None:
    """Queues that grow and roll; a stream that is limited, and restarted from its offset."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    queues: dict[str, DiskQueue] = {}
    query = Query(scratch)
    put: list[bytes] = []
    found: list[bytes] = []
    for action, name, number in [*script, ("read", "", 10**6), ("read", "", 10**6)]:
        if action == "put":
            if name not in queues:
                queues[name] = DiskQueue(scratch, name, max_bytes_per_file=4 * RECORD)
            for _ in range(number):
                new = message(len(put))
                queues[name].put([new.record()[4:]])
                put.append(new.body)
            queues[name].sync()
        elif action == "restart":
            query.close()
            query = Query(scratch, offset=query.offset)
        else:
            query.limit = ReadMaxRows(number)
            batch = query.batch() or []
            assert len(batch) <= number
            found += batch
    query.close()
    for queue in queues.values():
        queue.close()

    assert sorted(found) == sorted(put)


def test_a_gap_of_billions_of_segments_takes_no_time(tmp_path: Path) -> None:
    """Metadata of a disk that went bad."""
    write_queue(tmp_path, "t", [messages(0, 2)])
    query = Query(tmp_path, failOnDataLoss="false")
    assert query.batch() == bodies(0, 2)
    write_metadata(tmp_path, "t", read=(0, 0), write=(9_000_000_000, RECORD))

    strict = Query(tmp_path, offset=query.offset)
    with pytest.raises(SegmentLostError, match="and so was all up to segment 9000000000"):
        strict.batch()

    assert query.batch() == []
