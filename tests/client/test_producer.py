"""Cases 5 to 8 and 12 to 14: publishing against a daemon that is well, and one that refuses."""

import asyncio
import random
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from nsqd.client import (
    Bounds,
    ClosedError,
    Consumer,
    InvalidNameError,
    MessageTooLargeError,
    Producer,
    PublishError,
    QueueFullError,
    RefusedError,
)
from tests.client.conftest import MakeNsqd, Nsqd, StartNsqd
from tests.support.clock import not_before
from tests.support.small_disk import SmallDisk
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import until


async def consume_all(nsqd: Nsqd, topic: str, count: int) -> list[bytes]:
    """Consume so many messages, and see that there are no more."""
    found: list[bytes] = []
    async with Consumer(topic, "ch", nsqd=[nsqd.tcp_address], max_in_flight=2500) as consumer:
        async for message in consumer:
            found.append(message.body)
            message.fin()
            if len(found) >= count:
                break
        await nsqd.wait_for_channel(topic, depth=0, in_flight_count=0)
    return found


async def test_a_thousand_tasks_become_few_commands(nsqd: Nsqd) -> None:
    commands: list[int] = []
    async with TcpProxy(nsqd.tcp_port) as proxy, Producer(proxy.address) as producer:
        await producer.publish("topic", b"first")
        sender = next(iter(producer._senders))  # noqa: SLF001 - counts what leaves
        send = sender._send  # noqa: SLF001
        sender._send = lambda batch: (commands.append(len(batch.bodies)), send(batch))[1]  # type: ignore[method-assign, func-returns-value] # noqa: SLF001

        bodies = [b"%d" % number for number in range(1000)]
        await asyncio.gather(*(producer.publish("topic", body) for body in bodies))

    assert len(commands) <= 10
    assert sum(commands) == 1000
    assert Counter(await consume_all(nsqd, "topic", 1001)) == Counter([b"first", *bodies])


async def test_bad_ones_fail_alone_and_the_connection_stays(nsqd: Nsqd) -> None:
    async with Producer(nsqd.tcp_address) as producer:
        good = [producer.publish("topic", b"%d" % number) for number in range(1000)]
        bad = [
            producer.publish("topic", b"x" * (2 << 20)),
            producer.publish("topic", b""),
            producer.publish("no topic", b"x"),
        ]
        outcomes = await asyncio.gather(*good[:500], *bad, *good[500:], return_exceptions=True)
        stats = producer.stats()

    assert [type(each) for each in outcomes[500:503]] == [
        MessageTooLargeError,
        MessageTooLargeError,
        InvalidNameError,
    ]
    assert all(each is None for each in outcomes[:500] + outcomes[503:])
    assert (stats.connects, stats.published, stats.refused) == (1, 1000, 0)
    found = await consume_all(nsqd, "topic", 1000)
    assert sorted(found) == sorted(b"%d" % number for number in range(1000))


async def test_the_limit_of_a_smaller_daemon_is_learnt(start_nsqd: StartNsqd) -> None:
    nsqd = await start_nsqd("--max-msg-size=1000", "--max-body-size=20000")
    async with Producer(nsqd.tcp_address) as producer:
        good = [b"%d" % number for number in range(500)]
        outcomes = await asyncio.gather(
            *(producer.publish("topic", body) for body in good[:250]),
            producer.publish("topic", b"x" * 1001),
            *(producer.publish("topic", body) for body in good[250:]),
            return_exceptions=True,
        )
        with pytest.raises(PublishError) as second:
            await producer.publish("topic", b"x" * 1001)
        refused = producer.stats().refused
        # Together they are more than an MPUB may have.
        large = [b"%03d" % number * 300 for number in range(100)]
        await asyncio.gather(*(producer.publish("topic", body) for body in large))
        resent = producer.stats().resent

    assert sum(each is None for each in outcomes) == 500
    # The Go nsqd closes with the rest of the command unread, and the reset may take the error and
    # the OKs before it along: then nothing is learnt, and a part is sent twice.
    assert isinstance(outcomes[250], PublishError)
    is_learnt = isinstance(outcomes[250], MessageTooLargeError)
    assert is_learnt or nsqd.is_go
    if is_learnt:
        assert isinstance(second.value, MessageTooLargeError)
        assert "more than 1000" in str(second.value)
    assert refused == 1 or nsqd.is_go
    found = Counter(await consume_all(nsqd, "topic", await nsqd.message_count("topic")))
    assert found.keys() == {*good, *large}
    assert found.total() - 600 <= (resent if nsqd.is_go else 0)


async def test_a_full_topic_refuses_and_is_tried_again(
    start_nsqd: StartNsqd, make_nsqd: MakeNsqd
) -> None:
    if make_nsqd().is_go:
        pytest.skip("the Go nsqd has no --max-depth")
    nsqd = await start_nsqd("--max-depth=10")
    await nsqd.create("topic", "ch")
    async with Producer(nsqd.tcp_address, timeout=30.0) as producer:
        await producer.publish_many("topic", [b"x"] * 10)
        with pytest.raises(RefusedError) as refused:
            await producer.publish("topic", b"now", timeout=0.5)
        waiting = asyncio.create_task(producer.publish("topic", b"later"))
        await until(lambda: producer.stats().refused > 1 or None)
        await nsqd.post("/channel/empty?topic=topic&channel=ch")
        await waiting

    assert refused.value.is_certainly_not_published
    assert await consume_all(nsqd, "topic", 1) == [b"later"]


@pytest.mark.parametrize("why", ["depth", "drain"])
async def test_what_one_nsqd_refuses_goes_to_the_next(
    start_nsqd: StartNsqd, make_nsqd: MakeNsqd, why: str
) -> None:
    if make_nsqd().is_go:
        pytest.skip("the Go nsqd refuses nothing")
    first, second = await start_nsqd("--max-depth=10"), await start_nsqd()
    await first.create("topic", "ch")
    async with Producer(first.tcp_address, second.tcp_address, timeout=30.0) as producer:
        await producer.publish_many("topic", [b"x"] * 10)
        if why == "drain":
            await first.post("/channel/empty?topic=topic&channel=ch")
            await first.create("other", "ch")
            async with Producer(first.tcp_address) as another:
                await another.publish("other", b"keeps it from ending")
            await first.post("/drain")
        await producer.publish("topic", b"elsewhere")
        assert producer.stats().refused >= 1
        assert await second.message_count("topic") == 1

        if why == "depth":
            # The second one goes away, and the first one has room again.
            await first.post("/channel/empty?topic=topic&channel=ch")
            second.kill()
            await producer.publish("topic", b"here")
            assert await consume_all(first, "topic", 1) == [b"here"]


async def test_too_little_free_disk_is_a_refusal_until_it_is_over(
    make_nsqd: MakeNsqd, tmp_path: Path
) -> None:
    disk = SmallDisk(tmp_path / "disk", 8 << 20)
    try:
        nsqd = make_nsqd(
            "--mem-queue-size=0", f"--data-path={disk.path}", f"--min-free-disk={2 << 20}"
        )
        if nsqd.is_go:
            pytest.skip("the Go nsqd has no --min-free-disk")
        await nsqd.start()
        await nsqd.create("topic", "ch")
        async with Producer(nsqd.tcp_address, timeout=30.0) as producer:
            await producer.publish("topic", b"before")
            disk.fill(leave_bytes=1 << 20)
            refusal = None
            while refusal is None:  # nsqd looks at the disk now and then
                try:
                    await producer.publish("topic", b"full?", timeout=0.3)
                    await asyncio.sleep(0.05)
                except RefusedError as error:
                    refusal = error
            assert refusal.is_certainly_not_published
            waiting = asyncio.create_task(producer.publish("topic", b"after"))
            refused = producer.stats().refused
            await until(lambda: producer.stats().refused > refused or None)
            disk.relieve()
            await waiting
        found = await consume_all(nsqd, "topic", await nsqd.message_count("topic"))
    finally:
        nsqd.kill()
        disk.close()

    assert {b"before", b"after"} <= set(found)


async def test_a_killed_node_hands_over_to_the_next(start_nsqd: StartNsqd) -> None:
    first, second = await start_nsqd(), await start_nsqd()
    async with Producer(first.tcp_address, second.tcp_address) as producer:
        await producer.publish("topic", b"1")
        first.kill()
        await producer.publish("topic", b"2")

    assert await consume_all(second, "topic", 1) == [b"2"]


async def test_deferred_messages_come_later(nsqd: Nsqd) -> None:
    async with Producer(nsqd.tcp_address) as producer:
        with not_before(0.4):
            await producer.publish("topic", b"late", defer=timedelta(seconds=0.4))
            await producer.publish("topic", b"now")
            assert await consume_all(nsqd, "topic", 2) == [b"now", b"late"]


async def test_cancelled_publishes_leave_nothing_behind(nsqd: Nsqd) -> None:
    choose = random.Random(3)
    written = {b"first"}
    async with Producer(nsqd.tcp_address) as producer:
        await producer.publish("topic", b"first")
        sender = next(iter(producer._senders))  # noqa: SLF001 - notes what leaves
        send = sender._send  # noqa: SLF001
        sender._send = lambda batch: (written.update(batch.bodies), send(batch))[1]  # type: ignore[method-assign, func-returns-value] # noqa: SLF001
        kept: list[bytes] = []
        unwritten: set[bytes] = set()
        cancelled_count = 0
        for round_number in range(40):
            tasks = []
            for number in range(50):
                body = b"%d-%d" % (round_number, number)
                tasks.append((body, asyncio.create_task(producer.publish("topic", body))))
            for _ in range(choose.randrange(3)):
                await asyncio.sleep(0)
            victims = set(choose.sample(range(50), 25))
            for number in victims:
                body, task = tasks[number]
                cancelled_count += task.cancel()
                unwritten |= {body} - written
            await asyncio.gather(*(task for _, task in tasks), return_exceptions=True)
            kept += [body for body, task in tasks if not task.cancelled()]
        assert producer.stats().pending == 0

    found = await consume_all(nsqd, "topic", await nsqd.message_count("topic"))

    assert len(kept) >= 1000
    assert cancelled_count == 1000
    # What was cancelled before it was written does not arrive; the rest is in order.
    assert unwritten
    assert unwritten.isdisjoint(found)
    assert len(unwritten) < cancelled_count  # both kinds were there
    wanted = set(kept)
    assert [body for body in found if body in wanted] == kept


async def test_a_network_that_stops_bounds_what_waits(nsqd: Nsqd) -> None:
    bounds = Bounds(max_pending_count=500, max_pending_bytes=1 << 20)
    async with (
        TcpProxy(nsqd.tcp_port) as proxy,
        Producer(proxy.address, bounds=bounds, timeout=60.0) as producer,
    ):
        await producer.publish("topic", b"first")
        proxy.stall()
        body = b"x" * 10_000
        tasks = [asyncio.create_task(producer.publish("topic", body)) for _ in range(1000)]
        await until(lambda: producer.stats().pending_bytes > (1 << 20) - 20_000 or None)
        assert producer.stats().pending_bytes <= 1 << 20
        with pytest.raises(QueueFullError):
            producer.publish_soon("topic", body)

        proxy.heal()
        await asyncio.gather(*tasks)

    assert await nsqd.message_count("topic") == 1001


async def publish_in_turns(producer: Producer, start: int, end: int) -> None:
    for first in range(start, end, 30):
        numbers = range(first, first + 30)
        await asyncio.gather(*(producer.publish("topic", b"%d" % number) for number in numbers))


@pytest.mark.parametrize("spread", ["failover", "round-robin", "all"])
async def test_one_of_three_nodes_is_killed_and_comes_back(
    start_nsqd: StartNsqd, spread: str
) -> None:
    nodes = [await start_nsqd("--mem-queue-size=0") for _ in range(3)]
    addresses = [node.tcp_address for node in nodes]
    sent = 0
    async with Producer(*addresses, spread=spread) as producer:  # type: ignore[arg-type] # one of the three
        for part in range(3):
            if part == 1:
                nodes[0].kill()
            publishing = asyncio.create_task(publish_in_turns(producer, sent, sent + 300))
            sent += 300
            if part == 1:
                if spread == "all":
                    await asyncio.sleep(0.2)
                    await nodes[0].start()
                await publishing
                if spread != "all":
                    await nodes[0].start()
            else:
                await publishing
        resent = producer.stats().resent

    counts = [await node.message_count("topic") for node in nodes]
    if spread == "all":
        # The figures of the killed one began anew.
        assert counts[1:] == [900, 900]
        assert counts[0] >= 600
    else:
        # A restart forgets the figures of the first, which had at most the first 300 messages.
        assert sent - 300 <= sum(counts) <= sent + resent
    if spread == "round-robin":
        assert counts[1] > 0
        assert counts[2] > 0


async def test_publish_many_tells_how_many_are_confirmed(start_nsqd: StartNsqd) -> None:
    nsqd = await start_nsqd("--max-msg-size=100")
    bodies = [b"x"] * 2500 + [b"y" * 101] + [b"z"] * 10

    async with Producer(nsqd.tcp_address) as producer:
        with pytest.raises(PublishError) as caught:
            await producer.publish_many("topic", bodies)

    assert caught.value.confirmed_count == 2000
    assert await nsqd.message_count("topic") == 2000


async def test_publish_many_takes_any_iterable(nsqd: Nsqd) -> None:
    async def bodies() -> object:
        for number in range(1500):
            yield b"%d" % number

    async with Producer(nsqd.tcp_address) as producer:
        assert await producer.publish_many("topic", bodies()) == 1500  # type: ignore[arg-type] # an async generator
        assert await producer.publish_many("topic", (b"x" for _ in range(3))) == 3
        assert await producer.publish_many("topic", []) == 0


async def test_a_closed_producer_refuses(nsqd: Nsqd) -> None:
    producer = Producer(nsqd.tcp_address)
    with pytest.raises(ClosedError):
        producer.publish_soon("topic", b"x")
    async with producer:
        receipt = producer.publish_soon("topic", b"x")
    await receipt  # closing has waited for it

    with pytest.raises(ClosedError):
        producer.publish_soon("topic", b"x")
    with pytest.raises(ClosedError):
        await producer.publish("topic", b"x")


def test_what_cannot_work_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="neither"):
        Producer()
    with pytest.raises(ValueError, match="spread"):
        Producer("host", spread="some")  # type: ignore[arg-type] # that is the point
    with pytest.raises(ValueError, match="timeout"):
        Producer("host", timeout=0)
