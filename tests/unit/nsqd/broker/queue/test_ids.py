import errno
import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqd.broker.queue import ids
from nsqd.broker.queue.ids import SUFFIXES, IdFloor, MessageIdFactory, date
from nsqd.runtime.data_path import list_data_path
from tests.support.fake_scheduler import FakeScheduler

pytestmark = pytest.mark.usefixtures("closes_files")

NOW_NS = 1_700_000_000_123_456_789
TICK_NS = 1 << 20
START_NS = 1_790_000_000 * 10**9
HOUR_NS = 3600 * 10**9


def ids_of(block: tuple[bytes, int], count: int) -> list[bytes]:
    prefix, first = block
    return [prefix + SUFFIXES[first + index] for index in range(count)]


def test_an_id_is_nsqs_64_bits_in_hex() -> None:
    # W-132, W-133
    [message_id] = ids_of(MessageIdFactory(617).reserve(1, NOW_NS), 1)

    value = int(message_id, 16)
    assert re.fullmatch(rb"[0-9a-f]{16}", message_id)
    assert value == ((NOW_NS >> 20) - 1288834974288) << 22 | 617 << 12
    assert value >> 12 & 1023 == 617


@pytest.mark.parametrize("node_id", [0, 1, 1023])
def test_bits_12_to_21_are_the_node_id(node_id: int) -> None:
    # W-133
    factory = MessageIdFactory(node_id)

    for count in (1, 4096, 100):
        for message_id in ids_of(factory.reserve(count, NOW_NS), count):
            assert int(message_id, 16) >> 12 & 1023 == node_id


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(st.integers(1, 4096), st.integers(-5 * TICK_NS, 5 * TICK_NS)),
        min_size=1,
        max_size=12,
    )
)
def test_ids_grow_whatever_the_clock_does(blocks: list[tuple[int, int]]) -> None:
    # W-132: also when the clock stands still, steps back, or is overtaken by full blocks
    factory = MessageIdFactory(5)
    now_ns = NOW_NS
    found = []
    for count, step_ns in blocks:
        now_ns += step_ns
        found += ids_of(factory.reserve(count, now_ns), count)

    assert found == sorted(set(found))
    assert all(len(message_id) == 16 for message_id in found)


def test_more_ids_than_a_tick_has_borrow_the_next_tick() -> None:
    factory = MessageIdFactory(0)
    found = []
    for _ in range(100):
        found += ids_of(factory.reserve(4096, NOW_NS), 4096)

    assert found == sorted(set(found))


def test_a_clock_that_steps_far_back_stops_nothing() -> None:
    factory = MessageIdFactory(0)
    before = ids_of(factory.reserve(10, NOW_NS), 10)

    after = ids_of(factory.reserve(5000 - 904, NOW_NS - 3600 * 10**9), 4096)

    assert max(before) < min(after)


def test_no_id_lies_before_the_floor() -> None:
    # Ids may have run ahead of the clock before a restart.
    floor_ns = NOW_NS + 3600 * 10**9
    earlier = ids_of(MessageIdFactory(0).reserve(4096, floor_ns), 4096)

    later = ids_of(MessageIdFactory(0, floor_ns=floor_ns).reserve(1, NOW_NS), 1)

    assert later[0] > max(earlier)


@pytest.mark.parametrize("now_ns", [0, 10**9, 1_000_000_000 * 10**9])
def test_a_clock_before_nsqs_epoch_gives_valid_ids(now_ns: int) -> None:
    # A machine without a battery wakes up in 1970.
    factory = MessageIdFactory(7)

    found = [ids_of(factory.reserve(1, now_ns), 1)[0] for _ in range(3)]

    assert found == sorted(set(found))
    assert all(re.fullmatch(rb"[0-9a-f]{16}", message_id) for message_id in found)


class Life:
    """One run of a daemon on a directory, and the ids that it gives out."""

    def __init__(self, data_path: Path, wall_ns: int) -> None:
        self.path = data_path / ids.FLOOR_FILE_NAME
        self.scheduler = FakeScheduler(wall_time_ns=wall_ns)
        floor_ns = self.path.stat().st_mtime_ns if self.path.exists() else 0
        self.factory = MessageIdFactory(1, floor_ns=floor_ns)
        self.floor = IdFloor(data_path, self.factory, self.scheduler)
        self.floor.start()

    def give_out(self, count: int) -> list[int]:
        prefix, first = self.factory.reserve(count, self.scheduler.wall_ns)
        return [int(prefix + SUFFIXES[first + index], 16) for index in range(count)]


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("step_ns", [-HOUR_NS, 0, HOUR_NS])
def test_no_id_is_given_out_twice_whatever_the_clock_does(
    tmp_path: Path, step_ns: int, *, is_killed: bool
) -> None:
    given: list[int] = []
    wall_ns = START_NS
    for _ in range(4):
        life = Life(tmp_path, wall_ns)
        for step in (0, step_ns, -step_ns):
            life.scheduler.wall_ns += step
            given += life.give_out(4096)
            life.scheduler.advance(6)
            given += life.give_out(4096)
        if not is_killed:
            life.floor.stop()
        wall_ns = life.scheduler.wall_ns + step_ns

    assert given == sorted(set(given))


def test_an_idle_node_writes_nothing(tmp_path: Path) -> None:
    life = Life(tmp_path, START_NS)

    life.scheduler.advance(60)
    life.floor.stop()

    assert list(tmp_path.iterdir()) == []
    assert life.scheduler.pending_timers == []


def test_a_clean_end_is_noted_exactly(tmp_path: Path) -> None:
    life = Life(tmp_path, START_NS)
    life.give_out(1)
    life.scheduler.advance(6)
    assert list_data_path(tmp_path).newest_change_ns == life.factory.latest_ns + ids.FLOOR_AHEAD_NS

    life.floor.stop()

    assert list_data_path(tmp_path).newest_change_ns == life.factory.latest_ns


def test_a_disk_that_refuses_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    life = Life(tmp_path, START_NS)
    life.give_out(1)

    def refuse(_path: Path, _time_ns: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ids, "date", refuse)
        life.scheduler.advance(21)
        assert caplog.text.count("failed to note the last message id") == 1
    life.scheduler.advance(6)

    assert life.path.exists()


def test_the_date_is_durable_when_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_mtime_ns))

    ids.date(tmp_path / "floor", START_NS)

    assert synced == [START_NS]


def test_the_dated_file_is_private(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        date(tmp_path / "nsqd.clock", 1_700_000_000_000_000_000)
    finally:
        os.umask(umask)

    assert (tmp_path / "nsqd.clock").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "nsqd.clock").stat().st_mtime_ns == 1_700_000_000_000_000_000


def test_ids_of_one_tick_share_it() -> None:
    factory = MessageIdFactory(5)
    prefix, _ = factory.reserve(3, NOW_NS)

    assert factory.reserve(2, NOW_NS) == (prefix, 3)
    assert factory.reserve(4091, NOW_NS) == (prefix, 5)
    assert factory.reserve(1, NOW_NS) == (b"%013x" % (int(prefix, 16) + 1024), 0)
    assert factory.reserve(1, NOW_NS) == (b"%013x" % (int(prefix, 16) + 1024), 1)
