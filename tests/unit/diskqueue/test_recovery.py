"""Opening the files of another daemon, or of a crash: spec sections 5 to 7."""

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from diskqueue import DiskQueue
from diskqueue.__main__ import main
from diskqueue.layout import QueueFiles, list_queues
from tests.unit.diskqueue.queue_files import (
    RECORD_BYTES,
    consume,
    drain,
    go_read_all,
    metadata_path,
    names,
    numbers,
    payload,
    read_metadata,
    records,
    segment_path,
    write_metadata,
    write_segment,
)


def open_queue(directory: Path, max_bytes_per_file: int = 1 << 20) -> DiskQueue:
    return DiskQueue(directory, "t", max_bytes_per_file=max_bytes_per_file)


@pytest.mark.parametrize(
    ("metadata", "expected"), [("6\n0,0\n0,192\n", range(6)), ("4\n0,64\n0,192\n", range(2, 6))]
)
def test_clean_directory_is_read_from_its_read_position(
    tmp_path: Path, metadata: str, expected: range
) -> None:
    """D-12, spec section 6, rows 1 and 2."""
    write_segment(tmp_path, 0, records(0, 6))
    write_metadata(tmp_path, metadata)

    queue = open_queue(tmp_path)

    assert queue.depth == len(expected)
    assert numbers(consume(queue)) == list(expected)


def test_clean_directory_is_continued_and_handed_back(tmp_path: Path) -> None:
    """D-12, D-13: the last segment is appended to."""
    write_segment(tmp_path, 5, records(0, 3))
    write_segment(tmp_path, 6, records(3, 1))
    write_metadata(tmp_path, "3\n5,32\n6,32\n")

    queue = open_queue(tmp_path)
    queue.put([payload(4)])
    queue.close()

    assert names(tmp_path) == ["000005.dat", "000006.dat", "meta.dat"]
    assert read_metadata(tmp_path) == (4, 5, 32, 6, 64)
    assert numbers(go_read_all(tmp_path)) == [1, 2, 3, 4]


def test_records_behind_the_write_position_are_recovered(tmp_path: Path) -> None:
    """D-14, spec section 6, row 3."""
    write_segment(tmp_path, 0, records(0, 5))
    write_metadata(tmp_path, "3\n0,0\n0,96\n")

    queue = open_queue(tmp_path)
    queue.put([payload(5)])

    assert queue.depth == 6
    assert segment_path(tmp_path, 0).read_bytes() == records(0, 5)
    assert segment_path(tmp_path, 1).read_bytes() == records(5, 1)
    assert numbers(drain(queue)) == list(range(6))
    assert queue.depth == 0


def test_segments_behind_the_write_file_are_recovered(tmp_path: Path) -> None:
    """D-24: several rolls since the last sync, and one directory entry lost in a power cut."""
    write_segment(tmp_path, 0, records(0, 3))
    write_segment(tmp_path, 1, records(3, 3))
    write_segment(tmp_path, 3, records(6, 2))
    write_metadata(tmp_path, "2\n0,32\n0,96\n")

    queue = open_queue(tmp_path)
    queue.put([payload(8)])

    assert queue.depth == 8
    assert segment_path(tmp_path, 4).read_bytes() == records(8, 1)
    assert numbers(drain(queue)) == list(range(1, 9))


def test_file_shorter_than_the_write_position_leaves_no_hole(tmp_path: Path) -> None:
    write_segment(tmp_path, 0, records(0, 3))
    write_metadata(tmp_path, "6\n0,32\n0,192\n")

    queue = open_queue(tmp_path)
    queue.put([payload(3)])

    assert segment_path(tmp_path, 0).stat().st_size == 96
    assert segment_path(tmp_path, 1).read_bytes() == records(3, 1)
    assert numbers(drain(queue)) == [1, 2, 3]
    assert queue.depth == 0


def test_file_shorter_than_the_read_position_is_set_aside(tmp_path: Path) -> None:
    write_segment(tmp_path, 0, records(0, 1))
    write_metadata(tmp_path, "3\n0,64\n0,160\n")

    queue = open_queue(tmp_path)
    queue.put([payload(5)])

    assert numbers(consume(queue)) == [5]
    assert names(tmp_path) == ["000000.dat.bad", "000001.dat", "meta.dat"]


def test_write_segment_that_is_missing_leaves_no_hole(tmp_path: Path) -> None:
    write_metadata(tmp_path, "3\n0,64\n0,160\n")

    queue = open_queue(tmp_path)
    assert queue.depth == 0
    queue.put([payload(0)])
    queue.close()

    assert names(tmp_path) == ["000001.dat", "meta.dat"]
    assert read_metadata(tmp_path) == (1, 1, 0, 1, 32)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "garbage",
        "3\n0,0\n",
        "3\n0,0\n0,x\n",
        "3\n-1,0\n0,96\n",
        "99999999999999999999\n0,0\n0,0\n",
        "3\n5,0\n2,96\n",
        "3\n0,96\n0,32\n",
        "\x00\x00\x00\x00",
    ],
)
def test_unusable_metadata_overwrites_nothing(tmp_path: Path, text: str | None) -> None:
    """D-21, D-22, quirks 2 and 6, spec section 6, last row: everything is delivered instead."""
    write_segment(tmp_path, 2, records(0, 3))
    write_segment(tmp_path, 4, records(3, 2))
    if text is not None:
        write_metadata(tmp_path, text)

    queue = open_queue(tmp_path)
    queue.put([payload(5)])

    assert queue.depth == 6
    assert segment_path(tmp_path, 2).read_bytes() == records(0, 3)
    assert segment_path(tmp_path, 5).read_bytes() == records(5, 1)
    assert numbers(consume(queue)) == list(range(6))
    queue.close()
    assert read_metadata(tmp_path) == (0, 6, 0, 6, 0)


def test_gaps_found_without_metadata_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They may be segments that were deleted before older ones, which only the metadata led to."""
    write_segment(tmp_path, 2, records(0, 3))
    write_segment(tmp_path, 5, records(3, 2))
    with caplog.at_level(logging.WARNING):
        open_queue(tmp_path).close()
    assert "segments=2 missing=2" in caplog.text
    caplog.clear()

    with caplog.at_level(logging.WARNING):
        queue = open_queue(tmp_path)

    assert caplog.text == ""
    assert main(["check", str(tmp_path)]) == 0
    assert (queue.depth, numbers(consume(queue))) == (5, [0, 1, 2, 3, 4])
    queue.close()
    assert names(tmp_path) == ["meta.dat"]


def test_unparseable_metadata_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """D-21."""
    write_metadata(tmp_path, "garbage")

    with caplog.at_level(logging.WARNING):
        open_queue(tmp_path)

    assert "metadata unusable" in caplog.text
    assert "garbage" in caplog.text


def test_read_file_beyond_write_file_does_not_hang(tmp_path: Path) -> None:
    """D-22: with READ_POS below WRITE_POS go-diskqueue loops for ever."""
    write_segment(tmp_path, 0, records(0, 2))
    write_metadata(tmp_path, "2\n3,0\n0,64\n")

    assert numbers(drain(open_queue(tmp_path))) == [0, 1]


def test_absurd_positions_do_not_hang(tmp_path: Path) -> None:
    write_segment(tmp_path, 7, records(0, 2))
    write_metadata(tmp_path, "2\n0,0\n9000000000000000000,0\n")

    queue = open_queue(tmp_path)

    assert numbers(drain(queue)) == [0, 1]


def test_missing_read_segment_is_skipped(tmp_path: Path) -> None:
    """D-17, spec section 6."""
    write_segment(tmp_path, 1, records(3, 3))
    write_segment(tmp_path, 2, records(6, 1))
    write_metadata(tmp_path, "7\n0,0\n2,32\n")

    queue = open_queue(tmp_path)

    assert numbers(consume(queue)) == [3, 4, 5, 6]
    assert queue.depth == 0
    assert not [name for name in names(tmp_path) if "bad" in name]


def test_gap_in_the_numbering_is_skipped(tmp_path: Path) -> None:
    """D-17, spec section 6."""
    write_segment(tmp_path, 0, records(0, 2))
    write_segment(tmp_path, 2, records(2, 2))
    write_segment(tmp_path, 5, records(4, 1))
    write_metadata(tmp_path, "5\n0,32\n5,32\n")

    assert numbers(consume(open_queue(tmp_path))) == [1, 2, 3, 4]


@pytest.mark.parametrize("depth", [-7, 0, 1, 50])
def test_wrong_depth_is_corrected_at_the_tail(tmp_path: Path, depth: int) -> None:
    """D-18: and until then it is never negative, nor 0 while something is unread."""
    write_segment(tmp_path, 0, records(0, 4))
    write_metadata(tmp_path, f"{depth}\n0,0\n0,128\n")

    queue = open_queue(tmp_path)
    seen: list[bytes] = []
    for _ in range(4):
        assert queue.depth > 0
        batch = queue.read(1, 1000)
        assert batch is not None
        seen += batch

    assert numbers(seen) == [0, 1, 2, 3]
    assert queue.depth == 0
    queue.put([payload(4)])
    assert queue.depth == 1


def test_wrong_depth_without_records_is_corrected_at_once(tmp_path: Path) -> None:
    """D-18."""
    write_metadata(tmp_path, "12\n3,0\n3,0\n")

    assert open_queue(tmp_path).depth == 0


def test_bad_and_temporary_files_are_ignored(tmp_path: Path) -> None:
    """D-19."""
    (tmp_path / "t.diskqueue.000000.dat.bad").write_bytes(records(0, 3))
    (tmp_path / "t.diskqueue.meta.dat.123.tmp").write_text("9\n9,9\n9,9\n")

    queue = open_queue(tmp_path)
    assert queue.depth == 0
    queue.put([payload(4)])
    queue.close()

    assert names(tmp_path) == ["000000.dat", "000000.dat.bad", "meta.dat"]
    assert numbers(go_read_all(tmp_path)) == [4]


def test_consumed_segments_left_by_a_crash_are_removed(tmp_path: Path) -> None:
    """Killed between the metadata and the deletion."""
    for number in range(4):
        write_segment(tmp_path, number, records(number, 1))
    write_metadata(tmp_path, "1\n3,0\n3,32\n")

    queue = open_queue(tmp_path)
    assert queue.segment_count == 4
    queue.sync()

    assert names(tmp_path) == ["000003.dat", "meta.dat"]
    assert queue.segment_count == 1
    assert numbers(drain(queue)) == [3]


def test_stray_segment_in_the_way_is_set_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that appears under the number of the next segment is neither mixed in nor lost."""
    queue = open_queue(tmp_path, max_bytes_per_file=RECORD_BYTES)
    queue.put([payload(0)])
    write_segment(tmp_path, 1, records(50, 3))

    with caplog.at_level(logging.WARNING):
        queue.put([payload(1)])

    assert names(tmp_path) == ["000000.dat", "000001.dat", "000001.dat.bad"]
    assert numbers(drain(queue)) == [0, 1]
    assert "stray segment" in caplog.text


def test_queues_with_similar_names_are_kept_apart(tmp_path: Path) -> None:
    write_segment(tmp_path, 0, records(0, 1), name="t:c")
    write_segment(tmp_path, 0, records(1, 1), name="t.diskqueue")
    write_segment(tmp_path, 0, records(2, 1), name="tt")

    assert open_queue(tmp_path).depth == 0
    assert numbers(drain(DiskQueue(tmp_path, "t:c"))) == [0]
    assert numbers(drain(DiskQueue(tmp_path, "t.diskqueue"))) == [1]


def test_empty_last_segment_is_continued(tmp_path: Path) -> None:
    write_segment(tmp_path, 0, b"")
    write_metadata(tmp_path, "0\n0,0\n0,0\n")

    queue = open_queue(tmp_path)
    queue.put([payload(0)])

    assert segment_path(tmp_path, 0).read_bytes() == records(0, 1)
    assert numbers(drain(queue)) == [0]


def test_empty_last_segment_left_by_a_failed_write_is_used(tmp_path: Path) -> None:
    """go-diskqueue would take an empty segment in the middle for damage."""
    write_segment(tmp_path, 0, records(0, 1))
    write_segment(tmp_path, 1, b"")
    write_metadata(tmp_path, "1\n0,0\n0,32\n")

    for number in (1, 2):
        queue = open_queue(tmp_path)
        queue.put([payload(number)])
        queue.close()
        (tmp_path / "t.diskqueue.meta.dat").unlink()
        write_segment(tmp_path, number + 1, b"")
    open_queue(tmp_path).close()

    assert numbers(go_read_all(tmp_path)) == [0, 1, 2]


def test_empty_segments_in_between_are_skipped(tmp_path: Path) -> None:
    write_segment(tmp_path, 0, records(0, 1))
    write_segment(tmp_path, 1, b"")
    write_segment(tmp_path, 2, records(1, 1))

    assert numbers(consume(open_queue(tmp_path))) == [0, 1]


@pytest.mark.parametrize("metadata", [None, "3\n2,32\n3,32\n", "junk"])
def test_listing_made_by_the_caller_gives_the_same(tmp_path: Path, metadata: str | None) -> None:
    write_segment(tmp_path, 1, records(9, 1))
    write_segment(tmp_path, 2, records(0, 3))
    write_segment(tmp_path, 3, records(3, 2))
    if metadata is not None:
        write_metadata(tmp_path, metadata)
    files = list_queues(tmp_path)

    with_files = DiskQueue(tmp_path, "t", files=files["t"])
    without = open_queue(tmp_path)

    assert with_files.segment_count == without.segment_count == 3
    assert with_files.depth == without.depth
    assert drain(with_files) == drain(without)
    assert DiskQueue(tmp_path, "new", files=QueueFiles("new")).depth == 0


def test_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_queue(tmp_path / "nowhere")


def test_metadata_that_cannot_be_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taking it for missing would deliver everything again."""
    write_metadata(tmp_path, "0\n0,0\n0,0\n")

    def refuse(path: str, _flags: int) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(PermissionError):
            open_queue(tmp_path)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to(path)])
def test_what_is_no_file_is_no_metadata(tmp_path: Path, make: Callable[[Path], object]) -> None:
    write_segment(tmp_path, 0, records(0, 3))
    make(metadata_path(tmp_path))

    queue = open_queue(tmp_path)

    assert numbers(consume(queue)) == [0, 1, 2]
    queue.close()
    assert metadata_path(tmp_path).is_file()


def test_crash_repeats_what_was_read_and_not_committed(tmp_path: Path) -> None:
    """The Go daemon loses these: it persists the position of the reader."""
    queue = open_queue(tmp_path, max_bytes_per_file=2 * RECORD_BYTES)
    queue.put([payload(number) for number in range(6)])
    drain(queue)
    queue.commit([0, 1, 2, 4])
    queue.sync()

    assert numbers(drain(open_queue(tmp_path))) == [3, 5]


def test_depth_of_a_huge_backlog_without_metadata_is_estimated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diskqueue.recovery._COUNT_BYTES", 1)
    write_segment(tmp_path, 0, records(0, 4))
    write_segment(tmp_path, 1, records(4, 2))

    queue = open_queue(tmp_path)

    assert queue.depth == 6
    assert len(drain(queue)) == 6


def test_a_stray_segment_far_ahead_is_left_alone(tmp_path: Path) -> None:
    """As one that could not be removed when a topic of that name was deleted."""
    write_segment(tmp_path, 0, records(0, 1))
    write_segment(tmp_path, 500, records(9, 1))
    write_metadata(tmp_path, "1\n0,0\n0,32\n")

    queue = open_queue(tmp_path)

    assert queue.depth == 1
    assert numbers(consume(queue)) == [0]
    queue.close()
    assert segment_path(tmp_path, 500).exists()


def test_a_stray_segment_far_behind_is_left_alone(tmp_path: Path) -> None:
    write_segment(tmp_path, 3, records(9, 1))
    write_segment(tmp_path, 50, records(0, 1))
    write_metadata(tmp_path, "1\n50,0\n50,32\n")

    queue = open_queue(tmp_path)

    assert numbers(consume(queue)) == [0]
    queue.close()
    assert segment_path(tmp_path, 3).exists()


@pytest.mark.parametrize(("number", "expected"), [(8, [0, 9]), (9, [0])])
def test_segments_behind_a_small_gap_belong_to_the_queue(
    tmp_path: Path, number: int, expected: list[int]
) -> None:
    write_segment(tmp_path, 0, records(0, 1))
    write_segment(tmp_path, number, records(9, 1))
    write_metadata(tmp_path, "1\n0,0\n0,32\n")

    queue = open_queue(tmp_path)

    assert numbers(consume(queue)) == expected


@pytest.mark.parametrize("has_checksums", [False, True])
def test_leftovers_go_with_their_checksums(tmp_path: Path, *, has_checksums: bool) -> None:
    """Killed between the metadata and the deletion."""
    queue = DiskQueue(tmp_path, "t", max_bytes_per_file=2 * RECORD_BYTES, has_checksums=True)
    queue.put([payload(number) for number in range(6)])
    queue.close()
    write_metadata(tmp_path, "2\n2,0\n2,64\n")

    queue = DiskQueue(
        *(tmp_path, "t"), max_bytes_per_file=2 * RECORD_BYTES, has_checksums=has_checksums
    )
    queue.sync()

    assert names(tmp_path) == ["000002.crc", "000002.dat", "meta.dat"]
    assert numbers(drain(queue)) == [4, 5]
    queue.close()
