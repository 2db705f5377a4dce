"""nsqd runs without the cyclic garbage collector: what a client leaves must go by itself."""

import asyncio
import gc
import logging
from collections.abc import Iterator

import pytest

from nsqd.broker.channel import Channel
from nsqd.broker.consumer import Consumer
from nsqd.tcp.connection import V2Connection
from nsqd.tcp.stream import ClientStream
from tests.support.running_daemon import RunningDaemon
from tests.support.v2_client import Deflate, Snappy, V2Client
from tests.support.waiting import PATIENCE_S

KINDS = (V2Connection, ClientStream, Consumer, Channel)


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    # pytest keeps log records, and with them errors, tracebacks and connections.
    logging.disable(logging.WARNING)
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    logging.disable(logging.NOTSET)


def count_alive() -> int:
    """How many objects of a connection there are, whoever holds them."""
    return sum(isinstance(thing, KINDS) for thing in gc.get_objects())


async def expect_alive(count: int) -> None:
    """Wait until no more than so many are alive; nothing but reference counts takes them away."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while count_alive() > count:
        assert asyncio.get_running_loop().time() < deadline, f"{count_alive()} alive, not {count}"
        await asyncio.sleep(0.05)


async def subscribe(nsqd: RunningDaemon, channel: str) -> V2Client:
    client = await V2Client.connect(nsqd.address)
    await client.subscribe("cycles", channel, rdy=5)
    return client


@pytest.mark.both_loops("references that transports keep")
@pytest.mark.parametrize("ending", ["finished", "unanswered", "requeued", "fatal error", "reset"])
@pytest.mark.parametrize("channel", ["ch", "ch#ephemeral"])
async def test_clients_leave_nothing_behind(nsqd: RunningDaemon, ending: str, channel: str) -> None:
    before = count_alive()
    for _ in range(3):
        client = await subscribe(nsqd, channel)
        await nsqd.publish("cycles", b"body")
        message = await client.read_message()
        match ending:
            case "finished":
                client.fin(message)
            case "requeued":
                client.rdy(0)
                client.req(message, 60_000)
            case "fatal error":
                client.command("BAD")
                await client.expect_error(b"E_INVALID invalid command BAD")
            case "reset":
                client.reset()
            case _:
                pass
        if ending not in {"fatal error", "reset"}:
            await client.settle()
        await client.close()
        if channel == "ch":
            await nsqd.post("/channel/empty?topic=cycles&channel=ch")
        del client

    # The channel that is not ephemeral stays.
    await expect_alive(before + (channel == "ch"))


@pytest.mark.both_loops("references that transports keep")
@pytest.mark.parametrize("codec", [Snappy, Deflate])
async def test_compressed_clients_leave_nothing_behind(
    nsqd: RunningDaemon, codec: type[Snappy | Deflate]
) -> None:
    before = count_alive()
    for _ in range(3):
        client = await V2Client.connect(nsqd.address)
        await client.identify(**{codec.__name__.lower(): True})
        client.start_codec(codec())
        await client.expect_ok()
        await client.subscribe("cycles", "ch#ephemeral", rdy=5)
        await client.close()
        del client

    await expect_alive(before)


async def test_a_deleted_topic_with_clients_leaves_nothing_behind(nsqd: RunningDaemon) -> None:
    before = count_alive()
    clients = [await subscribe(nsqd, channel) for channel in ("a", "a", "b")]
    await nsqd.publish("cycles", b"1", b"2", b"3")

    await nsqd.post("/topic/delete?topic=cycles")
    for client in clients:
        await client.wait_closed()
        await client.close()
    del clients, client

    await expect_alive(before)
