"""Actions: what they do, who confirms, what they leave in the audit trail."""

import asyncio
import json
from pathlib import Path

from tests.nsqadmin.conftest import Cluster, StartAdmin
from tests.support.fake_farm import Farm

BAD_REQUESTS: list[tuple[dict[str, object], int, str]] = [
    ({"action": "explode", "targets": [{"topic": "t"}]}, 400, "INVALID_ACTION"),
    ({"action": "pause"}, 400, "INVALID_TARGETS"),
    ({"action": "pause", "targets": []}, 400, "INVALID_TARGETS"),
    ({"action": "pause", "targets": [5]}, 400, "INVALID_TARGETS"),
    ({"action": "pause", "targets": [{"topic": 5}]}, 400, "INVALID_TARGETS"),
    ({"action": "pause", "targets": [{"topic": "t"}] * 2}, 400, "INVALID_TARGETS"),
    (
        {"action": "pause", "targets": [{"topic": f"t{n}"} for n in range(501)]},
        400,
        "TOO_MANY_TARGETS",
    ),
    ({"action": "pause", "targets": [{"topic": "a b"}]}, 400, "INVALID_TOPIC"),
    ({"action": "pause", "targets": [{"topic": "t", "channel": "a b"}]}, 400, "INVALID_CHANNEL"),
    ({"action": "tombstone", "targets": [{"topic": "t"}]}, 400, "INVALID_TARGETS"),
    ({"action": "drain", "targets": [{"topic": "t", "node": "n"}]}, 400, "INVALID_TARGETS"),
    ({"action": "create", "targets": [{"topic": "t", "node": "n"}]}, 400, "INVALID_TARGETS"),
    ({"action": "pause", "targets": [{"topic": "t", "node": "evil:1"}]}, 404, "NODE_NOT_FOUND"),
    ({"action": "empty", "targets": [{"topic": "t"}]}, 409, "WRONG_CONFIRMATION"),
    ({"action": "empty", "targets": [{"topic": "t"}], "confirm": "T"}, 409, "WRONG_CONFIRMATION"),
    (
        {"action": "pause", "targets": [{"topic": "t"}, {"topic": "u"}], "confirm": 3},
        *(409, "WRONG_CONFIRMATION"),
    ),
    ({"action": "move", "targets": [{"topic": "t"}], "params": {}}, 400, "INVALID_PARAMS"),
    (
        {"action": "set_log_level", "targets": [{"node": "n"}], "params": {"level": "loud"}},
        *(400, "INVALID_PARAMS"),
    ),
]


async def test_requests_that_are_wrong(farm: Farm, start_admin: StartAdmin) -> None:
    admin = await start_admin(lookupd_http_addresses=(f"127.0.0.1:{farm.port}",))

    for body, status, code in BAD_REQUESTS:
        reply = await admin.request("POST", "/api/v2/actions", body)
        message = reply.json()["message"]
        assert (reply.status, message.partition(":")[0]) == (status, code), (body, reply)


async def test_one_node_or_all(cluster: Cluster, start_admin: StartAdmin) -> None:
    await cluster.create("orders", "mail")
    admin = await start_admin(**cluster.options)
    mail = {"topic": "orders", "channel": "mail"}

    done = await admin.act("pause", mail | {"node": cluster.nodes[0]})

    assert [outcome["state"] for outcome in done["outcomes"]] == ["done"]
    paused = [(await nsqd.channel("orders", "mail"))["paused"] for nsqd in cluster.nsqds]
    assert paused == [True, False]
    await admin.round()
    overview = await admin.get("/api/v2/overview")
    assert [f["text"] for f in overview["findings"] if f["kind"] == "paused_differs"] == [
        "orders/mail is paused on 1 of 2 nodes"
    ]
    await admin.act("pause", mail)
    await admin.act("unpause", mail)
    assert not (await cluster.nsqds[1].channel("orders", "mail"))["paused"]


async def test_create_empty_delete_tombstone(cluster: Cluster, start_admin: StartAdmin) -> None:
    admin = await start_admin(**cluster.options)
    await cluster.create("orders", "mail")
    await cluster.nsqds[0].publish("orders", b"one")

    made = await admin.act("create", {"topic": "fresh", "channel": "c"})
    assert [outcome["state"] for outcome in made["outcomes"]] == ["done"]
    assert cluster.lookupds[0].registry.channel_names("fresh") == ["c"]
    emptied = await admin.act("empty", {"topic": "orders", "channel": "mail"}, confirm="mail")
    assert emptied["counts"]["done"] == 2
    assert (await cluster.nsqds[0].channel("orders", "mail"))["depth"] == 0
    await admin.round()
    hidden = await admin.act("tombstone", {"topic": "orders", "node": cluster.nodes[0]})
    assert hidden["counts"] == {"waiting": 0, "done": 2, "failed": 0}
    assert await cluster.nsqds[0].find_topic("orders") is None
    gone = await admin.act(
        "delete", {"topic": "orders"}, {"topic": "fresh"}, {"topic": "none"}, confirm=3
    )
    assert gone["counts"]["failed"] == 0
    assert await cluster.nsqds[1].find_topic("orders") is None
    assert cluster.lookupds[0].registry.topic_names() == []


async def test_a_node_that_refuses_does_not_stop_the_rest(
    farm: Farm, start_admin: StartAdmin, tmp_path: Path
) -> None:
    log = tmp_path / "audit.log"
    admin = await start_admin(
        lookupd_http_addresses=(f"127.0.0.1:{farm.port}",), audit_log=str(log)
    )
    farm.nodes[0].refusal = b'{"message":"INTERNAL_ERROR"}'
    topics = sorted({topic for node in farm.nodes for topic in node.topics})

    done = await admin.act("empty", *({"topic": topic} for topic in topics), confirm=len(topics))

    failed = [outcome for outcome in done["outcomes"] if outcome["state"] == "failed"]
    assert len(failed) == 3
    assert {outcome["text"] for outcome in failed} == {"HTTP 500 INTERNAL_ERROR"}
    assert done["counts"]["done"] == 9
    [entry] = (await admin.get("/api/v2/audit"))["entries"]
    assert (entry["action"], entry["outcome"], entry["target_count"]) == ("empty", "failed", 6)
    assert entry["text"] == "9 done, 3 failed"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["outcome"] for line in lines] == ["running", "failed"]


async def test_a_deleted_topic_is_an_outcome_for_the_second_operator(
    cluster: Cluster, start_admin: StartAdmin
) -> None:
    await cluster.create("orders")
    admin = await start_admin(**cluster.options, poll_interval_s=600)
    await admin.act("delete", {"topic": "orders"}, confirm="orders")

    done = await admin.act("empty", {"topic": "orders"}, confirm="orders")

    assert {outcome["text"].rpartition(" ")[2] for outcome in done["outcomes"]} <= {
        *("TOPIC_NOT_FOUND", "topic")
    }
    assert done["counts"]["done"] == 0


async def test_a_drain(cluster: Cluster, start_admin: StartAdmin) -> None:
    nsqd = await cluster.add_nsqd(drain_timeout_s=60.0)
    await nsqd.post("/topic/create?topic=held")
    await nsqd.publish("held", b"stays")
    admin = await start_admin(**cluster.options)
    node = cluster.nodes[2]

    done = await admin.act("drain", {"node": node}, confirm=node)

    assert done["counts"]["done"] == 1
    status, _ = await nsqd.request("GET", "/ready")
    assert status == 503


async def test_a_client_is_closed_and_a_log_level_set(
    cluster: Cluster, start_admin: StartAdmin
) -> None:
    await cluster.create("orders", "mail")
    consumer = await cluster.nsqds[0].consumer("orders", "mail")
    admin = await start_admin(**cluster.options)
    clients = await admin.get("/api/v2/clients?topic=orders")
    [row] = clients["rows"]
    address = row[clients["columns"].index("remote_address")]
    node = {"node": cluster.nodes[0]}

    closed = await admin.act("close_client", node, params={"remote_address": address})
    again = await admin.act("close_client", node, params={"remote_address": "127.0.0.1:1"})
    level = await admin.act("set_log_level", node, params={"level": "info"})

    assert closed["counts"]["done"] == level["counts"]["done"] == 1
    assert again["counts"]["failed"] == 1
    await consumer.read_response()  # CLOSE_WAIT
    await consumer.close()


async def test_what_runs_can_be_stopped(farm: Farm, start_admin: StartAdmin) -> None:
    admin = await start_admin(lookupd_http_addresses=(f"127.0.0.1:{farm.port}",))
    for node in farm.nodes:
        node.is_hanging = True
    topics = sorted({topic for node in farm.nodes for topic in node.topics})
    wanted = {
        "action": "pause",
        "targets": [{"topic": topic} for topic in topics],
        "confirm": str(len(topics)),
    }
    reply = await admin.request("POST", "/api/v2/actions", wanted)
    path = f"/api/v2/actions/{reply.json()['id']}"
    assert (await admin.get(path))["state"] == "running"

    stopped = await admin.request("DELETE", path)

    assert stopped.status == 200
    await farm.close()  # those that have begun end with an error
    while (await admin.get(path))["state"] == "running":  # noqa: ASYNC110 - as a page would
        await asyncio.sleep(0.01)
    assert (await admin.get(path))["counts"]["waiting"] == 0


async def test_changes_are_posted(cluster: Cluster, start_admin: StartAdmin) -> None:
    await cluster.create("orders", "mail")
    # An nsqd takes any POST.
    endpoint = f"http://{cluster.nodes[0]}/pub?topic=notes"
    admin = await start_admin(**cluster.options, notification_http_endpoint=endpoint)
    headers = {"Authorization": "Basic YWRhOnB3", "User-Agent": "curl/8"}
    await admin.request("POST", "/api/topics/orders/mail", {"action": "pause"}, headers=headers)
    await admin.act("unpause", {"topic": "orders"})

    posted: list[dict[str, object]] = []
    while len(posted) < 2:
        _, body = await cluster.nsqds[0].request("GET", "/topic/peek?topic=notes&format=json")
        posted = [json.loads(each["body"]) for each in json.loads(body).get("messages", [])]
    first, second = posted
    wanted = {"action": "pause_channel", "topic": "orders", "channel": "mail", "user": "ada"}
    assert first.items() >= wanted.items()
    assert str(first["url"]).endswith("/api/topics/orders/mail")
    assert (first["user_agent"], second["action"]) == ("curl/8", "unpause_topic")


async def test_a_dead_notification_endpoint_harms_nobody(
    cluster: Cluster, start_admin: StartAdmin
) -> None:
    await cluster.create("orders")
    admin = await start_admin(**cluster.options, notification_http_endpoint="http://127.0.0.1:9/")

    for action in ("pause", "unpause"):
        reply = await admin.request("POST", "/api/topics/orders", {"action": action})
        assert reply.json() == {"message": ""}
