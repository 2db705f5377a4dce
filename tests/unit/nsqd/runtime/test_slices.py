"""Slices: the rest of the daemon gets its turn, however long the document is."""

import asyncio
from collections.abc import Iterator

import pytest

from nsqd.runtime.slices import gather_slices, join_slices
from nsqd.runtime.turns import SLICE_S
from tests.support.clock import StillClock

# One until the step of the coroutine comes, one until the coroutine goes on.
TURNS_PER_WAIT = 2


def parts(clock: StillClock, count: int, each_s: float) -> Iterator[str]:
    for index in range(count):
        clock.now += each_s
        yield f"{index},"


async def count_turns(stop: asyncio.Event) -> int:
    turns = 0
    while not stop.is_set():
        turns += 1
        await asyncio.sleep(0)
    return turns


async def run(clock: StillClock, count: int, each_s: float) -> tuple[bytes, int]:
    """Return the document and how many turns somebody else had meanwhile."""
    stop = asyncio.Event()
    other = asyncio.create_task(count_turns(stop))
    document = await join_slices(parts(clock, count, each_s))
    stop.set()
    return document, await other


async def test_a_short_document_is_made_in_one_go(clock: StillClock) -> None:
    document, turns = await run(clock, 10, SLICE_S / 100)

    assert document == b"0,1,2,3,4,5,6,7,8,9,"
    assert turns == 0


async def test_after_each_slice_others_have_a_turn(clock: StillClock) -> None:
    _, turns = await run(clock, 1000, SLICE_S / 10)

    assert turns == pytest.approx(100 * TURNS_PER_WAIT, abs=5 * TURNS_PER_WAIT)


async def test_a_part_is_never_cut(clock: StillClock) -> None:
    _, turns = await run(clock, 3, 100 * SLICE_S)

    assert turns == 3 * TURNS_PER_WAIT


async def test_parts_may_be_anything(clock: StillClock) -> None:
    assert await gather_slices(iter([None, 1, "x"])) == [None, 1, "x"]
