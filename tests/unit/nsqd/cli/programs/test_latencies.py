"""A histogram of times."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqd.cli.programs.latencies import Latencies


@given(st.lists(st.floats(1e-6, 400), min_size=1, max_size=200))
def test_percentiles_are_exact_to_two_percent(times: list[float]) -> None:
    latencies = Latencies()
    for seconds in times:
        latencies.add(seconds)

    ordered = sorted(times)
    for percent in (50.0, 99.0, 99.9):
        exact = ordered[max(0, -int(-len(times) * percent // 100) - 1)]
        assert latencies.find_percentile_s(percent) == pytest.approx(exact, rel=0.021)
    assert latencies.largest_s == max(times)


def test_without_any_and_out_of_range() -> None:
    latencies = Latencies()
    assert latencies.find_percentile_s(99) == 0.0

    latencies.add(0.0)
    latencies.add(1e9)

    assert latencies.find_percentile_s(50) <= 1.1e-6
    assert latencies.count == 2
