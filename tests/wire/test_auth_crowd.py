"""An auth server that is slow holds up only the clients that wait for it."""

import asyncio
import re
from collections.abc import Iterator

import pytest

from nsqd.tcp.auth import Authorization, AuthServers, AuthState, Question
from nsqd.tcp.auth_patterns import Pattern
from tests.support.auth_server import AuthServer, allow, answer
from tests.support.running_daemon import StartNsqd

CLIENT_COUNT = 48  # more than the questions that may be under way
# nsqd gives up on the auth server long after the test has failed.
FOR_EVER_S = 600.0


@pytest.fixture
def stuck_server() -> Iterator[AuthServer]:
    with AuthServer() as server:
        server.answers["secret"] = (200, answer(allow()))
        server.gate.clear()
        yield server
        server.gate.set()


async def wait_until_asked(server: AuthServer) -> None:
    while len(server.asked) < 6:  # noqa: ASYNC110 - it is noted in a thread
        await asyncio.sleep(0.01)


async def test_auth_servers_that_hang_keep_nothing_from_the_disk(
    start_nsqd: StartNsqd, stuck_server: AuthServer
) -> None:
    nsqd = await start_nsqd(
        auth_http_addresses=(stuck_server.address,), http_client_request_timeout_s=FOR_EVER_S
    )
    await nsqd.post("/topic/create?topic=t")
    clients = [await nsqd.connect() for _ in range(CLIENT_COUNT)]
    for client in clients:
        client.command("AUTH", body=b"secret")
    await wait_until_asked(stuck_server)

    # Answered once nsqd.dat is written, which is done in a thread as syncs are.
    await nsqd.post("/topic/pause?topic=t")

    stuck_server.gate.set()
    for client in clients:
        assert b"permission_count" in await client.read_response()


async def test_nsqd_stops_while_clients_stand_in_line_for_the_auth_server(
    start_nsqd: StartNsqd, stuck_server: AuthServer
) -> None:
    nsqd = await start_nsqd(
        auth_http_addresses=(stuck_server.address,), http_client_request_timeout_s=FOR_EVER_S
    )
    for _ in range(CLIENT_COUNT):
        (await nsqd.connect()).command("AUTH", body=b"secret")
    await wait_until_asked(stuck_server)

    await nsqd.shut_down()
    stuck_server.gate.set()
    await asyncio.sleep(0.1)  # what was cancelled is reported to the loop, and must not hurt it

    assert await nsqd.daemon.ending.wait() == 0


async def test_rights_that_run_out_while_they_are_asked_for_are_good_for_one_command(
    start_nsqd: StartNsqd, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def ask(_servers: AuthServers, question: Question) -> asyncio.Future[AuthState]:
        asked.append(question)
        entry = Authorization(Pattern(".*"), (Pattern(".*"),), frozenset({"publish"}))
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(AuthState("somebody", "", (entry,), expires_at=0.0))
        return answer

    monkeypatch.setattr(AuthServers, "ask", ask)
    nsqd = await start_nsqd(auth_http_addresses=("127.0.0.1:1",))
    client = await nsqd.connect()
    client.command("AUTH", body=b"secret")
    assert re.search(rb'"permission_count":1', await client.read_response())

    for _ in range(2):
        client.command("PUB", "t", body=b"x")
        assert await client.read_response() == b"OK"

    assert len(asked) == 3
