"""Finished records behind the read position: the sidecar, and a start that reads it."""

import errno
import logging
import os
import random
import shutil
import stat
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskqueue import DiskQueue, layout
from diskqueue.errors import CorruptSidecarError
from diskqueue.finished import sidecar
from diskqueue.finished.intervals import Interval, Intervals
from diskqueue.finished.sidecar import Block, Position
from tests.unit.diskqueue.queue_files import (
    RECORD_BYTES,
    consume,
    drain,
    frame_all,
    framed,
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

MANY = 3 * RECORD_BYTES


def open_queue(directory: Path, max_bytes_per_file: int = 1 << 20) -> DiskQueue:
    return DiskQueue(directory, "t", max_bytes_per_file=max_bytes_per_file)


def sidecar_path(directory: Path) -> Path:
    return directory / "t.diskqueue.finished"


def leave_unfinished(
    directory: Path, count: int, unfinished: list[int], max_bytes_per_file: int = 1 << 20
) -> DiskQueue:
    """A queue of so many records that were all read, and finished and synced but for some."""
    queue = open_queue(directory, max_bytes_per_file)
    queue.put([payload(number) for number in range(count)])
    drain(queue)
    queue.commit([number for number in range(count) if number not in unfinished])
    queue.sync()
    return queue


@pytest.mark.parametrize("max_bytes_per_file", [1, MANY, 1 << 20])
@pytest.mark.parametrize("unfinished", [[0], [0, 9], [3, 4], [0, 2, 4, 6, 8], [7]])
def test_crash_repeats_only_what_was_not_finished(
    tmp_path: Path, unfinished: list[int], max_bytes_per_file: int
) -> None:
    leave_unfinished(tmp_path, 10, unfinished, max_bytes_per_file)

    queue = open_queue(tmp_path, max_bytes_per_file)

    assert queue.depth == len(unfinished)
    assert numbers(queue.peek(100, 10_000)) == unfinished
    assert numbers(drain(queue)) == unfinished
    assert (queue.depth, queue.outstanding_count) == (0, len(unfinished))


def test_what_was_finished_stays_so_over_many_restarts(tmp_path: Path) -> None:
    leave_unfinished(tmp_path, 20, [0, 5, 10, 15], MANY)
    for left in ([0, 5, 15], [0, 15], [0]):
        queue = open_queue(tmp_path, MANY)
        before = numbers(drain(queue))
        ordinal = next(index for index, number in enumerate(before) if number not in left)
        queue.commit([ordinal])
        queue.sync()
        assert numbers(drain(open_queue(tmp_path, MANY))) == left

    consume(queue := open_queue(tmp_path, MANY))
    assert not sidecar_path(tmp_path).exists()
    queue.close()
    assert names(tmp_path) == ["meta.dat"]


def test_ranges_of_several_runs_of_the_daemon_interleave(tmp_path: Path) -> None:
    leave_unfinished(tmp_path, 12, [0, 2, 4, 6, 8, 10])
    queue = open_queue(tmp_path)
    drain(queue)
    queue.commit([1, 3])
    queue.close()
    assert read_metadata(tmp_path)[0] == 12

    again = open_queue(tmp_path)
    assert again.depth == 4
    assert numbers(drain(again)) == [0, 4, 8, 10]
    again.commit([0, 1])
    again.close()
    assert read_metadata(tmp_path)[:3] == (4, 0, 8 * RECORD_BYTES)
    assert numbers(drain(open_queue(tmp_path))) == [8, 10]


def test_sidecar_is_private_and_comes_before_the_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = open_queue(tmp_path)
    queue.put([payload(number) for number in range(4)])
    drain(queue)
    queue.commit([0, 2])
    order: list[str] = []
    replace = os.replace

    def logged(source: str, target: str) -> None:
        order.append(os.path.basename(target))
        replace(source, target)

    monkeypatch.setattr(os, "replace", logged)
    queue.sync()

    assert order == ["t.diskqueue.finished", "t.diskqueue.meta.dat"]
    assert stat.S_IMODE(sidecar_path(tmp_path).stat().st_mode) == 0o600


def test_file_has_the_bytes_that_its_format_says(tmp_path: Path) -> None:
    """Three segments of three records: of the first two are unfinished, the second is deleted."""
    leave_unfinished(tmp_path, 9, [0, 2], MANY)

    def crc(number: int) -> int:
        return zlib.crc32(framed(payload(number))[:30])

    content = b"DQFINISH" + struct.pack(">I", 1)
    content += struct.pack(">QQ", 0, 0)  # the read position before
    content += struct.pack(">QQIII", 0, 0, crc(0), 1, 3)  # and now; one gap, three blocks
    content += struct.pack(">QQ", 1, 1)
    content += struct.pack(">QQIII", 0, 32, crc(1), crc(1), 1) + struct.pack(">QQI", 32, 64, 1)
    content += struct.pack(">QQIII", 1, 64, crc(3), crc(5), 1) + struct.pack(">QQI", 0, 96, 3)
    content += struct.pack(">QQIII", 2, 64, crc(6), crc(8), 1) + struct.pack(">QQI", 0, 96, 3)
    content += struct.pack(">I", zlib.crc32(content))
    assert sidecar_path(tmp_path).read_bytes() == content
    assert not segment_path(tmp_path, 1).exists()


def test_unchanged_sidecar_is_not_written_again(tmp_path: Path) -> None:
    queue = leave_unfinished(tmp_path, 4, [0])
    before = sidecar_path(tmp_path).stat()

    queue.put([payload(4)])
    queue.sync()

    assert read_metadata(tmp_path) == (5, 0, 0, 0, 5 * RECORD_BYTES)
    assert sidecar_path(tmp_path).stat().st_ino == before.st_ino
    assert numbers(drain(open_queue(tmp_path))) == [0, 4]


def test_crash_between_sidecar_and_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read position of the sidecar counts: it goes with the finished records beside it."""
    queue = leave_unfinished(tmp_path, 10, [0, 7, 9], MANY)
    queue.commit([0])
    replace = os.replace

    def fail_for_metadata(source: str, target: str) -> None:
        if target.endswith("meta.dat"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail_for_metadata)
        with pytest.raises(OSError, match="Input/output"):
            queue.sync()

    assert read_metadata(tmp_path)[1:3] == (0, 0)
    again = open_queue(tmp_path, MANY)
    assert again.depth == 2
    assert numbers(drain(again)) == [7, 9]
    again.sync()
    assert read_metadata(tmp_path) == (3, 2, RECORD_BYTES, 3, RECORD_BYTES), "with 8"
    assert numbers(drain(open_queue(tmp_path, MANY))) == [7, 9]


def test_segments_between_older_and_newer_ones_are_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A record that is never finished holds its own segment, no other."""
    queue = leave_unfinished(tmp_path, 30, [4], MANY)

    assert names(tmp_path) == ["000001.dat", "000009.dat", "finished", "meta.dat"]
    # Record 5 is finished, and so are those of the last segment.
    assert read_metadata(tmp_path) == (5, 1, RECORD_BYTES, 9, MANY)
    assert (queue.segment_count, queue.disk_bytes) == (2, 2 * MANY)
    assert numbers(go_read_all(tmp_path)) == [4, 5, 27, 28, 29]

    queue.put([payload(30)])
    queue.close()
    assert numbers(go_read_all(tmp_path)) == [4, 5, 27, 28, 29, 30]
    with caplog.at_level(logging.WARNING):
        queue = open_queue(tmp_path, MANY)
    assert "missing" not in caplog.text
    assert queue.depth == 2
    assert numbers(consume(queue)) == [4, 30]
    queue.close()
    assert names(tmp_path) == ["meta.dat"]


def test_crash_before_the_deletion_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: str) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    queue = open_queue(tmp_path, MANY)
    queue.put([payload(number) for number in range(30)])
    drain(queue)
    queue.commit([number for number in range(30) if number != 4])
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", fail)
        with pytest.raises(PermissionError):
            queue.sync()
    assert len(names(tmp_path)) == 12

    again = open_queue(tmp_path, MANY)
    assert again.depth == 1
    assert numbers(drain(again)) == [4]
    again.sync()
    again.close()
    assert names(tmp_path) == ["000001.dat", "000009.dat", "finished", "meta.dat"]
    assert numbers(go_read_all(tmp_path)) == [4, 5, 27, 28, 29]


def test_segment_that_is_really_missing_is_still_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    leave_unfinished(tmp_path, 30, [4, 14, 25], MANY)
    segment_path(tmp_path, 4).unlink()

    with caplog.at_level(logging.WARNING):
        queue = open_queue(tmp_path, MANY)

    assert "segments missing" in caplog.text
    assert numbers(drain(queue)) == [4, 25]


def flip(content: bytes, index: int) -> bytes:
    return content[:index] + bytes([content[index] ^ 0x40]) + content[index + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "cut off": lambda content: content[:-1],
    "a half": lambda content: content[: len(content) // 2],
    "too long": lambda content: content + b"\0",
    "garbage": lambda content: random.Random(1).randbytes(len(content)),
    "magic": lambda content: flip(content, 0),
    "version": lambda content: flip(content, 11),
    "position": lambda content: flip(content, 40),
    "range": lambda content: flip(content, len(content) - 20),
    "checksum": lambda content: flip(content, len(content) - 1),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_sidecar_is_ignored_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    leave_unfinished(tmp_path, 6, [0, 3])
    path = sidecar_path(tmp_path)
    path.write_bytes(DAMAGES[damage](path.read_bytes()))

    with caplog.at_level(logging.WARNING):
        queue = open_queue(tmp_path)

    assert "will be delivered again" in caplog.text
    assert queue.depth == 6
    assert numbers(drain(queue)) == list(range(6))
    queue.sync()
    assert not path.exists()


def test_another_queue_in_the_same_files_is_not_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """go-diskqueue emptied the queue meanwhile and began again at segment 0, at the same sizes."""
    leave_unfinished(tmp_path, 6, [0, 3])
    write_segment(tmp_path, 0, records(50, 6))
    write_metadata(tmp_path, "6\n0,0\n0,192\n")

    with caplog.at_level(logging.WARNING):
        queue = open_queue(tmp_path)

    assert "will be delivered again" in caplog.text
    assert numbers(drain(queue)) == list(range(50, 56))


def test_segment_that_went_on_differently_is_not_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A backup was restored and appended to: the beginning is the same, the rest is not."""
    leave_unfinished(tmp_path, 6, [0, 3])
    write_segment(tmp_path, 0, records(0, 4) + records(50, 3))
    write_metadata(tmp_path, "7\n0,0\n0,224\n")

    with caplog.at_level(logging.WARNING):
        queue = open_queue(tmp_path)

    assert "of other records" in caplog.text
    assert numbers(drain(queue)) == [0, 1, 2, 3, 50, 51, 52]


def test_segment_that_began_differently_is_not_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The record at the read position and the last finished one are the same, the first is not."""
    leave_unfinished(tmp_path, 6, [0, 3])
    write_segment(tmp_path, 0, records(0, 1) + records(50, 1) + records(2, 4))

    with caplog.at_level(logging.WARNING):
        queue = open_queue(tmp_path)

    assert "of other records" in caplog.text
    assert numbers(drain(queue)) == [0, 50, 2, 3, 4, 5]


def test_shorter_segment_is_not_skipped(tmp_path: Path) -> None:
    leave_unfinished(tmp_path, 6, [0, 3])
    write_segment(tmp_path, 0, records(0, 5))

    assert numbers(drain(open_queue(tmp_path))) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("read", ["0,32", "0,128"])
def test_sidecar_of_another_read_position_is_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, read: str
) -> None:
    """A daemon without sidecars has moved it, forward or back."""
    queue = leave_unfinished(tmp_path, 6, [2, 3])
    queue.commit([2])
    queue.sync()
    write_metadata(tmp_path, f"4\n{read}\n0,192\n")

    with caplog.at_level(logging.WARNING):
        found = numbers(drain(open_queue(tmp_path)))

    assert found == list(range(int(read[2:]) // 32, 6))
    assert "not written for this read position" in caplog.text


def test_sidecar_without_metadata_is_ignored(tmp_path: Path) -> None:
    leave_unfinished(tmp_path, 6, [0, 3])
    metadata_path(tmp_path).unlink()

    queue = open_queue(tmp_path)
    assert numbers(drain(queue)) == list(range(6))
    queue.sync()
    assert not sidecar_path(tmp_path).exists()


def test_sidecar_that_cannot_be_read_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be missing, so a bad sector in it must not keep the queue from starting."""
    leave_unfinished(tmp_path, 6, [0, 3])

    def fail(*arguments: object, **options: object) -> object:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(sidecar, "open", fail, raising=False)
        queue = open_queue(tmp_path)

    assert "reason=[Errno 5]" in caplog.text
    assert numbers(drain(queue)) == list(range(6))


def write_sidecar(directory: Path, entries: list[Interval], last_start: int) -> None:
    """A sidecar that is whole and has the right fingerprints, with any intervals."""
    fd = os.open(segment_path(directory, 0), os.O_RDONLY)
    first_crc = sidecar.fingerprint(fd, entries[0].start)
    last_crc = sidecar.fingerprint(fd, last_start)
    read_crc = sidecar.fingerprint(fd, 0)
    os.close(fd)
    block = Block(0, Intervals(entries), last_start, first_crc, last_crc)
    body = sidecar.encode_body(Position(0, 0), read_crc, Intervals(), [block.encode()])
    sidecar_path(directory).write_bytes(sidecar.encode(Position(0, 0), body))


def test_range_inside_a_record_is_dropped_when_the_reader_comes_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_segment(tmp_path, 0, records(0, 6))
    write_metadata(tmp_path, "6\n0,0\n0,192\n")
    write_sidecar(tmp_path, [Interval(40, 64, 1), Interval(160, 192, 1)], 160)

    queue = open_queue(tmp_path)
    assert queue.depth == 4
    with caplog.at_level(logging.WARNING):
        found = numbers(drain(queue))

    assert found == list(range(6))
    assert "will be delivered again" in caplog.text
    assert queue.depth == 0
    assert consume(queue) == []


def test_damage_before_a_finished_range_ends_the_segment(tmp_path: Path) -> None:
    leave_unfinished(tmp_path, 8, [0, 3, 5])
    content = bytearray(segment_path(tmp_path, 0).read_bytes())
    content[3 * RECORD_BYTES : 3 * RECORD_BYTES + 4] = b"\xff\xff\xff\xff"
    segment_path(tmp_path, 0).write_bytes(content)

    queue = open_queue(tmp_path)
    assert numbers(consume(queue)) == [0]
    assert names(tmp_path) == ["000000.dat.bad", "meta.dat"]


@pytest.mark.parametrize("operation", [DiskQueue.empty, DiskQueue.delete])
def test_sidecar_goes_with_the_records(
    tmp_path: Path, operation: Callable[[DiskQueue], None]
) -> None:
    queue = leave_unfinished(tmp_path, 30, [4, 20], MANY)
    assert "finished" in names(tmp_path)

    operation(queue)

    assert names(tmp_path) == []


def test_closed_queue_without_holes_has_no_sidecar(tmp_path: Path) -> None:
    queue = leave_unfinished(tmp_path, 6, [0, 1, 4, 5])
    queue.commit([0, 1])

    queue.close()

    assert names(tmp_path) == ["000000.dat", "meta.dat"]
    assert numbers(go_read_all(tmp_path)) == [4, 5]
    assert numbers(drain(open_queue(tmp_path))) == [4, 5]


def test_records_that_were_advanced_over_are_written_down(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, 5 * RECORD_BYTES)
    for number in range(20):
        data, lengths = frame_all([payload(number)])
        queue.append(data, lengths)
        queue.advance(lengths)
    queue.commit([number for number in range(20) if number not in (1, 2, 12)])
    queue.sync()

    assert names(tmp_path) == [
        "000000.dat",
        "000002.dat",
        "000003.dat",
        "finished",
        "meta.dat",
    ]
    assert numbers(drain(open_queue(tmp_path))) == [1, 2, 12]


def test_unreadable_segment_only_repeats_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue = open_queue(tmp_path)
    queue.put([payload(number) for number in range(4)])
    drain(queue)
    queue.commit([1, 2, 3])

    def fail(*arguments: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(os, "pread", fail)
        queue.sync()

    assert "not written down" in caplog.text
    assert numbers(drain(open_queue(tmp_path))) == [0, 1, 2, 3]


BLOCKS = st.builds(
    lambda number, gaps: _make_block(number, gaps),
    st.integers(0, 2**40),
    st.lists(st.tuples(st.integers(0, 99), st.integers(1, 2**33)), min_size=1, max_size=5),
)


def _make_block(number: int, gaps: list[tuple[int, int]]) -> Block:
    entries = []
    position = 0
    for gap, size in gaps:
        entries.append(Interval(position + gap, position + gap + size, 1 + size % 7))
        position += gap + size
    return Block(number, Intervals(entries), entries[-1].start, 7, number % 2**32)


@given(st.lists(BLOCKS, max_size=4), st.sets(st.integers(0, 99)))
def test_content_survives_its_bytes(blocks: list[Block], numbers: set[int]) -> None:
    gaps = Intervals.of_numbers(numbers)
    body = sidecar.encode_body(Position(3, 4), 5, gaps, [block.encode() for block in blocks])
    content = sidecar.encode(Position(1, 2), body)

    file = sidecar.decode(content)

    assert (file.previous, file.read, file.read_crc) == (Position(1, 2), Position(3, 4), 5)
    assert file.gaps == gaps
    assert list(file.blocks) == blocks


def test_file_without_gaps_and_blocks_is_the_shortest() -> None:
    whole = sidecar.encode(Position(0, 0), sidecar.encode_body(Position(0, 0), 0, Intervals(), []))
    assert sidecar.decode(whole).blocks == ()

    for size in range(len(whole)):
        with pytest.raises(CorruptSidecarError, match=f"only {size} bytes"):
            sidecar.decode(whole[:size])


@given(st.binary(max_size=200))
def test_any_bytes_are_no_sidecar(content: bytes) -> None:
    with pytest.raises(CorruptSidecarError):
        sidecar.decode(content)
    with pytest.raises(CorruptSidecarError):
        sidecar.decode(sidecar.encode(Position(0, 0), content[:60]))


def test_listing_made_by_the_caller_gives_the_same(tmp_path: Path) -> None:
    leave_unfinished(tmp_path, 30, [4, 20], MANY)
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path, copy)
    files = layout.list_queues(copy)["t"]
    assert files.has_finished

    assert numbers(drain(DiskQueue(copy, "t", files=files))) == [4, 20]


def test_pipe_in_place_of_the_segment_at_the_read_position_is_not_opened(tmp_path: Path) -> None:
    leave_unfinished(tmp_path, 6, [2, 3], max_bytes_per_file=1)
    segment = tmp_path / "t.diskqueue.000002.dat"
    segment.unlink()
    os.mkfifo(segment)  # to open it would wait for a writer

    assert 3 in numbers(drain(open_queue(tmp_path, 1)))


def encode_block(block: bytes) -> bytes:
    """A whole file with the bytes of one block."""
    return sidecar.encode(
        Position(0, 0), sidecar.encode_body(Position(0, 0), 0, Intervals(), [block])
    )


def test_ranges_out_of_order_are_refused() -> None:
    first, second = Interval(0, 32, 1), Interval(64, 96, 1)
    one = Block(0, Intervals([first]), 0, 7, 8).encode()
    two = Block(0, Intervals([first, second]), 64, 7, 8).encode()
    assert sidecar.decode(encode_block(two)).blocks[0].end == 96
    size = len(two) - len(one)

    with pytest.raises(CorruptSidecarError, match="ranges are wrong"):
        sidecar.decode(encode_block(two[: -2 * size] + two[-size:] + two[-2 * size : -size]))


@pytest.mark.parametrize("last_start", [0, 63, 96])
def test_a_last_record_outside_the_last_range_is_refused(last_start: int) -> None:
    ranges = Intervals([Interval(0, 32, 1), Interval(64, 96, 1)])

    with pytest.raises(CorruptSidecarError, match="ranges are wrong"):
        sidecar.decode(encode_block(Block(0, ranges, last_start, 7, 8).encode()))


def test_a_block_that_ends_at_the_read_position_is_none_of_the_evidence(tmp_path: Path) -> None:
    write_segment(tmp_path, 0, records(0, 6))
    fd = os.open(segment_path(tmp_path, 0), os.O_RDONLY)
    crcs = {start: sidecar.fingerprint(fd, start) for start in (32, 64, 128)}
    os.close(fd)
    blocks = [
        Block(0, Intervals([Interval(start, start + 32, 1)]), start, crcs[start], crcs[start])
        for start in (32, 128)
    ]
    read = Position(0, 64)
    encoded = [block.encode() for block in blocks]
    body = sidecar.encode_body(read, crcs[64], Intervals(), encoded)
    sidecar_path(tmp_path).write_bytes(sidecar.encode(read, body))

    found = sidecar.examine(str(tmp_path), "t", read, {0: 192})

    assert found is not None
    assert (found.doubts, found.blocks) == ([], blocks[1:])


def reseal(content: bytes) -> bytes:
    """Give a file the checksum of what it holds."""
    return content[:-4] + struct.pack(">I", zlib.crc32(content[:-4]))


@pytest.mark.parametrize(("index", "reason"), [(0, "begin"), (11, "version")])
def test_whole_file_of_another_kind_is_none(tmp_path: Path, index: int, reason: str) -> None:
    leave_unfinished(tmp_path, 6, [0, 3])
    content = sidecar_path(tmp_path).read_bytes()
    assert reseal(content) == content

    with pytest.raises(CorruptSidecarError, match=reason):
        sidecar.decode(reseal(flip(content, index)))


COUNTS = struct.Struct(">QQIII")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (COUNTS.pack(0, 0, 0, 1, 0) + struct.pack(">QQ", 5, 3), "gaps"),
        (COUNTS.pack(0, 0, 0, 2, 0) + struct.pack(">4Q", 5, 6, 1, 2), "gaps"),
        (COUNTS.pack(0, 0, 0, 0, 0) + b"more", "counts"),
        (COUNTS.pack(0, 0, 0, 1, 0), "counts"),
        (COUNTS.pack(0, 0, 0, 0, 1), "counts"),
        (COUNTS.pack(layout.MAX_NUMBER + 1, 0, 0, 0, 0), "numbers"),
        (COUNTS.pack(0, layout.MAX_NUMBER + 1, 0, 0, 0), "numbers"),
    ],
)
def test_numbers_that_cannot_be_are_refused(body: bytes, reason: str) -> None:
    with pytest.raises(CorruptSidecarError, match=reason):
        sidecar.decode(sidecar.encode(Position(0, 0), body))


def test_the_largest_numbers_are_taken() -> None:
    largest = layout.MAX_NUMBER
    body = COUNTS.pack(largest, largest, 7, 0, 0)

    found = sidecar.decode(sidecar.encode(Position(largest, largest), body))

    assert (found.previous, found.read) == (Position(largest, largest),) * 2
    with pytest.raises(CorruptSidecarError, match="numbers"):
        sidecar.decode(sidecar.encode(Position(0, largest + 1), body))


@given(
    gap_count=st.integers(0, 2),
    block_count=st.integers(0, 2),
    rest=st.binary(max_size=120),
)
def test_any_content_is_decoded_or_refused(gap_count: int, block_count: int, rest: bytes) -> None:
    body = COUNTS.pack(3, 100, 7, gap_count, block_count) + rest

    try:
        found = sidecar.decode(sidecar.encode(Position(0, 0), body))
    except CorruptSidecarError:
        return

    assert len(found.blocks) == block_count


def test_a_fingerprint_of_a_missing_segment_is_no_error(tmp_path: Path) -> None:
    write_segment(tmp_path, 1, records(0, 2))
    with sidecar.Fingerprints(str(tmp_path), "t") as fingerprints:
        fingerprints.error = OSError("of an earlier one")
        assert fingerprints.find(0, 0) is None
        assert [fingerprints.error] == [None]
        assert fingerprints.find(1, RECORD_BYTES) == zlib.crc32(records(1, 1)[:30])
        assert fingerprints.find(1, 0) == zlib.crc32(records(0, 1)[:30])
        assert fingerprints.find(1, 2 * RECORD_BYTES) == sidecar.NO_FINGERPRINT


def write_any_sidecar(
    directory: Path, read: Position, read_crc: int, blocks: list[Block], previous: Position
) -> None:
    body = sidecar.encode_body(read, read_crc, Intervals(), [block.encode() for block in blocks])
    sidecar_path(directory).write_bytes(sidecar.encode(previous, body))


def crc_of(number: int) -> int:
    return zlib.crc32(records(number, 1)[:30])


def make_finished(*spans: tuple[int, int]) -> Block:
    """Finished records of segment 0, from one to before another."""
    entries = [
        Interval(first * RECORD_BYTES, end * RECORD_BYTES, end - first) for first, end in spans
    ]
    last = spans[-1][1] - 1
    return Block(0, Intervals(entries), last * RECORD_BYTES, crc_of(spans[0][0]), crc_of(last))


@pytest.mark.parametrize(
    ("blocks", "left"),
    [
        ([make_finished((1, 3)), make_finished((3, 5))], [0, 5]),
        ([make_finished((1, 2), (4, 5)), make_finished((3, 4))], [0, 2, 5]),
        ([make_finished((1, 3)), make_finished((2, 5))], [0, 1, 2, 3, 4, 5]),
        ([make_finished((1, 5)), make_finished((2, 3))], [0, 1, 2, 3, 4, 5]),
    ],
)
def test_blocks_that_overlap_are_not_believed(
    tmp_path: Path, blocks: list[Block], left: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    write_segment(tmp_path, 0, records(0, 6))
    write_metadata(tmp_path, "6\n0,0\n0,192\n")
    write_any_sidecar(tmp_path, Position(0, 0), crc_of(0), blocks, Position(0, 0))

    assert numbers(drain(open_queue(tmp_path))) == left
    assert ("ranges overlap" in caplog.text) is (len(left) == 6)


@pytest.mark.parametrize(
    ("metadata", "previous", "read", "is_believed"),
    [
        ("0,0", (0, 0), (0, 0), True),
        ("0,32", (0, 0), (0, 32), True),
        ("0,32", (0, 32), (0, 32), True),
        ("0,0", (0, 0), (0, 32), True),
        ("0,32", (0, 64), (0, 64), False),
        ("0,64", (0, 0), (0, 32), False),
    ],
)
def test_a_sidecar_is_of_the_positions_between_its_own(
    tmp_path: Path,
    metadata: str,
    previous: tuple[int, int],
    read: tuple[int, int],
    *,
    is_believed: bool,
) -> None:
    write_segment(tmp_path, 0, records(0, 6))
    position = int(metadata[2:]) // RECORD_BYTES
    write_metadata(tmp_path, f"{6 - position}\n{metadata}\n0,192\n")
    write_any_sidecar(
        *(tmp_path, Position(*read), crc_of(read[1] // RECORD_BYTES)),
        *([make_finished((3, 5))], Position(*previous)),
    )

    queue = open_queue(tmp_path)

    first = read[1] // RECORD_BYTES if is_believed else position
    left = [n for n in range(first, 6) if not (is_believed and n in (3, 4))]
    assert queue.depth == len(left)
    assert numbers(drain(queue)) == left


@pytest.mark.parametrize(("read_crc", "is_believed"), [(0, True), (1, False), (None, False)])
def test_a_record_at_the_read_position_proves_the_sidecar(
    tmp_path: Path, read_crc: int | None, *, is_believed: bool
) -> None:
    """Without one it is believed only at the read position of the metadata."""
    write_segment(tmp_path, 0, records(0, 6))
    write_metadata(tmp_path, "6\n0,0\n0,192\n")
    crc = sidecar.NO_FINGERPRINT if read_crc is None else crc_of(1) ^ read_crc
    write_any_sidecar(tmp_path, Position(0, 32), crc, [make_finished((3, 5))], Position(0, 0))

    assert numbers(drain(open_queue(tmp_path))) == ([1, 2, 5] if is_believed else list(range(6)))


def test_a_sidecar_that_is_too_large_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    leave_unfinished(tmp_path, 6, [0, 3])
    size = sidecar_path(tmp_path).stat().st_size
    for max_bytes, left in ((size, [0, 3]), (size - 1, list(range(6)))):
        monkeypatch.setattr(sidecar, "_MAX_BYTES", max_bytes)
        copy = tmp_path.with_name(f"copy{max_bytes}")
        shutil.copytree(tmp_path, copy)
        assert numbers(drain(open_queue(copy))) == left
    assert "it is too large" in caplog.text
