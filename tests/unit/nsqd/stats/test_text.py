"""The text form of /stats, blank by blank (S-13)."""

import time

import pytest

from nsqd.stats.snapshot import LatencyStats
from nsqd.stats.text import (
    format_channel,
    format_client,
    format_latency,
    format_rfc3339,
    format_topic,
)
from tests.support.snapshots import channel_stats, client_stats, make_losses, topic_stats

CONNECTED_AT_S = 1_700_000_000


def test_topic() -> None:
    assert format_topic(topic_stats("p1", message_count=1)) == (
        "\n   [p1             ] depth: 0     be-depth: 0     msgs: 1        e2e%: \n"
    )


def test_what_limits_have_cost_stands_at_the_end() -> None:
    topic = topic_stats("p1", losses=make_losses(rejected=2, ttl=1, depth=2, dead_lettered=4))

    assert format_topic(topic).endswith("e2e%:  rejected: 2     dropped: 3     dead: 4\n")


def test_paused_topic() -> None:
    assert format_topic(topic_stats("p1", is_paused=True)).startswith("\n*P [p1 ")


def test_channel() -> None:
    channel = channel_stats("ch", in_flight_count=1, message_count=1)

    assert format_channel(channel) == (
        "      [ch                       ] depth: 0     be-depth: 0     inflt: 1    def: 0    "
        "re-q: 0     timeout: 0     msgs: 1        e2e%: \n"
    )


def test_paused_channel() -> None:
    assert format_channel(channel_stats("ch", is_paused=True)).startswith("   *P [ch ")


def test_long_values_push_the_rest_of_the_line() -> None:
    channel = channel_stats("c" * 30, depth=1234567, latency=LatencyStats(1, ((0.5, 2_500_000.0),)))

    assert format_channel(channel) == (
        f"      [{'c' * 30}] depth: 1234567 be-depth: 0     inflt: 0    def: 0    "
        "re-q: 0     timeout: 0     msgs: 0        e2e%: 2.5ms\n"
    )


def test_consumer() -> None:
    client = client_stats(state=3, in_flight_count=1, ready_count=5, message_count=1)

    assert format_client(client, CONNECTED_AT_S) == (
        "[V2 hn2:47546            ] state: 3 inflt: 1    rdy: 5    fin: 0        re-q: 0        "
        "msgs: 1        connected: 0s"
    )


def test_producer() -> None:
    client = client_stats(
        hostname="hn",
        remote_address="127.0.0.1:47540",
        user_agent="ua/1",
        pub_counts=(("p1", 1), ("p2", 30)),
    )

    assert format_client(client, CONNECTED_AT_S + 83.9) == (
        "[V2 hn:47540 ua/1        ] msgs: 31       topics: p1=1,p2=30 connected: 1m23s"
    )


def test_a_client_begins_no_line_and_drives_no_terminal() -> None:
    client = client_stats(
        hostname="hn\nTopics:", remote_address="127.0.0.1:47540", user_agent="\x1b[2J\u202e"
    )

    assert format_client(client, CONNECTED_AT_S).startswith(
        r"[V2 hn\nTopics::47540 \x1b[2J\u202e] state: "
    )


def test_client_of_a_unix_socket_has_no_port() -> None:
    client = client_stats(hostname="", remote_address="@")

    assert format_client(client, CONNECTED_AT_S).startswith("[V2 :                    ] state: 0")


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0.0, "0.0ns"),
        (999.94, "999.9ns"),
        (1000.0, "1000.0ns"),
        (1001.0, "1.0us"),
        (2_500_000.0, "2.5ms"),
        (1e9, "1000.0ms"),
        (61.25e9, "61.2s"),
    ],
)
def test_latency_has_one_decimal_and_its_unit(nanoseconds: float, text: str) -> None:
    assert format_latency(LatencyStats(1, ((1.0, nanoseconds),))) == text


def test_latencies_are_separated_by_commas() -> None:
    assert format_latency(LatencyStats(2, ((1.0, 2e9), (0.5, 1500.0)))) == "2.0s, 1.5us"


@pytest.mark.parametrize(
    ("zone", "text"),
    [
        ("UTC", "2023-11-14T22:13:20Z"),
        ("Asia/Kolkata", "2023-11-15T03:43:20+05:30"),
        ("America/New_York", "2023-11-14T17:13:20-05:00"),
    ],
)
def test_start_time_is_local(monkeypatch: pytest.MonkeyPatch, zone: str, text: str) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert format_rfc3339(1_700_000_000.9) == text
    finally:
        monkeypatch.undo()
        time.tzset()
