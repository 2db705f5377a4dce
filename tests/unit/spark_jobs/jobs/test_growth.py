"""Growth between two looks, and times in words."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from diskqueue.layout import Metadata
from spark_jobs.jobs.growth import Growth, Look, in_words, look_at, read_look
from spark_jobs.object_store import AMBIENT
from spark_jobs.read.queue import Queue

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "less than a second"),
        (1, "1 second"),
        (61, "1 minute 1 second"),
        (3600, "1 hour"),
        (2 * 3600 + 59, "2 hours"),
        (3 * 86400 + 4 * 3600 + 5, "3 days 4 hours"),
        (1000 * 86400, "1,000 days"),
    ],
)
def test_a_time_in_words(seconds: int, text: str) -> None:
    assert in_words(seconds) == text


@pytest.mark.parametrize(
    ("before", "after", "per_minute", "text"),
    [
        (100, 200, 50, "grows"),
        (200, 100, -50, "drained in 2 minutes"),
        (100, 100, 0, "as it was"),
        (100, 0, -50, "empty"),
        (10**9 + 1, 10**9, -0.5, "drains in years"),
    ],
)
def test_where_growth_leads(before: int, after: int, per_minute: float, text: str) -> None:
    growth = Growth(before, after, span_s=120)

    assert growth.per_minute == per_minute
    assert growth.describe() == text


def test_a_new_queue_was_empty_and_one_that_is_gone_does_not_count() -> None:
    before = Look(START, {("a", None): 5, ("gone", None): 1})
    after = Look(START + timedelta(minutes=1), {("a", None): 3, ("b", "c"): 4})

    grown = before.compare(after)

    assert {key: growth.per_minute for key, growth in grown.items()} == {
        ("a", None): -2,
        ("b", "c"): 4,
    }


def test_queues_of_several_nodes_are_added_up() -> None:
    queues = [
        Queue("n1", "/n1", "t:c", counts={"disk": 3, "memory": 4}),
        Queue("n2", "/n2", "t:c", metadata=Metadata(5, 0, 0, 0, 10)),
        Queue("n2", "/n2", "u"),
    ]

    assert look_at(queues).counts == {("t", "c"): 12, ("u", None): 0}


def test_an_earlier_report_is_read(tmp_path: Path) -> None:
    document = {
        "created": START.isoformat(),
        "from": "backlog",
        "queues": [{"topic": "t", "channel": None, "messages": 7}],
    }
    (tmp_path / "report.json").write_text(json.dumps(document))

    for name in (str(tmp_path), f"{tmp_path}/report.json", f"file://{tmp_path}/"):
        assert read_look(name, AMBIENT) == (Look(START, {("t", None): 7}), "backlog")
    with pytest.raises(FileNotFoundError, match="no such report"):
        read_look(f"{tmp_path}/none", AMBIENT)
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(ValueError, match="is no report of nsqd-spark"):
        read_look(f"{tmp_path}/other.json", AMBIENT)
