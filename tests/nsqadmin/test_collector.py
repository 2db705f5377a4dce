"""The collector in front of nodes that fail, hang, lie, come and go."""

import asyncio
import json
from typing import Any

import pytest

from nsqadmin.cluster.upstream import Upstream
from tests.nsqadmin.conftest import Cluster, StartAdmin
from tests.support.fake_farm import Farm
from tests.support.running_admin import RunningAdmin
from tests.support.waiting import PATIENCE_S

# What nodes may answer in place of /stats; each must be marked failed, with a reason.
LIES = {
    "no JSON": b"<html>",
    "nested": b"[" * 100_000,
    "a list": b"[]",
    "negative": b'{"topics":[{"topic_name":"t","depth":-1,"backend_depth":0,"message_count":0,'
    b'"paused":false,"channels":[]}]}',
    "too large": b'{"topics":[{"topic_name":"t","depth":9223372036854775808,"backend_depth":0,'
    b'"message_count":0,"paused":false,"channels":[]}]}',
    "wrong types": b'{"topics":[{"topic_name":"t","depth":"1","backend_depth":0,'
    b'"message_count":0,"paused":false,"channels":[]}]}',
    "a name with HTML": b'{"topics":[{"topic_name":"<b>","depth":1,"backend_depth":0,'
    b'"message_count":0,"paused":false,"channels":[]}]}',
}


async def start_at(farm: Farm, start_admin: StartAdmin, **options: object) -> RunningAdmin:
    return await start_admin(lookupd_http_addresses=(f"127.0.0.1:{farm.port}",), **options)


async def find_node(admin: RunningAdmin, port: int) -> dict[str, Any]:
    nodes = (await admin.get("/api/v2/nodes"))["nodes"]
    return next(node for node in nodes if node["http_port"] == port)


async def test_a_node_that_lies_is_marked_and_the_others_are_not(
    farm: Farm, start_admin: StartAdmin
) -> None:
    admin = await start_at(farm, start_admin, poll_interval_s=600)
    liar = farm.nodes[0]
    before = await find_node(admin, liar.port)

    for name, body in LIES.items():
        liar.body = body
        admin.daemon.collector.find_node(f"127.0.0.1:{liar.port}").due_at = 0.0  # type: ignore[union-attr]
        await admin.round()
        node = await find_node(admin, liar.port)
        assert (node["state"], bool(node["error"])) == ("stale", True), name
        # Its last figures stay.
        assert node["waiting"] == before["waiting"]
        overview = await admin.get("/api/v2/overview")
        assert overview["nodes"] == {"up": 3, "stale": 1, "gone": 0, "counted": 4}
    overview = await admin.get("/api/v2/overview")
    assert [f["node"] for f in overview["findings"] if f["kind"] == "node_unreachable"] == [
        f"127.0.0.1:{liar.port}"
    ]
    liar.body, liar.status = None, 302
    await admin.round()
    assert (await find_node(admin, liar.port))["state"] == "stale"


async def test_a_redirect_is_a_failure_and_is_not_followed(
    farm: Farm, start_admin: StartAdmin
) -> None:
    liar = farm.nodes[0]
    liar.status = 302
    liar.body = b""

    admin = await start_at(farm, start_admin, poll_interval_s=600)

    node = await find_node(admin, liar.port)
    assert (node["state"], "302" in node["error"]) == ("stale", True)
    assert (await admin.get("/api/v2/overview"))["nodes"]["up"] == 3


async def test_a_node_that_fails_three_times_is_asked_less_often(
    farm: Farm, start_admin: StartAdmin
) -> None:
    admin = await start_at(farm, start_admin, poll_interval_s=600)
    farm.nodes[0].status = 500
    for _ in range(3):
        await admin.round()
    asked = farm.nodes[0].stats_count

    await admin.round()

    assert farm.nodes[0].stats_count == asked


async def test_a_counter_that_falls_is_a_gap(farm: Farm, start_admin: StartAdmin) -> None:
    admin = await start_at(farm, start_admin, poll_interval_s=600)
    farm.stir()
    await admin.daemon.collector.run_round()
    assert (await admin.get("/api/v2/overview"))["totals"]["in_rate"] > 0

    for node in farm.nodes:
        for topic in node.queues:
            topic["message_count"] = 1
            topic["channels"][0]["message_count"] = 1
        node.render()
    await admin.daemon.collector.run_round()

    totals = (await admin.get("/api/v2/overview"))["totals"]
    assert (totals["in_rate"], totals["out_rate"]) == (None, None)


async def test_nodes_that_leave_are_gone_and_come_back(
    cluster: Cluster, start_admin: StartAdmin
) -> None:
    admin = await start_admin(**cluster.options, poll_interval_s=600)
    await cluster.create("orders")
    await admin.round()
    nsqd = cluster.nsqds.pop()
    port = nsqd.daemon.http_port
    await nsqd.stop()

    await admin.round()

    node = await find_node(admin, port)
    assert node["state"] == "gone"
    overview = await admin.get("/api/v2/overview")
    assert (overview["nodes"]["gone"], overview["nodes"]["counted"]) == (1, 1)
    assert (await admin.get("/api/v2/topics/orders"))["nodes"] == 1
    reply = await admin.request(
        "POST", "/api/v2/messages", {"topic": "t", "body": "x", "node": node["node"]}
    )
    assert reply.error == (404, "NODE_NOT_FOUND")


async def test_when_all_nsqlookupds_are_down_the_last_state_stays(
    cluster: Cluster, start_admin: StartAdmin
) -> None:
    await cluster.add_lookupd()
    admin = await start_admin(**cluster.options, poll_interval_s=600)
    first, second = cluster.lookupds

    await second.close()
    await admin.round()
    overview = await admin.get("/api/v2/overview")
    assert [state["ok"] for state in overview["lookupds"]] == [True, False]
    assert "lookupd_unreachable" in {finding["kind"] for finding in overview["findings"]}
    await first.close()
    cluster.lookupds.clear()
    await admin.round()

    overview = await admin.get("/api/v2/overview")
    assert overview["nodes"]["up"] == len(cluster.nsqds)
    assert "discovery_failed" in {finding["kind"] for finding in overview["findings"]}


async def test_a_hanging_node_delays_nobody(farm: Farm, start_admin: StartAdmin) -> None:
    admin = await start_at(
        *(farm, start_admin), poll_interval_s=600, http_client_request_timeout_s=0.2
    )
    farm.nodes[0].is_hanging = True

    await admin.round()

    assert (await find_node(admin, farm.nodes[0].port))["state"] == "stale"
    assert (await admin.get("/api/v2/overview"))["nodes"]["up"] == 3
    clients = await admin.get("/api/v2/clients")
    assert (clients["asked"], clients["answered"], len(clients["errors"])) == (4, 3, 1)


async def test_what_hangs_is_not_waited_for_again(
    farm: Farm, start_admin: StartAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that failed, and an nsqlookupd that hangs, hold up no later round."""
    monkeypatch.setattr("nsqadmin.cluster.collector.PATIENCE_S", PATIENCE_S)
    monkeypatch.setattr("nsqadmin.cluster.collector.SILENCE_S", 0.01)
    monkeypatch.setattr("nsqadmin.cluster.collector.SHORT_PATIENCE_S", 0.01)
    other = Farm(nodes=0, topics=0, per_node=0)
    await other.start()
    lookupds = tuple(f"127.0.0.1:{each.port}" for each in (farm, other))
    admin = await start_admin(
        lookupd_http_addresses=lookupds, poll_interval_s=600, http_client_request_timeout_s=600
    )
    farm.nodes[0].status = 500
    await admin.round()
    farm.nodes[0].is_hanging = True
    other.is_hanging = True
    asked = farm.nodes[1].stats_count

    # Each would wait for longer than the test may last.
    async with asyncio.timeout(PATIENCE_S):
        await admin.daemon.collector.run_round()

    assert farm.nodes[1].stats_count > asked
    assert (await admin.get("/api/v2/overview"))["nodes"]["up"] == 3
    await other.close()


async def test_configured_nodes_have_the_names_that_they_give_themselves(
    cluster: Cluster, start_admin: StartAdmin
) -> None:
    port = cluster.nsqds[0].daemon.http_port
    admin = await start_admin(nsqd_http_addresses=(f"localhost:{port}", "127.0.0.1:9"))

    nodes = {node["node"]: node for node in (await admin.get("/api/v2/nodes"))["nodes"]}

    assert set(nodes) == {f"127.0.0.1:{port}", "127.0.0.1:9"}
    assert nodes["127.0.0.1:9"]["error"] == "connection refused"
    assert json.dumps(nodes[f"127.0.0.1:{port}"]["lookupds"]) == "[]"


async def test_a_large_answer_is_read_and_a_huge_one_is_cut(
    farm: Farm, start_admin: StartAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsqadmin.cluster.upstream.MAX_LARGE_REPLY_BYTES", 10 * 1024 * 1024)
    large, huge = farm.nodes[:2]
    document = large.respond("GET", "/stats")
    assert document is not None
    large.body = document[1] + b" " * (9 * 1024 * 1024)
    huge.body = document[1] + b" " * (11 * 1024 * 1024)

    admin = await start_at(farm, start_admin, poll_interval_s=600)

    assert (await find_node(admin, large.port))["state"] == "up"
    node = await find_node(admin, huge.port)
    assert node["error"] == "reply of more than 10485760 bytes"


async def test_nodes_of_ours_are_asked_for_what_changed(
    cluster: Cluster, start_admin: StartAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    get = Upstream.get

    async def note(self: Upstream, address: Any, target: str, **settings: Any) -> object:
        asked.append(target)
        return await get(self, address, target, **settings)

    monkeypatch.setattr(Upstream, "get", note)
    await cluster.create("orders", "mail")
    admin = await start_admin(**cluster.options)
    await admin.round()
    await admin.round()
    await cluster.nsqds[0].publish("orders", b"1", b"2")
    await cluster.nsqds[0].wait_for_channel("orders", "mail", depth=2)
    asked.clear()

    await admin.round()

    assert any("&since=" in target for target in asked)
    assert not any("format=json" in target for target in asked)
    assert (await admin.get("/api/v2/topics?topic=orders"))["waiting"] == 2
    await cluster.nsqds[0].post("/topic/delete?topic=orders")
    await cluster.nsqds[1].post("/topic/delete?topic=orders")
    await admin.round()
    assert (await admin.get("/api/v2/overview"))["totals"]["topics"] == 0
