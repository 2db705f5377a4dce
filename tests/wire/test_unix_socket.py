"""nsqd on a unix socket (W-134, W-135, O-17)."""

import asyncio
import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqd.runtime.process import StartError
from tests.support.auth_server import AuthServer, allow
from tests.support.running_daemon import StartNsqd


@pytest.fixture
def path() -> Iterator[str]:
    """Where the socket shall be: a short path, as it must be."""
    with tempfile.TemporaryDirectory(prefix="nsqd-") as directory:
        yield f"{directory}/sock"


def write_text(path: str, text: str) -> None:
    with open(path, "x") as file:
        file.write(text)


def read_text(path: str) -> str:
    with open(path) as file:
        return file.read()


def is_socket(path: str) -> bool:
    return os.path.exists(path) and stat.S_ISSOCK(os.stat(path).st_mode)


async def test_clients_of_a_unix_socket(start_nsqd: StartNsqd, path: str) -> None:  # W-134
    nsqd = await start_nsqd(tcp_address=path)
    consumer = await nsqd.consumer("t", rdy=1)

    await nsqd.publish("t", b"x")

    assert (await consumer.read_message()).body == b"x"
    stats = await nsqd.client_stats("t")
    assert stats["remote_address"] == "@"
    assert (stats["client_id"], stats["hostname"]) == ("", "")


@pytest.mark.both_loops("unix sockets")
async def test_everything_works_as_over_tcp(start_nsqd: StartNsqd, path: str) -> None:  # W-134
    nsqd = await start_nsqd(tcp_address=path)
    client = await nsqd.connect(magic=b"  V1")
    await client.expect_error(b"E_BAD_PROTOCOL")
    client = await nsqd.connect()
    client.send(b"PUB t\n\0\0\0\x05four")
    client.end_output()
    await client.expect_error(b"E_BAD_MESSAGE PUB failed to read message body")

    client = await nsqd.connect()
    bodies = [bytes([number]) * 500_000 for number in range(10)]
    await client.publish("t", *bodies)
    await client.subscribe("t", rdy=10)

    assert [message.body for message in await client.read_messages(10)] == bodies


@pytest.mark.both_loops("unix sockets")
async def test_socket_file_goes_with_the_daemon(start_nsqd: StartNsqd, path: str) -> None:  # W-135
    nsqd = await start_nsqd(tcp_address=path)
    consumer = await nsqd.consumer("t")
    assert is_socket(path)

    await nsqd.shut_down()

    await consumer.expect_closed()
    assert not is_socket(path)


@pytest.mark.both_loops("unix sockets")
async def test_http_on_a_unix_socket(start_nsqd: StartNsqd, path: str) -> None:  # H-12
    nsqd = await start_nsqd(http_address=path)
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(b"GET /ping HTTP/1.0\r\n\r\n")
    assert (await asyncio.wait_for(reader.read(), 5)).endswith(b"\r\n\r\nOK")
    writer.close()

    await nsqd.shut_down()

    assert not is_socket(path)


@pytest.mark.both_loops("unix sockets")
async def test_socket_of_a_successor_is_left_alone(start_nsqd: StartNsqd, path: str) -> None:
    nsqd = await start_nsqd(tcp_address=path)
    os.unlink(path)
    with socket.socket(socket.AF_UNIX) as successor:
        successor.bind(path)

        await nsqd.shut_down()

        assert is_socket(path)


async def test_it_can_be_started_again(start_nsqd: StartNsqd, path: str) -> None:  # W-135
    nsqd = await start_nsqd(tcp_address=path)
    await nsqd.publish("t", b"x")
    await nsqd.stop()

    nsqd = await start_nsqd(tcp_address=path)

    consumer = await nsqd.consumer("t", rdy=1)
    assert (await consumer.read_message()).body == b"x"


@pytest.mark.both_loops("unix sockets")
async def test_stale_socket_file_does_not_hinder_the_start(
    start_nsqd: StartNsqd, path: str
) -> None:
    """What a killed nsqd left behind; the original fails here until somebody removes it."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)

    nsqd = await start_nsqd(tcp_address=path)

    await nsqd.publish("t", b"x")


async def test_socket_of_a_living_process_is_left_alone(start_nsqd: StartNsqd, path: str) -> None:
    with socket.socket(socket.AF_UNIX) as alive:
        alive.bind(path)
        alive.listen()

        with pytest.raises(StartError, match=r"listen \(.*\) failed - address already in use"):
            await start_nsqd(tcp_address=path)

        assert is_socket(path)


async def test_other_file_in_the_way_is_left_alone(start_nsqd: StartNsqd, path: str) -> None:
    write_text(path, "precious")

    with pytest.raises(StartError, match=r"listen \(.*\) failed - address already in use"):
        await start_nsqd(tcp_address=path)

    assert read_text(path) == "precious"


@pytest.mark.both_loops("unix sockets")
async def test_auth_server_is_told_no_address(start_nsqd: StartNsqd, path: str) -> None:
    with AuthServer() as auth_server:
        auth_server.grant("secret", allow())
        nsqd = await start_nsqd(tcp_address=path, auth_http_addresses=(auth_server.address,))
        client = await nsqd.connect()

        client.command("AUTH", body=b"secret")

        assert b"permission_count" in await client.read_response()
        assert auth_server.asked[0].parameters["remote_ip"] == ""


async def test_a_start_that_fails_leaves_no_socket(
    start_nsqd: StartNsqd, path: str, tmp_path: Path
) -> None:
    (tmp_path / "nsqd.dat").write_text("broken")

    with pytest.raises(StartError, match="failed to load metadata"):
        await start_nsqd(tcp_address=path, http_address=f"{path}.http", data_path=tmp_path)

    assert not is_socket(path)
    assert not is_socket(f"{path}.http")
