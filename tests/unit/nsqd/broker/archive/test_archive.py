"""Archives through the broker: what is published is kept, off the loop, whatever the disk does."""

import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from diskqueue import DiskQueue, envelope, layout
from diskqueue.__main__ import main as diskqueue_main
from diskqueue.envelope import Envelope
from nsqd.broker.archive import archive as archive_module
from nsqd.broker.archive.archive import GATHER_S, RETRY_S, ArchiveStats
from nsqd.broker.archive.log import MIN_SEGMENT_BYTES, Retention
from nsqd.broker.broker import Broker, BrokerSettings
from nsqd.broker.channel import ChannelSettings
from nsqd.broker.queue.batch import Batch, MixedBatch
from nsqd.broker.queue.ids import MessageIdFactory
from tests.support.broker_rig import BrokerRig
from tests.support.channel_rig import disk_settings

SYNC_S = 2.0
DISK_FULL = OSError(errno.ENOSPC, "No space left on device")


class ArchiveRig(BrokerRig):
    """A broker that keeps history."""

    def __init__(self, path: Path, *, max_bytes: int = 2**30, max_age_s: float = 0.0) -> None:
        super().__init__(path)
        settings = BrokerSettings(
            mem_queue_size=10_000,
            disk=disk_settings(path),
            channel=ChannelSettings(max_msg_timeout_s=900.0, max_consumers=0),
            retention=Retention(max_bytes, max_age_s),
        )
        self.broker = Broker(settings, self.scheduler, MessageIdFactory(1))

    def stats(self, topic: str = "t") -> ArchiveStats:
        archive = self.topic(topic).archive
        assert archive is not None
        return archive.stats()

    @property
    def health(self) -> str:
        assert self.broker.archives is not None
        return self.broker.archives.health

    @property
    def dropped_count(self) -> int:
        assert self.broker.archives is not None
        return self.broker.archives.dropped_count

    def messages(self, topic: str = "t") -> list[Envelope]:
        """What the files of a topic's archive hold at this moment."""
        directory = str(self.data_path / "archive")
        assert diskqueue_main(["check", directory]) == 0
        queue = DiskQueue(directory, topic)
        found = []
        while (batch := queue.read(1000, 2**20)) is not None:
            found += [envelope.decode(payload) for payload in batch]
        return found

    def bodies(self, topic: str = "t") -> list[bytes]:
        return [message.body for message in self.messages(topic)]

    def files(self, topic: str = "t") -> dict[int, int]:
        return layout.find_queue_files(str(self.data_path / "archive"), topic).segments


@pytest.fixture
def rig(tmp_path: Path) -> ArchiveRig:
    return ArchiveRig(tmp_path)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A disk that takes no records, until the patch is undone."""

    def refuse(fd: int, pieces: list[bytes], position: int) -> int:
        raise DISK_FULL

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", refuse)
        yield patch


def test_nothing_is_kept_by_default(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path)

    rig.publish(b"x")
    rig.advance(10.0)

    assert rig.broker.archives is None
    assert rig.topic().archive is None
    assert not (tmp_path / "archive").exists()


def test_every_publish_is_kept_as_it_is_delivered(rig: ArchiveRig) -> None:
    client = rig.client()

    rig.publish(b"one")
    rig.publish(b"two", b"three")
    rig.publish(b"later", delay_s=3600.0)
    deliveries = client.take()
    client.finish(*(each.message_id for each in deliveries))
    rig.advance(SYNC_S + 1)

    kept = rig.messages()
    assert [message.body for message in kept] == [b"one", b"two", b"three", b"later"]
    delivered = {(each.message_id, each.timestamp_ns, each.body) for each in deliveries}
    assert {(each.message_id, each.timestamp_ns, each.body) for each in kept[:3]} == delivered
    assert {message.attempts for message in kept} == {0}


def test_topics_without_channels_and_paused_ones_are_kept(rig: ArchiveRig) -> None:
    rig.publish(b"a", topic="lonely")
    rig.channel("c", "paused")
    rig.topic("paused").pause()
    rig.publish(b"b", topic="paused")
    rig.advance(SYNC_S + 1)

    assert (rig.bodies("lonely"), rig.bodies("paused")) == ([b"a"], [b"b"])


def test_ephemeral_topics_are_not_kept(rig: ArchiveRig) -> None:
    rig.publish(b"x", topic="t#ephemeral")
    rig.advance(SYNC_S + 1)

    assert rig.topic("t#ephemeral").archive is None
    assert not (rig.data_path / "archive").exists()


def test_a_refused_publish_is_not_kept(rig: ArchiveRig, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = rig.topic()

    def refuse(*_: object, **__: object) -> None:
        raise DISK_FULL

    with monkeypatch.context() as patch:
        patch.setattr(type(topic.queue), "put", refuse)
        with pytest.raises(OSError, match="No space"):
            topic.publish([b"refused"])
    rig.publish(b"taken")
    rig.advance(SYNC_S + 1)

    assert rig.bodies() == [b"taken"]


def test_messages_are_written_together_and_off_the_loop(
    rig: ArchiveRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.topic()
    rig.advance(1.0)
    rig.scheduler.holds_threads = True
    writes: list[int] = []
    pwritev = os.pwritev

    def write(fd: int, pieces: list[bytes], position: int) -> int:
        writes.append(len(pieces))
        return pwritev(fd, pieces, position)

    monkeypatch.setattr(os, "pwritev", write)

    for number in range(100):
        rig.publish(b"%d" % number)
    rig.advance(GATHER_S)

    assert rig.files() == {}
    assert len(rig.scheduler.held_work) == 1
    rig.scheduler.finish_thread()
    rig.settle()
    assert writes == [1]
    assert rig.stats().message_count == 100
    assert rig.stats().waiting_bytes == 0


def test_one_hop_serves_all_topics(rig: ArchiveRig) -> None:
    rig.scheduler.holds_threads = True

    for number in range(50):
        rig.publish(b"x", topic=f"t{number}")
    rig.advance(GATHER_S)

    assert len(rig.scheduler.held_work) == 1
    rig.scheduler.finish_thread()
    rig.settle()
    assert len(list((rig.data_path / "archive").glob("*.000000.dat"))) == 50


def test_what_comes_during_a_round_goes_into_the_next(rig: ArchiveRig) -> None:
    rig.scheduler.holds_threads = True
    rig.publish(b"first")
    rig.advance(GATHER_S)

    rig.publish(b"second")
    rig.advance(1.0)
    assert len(rig.scheduler.held_work) == 1, "one round at a time"
    rig.scheduler.finish_thread()
    rig.advance(GATHER_S)
    rig.scheduler.finish_thread()
    rig.settle()

    rig.scheduler.holds_threads = False
    rig.advance(SYNC_S)
    assert rig.bodies() == [b"first", b"second"]


def test_writes_do_not_wait_for_a_sync(rig: ArchiveRig) -> None:
    rig.publish(b"first")
    rig.advance(GATHER_S)
    rig.scheduler.holds_threads = True
    rig.advance(SYNC_S)
    assert len(rig.scheduler.held_work) == 1, "the sync"

    rig.publish(b"second")
    rig.advance(GATHER_S)
    assert len(rig.scheduler.held_work) == 2
    sync = rig.scheduler.held_work.popleft()
    rig.scheduler.finish_thread()
    rig.settle()

    assert rig.stats().message_count == 2
    rig.scheduler.held_work.append(sync)
    rig.scheduler.finish_thread()
    rig.scheduler.holds_threads = False
    rig.advance(SYNC_S)
    assert rig.bodies() == [b"first", b"second"]
    assert rig.scheduler.pending_timers == []


def test_synced_after_the_timeout_then_quiet(rig: ArchiveRig) -> None:
    rig.publish(b"x")
    rig.advance(GATHER_S)
    assert not (rig.data_path / "archive" / "t.diskqueue.meta.dat").exists()

    rig.advance(SYNC_S)

    metadata = layout.read_metadata(str(rig.data_path / "archive"), "t")
    assert metadata == layout.Metadata(1, 0, 0, 0, 31)
    assert rig.scheduler.pending_timers == []


def test_much_is_written_at_once(rig: ArchiveRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_module, "ROUND_BYTES", 1000)
    rig.topic()
    rig.advance(1.0)

    rig.publish(bytes(2000))
    rig.advance(0.0)

    assert rig.stats().message_count == 1


def test_a_batch_larger_than_a_segment_is_cut(tmp_path: Path) -> None:
    rig = ArchiveRig(tmp_path, max_bytes=MIN_SEGMENT_BYTES)
    bodies = [b"%04d" % number + bytes(996) for number in range(300)]

    rig.publish(*bodies)
    rig.advance(SYNC_S + 1)

    assert max(rig.files().values()) <= 4096  # --max-bytes-per-file of the rig
    assert sum(rig.files().values()) <= MIN_SEGMENT_BYTES
    assert rig.bodies() == bodies[-len(rig.bodies()) :]


def test_bytes_are_bounded(tmp_path: Path) -> None:
    rig = ArchiveRig(tmp_path, max_bytes=40_000)
    sent = []
    for number in range(500):
        sent.append(b"%05d" % number + bytes(500))
        rig.publish(sent[-1])
        rig.advance(GATHER_S)
        assert sum(rig.files().values()) <= 40_000
    rig.advance(SYNC_S)

    kept = rig.bodies()

    assert kept == sent[-len(kept) :]
    assert sum(rig.files().values()) == rig.stats().size_bytes > 30_000
    assert rig.stats().message_count == len(kept)


def test_old_history_goes_though_nothing_is_published(tmp_path: Path) -> None:
    rig = ArchiveRig(tmp_path, max_bytes=0, max_age_s=3600.0)
    rig.publish(b"old")
    rig.advance(1800.0)
    rig.publish(b"new")
    rig.advance(1790.0)
    assert rig.bodies() == [b"old", b"new"]
    assert rig.stats().oldest_ns == rig.messages()[0].timestamp_ns

    rig.advance(300.0)
    assert rig.bodies() == [b"new"]

    rig.advance(1800.0)
    assert rig.files() == {}
    assert (rig.stats().message_count, rig.stats().oldest_ns) == (0, 0)


def test_history_is_left_alone_when_the_clock_steps_back(tmp_path: Path) -> None:
    rig = ArchiveRig(tmp_path, max_bytes=0, max_age_s=3600.0)
    rig.publish(b"a")
    rig.advance(SYNC_S + 1)
    rig.scheduler.wall_ns -= 7200 * 10**9
    rig.publish(b"b")
    rig.advance(3700.0)

    assert rig.bodies() == [b"a", b"b"]
    rig.advance(3 * 3600.0)
    assert rig.files() == {}


def test_emptying_a_topic_keeps_its_history(rig: ArchiveRig) -> None:
    rig.publish(b"x")
    rig.advance(SYNC_S + 1)

    rig.topic().empty()
    rig.advance(SYNC_S + 1)

    assert rig.bodies() == [b"x"]


def test_deleting_a_topic_deletes_its_history(rig: ArchiveRig) -> None:
    rig.publish(b"x")
    rig.advance(SYNC_S + 1)
    rig.publish(b"waits")
    rig.publish(b"other", topic="other")

    rig.broker.delete_topic("t")
    rig.advance(SYNC_S + 1)

    names = {path.name.partition(".")[0] for path in (rig.data_path / "archive").iterdir()}
    assert names == {"other"}
    rig.publish(b"again")
    rig.advance(SYNC_S + 1)
    assert rig.bodies() == [b"again"]
    assert rig.stats().waiting_bytes == 0


def test_deleting_a_topic_waits_for_the_round_that_is_at_it(rig: ArchiveRig) -> None:
    rig.scheduler.holds_threads = True
    rig.publish(b"x")
    rig.advance(GATHER_S)

    rig.broker.delete_topic("t")
    rig.scheduler.finish_thread()
    rig.settle()

    assert list((rig.data_path / "archive").iterdir()) == []


def test_history_of_an_earlier_life_is_deleted_with_its_topic(tmp_path: Path) -> None:
    first = ArchiveRig(tmp_path)
    first.publish(b"x")
    assert first.broker.close() == []
    second = ArchiveRig(tmp_path)
    second.topic()

    second.broker.delete_topic("t")  # before any round has looked at the files

    assert list((tmp_path / "archive").iterdir()) == []


def test_a_close_writes_all_that_waits(rig: ArchiveRig) -> None:
    rig.publish(b"one")
    rig.advance(GATHER_S)
    rig.publish(b"two")

    assert rig.broker.close() == []

    assert rig.bodies() == [b"one", b"two"]
    assert rig.scheduler.pending_timers == []


def test_a_close_during_a_round_writes_nothing_twice(rig: ArchiveRig) -> None:
    rig.scheduler.holds_threads = True
    rig.publish(b"one")
    rig.advance(GATHER_S)
    rig.publish(b"two")

    assert rig.broker.close() == []
    rig.scheduler.finish_thread()
    rig.settle()

    assert rig.bodies() == [b"one", b"two"]


def test_a_restart_goes_on(tmp_path: Path) -> None:
    for number in range(3):
        rig = ArchiveRig(tmp_path)
        rig.publish(b"%d" % number)
        assert rig.broker.close() == []

    rig = ArchiveRig(tmp_path)
    rig.topic()
    rig.advance(1.0)

    assert rig.stats().message_count == 3
    assert rig.bodies() == [b"0", b"1", b"2"]
    assert list(rig.files()) == [0]


def test_messages_with_columns_of_their_own_are_kept(rig: ArchiveRig) -> None:
    archive = rig.topic().archive
    assert archive is not None

    archive.add(Batch(5, b"0123456789abc", 0, (b"a",)))
    archive.add(MixedBatch([b"0123456789abcdef"] * 2, [7, 3], [4, 5], [b"b", b"c"]))
    rig.advance(SYNC_S + 1)

    kept = rig.messages()
    assert [each.timestamp_ns for each in kept] == [5, 7, 3]
    assert [each.attempts for each in kept] == [0, 4, 5]
    assert rig.stats().oldest_ns == 3


# --- a disk that fails


def test_publishing_goes_on_when_the_disk_fails(
    rig: ArchiveRig, full_disk: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = rig.client()

    with caplog.at_level(logging.INFO):
        for number in range(10):
            rig.publish(b"%d" % number)
            rig.advance(1.0)

    assert len(client.bodies) == 10
    assert rig.health == "archive of t: [Errno 28] No space left on device"
    assert rig.broker.is_healthy, "the queues' health is another matter"
    assert [record.levelname for record in caplog.records if "ARCHIVE" in record.message] == [
        "ERROR"
    ]
    full_disk.undo()
    rig.advance(RETRY_S + SYNC_S + 1)
    assert rig.health == ""
    assert rig.bodies() == [b"%d" % number for number in range(10)]
    assert rig.dropped_count == 0


def test_history_beyond_the_bound_is_dropped_and_counted(
    rig: ArchiveRig, full_disk: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_module, "MAX_WAITING_BYTES", 10_000)
    for number in range(20):
        rig.publish(b"%02d" % number + bytes(968))  # 1,000 bytes on disk
        assert rig.stats().waiting_bytes <= 10_000
        rig.advance(0.2)

    assert rig.dropped_count == rig.stats().dropped_count == 10
    assert rig.health
    full_disk.undo()
    rig.advance(RETRY_S + SYNC_S + 1)
    rig.publish(b"99")
    rig.advance(SYNC_S + 1)
    assert rig.health == ""
    assert [body[:2] for body in rig.bodies()] == [b"%02d" % number for number in range(10)] + [
        b"99"
    ]
    assert rig.stats().waiting_bytes == 0


def test_a_disk_that_is_too_slow_shows_until_it_has_caught_up(
    rig: ArchiveRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_module, "MAX_WAITING_BYTES", 10_000)
    rig.scheduler.holds_threads = True
    rig.publish(bytes(6000))
    rig.advance(GATHER_S)
    rig.publish(bytes(6000))

    assert rig.health == "archive: the disk is too slow, 1 messages not kept"

    rig.scheduler.finish_thread()
    rig.settle()
    assert rig.health == ""


def test_one_message_larger_than_the_bound_is_kept(
    rig: ArchiveRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_module, "MAX_WAITING_BYTES", 1000)

    rig.publish(bytes(5000))
    rig.advance(GATHER_S)

    assert (rig.stats().message_count, rig.dropped_count) == (1, 0)


def test_one_archive_that_fails_holds_up_no_other(
    rig: ArchiveRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.topic("bad")
    rig.topic("good")
    rig.advance(1.0)
    (rig.data_path / "archive" / "bad.diskqueue.000000.dat").mkdir()
    monkeypatch.setattr(layout, "quarantine_path", lambda path: f"{path}/in/itself")

    rig.publish(b"x", topic="bad")
    rig.publish(b"y", topic="good")
    rig.advance(SYNC_S + 1)

    assert rig.health.startswith("archive of bad: ")
    assert rig.stats("good").message_count == 1


def test_a_failed_sync_is_told_and_tried_again(
    rig: ArchiveRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: object, content: bytes) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(layout, "write_atomically", fail)
        rig.publish(b"x")
        rig.advance(SYNC_S + 1)
        assert rig.health == "archive of t: [Errno 5] Input/output error"
        rig.publish(b"y")
        rig.advance(GATHER_S)
        assert rig.health, "a write that succeeds doesn't hide it"

    rig.advance(SYNC_S + 1)

    assert rig.health == ""
    assert rig.bodies() == [b"x", b"y"]


def test_a_directory_that_is_removed_comes_back(rig: ArchiveRig) -> None:
    rig.publish(b"gone")
    rig.advance(SYNC_S + 1)
    for path in (rig.data_path / "archive").iterdir():
        path.unlink()
    (rig.data_path / "archive").rmdir()

    rig.publish(b"kept")
    rig.advance(SYNC_S + RETRY_S + 1)

    assert rig.bodies() == [b"kept"]
    assert rig.health == ""


def test_a_directory_that_cannot_be_made_shows(rig: ArchiveRig) -> None:
    (rig.data_path / "archive").write_text("a file")

    rig.publish(b"x")
    rig.advance(1.0)

    assert "archive of t: " in rig.health
    (rig.data_path / "archive").unlink()
    rig.advance(RETRY_S + SYNC_S + 1)
    assert (rig.bodies(), rig.health) == ([b"x"], "")


def test_a_close_tells_what_is_lost(rig: ArchiveRig, full_disk: pytest.MonkeyPatch) -> None:
    rig.publish(b"x")

    assert rig.broker.close() == [DISK_FULL]
