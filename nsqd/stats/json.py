"""/stats?format=json, in parts: a node with thousands of queues is rendered over several turns.

The parts are strings of a few hundred bytes; joined they are the document. A topic with its
channels is of one moment, but messages may come between two topics.
"""

import json
from collections.abc import Iterable, Iterator
from json.encoder import encode_basestring_ascii as quote

from nsqd import PROTOCOL_VERSION
from nsqd.broker.archive.archive import ArchiveStats
from nsqd.broker.limits.queue_bounds import Losses
from nsqd.node import Node
from nsqd.stats.clients import (
    PROTOCOL_NAME,
    ClientStats,
    read_consumers,
    read_producers,
)
from nsqd.stats.memory import MemoryStats
from nsqd.stats.snapshot import (
    ChannelStats,
    LatencyStats,
    StatsQuery,
    TopicStats,
    is_unknown,
    name_losses,
    read_topics,
)

_NO_LATENCY = '{"count":0,"percentiles":null}'


def render_node(node: Node) -> Iterator[str]:
    """Give the beginning of a document: the figures of the node, without those of its topics."""
    yield (
        f'{{"version":"{PROTOCOL_VERSION}","health":{quote(node.health)},'
        f'"start_time":{int(node.start_time_s)},'
        f'"loop_lag_usec_max":{int(node.loop_watch.worst_lag_s * 1e6)},'
        f'"draining":{encode_boolean(node.broker.is_draining)},'
    )
    free_bytes = node.broker.disk_health.free_bytes
    if free_bytes is not None:
        yield f'"disk_free_bytes":{free_bytes},'


def render_json(node: Node, query: StatsQuery, memory: MemoryStats) -> Iterator[str]:
    """Give the document in parts."""
    yield from render_node(node)
    if query.has_memory:
        yield f'"memory":{json.dumps(memory.as_dict())},'
    if is_unknown(node.broker, query):
        yield '"topics":null,"producers":null}'
        return
    yield '"topics":['
    separator = ""
    for topic in read_topics(node.broker, query):
        yield separator
        separator = ","
        yield from _topic_parts(topic, query)
    yield '],"producers":'
    if query.has_clients:
        clients = read_producers(node.connections, topic_name=query.topic_name)
        yield from _list_parts(map(encode_client, clients), if_empty="null")
    else:
        yield "null"
    yield "}"


def _topic_parts(topic: TopicStats, query: StatsQuery) -> Iterator[str]:
    yield (
        f'{{"topic_name":{quote(topic.name)},"depth":{topic.depth},'
        f'"backend_depth":{topic.backend_depth},"message_count":{topic.message_count},'
        f'"message_bytes":{topic.message_bytes},"paused":{encode_boolean(topic.is_paused)},'
        f'"e2e_processing_latency":{_encode_latency(topic.latency)},"channels":['
    )
    separator = ""
    for channel in topic.channels:
        yield separator
        separator = ","
        yield from _channel_parts(channel, query)
    yield "]"
    if topic.disk.size_bytes:
        yield f',"disk_bytes":{topic.disk.size_bytes}'
    yield f"{_encode_topic_members(topic)}{_encode_losses(topic.losses)}}}"


def _channel_parts(channel: ChannelStats, query: StatsQuery) -> Iterator[str]:
    yield (
        f'{{"channel_name":{quote(channel.name)},"depth":{channel.depth},'
        f'"backend_depth":{channel.backend_depth},"in_flight_count":{channel.in_flight_count},'
        f'"deferred_count":{channel.deferred_count},"message_count":{channel.message_count},'
        f"{_encode_localities(channel)}"
        f'"requeue_count":{channel.requeue_count},"timeout_count":{channel.timeout_count},'
        f'"finish_count":{channel.finish_count},'
        f'"client_count":{len(channel.consumers)},"paused":{encode_boolean(channel.is_paused)},'
        f'"e2e_processing_latency":{_encode_latency(channel.latency)},"clients":'
    )
    if query.has_clients:
        clients = read_consumers(channel, topic_name=query.topic_name)
        yield from _list_parts(map(encode_client, clients), if_empty="[]")
    else:
        yield "null"
    if channel.disk.size_bytes:
        yield f',"disk_bytes":{channel.disk.size_bytes}'
    yield f"{_encode_losses(channel.losses)}}}"


def encode_more(queue: TopicStats | ChannelStats) -> str:
    """Return an object of the members that few queues have, null if it has none of them."""
    members = ""
    if queue.latency.percentiles is not None:
        members += f',"e2e_processing_latency":{_encode_latency(queue.latency)}'
    if isinstance(queue, ChannelStats):
        # Each has its comma behind it.
        localities = _encode_localities(queue)
        members += localities and f",{localities[:-1]}"
    else:
        members += _encode_topic_members(queue)
    members += _encode_losses(queue.losses)
    return f"{{{members[1:]}}}" if members else "null"


def _encode_topic_members(topic: TopicStats) -> str:
    """Return where dead letters go and the archive, each with a comma before it."""
    members = ""
    if topic.dead_letter_topic is not None:
        members += f',"dead_letter_topic":{quote(topic.dead_letter_topic)}'
    if topic.archive is not None:
        members += f',"archive":{_encode_archive(topic.archive)}'
    return members


def _encode_losses(losses: Losses) -> str:
    """Return the members for messages lost to limits, each with a comma before it."""
    return "".join([f',"{key}":{count}' for key, count in name_losses(losses)])


def _encode_localities(channel: ChannelStats) -> str:
    """Return the members for the localities that have received anything, each with its comma."""
    counts = (
        ("zone_local_msg_count", channel.zone_local_count),
        ("region_local_msg_count", channel.region_local_count),
        ("global_msg_count", channel.global_count),
    )
    return "".join([f'"{key}":{count},' for key, count in counts if count])


def _encode_archive(archive: ArchiveStats) -> str:
    return (
        f'{{"bytes":{archive.size_bytes},"segments":{archive.segment_count},'
        f'"message_count":{archive.message_count},"oldest_timestamp":{archive.oldest_ns},'
        f'"waiting_bytes":{archive.waiting_bytes},"dropped_count":{archive.dropped_count}}}'
    )


def _encode_latency(latency: LatencyStats) -> str:
    # nsqadmin takes the object for granted: it is there even if no latency is measured.
    if latency.percentiles is None:
        return _NO_LATENCY
    percentiles = [
        {"quantile": quantile, "value": value_ns} for quantile, value_ns in latency.percentiles
    ]
    return json.dumps({"count": latency.count, "percentiles": percentiles}, separators=(",", ":"))


def encode_client(client: ClientStats) -> str:
    """Return a client as a JSON object, without the members that nsqd leaves out when empty."""
    members: dict[str, object] = {
        "client_id": client.client_id,
        "hostname": client.hostname,
        "version": PROTOCOL_NAME,
        "remote_address": client.remote_address,
        "state": client.state,
        "ready_count": client.ready_count,
        "in_flight_count": client.in_flight_count,
        "message_count": client.message_count,
        "finish_count": client.finish_count,
        "requeue_count": client.requeue_count,
        "connect_ts": client.connected_at_s,
        "sample_rate": client.sample_rate,
        "deflate": client.is_deflated,
        "snappy": client.is_snappy,
        "user_agent": client.user_agent,
        "topology_zone": client.topology_zone,
        "topology_region": client.topology_region,
        "tls": client.is_tls,
        "tls_cipher_suite": client.tls_cipher_suite,
        "tls_version": client.tls_version,
        "tls_negotiated_protocol": "",
        "tls_negotiated_protocol_is_mutual": client.is_tls,
    }
    if client.is_authed:
        members["authed"] = True
    if client.auth_identity:
        members["auth_identity"] = client.auth_identity
    if client.auth_identity_url:
        members["auth_identity_url"] = client.auth_identity_url
    if client.pub_counts:
        members["pub_counts"] = [
            {"topic": topic, "count": count} for topic, count in client.pub_counts
        ]
    return json.dumps(members, separators=(",", ":"))


def _list_parts(items: Iterable[str], *, if_empty: str) -> Iterator[str]:
    separator = "["
    for item in items:
        yield separator + item
        separator = ","
    yield if_empty if separator == "[" else "]"


def encode_boolean(value: bool) -> str:  # noqa: FBT001 - the value itself
    """Return true or false."""
    return "true" if value else "false"
