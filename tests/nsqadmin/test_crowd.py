"""nsqadmin in front of many viewers at once, of slow ones and of those who stop halfway."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from nsqadmin.access.notifications import MAX_TRIES
from tests.nsqadmin.conftest import Cluster, StartAdmin
from tests.support.fake_farm import Farm
from tests.support.running_admin import HOST, RunningAdmin

VIEWERS = 1000
HALVES = 200
SLOW = 20
PIPELINED = 100

ASK = b"GET /api/v2/queues HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.fixture
async def wide_farm() -> AsyncIterator[Farm]:
    """Ten nodes with 300 topics, whose list is longer than what sockets hold."""
    farm = Farm(nodes=10, topics=300, per_node=60)
    await farm.start()
    yield farm
    await farm.close()


@asynccontextmanager
async def crowd(admin: RunningAdmin, count: int, sent: bytes) -> AsyncIterator[list[socket.socket]]:
    """Connect many viewers; each sends this, and reads nothing until the test does."""
    loop = asyncio.get_running_loop()
    members: list[socket.socket] = []
    try:
        for _ in range(count):
            member = socket.socket()
            members.append(member)
            member.setblocking(False)
            await loop.sock_connect(member, (HOST, admin.daemon.http_port))
            await loop.sock_sendall(member, sent)
        yield members
    finally:
        for member in members:
            member.close()


async def read_bodies(member: socket.socket, count: int) -> list[bytes]:
    """Read so many replies."""
    loop = asyncio.get_running_loop()
    bodies: list[bytes] = []
    data = b""
    while len(bodies) < count:
        head, separator, rest = data.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
        if separator and len(rest) >= length:
            assert head.startswith(b"HTTP/1.1 200"), head
            bodies.append(rest[:length])
            data = rest[length:]
            continue
        more = await loop.sock_recv(member, 1 << 18)
        assert more, "closed"
        data += more
    return bodies


async def test_a_thousand_viewers_slow_ones_and_halves_hold_up_no_round(
    wide_farm: Farm, start_admin: StartAdmin
) -> None:
    address = f"127.0.0.1:{wide_farm.port}"
    admin = await start_admin(lookupd_http_addresses=(address,), poll_interval_s=600)
    await admin.round()
    asked = [node.stats_count for node in wide_farm.nodes]
    seq = admin.daemon.collector.view.seq

    async with (
        crowd(admin, HALVES, ASK[:40]),
        crowd(admin, SLOW, ASK * PIPELINED) as slow,
        crowd(admin, VIEWERS, ASK) as viewers,
    ):
        # Rounds go on while none of them has read a byte, and each asks a node once.
        await admin.round()
        rounds = admin.daemon.collector.view.seq - seq
        assert rounds >= 2
        assert [node.stats_count for node in wide_farm.nodes] == [
            before + rounds for before in asked
        ]
        assert len((await admin.get("/api/v2/queues"))["rows"]) == 600
        # Whoever reads gets all of it.
        for viewer in viewers:
            [body] = await read_bodies(viewer, 1)
            assert body.endswith(b'"removed":[]}')
        bodies = await read_bodies(slow[0], PIPELINED)
        assert {len(json.loads(body)["rows"]) for body in bodies} == {600}


@asynccontextmanager
async def endpoint(answer: bytes | None) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Take notifications: answer each the same way, or never; gives the URL and what came."""
    came: list[bytes] = []
    ending = asyncio.Event()
    taking: set[asyncio.Task[None] | None] = set()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taking.add(asyncio.current_task())
        came.append(await reader.readuntil(b"\r\n\r\n"))
        if answer is None:
            await ending.wait()
        writer.write(answer or b"")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(take, HOST, 0)
    yield f"http://{HOST}:{server.sockets[0].getsockname()[1]}/hook", came
    ending.set()
    await asyncio.gather(*(task for task in taking if task is not None), return_exceptions=True)
    server.close()
    await server.wait_closed()


REDIRECT = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize(("answer", "tries"), [(None, 1), (REDIRECT, MAX_TRIES)])
async def test_an_endpoint_that_hangs_or_redirects_holds_up_no_change(
    cluster: Cluster,
    start_admin: StartAdmin,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    answer: bytes | None,
    tries: int,
) -> None:
    monkeypatch.setattr("nsqadmin.access.notifications.RETRY_S", 0.01)
    await cluster.create("orders")
    async with endpoint(answer) as (url, came):
        admin = await start_admin(**cluster.options, notification_http_endpoint=url)
        for action in ("pause", "unpause", "pause"):
            reply = await admin.request("POST", "/api/topics/orders", {"action": action})
            assert reply.json() == {"message": ""}
        assert (await cluster.nsqds[0].topic("orders"))["paused"]
        await wait_for(lambda: len(came) >= tries)
        if answer is not None:
            await wait_for(lambda: "HTTP 302 dropped=1" in caplog.text)


async def wait_for(is_there: Callable[[], bool]) -> None:
    """Wait until something has happened."""
    while not is_there():  # noqa: ASYNC110 - a test looks from outside
        await asyncio.sleep(0.01)
