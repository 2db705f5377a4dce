"""`python -m bench.cluster`: a small cluster to look at, with messages running through it.

Two nsqlookupds, three nsqds and an nsqadmin on free loopback ports, a producer for each nsqd and
one consumer that finds them through nsqlookupd. A line of figures shows how they fare; `--chaos`
kills and restarts one of the daemons now and then. Ctrl-C stops everything and removes its data.

    make cluster
    make cluster ARGS="--chaos 3 --rate 500"
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

from bench.daemon_process import REPOSITORY
from bench.wire import FRAME_MESSAGE, MAGIC, OK_FRAME, pub_command, type_and_size

HOST: Final = "127.0.0.1"
TOPIC: Final = "cluster"
CHANNEL: Final = "viewer"
LOOKUPD_COUNT: Final = 2
NSQD_COUNT: Final = 3
START_TIMEOUT_S: Final = 20.0
STOP_TIMEOUT_S: Final = 10.0
REPLY_TIMEOUT_S: Final = 5.0
LOOKUP_INTERVAL_S: Final = 0.25
STATUS_INTERVAL_S: Final = 0.5
RETRY_S: Final = 0.1
DOWN_TIME_S: Final = 1.0
RDY_COUNT: Final = 200
LATENCY_COUNT: Final = 5000
# On disk before it is acknowledged, so that killing a daemon loses nothing.
NSQD_FLAGS: Final = ("--mem-queue-size=0", "--sync-every=1", "--msg-timeout=3s")

# What a daemon that dies in mid-sentence does to whoever talks to it.
_CONNECTION_ERRORS: Final = (OSError, EOFError, TimeoutError)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class ClusterError(Exception):
    """A daemon does not start; the text says which and shows its log."""


class Member:
    """One daemon, on the ports it took at its first start."""

    def __init__(
        self, name: str, module: str, directory: Path, *flags: str, has_tcp: bool = True
    ) -> None:
        """Args: has_tcp: whether it has a TCP port and a name for others; nsqadmin has neither."""
        self.name = name
        self.tcp_port = 0
        self.http_port = 0
        self._module = module
        self._flags = flags
        self._has_tcp = has_tcp
        self._log = directory / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def is_running(self) -> bool:
        """Say whether there is a process."""
        return self._process is not None and self._process.poll() is None

    async def start(self) -> None:
        """Start it and wait until it listens.

        Raises:
            ClusterError: it does not.
        """
        self._spawn()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._find_ports():
            if not self.is_running() or time.monotonic() > deadline:
                raise ClusterError(f"{self.name} does not start:\n{self._log.read_text()}")
            await asyncio.sleep(0.02)

    def kill(self) -> None:
        """End it without warning."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)

    def stop(self) -> None:
        """End it as an operator would, or kill it if it takes too long."""
        if self._process is None or not self.is_running():
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def _spawn(self) -> None:
        command = [
            *(sys.executable, "-m", self._module),
            f"--http-address={HOST}:{self.http_port}",
            *self._flags,
        ]
        if self._has_tcp:
            command += [f"--tcp-address={HOST}:{self.tcp_port}", f"--broadcast-address={HOST}"]
        with self._log.open("wb") as log:
            # A session of its own: Ctrl-C must reach us first.
            self._process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _find_ports(self) -> bool:
        for line in self._log.read_text().splitlines():
            if "TCP: listening on" in line:
                self.tcp_port = int(line.rpartition(":")[2])
            elif "HTTP: listening on" in line:
                self.http_port = int(line.rpartition(":")[2])
                return True
        return False


class Traffic:
    """The messages on their way, and the figures."""

    def __init__(self) -> None:
        self.published_count = 0
        self.consumed_count = 0
        self.duplicate_count = 0
        self.producer_count = 0  # that the consumer is connected to
        self._on_the_way: dict[int, float] = {}  # number -> when it was published
        self._latencies_s: deque[float] = deque(maxlen=LATENCY_COUNT)
        self._next_number = 0

    @property
    def on_the_way_count(self) -> int:
        """How many messages are acknowledged, or may be, and have not arrived."""
        return len(self._on_the_way)

    def next_body(self) -> tuple[int, bytes]:
        """Make a new message; it is on its way from now on, as it may arrive before its OK."""
        self._next_number += 1
        self._on_the_way[self._next_number] = time.monotonic()
        return self._next_number, b"%d" % self._next_number

    def acknowledged(self) -> None:
        """Note that an nsqd has taken a message."""
        self.published_count += 1

    def refused(self, number: int) -> None:
        """Note that no nsqd has acknowledged a message: it need not arrive."""
        self._on_the_way.pop(number, None)

    def arrived(self, body: bytes) -> None:
        """Note a message that the consumer got."""
        published_at = self._on_the_way.pop(int(body), None)
        if published_at is None:
            self.duplicate_count += 1
        else:
            self.consumed_count += 1
            self._latencies_s.append(time.monotonic() - published_at)

    def latency_text(self) -> str:
        """The latencies of late, and begin anew."""
        ordered = sorted(self._latencies_s)
        self._latencies_s.clear()
        if not ordered:
            return "latency -"
        median_ms = 1000 * ordered[len(ordered) // 2]
        worst_ms = 1000 * ordered[-1]
        return f"latency p50 {median_ms:.1f} max {worst_ms:.0f} ms"


async def produce(nsqd: Member, traffic: Traffic, rate: float) -> None:
    """Publish to one nsqd for as long as it takes messages, and again when it is back."""
    while True:
        number = 0
        with contextlib.suppress(*_CONNECTION_ERRORS):
            async with _connected(nsqd.tcp_port) as (reader, writer):
                while True:
                    number, body = traffic.next_body()
                    writer.write(pub_command(TOPIC, body))
                    await _expect_ok(reader, writer)
                    traffic.acknowledged()
                    number = 0
                    await asyncio.sleep(1 / rate)
        traffic.refused(number)
        await asyncio.sleep(RETRY_S)


class Viewer:
    """A consumer that asks the nsqlookupds who has the topic, and subscribes to all of them."""

    def __init__(self, lookupds: Sequence[Member], traffic: Traffic) -> None:
        self._lookupds = lookupds
        self._traffic = traffic

    async def run(self) -> None:
        """Consume until cancelled."""
        subscriptions: dict[int, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as tasks:
            while True:
                for port in await self._find_producers():
                    if port not in subscriptions or subscriptions[port].done():
                        subscriptions[port] = tasks.create_task(self._consume(port))
                self._traffic.producer_count = sum(
                    not each.done() for each in subscriptions.values()
                )
                await asyncio.sleep(LOOKUP_INTERVAL_S)

    async def _find_producers(self) -> set[int]:
        ports: set[int] = set()
        for lookupd in self._lookupds:
            with contextlib.suppress(*_CONNECTION_ERRORS):
                async with _connected(lookupd.http_port, magic=b"") as (reader, writer):
                    writer.write(f"GET /lookup?topic={TOPIC} HTTP/1.0\r\n\r\n".encode())
                    reply = await asyncio.wait_for(reader.read(), REPLY_TIMEOUT_S)
                    producers = json.loads(reply.partition(b"\r\n\r\n")[2]).get("producers", ())
                    ports.update(producer["tcp_port"] for producer in producers)
        return ports

    async def _consume(self, port: int) -> None:
        with contextlib.suppress(*_CONNECTION_ERRORS):
            async with _connected(port) as (reader, writer):
                writer.write(f"SUB {TOPIC} {CHANNEL}\n".encode())
                await _expect_ok(reader, writer)
                writer.write(f"RDY {RDY_COUNT}\n".encode())
                while True:
                    kind, data = await _read_frame(reader)
                    if kind == FRAME_MESSAGE:
                        # | 8: timestamp | 2: attempts | 16: id | body |
                        self._traffic.arrived(data[26:])
                        writer.write(b"FIN %s\n" % data[10:26])
                    else:
                        writer.write(b"NOP\n")


async def break_things(members: Sequence[Member], interval_s: float) -> None:
    """Kill a daemon at random, restart it a moment later, and so on."""
    while True:
        await asyncio.sleep(interval_s)
        victim = random.choice(members)
        victim.kill()
        _say(f"killed {victim.name}")
        await asyncio.sleep(DOWN_TIME_S)
        await victim.start()
        _say(f"restarted {victim.name}")


async def show_status(
    lookupds: Sequence[Member], nsqds: Sequence[Member], traffic: Traffic
) -> None:
    """Write the figures, over and over."""
    published_count = 0
    while True:
        await asyncio.sleep(STATUS_INTERVAL_S)
        rate = (traffic.published_count - published_count) / STATUS_INTERVAL_S
        published_count = traffic.published_count
        _show_line(
            f"nsqlookupd {_count_running(lookupds)}/{len(lookupds)}"
            f"  nsqd {_count_running(nsqds)}/{len(nsqds)}"
            f"  consumer on {traffic.producer_count}"
            f"  published {traffic.published_count} ({rate:.0f}/s)"
            f"  consumed {traffic.consumed_count}"
            f"  on the way {traffic.on_the_way_count}"
            f"  duplicates {traffic.duplicate_count}"
            f"  {traffic.latency_text()}"
        )


async def run(arguments: argparse.Namespace, directory: Path) -> None:
    """Start the cluster, let it run, and stop it.

    Raises:
        ClusterError: a daemon does not start.
    """
    lookupds = [
        Member(f"nsqlookupd-{number}", "lookupd", directory) for number in range(LOOKUPD_COUNT)
    ]
    nsqds: list[Member] = []
    admins: list[Member] = []
    try:
        await asyncio.gather(*(lookupd.start() for lookupd in lookupds))
        nsqds += (_make_nsqd(number, directory, lookupds) for number in range(NSQD_COUNT))
        await asyncio.gather(*(nsqd.start() for nsqd in nsqds))
        addresses = (f"--lookupd-http-address={HOST}:{each.http_port}" for each in lookupds)
        admins += [Member("nsqadmin", "nsqadmin", directory, *addresses, has_tcp=False)]
        await admins[0].start()
        for member in (*lookupds, *nsqds):
            _say(f"{member.name:14} TCP {HOST}:{member.tcp_port}  HTTP {HOST}:{member.http_port}")
        _say(f"console: open http://{HOST}:{admins[0].http_port}/ in a browser")
        _say(f"try: curl '{HOST}:{lookupds[0].http_port}/lookup?topic={TOPIC}'; Ctrl-C stops all")
        traffic = Traffic()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(arguments.seconds or None), asyncio.TaskGroup() as tasks:
                for nsqd in nsqds:
                    tasks.create_task(produce(nsqd, traffic, arguments.rate / NSQD_COUNT))
                tasks.create_task(Viewer(lookupds, traffic).run())
                tasks.create_task(show_status(lookupds, nsqds, traffic))
                if arguments.chaos:
                    tasks.create_task(break_things([*lookupds, *nsqds], arguments.chaos))
    finally:
        _say("stopping")
        for member in (*admins, *nsqds, *lookupds):
            member.stop()


def _make_nsqd(number: int, directory: Path, lookupds: Sequence[Member]) -> Member:
    data_path = directory / f"data-{number}"
    data_path.mkdir()
    return Member(
        f"nsqd-{number}",
        "nsqd",
        directory,
        f"--data-path={data_path}",
        f"--node-id={number}",
        *(f"--lookupd-tcp-address={HOST}:{lookupd.tcp_port}" for lookupd in lookupds),
        *NSQD_FLAGS,
    )


def _count_running(members: Sequence[Member]) -> int:
    return sum(member.is_running() for member in members)


@contextlib.asynccontextmanager
async def _connected(port: int, *, magic: bytes = MAGIC) -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(magic)
        yield reader, writer
    finally:
        writer.transport.abort()


async def _read_frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    size, kind = type_and_size.unpack(await reader.readexactly(type_and_size.size))
    return kind, await reader.readexactly(size - 4)


async def _expect_ok(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    async with asyncio.timeout(REPLY_TIMEOUT_S):
        while True:
            kind, data = await _read_frame(reader)
            if struct.pack(">ii", len(data) + 4, kind) + data == OK_FRAME:
                return
            if data != b"_heartbeat_":
                raise ConnectionError(f"answered with {data!r}")
            writer.write(b"NOP\n")


def _say(text: str) -> None:
    print(f"\r\x1b[K{text}" if sys.stdout.isatty() else text, flush=True)


def _show_line(text: str) -> None:
    """Write over the last line where that is possible."""
    if sys.stdout.isatty():
        columns = os.get_terminal_size().columns
        print(f"\r\x1b[K{text[: columns - 1]}", end="", flush=True)
    else:
        print(text, flush=True)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.cluster", description="Run a small cluster to look at."
    )
    parser.add_argument("--rate", type=float, default=300.0, help="messages a second, altogether")
    parser.add_argument(
        "--chaos", type=float, default=0.0, metavar="S", help="kill a daemon every S seconds"
    )
    parser.add_argument(
        "--seconds", type=float, default=0.0, help="stop after so long; 0 runs until Ctrl-C"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run until told to stop; return the exit code."""
    arguments = _parse(sys.argv[1:] if argv is None else argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="nsq-cluster-") as directory:
        try:
            asyncio.run(run(arguments, Path(directory)))
        except KeyboardInterrupt:
            return 0
        except ClusterError as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
