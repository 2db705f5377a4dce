"""A clock for work that is done in slices."""

import pytest

from tests.support.clock import StillClock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StillClock:
    """Stand in for `time.perf_counter`, on which slices end."""
    clock = StillClock()
    monkeypatch.setattr("time.perf_counter", clock)
    return clock
