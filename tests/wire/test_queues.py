"""Topics and channels as queues: order, overflow, fan-out, pausing and emptying (Q-1 to Q-17)."""

from tests.support.running_daemon import RunningDaemon, StartNsqd
from tests.support.v2_client import Message


def bodies(messages: list[Message]) -> list[bytes]:
    return [message.body for message in messages]


async def test_order_is_first_in_first_out(start_nsqd: StartNsqd) -> None:
    """In memory and across the overflow to disk, where nsqd reads at random from both."""
    nsqd = await start_nsqd(mem_queue_size=10)
    expected = [b"%d" % number for number in range(100)]
    await nsqd.publish("t", *expected)
    topic = await nsqd.topic("t")
    assert (topic["depth"], topic["backend_depth"]) == (100, 90)

    consumer = await nsqd.consumer("t", rdy=7)
    received = []
    for _ in range(100):
        message = await consumer.read_message()
        received.append(message.body)
        consumer.fin(message)

    assert received == expected


async def test_everything_may_go_through_the_disk(start_nsqd: StartNsqd) -> None:
    nsqd = await start_nsqd(mem_queue_size=0)
    expected = [b"%d" % number for number in range(50)]
    await nsqd.publish("t", *expected)
    topic = await nsqd.topic("t")
    assert (topic["depth"], topic["backend_depth"]) == (50, 50)

    consumer = await nsqd.consumer("t", rdy=50)

    assert bodies(await consumer.read_messages(50)) == expected
    await nsqd.publish("t", b"last")
    assert (await nsqd.channel("t"))["backend_depth"] == 1


async def test_channels_get_equal_copies(nsqd: RunningDaemon) -> None:  # W-107
    consumers = [await nsqd.consumer("t", channel, rdy=10) for channel in ("a", "b", "c")]
    await nsqd.publish("t", b"1", b"2")
    publisher = await nsqd.connect()
    publisher.dpub("t", 50, b"3")

    copies = [await consumer.read_messages(3) for consumer in consumers]

    assert copies[0] == copies[1] == copies[2]
    assert bodies(copies[0]) == [b"1", b"2", b"3"]


async def test_one_channel_does_not_touch_the_others(nsqd: RunningDaemon) -> None:
    one = await nsqd.consumer("t", "one", rdy=1)
    other = await nsqd.consumer("t", "other", rdy=1)
    await nsqd.publish("t", b"x")
    message = await one.read_message()
    assert (await other.read_message()).id == message.id

    one.fin(message)
    await one.settle()

    assert (await nsqd.channel("t", "one"))["in_flight_count"] == 0
    assert (await nsqd.channel("t", "other"))["in_flight_count"] == 1


async def test_first_channel_gets_what_came_before_it(nsqd: RunningDaemon) -> None:
    await nsqd.publish("t", b"1", b"2")
    assert (await nsqd.topic("t"))["depth"] == 2

    first = await nsqd.consumer("t", "first", rdy=10)
    assert bodies(await first.read_messages(2)) == [b"1", b"2"]
    second = await nsqd.consumer("t", "second", rdy=10)

    await second.expect_quiet()
    await nsqd.publish("t", b"3")
    assert (await second.read_message()).body == b"3"


async def test_topic_gathers_again_without_channels(nsqd: RunningDaemon) -> None:
    await nsqd.consumer("t", "only")
    await nsqd.post("/channel/delete?topic=t&channel=only")

    await nsqd.publish("t", b"x")

    assert (await nsqd.topic("t"))["depth"] == 1
    consumer = await nsqd.consumer("t", "next", rdy=1)
    assert (await consumer.read_message()).body == b"x"


async def test_paused_topic_keeps_its_messages(nsqd: RunningDaemon) -> None:
    consumer = await nsqd.consumer("t", rdy=5)
    await nsqd.post("/topic/pause?topic=t")

    await nsqd.publish("t", b"1", b"2")

    await consumer.expect_quiet()
    assert (await nsqd.topic("t"))["depth"] == 2
    assert (await nsqd.channel("t"))["depth"] == 0
    await nsqd.post("/topic/unpause?topic=t")
    assert bodies(await consumer.read_messages(2)) == [b"1", b"2"]


async def test_paused_channel_delivers_nothing(nsqd: RunningDaemon) -> None:
    consumer = await nsqd.consumer("t", rdy=2)
    other = await nsqd.consumer("t", "other", rdy=5)
    await nsqd.publish("t", b"held")
    held = await consumer.read_message()
    await nsqd.post("/channel/pause?topic=t&channel=ch")

    await nsqd.publish("t", b"x")
    consumer.fin(held)

    await consumer.expect_quiet()
    assert bodies(await other.read_messages(2)) == [b"held", b"x"]
    assert (await nsqd.channel("t"))["depth"] == 1
    await nsqd.post("/channel/unpause?topic=t&channel=ch")
    assert (await consumer.read_message()).body == b"x"


async def test_emptied_topic_leaves_its_channels_alone(nsqd: RunningDaemon) -> None:
    consumer = await nsqd.consumer("t")
    await nsqd.publish("t", b"kept")
    await nsqd.post("/topic/pause?topic=t")
    await nsqd.publish("t", b"dropped")

    await nsqd.post("/topic/empty?topic=t")
    await nsqd.post("/topic/unpause?topic=t")

    consumer.rdy(5)
    assert (await consumer.read_message()).body == b"kept"
    await consumer.expect_quiet()


async def test_emptied_channel_forgets_everything(nsqd: RunningDaemon) -> None:
    consumer = await nsqd.consumer("t", rdy=1)
    publisher = await nsqd.connect()
    publisher.dpub("t", 60_000, b"deferred")
    publisher.pub("t", b"in flight")
    publisher.pub("t", b"waiting")
    await publisher.expect_ok(3)
    message = await consumer.read_message()

    await nsqd.post("/channel/empty?topic=t&channel=ch")

    channel = await nsqd.channel("t")
    figures = [channel[key] for key in ("depth", "in_flight_count", "deferred_count")]
    assert figures == [0, 0, 0]
    assert channel["message_count"] == 3
    consumer.fin(message)
    text = b"E_FIN_FAILED FIN " + message.id + b" failed ID not in flight"
    await consumer.expect_error(text, is_fatal=False)
    await nsqd.publish("t", b"new")  # its place is free
    assert (await consumer.read_message()).body == b"new"


async def test_ephemeral_overflow_is_dropped(start_nsqd: StartNsqd) -> None:
    nsqd = await start_nsqd(mem_queue_size=5)

    await nsqd.publish("t#ephemeral", *[b"%d" % number for number in range(8)])

    topic = await nsqd.topic("t#ephemeral")
    assert (topic["depth"], topic["backend_depth"], topic["message_count"]) == (5, 0, 8)
    consumer = await nsqd.consumer("t#ephemeral", "c#ephemeral", rdy=10)
    assert len(await consumer.read_messages(5)) == 5
    await consumer.expect_quiet()
