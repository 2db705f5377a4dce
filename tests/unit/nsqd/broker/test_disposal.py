"""Disposal: all of it is freed, slice by slice."""

import weakref
from collections import deque
from pathlib import Path

import pytest

from nsqd.broker.disposal import Dropped, dispose
from tests.support.broker_rig import BrokerRig
from tests.support.channel_rig import ChannelRig
from tests.support.fake_scheduler import FakeScheduler


class Thing:
    """An object whose end can be seen."""


def make(kind: str, things: list[Thing]) -> Dropped:
    if kind == "list":
        return list(things)
    if kind == "deque":
        return deque(things)
    if kind == "dict":
        return dict(enumerate(things))
    return {0: list(things), 1: [], 2: [Thing()]}


@pytest.mark.parametrize("kind", ["list", "deque", "dict", "dict of lists"])
def test_everything_is_freed_in_slices(kind: str) -> None:
    scheduler = FakeScheduler()
    scheduler.has_tiny_slices = True
    things = [Thing() for _ in range(3000)]
    alive = weakref.WeakSet(things)
    dropped = [make(kind, things), make("list", [])]
    things.clear()

    dispose(scheduler, dropped)
    dropped.clear()
    assert len(alive) > 2000
    scheduler.turn()
    assert len(alive) > 1000
    scheduler.settle()

    assert not alive


def test_a_few_objects_are_freed_at_once() -> None:
    scheduler = FakeScheduler()
    things = [Thing()]
    alive = weakref.WeakSet(things)

    dispose(scheduler, [things])

    assert not alive
    assert scheduler.is_idle


def count_turns(scheduler: FakeScheduler) -> int:
    """Let everything happen that happens at this moment; return how many turns it took."""
    turns = 0
    while not scheduler.is_idle:
        scheduler.turn()
        turns += 1
    return turns


@pytest.mark.parametrize(
    ("verb", "place"),
    [
        ("empty", "waiting"),
        ("empty", "in flight"),
        ("empty", "deferred"),
        ("delete", "waiting"),
        ("delete", "in flight"),
        ("delete", "deferred"),
        ("flush", "in flight"),
        ("flush", "deferred"),
    ],
)
def test_what_a_channel_drops_is_freed_in_slices(tmp_path: Path, place: str, verb: str) -> None:
    rig = ChannelRig(tmp_path)
    client = rig.client(3000 if place == "in flight" else 0)
    for _ in range(100):
        rig.put(*[b"x"] * 30, delay_s=5.0 if place == "deferred" else 0.0)
    client.leave()
    rig.scheduler.has_tiny_slices = True
    assert count_turns(rig.scheduler) == 0

    if verb == "empty":
        rig.channel.empty()
    elif verb == "delete":
        rig.channel.delete()
    else:
        rig.channel.flush()

    assert count_turns(rig.scheduler) > 5


@pytest.mark.parametrize("verb", ["empty", "delete"])
def test_what_a_topic_drops_is_freed_in_slices(tmp_path: Path, verb: str) -> None:
    rig = BrokerRig(tmp_path)
    for _ in range(100):
        rig.publish(b"x")
    rig.scheduler.has_tiny_slices = True

    if verb == "empty":
        rig.topic().empty()
    else:
        rig.topic().delete()

    assert count_turns(rig.scheduler) > 5
