"""GET /topic/peek and /channel/peek: what is shown, and that nothing happens to it."""

import base64
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.http_client import HttpClient
from tests.support.running_daemon import RunningDaemon, StartNsqd


@pytest.fixture
async def http(nsqd: RunningDaemon) -> AsyncIterator[HttpClient]:
    async with await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port)) as client:
        yield client


async def peek(http: HttpClient, target: str) -> list[dict[str, Any]]:
    reply = await http.get(f"{target}&format=json")
    assert (reply.status, reply.headers["content-type"]) == (
        200,
        "application/json; charset=utf-8",
    )
    messages: list[dict[str, Any]] = reply.json()["messages"]
    return messages


async def test_topic(nsqd: RunningDaemon, http: HttpClient) -> None:
    await nsqd.publish("t", b"text", "grün".encode(), b"\xff\x00")

    reply = (await http.get("/topic/peek?topic=t&format=json")).json()

    assert reply["topic"] == "t"
    first, second, third = reply["messages"]
    assert re.fullmatch(r"[0-9a-f]{16}", first.pop("id"))
    assert abs(first.pop("timestamp") / 1e9 - time.time()) < 60
    assert first == {"attempts": 0, "size": 4, "where": "memory", "body": "text"}
    assert (second["body"], second["size"]) == ("grün", 5)
    assert base64.b64decode(third["body_base64"]) == b"\xff\x00"
    assert "body" not in third


@pytest.mark.parametrize("mem_queue_size", [10_000, 2, 0])
async def test_the_newest_first(start_nsqd: StartNsqd, mem_queue_size: int) -> None:
    nsqd = await start_nsqd(mem_queue_size=mem_queue_size)
    await nsqd.publish("t", *(b"%d" % number for number in range(50)))

    async with await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port)) as http:
        newest = await peek(http, "/topic/peek?topic=t&order=newest&count=3")
        oldest = await peek(http, "/topic/peek?topic=t&order=oldest&count=3")

    assert [each["body"] for each in newest] == ["49", "48", "47"]
    assert [each["body"] for each in oldest] == ["0", "1", "2"]


async def test_the_newest_of_a_long_file_without_checksums_are_not_known(
    start_nsqd: StartNsqd,
) -> None:
    nsqd = await start_nsqd(mem_queue_size=0, disk_checksums=False)
    await nsqd.publish("t", *[bytes(1000)] * 6000)

    async with await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port)) as http:
        reply = await http.get("/topic/peek?topic=t&order=newest")
        assert reply.error == (409, "NEWEST_UNKNOWN")
        assert len(await peek(http, "/topic/peek?topic=t&where=disk")) == 10


async def test_channel_shows_what_waits_is_in_flight_and_deferred(
    nsqd: RunningDaemon, http: HttpClient
) -> None:
    consumer = await nsqd.consumer("t", rdy=1)
    await nsqd.publish("t", b"flying", b"waiting")
    message = await consumer.read_message()
    await http.post("/pub?topic=t&defer=60000", b"later")
    await nsqd.wait_for_channel("t", deferred_count=1)

    waiting, flying, later = await peek(http, "/channel/peek?topic=t&channel=ch")

    assert (waiting["body"], waiting["where"], waiting["attempts"]) == ("waiting", "memory", 0)
    assert (flying["body"], flying["where"], flying["attempts"]) == ("flying", "in_flight", 1)
    assert flying["id"] == message.id.decode()
    assert 0 < flying["timeout_ms"] <= 60_000
    assert (later["body"], later["where"]) == ("later", "deferred")
    assert 0 < later["due_ms"] <= 60_000
    only = await peek(http, "/channel/peek?topic=t&channel=ch&where=deferred,in_flight")
    assert [entry["body"] for entry in only] == ["flying", "later"]


async def test_nothing_happens(start_nsqd: StartNsqd) -> None:
    nsqd = await start_nsqd(mem_queue_size=3)
    sent = [b"%d" % number for number in range(120)]
    await nsqd.publish("t", *sent)
    await nsqd.post("/channel/create?topic=t&channel=ch")
    before = await nsqd.wait_for_channel("t", depth=120)

    async with await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port)) as http:
        shown = await peek(http, "/channel/peek?topic=t&channel=ch&count=100")
        assert await peek(http, "/channel/peek?topic=t&channel=ch&count=100") == shown

    assert [entry["body"].encode() for entry in shown] == sent[:100]
    assert {entry["where"] for entry in shown} == {"memory", "disk"}
    assert await nsqd.channel("t") == before
    consumer = await nsqd.consumer("t", rdy=200)
    messages = await consumer.read_messages(120)
    assert [message.body for message in messages] == sent
    assert {message.attempts for message in messages} == {1}
    assert [message.id.decode() for message in messages[:100]] == [entry["id"] for entry in shown]


async def test_text(nsqd: RunningDaemon, http: HttpClient) -> None:
    await nsqd.publish("t", b'a "quoted"\nline', b"\xff")

    reply = await http.get("/topic/peek?topic=t")

    assert reply.headers["content-type"] == "text/plain; charset=utf-8"
    first, second = reply.text.splitlines()
    pattern = r"memory {15}[0-9a-f]{16} \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z attempts: 0 size: "
    assert re.fullmatch(pattern + r'15 "a \\"quoted\\"\\nline"', first)
    assert re.fullmatch(pattern + r'1 "\\\\xff"', second)


@pytest.mark.parametrize(("query", "count"), [("", 10), ("&count=1", 1), ("&count=100", 20)])
async def test_count(nsqd: RunningDaemon, http: HttpClient, query: str, count: int) -> None:
    await nsqd.publish("t", *[b"x"] * 20)

    assert len(await peek(http, f"/topic/peek?topic=t{query}")) == count


@pytest.mark.parametrize(
    ("target", "status", "code"),
    [
        ("/topic/peek", 400, "MISSING_ARG_TOPIC"),
        ("/topic/peek?topic=a%20b", 400, "INVALID_TOPIC"),
        ("/topic/peek?topic=u", 404, "TOPIC_NOT_FOUND"),
        ("/channel/peek?topic=t", 400, "MISSING_ARG_CHANNEL"),
        ("/channel/peek?topic=t&channel=u", 404, "CHANNEL_NOT_FOUND"),
        ("/topic/peek?topic=t&count=0", 400, "INVALID_ARG_COUNT"),
        ("/topic/peek?topic=t&count=101", 400, "INVALID_ARG_COUNT"),
        ("/topic/peek?topic=t&count=-1", 400, "INVALID_ARG_COUNT"),
        ("/topic/peek?topic=t&count=x", 400, "INVALID_ARG_COUNT"),
        ("/topic/peek?topic=t&count=1000000000", 400, "INVALID_ARG_COUNT"),
        ("/topic/peek?topic=t&count=000000001000000000", 400, "INVALID_ARG_COUNT"),
        ("/topic/peek?topic=t&where=nowhere", 400, "INVALID_ARG_WHERE"),
        ("/topic/peek?topic=t&order=newer", 400, "INVALID_ARG_ORDER"),
    ],
)
async def test_errors(
    nsqd: RunningDaemon, http: HttpClient, target: str, status: int, code: str
) -> None:
    await nsqd.publish("t", b"x")

    assert (await http.get(target)).error == (status, code)
