"""Disposal: all of it is freed, slice by slice."""

import weakref
from collections import deque

import pytest

from nsqd.broker.disposal import Dropped, dispose
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
