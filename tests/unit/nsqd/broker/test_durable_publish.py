"""Publishes on disk: all channels or none, receipts, and topics that hand over their messages."""

import errno
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from nsqd.broker.archive.keeper import ArchiveKeeper
from nsqd.broker.archive.retention import Retention
from nsqd.broker.broker import Broker, BrokerSettings
from nsqd.broker.channel import ChannelSettings
from nsqd.broker.queue.ids import SEQUENCE_COUNT, MessageIdFactory
from tests.support.broker_rig import BrokerRig
from tests.support.channel_rig import disk_settings

NO_SPACE = OSError(errno.ENOSPC, "No space left on device")


def refuse_writes_to(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let writes fail to files whose name begins so."""

    def refuse(real: Callable[..., int], fd: int, data: object, offset: int) -> int:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if Path(path).name.startswith(name):
            raise NO_SPACE
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", partial(refuse, os.pwrite))
    monkeypatch.setattr(os, "pwritev", partial(refuse, os.pwritev))


@pytest.mark.parametrize("mem_queue_size", [0, 3])
@pytest.mark.parametrize("count", [1, 10, SEQUENCE_COUNT + 1])
def test_a_publish_that_one_channel_refuses_is_in_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mem_queue_size: int, count: int
) -> None:
    rig = BrokerRig(tmp_path, mem_queue_size=mem_queue_size)
    for name in ("a", "b", "c"):
        rig.channel(name)
    rig.publish(*[b"before"] * 5)

    with monkeypatch.context() as patch:
        refuse_writes_to(patch, "t:b.")
        with pytest.raises(OSError, match="No space left"):
            rig.publish(*[b"refused"] * count)
    rig.publish(b"after")

    assert rig.topic().message_count == 6
    for name in ("a", "b", "c"):
        assert rig.channel(name).message_count == 6
        assert rig.client(name).bodies == [*[b"before"] * 5, b"after"]


def test_what_was_taken_back_does_not_come_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_path = tmp_path / "data"
    data_path.mkdir()
    rig = BrokerRig(data_path, mem_queue_size=0)
    for name in ("a", "b"):
        rig.channel(name)
    rig.publish(b"before")
    with monkeypatch.context() as patch:
        refuse_writes_to(patch, "t:b.")
        with pytest.raises(OSError, match="No space left"):
            rig.topic().publish([b"refused"])

    crashed = tmp_path / "crashed"
    shutil.copytree(data_path, crashed)

    assert BrokerRig(crashed, mem_queue_size=0).client("a").bodies == [b"before"]


def test_a_deferred_publish_that_one_channel_refuses_is_in_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = BrokerRig(tmp_path, mem_queue_size=0)
    for name in ("a", "b"):
        rig.channel(name)
    with monkeypatch.context() as patch:
        refuse_writes_to(patch, "t:b.diskqueue.0")
        with pytest.raises(OSError, match="No space left"):
            rig.topic().publish([b"refused"], delay_s=1.0)

    assert rig.channel("a").deferred_count == rig.channel("b").deferred_count == 0
    rig.advance(2)
    assert rig.client("a").bodies == rig.client("b").bodies == []


class PromptRig(BrokerRig):
    """A broker whose acknowledged messages survive a power cut."""

    def __init__(self, data_path: Path) -> None:
        super().__init__(data_path, mem_queue_size=0)
        settings = BrokerSettings(
            mem_queue_size=0,
            disk=disk_settings(data_path, sync_every=1),
            channel=ChannelSettings(max_msg_timeout_s=900.0, max_consumers=0),
        )
        self.scheduler.holds_threads = True
        self.broker = Broker(settings, self.scheduler, MessageIdFactory(1))


def test_a_publish_waits_for_every_channel(tmp_path: Path) -> None:
    rig = PromptRig(tmp_path)
    rig.channel("a")
    rig.channel("b")
    rig.channel("c#ephemeral")

    receipt = rig.topic().publish([b"x"])
    rig.settle()

    assert receipt is not None
    assert len(rig.scheduler.held_work) == 2
    rig.scheduler.finish_thread()
    rig.settle()
    assert not receipt.is_done
    rig.scheduler.finish_thread()
    rig.settle()
    assert receipt.is_done


def test_a_deferred_publish_waits_too(tmp_path: Path) -> None:
    rig = PromptRig(tmp_path)
    rig.channel("a")

    receipt = rig.topic().publish([b"x"], delay_s=5.0)

    assert receipt is not None
    assert not receipt.is_done


def test_with_a_memory_queue_there_is_nothing_to_wait_for(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path)
    rig.channel("a")

    assert rig.topic().publish([b"x"]) is None


def test_a_topic_keeps_what_the_channels_have_not_synced(tmp_path: Path) -> None:
    """A power cut then brings it from the topic again, which is better than not at all."""
    rig = PromptRig(tmp_path)
    rig.topic().publish([b"x"])
    rig.settle()
    rig.scheduler.finish_thread()
    rig.settle()
    topic_disk = rig.topic().queue.backend

    rig.channel("a")
    rig.settle()
    assert rig.topic().depth == 0
    assert topic_disk.outstanding_count == 1
    while rig.scheduler.held_work:
        rig.scheduler.finish_thread()
        rig.settle()

    assert topic_disk.outstanding_count == 0


def refuse_unlinks(monkeypatch: pytest.MonkeyPatch) -> None:
    def unlink(path: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "unlink", unlink)


@pytest.mark.parametrize("verb", ["empty", "delete"])
def test_nobody_waits_for_what_is_gone_even_if_its_files_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    rig = PromptRig(tmp_path)
    backend = rig.channel("a").queue.backend
    receipt = rig.topic().publish([b"x"])
    assert receipt is not None

    with monkeypatch.context() as patch:
        refuse_unlinks(patch)
        outcome = getattr(backend, verb)()
        assert receipt.is_done
        rig.scheduler.settle()
        while rig.scheduler.held_work:
            rig.scheduler.finish_thread()
            rig.scheduler.settle()

    assert "Input/output error" in str(outcome.error)


def test_a_deleted_topic_leaves_no_history_even_if_other_files_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = BrokerRig(tmp_path, mem_queue_size=0)
    rig.publish(b"x")
    topic = rig.topic()
    topic.archive = ArchiveKeeper(
        Retention(max_bytes=10_000, max_age_s=0.0), disk_settings(tmp_path), rig.scheduler
    ).open("t")

    with monkeypatch.context() as patch:
        refuse_unlinks(patch)
        outcome = topic.delete()
        rig.scheduler.settle()

    assert topic.archive.is_closed
    assert "Input/output error" in str(outcome.error)


def test_a_topic_forgets_what_a_channel_has_emptied_before_its_sync(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path, mem_queue_size=0)
    rig.scheduler.holds_threads = True
    rig.publish(b"x")
    channel = rig.channel("a")
    rig.advance(2.5)
    assert rig.scheduler.held_work
    rig.topic().pause()
    rig.publish(b"y")
    rig.topic().unpause()
    rig.settle()

    channel.empty()
    while rig.scheduler.held_work:
        rig.scheduler.finish_thread()
        rig.settle()

    assert rig.topic().queue.backend.outstanding_count == 0


def test_a_clean_exit_brings_nothing_twice_that_was_on_its_way(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path, mem_queue_size=0)
    rig.publish(b"x", b"y")
    rig.channel("a")
    rig.settle()
    records = rig.broker.records()
    assert rig.broker.close() == []

    rig = BrokerRig(tmp_path, mem_queue_size=0)
    rig.broker.load(records)

    assert rig.client("a").bodies == [b"x", b"y"]
