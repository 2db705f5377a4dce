"""Start and stop: what is kept, what is refused (Q-8, Q-26 to Q-35, O-11 to O-14)."""

import asyncio
import json
import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from nsqd.config.kinds import TLSRequired
from nsqd.runtime.process import StartError
from tests.support.running_daemon import RunningDaemon, StartNsqd
from tests.support.v2_client import ConnectionEndedError, V2Client


def read_metadata(data_path: Path) -> Any:
    return json.loads((data_path / "nsqd.dat").read_bytes())


def write_metadata(data_path: Path, text: str) -> None:
    (data_path / "nsqd.dat").write_text(text)


@pytest.mark.parametrize("mem_queue_size", [10_000, 2, 0])
async def test_restart_keeps_every_message(start_nsqd: StartNsqd, mem_queue_size: int) -> None:
    """Q-26, Q-27, Q-41: waiting, in flight and deferred ones, with their attempts."""
    nsqd = await start_nsqd(mem_queue_size=mem_queue_size)
    consumer = await nsqd.consumer("t", rdy=2)
    publisher = await nsqd.connect()
    await publisher.publish("t", b"1", b"2", b"3", b"4")
    publisher.dpub("t", 3_600_000, b"deferred")
    await publisher.expect_ok()
    first, second = await consumer.read_messages(2)
    consumer.req(second, 3_600_000)
    third = await consumer.read_message()
    assert third.body == b"3"

    await nsqd.stop()
    nsqd = await start_nsqd(mem_queue_size=mem_queue_size)

    channel = await nsqd.channel("t")
    assert channel["depth"] + channel["deferred_count"] == 5
    assert (channel["message_count"], channel["in_flight_count"]) == (0, 0)
    consumer = await nsqd.consumer("t", rdy=10)
    messages = {message.body: message for message in await consumer.read_messages(channel["depth"])}
    assert {body: message.attempts for body, message in messages.items() if body in b"134"} == {
        b"1": 2,
        b"3": 2,
        b"4": 1,
    }
    assert (messages[b"1"].id, messages[b"1"].timestamp_ns) == (first.id, first.timestamp_ns)


async def test_restart_keeps_what_no_channel_has_taken(start_nsqd: StartNsqd) -> None:
    nsqd = await start_nsqd()
    await nsqd.publish("t", *[b"%d" % number for number in range(20)])

    await nsqd.stop()
    nsqd = await start_nsqd()

    assert (await nsqd.topic("t"))["depth"] == 20
    consumer = await nsqd.consumer("t", rdy=20)
    messages = await consumer.read_messages(20)
    assert [message.body for message in messages] == [b"%d" % number for number in range(20)]
    assert {message.attempts for message in messages} == {1}


async def test_restart_keeps_pauses(start_nsqd: StartNsqd) -> None:
    nsqd = await start_nsqd()
    await nsqd.consumer("paused-topic", "c")
    await nsqd.consumer("t", "paused")
    await nsqd.consumer("t", "running")
    await nsqd.post("/topic/pause?topic=paused-topic")
    await nsqd.post("/channel/pause?topic=t&channel=paused")

    await nsqd.stop()
    nsqd = await start_nsqd()

    assert (await nsqd.topic("paused-topic"))["paused"] is True
    assert (await nsqd.channel("t", "paused"))["paused"] is True
    assert (await nsqd.channel("t", "running"))["paused"] is False
    consumer = await nsqd.consumer("t", "paused", rdy=1)
    await nsqd.publish("t", b"x")
    await consumer.expect_quiet()


async def test_restart_does_not_repeat_ids(start_nsqd: StartNsqd) -> None:
    ids: list[bytes] = []
    for _ in range(3):
        nsqd = await start_nsqd()
        consumer = await nsqd.consumer("t#ephemeral", "c#ephemeral", rdy=2500)
        publisher = await nsqd.connect()
        publisher.mpub("t#ephemeral", *[b"x"] * 2500)
        ids += [message.id for message in await consumer.read_messages(2500)]
        await nsqd.stop()

    assert ids == sorted(set(ids))


async def test_ephemeral_leaves_nothing_behind(
    start_nsqd: StartNsqd, tmp_path: Path
) -> None:
    nsqd = await start_nsqd(mem_queue_size=1)
    await nsqd.consumer("t", "c#ephemeral")
    await nsqd.consumer("u#ephemeral", "c#ephemeral")
    await nsqd.publish("u#ephemeral", b"1", b"2", b"3")
    await nsqd.publish("t", b"1", b"2", b"3")

    await nsqd.stop()

    assert not [name for name in os.listdir(tmp_path) if "ephemeral" in name]
    topics = read_metadata(tmp_path)["topics"]
    assert [(topic["name"], topic["channels"]) for topic in topics] == [("t", None)]


async def test_metadata_file(start_nsqd: StartNsqd, tmp_path: Path) -> None:
    nsqd = await start_nsqd()
    await nsqd.consumer("t", "c")
    await nsqd.post("/channel/pause?topic=t&channel=c")
    await nsqd.stop()

    assert (tmp_path / "nsqd.dat").read_bytes() == (
        b'{"topics":[{"name":"t","paused":false,"channels":[{"name":"c","paused":true}]}],'
        b'"version":"1.3.0"}'
    )
    assert stat.S_IMODE((tmp_path / "nsqd.dat").stat().st_mode) == 0o600


async def test_metadata_follows_changes(start_nsqd: StartNsqd, tmp_path: Path) -> None:
    nsqd = await start_nsqd()

    async def wait_for_topics(*names: str) -> None:
        async with asyncio.timeout(5):
            while True:
                topics = read_metadata(tmp_path)["topics"] or []
                if [topic["name"] for topic in topics] == list(names):
                    return
                await asyncio.sleep(0.01)

    await nsqd.publish("a", b"x")
    await wait_for_topics("a")
    await nsqd.publish("b", b"x")
    await wait_for_topics("a", "b")
    await nsqd.post("/topic/delete?topic=a")
    await wait_for_topics("b")
    await nsqd.post("/topic/pause?topic=b")  # before the reply, not soon after
    assert read_metadata(tmp_path)["topics"][0]["paused"] is True


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("null", []),
        ("{}", []),
        ('{"topics":[],"version":"0.3.8"}', []),
        ('{"topics":[{"name":"a"},{"name":"b","channels":[]}]}', ["a", "b"]),
        ('{"topics":[{"name":"a","paused":false,"channels":null},{"name":"b%"}]}', ["a"]),
    ],
)
async def test_metadata_of_other_versions_is_read(
    start_nsqd: StartNsqd, tmp_path: Path, text: str, names: list[str]
) -> None:
    write_metadata(tmp_path, text)

    nsqd = await start_nsqd()

    assert [topic["topic_name"] for topic in (await nsqd.stats())["topics"]] == names


@pytest.mark.parametrize("text", ["", "{", "nonsense"])
async def test_metadata_that_cannot_be_read_prevents_the_start(
    start_nsqd: StartNsqd, tmp_path: Path, text: str
) -> None:
    write_metadata(tmp_path, text)

    with pytest.raises(StartError, match=r"failed to load metadata - failed to parse metadata in "):
        await start_nsqd()

    assert (tmp_path / "nsqd.dat").read_text() == text


async def test_second_daemon_on_the_same_data_is_refused(
    nsqd: RunningDaemon, start_nsqd: StartNsqd, tmp_path: Path
) -> None:
    expected = (
        "failed to instantiate nsqd - failed to lock data-path: "
        f"cannot flock directory {tmp_path} - resource temporarily unavailable"
        " (possibly in use by another instance of nsqd)"
    )

    with pytest.raises(StartError) as refused:
        await start_nsqd()

    assert str(refused.value) == expected
    await nsqd.publish("t", b"x")
    await nsqd.stop()
    await start_nsqd()


async def test_missing_data_path_is_not_made(start_nsqd: StartNsqd, tmp_path: Path) -> None:  # O-12
    missing = tmp_path / "missing"

    with pytest.raises(StartError) as refused:
        await start_nsqd(data_path=missing)

    assert str(refused.value) == (
        f"failed to instantiate nsqd - failed to lock data-path: open {missing}:"
        " no such file or directory"
    )
    assert os.listdir(tmp_path) == []


@pytest.mark.both_loops("listening")
async def test_port_in_use_is_told(start_nsqd: StartNsqd) -> None:  # O-11
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        doors: list[dict[str, Any]] = [{"tcp_address": address}, {"http_address": address}]
        for door in doors:
            with pytest.raises(StartError) as refused:
                await start_nsqd(**door)
            assert str(refused.value) == (
                f"failed to instantiate nsqd - listen ({address}) failed - address already in use"
            )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"tls_required": TLSRequired.EVERYWHERE},
            "cannot require TLS client connections without TLS key and cert",
        ),
        ({"max_deflate_level": 10}, "--max-deflate-level must be [1,9]"),
        ({"node_id": 1024}, "--node-id must be [0,1024)"),
        (
            {"auth_http_request_method": "put"},
            "--auth-http-request-method must be post or get",
        ),
        (
            {"e2e_processing_latency_percentiles": (1.5,)},
            "invalid E2E processing latency percentile: 1.5",
        ),
    ],
)  # O-13, O-14
async def test_bad_options_prevent_the_start(
    start_nsqd: StartNsqd, tmp_path: Path, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(StartError) as refused:
        await start_nsqd(**options)

    assert str(refused.value) == f"failed to instantiate nsqd - {text}"
    await start_nsqd()  # the lock is free


@pytest.mark.both_loops("closing")
async def test_stop_closes_clients_without_a_word(nsqd: RunningDaemon) -> None:
    address = nsqd.address
    clients = [await nsqd.connect(), await nsqd.consumer("t", rdy=5), await nsqd.connect(magic=b"")]

    await nsqd.shut_down()

    for client in clients:
        await client.expect_closed()
    with pytest.raises(ConnectionRefusedError):
        await V2Client.connect(address)


@pytest.mark.both_loops("closing")
async def test_stop_loses_nothing_that_was_acknowledged(start_nsqd: StartNsqd) -> None:
    nsqd = await start_nsqd(mem_queue_size=100)
    consumer = await nsqd.consumer("t", rdy=10)
    acknowledged: list[set[bytes]] = [set() for _ in range(4)]
    finished: set[bytes] = set()

    async def publish(client: V2Client, number: int) -> None:
        for index in range(100_000):
            body = b"%d-%d" % (number, index)
            client.pub("t", body)
            try:
                await client.expect_ok()
            except ConnectionEndedError:
                return
            acknowledged[number].add(body)

    async def consume() -> None:
        try:
            while True:
                message = await consumer.read_message()
                consumer.fin(message)
                finished.add(message.body)
        except ConnectionEndedError:
            return

    tasks = [asyncio.create_task(publish(await nsqd.connect(), number)) for number in range(4)]
    tasks.append(asyncio.create_task(consume()))
    while sum(map(len, acknowledged)) < 200:  # noqa: ASYNC110 - the tasks go on meanwhile
        await asyncio.sleep(0.01)
    await nsqd.shut_down()
    await asyncio.gather(*tasks)
    nsqd = await start_nsqd()

    depth = (await nsqd.channel("t"))["depth"]
    consumer = await nsqd.consumer("t", rdy=2500)
    kept = set()
    for _ in range(depth):
        message = await consumer.read_message()
        consumer.fin(message)
        kept.add(message.body)
    everything = set().union(*acknowledged)
    assert everything <= kept | finished
