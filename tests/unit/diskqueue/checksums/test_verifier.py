"""Checksums as a queue's reader sees them, and the files that come and go with segments."""

import logging
import os
import shutil
from pathlib import Path

import pytest

from diskqueue import DiskQueue, RecordChunk
from diskqueue.checksums.file import ChecksumFile
from diskqueue.checksums.verifier import ChecksumFailures
from tests.unit.diskqueue.queue_files import (
    NAME,
    RECORD_BYTES,
    damaged_records,
    frame_all,
    framed,
    numbers,
    payload,
    read_metadata,
    segment_path,
    write_metadata,
    write_segment,
)

SIZE = 44


def open_queue(directory: Path, **options: object) -> DiskQueue:
    return DiskQueue(
        directory,
        NAME,
        holds_messages=True,
        **{"has_checksums": True, "max_bytes_per_file": 10_000, **options},  # type: ignore[arg-type]
    )


def make_payloads(count: int, first: int = 0) -> list[bytes]:
    return [payload(number, 40) for number in range(first, first + count)]


def drain(queue: DiskQueue) -> list[bytes]:
    found: list[bytes] = []
    while (records := queue.read(7, 1000)) is not None:
        found += records
        queue.commit(range(records.first, records.first + len(records)))
    return found


def names(directory: Path) -> list[str]:
    return sorted(path.name.removeprefix(f"{NAME}.diskqueue.") for path in directory.iterdir())


def damage(path: Path, place: int, content: bytes | None = None) -> None:
    data = bytearray(path.read_bytes())
    if content is None:
        content = bytes([data[place] ^ 1])
    data[place : place + len(content)] = content
    path.write_bytes(data)


def test_changed_body_is_not_delivered_counted_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """D-27."""
    payloads = make_payloads(20)
    queue = open_queue(tmp_path)
    queue.put(payloads)
    queue.close()
    damage(segment_path(tmp_path, 0), 5 * SIZE + 40)
    failures = ChecksumFailures()

    queue = open_queue(tmp_path, checksum_failures=failures)

    assert drain(queue) == payloads[:5] + payloads[6:]
    assert failures.count == 1
    assert queue.depth == 0
    [line] = [line for line in caplog.messages if "damaged" in line]
    assert "reason='the checksum is wrong'" in line
    assert f"offset={5 * SIZE}" in line
    assert "salvage=python -m diskqueue salvage" in line
    queue.sync()
    assert "000000.dat.bad" in names(tmp_path)
    assert "000000.crc.bad" in names(tmp_path)
    queue.close()


def test_peek_denies_and_does_not_count(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.put(make_payloads(3))
    damage(segment_path(tmp_path, 0), SIZE + 40)

    assert queue.peek(10, 1000) == make_payloads(1)
    assert queue.checksum_failures.count == 0


def test_without_checksums_none_are_written_or_looked_at(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.put(make_payloads(2))
    queue.close()
    damage(segment_path(tmp_path, 0), SIZE + 40)

    queue = open_queue(tmp_path, has_checksums=False)
    queue.put(make_payloads(1, first=7))

    assert len(drain(queue)) == 3
    queue.close()
    assert names(tmp_path) == ["meta.dat"]


def test_checksum_files_go_with_their_segments(tmp_path: Path) -> None:
    """D-30."""
    queue = open_queue(tmp_path, max_bytes_per_file=100)
    queue.put(make_payloads(10))
    queue.append(*frame_all(make_payloads(3)))
    job = queue.prepare_append([RecordChunk(*frame_all(make_payloads(5)))])
    job.run()
    assert job.end()
    numbers = {name[:6] for name in names(tmp_path)}
    assert len(numbers) > 5
    assert names(tmp_path) == sorted(f"{n}.{end}" for n in numbers for end in ("crc", "dat"))

    drain(queue)
    queue.wants_room = True
    queue.sync()
    assert names(tmp_path) == ["meta.dat"]

    queue.put(make_payloads(10))
    queue.empty()
    assert names(tmp_path) == []
    queue.put(make_payloads(10))
    queue.delete()
    assert names(tmp_path) == []


def test_undone_append_leaves_no_checksums(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, max_bytes_per_file=100)
    queue.put(make_payloads(1))
    for count in (1, 9):
        data, lengths = frame_all(make_payloads(count, first=50))
        queue.append(data, lengths)
        queue.undo_append(lengths)
    job = queue.prepare_append([RecordChunk(*frame_all(make_payloads(9, first=50)))])
    job.run()
    job.undo()
    assert not job.end()
    queue.put(make_payloads(1, first=2))

    assert drain(queue) == make_payloads(1) + make_payloads(1, first=2)
    assert queue.checksum_failures.count == 0
    assert len(names(tmp_path)) == 2


def test_torn_write_without_its_checksum_is_not_delivered(tmp_path: Path) -> None:
    """D-29: the length is there, a sector is not, and the entry was not written either."""
    whole = payload(1, 3000)
    queue = open_queue(tmp_path)
    queue.put([payload(0, 40)])
    queue.close()
    torn = framed(whole)
    torn = torn[: 512 - SIZE] + bytes(512) + torn[1024 - SIZE :]
    with segment_path(tmp_path, 0).open("ab") as file:
        file.write(torn)

    queue = open_queue(tmp_path)

    assert drain(queue) == [payload(0, 40)]
    assert queue.checksum_failures.count == 1


def test_unsynced_records_of_another_nsqd_are_delivered(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.put(make_payloads(2))
    queue.close()
    others = [payload(9, 3000), payload(10, 26) + b"head" + bytes(2100) + b"tail"]
    with segment_path(tmp_path, 0).open("ab") as file:
        file.write(b"".join(map(framed, others)))

    queue = open_queue(tmp_path)

    assert drain(queue) == make_payloads(2) + others


def test_directory_goes_to_go_and_comes_back(tmp_path: Path) -> None:
    """go-diskqueue appends to our segment, and makes one that we had a checksum file for."""
    queue = open_queue(tmp_path)
    queue.put(make_payloads(3))
    queue.close()
    written = write_segment(
        tmp_path, 0, segment_path(tmp_path, 0).read_bytes() + framed(payload(70, 100))
    )
    write_metadata(tmp_path, f"4\n0,0\n0,{written.stat().st_size}\n")

    queue = open_queue(tmp_path)
    queue.put(make_payloads(2, first=80))
    assert drain(queue) == [*make_payloads(3), payload(70, 100), *make_payloads(2, first=80)]
    queue.put(make_payloads(3, first=20))
    queue.close()

    # The topic was deleted and made again.
    number = read_metadata(tmp_path)[3]
    stale = (tmp_path / f"{NAME}.diskqueue.{number:06d}.crc").read_bytes()
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    (tmp_path / f"{NAME}.diskqueue.000000.crc").write_bytes(stale)
    (tmp_path / f"{NAME}.diskqueue.000004.crc").write_bytes(stale)
    write_segment(tmp_path, 0, b"".join(map(framed, make_payloads(5, first=90))))
    write_metadata(tmp_path, f"5\n0,0\n0,{5 * SIZE}\n")
    queue = open_queue(tmp_path)
    queue.put(make_payloads(1, first=99))

    assert drain(queue) == make_payloads(5, first=90) + make_payloads(1, first=99)
    assert queue.checksum_failures.count == 0
    queue.close()
    assert names(tmp_path) == ["meta.dat"]


@pytest.mark.parametrize("thing", ["directory", "pipe", "noise", "nothing"])
def test_checksum_file_that_is_none_keeps_no_record_back(tmp_path: Path, thing: str) -> None:
    """D-28."""
    queue = open_queue(tmp_path)
    queue.put(make_payloads(3))
    queue.close()
    path = tmp_path / f"{NAME}.diskqueue.000000.crc"
    path.unlink()
    if thing == "directory":
        path.mkdir()
    elif thing == "pipe":
        os.mkfifo(path)
    elif thing == "noise":
        path.write_bytes(bytes(range(256)) * 9)

    queue = open_queue(tmp_path)
    queue.put(make_payloads(1, first=5))

    assert drain(queue) == make_payloads(3) + make_payloads(1, first=5)
    queue.close()


def test_checksums_that_cannot_be_opened_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queue = open_queue(tmp_path)
    queue.put(make_payloads(30))
    queue.close()
    path = tmp_path / f"{NAME}.diskqueue.000000.crc"
    path.unlink()
    path.symlink_to(path.name)  # a loop
    queue = open_queue(tmp_path)
    caplog.set_level(logging.WARNING)

    assert drain(queue) == make_payloads(30)
    assert sum("checksums unreadable" in line for line in caplog.messages) == 1
    queue.close()


def test_unreadable_checksums_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = open_queue(tmp_path)
    queue.put(make_payloads(30))
    queue.close()
    queue = open_queue(tmp_path)
    real = os.pread
    sizes = {segment_path(tmp_path, 0).stat().st_ino}

    def pread(fd: int, size: int, offset: int) -> bytes:
        if os.fstat(fd).st_ino not in sizes:
            raise OSError(5, "broken")
        return real(fd, size, offset)

    monkeypatch.setattr(os, "pread", pread)
    caplog.set_level(logging.WARNING)

    assert drain(queue) == make_payloads(30)
    assert sum("checksums unreadable" in line for line in caplog.messages) == 1


def test_damage_before_finished_records_repeats_none_of_them(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.put(make_payloads(10))
    records = queue.read(10, 10_000)
    assert records is not None
    queue.commit([4, 5, 6])
    queue.sync()
    queue.close()
    damage(segment_path(tmp_path, 0), 3 * SIZE + 40)

    queue = open_queue(tmp_path)

    assert drain(queue) == make_payloads(3) + make_payloads(3, first=7)


def test_torn_write_is_in_doubt_after_a_second_crash_too(tmp_path: Path) -> None:
    """The first start moves the write position beyond it, before it is read."""
    queue = open_queue(tmp_path)
    queue.put(make_payloads(30))
    queue.close()
    torn = framed(payload(50, 3000))
    end = segment_path(tmp_path, 0).stat().st_size
    hole = 512 * (end // 512 + 2) - end
    with segment_path(tmp_path, 0).open("ab") as file:
        file.write(torn[:hole] + bytes(512) + torn[hole + 512 :])

    queue = open_queue(tmp_path)
    queue.put(make_payloads(2, first=80))
    queue.sync()
    copy = tmp_path.with_name("copy")
    shutil.copytree(tmp_path, copy)
    assert read_metadata(copy)[3:] == (1, 2 * SIZE)
    queue = open_queue(copy)

    assert drain(queue) == make_payloads(30) + make_payloads(2, first=80)


def test_checksums_that_only_note_a_doubt_go_with_their_segment(tmp_path: Path) -> None:
    queue = DiskQueue(tmp_path, NAME, has_checksums=False)
    queue.put(make_payloads(3))
    queue.close()
    with segment_path(tmp_path, 0).open("ab") as file:
        file.write(framed(payload(50, 40)))
    queue = open_queue(tmp_path)
    assert segment_path(tmp_path, 0).with_suffix(".crc").exists()

    assert len(drain(queue)) == 4
    queue.commit(range(4))
    queue.close()

    assert not segment_path(tmp_path, 0).exists()
    assert not segment_path(tmp_path, 0).with_suffix(".crc").exists()


@pytest.mark.parametrize("holds_messages", [False, True])
def test_reading_goes_on_at_the_next_checksum_behind_records_without_one(
    tmp_path: Path, *, holds_messages: bool
) -> None:
    path = write_segment(tmp_path, 0, damaged_records())
    checksums = ChecksumFile(str(path), NAME, 0)
    checksums.open(is_new=True)
    checksums.append(0, *frame_all([payload(0), payload(1)]))
    checksums.append(3 * RECORD_BYTES, *frame_all([payload(3), payload(4)]))
    checksums.close()
    (tmp_path / "t.diskqueue.meta.dat").write_text(f"5\n0,0\n0,{5 * RECORD_BYTES}\n")

    queue = DiskQueue(tmp_path, NAME, has_checksums=True, holds_messages=holds_messages)

    assert numbers(drain(queue)) == [0, 1, 3, 4]
    queue.close()


def test_damaged_lengths_are_repaired_counted_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    payloads = make_payloads(6)
    queue = open_queue(tmp_path)
    queue.put(payloads)
    for record in (1, 2, 4):
        damage(segment_path(tmp_path, 0), record * SIZE + 3)

    assert drain(queue) == payloads
    assert queue.checksum_failures.count == 3
    [line] = [line for line in caplog.messages if "repaired" in line]
    assert "offset=0 records=3" in line
    queue.close()


@pytest.mark.parametrize("size", [256 * 1024 - 5, 256 * 1024 - 4, 256 * 1024 - 3, 700_000])
@pytest.mark.parametrize("place", [None, 20, -1])
def test_a_record_larger_than_a_read_is_judged_whole(
    tmp_path: Path, size: int, place: int | None
) -> None:
    payloads = [payload(0, 40), payload(1, size), payload(2, 40), payload(3, size)]
    queue = open_queue(tmp_path, max_bytes_per_file=1 << 24)
    queue.put(payloads)
    if place is not None:
        damage(segment_path(tmp_path, 0), SIZE + (place if place > 0 else 4 + size + place))

    assert drain(queue) == payloads[: 1 if place else None] + (payloads[2:] if place else [])
    assert queue.checksum_failures.count == (0 if place is None else 1)
    queue.close()


@pytest.mark.parametrize("hole_end", [1024, 1536, 2048])
@pytest.mark.parametrize("size", [700, 1200, 1490])
@pytest.mark.parametrize("read_bytes", [300, 800, 256 * 1024])
def test_a_sector_that_is_lost_is_seen_wherever_the_doubt_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hole_end: int, size: int, read_bytes: int
) -> None:
    """The doubt ends in the middle of a sector, or where one does; and so does each read."""
    monkeypatch.setattr("diskqueue.reader._READ_AHEAD_BYTES", read_bytes)
    queue = open_queue(tmp_path)
    queue.put([payload(0, 40)])
    queue.close()
    records = [framed(payload(number, size)) for number in (1, 2)]
    data = segment_path(tmp_path, 0).read_bytes() + b"".join(records)
    hole = slice(min(hole_end - 512, len(data)), min(hole_end, len(data)))
    torn = data[: hole.start] + bytes(hole.stop - hole.start) + data[hole.stop :]
    segment_path(tmp_path, 0).write_bytes(torn)

    queue = open_queue(tmp_path)
    found: list[bytes] = []
    while (batch := queue.read(7, 1)) is not None:
        found += batch

    expected = [payload(0, 40)]
    for number in (1, 2):
        start = SIZE + (number - 1) * (4 + size)
        # The first bytes of a length are zeros in any case.
        if hole.stop <= start + 3 or hole.start >= start + 4 + size:
            expected.append(payload(number, size))
    assert found == expected
    queue.close()


@pytest.mark.parametrize("end", ["consume", "empty", "delete"])
@pytest.mark.parametrize("has_checksums", [False, True])
def test_checksum_files_of_an_earlier_process_go_with_their_segments(
    tmp_path: Path, end: str, *, has_checksums: bool
) -> None:
    queue = open_queue(tmp_path, max_bytes_per_file=100)
    queue.put(make_payloads(10))
    queue.close()
    assert len(names(tmp_path)) == 11

    queue = open_queue(tmp_path, max_bytes_per_file=100, has_checksums=has_checksums)
    if end == "consume":
        assert drain(queue) == make_payloads(10)
        queue.close()
    else:
        getattr(queue, end)()

    assert names(tmp_path) == (["meta.dat"] if end == "consume" else [])


def test_a_doubt_that_cannot_be_noted_keeps_no_record_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue = open_queue(tmp_path)
    queue.put(make_payloads(2))
    queue.close()
    with segment_path(tmp_path, 0).open("ab") as file:
        file.write(framed(payload(2, 40)))

    def refuse(_checksums: ChecksumFile, *, is_new: bool) -> None:
        raise OSError(28, f"No space left on device {is_new}")

    with monkeypatch.context() as patch:
        patch.setattr(ChecksumFile, "open", refuse)
        queue = open_queue(tmp_path)
    assert "doubt not noted" in caplog.text

    assert drain(queue) == make_payloads(3)
    queue.close()


@pytest.mark.parametrize("read_bytes", [300, 256 * 1024])
@pytest.mark.parametrize("zeros", [40, 100, 400])
def test_zeros_at_the_end_of_a_message_are_its_own_if_the_sector_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_bytes: int, zeros: int
) -> None:
    """They begin where a sector does, as those of a lost one, but another record follows in it."""
    monkeypatch.setattr("diskqueue.reader._READ_AHEAD_BYTES", read_bytes)
    queue = open_queue(tmp_path)
    queue.put([payload(0, 40)])
    queue.close()
    others = [payload(1, 1024 - SIZE - 4) + bytes(zeros), payload(2, 40), payload(3, 600)]
    with segment_path(tmp_path, 0).open("ab") as file:
        file.write(b"".join(map(framed, others)))

    queue = open_queue(tmp_path)
    found: list[bytes] = []
    while (batch := queue.read(1, 1)) is not None:
        found += batch

    assert found == [payload(0, 40), *others]
    queue.close()
