"""The RDYs of all connections, on a loop whose clock a test moves."""

from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqd.client.consume.backoff import BackoffPolicy
from nsqd.client.consume.flow import Flow
from tests.support.fake_loop import FakeLoop


class FakeValve:
    def __init__(self, log: list[tuple[str, int]], name: str, max_rdy_count: int = 2500) -> None:
        self.rdy = 0
        self.max_rdy_count = max_rdy_count
        self.name = name
        self._log = log

    def set_rdy(self, count: int) -> None:
        assert count != self.rdy
        self.rdy = count
        self._log.append((self.name, count))


class Rig:
    def __init__(self, max_in_flight: int, policy: BackoffPolicy | None = None) -> None:
        self.loop = FakeLoop()
        self.log: list[tuple[str, int]] = []
        self.backoffs: list[tuple[int, float]] = []
        self.limits: list[int] = []
        with mock.patch("asyncio.get_running_loop", self.loop.as_loop):
            self.flow = Flow(
                max_in_flight,
                policy,
                on_backoff=lambda level, pause_s: self.backoffs.append((level, pause_s)),
                on_limit=self.limits.append,
            )
        self.valves: list[FakeValve] = []

    def connect(self, max_rdy_count: int = 2500) -> FakeValve:
        valve = FakeValve(self.log, f"v{len(self.log)}", max_rdy_count)
        self.valves.append(valve)
        self.flow.add(valve)
        return valve

    def lose(self, valve: FakeValve) -> None:
        self.valves.remove(valve)
        valve.rdy = 0
        self.flow.remove(valve)

    @property
    def rdys(self) -> list[int]:
        return [valve.rdy for valve in self.valves]

    def tick(self, seconds: float) -> None:
        for _ in range(round(seconds)):
            self.loop.advance(1.0)
            self.flow.apply()


@pytest.fixture
def rig() -> Rig:
    return Rig(10, BackoffPolicy())


def test_shares_follow_connections(rig: Rig) -> None:
    first = rig.connect()
    assert rig.rdys == [10]
    for _ in range(3):
        rig.connect()
    assert sorted(rig.rdys) == [2, 2, 3, 3]

    rig.lose(first)

    assert sorted(rig.rdys) == [3, 3, 4]


def test_others_are_lowered_before_a_new_one_is_raised(rig: Rig) -> None:
    rig.connect()
    rig.log.clear()

    rig.connect()

    assert [count for _, count in rig.log] == [5, 5]
    assert rig.log[0][0] == rig.valves[0].name


def test_a_cap_gives_the_rest_to_the_others(rig: Rig) -> None:
    rig.connect(max_rdy_count=2)
    rig.connect()

    assert rig.rdys == [2, 8]


def test_zero_pauses_and_a_number_resumes(rig: Rig) -> None:
    rig.connect()
    rig.connect()

    rig.flow.set_max_in_flight(0)
    assert rig.rdys == [0, 0]
    rig.flow.set_max_in_flight(7)

    assert sorted(rig.rdys) == [3, 4]
    assert rig.limits == [10, 0, 7]


def test_a_failure_stops_all_then_probes_on_one(rig: Rig) -> None:
    rig.connect()
    rig.connect()

    rig.flow.note_failure()
    assert rig.rdys == [0, 0]
    rig.tick(1)
    assert rig.rdys == [0, 0]
    rig.tick(2)
    assert sorted(rig.rdys) == [0, 1]
    rig.flow.note_success()

    assert rig.rdys == [5, 5]
    assert rig.backoffs == [(1, 2.0), (0, 0.0)]


def test_a_probe_moves_on_if_nothing_comes(rig: Rig) -> None:
    rig.connect()
    rig.connect()
    rig.flow.note_failure()
    rig.tick(3)
    first = rig.rdys

    rig.tick(11)

    assert rig.rdys == first[::-1]


def test_a_lost_probe_is_made_elsewhere(rig: Rig) -> None:
    rig.connect()
    rig.connect()
    rig.flow.note_failure()
    rig.tick(3)
    probing = rig.valves[rig.rdys.index(1)]

    rig.lose(probing)

    assert rig.rdys == [1]


def test_a_requeue_without_backoff_is_no_failure_and_backoff_may_be_off() -> None:
    rig = Rig(10, None)
    rig.connect()

    rig.flow.note_failure()

    assert rig.rdys == [10]


def test_late_answers_halve_the_shares_until_there_is_success(rig: Rig) -> None:
    rig.connect()
    rig.flow.note_late()
    rig.flow.note_late()
    assert rig.rdys == [5]
    for _ in range(9):
        rig.flow.note_success()
    assert rig.rdys == [5]

    rig.flow.note_success()

    assert rig.rdys == [10]
    assert not rig.flow.is_careful


def test_messages_on_one_of_ten_nodes_come_within_forty_seconds() -> None:
    rig = Rig(3, BackoffPolicy())
    for _ in range(10):
        rig.connect()
    busy = rig.valves[7]
    seen = False

    for _ in range(40):
        rig.tick(1)
        seen = seen or busy.rdy == 1
        assert sum(rig.rdys) == 3

    assert seen


Step = st.one_of(
    st.tuples(st.just("connect"), st.integers(1, 9)),
    st.tuples(st.just("lose"), st.integers(0, 9)),
    st.tuples(st.just("message"), st.integers(0, 9)),
    st.tuples(st.just("success"), st.just(0)),
    st.tuples(st.just("failure"), st.just(0)),
    st.tuples(st.just("late"), st.just(0)),
    st.tuples(st.just("max"), st.integers(0, 20)),
    st.tuples(st.just("wait"), st.integers(1, 20)),
)


def act(rig: Rig, name: str, number: int) -> None:
    chosen = rig.valves[number % len(rig.valves)] if rig.valves else None
    match name:
        case "connect":
            rig.connect(number)
        case "lose" if chosen is not None:
            rig.lose(chosen)
        case "message" if chosen is not None:
            rig.flow.note_message(chosen)
        case "success":
            rig.flow.note_success()
        case "failure":
            rig.flow.note_failure()
        case "late":
            rig.flow.note_late()
        case "max":
            rig.flow.set_max_in_flight(number)
        case "wait":
            rig.tick(number)
        case _:
            assert chosen is None


@given(st.lists(Step, max_size=60), st.sampled_from([None, BackoffPolicy()]))
def test_the_sum_never_exceeds_the_maximum(
    steps: list[tuple[str, int]], policy: BackoffPolicy | None
) -> None:
    rig = Rig(8, policy)
    for name, number in steps:
        act(rig, name, number)
        assert sum(rig.rdys) <= rig.flow.max_in_flight
        if not rig.flow.is_careful:
            room = min(rig.flow.max_in_flight, sum(valve.max_rdy_count for valve in rig.valves))
            assert sum(rig.rdys) == room
