"""`nsq bench`: how fast an nsqd takes and gives messages, seen from here.

It works on a topic of its own, which is ephemeral and deleted at the end. nsqd drops what an
ephemeral topic cannot hold in memory, so that `sub` and `latency` stay within --mem-queue-size.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import struct
import time
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

from nsqd.cli import arguments, loop
from nsqd.cli.cluster import Cluster
from nsqd.cli.output import (
    CliError,
    ExitCode,
    note,
    print_json,
    print_table,
    print_wrapped,
    show_bytes,
)
from nsqd.cli.programs.latencies import Latencies
from nsqd.cli.progress import ProgressLine
from nsqd.cli.target import Node, Target, find_exit_code, find_target
from nsqd.client import Consumer, NsqError, Producer
from nsqd.protocol.names import is_ephemeral

EXAMPLES: Final = {
    "bench": """examples:
  nsq bench pub -n 100000 --size 500
  nsq bench sub --duration 10s --connections 2
  nsq bench latency --rate 200 -n 1000"""
}
ACTIONS: Final = ("pub", "sub", "latency")
_COUNTS: Final = {"pub": 1_000_000, "sub": 1_000_000, "latency": 1000}
_STAMP: Final = struct.Struct(">q")  # at the beginning of a body: when it was made, in ns
_IN_FLIGHT: Final = 2500
_LEAST_QUEUE: Final = 1000
_SILENCE_S: Final = 10.0


@dataclass(slots=True)
class Result:
    """The figures of a run."""

    published: int = 0
    received: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    publishing: Latencies = field(default_factory=Latencies)
    delivery: Latencies = field(default_factory=Latencies)


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Add the arguments of `nsq bench`."""
    parser.add_argument("action", choices=ACTIONS, metavar="ACTION", help=", ".join(ACTIONS))
    parser.add_argument("-n", "--count", type=arguments.positive, metavar="N",
                        help="messages (a million; latency: 1,000)")  # fmt: skip
    parser.add_argument("--size", type=arguments.size, default=200, help="of a body (200)")
    parser.add_argument("--batch", type=arguments.positive, default=200, metavar="N",
                        help="messages in a command (200; latency: 1)")  # fmt: skip
    parser.add_argument("--connections", type=arguments.positive, default=1, metavar="N",
                        help="publishers, and consumers (1)")  # fmt: skip
    parser.add_argument("--rate", type=float, default=0.0, metavar="N",
                        help="messages a second (no limit; latency: 100)")  # fmt: skip
    parser.add_argument("--duration", type=arguments.duration, metavar="TIME", help="at most")
    arguments.add_common(parser)


def run(options: argparse.Namespace, _name: str) -> int:
    """Run `nsq bench`.

    Raises:
        CliError: nsqd cannot be reached, or messages were lost.
    """
    target = find_target(options)
    if options.size < _STAMP.size:
        raise CliError(f"--size is at least {_STAMP.size}", ExitCode.USAGE)
    if options.count is None:
        options.count = _COUNTS[options.action]
    if options.action == "latency":
        options.batch = 1
        options.rate = options.rate or 100.0
    return loop.run(_run(options, target), is_verbose=options.verbose)


async def _run(options: argparse.Namespace, target: Target) -> int:
    async with Cluster(target, options.timeout) as cluster:
        nodes = [node for node in await cluster.find_nodes() if node.tcp is not None]
        if not nodes:
            raise CliError("no nsqd with a known TCP address", ExitCode.MISSING)
        queue_count = await _find_queue_count(cluster, nodes)
        suffix = "#ephemeral" if queue_count >= _LEAST_QUEUE else ""
        topic = f"bench{random.randrange(10**6):06d}{suffix}"
        load = Load(options, target, nodes, topic, queue_count)
        try:
            async with ProgressLine(load.show, is_quiet=options.quiet):
                await load.run()
        except NsqError as error:
            raise CliError(str(error), find_exit_code(error)) from error
        finally:
            await cluster.ask("POST", nodes, f"/topic/delete?{urlencode({'topic': topic})}")
            await cluster.ask_lookupds("POST", f"/topic/delete?{urlencode({'topic': topic})}")
    _print(options, load.result)
    return load.code


async def _find_queue_count(cluster: Cluster, nodes: list[Node]) -> int:
    """Return how many messages the smallest memory queue of the nodes holds."""
    outcomes = await cluster.ask("GET", nodes, "/config/mem_queue_size")
    sizes = [each.answer for each in outcomes if isinstance(each.answer, int)]
    return min(sizes, default=10_000)


class Load:
    """Publishers and consumers of one run."""

    def __init__(
        self,
        options: argparse.Namespace,
        target: Target,
        nodes: list[Node],
        topic: str,
        queue_count: int,
    ) -> None:
        """Prepare; `run` connects."""
        self.result = Result()
        self.code = ExitCode.DONE
        self._options = options
        self._connecting: dict[str, Any] = {
            **target.connection_options(),
            "connect_timeout": options.timeout,
            "user_agent": "nsq-bench",
        }
        self._addresses = [node.tcp for node in nodes if node.tcp is not None]
        self._topic = topic
        # Messages on their way, so that no queue overflows: half of what the smallest one holds.
        is_bounded = is_ephemeral(topic)
        self._window = max(options.batch, (min(queue_count, 10_000) if is_bounded else 10_000) // 2)
        self._begun = 0
        self._last_at = 0.0
        self._stop = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._started = time.monotonic()

    def show(self) -> str:
        """Return how far it is."""
        done = self.result.received if self._is_consuming else self.result.published
        rate = done / max(time.monotonic() - self._started, 1e-9)
        return f"{done:,} of {self._options.count:,}, {rate:,.0f}/s"

    @property
    def _is_consuming(self) -> bool:
        return bool(self._options.action != "pub")

    async def run(self) -> None:
        """Measure.

        Raises:
            NsqError: nsqd cannot be reached, or refuses.
        """
        running = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            running.add_signal_handler(number, self._end)
        consumers = []
        if self._is_consuming:
            consumers = [self._make_consumer(address) for address in self._each_address()]
            for consumer in consumers:
                consumer.start()
        receiving = [asyncio.create_task(self._receive(each)) for each in consumers]
        self._started = time.monotonic()
        cpu_s = time.process_time()
        try:
            await self._publish_all()
            await self._wait_for_rest(receiving)
        finally:
            self.result.seconds = time.monotonic() - self._started
            self.result.cpu_s = time.process_time() - cpu_s
            for task in receiving:
                task.cancel()
            await asyncio.gather(*receiving, return_exceptions=True)
            await asyncio.gather(*(consumer.close() for consumer in consumers))

    def _each_address(self) -> list[Any]:
        """Return an address for each connection, and each node at least once."""
        count = max(self._options.connections, len(self._addresses))
        return [self._addresses[index % len(self._addresses)] for index in range(count)]

    def _make_consumer(self, address: Any) -> Consumer:
        return Consumer(
            self._topic,
            self._topic,  # The channel is ephemeral if the topic is.
            nsqd=[address],
            max_in_flight=_IN_FLIGHT,
            **self._connecting,
        )

    async def _publish_all(self) -> None:
        addresses = self._each_address()[: max(self._options.connections, 1)]
        due = asyncio.get_running_loop().time()
        tasks = [asyncio.create_task(self._publish(address, due)) for address in addresses]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _publish(self, address: Any, due: float) -> None:
        options = self._options
        running = asyncio.get_running_loop()
        ends_at = None if options.duration is None else running.time() + options.duration
        filling = b"x" * (options.size - _STAMP.size)
        step_s = options.batch * options.connections / options.rate if options.rate else 0.0
        async with Producer(
            address, timeout=max(options.timeout, 1.0), retries=0, **self._connecting
        ) as producer:
            while self._begun < options.count and not self._stop.is_set():
                if step_s:
                    await asyncio.sleep(max(0.0, due - running.time()))
                    due = max(due + step_s, running.time() - step_s)
                await self._wait_for_room()
                if ends_at is not None and running.time() >= ends_at:
                    break
                count = min(options.batch, options.count - self._begun)
                if count <= 0 or self._stop.is_set():
                    break
                self._begin(count)
                body = _STAMP.pack(time.monotonic_ns()) + filling
                began = time.perf_counter()  # The clock of uvloop counts milliseconds.
                await producer.publish_many(self._topic, [body] * count)
                self.result.publishing.add(time.perf_counter() - began)
                self.result.published += count

    def _end(self) -> None:
        self._stop.set()
        self._room.set()

    async def _wait_for_room(self) -> None:
        try:
            async with asyncio.timeout(_SILENCE_S):
                await self._room.wait()
        except TimeoutError as error:
            left = self._begun - self.result.received
            raise NsqError(f"{left:,} messages did not come back in {_SILENCE_S:.0f} s") from error

    def _begin(self, count: int) -> None:
        self._begun += count
        if self._is_consuming and self._begun - self.result.received + count > self._window:
            self._room.clear()

    async def _receive(self, consumer: Consumer) -> None:
        result, delivery = self.result, self.result.delivery
        async for batch in consumer.batches(500, 0.0):
            now_ns = time.monotonic_ns()
            for message in batch:
                (made_ns,) = _STAMP.unpack_from(message.body)
                delivery.add((now_ns - made_ns) / 1e9)
            batch.fin()
            result.received += len(batch)
            self._last_at = asyncio.get_running_loop().time()
            if self._begun - result.received + self._options.batch <= self._window:
                self._room.set()

    async def _wait_for_rest(self, receiving: list[asyncio.Task[None]]) -> None:
        """Wait until everything that was published has come."""
        running = asyncio.get_running_loop()
        self._last_at = running.time()
        while self._is_consuming and self.result.received < self.result.published:
            for task in receiving:
                if task.done():
                    task.result()
            if self._stop.is_set() or running.time() - self._last_at > _SILENCE_S:
                self.code = ExitCode.FAILED
                return
            await asyncio.sleep(0.001)


def _print(options: argparse.Namespace, result: Result) -> None:
    is_consuming = options.action != "pub"
    count = result.received if is_consuming else result.published
    latencies = {"publish": result.publishing}
    if is_consuming:
        latencies["delivery"] = result.delivery
    rate = count / result.seconds if result.seconds else 0.0
    per_cpu = count / result.cpu_s if result.cpu_s else 0.0
    if options.json:
        print_json(
            {
                "bench": options.action,
                "published": result.published,
                "received": result.received,
                "size": options.size,
                "batch": options.batch,
                "connections": options.connections,
                "seconds": round(result.seconds, 3),
                "messages_per_s": round(rate),
                "bytes_per_s": round(rate * options.size),
                "client_cpu_s": round(result.cpu_s, 3),
                "latency_ms": {name: _milliseconds(each) for name, each in latencies.items()},
            }
        )
        return
    lost = result.published - result.received if is_consuming else 0
    print_wrapped(
        "",
        f"{count:,} messages of {options.size} B in {result.seconds:.2f} s:"
        f" {rate:,.0f}/s, {show_bytes(round(rate * options.size))}/s;"
        f" {per_cpu:,.0f} per second of this client's CPU",
    )
    heads = ("milliseconds", "p50", "p99", "p99.9", "max")
    rows = [(name, *_milliseconds(each).values()) for name, each in latencies.items()]
    print_table(heads, rows, colour=options.color)
    if lost:
        note(f"nsq: {lost:,} messages did not come back")


def _milliseconds(latencies: Latencies) -> dict[str, float]:
    shares = {"p50": 50.0, "p99": 99.0, "p99.9": 99.9}
    found = {name: latencies.find_percentile_s(percent) for name, percent in shares.items()}
    return {
        **{name: round(seconds * 1e3, 3) for name, seconds in found.items()},
        "max": round(latencies.largest_s * 1e3, 3),
    }
