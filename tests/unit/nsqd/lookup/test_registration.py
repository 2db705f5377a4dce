"""Registration without nsqlookupds, the pace of attempts, and which channel names are taken."""

import logging
from typing import cast

import pytest

from nsqd.broker.topic import Topic
from nsqd.http.client import HttpClient
from nsqd.lookup.channel_query import ChannelQuery, usable_channels
from nsqd.lookup.peer import FIRST_BACKOFF_S, MAX_BACKOFF_S, Backoff, PeerSettings
from nsqd.lookup.registration import LookupSettings, Registration
from nsqd.protocol.lookup import PeerIdentity


class FakeTopic:
    name = "t"

    def __init__(self) -> None:
        self.start_count = 0

    def start(self) -> None:
        self.start_count += 1


def registration(*addresses: str) -> Registration:
    identity = PeerIdentity("here", 4150, 4151, "1.3.0")
    settings = LookupSettings(
        peer=PeerSettings(identity=identity, max_reply_bytes=1000),
        query=ChannelQuery(HttpClient()),
        query_timeout_s=5.0,
    )
    return Registration(addresses, settings, {})


def test_a_topic_starts_at_once_without_nsqlookupds() -> None:
    topic = FakeTopic()

    registration().start_topic(cast(Topic, topic))

    assert topic.start_count == 1


def test_a_topic_starts_at_once_while_nothing_runs() -> None:
    topic = FakeTopic()

    registration("127.0.0.1:4160").start_topic(cast(Topic, topic))

    assert topic.start_count == 1


def test_no_nsqlookupd_no_peers(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        nobody = registration()
        nobody.on_change(cast(Topic, FakeTopic()), None)
        nobody.set_addresses(())

    assert nobody.peers == []
    assert caplog.messages == []


def test_the_first_failure_is_followed_by_a_short_wait() -> None:
    assert FIRST_BACKOFF_S / 2 <= Backoff().next_delay_s() <= FIRST_BACKOFF_S


def test_waits_double_up_to_a_limit() -> None:
    backoff = Backoff()
    longest_s = FIRST_BACKOFF_S
    for _ in range(20):
        assert longest_s / 2 <= backoff.next_delay_s() <= longest_s
        longest_s = min(2 * longest_s, MAX_BACKOFF_S)

    assert longest_s == MAX_BACKOFF_S


def test_one_that_was_away_for_long_is_met_again_within_a_second() -> None:
    backoff = Backoff()
    delays_s = [backoff.next_delay_s() for _ in range(1000)]

    assert max(delays_s) <= 1.0


def test_a_good_connection_that_breaks_is_tried_again_at_once() -> None:
    backoff = Backoff()
    for _ in range(20):
        backoff.next_delay_s()

    backoff.reset()

    assert backoff.next_delay_s() == 0
    assert FIRST_BACKOFF_S / 2 <= backoff.next_delay_s() <= FIRST_BACKOFF_S


def test_waits_differ_between_daemons() -> None:
    assert len({Backoff().next_delay_s() for _ in range(20)}) > 1


def test_channels_are_made_of_valid_lasting_names_only() -> None:  # N-9
    names = ["two", "one", "gone#ephemeral", "bad name", "", "x" * 65, "one", "#ephemeral", "a/b"]

    assert usable_channels(names) == ["one", "two"]
