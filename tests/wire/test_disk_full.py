"""A disk that takes no more: publishes are refused, what was accepted is kept (W-68, Q-36)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon_process import OURS, DaemonProcess
from tests.support.v2_client import V2Client

BODY = b"x" * 10_000
# In blocks of 512 bytes: a file of 64 KiB is as good as a full disk to whoever writes to it.
LIMITED = ("sh", "-c", 'ulimit -f 128; exec "$@"', "sh", *OURS)
FLAGS = ("--mem-queue-size=0",)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path, *FLAGS, command=LIMITED) as process:
        yield process


async def connect(process: DaemonProcess) -> V2Client:
    return await V2Client.connect(process.address)


async def fill(process: DaemonProcess, topic: str) -> int:
    """Publish until it is refused; return how many were accepted."""
    client = await connect(process)
    count = 0
    while True:
        assert count < 10, "never refused"
        client.pub(topic, BODY)
        kind, data = await client.read_frame()
        if kind == 1:
            break
        count += 1
    assert data.lower().startswith(b"e_pub_failed pub failed ")
    assert data.lower().endswith(b"file too large")
    await client.expect_closed()
    await client.close()
    return count


def ping(process: DaemonProcess) -> tuple[int, bytes]:
    reply = process.fetch("GET", "/ping")
    return reply.status, reply.body


async def test_refused_publish_is_told_and_shown(process: DaemonProcess) -> None:
    assert ping(process) == (200, b"OK")

    assert await fill(process, "t") == 6

    status, text = ping(process)
    assert (status, text.startswith(b"NOK - ")) == (500, True)


async def test_next_good_write_makes_it_healthy(process: DaemonProcess) -> None:
    await fill(process, "t")
    client = await connect(process)

    await client.publish("other", b"fits")

    assert ping(process) == (200, b"OK")
    await client.close()


@pytest.mark.parametrize("verb", ["MPUB", "DPUB"])
async def test_every_verb_has_its_own_code(process: DaemonProcess, verb: str) -> None:
    await fill(process, "t")
    client = await connect(process)

    if verb == "MPUB":
        client.mpub("t", BODY, BODY)
    else:
        client.dpub("t", 1000, BODY)

    _, data = await client.read_frame()
    assert data.startswith(f"E_{verb}_FAILED {verb} failed ".encode())
    await client.expect_closed()
    await client.close()


async def test_what_was_accepted_is_delivered(process: DaemonProcess) -> None:
    """Before and after a restart: a write that failed leaves nothing half done behind."""
    count = await fill(process, "t")
    client = await connect(process)
    await client.subscribe("t", rdy=1)
    message = await client.read_message()
    client.fin(message)
    await client.read_message()
    await client.close()

    process.stop()
    process.start()

    client = await connect(process)
    await client.subscribe("t", rdy=10)
    messages = await client.read_messages(count - 1)
    assert {message.body for message in messages} == {BODY}
    assert {message.attempts for message in messages} == {1}  # there was no room to note the first
    await client.expect_quiet()
    await client.close()


async def test_mpub_is_refused_as_a_whole(process: DaemonProcess) -> None:
    client = await connect(process)
    client.mpub("t", *[BODY] * 10)

    _, data = await client.read_frame()

    assert data.startswith(b"E_MPUB_FAILED MPUB failed ")
    await client.close()
    client = await connect(process)
    await client.subscribe("t", rdy=10)
    await client.expect_quiet()
    await client.close()
