"""/api/v2 in front of real daemons: figures, details, messages, clients, limits."""

import asyncio
import base64
import gzip

import pytest

from tests.nsqadmin.conftest import Cluster, StartAdmin
from tests.support.fake_farm import Farm
from tests.support.running_admin import RunningAdmin

NOT_FOUND = {
    "/api/v2/topics/none": "TOPIC_NOT_FOUND",
    "/api/v2/topics?topic=..": "TOPIC_NOT_FOUND",
    "/api/v2/topics/a%20b": "TOPIC_NOT_FOUND",
    "/api/v2/topics/topic_0000/none": "CHANNEL_NOT_FOUND",
    "/api/v2/topics/topic_0000/a%20b": "CHANNEL_NOT_FOUND",
    "/api/v2/nodes/169.254.169.254:80": "NODE_NOT_FOUND",
    "/api/v2/nodes/a@b": "NODE_NOT_FOUND",
    "/api/v2/nodes/%5B::1%5D:4151": "NODE_NOT_FOUND",
    f"/api/v2/nodes?node={'x' * 7000}": "NODE_NOT_FOUND",
    "/api/v2/clients?node=evil.example:80": "NODE_NOT_FOUND",
    "/api/v2/messages?topic=topic_0000&node=evil.example:80": "NODE_NOT_FOUND",
    "/api/v2/messages?topic=none": "TOPIC_NOT_FOUND",
    "/api/v2/limits/none": "TOPIC_NOT_FOUND",
    "/api/v2/actions/none": "ACTION_NOT_FOUND",
    "/api/v2/none": "NOT_FOUND",
}
BAD_ARGUMENTS = {
    "/api/v2/history?range=2h": "INVALID_ARG_RANGE",
    "/api/v2/messages?topic=topic_0000&count=0": "INVALID_ARG_COUNT",
    "/api/v2/messages?topic=topic_0000&count=101": "INVALID_ARG_COUNT",
    "/api/v2/messages?topic=topic_0000&count=1e9": "INVALID_ARG_COUNT",
    "/api/v2/messages?topic=topic_0000&where=heap": "INVALID_ARG_WHERE",
    "/api/v2/messages?topic=topic_0000&order=random": "INVALID_ARG_ORDER",
    "/api/v2/messages": "INVALID_ARG_TOPIC",
    "/api/v2/clients?kind=king": "INVALID_ARG_KIND",
    "/api/v2/sparklines": "INVALID_ARG_TOPICS",
    f"/api/v2/sparklines?topics={','.join(['t'] * 101)}": "INVALID_ARG_TOPICS",
    "/api/v2/audit?count=0": "INVALID_ARG_COUNT",
    "/api/v2/audit?before=x": "INVALID_ARG_BEFORE",
}


async def start_at(farm: Farm, start_admin: StartAdmin, **options: object) -> RunningAdmin:
    return await start_admin(lookupd_http_addresses=(f"127.0.0.1:{farm.port}",), **options)


async def test_figures_of_a_cluster(cluster: Cluster, start_admin: StartAdmin) -> None:
    await cluster.create("orders", "mail")
    await cluster.nsqds[0].publish("orders", b"one", b"two")
    consumer = await cluster.nsqds[1].consumer("orders", "mail", rdy=1, client_id="worker")
    admin = await start_admin(**cluster.options)
    await cluster.nsqds[0].publish("orders", b"three")
    await admin.round()

    me = await admin.get("/api/v2/me")
    assert [me[name] for name in ("role", "auth", "mode", "base_path")] == [
        *("admin", "none", "cluster", "/")
    ]
    overview = await admin.get("/api/v2/overview")
    assert overview["nodes"] == {"up": 2, "stale": 0, "gone": 0, "counted": 2}
    totals = overview["totals"]
    assert (totals["waiting"], totals["clients"], totals["topics"]) == (3, 1, 1)
    assert totals["in_rate"] == 0.0
    assert [state["ok"] for state in overview["lookupds"]] == [True]
    queues = await admin.get("/api/v2/queues")
    rows = [dict(zip(queues["columns"], row, strict=True)) for row in queues["rows"]]
    assert [(row["topic"], row["channel"], row["waiting"]) for row in rows] == [
        ("orders", None, 3),
        ("orders", "mail", 3),
    ]
    topic = await admin.get("/api/v2/topics/orders")
    assert [part["node"] for part in topic["node_list"]] == sorted(cluster.nodes)
    assert [channel["channel"] for channel in topic["channel_list"]] == ["mail"]
    channel = await admin.get("/api/v2/topics?topic=orders&channel=mail")
    assert sorted(part["depth"] for part in channel["node_list"]) == [0, 3]
    nodes = (await admin.get("/api/v2/nodes"))["nodes"]
    assert "peek" in nodes[0]["extensions"]
    node = await admin.get(f"/api/v2/nodes/{cluster.nodes[0]}")
    assert (node["waiting"], node["state"], node["health"]) == (3, "up", "OK")
    assert node["topic_list"][0]["channel_list"][0]["depth"] == 3
    assert node["options"]["max_msg_size"] == 1024 * 1024
    assert node["memory_bytes"] > 0
    clients = await admin.get("/api/v2/clients?topic=orders")
    [row] = clients["rows"]
    shown = dict(zip(clients["columns"], row, strict=True))
    assert (shown["client_id"], shown["ready_count"], shown["kind"]) == ("worker", 1, "consumer")
    history = await admin.get("/api/v2/history?topic=orders&channel=mail")
    assert history["series"]["depth"][-1] == 3
    sparks = await admin.get("/api/v2/sparklines?topics=orders,none")
    assert list(sparks["series"]) == ["orders"]
    assert len(sparks["series"]["orders"]) == 60
    await consumer.close()


async def test_fresh_details_are_of_this_moment(cluster: Cluster, start_admin: StartAdmin) -> None:
    await cluster.create("orders", "mail")
    admin = await start_admin(**cluster.options, poll_interval_s=600)
    await cluster.nsqds[0].publish("orders", b"one")

    assert (await admin.get("/api/v2/topics/orders"))["waiting"] == 0
    assert (await admin.get("/api/v2/topics/orders?fresh=1"))["waiting"] == 1
    assert (await admin.get("/api/v2/topics/orders/mail?fresh=1"))["depth"] == 1
    node = await admin.get(f"/api/v2/nodes/{cluster.nodes[0]}?fresh=1")
    assert node["topic_list"][0]["waiting"] == 1


async def test_a_poll_gets_what_changed(farm: Farm, start_admin: StartAdmin) -> None:
    admin = await start_at(farm, start_admin, poll_interval_s=600)
    await admin.round()
    first = await admin.get("/api/v2/queues")
    seq = first["seq"]
    assert (first["full"], len(first["rows"])) == (True, 12)

    for path in ("queues", "overview", "nodes"):
        reply = await admin.request("GET", f"/api/v2/{path}?since={seq}")
        assert (reply.status, reply.body) == (304, b""), path
    node = farm.nodes[0]
    node.queues[0]["depth"] += 7
    node.render()
    gone = farm.nodes[1].queues.pop()
    farm.nodes[1].render()
    farm.nodes[3].queues = [each for each in farm.nodes[3].queues if each is not gone]
    await admin.round()

    second = await admin.get(f"/api/v2/queues?since={seq}")
    assert not second["full"]
    changed = {row[0] for row in second["rows"] if row[1] is None}
    assert node.queues[0]["topic_name"] in changed
    assert len(second["rows"]) < 12
    for since in ("9" * 15, "-1", "text", "0", ""):
        assert (await admin.get(f"/api/v2/queues?since={since}"))["full"], since


@pytest.mark.parametrize("since", ["99999999999999", "-1", "now", "1e3", ""])
async def test_who_has_no_round_of_ours_gets_everything(
    farm: Farm, start_admin: StartAdmin, since: str
) -> None:
    admin = await start_at(farm, start_admin, poll_interval_s=600)
    await admin.round()

    answer = await admin.get(f"/api/v2/queues?since={since}")

    assert (answer["full"], len(answer["rows"])) == (True, 12)
    assert (await admin.get(f"/api/v2/overview?since={since}"))["totals"]["topics"] == 6


async def test_replies_are_compressed_and_in_no_cache(farm: Farm, start_admin: StartAdmin) -> None:
    admin = await start_at(farm, start_admin)

    for path in ("queues", "nodes", "me"):
        reply = await admin.request(
            "GET", f"/api/v2/{path}", headers={"Accept-Encoding": "br, gzip"}
        )
        assert reply.headers["content-encoding"] == "gzip"
        assert reply.headers["cache-control"] == "no-store"
        assert gzip.decompress(reply.body).startswith(b"{")
    plain = await admin.request("GET", "/api/v2/me", headers={"Accept-Encoding": "gzip;q=0"})
    assert "content-encoding" not in plain.headers


async def test_viewers_cost_the_nodes_nothing(farm: Farm, start_admin: StartAdmin) -> None:
    admin = await start_at(farm, start_admin, poll_interval_s=600)
    await admin.round()
    before = [node.stats_count for node in farm.nodes]

    paths = ("overview", "queues", "nodes", "history", "topics/topic_0000", "sparklines?topics=a")
    await asyncio.gather(*(admin.get(f"/api/v2/{path}") for path in paths * 5))

    assert [node.stats_count for node in farm.nodes] == before


async def test_what_is_not_there_and_bad_arguments(farm: Farm, start_admin: StartAdmin) -> None:
    admin = await start_at(farm, start_admin)

    for path, code in NOT_FOUND.items():
        assert (await admin.request("GET", path)).error == (404, code), path
    for path, code in BAD_ARGUMENTS.items():
        assert (await admin.request("GET", path)).error == (400, code), path
    asked = {target for node in farm.nodes for _, target in node.requests}
    assert not any("evil" in target for target in asked)


async def test_messages_are_looked_at_and_published(
    cluster: Cluster, start_admin: StartAdmin
) -> None:
    await cluster.create("orders", "mail")
    admin = await start_admin(**cluster.options, peek_max_body=16)
    first, second = cluster.nodes
    big = {"topic": "orders", "node": first, "body": "x" * 100}
    raw = {"topic": "orders", "node": second, "body_base64": base64.b64encode(b"\xff\x00").decode()}
    for body in (big, raw | {"count": 2}):
        reply = await admin.request("POST", "/api/v2/messages", body)
        assert reply.status == 200, reply
    await admin.round()

    found = await admin.get("/api/v2/messages?topic=orders&channel=mail")
    assert [message["node"] for message in found["messages"]] == [first, second, second]
    cut, whole, _ = found["messages"]
    assert (cut["body"], cut["cut"], cut["size"]) == ("x" * 16, True, 100)
    assert (whole["body_base64"], whole["cut"]) == ("/wA=", False)
    assert cut["timestamp"].isdecimal()
    path = f"/api/v2/messages/{first}/{cut['id']}?topic=orders&channel=mail"
    assert (await admin.get(path))["body"] == "x" * 100
    gone = path.replace(cut["id"], "0" * 16)
    assert (await admin.request("GET", gone)).error == (404, "MESSAGE_NOT_FOUND")
    only = await admin.get(f"/api/v2/messages?topic=orders&channel=mail&node={second}&count=1")
    assert [message["node"] for message in only["messages"]] == [second]
    newest = await admin.get("/api/v2/messages?topic=orders&channel=mail&order=newest")
    assert [message["node"] for message in newest["messages"]] == [second, second, first]
    # A look changes nothing.
    assert (await cluster.nsqds[0].channel("orders", "mail"))["depth"] == 1
    deferred = {"topic": "orders", "body": "later", "defer_ms": 60_000}
    assert (await admin.request("POST", "/api/v2/messages", deferred)).status == 200
    assert sum([(await n.channel("orders", "mail"))["deferred_count"] for n in cluster.nsqds]) == 1


async def test_a_new_message_behind_a_hundred_others_is_found_in_the_newest_order(
    cluster: Cluster, start_admin: StartAdmin
) -> None:
    await cluster.create("orders", "mail")
    admin = await start_admin(**cluster.options, peek_max_body=2)
    await cluster.nsqds[0].publish("orders", *(b"body %d" % number for number in range(150)))
    await admin.round()

    found = await admin.get("/api/v2/messages?topic=orders&channel=mail&count=1&order=newest")
    [newest] = found["messages"]
    path = f"/api/v2/messages/{cluster.nodes[0]}/{newest['id']}?topic=orders&channel=mail"

    assert (await admin.get(f"{path}&order=newest"))["body"] == "body 149"
    assert (await admin.request("GET", path)).error == (404, "MESSAGE_NOT_FOUND")


async def test_publishes_that_are_refused(cluster: Cluster, start_admin: StartAdmin) -> None:
    admin = await start_admin(**cluster.options)

    async def publish(**body: object) -> tuple[int, str]:
        return (await admin.request("POST", "/api/v2/messages", body)).error

    assert await publish(topic="a b", body="") == (400, "INVALID_TOPIC")
    assert (await publish(topic="t"))[1].startswith("INVALID_BODY")
    assert (await publish(topic="t", body="x", body_base64="eA=="))[0] == 400
    assert (await publish(topic="t", body_base64="!"))[1].startswith("INVALID_BODY")
    assert (await publish(topic="t", body="x", count=1001))[1].startswith("INVALID_COUNT")
    assert (await publish(topic="t", body="x", defer_ms=-1))[1].startswith("INVALID_DEFER")
    assert (await publish(topic="t", body="x", count=2, defer_ms=1))[0] == 400
    assert await publish(topic="t", body="x", node="evil:1") == (404, "NODE_NOT_FOUND")
    status, text = await publish(topic="t", body="x" * 1_100_000)
    assert (status, text.partition(":")[0]) == (502, "UPSTREAM_ERROR")
    assert text.endswith("MSG_TOO_BIG")


async def test_limits_and_who_differs(cluster: Cluster, start_admin: StartAdmin) -> None:
    await cluster.create("orders")
    admin = await start_admin(**cluster.options)
    assert (await admin.get("/api/v2/limits/orders"))["differs"] is False

    done = await admin.act(
        "set_limits",
        {"topic": "orders", "node": cluster.nodes[0]},
        params={"limits": {"max_depth": 5, "dead_letter_topic_suffix": ".dead"}},
    )

    assert done["counts"] == {"waiting": 0, "done": 1, "failed": 0}
    await asyncio.sleep(1)  # answers are kept for a second
    limits = await admin.get("/api/v2/limits?topic=orders")
    assert limits["differs"] is True
    values = {part["node"]: part["limits"]["max_depth"] for part in limits["node_list"]}
    assert values[cluster.nodes[0]] == {"value": 5, "source": "topic"}
    refused = await admin.act(
        "set_limits", {"topic": "orders"}, params={"limits": {"max_depth": "many"}}
    )
    assert {outcome["text"] for outcome in refused["outcomes"]} == {"HTTP 400 INVALID_MAX_DEPTH"}


async def test_nodes_that_only_look_like_ours_lack_what_they_lack(
    farm: Farm, start_admin: StartAdmin
) -> None:
    admin = await start_at(farm, start_admin)

    found = await admin.get("/api/v2/messages?topic=topic_0000")
    limits = await admin.get("/api/v2/limits/topic_0000")

    assert found["messages"] == []
    assert found["node_list"][0]["error"].startswith("NOT_SUPPORTED")
    assert limits["node_list"][0]["error"] == "NOT_SUPPORTED"
    node = found["node_list"][0]["node"]
    done = await admin.act("drain", {"node": node}, confirm=node)
    assert done["outcomes"][0]["text"] == "NOT_SUPPORTED: this nsqd cannot drain"
    done = await admin.act("replay", {"topic": "topic_0000", "node": node})
    assert done["outcomes"][0]["text"] == "NOT_SUPPORTED: this nsqd cannot replay"
    assert (await admin.get("/api/v2/dead-letters"))["unsupported_nodes"] == 4


async def test_dead_letters_go_back_to_the_channel_that_each_failed_in(
    cluster: Cluster, start_admin: StartAdmin
) -> None:
    await cluster.create("orders", "mail", "billing")
    admin = await start_admin(**cluster.options)
    limits = {"max_attempts": 1, "dead_letter_topic_suffix": ".dead"}
    await admin.act("set_limits", {"topic": "orders"}, params={"limits": limits})
    nsqd = cluster.nsqds[0]
    consumer = await nsqd.consumer("orders", "mail", rdy=1)
    await nsqd.publish("orders", b"bad")
    consumer.req(await consumer.read_message(), 0)
    await nsqd.wait_for_channel("orders", "mail", in_flight_count=0)
    await nsqd.publish("orders.dead", *[b"by hand"] * 3)
    await admin.round()

    shown = (await admin.get("/api/v2/messages?topic=orders.dead"))["messages"]
    limited = await admin.act("replay", {"topic": "orders.dead"}, params={"count": 1, "rate": 1})
    done = await admin.act("replay", {"topic": "orders.dead"}, params={})

    origin = shown[0]["origin"]
    assert (origin["topic"], origin["channel"]) == ("orders", "mail")
    assert (origin["reason"], origin["attempts"]) == ("attempts", 1)
    assert origin["timestamp_ms"] <= shown[0]["timestamp_ms"]
    assert int(origin["timestamp"]) // 1_000_000 == origin["timestamp_ms"]
    assert "origin" not in shown[1]
    assert (limited["moved"], done["moved"]) == (1, 0)
    [outcome] = done["outcomes"]
    assert (outcome["left"], outcome["kept"]) == (3, {"ORIGIN_UNKNOWN": 3})
    assert (await consumer.read_message()).body == b"bad"
    await nsqd.wait_for_channel("orders", "billing", depth=1)
    await consumer.close()


async def test_dead_letters_behind_some_that_stay_are_replayed_step_by_step(
    cluster: Cluster, start_admin: StartAdmin
) -> None:
    await cluster.create("orders", "mail")
    admin = await start_admin(**cluster.options)
    limits = {"max_attempts": 1, "dead_letter_topic_suffix": ".dead"}
    await admin.act("set_limits", {"topic": "orders"}, params={"limits": limits})
    nsqd = cluster.nsqds[0]
    await nsqd.publish("orders.dead", *[b"by hand"] * 5)
    consumer = await nsqd.consumer("orders", "mail", rdy=1)
    await nsqd.publish("orders", *[b"bad"] * 6)
    for _ in range(6):
        consumer.req(await consumer.read_message(), 0)
    await nsqd.wait_for_channel("orders", "mail", depth=0, in_flight_count=0)
    await consumer.close()
    await admin.round()

    done = await admin.act("replay", {"topic": "orders.dead"}, params={"rate": 4})

    assert done["moved"] == 6
    [outcome] = done["outcomes"]
    assert (outcome["left"], outcome["kept"]) == (5, {"ORIGIN_UNKNOWN": 5})
    await nsqd.wait_for_channel("orders", "mail", depth=6)


async def test_dead_letters_are_listed_and_replayed(
    cluster: Cluster, start_admin: StartAdmin
) -> None:
    await cluster.create("orders", "mail")
    admin = await start_admin(**cluster.options)
    limits = {"max_attempts": 1, "dead_letter_topic_suffix": ".dead"}
    await admin.act("set_limits", {"topic": "orders"}, params={"limits": limits})
    nsqd = cluster.nsqds[0]
    consumer = await nsqd.consumer("orders", "mail", rdy=1)
    await nsqd.publish("orders", b"bad")
    message = await consumer.read_message()
    consumer.req(message, 0)
    await nsqd.wait_for_channel("orders", "mail", in_flight_count=0)
    await admin.round()

    [row] = (await admin.get("/api/v2/dead-letters"))["rows"]

    assert (row["topic"], row["dead_letter_topic"]) == ("orders", "orders.dead")
    assert (row["exists"], row["waiting"], row["dead_lettered_count"]) == (True, 1, 1)
    assert row["channels"] == [{"channel": "mail", "dead_lettered_count": 1}]
    assert row["limits"]["max_attempts"]["value"] == 1
    dead = {"topic": "orders.dead"}
    refused = await admin.act("move", dead, params={"to": "none"})
    assert refused["outcomes"][0]["text"] == "HTTP 404 TOPIC_NOT_FOUND"
    params = {"to": "orders", "to_channel": "mail", "rate": 500}
    done = await admin.act("move", dead, params=params)
    assert (done["moved"], done["outcomes"][0]["left"]) == (1, 0)
    again = await consumer.read_message()
    assert again.body == b"bad"
    await consumer.close()
