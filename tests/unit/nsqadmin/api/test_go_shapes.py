from typing import Any

from nsqadmin.api.go_shapes import (
    find_newest,
    merge_channel,
    merge_topic,
    parse_version,
    read_topics,
    show_node,
)
from nsqadmin.cluster.discovery import Producer
from nsqadmin.cluster.upstream import Address


def make_producer(name: str, **more: Any) -> Producer:
    return Producer(Address(name, 4151), name, 4151, 4150, hostname=name, **more)


def make_stats(depth: int, count: int, value: float, **client: Any) -> dict[str, Any]:
    latency = {"count": count, "percentiles": [{"quantile": 0.99, "value": value}]}
    channel = {
        "channel_name": "c",
        "depth": depth,
        "backend_depth": 1,
        "message_count": 9,
        "client_count": 1,
        "clients": [{"client_id": "w", "connect_ts": 1, "hostname": "h", **client}],
        "e2e_processing_latency": latency,
        "zone_local_msg_count": 4,
    }
    topic = {"topic_name": "t", "depth": depth, "backend_depth": 0, "message_count": 9}
    return {"topics": [topic | {"channels": [channel], "e2e_processing_latency": latency}]}


def read_parts() -> list[dict[str, Any]]:
    [one] = read_topics(make_stats(5, 1, 100.0), make_producer("b", zone="z"))
    [two] = read_topics(make_stats(7, 3, 200.0, topology_zone="z"), make_producer("a", zone="z"))
    return [one, two]


def test_totals_are_objects_of_their_own() -> None:
    merged = merge_topic("t", read_parts())

    assert (merged["node"], merged["hostname"], merged["depth"]) == ("*", "", 12)
    assert [part["node"] for part in merged["nodes"]] == ["a:4151", "b:4151"]
    [channel] = merged["channels"]
    assert (channel["node"], channel["depth"], channel["memory_depth"]) == ("*", 12, 10)
    assert [part["depth"] for part in channel["nodes"]] == [7, 5]
    assert merged["delivery_msg_count"] == merged["zone_local_msg_count"] == 8
    assert "region_local_msg_count" not in merged


def test_percentiles_have_a_true_minimum() -> None:
    parts = [part["channels"][0] for part in read_parts()]

    latency = merge_channel("t", "c", parts)["e2e_processing_latency"]

    assert latency["count"] == 4
    [percentile] = latency["percentiles"]
    assert percentile == {"average": 175, "count": 4, "max": 200, "min": 100, "quantile": 0.99}


def test_clients_of_the_own_zone_come_first_within_a_node() -> None:
    producer = make_producer("n", zone="z")
    stats = make_stats(1, 0, 0.0)
    clients = stats["topics"][0]["channels"][0]["clients"]
    clients.append({"client_id": "near", "hostname": "x", "topology_zone": "z"})

    [topic] = read_topics(stats, producer)
    merged = merge_channel("t", "c", topic["channels"])

    assert [client["client_id"] for client in merged["clients"]] == ["near", "w"]
    assert merged["clients"][1]["node_topology_zone"] == "z"


def test_nothing_merges_to_empty_lists() -> None:
    merged = merge_topic("t", [])

    assert (merged["nodes"], merged["channels"], merged["depth"]) == ([], [], 0)
    assert merge_channel("t", "c", [])["clients"] == []


def test_strange_stats_are_read_as_nothing() -> None:
    producer = make_producer("n")

    strange: list[object] = [None, [], {"topics": 5}]
    for stats in (*strange, {"topics": [5, {"depth": "x", "channels": [7]}]}):
        for topic in read_topics(stats, producer):
            assert topic["depth"] == 0


def test_versions() -> None:
    nodes = [make_producer("a", version="1.2.1"), make_producer("b", version="1.10.0-alpha")]
    newest = find_newest(nodes)

    assert newest == (1, 10, 0)
    assert [show_node(node, newest)["out_of_date"] for node in nodes] == [True, False]
    assert parse_version("unknown") == ()
    assert "topology_zone" not in show_node(nodes[0], newest)
