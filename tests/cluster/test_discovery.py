"""Client libraries find producers through nsqlookupd, and find them again when they move (N-10)."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable, Iterator

import ansq
import nsq
import pytest

from tests.support.cluster import Cluster, Lookupd, wait_for
from tests.support.daemon_process import HOST
from tests.support.waiting import until

# What the libraries do with event loops is their business.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


OpenReader = Callable[[list[Lookupd], str], contextlib.AbstractAsyncContextManager[list[str]]]


@pytest.fixture(autouse=True)
def _forgive_leaks() -> Iterator[None]:
    """Have the sockets that the libraries leave open collected here, where nobody minds."""
    yield
    gc.collect()


@contextlib.asynccontextmanager
async def pynsq_reader(lookupds: list[Lookupd], topic: str) -> AsyncIterator[list[str]]:
    """pynsq's reader; what it has received grows in the list."""
    bodies: list[str] = []

    def handle(message: nsq.Message) -> bool:
        bodies.append(message.body.decode())
        return True

    reader = nsq.Reader(
        topic=topic,
        channel="ch",
        message_handler=handle,
        lookupd_http_addresses=[f"http://{lookupd.http_address}" for lookupd in lookupds],
        lookupd_poll_interval=1,
        max_in_flight=100,
    )
    # It starts in the next turn of the loop.
    await until(lambda: reader.redist_periodic is not None)
    try:
        yield bodies
    finally:
        reader.close()
        await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def ansq_reader(lookupds: list[Lookupd], topic: str) -> AsyncIterator[list[str]]:
    """ansq's reader; what it has received grows in the list."""
    bodies: list[str] = []
    reader = await ansq.create_reader(
        topic=topic,
        channel="ch",
        lookupd_http_addresses=[lookupd.http_address for lookupd in lookupds],
        lookupd_poll_interval=200,
    )

    async def consume() -> None:
        async for message in reader.messages():
            bodies.append(message.body.decode())
            await message.fin()

    task = asyncio.create_task(consume())
    try:
        yield bodies
    finally:
        task.cancel()
        await asyncio.wait([task])
        await reader.close()


@pytest.fixture(params=[pynsq_reader, ansq_reader], ids=["pynsq", "ansq"])
def open_reader(request: pytest.FixtureRequest) -> OpenReader:
    opener: OpenReader = request.param
    return opener


async def test_a_reader_finds_all_producers(cluster: Cluster, open_reader: OpenReader) -> None:
    lookupd = cluster.lookupd()
    await lookupd.start()
    first, second = cluster.nsqd(lookupd), cluster.nsqd(lookupd)
    await cluster.start(first, second)
    await first.publish("news", "1", "2")
    await second.publish("news", "3", "4")
    await lookupd.wait_for_producers("news", first, second)

    async with open_reader([lookupd], "news") as bodies:
        await until(lambda: sorted(bodies) == ["1", "2", "3", "4"])
        await wait_for(lambda: lookupd.channels("news"), {"ch"})


async def test_a_reader_follows_a_producer_that_moves(
    cluster: Cluster, open_reader: OpenReader
) -> None:
    lookupd = cluster.lookupd()
    await lookupd.start()
    nsqd = cluster.nsqd(lookupd)
    await nsqd.start()
    await nsqd.publish("news", "before")
    await lookupd.wait_for_producers("news", nsqd)

    async with open_reader([lookupd], "news") as bodies:
        await until(lambda: bodies == ["before"])
        old_port = nsqd.tcp_port
        await nsqd.stop()
        await lookupd.wait_for_producers("news")
        nsqd.tcp_port = nsqd.http_port = 0  # the same data, at another address
        await nsqd.start()
        assert nsqd.tcp_port != old_port
        await nsqd.publish("news", "after")

        await until(lambda: bodies == ["before", "after"])


async def test_a_reader_needs_but_one_of_its_nsqlookupds(
    cluster: Cluster, open_reader: OpenReader
) -> None:
    dead, lookupd = cluster.lookupd(), cluster.lookupd()
    await cluster.start(dead, lookupd)
    nsqd = cluster.nsqd(dead, lookupd)
    await nsqd.start()
    dead.kill()
    await nsqd.publish("news", "1")
    await lookupd.wait_for_producers("news", nsqd)

    async with open_reader([dead, lookupd], "news") as bodies:
        await until(lambda: bodies == ["1"])


async def test_consumers_get_the_address_that_is_broadcast(cluster: Cluster) -> None:  # N-7
    lookupd = cluster.lookupd()
    await lookupd.start()
    nsqd = cluster.nsqd(
        lookupd,
        flags=(
            "--broadcast-address=public.example",
            "--broadcast-tcp-port=14150",
            "--broadcast-http-port=14151",
            "--topology-zone=zone",
            "--topology-region=region",
        ),
    )
    await nsqd.start()
    await nsqd.create("news")
    await lookupd.wait_for_producers("news", 14150)

    [producer] = (await lookupd.get("/lookup?topic=news"))["producers"]

    assert producer.pop("remote_address").startswith(f"{HOST}:")
    assert producer.pop("hostname")
    assert producer == {
        "broadcast_address": "public.example",
        "tcp_port": 14150,
        "http_port": 14151,
        "version": "1.3.0",
        "topology_zone": "zone",
        "topology_region": "region",
    }


async def test_a_topic_new_to_one_nsqd_has_the_channels_of_the_others(
    cluster: Cluster,
) -> None:  # N-9, Q-42
    lookupds = [cluster.lookupd(), cluster.lookupd()]
    await cluster.start(*lookupds)
    old, new = cluster.nsqd(lookupds[0]), cluster.nsqd(*lookupds)
    await cluster.start(old, new)
    await old.create("news", "here", "e%23ephemeral")
    await lookupds[1].post("/channel/create?topic=news&channel=there")
    await wait_for(lambda: lookupds[0].channels("news"), {"here", "e#ephemeral"})

    await new.publish("news", "first")

    [topic] = (await new.get("/stats?format=json&topic=news"))["topics"]
    depths = {channel["channel_name"]: channel["depth"] for channel in topic["channels"]}
    assert depths == {"here": 1, "there": 1}
