import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from nsqd.broker.errors import LowDiskError
from nsqd.broker.health import Health
from nsqd.runtime import disk_watch
from nsqd.runtime.disk_watch import DiskWatch
from tests.support.fake_scheduler import FakeScheduler

NO_SPACE = OSError(errno.ENOSPC, "No space left on device")
MEBIBYTE = 1024 * 1024


class Room(NamedTuple):
    """What statvfs says."""

    f_bavail: int
    f_frsize: int = 1


class Rig:
    """A watch over a disk whose free space the test sets."""

    def __init__(self, data_path: Path, patch: pytest.MonkeyPatch, min_free_bytes: int = 0) -> None:
        self.free_bytes = 100 * MEBIBYTE
        self.is_broken = False
        self.look_count = 0
        self.freeing_count = 0
        self.scheduler = FakeScheduler()
        self.health = Health()
        self.refusals: list[Callable[[], Exception] | None] = []
        patch.setattr(os, "statvfs", self._statvfs)
        self.watch = DiskWatch(
            *(data_path, self.health, self.scheduler),
            min_free_bytes=min_free_bytes,
            refuse=self.refusals.append,
            free_room=self._free_room,
        )

    def _free_room(self) -> None:
        self.freeing_count += 1

    def _statvfs(self, _path: Path) -> Room:
        self.look_count += 1
        if self.is_broken:
            raise OSError(errno.EIO, "Input/output error")
        return Room(self.free_bytes)

    def looks_in(self, seconds: float) -> int:
        before = self.look_count
        self.scheduler.advance(seconds)
        return self.look_count - before


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(tmp_path, monkeypatch, 10 * MEBIBYTE)


def test_without_a_limit_it_only_measures_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, monkeypatch)
    rig.watch.start()
    rig.free_bytes = 0

    assert rig.looks_in(60) == 6

    assert rig.health.free_bytes == 0
    assert rig.health.is_healthy
    assert rig.refusals == []
    assert rig.freeing_count == 0


def test_publishes_are_refused_below_the_limit_and_taken_again_well_above(rig: Rig) -> None:
    rig.watch.start()
    rig.free_bytes = 10 * MEBIBYTE - 1
    rig.scheduler.advance(1)
    assert rig.freeing_count == 1
    [make_error] = rig.refusals
    assert make_error is not None
    error = make_error()
    assert isinstance(error, LowDiskError)
    assert error.errno == errno.ENOSPC
    assert "disk almost full: 10485759 bytes free, 10485760 needed" in str(error)
    assert rig.health.status == "NOK - disk almost full: 10485759 bytes free, 10485760 needed"

    rig.free_bytes = 10 * MEBIBYTE
    rig.scheduler.advance(5)
    assert len(rig.refusals) == 1, "at the limit it would be opened and shut again and again"
    rig.free_bytes = 11 * MEBIBYTE
    rig.scheduler.advance(1)

    assert rig.refusals[1:] == [None]
    assert rig.health.is_healthy


def test_a_disk_that_is_full_at_the_start_is_known_at_once(rig: Rig) -> None:
    rig.free_bytes = 0

    rig.watch.start()

    assert len(rig.refusals) == 1
    assert not rig.health.is_healthy


def test_appends_are_counted_so_that_none_goes_beyond_the_limit(rig: Rig) -> None:
    rig.watch.start()
    for _ in range(100):
        if rig.refusals:
            break
        rig.free_bytes -= 8 * MEBIBYTE
        rig.health.wrote("t", None)

    assert len(rig.refusals) == 1
    assert 2 * MEBIBYTE <= rig.free_bytes < 10 * MEBIBYTE


def test_far_from_the_limit_appends_cost_nothing(rig: Rig) -> None:
    rig.free_bytes = 1024 * 1024 * MEBIBYTE
    rig.watch.start()

    for _ in range(5000):
        rig.health.wrote("t", None)

    assert rig.look_count == 6


def test_a_refused_write_is_probed_until_the_disk_takes_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, monkeypatch)
    rig.watch.start()
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", _refuse)
        rig.health.wrote("t", NO_SPACE)
        rig.scheduler.advance(3.5)
        assert rig.health.status == "NOK - t: no space left on device"
        assert list(tmp_path.iterdir()) == []

    rig.scheduler.advance(1)

    assert rig.health.is_healthy
    assert list(tmp_path.iterdir()) == []


def test_a_probe_does_not_make_up_for_a_failed_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, monkeypatch)
    rig.watch.start()
    rig.health.repeated("sync t", OSError(errno.EIO, "Input/output error"))
    rig.health.wrote("t", NO_SPACE)

    rig.scheduler.advance(5)

    assert not rig.health.has_refused_write
    assert rig.health.status == "NOK - sync t: input/output error"


def test_a_data_path_that_cannot_be_looked_at_is_told(rig: Rig) -> None:
    rig.watch.start()
    rig.is_broken = True
    rig.scheduler.advance(1)
    assert rig.health.status == "NOK - data path: input/output error"

    rig.is_broken = False
    rig.scheduler.advance(2)

    assert rig.health.is_healthy


def test_it_stops_for_good(rig: Rig) -> None:
    rig.watch.start()
    rig.scheduler.holds_threads = True
    rig.scheduler.advance(1)
    rig.free_bytes = 0

    rig.watch.stop()
    rig.scheduler.finish_thread()
    rig.scheduler.settle()
    rig.health.wrote("t", NO_SPACE)

    assert rig.refusals == []
    assert rig.scheduler.pending_timers == []


def test_a_probe_replaces_what_a_killed_process_left(tmp_path: Path) -> None:
    (tmp_path / disk_watch.PROBE_FILE_NAME).write_bytes(b"left")

    disk_watch.probe(tmp_path)

    assert list(tmp_path.iterdir()) == []


def _refuse(_descriptor: int, _content: bytes) -> int:
    raise NO_SPACE
