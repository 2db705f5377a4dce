"""POST /pub and /mpub: what is taken, what is refused and how (H-20 to H-34)."""

import errno
import struct
from collections.abc import AsyncIterator

import pytest

from nsqd.api.publish import PART_BYTES
from nsqd.broker.topic import Topic
from tests.support.http_client import HttpClient
from tests.support.running_daemon import RunningDaemon, StartNsqd
from tests.support.v2_client import mpub_body

MAX_MSG_SIZE = 1000
MAX_BODY_SIZE = 5000


@pytest.fixture
async def http(nsqd: RunningDaemon) -> AsyncIterator[HttpClient]:
    async with await connect(nsqd) as client:
        yield client


@pytest.fixture
async def small(start_nsqd: StartNsqd) -> RunningDaemon:
    return await start_nsqd(
        max_msg_size=MAX_MSG_SIZE, max_body_size=MAX_BODY_SIZE, max_req_timeout_s=10.0
    )


async def connect(nsqd: RunningDaemon) -> HttpClient:
    return await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port))


async def bodies_of(nsqd: RunningDaemon, topic: str) -> list[bytes]:
    """Return what has been published to a topic that nobody has read."""
    count = (await nsqd.topic(topic))["depth"]
    consumer = await nsqd.consumer(topic, rdy=2500)
    return [message.body for message in await consumer.read_messages(count)]


class TestPub:
    async def test_the_body_is_the_message(self, nsqd: RunningDaemon, http: HttpClient) -> None:
        body = b"\x00\xff line\nline\r\n"

        reply = await http.post("/pub?topic=t", body)  # H-20

        assert (reply.status, reply.body) == (200, b"OK")
        assert await bodies_of(nsqd, "t") == [body]

    @pytest.mark.parametrize(
        ("target", "body", "status", "code"),
        [
            ("/pub?topic=bad%21", b"", 400, "MSG_EMPTY"),  # H-21
            ("/pub", b"x", 400, "MISSING_ARG_TOPIC"),  # H-22
            ("/pub?topic=", b"x", 400, "INVALID_TOPIC"),
            ("/pub?topic=bad%21", b"x", 400, "INVALID_TOPIC"),
            ("/pub?topic=" + "x" * 65, b"x", 400, "INVALID_TOPIC"),
            ("/pub?topic=t", b"x" * (MAX_MSG_SIZE + 1), 413, "MSG_TOO_BIG"),  # H-23
            ("/pub?topic=t&defer=abc", b"x", 400, "INVALID_DEFER"),  # H-24
            ("/pub?topic=t&defer=", b"x", 400, "INVALID_DEFER"),
            ("/pub?topic=t&defer=-1", b"x", 400, "INVALID_DEFER"),
            ("/pub?topic=t&defer=1_0", b"x", 400, "INVALID_DEFER"),
            ("/pub?topic=t&defer=10001", b"x", 400, "INVALID_DEFER"),
            ("/pub?topic=t&defer=" + "9" * 5000, b"x", 400, "INVALID_DEFER"),
        ],
    )
    async def test_what_is_refused_leaves_no_topic(
        self, small: RunningDaemon, target: str, body: bytes, status: int, code: str
    ) -> None:
        async with await connect(small) as http:
            assert (await http.post(target, body)).error == (status, code)

        assert small.daemon.broker.topics == {}

    async def test_largest_message(self, small: RunningDaemon) -> None:  # H-23
        async with await connect(small) as http:
            assert (await http.post("/pub?topic=t", b"y" * MAX_MSG_SIZE)).status == 200

        assert await bodies_of(small, "t") == [b"y" * MAX_MSG_SIZE]

    async def test_chunked(self, small: RunningDaemon) -> None:  # H-23
        half = b"z" * (MAX_MSG_SIZE // 2)
        async with await connect(small) as http:
            reply = await http.request("POST", "/pub?topic=t", chunks=[half, half])
            assert reply.body == b"OK"
            reply = await http.request("POST", "/pub?topic=t", chunks=[half, half, b"!"])
            assert reply.error == (413, "MSG_TOO_BIG")

        assert await bodies_of(small, "t") == [half + half]

    @pytest.mark.parametrize("defer", ["10000", "%2B1", "0005"])
    async def test_defer_keeps_back(self, small: RunningDaemon, defer: str) -> None:  # H-24
        await small.post("/topic/create?topic=t")
        await small.post("/channel/create?topic=t&channel=ch")
        async with await connect(small) as http:
            assert (await http.post(f"/pub?topic=t&defer={defer}", b"x")).status == 200

        consumer = await small.consumer("t", rdy=1)
        if defer == "10000":
            assert (await small.channel("t"))["deferred_count"] == 1
            await consumer.expect_quiet()
        else:
            assert (await consumer.read_message()).body == b"x"

    async def test_defer_of_zero_is_none(self, nsqd: RunningDaemon, http: HttpClient) -> None:
        await http.post("/pub?topic=t&defer=0", b"x")

        assert await bodies_of(nsqd, "t") == [b"x"]

    @pytest.mark.parametrize("target", ["/pub?topic=t", "/mpub?topic=t", "/pub?topic=t&defer=0"])
    async def test_a_disk_error_refuses(  # H-25
        self,
        nsqd: RunningDaemon,
        http: HttpClient,
        monkeypatch: pytest.MonkeyPatch,
        target: str,
    ) -> None:
        def fail(self: Topic, *args: object, **kwargs: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        await http.post("/topic/create?topic=t")
        monkeypatch.setattr(Topic, "publish", fail)

        assert (await http.post(target, b"x")).error == (503, "DISK_FULL: no space left on device")

    async def test_publishes_are_not_logged(  # H-34
        self, http: HttpClient, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO")
        await http.post("/pub?topic=t", b"x")
        await http.post("/mpub?topic=t", b"x\ny")
        await http.get("/ping")

        lines = [record.getMessage() for record in caplog.records if "http" in record.name]
        assert len(lines) == 1
        assert lines[0].startswith("200 GET /ping (127.0.0.1:")


class TestMpub:
    @pytest.mark.parametrize(
        ("body", "messages"),
        [
            (b"a\nb\n\nc\n", [b"a", b"b", b"c"]),  # H-26
            (b"a\r\nb", [b"a\r", b"b"]),  # H-27
            (b"\n\n\n", []),
            (b"", []),  # H-28
        ],
    )
    async def test_lines(
        self, nsqd: RunningDaemon, http: HttpClient, body: bytes, messages: list[bytes]
    ) -> None:
        reply = await http.post("/mpub?topic=t", body)

        assert (reply.status, reply.body) == (200, b"OK")
        assert (await nsqd.topic("t"))["message_count"] == len(messages)
        assert await bodies_of(nsqd, "t") == messages

    @pytest.mark.parametrize(
        ("target", "body", "status", "code"),
        [
            ("/mpub?topic=t", b"x" * (MAX_BODY_SIZE + 1), 413, "BODY_TOO_BIG"),  # H-29
            ("/mpub", b"x", 400, "MISSING_ARG_TOPIC"),
            ("/mpub?topic=a%20b", b"x", 400, "INVALID_TOPIC"),
            ("/mpub?topic=t", b"ok\n" + b"x" * (MAX_MSG_SIZE + 1), 413, "MSG_TOO_BIG"),  # H-30
            ("/mpub?topic=t&defer=x", b"x", 400, "INVALID_DEFER"),
            ("/mpub?topic=t&binary=1", b"", 413, "BAD_BODY"),  # H-32
            ("/mpub?topic=t&binary=1", b"\0\0\0", 413, "BAD_BODY"),
            ("/mpub?topic=t&binary=1", struct.pack(">i", 0), 413, "BAD_BODY"),
            ("/mpub?topic=t&binary=1", struct.pack(">i", -1), 413, "BAD_BODY"),
            ("/mpub?topic=t&binary=1", struct.pack(">i", 1000), 413, "BAD_BODY"),
            ("/mpub?topic=t&binary=1", struct.pack(">i", 999), 413, "BAD_MESSAGE"),
            ("/mpub?topic=t&binary=1", struct.pack(">ii", 1, 0), 413, "BAD_MESSAGE"),
            ("/mpub?topic=t&binary=1", struct.pack(">ii", 1, -5), 413, "BAD_MESSAGE"),
            ("/mpub?topic=t&binary=1", struct.pack(">ii", 1, 1001) + b"x" * 1001, 413,
             "BAD_MESSAGE"),
            ("/mpub?topic=t&binary=1", mpub_body(b"ok", b"cut")[:-1], 413, "BAD_MESSAGE"),
            ("/mpub?topic=t&binary=1", struct.pack(">ih", 1, 0), 413, "BAD_MESSAGE"),
        ],
    )  # fmt: skip
    async def test_what_is_refused_publishes_nothing(
        self, small: RunningDaemon, target: str, body: bytes, status: int, code: str
    ) -> None:
        async with await connect(small) as http:
            assert (await http.post(target, body)).error == (status, code)

        assert small.daemon.broker.topics == {}

    async def test_largest_body(self, small: RunningDaemon) -> None:  # H-29
        lines = [b"x" * 999] * 5
        async with await connect(small) as http:
            body = b"\n".join(lines).ljust(MAX_BODY_SIZE, b"\n")
            assert (await http.post("/mpub?topic=t", body)).status == 200
            too_long = await http.request("POST", "/mpub?topic=t", chunks=[body, b"\n"])
            assert too_long.error == (413, "BODY_TOO_BIG")

        assert await bodies_of(small, "t") == lines

    @pytest.mark.parametrize("value", ["true", "1", "yes", ""])
    async def test_binary(self, nsqd: RunningDaemon, http: HttpClient, value: str) -> None:
        messages = [b"with\nnewline", b"\x00", b"last"]  # H-31

        reply = await http.post(f"/mpub?topic=t&binary={value}", mpub_body(*messages) + b"rest")

        assert reply.body == b"OK"  # H-33
        assert await bodies_of(nsqd, "t") == messages

    @pytest.mark.parametrize("value", ["false", "0"])
    async def test_not_binary(self, nsqd: RunningDaemon, http: HttpClient, value: str) -> None:
        await http.post(f"/mpub?topic=t&binary={value}", b"a\nb")  # H-31

        assert await bodies_of(nsqd, "t") == [b"a", b"b"]

    @pytest.mark.parametrize("is_binary", [False, True])
    async def test_a_large_body_is_split_in_parts(
        self, nsqd: RunningDaemon, http: HttpClient, *, is_binary: bool
    ) -> None:
        messages = [b"%d" % number * (1 + number % 7) for number in range(2400)]
        messages[1000] = b"x" * (2 * PART_BYTES)
        body = mpub_body(*messages) if is_binary else b"\n".join(messages) + b"\n\n"

        reply = await http.post(f"/mpub?topic=t&binary={is_binary}".lower(), body)

        assert (reply.status, reply.body) == (200, b"OK")
        assert await bodies_of(nsqd, "t") == messages

    @pytest.mark.parametrize("is_binary", [False, True])
    async def test_a_large_body_is_taken_as_a_whole_or_not_at_all(
        self, start_nsqd: StartNsqd, *, is_binary: bool
    ) -> None:
        nsqd = await start_nsqd(max_msg_size=MAX_MSG_SIZE)
        messages = [b"x"] * (2 * PART_BYTES) + [b"x" * (MAX_MSG_SIZE + 1)]
        body = mpub_body(*messages) if is_binary else b"\n".join(messages)

        async with await connect(nsqd) as http:
            reply = await http.post(f"/mpub?topic=t&binary={is_binary}".lower(), body)

        assert reply.error == (413, "BAD_MESSAGE" if is_binary else "MSG_TOO_BIG")
        assert nsqd.daemon.broker.topics == {}
