"""Cases 17, 26 and 28, and what the client does by the clock: in fake time, with fake nsqds."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from nsqd.client import Consumer, Message, NsqError, Producer, PublishError
from tests.support.fake_time.lookupd import FakeLookupd
from tests.support.fake_time.loop import FakeTimeLoop
from tests.support.fake_time.nsqd import MSG_TIMEOUT_S, FakeNsqd, Stored

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


def test_a_consumer_that_nobody_asks_keeps_no_more_than_it_may(play: Play) -> None:
    """nsqd delivers again what waits here for too long: each delivery replaces the one before."""

    async def scene(loop: FakeTimeLoop) -> None:
        [node] = start_nodes(loop, 1)
        node.publish([b"%d" % number for number in range(50)])
        async with Consumer("topic", "ch", nsqd=["nsqd0:4150"], max_in_flight=20) as consumer:
            await asyncio.sleep(3600.0)
            assert node.timed_out_count > 1000
            assert consumer.stats().buffered <= 20
            assert consumer.stats().in_flight <= 20
            first = await anext(aiter(consumer))
            first.fin()
        assert node.held_count == 49

    play(scene)


def test_a_pause_does_not_answer_what_another_consumer_has_by_now(play: Play) -> None:
    async def scene(loop: FakeTimeLoop) -> None:
        [node] = start_nodes(loop, 1)
        node.publish([b"%d" % number for number in range(20)])
        async with (
            Consumer("topic", "ch", nsqd=["nsqd0:4150"], max_in_flight=20) as slow,
            Consumer("topic", "ch", nsqd=["nsqd0:4150"], max_in_flight=0) as other,
        ):
            begun = await anext(aiter(slow))
            await until(lambda: slow.stats().received == 20, 1.0)
            slow.set_max_in_flight(1)
            other.set_max_in_flight(20)
            await until(lambda: other.stats().received == 19, MSG_TIMEOUT_S + 1.0)
            await asyncio.sleep(0.01)  # They came here a moment after nsqd had sent them.
            slow.set_max_in_flight(0)
            await asyncio.sleep(1.0)
            assert slow.stats().late == 0
            assert slow.stats().in_flight == 1
            begun.fin()
            taken = [await anext(aiter(other)) for _ in range(19)]
            for message in taken:
                message.fin()
            await until(lambda: node.held_count == 0, 1.0)
            assert other.stats().late == 0

    play(scene)


def test_a_pause_and_its_end_in_one_turn_lose_nothing(play: Play) -> None:
    async def scene(loop: FakeTimeLoop) -> None:
        nodes = start_nodes(loop, 2)
        for node in nodes:
            node.publish([b"%s %d" % (node.host.encode(), number) for number in range(20)])
        addresses = [f"{node.host}:{node.port}" for node in nodes]
        seen: set[bytes] = set()
        async with Consumer("topic", "ch", nsqd=addresses, max_in_flight=10) as consumer:
            messages = aiter(consumer)
            while len(seen) < 40:
                message = await anext(messages)
                consumer.set_max_in_flight(0)
                consumer.set_max_in_flight(10)
                seen.add(message.body)
                message.fin()
            await until(lambda: not any(node.held_count for node in nodes), 1.0)
            assert consumer.stats().late == 0
            assert consumer.stats().finished == 40

    play(scene)


def test_a_pause_leaves_letters_under_way_and_handlers_alone(play: Play) -> None:
    """What was begun is answered once, by its handler or as a dead letter, also after a pause."""

    async def scene(loop: FakeTimeLoop) -> None:
        [node] = start_nodes(loop, 1)
        node.publish([b"%d" % number for number in range(20)])
        released = asyncio.Event()
        given_up: list[bytes] = []
        handled: list[bytes] = []

        async def give_up(message: Message) -> None:
            given_up.append(message.body)
            await released.wait()

        async def handle(message: Message) -> None:
            handled.append(message.body)
            await released.wait()

        consumer = Consumer(
            "topic", "ch", nsqd=["nsqd0:4150"], max_in_flight=20, max_attempts=1, on_give_up=give_up
        )
        node.queue[0].attempts = 1  # This one was delivered before.
        running = asyncio.create_task(consumer.run(handle, concurrency=3, signals=()))
        await until(lambda: len(handled) == 3 and consumer.stats().received == 20, 1.0)
        consumer.set_max_in_flight(0)
        await until(lambda: len(node.queue) == 16, 1.0)  # three handlers, one letter
        assert consumer.stats().in_flight == 4
        released.set()
        await until(lambda: consumer.stats().in_flight == 0, 1.0)
        assert (consumer.stats().finished, consumer.stats().given_up) == (4, 1)
        assert len(node.queue) == 16
        assert given_up == [b"0"]
        await consumer.close()
        await running
        assert consumer.stats().late == 0
        assert node.held_count == 16

    play(scene)


def test_a_pause_while_it_closes_answers_nothing_twice(play: Play) -> None:
    async def scene(loop: FakeTimeLoop) -> None:
        [node] = start_nodes(loop, 1)
        node.publish([b"%d" % number for number in range(20)])
        consumer = Consumer("topic", "ch", nsqd=["nsqd0:4150"], max_in_flight=20)
        consumer.start()
        begun = await anext(aiter(consumer))
        await until(lambda: consumer.stats().received == 20, 1.0)
        closing = asyncio.create_task(consumer.close(grace=5.0))
        await asyncio.sleep(0)
        consumer.set_max_in_flight(0)
        consumer.set_max_in_flight(20)
        await asyncio.sleep(1.0)
        assert len(node.queue) == 19
        begun.fin()
        await closing
        assert node.held_count == 19
        assert consumer.stats().late == 0

    play(scene)


def test_a_heartbeat_that_comes_when_all_is_said_is_not_answered(play: Play) -> None:
    """A transport refuses bytes after its end of file: nsqd was too slow to close first."""

    async def scene(loop: FakeTimeLoop) -> None:
        failures: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _loop, context: failures.append(context))
        [node] = start_nodes(loop, 1)
        consumer = Consumer("topic", "ch", nsqd=["nsqd0:4150"])
        consumer.start()
        await asyncio.sleep(29.5)  # The first heartbeat is due after 30 s.
        node.freeze()
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(1.5)  # CLS has had its second, and the end of file is written
        node.thaw()
        await closing
        assert failures == []

    play(scene)


def test_connections_for_dead_letters_end_with_their_use(play: Play) -> None:
    """Nsqds come and go: a consumer does not call each that ever had a dead letter for ever."""

    async def scene(loop: FakeTimeLoop) -> None:
        nodes = start_nodes(loop, 3)
        addresses = [f"{node.host}:{node.port}" for node in nodes]
        consumer = Consumer(
            "topic", "ch", nsqd=addresses, max_attempts=1, dead_letter_topic="topic.dead"
        )

        def client_counts() -> list[int]:
            return [len(node.clients) for node in nodes]

        async def handle(message: Message) -> None:
            """The fake nsqd has one queue: dead letters come back as messages."""

        running = asyncio.create_task(consumer.run(handle, signals=()))
        await until(lambda: client_counts() == [1, 1, 1], 1.0)
        for node in nodes:
            node.requeue(Stored(b"%016x" % 6, b"poison", attempts=1))
        await until(lambda: consumer.stats().given_up == 3, 5.0)
        assert client_counts() == [2, 2, 2]
        await asyncio.sleep(30.0)
        nodes[0].requeue(Stored(b"%016x" % 7, b"poison", attempts=1))
        await asyncio.sleep(45.0)  # the others have had none for more than a minute
        assert client_counts() == [2, 1, 1]
        nodes[1].requeue(Stored(b"%016x" % 8, b"poison", attempts=1))
        await until(lambda: consumer.stats().given_up == 5, 1.0)
        assert client_counts() == [2, 2, 1]
        await consumer.close()
        await running
        await asyncio.sleep(1.0)
        assert client_counts() == [0, 0, 0]
        assert not loop.open_ends
        assert loop.timer_count == 0

    play(scene)


def test_an_nsqd_that_must_be_there_ends_the_consumer_at_the_first_try_only(play: Play) -> None:
    async def scene(loop: FakeTimeLoop) -> None:
        [node] = start_nodes(loop, 1)
        consumer = Consumer("topic", "ch", nsqd=["nsqd0:4150", "gone:4150"], must_connect=True)
        async with consumer:
            with pytest.raises(NsqError, match="gone:4150"):
                await anext(aiter(consumer))

        async with Consumer("topic", "ch", nsqd=["nsqd0:4150"], must_connect=True) as consumer:
            await until(lambda: consumer.stats().connections == 1, 1.0)
            node.kill()
            await asyncio.sleep(60.0)
            node.start()
            node.publish([b"later"])
            message = await anext(aiter(consumer))
            assert message.body == b"later"
            message.fin()

    play(scene)
