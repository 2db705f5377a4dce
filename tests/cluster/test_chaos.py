"""Whatever is killed, and whenever: every message that was acknowledged arrives."""

import asyncio
import contextlib
import random

from tests.support.cluster import Cluster, ClusterDaemon, Nsqd
from tests.support.lookup_consumer import LookupConsumer
from tests.support.waiting import until

ROUNDS = 8
# Nothing is acknowledged before it is on disk.
DURABLE = ("--mem-queue-size=0", "--sync-every=1", "--msg-timeout=1s")


async def publish_all_the_time(
    nsqd: Nsqd, name: str, acknowledged: set[str], is_over: asyncio.Event
) -> None:
    """Publish, again and again until it is acknowledged, then the next one."""
    number = 0
    # Not ended by a cancellation: Python 3.11's wait_for may swallow it when a reply comes.
    while not is_over.is_set():
        body = f"{name}-{number}"
        # It may be down, or go down in mid-sentence.
        with contextlib.suppress(OSError, EOFError, TimeoutError):
            async with asyncio.timeout(2.0):
                await nsqd.publish("t", body)
            acknowledged.add(body)
            number += 1
        await asyncio.sleep(0.005)


async def test_every_acknowledged_message_arrives(cluster: Cluster) -> None:
    seed = random.randrange(1 << 32)
    dice = random.Random(seed)
    lookupds = [cluster.lookupd(), cluster.lookupd()]
    await cluster.start(*lookupds)
    nsqds = [cluster.nsqd(*lookupds, flags=DURABLE) for _ in range(2)]
    await cluster.start(*nsqds)
    for nsqd in nsqds:
        await nsqd.create("t", "ch")
        await nsqd.wait_for_metadata('"ch"')
    daemons: list[ClusterDaemon] = [*lookupds, *nsqds]
    acknowledged: set[str] = set()

    is_over = asyncio.Event()

    async with LookupConsumer(lookupds, "t", "ch") as consumer:
        publishers = [
            asyncio.create_task(publish_all_the_time(nsqd, f"p{index}", acknowledged, is_over))
            for index, nsqd in enumerate(nsqds)
        ]
        for _ in range(ROUNDS):
            victim = dice.choice(daemons)
            await asyncio.sleep(dice.uniform(0.0, 0.3))
            victim.kill()
            await asyncio.sleep(dice.uniform(0.0, 0.3))
            await victim.start()
        is_over.set()
        await asyncio.gather(*publishers)

        await until(lambda: acknowledged <= consumer.bodies.keys())

    assert len(acknowledged) > ROUNDS, f"seed {seed}"
    for lookupd in lookupds:
        await lookupd.wait_for_producers("t", *nsqds)
