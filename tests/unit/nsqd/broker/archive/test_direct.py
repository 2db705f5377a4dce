"""Large appends past the page cache: the same bytes in the file, whatever the disk does."""

import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqd.broker.archive import direct as direct_module
from nsqd.broker.archive.direct import MAX_BYTES, MIN_BYTES, SLOW_S, DirectWrites
from tests.support.archive_rig import ArchiveRig

pytestmark = pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="no O_DIRECT here")


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


class Pwrite:
    """Notes which writes go past the cache; refuses those, or cuts them short."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.direct_bytes: list[int] = []
        self.error = 0
        self.max_bytes = 1 << 30
        self._pwrite = os.pwrite
        monkeypatch.setattr(os, "pwrite", self)

    def __call__(self, fd: int, data: memoryview, offset: int) -> int:
        if not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            return self._pwrite(fd, data, offset)
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        self.direct_bytes.append(len(data))
        return self._pwrite(fd, data[: self.max_bytes], offset)


class Clock:
    """Goes on by as much as each look takes."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.step_s = 0.0

    def __call__(self) -> float:
        self.now += self.step_s
        return self.now


@pytest.fixture
def pwrite(monkeypatch: pytest.MonkeyPatch) -> Pwrite:
    return Pwrite(monkeypatch)


def append(direct: DirectWrites, fd: int, size_bytes: int, position: int) -> bytes | None:
    """Write random bytes, and return them; None if there is no room for them."""
    room = direct.find_room(size_bytes, position)
    if room is None:
        return None
    data = os.urandom(size_bytes)
    room[:] = data
    direct.write(fd, [room], position)
    return data


sizes = st.integers(MIN_BYTES, MIN_BYTES + 20_000)


@given(positions_and_sizes=st.lists(st.tuples(st.integers(0, 9000), sizes), max_size=4))
def test_the_file_has_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, positions_and_sizes: list[tuple[int, int]]
) -> None:
    path = tmp_path_factory.mktemp("direct") / "file"
    direct = DirectWrites(is_trusted=True)
    expected = bytearray()
    with path.open("w+b", buffering=0) as file:
        for gap_bytes, size_bytes in positions_and_sizes:
            # Small appends through the cache, in between.
            small = os.urandom(gap_bytes)
            os.pwrite(file.fileno(), small, len(expected))
            expected += small
            expected += append(direct, file.fileno(), size_bytes, len(expected)) or b""
        flags = fcntl.fcntl(file.fileno(), fcntl.F_GETFL)

    assert path.read_bytes() == expected
    assert not flags & os.O_DIRECT


def test_all_whole_pages_go_past_the_cache(fd: int, pwrite: Pwrite) -> None:
    direct = DirectWrites(is_trusted=True)

    data = append(direct, fd, MIN_BYTES + 100, 4096 * 3 + 10)

    assert pwrite.direct_bytes == [MIN_BYTES - 4096]
    assert os.pread(fd, MIN_BYTES + 200, 4096 * 3 + 10) == data


def test_an_append_at_the_beginning_of_a_page_has_no_head(fd: int, pwrite: Pwrite) -> None:
    data = append(DirectWrites(is_trusted=True), fd, MIN_BYTES, 8192)

    assert pwrite.direct_bytes == [MIN_BYTES]
    assert os.pread(fd, MIN_BYTES + 200, 8192) == data


def test_small_and_huge_appends_have_no_room() -> None:
    direct = DirectWrites(is_trusted=True)

    rooms = [
        direct.find_room(size, 7)
        for size in (0, MIN_BYTES - 1, MIN_BYTES, MAX_BYTES, MAX_BYTES + 1)
    ]

    assert [None if room is None else len(room) for room in rooms] == [
        *(None, None, MIN_BYTES, MAX_BYTES, None)
    ]


@pytest.mark.parametrize("written_bytes", [0, 512, 4096, 100_000 // 512 * 512])
def test_the_rest_of_a_short_write_goes_through_the_cache(
    fd: int, pwrite: Pwrite, written_bytes: int
) -> None:
    pwrite.max_bytes = written_bytes

    data = append(DirectWrites(is_trusted=True), fd, MIN_BYTES + 5, 4000)

    assert os.pread(fd, 2 * MIN_BYTES, 4000) == data
    assert len(pwrite.direct_bytes) == 1


def test_a_file_system_without_such_writes_is_written_through_the_cache(
    fd: int, pwrite: Pwrite
) -> None:
    direct = DirectWrites(is_trusted=True)
    pwrite.error = errno.EINVAL

    data = append(direct, fd, MIN_BYTES, 10)

    assert os.pread(fd, 2 * MIN_BYTES, 10) == data
    assert direct.find_room(MIN_BYTES, 0) is None


def test_an_error_of_the_disk_is_told_and_the_descriptor_is_as_it_was(
    fd: int, pwrite: Pwrite
) -> None:
    direct = DirectWrites(is_trusted=True)
    pwrite.error = errno.EIO

    with pytest.raises(OSError, match="Input/output error"):
        append(direct, fd, MIN_BYTES, 10)

    assert not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT
    assert direct.find_room(MIN_BYTES, 0) is not None


def test_a_slow_disk_has_the_cache_for_a_while(fd: int) -> None:
    clock = Clock()
    direct = DirectWrites(clock)
    size_bytes = 6_000_000
    clock.step_s = 0.039
    append(direct, fd, size_bytes, 0)
    has_room = [direct.find_room(size_bytes, 0) is not None]

    clock.step_s = 0.041  # more than 20 ms, and 20 ms for 6 MB
    append(direct, fd, size_bytes, 0)
    clock.step_s = 0.0
    has_room.append(direct.find_room(size_bytes, 0) is not None)
    clock.now += SLOW_S
    has_room.append(direct.find_room(size_bytes, 0) is not None)

    assert has_room == [True, False, True]


def test_a_disk_that_is_trusted_is_never_slow(fd: int) -> None:
    clock = Clock()
    clock.step_s = 10.0
    direct = DirectWrites(clock, is_trusted=True)

    append(direct, fd, MIN_BYTES, 0)

    assert direct.find_room(MIN_BYTES, 0) is not None


def test_memory_is_kept_between_appends_until_it_is_released() -> None:
    direct = DirectWrites(is_trusted=True)
    first = direct.find_room(MIN_BYTES, 0)
    second = direct.find_room(MIN_BYTES, 0)
    assert first is not None
    assert second is not None
    first[:] = b"x" * MIN_BYTES

    is_same = second == first
    direct.release()
    third = direct.find_room(MIN_BYTES, 0)

    assert is_same
    assert third is not None
    assert bytes(third) == bytes(MIN_BYTES)


def test_a_large_part_of_history_goes_past_the_cache(tmp_path: Path, pwrite: Pwrite) -> None:
    rig = ArchiveRig(tmp_path, max_bytes_per_file=2**30)
    bodies = [b"%0999d" % number for number in range(3000)]

    rig.publish(b"small")
    rig.advance(1.0)
    for start in range(0, 3000, 200):
        rig.publish(*bodies[start : start + 200])
    rig.advance(1.0)
    rig.publish(b"last")
    rig.advance(10.0)

    assert rig.bodies() == [b"small", *bodies, b"last"]
    assert len(pwrite.direct_bytes) == 1
    assert pwrite.direct_bytes[0] > 3000 * 1000 - 2 * 4096


def test_history_that_could_not_be_written_is_written_later_and_once(
    tmp_path: Path, pwrite: Pwrite
) -> None:
    """The room has had the messages of the other topic meanwhile."""
    rig = ArchiveRig(tmp_path, max_bytes_per_file=2**30)
    bodies = {topic: [topic.encode() * 999 + b"%05d" % n for n in range(1200)] for topic in "ab"}
    pwrite.error = errno.EIO
    for topic, some in bodies.items():
        rig.publish(*some, topic=topic)

    rig.advance(0.2)
    written = pwrite.direct_bytes[:]
    pwrite.error = 0
    rig.advance(10.0)

    assert written == []
    assert [rig.bodies(topic) for topic in bodies] == list(bodies.values())
    assert pwrite.direct_bytes == [], "the cache is tried after a failure"


def test_a_disk_that_refuses_no_more_than_such_writes_has_the_history(
    tmp_path: Path, pwrite: Pwrite
) -> None:
    rig = ArchiveRig(tmp_path, max_bytes_per_file=2**30)
    pwrite.error = errno.EOPNOTSUPP
    bodies = [b"%0999d" % number for number in range(1000)]

    rig.publish(*bodies)
    rig.advance(10.0)

    assert rig.bodies() == bodies
    assert rig.health == ""


def test_the_memory_goes_when_little_comes(
    tmp_path: Path, pwrite: Pwrite, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[int] = []
    monkeypatch.setattr(
        DirectWrites, "release", lambda _: released.append(len(pwrite.direct_bytes))
    )
    rig = ArchiveRig(tmp_path, max_bytes_per_file=2**30)

    for _ in range(20):
        rig.publish(bytes(1_000_000))
    rig.advance(1.0)

    assert pwrite.direct_bytes
    assert released[-1] == len(pwrite.direct_bytes)


def test_a_new_segment_begins_at_its_first_page(tmp_path: Path, pwrite: Pwrite) -> None:
    rig = ArchiveRig(tmp_path, max_bytes_per_file=1_000_000)
    bodies = [b"%0999d" % number for number in range(1600)]

    for start in (0, 800):
        rig.publish(*bodies[start : start + 800])
        rig.advance(1.0)
    rig.advance(10.0)

    assert rig.bodies() == bodies
    assert len(list((tmp_path / "archive").glob("*.dat"))) >= 2
    assert pwrite.direct_bytes == [800 * 1029 // 4096 * 4096] * 2


def test_the_module_works_where_the_system_has_no_such_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(direct_module, "_O_DIRECT", 0)

    assert DirectWrites().find_room(MIN_BYTES, 0) is None
