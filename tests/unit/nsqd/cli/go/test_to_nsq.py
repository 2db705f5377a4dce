"""The rate of to_nsq, whatever the size of the pieces in which its input comes."""

import asyncio

import pytest

from nsqd.cli.go.to_nsq import Pace
from tests.support.fake_time.loop import FakeTimeLoop


def play(pauses_s: list[float], rate: int) -> list[float]:
    """When messages leave that come after such pauses."""

    async def scene() -> list[float]:
        loop = asyncio.get_running_loop()
        start = loop.time()
        pace = Pace(rate)
        left: list[float] = []
        for pause_s in pauses_s:
            await asyncio.sleep(pause_s)
            await pace.wait()
            left.append(loop.time() - start)
        return left

    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        return runner.run(scene())


def test_lines_that_come_one_by_one_are_held_to_the_rate() -> None:
    assert play([0.001] * 4, rate=10) == pytest.approx([0.001, 0.101, 0.201, 0.301])


def test_lines_that_come_at_once_are_held_to_the_rate() -> None:
    assert play([0.0] * 4, rate=10) == pytest.approx([0.0, 0.1, 0.2, 0.3])


def test_a_pause_is_not_made_up_for_by_a_burst() -> None:
    left = play([0.0, 5.0, 0.0, 0.0], rate=10)

    assert left == pytest.approx([0.0, 5.0, 5.1, 5.2])


def test_no_rate_is_no_limit() -> None:
    assert not Pace(0).is_limited
    assert not Pace(-1).is_limited
