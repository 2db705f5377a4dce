"""Three nodes restarted one after the other, by the commands of deploy/systemd/nsqd@.service."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqd.client import Consumer, Producer
from tests.support.cluster import Cluster
from tests.support.daemon_process import HOST, REPOSITORY
from tests.support.unit_file import UnitFile, UnitService
from tests.support.waiting import until

UNIT = REPOSITORY / "deploy/systemd/nsqd@.service"
NODE_COUNT = 3
PUBLISH_PAUSE_S = 0.002


def find_free_instances() -> list[str]:
    """Return the numbers of instances whose ports are free: other runs may use some."""
    free: list[str] = []
    for number in range(99, 9, -1):
        with contextlib.ExitStack() as sockets:
            try:
                for port in ports_of(number):
                    sockets.enter_context(socket.socket()).bind((HOST, port))
            except OSError:
                continue
        free.append(str(number))
    return free[:NODE_COUNT]


def ports_of(number: int) -> tuple[int, int]:
    """Return the TCP and the HTTP port of an instance."""
    return 20050 + 100 * number, 20051 + 100 * number


@pytest.fixture
def services() -> Iterator[list[UnitService]]:
    """Filled by the test; killed in the end."""
    services: list[UnitService] = []
    yield services
    for service in services:
        service.close()


async def publish_until(is_over: asyncio.Event, producer: Producer, name: str) -> set[bytes]:
    """Publish one message after the other; return those that were acknowledged."""
    acknowledged: set[bytes] = set()
    while not is_over.is_set():
        body = b"%s-%d" % (name.encode(), len(acknowledged))
        await producer.publish("t", body)
        acknowledged.add(body)
        await asyncio.sleep(PUBLISH_PAUSE_S)
    return acknowledged


async def consume(consumer: Consumer, received: set[bytes]) -> None:
    """Finish all messages."""
    async for message in consumer:
        async with message:
            received.add(message.body)


async def test_a_rolling_restart_loses_nothing(
    cluster: Cluster, tmp_path: Path, services: list[UnitService]
) -> None:
    lookupd = cluster.lookupd()
    await cluster.start(lookupd)
    variables = {
        "NSQD_FLAGS": f"--lookupd-tcp-address={lookupd.tcp_address} --broadcast-address={HOST}",
        # The channel that has no consumers is never empty, and would be waited for.
        "NSQD_INSTANCE_FLAGS": "--drain-timeout=300ms",
    }
    instances = find_free_instances()
    for instance in instances:
        unit = UnitFile(UNIT, instance)
        services.append(UnitService(unit, tmp_path / instance, variables))
    await asyncio.gather(*(service.start() for service in services))
    ports = [ports_of(int(instance))[0] for instance in instances]
    addresses = [f"{HOST}:{port}" for port in ports]
    for address in addresses:  # each node has the topic before it is looked up
        async with Producer(address) as producer:
            await producer.publish("t", b"first")
    await lookupd.wait_for_producers("t", *ports)
    received: set[bytes] = set()
    received_later: set[bytes] = set()
    is_over = asyncio.Event()

    async with (
        Producer(*addresses, spread="round-robin") as producer,
        Consumer("t", "work", lookupd=[lookupd.http_address]) as first,
        Consumer("t", "work", lookupd=[lookupd.http_address]) as second,
    ):
        async with Consumer("t", "later", lookupd=[lookupd.http_address]) as absent:
            consumers = (first, second, absent)
            await until(lambda: all(each.stats().connections == NODE_COUNT for each in consumers))
        async with asyncio.TaskGroup() as tasks:
            consuming = [tasks.create_task(consume(each, received)) for each in (first, second)]
            publishing = tasks.create_task(publish_until(is_over, producer, "p"))
            for service in services:
                await service.stop()
                await service.start()
            is_over.set()
            acknowledged = await publishing
            await until(lambda: acknowledged <= received)
            for task in consuming:
                task.cancel()
    async with Consumer("t", "later", lookupd=[lookupd.http_address]) as late:
        consuming_late = asyncio.create_task(consume(late, received_later))
        await until(lambda: acknowledged <= received_later)
        consuming_late.cancel()

    assert len(acknowledged) > 100
    for service in services:
        assert service.log.count("NSQ: draining") == 1
        assert "ERROR" not in service.log
