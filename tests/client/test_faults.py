"""Cases 9 to 11, 26, 27 and 36 for publishing: kill, freeze, reset, full disk.

Nothing that was acknowledged is lost, and no more is doubled than the producer says.
"""

import asyncio
import struct
from collections import Counter
from pathlib import Path

import pytest

from nsqd.client import (
    Bounds,
    ConnectionLostError,
    Consumer,
    NsqError,
    Producer,
    PublishTimeoutError,
    RefusedError,
)
from tests.client.conftest import MakeNsqd, Nsqd, StartNsqd
from tests.support.small_disk import SmallDisk
from tests.support.waiting import until

KILLS = 10
COUNT = 200_000


async def drain(nsqd: Nsqd, topic: str, wanted: set[bytes]) -> Counter[bytes]:
    """Consume until all of the wanted have come and the channel is empty."""
    found: Counter[bytes] = Counter()
    async with Consumer(topic, "ch", nsqd=[nsqd.tcp_address], max_in_flight=2500) as consumer:
        async for message in consumer:
            found[message.body] += 1
            message.fin()
            if found.keys() >= wanted and not consumer.stats().buffered:
                await asyncio.sleep(0.2)
                if not consumer.stats().buffered:
                    break
    return found


async def stop_hard(nsqd: Nsqd) -> None:
    """Kill ours with SIGKILL. The Go nsqd would lose what it has acknowledged: it gets SIGTERM.

    Its metadata is behind its files until the next sync, and a message in flight is in memory only.
    """
    if nsqd.is_go:
        await nsqd.end()
    else:
        nsqd.kill()


@pytest.mark.timeout(400)
async def test_what_was_acknowledged_survives_kills(start_nsqd: StartNsqd) -> None:
    nsqd = await start_nsqd("--mem-queue-size=0")
    await nsqd.create("topic", "ch")
    acknowledged: set[bytes] = set()
    async with Producer(nsqd.tcp_address, timeout=120.0) as producer:

        async def publish(worker: int) -> None:
            for number in range(COUNT // 100):
                body = b"%d-%d" % (worker, number)
                await producer.publish("topic", body)
                acknowledged.add(body)

        workers = [asyncio.create_task(publish(worker)) for worker in range(100)]
        for kill in range(KILLS):
            goal = COUNT * (kill + 1) // (KILLS + 2)
            await until(lambda goal=goal: len(acknowledged) >= goal or None)  # type: ignore[misc] # bound now
            await stop_hard(nsqd)
            await nsqd.start()
        await asyncio.gather(*workers)
        resent = producer.stats().resent

    found = await drain(nsqd, "topic", acknowledged)

    assert len(acknowledged) == COUNT
    assert found.keys() == acknowledged
    # What nsqd was killed over may be delivered again by nsqd itself: at most what was in flight
    # then, and nothing was, as the consumer came afterwards.
    assert found.total() - COUNT <= resent


async def test_a_frozen_nsqd_times_out_and_goes_on(nsqd: Nsqd) -> None:
    bounds = Bounds(max_pending_count=100)
    async with Producer(
        nsqd.tcp_address, timeout=1.0, bounds=bounds, connect_timeout=1.0
    ) as producer:
        await producer.publish("topic", b"before")
        nsqd.suspend()
        outcomes = await asyncio.gather(
            *(producer.publish("topic", b"%d" % number) for number in range(500)),
            return_exceptions=True,
        )
        assert {type(outcome) for outcome in outcomes} == {PublishTimeoutError}
        assert producer.stats().pending == 0
        certain = [o for o in outcomes if o.is_certainly_not_published]  # type: ignore[union-attr] # seen above
        assert len(certain) >= 400  # those that waited for room

        nsqd.resume()
        await producer.publish("topic", b"after", timeout=20.0)

    assert b"after" in await drain(nsqd, "topic", {b"before", b"after"})


OK = struct.pack(">ii", 6, 0) + b"OK"


class ResettingNsqd:
    """A fake nsqd that resets the connection at any command with a poisonous or a large body.

    It stands for one whose error frame is lost in the reset.
    """

    def __init__(self, max_body_bytes: int = 1 << 20) -> None:
        self.accepted: list[bytes] = []
        self._max_body_bytes = max_body_bytes
        self.reset_count = 0
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *exception: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(4)
        try:
            while line := await reader.readline():
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                body = await reader.readexactly(size)
                if line.startswith((b"PUB", b"MPUB")):
                    if b"poison" in body or size > self._max_body_bytes:
                        self.reset_count += 1
                        writer.transport.abort()
                        return
                    self.accepted.append(body)
                writer.write(OK)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


async def test_a_command_that_nsqd_resets_for_fails_alone() -> None:
    fake = ResettingNsqd()
    async with fake as address, Producer(address, timeout=30.0) as producer:
        poison = asyncio.create_task(producer.publish("poisoned", b"poison"))
        others = [
            asyncio.create_task(producer.publish(f"topic{number}", b"%d" % number))
            for number in range(20)
        ]
        with pytest.raises(ConnectionLostError) as caught:
            await poison
        await asyncio.gather(*others)

    assert not caught.value.is_certainly_not_published
    assert fake.reset_count == 3
    assert set(fake.accepted) == {b"%d" % number for number in range(20)}


async def publish_together(address: str, bodies: list[bytes]) -> list[object]:
    """Publish in one MPUB; return the outcomes."""
    async with Producer(address, timeout=30.0) as producer:
        return await asyncio.gather(
            *(producer.publish("topic", body) for body in bodies), return_exceptions=True
        )


async def test_a_message_that_nsqd_resets_for_fails_alone_in_its_command() -> None:
    fake = ResettingNsqd()
    bodies = [b"%06d" % number for number in range(100)]
    async with fake as address:
        outcomes = await publish_together(address, [*bodies[:37], b"poison", *bodies[37:]])

    assert [index for index, each in enumerate(outcomes) if each is not None] == [37]
    assert isinstance(outcomes[37], ConnectionLostError)
    assert all(sum(body in each for each in fake.accepted) == 1 for body in bodies)


async def test_a_command_that_is_too_large_is_cut_though_nobody_says_so() -> None:
    """The Go nsqd closes with the rest of an MPUB unread: a reset takes its error frame along."""
    fake = ResettingNsqd(max_body_bytes=2000)
    bodies = [b"%06d" % number * 20 for number in range(100)]
    async with fake as address:
        outcomes = await publish_together(address, bodies)

    assert outcomes == [None] * 100
    assert all(sum(body in each for each in fake.accepted) == 1 for body in bodies)


async def test_without_retries_a_lost_connection_is_an_error() -> None:
    async with ResettingNsqd() as address, Producer(address, retries=0) as producer:
        with pytest.raises(ConnectionLostError):
            await producer.publish("topic", b"poison")


@pytest.mark.timeout(400)
async def test_a_consumer_survives_restarts(start_nsqd: StartNsqd) -> None:
    nsqd = await start_nsqd("--mem-queue-size=0")
    await nsqd.create("topic", "ch")
    wanted: set[bytes] = set()
    handled: set[bytes] = set()
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    async with (
        Producer(nsqd.tcp_address, timeout=120.0) as producer,
        Consumer("topic", "ch", nsqd=[nsqd.tcp_address]) as consumer,
    ):

        async def consume() -> None:
            async for message in consumer:
                handled.add(message.body)
                message.fin()

        async def publish() -> None:
            for number in range(2000):
                await producer.publish("topic", b"%d" % number)
                wanted.add(b"%d" % number)

        tasks = [asyncio.create_task(work()) for work in (consume, tick)]
        publishing = asyncio.create_task(publish())
        for restart in range(KILLS):
            goal = 2000 * (restart + 1) // (KILLS + 2)
            await until(lambda goal=goal: len(wanted) >= goal or None)  # type: ignore[misc] # bound now
            before = ticks
            await stop_hard(nsqd)
            await until(lambda before=before: ticks > before + 3 or None)  # type: ignore[misc] # the loop runs
            await nsqd.start()
            await until(lambda: consumer.stats().connections or None)
        await publishing
        await until(lambda: handled >= wanted or None)
        for task in tasks:
            task.cancel()

    assert consumer.stats().connects > KILLS


async def test_a_full_disk_refuses_and_what_was_accepted_stays(
    make_nsqd: MakeNsqd, tmp_path: Path
) -> None:
    disk = SmallDisk(tmp_path / "disk", 4 << 20)
    try:
        nsqd = make_nsqd("--mem-queue-size=0", f"--data-path={disk.path}")
        if nsqd.is_go:
            pytest.skip("the Go nsqd tells nobody of a full disk before it loses messages")
        await nsqd.start()
        await nsqd.create("topic", "ch")
        accepted: set[bytes] = set()
        async with Producer(nsqd.tcp_address, timeout=2.0) as producer:
            refused = None
            for number in range(2000):
                body = b"%06d" % number + b"x" * 10_000
                try:
                    await producer.publish("topic", body)
                except NsqError as error:
                    refused = error
                    break
                accepted.add(body)
            assert isinstance(refused, RefusedError)

            found = await drain(nsqd, "topic", accepted)
            await producer.publish("topic", b"room again", timeout=30.0)
            again = await drain(nsqd, "topic", {b"room again"})
    finally:
        nsqd.kill()
        disk.close()

    assert found.keys() >= accepted
    assert len(found) <= len(accepted) + 1
    assert again[b"room again"] >= 1
