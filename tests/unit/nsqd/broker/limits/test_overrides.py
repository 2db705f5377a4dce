"""LimitOverrides: the limits of single topics, and how nsqd.dat holds them."""

import pytest

from nsqd.broker import metadata
from nsqd.broker.limits.overrides import NO_OVERRIDES, LimitOverrides
from nsqd.broker.metadata import ChannelRecord, TopicRecord
from nsqd.config.limits import DepthPolicy, Limits

EVERYTHING = LimitOverrides(
    max_depth=10,
    max_depth_bytes=2**40,
    max_depth_policy=DepthPolicy.DROP_OLDEST,
    msg_ttl_s=1.5,
    max_attempts=3,
    dead_letter_topic_suffix=".dead",
)


def test_what_a_topic_does_not_say_is_the_flags() -> None:
    flags = Limits(max_depth=5, msg_ttl_s=60.0, dead_letter_topic_suffix=".dead")

    assert NO_OVERRIDES.over(flags) == flags
    assert LimitOverrides(max_depth=0, max_attempts=2).over(flags) == Limits(
        max_depth=0, msg_ttl_s=60.0, max_attempts=2, dead_letter_topic_suffix=".dead"
    )


@pytest.mark.parametrize(
    "overrides", [NO_OVERRIDES, EVERYTHING, LimitOverrides(max_depth=0, msg_ttl_s=0.0)]
)
def test_json_is_read_as_it_was_written(overrides: LimitOverrides) -> None:
    assert LimitOverrides.from_json(overrides.to_json()) == overrides


def test_only_what_is_set_is_written() -> None:
    assert NO_OVERRIDES.to_json() == {}
    assert LimitOverrides(max_depth=7).to_json() == {"max_depth": 7}


@pytest.mark.parametrize(
    "content",
    [
        [],
        "many",
        {"max_depth": "many"},
        {"max_depth": True},
        {"max_depth": -1},
        {"max_depth": 2**63},
        {"max_depth": 1.5},
        {"max_depth_policy": "sometimes"},
        {"msg_ttl": "1s"},
        {"dead_letter_topic_suffix": 1},
        {"dead_letter_topic_suffix": "no blanks"},
        {"dead_letter_topic_suffix": "#ephemeral"},
    ],
)
def test_wrong_json_is_refused(content: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        LimitOverrides.from_json(content)


def test_keys_of_another_version_are_ignored() -> None:
    assert LimitOverrides.from_json({"max_depth": 1, "max_weight": 2}) == LimitOverrides(
        max_depth=1
    )


def test_metadata_has_limits_only_where_they_are_set() -> None:
    plain = TopicRecord("plain", is_paused=False, channels=(ChannelRecord("c", is_paused=True),))
    limited = TopicRecord("limited", is_paused=True, channels=(), limits=EVERYTHING)

    text = metadata.encode([plain, limited], "1.3.0")

    assert metadata.decode(text) == [plain, limited]
    assert text.count(b'"limits"') == 1


def test_a_limit_that_does_not_exist_is_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError, match="max_weight"):
        LimitOverrides(max_weight=1)


def test_nanoseconds_in_metadata() -> None:
    text = {"msg_ttl": 1_500_000_000, "max_depth_policy": "drop-oldest"}

    overrides = LimitOverrides.from_json(text)

    assert overrides == LimitOverrides(msg_ttl_s=1.5, max_depth_policy=DepthPolicy.DROP_OLDEST)
    assert overrides.to_json() == {"max_depth_policy": "drop-oldest", "msg_ttl": 1_500_000_000}
    assert hash(overrides) == hash(LimitOverrides.from_json(text))
