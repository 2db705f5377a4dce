"""Reports with made-up figures, for tests of the page."""

from datetime import UTC, datetime, timedelta

from spark_jobs.jobs.report_figures import QueueFigures, Report

START = datetime(2026, 1, 1, 8, tzinfo=UTC)


def figures(topic: str, channel: str | None, seed: int) -> QueueFigures:
    """A queue with something to plot."""
    over_time = [(START + timedelta(minutes=n), (n * seed) % 17 + 1) for n in range(90)]
    count = sum(number for _, number in over_time)
    return QueueFigures(
        topic=topic,
        channel=channel,
        node_count=1,
        message_count=count,
        byte_count=count * 200,
        oldest=START,
        newest=over_time[-1][0],
        size_p50=100,
        size_p90=200,
        size_p99=1000,
        size_max=5000 + seed,
        attempts_max=9,
        retried_count=3,
        duplicate_count=1,
        over_time=over_time,
        attempts=[(1, count - 3), (9, 3)],
        sizes=[(6, count - 1), (12, 1)],
    )


def made_report(queue_count: int) -> Report:
    """A report of so many topics with JSON bodies."""
    topics = [f"topic-{number:04d}" for number in range(queue_count)]
    return Report(
        data_dirs=["/var/lib/nsqd"],
        origin="backlog",
        created=START,
        queues=[figures(topic, "ch", number + 1) for number, topic in enumerate(topics)],
        poison=[
            {
                "topic": topic,
                "channel": "ch",
                "node": "n",
                "attempts": 9,
                "id": "0" * 16,
                "timestamp": START,
                "segment": 0,
                "offset": 7,
                "size": 5,
                "body": '{"a": 1}',
            }
            for topic in topics
        ],
        duplicates=[
            {"topic": t, "channel": "ch", "node": "n", "id": "1" * 16, "copies": 2, "attempts": 1}
            for t in topics
        ],
        bodies=[{"topic": topic, "type": "object", "count": 10} for topic in topics],
        fields=[
            {
                "topic": topic,
                "path": "user.name",
                "types": ["string"],
                "present": 10,
                "nulls": 1,
                "null_share": 0.1,
                "cardinality": 3,
                "top": [("ada", 5), ("bob", 4)],
            }
            for topic in topics
        ],
        corrupt_records=[],
        field_sample_rows=10_000,
    )
