"""A message on a topic's disk is not less safe once a channel has it, and not revived by a kill."""

import errno
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from diskqueue.layout import list_queues
from nsqd.broker import metadata
from nsqd.broker.queue.receipt import Receipt
from tests.support.broker_rig import BrokerRig

BODIES = [b"%d" % number for number in range(5)]


@pytest.fixture
def rig(tmp_path: Path) -> BrokerRig:
    """A broker with a backlog on the topic's disk, and room for it in memory."""
    data_path = tmp_path / "data"
    data_path.mkdir()
    before = BrokerRig(data_path)
    before.publish(*BODIES)
    assert before.broker.close() == []
    rig = BrokerRig(data_path)
    assert (rig.topic().depth, rig.topic().backend_depth) == (5, 5)
    return rig


def test_a_backlog_on_disk_survives_a_crash_after_a_channel_has_taken_it(
    rig: BrokerRig, tmp_path: Path
) -> None:
    rig.channel("c")
    rig.channel("d")
    rig.settle()
    assert rig.topic().depth == 0
    rig.advance(10)  # everything is synced, and the topic's files are gone

    crashed = tmp_path / "crashed"
    shutil.copytree(rig.data_path, crashed)
    after = BrokerRig(crashed)

    assert after.topic().depth == 0
    assert after.client("c").bodies == BODIES
    assert after.client("d").bodies == BODIES
    assert rig.broker.close() == []


def test_an_ephemeral_channel_takes_a_backlog_on_disk_into_memory(rig: BrokerRig) -> None:
    client = rig.client("c#ephemeral")

    assert client.bodies == BODIES
    assert rig.broker.close() == []


def test_a_new_channel_is_found_after_a_crash_if_the_topic_holds_its_share(
    rig: BrokerRig, tmp_path: Path
) -> None:
    """Even if nsqd.dat does not name it yet."""
    rig.topic().pause()
    rig.channel("c")

    crashed = tmp_path / "crashed"
    shutil.copytree(rig.data_path, crashed)
    found = metadata.add_found([], list_queues(crashed))

    assert {(topic.name, *(each.name for each in topic.channels)) for topic in found} == {
        ("t",),
        ("t", "c"),
    }
    assert rig.broker.close() == []


def test_records_of_a_channel_survive_crash_after_crash(tmp_path: Path) -> None:
    """A share in the topic's backlog does not make their files unknown."""
    lives = [tmp_path / f"life {number}" for number in range(3)]
    lives[0].mkdir()
    rig = BrokerRig(lives[0], mem_queue_size=0)
    channel = rig.channel("c")
    rig.publish(*[b"x" * 200] * 1000)
    channel.empty()  # the numbers of its files go on
    rig.publish(b"in the channel")
    rig.topic().pause()
    rig.publish(b"in the topic")

    for before, after in pairwise(lives):
        shutil.copytree(before, after)
        rig = BrokerRig(after, mem_queue_size=0)
        rig.broker.load(metadata.add_found([], list_queues(after)))

    assert rig.client("c").bodies == [b"in the channel", b"in the topic"]


def find_after_kill(rig: BrokerRig, tmp_path: Path, number: int = 0) -> tuple[list[bytes], ...]:
    """Return what the next daemon delivers from "c" and "d"; this one goes on."""
    copy = tmp_path / f"killed {number}"
    shutil.copytree(rig.data_path, copy)
    after = BrokerRig(copy)
    after.broker.load(rig.broker.records())
    found = tuple(after.client(name).bodies for name in ("c", "d"))
    assert after.broker.close() == []
    return found


def hand_over(rig: BrokerRig) -> None:
    """Make two channels and give them the topic's backlog; no disk is synced yet."""
    rig.topic().pause()
    rig.channel("c")
    rig.channel("d")
    rig.topic().unpause()
    rig.settle()
    assert rig.topic().depth == 0


def drop_by_emptying(rig: BrokerRig) -> Receipt:
    return rig.channel("c").empty()


def drop_by_deleting(rig: BrokerRig) -> Receipt:
    receipt = rig.topic().delete_channel("c")
    rig.channel("c")
    return receipt


@pytest.mark.parametrize("drop", [drop_by_emptying, drop_by_deleting])
# Until 2 s the disks of the channels are not synced, until 4 s that of the topic is not.
@pytest.mark.parametrize("delay_s", [0.0, 3.0, 10.0])
def test_what_a_channel_has_dropped_is_not_handed_over_again_after_a_kill(
    rig: BrokerRig, tmp_path: Path, drop: Callable[[BrokerRig], Receipt], delay_s: float
) -> None:
    hand_over(rig)
    rig.advance(delay_s)

    receipt = drop(rig)
    rig.settle()

    assert receipt.is_done
    assert receipt.error is None
    assert find_after_kill(rig, tmp_path) == ([], BODIES)
    assert rig.broker.close() == []


def test_what_comes_while_a_channel_is_emptied_survives_a_kill(tmp_path: Path) -> None:
    data_path = tmp_path / "data"
    data_path.mkdir()
    rig = BrokerRig(data_path, mem_queue_size=0)
    rig.publish(*BODIES)
    hand_over(rig)
    rig.scheduler.holds_threads = True
    receipt = rig.channel("c").empty()
    rig.topic().pause()
    rig.publish(b"later")
    rig.topic().unpause()
    number = 0
    while not receipt.is_done:
        rig.settle()
        assert rig.scheduler.held_work
        rig.scheduler.finish_thread()
        rig.settle()
        in_c, in_d = find_after_kill(rig, tmp_path, number)
        assert b"later" in in_c
        assert {*in_d} == {*BODIES, b"later"}
        number += 1
    rig.scheduler.holds_threads = False
    while rig.scheduler.held_work:
        rig.scheduler.finish_thread()
    rig.settle()

    assert rig.client("c").bodies == [b"later"]
    assert rig.client("d").bodies == [*BODIES, b"later"]
    assert rig.broker.close() == []


def test_an_emptying_has_the_error_if_a_kill_may_bring_the_messages_back(
    rig: BrokerRig, tmp_path: Path
) -> None:
    """The topic keeps what another channel's disk may have lost."""
    hand_over(rig)
    rig.scheduler.holds_threads = True
    first = rig.channel("c").empty()
    rig.settle()
    while rig.scheduler.held_work:
        rig.scheduler.finish_thread(OSError(errno.EIO, "the disk is broken"))
    rig.scheduler.holds_threads = False
    rig.settle()
    rig.advance(10)  # the disk is well again
    second = rig.channel("c").empty()
    rig.settle()

    for receipt in (first, second):
        assert receipt.is_done
        assert isinstance(receipt.error, OSError)
    assert find_after_kill(rig, tmp_path)[0] == BODIES

    rig.topic().empty()  # the topic forgets them
    third = rig.channel("c").empty()
    rig.settle()

    assert third.is_done
    assert third.error is None
    assert find_after_kill(rig, tmp_path, 1) == ([], BODIES)
    assert rig.broker.close() == []


@pytest.mark.parametrize("drop", [drop_by_emptying, drop_by_deleting])
# Threads that end before the topic is deleted, and whether they end from the last one on then.
@pytest.mark.parametrize("thread_count", range(5))
@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_drop_is_answered_if_the_topic_is_deleted_meanwhile(
    rig: BrokerRig, drop: Callable[[BrokerRig], Receipt], thread_count: int, *, is_reversed: bool
) -> None:
    hand_over(rig)
    rig.scheduler.holds_threads = True
    dropping = drop(rig)
    rig.settle()
    for _ in range(thread_count):
        if rig.scheduler.held_work:
            rig.scheduler.finish_thread()
            rig.settle()
    deletion = rig.broker.delete_topic("t")
    rig.settle()
    while rig.scheduler.held_work:
        if is_reversed:
            rig.scheduler.held_work.rotate(1)
        rig.scheduler.finish_thread()
        rig.settle()

    for receipt in (deletion, dropping):
        assert receipt.is_done
        assert receipt.error is None
    assert rig.broker.close() == []
