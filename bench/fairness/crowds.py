"""Consumers: they reconnect all at once, consume together, read slowly, want it compressed."""

import os
import select
import socket
import time
import zlib
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from bench import wire
from bench.consumers import ConsumePlan, consume
from bench.fairness.backlogs import BODY, fill
from bench.fairness.floods import HEARTBEAT_MS, connect_greedy, ensure_channel
from bench.fairness.row import CHANNEL, TOPIC, Site
from bench.load import LoadResult, Start
from bench.wire import LoadError

ROUND_SECONDS: Final = 30.0
SLOW_BODY: Final = b"x" * 100_000
SLOW_READ_BYTES: Final = 4096
SLOW_PAUSE_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class Reconnect:
    """A load: `Site.size` consumers connect all at once, and go; again, until the time is up.

    Attributes:
        has_own_topics: each has an ephemeral topic of its own, which comes and goes with it.
    """

    has_own_topics: bool = False

    def __call__(self, site: Site, start: Start) -> LoadResult:
        """Connect and disconnect.

        Raises:
            LoadError: the daemon refuses a consumer, or does not answer all of them in time.
        """
        ensure_channel(site)
        greetings = [self._greeting(number) for number in range(site.size)]
        _connect_all(site, greetings)
        start()
        cpu_s, begin_ns = time.process_time(), time.monotonic_ns()
        deadline = time.monotonic() + site.seconds
        count = 0
        while time.monotonic() < deadline:
            _connect_all(site, greetings)
            count += site.size
        return LoadResult(count, begin_ns, time.monotonic_ns(), time.process_time() - cpu_s)

    def _greeting(self, number: int) -> bytes:
        names = f"t{number}#ephemeral c#ephemeral" if self.has_own_topics else f"{TOPIC} {CHANNEL}"
        identify = wire.identify_command({"heartbeat_interval": HEARTBEAT_MS})
        return wire.MAGIC + identify + f"SUB {names}\nRDY 1\n".encode()


def _connect_all(site: Site, greetings: list[bytes]) -> None:
    """Connect one consumer for each greeting, all at once, and close them when all are answered."""
    expected = wire.OK_FRAME * 2
    with ExitStack() as stack, select.epoll() as poller:
        waiting: dict[int, tuple[socket.socket, bytes]] = {}
        for greeting in greetings:
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(site.daemon.tcp)
            waiting[sock.fileno()] = (sock, greeting)
            poller.register(sock, select.EPOLLOUT)
        deadline = time.monotonic() + ROUND_SECONDS
        while waiting:
            ready = poller.poll(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise LoadError(f"{len(waiting)} of {len(greetings)} consumers were not answered")
            for number, events in ready:
                sock, greeting = waiting[number]
                if greeting:
                    sock.sendall(greeting)
                    waiting[number] = (sock, b"")
                    poller.modify(number, select.EPOLLIN)
                elif events & select.EPOLLIN and len(sock.recv(100, socket.MSG_PEEK)) >= len(
                    expected
                ):
                    if sock.recv(100) != expected:
                        raise LoadError("a consumer was refused")
                    del waiting[number]
                    poller.unregister(number)


def consume_together(site: Site, start: Start) -> LoadResult:
    """`Site.size` consumers of one channel; many of them take a few messages at a time.

    Raises:
        LoadError: the daemon closes a connection.
    """
    ensure_channel(site)
    plan = ConsumePlan(
        address=site.daemon.tcp,
        topic=TOPIC,
        channels=(CHANNEL,),
        connections=site.size,
        rdy=max(5, 2500 // site.size),
        body_bytes=len(BODY),
        messages=1 << 60,
        seconds=site.seconds,
    )
    return consume(plan, start)


def read_slowly(site: Site, start: Start) -> LoadResult:
    """`Site.size` consumers of large messages, each of which reads a few hundred KB a second.

    Raises:
        LoadError: the daemon closes a connection.
    """
    ensure_channel(site)
    fill(site, 40 * site.size, SLOW_BODY)
    count = 0
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(connect_greedy(site.daemon.tcp, {})) for _ in range(site.size)
        ]
        for sock in sockets:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_READ_BYTES)
            sock.sendall(b"SUB %s %s\n" % (TOPIC.encode(), CHANNEL.encode()))
            wire.expect(sock, wire.OK_FRAME)
        start()
        cpu_s, begin_ns = time.process_time(), time.monotonic_ns()
        deadline = time.monotonic() + site.seconds
        for sock in sockets:
            sock.sendall(b"RDY 40\n")
        while time.monotonic() < deadline:
            for sock in sockets:
                count += len(sock.recv(SLOW_READ_BYTES))
            time.sleep(SLOW_PAUSE_S)
        ended_ns = time.monotonic_ns()
    return LoadResult(count // len(SLOW_BODY), begin_ns, ended_ns, time.process_time() - cpu_s)


def read_deflated(site: Site, start: Start) -> LoadResult:
    """One consumer that wants a megabyte of noise compressed, `Site.size` times.

    Raises:
        LoadError: the daemon closes the connection.
    """
    ensure_channel(site)
    body = os.urandom(1_000_000)
    fill(site, site.size, body)
    # Noise does not shrink: when nearly all of it has come, all of it was compressed.
    expected = int(site.size * len(body) * 0.99)
    compressor = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    commands = f"SUB {TOPIC} {CHANNEL}\nRDY {site.size}\n".encode()
    with connect_greedy(site.daemon.tcp, {"deflate": True, "deflate_level": 6}) as sock:
        start()
        cpu_s, begin_ns = time.process_time(), time.monotonic_ns()
        sock.sendall(compressor.compress(commands) + compressor.flush(zlib.Z_SYNC_FLUSH))
        sink = bytearray(1 << 20)
        while expected > 0:
            received = sock.recv_into(sink)
            if not received:
                raise LoadError("the daemon closed the consumer's connection")
            expected -= received
        ended_ns = time.monotonic_ns()
    return LoadResult(site.size, begin_ns, ended_ns, time.process_time() - cpu_s)


def sample(site: Site, start: Start) -> LoadResult:
    """One consumer that wants one of a hundred messages of a large queue (`sample_rate`).

    Raises:
        LoadError: the daemon refuses the consumer.
    """
    ensure_channel(site)
    fill(site, site.size)
    with connect_greedy(site.daemon.tcp, {"sample_rate": 1}) as sock:
        sock.sendall(b"SUB %s %s\n" % (TOPIC.encode(), CHANNEL.encode()))
        wire.expect(sock, wire.OK_FRAME)
        start()
        begin_ns = time.monotonic_ns()
        sock.sendall(b"RDY 2500\n")
        time.sleep(site.seconds)
        left = site.daemon.topic_stats(TOPIC)["channels"][0]["depth"]
    return LoadResult(site.size - left, begin_ns, time.monotonic_ns(), 0.0)
