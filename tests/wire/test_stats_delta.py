"""/stats?format=delta: what has changed since an earlier answer, beside /stats?format=json."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from nsqd.stats import delta
from tests.support.http_client import HttpClient
from tests.support.running_daemon import RunningDaemon, StartNsqd

Key = tuple[str, str | None]


@pytest.fixture
async def nsqd(start_nsqd: StartNsqd) -> RunningDaemon:
    return await start_nsqd(mem_queue_size=2)


@pytest.fixture
async def http(nsqd: RunningDaemon) -> AsyncIterator[HttpClient]:
    async with await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port)) as client:
        yield client


class Reader:
    """Keeps the rows of a node up to date with deltas alone."""

    def __init__(self, http: HttpClient) -> None:
        self._http = http
        self.seq: int | None = None
        self.rows: dict[Key, dict[str, Any]] = {}
        self.answer: dict[str, Any] = {}

    async def read(self, *, fresh: str = "&fresh=true") -> set[Key]:
        """Ask, apply, and return the queues whose rows came."""
        since = "" if self.seq is None else f"&since={self.seq}"
        reply = await self._http.get(f"/stats?format=delta{since}{fresh}")
        assert reply.status == 200
        self.answer = answer = reply.json()
        if answer["full"]:
            self.rows.clear()
        rows = [dict(zip(answer["columns"], row, strict=True)) for row in answer["rows"]]
        changed = {(row.pop("topic"), row.pop("channel")): row for row in rows}
        self.rows |= changed
        for name, channel in answer["removed"]:
            del self.rows[name, channel]
        self.seq = answer["seq"]
        return set(changed)

    async def expect_same(self) -> None:
        """Compare with all figures of the moment."""
        reply = await self._http.get("/stats?format=json&include_clients=false")
        assert self.rows == dict(_flatten(reply.json()))


def _flatten(stats: dict[str, Any]) -> Iterator[tuple[Key, dict[str, Any]]]:
    known = (*delta.COLUMNS[2:-1], "topic_name", "channel_name", "channels", "clients")
    for topic in stats["topics"]:
        for queue in (topic, *topic["channels"]):
            latency = queue.pop("e2e_processing_latency")
            more = {key: value for key, value in queue.items() if key not in known}
            if latency["percentiles"]:
                more["e2e_processing_latency"] = latency
            row = {name: queue.get(name, 0) for name in delta.COLUMNS[2:-1]}
            yield (topic["topic_name"], queue.get("channel_name")), row | {"more": more or None}


async def test_rows_follow_the_figures(nsqd: RunningDaemon, http: HttpClient) -> None:
    reader = Reader(http)
    await reader.read()
    assert (reader.answer["full"], reader.rows) == (True, {})
    await http.post("/topic/create?topic=a")
    await http.post("/channel/create?topic=a&channel=c")
    await http.post("/topic/create?topic=b")
    assert await reader.read() == {("a", None), ("a", "c"), ("b", None)}
    await reader.expect_same()
    await nsqd.publish("a", *[b"x"] * 5)
    await nsqd.wait_for_channel("a", "c", depth=5)
    assert await reader.read() == {("a", None), ("a", "c")}
    await reader.expect_same()
    assert reader.rows["a", "c"]["disk_bytes"] > 0
    assert await reader.read() == set()
    assert reader.answer["full"] is False

    consumer = await nsqd.consumer("a", "c", rdy=1)
    message = await consumer.read_message()
    assert await reader.read() == {("a", "c")}
    assert reader.rows["a", "c"]["in_flight_count"] == 1
    await reader.expect_same()
    consumer.req(message, 60_000)
    await nsqd.wait_for_channel("a", "c", requeue_count=1)
    await reader.read()
    assert reader.rows["a", "c"]["deferred_count"] == 1
    await consumer.close()
    await nsqd.wait_for_channel("a", "c", client_count=0)
    await reader.read()
    await reader.expect_same()


async def test_queues_that_are_gone_are_named(http: HttpClient) -> None:
    reader, late = Reader(http), Reader(http)
    for name in ("a", "b"):
        await http.post(f"/topic/create?topic={name}")
        await http.post(f"/channel/create?topic={name}&channel=c")
    await reader.read()
    await late.read()

    await http.post("/channel/delete?topic=a&channel=c")
    await http.post("/topic/delete?topic=b")
    await reader.read()

    assert sorted(map(tuple, reader.answer["removed"]), key=str) == [
        ("a", "c"),
        ("b", "c"),
        ("b", None),
    ]
    await http.post("/channel/create?topic=a&channel=c")
    await late.read()
    await late.expect_same()
    await reader.read()
    await reader.expect_same()


async def test_limits_pauses_and_empties_are_changes(nsqd: RunningDaemon, http: HttpClient) -> None:
    reader = Reader(http)
    await http.post("/topic/create?topic=a")
    await http.post("/channel/create?topic=a&channel=c")
    await nsqd.publish("a", b"1", b"2")
    consumer = await nsqd.consumer("a", "c", rdy=2)
    await consumer.read_message()
    await consumer.read_message()
    await reader.read()
    for call in (
        "/topic/pause?topic=a",
        "/channel/pause?topic=a&channel=c",
        "/channel/empty?topic=a&channel=c",
        "/channel/unpause?topic=a&channel=c",
    ):
        await http.post(call)
        assert await reader.read(), call
        await reader.expect_same()
    limits = json.dumps({"max_depth": 1, "dead_letter_topic_suffix": ".dead"}).encode()
    await http.post("/topic/limits?topic=a", limits)
    assert await reader.read() == {("a", None)}
    assert reader.rows["a", None]["more"] == {"dead_letter_topic": "a.dead"}
    await consumer.close()


@pytest.mark.parametrize("since", ["0", "-1", "text", str(2**53), "1" * 30, "99999999999999"])
async def test_a_since_that_is_none_of_ours_gives_all(http: HttpClient, since: str) -> None:
    await http.post("/topic/create?topic=a")
    reply = await http.get(f"/stats?format=delta&since={since}")

    assert reply.status == 200
    assert reply.json()["full"] is True
    assert len(reply.json()["rows"]) == 1


async def test_viewers_share_a_look_and_it_is_forgotten(
    http: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta, "SHARED_S", 600.0)
    reader = Reader(http)
    await http.post("/topic/create?topic=a")
    await reader.read(fresh="")
    first = reader.seq
    await http.post("/topic/create?topic=b")

    assert await reader.read(fresh="") == set()
    assert reader.seq == first
    assert await reader.read() == {("b", None)}
    seq = reader.seq
    await http.post("/topic/create?topic=c")
    monkeypatch.setattr(delta, "FORGET_S", 0.01)
    while reader.seq == seq:
        await reader.read(fresh="")
        await asyncio.sleep(0.05)  # the timer runs while no reader comes

    assert reader.answer["full"] is True
    await reader.expect_same()
