"""Polling before sleeping: only under dense traffic, only with a core to spare."""

import asyncio
import os
import time
from collections.abc import Callable
from typing import cast

import pytest

from nsqd.runtime.event_loop import DENSE_READS_S, SpinPoll

SPIN_S = 50e-6


class Loop:
    """Keeps what is to be called in its next turn."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], object]] = []

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.calls.append(callback)

    def turn(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


class Machine:
    """A clock that stands still until it is moved, and a load."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.load = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(os, "getloadavg", lambda: (self.load, 0.0, 0.0))
        monkeypatch.setattr(os, "cpu_count", lambda: 2)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def poll(machine: Machine, loop: Loop) -> SpinPoll:
    return SpinPoll(cast(asyncio.AbstractEventLoop, loop), SPIN_S)


def test_a_read_after_a_pause_is_not_polled_for(
    machine: Machine, loop: Loop, poll: SpinPoll
) -> None:
    poll.on_read()
    machine.now += 2 * DENSE_READS_S
    poll.on_read()

    assert loop.calls == []


def test_dense_reads_are_polled_for_until_they_stop(
    machine: Machine, loop: Loop, poll: SpinPoll
) -> None:
    poll.on_read()
    machine.now += DENSE_READS_S / 2
    poll.on_read()
    for _ in range(3):
        loop.turn()
        assert len(loop.calls) == 1  # the loop does not sleep

    machine.now += 2 * SPIN_S
    loop.turn()

    assert loop.calls == []


def test_a_busy_machine_is_left_to_others(machine: Machine, loop: Loop, poll: SpinPoll) -> None:
    machine.load = 3.0
    for _ in range(3):
        poll.on_read()
        machine.now += DENSE_READS_S / 2
    assert loop.calls == []

    machine.load = 1.0
    machine.now += 2.0
    for _ in range(2):
        poll.on_read()
        machine.now += DENSE_READS_S / 2

    assert len(loop.calls) == 1
