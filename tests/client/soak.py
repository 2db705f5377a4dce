"""make soak-client: a producer and a consumer at work while their nsqds are killed and frozen.

    python -m tests.client.soak --minutes 10

Case 30 in real time. What the producer calls published must be handled, memory stays flat, and at
the end no task and no descriptor is left. Progress and the verdict go to stdout; the exit code is 0
if all that held.
"""

import argparse
import asyncio
import logging
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from nsqd.client import Consumer, Message, Producer, PublishError
from nsqd.client.consume.message import Requeue
from tests.support.daemon_process import DaemonProcess

NODES = 3
BATCH = 50
PAUSE_S = 0.02
FAULT_EVERY_S = (1.0, 4.0)
PROGRESS_S = 20.0
SETTLE_S = 120.0
MAX_MESSAGES = 20_000_000
# After a warm-up; the books below are as large at the beginning as at the end.
MAX_GROWTH_BYTES = 16 << 20
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Books:
    """A byte for each message: how far it is. Made at once, so that it does not grow."""

    def __init__(self) -> None:
        self.sent = 0
        self.confirmed = 0
        self.handled = 0
        self.doubled = 0
        self.failed_publishes = 0
        self._is_confirmed = bytearray(MAX_MESSAGES)
        self._handled = bytearray(MAX_MESSAGES)

    def next_bodies(self) -> range:
        """Return numbers that were not used."""
        self.sent += BATCH
        return range(self.sent - BATCH, self.sent)

    def confirm(self, numbers: range) -> None:
        """Note messages that nsqd has accepted."""
        self.confirmed += len(numbers)
        self._is_confirmed[numbers.start : numbers.stop] = b"\1" * len(numbers)

    def handle(self, number: int) -> None:
        """Note a message that was handled."""
        if self._handled[number]:
            self.doubled += 1
        else:
            self._handled[number] = 1
            self.handled += 1

    def missing(self) -> int:
        """Count the messages that were accepted and not handled."""
        pairs = zip(self._is_confirmed, self._handled, strict=True)
        return sum(confirmed > handled for confirmed, handled in pairs) if self.confirmed else 0


def say(text: str) -> None:
    """Print a line at once, though stdout may be a file."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def resident_bytes() -> int:
    """Return the memory of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGE_BYTES


def descriptor_count() -> int:
    """Return how many descriptors are open."""
    return len(os.listdir("/proc/self/fd"))


async def publish(producer: Producer, books: Books, ends_at: float) -> None:
    """Publish until the time is over; a batch that fails is not sent again."""
    while time.monotonic() < ends_at and books.sent + BATCH <= MAX_MESSAGES:
        numbers = books.next_bodies()
        try:
            await producer.publish_many("soak", [b"%d" % number for number in numbers])
            books.confirm(numbers)
        except PublishError:
            books.failed_publishes += 1
        await asyncio.sleep(PAUSE_S)


async def trouble(
    daemons: list[DaemonProcess], chance: random.Random, counts: dict[str, int]
) -> None:
    """Kill, stop or freeze one nsqd after the other, for ever."""

    def freeze(daemon: DaemonProcess) -> None:
        daemon.suspend()
        time.sleep(chance.uniform(0.2, 3.0))
        daemon.resume()

    def restart(end: Callable[[], None], daemon: DaemonProcess) -> None:
        end()
        time.sleep(chance.uniform(0.0, 1.0))
        daemon.start()

    while True:
        await asyncio.sleep(chance.uniform(*FAULT_EVERY_S))
        daemon = chance.choice(daemons)
        kind = chance.choice(("kill", "stop", "freeze"))
        # To the end, also if the soak is over meanwhile: the nsqd has to live.
        if kind == "freeze":
            await asyncio.shield(asyncio.to_thread(freeze, daemon))
        else:
            end = daemon.kill if kind == "kill" else daemon.stop
            await asyncio.shield(asyncio.to_thread(restart, end, daemon))
        counts[kind] = counts.get(kind, 0) + 1


async def soak(daemons: list[DaemonProcess], minutes: float, seed: int) -> list[str]:
    """Play; return what is wrong."""
    books, counts, chance = Books(), dict[str, int](), random.Random(seed)
    addresses = [daemon.tcp_address for daemon in daemons]
    started = time.monotonic()
    ends_at = started + minutes * 60
    tasks_before = len(asyncio.all_tasks())
    descriptors_before = descriptor_count()
    sizes: list[int] = []

    async def handle(message: Message) -> None:
        if message.attempts == 1 and chance.random() < 0.01:
            raise Requeue(0.1, backoff=False)
        await asyncio.sleep(0)
        books.handle(int(message.body))

    async with Producer(*addresses, spread="round-robin", retries=1000, timeout=30.0) as producer:
        consumer = Consumer("soak", "c", nsqd=addresses, max_in_flight=300, backoff=None)
        handling = asyncio.create_task(consumer.run(handle, concurrency=20, signals=()))
        publishing = asyncio.create_task(publish(producer, books, ends_at))
        troubling = asyncio.create_task(trouble(daemons, chance, counts))
        while not publishing.done():
            await asyncio.wait([publishing], timeout=min(PROGRESS_S, minutes * 60 / 6))
            sizes.append(resident_bytes())
            say(
                f"elapsed={time.monotonic() - started:.0f}s confirmed={books.confirmed}"
                f" handled={books.handled} doubled={books.doubled} {counts}"
                f" tasks={len(asyncio.all_tasks())} descriptors={descriptor_count()}"
                f" rss={sizes[-1] / 1e6:.1f}MB"
            )
        await publishing
        troubling.cancel()
        await asyncio.gather(troubling, return_exceptions=True)
        settles_until = time.monotonic() + SETTLE_S
        while books.missing() and time.monotonic() < settles_until:  # noqa: ASYNC110 - from outside
            await asyncio.sleep(1.0)
        resent = producer.stats().resent
        await consumer.close()
        await handling
    await asyncio.sleep(0.1)
    tasks, descriptors = len(asyncio.all_tasks()), descriptor_count()
    growth = max(sizes[len(sizes) // 3 :]) - sizes[len(sizes) // 3]
    say(
        f"confirmed={books.confirmed} handled={books.handled} missing={books.missing()}"
        f" doubled={books.doubled} resent={resent} failed publishes={books.failed_publishes}"
        f" {counts} growth={growth / 1e6:.1f}MB tasks={tasks - tasks_before:+d}"
        f" descriptors={descriptors - descriptors_before:+d}"
    )
    lost = descriptors - descriptors_before
    wrong = {
        f"{books.missing()} messages were published and not handled": books.missing() > 0,
        "nothing was published": not books.confirmed,
        f"{tasks - tasks_before} tasks are left": tasks > tasks_before,
        f"{lost} descriptors are left": lost > 0,
        f"memory grew by {growth} bytes": growth > MAX_GROWTH_BYTES,
    }
    return [text for text, is_wrong in wrong.items() if is_wrong]


def main() -> int:
    """Soak; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.client.soak")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.getrandbits(32))
    options = parser.parse_args()
    say(f"seed={options.seed}")
    logging.disable()  # Every lost connection would be told, and that is the point here.
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        daemons = []
        for number in range(NODES):
            directory = Path(place, str(number))
            daemon = stack.enter_context(DaemonProcess(directory, "--mem-queue-size=0"))
            daemon.keeps_ports = True
            daemons.append(daemon)
        wrong = asyncio.run(soak(daemons, options.minutes, options.seed))
    say("\n".join(f"FAILED: {each}" for each in wrong) or "PASSED")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
