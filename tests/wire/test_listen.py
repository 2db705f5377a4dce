"""Listening sockets as both daemons make them (O-11, W-135, H-12)."""

import asyncio
import contextlib
import os
import socket
from pathlib import Path

import pytest

from nsqd.runtime.listen import (
    ListenError,
    format_address,
    listen,
    port_of,
    remove_unix_socket,
    serve,
)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "sock")


def shown(listener: socket.socket) -> str:
    return format_address(listener.getsockname())


@pytest.mark.parametrize(
    ("address", "host"),
    [("127.0.0.1:0", "127.0.0.1"), ("localhost:0", "127.0.0.1"), ("[::1]:0", "[::1]")],
)
def test_host_and_port(address: str, host: str) -> None:
    with listen(address) as listener:
        assert shown(listener) == f"{host}:{port_of(listener)}"
        with socket.create_connection(listener.getsockname()[:2], 5):
            listener.accept()[0].close()


def test_a_name_of_both_families_is_resolved_to_one_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)

    with listen("both.example:0") as listener:
        assert shown(listener) == f"127.0.0.1:{port_of(listener)}"


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="there is no IPv6 on this machine")
def test_no_host_means_all_addresses_of_both_families() -> None:
    with listen(":0") as listener:
        port = port_of(listener)

        assert shown(listener) == f"[::]:{port}"
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, port), 5).close()


class Goodbye(asyncio.Protocol):
    """Closes each connection, and counts them."""

    count = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.count += 1
        transport.close()


@pytest.mark.both_loops("accepting")
async def test_many_connections_queue_up_before_and_while_serving() -> None:
    listener = listen("127.0.0.1:0")
    protocol = Goodbye()
    with contextlib.ExitStack() as clients:

        def connect_many() -> None:
            # More than asyncio's queue of 100 holds, while the loop has no time to accept any.
            for _ in range(150):
                clients.enter_context(socket.create_connection(listener.getsockname(), 0.5))

        connect_many()
        server = await serve(listener, lambda: protocol)
        try:
            async with asyncio.timeout(5):
                while protocol.count < 150:  # noqa: ASYNC110 - there is no event for this
                    await asyncio.sleep(0.005)
            connect_many()
        finally:
            server.close()


def test_a_port_in_use_is_an_error() -> None:  # O-11
    with listen("127.0.0.1:0") as taken:
        address = shown(taken)
        with pytest.raises(ListenError) as failure:
            listen(address)

    assert str(failure.value) == f"listen ({address}) failed - address already in use"


@pytest.mark.parametrize(
    ("address", "cause"),
    [
        ("127.0.0.1:65536", "invalid port 65536"),
        ("nowhere.invalid:0", "name or service not known"),
        ("/nonexistent/sock", "no such file or directory"),
        ("x" * 200, "AF_UNIX path too long"),
    ],
)
def test_what_cannot_be_listened_on_is_named(address: str, cause: str) -> None:
    with pytest.raises(ListenError) as failure:
        listen(address)

    assert str(failure.value).lower() == f"listen ({address}) failed - {cause}".lower()


def test_a_unix_socket_and_its_file(path: str) -> None:  # W-135
    with listen(path) as listener:
        assert (shown(listener), port_of(listener)) == (path, -1)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)

    # Closed or not, it knows which file was its own.
    assert os.path.exists(path)
    remove_unix_socket(listener)
    assert not os.path.exists(path)
    remove_unix_socket(listener)


def test_a_stale_unix_socket_is_taken_over(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)

    with listen(path), socket.socket(socket.AF_UNIX) as client:
        client.connect(path)


def test_a_unix_socket_in_use_is_an_error(path: str) -> None:
    with listen(path), pytest.raises(ListenError, match="failed - address already in use"):
        listen(path)


def test_a_file_in_the_place_of_a_unix_socket_is_kept(path: str) -> None:
    Path(path).write_text("precious")

    with pytest.raises(ListenError, match="failed - address already in use"):
        listen(path)

    assert Path(path).read_text() == "precious"


def test_the_unix_socket_of_a_successor_is_kept(path: str) -> None:
    with listen(path) as listener:
        os.unlink(path)
        with listen(path), socket.socket(socket.AF_UNIX) as client:
            remove_unix_socket(listener)

            client.connect(path)


def test_tcp_has_no_file_to_remove() -> None:
    with listen("127.0.0.1:0") as listener:
        remove_unix_socket(listener)


def test_what_a_tcp_listener_accepts_is_known_to_be_tcp() -> None:
    """Asyncio sets TCP_NODELAY on nothing else."""
    with listen("127.0.0.1:0") as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.proto == socket.IPPROTO_TCP
