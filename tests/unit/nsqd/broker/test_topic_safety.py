"""A message on a topic's disk is not less safe once a channel has it."""

import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from diskqueue.layout import list_queues
from nsqd.broker import metadata
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
