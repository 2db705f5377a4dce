"""Turns: the steps of all have their turn, one slice of them in each turn of the loop."""

import asyncio

import pytest

from nsqd.runtime.turns import MAX_NEW_WORK_S, MIN_SLICE_S, SLICE_S, Turns, running_turns
from tests.support.clock import StillClock


class Worker:
    """Has some steps to do, each of which takes its time."""

    def __init__(
        self, clock: StillClock, log: list[str], name: str, count: int, each_s: float
    ) -> None:
        self._clock = clock
        self._log = log
        self._name = name
        self._count = count
        self._each_s = each_s

    def step(self, _end: float = 0.0) -> bool:
        self._log.append(self._name)
        self._clock.now += self._each_s
        self._count -= 1
        return self._count > 0


async def pass_turns(log: list[str], count: int) -> None:
    for _ in range(count):
        log.append("|")
        await asyncio.sleep(0)


async def test_steps_are_called_in_round_robin_until_they_are_done(clock: StillClock) -> None:
    log: list[str] = []
    turns = Turns(asyncio.get_running_loop())

    turns.share(Worker(clock, log, "a", 3, 0.0).step)
    turns.share(Worker(clock, log, "b", 1, 0.0).step)
    await asyncio.sleep(0)

    assert log == ["a", "b", "a", "a"]


async def test_a_turn_ends_after_a_slice(clock: StillClock) -> None:
    log: list[str] = []
    turns = Turns(asyncio.get_running_loop())

    turns.share(Worker(clock, log, "a", 4, SLICE_S / 2).step)
    turns.share(Worker(clock, log, "b", 2, SLICE_S / 2).step)
    await pass_turns(log, 4)

    assert "".join(log) == "|ab|ab|aa|"


async def test_the_more_wait_the_shorter_is_a_slice(clock: StillClock) -> None:
    turns = Turns(asyncio.get_running_loop())
    ends = []

    for _ in range(20):
        ends.append(turns.slice_end())
        turns.share(lambda: False)

    assert ends[0] == SLICE_S
    assert ends[1] == SLICE_S / 2
    assert ends[-1] == MIN_SLICE_S


async def test_a_step_that_fails_takes_no_other_with_it(clock: StillClock) -> None:
    log: list[str] = []
    failures: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
    turns = Turns(loop)

    def fail() -> bool:
        raise RuntimeError("a bug")

    turns.share(fail)
    turns.share(Worker(clock, log, "b", 2, 0.0).step)
    await pass_turns(log, 3)

    assert "".join(log).replace("|", "") == "bb"
    assert [str(failure) for failure in failures] == ["a bug"]


async def test_coroutines_wait_in_line(clock: StillClock) -> None:
    log: list[str] = []
    turns = running_turns()

    async def work(name: str) -> None:
        for _ in range(2):
            await turns.next_turn()
            log.append(name)

    turns.share(Worker(clock, log, "s", 2, 2 * SLICE_S).step)
    await asyncio.gather(work("a"), work("b"))

    assert log[0] == "s"
    assert sorted(log) == ["a", "a", "b", "b", "s", "s"]


async def test_a_coroutine_that_is_cancelled_leaves_the_line(clock: StillClock) -> None:
    turns = running_turns()
    task = asyncio.create_task(turns.next_turn())
    await asyncio.sleep(0)
    task.cancel()
    log: list[str] = []
    turns.share(Worker(clock, log, "s", 1, 0.0).step)

    await asyncio.wait([task])
    await asyncio.sleep(0)

    assert task.cancelled()
    assert log == ["s"]


async def test_each_loop_has_its_own(clock: StillClock) -> None:
    here = running_turns()

    async def there() -> Turns:
        return running_turns()

    assert running_turns() is here
    assert await asyncio.to_thread(lambda: asyncio.run(there())) is not here


async def test_new_work_is_done_at_once_until_it_has_taken_long(clock: StillClock) -> None:
    log: list[str] = []
    turns = Turns(asyncio.get_running_loop())
    worker = Worker(clock, log, "n", 100, 0.3 * MAX_NEW_WORK_S)

    for _ in range(6):
        clock.now += 10.0  # idle time is no work
        assert turns.do_now(worker.step)

    assert log == ["n"] * 4


async def test_new_work_is_told_when_its_slice_ends(clock: StillClock) -> None:
    turns = Turns(asyncio.get_running_loop())
    ends: list[float] = []

    def note(end: float) -> bool:
        ends.append(end)
        return False

    for _ in range(20):
        turns.do_now(note)
        assert ends[-1] == turns.slice_end()
        turns.share(lambda: False)

    assert ends[0] == SLICE_S
    assert ends[-1] == MIN_SLICE_S


async def test_new_work_that_is_done_leaves_nothing(clock: StillClock) -> None:
    assert not Turns(asyncio.get_running_loop()).do_now(lambda _end: False)


async def test_work_that_fails_has_taken_its_time(clock: StillClock) -> None:
    turns = Turns(asyncio.get_running_loop())

    def fail(_end: float) -> bool:
        clock.now += MAX_NEW_WORK_S
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError):
        turns.do_now(fail)

    assert turns.do_now(lambda _end: False)


async def test_there_is_time_for_new_work_when_work_that_was_left_had_its_turn(
    clock: StillClock,
) -> None:
    turns = Turns(asyncio.get_running_loop())
    worker = Worker(clock, [], "n", 100, 0.0)
    turns.do_now(Worker(clock, [], "long", 2, MAX_NEW_WORK_S).step)
    assert turns.do_now(worker.step)

    turns.share(lambda: False)
    await asyncio.sleep(0)

    assert not turns.do_now(lambda _end: False)
