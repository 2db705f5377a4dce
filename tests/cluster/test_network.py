"""What a slow, stalled or cut network does: nothing to messages, little to discovery."""

import asyncio
import time

from tests.support.cluster import HOST, Cluster, Lookupd, Nsqd, wait_for, wait_until
from tests.support.lookup_consumer import LookupConsumer
from tests.support.tcp_proxy import TcpProxy
from tests.support.v2_client import V2Client


async def publish_and_consume(client: V2Client, topic: str, count: int = 20) -> None:
    """Send messages around through one connection, each within a fraction of a second."""
    publisher = client
    for number in range(count):
        start = time.monotonic()
        publisher.pub(topic, b"%d" % number)
        await publisher.expect_ok()
        assert time.monotonic() - start < 0.5


async def start_behind(cluster: Cluster, proxy: TcpProxy) -> tuple[Lookupd, Nsqd]:
    """Start an nsqd whose only way to its nsqlookupd is the proxy."""
    lookupd = cluster.lookupd()
    await lookupd.start()
    proxy.target_port = lookupd.tcp_port
    nsqd = cluster.nsqd(proxy.address, flags=("--http-client-request-timeout=1s",))
    await nsqd.start()
    await nsqd.create("t", "ch")
    await lookupd.wait_for_producers("t", nsqd)
    return lookupd, nsqd


async def test_a_cut_is_noticed_at_once_and_healed_at_once(cluster: Cluster) -> None:
    async with TcpProxy(0) as proxy:
        lookupd, nsqd = await start_behind(cluster, proxy)

        await proxy.cut()
        await lookupd.wait_for_producers("t")
        await nsqd.create("meanwhile")
        proxy.heal()

        await lookupd.wait_for_producers("t", nsqd)
        await lookupd.wait_for_producers("meanwhile", nsqd)


async def test_a_stalled_nsqlookupd_delays_no_message(cluster: Cluster) -> None:  # N-6
    async with TcpProxy(0) as proxy:
        lookupd, nsqd = await start_behind(cluster, proxy)
        client = await V2Client.connect((HOST, nsqd.tcp_port))

        proxy.stall()
        await nsqd.create("t", "new")
        await publish_and_consume(client, "t")
        await wait_until(lambda: "no reply in 1 s" in nsqd.log)
        await publish_and_consume(client, "t")
        proxy.heal()

        await lookupd.wait_for_producers("t", nsqd)
        await wait_for(lambda: lookupd.channels("t"), {"ch", "new"})
        await client.close()


async def test_a_suspended_nsqlookupd_delays_no_message(cluster: Cluster) -> None:
    lookupd = cluster.lookupd()
    await lookupd.start()
    nsqd = cluster.nsqd(lookupd, flags=("--http-client-request-timeout=1s",))
    await nsqd.start()
    await nsqd.create("t", "ch")
    await lookupd.wait_for_producers("t", nsqd)
    client = await V2Client.connect((HOST, nsqd.tcp_port))

    lookupd.suspend()
    await publish_and_consume(client, "t")
    # A topic that nobody knows yet takes messages too, and gives them out a little later.
    await publish_and_consume(client, "fresh")
    consumer = await V2Client.connect((HOST, nsqd.tcp_port))
    await consumer.subscribe("fresh", rdy=20)
    assert len(await consumer.read_messages(20)) == 20
    lookupd.resume()

    await lookupd.wait_for_producers("fresh", nsqd)
    await lookupd.wait_for_producers("t", nsqd)
    await client.close()
    await consumer.close()


async def test_distance_costs_few_round_trips(cluster: Cluster) -> None:
    async with TcpProxy(0) as proxy:
        lookupd, nsqd = await start_behind(cluster, proxy)
        await proxy.cut()
        for number in range(300):
            await nsqd.post(f"/topic/create?topic=t{number}")
        proxy.delay_s = 0.1
        start = time.monotonic()

        proxy.heal()

        await lookupd.wait_for_producers("t299", nsqd)
        # One by one they would take a minute.
        assert time.monotonic() - start < 10


async def test_a_consumer_that_is_cut_off_loses_nothing(cluster: Cluster) -> None:
    lookupd = cluster.lookupd()
    await lookupd.start()
    async with TcpProxy(0) as proxy:
        # Consumers are told the proxy's port.
        nsqd = cluster.nsqd(
            lookupd, flags=(f"--broadcast-tcp-port={proxy.port}", "--msg-timeout=1s")
        )
        await nsqd.start()
        proxy.target_port = nsqd.tcp_port
        await nsqd.create("t", "ch")
        await lookupd.wait_for_producers("t", proxy.port)

        async with LookupConsumer([lookupd], "t", "ch") as consumer:
            await wait_until(lambda: consumer.ports)
            for number in range(10):
                await nsqd.publish("t", f"{number}")
            await proxy.cut()
            for number in range(10, 20):
                await nsqd.publish("t", f"{number}")
            proxy.heal()
            await wait_until(lambda: consumer.ports)
            for number in range(20, 30):
                await nsqd.publish("t", f"{number}")
            await wait_until(lambda: len(consumer.bodies) == 30)
            proxy.stall()
            for number in range(30, 40):
                await nsqd.publish("t", f"{number}")
            await asyncio.sleep(1.2)  # longer than msg-timeout: they count as lost and are requeued
            proxy.heal()

            await wait_until(lambda: consumer.bodies.keys() == {f"{n}" for n in range(40)})
