"""POST /drain: nothing new comes in, what is here goes out, then the daemon stops."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support.fake_lookupd import FakeLookupd
from tests.support.http_client import HttpClient
from tests.support.running_daemon import RunningDaemon, StartNsqd
from tests.support.waiting import PATIENCE_S


@pytest.fixture
async def http(nsqd: RunningDaemon) -> AsyncIterator[HttpClient]:
    async with await connect(nsqd) as client:
        yield client


async def connect(nsqd: RunningDaemon) -> HttpClient:
    return await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port))


async def stopped(nsqd: RunningDaemon) -> int:
    return await asyncio.wait_for(nsqd.daemon.ending.wait(), PATIENCE_S)


async def test_a_node_is_ready_until_it_is_drained(nsqd: RunningDaemon, http: HttpClient) -> None:
    await nsqd.consumer("t")
    await nsqd.publish("t", b"stays for a while")
    ready = await http.get("/ready")
    assert (ready.status, ready.body) == (200, b"OK")

    reply = await http.post("/drain")

    assert reply.json() == {"message_count": 1, "timeout": 30 * 10**9}
    ready = await http.get("/ready")
    assert (ready.status, ready.body) == (503, b"NOK - draining")
    assert (await http.get("/ping")).status == 200, "alive, all the same"


async def test_publishes_are_refused(nsqd: RunningDaemon, http: HttpClient) -> None:
    await nsqd.consumer("t")
    await nsqd.publish("t", b"x")
    await http.post("/drain")

    for target in ("/pub?topic=t", "/mpub?topic=t", "/pub?topic=t&defer=5", "/pub?topic=new"):
        assert (await http.post(target, b"x")).error == (503, "DRAINING")
    client = await nsqd.connect()
    client.pub("t", b"x")
    await client.expect_error(b"E_PUB_FAILED PUB failed draining")
    assert (await nsqd.topic("t"))["message_count"] == 1


async def test_it_stops_when_consumers_have_finished_everything(
    nsqd: RunningDaemon, http: HttpClient
) -> None:
    consumer = await nsqd.consumer("t", rdy=1)
    await nsqd.publish("t", b"a", b"b", b"c")
    await http.post("/drain")
    waiter = asyncio.create_task(nsqd.daemon.ending.wait())

    for body in (b"a", b"b", b"c"):
        message = await consumer.read_message()
        assert message.body == body
        await asyncio.sleep(0.15)  # longer than it takes to look
        assert not waiter.done()
        consumer.fin(message)

    assert await asyncio.wait_for(waiter, PATIENCE_S) == 0


async def test_a_requeued_message_is_waited_for(nsqd: RunningDaemon, http: HttpClient) -> None:
    consumer = await nsqd.consumer("t", rdy=1)
    await nsqd.publish("t", b"a")
    consumer.req(await consumer.read_message(), 200)
    await http.post("/drain")

    message = await consumer.read_message()
    assert (message.body, message.attempts) == (b"a", 2)
    consumer.fin(message)

    assert await stopped(nsqd) == 0


async def test_an_empty_node_stops_at_once(nsqd: RunningDaemon, http: HttpClient) -> None:
    await nsqd.publish("t", b"no channel will ever take it")

    for _ in range(2):
        assert (await http.post("/drain")).json()["message_count"] == 0

    assert await stopped(nsqd) == 0


async def test_when_the_time_is_over_the_rest_stays_on_disk(start_nsqd: StartNsqd) -> None:
    nsqd = await start_nsqd(drain_timeout_s=0.2)
    await nsqd.post("/topic/create?topic=t")
    await nsqd.post("/channel/create?topic=t&channel=ch")
    await nsqd.publish("t", b"left behind")

    await nsqd.post("/drain")

    assert await stopped(nsqd) == 0
    await nsqd.stop()
    again = await start_nsqd()
    consumer = await again.consumer("t", rdy=1)
    assert (await consumer.read_message()).body == b"left behind"


async def test_nsqlookupds_are_left(start_nsqd: StartNsqd) -> None:
    lookupd = FakeLookupd()
    await lookupd.start()
    nsqd = await start_nsqd(lookupd_tcp_addresses=(lookupd.address,))
    await nsqd.consumer("t")
    await nsqd.publish("t", b"keeps it from stopping")
    await lookupd.wait_for_peer()

    await nsqd.post("/drain")

    assert nsqd.daemon.registration.peers == []
    async with await connect(nsqd) as http:
        body = f'["{lookupd.address}"]'.encode()
        assert (await http.request("PUT", "/config/nsqlookupd_tcp_addresses", body)).status == 200
    assert nsqd.daemon.registration.peers == [], "a node that leaves does not come back"
    await lookupd.stop()
