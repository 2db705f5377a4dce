import socket

import pytest

from nsqd.runtime.listen import KEEP_ALIVE_S
from tests.support.running_daemon import StartNsqd


@pytest.mark.both_loops("options of accepted sockets")
async def test_replies_leave_at_once_and_dead_peers_are_noticed(start_nsqd: StartNsqd) -> None:
    nsqd = await start_nsqd()
    client = await nsqd.connect()
    client.command("NOP")
    await nsqd.publish("t", b"x")  # so the connection has been made

    [connection] = [
        each
        for each in nsqd.daemon._connections  # noqa: SLF001 - its socket is nowhere else
        if each.remote_address == client.local_address
    ]

    peer = connection._transport.get_extra_info("socket")  # noqa: SLF001 - likewise
    assert peer.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0
    assert peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == KEEP_ALIVE_S
    assert peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


async def test_a_system_without_the_idle_option_serves_clients(
    start_nsqd: StartNsqd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(socket, "TCP_KEEPIDLE")
    nsqd = await start_nsqd()

    await nsqd.publish("t", b"x")

    assert (await nsqd.topic("t"))["message_count"] == 1
