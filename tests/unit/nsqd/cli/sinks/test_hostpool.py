"""Which host is next."""

import random
from collections import Counter

from nsqd.cli.sinks.hostpool import HostPool, Mode


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def make(mode: Mode = "hostpool", names: str = "abc") -> tuple[HostPool, Clock]:
    clock = Clock()
    return HostPool(list(names), mode, clock=clock, chance=random.Random(3)), clock


def take(pool: HostPool, count: int) -> str:
    return "".join(pool.take() for _ in range(count))


def test_hosts_take_turns() -> None:
    for mode in ("hostpool", "round-robin"):
        assert take(make(mode)[0], 6) == "abcabc"


def test_a_host_that_failed_is_left_out_longer_and_longer() -> None:
    pool, clock = make()
    pool.note("b", is_ok=False)
    assert take(pool, 4) == "acac"

    pauses = []
    for _ in range(7):
        start = clock.now
        while "b" not in take(pool, 3):
            clock.now += 1
        pauses.append(clock.now - start)
        pool.note("b", is_ok=False)
    assert pauses == [30, 60, 120, 240, 480, 900, 900]

    clock.now += 900
    assert "b" in take(pool, 3)
    pool.note("b", is_ok=True)
    assert sorted(take(pool, 3)) == ["a", "b", "c"]


def test_if_all_have_failed_all_are_tried() -> None:
    pool, _ = make()
    for name in "abc":
        pool.note(name, is_ok=False)

    assert sorted(take(pool, 3)) == ["a", "b", "c"]


def test_round_robin_leaves_nobody_out() -> None:
    pool, _ = make("round-robin")
    pool.note("b", is_ok=False)

    assert take(pool, 3) == "abc"


def test_epsilon_greedy_prefers_the_fast_and_still_looks_at_the_others() -> None:
    pool, clock = make("epsilon-greedy", "ab")
    seen: Counter[str] = Counter()
    for _ in range(2000):
        name = pool.take()
        seen[name] += 1
        pool.note(name, is_ok=True, seconds=0.01 if name == "a" else 0.2)
        clock.now += 0.1

    assert seen["a"] > 10 * seen["b"] > 0


def test_epsilon_greedy_forgets_in_minutes() -> None:
    pool, clock = make("epsilon-greedy", "ab")
    for name, seconds in (("a", 0.01), ("b", 1.0)):
        for _ in range(100):
            pool.note(name, is_ok=True, seconds=seconds)
    clock.now += 1500
    for _ in range(30):
        pool.note("a", is_ok=True, seconds=1.0)
        pool.note("b", is_ok=True, seconds=0.01)

    counts = Counter(take(pool, 500))
    assert counts["b"] > 5 * counts["a"]


def test_epsilon_greedy_leaves_out_what_failed() -> None:
    pool, _ = make("epsilon-greedy", "ab")
    pool.note("a", is_ok=True, seconds=0.001)
    pool.note("b", is_ok=True, seconds=1.0)
    pool.note("a", is_ok=False)

    assert set(take(pool, 50)) == {"b"}
