"""Topology-aware consumption, an experiment of NSQ (W-136, W-137)."""

from typing import Any

import pytest

from nsqd.config.options import TOPOLOGY_AWARE_CONSUMPTION
from tests.support.running_daemon import RunningDaemon, StartNsqd
from tests.support.v2_client import V2Client

NEAR: dict[str, Any] = {"topology_region": "r1", "topology_zone": "z1"}
SAME_REGION: dict[str, Any] = {"topology_region": "r1", "topology_zone": "z2"}
FAR: dict[str, Any] = {"topology_region": "r2", "topology_zone": "z3"}
COUNTS = ("zone_local_msg_count", "region_local_msg_count", "global_msg_count")


@pytest.fixture
async def aware(start_nsqd: StartNsqd) -> RunningDaemon:
    """nsqd in zone z1 of region r1, the experiment on."""
    return await start_nsqd(enable_experiment=(TOPOLOGY_AWARE_CONSUMPTION,), **NEAR)


async def counts_of(nsqd: RunningDaemon) -> tuple[Any, ...]:
    channel = await nsqd.channel("t")
    return tuple(channel.get(key, 0) for key in COUNTS)


async def consume_and_finish(consumer: V2Client, count: int) -> None:
    for _ in range(count):
        consumer.fin(await consumer.read_message())
    await consumer.settle()


async def publish_one_by_one(nsqd: RunningDaemon, consumer: V2Client, count: int) -> None:
    """Publish to an idle channel; the consumer must get everything."""
    for _ in range(count):
        await nsqd.publish("t", b"x")
        await consume_and_finish(consumer, 1)


async def test_nearest_consumer_gets_everything(aware: RunningDaemon) -> None:  # W-136
    far = await aware.consumer("t", rdy=10, **FAR)
    region = await aware.consumer("t", rdy=10, **SAME_REGION)
    near = await aware.consumer("t", rdy=10, **NEAR)

    await publish_one_by_one(aware, near, 20)

    await region.expect_quiet()
    await far.expect_quiet()
    assert await counts_of(aware) == (20, 0, 0)


async def test_same_region_comes_before_the_rest(aware: RunningDaemon) -> None:  # W-136
    far = await aware.consumer("t", rdy=10, **FAR)
    region = await aware.consumer("t", rdy=10, **SAME_REGION)

    await publish_one_by_one(aware, region, 20)

    await far.expect_quiet()
    assert await counts_of(aware) == (0, 20, 0)


async def test_zone_alone_is_enough(aware: RunningDaemon) -> None:
    far = await aware.consumer("t", rdy=10, **FAR)
    near = await aware.consumer("t", rdy=10, topology_region="elsewhere", topology_zone="z1")

    await publish_one_by_one(aware, near, 5)

    await far.expect_quiet()


async def test_busy_neighbour_leaves_the_rest_to_others(aware: RunningDaemon) -> None:
    near = await aware.consumer("t", rdy=1, **NEAR)
    far = await aware.consumer("t", rdy=10, **FAR)

    await aware.publish("t", b"1")
    held = await near.read_message()
    await aware.publish("t", b"2")

    assert (held.body, (await far.read_message()).body) == (b"1", b"2")
    assert await counts_of(aware) == (1, 0, 1)


async def test_client_that_did_not_identify_is_not_near(aware: RunningDaemon) -> None:
    unknown = await aware.consumer("t", rdy=10)
    near = await aware.consumer("t", rdy=10, **NEAR)

    await publish_one_by_one(aware, near, 5)

    await unknown.expect_quiet()


async def test_without_the_experiment_all_are_equal(start_nsqd: StartNsqd) -> None:  # W-137
    nsqd = await start_nsqd(**NEAR)
    far = await nsqd.consumer("t", rdy=1, **FAR)
    near = await nsqd.consumer("t", rdy=1, **NEAR)

    await nsqd.publish("t", b"1", b"2")

    await far.read_message()
    await near.read_message()
    assert await counts_of(nsqd) == (0, 0, 2)
    clients = (await nsqd.channel("t"))["clients"]
    zones = {(client["topology_region"], client["topology_zone"]) for client in clients}
    assert zones == {("r1", "z1"), ("r2", "z3")}


async def test_empty_equals_empty_in_the_counts(start_nsqd: StartNsqd) -> None:
    """To an nsqd that is nowhere, all that have identified themselves so are as near as can be."""
    nsqd = await start_nsqd(enable_experiment=(TOPOLOGY_AWARE_CONSUMPTION,))
    unknown = await nsqd.consumer("t", rdy=1)
    await publish_one_by_one(nsqd, unknown, 2)
    await unknown.close()
    elsewhere = await nsqd.consumer("t", rdy=1, topology_zone="z9")
    await publish_one_by_one(nsqd, elsewhere, 3)
    await elsewhere.close()
    nowhere = await nsqd.consumer("t", rdy=1, client_id="x")
    await publish_one_by_one(nsqd, nowhere, 4)

    assert await counts_of(nsqd) == (4, 3, 2)


async def test_nobody_comes_first_at_an_nsqd_that_is_nowhere(start_nsqd: StartNsqd) -> None:
    nsqd = await start_nsqd(enable_experiment=(TOPOLOGY_AWARE_CONSUMPTION,))
    unknown = await nsqd.consumer("t", rdy=10)
    nowhere = await nsqd.consumer("t", rdy=10, client_id="x")

    for _ in range(20):
        await nsqd.publish("t", b"x")

    await unknown.read_message()
    await nowhere.read_message()


@pytest.mark.parametrize("is_on", [True, False])
async def test_messages_from_disk_count_too_with_the_experiment(
    start_nsqd: StartNsqd, *, is_on: bool
) -> None:
    experiments = (TOPOLOGY_AWARE_CONSUMPTION,) if is_on else ()
    nsqd = await start_nsqd(enable_experiment=experiments, mem_queue_size=0, **NEAR)
    for identity, count in ((NEAR, 3), (SAME_REGION, 2), (FAR, 1)):
        consumer = await nsqd.consumer("t", rdy=1, **identity)
        await publish_one_by_one(nsqd, consumer, count)
        await consumer.close()

    assert await counts_of(nsqd) == ((3, 2, 1) if is_on else (0, 0, 0))
