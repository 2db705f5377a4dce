"""CauseLog: a cause is found under the id of its dead letter, or is unknown; it is never wrong."""

import errno
import os
import tempfile
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskqueue import layout
from nsqd.broker.limits import causes
from nsqd.broker.limits.causes import Cause, CauseLog

pytestmark = pytest.mark.usefixtures("closes_files")

CHANNEL = "c" * 64
SIZE = 112


def id_of(number: int) -> bytes:
    return b"%016x" % number


def cause_of(number: int) -> Cause:
    return Cause("t", CHANNEL if number % 2 else "", "ttl", number % 65536, id_of(7), number)


def fill(log: CauseLog, *numbers: int) -> None:
    log.add([id_of(each) for each in numbers], [cause_of(each) for each in numbers])


def known(log: CauseLog, *numbers: int) -> list[int]:
    found = log.find(id_of(each) for each in numbers)
    assert all(found[key] == cause_of(int(key, 16)) for key in found)
    return sorted(int(key, 16) for key in found)


@settings(max_examples=25)
@given(st.sets(st.integers(0, 600), max_size=300), st.sets(st.integers(0, 600)))
def test_exactly_the_noted_ones_are_found(noted: set[int], asked: set[int]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        log = CauseLog(directory, "t.dead")
        numbers = sorted(noted)
        for start in range(0, len(numbers), 70):
            fill(log, *numbers[start : start + 70])

        assert known(log, *asked) == sorted(noted & asked)
        assert known(CauseLog(directory, "t.dead"), *asked) == sorted(noted & asked)


def test_a_full_file_makes_room_for_new_causes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(causes, "MAX_FILE_BYTES", 10 * SIZE)
    log = CauseLog(tmp_path, "t.dead")
    for number in range(35):
        fill(log, number)

    assert known(log, *range(35)) == list(range(20, 35))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == 15 * SIZE


def test_ids_of_a_clock_that_was_set_back_are_found(tmp_path: Path) -> None:
    log = CauseLog(tmp_path, "t.dead")
    fill(log, 100, 101)
    fill(log, 50)

    assert known(log, 50, 100, 101) == [50, 100, 101]


@pytest.mark.parametrize("cut", [1, SIZE - 1, SIZE + 5])
def test_a_torn_entry_is_written_over(tmp_path: Path, cut: int) -> None:
    fill(CauseLog(tmp_path, "t.dead"), *range(100))
    [path] = tmp_path.iterdir()
    os.truncate(path, 100 * SIZE - cut)
    log = CauseLog(tmp_path, "t.dead")
    fill(log, 200)

    assert known(log, *range(300)) == [*range(99 - cut // SIZE), 200]


def test_a_damaged_entry_is_unknown(tmp_path: Path) -> None:
    log = CauseLog(tmp_path, "t.dead")
    fill(log, 1, 2, 3)
    [path] = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    data[SIZE + 40] ^= 1
    path.write_bytes(data)

    assert known(log, 1, 2, 3) == [1, 3]


def test_refused_dead_letters_leave_nothing(tmp_path: Path) -> None:
    log = CauseLog(tmp_path, "t.dead")
    fill(log, 1)
    fill(log, 2, 3)
    log.undo_add(2)
    fill(log, 4)

    assert known(log, 1, 2, 3, 4) == [1, 4]
    assert known(CauseLog(tmp_path, "t.dead"), 1, 2, 3, 4) == [1, 4]


def test_a_cause_is_found_behind_a_write_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = CauseLog(tmp_path, "t.dead")
    fill(log, 1)
    pwrite = os.pwrite

    def write_and_fail(fd: int, data: bytes, position: int) -> int:
        pwrite(fd, data, position)
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", write_and_fail)
        with pytest.raises(OSError, match="Input/output"):
            fill(log, 2, 3, 4, 5)
    fill(log, 6)

    assert known(log, *range(10)) == [1, 6]


def test_the_room_of_a_large_file_is_freed_by_the_caller(tmp_path: Path) -> None:
    log = CauseLog(tmp_path, "t.dead")
    fill(log, *range(causes.LARGE_BYTES // SIZE))
    assert log.remove() == []
    fill(log, *range(causes.LARGE_BYTES // SIZE + 1))

    (fd,) = log.remove()

    os.close(fd)
    assert list(tmp_path.iterdir()) == []


def test_removed_causes_are_unknown(tmp_path: Path) -> None:
    log = CauseLog(tmp_path, "t.dead")
    fill(log, 1)
    log.remove()

    assert list(tmp_path.iterdir()) == []
    assert known(log, 1) == []
    log.sync()
    fill(log, 1)
    assert known(log, 1) == [1]


def test_a_pipe_of_its_name_is_set_aside(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "t.dead.diskqueue.causes")
    log = CauseLog(tmp_path, "t.dead")

    assert known(log, 1) == []
    fill(log, 1)
    assert known(log, 1) == [1]


def test_a_reason_of_a_later_release_is_unknown(tmp_path: Path) -> None:
    log = CauseLog(tmp_path, "t.dead")
    log.add([id_of(1)], [cause_of(1)._replace(reason="boredom")])

    assert log.find([id_of(1)])[id_of(1)].reason == "unknown"


@pytest.mark.parametrize("count", [1, 5, 64, 65, 100])
@pytest.mark.parametrize("torn_count", [0, 1, 2, 5])
def test_entries_that_a_crash_has_spoilt_are_written_over(
    tmp_path: Path, count: int, torn_count: int
) -> None:
    fill(CauseLog(tmp_path, "t.dead"), *range(count))
    [path] = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    for number in range(1, min(torn_count, count) + 1):
        data[len(data) - number * SIZE + 30] ^= 1
    path.write_bytes(data)
    left = count - min(torn_count, count)
    log = CauseLog(tmp_path, "t.dead")

    fill(log, left)

    assert known(log, *range(200)) == list(range(left + 1))
    assert path.stat().st_size == (left + 1) * SIZE
    assert list(tmp_path.iterdir()) == [path], "the ids go on growing"


def test_a_large_file_that_cannot_be_removed_is_not_left_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = CauseLog(tmp_path, "t.dead")
    fill(log, *range(causes.LARGE_BYTES // SIZE + 1))

    def refuse(_path: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(layout, "remove", refuse)

    with pytest.raises(OSError, match="Input/output"):
        log.remove()


def test_an_entry_is_what_the_page_says(tmp_path: Path) -> None:
    log = CauseLog(tmp_path, "t.dead")
    log.add([id_of(9)], [Cause("t", "c", "attempts", 258, id_of(7), 3)])

    [path] = tmp_path.iterdir()
    data = path.read_bytes()
    assert data[:32] == id_of(9) + id_of(7)
    assert data[32:44] == bytes([0, 0, 0, 0, 0, 0, 0, 3, 1, 2, data[42], 1])
    assert data[44:108] == b"c" + bytes(63)
    assert data[108:] == zlib.crc32(data[:108]).to_bytes(4, "big")


def test_entries_begin_anew_after_a_removal(tmp_path: Path) -> None:
    log = CauseLog(tmp_path, "t.dead")
    fill(log, 5, 6, 7)
    log.remove()
    fill(log, 1)

    [path] = tmp_path.iterdir()
    assert path.stat().st_size == SIZE
    assert known(log, *range(10)) == [1]
