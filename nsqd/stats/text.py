"""/stats as text, in parts. Scripts cut it up by column, so every blank is nsqd's.

Fields are padded to a minimum width and push the rest of the line when they are longer.
"""

import time
from collections.abc import Iterator
from datetime import datetime

from diskqueue.tools.plain_text import escape_text
from nsqd.broker.limits.queue_bounds import Losses
from nsqd.config.flags import version_text
from nsqd.config.kinds import format_duration
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
    read_topics,
)


def render_text(node: Node, query: StatsQuery, memory: MemoryStats) -> Iterator[str]:
    """Give the text in parts."""
    now_s = time.time()
    yield (
        f"{version_text('nsqd')}\n"
        f"start_time {format_rfc3339(node.start_time_s)}\n"
        f"uptime {format_duration(max(now_s - node.start_time_s, 0.0))}\n"
        f"\nHealth: {node.health}\n"
        f"Loop lag: {node.loop_watch.worst_lag_s * 1e3:.1f}ms at most, in the last minute\n"
    )
    if query.has_memory:
        yield "\nMemory:\n"
        for name, value in memory.as_dict().items():
            yield f"   {name:<25}\t{value}\n"
    yield from _topic_lines(node, query, now_s)
    yield from _producer_lines(node, query, now_s)


def _topic_lines(node: Node, query: StatsQuery, now_s: float) -> Iterator[str]:
    title = "\nTopics:"
    for topic in read_topics(node.broker, query):
        yield title
        title = ""
        yield format_topic(topic)
        for channel in topic.channels:
            yield format_channel(channel)
            if query.has_clients:
                for client in read_consumers(channel, topic_name=query.topic_name):
                    yield f"        {format_client(client, now_s)}\n"
    if title:
        yield "\nTopics: None\n"


def _producer_lines(node: Node, query: StatsQuery, now_s: float) -> Iterator[str]:
    title = "\nProducers:\n"
    if query.has_clients and not is_unknown(node.broker, query):
        for client in read_producers(node.connections, topic_name=query.topic_name):
            yield title
            title = ""
            yield f"   {format_client(client, now_s)}\n"
    if title:
        yield "\nProducers: None\n"


def format_topic(topic: TopicStats) -> str:
    """Return a topic's line, a blank one before it."""
    return (
        f"\n{'*P' if topic.is_paused else '':<3}[{topic.name:<15}] depth: {topic.depth:<5} "
        f"be-depth: {topic.backend_depth:<5} msgs: {topic.message_count:<8} "
        f"e2e%: {format_latency(topic.latency)}{_format_losses(topic.losses)}\n"
    )


def format_channel(channel: ChannelStats) -> str:
    """Return a channel's line."""
    return (
        f"   {'*P' if channel.is_paused else '':<3}[{channel.name:<25}] depth: {channel.depth:<5} "
        f"be-depth: {channel.backend_depth:<5} inflt: {channel.in_flight_count:<4} "
        f"def: {channel.deferred_count:<4} re-q: {channel.requeue_count:<5} "
        f"timeout: {channel.timeout_count:<5} msgs: {channel.message_count:<8} "
        f"e2e%: {format_latency(channel.latency)}{_format_losses(channel.losses)}\n"
    )


def _format_losses(losses: Losses) -> str:
    """Return the counts of messages lost to limits that are not zero: nsqd has no such columns."""
    counts = (
        ("rejected", losses.rejected_count),
        ("dropped", losses.dropped_count),
        ("dead", losses.dead_lettered_count),
    )
    return "".join([f" {name}: {count:<5}" for name, count in counts if count]).rstrip()


def format_client(client: ClientStats, now_s: float) -> str:
    """Return a client's part of a line: of a publisher its topics, of another its deliveries."""
    port = client.remote_address.rpartition(":")[2] if ":" in client.remote_address else ""
    # Both are the client's own words.
    name = escape_text(f"{client.hostname}:{port} {client.user_agent}")
    connected = format_duration(max(int(now_s - client.connected_at_s), 0))
    if client.pub_counts:
        total = sum(count for _, count in client.pub_counts)
        topics = ",".join(f"{topic}={count}" for topic, count in client.pub_counts)
        return (
            f"[{PROTOCOL_NAME} {name:<21}] msgs: {total:<8} topics: {topics} connected: {connected}"
        )
    return (
        f"[{PROTOCOL_NAME} {name:<21}] state: {client.state} inflt: {client.in_flight_count:<4} "
        f"rdy: {client.ready_count:<4} fin: {client.finish_count:<8} "
        f"re-q: {client.requeue_count:<8} msgs: {client.message_count:<8} connected: {connected}"
    )


def format_latency(latency: LatencyStats) -> str:
    """Return the percentiles as people read them: `2.5ms, 1.2us`."""
    return ", ".join(_format_ns(value_ns) for _, value_ns in latency.percentiles or ())


def _format_ns(value_ns: float) -> str:
    for unit, unit_ns in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if value_ns > unit_ns:
            return f"{value_ns / unit_ns:.1f}{unit}"
    return f"{value_ns:.1f}ns"


def format_rfc3339(timestamp_s: float) -> str:
    """Return a time to the second in the local zone, UTC written as Z."""
    text = datetime.fromtimestamp(int(timestamp_s)).astimezone().isoformat()
    return text.removesuffix("+00:00") + "Z" if text.endswith("+00:00") else text
