"""`python -m bench.clients`: the client library and the commands, with pynsq and Go's tools.

    python -m bench.clients --against nsqd --rounds 3

For the library the figure is messages per second of the *client's* CPU: the daemon has its own, and
wall time depends on both. For the commands it is wall time, start included, CPU beside it. A tool
of Go that is not on PATH is left out.
"""

import argparse
import asyncio
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Final

import uvloop

from bench.console import positive
from bench.daemon_process import Daemon, Target, own_target, parse_target, running
from bench.sinks import OURS_TIMES, measure_sinks
from nsqd.client import Consumer, Message, Producer

BODY: Final = b"x" * 200
FLAGS: Final = ("--mem-queue-size=4000000",)
_PYNSQ_PUBLISH: Final = """
import sys, time, nsq, tornado.ioloop
address, topic, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
loop = tornado.ioloop.IOLoop.current()
writer = nsq.Writer([address])
state = {"sent": 0, "done": 0, "cpu": 0.0}
def next_one(*_):
    if state["sent"] < count:
        state["sent"] += 1
        writer.pub(topic, b"x" * 200, answered)
def answered(conn, data):
    state["done"] += 1
    if state["done"] == count:
        print(time.process_time() - state["cpu"])
        loop.stop()
    next_one()
def begin():
    if not writer.conns:
        loop.call_later(0.1, begin)
        return
    state["cpu"] = time.process_time()
    for _ in range(100):
        next_one()
loop.call_later(1.0, begin)
loop.start()
"""
_PYNSQ_CONSUME: Final = """
import sys, time, nsq, tornado.ioloop
address, topic, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
loop = tornado.ioloop.IOLoop.current()
state = {"done": 0, "cpu": 0.0}
def handle(message):
    if not state["done"]:
        state["cpu"] = time.process_time()
    state["done"] += 1
    if state["done"] == count:
        print(time.process_time() - state["cpu"])
        loop.call_later(0.05, loop.stop)
    return True
nsq.Reader(topic=topic, channel="c", nsqd_tcp_addresses=[address], message_handler=handle,
           max_in_flight=2500)
loop.start()
"""

Case = Callable[[str, str, int], Awaitable[float]]


async def publish_one_at_a_time(address: str, topic: str, count: int) -> float:
    """Await each publish; return the CPU seconds."""
    async with Producer(address) as producer:
        await producer.publish(topic, BODY)
        start = time.process_time()
        for _ in range(count):
            await producer.publish(topic, BODY)
        return time.process_time() - start


async def publish_with_200_waiting(address: str, topic: str, count: int) -> float:
    """Publish from 200 tasks; return the CPU seconds."""

    async def work(share: int) -> None:
        for _ in range(share):
            await producer.publish(topic, BODY)

    async with Producer(address) as producer:
        await producer.publish(topic, BODY)
        start = time.process_time()
        await asyncio.gather(*(work(count // 200) for _ in range(200)))
        return time.process_time() - start


async def publish_soon(address: str, topic: str, count: int) -> float:
    """Publish 2,000 ahead; return the CPU seconds."""
    async with Producer(address) as producer:
        await producer.publish(topic, BODY)
        start = time.process_time()
        for _ in range(count // 2000):
            receipts = [producer.publish_soon(topic, BODY) for _ in range(2000)]
            await receipts[-1]
        return time.process_time() - start


async def publish_many(address: str, topic: str, count: int) -> float:
    """Publish by MPUB; return the CPU seconds."""
    bodies = [BODY] * 200
    async with Producer(address) as producer:
        await producer.publish(topic, BODY)
        start = time.process_time()
        for _ in range(count // 200):
            await producer.publish_many(topic, bodies)
        return time.process_time() - start


async def fill(address: str, topic: str, count: int) -> float:
    """Publish exactly so many messages, for a consumer; return the CPU seconds."""
    start = time.process_time()
    async with Producer(address) as producer:
        await producer.publish_many(topic, [BODY] * count)
    return time.process_time() - start


async def consume_by_iteration(address: str, topic: str, count: int) -> float:
    """Consume and finish with `async for`; return the CPU seconds."""
    async with Consumer(topic, "c", nsqd=[address], max_in_flight=2500) as consumer:
        messages = aiter(consumer)
        (await anext(messages)).fin()
        start = time.process_time()
        left = count - 1
        async for message in messages:
            message.fin()
            left -= 1
            if not left:
                break
        return time.process_time() - start


async def consume_by_ten_handlers(address: str, topic: str, count: int) -> float:
    """Consume and finish with ten handlers; return the CPU seconds."""
    done = asyncio.Event()
    seen = 0

    async def handle(_message: Message) -> None:
        nonlocal seen
        seen += 1
        if seen == count:
            done.set()

    consumer = Consumer(topic, "c", nsqd=[address], max_in_flight=2500)
    start = time.process_time()
    running_handlers = asyncio.create_task(consumer.run(handle, concurrency=10, signals=()))
    await done.wait()
    lasted_s = time.process_time() - start
    await consumer.close()
    await running_handlers
    return lasted_s


async def consume_by_batches(address: str, topic: str, count: int) -> float:
    """Consume and finish 500 at a time; return the CPU seconds."""
    async with Consumer(topic, "c", nsqd=[address], max_in_flight=2500) as consumer:
        start = time.process_time()
        left = count
        async for batch in consumer.batches(500, 0.5):
            batch.fin()
            left -= len(batch)
            if left <= 0:
                break
        return time.process_time() - start


# The case, messages in a round, and the bar in messages per second of CPU.
PUBLISHING: Final[tuple[tuple[str, Case, int, int], ...]] = (
    ("publish, one at a time", publish_one_at_a_time, 20_000, 10_000),
    ("publish, 200 waiting", publish_with_200_waiting, 200_000, 200_000),
    ("publish_soon, 2,000 ahead", publish_soon, 200_000, 400_000),
    ("publish_many of 200", publish_many, 400_000, 1_000_000),
)
CONSUMING: Final[tuple[tuple[str, Case, int, int], ...]] = (
    ("consume and FIN, async for", consume_by_iteration, 200_000, 200_000),
    ("consume and FIN, ten handlers", consume_by_ten_handlers, 200_000, 150_000),
    ("consume and FIN, batches", consume_by_batches, 200_000, 350_000),
)
_PYNSQ_COUNT: Final = 20_000


def measure_library(daemon: Daemon, rounds: int) -> list[tuple[str, float, int | None]]:
    """Return name, messages per second of CPU, and the bar of each case."""
    address = f"{daemon.tcp[0]}:{daemon.tcp[1]}"
    rows: list[tuple[str, float, int | None]] = []
    for name, case, count, bar in (*PUBLISHING, *CONSUMING):
        rates = []
        for number in range(rounds):
            topic = f"bench{number}-{case.__name__}"
            if case in (each[1] for each in CONSUMING):
                _run(fill(address, topic, count))
            rates.append(count / _run(case(address, topic, count)))
            daemon.request("POST", "/topic/delete", topic=topic)
        rows.append((name, median(rates), bar))
    for name, program in (
        ("pynsq: publish, 100 waiting", _PYNSQ_PUBLISH),
        ("pynsq: consume and FIN", _PYNSQ_CONSUME),
    ):
        topic = f"bench-{name[7:14]}"
        if program is _PYNSQ_CONSUME:
            _run(fill(address, topic, _PYNSQ_COUNT))
        command = [sys.executable, "-W", "ignore", "-c", program, address, topic]
        done = subprocess.run(
            [*command, str(_PYNSQ_COUNT)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=120,
            check=False,
        )
        if done.returncode == 0 and done.stdout:
            rows.append((name, _PYNSQ_COUNT / float(done.stdout), None))
        daemon.request("POST", "/topic/delete", topic=topic)
    return rows


def measure_commands(daemon: Daemon, count: int) -> list[tuple[str, float, float]]:
    """Return name, messages per second, and CPU seconds of each command."""
    address = f"{daemon.tcp[0]}:{daemon.tcp[1]}"
    programs = Path(sys.executable).parent
    at = ("-a", address, "--no-context")
    to, topic = f"--nsqd-tcp-address={address}", "--topic={}"
    commands: list[tuple[str, list[str], str]] = [
        ("nsq pub", [str(programs / "nsq"), "pub", "{}", "-q", *at], "in"),
        ("to_nsq (Go)", [find_go("to_nsq"), topic, to], "in"),
        (
            "nsq tail",
            [str(programs / "nsq"), "tail", "{}", "--channel", "c", "-n", str(count), *at],
            "out",
        ),
        (
            "nsq_tail (Go)",
            [find_go("nsq_tail"), topic, "--channel=c", f"-n={count}", to],
            "out",
        ),
    ]
    rows = []
    with tempfile.TemporaryFile() as lines:
        lines.write((BODY + b"\n") * count)
        for number, (name, command, direction) in enumerate(commands):
            if not command[0]:
                continue
            used = f"command{number}"
            if direction == "out":
                _run(fill(address, used, count))
            lines.seek(0)
            cpu, start = _children_cpu_s(), time.monotonic()
            subprocess.run(
                [part.replace("{}", used) for part in command],
                stdin=lines,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=300,
                check=True,
            )
            lasted_s = time.monotonic() - start
            rows.append((name, count / lasted_s, _children_cpu_s() - cpu))
            daemon.request("POST", "/topic/delete", topic=used)
    return rows


def make_filler(daemon: Daemon) -> Callable[[str, int], None]:
    """Return a function that publishes so many messages to a topic."""
    address = f"{daemon.tcp[0]}:{daemon.tcp[1]}"

    def publish(topic: str, count: int) -> None:
        _run(fill(address, topic, count))

    return publish


def find_go(name: str) -> str:
    """Return the path of a tool of Go, which is a binary; "" if there is none."""
    for directory in os.get_exec_path():
        path = shutil.which(name, path=directory)
        if path is not None and Path(path).read_bytes()[:4] == b"\x7fELF":
            return path
    return ""


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _run(main: Awaitable[float]) -> float:
    async def wait() -> float:
        return await main

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(wait())


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the tables; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.clients")
    parser.add_argument("--against", metavar="CMD", help="another nsqd, or its host:port")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--lines", type=positive, default=30_000, help="for the commands")
    options = parser.parse_args(argv)
    target: Target = (
        parse_target("other", options.against) if options.against else own_target("ours")
    )
    with running(target, FLAGS) as daemon:
        print(f"{'library':<32} {'msg per CPU second':>20} {'bar':>12}")
        for name, rate, bar in measure_library(daemon, options.rounds):
            print(f"{name:<32} {rate:>20,.0f} {'' if bar is None else f'{bar:,}':>12}")
        print(f"\n{f'command, {options.lines:,} lines':<32} {'msg/s':>20} {'CPU s':>12}")
        for name, rate, cpu_s in measure_commands(daemon, options.lines):
            print(f"{name:<32} {rate:>20,.0f} {cpu_s:>12.2f}")
        times = f"; ours {OURS_TIMES} times that"
        print(f"\n{f'{options.lines:,} messages{times}':<40} {'msg/s':>12} {'CPU s':>12} {'MB':>8}")
        for sink in measure_sinks(daemon, options.lines, make_filler(daemon), find_go):
            megabytes = sink.rss_bytes / 1e6
            print(f"{sink.name:<40} {sink.rate:>12,.0f} {sink.cpu_s:>12.2f} {megabytes:>8.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
