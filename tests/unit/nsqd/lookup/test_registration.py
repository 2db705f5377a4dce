"""Registration without nsqlookupds; tests/wire has the rest."""

import logging
from typing import cast

import pytest

from nsqd.broker.topic import Topic
from nsqd.http.client import HttpClient
from nsqd.lookup.channel_query import ChannelQuery
from nsqd.lookup.peer import PeerSettings
from nsqd.lookup.registration import LookupSettings, Registration
from nsqd.protocol.lookup import NsqdIdentity


class FakeTopic:
    name = "t"

    def __init__(self) -> None:
        self.start_count = 0

    def start(self) -> None:
        self.start_count += 1


def registration(*addresses: str) -> Registration:
    identity = NsqdIdentity("here", 4150, 4151, "1.3.0")
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
