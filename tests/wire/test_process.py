"""nsqd as a process: signals, exit codes, the log, and what survives kill -9."""

import asyncio
import re
import signal
import socket
from pathlib import Path

import pytest

from tests.support.daemon_process import OURS, DaemonProcess
from tests.support.v2_client import ConnectionEndedError, Message, V2Client

SYNC_S = 0.1


async def connect(process: DaemonProcess) -> V2Client:
    return await V2Client.connect(process.address)


async def can_publish(process: DaemonProcess) -> bool:
    client = await connect(process)
    try:
        await client.publish("t", b"x")
    except ConnectionEndedError:
        return False
    finally:
        await client.close()
    return True


async def read_backlog(process: DaemonProcess, topic: str) -> list[Message]:
    """Consume what waits in the channel "ch" of a topic."""
    depth = process.wait_for_channel(topic, "ch")["depth"]
    client = await connect(process)
    await client.subscribe(topic, rdy=2500)
    messages = await client.read_messages(depth)
    await client.expect_quiet()
    await client.close()
    return messages


@pytest.mark.parametrize(
    ("number", "exit_code"),
    [(signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGQUIT, 2), (signal.SIGABRT, 2)],
)  # O-3
async def test_signals_end_it_well(tmp_path: Path, number: signal.Signals, exit_code: int) -> None:
    """With clients of all kinds connected (O-19), and with everything on disk after (Q-26)."""
    with DaemonProcess(tmp_path) as process:
        consumer = await connect(process)
        await consumer.subscribe("t", rdy=1)
        process.publish("t", b"in flight", b"waiting")
        await consumer.read_message()
        half_open = socket.create_connection(process.address)
        half_open.sendall(b"  V")

        for ignored in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGRTMIN):
            process.send_signal(ignored)
        process.send_signal(number)
        process.send_signal(number)

        assert process.wait() == exit_code, process.log
        assert ("most recent call first" in process.log) == (exit_code == 2)
        await consumer.close()
        half_open.close()
        process.start()
        messages = await read_backlog(process, "t")
    attempts = {message.body: message.attempts for message in messages}
    assert attempts == {b"in flight": 2, b"waiting": 1}


async def test_log_shows_the_start_and_the_stop(tmp_path: Path) -> None:  # O-9, O-16
    with DaemonProcess(tmp_path, "--node-id=7") as process:
        client = await connect(process)
        await client.publish("t", b"x")
        address = client.local_address
        await client.close()
        process.stop()
        # A busy machine may hold up the loop, which is logged.
        lines = [line for line in process.log.splitlines() if " LOOP: held up " not in line]

    header = r"\[nsqd\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} INFO: "
    texts = [re.sub(f"^{header}", "", line) for line in lines]
    assert all(re.match(header, line) for line in lines), lines
    assert texts[0].startswith("nsqd v1.3.0 (built w/")
    assert "ID: 7" in texts
    assert f"TCP: new client({address})" in texts
    assert "TOPIC(t): created" in texts
    assert texts[-1] == "NSQ: bye"


def test_second_nsqd_on_the_same_data_ends_with_code_1(tmp_path: Path) -> None:  # O-10, Q-34
    with DaemonProcess(tmp_path / "first") as first:
        second = DaemonProcess(tmp_path / "second", "--log-level=fatal", data=first.data_path)

        assert second.spawn().wait(20) == 1

        [line] = second.log.splitlines()
        assert line.endswith(
            "FATAL: failed to instantiate nsqd - failed to lock data-path:"
            f" cannot flock directory {first.data_path} - resource temporarily unavailable"
            " (possibly in use by another instance of nsqd)"
        )
        first.publish("t", b"unharmed")


def test_unreadable_metadata_is_one_line_and_code_1(tmp_path: Path) -> None:  # O-10, Q-30
    process = DaemonProcess(tmp_path, "--log-level=fatal")
    (process.data_path / "nsqd.dat").write_text("")

    assert process.spawn().wait(20) == 1

    [line] = process.log.splitlines()
    assert "FATAL: failed to load metadata - failed to parse metadata in " in line
    assert (process.data_path / "nsqd.dat").read_text() == ""


@pytest.mark.parametrize(
    ("flag", "code", "text"),
    [
        ("--help", 0, "--tcp-address"),
        ("--nonsense", 2, "flag provided but not defined: -nonsense"),
        ("--mem-queue-size=x", 2, 'invalid value "x" for flag -mem-queue-size: parse error'),
        ("--node-id=5000", 1, "failed to instantiate nsqd - --node-id must be [0,1024)"),
    ],
)  # O-2, O-3
def test_exit_codes(tmp_path: Path, flag: str, code: int, text: str) -> None:
    process = DaemonProcess(tmp_path, flag)

    assert process.spawn().wait(20) == code

    assert text in process.log


async def test_kill_keeps_what_is_on_disk(tmp_path: Path) -> None:  # D-24, D-25, Q-35
    """Unfinished messages in flight too, which nsqd forgets."""
    flags = ("--mem-queue-size=0", f"--sync-timeout={int(SYNC_S * 1000)}ms")
    with DaemonProcess(tmp_path, *flags) as process:
        client = await connect(process)
        await client.subscribe("t", rdy=3)
        process.publish("t", *[b"%d" % number for number in range(10)])
        held = await client.read_messages(3)
        client.fin(held[0])
        await client.read_message()
        await asyncio.sleep(SYNC_S * 5)

        process.kill()
        await client.close()
        process.start()
        messages = await read_backlog(process, "t")

    assert sorted(message.body for message in messages) == [b"%d" % n for n in range(1, 10)]


def test_kill_keeps_pauses(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path) as process:
        process.publish("t", b"x")
        process.request("POST", "/channel/create?topic=t&channel=c")
        process.request("POST", "/channel/pause?topic=t&channel=c")

        process.kill()
        process.start()

        assert process.wait_for_channel("t", "c")["paused"] is True


async def test_running_out_of_descriptors_passes(tmp_path: Path) -> None:
    """Those who are in are served, and others are let in again when there is room."""
    limited = ("sh", "-c", 'ulimit -n 40; exec "$@"', "sh", *OURS)
    with DaemonProcess(tmp_path, command=limited) as process:
        inside = await connect(process)
        await inside.publish("t", b"x")
        address = process.address
        crowd = [socket.create_connection(address) for _ in range(100)]
        await asyncio.sleep(0.3)

        await inside.publish("t", b"y")
        for connection in crowd:
            connection.close()

        async with asyncio.timeout(20):
            while not await can_publish(process):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)
        await inside.close()
        process.stop()


async def test_a_stop_saves_many_messages(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, "--mem-queue-size=1000000") as process:
        client = await connect(process)
        for _ in range(20):
            client.mpub("t", *[bytes(200)] * 5000)
            await client.expect_ok()
        await client.close()
        process.request("POST", "/channel/create?topic=t&channel=ch")

        process.stop()

        process.start()
        process.wait_for_channel("t", "ch", depth=100_000)
