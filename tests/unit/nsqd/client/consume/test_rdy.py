"""Shares of max_in_flight."""

from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nsqd.client.consume.rdy import HELD_S, IDLE_S, Rotation, share


@example(1, [1, 1])
@given(st.integers(0, 10_000), st.lists(st.integers(0, 3000), min_size=1, max_size=30))
def test_shares_are_exact_and_even(total: int, caps: list[int]) -> None:
    shares = share(total, caps)

    assert sum(shares) == min(total, sum(caps))
    assert all(given <= cap for given, cap in zip(shares, caps, strict=True))
    open_shares = [given for given, cap in zip(shares, caps, strict=True) if given < cap]
    if open_shares:
        assert max(open_shares) - min(open_shares) <= 1
        capped = [given for given, cap in zip(shares, caps, strict=True) if given == cap]
        assert all(given <= min(open_shares) + 1 for given in capped)


def test_ten_over_four_is_ten() -> None:
    assert sorted(share(10, [2500] * 4)) == [2, 2, 3, 3]


class Turns(RuleBasedStateMachine):
    """Connections come and go, messages come, time passes: each waits a bounded time."""

    def __init__(self) -> None:
        super().__init__()
        self.rotation: Rotation[int] = Rotation()
        self.keys: list[int] = []
        self.next_key = 0
        self.count = 1
        self.now = 0.0
        self.holders: set[int] = set()
        self.waits_since: dict[int, float] = {}

    def update(self) -> None:
        self.holders = self.rotation.update(self.keys, self.count, self.now)
        for key in self.keys:
            if key in self.holders:
                self.waits_since.pop(key, None)
            else:
                self.waits_since.setdefault(key, self.now)

    @precondition(lambda self: len(self.keys) < 12)
    @rule()
    def connect(self) -> None:
        self.keys.append(self.next_key)
        self.next_key += 1
        self.update()

    @precondition(lambda self: self.keys)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(self.keys))
        self.keys.remove(key)
        self.waits_since.pop(key, None)
        self.update()

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def receive(self, data: st.DataObject) -> None:
        self.rotation.note_activity(data.draw(st.sampled_from(sorted(self.holders))), self.now)

    @rule(steps=st.integers(1, 8))
    def wait(self, steps: int) -> None:
        for _ in range(steps):
            self.now += 5.0
            self.update()

    @rule(count=st.integers(1, 5))
    def change(self, count: int) -> None:
        self.count = count
        self.waits_since = dict.fromkeys(self.waits_since, self.now)
        self.update()

    @invariant()
    def as_many_as_possible_hold(self) -> None:
        assert len(self.holders) == min(self.count, len(self.keys))

    @invariant()
    def none_waits_for_ever(self) -> None:
        # Newcomers go first, so every connection that was ever made may come before.
        bound_s = (HELD_S + 5.0) * (self.next_key + 1)
        assert all(self.now - since <= bound_s for since in self.waits_since.values())


TestTurns = Turns.TestCase


def test_every_connection_has_its_turn_within_forty_seconds() -> None:
    rotation: Rotation[int] = Rotation()
    seen: set[int] = set()

    for second in range(41):
        seen |= rotation.update(range(10), 3, float(second))

    assert seen == set(range(10))


def test_a_busy_connection_keeps_its_turn_for_thirty_seconds() -> None:
    rotation: Rotation[str] = Rotation()
    [first] = rotation.update(["a", "b"], 1, 0.0)

    for second in range(1, 30):
        rotation.note_activity(first, float(second))
        assert rotation.update(["a", "b"], 1, float(second)) == {first}

    assert rotation.update(["a", "b"], 1, HELD_S) != {first}


def test_an_idle_connection_keeps_its_turn_if_no_other_waits() -> None:
    rotation: Rotation[str] = Rotation()
    rotation.update(["a"], 1, 0.0)

    assert rotation.update(["a"], 1, IDLE_S * 10) == {"a"}
