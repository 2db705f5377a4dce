"""LimitBook: which limits hold for which topic, from the flags or its own."""

import logging
from pathlib import Path

import pytest

from nsqd.broker.limits.overrides import NO_OVERRIDES, LimitOverrides
from nsqd.broker.metadata import ChannelRecord, TopicRecord
from nsqd.config.limits import DepthPolicy, Limits
from tests.support.broker_rig import BrokerRig

EVERYTHING = LimitOverrides(
    max_depth=10,
    max_depth_bytes=2**40,
    max_depth_policy=DepthPolicy.DROP_OLDEST,
    msg_ttl_s=1.5,
    max_attempts=3,
    dead_letter_topic_suffix=".dead",
)


def test_flags_hold_for_every_topic(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path, limits=Limits(max_depth=5))

    limits, sources = rig.broker.limits.find_limits(rig.topic())

    assert limits.max_depth == 5
    assert set(sources.values()) == {"flag"}


def test_without_limits_there_is_nothing_on_the_way(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path, limits=Limits(dead_letter_topic_suffix=".dead"))
    channel = rig.channel()

    assert rig.topic().bounds is None
    assert channel.bounds is None


def test_a_topic_has_its_own(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path, limits=Limits(max_depth=5))
    rig.broker.limits.set(rig.topic(), LimitOverrides(max_depth=7))

    limits, sources = rig.broker.limits.find_limits(rig.topic())

    assert limits.max_depth == 7
    assert sources["max_depth"] == "topic"
    assert rig.broker.limits.find_limits(rig.topic("u"))[0].max_depth == 5


def test_limits_can_be_lifted(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path, limits=Limits(max_depth=5))
    channel = rig.channel()
    assert channel.bounds is not None

    rig.broker.limits.set(rig.topic(), LimitOverrides(max_depth=0))

    assert rig.topic().bounds is None
    assert channel.bounds is None


def test_records_have_them_and_load_restores_them(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path)
    rig.broker.limits.set(rig.topic(), EVERYTHING)
    records = rig.broker.records()
    rig.broker.close()

    again = BrokerRig(tmp_path)
    again.broker.load(records)

    assert again.topic().limit_overrides == EVERYTHING
    assert again.topic().bounds is not None


def test_a_second_record_of_a_topic_takes_nothing_away(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path)
    found = TopicRecord("t", is_paused=False, channels=(ChannelRecord("c", is_paused=False),))

    rig.broker.load([TopicRecord("t", is_paused=False, channels=(), limits=EVERYTHING), found])

    assert rig.topic().limit_overrides == EVERYTHING
    assert rig.channel().bounds is not None


def test_a_topic_made_again_has_none_of_its_own(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path)
    rig.broker.limits.set(rig.topic(), EVERYTHING)

    rig.broker.delete_topic("t")

    assert rig.topic().limit_overrides == NO_OVERRIDES


def test_dead_letters_stay_until_their_own_topic_says_otherwise(tmp_path: Path) -> None:
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


def test_a_suffix_of_its_own_makes_a_dead_letter_topic(tmp_path: Path) -> None:
    book = (rig := BrokerRig(tmp_path, limits=Limits(max_attempts=1))).broker.limits
    dead = rig.topic("t.failed")
    assert book.find_limits(dead)[0].max_attempts == 1

    book.set(rig.topic(), LimitOverrides(dead_letter_topic_suffix=".failed"))

    assert book.find_dead_letter_name(rig.topic()) == "t.failed"
    assert dead.bounds is None
    book.set(rig.topic(), NO_OVERRIDES)
    assert dead.bounds is not None


def test_a_name_too_long_for_the_suffix_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limits = Limits(max_attempts=1, dead_letter_topic_suffix=".dead")
    with caplog.at_level(logging.WARNING):
        BrokerRig(tmp_path, limits=limits).topic("x" * 60)

    assert "too long for the suffix .dead" in caplog.text
