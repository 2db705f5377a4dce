"""Plots: round axes, times that fit, no division by zero."""

from datetime import UTC, datetime, timedelta

import pytest

from spark_jobs.jobs import charts

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "ceiling"),
    [(0, 1), (1, 1), (3, 4), (7, 8), (61, 80), (999, 1000), (1000, 1000), (1001, 2000)],
)
def test_an_axis_ends_at_a_round_number(value: int, ceiling: int) -> None:
    assert charts.nice_ceiling(value) == ceiling


def test_counts_are_shortened() -> None:
    shown = [charts.format_count(value) for value in (0, 0.25, 950, 1234, 5e6, 2.5e9)]

    assert shown == ["0", "0.25", "950", "1.23k", "5M", "2.5G"]


def test_steps_of_time_are_joined_until_they_fit() -> None:
    points = [(START + timedelta(minutes=minute), 1) for minute in range(1000)]

    chart = charts.time_chart(points, step_s=60, label="x")

    assert len(chart.bars) == 112
    assert sum(int(bar.title.rpartition(" ")[2]) for bar in chart.bars) == 1000
    assert chart.label == "x, per 9 min"
    assert chart.bars[1].title == "2026-01-01 00:09 UTC, 9 min: 9"


@pytest.mark.parametrize(
    ("span", "labels"),
    [
        (timedelta(minutes=90), ["00:10", "00:20", "00:30"]),
        (timedelta(days=3), ["01-01 12:00", "01-02 00:00", "01-02 12:00"]),
        (timedelta(days=4000), ["2026-10-22", "2027-10-21"]),
    ],
)
def test_times_on_the_axis_are_round(span: timedelta, labels: list[str]) -> None:
    start = START + timedelta(minutes=7)

    chart = charts.time_chart([(start, 1), (start + span, 1)], step_s=60, label="x")

    found = [each.text for each in chart.texts if ":" in each.text or "-" in each.text]
    assert found[: len(labels)] == labels
    assert len(found) <= 12


@pytest.mark.parametrize("count", [1, 10**9])
def test_a_single_moment_is_one_bar(count: int) -> None:
    [bar] = charts.time_chart([(START, count)], step_s=60, label="x").bars

    assert bar.title.endswith(f": {count:,}")
    assert bar.height > 0


def test_marks_stay_inside_the_plot() -> None:
    columns = [("a", 0), ("b", 1), ("c", 1_000_000)]

    chart = charts.column_chart(columns, label="x")

    assert [bar.title for bar in chart.bars] == ["a: 0", "b: 1", "c: 1,000,000"]
    # A count of 1 beside a million is still visible.
    assert [bar.height for bar in chart.bars] == [0, 1, 140]
    for bar in chart.bars:
        assert bar.x >= 56
        assert bar.x + bar.width <= chart.width
        assert bar.y + bar.height == 148


def test_nothing_to_plot_has_no_bars() -> None:
    assert charts.time_chart([], step_s=60, label="x").bars == ()
    assert charts.column_chart([], label="x").bars == ()
    assert charts.rank_chart([], label="x").bars == []
    assert charts.sparkline([]) == charts.sparkline([0, 0]) == ""


def test_bars_of_nothing_are_visible() -> None:
    [bar] = charts.rank_chart([("a", 0)], label="x").bars

    assert bar.width == 1


def test_long_names_are_cut_and_whole_on_hover() -> None:
    """In the middle: names of one team begin alike, and often end with what tells them apart."""
    name = "orders.payments.captured.eu-west-1.v2"

    chart = charts.rank_chart([(name, 5), ("n" * 28, 4)], label="x")

    assert chart.texts[0].text == "orders.paymen…d.eu-west-1.v2"
    assert len(chart.texts[0].text) == 28
    assert chart.texts[0].title == name
    assert chart.texts[2].text == "n" * 28


def test_a_sparkline_has_a_column_per_count() -> None:
    assert charts.sparkline([1, 0, 2]) == "M0.0 22v-11.0h39.5v11.0zM80.0 22v-22.0h39.5v22.0z"


def test_counts_are_joined_in_equal_parts_of_the_time() -> None:
    points = [(START + timedelta(minutes=minute), 1) for minute in range(10)]

    joined = charts.join_counts(points, START, START + timedelta(minutes=9), 3)

    assert joined == [3, 3, 4]
