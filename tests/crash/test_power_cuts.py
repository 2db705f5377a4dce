"""Power cuts at any moment, rebuilt from a journal of what nsqd wrote and fsynced."""

import pytest

from tests.crash.conftest import Play
from tests.support.faults.rounds import RoundFailedError


@pytest.mark.parametrize("number", range(4))
async def test_power_cut_with_sync_every_1_loses_nothing_acknowledged(
    play_round: Play, number: int
) -> None:
    tally = await play_round(f"cut-{number}")

    assert tally.cuts
    assert tally.messages


async def test_power_cut_after_failed_fsyncs_loses_nothing_acknowledged(play_round: Play) -> None:
    tally = await play_round("sick-1")

    assert tally.cuts


async def test_power_cut_loses_at_most_what_sync_timeout_allows(play_round: Play) -> None:
    tally = await play_round("lazy-1")

    assert tally.cuts


@pytest.mark.parametrize("kind", ["segment", "directory"])
async def test_fsyncs_that_are_left_out_are_noticed(play_round: Play, kind: str) -> None:
    """The harness itself: it must be able to fail."""

    async def play_rounds() -> None:
        for number in range(10):
            await play_round(f"cut-{number}", f"lie:fsync:{kind}:1+")

    with pytest.raises(RoundFailedError, match="lost"):
        await play_rounds()
