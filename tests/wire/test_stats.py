"""/stats: filters, clients and their fields, text and JSON (S-1 to S-13)."""

import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.auth_server import AuthServer, allow
from tests.support.certs import make_authority, make_server
from tests.support.http_client import HttpClient
from tests.support.running_daemon import RunningDaemon, StartNsqd
from tests.support.v2_client import Snappy, client_context


@pytest.fixture
async def http(nsqd: RunningDaemon) -> AsyncIterator[HttpClient]:
    async with await connect(nsqd) as client:
        yield client


async def connect(nsqd: RunningDaemon) -> HttpClient:
    return await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port))


async def stats(http: HttpClient, query: str = "") -> dict[str, Any]:
    reply = await http.get(f"/stats?format=json{query}")
    assert (reply.status, reply.headers["content-type"]) == (
        200,
        "application/json; charset=utf-8",
    )
    document: dict[str, Any] = reply.json()
    return document


async def test_an_idle_daemon(http: HttpClient) -> None:
    document = await stats(http)

    assert abs(document.pop("start_time") - time.time()) < 60
    assert 0 <= document.pop("loop_lag_usec_max") < 60e6
    assert document.pop("disk_free_bytes", 1) > 0
    assert document.pop("draining") is False
    assert set(document.pop("memory")) == {
        "heap_objects",
        "heap_idle_bytes",
        "heap_in_use_bytes",
        "heap_released_bytes",
        "gc_pause_usec_100",
        "gc_pause_usec_99",
        "gc_pause_usec_95",
        "next_gc_bytes",
        "gc_total_runs",
    }  # S-8
    assert document == {"version": "1.3.0", "health": "OK", "topics": [], "producers": None}


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        ("", "text/plain"),  # S-1
        ("?format=json", "application/json"),
        ("?format=JSON", "text/plain"),
        ("?format=text", "text/plain"),
    ],
)
async def test_format(http: HttpClient, query: str, kind: str) -> None:
    assert (await http.get(f"/stats{query}")).headers["content-type"].startswith(kind)


async def test_topics_and_channels_are_sorted(http: HttpClient) -> None:  # S-2
    for topic in ("c", "a", "b"):
        await http.post(f"/topic/create?topic={topic}")
        for channel in ("z", "x", "y"):
            await http.post(f"/channel/create?topic={topic}&channel={channel}")

    topics = (await stats(http))["topics"]

    assert [topic["topic_name"] for topic in topics] == ["a", "b", "c"]
    for topic in topics:
        assert [channel["channel_name"] for channel in topic["channels"]] == ["x", "y", "z"]


async def test_filters(nsqd: RunningDaemon, http: HttpClient) -> None:  # S-3, S-10
    for topic, channel in (("a", "x"), ("a", "y"), ("b", "y"), ("c", "z")):
        await nsqd.consumer(topic, channel)
    producer = await nsqd.connect()
    await producer.publish("a", b"1", b"2")
    await producer.publish("b", b"3")

    def names(document: dict[str, Any]) -> list[tuple[str, list[str]]]:
        return [
            (topic["topic_name"], [channel["channel_name"] for channel in topic["channels"]])
            for topic in document["topics"]
        ]

    everything = await stats(http)
    assert names(everything) == [("a", ["x", "y"]), ("b", ["y"]), ("c", ["z"])]
    [entry] = everything["producers"]
    assert entry["pub_counts"] == [{"topic": "a", "count": 2}, {"topic": "b", "count": 1}]

    only_b = await stats(http, "&topic=b")
    assert names(only_b) == [("b", ["y"])]
    [entry] = only_b["producers"]
    assert entry["pub_counts"] == [{"topic": "b", "count": 1}]

    only_c = await stats(http, "&topic=c")
    [entry] = only_c["producers"]
    assert "pub_counts" not in entry, "it has published, though not there"

    assert names(await stats(http, "&channel=y")) == [("a", ["y"]), ("b", ["y"])]
    assert names(await stats(http, "&topic=a&channel=x")) == [("a", ["x"])]
    assert (await stats(http, "&topic=a&channel=nope"))["topics"] == []
    unknown = await stats(http, "&topic=nope")
    assert (unknown["topics"], unknown["producers"]) == (None, None)


@pytest.mark.parametrize(("value", "is_there"), [("false", False), ("0", False), ("no", True)])
async def test_includes(
    nsqd: RunningDaemon, http: HttpClient, value: str, *, is_there: bool
) -> None:
    await nsqd.consumer("t")
    await nsqd.publish("t", b"x")
    producer = await nsqd.connect()
    await producer.publish("t", b"x")

    without = await stats(http, f"&include_clients={value}&include_mem={value}")

    [channel] = without["topics"][0]["channels"]
    assert channel["client_count"] == 1  # S-4
    assert (channel["clients"] is not None) is is_there
    assert (without["producers"] is not None) is is_there
    assert ("memory" in without) is is_there  # S-5


async def test_fields_of_topic_channel_and_clients(nsqd: RunningDaemon, http: HttpClient) -> None:
    producer = await nsqd.connect()  # S-6, S-7, S-9, S-11
    await producer.identify(client_id="prod", hostname="ph", user_agent="ua/1")
    consumer = await nsqd.consumer("t", "ch", rdy=2, client_id="cons", hostname="ch")
    await producer.publish("t", b"12345", b"678")
    messages = await consumer.read_messages(2)
    consumer.fin(messages[0])
    consumer.req(messages[1], 60_000)
    await nsqd.wait_for_channel("t", deferred_count=1)

    document = await stats(http)

    no_latency = {"count": 0, "percentiles": None}
    [topic] = document["topics"]
    [channel] = topic.pop("channels")
    assert topic == {
        "topic_name": "t",
        "depth": 0,
        "backend_depth": 0,
        "message_count": 2,
        "message_bytes": 8,
        "paused": False,
        "e2e_processing_latency": no_latency,
    }
    [client] = channel.pop("clients")
    assert channel == {
        "channel_name": "ch",
        "depth": 0,
        "backend_depth": 0,
        "in_flight_count": 0,
        "deferred_count": 1,
        "message_count": 2,
        "global_msg_count": 2,
        "requeue_count": 1,
        "timeout_count": 0,
        "finish_count": 1,
        "client_count": 1,
        "paused": False,
        "e2e_processing_latency": no_latency,
    }
    assert abs(client.pop("connect_ts") - time.time()) < 60
    common = {
        "version": "V2",
        "sample_rate": 0,
        "deflate": False,
        "snappy": False,
        "topology_zone": "",
        "topology_region": "",
        "tls": False,
        "tls_cipher_suite": "",
        "tls_version": "",
        "tls_negotiated_protocol": "",
        "tls_negotiated_protocol_is_mutual": False,
        "in_flight_count": 0,
    }
    assert client == common | {
        "client_id": "cons",
        "hostname": "ch",
        "user_agent": "",
        "remote_address": consumer.local_address,
        "state": 3,
        "ready_count": 2,
        "message_count": 2,
        "finish_count": 1,
        "requeue_count": 1,
    }
    [entry] = document["producers"]
    del entry["connect_ts"]
    assert entry == common | {
        "client_id": "prod",
        "hostname": "ph",
        "user_agent": "ua/1",
        "remote_address": producer.local_address,
        "state": 0,
        "ready_count": 0,
        "message_count": 0,
        "finish_count": 0,
        "requeue_count": 0,
        "pub_counts": [{"topic": "t", "count": 2}],
    }


async def test_a_client_that_says_nothing_is_known_by_its_address(
    nsqd: RunningDaemon, http: HttpClient
) -> None:
    await nsqd.consumer("t")

    [client] = (await stats(http))["topics"][0]["channels"][0]["clients"]

    assert (client["client_id"], client["hostname"]) == ("127.0.0.1", "127.0.0.1")


async def test_a_subscriber_that_publishes_is_a_producer_too(
    nsqd: RunningDaemon, http: HttpClient
) -> None:
    consumer = await nsqd.consumer("t")  # S-9
    await consumer.publish("u", b"x")

    document = await stats(http)

    [client] = document["topics"][0]["channels"][0]["clients"]
    assert document["producers"] == [client]
    assert client["pub_counts"] == [{"topic": "u", "count": 1}]


async def test_state_of_a_closing_client(nsqd: RunningDaemon) -> None:  # S-11
    consumer = await nsqd.consumer("t")
    consumer.command("CLS")
    await consumer.read_response()

    assert (await nsqd.client_stats("t"))["state"] == 4


async def test_negotiated_features_are_shown(nsqd: RunningDaemon) -> None:  # S-12
    consumer = await nsqd.connect()
    await consumer.identify(
        snappy=True, sample_rate=42, topology_zone="z", topology_region="r", user_agent="ua/2"
    )
    consumer.start_codec(Snappy())
    await consumer.expect_ok()
    await consumer.subscribe("t")

    client = await nsqd.client_stats("t")

    assert (client["snappy"], client["deflate"], client["sample_rate"]) == (True, False, 42)
    assert (client["topology_zone"], client["topology_region"]) == ("z", "r")
    assert client["user_agent"] == "ua/2"


async def test_tls_is_shown(start_nsqd: StartNsqd, tmp_path: Path) -> None:  # S-12
    authority = make_authority(tmp_path)
    server = make_server(tmp_path, authority)
    nsqd = await start_nsqd(tls_cert=server.cert_file, tls_key=server.key_file)
    consumer = await nsqd.connect()
    await consumer.identify(tls_v1=True)
    await consumer.start_tls(client_context(authority))
    await consumer.subscribe("t")

    client = await nsqd.client_stats("t")

    assert (client["tls"], client["tls_negotiated_protocol_is_mutual"]) == (True, True)
    assert client["tls_version"] == "TLS1.3"
    assert re.fullmatch(r"Unknown \d+", client["tls_cipher_suite"])
    assert client["tls_negotiated_protocol"] == ""


async def test_authorization_is_shown(start_nsqd: StartNsqd) -> None:  # S-12
    with AuthServer() as auth_server:
        auth_server.grant("secret", allow())
        nsqd = await start_nsqd(auth_http_addresses=(auth_server.address,))
        consumer = await nsqd.connect()
        consumer.command("AUTH", body=b"secret")
        await consumer.read_response()
        await consumer.subscribe("t")

        client = await nsqd.client_stats("t")

        assert client["authed"] is True
        assert client["auth_identity"] == "somebody"
        assert client["auth_identity_url"] == "http://somebody.example"


async def test_latencies(start_nsqd: StartNsqd) -> None:  # S-7
    nsqd = await start_nsqd(e2e_processing_latency_percentiles=(1.0, 0.5))
    consumer = await nsqd.consumer("t", rdy=10)
    await nsqd.publish("t", *[b"x"] * 4)
    for message in await consumer.read_messages(4):
        consumer.fin(message)
    await nsqd.wait_for_channel("t", in_flight_count=0)

    topic, channel = await nsqd.topic("t"), await nsqd.channel("t")

    for entry in (topic, channel):
        latency = entry["e2e_processing_latency"]
        assert latency["count"] == 4
        assert [item["quantile"] for item in latency["percentiles"]] == [1.0, 0.5]
        assert 0 < latency["percentiles"][1]["value"] <= latency["percentiles"][0]["value"] < 10e9


async def test_text(nsqd: RunningDaemon, http: HttpClient) -> None:  # S-13
    consumer = await nsqd.consumer("one", "ch", rdy=5, hostname="hn2", user_agent="")
    producer = await nsqd.connect()
    await producer.identify(hostname="hn", user_agent="ua/1")
    await producer.publish("one", b"x")
    await consumer.read_message()
    await nsqd.post("/topic/create?topic=two")
    await nsqd.post("/topic/pause?topic=two")
    consumer_port = consumer.local_address.partition(":")[2]
    producer_port = producer.local_address.partition(":")[2]

    text = (await http.get("/stats")).text

    head, _, rest = text.partition("\nTopics:\n")
    assert re.fullmatch(
        r"nsqd v1\.3\.0 \(built w/[^\n]+\)\n"
        r"start_time \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d)\n"
        r"uptime [0-9.]+(ms|s)\n"
        r"\nHealth: OK\nLoop lag: [0-9.]+ms at most, in the last minute\n"
        r"\nMemory:\n(   [a-z0-9_]{5,25} *\t\d+\n){9}",
        head,
    )
    assert re.sub(r"connected: \d+s", "connected: 0s", rest) == (
        "   [one            ] depth: 0     be-depth: 0     msgs: 1        e2e%: \n"
        "      [ch                       ] depth: 0     be-depth: 0     inflt: 1    def: 0    "
        "re-q: 0     timeout: 0     msgs: 1        e2e%: \n"
        f"        [V2 {f'hn2:{consumer_port} ':<21}] state: 3 inflt: 1    "
        "rdy: 5    fin: 0        re-q: 0        msgs: 1        connected: 0s\n"
        "\n"
        "*P [two            ] depth: 0     be-depth: 0     msgs: 0        e2e%: \n"
        "\nProducers:\n"
        f"   [V2 {f'hn:{producer_port} ua/1':<21}] msgs: 1        topics: one=1 connected: 0s\n"
    )


async def test_text_without_anything(http: HttpClient) -> None:  # S-13
    await http.post("/topic/create?topic=t")

    for query, expected in (
        ("?topic=nope&include_mem=false", "\nTopics: None\n\nProducers: None\n"),
        ("?channel=nope&include_mem=0", "\nTopics: None\n\nProducers: None\n"),
    ):
        text = (await http.get(f"/stats{query}")).text
        assert text.partition("in the last minute\n")[2] == expected
