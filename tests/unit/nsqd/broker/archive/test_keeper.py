"""ArchiveKeeper: threads write and sync history in rounds; publishing waits little, or not."""

import errno
import gc
import logging
import os
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from diskqueue import layout
from nsqd.broker.archive import archive as archive_module
from nsqd.broker.archive.keeper import GATHER_S, MAX_HOLD_S, RETRY_S
from nsqd.broker.queue import pace
from nsqd.broker.queue.receipt import Receipt
from tests.support.archive_rig import SYNC_S, ArchiveRig

DISK_FULL = OSError(errno.ENOSPC, "No space left on device")


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


def test_a_disk_whose_first_round_was_quick_takes_history_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "SLOW_S", 100.0)  # however busy the machine is
    monkeypatch.setattr(pace, "SLOW_JOB_S", 100.0)
    rig = ArchiveRig(tmp_path, mem_queue_size=0, is_disk_trusted=False)
    assert rig.topic().publish([b"first"]) is not None
    rig.advance(1.0)

    assert rig.topic().publish([b"second"]) is None

    assert rig.bodies() == [b"first", b"second"]


def test_history_that_waits_is_counted_as_on_disk(rig: ArchiveRig) -> None:
    rig.topic()
    rig.advance(1.0)
    rig.scheduler.holds_threads = True

    rig.publish(b"x", b"y")
    rig.advance(GATHER_S)
    rig.publish(b"zz")

    assert rig.stats().waiting_bytes == 31 + 31 + 32
    rig.scheduler.finish_thread()
    rig.settle()
    assert rig.stats().waiting_bytes == 32


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


def test_a_close_during_a_round_writes_nothing_twice(rig: ArchiveRig) -> None:
    rig.scheduler.holds_threads = True
    rig.publish(b"one")
    rig.advance(GATHER_S)
    rig.publish(b"two")

    assert rig.broker.close() == []
    rig.scheduler.finish_thread()
    rig.settle()

    assert rig.bodies() == [b"one", b"two"]


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


def hold_with_much_history(rig: ArchiveRig, monkeypatch: pytest.MonkeyPatch) -> Receipt:
    """Publish more than may wait, while a round is at work; return what the publisher waits for."""
    monkeypatch.setattr(archive_module, "HOLD_BYTES", 1000)
    monkeypatch.setattr(archive_module, "HOLD_OWN_BYTES", 800)
    rig.scheduler.holds_threads = True
    rig.publish(bytes(600))
    rig.advance(GATHER_S)
    receipt = rig.topic().publish((bytes(600),))
    assert receipt is not None
    rig.settle()
    assert not receipt.is_done
    return receipt


def is_done(receipt: Receipt) -> bool:
    return receipt.is_done and receipt.error is None


def test_publishers_wait_while_much_history_does(
    rig: ArchiveRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipt = hold_with_much_history(rig, monkeypatch)
    assert rig.broker.ensure_topic("other").publish((bytes(600),)) is None
    second = rig.topic().publish((bytes(600),))
    assert second is not None

    rig.scheduler.finish_thread()
    rig.advance(GATHER_S)
    assert not is_done(receipt), "the round had begun before, and 1260 bytes wait"
    rig.scheduler.finish_thread()
    rig.settle()

    assert is_done(receipt)
    assert is_done(second)
    assert rig.topic().publish((b"few",)) is None
    assert rig.bodies() == [bytes(600)] * 3


def test_publishers_of_two_topics_wait_for_what_both_have_together(
    rig: ArchiveRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound of what may wait is for all topics: each would go on until that is reached."""
    monkeypatch.setattr(archive_module, "HOLD_BYTES", 1900)
    monkeypatch.setattr(archive_module, "HOLD_OWN_BYTES", 800)
    rig.scheduler.holds_threads = True
    topics = [rig.topic("a"), rig.topic("b"), rig.topic("c")]
    rig.publish(b"x", topic="d")
    rig.advance(GATHER_S)

    receipts = [topic.publish((bytes(size),)) for topic in topics for size in (600, 300)]
    few = [rig.topic("d").publish((bytes(600),)), rig.topic("d").publish((bytes(100),))]

    assert [receipt is not None for receipt in receipts] == [*[False] * 3, True, False, True]
    assert few == [None, None]
    held = [receipt for receipt in receipts if receipt is not None]
    rig.scheduler.finish_thread()
    rig.advance(GATHER_S)
    assert not any(receipt.is_done for receipt in held), "no round has had theirs"
    rig.scheduler.finish_thread()
    rig.settle()
    assert all(is_done(receipt) for receipt in held)


def test_who_asks_for_history_on_disk_waits_for_the_round_that_has_it(rig: ArchiveRig) -> None:
    rig.scheduler.holds_threads = True
    rig.publish(b"a")
    rig.advance(GATHER_S)
    rig.publish(b"b")
    receipt = Receipt(1)
    archive = rig.topic().archive
    assert archive is not None
    archive.add_receipt(receipt)

    rig.scheduler.finish_thread()
    rig.settle()
    states = [receipt.is_done]
    rig.advance(MAX_HOLD_S)
    states.append(receipt.is_done)
    rig.scheduler.finish_thread()
    rig.settle()

    assert states == [False, False]
    assert is_done(receipt)
    assert rig.bodies() == [b"a", b"b"]


def test_who_asks_for_history_on_disk_is_told_that_it_is_not(
    rig: ArchiveRig, full_disk: pytest.MonkeyPatch
) -> None:
    rig.publish(b"a")
    receipt = Receipt(1)
    archive = rig.topic().archive
    assert archive is not None
    archive.add_receipt(receipt)

    rig.advance(GATHER_S)

    assert isinstance(receipt.error, OSError)
    full_disk.undo()


def test_publishers_wait_no_longer_than_much_history_does(
    rig: ArchiveRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would rest until the disk has theirs, and the disk would rest then."""
    receipt = hold_with_much_history(rig, monkeypatch)

    rig.scheduler.finish_thread()
    rig.settle()

    assert is_done(receipt)
    assert rig.stats().waiting_bytes == 630
    assert rig.bodies() == [bytes(600)]


def test_publishers_do_not_wait_for_a_round_that_takes_long(
    rig: ArchiveRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipt = hold_with_much_history(rig, monkeypatch)

    rig.advance(MAX_HOLD_S)

    assert is_done(receipt)
    assert rig.topic().publish((bytes(600),)) is None
    rig.scheduler.finish_thread()
    rig.advance(GATHER_S)
    again = rig.topic().publish((bytes(600),))
    assert again is not None
    assert not again.is_done, "the next round may be waited for"


def test_publishers_do_not_wait_for_a_disk_that_fails(
    rig: ArchiveRig, monkeypatch: pytest.MonkeyPatch, full_disk: pytest.MonkeyPatch
) -> None:
    receipt = hold_with_much_history(rig, monkeypatch)

    rig.scheduler.finish_thread()
    rig.settle()

    assert receipt.is_done
    assert receipt.error is None
    assert rig.health
    full_disk.undo()


def test_a_deleted_topic_lets_its_publishers_go(
    rig: ArchiveRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipt = hold_with_much_history(rig, monkeypatch)

    rig.broker.delete_topic("t")
    rig.settle()

    assert receipt.is_done


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


def test_a_failed_sync_is_tried_again_without_another_message(
    rig: ArchiveRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: object, content: bytes) -> None:
        raise OSError(errno.EIO, "Input/output error")

    rig.publish(b"x")
    with monkeypatch.context() as patch:
        patch.setattr(layout, "write_atomically", fail)
        rig.advance(2 * SYNC_S + 1)
        assert rig.health

    rig.advance(SYNC_S + 1)

    assert rig.health == ""
    assert [message.body for message in rig.messages()] == [b"x"]


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


def test_much_that_cannot_be_written_is_tried_again_after_a_second_too(
    rig: ArchiveRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_module, "ROUND_BYTES", 1000)
    rig.topic()
    rig.advance(1.0)
    tries = []

    def refuse(*_: object) -> int:
        tries.append(rig.scheduler.now)
        raise DISK_FULL

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", refuse)
        rig.publish(bytes(2000))
        rig.advance(0.5 * RETRY_S)
        assert len(tries) == 1
        rig.advance(2 * RETRY_S)

    assert tries[1:] == [tries[0] + RETRY_S, tries[0] + 2 * RETRY_S]


def test_a_failed_write_is_tried_again_after_a_second(
    rig: ArchiveRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.topic()
    rig.advance(1.0)
    start = rig.scheduler.now
    tried_at: list[float] = []

    def refuse(*_: object) -> int:
        tried_at.append(rig.scheduler.now - start)
        raise DISK_FULL

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", refuse)
        rig.publish(b"x")
        rig.advance(0.5)
        rig.publish(b"y")
        rig.advance(2.0)

    assert tried_at == pytest.approx([0.05, 1.1, 2.15])
    rig.advance(1.0 + SYNC_S)
    assert rig.bodies() == [b"x", b"y"]


def test_a_deleted_archive_is_not_closed_again(rig: ArchiveRig) -> None:
    rig.publish(b"x")
    rig.advance(SYNC_S + 1)
    rig.broker.delete_topic("t")

    assert rig.broker.archives is not None
    assert rig.broker.archives.close() == []
    assert list((rig.data_path / "archive").iterdir()) == []


def test_nothing_refers_to_a_deleted_archive_whose_files_are_gone(rig: ArchiveRig) -> None:
    rig.publish(b"x")
    rig.advance(SYNC_S + 1)
    archive = rig.topic("t").archive
    assert archive is not None
    reference = weakref.ref(archive)
    del archive

    rig.broker.delete_topic("t")
    rig.settle()
    gc.collect()

    assert reference() is None


def test_other_topics_do_not_put_the_round_of_the_first_off(rig: ArchiveRig) -> None:
    names = ("t", "u", "v", "w")
    for name in names:
        rig.topic(name)
    rig.advance(1.0)

    for name in names:
        rig.publish(b"x", topic=name)
        rig.advance(GATHER_S / 3)

    assert rig.stats("t").waiting_bytes == 0
    assert rig.bodies("t") == [b"x"]
