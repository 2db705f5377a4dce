"""Work that comes due in one moment: a large queue emptied, deleted, timed out, come due, released.

Each load fills a queue first, and is greedy once the pinger is there. At the end it asks the daemon
whether all of it happened.
"""

import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from bench import wire
from bench.consumers import ConsumePlan, consume
from bench.fairness.floods import connect_greedy, ensure_channel
from bench.fairness.row import CHANNEL, TOPIC, Site
from bench.load import LoadResult, Start
from bench.publishers import PublishPlan, publish
from bench.wire import LoadError

BODY: Final = b"x" * 10
FILL_BATCH: Final = 500
FILL_SECONDS: Final = 120.0
SETTLE_SECONDS: Final = 60.0
FRAME_BYTES: Final = wire.BODY_OFFSET + len(BODY)
# DPUBs of a sample, to see how long all of them will take; then as many as one delay is made for.
SAMPLE: Final = 2_000
BATCH: Final = 1_000


@dataclass(frozen=True, slots=True)
class Request:
    """A load: one HTTP request that concerns a queue of `Site.size` messages.

    Attributes:
        path: of the POST.
        channels: of the topic; without any, the queue is the topic's own.
        is_paused: the topic is paused while it is filled.
    """

    path: str
    channels: int = 1
    is_paused: bool = False

    def __call__(self, site: Site, start: Start) -> LoadResult:
        """Fill the queue, send the request, and wait for its answer and its effect.

        Raises:
            DaemonError: the request fails.
            LoadError: the queue cannot be filled.
        """
        query = {"topic": TOPIC, "channel": CHANNEL} if "channel" in self.path else {"topic": TOPIC}
        site.daemon.request("POST", "/topic/create", topic=TOPIC)
        if self.is_paused:
            site.daemon.request("POST", "/topic/pause", topic=TOPIC)
        ensure_channel(site, self.channels)
        fill(site, site.size)
        if self.channels and not self.is_paused:
            _wait_for(site, lambda stats: _depth(stats) == site.size)
        start()
        begin_ns = time.monotonic_ns()
        site.daemon.request("POST", self.path, **query)
        if self.is_paused:
            _wait_for(site, lambda stats: _depth(stats) == site.size)
        return LoadResult(site.size, begin_ns, time.monotonic_ns(), 0.0)


def fill(site: Site, count: int, body: bytes = BODY) -> None:
    """Publish this many messages to the greedy topic.

    Raises:
        LoadError: the daemon refuses, or takes too long.
    """
    batch = wire.mpub_batch(len(body), FILL_BATCH)
    unit = wire.mpub_command(TOPIC, body, batch)
    most = -(-count // batch)
    plan = PublishPlan(site.daemon.tcp, unit, batch, 8, 1, most * batch, FILL_SECONDS)
    filled = publish(plan, lambda: None).messages
    if filled != most * batch:
        raise LoadError(f"only {filled} of {count} messages were published in {FILL_SECONDS:.0f} s")


def time_out(site: Site, start: Start) -> LoadResult:
    """Have all messages in flight, and let all time out; the consumer takes none again.

    Raises:
        LoadError: they do not all time out.
    """
    timeout_s = 1.0 + site.size / 100_000
    with _holding_all(site, timeout_s) as sock:
        delivered = time.monotonic()
        sock.sendall(b"RDY 0\n")
        start()
        begin_ns = time.monotonic_ns()
        time.sleep(max(0.0, delivered + timeout_s - time.monotonic()))
        stats = _wait_for(site, lambda stats: _depth(stats) == site.size)
        ended_ns = time.monotonic_ns()
    if stats["channels"][0]["timeout_count"] != site.size:
        raise LoadError(f"only {stats['channels'][0]['timeout_count']} messages timed out")
    return LoadResult(site.size, begin_ns, ended_ns, 0.0)


def _holding_all(site: Site, timeout_s: float) -> socket.socket:
    """A consumer that holds `Site.size` messages."""
    ensure_channel(site)
    fill(site, site.size)
    sock = connect_greedy(site.daemon.tcp, {"msg_timeout": int(timeout_s * 1000)})
    sock.sendall(b"SUB %s %s\n" % (TOPIC.encode(), CHANNEL.encode()))
    wire.expect(sock, wire.OK_FRAME)
    sock.sendall(b"RDY %d\n" % site.size)
    sink = bytearray(1 << 20)
    missing = site.size * FRAME_BYTES
    while missing:
        received = sock.recv_into(sink, min(missing, len(sink)))
        if not received:
            raise LoadError("the daemon closed the consumer's connection")
        missing -= received
    return sock


def come_due(site: Site, start: Start) -> LoadResult:
    """DPUB messages that are all due at the same moment, and wait for it.

    Raises:
        LoadError: they are not all delivered to the queue.
    """
    ensure_channel(site)
    with wire.connect_publisher(site.daemon.tcp) as sock:
        begin = time.monotonic()
        for _ in range(SAMPLE // BATCH):
            _defer(sock, BATCH, 3_600_000)
        needed_s = 1.5 * (time.monotonic() - begin) * site.size / SAMPLE
        due = time.monotonic() + needed_s + 1.5
        for _ in range(site.size // BATCH):
            _defer(sock, BATCH, max(1, int((due - time.monotonic()) * 1000)))
        if time.monotonic() > due - 0.5:
            raise LoadError("publishing took so long that the first were due before the last")
    start()
    begin_ns = time.monotonic_ns()
    time.sleep(max(0.0, due - time.monotonic()))
    _wait_for(site, lambda stats: stats["channels"][0]["deferred_count"] == SAMPLE)
    return LoadResult(site.size, begin_ns, time.monotonic_ns(), 0.0)


def _defer(sock: socket.socket, count: int, delay_ms: int) -> None:
    head = b"DPUB %s %d\n" % (TOPIC.encode(), delay_ms)
    sock.sendall((head + struct.pack(">i", len(BODY)) + BODY) * count)
    wire.expect(sock, wire.OK_FRAME * count)


def expire(site: Site, start: Start) -> LoadResult:
    """Fill a queue whose messages all expire; the row's flags say after which time.

    Raises:
        LoadError: they do not expire.
    """
    ensure_channel(site)
    fill(site, site.size)
    start()
    begin_ns = time.monotonic_ns()
    _wait_for(site, lambda stats: _depth(stats) == 0)
    return LoadResult(site.size, begin_ns, time.monotonic_ns(), 0.0)


def consume_backlog(site: Site, start: Start) -> LoadResult:
    """Consume a queue that was filled before, as fast as it comes.

    Raises:
        LoadError: the daemon closes the connection.
    """
    ensure_channel(site)
    fill(site, site.size)
    plan = ConsumePlan(
        address=site.daemon.tcp,
        topic=TOPIC,
        channels=(CHANNEL,),
        connections=1,
        rdy=2500,
        body_bytes=len(BODY),
        messages=site.size,
        seconds=site.seconds,
    )
    return consume(plan, start)


def requeue_all(site: Site, start: Start) -> LoadResult:
    """Receive messages and REQ each at once, until the time is up.

    Raises:
        LoadError: the daemon closes the connection.
    """
    ensure_channel(site)
    fill(site, site.size)
    count, rest = 0, b""
    with connect_greedy(site.daemon.tcp, {}) as sock:
        sock.sendall(b"SUB %s %s\n" % (TOPIC.encode(), CHANNEL.encode()))
        wire.expect(sock, wire.OK_FRAME)
        start()
        cpu_s, begin_ns = time.process_time(), time.monotonic_ns()
        deadline = time.monotonic() + site.seconds
        sock.sendall(b"RDY 2500\n")
        while time.monotonic() < deadline:
            data = sock.recv(1 << 18)
            if not data:
                raise LoadError("the daemon closed the consumer's connection")
            data = rest + data
            whole = len(data) // FRAME_BYTES
            ids = range(wire.ID_OFFSET, whole * FRAME_BYTES, FRAME_BYTES)
            sock.sendall(b"".join([b"REQ %s 0\n" % data[i : i + 16] for i in ids]))
            rest = data[whole * FRAME_BYTES :]
            count += whole
        ended_ns = time.monotonic_ns()
    return LoadResult(count, begin_ns, ended_ns, time.process_time() - cpu_s)


def _depth(stats: dict[str, Any]) -> int:
    """The messages waiting in the channel with the fewest."""
    return min(int(channel["depth"]) for channel in stats["channels"])


def _wait_for(site: Site, is_done: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Ask for the topic's statistics until they say so.

    Raises:
        LoadError: they do not, in time.
    """
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        stats = site.daemon.topic_stats(TOPIC)
        if is_done(stats):
            return stats
        if time.monotonic() > deadline:
            raise LoadError(f"not done after {SETTLE_SECONDS:.0f} s: {stats['channels']}")
        time.sleep(0.1)
