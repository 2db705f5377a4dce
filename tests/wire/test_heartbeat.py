"""Heartbeats and deadlines (W-110 to W-114), in real time with the shortest interval there is."""

import asyncio
import contextlib
import time

import pytest

from tests.support.running_daemon import RunningDaemon
from tests.support.v2_client import HEARTBEAT, ConnectionEndedError, V2Client

INTERVAL_MS = 1000
EARLY_S = 0.2  # the clock of a test starts a little after nsqd's


async def connect(nsqd: RunningDaemon) -> V2Client:
    """Open a connection with short heartbeats."""
    client = await nsqd.connect()
    await client.identify(heartbeat_interval=INTERVAL_MS)
    return client


async def expect_heartbeats(client: V2Client, count: int, *, answer: bytes) -> None:
    """Answer so many heartbeats, none of which may be early; anything else is an error."""
    start = time.monotonic()
    for number in range(1, count + 1):
        assert await client.read_frame() == HEARTBEAT
        assert time.monotonic() - start >= number - EARLY_S
        client.send(answer)


async def stay_idle(nsqd: RunningDaemon) -> None:
    """W-110, W-111: answered heartbeats keep a connection."""
    client = await connect(nsqd)
    await expect_heartbeats(client, 2, answer=b"NOP\n")


async def stay_subscribed(nsqd: RunningDaemon) -> None:
    """W-111: any command is an answer."""
    client = await connect(nsqd)
    await client.subscribe("t")
    await expect_heartbeats(client, 2, answer=b"RDY 0\n")


async def stay_busy(nsqd: RunningDaemon) -> None:
    """W-110: heartbeats come whether or not there is traffic."""
    client = await connect(nsqd)
    watching = asyncio.create_task(expect_heartbeats(client, 2, answer=b""))
    while not watching.done():
        client.nop()
        await asyncio.sleep(0.1)
    await watching


async def identify_again(nsqd: RunningDaemon) -> None:
    """The interval restarts with each IDENTIFY, and may be turned off again (W-114)."""
    client = await connect(nsqd)
    await asyncio.sleep(0.6)
    await client.identify(heartbeat_interval=INTERVAL_MS)
    await expect_heartbeats(client, 1, answer=b"NOP\n")
    await client.identify(heartbeat_interval=-1)
    await client.expect_quiet(1.1)


async def test_heartbeats_keep_a_connection(nsqd: RunningDaemon) -> None:
    """At the same time, as each takes its seconds."""
    await asyncio.gather(
        stay_idle(nsqd),
        stay_subscribed(nsqd),
        stay_busy(nsqd),
        identify_again(nsqd),
    )


@pytest.mark.both_loops("timers of a connection")
async def test_silence_ends_a_connection(nsqd: RunningDaemon) -> None:
    """W-112 to W-114: after two intervals, without an error but in the middle of a body."""
    silent = await connect(nsqd)
    stalled = await connect(nsqd)
    stalled.send(b"PUB t\n\0\0\0\x05four")
    in_line = await connect(nsqd)
    in_line.send(b"PUB ")
    forgetful = await connect(nsqd)
    mute = await nsqd.connect()
    await mute.identify(heartbeat_interval=-1)
    subscribed = await connect(nsqd)
    await subscribed.subscribe("t", rdy=1)
    start = time.monotonic()

    async def expect_end(client: V2Client, *frames: tuple[int, bytes]) -> None:
        seen = []
        with contextlib.suppress(ConnectionEndedError):
            while True:
                seen.append(await client.read_frame())
        # The end and the second heartbeat are due in the same moment.
        assert seen in ([HEARTBEAT, *frames], [HEARTBEAT, HEARTBEAT, *frames])
        assert time.monotonic() - start >= 2 - EARLY_S

    async def speak_once_more(client: V2Client) -> None:
        assert await client.read_frame() == HEARTBEAT
        client.nop()
        assert await client.read_frame() == HEARTBEAT
        await client.settle()

    await asyncio.gather(
        expect_end(silent),
        expect_end(in_line),
        expect_end(subscribed),
        expect_end(stalled, (1, b"E_BAD_MESSAGE PUB failed to read message body")),
        speak_once_more(forgetful),
        mute.expect_quiet(2.3),
    )
    await mute.settle()
    await nsqd.wait_for_channel("t", client_count=0)
