"""Appends that a thread makes: large ones, and those to a disk that stalls; kills in between."""

from pathlib import Path

import pytest

from tests.support.faults.client import TcpLink
from tests.support.faults.drain import drain
from tests.support.faults.fork_server import ForkServer
from tests.support.faults.ledger import FIRST_CHANNEL
from tests.support.faults.nsqd_process import NsqdProcess
from tests.support.v2_client import RESPONSE, sized

OK = (RESPONSE, b"OK")
FLAGS = ("--mem-queue-size=0", "--max-bytes-per-file=100000")
LARGE = [b"%06d" % number for number in range(20_000)]


def mpub(topic: bytes, bodies: list[bytes]) -> bytes:
    content = len(bodies).to_bytes(4, "big") + b"".join(map(sized, bodies))
    return b"MPUB " + topic + b"\n" + sized(content)


async def take_all(nsqd: NsqdProcess) -> list[bytes]:
    drained = await drain(nsqd, ["t"])
    assert drained.is_complete
    return list(drained.deliveries["t", FIRST_CHANNEL])


@pytest.mark.parametrize("action", ["before", "tear", "after"])
@pytest.mark.parametrize("number", [2, 4])
async def test_a_kill_in_a_large_append_leaves_a_beginning_of_it(
    fork_server: ForkServer, tmp_path: Path, action: str, number: int
) -> None:
    nsqd = NsqdProcess(fork_server, tmp_path, FLAGS)
    await nsqd.start(plan=(f"{action}:write:segment:{number}",))
    with await TcpLink.open(nsqd.tcp_port) as link:
        link.send(b"PUB t\n" + sized(b"acknowledged"))
        assert await link.read_frame() == OK
        link.send(mpub(b"t", LARGE))
        await nsqd.wait()

    await nsqd.start()
    found = sorted(await take_all(nsqd))

    assert found[-1] == b"acknowledged"
    assert found[:-1] == LARGE[: len(found) - 1]
    assert len(found) <= len(LARGE)  # the kill came before all of it was written
    await nsqd.kill()


async def test_a_kill_while_the_disk_stalls_loses_nothing_acknowledged(
    fork_server: ForkServer, tmp_path: Path
) -> None:
    nsqd = NsqdProcess(fork_server, tmp_path, FLAGS)
    await nsqd.start(plan=("stall:write:segment:3+",))
    acknowledged = []
    with await TcpLink.open(nsqd.tcp_port) as link:
        for number in range(3):
            link.send(b"PUB t\n" + sized(b"%d" % number))
            assert await link.read_frame() == OK
            acknowledged.append(b"%d" % number)
        for number in range(3, 100):
            link.send(b"PUB t\n" + sized(b"%d" % number))
        assert await link.read_frame() == OK
        acknowledged.append(b"3")
        await nsqd.kill()

    await nsqd.start()
    found = await take_all(nsqd)

    assert found[:4] == acknowledged
    assert found == [b"%d" % number for number in range(len(found))]
    await nsqd.kill()


async def test_other_topics_go_on_while_a_write_stalls(
    fork_server: ForkServer, tmp_path: Path
) -> None:
    nsqd = NsqdProcess(fork_server, tmp_path, FLAGS)
    await nsqd.start(plan=("stall:write:segment:1+",))
    order: list[str] = []
    with await TcpLink.open(nsqd.tcp_port) as slow, await TcpLink.open(nsqd.tcp_port) as other:
        slow.send(b"PUB t\n" + sized(b"slow"))
        for _ in range(10):
            other.send(b"PUB other#ephemeral\n" + sized(b"quick"))
            assert await other.read_frame() == OK
            order.append("other")
        assert await slow.read_frame() == OK
        order.append("slow")

    assert order == [*["other"] * 10, "slow"]
    assert await take_all(nsqd) == [b"slow"]
    await nsqd.kill()
