"""A kill while messages become dead letters: each is in its channel or in the dead-letter topic.

A dead letter that is there has its cause: that was written before.
"""

import pytest

from tests.support.cluster import Cluster, Nsqd, wait_for
from tests.support.daemon_process import HOST
from tests.support.v2_client import V2Client

TOPIC, CHANNEL, DEAD = "t", "ch", "t.dead"
BODIES = [b"%06d" % number for number in range(600)]
FLAGS = ("--mem-queue-size=0", "--max-attempts=1", "--dead-letter-topic-suffix=.dead")


async def connect(nsqd: Nsqd, topic: str, *, rdy: int) -> V2Client:
    client = await V2Client.connect((HOST, nsqd.tcp_port))
    await client.subscribe(topic, CHANNEL, rdy=rdy)
    return client


async def read_all(nsqd: Nsqd, topic: str) -> list[bytes]:
    """Return what a topic has, which stays there."""
    client = await connect(nsqd, topic, rdy=2500)
    bodies: list[bytes] = []
    while True:
        try:
            bodies.append((await client.read_message(timeout_s=1.0)).body)
        except TimeoutError:
            break
    await client.close()
    return bodies


async def has_dead_letters(nsqd: Nsqd) -> bool:
    stats = await nsqd.get(f"/stats?format=json&topic={DEAD}")
    return any(topic["message_count"] for topic in stats["topics"])


@pytest.mark.parametrize("sync_every", [1, 2500])
async def test_a_kill_leaves_each_message_somewhere(cluster: Cluster, sync_every: int) -> None:
    nsqd = cluster.nsqd(flags=(*FLAGS, f"--sync-every={sync_every}"))
    await nsqd.start()
    await nsqd.create(TOPIC, CHANNEL)
    producer = await V2Client.connect((HOST, nsqd.tcp_port))
    await producer.publish(TOPIC, *BODIES)
    await producer.close()
    consumer = await connect(nsqd, TOPIC, rdy=100)

    for _ in range(300):
        consumer.req(await consumer.read_message(), 0)
    await consumer.drain()
    await wait_for(lambda: has_dead_letters(nsqd), wanted=True)
    nsqd.kill()
    await consumer.close()
    await nsqd.start()

    peeked = await nsqd.get(f"/topic/peek?topic={DEAD}&format=json&count=100")
    assert peeked["messages"]
    for letter in peeked["messages"]:
        origin = letter["origin"]
        assert (origin["topic"], origin["channel"]) == (TOPIC, CHANNEL)
        assert (origin["reason"], origin["attempts"]) == ("attempts", 1)
    dead = await read_all(nsqd, DEAD)
    alive = await read_all(nsqd, TOPIC)
    assert set(dead) | set(alive) == set(BODIES)
    assert dead
