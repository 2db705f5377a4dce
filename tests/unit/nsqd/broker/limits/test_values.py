"""The limits of topics: values, what nsqd.dat holds of them, and whose holds for which topic."""

import logging
from pathlib import Path

import pytest

from nsqd.broker import metadata
from nsqd.broker.limits.dead_letter import find_dead_letter_name
from nsqd.broker.limits.values import (
    NO_OVERRIDES,
    DepthPolicy,
    LimitOverrides,
    Limits,
    is_valid_suffix,
)
from nsqd.broker.metadata import ChannelRecord, TopicRecord
from tests.support.broker_rig import BrokerRig

EVERYTHING = LimitOverrides(
    max_depth=10,
    max_depth_bytes=2**40,
    max_depth_policy=DepthPolicy.DROP_OLDEST,
    msg_ttl_s=1.5,
    max_attempts=3,
    dead_letter_topic_suffix=".dead",
)


def test_nothing_is_limited_by_default() -> None:
    assert Limits().is_off
    assert Limits(dead_letter_topic_suffix=".dead").is_off


@pytest.mark.parametrize(
    "limits",
    [Limits(max_depth=1), Limits(max_depth_bytes=1), Limits(msg_ttl_s=1.0), Limits(max_attempts=1)],
)
def test_each_limit_counts(limits: Limits) -> None:
    assert not limits.is_off


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
    assert LimitOverrides.from_json({"max_depth": 1, "max_weight": 2}).max_depth == 1


def test_metadata_has_limits_only_where_they_are_set() -> None:
    plain = TopicRecord("plain", is_paused=False, channels=(ChannelRecord("c", is_paused=True),))
    limited = TopicRecord("limited", is_paused=True, channels=(), limits=EVERYTHING)

    text = metadata.encode([plain, limited], "1.3.0")

    assert metadata.decode(text) == [plain, limited]
    assert text.count(b'"limits"') == 1


@pytest.mark.parametrize(
    ("suffix", "is_valid"),
    [("", True), (".dead", True), ("-x", True), ("." * 63, True), ("." * 64, False), ("!", False)],
)
def test_suffixes(suffix: str, is_valid: bool) -> None:  # noqa: FBT001 - a value to compare with
    assert is_valid_suffix(suffix) is is_valid


def test_dead_letter_topics_have_valid_names() -> None:
    assert find_dead_letter_name("orders", ".dead") == "orders.dead"
    assert find_dead_letter_name("orders", "") is None
    assert find_dead_letter_name("x" * 59, ".dead") == "x" * 59 + ".dead"
    assert find_dead_letter_name("x" * 60, ".dead") is None
    assert find_dead_letter_name("orders#ephemeral", ".dead") is None


class TestBook:
    def test_flags_hold_for_every_topic(self, tmp_path: Path) -> None:
        rig = BrokerRig(tmp_path, limits=Limits(max_depth=5))

        limits, sources = rig.broker.limits.find_limits(rig.topic())

        assert limits.max_depth == 5
        assert set(sources.values()) == {"flag"}

    def test_without_limits_there_is_nothing_on_the_way(self, tmp_path: Path) -> None:
        rig = BrokerRig(tmp_path, limits=Limits(dead_letter_topic_suffix=".dead"))
        channel = rig.channel()

        assert rig.topic().bounds is None
        assert channel.bounds is None

    def test_a_topic_has_its_own(self, tmp_path: Path) -> None:
        rig = BrokerRig(tmp_path, limits=Limits(max_depth=5))
        rig.broker.limits.set(rig.topic(), LimitOverrides(max_depth=7))

        limits, sources = rig.broker.limits.find_limits(rig.topic())

        assert limits.max_depth == 7
        assert sources["max_depth"] == "topic"
        assert rig.broker.limits.find_limits(rig.topic("u"))[0].max_depth == 5

    def test_limits_can_be_lifted(self, tmp_path: Path) -> None:
        rig = BrokerRig(tmp_path, limits=Limits(max_depth=5))
        channel = rig.channel()
        assert channel.bounds is not None

        rig.broker.limits.set(rig.topic(), LimitOverrides(max_depth=0))

        assert rig.topic().bounds is None
        assert channel.bounds is None

    def test_records_have_them_and_load_restores_them(self, tmp_path: Path) -> None:
        rig = BrokerRig(tmp_path)
        rig.broker.limits.set(rig.topic(), EVERYTHING)
        records = rig.broker.records()
        rig.broker.close()

        again = BrokerRig(tmp_path)
        again.broker.load(records)

        assert again.topic().limit_overrides == EVERYTHING
        assert again.topic().bounds is not None

    def test_a_second_record_of_a_topic_takes_nothing_away(self, tmp_path: Path) -> None:
        rig = BrokerRig(tmp_path)
        found = TopicRecord("t", is_paused=False, channels=(ChannelRecord("c", is_paused=False),))

        rig.broker.load([TopicRecord("t", is_paused=False, channels=(), limits=EVERYTHING), found])

        assert rig.topic().limit_overrides == EVERYTHING
        assert rig.channel().bounds is not None

    def test_a_topic_made_again_has_none_of_its_own(self, tmp_path: Path) -> None:
        rig = BrokerRig(tmp_path)
        rig.broker.limits.set(rig.topic(), EVERYTHING)

        rig.broker.delete_topic("t")

        assert rig.topic().limit_overrides == NO_OVERRIDES

    def test_dead_letters_stay_until_their_own_topic_says_otherwise(self, tmp_path: Path) -> None:
        flags = Limits(max_depth=9, msg_ttl_s=1, max_attempts=1, dead_letter_topic_suffix=".dead")
        book = (rig := BrokerRig(tmp_path, limits=flags)).broker.limits

        limits, sources = book.find_limits(rig.topic("t.dead"))

        assert limits == Limits(max_depth=9)
        assert sources["msg_ttl_s"] == "dead-letter topic"
        assert sources["max_depth"] == "flag"
        book.set(rig.topic("t.dead"), LimitOverrides(msg_ttl_s=5, dead_letter_topic_suffix=".x"))
        limits, sources = book.find_limits(rig.topic("t.dead"))
        assert limits == Limits(max_depth=9, msg_ttl_s=5)
        assert sources["msg_ttl_s"] == "topic"
        assert book.find_dead_letter_name(rig.topic("t.dead")) is None

    def test_a_suffix_of_its_own_makes_a_dead_letter_topic(self, tmp_path: Path) -> None:
        book = (rig := BrokerRig(tmp_path, limits=Limits(max_attempts=1))).broker.limits
        dead = rig.topic("t.failed")
        assert book.find_limits(dead)[0].max_attempts == 1

        book.set(rig.topic(), LimitOverrides(dead_letter_topic_suffix=".failed"))

        assert book.find_dead_letter_name(rig.topic()) == "t.failed"
        assert dead.bounds is None
        book.set(rig.topic(), NO_OVERRIDES)
        assert dead.bounds is not None

    def test_a_name_too_long_for_the_suffix_is_told(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        limits = Limits(max_attempts=1, dead_letter_topic_suffix=".dead")
        with caplog.at_level(logging.WARNING):
            BrokerRig(tmp_path, limits=limits).topic("x" * 60)

        assert "too long for the suffix .dead" in caplog.text
