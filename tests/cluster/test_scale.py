"""nsqlookupd with as much as a large cluster gives it: 20 nsqds, 1,000 topics, 5,000 channels."""

import asyncio
import random
from collections.abc import Iterable

from prometheus_client.parser import text_string_to_metric_families

from nsqd.protocol.lookup import (
    MAGIC,
    OK,
    NsqdIdentity,
    encode_identify,
    encode_register,
    encode_reply,
)
from tests.support.cluster import Cluster, Lookupd
from tests.support.daemon_process import HOST
from tests.support.http_client import HttpClient

PEER_COUNT = 20
TOPIC_COUNT = 1000
CHANNELS = [f"ch{number}" for number in range(5)]
OK_REPLY = encode_reply(OK)
MAX_MEMORY_BYTES = 200 * 1024 * 1024
LOOKUP_COUNT = 100


async def register_everything(lookupd: Lookupd, number: int) -> asyncio.StreamWriter:
    """Be an nsqd that has all topics, until the writer is closed."""
    reader, writer = await asyncio.open_connection(HOST, lookupd.tcp_port)
    identity = NsqdIdentity(f"host-{number}", 4150, 4151, "1.3.0")
    writer.write(MAGIC + encode_identify(identity))
    await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
    for topic in range(TOPIC_COUNT):
        writer.writelines(encode_register(f"t{topic}", channel) for channel in CHANNELS)
        replies = await reader.readexactly(len(CHANNELS) * len(OK_REPLY))
        assert replies == len(CHANNELS) * OK_REPLY
    return writer


async def expect_all_producers(lookupd: Lookupd) -> None:
    """Ask for some topics, each of which every peer has."""
    async with await HttpClient.connect((HOST, lookupd.http_port)) as http:
        for _ in range(LOOKUP_COUNT):
            reply = await http.get(f"/lookup?topic=t{random.randrange(TOPIC_COUNT)}")
            assert len(reply.json()["producers"]) == PEER_COUNT
            assert reply.json()["channels"] == CHANNELS


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


async def test_a_large_cluster_registers_and_is_found_in_little_memory(cluster: Cluster) -> None:
    lookupd = cluster.lookupd()
    await lookupd.start()

    peers = await asyncio.gather(
        *(register_everything(lookupd, number) for number in range(PEER_COUNT))
    )

    await expect_all_producers(lookupd)
    assert await memory_bytes(lookupd) < MAX_MEMORY_BYTES
    abort(peers)
    await lookupd.wait_for_producers("t0")
    assert len((await lookupd.get("/topics"))["topics"]) == TOPIC_COUNT
