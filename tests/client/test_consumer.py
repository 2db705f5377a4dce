"""Cases 19 to 24, 28, 29: consuming from a daemon that is well."""

import asyncio
import logging
import threading
import time
from collections import Counter

import pytest

from nsqd.client import (
    AlreadyAnsweredError,
    ClosedError,
    Consumer,
    Message,
    NsqError,
    Observer,
    Producer,
    Requeue,
)
from tests.client.conftest import Nsqd, StartNsqd
from tests.support.auth_server import AuthServer, allow
from tests.support.waiting import until


async def publish(nsqd: Nsqd, *bodies: bytes, topic: str = "topic") -> None:
    async with Producer(nsqd.tcp_address) as producer:
        await producer.publish_many(topic, bodies)


class Events(Observer):
    def __init__(self) -> None:
        self.late: list[bytes] = []
        self.failed: list[str] = []
        self.lost: list[str] = []
        self.connects = 0
        self.backoffs: list[int] = []

    def late_answer(self, nsqd: str, message_id: bytes, text: str) -> None:
        self.late.append(message_id)

    def connect_failed(self, nsqd: str, error: Exception) -> None:
        assert isinstance(error, NsqError)
        self.failed.append(str(error))

    def disconnected(self, nsqd: str, reason: str) -> None:
        self.lost.append(reason)

    def connected(self, nsqd: str) -> None:
        self.connects += 1

    def backed_off(self, level: int, pause_s: float) -> None:
        self.backoffs.append(level)


async def test_a_slow_handler_is_given_time(nsqd: Nsqd) -> None:
    await publish(nsqd, b"slow")
    events = Events()
    seen: list[int] = []
    async with Consumer(
        "topic", "ch", nsqd=[nsqd.tcp_address], msg_timeout=1.0, observer=events
    ) as consumer:
        async for message in consumer:
            async with message:
                seen.append(message.attempts)
                await asyncio.sleep(3.0)
            break
        await nsqd.wait_for_channel("topic", in_flight_count=0, depth=0)
        touched = consumer.stats().touched

    assert seen == [1]
    assert events.late == []
    assert touched >= 3
    assert (await nsqd.channel("topic"))["timeout_count"] == 0


async def test_the_first_touch_is_in_time_where_messages_wait(start_nsqd: StartNsqd) -> None:
    """Less time than the second after which a consumer that knows no timeout would look."""
    nsqd = await start_nsqd("--msg-timeout=800ms")
    await publish(nsqd, b"slow")
    async with Consumer("topic", "ch", nsqd=[nsqd.tcp_address], max_in_flight=1) as consumer:
        message = await anext(aiter(consumer))
        await until(lambda: consumer.stats().touched >= 2 or consumer.stats().received > 1)
        assert consumer.stats().received == 1
        message.fin()
        await nsqd.wait_for_channel("topic", in_flight_count=0, depth=0)

    assert (await nsqd.channel("topic"))["timeout_count"] == 0


async def test_a_slow_handler_without_touches_is_late(nsqd: Nsqd) -> None:
    await publish(nsqd, b"slow")
    events = Events()
    async with Consumer(
        "topic",
        "ch",
        nsqd=[nsqd.tcp_address],
        msg_timeout=1.0,
        auto_touch=False,
        observer=events,
        max_in_flight=1,
    ) as consumer:
        messages = aiter(consumer)
        first = await anext(messages)
        await until(lambda: consumer.stats().received > 1 or None)
        second = await anext(messages)
        # It was delivered again over this connection: the first delivery is over.
        with pytest.raises(AlreadyAnsweredError, match="delivered again"):
            first.fin()
        second.fin()
        await nsqd.wait_for_channel("topic", in_flight_count=0, depth=0)

    assert (first.attempts, second.attempts) == (1, 2)


async def test_an_answer_that_nsqd_refuses_is_reported_and_slows_down(nsqd: Nsqd) -> None:
    await publish(nsqd, b"slow")
    events = Events()
    async with Consumer(
        "topic",
        "ch",
        nsqd=[nsqd.tcp_address],
        msg_timeout=1.0,
        auto_touch=False,
        observer=events,
        max_in_flight=10,
    ) as consumer:
        message = await anext(aiter(consumer))
        consumer.set_max_in_flight(0)  # so that it is not delivered here again
        await nsqd.wait_for_channel("topic", in_flight_count=0, depth=1)
        message.fin()
        await until(lambda: events.late)
        consumer.set_max_in_flight(10)
        again = await anext(aiter(consumer))
        again.fin()
        await nsqd.wait_for_channel("topic", in_flight_count=0, depth=0)

    assert events.late == [message.id]
    assert consumer.stats().late == 1


async def test_touching_ends_at_the_longest_time(start_nsqd: StartNsqd) -> None:
    nsqd = await start_nsqd("--max-msg-timeout=2s")
    await publish(nsqd, b"endless")
    async with Consumer(
        "topic", "ch", nsqd=[nsqd.tcp_address], msg_timeout=1.0, max_in_flight=1
    ) as consumer:
        messages = aiter(consumer)
        first = await anext(messages)
        second = await anext(messages)
        with pytest.raises(AlreadyAnsweredError):
            first.fin()
        second.fin()

    assert second.attempts == 2


async def test_a_plain_handler_blocks_no_heartbeat(start_nsqd: StartNsqd) -> None:
    nsqd = await start_nsqd()
    await publish(nsqd, b"one")
    events = Events()
    threads: list[str] = []
    release = threading.Event()

    def handle(message: Message) -> None:
        threads.append(threading.current_thread().name)
        release.wait(30)

    consumer = Consumer(
        "topic", "ch", nsqd=[nsqd.tcp_address], heartbeat_interval=1.0, observer=events
    )
    running = asyncio.create_task(consumer.run(handle, signals=()))
    await until(lambda: threads)
    await asyncio.sleep(4.5)  # nsqd closes after two intervals without an answer
    release.set()
    await until(lambda: consumer.stats().finished == 1 or None)
    await consumer.close()
    await running

    assert threads == ["nsqd.client_0"]
    assert events.lost == []


async def test_a_blocked_loop_is_logged_and_recovers(
    nsqd: Nsqd, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(nsqd, b"one")
    async with Consumer("topic", "ch", nsqd=[nsqd.tcp_address], heartbeat_interval=1.0) as consumer:
        messages = aiter(consumer)
        message = await anext(messages)
        time.sleep(4.0)  # noqa: ASYNC251 - that is the point
        await asyncio.sleep(0.1)
        message.fin()  # the connection may be lost, and the message comes again
        await publish(nsqd, b"two")
        seen = set()
        while b"two" not in seen:
            message = await anext(messages)
            seen.add(message.body)
            message.fin()

    held_up = [
        record for record in caplog.records if "the event loop was held up" in record.getMessage()
    ]
    assert held_up
    assert held_up[0].levelno == logging.WARNING
    # Its timer was due within a second of those four.
    assert float(held_up[0].getMessage().rpartition("seconds=")[2]) >= 2.9


async def test_close_returns_what_was_not_answered(nsqd: Nsqd) -> None:
    bodies = [b"%d" % number for number in range(500)]
    await publish(nsqd, *bodies)
    async with Consumer("topic", "ch", nsqd=[nsqd.tcp_address], max_in_flight=500) as consumer:
        await until(lambda: consumer.stats().received == 500 or None)
        messages = [await anext(aiter(consumer)) for _ in range(100)]
        for message in messages[:40]:
            message.fin()

    other: list[bytes] = []
    async with Consumer("topic", "ch", nsqd=[nsqd.tcp_address], max_in_flight=500) as consumer:
        # Without waiting for the timeout of a minute, after which the test would fail.
        async for message in consumer:
            other.append(message.body)
            message.fin()
            if len(other) == 460:
                break

    assert Counter(other) == Counter(bodies[40:])
    for message in messages[40:]:
        with pytest.raises(AlreadyAnsweredError):
            message.fin()


@pytest.mark.parametrize("how", ["break", "raise", "cancel"])
async def test_leaving_the_loop_leaves_nothing_in_flight(nsqd: Nsqd, how: str) -> None:
    await publish(nsqd, *[b"%d" % number for number in range(50)])

    async def use() -> None:
        async with Consumer("topic", "ch", nsqd=[nsqd.tcp_address]) as consumer:
            async for message in consumer:
                async with message:
                    if how == "raise":
                        raise OSError("boom")
                    if how == "cancel":
                        task.cancel()
                        await asyncio.sleep(1)
                    break

    task = asyncio.create_task(use())
    await asyncio.wait([task])
    if how == "break":
        await task
    elif how == "raise":
        assert isinstance(task.exception(), OSError)
    else:
        assert task.cancelled()

    left = {"break": 49, "raise": 49, "cancel": 50}[how]
    await nsqd.wait_for_channel("topic", in_flight_count=0, depth=left, client_count=0)
    assert (await nsqd.channel("topic"))["deferred_count"] == (how == "raise")


async def test_a_sixth_attempt_is_handled_like_any_other(nsqd: Nsqd) -> None:
    await publish(nsqd, b"stubborn")
    attempts: list[int] = []
    async with Consumer("topic", "ch", nsqd=[nsqd.tcp_address], backoff=None) as consumer:
        async for message in consumer:
            attempts.append(message.attempts)
            if message.attempts == 7:
                message.fin()
                break
            message.req(0)

    assert attempts == [1, 2, 3, 4, 5, 6, 7]


async def test_what_is_given_up_is_a_dead_letter_before_its_fin(nsqd: Nsqd) -> None:
    await publish(nsqd, b"poison", b"good")
    handled: list[bytes] = []

    async def handle(message: Message) -> None:
        handled.append(message.body)
        if message.body == b"poison":
            raise Requeue(0, backoff=False)

    consumer = Consumer(
        "topic",
        "ch",
        nsqd=[nsqd.tcp_address],
        max_attempts=2,
        dead_letter_topic="topic.dead",
    )
    running = asyncio.create_task(consumer.run(handle, signals=()))
    await until(lambda: consumer.stats().given_up or None)
    await nsqd.wait_for_channel("topic", in_flight_count=0, depth=0, deferred_count=0)
    await consumer.close()
    await running

    assert Counter(handled) == Counter([b"poison", b"poison", b"good"])
    async with Consumer("topic.dead", "ch", nsqd=[nsqd.tcp_address]) as dead:
        letter = await anext(aiter(dead))
        assert letter.body == b"poison"
        letter.fin()


async def test_a_callback_that_fails_gives_nothing_up(nsqd: Nsqd) -> None:
    await publish(nsqd, b"poison")
    calls: list[int] = []

    def note(message: Message) -> None:
        calls.append(message.attempts)
        if len(calls) == 1:
            raise OSError("disk full")

    async with Consumer(
        "topic",
        "ch",
        nsqd=[nsqd.tcp_address],
        max_attempts=1,
        on_give_up=note,
        backoff=None,
    ) as consumer:
        message = await anext(aiter(consumer))
        message.req(0)
        waiting = asyncio.ensure_future(anext(aiter(consumer)))
        await nsqd.wait_for_channel("topic", deferred_count=1)
        assert calls == [2]
        assert consumer.stats().given_up == 0
        waiting.cancel()


async def test_a_dead_letter_that_nsqd_refuses_goes_back(start_nsqd: StartNsqd) -> None:
    """The topic of the dead letters cannot be reached: this client may not publish there."""
    with AuthServer() as auth:
        auth.grant("secret", allow("^topic$"))
        nsqd = await start_nsqd(f"--auth-http-address={auth.address}")
        async with Producer(nsqd.tcp_address, auth_secret="secret") as producer:
            await producer.publish("topic", b"poison")
        async with Consumer(
            "topic",
            "ch",
            nsqd=[nsqd.tcp_address],
            max_attempts=1,
            dead_letter_topic="topic.dead",
            backoff=None,
            auth_secret="secret",
        ) as consumer:
            message = await anext(aiter(consumer))
            message.req(0)
            waiting = asyncio.ensure_future(anext(aiter(consumer)))
            await nsqd.wait_for_channel("topic", deferred_count=1, in_flight_count=0)
            waiting.cancel()

    assert consumer.stats().given_up == 0
    assert consumer.stats().finished == 0
    assert await nsqd.message_count("topic.dead") == 0


async def test_a_give_up_needs_a_way() -> None:
    with pytest.raises(ValueError, match="on_give_up"):
        Consumer("topic", "ch", nsqd=["host"], max_attempts=5)
    with pytest.raises(ValueError, match="neither"):
        Consumer("topic", "ch")
    with pytest.raises(ValueError, match="names"):
        Consumer("no topic", "ch", nsqd=["host"])
    with pytest.raises(ClosedError):
        aiter(Consumer("topic", "ch", nsqd=["host"]))


async def test_batches_by_count_by_time_and_by_rdy(nsqd: Nsqd) -> None:
    await publish(nsqd, *[b"%d" % number for number in range(25)])
    async with Consumer("topic", "ch", nsqd=[nsqd.tcp_address], max_in_flight=10) as consumer:
        sizes = []
        await until(lambda: consumer.stats().received == 10 or None)
        async for batch in consumer.batches(max_count=7, max_wait=0.2):
            sizes.append(len(batch))
            batch.fin()
            if sum(sizes) == 25:
                break
        by_time = consumer.batches(max_count=100, max_wait=0.2)
        await publish(nsqd, b"alone")
        alone = await anext(by_time)
        alone.fin()
        await publish(nsqd, *[b"x"] * 30)
        used_up = await anext(consumer.batches(max_count=100, max_wait=1000))
        used_up.fin()

    assert max(sizes) == 7
    assert len(alone) == 1
    assert 1 <= len(used_up) <= 10


async def test_failures_back_off_and_success_ends_it(nsqd: Nsqd) -> None:
    await publish(nsqd, b"one")
    events = Events()
    async with Consumer("topic", "ch", nsqd=[nsqd.tcp_address], observer=events) as consumer:
        messages = aiter(consumer)
        (await anext(messages)).req(0)
        assert consumer.stats().backoff_level == 1
        (await anext(messages)).fin()
        assert consumer.stats().backoff_level == 0

    assert events.backoffs == [1, 0]


async def test_a_topic_that_is_deleted_is_subscribed_to_again(nsqd: Nsqd) -> None:
    events = Events()
    async with Consumer("topic", "ch", nsqd=[nsqd.tcp_address], observer=events) as consumer:
        await until(lambda: consumer.stats().connections or None)
        await nsqd.post("/topic/delete?topic=topic")
        await until(lambda: events.lost and consumer.stats().connections)
        await publish(nsqd, b"after")
        message = await anext(aiter(consumer))
        message.fin()

    assert message.body == b"after"


async def test_too_many_consumers_is_an_event_and_is_tried_again(start_nsqd: StartNsqd) -> None:
    nsqd = await start_nsqd("--max-channel-consumers=1")
    events = Events()
    async with Consumer("topic", "ch", nsqd=[nsqd.tcp_address]) as first:
        await until(lambda: first.stats().connections or None)
        second = Consumer("topic", "ch", nsqd=[nsqd.tcp_address], observer=events)
        second.start()
        await until(lambda: events.failed)
        assert "E_SUB_FAILED" in events.failed[0]
        await first.close()
        await until(lambda: second.stats().connections or None)
        await second.close()


async def test_a_paused_channel_delivers_when_it_goes_on(nsqd: Nsqd) -> None:
    events = Events()
    async with Consumer("topic", "ch", nsqd=[nsqd.tcp_address], observer=events) as consumer:
        await until(lambda: consumer.stats().connections or None)
        await nsqd.post("/channel/pause?topic=topic&channel=ch")
        await publish(nsqd, b"x")
        await nsqd.wait_for_channel("topic", depth=1, paused=True)
        assert consumer.stats().received == 0
        await nsqd.post("/channel/unpause?topic=topic&channel=ch")
        (await anext(aiter(consumer))).fin()

    assert events.lost == []


async def test_a_pause_at_run_time(nsqd: Nsqd) -> None:
    async with Consumer("topic", "ch", nsqd=[nsqd.tcp_address]) as consumer:
        await until(lambda: consumer.stats().connections or None)
        consumer.set_max_in_flight(0)
        await publish(nsqd, b"x")
        await nsqd.wait_for_channel("topic", depth=1)
        assert consumer.stats().received == 0
        consumer.set_max_in_flight(5)
        (await anext(aiter(consumer))).fin()


async def test_a_pause_gives_back_what_was_not_begun(nsqd: Nsqd) -> None:
    await publish(nsqd, *[b"%d" % number for number in range(20)])
    async with (
        Consumer("topic", "ch", nsqd=[nsqd.tcp_address], max_in_flight=20) as consumer,
        Consumer("topic", "ch", nsqd=[nsqd.tcp_address], max_in_flight=0) as other,
    ):
        begun = await anext(aiter(consumer))
        await until(lambda: consumer.stats().received == 20)
        consumer.set_max_in_flight(0)
        # The others may have them now, not after msg_timeout.
        await nsqd.wait_for_channel("topic", in_flight_count=1, depth=19)
        assert consumer.stats().buffered == 0
        other.set_max_in_flight(50)
        async for message in other:
            message.fin()
            if other.stats().finished == 19:
                break
        begun.fin()
        await nsqd.wait_for_channel("topic", in_flight_count=0, depth=0, timeout_count=0)


async def test_messages_that_overtake_a_pause_go_back(nsqd: Nsqd) -> None:
    async with Consumer("topic", "ch", nsqd=[nsqd.tcp_address], max_in_flight=20) as consumer:
        await until(lambda: consumer.stats().connections or None)
        await publish(nsqd, *[b"%d" % number for number in range(20)])
        await nsqd.wait_for_channel("topic", message_count=20)
        consumer.set_max_in_flight(0)
        await nsqd.wait_for_channel("topic", in_flight_count=0, depth=20, timeout_count=0)
        consumer.set_max_in_flight(20)
        async for message in consumer:
            message.fin()
            if consumer.stats().finished == 20:
                break


async def test_ten_handlers_at_once(nsqd: Nsqd) -> None:
    await publish(nsqd, *[b"%d" % number for number in range(200)])
    running = most = done = 0

    async def handle(message: Message) -> None:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        done += 1

    consumer = Consumer("topic", "ch", nsqd=[nsqd.tcp_address])
    task = asyncio.create_task(consumer.run(handle, concurrency=10, signals=()))
    await until(lambda: done == 200 or None)
    await consumer.close()
    await task

    assert most == 10
    assert consumer.stats().finished == 200


@pytest.mark.both_loops
async def test_connections_come_from_the_address_that_was_asked_for(nsqd: Nsqd) -> None:
    here = ("127.0.0.2", 0)
    async with Consumer("topic", "ch", nsqd=[nsqd.tcp_address], local_address=here) as consumer:
        await until(lambda: consumer.stats().connections or None)
        stats = await nsqd.get("/stats?format=json&topic=topic")

    [client] = stats["topics"][0]["channels"][0]["clients"]
    assert client["remote_address"].startswith("127.0.0.2:")
