"""nsqlookupd with as much as a large cluster gives it: 20 nsqds, 1,000 topics, 5,000 channels."""

import asyncio
import random
import time
from collections.abc import Iterable
from statistics import median

from prometheus_client.parser import text_string_to_metric_families

from nsqd.protocol.lookup import (
    MAGIC,
    OK,
    PeerIdentity,
    encode_identify,
    encode_register,
    encode_reply,
)
from tests.support.cluster import HOST, Cluster, Lookupd
from tests.support.http_client import HttpClient

PEER_COUNT = 20
TOPIC_COUNT = 1000
CHANNELS = [f"ch{number}" for number in range(5)]
OK_REPLY = encode_reply(OK)
MAX_REGISTRATION_S = 5.0
MAX_MEMORY_BYTES = 200 * 1024 * 1024
LOOKUP_COUNT = 500
LOOKUPS_PER_S = 500
# The goal is 5 ms for 99 of 100; a test that shares its machine can only hold the middle to it.
MAX_MEDIAN_S = 0.005


async def register_everything(lookupd: Lookupd, number: int) -> asyncio.StreamWriter:
    """Be an nsqd that has all topics, until the writer is closed."""
    reader, writer = await asyncio.open_connection(HOST, lookupd.tcp_port)
    identity = PeerIdentity(f"host-{number}", 4150, 4151, "1.3.0")
    writer.write(MAGIC + encode_identify(identity))
    await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
    for topic in range(TOPIC_COUNT):
        writer.writelines(encode_register(f"t{topic}", channel) for channel in CHANNELS)
        replies = await reader.readexactly(len(CHANNELS) * len(OK_REPLY))
        assert replies == len(CHANNELS) * OK_REPLY
    return writer


async def time_lookups(lookupd: Lookupd) -> list[float]:
    """Ask for topics at a steady pace; return how long each took."""
    times_s = []
    async with await HttpClient.connect((HOST, lookupd.http_port)) as http:
        due = time.perf_counter()
        for _ in range(LOOKUP_COUNT):
            due += 1 / LOOKUPS_PER_S
            await asyncio.sleep(due - time.perf_counter())
            started = time.perf_counter()
            reply = await http.get(f"/lookup?topic=t{random.randrange(TOPIC_COUNT)}")
            times_s.append(time.perf_counter() - started)
            assert len(reply.json()["producers"]) == PEER_COUNT
            assert reply.json()["channels"] == CHANNELS
    return times_s


async def memory_bytes(lookupd: Lookupd) -> float:
    text = (await lookupd.request("GET", "/metrics")).text
    return next(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "process_resident_memory_bytes"
    )


def abort(writers: Iterable[asyncio.StreamWriter]) -> None:
    for writer in writers:
        writer.transport.abort()


async def test_a_large_cluster_registers_soon_and_is_found_fast(cluster: Cluster) -> None:
    lookupd = cluster.lookupd()
    await lookupd.start()

    started = time.monotonic()
    peers = await asyncio.gather(
        *(register_everything(lookupd, number) for number in range(PEER_COUNT))
    )

    assert time.monotonic() - started < MAX_REGISTRATION_S
    assert median(await time_lookups(lookupd)) < MAX_MEDIAN_S
    assert await memory_bytes(lookupd) < MAX_MEMORY_BYTES
    abort(peers)
    await lookupd.wait_for_producers("t0")
    assert len((await lookupd.get("/topics"))["topics"]) == TOPIC_COUNT
