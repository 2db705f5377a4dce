"""Reports with made-up figures, for tests of the page."""

from datetime import UTC, datetime, timedelta

from spark_jobs.jobs.growth import Look
from spark_jobs.jobs.report_figures import NodeFigures, Places, QueueFigures, Report

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


def made_fleet_report(queue_count: int, node_count: int = 3) -> Report:
    """A report of running nodes, one of which is down, compared with one of an hour before."""
    report = made_report(queue_count)
    report.created = START + timedelta(days=3, hours=4)
    before = {}
    for number, queue in enumerate(report.queues):
        queue.places = Places(number % 7 * 100, number % 5, number % 3, queue.message_count)
        queue.latency = {0.5: 0.002, 0.99: 0.25 + number}
        queue.message_count += number * 3
        queue.byte_count *= number % 11 + 1
        assert queue.oldest is not None
        queue.oldest += timedelta(minutes=number % 89)
        change = (number % 5 - 2) * 10
        before[queue.topic, queue.channel] = queue.message_count - change
    report.nodes = [
        NodeFigures(
            f"10.0.0.{number}:4151", queue_count, 500 * number + 1, 10**6, START, Places(1, 2, 3, 4)
        )
        for number in range(node_count)
    ]
    report.nodes.append(NodeFigures("10.0.0.9:4151", 0, failure="node 10.0.0.9:4151 is down"))
    report.compare(Look(report.created - timedelta(hours=1), before))
    report.unseen = ["node 10.0.0.9:4151 is down"]
    report.corrupt_count = 2
    report.corrupt_records = [
        {
            "topic": "topic-0000",
            "channel": "ch",
            "kind": kind,
            "reason": "the segment ends within a record",
            "offset": 700,
            "bytes": 17,
            "path": "/var/lib/nsqd/topic-0000:ch.diskqueue.000000.dat",
        }
        for kind in ("torn", "missing")
    ]
    return report


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
