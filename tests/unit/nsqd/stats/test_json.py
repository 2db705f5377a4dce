"""Clients in the JSON form of /stats: every key, and those left out when empty (S-6, S-12)."""

import json

from nsqd.stats.json import encode_client
from tests.support.snapshots import client_stats

ALWAYS = {
    "client_id": "id",
    "hostname": "hn2",
    "version": "V2",
    "remote_address": "127.0.0.1:47546",
    "state": 0,
    "ready_count": 0,
    "in_flight_count": 0,
    "message_count": 0,
    "finish_count": 0,
    "requeue_count": 0,
    "connect_ts": 1_700_000_000,
    "sample_rate": 0,
    "deflate": False,
    "snappy": False,
    "user_agent": "",
    "topology_zone": "",
    "topology_region": "",
    "tls": False,
    "tls_cipher_suite": "",
    "tls_version": "",
    "tls_negotiated_protocol": "",
    "tls_negotiated_protocol_is_mutual": False,
}


def test_an_idle_client_has_the_keys_that_are_always_there() -> None:
    assert json.loads(encode_client(client_stats())) == ALWAYS


def test_what_there_is_is_shown() -> None:
    client = client_stats(
        is_authed=True,
        auth_identity="bob",
        auth_identity_url="http://bob.example",
        is_tls=True,
        tls_version="TLS1.3",
        tls_cipher_suite="Unknown 4865",
        pub_counts=(("a", 1), ("b", 2)),
    )

    assert json.loads(encode_client(client)) == ALWAYS | {
        "authed": True,
        "auth_identity": "bob",
        "auth_identity_url": "http://bob.example",
        "tls": True,
        "tls_version": "TLS1.3",
        "tls_cipher_suite": "Unknown 4865",
        "tls_negotiated_protocol_is_mutual": True,
        "pub_counts": [{"topic": "a", "count": 1}, {"topic": "b", "count": 2}],
    }


def test_text_from_clients_is_escaped() -> None:
    client = client_stats(client_id='"\\\n\u2028<é>', user_agent="\x00")

    decoded = json.loads(encode_client(client))

    assert (decoded["client_id"], decoded["user_agent"]) == ('"\\\n\u2028<é>', "\x00")
