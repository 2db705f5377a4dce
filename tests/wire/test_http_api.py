"""The HTTP API: routing, managing, options (H-1 to H-15, H-40 to H-52)."""

import asyncio
import errno
import json
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nsqd.config.kinds import TLSRequired
from tests.support.certs import Credentials, make_authority, make_server
from tests.support.http_client import HttpClient
from tests.support.running_daemon import RunningDaemon, StartNsqd

MAX_MSG_SIZE = 1000

V1 = ("x-nsq-content-type", "nsq; version=1.0")
TEXT = "text/plain; charset=utf-8"
JSON = "application/json; charset=utf-8"


@pytest.fixture
async def http(nsqd: RunningDaemon) -> AsyncIterator[HttpClient]:
    async with await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port)) as client:
        yield client


@pytest.fixture
async def small(start_nsqd: StartNsqd) -> RunningDaemon:
    return await start_nsqd(max_msg_size=MAX_MSG_SIZE)


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Credentials:
    directory = tmp_path_factory.mktemp("certs")
    return make_server(directory, make_authority(directory))


async def connect(nsqd: RunningDaemon) -> HttpClient:
    return await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port))


@pytest.mark.parametrize(
    "target", ["/topic/create?topic=new", "/channel/create?topic=t&channel=new", "/pub?topic=new"]
)
async def test_a_broker_that_has_closed_makes_nothing(
    nsqd: RunningDaemon, http: HttpClient, target: str
) -> None:
    await nsqd.publish("t", b"x")
    nsqd.daemon.broker.close()

    reply = await http.post(target, b"x")

    assert (reply.status, json.loads(reply.body)) == (503, {"message": "EXITING"})


class TestRouting:
    async def test_ping_is_plain(self, http: HttpClient) -> None:  # H-1, H-13
        reply = await http.get("/ping")

        assert (reply.status, reply.body, reply.headers["content-type"]) == (200, b"OK", TEXT)
        assert V1[0] not in reply.headers

    async def test_data_is_v1(self, http: HttpClient) -> None:  # H-1
        reply = await http.get("/info")

        assert (reply.status, reply.headers["content-type"]) == (200, JSON)
        assert reply.headers[V1[0]] == V1[1]

    async def test_errors_are_v1(self, http: HttpClient) -> None:  # H-2, H-3
        reply = await http.get("/nope")

        assert reply.error == (404, "NOT_FOUND")
        assert reply.headers[V1[0]] == V1[1]
        assert not reply.body.endswith(b"\n")

    @pytest.mark.parametrize(
        ("method", "path", "allow"),
        [
            ("POST", "/ping", "GET, OPTIONS"),
            ("GET", "/pub", "OPTIONS, POST"),
            ("POST", "/config/id", "GET, OPTIONS, PUT"),
            ("POST", "/metrics", "GET, OPTIONS"),
            ("GET", "/drain", "OPTIONS, POST"),
            ("GET", "/topic/create", "OPTIONS, POST"),
        ],
    )
    async def test_wrong_method(  # H-4
        self, http: HttpClient, method: str, path: str, allow: str
    ) -> None:
        reply = await http.request(method, path, b"")

        assert reply.error == (405, "METHOD_NOT_ALLOWED")
        assert reply.headers["allow"] == allow

    async def test_options_name_the_methods(self, http: HttpClient) -> None:  # H-6
        reply = await http.request("OPTIONS", "/ping")

        assert (reply.status, reply.body) == (200, b"")
        assert reply.headers["allow"] == "GET, OPTIONS"

    @pytest.mark.parametrize("path", ["/ping/", "/PING", "//ping", "/x/../ping"])
    async def test_redirect_to_the_clean_path(self, http: HttpClient, path: str) -> None:  # H-7
        reply = await http.get(path)

        assert (reply.status, reply.headers["location"]) == (301, "/ping")

    async def test_a_redirected_post_keeps_its_query(self, http: HttpClient) -> None:  # H-7
        reply = await http.post("/PUB?topic=t", b"x")

        assert (reply.status, reply.headers["location"]) == (307, "/pub?topic=t")

    @pytest.mark.parametrize(
        "target",
        ["/pub?topic=%zz", "/mpub?topic=a;b", "/topic/create?topic=%", "/channel/empty?a=;"],
    )
    async def test_a_query_that_cannot_be_parsed(  # H-8
        self, http: HttpClient, target: str
    ) -> None:
        assert (await http.post(target, b"x")).error == (400, "INVALID_REQUEST")

    async def test_parameters_in_a_form_are_not_used(self, http: HttpClient) -> None:  # H-15
        headers = {"Content-Type": "application/x-www-form-urlencoded"}

        reply = await http.request("POST", "/topic/create", b"topic=t", headers=headers)

        assert reply.error == (400, "MISSING_ARG_TOPIC")

    async def test_first_of_repeated_parameters_wins(
        self, nsqd: RunningDaemon, http: HttpClient
    ) -> None:
        await http.post("/topic/create?topic=first&topic=second")

        assert list(nsqd.daemon.broker.topics) == ["first"]

    async def test_info_has_twelve_keys(self, nsqd: RunningDaemon, http: HttpClient) -> None:
        info = (await http.get("/info")).json()  # H-14

        assert abs(info.pop("start_time") - time.time()) < 60
        assert info.pop("hostname")
        assert info.pop("broadcast_address") == nsqd.options.broadcast_address
        assert len(info.pop("node_id")) == 32  # ours
        assert info.pop("analytics") is True  # ours
        assert "move" in info.pop("extensions")  # ours
        assert info == {
            "version": "1.3.0",
            "http_port": nsqd.daemon.http_port,
            "tcp_port": nsqd.daemon.tcp_port,
            "max_heartbeat_interval": 60 * 10**9,
            "max_output_buffer_size": 65536,
            "max_output_buffer_timeout": 30 * 10**9,
            "max_deflate_level": 6,
            "topology_zone": "",
            "topology_region": "",
        }


class TestDoors:
    async def test_unix_sockets(self, start_nsqd: StartNsqd, tmp_path: Path) -> None:  # H-12, H-14
        path = str(tmp_path / "http.sock")
        await start_nsqd(http_address=path, tcp_address=str(tmp_path / "tcp.sock"))

        async with await HttpClient.connect(path) as http:
            info = (await http.get("/info")).json()
            ports = [
                (await http.get(f"/config/broadcast_{kind}_port")).json()
                for kind in ("tcp", "http")
            ]

        assert (info["http_port"], info["tcp_port"]) == (-1, -1)
        assert ports == [0, 0]

    async def test_https_serves_the_same_api(  # H-11
        self, start_nsqd: StartNsqd, credentials: Credentials
    ) -> None:
        nsqd = await start_nsqd(
            https_address="127.0.0.1:0",
            tls_cert=credentials.cert_file,
            tls_key=credentials.key_file,
        )

        async with await connect_tls(nsqd) as https:
            assert (await https.post("/pub?topic=t", b"x")).body == b"OK"

        assert (await nsqd.topic("t"))["depth"] == 1

    async def test_where_tls_is_required_plain_http_names_the_port(  # H-9
        self, start_nsqd: StartNsqd, credentials: Credentials
    ) -> None:
        nsqd = await start_nsqd(
            https_address="127.0.0.1:0",
            tls_cert=credentials.cert_file,
            tls_key=credentials.key_file,
            tls_required=TLSRequired.EVERYWHERE,
        )
        expected = f'{{"message": "TLS_REQUIRED", "https_port": {nsqd.daemon.https_port}}}'

        async with await connect(nsqd) as http:
            for method, target in (("GET", "/ping"), ("POST", "/pub?topic=t"), ("GET", "/nope")):
                reply = await http.request(method, target, b"x")
                assert (reply.status, reply.text) == (403, expected)
                assert reply.headers["content-type"] == JSON
                assert reply.headers[V1[0]] == V1[1]
        async with await connect_tls(nsqd) as https:
            assert (await https.get("/ping")).body == b"OK"

    async def test_tcp_https_leaves_plain_http_open(  # H-10
        self, start_nsqd: StartNsqd, credentials: Credentials
    ) -> None:
        nsqd = await start_nsqd(
            tls_cert=credentials.cert_file,
            tls_key=credentials.key_file,
            tls_required=TLSRequired.TCP_ONLY,
        )

        async with await connect(nsqd) as http:
            assert (await http.get("/ping")).body == b"OK"


async def connect_tls(nsqd: RunningDaemon) -> HttpClient:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return await HttpClient.connect(("127.0.0.1", nsqd.daemon.https_port), context=context)


class TestTopics:
    async def test_create_is_idempotent(self, nsqd: RunningDaemon, http: HttpClient) -> None:
        for _ in range(2):  # H-40
            reply = await http.post("/topic/create?topic=t")
            assert (reply.status, reply.body) == (200, b"")
            assert "content-type" not in reply.headers

        assert list(nsqd.daemon.broker.topics) == ["t"]

    @pytest.mark.parametrize("action", ["create", "delete", "empty", "pause", "unpause"])
    async def test_a_topic_must_be_named(self, http: HttpClient, action: str) -> None:
        assert (await http.post(f"/topic/{action}")).error == (400, "MISSING_ARG_TOPIC")

    @pytest.mark.parametrize("action", ["delete", "empty", "pause", "unpause"])
    async def test_unknown(self, http: HttpClient, action: str) -> None:  # H-41, H-42, H-43
        assert (await http.post(f"/topic/{action}?topic=t")).error == (404, "TOPIC_NOT_FOUND")

    @pytest.mark.parametrize(
        ("action", "status", "code"),
        [
            ("create", 400, "INVALID_TOPIC"),
            ("empty", 400, "INVALID_TOPIC"),
            ("delete", 404, "TOPIC_NOT_FOUND"),
            ("pause", 404, "TOPIC_NOT_FOUND"),
            ("unpause", 404, "TOPIC_NOT_FOUND"),
        ],
    )
    async def test_malformed(self, http: HttpClient, action: str, status: int, code: str) -> None:
        reply = await http.post(f"/topic/{action}?topic=a%20b")  # H-41, H-42

        assert reply.error == (status, code)

    async def test_empty_drops_what_waits(self, nsqd: RunningDaemon, http: HttpClient) -> None:
        await nsqd.publish("t", b"a", b"b")

        assert (await http.post("/topic/empty?topic=t")).status == 200

        topic = await nsqd.topic("t")
        assert (topic["depth"], topic["message_count"]) == (0, 2)

    async def test_pause_is_in_nsqd_dat_when_answered(
        self, nsqd: RunningDaemon, http: HttpClient, tmp_path: Path
    ) -> None:
        await http.post("/topic/create?topic=t")
        await http.post("/channel/create?topic=t&channel=c")
        for noun in ("topic", "channel"):
            for verb, expected in (("pause", True), ("unpause", False)):
                await http.post(f"/{noun}/{verb}?topic=t&channel=c")
                [topic] = json.loads((tmp_path / "nsqd.dat").read_bytes())["topics"]
                entry = topic if noun == "topic" else topic["channels"][0]
                assert entry["paused"] is expected

    async def test_delete_is_in_nsqd_dat_when_answered(
        self, nsqd: RunningDaemon, http: HttpClient, tmp_path: Path
    ) -> None:
        await http.post("/topic/create?topic=t")
        await nsqd.daemon.metadata.persist("t")

        await http.post("/topic/delete?topic=t")

        assert not json.loads((tmp_path / "nsqd.dat").read_bytes())["topics"]


class TestChannels:
    @pytest.mark.parametrize("action", ["create", "delete", "empty", "pause", "unpause"])
    async def test_errors(self, http: HttpClient, action: str) -> None:  # H-44
        path = f"/channel/{action}"
        await http.post("/topic/create?topic=t")

        for query, status, code in (
            ("", 400, "MISSING_ARG_TOPIC"),
            ("?topic=a%20b&channel=c", 400, "INVALID_ARG_TOPIC"),
            ("?topic=t", 400, "MISSING_ARG_CHANNEL"),
            ("?topic=t&channel=a%20b", 400, "INVALID_ARG_CHANNEL"),
            ("?topic=u&channel=c", 404, "TOPIC_NOT_FOUND"),  # H-45
        ):
            assert (await http.post(path + query)).error == (status, code)
        if action != "create":
            reply = await http.post(f"{path}?topic=t&channel=c")
            assert reply.error == (404, "CHANNEL_NOT_FOUND")

    async def test_create_is_idempotent_and_makes_no_topic(
        self, nsqd: RunningDaemon, http: HttpClient
    ) -> None:
        await http.post("/channel/create?topic=u&channel=c")
        await http.post("/topic/create?topic=t")
        for _ in range(2):  # H-46
            reply = await http.post("/channel/create?topic=t&channel=c")
            assert (reply.status, reply.body) == (200, b"")

        assert list(nsqd.daemon.broker.topics) == ["t"]
        assert list(nsqd.daemon.broker.topics["t"].channels) == ["c"]

    async def test_empty_and_delete(self, nsqd: RunningDaemon, http: HttpClient) -> None:
        await nsqd.consumer("t", "ch", rdy=1)
        await nsqd.publish("t", b"a", b"b")

        assert (await http.post("/channel/empty?topic=t&channel=ch")).status == 200
        channel = await nsqd.channel("t")
        assert (channel["depth"], channel["in_flight_count"]) == (0, 0)

        assert (await http.post("/channel/delete?topic=t&channel=ch")).status == 200
        assert await nsqd.find_channel("t") is None

    async def test_pause_stops_delivery(self, nsqd: RunningDaemon, http: HttpClient) -> None:
        consumer = await nsqd.consumer("t", rdy=1)
        await http.post("/channel/pause?topic=t&channel=ch")
        await nsqd.publish("t", b"a")
        await consumer.expect_quiet()

        await http.post("/channel/unpause?topic=t&channel=ch")

        assert (await consumer.read_message()).body == b"a"


class TestOldNames:
    @pytest.mark.parametrize("method", ["GET", "POST"])
    async def test_names_of_nsq_0_2(
        self, nsqd: RunningDaemon, http: HttpClient, method: str
    ) -> None:
        assert (await http.post("/put?topic=t", b"a")).body == b"OK"
        assert (await http.post("/mput?topic=t", b"b\nc")).body == b"OK"
        assert (await nsqd.topic("t"))["depth"] == 3
        for path in (
            "/create_topic?topic=u",
            "/create_channel?topic=u&channel=c",
            "/pause_channel?topic=u&channel=c",
            "/unpause_channel?topic=u&channel=c",
            "/empty_channel?topic=u&channel=c",
            "/delete_channel?topic=u&channel=c",
            "/pause_topic?topic=t",
            "/empty_topic?topic=t",
            "/delete_topic?topic=u",
        ):
            reply = await http.request(method, path)
            assert (reply.status, reply.body) == (200, b""), path

        topic = await nsqd.topic("t")
        assert (topic["depth"], topic["paused"]) == (0, True)
        assert list(nsqd.daemon.broker.topics) == ["t"]


class TestConfig:
    @pytest.mark.parametrize(
        ("key", "text"),
        [
            ("id", "7"),  # H-47
            ("nsqlookupd_tcp_addresses", "[]"),
            ("max_rdy_count", "2500"),
            ("msg_timeout", "60000000000"),  # H-48
            ("broadcast_address", "box.example"),
            ("data_path", None),
            ("topology_zone", ""),
            ("log_level", "2"),
            ("tls_required", "0"),
            ("tls_min_version", "771"),
            ("deflate", "true"),
            ("e2e_processing_latency_percentiles", "[1.0,0.5]"),
            ("statsd_prefix", None),
            ("broadcast_tcp_port", None),
            ("broadcast_http_port", "14151"),
            ("http_cors_origins", "[]"),
        ],
    )
    async def test_get(self, start_nsqd: StartNsqd, key: str, text: str | None) -> None:
        nsqd = await start_nsqd(
            node_id=7,
            broadcast_address="box.example",
            broadcast_http_port=14151,
            e2e_processing_latency_percentiles=(1.0, 0.5),
        )
        if key == "statsd_prefix":
            text = "nsq.box_example_14151."
        elif key == "broadcast_tcp_port":
            text = str(nsqd.daemon.tcp_port)
        elif key == "data_path":
            text = nsqd.options.data_path

        async with await connect(nsqd) as http:
            reply = await http.get(f"/config/{key}")

        assert (reply.status, reply.text) == (200, text)

    @pytest.mark.parametrize("key", ["node_id", "config", "version", "verbose", "nope"])
    async def test_unknown(self, http: HttpClient, key: str) -> None:  # H-47
        assert (await http.get(f"/config/{key}")).error == (400, "INVALID_OPTION")

    @pytest.mark.parametrize("path", ["/config", "/config/"])
    async def test_no_index(self, http: HttpClient, path: str) -> None:  # H-52
        assert (await http.get(path)).error == (404, "NOT_FOUND")

    async def test_put_log_level(self, http: HttpClient) -> None:  # H-49
        for level, number in ((b"DEBUG", b"1"), (b"error", b"4"), (b"Info", b"2")):
            reply = await http.request("PUT", "/config/log_level", level)
            assert (reply.status, reply.body) == (200, number)
            assert (await http.get("/config/log_level")).body == number

    async def test_put_lookupd_addresses(self, nsqd: RunningDaemon, http: HttpClient) -> None:
        path = "/config/nsqlookupd_tcp_addresses"  # H-50
        for body, expected in ((b'["127.0.0.1:1"]', ["127.0.0.1:1"]), (b"null", []), (b"[]", [])):
            reply = await http.request("PUT", path, body)
            assert (reply.status, reply.json()) == (200, expected)
            assert (await http.get(path)).json() == expected
            assert [peer.address for peer in nsqd.daemon.registration.peers] == expected

    @pytest.mark.parametrize(
        ("key", "body", "status", "code"),
        [
            ("log_level", b"warning", 400, "INVALID_VALUE"),  # H-49
            ("log_level", b"\xff", 400, "INVALID_VALUE"),
            ("log_level", b"", 413, "INVALID_VALUE"),  # H-51
            ("log_level", b"x" * (MAX_MSG_SIZE + 1), 413, "INVALID_VALUE"),
            ("nsqlookupd_tcp_addresses", b"not json", 400, "INVALID_VALUE"),  # H-50
            ("nsqlookupd_tcp_addresses", b'"a:1"', 400, "INVALID_VALUE"),
            ("nsqlookupd_tcp_addresses", b"[1]", 400, "INVALID_VALUE"),
            ("nsqlookupd_tcp_addresses", b"[" * 900, 400, "INVALID_VALUE"),
            ("nsqlookupd_tcp_addresses", rb'["\ud800:4160"]', 400, "INVALID_VALUE"),
            ("nsqlookupd_tcp_addresses", rb'["a\nb:4160"]', 400, "INVALID_VALUE"),
            ("max_rdy_count", b"5", 400, "INVALID_OPTION"),
            ("nope", b"", 413, "INVALID_VALUE"),
            ("nope", b"5", 400, "INVALID_OPTION"),
        ],
    )
    async def test_put_errors(
        self, small: RunningDaemon, key: str, body: bytes, status: int, code: str
    ) -> None:
        async with await connect(small) as http:
            reply = await http.request("PUT", f"/config/{key}", body)

        assert reply.error == (status, code)


async def test_unhealthy_is_told_until_a_write_succeeds(  # H-13
    nsqd: RunningDaemon, http: HttpClient
) -> None:
    error = OSError(errno.ENOSPC, "No space left on device")
    nsqd.daemon.broker.disk_health.wrote("t", error)

    ping, ready = await http.get("/ping"), await http.get("/ready")

    assert (ping.status, ping.text) == (500, "NOK - t: no space left on device")
    assert (ready.status, ready.text) == (503, "NOK - t: no space left on device")
    assert (await http.get("/stats?format=json")).json()["health"] == ping.text


async def test_requests_are_answered_in_order_with_slow_ones_between(
    nsqd: RunningDaemon, http: HttpClient
) -> None:
    http.send(
        b"GET /stats?format=json HTTP/1.1\r\nHost: x\r\n\r\n"
        b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx"
        b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
        b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"
    )

    replies = [await asyncio.wait_for(http.read_reply(), 10) for _ in range(4)]

    assert replies[0].json()["topics"] == [], "read before the publish behind it"
    assert replies[1].body == replies[3].body == b"OK"
    assert b'nsqd_topic_messages_total{topic="t"} 1\n' in replies[2].body
