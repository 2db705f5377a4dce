"""Bounded queues over real sockets: publishes refused, messages dropped, expired, dead-lettered."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from nsqd.config.limits import DepthPolicy, Limits
from tests.support.http_client import HttpClient
from tests.support.running_daemon import RunningDaemon, StartNsqd
from tests.support.v2_client import MESSAGE, V2Client


async def connect_http(nsqd: RunningDaemon) -> HttpClient:
    return await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port))


@pytest.fixture
async def http(nsqd: RunningDaemon) -> AsyncIterator[HttpClient]:
    async with await connect_http(nsqd) as client:
        yield client


async def make_channel(nsqd: RunningDaemon, topic: str = "t", channel: str = "ch") -> None:
    await nsqd.post(f"/topic/create?topic={topic}")
    await nsqd.post(f"/channel/create?topic={topic}&channel={channel}")


async def bodies_of(nsqd: RunningDaemon, topic: str, count: int) -> list[bytes]:
    consumer = await nsqd.consumer(topic, rdy=2500)
    bodies = [message.body for message in await consumer.read_messages(count)]
    await consumer.expect_quiet()
    return bodies


class TestReject:
    @pytest.mark.parametrize("verb", ["PUB", "MPUB", "DPUB"])
    async def test_over_tcp(self, start_nsqd: StartNsqd, verb: str) -> None:
        nsqd = await start_nsqd(limits=Limits(max_depth=2))
        await make_channel(nsqd)
        client = await nsqd.connect()
        await client.publish("t", b"1", b"2")

        if verb == "PUB":
            client.pub("t", b"3")
        elif verb == "MPUB":
            client.mpub("t", b"3")
        else:
            client.dpub("t", 1000, b"3")

        text = f"E_{verb}_FAILED {verb} failed channel t:ch would hold 3 messages, more than"
        await client.expect_error(f"{text} --max-depth=2".encode())
        assert (await nsqd.topic("t"))["rejected_count"] == 1
        assert (await nsqd.request("GET", "/ping")) == (200, b"OK")
        assert await bodies_of(nsqd, "t", 2) == [b"1", b"2"]

    async def test_a_batch_is_refused_as_a_whole(self, start_nsqd: StartNsqd) -> None:
        nsqd = await start_nsqd(limits=Limits(max_depth=2))
        for channel in ("a", "b"):
            await make_channel(nsqd, channel=channel)
        client = await nsqd.connect()

        client.mpub("t", b"1", b"2", b"3")

        await client.expect_error(
            b"E_MPUB_FAILED MPUB failed topic t would hold 3 messages, more than --max-depth=2"
        )
        for channel in ("a", "b"):
            assert (await nsqd.channel("t", channel))["depth"] == 0

    @pytest.mark.parametrize("target", ["/pub?topic=t", "/pub?topic=t&defer=5", "/mpub?topic=t"])
    async def test_over_http(self, start_nsqd: StartNsqd, target: str) -> None:
        nsqd = await start_nsqd(limits=Limits(max_depth_bytes=70))
        async with await connect_http(nsqd) as http:
            assert (await http.post("/pub?topic=t", b"x" * 30)).status == 200

            reply = await http.post(target, b"y")

        text = "QUEUE_FULL - topic t would hold 91 bytes, more than --max-depth-bytes=70"
        assert reply.error == (503, text)
        assert (await nsqd.topic("t"))["rejected_count"] == 1
        assert await bodies_of(nsqd, "t", 1) == [b"x" * 30]

    @pytest.mark.parametrize("options", [{}, {"mem_queue_size": 0, "sync_every": 1}])
    async def test_of_pipelined_publishes_those_that_fit_are_taken(
        self, start_nsqd: StartNsqd, options: dict[str, Any]
    ) -> None:
        nsqd = await start_nsqd(limits=Limits(max_depth=5), **options)
        await make_channel(nsqd)
        client = await nsqd.connect()

        for number in range(20):
            client.pub("t", b"%d" % number)

        await client.expect_ok(5)
        await client.expect_error(
            b"E_PUB_FAILED PUB failed channel t:ch would hold 6 messages, more than --max-depth=5"
        )
        assert (await nsqd.topic("t"))["rejected_count"] == 1
        assert await bodies_of(nsqd, "t", 5) == [b"%d" % number for number in range(5)]

    async def test_room_that_is_made_is_used(self, start_nsqd: StartNsqd) -> None:
        nsqd = await start_nsqd(limits=Limits(max_depth=1), mem_queue_size=0)
        consumer = await nsqd.consumer("t")
        await nsqd.publish("t", b"1")
        client = await nsqd.connect()
        client.pub("t", b"2")
        await client.read_frame()

        consumer.rdy(1)
        consumer.fin(await consumer.read_message())
        await consumer.settle()

        await nsqd.publish("t", b"2")
        assert (await consumer.read_message()).body == b"2"


class TestDropOldest:
    @pytest.mark.parametrize("mem_queue_size", [0, 10_000])
    async def test_the_newest_stay(self, start_nsqd: StartNsqd, mem_queue_size: int) -> None:
        nsqd = await start_nsqd(
            limits=Limits(max_depth=3, max_depth_policy=DepthPolicy.DROP_OLDEST),
            mem_queue_size=mem_queue_size,
        )
        await make_channel(nsqd)
        client = await nsqd.connect()

        for number in range(20):
            client.pub("t", b"%d" % number)
        await client.expect_ok(20)

        channel = await nsqd.wait_for_channel("t", depth=3)
        assert channel["dropped_depth_count"] == 17
        assert await bodies_of(nsqd, "t", 3) == [b"17", b"18", b"19"]


class TestTtl:
    @pytest.mark.parametrize("mem_queue_size", [0, 10_000])
    async def test_without_consumers(self, start_nsqd: StartNsqd, mem_queue_size: int) -> None:
        nsqd = await start_nsqd(limits=Limits(msg_ttl_s=0.2), mem_queue_size=mem_queue_size)
        await make_channel(nsqd)
        await nsqd.publish("t", b"1", b"2", b"3")

        channel = await nsqd.wait_for_channel("t", depth=0)

        assert channel["dropped_ttl_count"] == 3

    async def test_with_a_consumer(self, start_nsqd: StartNsqd) -> None:
        nsqd = await start_nsqd(limits=Limits(msg_ttl_s=0.3))
        consumer = await nsqd.consumer("t")
        await nsqd.publish("t", b"old")
        await asyncio.sleep(0.4)

        consumer.rdy(10)
        await nsqd.publish("t", b"new")

        assert (await consumer.read_message()).body == b"new"


class TestDeadLetters:
    @pytest.mark.parametrize("mem_queue_size", [0, 10_000])
    async def test_after_the_last_attempt(self, start_nsqd: StartNsqd, mem_queue_size: int) -> None:
        nsqd = await start_nsqd(
            limits=Limits(max_attempts=2, dead_letter_topic_suffix=".dead"),
            mem_queue_size=mem_queue_size,
        )
        consumer = await nsqd.consumer("t", rdy=1)
        await nsqd.publish("t", b"poison \x00\xff")
        for attempt in (1, 2):
            message = await consumer.read_message()
            assert message.attempts == attempt
            consumer.req(message, 0)

        assert await bodies_of(nsqd, "t.dead", 1) == [b"poison \x00\xff"]
        # Counted when the dead letter is durable; it can be delivered before.
        await nsqd.wait_for_channel("t", depth=0, in_flight_count=0, dead_lettered_count=1)
        await consumer.expect_quiet()

    async def test_after_a_timeout(self, start_nsqd: StartNsqd) -> None:
        nsqd = await start_nsqd(
            limits=Limits(max_attempts=1, dead_letter_topic_suffix=".dead"), msg_timeout_s=0.2
        )
        consumer = await nsqd.consumer("t", rdy=1)
        await nsqd.publish("t", b"slow")
        await consumer.read_message()

        await nsqd.wait_for_channel("t", in_flight_count=0)

        assert await bodies_of(nsqd, "t.dead", 1) == [b"slow"]

    async def test_when_too_old_with_group_commit(self, start_nsqd: StartNsqd) -> None:
        nsqd = await start_nsqd(
            limits=Limits(msg_ttl_s=0.2, dead_letter_topic_suffix=".dead"),
            mem_queue_size=0,
            sync_every=1,
        )
        await make_channel(nsqd)
        await nsqd.publish("t", b"1", b"2")

        await nsqd.wait_for_channel("t", depth=0)

        assert await bodies_of(nsqd, "t.dead", 2) == [b"1", b"2"]
        await nsqd.wait_for_channel("t", dead_lettered_count=2)


class TestLimitsOverHttp:
    async def test_they_are_shown_with_their_source(self, start_nsqd: StartNsqd) -> None:
        nsqd = await start_nsqd(limits=Limits(max_depth=7, msg_ttl_s=90.0))
        await nsqd.post("/topic/create?topic=t")
        async with await connect_http(nsqd) as http:
            reply = await http.request("GET", "/topic/limits?topic=t")

        assert reply.json() == {
            "topic": "t",
            "limits": {
                "max_depth": {"value": 7, "source": "flag"},
                "max_depth_bytes": {"value": 0, "source": "flag"},
                "max_depth_policy": {"value": "reject", "source": "flag"},
                "msg_ttl": {"value": "1m30s", "source": "flag"},
                "max_attempts": {"value": 0, "source": "flag"},
                "dead_letter_topic_suffix": {"value": "", "source": "flag"},
            },
            "dead_letter_topic": None,
        }

    @pytest.mark.parametrize("is_json", [True, False])
    async def test_they_are_set_and_obeyed(
        self, nsqd: RunningDaemon, http: HttpClient, *, is_json: bool
    ) -> None:
        await make_channel(nsqd)
        if is_json:
            body = (
                b'{"max_depth":1,"msg_ttl":"1h","dead_letter_topic_suffix":".d","max_attempts":3}'
            )
            reply = await http.post("/topic/limits?topic=t", body)
        else:
            query = "max_depth=1&msg_ttl=1h&dead_letter_topic_suffix=.d&max_attempts=3"
            reply = await http.post(f"/topic/limits?topic=t&{query}", b"")

        limits = reply.json()["limits"]
        assert limits["max_depth"] == {"value": 1, "source": "topic"}
        assert limits["msg_ttl"] == {"value": "1h0m0s", "source": "topic"}
        assert limits["max_depth_bytes"] == {"value": 0, "source": "flag"}
        assert reply.json()["dead_letter_topic"] == "t.d"
        assert (await http.post("/pub?topic=t", b"1")).status == 200
        assert (await http.post("/pub?topic=t", b"2")).status == 503
        assert (await http.post("/pub?topic=u", b"1")).status == 200
        assert (await http.post("/pub?topic=u", b"2")).status == 200
        await http.post("/topic/limits?topic=t", b'{"max_depth":null}')
        assert (await http.post("/pub?topic=t", b"2")).status == 200

    async def test_a_restart_keeps_them(self, start_nsqd: StartNsqd, tmp_path: Path) -> None:
        nsqd = await start_nsqd()
        await make_channel(nsqd)
        async with await connect_http(nsqd) as http:
            await http.post("/topic/limits?topic=t", b'{"max_depth":2,"max_depth_bytes":1000}')
        await nsqd.publish("t", b"1", b"2")
        stored = json.loads((tmp_path / "nsqd.dat").read_bytes())["topics"][0]["limits"]
        assert stored == {"max_depth": 2, "max_depth_bytes": 1000}
        await nsqd.stop()

        again = await start_nsqd()
        client = await again.connect()
        client.pub("t", b"3")

        await client.expect_error(
            b"E_PUB_FAILED PUB failed channel t:ch would hold 3 messages, more than --max-depth=2"
        )

    @pytest.mark.parametrize(
        ("target", "body", "status", "code"),
        [
            ("/topic/limits", b"", 400, "MISSING_ARG_TOPIC"),
            ("/topic/limits?topic=no%20blanks", b"", 400, "INVALID_TOPIC"),
            ("/topic/limits?topic=unknown", b"", 404, "TOPIC_NOT_FOUND"),
            ("/topic/limits?topic=t", b"{", 400, "INVALID_BODY"),
            ("/topic/limits?topic=t", b"[]", 400, "INVALID_BODY"),
            ("/topic/limits?topic=t", b"[" * 4000, 400, "INVALID_BODY"),
            ("/topic/limits?topic=t&max_depth=1", b"{}", 400, "INVALID_BODY"),
            ("/topic/limits?topic=t", b'{"max_dept":1}', 400, "UNKNOWN_LIMIT"),
            ("/topic/limits?topic=t", b'{"max_depth":-1}', 400, "INVALID_MAX_DEPTH"),
            ("/topic/limits?topic=t", b'{"max_depth":true}', 400, "INVALID_MAX_DEPTH"),
            ("/topic/limits?topic=t", b'{"max_depth":1e3}', 400, "INVALID_MAX_DEPTH"),
            ("/topic/limits?topic=t&max_depth=x", b"", 400, "INVALID_MAX_DEPTH"),
            ("/topic/limits?topic=t&max_attempts=65536", b"", 400, "INVALID_MAX_ATTEMPTS"),
            ("/topic/limits?topic=t&max_depth_bytes=", b"", 400, "INVALID_MAX_DEPTH_BYTES"),
            ("/topic/limits?topic=t&max_depth_policy=x", b"", 400, "INVALID_MAX_DEPTH_POLICY"),
            ("/topic/limits?topic=t", b'{"msg_ttl":60}', 400, "INVALID_MSG_TTL"),
            ("/topic/limits?topic=t&msg_ttl=60", b"", 400, "INVALID_MSG_TTL"),
            ("/topic/limits?topic=t&msg_ttl=-1s", b"", 400, "INVALID_MSG_TTL"),
            # A float of seconds cannot hold it: nsqd.dat would have one nanosecond too many.
            (
                "/topic/limits?topic=t&msg_ttl=2562047h47m16.854775807s",
                b"",
                *(400, "INVALID_MSG_TTL"),
            ),
            ("/topic/limits?topic=t&max_depth=0x10", b"", 400, "INVALID_MAX_DEPTH"),
            ("/topic/limits?topic=t&max_depth=%2B10", b"", 400, "INVALID_MAX_DEPTH"),
            ("/topic/limits?topic=t&max_depth=1_000", b"", 400, "INVALID_MAX_DEPTH"),
            ("/topic/limits?topic=t&max_depth=9223372036854775808", b"", 400, "INVALID_MAX_DEPTH"),
            ("/topic/limits?topic=t", b'{"max_depth_policy":1}', 400, "INVALID_MAX_DEPTH_POLICY"),
            (
                "/topic/limits?topic=t&dead_letter_topic_suffix=%21",
                b"",
                *(400, "INVALID_DEAD_LETTER_TOPIC_SUFFIX"),
            ),
            (
                "/topic/limits?topic=t&dead_letter_topic_suffix=" + "x" * 64,
                b"",
                *(400, "INVALID_DEAD_LETTER_TOPIC_SUFFIX"),
            ),
            ("/topic/limits?topic=t", b"x" * 5000, 413, "BODY_TOO_BIG"),
        ],
    )
    async def test_nonsense_is_refused_and_changes_nothing(
        self,
        nsqd: RunningDaemon,
        http: HttpClient,
        target: str,
        body: bytes,
        status: int,
        code: str,
    ) -> None:
        await nsqd.post("/topic/create?topic=t")
        await http.post("/topic/limits?topic=t&max_depth=5", b"")

        reply = await http.post(target, body)

        assert reply.error == (status, code)
        [topic] = nsqd.daemon.broker.topics.values()
        assert topic.limit_overrides.to_json() == {"max_depth": 5}

    async def test_a_name_too_long_for_the_suffix(
        self, nsqd: RunningDaemon, http: HttpClient
    ) -> None:
        name = "x" * 60
        await nsqd.post(f"/topic/create?topic={name}")

        reply = await http.post(f"/topic/limits?topic={name}&dead_letter_topic_suffix=.dead", b"")

        assert reply.error == (400, "INVALID_DEAD_LETTER_TOPIC_SUFFIX")

    async def test_the_token_guards_them(self, start_nsqd: StartNsqd, tmp_path: Path) -> None:
        (tmp_path / "token").write_text("secret")
        nsqd = await start_nsqd(http_auth_token_file=str(tmp_path / "token"))
        async with await connect_http(nsqd) as http:
            reply = await http.post("/topic/limits?topic=t&max_depth=5", b"")

        assert reply.error == (401, "UNAUTHORIZED")

    async def test_an_ephemeral_topic_has_them_until_it_goes(
        self, nsqd: RunningDaemon, http: HttpClient, tmp_path: Path
    ) -> None:
        await nsqd.post("/topic/create?topic=t%23ephemeral")

        reply = await http.post(
            "/topic/limits?topic=t%23ephemeral&max_depth=1&dead_letter_topic_suffix=.d", b""
        )

        assert reply.json()["dead_letter_topic"] is None
        assert (await http.post("/mpub?topic=t%23ephemeral", b"1\n2")).status == 503
        assert b"limits" not in (tmp_path / "nsqd.dat").read_bytes()


async def test_what_was_lost_is_shown(start_nsqd: StartNsqd) -> None:
    nsqd = await start_nsqd(limits=Limits(max_depth=1, max_depth_policy=DepthPolicy.DROP_OLDEST))
    await make_channel(nsqd)
    client: V2Client = await nsqd.connect()
    await client.publish("t", b"1")
    await client.publish("t", b"2")
    client.mpub("t", b"3", b"4")
    await client.read_frame()
    await nsqd.wait_for_channel("t", depth=1)

    _, text = await nsqd.request("GET", "/stats")
    _, metrics = await nsqd.request("GET", "/metrics")

    assert b"e2e%:  rejected: 1\n" in text
    assert b"e2e%:  dropped: 1\n" in text
    assert b'nsqd_topic_rejected_total{topic="t"} 1\n' in metrics
    assert b'nsqd_channel_dropped_total{channel="ch",topic="t",reason="depth"} 1\n' in metrics
    assert b'nsqd_channel_dropped_total{channel="ch",topic="t",reason="ttl"} 0\n' in metrics
    assert b'nsqd_channel_dead_lettered_total{channel="ch",topic="t"} 0\n' in metrics
    assert b'nsqd_topic_max_depth{topic="t"} 1\n' in metrics


async def test_without_limits_nothing_is_shown(nsqd: RunningDaemon) -> None:
    consumer = await nsqd.consumer("t", rdy=1)
    await nsqd.publish("t", b"x")
    kind, _ = await consumer.read_frame()

    stats = await nsqd.stats()

    assert kind == MESSAGE
    assert "dropped" not in json.dumps(stats)
    assert "rejected" not in json.dumps(stats)
