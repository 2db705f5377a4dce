"""SIGKILL at any moment and at every step of what nsqd does to its disk; `make soak` does more."""

import pytest

from tests.crash.conftest import Play
from tests.support.faults.rounds import FAILPOINTS, RoundFailedError


@pytest.mark.parametrize("number", range(4))
async def test_kill_at_any_moment_loses_nothing_without_memory_queue(
    play_round: Play, number: int
) -> None:
    tally = await play_round(f"kill-{number}")

    assert tally.kills


async def test_writes_that_are_left_out_are_noticed(play_round: Play) -> None:
    """The harness itself: it must be able to fail."""
    with pytest.raises(RoundFailedError, match=r"lost|DAMAGE"):
        await play_round("kill-0", "lie:write:segment:5+")


@pytest.mark.parametrize("failpoint", FAILPOINTS)
async def test_kill_at_failpoint_loses_nothing(play_round: Play, failpoint: str) -> None:
    # Deletions are rare, and may find nothing; the first of the others belong to the start.
    number = "1+" if "unlink" in failpoint else "4"

    tally = await play_round("failpoint-1", f"{failpoint}:{number}")

    assert tally.failpoints, "the failpoint was not reached"


async def test_kill_with_memory_queue_leaves_nothing_that_is_wrong(play_round: Play) -> None:
    tally = await play_round("memory-1")

    assert tally.kills


@pytest.mark.parametrize("number", range(3))
async def test_graceful_stop_loses_nothing_in_any_mode(play_round: Play, number: int) -> None:
    tally = await play_round(f"stop-{number}")

    assert tally.stops
