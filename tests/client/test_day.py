"""Case 30 in fake time: a producer and a consumer live through a day of trouble.

Each hour has 45 minutes in which nsqds are killed, frozen, reset and moved to other ports, their
nsqlookupds fail, and handlers raise. Then all is well again, and everything must be as it was in
the first hours: connections, RDY, backoff, tasks, timers, memory. The last hours are quiet, so that
clocks can be read. `make soak-client` is the same in real time, with real daemons.
"""

import asyncio
import gc
import logging
import random
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from nsqd.client import Consumer, Message, Observer, Producer, PublishError, Requeue
from tests.support.fake_time.lookupd import FakeLookupd, Mood
from tests.support.fake_time.loop import FakeTimeLoop
from tests.support.fake_time.nsqd import MSG_TIMEOUT_S, FakeNsqd

SEED = 1
HOURS = 24
QUIET_HOURS = 2
# From the second hour on the client has met everything that it keeps something for.
WARM_HOURS = 2
TROUBLE_S = 45 * 60.0
# After trouble: the longest pause before a connect, the connect itself, and the next poll of
# nsqlookupd with its jitter.
RECOVERY_S = 30.0 + 5.0 + 60.0 * 1.3
# From the highest level down to 0 the pauses take 246 s, and each of seven probes may be slow.
BACKOFF_S = 246.0 + 7 * 2.5 * MSG_TIMEOUT_S
# An nsqd that no nsqlookupd has told of for three polls is not called again.
FORGET_S = 5 * 60.0 * 1.3
# Dicts keep the size that they had in the worst minute. A leak of one id for each message would
# be a megabyte, one of a task for each connection several.
MAX_GROWTH_BYTES = 16 << 10
MAX_NEW_OBJECTS = 300
# What a client refers to and does not own.
FOREIGN = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.FrameType,
    types.CoroutineType,
    asyncio.AbstractEventLoop,
    asyncio.BaseTransport,
    logging.Logger,
)
LIMITS = (2, 7, 50)


class Events(Observer):
    def __init__(self) -> None:
        self.highest_level = 0
        self.lost_by_silence = 0

    def backed_off(self, level: int, pause_s: float) -> None:
        self.highest_level = max(self.highest_level, level)
        assert pause_s <= 120.0

    def disconnected(self, nsqd: str, reason: str) -> None:
        self.lost_by_silence += "silent" in reason


@dataclass(frozen=True)
class Footprint:
    """What must not grow from hour to hour."""

    tasks: int
    timers: int
    connections: int
    objects: int
    client_bytes: int


class World:
    """Three nsqds, two nsqlookupds, a producer, a consumer, and the books about them."""

    def __init__(self, loop: FakeTimeLoop, chance: random.Random) -> None:
        self.loop = loop
        self.chance = chance
        self.nodes = [FakeNsqd(loop, f"nsqd{number}", 4150) for number in range(3)]
        self.lookupds = [FakeLookupd(loop, f"lookup{i}", 4161, self._addresses) for i in range(2)]
        for node in self.nodes:
            node.start()
        for lookupd in self.lookupds:
            lookupd.start()
        self.events = Events()
        self.is_publishing = asyncio.Event()
        self.is_failing = False
        self.sent = 0
        # Accepted and not handled. Nothing here grows with the day.
        self.missing: set[int] = set()
        self.confirmed = self.handled = self.doubled = self.slow = self.failures = 0
        self.at_work: set[Message] = set()
        self.most_held = 0
        self._handled_early: set[int] = set()

    def _addresses(self) -> list[tuple[str, int]]:
        return [(node.host, node.port) for node in self.nodes if node.is_up]

    async def publish(self, producer: Producer) -> None:
        """Publish a few messages every few seconds, for ever."""
        while True:
            await self.is_publishing.wait()
            numbers = range(self.sent, self.sent + self.chance.randint(1, 8))
            self.sent = numbers.stop
            try:
                await producer.publish_many("topic", [b"%d" % number for number in numbers])
            except PublishError:
                self.failures += 1
                self._handled_early.difference_update(numbers)
            else:
                self.confirmed += len(numbers)
                early = self._handled_early.intersection(numbers)
                self._handled_early -= early
                self.missing.update(set(numbers) - early)
            await asyncio.sleep(self.chance.uniform(1.0, 15.0))

    async def handle(self, message: Message) -> None:
        """Handle most messages at once, some slowly; fail while the test says so."""
        self.at_work.add(message)
        # Without the deliveries whose connection is lost: those are no longer in flight.
        held = sum(not each.is_answered for each in self.at_work)
        self.most_held = max(self.most_held, held)
        try:
            share = self.chance.random()
            if self.is_failing and share < 0.7:
                raise OSError("the database is down")
            if share < 0.01:
                raise Requeue(2.0, backoff=False)
            if share < 0.015:
                self.slow += 1
                await asyncio.sleep(2.5 * MSG_TIMEOUT_S)
            else:
                await asyncio.sleep(self.chance.uniform(0.0, 0.5))
        finally:
            self.at_work.remove(message)
        number = int(message.body)
        self.handled += 1
        if number in self.missing:
            self.missing.remove(number)
        elif number in self._handled_early:
            self.doubled += 1
        elif number >= self.sent - 8:
            self._handled_early.add(number)  # Its OK may be under way; or it is another delivery.
        else:
            self.doubled += 1

    async def trouble(self, lasts_s: float) -> None:
        """Break things, one after the other, and heal most of them a while later."""
        ends_at = self.loop.time() + lasts_s
        while self.loop.time() < ends_at:
            node, lookupd = self.chance.choice(self.nodes), self.chance.choice(self.lookupds)
            pause_s = self.chance.choice((0.05, 2.0, 20.0, 200.0))
            match self.chance.randrange(9):
                case 0 | 1:
                    node.kill()
                    self.loop.call_later(pause_s, self._revive, node)
                case 2 | 3:
                    node.freeze()
                    self.loop.call_later(pause_s, node.thaw)
                case 4:
                    node.reset_connections()
                case 5:
                    node.move(node.port + 1)
                case 6:
                    lookupd.kill()
                    self.loop.call_later(pause_s, lookupd.start)
                case 7:
                    lookupd.mood = self.chance.choice((Mood.GARBAGE, Mood.SILENT))
                case _:
                    self.is_failing = not self.is_failing
            await asyncio.sleep(self.chance.uniform(0.0, 120.0))

    def heal(self) -> None:
        """Have everything well again."""
        self.is_failing = False
        for node in self.nodes:
            node.thaw()
            self._revive(node)
        for lookupd in self.lookupds:
            lookupd.mood = Mood.WELL
            lookupd.start()

    def _revive(self, node: FakeNsqd) -> None:
        if not node.is_up:
            node.start()

    async def until(self, what: str, is_so: Callable[[], bool], within_s: float) -> None:
        """Wait for something that must become true within so much fake time."""
        ends_at = self.loop.time() + within_s
        while not is_so():
            assert self.loop.time() < ends_at, f"not within {within_s:.0f} s: {what}"
            await asyncio.sleep(1.0)

    def is_connected(self) -> bool:
        """Whether every nsqd has one consumer and one producer."""
        return all((len(node.consumers), len(node.clients)) == (1, 2) for node in self.nodes)

    def footprint(self, *clients: object) -> Footprint:
        """Measure, without garbage."""
        gc.collect()
        return Footprint(
            tasks=len(asyncio.all_tasks()),
            timers=self.loop.timer_count,
            connections=len(self.loop.open_ends),
            objects=len(gc.get_objects()),
            client_bytes=sum(map(sys.getsizeof, self._reachable(clients))),
        )

    def _reachable(self, clients: tuple[object, ...]) -> list[object]:
        """Return all objects that clients hold, those of this test left out."""
        seen = {id(self)}
        found: list[object] = []
        pending: list[object] = list(clients)
        while pending:
            each = pending.pop()
            if id(each) not in seen and not isinstance(each, FOREIGN):
                seen.add(id(each))
                found.append(each)
                pending += gc.get_referents(each)
        return found


async def finish(world: World) -> None:
    """Publish no more; all that was published must be handled."""
    world.is_publishing.clear()
    await world.until(
        "all is handled",
        lambda: not world.missing and not any(node.held_count for node in world.nodes),
        3600.0,
    )


async def recover(world: World, consumer: Consumer, limit: int) -> None:
    """Heal everything; the client must find back to its connections, its RDYs, its messages."""
    nodes = world.nodes
    world.heal()
    await world.until("one connection each", world.is_connected, RECOVERY_S)
    await world.until("the end of backoff", lambda: not consumer.stats().backoff_level, BACKOFF_S)
    await finish(world)
    total = sum(node.rdy_total for node in nodes)
    assert total == limit, f"RDYs add up to {total}, not to {limit}"
    rdys = [node.rdy_total for node in nodes]
    assert max(rdys) - min(rdys) <= 1
    stats = consumer.stats()
    assert (stats.connections, stats.in_flight, stats.buffered) == (3, 0, 0)
    # Before anything is counted: without the moments in which an nsqlookupd is asked.
    await asyncio.sleep(FORGET_S)
    await world.until("idle", lambda: not any(each.doors for each in world.lookupds), 3600.0)


async def live(loop: FakeTimeLoop, chance: random.Random) -> None:
    """A day: see the module's docstring."""
    world = World(loop, chance)
    lookupd = [f"{each.host}:{each.port}" for each in world.lookupds]
    before = world.footprint()
    async with Producer(lookupd=lookupd, spread="round-robin") as producer:
        consumer = Consumer(
            "topic",
            "ch",
            lookupd=lookupd,
            max_in_flight=LIMITS[0],
            requeue_delay=5.0,
            max_requeue_delay=60.0,
            observer=world.events,
        )
        running = asyncio.create_task(consumer.run(world.handle, concurrency=20, signals=()))
        publishing = asyncio.create_task(world.publish(producer))
        warm: Footprint | None = None
        for hour in range(HOURS - QUIET_HOURS):
            limit = LIMITS[hour % len(LIMITS)]
            consumer.set_max_in_flight(limit)
            world.most_held = 0
            ends_at = loop.time() + 3600.0
            world.is_publishing.set()
            await world.trouble(TROUBLE_S)
            await recover(world, consumer, limit)
            assert 0 < world.most_held <= limit
            now = world.footprint(producer, consumer)
            if hour == WARM_HOURS:
                warm = now
            if warm is not None:
                check_growth(warm, now, hour)
            await asyncio.sleep(ends_at - loop.time())
        await check_quiet_hours(world, consumer)
        await finish(world)
        assert not running.done()
        publishing.cancel()
        await consumer.close()
        await running
        stats = producer.stats()
    await asyncio.gather(publishing, return_exceptions=True)
    check_books(world, stats.resent)
    await asyncio.sleep(1.0)  # The last bytes of closed connections are under way.
    del running, publishing
    after = world.footprint()
    assert (after.tasks, after.timers, after.connections) == (
        before.tasks,
        before.timers,
        before.connections,
    )


def check_growth(warm: Footprint, now: Footprint, hour: int) -> None:
    assert (now.tasks, now.timers, now.connections) == (
        warm.tasks,
        warm.timers,
        warm.connections,
    ), f"hour {hour}: {now}, and it was {warm}"
    assert now.client_bytes - warm.client_bytes < MAX_GROWTH_BYTES, f"{now}, and it was {warm}"
    assert now.objects - warm.objects < MAX_NEW_OBJECTS, f"{now}, and it was {warm}"


async def check_quiet_hours(world: World, consumer: Consumer) -> None:
    """Nothing fails: no connection ends, no message times out, and nsqlookupd is asked in time."""
    consumer.set_max_in_flight(LIMITS[-1])
    world.is_publishing.set()
    connects = consumer.stats().connects
    timed_out = sum(node.timed_out_count for node in world.nodes)
    polls = [each.request_count for each in world.lookupds]
    calls = dict(world.loop.call_counts)
    slow = world.slow
    lasts_s = QUIET_HOURS * 3600.0

    await asyncio.sleep(lasts_s)

    assert consumer.stats().connects == connects
    assert sum(node.timed_out_count for node in world.nodes) == timed_out
    assert world.slow > slow + 5  # ... though these took longer than nsqd's timeout
    for each, before in zip(world.lookupds, polls, strict=True):
        # By the producer and the consumer, every 61 seconds with a jitter of 30 %.
        assert 2 * lasts_s / 79 < each.request_count - before < 2 * lasts_s / 43
    # Addresses that nobody has any more are not called.
    assert {
        address
        for address, count in world.loop.call_counts.items()
        if count > calls.get(address, 0) and address[0].startswith("nsqd")
    } == set()
    # After so long a life the first pause is a short one again, and no poll has to be waited for.
    world.nodes[0].reset_connections()
    await world.until("connected again", world.is_connected, 1.0)


def check_books(world: World, resent: int) -> None:
    nodes = world.nodes
    assert world.confirmed > 10_000
    assert not world.missing
    # Twice: what the producer sent twice, and what nsqd delivered twice.
    redelivered = sum(node.redelivered_count for node in nodes)
    assert world.doubled <= resent + redelivered
    assert sum(node.unanswered_heartbeats for node in nodes) == 0
    # The day was a hard one.
    assert world.events.highest_level == 7
    assert world.events.lost_by_silence > 5
    assert redelivered > 20
    assert len(world.loop.call_counts) > 20


@pytest.fixture
def chance() -> Iterator[random.Random]:
    """The same troubles each time; the client draws its jitter from Python's own generator."""
    state = random.getstate()
    random.seed(SEED)
    logging.disable()  # Each failure of the day would be a line.
    yield random.Random(SEED)
    logging.disable(logging.NOTSET)
    random.setstate(state)


@pytest.mark.timeout(400)
def test_a_day_leaves_nothing_behind(chance: random.Random) -> None:
    loop = FakeTimeLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(live(loop, chance))
