from nsqd.broker.histogram import Histogram


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


def test_without_values_all_is_zero() -> None:
    histogram = Histogram((0.1,))

    assert (histogram.cumulative(), histogram.count, histogram.total) == ([0, 0], 0, 0.0)
