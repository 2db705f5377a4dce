"""Registrations survive the loss of nsqds and nsqlookupds, and changes of plan."""

import json

from tests.support.cluster import Cluster, Lookupd, Nsqd, wait_for


async def start_pair(cluster: Cluster, *lookupd_flags: str) -> tuple[Lookupd, Nsqd]:
    lookupd = cluster.lookupd(*lookupd_flags)
    await lookupd.start()
    nsqd = cluster.nsqd(lookupd)
    await nsqd.start()
    return lookupd, nsqd


async def test_an_nsqlookupd_that_was_killed_is_told_everything_again(
    cluster: Cluster,
) -> None:  # N-4
    lookupd, nsqd = await start_pair(cluster)
    await nsqd.create("old", "gone")
    await wait_for(lookupd.registrations, {"topic:old:", "channel:old:gone"})
    lookupd.kill()
    await nsqd.post("/channel/delete?topic=old&channel=gone")
    await nsqd.create("new", "ch")

    await lookupd.start()

    await wait_for(lookupd.registrations, {"topic:old:", "topic:new:", "channel:new:ch"})
    assert await lookupd.channels("old") == set()


async def test_an_nsqd_that_was_killed_is_gone_at_once_and_back_at_once(cluster: Cluster) -> None:
    lookupd, nsqd = await start_pair(cluster)
    await nsqd.create("t", "ch")
    await lookupd.wait_for_producers("t", nsqd)
    await nsqd.wait_for_metadata('"ch"')

    nsqd.kill()
    await lookupd.wait_for_producers("t")
    assert await lookupd.channels("t") == {"ch"}

    await nsqd.start()
    await lookupd.wait_for_producers("t", nsqd)


async def test_two_nsqlookupds_of_which_one_dies_and_returns(cluster: Cluster) -> None:
    steady, shaky = cluster.lookupd(), cluster.lookupd()
    await cluster.start(steady, shaky)
    nsqds = [cluster.nsqd(steady, shaky), cluster.nsqd(steady, shaky)]
    await cluster.start(*nsqds)
    for nsqd in nsqds:
        await nsqd.create("t", "ch")
    for lookupd in (steady, shaky):
        await lookupd.wait_for_producers("t", *nsqds)

    shaky.kill()
    await nsqds[0].create("meanwhile")
    await steady.wait_for_producers("meanwhile", nsqds[0])
    await steady.wait_for_producers("t", *nsqds)
    await shaky.start()

    await shaky.wait_for_producers("t", *nsqds)
    await shaky.wait_for_producers("meanwhile", nsqds[0])
    assert await shaky.channels("t") == {"ch"}
    await wait_for(shaky.registrations, await steady.registrations())


async def test_a_tombstone_is_for_the_topic_that_was_deleted(cluster: Cluster) -> None:
    lookupd, nsqd = await start_pair(cluster)
    other = cluster.nsqd(lookupd)
    await other.start()
    for each in (nsqd, other):
        await each.create("t", "ch")
    await lookupd.wait_for_producers("t", nsqd, other)

    # What nsqadmin does to take a topic off one node.
    await lookupd.post(f"/topic/tombstone?topic=t&node={nsqd.http_address}")
    await lookupd.wait_for_producers("t", other)
    nodes = (await lookupd.get("/nodes"))["producers"]
    marks = {node["tcp_port"]: node["tombstones"] for node in nodes}
    assert marks == {nsqd.tcp_port: [True], other.tcp_port: [False]}
    await nsqd.post("/topic/delete?topic=t")
    await nsqd.publish("t", "again")

    await lookupd.wait_for_producers("t", nsqd, other)


async def test_a_tombstone_ends_by_itself(cluster: Cluster) -> None:
    lookupd, nsqd = await start_pair(cluster, "--tombstone-lifetime=500ms")
    await nsqd.create("t")
    await lookupd.wait_for_producers("t", nsqd)

    await lookupd.post(f"/topic/tombstone?topic=t&node={nsqd.http_address}")
    assert await lookupd.producers("t") == set()

    await lookupd.wait_for_producers("t", nsqd)


async def test_a_topic_deleted_and_made_anew_many_times_stays_known(cluster: Cluster) -> None:
    lookupd, nsqd = await start_pair(cluster)
    for _ in range(20):
        await nsqd.create("t", "ch")
        await nsqd.post("/topic/delete?topic=t")
    await wait_for(lookupd.registrations, set[str]())
    await nsqd.create("t", "ch")
    for _ in range(20):
        await nsqd.post("/topic/delete?topic=t")
        await nsqd.create("t", "ch")

    await wait_for(lookupd.registrations, {"topic:t:", "channel:t:ch"})


async def test_addresses_are_changed_at_run_time(cluster: Cluster) -> None:
    first, second = cluster.lookupd(), cluster.lookupd()
    await cluster.start(first, second)
    nsqd = cluster.nsqd(first)
    await nsqd.start()
    await nsqd.create("t", "ch")
    await first.wait_for_producers("t", nsqd)

    async def put(*lookupds: Lookupd) -> None:
        body = json.dumps([lookupd.tcp_address for lookupd in lookupds]).encode()
        reply = await nsqd.request("PUT", "/config/nsqlookupd_tcp_addresses", body)
        assert (reply.status, reply.body) == (200, body.replace(b" ", b""))

    await put(first, second)
    await second.wait_for_producers("t", nsqd)
    await first.wait_for_producers("t", nsqd)
    await put(second)
    await first.wait_for_producers("t")
    await put()
    await second.wait_for_producers("t")
    await nsqd.create("u")
    await put(first)
    await first.wait_for_producers("u", nsqd)
    await first.wait_for_producers("t", nsqd)
    assert await second.producers("u") == set()


async def test_nothing_is_left_of_an_nsqd_that_stops(cluster: Cluster) -> None:  # N-8
    lookupd, nsqd = await start_pair(cluster)
    await nsqd.create("t", "ch")
    await lookupd.wait_for_producers("t", nsqd)

    await nsqd.stop()

    await lookupd.wait_for_producers("t")
    assert (await lookupd.get("/nodes"))["producers"] == []
    assert await lookupd.channels("t") == {"ch"}
