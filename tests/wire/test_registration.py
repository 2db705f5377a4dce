"""nsqd as a client of nsqlookupd: registration and its repair (N-1 to N-8)."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nsqd.broker.topic import Topic
from nsqd.lookup import peer as lookup_peer
from nsqd.lookup.peer import LookupPeer, PeerSettings
from nsqd.protocol.lookup import (
    Command,
    Identify,
    NsqdIdentity,
    Ping,
    Register,
    encode_reply,
)
from tests.support.clock import not_before
from tests.support.fake_lookupd import FakeLookupd, serving_lookupd
from tests.support.running_daemon import RunningDaemon, StartNsqd
from tests.support.waiting import until

IDENTITY = NsqdIdentity("here", 4150, 4151, "1.3.0")
# A retry comes at once, or after a fraction of a second; a PING would come after 15 s, which is
# beyond the patience of `wait_for`.


@pytest.fixture
async def lookupd() -> AsyncIterator[FakeLookupd]:
    async with serving_lookupd() as fake:
        yield fake


@pytest.fixture
async def other() -> AsyncIterator[FakeLookupd]:
    async with serving_lookupd() as fake:
        yield fake


@pytest.fixture
async def nsqd(start_nsqd: StartNsqd, lookupd: FakeLookupd) -> RunningDaemon:
    nsqd = await start_nsqd(lookupd_tcp_addresses=(lookupd.address,))
    await lookupd.wait_for_peer()
    return nsqd


def failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What is logged of attempts that failed."""
    return [
        record.message
        for record in caplog.records
        if record.name == lookup_peer.__name__ and record.levelno >= logging.ERROR
    ]


async def put_addresses(nsqd: RunningDaemon, *addresses: str) -> None:
    body = json.dumps(addresses).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", nsqd.daemon.http_port)
    head = f"PUT /config/nsqlookupd_tcp_addresses HTTP/1.1\r\nContent-Length: {len(body)}\r\n"
    writer.write(f"{head}Host: x\r\nConnection: close\r\n\r\n".encode() + body)
    reply = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    assert reply.startswith(b"HTTP/1.1 200 "), reply
    assert json.loads(reply.partition(b"\r\n\r\n")[2]) == list(addresses)


# --- what is said


async def test_nsqd_introduces_itself(start_nsqd: StartNsqd, lookupd: FakeLookupd) -> None:  # N-1
    nsqd = await start_nsqd(
        lookupd_tcp_addresses=(lookupd.address,),
        broadcast_address="public.example",
        topology_zone="zone",
        topology_region="region",
    )

    peer = await lookupd.wait_for_peer()

    assert peer.identity is not None
    assert peer.identity.hostname
    assert peer.identity == NsqdIdentity(
        broadcast_address="public.example",
        tcp_port=nsqd.daemon.tcp_port,
        http_port=nsqd.daemon.http_port,
        version="1.3.0",
        hostname=peer.identity.hostname,
        topology_zone="zone",
        topology_region="region",
    )


async def test_broadcast_ports_are_announced(
    start_nsqd: StartNsqd, lookupd: FakeLookupd
) -> None:  # N-7
    await start_nsqd(
        lookupd_tcp_addresses=(lookupd.address,),
        broadcast_tcp_port=14150,
        broadcast_http_port=14151,
    )

    peer = await lookupd.wait_for_peer()

    assert peer.identity is not None
    assert (peer.identity.tcp_port, peer.identity.http_port) == (14150, 14151)


async def test_everything_is_registered_at_first(
    nsqd: RunningDaemon, other: FakeLookupd
) -> None:  # N-1
    for target in (
        "/topic/create?topic=bare",
        "/topic/create?topic=t",
        "/channel/create?topic=t&channel=a",
        "/channel/create?topic=t&channel=b%23ephemeral",
    ):
        await nsqd.post(target)

    await put_addresses(nsqd, other.address)

    await other.wait_for(("bare", None), ("t", None), ("t", "a"), ("t", "b#ephemeral"))
    assert other.peers[0].lines() == ["REGISTER bare", "REGISTER t a", "REGISTER t b#ephemeral"]


async def test_what_was_on_disk_is_registered(
    start_nsqd: StartNsqd, lookupd: FakeLookupd, tmp_path: Path
) -> None:
    before = await start_nsqd()
    await before.post("/topic/create?topic=t")
    await before.post("/channel/create?topic=t&channel=a")
    await before.stop()

    await start_nsqd(data_path=tmp_path, lookupd_tcp_addresses=(lookupd.address,))

    await lookupd.wait_for(("t", None), ("t", "a"))


async def test_changes_are_announced(nsqd: RunningDaemon, lookupd: FakeLookupd) -> None:  # N-3
    await nsqd.publish("t", b"1")
    await lookupd.wait_for(("t", None))
    await nsqd.post("/channel/create?topic=t&channel=a")
    await lookupd.wait_for(("t", None), ("t", "a"))
    await nsqd.post("/channel/delete?topic=t&channel=a")
    await lookupd.wait_for(("t", None))
    await nsqd.post("/topic/delete?topic=t")
    await lookupd.wait_for()


async def test_an_ephemeral_channel_is_announced(
    nsqd: RunningDaemon, lookupd: FakeLookupd
) -> None:  # N-3
    client = await nsqd.consumer("t", "e#ephemeral")
    await lookupd.wait_for(("t", None), ("t", "e#ephemeral"))

    await client.close()

    await lookupd.wait_for(("t", None))


async def test_a_topic_deleted_and_made_anew_stays_registered(
    nsqd: RunningDaemon, lookupd: FakeLookupd
) -> None:
    await nsqd.post("/topic/create?topic=t")
    await nsqd.post("/channel/create?topic=t&channel=a")
    await lookupd.wait_for(("t", None), ("t", "a"))
    lookupd.speaks.clear()
    broker = nsqd.daemon.broker
    for _ in range(3):
        broker.delete_topic("t")
        broker.ensure_topic("t").ensure_channel("b")
    lookupd.speaks.set()

    await lookupd.wait_for(("t", None), ("t", "b"))
    assert len(lookupd.peers) == 1
    assert lookupd.peers[0].lines()[-2:] == ["UNREGISTER t", "REGISTER t b"]


async def test_many_registrations_go_out_at_once(nsqd: RunningDaemon, lookupd: FakeLookupd) -> None:
    names = {("t", None)} | {("t", f"c{number}#ephemeral") for number in range(3000)}
    topic = nsqd.daemon.broker.ensure_topic("t")
    for _, channel in names:
        if channel is not None:
            topic.ensure_channel(channel)

    await lookupd.wait_for(*names)

    assert lookupd.peers[0].most_at_once > 100


async def test_no_unregister_at_exit(nsqd: RunningDaemon, lookupd: FakeLookupd) -> None:  # N-8
    await nsqd.consumer("t", "a")
    await nsqd.consumer("t#ephemeral", "e#ephemeral")
    await until(lambda: len(lookupd.known) == 4)

    await nsqd.shut_down()

    [peer] = lookupd.peers
    await until(lambda: not peer.is_open)
    assert not any(line.startswith("UNREGISTER") for line in peer.lines())


async def test_two_nsqlookupds_are_both_told(
    start_nsqd: StartNsqd, lookupd: FakeLookupd, other: FakeLookupd
) -> None:
    nsqd = await start_nsqd(lookupd_tcp_addresses=(lookupd.address, other.address))
    await nsqd.publish("t", b"1")

    await lookupd.wait_for(("t", None))
    await other.wait_for(("t", None))


# --- addresses


async def test_an_address_given_twice_is_one_connection(
    start_nsqd: StartNsqd, lookupd: FakeLookupd
) -> None:
    nsqd = await start_nsqd(lookupd_tcp_addresses=(lookupd.address, lookupd.address))
    await nsqd.publish("t", b"1")

    await lookupd.wait_for(("t", None))
    assert len(lookupd.peers) == 1
    assert len(nsqd.daemon.registration.peers) == 1


async def test_addresses_change_at_run_time(
    nsqd: RunningDaemon, lookupd: FakeLookupd, other: FakeLookupd
) -> None:
    await nsqd.publish("t", b"1")
    await lookupd.wait_for(("t", None))
    await put_addresses(nsqd, lookupd.address, other.address)
    await other.wait_for(("t", None))
    assert len(lookupd.peers) == 1  # the connection is untouched

    await put_addresses(nsqd, other.address)
    await lookupd.wait_for()
    assert lookupd.peers[0].lines() == ["REGISTER t"]  # closed without a word

    await put_addresses(nsqd)
    await other.wait_for()
    assert nsqd.daemon.registration.peers == []
    await nsqd.publish("u", b"1")

    await put_addresses(nsqd, lookupd.address)
    await lookupd.wait_for(("t", None), ("u", None))


@pytest.mark.parametrize(
    "address", ["nowhere", "127.0.0.1:65536", "127.0.0.1:", f"{'x' * 70}:1", ""]
)
async def test_an_address_that_is_none_is_one_line_in_the_log(
    start_nsqd: StartNsqd, lookupd: FakeLookupd, caplog: pytest.LogCaptureFixture, address: str
) -> None:
    nsqd = await start_nsqd(lookupd_tcp_addresses=(address, lookupd.address))
    await nsqd.publish("t", b"1")

    await lookupd.wait_for(("t", None))
    await until(lambda: nsqd.daemon.registration.peers[0].last_error)
    assert len(failures(caplog)) == 1


async def test_without_ports_nothing_is_registered(
    start_nsqd: StartNsqd, lookupd: FakeLookupd, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nsqd = await start_nsqd(
        lookupd_tcp_addresses=(lookupd.address,), tcp_address=str(tmp_path / "nsqd.sock")
    )
    await nsqd.publish("t", b"1")

    consumer = await nsqd.consumer("t", rdy=1)
    assert (await consumer.read_message()).body == b"1"
    assert lookupd.peers == []
    assert sum("no TCP port to announce" in message for message in caplog.messages) == 1


async def test_a_unix_socket_with_broadcast_ports_is_registered(
    start_nsqd: StartNsqd, lookupd: FakeLookupd, tmp_path: Path
) -> None:
    nsqd = await start_nsqd(
        lookupd_tcp_addresses=(lookupd.address,),
        tcp_address=str(tmp_path / "nsqd.sock"),
        broadcast_tcp_port=14150,
    )
    await nsqd.publish("t", b"1")

    await lookupd.wait_for(("t", None))


# --- what goes wrong


@pytest.mark.both_loops("connections that nsqd opens")
async def test_a_broken_connection_is_repaired_at_once(
    nsqd: RunningDaemon, lookupd: FakeLookupd
) -> None:  # N-4
    await nsqd.publish("t", b"1")
    await lookupd.wait_for(("t", None))

    lookupd.peers[0].hang_up()

    await until(lambda: len(lookupd.peers) == 2)
    await lookupd.wait_for(("t", None))


async def test_a_nsqlookupd_that_returns_is_told_everything(
    nsqd: RunningDaemon, lookupd: FakeLookupd
) -> None:  # N-4
    await nsqd.publish("t", b"1")
    await lookupd.wait_for(("t", None))
    await lookupd.stop()
    await nsqd.publish("u", b"1")
    await nsqd.post("/topic/delete?topic=t")
    await until(lambda: not nsqd.daemon.registration.peers[0].is_connected)

    await lookupd.start()

    await lookupd.wait_for(("u", None))


async def test_nsqd_works_before_its_nsqlookupd_is_there(
    start_nsqd: StartNsqd, lookupd: FakeLookupd, caplog: pytest.LogCaptureFixture
) -> None:  # N-5
    await lookupd.stop()
    nsqd = await start_nsqd(lookupd_tcp_addresses=(lookupd.address,))
    consumer = await nsqd.consumer("t", rdy=1)
    await nsqd.publish("t", b"1")
    assert (await consumer.read_message()).body == b"1"
    await asyncio.sleep(0.5)

    await lookupd.start()

    await lookupd.wait_for(("t", None), ("t", "ch"))
    assert len(failures(caplog)) == 1  # of many attempts


async def test_news_hurry_the_next_attempt(
    start_nsqd: StartNsqd, lookupd: FakeLookupd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup_peer, "FIRST_BACKOFF_S", 3600.0)
    monkeypatch.setattr(lookup_peer, "MAX_BACKOFF_S", 3600.0)
    await lookupd.stop()
    nsqd = await start_nsqd(lookupd_tcp_addresses=(lookupd.address,))
    await until(lambda: any(each.last_error for each in nsqd.daemon.registration.peers))
    await lookupd.start()

    await nsqd.publish("t", b"1")

    await lookupd.wait_for(("t", None))


async def test_a_silent_nsqlookupd_delays_nothing(
    nsqd: RunningDaemon, lookupd: FakeLookupd
) -> None:  # N-6
    consumer = await nsqd.consumer("t", rdy=1)
    await lookupd.wait_for(("t", None), ("t", "ch"))
    lookupd.speaks.clear()
    await nsqd.post("/channel/create?topic=t&channel=new")

    for number in range(100):  # a second for each, as a reply may take, would be too long
        await nsqd.publish("t", b"%d" % number)
        message = await consumer.read_message()
        consumer.fin(message)
        assert message.body == b"%d" % number
    await until(lambda: not nsqd.daemon.registration.peers[0].is_connected)
    assert nsqd.daemon.registration.peers[0].last_error == "no reply in 1 s"

    lookupd.speaks.set()
    await lookupd.wait_for(("t", None), ("t", "ch"), ("t", "new"))


async def test_status_of_a_peer(start_nsqd: StartNsqd, lookupd: FakeLookupd) -> None:
    started_s = time.time()
    nsqd = await start_nsqd(lookupd_tcp_addresses=(lookupd.address,))
    await until(lambda: any(peer.is_connected for peer in nsqd.daemon.registration.peers))
    [status] = nsqd.daemon.registration.peers
    assert status.address == lookupd.address
    assert status.is_connected
    assert status.connected_at_s is not None
    assert started_s <= status.connected_at_s <= time.time()
    assert status.last_error == ""

    await lookupd.stop()

    await until(lambda: not nsqd.daemon.registration.peers[0].is_connected)
    [status] = nsqd.daemon.registration.peers
    assert status.connected_at_s is None
    assert status.last_error


@pytest.mark.parametrize(
    ("kind", "reply", "error"),
    [
        (Identify, encode_reply(b"E_BAD_BODY IDENTIFY missing fields"), "missing fields"),
        (Identify, encode_reply(b"[]"), "IDENTIFY was answered with"),
        (Register, encode_reply(b"E_INVALID no"), "E_INVALID no"),
        (Register, b"\xff\xff\xff\xff", "reply of -1 bytes"),
        (Register, b"\x7f\xff\xff\xff", "reply of 2147483647 bytes"),
        (Register, encode_reply(b"OK") * 2, "nobody asked for"),
    ],
)
async def test_a_wrong_answer_ends_the_connection(
    start_nsqd: StartNsqd,
    lookupd: FakeLookupd,
    caplog: pytest.LogCaptureFixture,
    kind: type[Command],
    reply: bytes,
    error: str,
) -> None:
    lookupd.answer = lambda command: reply if isinstance(command, kind) else None
    nsqd = await start_nsqd(lookupd_tcp_addresses=(lookupd.address,))
    await nsqd.publish("t", b"1")

    await until(lambda: any(error in message for message in caplog.messages))
    await until(lambda: len(lookupd.peers) > 2)
    assert not lookupd.peers[0].is_open

    lookupd.answer = lambda _command: None
    await lookupd.wait_for(("t", None))


async def test_one_that_hangs_up_always_is_called_less_and_less(
    start_nsqd: StartNsqd, lookupd: FakeLookupd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup_peer, "MIN_ATTEMPT_INTERVAL_S", 0.001)
    lookupd.answer = lambda _command: lookupd.peers[-1].hang_up()
    await start_nsqd(lookupd_tcp_addresses=(lookupd.address,))

    with not_before(3 * lookup_peer.FIRST_BACKOFF_S / 2):
        await until(lambda: len(lookupd.peers) > 2)


async def test_attempts_are_some_time_apart_even_after_good_connections(
    nsqd: RunningDaemon, lookupd: FakeLookupd
) -> None:
    with not_before(2 * lookup_peer.MIN_ATTEMPT_INTERVAL_S):
        for count in range(1, 4):
            (await lookupd.wait_for_peer()).hang_up()
            await until(lambda count=count: len(lookupd.peers) > count)  # type: ignore[misc]

    assert len(nsqd.daemon.registration.peers) == 1


# --- the peer alone


@pytest.fixture
async def topics() -> dict[str, Topic]:
    return {}


async def test_a_ping_comes_in_time_whatever_else_is_sent(
    lookupd: FakeLookupd, topics: dict[str, Topic]
) -> None:  # N-2
    settings = PeerSettings(identity=IDENTITY, max_reply_bytes=1000, ping_interval_s=0.05)
    peer = LookupPeer(lookupd.address, settings, topics)
    task = asyncio.get_running_loop().create_task(peer.run())
    await until(lambda: peer.status.is_connected)
    [other] = lookupd.peers

    for number in range(100):
        peer.note(f"t{number}", None)
        await asyncio.sleep(0.005)
    await until(lambda: other.count(Ping) >= 8)

    task.cancel()
    await asyncio.wait([task])
    assert len(lookupd.peers) == 1
    assert other.count(Ping) < 20


@pytest.mark.both_loops("connections that nsqd opens")
async def test_one_that_cannot_keep_up_is_told_anew(
    lookupd: FakeLookupd, topics: dict[str, Topic], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup_peer, "MAX_CHANGES", 10)
    settings = PeerSettings(identity=IDENTITY, max_reply_bytes=1000)
    peer = LookupPeer(lookupd.address, settings, topics)
    task = asyncio.get_running_loop().create_task(peer.run())
    await until(lambda: peer.status.is_connected)
    lookupd.speaks.clear()
    for number in range(5):
        peer.note(f"first{number}", None)
    await asyncio.sleep(0.05)
    for number in range(20):
        peer.note(f"then{number}", None)

    lookupd.speaks.set()

    await until(lambda: len(lookupd.peers) == 2)
    task.cancel()
    await asyncio.wait([task])
