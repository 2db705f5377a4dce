"""Query: patterns and exact names of queues."""

from pathlib import Path

import pytest

from nsqd.analytics.query import MAX_PATTERN_BYTES, Query, Source, compile_patterns, parse_names
from tests.support.broker_rig import BrokerRig


@pytest.fixture
def rig(tmp_path: Path) -> BrokerRig:
    rig = BrokerRig(tmp_path)
    for topic, channel in [("orders", "mail"), ("orders", "stock"), ("other", "mail")]:
        rig.channel(channel, topic)
    return rig


def find(rig: BrokerRig, query: Query) -> list[tuple[str, str | None]]:
    names = query.find_topics(rig.broker)
    return [(name, each) for name in names for each in query.find_queues(rig.topic(name))]


@pytest.mark.parametrize(
    ("topic", "channel", "found"),
    [
        ("*", "m*", [("orders", "mail"), ("other", "mail")]),
        ("ord*", None, [("orders", None), ("orders", "mail"), ("orders", "stock")]),
        ("other,orders", "stoc[k]", [("orders", "stock")]),
        ("o????", None, [("other", None), ("other", "mail")]),
        ("order", None, []),
    ],
)
def test_patterns(
    rig: BrokerRig, topic: str, channel: str | None, found: list[tuple[str, str | None]]
) -> None:
    channels = None if channel is None else compile_patterns(channel)

    assert find(rig, Query(Source.QUEUE, compile_patterns(topic), channels)) == found


def test_exact_names_that_are_not_there_are_left_out(rig: BrokerRig) -> None:
    body = b'{"queues": [["orders", "stock"], ["orders", null], ["x", "y"], ["other", "nosuch"]]}'

    query = Query(Source.QUEUE, compile_patterns("*"), names=parse_names(body))

    assert find(rig, query) == [("orders", None), ("orders", "stock")]


@pytest.mark.parametrize("text", ["", " ", "a b", "(a|b)", "ü", "a" * (MAX_PATTERN_BYTES + 1)])
def test_what_is_no_pattern_of_names(text: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        compile_patterns(text)


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"{}",
        b'{"queues": {}}',
        b'{"queues": ["a"]}',
        b'{"queues": [["a"]]}',
        b'{"queues": [["a", 1]]}',
        b'{"queues": [[null, "a"]]}',
        b"\xff",
    ],
)
def test_what_is_no_list_of_queues(body: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of several modules
        parse_names(body)
