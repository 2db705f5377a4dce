"""Case 25: nsqlookupd."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nsqd.client import Consumer, DiscoveryError, Observer, Producer
from nsqd.client.address import Address
from nsqd.client.discovery import Discovery
from tests.client.conftest import StartNsqd
from tests.support.cluster import Lookupd
from tests.support.waiting import until


@pytest.fixture
async def lookupd(tmp_path: Path) -> AsyncIterator[Lookupd]:
    """nsqlookupd, not started."""
    daemon = Lookupd(tmp_path / "lookupd")
    yield daemon
    daemon.kill()


class Failures(Observer):
    def __init__(self) -> None:
        self.lookupds: list[str] = []

    def discovery_failed(self, lookupd: str, error: Exception) -> None:
        self.lookupds.append(lookupd)


class FakeServer:
    """Answers every request with the same bytes, or never."""

    def __init__(self, answer: bytes | None) -> None:
        self.answer = answer
        self.requests: list[bytes] = []
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *exception: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.requests.append(await reader.readuntil(b"\r\n\r\n"))
            if self.answer is None:
                await reader.read()
            else:
                writer.write(self.answer)
        except asyncio.IncompleteReadError:
            return
        finally:
            writer.close()


def http(body: str, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


GOOD = http('{"producers":[{"broadcast_address":"10.1.2.3","tcp_port":4150}]}')
OLD = http('{"status_code":200,"data":{"producers":[{"broadcast_address":"a","tcp_port":1}]}}')


async def test_one_good_answer_is_enough() -> None:
    failures = Failures()
    async with (
        FakeServer(GOOD) as good,
        FakeServer(OLD) as old,
        FakeServer(http("<html>")) as garbage,
        FakeServer(http("", "500 Oops")) as broken,
        FakeServer(http("{}", "404 Not Found")) as unknown,
        FakeServer(None) as silent,
    ):
        lookupds = [good, old, garbage, broken, unknown, silent, "127.0.0.1:1"]
        discovery = Discovery(lookupds, "topic", timeout_s=0.5, observer=failures)
        found = await discovery.ask()
        discovery.close()

    assert found == {Address("10.1.2.3", 4150), Address("a", 1)}
    assert set(failures.lookupds) == {garbage, broken, silent, "127.0.0.1:1"}


@pytest.mark.parametrize("is_asked_for", [None, True, False])
async def test_the_secret_of_auth_is_not_sent_in_the_clear_unless_asked_for(
    is_asked_for: bool | None,  # noqa: FBT001 - drawn
) -> None:
    server = FakeServer(http('{"producers":[]}'))
    async with server as lookupd:
        consumer = Consumer(
            "topic",
            "ch",
            lookupd=[lookupd],
            auth_secret="s3cret",
            lookupd_authorization=is_asked_for,
        )
        async with consumer:
            await until(lambda: server.requests)

    assert (b"Authorization: Bearer s3cret" in server.requests[0]) is (is_asked_for is True)


async def test_no_answer_is_an_error() -> None:
    discovery = Discovery(["127.0.0.1:1"], None)

    with pytest.raises(DiscoveryError):
        await discovery.ask()


async def test_nodes_appear_vanish_and_move(start_nsqd: StartNsqd, lookupd: Lookupd) -> None:
    await lookupd.start()
    address = lookupd.http_address
    await lookupd.end()

    async with Consumer("topic", "ch", lookupd=[address], lookupd_interval=0.2) as consumer:
        messages = aiter(consumer)
        await asyncio.sleep(0.3)  # all are down at the start
        await lookupd.start()
        flag = f"--lookupd-tcp-address={lookupd.tcp_address}"
        first = await start_nsqd(flag)
        async with Producer(first.tcp_address) as producer:
            await producer.publish("topic", b"first")
        message = await anext(messages)
        message.fin()
        assert message.body == b"first"

        second = await start_nsqd(flag)
        async with Producer(second.tcp_address) as producer:
            await producer.publish("topic", b"second")
        message = await anext(messages)
        message.fin()
        assert message.body == b"second"

        first.kill()
        await lookupd.wait_for_producers("topic", second.tcp_port)
        first.keeps_ports = False
        await first.start()  # on other ports
        async with Producer(lookupd=[address], spread="round-robin") as producer:
            for number in range(20):
                await producer.publish("topic", b"%d" % number)
        seen: set[bytes] = set()
        while len(seen) < 20:
            message = await anext(messages)
            seen.add(message.body)
            message.fin()
        await until(lambda: consumer.stats().connections == 2 or None)
