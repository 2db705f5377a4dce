"""Figures of a report: rates, steps of time, moments."""

from datetime import UTC, datetime, timedelta

import pytest

from diskqueue import layout
from spark_jobs.jobs.growth import Look
from spark_jobs.jobs.report_figures import choose_step_s, estimate_shares, utc
from spark_jobs.read.options import ReadOptions
from spark_jobs.read.queue import Queue
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


def make_queue(name: str, count: int, byte_count: int) -> Queue:
    metadata = layout.Metadata(count, 0, 0, 0, byte_count) if count else None
    return Queue("n", "/d", name, metadata, {0: byte_count})


def test_the_share_of_a_sample() -> None:
    queues = [
        make_queue("small", 100, 10_000),
        make_queue("large", 2_000, 200_000),
        make_queue("large:c", 2_000, 200_000),
        # Without metadata the number of messages is guessed from the size.
        make_queue("unknown", 0, 400_000),
    ]

    shares = estimate_shares(queues, ReadOptions(()), 1000, 10**9)

    assert shares == {"large": 0.25, "unknown": 0.5}


def test_samples_of_large_bodies_are_smaller() -> None:
    queues = [make_queue("heavy", 100, 10_000_000), make_queue("light", 100, 10_000)]

    assert estimate_shares(queues, ReadOptions(()), 1000, 2_000_000) == {"heavy": 0.1}


def test_queues_of_nodes_are_counted_by_them() -> None:
    queue = make_queue("t", 0, 1000)
    queue.counts = {"disk": 10, "memory": 1990}

    assert estimate_shares([queue], ReadOptions(()), 1000, 10**9) == {"t": 0.5}
