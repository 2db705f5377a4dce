"""IDENTIFY: what is accepted, what is answered, and what it changes (W-20 to W-46)."""

import json
import struct
from typing import Any

import pytest

from tests.support.running_daemon import RunningDaemon, StartNsqd
from tests.support.v2_client import V2Client, sized

REPLY_KEYS = [
    "max_rdy_count",
    "version",
    "max_msg_timeout",
    "msg_timeout",
    "tls_v1",
    "deflate",
    "deflate_level",
    "max_deflate_level",
    "snappy",
    "sample_rate",
    "auth_required",
    "output_buffer_size",
    "output_buffer_timeout",
    "topology_region",
    "topology_zone",
]


@pytest.mark.parametrize(
    "body", [b"{}", b"null", b' {"short_id": "x", "long_id": 5, "unknown": [1]} ']
)  # W-20 to W-22
async def test_identify_without_negotiation_is_ok(client: V2Client, body: bytes) -> None:
    client.command("IDENTIFY", body=body)

    await client.expect_ok()
    await client.settle()


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"1",
        b'"text"',
        b"{",
        b"{} {}",
        b"not json",
        b'{"heartbeat_interval": "1000"}',
        b'{"heartbeat_interval": 1000.5}',
        b'{"heartbeat_interval": 1000.0}',
        b'{"heartbeat_interval": true}',
        b'{"client_id": 5}',
        b'{"tls_v1": 1}',
        b'{"tls_v1": "true"}',
        b'{"sample_rate": 4294967296}',
        b'{"msg_timeout": 99999999999999999999}',
        b"[" * 50_000,
        b'{"a":' * 13_000,
    ],
    ids=lambda body: body[:30].decode(),
)  # W-21, W-24
async def test_what_is_no_good_json_is_refused(client: V2Client, body: bytes) -> None:
    client.command("IDENTIFY", body=body)

    await client.expect_error(b"E_BAD_BODY IDENTIFY failed to decode JSON body")


@pytest.mark.parametrize("key", ["HEARTBEAT_INTERVAL", "Heartbeat_Interval"])  # W-23
async def test_keys_match_in_any_case(client: V2Client, key: str) -> None:
    client.command("IDENTIFY", body=json.dumps({key: 999}).encode())

    await client.expect_error(b"E_BAD_BODY IDENTIFY heartbeat interval (999) is invalid")


@pytest.mark.parametrize("size", [0, -1, -(2**31)])  # W-25
async def test_size_that_is_none_is_refused(client: V2Client, size: int) -> None:
    client.send(b"IDENTIFY\n" + struct.pack(">i", size))

    await client.expect_error(f"E_BAD_BODY IDENTIFY invalid body size {size}".encode())


async def test_body_beyond_the_limit_is_refused_unread(start_nsqd: StartNsqd) -> None:  # W-26
    nsqd = await start_nsqd(max_body_size=100)
    client = await nsqd.connect()
    client.command("IDENTIFY", body=b"{}".ljust(100))
    await client.expect_ok()

    client.send(b"IDENTIFY\n" + struct.pack(">i", 101))

    await client.expect_error(b"E_BAD_BODY IDENTIFY body too big 101 > 100")


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"IDENTIFY\n\0\0", "E_BAD_BODY IDENTIFY failed to read body size"),
        (b"IDENTIFY\n\0\0\0\x09{", "E_BAD_BODY IDENTIFY failed to read body"),
        (b"AUTH\n\0\0", "E_BAD_BODY AUTH failed to read body size"),
        (b"AUTH\n\0\0\0\x09sec", "E_BAD_BODY AUTH failed to read body"),
    ],
)
async def test_eof_within_the_body_is_told(client: V2Client, sent: bytes, text: str) -> None:
    client.send(sent)

    client.end_output()

    await client.expect_error(text.encode())


async def test_negotiation_answers_with_15_keys(nsqd: RunningDaemon) -> None:  # W-27
    client = await nsqd.connect()
    client.send_identify(feature_negotiation=True)

    raw = await client.read_response()

    reply = json.loads(raw)
    assert list(reply) == REPLY_KEYS
    assert reply == {
        "max_rdy_count": 2500,
        "version": "1.3.0",
        "max_msg_timeout": 900_000,
        "msg_timeout": 60_000,
        "tls_v1": False,
        "deflate": False,
        "deflate_level": 6,
        "max_deflate_level": 6,
        "snappy": False,
        "sample_rate": 0,
        "auth_required": False,
        "output_buffer_size": 16384,
        "output_buffer_timeout": 250,
        "topology_region": "",
        "topology_zone": "",
    }
    assert b" " not in raw
    assert b"\n" not in raw


async def test_reply_shows_the_options(start_nsqd: StartNsqd) -> None:  # W-27, W-43, W-44
    nsqd = await start_nsqd(
        max_rdy_count=7,
        msg_timeout_s=5.0,
        max_msg_timeout_s=8.0,
        max_deflate_level=9,
        output_buffer_timeout_s=0.1,
        topology_region="r1",
        topology_zone="z1",
        auth_http_addresses=("127.0.0.1:1",),
    )
    client = await nsqd.connect()

    reply = await client.identify(topology_region="mine", topology_zone="mine")

    assert reply["max_rdy_count"] == 7
    assert (reply["msg_timeout"], reply["max_msg_timeout"]) == (5000, 8000)
    assert (reply["deflate_level"], reply["max_deflate_level"]) == (6, 9)
    assert reply["output_buffer_timeout"] == 100
    assert (reply["topology_region"], reply["topology_zone"]) == ("r1", "z1")
    assert reply["auth_required"] is True


async def test_compression_needs_negotiation(client: V2Client) -> None:  # W-28
    client.send_identify(snappy=True, deflate=True, tls_v1=True)

    await client.expect_ok()
    await client.settle()


@pytest.mark.parametrize(
    ("field", "value", "shown"),
    [
        ("heartbeat_interval", -1, None),
        ("heartbeat_interval", 0, None),
        ("heartbeat_interval", 1000, None),
        ("heartbeat_interval", 60_000, None),
        ("output_buffer_timeout", -1, 0),
        ("output_buffer_timeout", 0, 250),
        ("output_buffer_timeout", 25, 25),
        ("output_buffer_timeout", 30_000, 30_000),
        ("output_buffer_size", 0, 16384),
        ("output_buffer_size", 64, 64),
        ("output_buffer_size", 65536, 65536),
        ("sample_rate", 0, 0),
        ("sample_rate", 99, 99),
        ("msg_timeout", 0, 60_000),
        ("msg_timeout", 1000, 1000),
        ("msg_timeout", 900_000, 900_000),
        ("msg_timeout", None, 60_000),
    ],
)  # W-29 to W-35
async def test_value_within_its_range_is_taken(
    client: V2Client, field: str, value: int | None, shown: int | None
) -> None:
    reply = await client.identify(**{field: value})

    assert reply.get(field) == shown
    await client.settle()


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("heartbeat_interval", [999, 60_001, -2, 2**31]),
        ("output_buffer_timeout", [24, 30_001, -2]),
        ("output_buffer_size", [63, 65537, -2, 1]),
        ("sample_rate", [-1, 100]),
        ("msg_timeout", [999, -1, 900_001]),
    ],
)  # W-29 to W-34
async def test_value_out_of_its_range_is_refused(
    nsqd: RunningDaemon, field: str, values: list[int]
) -> None:
    for value in values:
        client = await nsqd.connect()
        client.send_identify(**{field: value})
        text = f"E_BAD_BODY IDENTIFY {field.replace('_', ' ')} ({value}) is invalid"
        await client.expect_error(text.encode())


async def test_first_bad_value_is_told(client: V2Client) -> None:
    client.send_identify(
        msg_timeout=1, sample_rate=-1, output_buffer_size=1, output_buffer_timeout=1
    )

    await client.expect_error(b"E_BAD_BODY IDENTIFY output buffer timeout (1) is invalid")


async def test_unbuffered_output_is_size_1_and_timeout_0(client: V2Client) -> None:  # W-32
    reply = await client.identify(output_buffer_size=-1)

    assert (reply["output_buffer_size"], reply["output_buffer_timeout"]) == (1, 0)


@pytest.mark.parametrize(
    ("asked", "level"), [({}, 6), ({"deflate_level": 3}, 6), ({"deflate_level": 9}, 6)]
)  # W-37
async def test_deflate_level_is_shown_without_deflate(
    client: V2Client, asked: dict[str, Any], level: int
) -> None:
    reply = await client.identify(**asked)

    assert (reply["deflate"], reply["deflate_level"]) == (False, level)


async def test_both_compressions_are_refused(client: V2Client) -> None:  # W-38
    client.send_identify(feature_negotiation=True, snappy=True, deflate=True)

    await client.expect_error(
        b"E_IDENTIFY_FAILED cannot enable both deflate and snappy compression"
    )


async def test_tls_without_a_certificate_is_not_granted(client: V2Client) -> None:  # W-39
    reply = await client.identify(tls_v1=True)

    assert reply["tls_v1"] is False
    await client.settle()


async def test_compression_that_is_turned_off_is_not_granted(start_nsqd: StartNsqd) -> None:  # W-46
    nsqd = await start_nsqd(snappy=False, deflate=False)
    client = await nsqd.connect()

    assert (await client.identify(snappy=True, deflate=True))["snappy"] is False

    await client.settle()
    assert (await client.identify(deflate=True))["deflate"] is False
    await client.settle()


async def test_identify_may_come_again_and_after_a_publish(nsqd: RunningDaemon) -> None:
    client = await nsqd.connect()  # W-40, W-42
    await client.identify(client_id="first", user_agent="a")
    await client.publish("t", b"x")

    reply = await client.identify(client_id="second", msg_timeout=5000)

    assert reply["msg_timeout"] == 5000
    await client.subscribe("t")
    stats = await nsqd.client_stats("t")
    assert (stats["client_id"], stats["user_agent"]) == ("second", "")


async def test_client_is_known_by_its_address_until_it_identifies(nsqd: RunningDaemon) -> None:
    client = await nsqd.connect()  # W-45
    await client.publish("t", b"x")
    [producer] = (await nsqd.stats())["producers"]
    assert (producer["client_id"], producer["hostname"]) == ("127.0.0.1", "127.0.0.1")
    assert producer["remote_address"] == client.local_address

    client.send_identify()
    await client.expect_ok()

    [producer] = (await nsqd.stats())["producers"]
    assert (producer["client_id"], producer["hostname"]) == ("", "")


async def test_what_a_client_says_of_itself_is_shown(nsqd: RunningDaemon) -> None:
    said: dict[str, Any] = {
        "client_id": "ein \u2603 Client",
        "hostname": "host",
        "user_agent": "agent/1",
        "sample_rate": 42,
        "topology_region": "r",
        "topology_zone": "z",
    }
    await nsqd.consumer("t", rdy=3, **said)

    stats = await nsqd.client_stats("t")

    assert {key: stats[key] for key in said} == said
    assert (stats["version"], stats["state"], stats["ready_count"]) == ("V2", 3, 3)


async def test_text_that_is_no_utf_8_does_no_harm(nsqd: RunningDaemon) -> None:
    client = await nsqd.connect()

    client.send(b"IDENTIFY\n" + sized(b'{"client_id": "a\xffb", "user_agent": "\\ud800"}'))

    await client.expect_ok()
    await client.subscribe("t")
    stats = await nsqd.client_stats("t")
    assert (stats["client_id"], stats["user_agent"]) == ("a\ufffdb", "\ufffd")
