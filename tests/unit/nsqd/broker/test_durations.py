import random
import tracemalloc
from bisect import bisect_left, bisect_right
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqd.broker.durations import LEVEL_CAPACITY, Histogram, LatencyQuantiles, SyncTimes

QUANTILES = (1.0, 0.999, 0.99, 0.95, 0.5, 0.25, 0.01)
latencies = st.lists(st.integers(-(10**6), 10**15), max_size=80)


def estimator(values: list[int], now: float = 0.0) -> LatencyQuantiles:
    quantiles = LatencyQuantiles(QUANTILES, 600.0)
    quantiles.insert_many(values, now)
    return quantiles


def exact(values: list[int]) -> list[tuple[float, int]]:
    ordered = sorted(values)
    return [
        (quantile, max(ordered[max(int(len(values) * quantile) - 1, 0)], 0) if values else 0)
        for quantile in QUANTILES
    ]


def test_nothing_inserted_gives_zeros() -> None:
    quantiles = LatencyQuantiles((0.99, 0.5), 600.0)

    assert quantiles.result(0.0) == (0, [(0.99, 0), (0.5, 0)])


@given(st.lists(latencies, max_size=6))
def test_few_latencies_are_exact(batches: list[list[int]]) -> None:
    #
    quantiles = LatencyQuantiles(QUANTILES, 600.0)
    values = [value for batch in batches for value in batch]

    for batch in batches:
        quantiles.insert_many(batch, 0.0)

    assert quantiles.result(0.0) == (len(values), exact(values))


def test_a_full_level_is_still_exact() -> None:
    values = [number * number for number in range(LEVEL_CAPACITY)]

    assert estimator(values).result(0.0) == (LEVEL_CAPACITY, exact(values))


def test_quantiles_are_reported_in_the_order_given() -> None:
    quantiles = LatencyQuantiles((0.5, 1.0, 0.1), 600.0)
    quantiles.insert_many(range(1, 11), 0.0)

    assert quantiles.result(0.0) == (10, [(0.5, 5), (1.0, 10), (0.1, 1)])


COUNT = 60_000
DISTRIBUTIONS: dict[str, Callable[[random.Random], list[int]]] = {
    "exponential": lambda chance: [int(chance.expovariate(1e-6)) for _ in range(COUNT)],
    "narrow": lambda chance: [int(chance.gauss(10**6, 50)) for _ in range(COUNT)],
    "two humps": lambda chance: [chance.choice((10**3, 10**9)) + n for n in range(COUNT)],
    "rising": lambda _: list(range(COUNT)),
    "falling": lambda _: list(range(COUNT, 0, -1)),
    "constant": lambda _: [5] * COUNT,
}


@pytest.mark.parametrize("name", sorted(DISTRIBUTIONS))
@pytest.mark.parametrize("batch_count", [7, 100, 10_000])
def test_many_latencies_are_right_within_a_percent_of_rank(name: str, batch_count: int) -> None:
    values = DISTRIBUTIONS[name](random.Random(1))
    quantiles = LatencyQuantiles(QUANTILES, 600.0)

    for start in range(0, COUNT, batch_count):
        quantiles.insert_many(values[start : start + batch_count], 0.0)
    count, result = quantiles.result(0.0)

    ordered = sorted(values)
    errors = {}
    for quantile, value in result:
        rank = max(int(COUNT * quantile) - 1, 0)
        first, last = bisect_left(ordered, value), bisect_right(ordered, value) - 1
        assert first <= last, "an answer is one of the latencies"
        errors[quantile] = max(first - rank, rank - last, 0) / COUNT
    assert count == COUNT
    assert errors[1.0] == 0
    assert errors[0.99] <= 0.002
    assert max(errors.values()) <= 0.01


def test_memory_does_not_grow_with_the_latencies() -> None:
    quantiles = LatencyQuantiles(QUANTILES, 600.0)
    chance = random.Random(2)

    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(1_000):
            quantiles.insert_many([chance.randrange(10**9) for _ in range(200)], 0.0)
        grown_bytes = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert quantiles.result(0.0)[0] == 200_000
    assert grown_bytes < 200_000


def test_bad_timestamps_do_not_overflow() -> None:
    values = [1 << 64, -(1 << 64), 5] * 1000

    _, result = estimator(values).result(0.0)

    assert dict(result)[1.0] == 1 << 64
    assert dict(result)[0.5] == 5


# The window


def test_latencies_count_for_at_least_half_a_window() -> None:
    quantiles = estimator([7], now=100.0)

    assert quantiles.result(400.0)[0] == 1
    assert quantiles.result(401.0)[0] == 1
    assert quantiles.result(699.0)[0] == 1


def test_latencies_are_gone_after_the_window() -> None:
    #
    quantiles = estimator([7], now=100.0)
    quantiles.result(500.0)

    assert quantiles.result(701.0) == (0, [(quantile, 0) for quantile in QUANTILES])


def test_an_idle_channel_forgets_everything_at_once() -> None:
    quantiles = estimator([7], now=100.0)

    assert quantiles.result(100_000.0)[0] == 0


def test_both_halves_are_in_the_result() -> None:
    quantiles = estimator([1, 2], now=0.0)
    quantiles.insert_many([3, 4], 301.0)

    assert quantiles.result(302.0) == (4, exact([1, 2, 3, 4]))
    assert quantiles.result(601.0) == (2, exact([3, 4]))


def test_halves_change_at_a_steady_pace() -> None:
    quantiles = estimator([1], now=0.0)
    quantiles.insert_many([2], 450.0)

    # The second half began at 300 although nothing came before 450, so it is over at 900.
    assert quantiles.result(899.0)[0] == 1
    assert quantiles.result(901.0)[0] == 0


def test_a_clock_that_stands_still_keeps_the_window() -> None:
    quantiles = estimator([1], now=50.0)

    quantiles.insert_many([2], 50.0)

    assert quantiles.result(50.0)[0] == 2


# A topic's channels


@given(st.lists(latencies, min_size=1, max_size=5))
def test_a_topic_merges_its_channels(channels: list[list[int]]) -> None:
    #
    values = [value for channel in channels for value in channel]

    merged = LatencyQuantiles.merge(map(estimator, channels), 0.0)

    assert merged == (len(values), exact(values))


def test_merging_weighs_channels_by_their_latencies() -> None:
    busy, idle = estimator([10] * 50_000), estimator([99] * 10)

    count, result = LatencyQuantiles.merge((busy, idle), 0.0)

    assert count == 50_010
    assert dict(result)[0.999] == 10
    assert dict(result)[1.0] == 99


def test_merging_drops_what_is_too_old() -> None:
    old, new = estimator([1], now=0.0), estimator([2], now=1_000.0)

    assert LatencyQuantiles.merge((old, new), 1_000.0) == (1, exact([2]))


def test_merging_nothing_reports_nothing() -> None:
    assert LatencyQuantiles.merge((), 0.0) == (0, [])


def test_a_value_counts_below_the_first_bound_that_it_does_not_exceed() -> None:
    histogram = Histogram((0.1, 1.0))

    for value in (0.0, 0.1, 0.5, 1.0, 1.5):
        histogram.observe(value)

    assert histogram.counts == [2, 2, 1]
    assert histogram.cumulative() == [2, 4, 5]
    assert histogram.count == 5
    assert histogram.total == 3.1


def test_a_value_can_count_many_times() -> None:
    histogram = Histogram((0.1, 1.0))

    histogram.observe(0.5, 1000)

    assert (histogram.cumulative(), histogram.total) == ([0, 1000, 1000], 500.0)


def test_a_histogram_without_values_is_all_zero() -> None:
    histogram = Histogram((0.1,))

    assert (histogram.cumulative(), histogram.count, histogram.total) == ([0, 0], 0, 0.0)


def test_syncs_tell_the_last_good_one_the_failures_and_the_oldest_that_runs() -> None:
    syncs = SyncTimes((1.0,))
    assert (syncs.count, syncs.failed_count, syncs.last_success_s) == (0, 0, 0.0)
    assert syncs.longest_running_s == 0.0

    syncs.begin("first")
    syncs.begin("second")
    syncs.end("second", OSError("full"))
    assert (syncs.count, syncs.failed_count, syncs.last_success_s) == (1, 1, 0.0)
    assert syncs.longest_running_s > 0

    syncs.end("first", None)
    assert (syncs.count, syncs.failed_count) == (2, 1)
    assert syncs.last_success_s > 1e9
    assert syncs.longest_running_s == 0.0


def test_a_merged_histogram_has_the_values_of_both() -> None:
    first, second = Histogram((1.0, 2.0)), Histogram((1.0, 2.0))
    first.observe(0.5)
    second.observe(1.5, 2)
    second.observe(9.0)

    first.merge(second)

    assert (first.counts, first.total, first.count) == ([1, 2, 1], 12.5, 4)
    assert (second.counts, second.total) == ([0, 2, 1], 12.0)
