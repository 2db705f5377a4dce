"""Each sentence of the README's "Guarantees and limits", with a real process and real signals."""

import random
import subprocess
import sys

from tests.support.cluster import Cluster, Nsqd, wait_for
from tests.support.daemon_process import HOST
from tests.support.v2_client import ConnectionEndedError, Message, V2Client

TOPIC, CHANNEL = "t", "ch"
DELAY_MS = 1_500  # longer than a restart takes
BODIES = [b"%06d" % number for number in range(1500)]


async def connect(nsqd: Nsqd) -> V2Client:
    return await V2Client.connect((HOST, nsqd.tcp_port))


async def publish_everything(nsqd: Nsqd) -> None:
    producer = await connect(nsqd)
    for start in range(0, len(BODIES), 500):
        producer.mpub(TOPIC, *BODIES[start : start + 500])
        await producer.expect_ok()
    await producer.close()


async def drain(nsqd: Nsqd, count: int) -> list[Message]:
    """Take and finish that many messages; there must be no more."""
    consumer = await connect(nsqd)
    await consumer.subscribe(TOPIC, CHANNEL, rdy=500)
    messages = []
    for _ in range(count):
        message = await consumer.read_message()
        consumer.fin(message)
        messages.append(message)
    await consumer.expect_quiet()
    await consumer.close()
    return messages


def check_directory(nsqd: Nsqd) -> None:
    command = [sys.executable, "-m", "diskqueue", "check", str(nsqd.data_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


async def test_graceful_stop_loses_nothing(cluster: Cluster) -> None:
    nsqd = cluster.nsqd(flags=("--mem-queue-size=100",))
    await nsqd.start()
    await nsqd.create(TOPIC, CHANNEL)
    await publish_everything(nsqd)
    consumer = await connect(nsqd)
    await consumer.subscribe(TOPIC, CHANNEL, rdy=50)
    held = await consumer.read_messages(50)  # stay in flight
    consumer.rdy(0)
    consumer.req(held[0], DELAY_MS)  # is deferred
    await consumer.settle()
    producer = await connect(nsqd)
    producer.dpub(TOPIC, DELAY_MS, b"deferred")
    await producer.expect_ok()

    await nsqd.stop()
    check_directory(nsqd)
    await nsqd.start()
    messages = await drain(nsqd, len(BODIES) + 1)

    assert sorted(message.body for message in messages) == sorted([*BODIES, b"deferred"])
    attempts = {message.body: message.attempts for message in messages}
    assert all(attempts[message.body] == 2 for message in held)
    await producer.close()
    await consumer.close()


async def test_kill_with_defaults_keeps_what_was_on_disk(cluster: Cluster) -> None:
    nsqd = cluster.nsqd(flags=("--mem-queue-size=100",))
    await nsqd.start()
    await nsqd.create(TOPIC, CHANNEL)
    await nsqd.wait_for_metadata(CHANNEL)
    await publish_everything(nsqd)

    nsqd.kill()
    check_directory(nsqd)
    await nsqd.start()
    messages = await drain(nsqd, len(BODIES) - 100)

    # The memory queue held the first hundred; as in NSQ they are gone.
    assert [message.body for message in messages] == BODIES[100:]


async def test_kill_without_memory_queue_loses_nothing_unfinished(cluster: Cluster) -> None:
    nsqd = cluster.nsqd(flags=("--mem-queue-size=0", "--max-bytes-per-file=20000"))
    await nsqd.start()
    await nsqd.create(TOPIC, CHANNEL)
    await nsqd.wait_for_metadata(CHANNEL)
    await publish_everything(nsqd)
    consumer = await connect(nsqd)
    await consumer.subscribe(TOPIC, CHANNEL, rdy=400)
    messages = await consumer.read_messages(400)
    finished, in_flight, requeued, delayed = (messages[index::4] for index in range(4))
    consumer.rdy(0)
    for message in finished:
        consumer.fin(message)
    for message in requeued:
        consumer.req(message, 0)
    for message in delayed:
        consumer.req(message, DELAY_MS)
    await consumer.settle()

    nsqd.kill()
    check_directory(nsqd)
    await nsqd.start()

    unfinished = set(BODIES) - {message.body for message in finished}
    assert {message.body for message in [*in_flight, *requeued, *delayed]} <= unfinished
    again = await connect(nsqd)
    await again.subscribe(TOPIC, CHANNEL, rdy=2500)
    found: set[bytes] = set()
    while not unfinished <= found:
        message = await again.read_message()
        again.fin(message)
        found.add(message.body)
    assert found <= set(BODIES)  # finished ones may come again, nothing else does
    await again.close()
    await consumer.close()


async def test_kill_brings_nothing_back_to_an_emptied_channel(cluster: Cluster) -> None:
    """Not even from the disk of the topic, which keeps it until other channels are synced."""
    nsqd = cluster.nsqd(flags=("--mem-queue-size=0", "--sync-timeout=1h"))
    await nsqd.start()
    await nsqd.create(TOPIC, CHANNEL, "other")
    await nsqd.post(f"/topic/pause?topic={TOPIC}")
    await nsqd.publish(TOPIC, "1", "2", "3")
    await nsqd.post(f"/topic/unpause?topic={TOPIC}")
    await wait_for(lambda: find_depths(nsqd), {TOPIC: 0, CHANNEL: 3, "other": 3})

    await nsqd.post(f"/channel/empty?topic={TOPIC}&channel={CHANNEL}")
    await nsqd.publish(TOPIC, "4")
    nsqd.kill()
    check_directory(nsqd)
    await nsqd.start()

    assert await find_depths(nsqd) == {TOPIC: 0, CHANNEL: 1, "other": 4}


async def find_depths(nsqd: Nsqd) -> dict[str, int]:
    """Return the depth of the topic and of each of its channels."""
    stats = await nsqd.get(f"/stats?format=json&topic={TOPIC}")
    [topic] = stats["topics"]
    return {
        TOPIC: topic["depth"],
        **{each["channel_name"]: each["depth"] for each in topic["channels"]},
    }


async def test_kill_at_any_moment_loses_nothing_acknowledged(cluster: Cluster) -> None:
    """Publish, consume and kill in rounds, against a model of what was acknowledged."""
    chance = random.Random(20261116)
    flags = ("--mem-queue-size=0", "--max-bytes-per-file=10000", "--sync-every=50")
    nsqd = cluster.nsqd(flags=flags)
    acknowledged: set[bytes] = set()
    finished: set[bytes] = set()
    for round_number in range(4):
        await nsqd.start()
        if round_number == 0:
            await nsqd.create(TOPIC, CHANNEL)
            await nsqd.wait_for_metadata(CHANNEL)
        producer, consumer = await connect(nsqd), await connect(nsqd)
        await consumer.subscribe(TOPIC, CHANNEL, rdy=30)
        for batch in range(chance.randrange(20, 60)):
            bodies = [b"%d-%d-%d" % (round_number, batch, index) for index in range(10)]
            await producer.publish(TOPIC, *bodies)
            acknowledged.update(bodies)
            for _ in range(chance.randrange(10)):
                message = await consumer.read_message()
                finished.add(message.body)  # it may have been finished, whatever happens to the FIN
                consumer.fin(message)
        nsqd.kill()
        await producer.close()
        await consumer.close()
        check_directory(nsqd)

    await nsqd.start()
    consumer = await connect(nsqd)
    await consumer.subscribe(TOPIC, CHANNEL, rdy=2500)
    missing = acknowledged - finished
    while missing:
        try:
            message = await consumer.read_message()
        except (TimeoutError, ConnectionEndedError) as error:
            raise AssertionError(f"lost {len(missing)}: {sorted(missing)[:5]}") from error
        assert message.body in acknowledged
        consumer.fin(message)
        missing.discard(message.body)
    await consumer.close()
