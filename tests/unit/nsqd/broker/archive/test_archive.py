"""Archive: each published message is kept as it is delivered, within the bounds."""

import errno
from pathlib import Path

import pytest

from nsqd.broker.archive.keeper import GATHER_S
from nsqd.broker.archive.retention import MIN_SEGMENT_BYTES
from nsqd.broker.queue.batch import Batch, MixedBatch
from tests.support.archive_rig import SYNC_S, ArchiveRig
from tests.support.broker_rig import BrokerRig


@pytest.fixture
def rig(tmp_path: Path) -> ArchiveRig:
    return ArchiveRig(tmp_path)


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


@pytest.mark.parametrize("has_channel", [False, True])
def test_large_publishes_are_kept_in_order(rig: ArchiveRig, *, has_channel: bool) -> None:
    if has_channel:
        rig.channel("c")
    rig.scheduler.has_tiny_slices = True
    bodies = [b"%05d" % number for number in range(6000)]

    rig.publish(b"first")
    rig.publish(*bodies)
    rig.publish(b"last")
    rig.advance(SYNC_S + 1)

    assert rig.bodies() == [b"first", *bodies, b"last"]


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
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(type(topic.queue), "put", refuse)
        with pytest.raises(OSError, match="No space"):
            topic.publish([b"refused"])
    rig.publish(b"taken")
    rig.advance(SYNC_S + 1)

    assert rig.bodies() == [b"taken"]


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

    receipt = rig.broker.delete_topic("t")
    rig.settle()
    assert not receipt.is_done
    while rig.scheduler.held_work:
        rig.scheduler.finish_thread()
        rig.settle()

    assert list((rig.data_path / "archive").iterdir()) == []
    assert receipt.is_done


def test_a_topic_made_again_keeps_the_history_of_its_new_life_alone(rig: ArchiveRig) -> None:
    rig.publish(b"old")
    rig.advance(GATHER_S)
    rig.scheduler.holds_threads = True
    rig.broker.delete_topic("t")
    removal = rig.scheduler.held_work.popleft()  # held up: the new topic comes before it
    rig.publish(b"new")
    rig.scheduler.advance(GATHER_S)
    while rig.scheduler.held_work:
        rig.scheduler.finish_thread()
        rig.settle()

    rig.scheduler.held_work.append(removal)
    rig.scheduler.finish_thread()
    rig.settle()

    assert rig.broker.close() == []
    assert rig.bodies() == [b"new"]


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
