"""What a slow, stalled or cut network does: nothing to messages, little to discovery."""

import asyncio

from tests.support.cluster import Cluster, Lookupd, Nsqd, wait_for
from tests.support.daemon_process import HOST
from tests.support.lookup_consumer import LookupConsumer
from tests.support.tcp_proxy import TcpProxy
from tests.support.v2_client import V2Client
from tests.support.waiting import until

MESSAGE_COUNT = 100


async def publish_many(client: V2Client, topic: str) -> None:
    """Publish one by one; if each waited for a timeout of nsqd, the test's own would run out."""
    for number in range(MESSAGE_COUNT):
        await client.publish(topic, b"%d" % number)


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
        await publish_many(client, "t")
        await until(lambda: "no reply in 1 s" in nsqd.log)
        await publish_many(client, "t")
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
    await publish_many(client, "t")
    # A topic that nobody knows yet takes messages too, and gives them out a little later.
    await publish_many(client, "fresh")
    consumer = await V2Client.connect((HOST, nsqd.tcp_port))
    await consumer.subscribe("fresh", rdy=MESSAGE_COUNT)
    await consumer.read_messages(MESSAGE_COUNT)
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
        # One by one they would take a minute, which `wait_for_producers` does not wait.
        proxy.delay_s = 0.1

        proxy.heal()

        await lookupd.wait_for_producers("t299", nsqd)


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
            await until(lambda: consumer.ports)
            for number in range(10):
                await nsqd.publish("t", f"{number}")
            await proxy.cut()
            for number in range(10, 20):
                await nsqd.publish("t", f"{number}")
            proxy.heal()
            await until(lambda: consumer.ports)
            for number in range(20, 30):
                await nsqd.publish("t", f"{number}")
            await until(lambda: len(consumer.bodies) == 30)
            proxy.stall()
            for number in range(30, 40):
                await nsqd.publish("t", f"{number}")
            await asyncio.sleep(1.2)  # longer than msg-timeout: they count as lost and are requeued
            proxy.heal()

            await until(lambda: consumer.bodies.keys() == {f"{n}" for n in range(40)})
