"""Refusals and failures are counted by cause, and a node without descriptors answers HTTP."""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqd.config.limits import Limits
from tests.support.certs import make_authority, make_server
from tests.support.daemon_process import OURS, DaemonProcess
from tests.support.http_client import HttpClient
from tests.support.running_daemon import RunningDaemon, StartNsqd
from tests.support.waiting import wait_until

FILE_LIMIT = 96


async def scrape(nsqd: RunningDaemon) -> dict[str, float]:
    """Return the counters of the doors that are not 0, by their names and labels."""
    async with await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port)) as http:
        reply = await http.get("/metrics")
    lines = [line.rpartition(" ") for line in reply.text.splitlines() if line[0] != "#"]
    names = ("nsqd_refusals", "nsqd_connections_", "nsqd_tls_", "nsqd_accept_")
    return {
        key: float(value) for key, _, value in lines if key.startswith(names) and value != "0.0"
    }


async def post(nsqd: RunningDaemon, target: str, body: bytes) -> int:
    async with await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port)) as http:
        return (await http.request("POST", target, body)).status


async def test_publishes_refused_for_a_full_queue_and_a_size_count_by_door(
    start_nsqd: StartNsqd,
) -> None:
    nsqd = await start_nsqd(limits=Limits(max_depth=1), max_msg_size=100, max_body_size=1000)
    await nsqd.publish("t", b"fits")

    client = await nsqd.connect()
    client.pub("t", b"no room")
    await client.expect_error(
        b"E_PUB_FAILED PUB failed topic t would hold 2 messages, more than --max-depth=1"
    )
    for _ in range(2):
        client = await nsqd.connect()
        client.pub("t", bytes(101))
        await client.expect_error(b"E_BAD_MESSAGE PUB message too big 101 > 100")
    assert await post(nsqd, "/pub?topic=t", b"no room") == 503
    assert await post(nsqd, "/pub?topic=t", bytes(101)) == 413

    assert await scrape(nsqd) == {
        'nsqd_refusals_total{cause="queue_full",door="tcp"}': 1,
        'nsqd_refusals_total{cause="size",door="tcp"}': 2,
        'nsqd_refusals_total{cause="queue_full",door="http"}': 1,
        'nsqd_refusals_total{cause="size",door="http"}': 1,
    }


async def test_a_drained_node_counts_the_publishes_that_it_refuses(nsqd: RunningDaemon) -> None:
    consumer = await nsqd.consumer("t", rdy=1)
    await nsqd.publish("t", b"keeps the node up")
    await consumer.read_messages(1)
    await nsqd.post("/drain")

    client = await nsqd.connect()
    client.pub("t", b"late")
    await client.expect_error(b"E_PUB_FAILED PUB failed draining")
    assert await post(nsqd, "/pub?topic=t", b"late") == 503

    assert await scrape(nsqd) == {
        'nsqd_refusals_total{cause="draining",door="tcp"}': 1,
        'nsqd_refusals_total{cause="draining",door="http"}': 1,
    }


async def test_connections_count_by_the_cause_of_their_end(start_nsqd: StartNsqd) -> None:
    nsqd = await start_nsqd(max_connections=2, handshake_timeout_s=0.05)
    idle = await nsqd.connect(magic=b"")
    await idle.expect_closed()
    wrong = await nsqd.connect(magic=b"  V9")
    await wrong.expect_error(b"E_BAD_PROTOCOL")
    lost = await nsqd.connect()
    lost.send(b"WHAT\n")
    await lost.expect_error(b"E_INVALID invalid command WHAT")
    await wrong.close()
    await lost.close()
    first, second = await nsqd.connect(), await nsqd.connect()
    await first.settle()
    await second.settle()
    third = await nsqd.connect()
    await third.wait_closed()

    assert await scrape(nsqd) == {
        'nsqd_connections_failed_total{cause="magic",door="tcp"}': 2,
        'nsqd_connections_failed_total{cause="protocol",door="tcp"}': 1,
        'nsqd_connections_refused_total{cause="too_many",door="tcp"}': 1,
    }


async def test_failed_tls_handshakes_count_at_both_doors(
    start_nsqd: StartNsqd, tmp_path: Path
) -> None:
    authority = make_authority(tmp_path)
    server = make_server(tmp_path, authority)
    nsqd = await start_nsqd(
        tls_cert=server.cert_file, tls_key=server.key_file, https_address="127.0.0.1:0"
    )
    client = await nsqd.connect()
    client.command("IDENTIFY", body=b'{"feature_negotiation": true, "tls_v1": true}')
    await client.read_response()
    client.send(b"this is no TLS record")
    await client.wait_closed()
    reader, writer = await asyncio.open_connection("127.0.0.1", nsqd.daemon.https_port)
    writer.write(b"GET /ping HTTP/1.1\r\nHost: plain\r\n\r\n")
    await reader.read()
    writer.close()

    found = await scrape(nsqd)
    for _ in range(100):
        if found.get("nsqd_tls_handshakes_failed_total") == 2:
            break
        await asyncio.sleep(0.01)
        found = await scrape(nsqd)
    assert found == {
        'nsqd_connections_failed_total{cause="tls",door="tcp"}': 1,
        "nsqd_tls_handshakes_failed_total": 2,
    }


@pytest.fixture
def small_process(tmp_path: Path) -> Iterator[DaemonProcess]:
    """An nsqd that may open few files."""
    command = ("sh", "-c", f'ulimit -n {FILE_LIMIT}; exec "$@"', "sh", *OURS)
    with DaemonProcess(tmp_path, command=command) as daemon:
        yield daemon


def count_refused(daemon: DaemonProcess) -> float:
    """Return how many TCP connections were refused for lack of descriptors."""
    name = 'nsqd_connections_refused_total{cause="no_descriptors",door="tcp"} '
    lines = daemon.request("GET", "/metrics").decode().splitlines()
    [count] = [line.removeprefix(name) for line in lines if line.startswith(name)]
    return float(count)


def test_a_node_without_descriptors_says_so_and_answers_http(small_process: DaemonProcess) -> None:
    daemon = small_process
    clients = [socket.create_connection(daemon.address) for _ in range(FILE_LIMIT)]

    wait_until(lambda: count_refused(daemon) > FILE_LIMIT // 4)

    assert daemon.request("GET", "/ping") == b"OK"
    lines = [line for line in daemon.log.splitlines() if "out of file descriptors" in line]
    assert len(lines) == 1
    assert f"limit={FILE_LIMIT}" in lines[0]
    for client in clients:
        client.close()
    wait_until(lambda: b"\nnsqd_connections 0.0\n" in daemon.request("GET", "/metrics"))
    daemon.publish("t", b"served again")
