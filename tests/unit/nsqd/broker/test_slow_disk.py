"""A disk that stalls: publishes and hand-overs through threads, in order, and nothing is lost."""

import errno
import math
import os
from pathlib import Path

import pytest

from nsqd.broker.channel import Channel
from nsqd.broker.errors import ClosedError
from nsqd.broker.queue import pace
from nsqd.broker.queue.receipt import Receipt
from nsqd.broker.topic import RETRY_S
from tests.support.broker_rig import BrokerRig


@pytest.fixture(autouse=True)
def _steady_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """No write takes long, however busy the machine is; tests say when one did."""
    monkeypatch.setattr(pace, "SLOW_S", 100.0)
    monkeypatch.setattr(pace, "SLOW_JOB_S", 100.0)


def rig_of(path: Path, *channels: str, mem_queue_size: int = 0) -> BrokerRig:
    rig = BrokerRig(path, mem_queue_size=mem_queue_size, is_disk_trusted=False)
    for name in channels:
        rig.channel(name)
    return rig


def make_slow(channel: Channel) -> None:
    aside = channel.queue.backend.aside
    assert aside is not None
    aside.pace.note_append(math.inf)


def publish(rig: BrokerRig, *bodies: bytes) -> Receipt:
    receipt = rig.topic().publish(bodies)
    assert receipt is not None
    return receipt


def finish_threads(rig: BrokerRig) -> None:
    rig.scheduler.holds_threads = False
    while rig.scheduler.held_work:
        rig.scheduler.finish_thread()
    rig.settle()


def test_the_first_append_is_made_by_a_thread_and_the_next_on_the_loop(tmp_path: Path) -> None:
    rig = rig_of(tmp_path, "a", "b")
    rig.scheduler.holds_threads = True
    receipt = publish(rig, b"first")
    assert rig.channel("a").depth == 0

    rig.scheduler.finish_thread()
    rig.settle()

    assert receipt.is_done
    assert rig.topic().publish([b"second"]) is None
    finish_threads(rig)
    assert rig.client("a").bodies == rig.client("b").bodies == [b"first", b"second"]


def test_a_queue_that_fits_into_memory_never_waits(tmp_path: Path) -> None:
    rig = rig_of(tmp_path, "a", mem_queue_size=2)
    make_slow(rig.channel("a"))
    rig.scheduler.holds_threads = True

    assert rig.topic().publish([b"1", b"2"]) is None
    receipt = publish(rig, b"3")

    assert rig.channel("a").depth == 2
    finish_threads(rig)
    assert receipt.is_done
    assert rig.client("a").bodies == [b"1", b"2", b"3"]


def test_publishes_to_a_slow_disk_are_written_together_in_order(tmp_path: Path) -> None:
    rig = rig_of(tmp_path, "a", "b")
    rig.publish(b"0")
    make_slow(rig.channel("b"))
    rig.scheduler.holds_threads = True

    receipts = [publish(rig, b"%d" % number) for number in range(1, 10)]
    rig.scheduler.finish_thread()
    rig.scheduler.turn()
    assert [receipt.is_done for receipt in receipts] == [True, *[False] * 8]
    assert rig.channel("a").depth == rig.channel("b").depth == 2
    finish_threads(rig)

    assert all(receipt.is_done for receipt in receipts)
    numbers = [b"%d" % number for number in range(10)]
    assert rig.client("a").bodies == rig.client("b").bodies == numbers
    assert rig.channel("a").message_count == rig.topic().message_count == 10


def test_other_topics_go_on(tmp_path: Path) -> None:
    rig = rig_of(tmp_path, "a")
    rig.publish(b"x")
    rig.publish(b"x", topic="other")
    make_slow(rig.channel("a"))
    rig.scheduler.holds_threads = True
    publish(rig, b"waits")

    assert rig.topic("other").publish([b"goes on"]) is None


def test_a_disk_that_was_quick_for_a_while_is_trusted_again(tmp_path: Path) -> None:
    rig = rig_of(tmp_path, "a")
    rig.publish(b"x")
    make_slow(rig.channel("a"))
    assert rig.topic().publish([b"x"]) is not None
    rig.settle()
    assert rig.topic().publish([b"x"]) is not None
    rig.advance(pace.MIN_WARY_S)

    assert rig.topic().publish([b"x"]) is not None  # the proof
    rig.settle()
    assert rig.topic().publish([b"x"]) is None

    assert len(rig.client("a").bodies) == 5


def test_a_refusal_reaches_the_publisher_and_no_channel_has_the_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = rig_of(tmp_path, "a", "b")
    rig.publish(b"before")
    make_slow(rig.channel("a"))
    real = os.pwrite

    def refuse_b(fd: int, data: bytes, position: int) -> int:
        if "/t:b" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.ENOSPC, "full")
        return real(fd, data, position)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refuse_b)
        with pytest.raises(OSError, match="full"):
            rig.publish(b"refused")
    assert not rig.broker.is_healthy
    rig.publish(b"after")

    assert rig.broker.health == "OK"
    assert rig.client("a").bodies == rig.client("b").bodies == [b"before", b"after"]


def test_messages_come_back_to_memory_while_the_disk_is_slow(tmp_path: Path) -> None:
    rig = rig_of(tmp_path, "a")
    rig.publish(b"x")
    client = rig.client("a", ready=1)
    make_slow(rig.channel("a"))
    [delivery] = client.take()
    size = sum(path.stat().st_size for path in tmp_path.iterdir())

    client.requeue(delivery.message_id)
    rig.settle()

    [again] = client.take()
    assert (again.body, again.attempts) == (b"x", 2)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == size


def backlog(rig: BrokerRig, count: int = 3) -> list[bytes]:
    """Have messages on the topic's disk, to be handed over when the topic goes on."""
    rig.topic().pause()
    bodies = [b"%d" % number for number in range(count)]
    for body in bodies:
        rig.publish(body)
    assert rig.topic().backend_depth == count
    return bodies


def test_a_hand_over_to_a_slow_disk_is_made_by_threads(tmp_path: Path) -> None:
    rig = rig_of(tmp_path, "a", "b")
    bodies = backlog(rig)
    rig.scheduler.holds_threads = True

    rig.topic().unpause()
    rig.settle()
    assert rig.channel("a").depth == rig.channel("b").depth == 0
    assert rig.topic().publish([b"behind"]) is None  # the topic's own disk is quick
    finish_threads(rig)

    assert rig.client("a").bodies == rig.client("b").bodies == [*bodies, b"behind"]
    assert rig.topic().depth == 0
    rig.advance(10)
    assert rig.topic().queue.backend.outstanding_count == 0
    assert rig.topic().publish([b"direct"]) is None
    rig.settle()
    assert rig.client("c").bodies == []


def test_a_channel_that_comes_meanwhile_gets_its_copy(tmp_path: Path) -> None:
    rig = rig_of(tmp_path, "a")
    bodies = backlog(rig)
    rig.scheduler.holds_threads = True
    rig.topic().unpause()
    rig.settle()

    rig.channel("late")
    finish_threads(rig)

    assert rig.client("a").bodies == rig.client("late").bodies == bodies


@pytest.mark.parametrize("is_written", [False, True])
def test_a_channel_that_goes_meanwhile_is_left_out(tmp_path: Path, *, is_written: bool) -> None:
    rig = rig_of(tmp_path, "a", "b")
    bodies = backlog(rig)
    rig.scheduler.holds_threads = True
    rig.topic().unpause()
    rig.settle()
    if is_written:
        rig.scheduler.finish_thread()

    rig.topic().delete_channel("b")
    finish_threads(rig)

    assert rig.client("a").bodies == bodies


def test_a_topic_that_is_emptied_meanwhile_hands_nothing_over(tmp_path: Path) -> None:
    rig = rig_of(tmp_path, "a")
    backlog(rig)
    rig.scheduler.holds_threads = True
    rig.topic().unpause()
    rig.settle()

    rig.topic().empty()
    receipt = publish(rig, b"after")
    finish_threads(rig)

    assert receipt.is_done
    assert rig.client("a").bodies == [b"after"]


def test_a_topic_that_is_deleted_meanwhile_leaves_no_file(tmp_path: Path) -> None:
    rig = rig_of(tmp_path, "a")
    backlog(rig)
    rig.scheduler.holds_threads = True
    rig.topic().unpause()
    rig.settle()

    rig.broker.delete_topic("t")
    finish_threads(rig)

    assert not list(tmp_path.glob("t*diskqueue*"))


@pytest.mark.usefixtures("closes_files")
@pytest.mark.parametrize("is_written", [False, True])
@pytest.mark.parametrize("has_backlog", [False, True])
def test_a_topic_that_is_deleted_meanwhile_keeps_nothing_open(
    tmp_path: Path, *, has_backlog: bool, is_written: bool
) -> None:
    rig = rig_of(tmp_path, "a", "b")
    if has_backlog:
        backlog(rig)
    else:
        rig.publish(b"before")
        make_slow(rig.channel("b"))
    rig.scheduler.holds_threads = True
    receipt = None if has_backlog else publish(rig, b"waits")
    rig.topic().unpause()
    rig.settle()
    if is_written:
        rig.scheduler.finish_thread()

    hand_over = rig.topic().hand_over

    rig.broker.delete_topic("t")
    finish_threads(rig)

    assert not list(tmp_path.glob("t*diskqueue*"))
    assert receipt is None or isinstance(receipt.error, ClosedError)
    assert (hand_over.line_count, hand_over.line_bytes) == (0, 0)


def test_a_daemon_that_stops_meanwhile_loses_nothing(tmp_path: Path) -> None:
    rig = rig_of(tmp_path, "a", "b")
    bodies = backlog(rig)
    rig.scheduler.holds_threads = True
    rig.topic().unpause()
    rig.settle()

    rig.scheduler.holds_threads = False
    assert rig.broker.close() == []

    again = rig_of(tmp_path, "a", "b")
    assert sorted(again.client("a").bodies) == sorted(again.client("b").bodies) == bodies


def test_a_publish_to_an_emptied_queue_is_refused_if_the_daemon_stops(tmp_path: Path) -> None:
    rig = rig_of(tmp_path, "a")
    rig.publish(b"before")
    make_slow(rig.channel("a"))
    rig.scheduler.holds_threads = True
    receipt = publish(rig, b"waits")
    rig.channel("a").empty()  # cancels what is being written

    rig.scheduler.holds_threads = False
    assert rig.broker.close() == []

    assert isinstance(receipt.error, ClosedError)
    assert rig_of(tmp_path, "a").client("a").bodies == []


def test_a_hand_over_that_is_refused_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = rig_of(tmp_path, "a", "b")
    bodies = backlog(rig)

    def refuse(_fd: int, _data: bytes, _position: int) -> int:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refuse)
        rig.topic().unpause()
        rig.settle()
        assert rig.channel("a").depth == 0
        assert rig.topic().depth == 3
    rig.advance(RETRY_S)

    assert rig.client("a").bodies == rig.client("b").bodies == bodies
