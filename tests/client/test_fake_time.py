"""Cases 17, 26 and 28, and what the client does by the clock: in fake time, with fake nsqds."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from nsqd.client import Consumer, Message, Producer, PublishError
from tests.support.fake_time.lookupd import FakeLookupd
from tests.support.fake_time.loop import FakeTimeLoop
from tests.support.fake_time.nsqd import MSG_TIMEOUT_S, FakeNsqd

INTERVAL_S = 60.0
JITTER = 1.3

Play = Callable[[Callable[[FakeTimeLoop], Coroutine[Any, Any, None]]], None]


@pytest.fixture
def play() -> Iterator[Play]:
    """Run a scene on a loop of its own, with the same jitter each time."""
    state = random.getstate()
    random.seed(26)

    def run(scene: Callable[[FakeTimeLoop], Coroutine[Any, Any, None]]) -> None:
        loop = FakeTimeLoop()
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(scene(loop))

    yield run
    random.setstate(state)


def start_nodes(loop: FakeTimeLoop, count: int) -> list[FakeNsqd]:
    nodes = [FakeNsqd(loop, f"nsqd{number}", 4150) for number in range(count)]
    for node in nodes:
        node.start()
    return nodes


def start_lookupd(loop: FakeTimeLoop, nodes: list[FakeNsqd], number: int = 0) -> FakeLookupd:
    lookupd = FakeLookupd(
        loop,
        f"lookup{number}",
        4161,
        lambda: [(node.host, node.port) for node in nodes if node.is_up],
    )
    lookupd.start()
    return lookupd


async def until(is_so: Callable[[], bool], within_s: float) -> None:
    """Wait for something that must become true within so much fake time."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + within_s
    while not is_so():
        assert loop.time() < ends_at
        await asyncio.sleep(0.01)


def test_case_17_messages_on_one_of_ten_nsqds_come_within_forty_seconds(play: Play) -> None:
    async def scene(loop: FakeTimeLoop) -> None:
        nodes = start_nodes(loop, 10)
        addresses = [f"{node.host}:{node.port}" for node in nodes]
        handled: set[bytes] = set()

        async def handle(message: Message) -> None:
            handled.add(message.body)

        consumer = Consumer("topic", "ch", nsqd=addresses, max_in_flight=3)
        running = asyncio.create_task(consumer.run(handle, signals=()))
        for busy in nodes:  # whichever of them it is
            handled.clear()
            bodies = {b"%d" % number for number in range(20)}
            busy.publish(sorted(bodies))
            await until(lambda bodies=bodies: handled == bodies, 40.0)  # type: ignore[misc] # bound now
            assert sum(node.rdy_total for node in nodes) == 3
        await consumer.close()
        await running

    play(scene)


def test_case_26_after_each_of_ten_restarts_it_is_connected_within_a_second(play: Play) -> None:
    async def scene(loop: FakeTimeLoop) -> None:
        [node] = start_nodes(loop, 1)
        handled: set[bytes] = set()

        async def handle(message: Message) -> None:
            handled.add(message.body)

        consumer = Consumer("topic", "ch", nsqd=["nsqd0:4150"])
        running = asyncio.create_task(consumer.run(handle, signals=()))
        async with Producer("nsqd0:4150") as producer:
            for number in range(10):
                await until(lambda: bool(node.consumers), 1.0)
                publishing = asyncio.gather(
                    *(producer.publish("topic", b"%d-%d" % (number, each)) for each in range(100))
                )
                await asyncio.sleep(0.003)
                node.kill()
                await asyncio.sleep(0.3)
                node.start()
                await until(lambda: len(node.clients) == 2 and bool(node.consumers), 1.0)
                await publishing
            await until(lambda: len(handled) == 1000, 1.0)
        await consumer.close()
        await running

    play(scene)


def test_case_28_a_batch_is_not_held_beyond_half_of_its_time(play: Play) -> None:
    async def scene(loop: FakeTimeLoop) -> None:
        [node] = start_nodes(loop, 1)
        async with Consumer("topic", "ch", nsqd=["nsqd0:4150"], max_in_flight=50) as consumer:
            batches = consumer.batches(max_count=100, max_wait=10 * MSG_TIMEOUT_S)
            await until(lambda: bool(node.consumers), 1.0)
            started = loop.time()
            node.publish([b"alone"])
            batch = await anext(batches)
            held_s = loop.time() - started
            batch.fin()

            assert held_s == pytest.approx(MSG_TIMEOUT_S / 2, abs=0.1)
            assert node.timed_out_count == 0

    play(scene)


@pytest.mark.parametrize("spread", ["failover", "round-robin", "all"])
def test_a_producer_forgets_an_nsqd_that_is_gone(play: Play, spread: Any) -> None:
    async def scene(loop: FakeTimeLoop) -> None:
        first, second = nodes = start_nodes(loop, 2)
        lookupd = start_lookupd(loop, nodes)
        async with Producer(lookupd=[f"{lookupd.host}:{lookupd.port}"], spread=spread) as producer:
            await producer.publish("topic", b"one")
            first.kill()
            await asyncio.sleep(5 * INTERVAL_S * JITTER)
            calls = loop.call_counts[first.host, first.port]
            await asyncio.sleep(3600.0)
            assert loop.call_counts[first.host, first.port] == calls
            before = len(second.queue)
            await producer.publish("topic", b"two")  # not to the one that is gone
            assert len(second.queue) == before + 1

            first.start()
            await asyncio.sleep(2 * INTERVAL_S * JITTER)
            if spread == "failover":
                second.kill()
            before = len(first.queue)
            for _ in range(4):
                await producer.publish("topic", b"three")
            assert len(first.queue) > before
        assert len(asyncio.all_tasks()) == 1

    play(scene)


def test_an_nsqd_that_the_program_named_is_called_for_ever(play: Play) -> None:
    async def scene(loop: FakeTimeLoop) -> None:
        first, second = start_nodes(loop, 2)
        lookupd = start_lookupd(loop, [second])
        at = [f"{lookupd.host}:{lookupd.port}"]
        async with (
            Producer("nsqd0:4150", lookupd=at, spread="round-robin", timeout=5.0) as producer,
            Consumer("topic", "ch", nsqd=["nsqd0:4150"], lookupd=at) as consumer,
        ):
            await until(lambda: len(first.clients) == len(second.clients) == 2, 1.0)
            first.kill()
            await asyncio.sleep(3600.0)
            first.start()
            await until(lambda: len(first.clients) == 2, 60.0)
            assert consumer.stats().connections == 2
            for _ in range(4):
                await producer.publish("topic", b"x")
            assert first.held_count

    play(scene)


def test_an_nsqd_that_restarts_is_not_forgotten_before_the_next_poll(play: Play) -> None:
    """Lost connections hurry the polls: three of them were over in three seconds."""

    async def scene(loop: FakeTimeLoop) -> None:
        [node] = start_nodes(loop, 1)
        lookupd = start_lookupd(loop, [node])
        at = [f"{lookupd.host}:{lookupd.port}"]
        async with Producer(lookupd=at) as producer, Consumer("topic", "ch", lookupd=at) as _:
            await producer.publish("topic", b"x")
            await until(lambda: len(node.clients) == 2, 1.0)
            await asyncio.sleep(INTERVAL_S * JITTER)
            node.kill()
            await asyncio.sleep(8.0)
            node.start()
            # After a pause of 30 s at most; the poll after the next one would be too late.
            await until(lambda: len(node.clients) == 2, 31.0)

    play(scene)


def test_an_nsqlookupd_that_fails_changes_nothing(play: Play) -> None:
    """Only the second one knows the nsqd, which cannot be reached for as long as it is down."""

    async def scene(loop: FakeTimeLoop) -> None:
        [node] = start_nodes(loop, 1)
        first = start_lookupd(loop, [])
        second = start_lookupd(loop, [node], 1)
        at = [f"{each.host}:{each.port}" for each in (first, second)]
        async with Consumer("topic", "ch", lookupd=at) as consumer:
            await until(lambda: bool(node.consumers), 1.0)
            second.kill()
            node.kill()
            await asyncio.sleep(1800.0)
            node.start()
            await until(lambda: consumer.stats().connections == 1, 31.0)

    play(scene)


def test_no_nsqd_at_all_is_an_error_in_time(play: Play) -> None:
    async def scene(loop: FakeTimeLoop) -> None:
        async with Producer("nsqd0:4150", timeout=30.0) as producer:
            started = loop.time()
            with pytest.raises(PublishError) as caught:
                await producer.publish("topic", b"x")
            assert loop.time() - started == pytest.approx(30.0, abs=1.1)
            assert caught.value.is_certainly_not_published

    play(scene)
