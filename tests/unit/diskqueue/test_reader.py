"""Damaged segments: records before the damage are delivered, the file is set aside."""

import logging
import os
import struct
from pathlib import Path

import pytest

from diskqueue import DiskQueue, QueueClosedError
from diskqueue.segment import walk
from tests.unit.diskqueue.queue_files import (
    RECORD_BYTES,
    consume,
    drain,
    framed,
    names,
    numbers,
    payload,
    read_metadata,
    records,
    segment_path,
    write_metadata,
    write_segment,
)

MAX_RECORD_BYTES = 1024 * 1024 + 26


def with_length(content: bytes, index: int, length: int) -> bytes:
    """The segment with another length in record `index`."""
    position = index * RECORD_BYTES
    return content[:position] + struct.pack(">i", length) + content[position + 4 :]


def overwrite(path: Path, position: int, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY)
    os.pwrite(fd, data, position)
    os.close(fd)


@pytest.mark.parametrize("length", [25, 0, -1, -(2**31), MAX_RECORD_BYTES + 1, 2**31 - 1])
def test_invalid_length_in_a_completed_segment(tmp_path: Path, length: int) -> None:
    """D-15, spec section 6."""
    write_segment(tmp_path, 0, with_length(records(0, 5), 2, length))
    write_segment(tmp_path, 1, records(5, 2))
    write_metadata(tmp_path, "7\n0,0\n1,64\n")

    queue = DiskQueue(tmp_path, "t")

    assert numbers(consume(queue)) == [0, 1, 5, 6]
    assert queue.depth == 0
    assert names(tmp_path) == ["000000.dat.bad", "000001.dat", "meta.dat"]
    assert read_metadata(tmp_path) == (0, 1, 64, 1, 64)


def test_length_just_above_a_small_limit(tmp_path: Path) -> None:
    """D-15: it leads into the middle of another record, so it is no old large one."""
    write_segment(tmp_path, 0, with_length(records(0, 9), 2, 101))
    write_segment(tmp_path, 1, records(9, 1))
    write_metadata(tmp_path, "10\n0,0\n1,32\n")

    queue = DiskQueue(tmp_path, "t", max_record_bytes=100)

    assert numbers(consume(queue)) == [0, 1, 9]
    assert "000000.dat.bad" in names(tmp_path)


@pytest.mark.parametrize("cut", [1, 3, 4, 20, 31])
def test_torn_last_record_of_a_completed_segment(tmp_path: Path, cut: int) -> None:
    """D-16, spec section 6."""
    write_segment(tmp_path, 0, records(0, 3)[: 2 * RECORD_BYTES + cut])
    write_segment(tmp_path, 1, records(3, 1))
    write_metadata(tmp_path, "4\n0,0\n1,32\n")

    queue = DiskQueue(tmp_path, "t")

    assert numbers(consume(queue)) == [0, 1, 3]
    assert names(tmp_path) == ["000000.dat.bad", "000001.dat", "meta.dat"]


def test_torn_last_record_of_the_last_segment(tmp_path: Path) -> None:
    """D-16, D-25: as a kill in the middle of a write leaves it."""
    write_segment(tmp_path, 0, records(0, 3)[:-5])
    write_metadata(tmp_path, "1\n0,0\n0,32\n")

    queue = DiskQueue(tmp_path, "t")
    queue.put([payload(3)])

    assert numbers(consume(queue)) == [0, 1, 3]
    assert names(tmp_path) == ["000000.dat.bad", "000001.dat", "meta.dat"]


def test_segment_is_set_aside_only_when_its_records_are_committed(tmp_path: Path) -> None:
    """A crash before that must find them again."""
    write_segment(tmp_path, 0, with_length(records(0, 5), 2, 25))
    write_segment(tmp_path, 1, records(5, 1))
    write_metadata(tmp_path, "6\n0,0\n1,32\n")
    queue = DiskQueue(tmp_path, "t")
    assert numbers(drain(queue)) == [0, 1, 5]
    queue.commit([0])
    queue.sync()
    assert names(tmp_path) == ["000000.dat", "000001.dat", "meta.dat"]

    again = DiskQueue(tmp_path, "t")
    assert numbers(drain(again)) == [1, 5]
    again.commit([0])
    again.sync()

    assert names(tmp_path) == ["000000.dat.bad", "000001.dat", "meta.dat"]
    assert numbers(drain(DiskQueue(tmp_path, "t"))) == [5]


def test_warning_names_file_offset_reason_and_tool(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_segment(tmp_path, 0, with_length(records(0, 5), 2, 25))

    with caplog.at_level(logging.WARNING):
        drain(DiskQueue(tmp_path, "t"))

    assert f"file={path} offset=64" in caplog.text
    assert "invalid record size (25)" in caplog.text
    assert f"python -m diskqueue salvage {path}.bad" in caplog.text


def test_damage_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_segment(tmp_path, 0, with_length(records(0, 5), 0, 25))
    queue = DiskQueue(tmp_path, "t")

    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            assert queue.read(10, 1000) is None

    assert caplog.text.count("segment damaged") == 1


def test_older_file_set_aside_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "t.diskqueue.000000.dat.bad").write_bytes(b"older")
    write_segment(tmp_path, 0, with_length(records(0, 2), 1, 25))

    consume(DiskQueue(tmp_path, "t"))

    assert (tmp_path / "t.diskqueue.000000.dat.bad").read_bytes() == b"older"
    assert (tmp_path / "t.diskqueue.000000.dat.bad.1").exists()


def test_damage_in_the_segment_being_written_moves_appends_on(tmp_path: Path) -> None:
    """D-15, quirk 4: records appended behind the damage are not lost."""
    write_segment(tmp_path, 0, with_length(records(0, 4), 1, 25))
    write_metadata(tmp_path, "4\n0,0\n0,128\n")
    queue = DiskQueue(tmp_path, "t")
    queue.put([payload(4)])
    queue.put([payload(5), payload(6)])

    assert numbers(drain(queue)) == [0, 4, 5, 6]
    queue.put([payload(7)])
    assert numbers(drain(queue)) == [7]

    assert segment_path(tmp_path, 1).read_bytes() == records(4, 4)
    queue.commit([0])
    queue.close()
    assert names(tmp_path) == ["000000.dat.bad", "000001.dat", "meta.dat"]
    assert read_metadata(tmp_path) == (4, 1, 0, 1, 128)


def test_rescued_records_survive_a_crash(tmp_path: Path) -> None:
    write_segment(tmp_path, 0, with_length(records(0, 4), 1, 25))
    write_metadata(tmp_path, "4\n0,0\n0,128\n")
    queue = DiskQueue(tmp_path, "t")
    queue.put([payload(4)])
    drain(queue)

    assert numbers(drain(DiskQueue(tmp_path, "t"))) == [0, 4]


def test_damage_among_records_of_this_process(tmp_path: Path) -> None:
    """The disk forgets while the queue is open: good records behind the damage are still found."""
    queue = DiskQueue(tmp_path, "t")
    for number in range(90):
        queue.put([payload(number, 1000)])
    overwrite(segment_path(tmp_path, 0), 10 * 1004, b"\xff\xff\xff\xff")

    found = [int(data[26:28]) for data in drain(queue)]

    assert found[:10] == list(range(10))
    assert found[-70:] == list(range(20, 90))
    assert found == sorted(set(found))
    assert queue.depth == 0


def test_known_starts_are_thinned_out_and_not_forgotten(tmp_path: Path) -> None:
    """A long segment keeps a bounded number of them, over all its length."""
    queue = DiskQueue(tmp_path, "t")
    for number in range(600):
        queue.put([payload(number % 100, 5000)])
    overwrite(segment_path(tmp_path, 0), 10 * 5004, b"\xff\xff\xff\xff")

    found = drain(queue)

    assert len(found) > 590


def test_known_starts_belong_to_their_segment(tmp_path: Path) -> None:
    queue = DiskQueue(tmp_path, "t", max_bytes_per_file=100_000)
    for number in range(99):
        queue.put([payload(number, 1000)])
    for number in range(80):
        queue.put([payload(number, 1100)])
    overwrite(segment_path(tmp_path, 1), 10 * 1104, b"\xff\xff\xff\xff")

    found = [int(data[26:28]) for data in drain(queue)[99:]]

    assert found[:10] == list(range(10))
    assert found[-60:] == list(range(20, 80))


def test_record_larger_than_max_bytes_before_damage_is_delivered(tmp_path: Path) -> None:
    write_segment(tmp_path, 0, records(0, 2) + b"junk")
    queue = DiskQueue(tmp_path, "t")

    found = [list(queue.read(10, 1) or []) for _ in range(3)]

    assert found == [[payload(0)], [payload(1)], []]


def test_two_damaged_places_behind_each_other(tmp_path: Path) -> None:
    queue = DiskQueue(tmp_path, "t")
    for number in range(90):
        queue.put([payload(number, 1000)])
    for index in (10, 50):
        overwrite(segment_path(tmp_path, 0), index * 1004, b"\xff\xff\xff\xff")

    found = [int(data[26:28]) for data in drain(queue)]

    assert found[:10] == list(range(10))
    assert found[-30:] == list(range(60, 90))
    assert found == sorted(set(found))


def test_file_cut_short_while_running(tmp_path: Path) -> None:
    queue = DiskQueue(tmp_path, "t")
    queue.put([payload(number) for number in range(5)])
    os.truncate(segment_path(tmp_path, 0), 3 * RECORD_BYTES + 7)

    assert numbers(drain(queue)) == [0, 1, 2]
    queue.put([payload(5)])

    assert numbers(consume(queue)) == [5]
    assert queue.depth == 0


def test_large_record_cut_short_is_not_delivered_in_part(tmp_path: Path) -> None:
    queue = DiskQueue(tmp_path, "t")
    queue.put([payload(0, 600_000)])
    os.truncate(segment_path(tmp_path, 0), 500_000)

    assert queue.read(1, 100) is None


def test_segment_deleted_while_running_is_skipped(tmp_path: Path) -> None:
    """D-17."""
    queue = DiskQueue(tmp_path, "t", max_bytes_per_file=2 * RECORD_BYTES)
    queue.put([payload(number) for number in range(6)])
    segment_path(tmp_path, 1).unlink()

    assert numbers(consume(queue)) == [0, 1, 4, 5]

    segment_path(tmp_path, 2).unlink()
    queue.put([payload(6)])
    assert numbers(drain(queue)) == [6]


def test_directory_that_is_gone_is_an_error_and_skips_nothing(tmp_path: Path) -> None:
    """A volume that was unmounted comes back with all its records."""
    directory = tmp_path / "volume"
    directory.mkdir()
    queue = DiskQueue(directory, "t")
    queue.put([payload(0)])
    directory.rename(tmp_path / "elsewhere")

    with pytest.raises(FileNotFoundError):
        queue.read(10, 1000)

    (tmp_path / "elsewhere").rename(directory)
    assert numbers(drain(queue)) == [0]


def test_write_segment_deleted_while_running(tmp_path: Path) -> None:
    queue = DiskQueue(tmp_path, "t")
    queue.put([payload(0), payload(1)])
    segment_path(tmp_path, 0).unlink()

    assert queue.read(10, 1000) is None
    queue.put([payload(2)])

    assert numbers(consume(queue)) == [2]
    assert names(tmp_path) == ["000001.dat", "meta.dat"]


def test_lowered_limit_still_delivers_older_larger_records(tmp_path: Path) -> None:
    """Quirk 5: go-diskqueue drops the rest of the segment."""
    queue = DiskQueue(tmp_path, "t")
    payloads = [payload(0), payload(1, 500), payload(2, 600), payload(3), payload(4, 500)]
    queue.put(payloads)
    queue.close()

    again = DiskQueue(tmp_path, "t", max_record_bytes=100)

    assert consume(again) == payloads
    assert not [name for name in names(tmp_path) if "bad" in name]


def test_large_length_followed_by_damage_is_damage(tmp_path: Path) -> None:
    """Several above the limit in a row are believed only if a record or the end follows."""
    content = framed(payload(0)) + framed(payload(1, 500)) + framed(payload(2, 500)) + b"junk!"
    write_segment(tmp_path, 0, content)

    queue = DiskQueue(tmp_path, "t", max_record_bytes=100)

    assert consume(queue) == [payload(0)]


def test_everything_damaged_ends(tmp_path: Path) -> None:
    for number in range(20):
        write_segment(tmp_path, number, os.urandom(10))
    queue = DiskQueue(tmp_path, "t")

    assert consume(queue) == []

    assert len([name for name in names(tmp_path) if name.endswith(".bad")]) == 20
    queue.put([payload(0)])
    assert numbers(consume(queue)) == [0]


def test_read_error_of_the_disk_is_raised_and_skips_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = DiskQueue(tmp_path, "t")
    queue.put([payload(0)])

    def fail(*arguments: object) -> bytes:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", fail)
        with pytest.raises(OSError, match="Input/output"):
            queue.read(10, 1000)

    assert queue.depth == 1
    assert numbers(drain(queue)) == [0]


ALL = 1 << 20


def open_filled(directory: Path, count: int) -> DiskQueue:
    queue = DiskQueue(directory, "t", max_bytes_per_file=10 * RECORD_BYTES)
    queue.put(payload(index) for index in range(count))
    return queue


def test_many_small_reads_are_one_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = DiskQueue(tmp_path, "t")
    queue.put([payload(number) for number in range(90)])
    sizes: list[int] = []
    pread = os.pread

    def count(fd: int, size: int, offset: int) -> bytes:
        sizes.append(size)
        return pread(fd, size, offset)

    monkeypatch.setattr(os, "pread", count)
    for number in range(90):
        found = queue.read(1, 1000)
        assert found is not None
        assert numbers(list(found)) == [number]

    assert sizes == [90 * RECORD_BYTES]
    queue.close()


def test_peek_gives_what_read_gives_across_segments(tmp_path: Path) -> None:
    queue = open_filled(tmp_path, 25)

    peeked = queue.peek(100, ALL)

    assert peeked == [payload(index) for index in range(25)]
    assert (queue.depth, queue.outstanding_count) == (25, 0)
    assert drain(queue) == peeked


def test_peek_begins_behind_what_was_read(tmp_path: Path) -> None:
    queue = open_filled(tmp_path, 25)
    batch = queue.read(4, ALL)
    assert batch is not None

    assert queue.peek(2, ALL) == [payload(len(batch)), payload(len(batch) + 1)]


@pytest.mark.parametrize("count", [1, 10, 11])
def test_peek_keeps_to_the_number_asked_for(tmp_path: Path, count: int) -> None:
    assert len(open_filled(tmp_path, 25).peek(count, ALL)) == count


def test_peek_keeps_to_the_size_asked_for(tmp_path: Path) -> None:
    queue = open_filled(tmp_path, 25)

    assert len(queue.peek(25, 5 * RECORD_BYTES)) == 5
    assert len(queue.peek(25, 15 * RECORD_BYTES)) == 15
    assert len(queue.peek(25, 1)) == 1, "one, however large"


def test_peek_at_an_empty_queue_is_empty(tmp_path: Path) -> None:
    assert open_filled(tmp_path, 0).peek(10, ALL) == []


def test_peek_stops_at_damage_and_leaves_it_to_the_reader(tmp_path: Path) -> None:
    queue = open_filled(tmp_path, 25)
    path = segment_path(tmp_path, 1)
    data = bytearray(path.read_bytes())
    data[3 * RECORD_BYTES : 3 * RECORD_BYTES + 4] = b"\xff\xff\xff\xff"
    path.write_bytes(data)

    assert queue.peek(100, ALL) == [payload(index) for index in range(13)]
    assert queue.depth == 25


def test_the_newest_are_what_read_gives_last(tmp_path: Path) -> None:
    queue = open_filled(tmp_path, 25)

    peeked = queue.peek(12, ALL, is_newest=True)

    assert peeked == [payload(index) for index in range(24, 12, -1)]
    assert (queue.depth, queue.outstanding_count) == (25, 0)
    assert queue.peek(100, ALL, is_newest=True) == drain(queue)[::-1]
    assert queue.peek(100, ALL, is_newest=True) == []


def test_peek_at_a_closed_queue_fails(tmp_path: Path) -> None:
    queue = open_filled(tmp_path, 1)
    queue.close()

    with pytest.raises(QueueClosedError):
        queue.peek(1, ALL)


@pytest.mark.parametrize(("appended", "rescued_bytes"), [(0, 0), (2, 64)])
def test_the_warning_tells_how_much_was_skipped_and_rescued(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, appended: int, rescued_bytes: int
) -> None:
    write_segment(tmp_path, 0, with_length(records(0, 4), 1, 25))
    write_metadata(tmp_path, "4\n0,0\n0,128\n")
    queue = DiskQueue(tmp_path, "t")
    if appended:
        queue.put([payload(number) for number in range(4, 4 + appended)])

    assert numbers(drain(queue)) == [0, *range(4, 4 + appended)]

    [line] = [line for line in caplog.messages if "damaged" in line]
    assert f"offset=32 reason='invalid record size (25)' skipped_bytes={96 + rescued_bytes}" in line
    assert f"rescued_bytes={rescued_bytes} " in line


def test_a_segment_that_ends_while_its_records_are_rescued_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_segment(tmp_path, 0, with_length(records(0, 4), 1, 25))
    write_metadata(tmp_path, "4\n0,0\n0,128\n")
    queue = DiskQueue(tmp_path, "t")
    queue.put([payload(4), payload(5)])
    assert queue.read(1, 1) is not None
    pread = os.pread

    def end_early(fd: int, size: int, offset: int) -> bytes:
        # The copy reads from the place of the first record to rescue on.
        return b"" if (size, offset) == (64, 128) and is_walked else pread(fd, size, offset)

    is_walked = False

    def walk_first(*arguments: object) -> object:
        nonlocal is_walked
        result = walk(*arguments)  # type: ignore[arg-type]
        is_walked = True
        return result

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", end_early)
        patch.setattr("diskqueue.writer.walk", walk_first)
        with pytest.raises(OSError, match="ends at 128, not at 192"):
            queue.read(10, 1000)
    assert names(tmp_path) == ["000000.dat", "meta.dat"]

    assert numbers(drain(queue)) == [4, 5]
