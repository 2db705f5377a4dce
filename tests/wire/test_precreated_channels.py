"""New topics learn their channels from nsqlookupd before any message is copied (N-9, Q-42)."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nsqd.broker.topic import TopicState
from nsqd.lookup.channel_query import MAX_QUERIES_PER_PEER
from nsqd.protocol.lookup import Identify
from tests.support import certs
from tests.support.clock import not_before
from tests.support.fake_lookupd import FakeLookupd, serving_lookupd
from tests.support.running_daemon import RunningDaemon, StartNsqd
from tests.support.waiting import until


@pytest.fixture
async def lookupd() -> AsyncIterator[FakeLookupd]:
    async with serving_lookupd() as fake:
        yield fake


@pytest.fixture
async def other() -> AsyncIterator[FakeLookupd]:
    async with serving_lookupd() as fake:
        yield fake


@pytest.fixture
async def nsqd(start_nsqd: StartNsqd, lookupd: FakeLookupd, other: FakeLookupd) -> RunningDaemon:
    nsqd = await start_nsqd(
        lookupd_tcp_addresses=(lookupd.address, other.address),
        http_client_request_timeout_s=0.5,
        http_client_connect_timeout_s=0.2,
    )
    await lookupd.wait_for_peer()
    await other.wait_for_peer()
    return nsqd


async def wait_for_channels(nsqd: RunningDaemon, topic: str, *channels: str) -> None:
    found = nsqd.daemon.broker.ensure_topic(topic)
    await until(lambda: sorted(found.channels) == sorted(channels))


async def test_channels_of_all_nsqlookupds_are_made(
    nsqd: RunningDaemon, lookupd: FakeLookupd, other: FakeLookupd
) -> None:
    lookupd.channels["t"] = ["a", "b", "e#ephemeral"]
    other.channels["t"] = ["b", "c", "bad name", ""]

    await nsqd.publish("t", b"first")

    await wait_for_channels(nsqd, "t", "a", "b", "c")
    for channel in ("a", "b", "c"):
        consumer = await nsqd.consumer("t", channel, rdy=1)
        assert (await consumer.read_message()).body == b"first"


async def test_the_question(nsqd: RunningDaemon, lookupd: FakeLookupd) -> None:
    await nsqd.publish("t#ephemeral", b"1")
    await until(lambda: lookupd.requests)

    [(target, headers)] = lookupd.requests
    assert target == "/channels?topic=t%23ephemeral"
    assert headers["accept"] == "application/vnd.nsq; version=1.0"
    assert headers["host"] == f"127.0.0.1:{lookupd.http_port}"


async def test_stats_right_after_a_publish_show_the_channels(
    nsqd: RunningDaemon, lookupd: FakeLookupd
) -> None:
    lookupd.channels["t"] = ["a"]
    await nsqd.publish("t", b"1")

    assert (await nsqd.channel("t", "a"))["depth"] == 1


async def test_a_topic_is_asked_about_once(nsqd: RunningDaemon, lookupd: FakeLookupd) -> None:
    for _ in range(3):
        await nsqd.publish("t", b"1")
    await nsqd.consumer("t", "a")
    await until(lambda: lookupd.requests)

    assert len(lookupd.requests) == 1


async def test_messages_are_held_until_the_channels_are_known(
    nsqd: RunningDaemon, lookupd: FakeLookupd
) -> None:
    lookupd.channels["t"] = ["known"]
    lookupd.http_speaks.clear()
    consumer = await nsqd.consumer("t", "mine", rdy=10)

    await nsqd.publish("t", b"1", b"2")

    await consumer.expect_quiet()
    assert nsqd.daemon.broker.topics["t"].depth == 2

    lookupd.http_speaks.set()
    assert [message.body for message in await consumer.read_messages(2)] == [b"1", b"2"]
    known = await nsqd.consumer("t", "known", rdy=10)
    assert [message.body for message in await known.read_messages(2)] == [b"1", b"2"]


async def test_a_silent_nsqlookupd_holds_a_topic_for_a_limited_time(
    nsqd: RunningDaemon, lookupd: FakeLookupd, other: FakeLookupd
) -> None:
    lookupd.http_speaks.clear()
    other.channels["t"] = ["a"]

    with not_before(0.4):
        await nsqd.publish("t", b"1")
        consumer = await nsqd.consumer("t", "a", rdy=1)
        assert (await consumer.read_message()).body == b"1"


async def test_a_silent_nsqlookupd_holds_up_neither_publishers_nor_stats(
    start_nsqd: StartNsqd, lookupd: FakeLookupd
) -> None:
    nsqd = await start_nsqd(
        lookupd_tcp_addresses=(lookupd.address,), http_client_request_timeout_s=3600.0
    )
    await lookupd.wait_for_peer()
    lookupd.http_speaks.clear()

    await nsqd.publish("t", b"1")

    assert (await nsqd.topic("t"))["depth"] == 1
    assert nsqd.daemon.broker.topics["t"].state is TopicState.STARTING
    lookupd.http_speaks.set()


@pytest.mark.parametrize(
    "answer",
    [
        ("500 Internal Server Error", b"{}"),
        ("200 OK", b"not JSON"),
        ("200 OK", b"[]"),
        ("200 OK", b'{"channels":"x"}'),
        ("200 OK", b'{"channels":null}'),
        ("200 OK", b'{"channels":[1,null,"b c"]}'),
        ("200 OK", b"[" * 100_000),
        ("200 OK", b" " * 2_000_000),
        ("200 OK\r\nContent-Length: 1000", b'{"channels":["x"]}'),
        ("200 OK\r\nTransfer-Encoding: chunked", b"nonsense\r\n"),
        ("403 Forbidden", b'{"message":"no"}'),
        ("403 Forbidden", b'{"https_port":99999}'),
        ("403 Forbidden", b'{"https_port":1}'),
        ("\0\xff", b""),
    ],
)
async def test_what_the_others_say_is_used(
    nsqd: RunningDaemon, lookupd: FakeLookupd, other: FakeLookupd, answer: tuple[str, bytes]
) -> None:
    lookupd.http_answer = answer
    other.channels["t"] = ["a"]

    await nsqd.publish("t", b"1")

    await wait_for_channels(nsqd, "t", "a")
    consumer = await nsqd.consumer("t", "a", rdy=1)
    assert (await consumer.read_message()).body == b"1"


async def test_a_chunked_answer_is_read(nsqd: RunningDaemon, lookupd: FakeLookupd) -> None:
    lookupd.http_answer = (
        "200 OK\r\nTransfer-Encoding: chunked",
        b'e\r\n{"channels":["\r\n4\r\na"]}\r\n0\r\n\r\n',
    )

    await nsqd.publish("t", b"1")

    await wait_for_channels(nsqd, "t", "a")


async def test_one_that_is_gone_is_not_asked(
    nsqd: RunningDaemon, lookupd: FakeLookupd, other: FakeLookupd
) -> None:
    other.channels["t"] = ["a"]
    await lookupd.stop()
    await until(lambda: not nsqd.daemon.registration.peers[0].is_connected)

    await nsqd.publish("t", b"1")

    await wait_for_channels(nsqd, "t", "a")
    assert lookupd.requests == []


async def test_a_topic_starts_at_once_if_nobody_can_be_asked(
    nsqd: RunningDaemon,
    lookupd: FakeLookupd,
    other: FakeLookupd,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await lookupd.stop()
    await other.stop()
    await until(lambda: not any(peer.is_connected for peer in nsqd.daemon.registration.peers))
    consumer = await nsqd.consumer("t", rdy=1)

    await nsqd.publish("t", b"1")

    assert (await consumer.read_message()).body == b"1"
    assert any(message.startswith("no available nsqlookupd") for message in caplog.messages)


@pytest.mark.parametrize("address", ["", "no such host", "127.0.0.1\r\nX: y", "x" * 300])
async def test_one_with_a_bad_address_of_its_own_does_no_harm(
    start_nsqd: StartNsqd, lookupd: FakeLookupd, address: str
) -> None:
    lookupd.broadcast_address = address
    nsqd = await start_nsqd(lookupd_tcp_addresses=(lookupd.address,))
    await lookupd.wait_for_peer()
    consumer = await nsqd.consumer("t", rdy=1)

    await nsqd.publish("t", b"1")

    assert (await consumer.read_message()).body == b"1"
    assert lookupd.requests == []


async def test_a_topic_made_right_after_the_start_waits_for_the_first_contact(
    start_nsqd: StartNsqd, lookupd: FakeLookupd
) -> None:
    lookupd.channels["t"] = ["a"]
    lookupd.speaks.clear()
    nsqd = await start_nsqd(lookupd_tcp_addresses=(lookupd.address,))
    await nsqd.publish("t", b"1")
    await until(lambda: lookupd.peers)
    await asyncio.sleep(0.1)
    assert not nsqd.daemon.broker.topics["t"].channels

    lookupd.speaks.set()

    await wait_for_channels(nsqd, "t", "a")


async def test_a_nsqlookupd_that_never_introduces_itself_is_given_up_soon(
    start_nsqd: StartNsqd, lookupd: FakeLookupd
) -> None:
    lookupd.answer = lambda command: b"\0" if isinstance(command, Identify) else None
    nsqd = await start_nsqd(lookupd_tcp_addresses=(lookupd.address,))
    consumer = await nsqd.consumer("t", rdy=1)

    await nsqd.publish("t", b"1")

    assert (await consumer.read_message(3.0)).body == b"1"


async def test_a_topic_may_be_deleted_while_it_is_asked_about(
    nsqd: RunningDaemon, lookupd: FakeLookupd
) -> None:
    lookupd.channels["t"] = ["a"]
    lookupd.http_speaks.clear()
    await nsqd.publish("t", b"1")
    await until(lambda: lookupd.requests)
    await nsqd.post("/topic/delete?topic=t")
    await nsqd.publish("t", b"2")

    lookupd.http_speaks.set()

    await wait_for_channels(nsqd, "t", "a")
    consumer = await nsqd.consumer("t", "a", rdy=2)
    assert (await consumer.read_message()).body == b"2"
    await consumer.expect_quiet()


async def test_a_channel_deleted_meanwhile_does_not_come_back(
    nsqd: RunningDaemon, lookupd: FakeLookupd
) -> None:
    lookupd.channels["t"] = ["a", "mine"]
    lookupd.http_speaks.clear()
    await nsqd.post("/topic/create?topic=t")
    await nsqd.post("/channel/create?topic=t&channel=mine")
    await until(lambda: lookupd.requests)
    await nsqd.post("/channel/delete?topic=t&channel=mine")

    lookupd.http_speaks.set()

    await wait_for_channels(nsqd, "t", "a")
    assert nsqd.daemon.broker.topics["t"].state is TopicState.RUNNING


async def test_nothing_is_lost_if_nsqd_stops_while_it_asks(
    nsqd: RunningDaemon, lookupd: FakeLookupd, start_nsqd: StartNsqd, tmp_path: Path
) -> None:
    lookupd.http_speaks.clear()
    await nsqd.publish("t", b"1")
    await until(lambda: lookupd.requests)

    await nsqd.stop()

    again = await start_nsqd(data_path=tmp_path)
    consumer = await again.consumer("t", rdy=1)
    assert (await consumer.read_message()).body == b"1"


async def test_many_new_topics_at_once_all_get_their_channels(
    start_nsqd: StartNsqd, lookupd: FakeLookupd
) -> None:
    # With the timeouts of every day: short ones run out on a busy machine.
    nsqd = await start_nsqd(lookupd_tcp_addresses=(lookupd.address,))
    await lookupd.wait_for_peer()
    names = [f"t{number}#ephemeral" for number in range(200)]
    lookupd.channels |= {name: ["a"] for name in names}

    for name in names:
        nsqd.daemon.broker.ensure_topic(name)

    topics = nsqd.daemon.broker.topics
    await until(lambda: all(list(topics[name].channels) == ["a"] for name in names))


async def test_those_in_line_for_a_silent_nsqlookupd_do_not_wait_longer(
    start_nsqd: StartNsqd, lookupd: FakeLookupd, other: FakeLookupd
) -> None:
    """Turn by turn it would be six times the timeout: more than the patience of `wait_until`."""
    nsqd = await start_nsqd(
        lookupd_tcp_addresses=(lookupd.address, other.address), http_client_request_timeout_s=2.0
    )
    await lookupd.wait_for_peer()
    await other.wait_for_peer()
    lookupd.http_speaks.clear()
    names = [f"t{number}#ephemeral" for number in range(6 * MAX_QUERIES_PER_PEER)]
    other.channels |= {name: ["a"] for name in names}

    topics = [nsqd.daemon.broker.ensure_topic(name) for name in names]

    await until(lambda: all(topic.state is TopicState.RUNNING for topic in topics))
    assert all(list(topic.channels) == ["a"] for topic in topics)


@pytest.mark.both_loops("connections that nsqd opens")
async def test_one_that_wants_https_is_asked_over_https(
    start_nsqd: StartNsqd, lookupd: FakeLookupd, tmp_path: Path
) -> None:
    authority = certs.make_authority(tmp_path)
    server = certs.make_server(tmp_path, authority)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.cert_file, server.key_file)
    port = await lookupd.start_https(context)
    lookupd.http_answer = ("403 Forbidden", b'{"message":"TLS","https_port":%d}' % port)
    lookupd.channels["t"] = ["a"]
    nsqd = await start_nsqd(
        lookupd_tcp_addresses=(lookupd.address,), tls_root_ca_file=authority.cert_file
    )
    await lookupd.wait_for_peer()

    await nsqd.publish("t", b"1")

    await wait_for_channels(nsqd, "t", "a")
    assert [target for target, _ in lookupd.requests] == ["/channels?topic=t"] * 2
