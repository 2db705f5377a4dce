"""Figures of a report: rates, steps of time, moments."""

from datetime import UTC, datetime, timedelta

import pytest

from spark_jobs.jobs.growth import Look
from spark_jobs.jobs.report_figures import choose_step_s, utc
from tests.spark.made_reports import figures, made_report

START = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_burst_has_no_fantastic_rate() -> None:
    queue = figures("t", None, 1)
    queue.message_count = 10
    queue.oldest, queue.newest = START, START + timedelta(milliseconds=1)
    assert queue.rate_per_minute == 10
    queue.newest = START + timedelta(minutes=5)
    assert queue.rate_per_minute == 2
    queue.oldest = None
    assert queue.rate_per_minute is None


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


def test_without_messages_a_step_is_a_minute() -> None:
    assert choose_step_s([]) == 60


def test_growth_of_all_counts_what_is_gone() -> None:
    report = made_report(2)
    report.created = START + timedelta(minutes=10)
    counts = {(queue.topic, queue.channel): queue.message_count for queue in report.queues}

    report.compare(Look(START, counts | {("gone", None): 100}))

    assert report.growth is not None
    assert report.growth.per_minute == -10
    assert [queue.growth and queue.growth.per_minute for queue in report.queues] == [0, 0]


def test_moments_are_utc() -> None:
    assert utc(1_760_000_000_000_001).isoformat() == "2025-10-09T08:53:20.000001+00:00"
