"""Plots and page: no division by nothing, nothing of a message unescaped."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from spark_jobs.jobs import charts
from spark_jobs.jobs.report_page import render
from spark_jobs.jobs.report_tables import choose_step_s, utc
from tests.spark.made_reports import figures, made_report

START = datetime(2026, 1, 1, tzinfo=UTC)
EVIL = '<script>alert("1")</script>\x00\ud800&amp;'


def test_round_axis_ends() -> None:
    assert [charts.nice_ceiling(value) for value in (0, 1, 3, 7, 61, 999, 1000, 1001)] == [
        1,
        1,
        4,
        8,
        80,
        1000,
        1000,
        2000,
    ]


def test_counts_for_people() -> None:
    shown = [charts.format_count(value) for value in (0, 0.25, 950, 1234, 5e6, 2.5e9)]

    assert shown == ["0", "0.25", "950", "1.23k", "5M", "2.5G"]


def test_time_is_joined_until_it_fits() -> None:
    points = [(START + timedelta(minutes=minute), 1) for minute in range(1000)]

    chart = charts.time_chart(points, step_s=60, label="x")

    heights = re.findall(r": (\d+)</title>", chart)
    assert len(heights) == 112
    assert sum(map(int, heights)) == 1000
    assert "x, per 9 min" in chart


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

    found = re.findall(r'<text class="tick"[^>]*>([^<]*[:-][^<]*)<', chart)
    assert found[: len(labels)] == labels
    assert len(found) <= 12


def test_bursts_have_no_fantastic_rate() -> None:
    queue = figures("t", None, 1)
    queue.message_count = 10
    queue.oldest, queue.newest = START, START + timedelta(milliseconds=1)
    assert queue.rate_per_minute == 10
    queue.newest = START + timedelta(minutes=5)
    assert queue.rate_per_minute == 2
    queue.oldest = None
    assert queue.rate_per_minute is None


@pytest.mark.parametrize("count", [1, 10**9])
def test_a_single_moment(count: int) -> None:
    chart = charts.time_chart([(START, count)], step_s=60, label="x")

    assert chart.count("<rect") == 1
    assert f"{count:,}</title>" in chart


@pytest.mark.parametrize(
    "chart",
    [
        charts.time_chart([], step_s=60, label="x"),
        charts.column_chart([], label="x"),
        charts.bar_chart([], label="x"),
        charts.sparkline([], label="x"),
        charts.sparkline([0, 0], label="x"),
    ],
)
def test_nothing_to_plot(chart: str) -> None:
    assert "<svg" in chart
    assert "<rect" not in chart


def test_bars_of_nothing() -> None:
    assert "<rect" in charts.bar_chart([("a", 0)], label="x")


@pytest.mark.parametrize("queue_count", [0, 1, 100])
def test_pages(queue_count: int) -> None:
    page = render(made_report(queue_count))

    assert page.count("<details") == 2 * queue_count
    assert page.count('class="spark"') == queue_count
    assert ("There are no messages" in page) == (queue_count == 0)
    assert "http" not in page.replace("http-equiv", "")


def test_what_comes_from_messages_is_escaped() -> None:
    report = made_report(1)
    report.queues[0].topic = EVIL
    for rows in (report.poison, report.duplicates, report.bodies, report.fields):
        for row in rows:
            row["topic"] = EVIL
    report.poison[0]["body"] = report.poison[0]["id"] = EVIL
    report.fields[0]["path"] = EVIL
    report.fields[0]["top"] = [(EVIL, 1)]
    report.data_dirs = [EVIL]

    page = render(report)

    assert "<script>alert" not in page
    assert "\x00" not in page
    assert page.count("&lt;script&gt;alert(&quot;1&quot;)") > 8
    page.encode()


def test_many_queues_have_a_bound() -> None:
    page = render(made_report(1000))

    assert page.count('<details class="card" id=') == 200
    assert "Details of the 200 largest queues" in page


@pytest.mark.parametrize(
    ("span", "step_s"),
    [
        (timedelta(0), 60),
        (timedelta(hours=25), 60),
        (timedelta(days=2), 300),
        (timedelta(days=90), 6 * 3600),
        (timedelta(days=3650), 3 * 86400),
    ],
)
def test_steps_grow_with_the_time(span: timedelta, step_s: int) -> None:
    queue = figures("t", None, 1)
    queue.oldest, queue.newest = START, START + span

    assert choose_step_s([queue]) == step_s


def test_no_messages_have_steps_too() -> None:
    assert choose_step_s([]) == 60


def test_moments_are_utc() -> None:
    assert utc(1_760_000_000_000_001).isoformat() == "2025-10-09T08:53:20.000001+00:00"
