"""nsqd as a process of its own, to be killed, cut off from its power, or given a bad disk."""

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.faults.fork_server import ForkServer
from tests.support.faults.rounds import Tally, play

Play = Callable[..., Awaitable[Tally]]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Processes that are killed at the end."""
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """Forks daemons, which are killed at the end."""
    with ForkServer() as server:
        yield server


@pytest.fixture
def play_round(fork_server: ForkServer, tmp_path: Path) -> Play:
    """Plays the round of a seed, with a plan if there is one, and returns what was done."""

    async def play_one(seed: str, *plan: str) -> Tally:
        tally = Tally()
        await play(fork_server, tmp_path, seed, tally, plan)
        return tally

    return play_one
