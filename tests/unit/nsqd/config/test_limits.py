"""Limits: one declaration, from which flags, JSON and gauges follow."""

import pytest

from nsqd.config.limits import LIMITS, Limit, Limits, is_valid_suffix
from nsqd.config.options import COMMAND


def test_nothing_is_limited_by_default() -> None:
    assert Limits().is_off
    assert Limits(dead_letter_topic_suffix=".dead").is_off


@pytest.mark.parametrize(
    "limits",
    [Limits(max_depth=1), Limits(max_depth_bytes=1), Limits(msg_ttl_s=1.0), Limits(max_attempts=1)],
)
def test_each_limit_counts(limits: Limits) -> None:
    assert not limits.is_off


@pytest.mark.parametrize(
    ("suffix", "is_valid"),
    [("", True), (".dead", True), ("-x", True), ("." * 63, True), ("." * 64, False), ("!", False)],
)
def test_suffixes(suffix: str, is_valid: bool) -> None:  # noqa: FBT001 - a value to compare with
    assert is_valid_suffix(suffix) is is_valid


def test_each_limit_is_an_option_of_the_same_name() -> None:
    assert [limit.name for limit in LIMITS] == [
        "max_depth",
        "max_depth_bytes",
        "max_depth_policy",
        "msg_ttl",
        "max_attempts",
        "dead_letter_topic_suffix",
    ]
    argv = ["--max-depth=3", "--msg-ttl=90s", "--max-attempts=2"]
    assert COMMAND.read(argv).limits == Limits(max_depth=3, msg_ttl_s=90.0, max_attempts=2)


def test_gauges_are_of_numbers_and_name_their_unit() -> None:
    gauges = [limit.gauge for limit in LIMITS]

    assert gauges == [
        "max_depth",
        "max_depth_bytes",
        None,
        "msg_ttl_seconds",
        "max_attempts",
        None,
    ]


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
def test_the_default_is_valid_in_json(limit: Limit) -> None:
    default = limit.read(Limits())

    assert limit.from_json(limit.kind.to_json(default)) == default
