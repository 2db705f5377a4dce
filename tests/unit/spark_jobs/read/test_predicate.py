"""Pushed filters decide as SQL would, or are left to Spark."""

from datetime import UTC, datetime

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from spark_jobs.read.columns import Constants
from spark_jobs.read.predicate import Predicate

TOPIC = Constants("n1", "orders", None, 3, is_bad=False)
CHANNEL = Constants("n1", "orders", "billing", 4, is_bad=False)


def accept(*filters: Filter) -> Predicate:
    predicate = Predicate()
    for each in filters:
        accepted = predicate.accept(each)
        assert accepted is not None
        predicate = accepted
    return predicate


@pytest.mark.parametrize(
    ("each", "passes"),
    [
        (EqualTo(("topic",), "orders"), ["topic", "channel"]),
        (EqualTo(("topic",), "x"), []),
        (EqualTo(("channel",), "billing"), ["channel"]),
        (Not(EqualTo(("channel",), "x")), ["channel"]),
        (EqualNullSafe(("channel",), None), ["topic"]),
        (Not(EqualNullSafe(("channel",), "billing")), ["topic"]),
        (IsNull(("channel",)), ["topic"]),
        (IsNotNull(("channel",)), ["channel"]),
        (Not(IsNull(("channel",))), ["channel"]),
        (In(("channel",), ("a", "billing")), ["channel"]),
        (Not(In(("channel",), ("a", "b"))), ["channel"]),
        (Not(In(("channel",), ("a", None))), []),
        (StringStartsWith(("channel",), "bill"), ["channel"]),
        (GreaterThan(("segment",), 3), ["channel"]),
        (LessThanOrEqual(("segment",), 3), ["topic"]),
        (EqualTo(("node",), "n1"), ["topic", "channel"]),
        (EqualTo(("is_bad",), True), []),
    ],
)
def test_filters_on_what_a_segment_shares(each: Filter, passes: list[str]) -> None:
    predicate = accept(each)

    candidates = {"topic": TOPIC, "channel": CHANNEL}
    assert [name for name, queue in candidates.items() if predicate.admits(queue)] == passes


MOMENT = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("each", "since_ns", "until_ns"),
    [
        (EqualTo(("timestamp_ns",), 5), 5, 6),
        (GreaterThan(("timestamp_ns",), 5), 6, None),
        (LessThan(("timestamp_ns",), 5), None, 5),
        (EqualTo(("timestamp",), MOMENT), 10**9, 10**9 + 1000),
        (GreaterThan(("timestamp",), MOMENT), 10**9 + 1000, None),
        (GreaterThanOrEqual(("timestamp",), MOMENT), 10**9, None),
        (LessThan(("timestamp",), MOMENT), None, 10**9),
        (LessThanOrEqual(("timestamp",), MOMENT), None, 10**9 + 1000),
        (IsNotNull(("timestamp",)), None, None),
    ],
)
def test_filters_on_the_time(each: Filter, since_ns: int | None, until_ns: int | None) -> None:
    predicate = accept(each)

    assert (predicate.since_ns, predicate.until_ns) == (since_ns, until_ns)


def test_the_narrowest_bounds_count() -> None:
    predicate = accept(
        GreaterThan(("timestamp_ns",), 5),
        GreaterThan(("timestamp_ns",), 3),
        LessThan(("timestamp_ns",), 9),
        LessThan(("timestamp_ns",), 12),
    )

    assert (predicate.since_ns, predicate.until_ns) == (6, 9)


@pytest.mark.parametrize(
    "each",
    [
        EqualTo(("body",), b"x"),
        EqualTo(("attempts",), 1),
        Not(EqualTo(("timestamp_ns",), 5)),
        In(("timestamp_ns",), (5, 6)),
        EqualTo(("timestamp",), datetime(2020, 1, 1)),
        EqualTo(("topic", "x"), "y"),
    ],
)
def test_all_else_is_left_to_spark(each: Filter) -> None:
    assert Predicate().accept(each) is None
