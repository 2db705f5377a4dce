"""PUB, MPUB and DPUB: what is accepted, what is refused and how (W-50 to W-68, W-130 to W-133)."""

import re
import struct

import pytest

from tests.support.running_daemon import RunningDaemon, StartNsqd
from tests.support.v2_client import V2Client, mpub_body, sized

MAX_MSG_SIZE = 1024
MAX_BODY_SIZE = 4096


@pytest.fixture
async def small(start_nsqd: StartNsqd) -> RunningDaemon:
    """nsqd with small limits."""
    return await start_nsqd(max_msg_size=MAX_MSG_SIZE, max_body_size=MAX_BODY_SIZE)


def int32(number: int) -> bytes:
    return struct.pack(">i", number)


async def bodies_of(nsqd: RunningDaemon, topic: str) -> list[bytes]:
    """Return what has been published to a topic that nobody has read."""
    count = (await nsqd.topic(topic))["depth"]
    consumer = await nsqd.consumer(topic, rdy=2500)
    return [message.body for message in await consumer.read_messages(count)]


async def finish_all(nsqd: RunningDaemon, topic: str) -> list[bytes]:
    """Take and finish what has been published to a topic, however much it is."""
    count = (await nsqd.topic(topic))["depth"]
    consumer = await nsqd.consumer(topic, rdy=2500)
    bodies: list[bytes] = []
    while len(bodies) < count:
        message = await consumer.read_message()
        consumer.fin(message)
        bodies.append(message.body)
    return bodies


async def test_publish_creates_the_topic(nsqd: RunningDaemon) -> None:  # W-50
    client = await nsqd.connect()

    await client.publish("t", b"hello")

    topic = await nsqd.topic("t")
    assert (topic["depth"], topic["message_count"], topic["message_bytes"]) == (1, 1, 5)


@pytest.mark.parametrize("verb", ["PUB", "MPUB", "DPUB"])  # W-51, W-66
async def test_without_parameters_is_refused(client: V2Client, verb: str) -> None:
    client.command(verb)

    await client.expect_error(f"E_INVALID {verb} insufficient number of parameters".encode())


async def test_dpub_without_time_is_refused(client: V2Client) -> None:  # W-66
    client.command("DPUB", "t", body=b"x")

    await client.expect_error(b"E_INVALID DPUB insufficient number of parameters")


@pytest.mark.parametrize(
    ("name", "quoted"),
    [
        (b"t%1", rb'"t%1"'),
        (b'a"b\\', rb'"a\"b\\"'),
        (b"\t\x01\x7f", rb'"\t\x01\x7f"'),
        (b"\xff", rb'"\xff"'),
        ("zażółć".encode(), '"zażółć"'.encode()),
        (b"#ephemeral", b'"#ephemeral"'),
        (b"a#eph", b'"a#eph"'),
        (b"x" * 65, b'"' + b"x" * 65 + b'"'),
        (b"x" * 55 + b"#ephemeral", b'"' + b"x" * 55 + b'#ephemeral"'),
    ],
)  # W-52, W-57, W-130, W-131
async def test_bad_topic_names_are_quoted_as_go_does(
    nsqd: RunningDaemon, name: bytes, quoted: bytes
) -> None:
    for verb, prefix in ((b"PUB", b""), (b"MPUB", b"E_BAD_TOPIC "), (b"DPUB", b"")):
        client = await nsqd.connect()
        client.command(verb, name, "0")
        await client.expect_error(
            b"E_BAD_TOPIC " + prefix + verb + b" topic name " + quoted + b" is not valid"
        )
    assert (await nsqd.stats())["topics"] in ([], None)


@pytest.mark.parametrize(
    "name", [".", "..", "-", "_", "A.b-C_9", "x" * 64, "x" * 54 + "#ephemeral", "a#ephemeral"]
)  # W-130, W-131
async def test_good_topic_names_are_accepted(nsqd: RunningDaemon, name: str) -> None:
    client = await nsqd.connect()

    client.pub(name, b"1")
    client.mpub(name, b"2")
    client.dpub(name, 0, b"3")

    await client.expect_ok(3)
    assert await bodies_of(nsqd, name) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("size", [0, -1, -(2**31)])  # W-53
async def test_size_that_is_none_is_refused(nsqd: RunningDaemon, size: int) -> None:
    for line, verb in ((b"PUB t\n", "PUB"), (b"DPUB t 0\n", "DPUB")):
        client = await nsqd.connect()
        client.send(line + int32(size))
        await client.expect_error(f"E_BAD_MESSAGE {verb} invalid message body size {size}".encode())


async def test_message_of_the_greatest_size_is_accepted(small: RunningDaemon) -> None:  # W-54
    client = await small.connect()
    body = bytes(MAX_MSG_SIZE)

    client.pub("t", body)
    client.dpub("t", 0, body)
    client.mpub("t", body, body)

    await client.expect_ok(3)
    assert await bodies_of(small, "t") == [body] * 4


@pytest.mark.parametrize("size", [MAX_MSG_SIZE + 1, 2**31 - 1])  # W-54
async def test_greater_message_is_refused_before_it_is_read(
    small: RunningDaemon, size: int
) -> None:
    for line, verb in ((b"PUB t\n", "PUB"), (b"DPUB t 0\n", "DPUB")):
        client = await small.connect()
        client.send(line + int32(size))
        await client.expect_error(
            f"E_BAD_MESSAGE {verb} message too big {size} > {MAX_MSG_SIZE}".encode()
        )


async def test_default_limit_is_a_mebibyte(nsqd: RunningDaemon) -> None:  # W-54
    client = await nsqd.connect()
    body = bytes(range(256)) * 4096

    await client.publish("t", body)
    assert await bodies_of(nsqd, "t") == [body]

    client.send(b"PUB t\n" + int32(len(body) + 1))
    await client.expect_error(b"E_BAD_MESSAGE PUB message too big 1048577 > 1048576")


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"PUB t\n", "E_BAD_MESSAGE PUB failed to read message body size"),
        (b"PUB t\n\0\0\0", "E_BAD_MESSAGE PUB failed to read message body size"),
        (b"PUB t\n\0\0\0\x05four", "E_BAD_MESSAGE PUB failed to read message body"),
        (b"PUB t\n\0\0\0\x05", "E_BAD_MESSAGE PUB failed to read message body"),
        (b"DPUB t 5\n\0", "E_BAD_MESSAGE DPUB failed to read message body size"),
        (b"DPUB t 5\n\0\0\0\x05four", "E_BAD_MESSAGE DPUB failed to read message body"),
        (b"MPUB t\n\0\0\0", "E_BAD_BODY MPUB failed to read body size"),
        (b"MPUB t\n\0\0\0\x20\0", "E_BAD_BODY MPUB failed to read message count"),
        (
            b"MPUB t\n\0\0\0\x20\0\0\0\x02\0",
            "E_BAD_MESSAGE MPUB failed to read message(0) body size",
        ),
        (
            b"MPUB t\n\0\0\0\x20\0\0\0\x02\0\0\0\x01x\0\0",
            "E_BAD_MESSAGE MPUB failed to read message(1) body size",
        ),
        (
            b"MPUB t\n\0\0\0\x20\0\0\0\x02\0\0\0\x01x\0\0\0\x02y",
            "E_BAD_MESSAGE MPUB failed to read message body",
        ),
    ],
)  # W-55
async def test_eof_within_a_body_is_told(nsqd: RunningDaemon, sent: bytes, text: str) -> None:
    client = await nsqd.connect()
    client.send(sent)

    client.end_output()

    await client.expect_error(text.encode())
    topic = await nsqd.find_topic("t")
    assert topic is None or topic["message_count"] == 0


@pytest.mark.parametrize("split", [1, 5, 7, 11])
async def test_eof_is_told_however_the_bytes_came(nsqd: RunningDaemon, split: int) -> None:
    client = await nsqd.connect()
    data = b"PUB t\n" + sized(b"whole") + b"PUB t\n\0\0\0\x05four"

    for start in range(0, len(data), split):
        client.send(data[start : start + split])
        await client.drain()
    client.end_output()

    await client.expect_ok()
    await client.expect_error(b"E_BAD_MESSAGE PUB failed to read message body")


async def test_mpub_publishes_all_with_one_answer(nsqd: RunningDaemon) -> None:  # W-56
    client = await nsqd.connect()
    bodies = [b"x" * size for size in (1, 200, 3, 200, 70_000)]

    client.mpub("t", *bodies)

    await client.expect_ok()
    await client.expect_quiet()
    topic = await nsqd.topic("t")
    assert (topic["message_count"], topic["message_bytes"]) == (5, 70_404)
    assert await bodies_of(nsqd, "t") == bodies


@pytest.mark.parametrize("count", [4096, 4097, 30_000])  # W-56
async def test_large_mpub_is_in_order_with_its_neighbours(nsqd: RunningDaemon, count: int) -> None:
    client = await nsqd.connect()
    bodies = [b"%05d" % number for number in range(count)]

    client.pub("t", b"before")
    client.mpub("t", *bodies)
    client.pub("t", b"after")
    client.mpub("t", *bodies)
    client.send(b"PUB t\n" + int32(0))

    await client.expect_ok(4)
    await client.expect_error(b"E_BAD_MESSAGE PUB invalid message body size 0")
    assert (await nsqd.topic("t"))["message_count"] == 2 * count + 2
    assert await finish_all(nsqd, "t") == [b"before", *bodies, b"after", *bodies]


async def test_publisher_of_a_large_mpub_may_end_its_output(nsqd: RunningDaemon) -> None:
    client = await nsqd.connect()
    client.mpub("t", *[b"%05d" % number for number in range(30_000)])
    client.pub("t", b"last")

    client.end_output()

    await client.expect_ok(2)
    assert (await finish_all(nsqd, "t"))[-1] == b"last"


async def test_mpub_of_many_equal_messages(nsqd: RunningDaemon) -> None:  # W-56
    client = await nsqd.connect()
    bodies = [b"%06d" % number for number in range(10_000)]

    client.mpub("t", *bodies)

    await client.expect_ok()
    consumer = await nsqd.consumer("t", rdy=2500)
    for start in range(0, 10_000, 1000):
        messages = await consumer.read_messages(1000)
        assert [message.body for message in messages] == bodies[start : start + 1000]
        for message in messages:
            consumer.fin(message)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "E_BAD_BODY MPUB invalid body size 0"),
        (-5, "E_BAD_BODY MPUB invalid body size -5"),
        (MAX_BODY_SIZE + 1, f"E_BAD_BODY MPUB body too big {MAX_BODY_SIZE + 1} > {MAX_BODY_SIZE}"),
        (2**31 - 1, f"E_BAD_BODY MPUB body too big 2147483647 > {MAX_BODY_SIZE}"),
    ],
)  # W-58
async def test_mpub_size_is_checked(small: RunningDaemon, size: int, text: str) -> None:
    client = await small.connect()

    client.send(b"MPUB t\n" + int32(size))

    await client.expect_error(text.encode())


@pytest.mark.parametrize("count", [0, -1, (MAX_BODY_SIZE - 4) // 5 + 1, 2**31 - 1])  # W-59
async def test_mpub_count_is_checked(small: RunningDaemon, count: int) -> None:
    client = await small.connect()

    client.send(b"MPUB t\n" + int32(100) + int32(count))

    await client.expect_error(f"E_BAD_BODY MPUB invalid message count {count}".encode())


async def test_mpub_of_the_greatest_count_is_accepted(small: RunningDaemon) -> None:  # W-59
    client = await small.connect()
    count = (MAX_BODY_SIZE - 4) // 5

    client.mpub("t", *[b"x"] * count)

    await client.expect_ok()
    assert (await small.topic("t"))["message_count"] == count


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        (sized(b""), "E_BAD_MESSAGE MPUB invalid message(0) body size 0"),
        (sized(b"x") + int32(-2), "E_BAD_MESSAGE MPUB invalid message(1) body size -2"),
        (
            sized(b"x") + sized(b"y") + int32(MAX_MSG_SIZE + 1),
            f"E_BAD_MESSAGE MPUB message too big {MAX_MSG_SIZE + 1} > {MAX_MSG_SIZE}",
        ),
    ],
)  # W-60, W-61
async def test_mpub_with_one_bad_message_publishes_nothing(
    small: RunningDaemon, messages: bytes, text: str
) -> None:
    client = await small.connect()

    client.send(b"MPUB t\n" + int32(200) + int32(3) + messages)

    await client.expect_error(text.encode())
    topic = await small.find_topic("t")
    assert topic is None or topic["message_count"] == 0


@pytest.mark.parametrize("outer", [1, 5, 4000])  # W-62
async def test_mpub_with_a_lying_size_stays_in_step(small: RunningDaemon, outer: int) -> None:
    client = await small.connect()

    client.send(b"MPUB t\n" + int32(outer) + mpub_body(b"first", b"second"))
    client.pub("t", b"third")

    await client.expect_ok(2)
    assert await bodies_of(small, "t") == [b"first", b"second", b"third"]


async def test_mpub_cannot_lie_its_way_past_the_limit(small: RunningDaemon) -> None:
    """Where nsqd would hold whatever is sent, max-body-size holds for the real extent too."""
    client = await small.connect()

    client.send(b"MPUB t\n" + int32(100) + mpub_body(*[bytes(MAX_MSG_SIZE)] * 5))

    await client.expect_error(
        f"E_BAD_BODY MPUB body too big {4 + 4 * (MAX_MSG_SIZE + 4)} > {MAX_BODY_SIZE}".encode()
    )
    topic = await small.find_topic("t")
    assert topic is None or topic["message_count"] == 0


async def test_dpub_of_the_longest_delay_is_accepted(nsqd: RunningDaemon) -> None:  # W-64
    await nsqd.consumer("t")
    client = await nsqd.connect()

    client.dpub("t", 3_600_000, b"x")

    await client.expect_ok()
    assert (await nsqd.channel("t"))["deferred_count"] == 1


@pytest.mark.parametrize("delay_ms", [3_600_001, 2**63, 2**64 - 1])  # W-64
async def test_dpub_beyond_the_longest_delay_is_refused(client: V2Client, delay_ms: int) -> None:
    client.dpub("t", delay_ms, b"x")

    await client.expect_error(f"E_INVALID DPUB timeout {delay_ms} out of range 0-3600000".encode())


@pytest.mark.parametrize("raw", [b"-1", b"abc", b"1.5", b"+1", b"0x10", "\u0661".encode()])  # W-65
async def test_dpub_time_must_be_digits(client: V2Client, raw: bytes) -> None:
    client.command("DPUB", "t", raw, body=b"x")

    await client.expect_error(b"E_INVALID DPUB could not parse timeout " + raw)


async def test_dpub_with_an_empty_time_is_not_deferred(nsqd: RunningDaemon) -> None:  # W-65
    consumer = await nsqd.consumer("t", rdy=1)
    client = await nsqd.connect()

    client.send(b"DPUB t \n" + sized(b"x"))

    await client.expect_ok()
    assert (await consumer.read_message()).body == b"x"


async def test_dpub_time_does_not_wrap_around(client: V2Client) -> None:
    """Where nsqd takes 2**64 + 1 for 1."""
    client.command("DPUB", "t", 2**64 + 1, body=b"x")

    kind, text = await client.read_frame()
    assert (kind, text.startswith(b"E_INVALID DPUB ")) == (1, True)
    await client.expect_closed()


async def test_limit_of_req_is_the_limit_of_dpub(start_nsqd: StartNsqd) -> None:  # W-64
    nsqd = await start_nsqd(max_req_timeout_s=2.0)
    client = await nsqd.connect()

    client.dpub("t", 2001, b"x")

    await client.expect_error(b"E_INVALID DPUB timeout 2001 out of range 0-2000")


async def test_consumer_may_publish(nsqd: RunningDaemon) -> None:  # W-67
    consumer = await nsqd.consumer("t")

    consumer.pub("t", b"subscribed")
    await consumer.expect_ok()
    consumer.command("CLS")
    assert await consumer.read_response() == b"CLOSE_WAIT"
    consumer.pub("t", b"closing")
    consumer.mpub("t", b"closing")
    consumer.dpub("t", 0, b"closing")

    await consumer.expect_ok(3)
    assert (await nsqd.topic("t"))["message_count"] == 4
    [producer] = (await nsqd.stats())["producers"]
    assert producer["pub_counts"] == [{"topic": "t", "count": 4}]


async def test_ids_grow_and_carry_the_node_id(start_nsqd: StartNsqd) -> None:  # W-132, W-133
    nsqd = await start_nsqd(node_id=777)
    client = await nsqd.connect()
    client.mpub("t", *[b"x"] * 5000)
    await client.publish("t", *[b"x"] * 50)
    await client.publish("u", b"x")

    consumer = await nsqd.consumer("t", rdy=2500)
    ids = []
    for _ in range(5050 // 50):
        for message in await consumer.read_messages(50):
            ids.append(message.id)
            consumer.fin(message)
    other = await (await nsqd.consumer("u", rdy=1)).read_message()

    assert all(re.fullmatch(rb"[0-9a-f]{16}", message_id) for message_id in ids)
    assert ids == sorted(set(ids))
    assert {int(message_id, 16) >> 12 & 1023 for message_id in ids} == {777}
    assert other.id not in ids  # nsqd's are unique per topic only
