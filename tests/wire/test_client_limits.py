"""What bounds a client: time to speak, connections, output that it does not take."""

import asyncio
import contextlib
import resource
import socket

import pytest

from nsqd.tcp.connection import V2Connection
from tests.support.clock import not_before
from tests.support.http_client import HttpClient
from tests.support.running_daemon import RunningDaemon, StartNsqd
from tests.support.v2_client import ConnectionEndedError, V2Client

SILENT_COUNT = 2000
UNKNOWN_FIN = b"FIN 0123456789abcdef\n"
UNKNOWN_FIN_REPLY_BYTES = 8 + len("E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight")
# One write of messages and the mark above which none is made.
MAX_UNSENT_BYTES = 256 * 1024 + 512 * 1024 + 1024 * 1024


def connection_of(nsqd: RunningDaemon, topic: str) -> V2Connection:
    """Return nsqd's end of the only consumer of a topic."""
    [consumer] = nsqd.daemon.broker.topics[topic].channels["ch"].consumers
    assert isinstance(consumer.sink, V2Connection)
    return consumer.sink


async def connect_deaf(nsqd: RunningDaemon, topic: str, **identify: object) -> V2Client:
    """Open a subscribed connection with a small window that will not be read any more."""
    client = await V2Client.connect_with_window(nsqd.address, 4096)
    nsqd.adopt(client)
    await client.identify(**identify)
    await client.subscribe(topic)
    client.stop_reading()
    return client


@pytest.mark.parametrize("start", [b"", b" ", b"  V"])  # O-19
async def test_who_does_not_finish_the_magic_is_disconnected(
    start_nsqd: StartNsqd, start: bytes
) -> None:
    nsqd = await start_nsqd(handshake_timeout_s=0.2)

    with not_before(0.2):
        silent = await nsqd.connect(magic=start)
        speaking = await nsqd.connect()
        await silent.expect_closed()

    await speaking.expect_quiet()
    await speaking.settle()


async def test_thousands_who_say_nothing_hinder_nobody(start_nsqd: StartNsqd) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(SILENT_COUNT, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 200) // 2)
    nsqd = await start_nsqd(handshake_timeout_s=60.0)
    speaking = await nsqd.connect()
    crowd: list[socket.socket] = []
    try:
        for _ in range(count):
            silent = socket.socket()
            crowd.append(silent)
            silent.setblocking(False)
            await asyncio.get_running_loop().sock_connect(silent, nsqd.address)

        await speaking.publish("t", b"x")
        consumer = await nsqd.consumer("t", rdy=1)

        assert (await consumer.read_message()).body == b"x"
        await nsqd.shut_down()  # O-19: nor does the stop wait for them
    finally:
        for silent in crowd:
            silent.close()


@pytest.mark.both_loops("accepting and refusing")
async def test_connections_beyond_the_limit_are_closed(start_nsqd: StartNsqd) -> None:
    nsqd = await start_nsqd(max_connections=2)
    first, second = await nsqd.connect(), await nsqd.connect()
    await first.settle()
    await second.settle()

    refused = await nsqd.connect()
    await refused.expect_closed()

    await first.settle()
    await first.close()
    async with asyncio.timeout(5):
        while True:
            late = await nsqd.connect()
            with contextlib.suppress(ConnectionEndedError):
                await late.settle()
                break


@pytest.mark.both_loops("accepting and refusing")
async def test_http_has_the_same_limit(start_nsqd: StartNsqd) -> None:
    nsqd = await start_nsqd(max_connections=1)
    address = ("127.0.0.1", nsqd.daemon.http_port)

    async with await HttpClient.connect(address) as first:
        assert (await first.get("/ping")).status == 200
        async with await HttpClient.connect(address) as second:
            assert (await second.get("/ping")).error == (503, "TOO_MANY_CONNECTIONS")
        assert (await first.get("/ping")).status == 200


@pytest.mark.both_loops("flow control")
async def test_deaf_consumer_is_given_no_more(nsqd: RunningDaemon) -> None:
    """Its messages stay in the channel, where others can have them; its buffer stays small."""
    deaf = await connect_deaf(nsqd, "t")
    deaf.rdy(2500)
    publisher = await nsqd.connect()
    body = bytes(100_000)

    await publisher.publish("t", *[body] * 300)

    channel = await nsqd.channel("t")
    assert channel["in_flight_count"] < 150
    assert connection_of(nsqd, "t").stream.unsent_bytes < MAX_UNSENT_BYTES
    other = await nsqd.consumer("t", rdy=10)
    for _ in range(channel["depth"]):
        message = await other.read_message()
        assert message.attempts == 1
        other.fin(message)
    deaf.resume_reading()  # and then it gets what it was promised
    await deaf.read_messages(channel["in_flight_count"])


@pytest.mark.both_loops("flow control")
async def test_deaf_consumer_is_disconnected_in_the_end(nsqd: RunningDaemon) -> None:
    """The write deadline is one heartbeat interval, here far below the patience of the test."""
    deaf = await connect_deaf(nsqd, "t", heartbeat_interval=1000, msg_timeout=1000)
    deaf.rdy(2500)
    await nsqd.publish("t", *[bytes(100_000)] * 100)

    await nsqd.wait_for_channel("t", client_count=0)

    await nsqd.wait_for_channel("t", depth=100, in_flight_count=0)


@pytest.mark.both_loops("flow control")
async def test_replies_that_are_not_read_stop_the_commands(nsqd: RunningDaemon) -> None:
    deaf = await connect_deaf(nsqd, "t")
    other = await nsqd.connect()

    deaf.send(UNKNOWN_FIN * 120_000)
    for _ in range(50):
        await other.publish("u", b"x")
        await asyncio.sleep(0.005)

    assert connection_of(nsqd, "t").stream.unsent_bytes < MAX_UNSENT_BYTES
    deaf.resume_reading()
    for _ in range(120):
        await deaf.read_raw(1000 * UNKNOWN_FIN_REPLY_BYTES)
    await deaf.settle()


@pytest.mark.both_loops("flow control")
async def test_deaf_client_cannot_outlive_a_fatal_error(nsqd: RunningDaemon) -> None:
    deaf = await connect_deaf(nsqd, "t")
    deaf.rdy(2500)
    await nsqd.publish("t", *[bytes(100_000)] * 100)

    deaf.send(b"BAD\n")

    await nsqd.wait_for_channel("t", client_count=0)


@pytest.mark.both_loops("flow control")
async def test_deaf_client_does_not_delay_the_stop(nsqd: RunningDaemon) -> None:
    """Its write deadline of 30 s is far beyond the patience of the test."""
    deaf = await connect_deaf(nsqd, "t")
    deaf.rdy(2500)
    await nsqd.publish("t", *[bytes(100_000)] * 100)

    await nsqd.shut_down()
