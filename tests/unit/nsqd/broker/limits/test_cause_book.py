"""CauseBook: dead letters have causes as long as they are there, and others cost nothing."""

import errno
import os
from pathlib import Path

import pytest

from diskqueue.layout import list_queues
from nsqd.broker.limits import cause_book, causes
from nsqd.broker.limits.causes import Cause, CauseLog
from nsqd.broker.queue.receipt import Receipt
from nsqd.broker.topic import Topic
from nsqd.config.limits import Limits
from tests.support.broker_rig import BrokerRig
from tests.support.limit_counts import SIZES, numbered, refuse

LIMITS = Limits(max_attempts=1, dead_letter_topic_suffix=".dead")
FILE = "t.dead.diskqueue.causes"


def kill(rig: BrokerRig, *bodies: bytes, channel: str = "c", advance_s: float = 5.0) -> None:
    """Publish messages and let them fail."""
    client = rig.client(channel)
    rig.publish(*bodies)
    for delivery in client.take():
        client.requeue(delivery.message_id)
    rig.advance(advance_s)
    client.channel.unsubscribe(client.consumer)


def origins(rig: BrokerRig, topic: str = "t.dead") -> list[tuple[str, str, str, int]]:
    """Return where the messages come from that wait in a topic."""
    dead = rig.topic(topic)
    messages = [message for message, _ in dead.queue.iter_loaded()]
    found = rig.broker.causes.find(dead, [message[0] for message in messages])
    return [found[message[0]][:4] for message in messages if message[0] in found]


@SIZES
def test_a_dead_letter_knows_its_channel(tmp_path: Path, mem_queue_size: int) -> None:
    rig = BrokerRig(tmp_path, mem_queue_size=mem_queue_size, limits=LIMITS)
    kill(rig, b"1")
    rig.channel("c").empty()
    kill(rig, b"2", channel="other")

    wanted = [("t", "c", "attempts", 1), ("t", "other", "attempts", 1)]
    assert sorted(origins(rig)) == wanted
    records = rig.broker.records()
    assert rig.broker.close() == []
    again = BrokerRig(tmp_path, mem_queue_size=mem_queue_size, limits=LIMITS)
    again.broker.load(records)
    again.channel("c", "t.dead")
    again.settle()
    dead = again.channel("c", "t.dead")
    piece = dead.queue.take(10, 1000)
    assert piece is not None
    ids = piece.batch.ids(piece.start, piece.stop)
    found = again.broker.causes.find(again.topic("t.dead"), ids)
    assert sorted(cause[:4] for cause in found.values()) == wanted


def test_a_message_too_old_for_its_topic_has_no_channel(tmp_path: Path) -> None:
    limits = Limits(msg_ttl_s=10, dead_letter_topic_suffix=".dead")
    rig = BrokerRig(tmp_path, limits=limits)
    rig.publish(b"old")
    rig.advance(15)

    assert origins(rig) == [("t", "", "ttl", 0)]


def test_a_topic_without_dead_letters_has_no_file(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path, mem_queue_size=0, limits=LIMITS)
    rig.publish(*numbered(10), topic="t.dead")

    assert not (tmp_path / FILE).exists()
    assert origins(rig) == []


@pytest.mark.parametrize("verb", ["finish", "empty", "delete"])
def test_causes_go_with_the_dead_letters(tmp_path: Path, verb: str) -> None:
    rig = BrokerRig(tmp_path, limits=LIMITS)
    kill(rig, *numbered(3))
    assert (tmp_path / FILE).exists()
    rig.advance(60)
    assert (tmp_path / FILE).exists()

    if verb == "delete":
        rig.broker.delete_topic("t.dead")
    else:
        client = rig.client("c", "t.dead")
        rig.advance(cause_book.LOOK_S + 1)
        assert (tmp_path / FILE).exists(), "they are in flight"
        if verb == "finish":
            for delivery in client.take():
                client.finish(delivery.message_id)
        else:
            client.channel.empty()
        rig.advance(cause_book.LOOK_S + 1)

    assert not (tmp_path / FILE).exists()


def test_a_topic_made_anew_has_no_old_causes(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path, limits=LIMITS)
    kill(rig, b"1")
    rig.broker.delete_topic("t.dead")
    rig.publish(b"a body of its own", topic="t.dead")
    assert origins(rig) == []

    kill(rig, b"2", channel="other")
    assert ("t", "other", "attempts", 1) in origins(rig)


def test_causes_of_a_topic_that_is_gone_are_removed(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"")
    rig = BrokerRig(tmp_path)
    rig.broker.load([], list_queues(tmp_path))
    assert rig.broker.topics == {}
    rig.advance(cause_book.LOOK_S + 1)

    assert not (tmp_path / FILE).exists()


@SIZES
@pytest.mark.parametrize("sync_every", [1, 2500])
def test_a_dead_letter_is_in_one_queue_after_a_clean_end(
    tmp_path: Path, mem_queue_size: int, sync_every: int
) -> None:
    rig = BrokerRig(tmp_path, mem_queue_size=mem_queue_size, limits=LIMITS, sync_every=sync_every)
    rig.channel("c", "t.dead")
    kill(rig, *numbered(3), advance_s=0.0)
    outcomes: list[Exception | None] = []
    rig.broker.sync_dead_letters().when_done(outcomes.append)
    rig.settle()
    assert outcomes == [None]
    records = rig.broker.records()
    assert rig.broker.close() == []

    again = BrokerRig(tmp_path, mem_queue_size=mem_queue_size, limits=LIMITS)
    again.broker.load(records)
    again.settle()

    assert again.channel("c").depth == 0
    assert again.channel("c", "t.dead").depth == 3


def test_causes_of_records_without_a_topic_stay(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path, mem_queue_size=0, limits=LIMITS)
    kill(rig, b"1")
    rig.broker.close()
    again = BrokerRig(tmp_path, mem_queue_size=0, limits=LIMITS)
    again.broker.load([], list_queues(tmp_path))  # nsqd.dat is lost
    again.advance(cause_book.LOOK_S + 1)

    again.channel("c", "t.dead")
    again.settle()

    piece = again.channel("c", "t.dead").queue.take(10, 1000)
    assert piece is not None
    ids = piece.batch.ids(piece.start, piece.stop)
    assert len(again.broker.causes.find(again.topic("t.dead"), ids)) == 1


def test_thousands_of_topics_are_looked_at_in_turns(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path, limits=LIMITS)
    names = [f"t{number}.dead" for number in range(5)]
    for name in names:
        CauseLog(tmp_path, name).add([b"%016x" % 1], [Cause("t", "c", "ttl", 1, b"", 1)])
        rig.broker.causes.open(name)
    rig.publish(b"stays", topic=names[4])
    rig.scheduler.has_tiny_slices = True
    rig.scheduler.now += cause_book.LOOK_S
    (timer,) = [each for each in rig.scheduler.pending_timers if each.when <= rig.scheduler.now]

    timer.fire()

    left = [len(list(tmp_path.glob("*.causes")))]
    for _ in range(4):
        rig.scheduler.turn()
        left.append(len(list(tmp_path.glob("*.causes"))))
    assert left == [4, 3, 2, 1, 1]
    assert (tmp_path / f"{names[4]}.diskqueue.causes").exists()


def test_only_new_causes_are_synced_at_the_end(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path, limits=LIMITS)
    kill(rig, b"1")
    assert rig.broker.causes.close() == []

    rig = BrokerRig(tmp_path, limits=LIMITS)
    for name in ("a.dead", "b.dead"):
        rig.topic(name)
        rig.broker.causes.open(name)
    kill(rig, b"2", advance_s=0.0)
    works = rig.broker.causes.close()

    assert len(works) == 2, "the file and the directory"


def test_a_full_disk_leaves_the_dead_letter_without_a_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = BrokerRig(tmp_path, limits=LIMITS)

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(CauseLog, "add", refuse)
        kill(rig, b"1")
        kill(rig, b"2")
    kill(rig, b"3")

    assert rig.topic("t.dead").depth == 3
    assert origins(rig) == [("t", "c", "attempts", 1)]
    assert len([each for each in caplog.records if "failed to note causes" in each.message]) == 1


def test_a_refused_dead_letter_leaves_no_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = BrokerRig(tmp_path, limits=LIMITS)
    kill(rig, b"1")
    line = rig.topic("t.dead")._line  # noqa: SLF001 - refuses behind the ids

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(line, "publish", refuse)
        kill(rig, b"2")
    size = (tmp_path / FILE).stat().st_size
    rig.advance(5)

    assert size == 112
    assert len(origins(rig)) == 2


def test_with_group_commit_the_original_waits_for_the_cause(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path, mem_queue_size=0, sync_every=1, limits=LIMITS)
    client = rig.client()
    rig.publish(b"poison")
    rig.advance(1)
    [delivery] = client.take()
    rig.scheduler.holds_threads = True
    client.requeue(delivery.message_id)
    rig.settle()
    rig.scheduler.finish_thread()  # writes the dead letter, whose sync follows that of the cause
    rig.settle()
    held = list(rig.scheduler.held_work)
    assert len(held) == 2
    rig.scheduler.held_work.clear()
    rig.scheduler.held_work.append(held[1])
    rig.scheduler.finish_thread()
    rig.settle()
    assert client.channel.losses.dead_lettered_count == 0

    rig.scheduler.held_work.appendleft(held[0])
    while rig.scheduler.held_work:
        rig.scheduler.finish_thread(OSError(errno.EIO, "Input/output error") if held else None)
        held = []
        rig.settle()
    rig.scheduler.holds_threads = False
    rig.advance(5)

    assert client.channel.losses.dead_lettered_count == 1, "an unsynced cause holds nothing up"


def test_an_ephemeral_topic_leaves_no_causes(tmp_path: Path) -> None:
    rig = BrokerRig(
        tmp_path, limits=Limits(max_attempts=1, dead_letter_topic_suffix=".dead#ephemeral")
    )
    kill(rig, b"1")

    dead = rig.broker.find_topic("t.dead#ephemeral")
    assert isinstance(dead, Topic)
    assert dead.depth == 1
    assert list(tmp_path.glob("*causes*")) == []


def test_a_topic_is_deleted_though_its_causes_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = BrokerRig(tmp_path, limits=LIMITS)
    kill(rig, b"1")

    def refuse(_log: CauseLog) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(CauseLog, "remove", refuse)
    rig.broker.delete_topic("t.dead")

    assert rig.broker.find_topic("t.dead") is None
    assert "failed to remove causes - [Errno 5] Input/output error" in caplog.text


def test_a_closed_book_sets_no_timer_and_looks_no_more(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path, limits=LIMITS)
    kill(rig, b"1", b"2")
    book = rig.broker.causes
    before = len(rig.scheduler.pending_timers)

    book.close()

    assert len(rig.scheduler.pending_timers) < before
    rig.topic("t.dead").empty()
    rig.advance(2 * cause_book.LOOK_S)
    assert (tmp_path / FILE).exists()


def test_failures_are_told_once_until_a_cause_is_noted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    rig = BrokerRig(tmp_path, limits=LIMITS)
    for _ in range(2):
        with monkeypatch.context() as disk:
            disk.setattr(CauseLog, "add", refuse)
            kill(rig, b"1")
            kill(rig, b"2")
        kill(rig, b"3")

    assert caplog.text.count("failed to note causes") == 2
    assert [origin[0] for origin in origins(rig)] == ["t", "t"]


def test_causes_and_the_name_of_their_file_become_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
        fsync(fd)

    rig = BrokerRig(tmp_path, limits=LIMITS)
    monkeypatch.setattr(os, "fsync", note)
    kill(rig, b"1")
    rig.advance(10)

    assert FILE in synced
    assert tmp_path.name in synced[synced.index(FILE) :]
    count = len(synced)
    rig.advance(60)
    assert len(synced) == count, "once"


def test_causes_that_cannot_be_read_are_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = BrokerRig(tmp_path, limits=LIMITS)
    kill(rig, b"1")

    monkeypatch.setattr(CauseLog, "find", refuse)

    assert origins(rig) == []
    assert "TOPIC(t.dead): failed to read causes - [Errno 28]" in caplog.text


@pytest.mark.usefixtures("closes_files")
def test_a_large_file_of_causes_is_closed_by_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(causes, "LARGE_BYTES", 0)
    rig = BrokerRig(tmp_path, limits=LIMITS)
    book = rig.broker.causes
    CauseLog(tmp_path, "x.dead").add([b"%016x" % 1], [Cause("x", "c", "ttl", 1, b"", 1)])
    book.open("x.dead")
    rig.scheduler.holds_threads = True

    book.remove("x.dead")
    assert (book.topic_names, len(rig.scheduler.held_work)) == ([], 1)

    rig.scheduler.finish_thread()
    rig.settle()


def test_a_cause_that_cannot_be_taken_back_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = BrokerRig(tmp_path, limits=LIMITS)
    topic = rig.topic("t.dead")
    monkeypatch.setattr(CauseLog, "undo_add", refuse)

    note = rig.broker.causes.begin(topic, [Cause("t", "c", "ttl", 1, b"", 1)])
    note.undo()  # of nothing
    assert "failed to note causes" not in caplog.text
    note.add([b"%016x" % 1])
    note.undo()
    note.undo()

    assert caplog.text.count("failed to note causes") == 1


@pytest.mark.parametrize("error", [None, OSError(errno.EIO, "Input/output error")])
def test_receipts_wait_for_the_sync_that_has_their_causes(
    tmp_path: Path, error: OSError | None
) -> None:
    rig = BrokerRig(tmp_path, limits=LIMITS)
    book = rig.broker.causes
    done: list[str] = []
    assert book.sync_with(None) is None
    untouched = Receipt(1)
    assert book.sync_with(untouched) is untouched, "there is nothing to sync"
    rig.scheduler.holds_threads = True

    def note(name: str, number: int) -> Receipt:
        cause = Cause("t", "c", "ttl", 1, b"", 1)
        book.begin(rig.topic(name), [cause]).add([b"%016x" % number])
        receipt = Receipt(1)
        both = book.sync_with(receipt)
        assert both is not None
        both.when_done(lambda _: done.append(name))
        return receipt

    first = note("a.dead", 1)
    second = note("b.dead", 2)  # behind the sync under way
    first.settle(None)
    rig.settle()
    assert (done, len(rig.scheduler.held_work)) == ([], 1)
    assert len(book.close()) == 3, "what is not synced yet, and the directory"
    book._is_closed = False  # noqa: SLF001 - it was asked only
    rig.scheduler.finish_thread(error)
    rig.settle()
    assert done == ["a.dead"]

    second.settle(None)
    rig.settle()
    assert (done, len(rig.scheduler.held_work)) == (["a.dead"], 1)
    rig.scheduler.finish_thread(error)
    rig.settle()

    assert done == ["a.dead", "b.dead"]
    assert book.close() == []
    assert not rig.scheduler.held_work


def test_causes_of_messages_in_memory_are_synced_once_after_a_while(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path, limits=LIMITS)
    book = rig.broker.causes
    topic = rig.topic("t.dead")
    timers = len(rig.scheduler.pending_timers)
    rig.scheduler.holds_threads = True
    for number in range(1, 4):
        book.begin(topic, [Cause("t", "c", "ttl", 1, b"", 1)]).add([b"%016x" % number])
        assert book.sync_with(None) is None

    whens = [timer.when - rig.scheduler.now for timer in rig.scheduler.pending_timers]
    assert len(whens) == timers + 2, "one to sync, one to look for causes that are not needed"
    assert {2.0, cause_book.LOOK_S} <= set(whens)
    rig.advance(2.0)
    assert len(rig.scheduler.held_work) == 1
    assert book.sync_with(None) is None, "the sync under way has them"
    rig.scheduler.finish_thread()
    rig.advance(5.0)

    assert not rig.scheduler.held_work


@pytest.mark.parametrize("place", ["topic", "line", "channel", "deferred", "in flight", "none"])
def test_a_topic_holds_messages_wherever_they_are(tmp_path: Path, place: str) -> None:
    rig = BrokerRig(tmp_path)
    topic = rig.topic()
    if place == "topic":
        rig.publish(b"1")
    elif place == "line":
        topic.hand_over.line_count = 1
    elif place == "channel":
        rig.channel()
        rig.publish(b"1")
    elif place == "deferred":
        rig.channel()
        rig.publish(b"1", delay_s=9.0)
    elif place == "in flight":
        rig.client()
        rig.publish(b"1")
    else:
        client = rig.client()
        rig.publish(b"1")
        client.finish(*[delivery.message_id for delivery in client.take()])

    assert cause_book.holds_messages(topic) is (place != "none")
