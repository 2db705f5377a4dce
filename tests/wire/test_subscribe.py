"""SUB, RDY, FIN, REQ, TOUCH and CLS: states, parameters and errors (W-70 to W-104)."""

import asyncio

import pytest

from tests.support.clock import not_before
from tests.support.running_daemon import RunningDaemon, StartNsqd
from tests.support.v2_client import V2Client

UNKNOWN_ID = b"0123456789abcdef"


async def test_sub_creates_topic_and_channel(nsqd: RunningDaemon) -> None:  # W-70
    await nsqd.publish("t", b"x")

    consumer = await nsqd.consumer("t", "c")

    await consumer.expect_quiet()
    channel = await nsqd.channel("t", "c")
    assert (channel["depth"], channel["client_count"]) == (1, 1)
    consumer.rdy(1)
    assert (await consumer.read_message()).body == b"x"


@pytest.mark.parametrize("line", [b"SUB", b"SUB t"])  # W-71
async def test_sub_needs_topic_and_channel(client: V2Client, line: bytes) -> None:
    client.send(line + b"\n")

    await client.expect_error(b"E_INVALID SUB insufficient number of parameters")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"SUB t%1 c", b'E_BAD_TOPIC SUB topic name "t%1" is not valid'),
        (b"SUB  c", b'E_BAD_TOPIC SUB topic name "" is not valid'),
        (b"SUB t c%", b'E_BAD_CHANNEL SUB channel name "c%" is not valid'),
        (b"SUB t ", b'E_BAD_CHANNEL SUB channel name "" is not valid'),
        (b"SUB t c\xfe", b'E_BAD_CHANNEL SUB channel name "c\\xfe" is not valid'),
        (
            b"SUB t " + b"c" * 65,
            b'E_BAD_CHANNEL SUB channel name "' + b"c" * 65 + b'" is not valid',
        ),
        (b"SUB t #ephemeral", b'E_BAD_CHANNEL SUB channel name "#ephemeral" is not valid'),
    ],
)  # W-72, W-130, W-131
async def test_sub_checks_names(nsqd: RunningDaemon, line: bytes, text: bytes) -> None:
    client = await nsqd.connect()

    client.send(line + b"\n")

    await client.expect_error(text)
    assert await nsqd.find_topic("t") is None


async def test_second_sub_is_refused(nsqd: RunningDaemon) -> None:  # W-73
    consumer = await nsqd.consumer("t")

    consumer.command("SUB", "t", "other")

    await consumer.expect_error(b"E_INVALID cannot SUB in current state")


async def test_sub_without_heartbeats_is_refused(client: V2Client) -> None:  # W-74
    await client.identify(heartbeat_interval=-1)

    client.command("SUB")  # checked before the parameters

    await client.expect_error(b"E_INVALID cannot SUB with heartbeats disabled")


async def test_consumers_beyond_the_limit_are_refused(start_nsqd: StartNsqd) -> None:
    """W-75, Q-37: per channel, and a place is free again when a consumer has left."""
    nsqd = await start_nsqd(max_channel_consumers=2)
    await nsqd.consumer("t", "c")
    leaving = await nsqd.consumer("t", "c")
    await nsqd.consumer("t", "other")
    late = await nsqd.connect()

    late.command("SUB", "t", "c")
    await late.expect_error(b"E_SUB_FAILED SUB failed consumers for t:c exceeds limit of 2")

    await leaving.close()
    await nsqd.wait_for_channel("t", "c", client_count=1)
    await nsqd.consumer("t", "c")


@pytest.mark.parametrize(
    "line", [b"RDY 1", b"RDY", b"FIN " + UNKNOWN_ID, b"REQ " + UNKNOWN_ID + b" 0", b"TOUCH", b"CLS"]
)  # W-80, W-89, W-104
async def test_consumer_commands_before_sub_are_refused(client: V2Client, line: bytes) -> None:
    client.send(line + b"\n")

    verb = line.partition(b" ")[0]
    await client.expect_error(b"E_INVALID cannot " + verb + b" in current state")


async def test_run_of_fins_before_sub_is_refused(client: V2Client) -> None:  # W-89
    client.send((b"FIN " + UNKNOWN_ID + b"\n") * 20)

    await client.expect_error(b"E_INVALID cannot FIN in current state")


@pytest.mark.parametrize("verb", ["IDENTIFY", "AUTH"])  # W-41, A-5
async def test_handshake_commands_after_sub_are_refused(nsqd: RunningDaemon, verb: str) -> None:
    consumer = await nsqd.consumer("t")

    consumer.command(verb, body=b"{}")

    await consumer.expect_error(f"E_INVALID cannot {verb} in current state".encode())


async def test_rdy_without_count_is_one(nsqd: RunningDaemon) -> None:  # W-76
    await nsqd.publish("t", b"1", b"2")
    consumer = await nsqd.consumer("t")

    consumer.command("RDY")

    assert (await consumer.read_message()).body == b"1"
    await consumer.expect_quiet()
    assert (await nsqd.client_stats("t"))["ready_count"] == 1


async def test_rdy_with_an_empty_count_is_zero(nsqd: RunningDaemon) -> None:
    await nsqd.publish("t", b"x")
    consumer = await nsqd.consumer("t")

    consumer.send(b"RDY \n")

    await consumer.expect_quiet()


async def test_rdy_of_zero_stops_delivery(nsqd: RunningDaemon) -> None:  # W-77
    consumer = await nsqd.consumer("t", rdy=5)
    consumer.rdy(0)
    await consumer.settle()

    await nsqd.publish("t", b"x")

    await consumer.expect_quiet()
    consumer.rdy(1)
    assert (await consumer.read_message()).body == b"x"


async def test_rdy_up_to_the_limit_is_accepted(start_nsqd: StartNsqd) -> None:  # W-78
    nsqd = await start_nsqd(max_rdy_count=50)
    consumer = await nsqd.consumer("t", rdy=50)
    await consumer.settle()

    consumer.rdy(51)

    await consumer.expect_error(b"E_INVALID RDY count 51 out of range 0-50")


async def test_rdy_limit_is_2500(nsqd: RunningDaemon) -> None:  # W-78
    consumer = await nsqd.consumer("t", rdy=2500)
    await consumer.settle()

    consumer.rdy(2501)

    await consumer.expect_error(b"E_INVALID RDY count 2501 out of range 0-2500")


@pytest.mark.parametrize("raw", [b"-1", b"abc", b"1.0", b"\xff"])  # W-79
async def test_rdy_count_must_be_digits(nsqd: RunningDaemon, raw: bytes) -> None:
    consumer = await nsqd.consumer("t")

    consumer.command("RDY", raw)

    await consumer.expect_error(b"E_INVALID RDY could not parse count " + raw)


@pytest.mark.parametrize("verb", ["FIN", "REQ", "TOUCH"])  # W-84, W-95
async def test_unknown_id_is_no_reason_to_close(nsqd: RunningDaemon, verb: str) -> None:
    consumer = await nsqd.consumer("t")

    consumer.command(verb, UNKNOWN_ID, "0")

    text = f"E_{verb}_FAILED {verb} 0123456789abcdef failed ID not in flight"
    await consumer.expect_error(text.encode(), is_fatal=False)
    await consumer.settle()


@pytest.mark.parametrize("verb", ["FIN", "REQ", "TOUCH"])  # W-85, W-95
async def test_message_of_another_consumer_is_out_of_reach(nsqd: RunningDaemon, verb: str) -> None:
    owner = await nsqd.consumer("t", rdy=1)
    other = await nsqd.consumer("t")
    await nsqd.publish("t", b"x")
    message = await owner.read_message()

    other.command(verb, message.id, "0")

    text = f"E_{verb}_FAILED {verb} {message.id.decode()} failed client does not own message"
    await other.expect_error(text.encode(), is_fatal=False)
    await other.settle()
    owner.fin(message)
    await owner.settle()
    assert (await nsqd.channel("t"))["in_flight_count"] == 0


async def test_one_bad_id_among_many_is_told_alone(nsqd: RunningDaemon) -> None:  # W-84
    consumer = await nsqd.consumer("t", rdy=100)
    await nsqd.publish("t", *[b"x"] * 100)
    messages = await consumer.read_messages(100)
    ids = [message.id for message in messages]
    ids[50:50] = [UNKNOWN_ID, ids[10]]

    consumer.send(b"".join(b"FIN " + message_id + b"\n" for message_id in ids))

    for failed in (UNKNOWN_ID, ids[10]):
        text = b"E_FIN_FAILED FIN " + failed + b" failed ID not in flight"
        await consumer.expect_error(text, is_fatal=False)
    await consumer.settle()
    assert (await nsqd.channel("t"))["in_flight_count"] == 0
    assert (await nsqd.client_stats("t"))["finish_count"] == 100


@pytest.mark.parametrize("message_id", [b"", b"short", UNKNOWN_ID + b"0"])  # W-86
async def test_id_must_have_16_bytes(nsqd: RunningDaemon, message_id: bytes) -> None:
    for verb in ("FIN", "REQ", "TOUCH"):
        consumer = await nsqd.consumer("t")
        consumer.command(verb, message_id, "0")
        await consumer.expect_error(b"E_INVALID invalid message ID")


@pytest.mark.parametrize("line", [b"FIN", b"TOUCH", b"REQ", b"REQ " + UNKNOWN_ID])  # W-87, W-94
async def test_parameters_must_not_be_missing(nsqd: RunningDaemon, line: bytes) -> None:
    consumer = await nsqd.consumer("t")

    consumer.send(line + b"\n")

    verb = line.partition(b" ")[0]
    await consumer.expect_error(b"E_INVALID " + verb + b" insufficient number of params")


async def test_answers_get_no_reply(nsqd: RunningDaemon) -> None:  # W-88
    consumer = await nsqd.consumer("t", rdy=3)
    await nsqd.publish("t", b"1", b"2", b"3")
    first, second, third = await consumer.read_messages(3)
    consumer.rdy(0)

    consumer.touch(first)
    consumer.fin(first)
    consumer.req(second, 0)
    consumer.req(third, 60_000)

    await consumer.settle()
    await consumer.expect_quiet()


@pytest.mark.parametrize("raw", [b"-1", b"abc", b"1e3"])  # W-93
async def test_req_time_must_be_digits(nsqd: RunningDaemon, raw: bytes) -> None:
    consumer = await nsqd.consumer("t")

    consumer.command("REQ", UNKNOWN_ID, raw)

    await consumer.expect_error(b"E_INVALID REQ could not parse timeout " + raw)


async def test_req_with_an_empty_time_is_immediate(nsqd: RunningDaemon) -> None:
    consumer = await nsqd.consumer("t", rdy=1)
    await nsqd.publish("t", b"x")
    message = await consumer.read_message()

    consumer.send(b"REQ " + message.id + b" \n")

    assert (await consumer.read_message()).attempts == 2


async def test_req_beyond_the_limit_is_clamped(start_nsqd: StartNsqd) -> None:  # W-92
    nsqd = await start_nsqd(max_req_timeout_s=0.2)
    consumer = await nsqd.consumer("t", rdy=1)
    await nsqd.publish("t", b"x")
    message = await consumer.read_message()

    with not_before(0.2):
        consumer.req(message, 2**64 - 1)
        assert (await consumer.read_message()).attempts == 2


async def test_fin_of_a_deferred_message_fails(nsqd: RunningDaemon) -> None:  # W-96
    consumer = await nsqd.consumer("t", rdy=1)
    await nsqd.publish("t", b"x")
    message = await consumer.read_message()

    consumer.req(message, 60_000)
    consumer.fin(message)

    text = b"E_FIN_FAILED FIN " + message.id + b" failed ID not in flight"
    await consumer.expect_error(text, is_fatal=False)
    assert (await nsqd.channel("t"))["deferred_count"] == 1


async def test_cls_stops_delivery_but_not_answers(nsqd: RunningDaemon) -> None:  # W-102
    consumer = await nsqd.consumer("t", rdy=3)
    await nsqd.publish("t", b"1", b"2", b"3")
    first, second, third = await consumer.read_messages(3)

    consumer.command("CLS")
    assert await consumer.read_response() == b"CLOSE_WAIT"

    stats = await nsqd.client_stats("t")
    assert (stats["state"], stats["ready_count"]) == (4, 0)
    consumer.fin(first)
    consumer.touch(second)
    consumer.req(third, 60_000)
    await nsqd.publish("t", b"4")
    await consumer.settle()
    await consumer.expect_quiet()
    channel = await nsqd.channel("t")
    assert (channel["in_flight_count"], channel["deferred_count"], channel["depth"]) == (1, 1, 1)


async def test_rdy_after_cls_is_ignored(nsqd: RunningDaemon) -> None:  # W-103
    consumer = await nsqd.consumer("t")
    consumer.command("CLS")
    assert await consumer.read_response() == b"CLOSE_WAIT"
    await nsqd.publish("t", b"x")

    consumer.rdy(10)
    consumer.command("RDY", "nonsense")

    await consumer.settle()
    await consumer.expect_quiet()


@pytest.mark.parametrize("verb", ["CLS", "SUB", "IDENTIFY"])  # W-103
async def test_cls_is_the_end_of_a_subscription(nsqd: RunningDaemon, verb: str) -> None:
    consumer = await nsqd.consumer("t")
    consumer.command("CLS")
    assert await consumer.read_response() == b"CLOSE_WAIT"

    consumer.command(verb, "t", "c", body=b"{}")

    await consumer.expect_error(f"E_INVALID cannot {verb} in current state".encode())


async def test_deleted_channel_closes_its_consumers(nsqd: RunningDaemon) -> None:
    consumer = await nsqd.consumer("t", "gone", rdy=1)
    stranger = await nsqd.consumer("t", "kept", rdy=1)

    await nsqd.post("/channel/delete?topic=t&channel=gone")

    await consumer.expect_closed()
    await nsqd.publish("t", b"x")
    assert (await stranger.read_message()).body == b"x"
    assert await nsqd.find_channel("t", "gone") is None


async def test_deleted_topic_closes_the_consumers_of_all_channels(nsqd: RunningDaemon) -> None:
    consumers = [await nsqd.consumer("t", channel) for channel in ("a", "a", "b")]
    publisher = await nsqd.connect()
    await publisher.publish("t", b"1", b"2")

    await nsqd.post("/topic/delete?topic=t")

    for consumer in consumers:
        await consumer.expect_closed()
    await publisher.publish("t", b"3")
    assert (await nsqd.topic("t"))["message_count"] == 1


async def test_ephemeral_channel_goes_with_its_last_consumer(nsqd: RunningDaemon) -> None:
    first = await nsqd.consumer("t", "c#ephemeral")
    second = await nsqd.consumer("t", "c#ephemeral")
    await first.close()
    await nsqd.wait_for_channel("t", "c#ephemeral", client_count=1)

    await second.close()

    await nsqd.wait_for_no_channel("t", "c#ephemeral")
    assert await nsqd.find_topic("t") is not None


async def test_ephemeral_topic_goes_with_its_last_channel(nsqd: RunningDaemon) -> None:
    first = await nsqd.consumer("t#ephemeral", "a#ephemeral")
    second = await nsqd.consumer("t#ephemeral", "b#ephemeral")
    await first.close()
    await nsqd.wait_for_no_channel("t#ephemeral", "a#ephemeral")
    assert await nsqd.find_topic("t#ephemeral") is not None

    await second.close()

    await nsqd.wait_for_no_channel("t#ephemeral", "b#ephemeral")
    assert await nsqd.find_topic("t#ephemeral") is None


async def test_plain_channel_of_an_ephemeral_topic_stays(nsqd: RunningDaemon) -> None:
    consumer = await nsqd.consumer("t#ephemeral", "c")

    await consumer.close()

    await nsqd.wait_for_channel("t#ephemeral", "c", client_count=0)
    await nsqd.publish("t#ephemeral", b"x")
    assert (await nsqd.channel("t#ephemeral", "c"))["depth"] == 1


async def test_sub_and_close_of_an_ephemeral_channel_race(nsqd: RunningDaemon) -> None:
    """Subscribing while the last consumer leaves always gives a channel that works."""
    for _ in range(20):
        leaving = await nsqd.consumer("t#ephemeral", "c#ephemeral")
        coming = await nsqd.connect()

        _, _ = await asyncio.gather(
            leaving.close(), coming.subscribe("t#ephemeral", "c#ephemeral", rdy=1)
        )

        await nsqd.publish("t#ephemeral", b"x")
        assert (await coming.read_message()).body == b"x"
        await coming.close()
