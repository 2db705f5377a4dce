"""A farm of made-up nodes for nsqadmin: one process, many ports, an nsqlookupd that knows them all.

`python -m tests.support.fake_farm --nodes 500 --topics 2000 --per-node 80` prints the port of its
nsqlookupd and serves until its standard input ends. `GET /control?busy=0.05&hang=50&...` on that
port changes how the farm behaves; `Farm` does so for tests in process.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

from tests.support.daemon_process import REPOSITORY
from tests.support.http_client import fetch
from tests.support.waiting import PATIENCE_S

HOST = "127.0.0.1"
START_TIME_S = 1_794_000_000

Answer = tuple[int, bytes] | None  # None: no answer at all
Respond = Callable[[str, str], Answer]


@dataclass
class FakeNode:
    """One nsqd that only looks like one."""

    number: int
    topics: list[str]
    channels: int
    port: int = 0
    is_hanging: bool = False
    # Sent in place of /stats.
    body: bytes | None = None
    status: int = 200
    # The answer to every change, with status 500.
    refusal: bytes | None = None
    stats_count: int = 0
    request_count: int = 0
    requests: list[tuple[str, str]] = field(default_factory=list)
    queues: list[dict[str, Any]] = field(default_factory=list)
    rendered: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        chance = random.Random(self.number)
        self.queues = [self._make_topic(name, chance) for name in self.topics]
        self.render()

    def _make_topic(self, name: str, chance: random.Random) -> dict[str, Any]:
        count = chance.randrange(10_000, 100_000_000)
        latency = {"count": 0, "percentiles": None}
        return {
            "topic_name": name,
            "channels": [
                {
                    "channel_name": f"channel_{number}",
                    "depth": chance.randrange(1000),
                    "backend_depth": 0,
                    "in_flight_count": chance.randrange(200),
                    "deferred_count": 0,
                    "message_count": count,
                    "requeue_count": chance.randrange(1000),
                    "timeout_count": chance.randrange(100),
                    "client_count": chance.randrange(8),
                    "clients": None,
                    "paused": False,
                    "e2e_processing_latency": latency,
                }
                for number in range(self.channels)
            ],
            "depth": 0,
            "backend_depth": 0,
            "message_count": count,
            "message_bytes": count * 120,
            "paused": False,
            "e2e_processing_latency": latency,
        }

    def render(self) -> None:
        """Answer with the queues as they are now."""
        self.rendered = [_encode(topic) for topic in self.queues]

    def stir(self, names: Container[str], chance: random.Random) -> None:
        """Let messages pass through the topics of these names."""
        for index, topic in enumerate(self.queues):
            if topic["topic_name"] in names:
                topic["message_count"] += 1000
                topic["message_bytes"] += 120_000
                for channel in topic["channels"]:
                    channel["message_count"] += 1000
                    channel["in_flight_count"] = chance.randrange(200)
                self.rendered[index] = _encode(topic)

    def respond(self, method: str, target: str) -> Answer:
        """Answer a request."""
        self.request_count += 1
        self.requests.append((method, target))
        del self.requests[:-1000]
        path = urlsplit(target).path
        if self.is_hanging:
            return None
        if method != "GET" and self.refusal is not None:
            return 500, self.refusal
        if path == "/info":
            info = {
                "version": "1.3.0",
                "broadcast_address": HOST,
                "hostname": self.hostname,
                "http_port": self.port,
                "tcp_port": self.port,
                "start_time": START_TIME_S,
            }
            return 200, _encode(info)
        if path != "/stats":
            return 200, b""
        self.stats_count += 1
        if self.body is not None:
            return self.status, self.body
        start = b'{"version":"1.3.0","health":"OK","start_time":%d,"topics":[' % START_TIME_S
        return self.status, start + b",".join(self.rendered) + b'],"producers":null}'

    @property
    def hostname(self) -> str:
        """A name of its own."""
        return f"node-{self.number:03}"


class Farm:
    """Nodes and their nsqlookupd, on free ports of loopback."""

    def __init__(
        self, *, nodes: int, topics: int, per_node: int, channels: int = 1, busy: float = 1.0
    ) -> None:
        names = [f"topic_{number:04}" for number in range(topics)]
        self.nodes = [
            FakeNode(
                number,
                [names[(number * per_node + index) % topics] for index in range(per_node)],
                channels,
            )
            for number in range(nodes)
        ]
        # The share of topics that move between two answers.
        self.busy = busy
        self.port = 0
        # Whether its nsqlookupd answers nobody.
        self.is_hanging = False
        self.lookup_count = 0
        self._names = names
        self.chance = random.Random(1)
        self._servers: list[asyncio.Server] = []
        self._transports: set[asyncio.Transport] = set()

    async def start(self) -> None:
        """Listen."""
        for node in self.nodes:
            node.port = await self._listen(node.respond)
        self.port = await self._listen(self._respond)

    async def close(self) -> None:
        """Stop listening."""
        for server in self._servers:
            server.close()
        for transport in list(self._transports):
            transport.abort()
        while self._transports:  # noqa: ASYNC110 - they end in the next turns of the loop
            await asyncio.sleep(0)

    def stir(self) -> None:
        """Let time pass: messages move in the same topics on all nodes."""
        names = {name for name in self._names if self.chance.random() < self.busy}
        for node in self.nodes:
            node.stir(names, self.chance)

    async def _listen(self, respond: Respond) -> int:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Connection(respond, self._transports), HOST, 0)
        self._servers.append(server)
        port: int = server.sockets[0].getsockname()[1]
        return port

    def _respond(self, _method: str, target: str) -> Answer:
        url = urlsplit(target)
        if self.is_hanging:
            return None
        if url.path == "/control":
            self._control(dict(parse_qsl(url.query)))
            counts = {
                "stats": sum(node.stats_count for node in self.nodes),
                "requests": sum(node.request_count for node in self.nodes),
                "lookups": self.lookup_count,
            }
            return 200, _encode(counts)
        self.lookup_count += 1
        if url.path == "/topics":
            return 200, _encode({"topics": self._names})
        if url.path not in ("/nodes", "/lookup"):
            return 200, b"{}"
        topic = dict(parse_qsl(url.query)).get("topic")
        if topic is not None and topic not in self._names:
            return 404, _encode({"message": "TOPIC_NOT_FOUND"})
        producers = [
            {
                "remote_address": f"{HOST}:{node.port}",
                "hostname": node.hostname,
                "broadcast_address": HOST,
                "tcp_port": node.port,
                "http_port": node.port,
                "version": "1.3.0",
                "topics": node.topics,
                "tombstones": [False] * len(node.topics),
            }
            for node in self.nodes
            if topic is None or topic in node.topics
        ]
        return 200, _encode({"producers": producers})

    def _control(self, settings: dict[str, str]) -> None:
        self.busy = float(settings.get("busy", self.busy))
        if "hang" in settings:
            for node in self.nodes:
                node.is_hanging = node.number < int(settings["hang"])
        if "stir" in settings:
            self.stir()


class FarmProcess:
    """A farm in a process of its own, by the port of its nsqlookupd."""

    def __init__(self, port: int) -> None:
        self.port = port

    def control(self, **settings: object) -> dict[str, int]:
        """Change how it behaves; return how often it was asked: stats, requests, lookups."""
        reply = fetch((HOST, self.port), "GET", f"/control?{urlencode(settings)}")
        counts: dict[str, int] = reply.json()
        return counts


@contextmanager
def farm_process(**settings: object) -> Iterator[FarmProcess]:
    """Run a farm with these settings of the command."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.fake_farm", *flags],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        yield FarmProcess(int(process.stdout.readline()))
    finally:
        process.stdin.close()
        process.wait(PATIENCE_S)
        process.stdout.close()


class _Connection(asyncio.Protocol):
    """Reads requests without bodies, and answers."""

    def __init__(self, respond: Respond, transports: set[asyncio.Transport]) -> None:
        self._respond = respond
        self._transports = transports
        self._input = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio's, but not their classes.
        self._transport = cast(asyncio.Transport, transport)
        self._transports.add(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        assert self._transport is not None
        self._transports.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        self._input += data
        while b"\r\n\r\n" in self._input:
            head, _, self._input = self._input.partition(b"\r\n\r\n")
            method, target, _ = head.split(b"\r\n")[0].decode().split(" ")
            answer = self._respond(method, target)
            if answer is not None and self._transport is not None:
                status, body = answer
                self._transport.write(
                    b"HTTP/1.1 %d OK\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)
                )


def _encode(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


async def _serve(options: argparse.Namespace) -> None:
    farm = Farm(
        nodes=options.nodes,
        topics=options.topics,
        per_node=options.per_node,
        channels=options.channels,
        busy=options.busy,
    )
    await farm.start()
    print(farm.port, flush=True)  # noqa: T201 - a command
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def main() -> None:
    """Run the farm until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--topics", type=int, default=2000)
    parser.add_argument("--per-node", type=int, default=80)
    parser.add_argument("--channels", type=int, default=1)
    parser.add_argument("--busy", type=float, default=1.0)
    asyncio.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
