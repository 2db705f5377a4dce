"""Reading is paused for the first reason and resumed after the last."""

import itertools

import pytest

from nsqd.tcp.read_gate import PauseReason, ReadGate
from tests.support.fake_loop import FakeLoop, FakeTransport, FakeTurns


class Rig:
    """A gate with its fakes, which fail if it pauses or resumes twice."""

    def __init__(self) -> None:
        self.loop = FakeLoop()
        self.transport = FakeTransport()
        self.turn_count = 0
        self.turns_needed = 1
        self.gate = ReadGate(self.transport, FakeTurns(self.loop), self.on_turn)

    def on_turn(self) -> bool:
        self.turn_count += 1
        return self.turn_count < self.turns_needed

    @property
    def is_read(self) -> bool:
        return self.transport.is_read


@pytest.mark.parametrize("reasons", list(itertools.permutations(PauseReason, 3)))
def test_reading_goes_on_when_the_last_reason_is_lifted(reasons: tuple[PauseReason, ...]) -> None:
    rig = Rig()
    for reason in reasons:
        rig.gate.pause(reason)
        assert not rig.is_read

    for reason in reasons[:-1]:
        assert rig.gate.lift(reason)
        assert not rig.is_read

    assert rig.gate.lift(reasons[-1])
    assert rig.is_read


@pytest.mark.parametrize("reason", PauseReason)
def test_a_reason_counts_once(reason: PauseReason) -> None:
    rig = Rig()
    rig.gate.pause(reason)
    rig.gate.pause(reason)

    assert rig.gate.lift(reason)
    assert rig.is_read
    assert not rig.gate.lift(reason)
    assert rig.is_read


def test_a_reason_that_does_not_hold_is_lifted_without_effect() -> None:
    rig = Rig()
    rig.gate.pause(PauseReason.DISK)

    assert not rig.gate.lift(PauseReason.UNREAD)
    assert not rig.is_read


@pytest.mark.parametrize("reason", PauseReason)
def test_a_client_is_not_heard_while_nsqd_makes_it_wait(reason: PauseReason) -> None:
    rig = Rig()
    assert rig.gate.is_client_heard

    rig.gate.pause(reason)

    ours = set(PauseReason) - {PauseReason.UNREAD}
    assert rig.gate.is_client_heard == (reason not in ours)


def test_the_rest_is_read_in_the_next_turn() -> None:
    rig = Rig()
    rig.gate.pause(PauseReason.TURN)
    assert not rig.is_read
    assert rig.turn_count == 0

    rig.loop.turn()
    rig.loop.turn()

    assert rig.turn_count == 1
    assert rig.transport.is_reading()


def test_the_rest_may_need_several_turns() -> None:
    rig = Rig()
    rig.turns_needed = 3
    rig.gate.pause(PauseReason.TURN)
    rig.gate.pause(PauseReason.TURN)
    for count in range(1, 4):
        assert not rig.is_read
        assert rig.loop.timer_count == 1
        rig.loop.turn()
        assert rig.turn_count == count

    assert rig.is_read
    assert rig.loop.timer_count == 0


def test_a_turn_waits_until_no_other_reason_holds() -> None:
    rig = Rig()
    rig.gate.pause(PauseReason.TURN)
    rig.gate.pause(PauseReason.AUTH)
    rig.loop.turn()
    assert rig.turn_count == 0

    rig.gate.lift(PauseReason.AUTH)
    assert rig.turn_count == 0
    rig.loop.turn()

    assert rig.turn_count == 1
    assert rig.is_read


def test_a_reason_that_comes_up_in_a_turn_stops_the_turns() -> None:
    rig = Rig()
    rig.turns_needed = 2
    rig.gate.pause(PauseReason.TURN)
    rig.loop.turn()
    rig.gate.pause(PauseReason.UNREAD)
    rig.loop.turn()
    rig.loop.turn()
    assert rig.turn_count == 1

    rig.gate.lift(PauseReason.UNREAD)
    rig.loop.turn()

    assert rig.turn_count == 2
    assert rig.is_read


def test_without_a_rest_no_turn_is_asked_for() -> None:
    rig = Rig()
    rig.gate.pause(PauseReason.DISK)

    assert rig.loop.timer_count == 0


def test_a_closed_gate_leaves_the_transport_alone() -> None:
    rig = Rig()
    rig.gate.pause(PauseReason.TURN)
    rig.gate.close()
    rig.loop.turn()
    assert rig.turn_count == 0
    assert not rig.is_read

    rig.gate.lift(PauseReason.TURN)
    assert not rig.is_read
    rig.gate.pause(PauseReason.DISK)
    assert rig.gate.reasons == set()
