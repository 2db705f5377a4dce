"""Deferred messages that only the disk has: behind a backlog, and after a restart or a crash."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from nsqd.broker.queue.due_log import DueLog
from tests.support.broker_rig import BrokerRig

HOUR_NS = 3600 * 10**9
NOW_NS = 1_700_000_000_000_000_000
ID = b"0123456789abcdef"


def refuse_writes_to(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    real: Callable[..., int] = os.pwrite

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        if Path(os.readlink(f"/proc/self/fd/{fd}")).name.startswith(name):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)


def rig_with_backlog(data_path: Path) -> BrokerRig:
    """A channel with more on disk than is kept in memory."""
    rig = BrokerRig(data_path, mem_queue_size=0)
    channel = rig.channel("a")
    rig.publish(*[b"x" * 2000] * 600)
    rig.publish(*[b"x"] * 10)
    assert channel.queue.backend.unread_count
    return rig


@pytest.mark.parametrize("step_ns", [-HOUR_NS, HOUR_NS])
def test_a_step_of_the_clock_changes_no_delay(tmp_path: Path, step_ns: int) -> None:
    rig = rig_with_backlog(tmp_path)
    rig.publish(b"later", delay_s=100.0)

    rig.scheduler.wall_ns += step_ns
    client = rig.client("a")

    rig.advance(50)
    assert b"later" not in client.bodies
    rig.advance(51)
    assert b"later" in client.bodies


@pytest.mark.parametrize("step_ns", [-HOUR_NS, HOUR_NS])
def test_a_step_of_the_clock_before_a_crash_changes_no_delay(tmp_path: Path, step_ns: int) -> None:
    data_path = tmp_path / "data"
    data_path.mkdir()
    rig = BrokerRig(data_path, mem_queue_size=0)
    rig.channel("a")
    rig.scheduler.wall_ns += step_ns
    rig.publish(b"later", delay_s=100.0)
    shutil.copytree(data_path, tmp_path / "crashed")

    crashed = tmp_path / "crashed"
    after = BrokerRig(crashed, mem_queue_size=0, wall_time_ns=rig.scheduler.wall_ns)
    client = after.client("a")

    after.advance(50)
    assert client.bodies == []
    after.advance(51)
    assert client.bodies == [b"later"]


def test_a_crash_does_not_shorten_the_delay_of_a_requeued_message(tmp_path: Path) -> None:
    data_path = tmp_path / "data"
    data_path.mkdir()
    rig = BrokerRig(data_path, mem_queue_size=0)
    client = rig.client("a", ready=1)
    rig.publish(b"later")
    rig.settle()
    [delivery] = client.take()
    client.requeue(delivery.message_id, delay_s=100.0)
    rig.advance(50)
    shutil.copytree(data_path, tmp_path / "crashed")

    crashed = tmp_path / "crashed"
    after = BrokerRig(crashed, mem_queue_size=0, wall_time_ns=rig.scheduler.wall_ns)
    client = after.client("a")

    after.advance(49)
    assert client.bodies == []
    after.advance(2)
    assert client.bodies == [b"later"]


@pytest.mark.parametrize("has_clean_stop", [False, True])
def test_the_time_that_the_daemon_is_down_counts(tmp_path: Path, *, has_clean_stop: bool) -> None:
    rig = BrokerRig(tmp_path, mem_queue_size=0)
    rig.channel("a")
    rig.publish(b"later", delay_s=100.0)
    rig.settle()
    if has_clean_stop:
        assert rig.broker.close() == []
    down_s = 60

    after = BrokerRig(tmp_path, mem_queue_size=0, wall_time_ns=NOW_NS + down_s * 10**9)
    client = after.client("a")

    after.advance(39)
    assert client.bodies == []
    after.advance(2)
    assert client.bodies == [b"later"]


def test_messages_in_the_memory_of_a_topic_stay_deferred_after_a_clean_stop(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path, mem_queue_size=10)
    rig.publish(b"later", b"later", delay_s=100.0)
    assert rig.broker.close() == []

    after = BrokerRig(tmp_path, mem_queue_size=10)
    client = after.client("a")
    after.settle()

    assert client.bodies == []
    after.advance(101)
    assert client.bodies == [b"later", b"later"]


def test_a_due_time_that_could_not_be_noted_counts_until_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = rig_with_backlog(tmp_path)
    with monkeypatch.context() as patch:
        refuse_writes_to(patch, "t:a.diskqueue.due")
        rig.publish(b"later", delay_s=100.0)

    assert rig.channel("a").deferred_count == 1
    client = rig.client("a")
    assert b"later" not in client.bodies
    rig.advance(101)
    assert b"later" in client.bodies


def test_a_due_time_without_a_message_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publish that was taken back leaves one, and so does a crash before the message."""
    data_path = tmp_path / "data"
    data_path.mkdir()
    rig = BrokerRig(data_path, mem_queue_size=0)
    rig.channel("a")
    rig.channel("b")
    with monkeypatch.context() as patch:
        refuse_writes_to(patch, "t:b.diskqueue.0")
        with pytest.raises(OSError, match="No space left"):
            rig.topic().publish([b"later"], delay_s=100.0)
    shutil.copytree(data_path, tmp_path / "crashed")

    channel = BrokerRig(tmp_path / "crashed", mem_queue_size=0).channel("a")

    assert (channel.depth, channel.deferred_count) == (0, 0)


def test_what_has_been_read_and_not_delivered_is_counted_as_deferred(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path, mem_queue_size=0)
    rig.channel("a")
    rig.publish(*[b"x"] * 10)
    rig.publish(b"later", b"later", delay_s=100.0)
    assert rig.broker.close() == []

    rig = BrokerRig(tmp_path, mem_queue_size=0)
    channel = rig.channel("a")
    assert (channel.depth, channel.deferred_count) == (10, 2)
    rig.client("a", ready=1)

    assert (channel.depth, channel.deferred_count, channel.consumers.in_flight_count) == (9, 2, 1)


@pytest.mark.parametrize("has_clean_stop", [False, True])
def test_a_message_that_a_crash_brings_twice_is_deferred_both_times(
    tmp_path: Path, *, has_clean_stop: bool
) -> None:
    data_path = tmp_path / "data"
    data_path.mkdir()
    rig = BrokerRig(data_path, mem_queue_size=0)
    rig.publish(b"later", delay_s=100.0)
    rig.channel("a")
    rig.settle()  # the channel has it, and the topic's copy is there until the next sync
    shutil.copytree(data_path, tmp_path / "crashed")

    rig = BrokerRig(tmp_path / "crashed", mem_queue_size=0)
    rig.channel("a")
    rig.settle()
    if has_clean_stop:
        assert rig.broker.close() == []
        rig = BrokerRig(tmp_path / "crashed", mem_queue_size=0)
    client = rig.client("a")

    assert client.bodies == []
    rig.advance(101)
    assert client.bodies == [b"later", b"later"]


def test_what_a_topic_could_not_hand_on_safely_is_deferred_after_a_clean_stop(
    tmp_path: Path,
) -> None:
    rig = BrokerRig(tmp_path, mem_queue_size=0)
    rig.publish(b"later", delay_s=100.0)
    rig.scheduler.holds_threads = True
    rig.channel("a")
    rig.advance(2.5)
    while rig.scheduler.held_work:
        rig.scheduler.finish_thread(OSError(errno.EIO, "Input/output error"))
        rig.settle()
    assert rig.broker.close() == []

    client = BrokerRig(tmp_path, mem_queue_size=0).client("a")

    assert client.bodies == []


def test_the_last_entry_counts_also_for_what_was_noted_twice(tmp_path: Path) -> None:
    log = DueLog(tmp_path, "t:c", NOW_NS)
    for due_ns in (NOW_NS + 100, NOW_NS + 100, NOW_NS + 1):
        log.add([ID], due_ns, NOW_NS, are_unread=False)

    assert DueLog(tmp_path, "t:c", NOW_NS + 50).pop(ID) == 0


def test_the_due_time_on_disk_is_exact(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path, mem_queue_size=0)
    rig.channel("a")

    rig.publish(b"later", delay_s=1000.0)
    rig.settle()

    assert list(DueLog(tmp_path, "t:a", NOW_NS).unread.values()) == [NOW_NS + 1000 * 10**9]
