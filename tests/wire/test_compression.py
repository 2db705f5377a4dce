"""Snappy and deflate after IDENTIFY (W-122 to W-126), and what a hostile stream can't do."""

import asyncio
import random
import tracemalloc
import zlib

import pytest
import snappy

from tests.support.running_daemon import RunningDaemon, StartNsqd
from tests.support.v2_client import Codec, Deflate, Snappy, V2Client, mpub_body, sized

OK_FRAME = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
KINDS = ["snappy", "deflate"]


def make_codec(kind: str) -> Codec:
    return Snappy() if kind == "snappy" else Deflate()


async def connect_compressed(nsqd: RunningDaemon, kind: str) -> V2Client:
    """Open a connection and have it compressed, its OK read."""
    client = await nsqd.connect()
    await client.identify(**{kind: True})
    client.start_codec(make_codec(kind))
    await client.expect_ok()
    return client


async def test_snappy_stream_opens_with_its_identifier(client: V2Client) -> None:  # W-122
    assert (await client.identify(snappy=True))["snappy"] is True

    stream = await client.read_raw(10 + 4 + 4 + len(OK_FRAME))

    assert stream.startswith(b"\xff\x06\x00\x00sNaPpY\x01")  # too short to shrink: stored
    assert snappy.StreamDecompressor().decompress(stream) == OK_FRAME


async def test_deflate_stream_is_raw_and_flushed(client: V2Client) -> None:  # W-123
    assert (await client.identify(deflate=True))["deflate"] is True

    stream = await client.read_raw(1)
    while not stream.endswith(b"\x00\x00\xff\xff"):
        stream += await client.read_raw(1)

    assert zlib.decompressobj(-zlib.MAX_WBITS).decompress(stream) == OK_FRAME
    await client.expect_quiet()


@pytest.mark.parametrize("kind", KINDS)  # W-125
async def test_both_directions_are_compressed(nsqd: RunningDaemon, kind: str) -> None:
    client = await connect_compressed(nsqd, kind)
    noise = random.Random(1).randbytes(300_000)
    bodies = [b"x", b"y" * 1_000_000, noise, b"z" * 70_000]

    await client.publish("t", *bodies)
    client.mpub("t", *bodies)
    await client.expect_ok()
    await client.subscribe("t", rdy=100)

    assert [message.body for message in await client.read_messages(8)] == bodies * 2
    stats = await nsqd.client_stats("t")
    assert (stats["snappy"], stats["deflate"]) == (kind == "snappy", kind == "deflate")  # S-12


@pytest.mark.parametrize("kind", KINDS)
async def test_commands_may_come_in_any_pieces(nsqd: RunningDaemon, kind: str) -> None:
    client = await nsqd.connect()
    await client.identify(**{kind: True})
    codec = make_codec(kind)
    client.start_codec(codec)
    await client.expect_ok()
    stream = codec.encode(b"PUB t\n" + sized(b"1")) + codec.encode(
        b"MPUB t\n" + sized(mpub_body(b"2", b"3")) + b"NOP\nPUB t\n" + sized(b"4")
    )

    for byte in stream:
        client.send_below(bytes([byte]))
        await client.drain()
        await asyncio.sleep(0)

    await client.expect_ok(3)
    assert (await nsqd.topic("t"))["message_count"] == 4


@pytest.mark.parametrize("kind", KINDS)
async def test_compressed_commands_may_follow_identify_at_once(
    nsqd: RunningDaemon, kind: str
) -> None:
    """What nsqd would throw away: bytes sent ahead of the upgrade belong to the compression."""
    client = await nsqd.connect()
    codec = make_codec(kind)
    identify = b'{"feature_negotiation": true, "%s": true}' % kind.encode()

    client.send(b"IDENTIFY\n" + sized(identify) + codec.encode(b"PUB t\n" + sized(b"x")))

    assert b'"%s":true' % kind.encode() in await client.read_response()
    client.start_codec(codec)
    await client.expect_ok(2)
    assert (await nsqd.topic("t"))["message_count"] == 1


@pytest.mark.parametrize(
    ("maximum", "asked", "level"),
    [(6, 9, 6), (9, 9, 9), (6, 1, 1), (6, 0, 6), (6, -5, 6), (3, 0, 3)],
)  # W-36
async def test_deflate_level_is_capped(
    start_nsqd: StartNsqd, maximum: int, asked: int, level: int
) -> None:
    nsqd = await start_nsqd(max_deflate_level=maximum)
    client = await nsqd.connect()

    reply = await client.identify(deflate=True, deflate_level=asked)

    assert reply["deflate_level"] == level
    client.start_codec(Deflate(9))
    await client.expect_ok()
    await client.publish("t", b"x" * 10_000)


@pytest.mark.parametrize("kind", KINDS)  # W-126
async def test_garbage_closes_without_an_error(nsqd: RunningDaemon, kind: str) -> None:
    for garbage in (b"PUB t\n" + sized(b"x"), b"\xff" * 100, random.Random(2).randbytes(5000)):
        client = await connect_compressed(nsqd, kind)
        client.send_below(garbage)
        await client.expect_closed()
    assert await nsqd.find_topic("t") is None


async def test_snappy_with_a_wrong_checksum_closes(nsqd: RunningDaemon) -> None:  # W-126
    client = await connect_compressed(nsqd, "snappy")
    stream = bytearray(Snappy().encode(b"PUB t\n" + sized(b"x" * 1000)))
    stream[14] ^= 1

    client.send_below(bytes(stream))

    await client.expect_closed()
    assert await nsqd.find_topic("t") is None


@pytest.mark.parametrize("kind", KINDS)
async def test_eof_within_a_body_is_told_compressed(nsqd: RunningDaemon, kind: str) -> None:
    client = await connect_compressed(nsqd, kind)
    client.send(b"PUB t\n\0\0\0\x05four")

    client.end_output()

    await client.expect_error(b"E_BAD_MESSAGE PUB failed to read message body")


async def test_second_identify_keeps_the_compression(nsqd: RunningDaemon) -> None:
    client = await connect_compressed(nsqd, "snappy")

    reply = await client.identify(snappy=True)

    assert reply["snappy"] is False  # nothing is to be started
    await client.settle()


@pytest.mark.parametrize("kind", KINDS)
async def test_bomb_of_one_endless_line_is_cut_off(nsqd: RunningDaemon, kind: str) -> None:
    client = await connect_compressed(nsqd, kind)
    bomb = make_codec(kind).encode(b"x" * 30_000_000)
    tracemalloc.start()

    client.send_below(bomb)
    await client.expect_closed()

    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 2 * len(bomb) + 2_000_000


@pytest.mark.parametrize("kind", KINDS)
async def test_bomb_of_commands_costs_others_nothing(nsqd: RunningDaemon, kind: str) -> None:
    """A read that grows a thousandfold is worked off in turns of the loop."""
    other = await nsqd.connect()
    client = await connect_compressed(nsqd, kind)

    client.send_below(make_codec(kind).encode(b"NOP\n" * 250_000 + b"PUB last\n\0\0\0\1x"))
    for _ in range(5):
        await other.publish("t", b"x")

    assert "last" not in nsqd.daemon.broker.topics  # the others had their turns meanwhile
    await client.expect_ok()


@pytest.mark.both_loops("turns of the loop")
@pytest.mark.parametrize("kind", KINDS)
async def test_everything_behind_a_big_read_is_run(nsqd: RunningDaemon, kind: str) -> None:
    client = await connect_compressed(nsqd, kind)

    client.send(b"NOP\n" * 100_000 + b"PUB t\n" + sized(b"x"))
    client.send(b"NOP\n" * 50_000 + b"PUB t\n" + sized(b"y"))

    await client.expect_ok(2)
    client.send(b"NOP\n" * 50_000 + b"PUB t\n\0\0\0\x05four")
    client.end_output()
    await client.expect_error(b"E_BAD_MESSAGE PUB failed to read message body")
