"""The start of a connection, framing and command lines (W-1 to W-15)."""

import re
import struct
import time

import pytest

from tests.support.running_daemon import RunningDaemon
from tests.support.v2_client import ERROR, MESSAGE, V2Client, mpub_body, sized

MAX_LINE_BYTES = 16384


async def test_good_magic_gets_no_reply(client: V2Client) -> None:  # W-1
    await client.expect_quiet()

    await client.settle()


async def test_commands_may_follow_the_magic_at_once(nsqd: RunningDaemon) -> None:  # W-1
    client = await nsqd.connect(magic=b"  V2PUB t\n" + sized(b"x") + b"NOP\n")

    await client.expect_ok()


@pytest.mark.both_loops("many reads of one write")
async def test_bytes_may_come_one_by_one(nsqd: RunningDaemon) -> None:  # W-1
    client = await nsqd.connect(magic=b"")

    for byte in b"  V2PUB t\n" + sized(b"x") + b"MPUB t\n" + sized(mpub_body(b"y", b"z")):
        client.send(bytes([byte]))
        await client.drain()

    await client.expect_ok(2)
    assert (await nsqd.topic("t"))["depth"] == 3


@pytest.mark.parametrize("magic", [b"  V1", b"  v2", b"V2  ", bytes(4), b"   V2"])  # W-2
async def test_other_magic_is_refused(nsqd: RunningDaemon, magic: bytes) -> None:
    client = await nsqd.connect(magic=magic)

    await client.expect_error(b"E_BAD_PROTOCOL")


async def test_http_client_is_told_that_this_is_not_its_port(nsqd: RunningDaemon) -> None:  # W-2
    client = await nsqd.connect(magic=b"GET /stats HTTP/1.1\r\nHost: x\r\n\r\n")

    await client.expect_error(b"E_BAD_PROTOCOL")


@pytest.mark.both_loops("half-closed and ended sockets")
@pytest.mark.parametrize("start", [b"", b" ", b"  V"])  # W-3
async def test_eof_within_the_magic_closes_silently(nsqd: RunningDaemon, start: bytes) -> None:
    client = await nsqd.connect(magic=start)

    client.end_output()

    await client.expect_closed()


async def test_eof_after_the_magic_closes_silently(client: V2Client) -> None:
    client.end_output()

    await client.expect_closed()


async def test_response_frame_bytes(client: V2Client) -> None:  # W-4, W-5
    client.pub("t", b"x")

    assert await client.read_raw(10) == b"\x00\x00\x00\x06\x00\x00\x00\x00OK"


async def test_error_frame_bytes(client: V2Client) -> None:  # W-4, W-5
    client.command("NOPE")

    assert await client.read_raw(8 + 30) == (
        b"\x00\x00\x00\x22\x00\x00\x00\x01E_INVALID invalid command NOPE"
    )
    await client.expect_closed()


async def test_message_frame_bytes(nsqd: RunningDaemon) -> None:  # W-4 to W-6
    consumer = await nsqd.consumer("t", rdy=1)
    before_ns = time.time_ns()
    await nsqd.publish("t", b"body\x00\xff")

    frame = await consumer.read_raw(4 + 4 + 26 + 6)

    size, kind, timestamp_ns, attempts, message_id = struct.unpack_from(">iiqH16s", frame)
    assert (size, kind, attempts) == (4 + 26 + 6, MESSAGE, 1)
    assert before_ns <= timestamp_ns <= time.time_ns()
    assert re.fullmatch(rb"[0-9a-f]{16}", message_id)
    assert frame[34:] == b"body\x00\xff"


async def test_line_may_end_with_crlf(client: V2Client) -> None:  # W-7
    client.send(b"PUB t\r\n" + sized(b"\r\n") + b"NOP\r\nPUB t\n" + sized(b"x"))

    await client.expect_ok(2)


async def test_second_cr_belongs_to_the_parameter(client: V2Client) -> None:  # W-8
    client.send(b"PUB a\r\r\n" + sized(b"x"))

    await client.expect_error(b'E_BAD_TOPIC PUB topic name "a\\r" is not valid')


async def test_double_space_makes_an_empty_parameter(client: V2Client) -> None:  # W-9
    client.send(b"PUB  t\n" + sized(b"x"))

    await client.expect_error(b'E_BAD_TOPIC PUB topic name "" is not valid')


async def test_trailing_space_makes_an_empty_parameter(client: V2Client) -> None:  # W-9
    client.send(b"PUB \n" + sized(b"x"))

    await client.expect_error(b'E_BAD_TOPIC PUB topic name "" is not valid')


async def test_tab_does_not_separate(client: V2Client) -> None:
    client.send(b"PUB\tt\n" + sized(b"x"))

    await client.expect_error(b"E_INVALID invalid command PUB\tt")


@pytest.mark.parametrize(
    "name", [b"nop", b"Nop", b"NOPE", b"pub", b"", b"\xff\x00", b"PUBLISH", b"IDENTIFY\r"]
)  # W-10, W-11
async def test_unknown_command_is_fatal(client: V2Client, name: bytes) -> None:
    client.send(name + b"\r\n")

    await client.expect_error(b"E_INVALID invalid command " + name)


async def test_unknown_command_is_named_without_its_parameters(client: V2Client) -> None:
    client.send(b"FOO bar baz\n")

    await client.expect_error(b"E_INVALID invalid command FOO")


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])  # W-12
async def test_line_of_the_longest_length_is_processed(client: V2Client, end: bytes) -> None:
    client.send(b"NOP ".ljust(MAX_LINE_BYTES - len(end), b"x") + end)

    await client.settle()


@pytest.mark.parametrize("excess", [1, 100_000])
async def test_longer_line_closes_without_an_error(client: V2Client, excess: int) -> None:  # W-12
    client.send(b"NOP ".ljust(MAX_LINE_BYTES - 1 + excess, b"x") + b"\n")

    await client.expect_closed()


async def test_line_without_end_closes_as_soon_as_it_is_too_long(client: V2Client) -> None:  # W-12
    client.send(b"x" * (MAX_LINE_BYTES - 1))
    await client.expect_quiet()

    client.send(b"x")

    await client.expect_closed()


@pytest.mark.both_loops("half-closed and ended sockets")
async def test_eof_within_a_line_closes_silently(client: V2Client) -> None:  # W-13
    client.send(b"PUB t")

    client.end_output()

    await client.expect_closed()


@pytest.mark.both_loops("many reads of one write")
async def test_thousand_pipelined_publishes_are_answered_in_order(nsqd: RunningDaemon) -> None:
    """W-14: 1000 OKs, then the error of the command behind them."""
    client = await nsqd.connect()
    bodies = [b"%d" % number for number in range(1000)]
    client.send(b"".join(b"PUB t\n" + sized(body) for body in bodies) + b"BAD\n")

    await client.expect_ok(1000)
    await client.expect_error(b"E_INVALID invalid command BAD")

    consumer = await nsqd.consumer("t", rdy=1000)
    assert [message.body for message in await consumer.read_messages(1000)] == bodies


async def test_pipelined_commands_of_all_kinds_are_run_in_order(nsqd: RunningDaemon) -> None:
    client = await nsqd.connect()

    client.send(
        b"PUB t\n" + sized(b"1") + b"NOP\nMPUB t\n" + sized(mpub_body(b"2", b"3"))
        + b"IDENTIFY\n" + sized(b"{}") + b"SUB t c\nDPUB t 0\n" + sized(b"4")
        + b"RDY 10\nFIN 0123456789abcdef\nPUB u\n" + sized(b"5") + b"CLS\n"
    )  # fmt: skip

    frames = [await client.read_frame() for _ in range(8)]
    replies = [frame for frame in frames if frame[0] != MESSAGE]
    assert replies == [
        *[(0, b"OK")] * 5,
        (ERROR, b"E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight"),
        (0, b"OK"),
        (0, b"CLOSE_WAIT"),
    ]


async def test_nothing_behind_a_fatal_error_is_run(nsqd: RunningDaemon) -> None:
    client = await nsqd.connect()
    client.send(b"BAD\nPUB t\n" + sized(b"x"))

    await client.expect_error(b"E_INVALID invalid command BAD")

    assert await nsqd.find_topic("t") is None


@pytest.mark.parametrize(
    "command",
    [
        b"PUB t extra words\n" + sized(b"x"),
        b"MPUB t extra\n" + sized(mpub_body(b"x")),
        b"DPUB t 0 extra\n" + sized(b"x"),
        b"SUB t c extra\n",
        b"IDENTIFY extra words\n" + sized(b"{}"),
    ],
    ids=lambda command: command.partition(b" ")[0].decode(),
)
async def test_extra_parameters_are_ignored(client: V2Client, command: bytes) -> None:  # W-15
    client.send(b"NOP extra words\n" + command)

    await client.expect_ok()


async def test_extra_parameters_of_consumer_commands_are_ignored(nsqd: RunningDaemon) -> None:
    consumer = await nsqd.consumer("t")  # W-15
    await nsqd.publish("t", b"x")
    consumer.send(b"RDY 1 extra\n")
    message = await consumer.read_message()

    consumer.command("TOUCH", message.id, "extra")
    consumer.command("REQ", message.id, "0", "extra")
    message = await consumer.read_message()
    consumer.command("FIN", message.id, "extra")
    consumer.command("CLS", "extra")

    assert await consumer.read_response() == b"CLOSE_WAIT"


@pytest.mark.both_loops("half-closed and ended sockets")
async def test_replies_reach_a_client_that_has_ended_its_output(client: V2Client) -> None:
    client.send((b"PUB t\n" + sized(b"x")) * 100)

    client.end_output()

    await client.expect_ok(100)
    await client.expect_closed()


@pytest.mark.both_loops("half-closed and ended sockets")
async def test_error_reaches_a_client_that_goes_on_sending(client: V2Client) -> None:
    """Closing with input unread would reset the connection, and the error would be lost."""
    client.send(b"BAD\n" + bytes(5_000_000))

    await client.expect_error(b"E_INVALID invalid command BAD")
