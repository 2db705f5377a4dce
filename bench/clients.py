"""`python -m bench.clients`: the client library and the commands, with pynsq and Go's tools.

    python -m bench.clients --against nsqd --rounds 3

For the library the figure is messages per second of the *client's* CPU: the daemon has its own, and
wall time depends on both. For the commands it is wall time, start included, in turns with Go's; CPU
is beside it, which other work on the machine disturbs less. Go's tools are looked for on PATH.
"""

import argparse
import asyncio
import compileall
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import IO, Final

import uvloop

import diskqueue
import nsqd
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


@dataclass(frozen=True, slots=True)
class CommandRate:
    """A command and Go's tool for the same, medians of rounds in turns; None without the tool."""

    name: str
    rate: float  # messages per second of wall time, start included
    cpu_s: float
    go_name: str
    go_rate: float | None
    go_cpu_s: float | None
    bar: float  # how many times as fast as Go's ours has to be


def measure_commands(daemon: Daemon, count: int, rounds: int) -> list[CommandRate]:
    """Measure ours and Go's in turns."""
    address = f"{daemon.tcp[0]}:{daemon.tcp[1]}"
    nsq = str(Path(sys.executable).parent / "nsq")
    at = ("-a", address, "--no-context")
    to, topic = f"--nsqd-tcp-address={address}", "--topic={}"
    tail = ("tail", "{}", "--channel", "c", "-n", str(count))
    commands: list[tuple[str, list[str], str, list[str], float]] = [
        ("nsq pub", [nsq, "pub", "{}", "-q", *at], "to_nsq", [topic, to], 20),
        ("nsq tail", [nsq, *tail, *at], "nsq_tail", [topic, "--channel=c", f"-n={count}", to], 4),
    ]
    _compile()
    rows = []
    with tempfile.TemporaryFile() as lines:
        lines.write((BODY + b"\n") * count)
        lines.flush()
        for name, ours, go_name, go_flags, bar in commands:
            is_out = go_name == "nsq_tail"
            go = [find_go(go_name), *go_flags]
            used: dict[str, list[tuple[float, float]]] = {name: [], go_name: []}
            for _ in range(rounds):
                for who, argv in ((name, ours), (go_name, go)):
                    if argv[0]:
                        used[who].append(_run_command(daemon, argv, lines, count, is_out=is_out))
            rows.append(
                CommandRate(
                    name,
                    count / median(wall_s for wall_s, _ in used[name]),
                    median(cpu_s for _, cpu_s in used[name]),
                    go_name,
                    count / median(wall_s for wall_s, _ in used[go_name]) if go[0] else None,
                    median(cpu_s for _, cpu_s in used[go_name]) if go[0] else None,
                    bar,
                )
            )
    return rows


def _run_command(
    daemon: Daemon, argv: list[str], lines: IO[bytes], count: int, *, is_out: bool
) -> tuple[float, float]:
    """Run a command on a topic of its own; return wall time and CPU, in seconds."""
    topic = "command"
    if is_out:
        _run(fill(f"{daemon.tcp[0]}:{daemon.tcp[1]}", topic, count))
    lines.seek(0)
    cpu_s, start = _children_cpu_s(), time.monotonic()
    subprocess.run(
        [part.replace("{}", topic) for part in argv],
        stdin=lines,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=300,
        check=True,
    )
    lasted_s = time.monotonic() - start
    cpu_s = _children_cpu_s() - cpu_s
    daemon.request("POST", "/topic/delete", topic=topic)
    return lasted_s, cpu_s


def _compile() -> None:
    """Compile the modules, as pip does: an editable install may not be allowed to keep them."""
    for package in (nsqd, diskqueue):
        compileall.compile_dir(Path(str(package.__file__)).parent, quiet=1)


def measure_start(rounds: int) -> tuple[float, float]:
    """Return the milliseconds of `nsq --help`, and of Python alone; the best of the rounds."""
    nsq = str(Path(sys.executable).parent / "nsq")
    found = []
    for argv in ([nsq, "--help"], [sys.executable, "-c", "pass"]):
        times = []
        for _ in range(max(rounds, 7)):
            start = time.monotonic()
            subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
            times.append(time.monotonic() - start)
        found.append(min(times) * 1000)
    return found[0], found[1]


def show_command(row: CommandRate) -> list[str]:
    """Return the lines of a command and of Go's tool."""
    times = ""
    lines = []
    if row.go_rate is not None and row.go_cpu_s is not None:
        ratio, cpu_ratio = row.rate / row.go_rate, row.go_cpu_s / row.cpu_s
        times = f"{ratio:>10.1f} {cpu_ratio:>10.1f} {row.bar:>6.0f}"
        lines = [f"{row.go_name + ' (Go)':<24} {row.go_rate:>12,.0f} {row.go_cpu_s:>10.3f}"]
    return [f"{row.name:<24} {row.rate:>12,.0f} {row.cpu_s:>10.3f} {times}".rstrip(), *lines]


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
        head = f"{f'{options.lines:,} lines':<24} {'msg/s':>12} {'CPU s':>10}"
        print(f"\n{head} {'x Go':>10} {'x Go, CPU':>10} {'bar':>6}")
        for row in measure_commands(daemon, options.lines, options.rounds):
            print("\n".join(show_command(row)))
        help_ms, python_ms = measure_start(options.rounds)
        print(f"nsq --help {help_ms:.0f} ms (bar 100), Python alone {python_ms:.0f} ms")
        times = f"; ours {OURS_TIMES} times that"
        print(f"\n{f'{options.lines:,} messages{times}':<40} {'msg/s':>12} {'CPU s':>12} {'MB':>8}")
        for sink in measure_sinks(daemon, options.lines, make_filler(daemon), find_go):
            megabytes = sink.rss_bytes / 1e6
            print(f"{sink.name:<40} {sink.rate:>12,.0f} {sink.cpu_s:>12.2f} {megabytes:>8.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
