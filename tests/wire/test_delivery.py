"""From the queue to the consumer and back: RDY, attempts, timeouts, delays, fan-out, pauses."""

import asyncio
from typing import Any

import pytest

from tests.support.clock import not_before
from tests.support.running_daemon import RunningDaemon, StartNsqd
from tests.support.v2_client import Message


def bodies(messages: list[Message]) -> list[bytes]:
    return [message.body for message in messages]


async def test_rdy_is_a_level_and_not_a_credit(nsqd: RunningDaemon) -> None:  # W-81
    consumer = await nsqd.consumer("t", rdy=3)
    await nsqd.publish("t", *[b"%d" % number for number in range(8)])

    held = await consumer.read_messages(3)
    await consumer.expect_quiet()

    for number in range(3, 8):
        consumer.fin(held.pop(0))
        held.append(await consumer.read_message())
        assert held[-1].body == b"%d" % number
    await consumer.expect_quiet()
    assert (await nsqd.client_stats("t"))["in_flight_count"] == 3


async def test_lowered_rdy_recalls_nothing(nsqd: RunningDaemon) -> None:  # W-82
    consumer = await nsqd.consumer("t", rdy=4)
    await nsqd.publish("t", *[b"%d" % number for number in range(6)])
    messages = await consumer.read_messages(4)

    consumer.rdy(2)
    consumer.fin(messages[0])
    consumer.fin(messages[1])
    await consumer.expect_quiet()

    consumer.fin(messages[2])
    assert (await consumer.read_message()).body == b"4"
    await consumer.expect_quiet()


@pytest.mark.parametrize("mem_queue_size", [10_000, 0])  # W-83, W-90
async def test_requeued_message_comes_at_once_and_counts(
    start_nsqd: StartNsqd, mem_queue_size: int
) -> None:
    nsqd = await start_nsqd(mem_queue_size=mem_queue_size)
    consumer = await nsqd.consumer("t", rdy=1)
    await nsqd.publish("t", b"x")
    first = message = await consumer.read_message()
    assert message.attempts == 1

    for attempts in range(2, 6):
        consumer.req(message, 0)
        message = await consumer.read_message()
        assert message == Message(first.timestamp_ns, attempts, first.id, b"x")
    consumer.fin(message)
    await consumer.settle()

    channel = await nsqd.channel("t")
    assert (channel["requeue_count"], channel["message_count"]) == (4, 1)
    assert (channel["depth"], channel["in_flight_count"]) == (0, 0)
    assert (await nsqd.client_stats("t"))["requeue_count"] == 4


async def test_requeued_message_goes_to_the_end_of_the_queue(nsqd: RunningDaemon) -> None:
    consumer = await nsqd.consumer("t", rdy=1)
    await nsqd.publish("t", b"1", b"2")

    consumer.req(await consumer.read_message(), 0)

    assert (await consumer.read_message()).body == b"2"


async def test_requeue_with_delay(nsqd: RunningDaemon) -> None:  # W-91, Q-24
    consumer = await nsqd.consumer("t", rdy=1)
    await nsqd.publish("t", b"x")
    message = await consumer.read_message()

    with not_before(0.5):
        consumer.req(message, 500)
        await consumer.settle()
        channel = await nsqd.channel("t")
        assert (channel["deferred_count"], channel["in_flight_count"], channel["depth"]) == (
            1,
            0,
            0,
        )
        again = await consumer.read_message()

    assert (again.id, again.attempts) == (message.id, 2)
    assert (await nsqd.channel("t"))["requeue_count"] == 1


async def test_delayed_message_frees_its_place(nsqd: RunningDaemon) -> None:
    consumer = await nsqd.consumer("t", rdy=1)
    await nsqd.publish("t", b"1", b"2")

    consumer.req(await consumer.read_message(), 60_000)

    assert (await consumer.read_message()).body == b"2"


@pytest.mark.parametrize("mem_queue_size", [10_000, 0])  # W-63, Q-20, Q-24
async def test_deferred_publish_on_a_new_channel(
    start_nsqd: StartNsqd, mem_queue_size: int
) -> None:
    """nsqd may be 5 s late here, and forgets the delay of what goes through the disk."""
    nsqd = await start_nsqd(mem_queue_size=mem_queue_size)
    consumer = await nsqd.consumer("t", rdy=2)
    publisher = await nsqd.connect()

    with not_before(0.3):
        publisher.dpub("t", 300, b"later")
        publisher.pub("t", b"now")
        await publisher.expect_ok(2)
        assert (await consumer.read_message()).body == b"now"
        channel = await nsqd.channel("t")
        assert (channel["deferred_count"], channel["message_count"], channel["depth"]) == (1, 2, 0)
        later = await consumer.read_message()

    assert (later.body, later.attempts) == (b"later", 1)


async def test_deferred_messages_come_in_the_order_of_their_times(nsqd: RunningDaemon) -> None:
    consumer = await nsqd.consumer("t", rdy=10)
    publisher = await nsqd.connect()

    for delay_ms in (300, 100, 200, 100):
        publisher.dpub("t", delay_ms, b"%d" % delay_ms)

    assert bodies(await consumer.read_messages(4)) == [b"100", b"100", b"200", b"300"]


async def test_delay_is_kept_where_no_channel_is_yet(nsqd: RunningDaemon) -> None:
    publisher = await nsqd.connect()
    publisher.dpub("t", 300, b"x")
    await publisher.expect_ok()

    with not_before(0.3):
        consumer = await nsqd.consumer("t", rdy=1)
        assert (await consumer.read_message()).body == b"x"


async def test_unanswered_message_comes_again(nsqd: RunningDaemon) -> None:  # W-99, W-100
    consumer = await nsqd.consumer("t", rdy=1, msg_timeout=1000)
    await nsqd.publish("t", b"x")
    first = await consumer.read_message()

    with not_before(1.0 - 0.05):  # it was delivered a moment before it was read
        again = await consumer.read_message()

    assert again == Message(first.timestamp_ns, 2, first.id, b"x")
    consumer.fin(again)  # the same connection holds it again
    await consumer.settle()
    channel = await nsqd.channel("t")
    assert (channel["timeout_count"], channel["requeue_count"]) == (1, 0)
    assert (channel["message_count"], channel["in_flight_count"]) == (1, 0)


async def test_default_timeout_is_an_option(start_nsqd: StartNsqd) -> None:  # W-99
    nsqd = await start_nsqd(msg_timeout_s=0.3)
    consumer = await nsqd.consumer("t")
    await nsqd.publish("t", b"x")

    with not_before(0.3):
        consumer.rdy(1)
        await consumer.read_message()
        assert (await consumer.read_message()).attempts == 2


async def test_timed_out_message_is_no_longer_the_consumers(start_nsqd: StartNsqd) -> None:
    nsqd = await start_nsqd(msg_timeout_s=0.1)
    consumer = await nsqd.consumer("t", rdy=1)
    await nsqd.publish("t", b"x")
    message = await consumer.read_message()
    consumer.rdy(0)
    await nsqd.wait_for_channel("t", timeout_count=1)

    consumer.fin(message)

    text = b"E_FIN_FAILED FIN " + message.id + b" failed ID not in flight"
    await consumer.expect_error(text, is_fatal=False)
    assert (await nsqd.channel("t"))["depth"] == 1


async def test_touch_gives_the_full_timeout_again(start_nsqd: StartNsqd) -> None:  # W-97
    nsqd = await start_nsqd(msg_timeout_s=0.4)
    consumer = await nsqd.consumer("t", rdy=1)
    await nsqd.publish("t", b"x")
    message = await consumer.read_message()

    for _ in range(3):
        await consumer.expect_quiet(0.25)
        consumer.touch(message)
    with not_before(0.4):
        consumer.touch(message)
        again = await consumer.read_message()

    assert again.attempts == 2


async def test_touch_ends_at_the_longest_timeout(start_nsqd: StartNsqd) -> None:  # W-98
    nsqd = await start_nsqd(msg_timeout_s=0.3, max_msg_timeout_s=0.5)
    consumer = await nsqd.consumer("t")
    await nsqd.publish("t", b"x")

    with not_before(0.5):
        consumer.rdy(1)
        message = await consumer.read_message()
        for _ in range(4):
            await asyncio.sleep(0.1)
            consumer.touch(message)
        assert (await consumer.read_message()).attempts == 2


async def test_messages_of_a_lost_consumer_wait_for_their_timeout(start_nsqd: StartNsqd) -> None:
    nsqd = await start_nsqd(msg_timeout_s=0.4)  # W-101
    leaving = await nsqd.consumer("t")
    staying = await nsqd.consumer("t")
    await nsqd.publish("t", b"x")
    with not_before(0.4):
        leaving.rdy(1)
        message = await leaving.read_message()
        await leaving.close()
        staying.rdy(1)
        await staying.expect_quiet()
        assert (await nsqd.channel("t"))["in_flight_count"] == 1

        again = await staying.read_message()

    assert (again.id, again.attempts) == (message.id, 2)


async def test_timeouts_of_many_channels_all_fire(start_nsqd: StartNsqd) -> None:
    nsqd = await start_nsqd(msg_timeout_s=0.3)
    consumers = [await nsqd.consumer("t", f"c{number}", rdy=1) for number in range(100)]

    with not_before(0.3):
        await nsqd.publish("t", b"x")
        for consumer in consumers:
            assert (await consumer.read_message()).attempts == 1
        for consumer in consumers:
            assert (await consumer.read_message()).attempts == 2


async def test_consumers_of_a_channel_share_its_messages(nsqd: RunningDaemon) -> None:  # W-107
    consumers = [await nsqd.consumer("t", rdy=1) for _ in range(4)]

    await nsqd.publish("t", b"0", b"1", b"2", b"3")

    messages = [await consumer.read_message() for consumer in consumers]
    assert sorted(bodies(messages)) == [b"0", b"1", b"2", b"3"]


async def test_messages_are_shared_fairly(nsqd: RunningDaemon) -> None:
    consumers = [await nsqd.consumer("t", rdy=100) for _ in range(4)]
    publisher = await nsqd.connect()

    publisher.mpub("t", *[b"x"] * 40)

    for consumer in consumers:
        await consumer.read_messages(10)


@pytest.mark.parametrize(
    ("rate", "low", "high"), [(1, 1, 120), (49, 800, 1200), (99, 2000, 2000)]
)  # W-105
async def test_sampling_drops_the_rest(nsqd: RunningDaemon, rate: int, low: int, high: int) -> None:
    consumer = await nsqd.consumer("t", rdy=2500, sample_rate=rate)
    publisher = await nsqd.connect()

    publisher.mpub("t", *[b"x"] * 2000)
    await publisher.expect_ok()

    channel = await nsqd.wait_for_channel("t", depth=0)
    count = channel["in_flight_count"]
    assert low <= count <= high
    await consumer.read_messages(count)
    await consumer.expect_quiet()


@pytest.mark.parametrize(
    "buffering",
    [
        {"output_buffer_timeout": 30_000},
        {"output_buffer_timeout": -1},
        {"output_buffer_size": 65536, "output_buffer_timeout": 30_000},
        {"output_buffer_size": -1},
    ],
)
@pytest.mark.parametrize("rdy", [1, 100])  # W-115 to W-118
async def test_lone_message_is_not_held_back(
    nsqd: RunningDaemon, rdy: int, buffering: dict[str, Any]
) -> None:
    """What clients negotiate are upper bounds: nsqd sends at the end of each loop turn."""
    consumer = await nsqd.consumer("t", rdy=rdy, **buffering)
    await consumer.settle()

    await nsqd.publish("t", b"x")

    assert (await consumer.read_message()).body == b"x"


async def test_second_identify_is_the_one_that_counts(nsqd: RunningDaemon) -> None:
    """Where nsqd keeps the first one's message timeout for the delivery."""
    consumer = await nsqd.connect()
    await consumer.identify(msg_timeout=60_000)
    await consumer.identify(msg_timeout=1000)
    await consumer.subscribe("t", rdy=1)
    await nsqd.publish("t", b"x")
    await consumer.read_message()

    with not_before(1.0 - 0.05):
        assert (await consumer.read_message()).attempts == 2


async def test_large_messages_of_many_sizes(nsqd: RunningDaemon) -> None:
    consumer = await nsqd.consumer("t", rdy=100)
    expected = [bytes([size % 251]) * size for size in (1, 15_000, 17_000, 300_000, 2, 1_000_000)]

    await nsqd.publish("t", *expected)

    assert bodies(await consumer.read_messages(6)) == expected


async def test_idle_consumers_do_not_hinder(nsqd: RunningDaemon) -> None:
    for _ in range(200):
        await nsqd.consumer("t")
    busy = await nsqd.consumer("t", rdy=10)

    await nsqd.publish("t", *[b"%d" % number for number in range(10)])

    assert bodies(await busy.read_messages(10)) == [b"%d" % number for number in range(10)]
