"""What of a directory is read: positions, live queues, gaps, broken metadata, several nodes."""

from pathlib import Path

import pytest

from diskqueue import layout
from spark_jobs.read.catalog import Queue, find_queues, node_names
from spark_jobs.read.options import ReadOptions, parse_read_options
from tests.spark.data_dirs import content, messages, write_metadata, write_queue, write_segment

RECORD = 50  # 30 bytes and a body of 20


def find(path: Path, **options: str) -> list[Queue]:
    return find_queues(parse_read_options({"path": str(path)} | options))


def ranges(queue: Queue, **options: str) -> list[tuple[int, int, int]]:
    parsed = parse_read_options({"path": "x"} | options)
    found = queue.ranges(
        is_from_earliest=parsed.origin.is_earliest,
        includes_unsynced=parsed.includes_unsynced,
    )
    return [(each.number, each.start, each.end) for each in found]


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


@pytest.mark.parametrize("text", ["", "garbage", "1\n5,0\n2,100\n", "1\n0,0\n"])
def test_with_unusable_metadata_too(text: str, tmp_path: Path) -> None:
    write_segment(tmp_path, "t", 2, content(messages(0, 2)))
    (tmp_path / "t.diskqueue.meta.dat").write_text(text)

    [queue] = find(tmp_path)

    assert ranges(queue) == [(2, 0, 2 * RECORD)]
    assert kinds(queue) == [("metadata", None)]


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


def test_names_of_queues(tmp_path: Path) -> None:
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
    # Segment 0 is what nsqd has given up and not deleted yet.
    write_queue(tmp_path / "archive", "t", [messages(0, 2), messages(2, 2)], read=(1, 0))
    write_queue(tmp_path, "t", [messages(0, 1)])

    [queue] = find(tmp_path, **{"from": "archive"})

    assert queue.node == tmp_path.name
    assert queue.directory == str(tmp_path / "archive")
    assert ranges(queue, **{"from": "archive"}) == [(1, 0, 2 * RECORD)]


def test_no_archive_is_an_empty_one(tmp_path: Path) -> None:
    assert find(tmp_path, **{"from": "archive"}) == []


def test_directories_by_glob_list_and_uri(tmp_path: Path) -> None:
    for node in ("n1", "n2", "x1"):
        write_queue(tmp_path / node / "data", "t", [messages(0, 1)])

    globbed = find_queues(ReadOptions((f"{tmp_path}/n*/data",)))
    listed = find_queues(ReadOptions((f"{tmp_path}/n1/data", f"file://{tmp_path}/x1/data")))
    by_uri = find_queues(ReadOptions((f"file://{tmp_path}/n*/data/",)))
    chosen = find_queues(ReadOptions((f"{tmp_path}/{{n2,x*,missing}}/data",)))

    assert [queue.node for queue in globbed] == ["n1", "n2"]
    assert [queue.node for queue in chosen] == ["n2", "x1"]
    assert [queue.directory for queue in listed] == [
        f"{tmp_path}/n1/data",
        f"file://{tmp_path}/x1/data",
    ]
    assert [queue.directory for queue in by_uri] == [
        f"file://{tmp_path}/n1/data",
        f"file://{tmp_path}/n2/data",
    ]


def test_a_directory_whose_name_looks_like_a_glob(tmp_path: Path) -> None:
    write_queue(tmp_path / "a[1]", "t", [messages(0, 1)])

    [queue] = find(tmp_path / "a[1]")

    assert queue.node == "a[1]"


@pytest.mark.parametrize("name", ["missing", "missing*", "{missing,gone}"])
def test_a_directory_that_is_not_there(name: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="data directory") as caught:
        find(tmp_path / name)

    assert str(tmp_path / name) in str(caught.value)


def test_an_unknown_kind_of_storage() -> None:
    with pytest.raises(ValueError, match="cannot open weird://x/y"):
        find_queues(ReadOptions(("weird://x/y",)))


def test_node_names() -> None:
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
