"""Whatever a client sends, it harms neither nsqd nor other clients nor their messages."""

import asyncio
import random
import struct

import pytest

from tests.support.running_daemon import RunningDaemon, StartNsqd
from tests.support.v2_client import Deflate, Snappy, V2Client, mpub_body, sized

# A conversation with every command in it.
CONVERSATION = (
    b"  V2"
    + b"IDENTIFY\n" + sized(b'{"client_id":"x","heartbeat_interval":5000,"sample_rate":0}')
    + b"PUB a\n" + sized(b"one")
    + b"PUB a\n" + sized(b"two")
    + b"DPUB a 60000\n" + sized(b"three")
    + b"MPUB a\n" + sized(mpub_body(b"four", b"five", b"six"))
    + b"SUB a c\r\n"
    + b"RDY 2\n"
    + b"TOUCH 0123456789abcdef\n"
    + b"REQ 0123456789abcdef 100\n"
    + b"FIN 0123456789abcdef\n" * 3
    + b"NOP\n"
    + b"CLS\n"
)  # fmt: skip


class Bystander:
    """A consumer and a publisher who must not notice anything."""

    def __init__(self, consumer: V2Client, publisher: V2Client) -> None:
        self._consumer = consumer
        self._publisher = publisher

    @classmethod
    async def join(cls, nsqd: RunningDaemon) -> "Bystander":
        return cls(await nsqd.consumer("quiet", rdy=1), await nsqd.connect())

    async def is_undisturbed(self) -> bool:
        """Send a message and get it back."""
        await self._publisher.publish("quiet", b"hello")
        message = await self._consumer.read_message()
        self._consumer.fin(message)
        return message.body == b"hello"


@pytest.fixture
async def bystander(nsqd: RunningDaemon) -> Bystander:
    return await Bystander.join(nsqd)


async def talk(nsqd: RunningDaemon, data: bytes) -> None:
    """Send bytes, then end, and wait until nsqd has had enough."""
    client = await V2Client.connect(nsqd.address, magic=data)
    client.end_output()
    await client.wait_closed()
    await client.close()


async def test_random_bytes(nsqd: RunningDaemon, bystander: Bystander) -> None:
    noise = random.Random(20)
    for number in range(100):
        start = b"  V2" if number % 4 else b""
        await talk(nsqd, start + noise.randbytes(noise.randrange(1, 3000)))

    assert await bystander.is_undisturbed()


async def test_random_words(nsqd: RunningDaemon, bystander: Bystander) -> None:
    noise = random.Random(21)
    words = [b"PUB", b"MPUB", b"DPUB", b"SUB", b"RDY", b"FIN", b"REQ", b"TOUCH", b"IDENTIFY",
             b"AUTH", b"CLS", b"NOP", b" ", b" ", b"\n", b"\n", b"\r\n", b"a", b"c", b"0",
             b"0123456789abcdef", b"\0\0\0\x01", b"\0\0\0\x05", b"\xff\xff\xff\xff", b"{}",
             b"\x7f\xff\xff\xff", b"#ephemeral"]  # fmt: skip
    for _ in range(200):
        await talk(nsqd, b"  V2" + b"".join(noise.choices(words, k=noise.randrange(1, 40))))

    assert await bystander.is_undisturbed()


async def test_conversation_cut_off_anywhere(nsqd: RunningDaemon, bystander: Bystander) -> None:
    for end in range(len(CONVERSATION)):
        await talk(nsqd, CONVERSATION[:end])

    assert await bystander.is_undisturbed()
    await nsqd.wait_for_channel("a", "c", client_count=0)


async def test_conversation_with_flipped_bits(nsqd: RunningDaemon, bystander: Bystander) -> None:
    noise = random.Random(22)
    for _ in range(200):
        data = bytearray(CONVERSATION)
        for _ in range(noise.randrange(1, 5)):
            data[noise.randrange(4, len(data))] ^= 1 << noise.randrange(8)
        await talk(nsqd, bytes(data))

    assert await bystander.is_undisturbed()


async def test_conversation_in_random_pieces(nsqd: RunningDaemon) -> None:
    noise = random.Random(23)
    for _ in range(20):
        client = await nsqd.connect(magic=b"")
        rest = CONVERSATION
        while rest:
            size = noise.randrange(1, 30)
            client.send(rest[:size])
            rest = rest[size:]
            await client.drain()
            await asyncio.sleep(0)
        seen: list[tuple[int, bytes]] = []
        while seen[-1:] != [(0, b"CLOSE_WAIT")]:
            kind, data = await client.read_frame()
            if kind != 2:
                seen.append((kind, data))
        assert [kind for kind, _ in seen] == [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 0]
        await client.close()
    assert (await nsqd.topic("a"))["message_count"] == 20 * 6


@pytest.mark.parametrize("size", [2**31 - 1, -(2**31), -1, 0, 2**30])
async def test_huge_lengths_reserve_nothing(
    nsqd: RunningDaemon, bystander: Bystander, size: int
) -> None:
    lengths = struct.pack(">i", size)
    for line in (b"IDENTIFY\n", b"AUTH\n", b"PUB a\n", b"DPUB a 0\n", b"MPUB a\n"):
        await talk(nsqd, b"  V2" + line + lengths)
    await talk(nsqd, b"  V2MPUB a\n" + struct.pack(">i", 1000) + lengths)
    await talk(nsqd, b"  V2MPUB a\n" + struct.pack(">ii", 1000, 1) + lengths)

    assert await bystander.is_undisturbed()


@pytest.mark.both_loops("resets")
async def test_resets_at_any_moment(nsqd: RunningDaemon, bystander: Bystander) -> None:
    noise = random.Random(24)
    await nsqd.publish("a", *[bytes(10_000)] * 100)
    for _ in range(60):
        client = await nsqd.connect(magic=b"")
        client.send(CONVERSATION[: noise.randrange(len(CONVERSATION))])
        await client.drain()
        await asyncio.sleep(noise.choice([0, 0, 0.001]))
        client.reset()

    assert await bystander.is_undisturbed()
    await nsqd.wait_for_channel("a", "c", client_count=0)


@pytest.mark.parametrize("kind", ["snappy", "deflate"])
async def test_random_bytes_inside_a_compression(
    nsqd: RunningDaemon, bystander: Bystander, kind: str
) -> None:
    noise = random.Random(25)
    for number in range(60):
        client = await nsqd.connect()
        await client.identify(**{kind: True})
        client.start_codec(Snappy() if kind == "snappy" else Deflate())
        await client.expect_ok()
        data = bytearray((Snappy() if kind == "snappy" else Deflate()).encode(CONVERSATION[4:]))
        for _ in range(number % 5):
            data[noise.randrange(len(data))] ^= 1 << noise.randrange(8)
        client.send_below(bytes(data) + noise.randbytes(number))
        client.end_output()
        await client.wait_closed()
        await client.close()

    assert await bystander.is_undisturbed()


@pytest.mark.both_loops("accepting")
async def test_hundreds_of_clients_at_once(start_nsqd: StartNsqd) -> None:
    nsqd = await start_nsqd()
    consumer = await nsqd.consumer("t", rdy=2500)

    async def publish(number: int) -> None:
        await nsqd.publish("t", *[b"%d-%d" % (number, index) for index in range(10)])

    await asyncio.gather(*map(publish, range(200)))

    bodies = {message.body for message in await consumer.read_messages(2000)}
    assert bodies == {b"%d-%d" % (number, index) for number in range(200) for index in range(10)}


async def test_fatal_error_of_one_consumer_leaves_the_others_their_messages(
    start_nsqd: StartNsqd,
) -> None:
    nsqd = await start_nsqd(msg_timeout_s=0.3)
    bad = await nsqd.consumer("t", rdy=1)
    good = await nsqd.consumer("t")
    await nsqd.publish("t", b"1", b"2")
    message = await bad.read_message()

    bad.command("FIN", "nonsense")
    await bad.expect_error(b"E_INVALID invalid message ID")
    good.rdy(2)

    first = await good.read_message()
    good.command("FIN", first.id.decode())  # in time, so that it does not come again
    second = await good.read_message()
    assert (first.body, second.body) == (b"2", b"1")
    assert (second.id, second.attempts) == (message.id, 2)


async def test_topic_deleted_under_its_publishers_and_consumers(nsqd: RunningDaemon) -> None:
    """Deleting while others publish and subscribe loses connections at most, never the daemon."""

    async def publish() -> None:
        client = await nsqd.connect()
        for _ in range(100):
            await client.publish("t", b"x")

    async def consume() -> None:
        for _ in range(30):
            client = await nsqd.consumer("t", rdy=5)
            await asyncio.sleep(0.001)
            await client.close()

    async def delete() -> None:
        for _ in range(30):
            await nsqd.request("POST", "/topic/delete?topic=t")
            await nsqd.request("POST", "/channel/delete?topic=t&channel=ch")

    await asyncio.gather(publish(), publish(), consume(), consume(), delete())

    await nsqd.publish("t", b"still here")
