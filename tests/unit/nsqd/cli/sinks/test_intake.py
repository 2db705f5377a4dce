"""Which topics are consumed."""

import re

import pytest

from nsqd.cli.cluster import Outcome
from nsqd.cli.output import CliError
from nsqd.cli.sinks.intake import Topics, check_names, count_left


def test_names_and_patterns() -> None:
    topics = Topics(("a", "b.*", "a"))

    assert topics.names == ["a"]
    assert topics.are_patterns
    assert topics.choose(["b.2", "c", "b.1", "b"]) == ["b.1", "b.2"]
    assert not Topics(("a",)).are_patterns


def test_a_regular_expression_filters_all() -> None:
    topics = Topics(("a1", "b1"), re.compile("^a"))

    assert topics.names == ["a1"]
    assert Topics((), re.compile("1")).choose(["a1", "b", "x1y", "not a name1"]) == ["a1", "x1y"]


def test_wrong_names() -> None:
    check_names(["a", "b.*"], "c")
    with pytest.raises(CliError):
        check_names(["not one"], "c")
    with pytest.raises(CliError):
        check_names(["a"], "not one")


def test_what_is_left() -> None:
    channel = {"channel_name": "c", "depth": 1, "in_flight_count": 2, "deferred_count": 4}
    other = {**channel, "channel_name": "other"}
    topic = {"topic_name": "t", "depth": 8, "channels": [channel, other]}
    stats = [Outcome("a", {"topics": [topic, {**topic, "topic_name": "u"}]}), Outcome("b", {})]

    assert count_left(stats, {"t"}, "c") == 15
    assert count_left(stats, {"t"}, "new") == 8
    assert count_left(stats, {"v"}, "c") == 0
