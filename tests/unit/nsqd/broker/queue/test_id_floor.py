import errno
from pathlib import Path

import pytest

from nsqd.broker.queue import id_floor
from nsqd.broker.queue.id_floor import IdFloor
from nsqd.broker.queue.ids import SUFFIXES, MessageIdFactory
from nsqd.runtime.data_path import list_data_path
from tests.support.fake_scheduler import FakeScheduler

HOUR_NS = 3600 * 10**9
NOW_NS = 1_790_000_000 * 10**9


class Life:
    """One run of a daemon on a directory, and the ids that it gives out."""

    def __init__(self, data_path: Path, wall_ns: int) -> None:
        self.path = data_path / id_floor.FILE_NAME
        self.scheduler = FakeScheduler(wall_time_ns=wall_ns)
        floor_ns = self.path.stat().st_mtime_ns if self.path.exists() else 0
        self.ids = MessageIdFactory(1, floor_ns=floor_ns)
        self.floor = IdFloor(data_path, self.ids, self.scheduler)
        self.floor.start()

    def give_out(self, count: int) -> list[int]:
        prefix, first = self.ids.reserve(count, self.scheduler.wall_ns)
        return [int(prefix + SUFFIXES[first + index], 16) for index in range(count)]


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("step_ns", [-HOUR_NS, 0, HOUR_NS])
def test_no_id_is_given_out_twice_whatever_the_clock_does(
    tmp_path: Path, step_ns: int, *, is_killed: bool
) -> None:
    given: list[int] = []
    wall_ns = NOW_NS
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
    life = Life(tmp_path, NOW_NS)

    life.scheduler.advance(60)
    life.floor.stop()

    assert list(tmp_path.iterdir()) == []
    assert life.scheduler.pending_timers == []


def test_a_clean_end_is_noted_exactly(tmp_path: Path) -> None:
    life = Life(tmp_path, NOW_NS)
    life.give_out(1)
    life.scheduler.advance(6)
    assert list_data_path(tmp_path).newest_change_ns == life.ids.latest_ns + id_floor.AHEAD_NS

    life.floor.stop()

    assert list_data_path(tmp_path).newest_change_ns == life.ids.latest_ns


def test_a_disk_that_refuses_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    life = Life(tmp_path, NOW_NS)
    life.give_out(1)

    def refuse(_path: Path, _time_ns: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(id_floor, "date", refuse)
        life.scheduler.advance(21)
        assert caplog.text.count("failed to note the last message id") == 1
    life.scheduler.advance(6)

    assert life.path.exists()
