"""The objects of the Go nsqadmin's API, made of the /stats of several nodes. Pure.

Where the Go one stumbles these do the better thing: totals are objects of their own, lists are
never null, and the minimum of percentiles is one.
"""

from collections.abc import Iterable, Mapping, Sequence
from time import time
from typing import Any, Final

from nsqadmin.cluster.discovery import Producer

Object = dict[str, Any]

_LOCALITIES: Final = ("zone_local_msg_count", "region_local_msg_count", "global_msg_count")
_TOPIC_COUNTS: Final = ("depth", "memory_depth", "backend_depth", "message_count")
_CHANNEL_COUNTS: Final = (
    *("depth", "memory_depth", "backend_depth", "in_flight_count", "deferred_count"),
    *("requeue_count", "timeout_count", "message_count", "client_count"),
)
_CLIENT_COUNTS: Final = (
    *("connect_ts", "in_flight_count", "ready_count", "finish_count", "requeue_count"),
    *("message_count", "sample_rate"),
)
_CLIENT_TEXTS: Final = (
    *("remote_address", "version", "client_id", "hostname", "user_agent", "auth_identity"),
    *("auth_identity_url", "tls_cipher_suite", "tls_version", "tls_negotiated_protocol"),
)
_CLIENT_FLAGS: Final = (
    *("deflate", "snappy", "authed", "tls", "tls_negotiated_protocol_is_mutual"),
)


def read_topics(stats: object, producer: Producer) -> list[Object]:
    """Return the topics of one node's /stats."""
    return [_read_topic(topic, producer) for topic in _objects(stats, "topics")]


def _read_topic(topic: Object, producer: Producer) -> Object:
    name = _text(topic, "topic_name")
    channels = [_read_channel(each, name, producer) for each in _objects(topic, "channels")]
    found: Object = {
        "node": producer.name,
        "hostname": producer.hostname,
        "topic_name": name,
        **_depths(topic),
        "message_count": _count(topic, "message_count"),
        "delivery_msg_count": sum(each.get("delivery_msg_count", 0) for each in channels),
        "nodes": [],
        "channels": channels,
        "paused": topic.get("paused") is True,
        "e2e_processing_latency": _read_latency(topic),
    }
    return found | _sum_present(channels, _LOCALITIES)


def _read_channel(channel: Object, topic_name: str, producer: Producer) -> Object:
    localities = {name: count for name in _LOCALITIES if (count := _count(channel, name))}
    found: Object = {
        "node": producer.name,
        "hostname": producer.hostname,
        "topic_name": topic_name,
        "channel_name": _text(channel, "channel_name"),
        **_depths(channel),
        **{name: _count(channel, name) for name in _CHANNEL_COUNTS[3:]},
        "nodes": [],
        "clients": [_read_client(each, producer) for each in _objects(channel, "clients")],
        "paused": channel.get("paused") is True,
        "e2e_processing_latency": _read_latency(channel),
        **localities,
    }
    if localities:
        found["delivery_msg_count"] = sum(localities.values())
    return found


def _read_client(client: Object, producer: Producer) -> Object:
    connect_ts = _count(client, "connect_ts")
    found: Object = {
        "node": producer.name,
        **{name: _text(client, name) for name in _CLIENT_TEXTS},
        **{name: _count(client, name) for name in _CLIENT_COUNTS},
        "connected": max(int((time() - connect_ts) * 1e9), 0),
        **{name: client.get(name) is True for name in _CLIENT_FLAGS},
    }
    optional = {
        "topology_region": _text(client, "topology_region"),
        "topology_zone": _text(client, "topology_zone"),
        "node_topology_region": producer.region,
        "node_topology_zone": producer.zone,
    }
    return found | {name: text for name, text in optional.items() if text}


def merge_topic(name: str, parts: Sequence[Object]) -> Object:
    """Return one topic of all nodes; its parts are the nodes'."""
    channels: dict[str, list[Object]] = {}
    for part in parts:
        for channel in part["channels"]:
            channels.setdefault(channel["channel_name"], []).append(channel)
    return {
        "node": "*",
        "hostname": "",
        "topic_name": name,
        **_sum_all(parts, _TOPIC_COUNTS),
        "delivery_msg_count": sum(part["delivery_msg_count"] for part in parts),
        "nodes": sorted(parts, key=lambda part: (part["hostname"], part["node"])),
        "channels": [merge_channel(name, each, found) for each, found in sorted(channels.items())],
        "paused": any(part["paused"] for part in parts),
        "e2e_processing_latency": _merge_latencies(parts, name, ""),
        **_sum_present(parts, _LOCALITIES),
    }


def merge_channel(topic_name: str, name: str, parts: Sequence[Object]) -> Object:
    """Return one channel of all nodes; its parts are the nodes', its clients those of all."""
    clients = [client for part in parts for client in part["clients"]]
    return {
        "node": "*",
        "hostname": "",
        "topic_name": topic_name,
        "channel_name": name,
        **_sum_all(parts, _CHANNEL_COUNTS),
        "nodes": sorted(parts, key=lambda part: (part["hostname"], part["node"])),
        "clients": sorted(clients, key=_rank_client),
        "paused": any(part["paused"] for part in parts),
        "e2e_processing_latency": _merge_latencies(parts, topic_name, name),
        **_sum_present(parts, ("delivery_msg_count", *_LOCALITIES)),
    }


def show_node(producer: Producer, newest: tuple[int, ...]) -> Object:
    """Return a node; it is out of date if its version is lower than the newest."""
    found: Object = {
        "remote_addresses": sorted(producer.remote_addresses or []),
        "remote_address": producer.remote_address,
        "hostname": producer.hostname,
        "broadcast_address": producer.broadcast_address,
        "tcp_port": producer.tcp_port,
        "http_port": producer.http_port,
        "version": producer.version,
        "topics": [
            {"topic": topic, "tombstoned": is_tombstoned}
            for topic, is_tombstoned in sorted(producer.topics.items())
        ],
        "out_of_date": parse_version(producer.version) < newest,
    }
    if producer.zone:
        found["topology_zone"] = producer.zone
    if producer.region:
        found["topology_region"] = producer.region
    return found


def parse_version(text: str) -> tuple[int, ...]:
    """Return the numbers of a version, for comparing; none for one that is no version."""
    numbers = text.partition("-")[0].split(".")
    if not all(number.isdecimal() and len(number) < 10 for number in numbers):
        return ()
    return tuple(map(int, numbers))


def find_newest(producers: Iterable[Producer]) -> tuple[int, ...]:
    """Return the highest version among nodes."""
    return max((parse_version(producer.version) for producer in producers), default=())


def merge_percentiles(latencies: Sequence[Mapping[str, Any]]) -> list[Object]:
    """Return the percentiles of several nodes by quantile: average, minimum, maximum, count."""
    quantiles: dict[float, list[tuple[int, float]]] = {}
    for latency in latencies:
        for item in latency["percentiles"]:
            value = item.get("value", item.get("average", 0))
            quantiles.setdefault(item["quantile"], []).append((latency["count"], value))
    merged = []
    for quantile, pairs in sorted(quantiles.items(), reverse=True):
        counted = [(count, value) for count, value in pairs if count]
        total = sum(count for count, _ in counted)
        average = sum(count * value for count, value in counted) / total if total else 0
        merged.append(
            {
                "average": average,
                "count": total,
                "max": max((value for _, value in counted), default=0),
                "min": min((value for _, value in counted), default=0),
                "quantile": quantile,
            }
        )
    return merged


def _merge_latencies(parts: Sequence[Object], topic: str, channel: str) -> Object:
    latencies = [part["e2e_processing_latency"] for part in parts]
    return {
        "count": sum(latency["count"] for latency in latencies),
        "percentiles": merge_percentiles(latencies),
        "topic": topic,
        "channel": channel,
        "host": "*",
    }


def _read_latency(queue: Object) -> Object:
    latency = queue.get("e2e_processing_latency")
    latency = latency if isinstance(latency, dict) else {}
    count = _count(latency, "count")
    percentiles = []
    for item in _objects(latency, "percentiles"):
        value, quantile = _number(item, "value"), _number(item, "quantile")
        percentiles.append(
            {
                "average": value,
                "count": count,
                "max": value,
                "min": value,
                "quantile": quantile,
                "value": value,
            }
        )
    return {"count": count, "percentiles": percentiles, "topic": "", "channel": "", "host": ""}


def _rank_client(client: Object) -> tuple[object, ...]:
    """Order clients by node, then those of the node's zone and region first."""
    zone, node_zone = client.get("topology_zone"), client.get("node_topology_zone")
    region, node_region = client.get("topology_region"), client.get("node_topology_region")
    is_far_zone = zone is None or zone != node_zone
    is_far_region = region is None or region != node_region
    return client["node"], is_far_zone, is_far_region, client["hostname"], client["remote_address"]


def _depths(queue: Object) -> Object:
    depth, backend = _count(queue, "depth"), _count(queue, "backend_depth")
    return {"depth": depth, "memory_depth": max(depth - backend, 0), "backend_depth": backend}


def _sum_all(parts: Sequence[Object], names: Iterable[str]) -> Object:
    return {name: sum(part[name] for part in parts) for name in names}


def _sum_present(parts: Sequence[Object], names: Iterable[str]) -> Object:
    """Add up the counts that are left out when they are 0."""
    sums = {name: sum(part.get(name, 0) for part in parts) for name in names}
    return {name: value for name, value in sums.items() if value}


def _objects(fields: object, name: str) -> list[Object]:
    items = fields.get(name) if isinstance(fields, dict) else None
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _count(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    return value if type(value) is int and 0 <= value < 2**63 else 0


def _number(fields: Mapping[str, Any], name: str) -> float:
    value = fields.get(name)
    return value if isinstance(value, int | float) and 0 <= value < 2**63 else 0


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""
