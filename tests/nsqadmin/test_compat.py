"""The Go nsqadmin's API, with the better thing where that stumbles."""

import json

from tests.nsqadmin.conftest import Cluster, StartAdmin
from tests.support.fake_farm import Farm


async def test_reads(cluster: Cluster, start_admin: StartAdmin) -> None:
    await cluster.create("orders", "mail")
    await cluster.nsqds[0].publish("orders", b"one", b"two")
    consumer = await cluster.nsqds[1].consumer("orders", "mail", client_id="worker")
    admin = await start_admin(**cluster.options)
    first, second = sorted(cluster.nodes)

    assert await admin.get("/api/topics") == {"topics": ["orders"], "message": ""}
    topic = await admin.get("/api/topics/orders")
    assert (topic["node"], topic["hostname"], topic["message_count"]) == ("*", "", 2)
    assert [part["node"] for part in topic["nodes"]] == [first, second]
    [channel] = topic["channels"]
    # Totals are objects of their own.
    assert (channel["node"], channel["depth"]) == ("*", 2)
    assert sorted(part["depth"] for part in channel["nodes"]) == [0, 2]
    channel = await admin.get("/api/topics/orders/mail")
    assert [client["client_id"] for client in channel["clients"]] == ["worker"]
    assert channel["clients"][0]["node"] == cluster.nodes[1]
    nodes = (await admin.get("/api/nodes"))["nodes"]
    assert [f"{node['broadcast_address']}:{node['http_port']}" for node in nodes] == [first, second]
    assert nodes[0]["topics"] == [{"topic": "orders", "tombstoned": False}]
    node = await admin.get(f"/api/nodes/{cluster.nodes[1]}")
    assert (node["total_messages"], node["total_clients"]) == (0, 1)
    counter = (await admin.get("/api/counter"))["stats"]
    assert counter[f"orders:mail:{cluster.nodes[0]}"]["message_count"] == 2
    await consumer.close()


async def test_what_is_not_there(cluster: Cluster, start_admin: StartAdmin) -> None:
    await cluster.create("orders", "mail")
    admin = await start_admin(**cluster.options)
    for path, error in {
        "/api/topics/none": (404, "TOPIC_NOT_FOUND"),
        "/api/topics/a%20b": (404, "TOPIC_NOT_FOUND"),
        "/api/topics/none/mail": (404, "TOPIC_NOT_FOUND"),
        "/api/topics/orders/none": (404, "CHANNEL_NOT_FOUND"),
        "/api/nodes/169.254.169.254:80": (404, "NODE_NOT_FOUND"),
        f"/api/nodes/{'x' * 7000}": (404, "NODE_NOT_FOUND"),
        "/api/none": (404, "NOT_FOUND"),
        "/api/graphite": (400, "INVALID_ARG_METRIC"),
        "/api/graphite?metric=rate": (400, "INVALID_ARG_TARGET"),
        "/render?target=x": (404, "NOT_FOUND"),
    }.items():
        assert (await admin.request("GET", path)).error == error, path
    assert await admin.get("/api/graphite?metric=rate&target=x") == {"rate": "N/A"}
    assert (await admin.request("HEAD", "/api/topics")).status == 405
    assert (await admin.request("GET", "/api/topics/")).status == 301
    assert (await admin.request("GET", "/ping")).body == b"OK"


async def test_writes(cluster: Cluster, start_admin: StartAdmin) -> None:
    await cluster.create("orders", "mail")
    await cluster.nsqds[0].publish("orders", b"one")
    admin = await start_admin(**cluster.options)

    async def call(method: str, path: str, body: object = None) -> None:
        reply = await admin.request(method, path, body)
        assert (reply.status, reply.json()) == (200, {"message": ""}), path

    await call("POST", "/api/topics/orders", {"action": "pause"})
    assert [(await nsqd.topic("orders"))["paused"] for nsqd in cluster.nsqds] == [True, True]
    await call("POST", "/api/topics/orders/mail", {"action": "pause"})
    assert (await cluster.nsqds[1].channel("orders", "mail"))["paused"] is True
    await call("POST", "/api/topics/orders/mail", {"action": "empty"})
    assert (await cluster.nsqds[0].channel("orders", "mail"))["depth"] == 0
    await call("POST", "/api/topics", {"topic": "fresh", "channel": "c"})
    inactive = await admin.get("/api/topics?inactive=true")
    assert inactive["topics"] == {"fresh": ["c"]}
    await call("DELETE", "/api/topics/fresh")
    assert (await admin.get("/api/topics"))["topics"] == ["orders"]
    await call("DELETE", "/api/topics/orders/mail")
    assert await cluster.nsqds[0].find_channel("orders", "mail") is None
    await call("DELETE", f"/api/nodes/{cluster.nodes[0]}", {"topic": "orders"})
    assert await cluster.nsqds[0].find_topic("orders") is None
    assert await cluster.nsqds[1].find_topic("orders") is not None
    await call("DELETE", "/api/topics/orders")
    assert await cluster.nsqds[1].find_topic("orders") is None


BAD_INPUT = [
    ("POST", "/api/topics", b"", 400),
    ("POST", "/api/topics", b"null", 400),
    ("POST", "/api/topics", b"[]", 400),
    ("POST", "/api/topics", b'{"topic": 5}', 400),
    ("POST", "/api/topics", b"\xff\xfe", 400),
    ("POST", "/api/topics", b"[" * 60_000, 400),
    ("POST", "/api/topics", b'{"topic": "a b"}', 400),
    ("POST", "/api/topics", b'{"topic": "a", "channel": "a/b"}', 400),
    ("POST", "/api/topics", b" " * 70_000, 413),
    ("POST", "/api/topics/orders", b'{"action": "explode"}', 400),
    ("POST", "/api/topics/a%20b", b'{"action": "empty"}', 400),
    ("POST", "/api/topics/none", b'{"action": "empty"}', 404),
    ("DELETE", "/api/topics/none", b"", 404),
    ("DELETE", "/api/topics/%00", b"", 400),
    ("DELETE", f"/api/topics/{'x' * 65}", b"", 400),
    ("DELETE", "/api/nodes/evil.example:80", b'{"topic": "orders"}', 404),
    ("DELETE", "/api/nodes/evil.example:80", b'{"topic": ""}', 400),
    ("PUT", "/config/log_level", b"", 413),
    ("PUT", "/config/log_level", b"loud", 400),
    ("PUT", "/config/none", b"x", 400),
    ("PUT", "/config/nsqlookupd_http_addresses", b'["nonsense"]', 400),
    ("GET", "/config/none", b"", 400),
]


async def test_bad_input_has_an_exact_error(start_admin: StartAdmin, farm: Farm) -> None:
    admin = await start_admin(lookupd_http_addresses=(f"127.0.0.1:{farm.port}",))
    for method, path, body, status in BAD_INPUT:
        reply = await admin.request(method, path, body)
        assert reply.status == status, (method, path, body[:20], reply)
        assert set(reply.json()) == {"message"}


async def test_without_nsqlookupd(cluster: Cluster, start_admin: StartAdmin) -> None:
    await cluster.create("orders")
    dead = "127.0.0.1:9"
    admin = await start_admin(nsqd_http_addresses=(*cluster.nodes, dead))

    created = await admin.request("POST", "/api/topics", {"topic": "fresh", "channel": "c"})

    assert created.json()["message"].startswith("WARNING: ")
    assert await cluster.nsqds[1].find_channel("fresh", "c") is not None
    answer = await admin.get("/api/topics")
    assert answer == {"topics": ["fresh", "orders"], "message": answer["message"]}
    assert answer["message"] == f"WARNING: {dead}: connection refused"
    assert len((await admin.get("/api/nodes"))["nodes"]) == 2
    assert await admin.get("/api/topics?inactive=true") == {"topics": {}, "message": ""}


async def test_when_nobody_answers(start_admin: StartAdmin) -> None:
    admin = await start_admin(lookupd_http_addresses=("127.0.0.1:9", "127.0.0.1:10"))

    for method, path, body in (
        ("GET", "/api/topics", None),
        ("GET", "/api/nodes", None),
        ("GET", "/api/topics/t", None),
        ("POST", "/api/topics/t", {"action": "pause"}),
    ):
        reply = await admin.request(method, path, body)
        assert reply.status == 502
        assert reply.json()["message"] == (
            "UPSTREAM_ERROR: failed to query any nsqlookupd:"
            " 127.0.0.1:9: connection refused\n127.0.0.1:10: connection refused"
        )
    overview = await admin.get("/api/v2/overview")
    assert "discovery_failed" in {finding["kind"] for finding in overview["findings"]}


async def test_config_is_for_the_networks_that_are_named(
    start_admin: StartAdmin, farm: Farm
) -> None:
    admin = await start_admin(
        lookupd_http_addresses=(f"127.0.0.1:{farm.port}",), allow_config_from_cidr="10.0.0.0/8"
    )

    for method, body in (("GET", b""), ("PUT", b"info")):
        reply = await admin.request(method, "/config/log_level", body)
        assert reply.status == 403, method


async def test_config(start_admin: StartAdmin, cluster: Cluster) -> None:
    other = await cluster.add_lookupd()
    options = {"lookupd_http_addresses": (f"127.0.0.1:{cluster.lookupds[0].http_port}",)}
    admin = await start_admin(**options, notification_http_endpoint="http://u:p@127.0.0.1:9/x")

    assert await admin.get("/config/log_level") == 2
    assert await admin.get("/config/http_client_request_timeout") == 5_000_000_000
    assert (await admin.request("GET", "/config/notification_http_endpoint")).body == b"***"
    addresses = [f"127.0.0.1:{other.http_port}"]
    reply = await admin.request("PUT", "/config/nsqlookupd_http_addresses", addresses)
    assert reply.json() == addresses
    assert (await admin.get("/api/nodes"))["nodes"] == []
    assert json.loads((await admin.request("PUT", "/config/log_level", b"info")).body) == 2
