"""Leases: bounded in number and bytes, and they end by themselves."""

import os
from pathlib import Path

import pytest

from diskqueue.views.pins import Pins
from nsqd.analytics.leases import Lease, LeaseError, Leases
from nsqd.analytics.spill import Spill
from tests.support.fake_scheduler import FakeScheduler


@pytest.fixture
def scheduler() -> FakeScheduler:
    return FakeScheduler()


@pytest.fixture
def leases(scheduler: FakeScheduler) -> Leases:
    return Leases(scheduler, max_count=2, max_bytes=1000)


def make_lease(path: Path, data: bytes = b"") -> Lease:
    lease = Lease("127.0.0.1:1", Spill(path))
    if data:
        lease.spill.append(data)
        lease.add_part("part", 0, len(data))
    return lease


def test_it_ends_when_its_time_is_up(
    tmp_path: Path, scheduler: FakeScheduler, leases: Leases
) -> None:
    first, second = make_lease(tmp_path, b"1"), make_lease(tmp_path, b"2")
    leases.add(first, 10)
    leases.add(second, 20)
    scheduler.advance(5)
    leases.renew(first, 30)

    scheduler.advance(16)

    assert [lease.id for lease in leases] == [first.id]
    with pytest.raises(FileNotFoundError):
        second.files["part"].open()
    fd = first.files["part"].open()
    assert os.pread(fd, 10, 0) == b"1"
    os.close(fd)
    scheduler.advance(15)
    assert not len(leases)
    assert not scheduler.pending_timers


def test_bounds(tmp_path: Path, leases: Leases) -> None:
    large = make_lease(tmp_path, bytes(600))
    leases.add(large, 10)

    with pytest.raises(LeaseError, match="SNAPSHOT_TOO_LARGE"):
        leases.add(make_lease(tmp_path, bytes(401)), 10)
    leases.add(make_lease(tmp_path, bytes(400)), 10)
    with pytest.raises(LeaseError, match="TOO_MANY_LEASES"):
        leases.add(make_lease(tmp_path), 10)
    leases.release(large.id)
    leases.release(large.id)
    leases.add(make_lease(tmp_path), 10)


def test_all_end_when_the_disk_runs_short(
    tmp_path: Path, scheduler: FakeScheduler, leases: Leases, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "segment"
    path.write_bytes(b"records")
    before = len(os.listdir("/proc/self/fd"))
    lease, pins = make_lease(tmp_path, b"1"), Pins()
    lease.add_pin("segment", pins, pins.pin(str(path)), 7)
    leases.add(lease, 10)
    assert lease.size_bytes == 8
    pins.keep(str(path))

    leases.end_all("the disk runs short")
    scheduler.settle()

    assert "all 1 leases end, the disk runs short" in caplog.text
    assert leases.find(lease.id) is None
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_was_opened_before_stays_open(tmp_path: Path, leases: Leases) -> None:
    lease = make_lease(tmp_path, b"bytes")
    leases.add(lease, 10)
    fd = lease.files["part"].open()

    leases.close()

    assert os.pread(fd, 10, 0) == b"bytes"
    os.close(fd)
    assert os.listdir(tmp_path) == []
