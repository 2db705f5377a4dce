"""POST /topic/move, /channel/move and drop: who gets the messages, and what stays where it was."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from nsqd.config.limits import Limits
from tests.support.http_client import HttpClient
from tests.support.running_daemon import RunningDaemon, StartNsqd
from tests.support.waiting import POLL_S


@pytest.fixture
async def http(nsqd: RunningDaemon) -> AsyncIterator[HttpClient]:
    async with await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port)) as client:
        yield client


async def bodies_of(http: HttpClient, topic: str, channel: str = "") -> list[str]:
    noun = "channel" if channel else "topic"
    target = f"/{noun}/peek?topic={topic}&channel={channel}&format=json&count=100"
    return [message["body"] for message in (await http.get(target)).json()["messages"]]


async def test_dead_letters_go_back_to_all_channels(nsqd: RunningDaemon, http: HttpClient) -> None:
    await nsqd.publish("orders.dead", b"1", b"2", b"3")
    await http.post("/topic/create?topic=orders", b"")
    for channel in ("mail", "bill"):
        await http.post(f"/channel/create?topic=orders&channel={channel}", b"")

    reply = await http.post("/topic/move?topic=orders.dead&to=orders&count=2", b"")

    assert reply.json() == {"moved": 2, "left": 1}
    assert await bodies_of(http, "orders.dead") == ["3"]
    assert await bodies_of(http, "orders", "mail") == ["1", "2"]
    assert await bodies_of(http, "orders", "bill") == ["1", "2"]


async def test_dead_letters_go_back_to_one_channel(nsqd: RunningDaemon, http: HttpClient) -> None:
    await nsqd.publish("orders.dead", b"1", b"2")
    await http.post("/topic/create?topic=orders", b"")
    for channel in ("mail", "bill"):
        await http.post(f"/channel/create?topic=orders&channel={channel}", b"")

    reply = await http.post("/topic/move?topic=orders.dead&to=orders&to_channel=mail", b"")

    assert reply.json() == {"moved": 2, "left": 0}
    assert await bodies_of(http, "orders", "mail") == ["1", "2"]
    assert await bodies_of(http, "orders", "bill") == []


async def test_channel_is_moved_with_attempts_anew(nsqd: RunningDaemon, http: HttpClient) -> None:
    consumer = await nsqd.consumer("dead", rdy=1)
    await nsqd.publish("dead", b"flying", b"waiting")
    await consumer.read_message()
    await http.post("/topic/create?topic=orders", b"")

    reply = await http.post("/channel/move?topic=dead&channel=ch&to=orders", b"")

    assert reply.json() == {"moved": 1, "left": 0}
    [message] = (await http.get("/topic/peek?topic=orders&format=json")).json()["messages"]
    assert (message["body"], message["attempts"]) == ("waiting", 0)


async def test_chosen_messages_are_moved_or_dropped(nsqd: RunningDaemon, http: HttpClient) -> None:
    await nsqd.publish("dead", *(b"%d" % number for number in range(6)))
    await http.post("/topic/create?topic=orders", b"")
    shown = (await http.get("/topic/peek?topic=dead&format=json")).json()["messages"]
    ids = [message["id"] for message in shown]

    moved = await http.post(
        "/topic/move?topic=dead&to=orders", f'{{"ids":["{ids[1]}","{ids[4]}"]}}'.encode()
    )
    dropped = await http.post(
        "/topic/drop?topic=dead", f'{{"ids":["{ids[0]}","ffffffffffffffff"]}}'.encode()
    )

    assert moved.json() == {"moved": 2, "left": 4}
    assert dropped.json() == {"dropped": 1, "left": 3}
    assert await bodies_of(http, "dead") == ["2", "3", "5"]
    assert await bodies_of(http, "orders") == ["1", "4"]


async def test_thousands_on_disk_are_moved_to_disk(start_nsqd: StartNsqd) -> None:
    nsqd = await start_nsqd(mem_queue_size=10)
    await nsqd.publish("dead", *(b"%d" % number for number in range(3000)))
    async with await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port)) as http:
        await http.post("/topic/create?topic=orders", b"")

        reply = await http.post("/topic/move?topic=dead&to=orders", b"")

        assert reply.json() == {"moved": 3000, "left": 0}
        stats = (await http.get("/stats?format=json&topic=orders")).json()
        [topic] = stats["topics"]
        assert topic["depth"] == 3000
        # Those that came from the disk went to the disk, though there was room in memory.
        assert topic["backend_depth"] >= 2990


async def test_what_was_moved_from_disk_does_not_come_back_at_a_restart(
    start_nsqd: StartNsqd,
) -> None:
    nsqd = await start_nsqd(mem_queue_size=0)
    await nsqd.publish("dead", b"1", b"2", b"3")
    async with await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port)) as http:
        await http.post("/topic/create?topic=orders", b"")
        await http.post("/topic/move?topic=dead&to=orders&count=2", b"")
    await nsqd.stop()

    nsqd = await start_nsqd(mem_queue_size=0)

    async with await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port)) as http:
        assert await bodies_of(http, "dead") == ["3"]
        assert await bodies_of(http, "orders") == ["1", "2"]


async def test_full_topic_gets_what_fits(nsqd: RunningDaemon, http: HttpClient) -> None:
    await nsqd.publish("dead", *(b"%d" % number for number in range(600)))
    await nsqd.publish("dead", b"last")
    await http.post("/topic/create?topic=orders", b"")
    await http.post("/topic/limits?topic=orders&max_depth=512", b"")

    first = await http.post("/topic/move?topic=dead&to=orders", b"")
    second = await http.post("/topic/move?topic=dead&to=orders", b"")

    assert (first.json()["moved"], first.json()["left"]) == (512, 89)
    assert first.json()["message"].startswith("QUEUE_FULL: ")
    assert second.status == 503
    assert (await bodies_of(http, "dead"))[-2:] == ["599", "last"]


@pytest.mark.parametrize(
    ("target", "body", "status", "code"),
    [
        ("/topic/move?topic=nosuch&to=t", b"", 404, "TOPIC_NOT_FOUND"),
        ("/topic/move?topic=t&to=nosuch", b"", 404, "TOPIC_NOT_FOUND"),
        ("/topic/move?topic=t&to=o&to_channel=no", b"", 404, "CHANNEL_NOT_FOUND"),
        ("/channel/move?topic=t&channel=no&to=o", b"", 404, "CHANNEL_NOT_FOUND"),
        ("/topic/move?topic=t", b"", 400, "MISSING_ARG_TO"),
        ("/topic/move?topic=t&to=t", b"", 400, "INVALID_ARG_TO"),
        ("/topic/move?topic=t&to=o&count=0", b"", 400, "INVALID_ARG_COUNT"),
        ("/topic/move?topic=t&to=o&count=10001", b"", 400, "INVALID_ARG_COUNT"),
        ("/topic/move?topic=t&to=o", b"{}", 400, "INVALID_BODY"),
        ("/topic/move?topic=t&to=o", b"[" * 4000, 400, "INVALID_BODY"),
        ("/topic/move?topic=t&to=o", b'{"ids":[]}', 400, "INVALID_BODY"),
        ("/topic/move?topic=t&to=o", b'{"ids":[5]}', 400, "INVALID_BODY"),
        ("/topic/move?topic=t&to=o", b" " * 5000, 413, "BODY_TOO_BIG"),
        ("/topic/drop?topic=t", b"", 400, "MISSING_IDS"),
    ],
)
async def test_wrong_calls_change_nothing(
    nsqd: RunningDaemon, http: HttpClient, target: str, body: bytes, status: int, code: str
) -> None:
    await nsqd.publish("t", b"1")
    await http.post("/topic/create?topic=o", b"")

    reply = await http.post(target, body)

    assert (reply.status, reply.json()["message"]) == (status, code)
    async with await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port)) as other:
        assert await bodies_of(other, "t") == ["1"]


async def test_client_is_told_and_closed(nsqd: RunningDaemon, http: HttpClient) -> None:
    consumer = await nsqd.consumer("t", rdy=1)
    stats = (await http.get("/stats?format=json")).json()
    [address] = [
        client["remote_address"] for client in stats["topics"][0]["channels"][0]["clients"]
    ]

    reply = await http.post(f"/client/close?remote_address={address}", b"")
    gone = await http.post("/client/close?remote_address=127.0.0.1:1", b"")

    assert reply.status == 200
    assert (gone.status, gone.json()["message"]) == (404, "CLIENT_NOT_FOUND")
    assert await consumer.read_response() == b"CLOSE_WAIT"
    await consumer.expect_closed()


async def test_info_names_what_nsq_lacks(nsqd: RunningDaemon, http: HttpClient) -> None:
    extensions = (await http.get("/info")).json()["extensions"]

    assert {"peek", "limits", "drain", "move", "drop", "client_close"} <= {*extensions}


async def test_stats_tell_what_the_console_needs(start_nsqd: StartNsqd) -> None:
    limits = Limits(max_attempts=3, dead_letter_topic_suffix=".dead")
    nsqd = await start_nsqd(mem_queue_size=0, limits=limits)
    consumer = await nsqd.consumer("t", rdy=1)
    await nsqd.publish("t", b"1", b"2")
    consumer.fin(await consumer.read_message())
    await nsqd.wait_for_channel("t", in_flight_count=1)
    async with await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port)) as http:
        stats = (await http.get("/stats?format=json")).json()

    [topic] = stats["topics"]
    [channel] = topic["channels"]
    assert stats["draining"] is False
    assert stats["disk_free_bytes"] > 0
    assert topic["dead_letter_topic"] == "t.dead"
    assert channel["finish_count"] == 1
    assert channel["disk_bytes"] == 2 * 31


DEAD = Limits(max_attempts=1, dead_letter_topic_suffix=".dead")


async def fail(nsqd: RunningDaemon, channel: str, *bodies: bytes) -> None:
    """Publish to a channel of `orders` alone, and let the messages fail there."""
    async with await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port)) as http:
        await http.post("/topic/create?topic=orders", b"")
        await http.post(f"/channel/create?topic=orders&channel={channel}", b"")
        await nsqd.publish("staging", *bodies)
        moved = await http.post(f"/topic/move?topic=staging&to=orders&to_channel={channel}", b"")
        assert moved.json()["moved"] == len(bodies)
    consumer = await nsqd.consumer("orders", channel, rdy=len(bodies))
    for _ in bodies:
        consumer.req(await consumer.read_message(), 0)
    await consumer.drain()
    await consumer.close()


async def dead_letters(http: HttpClient, count: int) -> list[dict[str, Any]]:
    """Return the dead letters when there are so many."""
    while True:
        reply = await http.get("/topic/peek?topic=orders.dead&format=json&count=100")
        found: list[dict[str, Any]] = reply.json().get("messages", [])
        if len(found) == count:
            return found
        await asyncio.sleep(POLL_S)


@pytest.mark.parametrize("mem_queue_size", [0, 10_000])
async def test_replay_brings_each_to_the_channel_it_failed_in(
    start_nsqd: StartNsqd, mem_queue_size: int
) -> None:
    nsqd = await start_nsqd(mem_queue_size=mem_queue_size, limits=DEAD)
    async with await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port)) as http:
        await http.post("/topic/create?topic=orders", b"")
        await http.post("/channel/create?topic=orders&channel=other", b"")
        await fail(nsqd, "mail", b"m1", b"m2")
        await fail(nsqd, "bill", b"b1")
        shown = await dead_letters(http, 3)
        origins = [(each["body"], each["origin"]) for each in shown]
        text = (await http.get("/topic/peek?topic=orders.dead")).body.decode()

        reply = await http.post("/topic/replay?topic=orders.dead", b"")

        assert [(body, origin["channel"]) for body, origin in origins] == [
            ("m1", "mail"),
            ("m2", "mail"),
            ("b1", "bill"),
        ]
        first = origins[0][1]
        assert (first["topic"], first["reason"], first["attempts"]) == ("orders", "attempts", 1)
        assert 0 < first["timestamp"] < shown[0]["timestamp"]
        assert len(first["id"]) == 16
        assert first["id"] != shown[0]["id"]
        assert text.count("from: orders:mail attempts: 1 ") == 2
        assert reply.json() == {"moved": 3, "left": 0}
        assert await bodies_of(http, "orders", "mail") == ["m1", "m2"]
        assert await bodies_of(http, "orders", "bill") == ["b1"]
        assert await bodies_of(http, "orders", "other") == []


async def test_dead_letters_are_in_one_queue_after_a_clean_stop(
    start_nsqd: StartNsqd, tmp_path: Path
) -> None:
    nsqd = await start_nsqd(data_path=tmp_path, mem_queue_size=0, limits=DEAD)
    await fail(nsqd, "mail", b"m1", b"m2")
    async with await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port)) as http:
        await dead_letters(http, 2)
    await nsqd.stop()

    again = await start_nsqd(data_path=tmp_path, mem_queue_size=0, limits=DEAD)

    async with await HttpClient.connect(("127.0.0.1", again.daemon.http_port)) as http:
        assert len(await dead_letters(http, 2)) == 2
        assert await bodies_of(http, "orders", "mail") == []


async def test_replay_of_a_channel_and_of_chosen_dead_letters(start_nsqd: StartNsqd) -> None:
    nsqd = await start_nsqd(limits=DEAD)
    async with await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port)) as http:
        await fail(nsqd, "mail", b"1", b"2", b"3")
        ids = [each["id"] for each in await dead_letters(http, 3)]
        await http.post("/channel/create?topic=orders.dead&channel=ops", b"")

        body = f'{{"ids":["{ids[1]}"]}}'.encode()
        chosen = await http.post("/channel/replay?topic=orders.dead&channel=ops", body)
        [shown, _] = (
            await http.get("/channel/peek?topic=orders.dead&channel=ops&format=json")
        ).json()["messages"]
        counted = await http.post("/channel/replay?topic=orders.dead&channel=ops&count=1", b"")

        assert chosen.json() == {"moved": 1, "left": 2}
        assert shown["origin"]["channel"] == "mail"
        assert counted.json() == {"moved": 1, "left": 1}
        assert await bodies_of(http, "orders", "mail") == ["2", "1"]


async def test_what_has_no_channel_to_go_back_to_stays(start_nsqd: StartNsqd) -> None:
    nsqd = await start_nsqd(limits=DEAD)
    async with await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port)) as http:
        await nsqd.publish("orders.dead", b"by hand")
        await fail(nsqd, "gone", *(b"g%d" % number for number in range(700)))
        await fail(nsqd, "mail", b"m1", b"m2")
        await http.post("/channel/delete?topic=orders&channel=gone", b"")

        reply = await http.post("/topic/replay?topic=orders.dead", b"")
        again = await http.post("/topic/replay?topic=orders.dead", b"")
        assert (await bodies_of(http, "orders.dead"))[:3] == ["by hand", "g0", "g1"]
        await http.post("/channel/create?topic=orders&channel=gone", b"")
        last = await http.post("/topic/replay?topic=orders.dead", b"")
        await http.post("/topic/delete?topic=orders", b"")
        await fail(nsqd, "mail", b"m3")
        await http.post("/topic/delete?topic=orders", b"")
        without = await http.post("/topic/replay?topic=orders.dead", b"")

        kept = {"CHANNEL_NOT_FOUND orders:gone": 700, "ORIGIN_UNKNOWN": 1}
        assert reply.json() == {"moved": 2, "left": 701, "kept": kept}
        assert again.json() == {"moved": 0, "left": 701, "kept": kept}
        assert last.json() == {"moved": 700, "left": 1, "kept": {"ORIGIN_UNKNOWN": 1}}
        assert without.json()["kept"] == {"ORIGIN_UNKNOWN": 1, "TOPIC_NOT_FOUND orders": 1}


async def test_bad_replays(http: HttpClient) -> None:
    missing = await http.post("/topic/replay?topic=nothing", b"")
    unnamed = await http.post("/channel/replay?topic=nothing", b"")
    wrong = await http.get("/topic/replay?topic=nothing")

    assert (missing.status, missing.json()) == (404, {"message": "TOPIC_NOT_FOUND"})
    assert (unnamed.status, unnamed.json()) == (400, {"message": "MISSING_ARG_CHANNEL"})
    assert wrong.status == 405
