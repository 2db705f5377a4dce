"""statsd: the figures of all topics and channels over UDP, once per interval.

A push reads the broker in one slice per topic, packs lines into datagrams, and spreads these over
the interval, so that neither the daemon nor the receiver has a burst. UDP is sent without waiting:
a statsd that is dead, full or unknown to DNS costs a line in the log and nothing else.
"""

import asyncio
import logging
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from nsqd.broker.limits.queue_bounds import Losses
from nsqd.node import Node
from nsqd.runtime.slices import gather_slices
from nsqd.stats.memory import MemoryStats
from nsqd.stats.snapshot import (
    ALL_TOPICS,
    ChannelStats,
    LatencyStats,
    TopicStats,
    name_losses,
    read_topics,
)

logger = logging.getLogger(__name__)

RESOLVE_TIMEOUT_S = 1.0
# nsqd spreads over the interval less this, to be done before the next one begins.
SPREAD_MARGIN_S = 1.0

_KEY_UNSAFE = re.compile(r"[.:]")


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsdSettings:
    """The options that statsd obeys."""

    address: str  # host:port
    prefix: str  # expanded, with its final dot
    interval_s: float
    max_packet_bytes: int
    has_memory: bool
    has_ephemeral: bool


def expand_prefix(node: Node) -> str:
    """Return the start of all keys: each `%s` is this node's name, and a dot ends it."""
    prefix = node.options.statsd_prefix
    if not prefix:
        return ""
    name = f"{node.options.broadcast_address}:{node.broadcast_http_port}"
    prefix = prefix.replace("%s", _KEY_UNSAFE.sub("_", name))
    return prefix if prefix.endswith(".") else f"{prefix}."


def make_statsd(node: Node) -> "Statsd | None":
    """Make the pusher that the options ask for; None if they name no statsd."""
    options = node.options
    if not options.statsd_address:
        return None
    settings = StatsdSettings(
        address=options.statsd_address,
        prefix=expand_prefix(node),
        interval_s=options.statsd_interval_s,
        max_packet_bytes=options.statsd_udp_packet_size,
        has_memory=options.statsd_mem_stats,
        has_ephemeral=not options.statsd_exclude_ephemeral,
    )
    return Statsd(node, settings)


class Statsd:
    """Pushes for ever; cancel `run` to end it."""

    def __init__(self, node: Node, settings: StatsdSettings) -> None:
        self._node = node
        self._settings = settings
        self._lines = StatsdLines(settings)

    async def run(self) -> None:
        """Push each interval; when cancelled, send the rest of a push at once."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due = max(due + self._settings.interval_s, loop.time())
            await asyncio.sleep(due - loop.time())
            await self._push()

    async def _push(self) -> None:
        settings = self._settings
        try:
            connection = await _connect(settings.address)
        except (OSError, TimeoutError, ValueError) as error:
            logger.error("failed to create UDP socket to statsd(%s) - %s", settings.address, error)  # noqa: TRY400 - no traceback
            return
        logger.info("STATSD: pushing stats to %s", settings.address)
        with connection:
            # Packed as they are made: a hundred thousand lines in one go take 50 ms.
            packets = await gather_slices(pack_lines(self._read_lines(), settings.max_packet_bytes))
            sender = _Sender(connection, settings.address)
            await _spread(packets, spread_s(settings.interval_s), sender.send)

    def _read_lines(self) -> Iterator[str]:
        memory = self._node.memory.read() if self._settings.has_memory else None
        return self._lines.render(read_topics(self._node.broker, ALL_TOPICS), memory)


class StatsdLines:
    """Turns snapshots into lines; remembers the counters of the push before, to send differences.

    A topic or channel that was deleted and made again starts at 0: its counter is smaller than the
    one remembered, and all of it is new.
    """

    def __init__(self, settings: StatsdSettings) -> None:
        self._settings = settings
        self._counters: dict[str, int] = {}
        self._next_counters: dict[str, int] = {}

    def render(self, topics: Iterable[TopicStats], memory: MemoryStats | None) -> Iterator[str]:
        """Give the lines of one push; topics that are not in it are forgotten."""
        self._next_counters = {}
        for topic in topics:
            if self._settings.has_ephemeral or not topic.is_ephemeral:
                yield from self._topic(topic)
        if memory is not None:
            yield from self._memory(memory)
        self._counters = self._next_counters

    def _memory(self, memory: MemoryStats) -> Iterator[str]:
        for name, value in memory.as_dict().items():
            if name == "gc_total_runs":
                yield self._count("mem.gc_runs", value)
            else:
                yield self._gauge(f"mem.{name}", value)

    def _topic(self, topic: TopicStats) -> Iterator[str]:
        base = f"topic.{topic.name}"
        yield self._count(f"{base}.message_count", topic.message_count)
        yield self._count(f"{base}.message_bytes", topic.message_bytes)
        yield self._gauge(f"{base}.depth", topic.depth)
        yield self._gauge(f"{base}.backend_depth", topic.backend_depth)
        yield from self._losses(base, topic.losses)
        yield from self._latency(base, topic.latency)
        for channel in topic.channels:
            if self._settings.has_ephemeral or not channel.is_ephemeral:
                yield from self._channel(f"{base}.channel.{channel.name}", channel)

    def _channel(self, base: str, channel: ChannelStats) -> Iterator[str]:
        yield self._count(f"{base}.message_count", channel.message_count)
        yield self._gauge(f"{base}.depth", channel.depth)
        yield self._gauge(f"{base}.backend_depth", channel.backend_depth)
        yield self._gauge(f"{base}.in_flight_count", channel.in_flight_count)
        yield self._gauge(f"{base}.deferred_count", channel.deferred_count)
        yield self._count(f"{base}.requeue_count", channel.requeue_count)
        yield self._count(f"{base}.timeout_count", channel.timeout_count)
        yield self._gauge(f"{base}.clients", len(channel.consumers))
        yield from self._losses(base, channel.losses)
        yield from self._latency(base, channel.latency)

    def _losses(self, base: str, losses: Losses) -> Iterator[str]:
        for name, count in name_losses(losses):
            yield self._count(f"{base}.{name}", count)

    def _latency(self, base: str, latency: LatencyStats) -> Iterator[str]:
        percentiles = latency.percentiles or ()
        names = percentile_names([quantile for quantile, _ in percentiles])
        for name, (_, value_ns) in zip(names, percentiles, strict=True):
            yield self._gauge(f"{base}.e2e_processing_latency_{name}", int(value_ns))

    def _count(self, key: str, value: int) -> str:
        self._next_counters[key] = value
        before = self._counters.get(key, 0)
        return f"{self._settings.prefix}{key}:{value - before if value >= before else value}|c\n"

    def _gauge(self, key: str, value: int) -> str:
        return f"{self._settings.prefix}{key}:{value}|g\n"


def percentile_names(quantiles: Sequence[float]) -> list[str]:
    """Return the ends of the keys: whole percents, with a fraction where two would be the same."""
    rounded = [f"{quantile * 100:.0f}" for quantile in quantiles]
    return [
        name if rounded.count(name) == 1 else f"{quantile * 100:.10g}".replace(".", "_")
        for name, quantile in zip(rounded, quantiles, strict=True)
    ]


def pack_lines(lines: Iterable[str], max_bytes: int) -> Iterator[bytes]:
    """Put as many lines as fit into each packet; a line that is too long goes alone."""
    packet = b""
    for line in lines:
        data = line.encode()
        if packet and len(packet) + len(data) > max_bytes:
            yield packet
            packet = b""
        packet += data
    if packet:
        yield packet


def spread_s(interval_s: float) -> float:
    """Return the time over which the packets of one push are spread."""
    # Such short intervals crash nsqd.
    return interval_s - SPREAD_MARGIN_S if interval_s > SPREAD_MARGIN_S else interval_s / 2


async def _spread(
    packets: Sequence[bytes], duration_s: float, send: Callable[[bytes], object]
) -> None:
    started = time.monotonic()
    for index, packet in enumerate(packets):
        send(packet)
        due = started + duration_s * (index + 1) / len(packets)
        try:
            await asyncio.sleep(due - time.monotonic())
        except asyncio.CancelledError:
            for rest in packets[index + 1 :]:
                send(rest)
            raise


class _Sender:
    """Sends packets as far as the socket takes them; says once per push if it does not."""

    def __init__(self, connection: socket.socket, address: str) -> None:
        self._connection = connection
        self._address = address
        self._has_complained = False

    def send(self, packet: bytes) -> None:
        try:
            self._connection.send(packet)
        except OSError as error:  # BlockingIOError included: UDP may lose a packet
            if not self._has_complained:
                self._has_complained = True
                logger.warning("STATSD: failed to send to %s - %s", self._address, error)


async def _connect(address: str) -> socket.socket:
    """Open a socket to a `host:port`.

    Raises:
        OSError, TimeoutError: the name cannot be resolved.
        ValueError: it is no address.
    """
    host, colon, port = address.rpartition(":")
    if not colon:
        raise ValueError("missing port in address")
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(RESOLVE_TIMEOUT_S):
        found = await loop.getaddrinfo(host.strip("[]") or None, port, type=socket.SOCK_DGRAM)
    family, kind, protocol, _, name = found[0]
    connection = socket.socket(family, kind, protocol)
    try:
        connection.setblocking(False)
        connection.connect(name)
    except OSError:
        connection.close()
        raise
    return connection
