"""EIO and ENOSPC in every file operation in turn: nsqd lives, refuses, tells, and recovers."""

from pathlib import Path

import pytest

from tests.crash.conftest import Play
from tests.support.faults.client import HttpLink, TcpLink
from tests.support.faults.drain import drain
from tests.support.faults.fork_server import ForkServer
from tests.support.faults.ledger import FIRST_CHANNEL
from tests.support.faults.nsqd_process import NsqdProcess
from tests.support.faults.rounds import FAILURES
from tests.support.v2_client import ERROR, RESPONSE, sized


@pytest.mark.parametrize("failure", FAILURES)
async def test_disk_that_fails_for_some_time_costs_nothing_acknowledged(
    play_round: Play, failure: str
) -> None:
    error = "ENOSPC" if failure.startswith(("write", "create")) else "EIO"

    tally = await play_round("disk-1", f"{error}:{failure}:1+")

    assert tally.errors


async def ping(nsqd: NsqdProcess) -> tuple[int, bytes]:
    with await HttpLink.connect(nsqd.http_port) as link:
        return await link.request("GET", "/ping")


async def publish(nsqd: NsqdProcess, body: bytes) -> tuple[int, bytes]:
    with await TcpLink.open(nsqd.tcp_port) as link:
        link.send(b"PUB t\n" + sized(body))
        return await link.read_frame()


async def take_all(nsqd: NsqdProcess) -> set[bytes]:
    drained = await drain(nsqd, ["t"])
    assert drained.is_complete
    return set(drained.deliveries["t", FIRST_CHANNEL])


@pytest.mark.parametrize("operation", ["write", "fsync"])
async def test_failed_write_or_fsync_fails_its_publish_and_the_next_one_works(
    fork_server: ForkServer, tmp_path: Path, operation: str
) -> None:
    nsqd = NsqdProcess(fork_server, tmp_path, ("--mem-queue-size=0", "--sync-every=1"))
    await nsqd.start(plan=(f"EIO:{operation}:segment:2",))

    assert await publish(nsqd, b"first") == (RESPONSE, b"OK")
    kind, data = await publish(nsqd, b"second")
    assert (kind, data[:24]) == (ERROR, b"E_PUB_FAILED PUB failed ")
    assert (await ping(nsqd))[0] == 500
    assert await publish(nsqd, b"third") == (RESPONSE, b"OK")
    assert await ping(nsqd) == (200, b"OK")

    await nsqd.kill()
    await nsqd.start()
    found = await take_all(nsqd)
    if operation == "fsync":
        found.discard(b"second")  # refused after it had been written: it may come all the same
    assert found == {b"first", b"third"}
    await nsqd.kill()


async def test_short_write_is_completed(fork_server: ForkServer, tmp_path: Path) -> None:
    nsqd = NsqdProcess(fork_server, tmp_path, ("--mem-queue-size=0",))
    await nsqd.start(plan=("short:write:segment:1", "short:write:meta:1"))

    assert await publish(nsqd, b"whole" * 100) == (RESPONSE, b"OK")
    await nsqd.kill()

    await nsqd.start()
    assert await take_all(nsqd) == {b"whole" * 100}
    await nsqd.kill()


async def test_disk_that_is_full_at_the_start_is_told_and_nothing_is_lost(
    fork_server: ForkServer, tmp_path: Path
) -> None:
    nsqd = NsqdProcess(fork_server, tmp_path, ("--mem-queue-size=0",))
    await nsqd.start()
    assert await publish(nsqd, b"before") == (RESPONSE, b"OK")
    await nsqd.stop()

    nsqd.spawn(plan=("ENOSPC:*:*:1+",))
    assert await nsqd.wait() == 1
    assert "No space left on device" in nsqd.log or "no space left on device" in nsqd.log

    await nsqd.start()
    assert await take_all(nsqd) == {b"before"}
    await nsqd.kill()
