"""Messages on their way, without senders."""

import asyncio

import pytest

from nsqd.client.errors import ClosedError, InvalidNameError, MessageTooLargeError
from nsqd.client.publish.batch import Batch
from nsqd.client.publish.queue import Bounds, PublishQueue


class Woken:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def make(**bounds: int) -> tuple[PublishQueue, Woken]:
    woken = Woken()
    return PublishQueue(asyncio.get_running_loop(), Bounds(**bounds), woken), woken


def take_all(queue: PublishQueue) -> list[Batch]:
    return list(iter(queue.take, None))


async def test_messages_of_a_topic_gather_and_wake_once() -> None:
    queue, woken = make()

    for number in range(10):
        queue.add("a" if number % 2 else "b", b"%d" % number, 30.0)

    batches = take_all(queue)
    assert woken.count == 1
    assert [(batch.topic, batch.bodies) for batch in batches] == [
        ("b", [b"0", b"2", b"4", b"6", b"8"]),
        ("a", [b"1", b"3", b"5", b"7", b"9"]),
    ]
    queue.add("a", b"x", 30.0)
    assert woken.count == 2


async def test_a_batch_is_bounded_in_count_and_bytes() -> None:
    queue, _ = make(max_batch_count=3, max_batch_bytes=10)

    for body in (b"1", b"2", b"3", b"4", b"5" * 9, b"6"):
        queue.add("t", body, 30.0)

    sizes = [[len(body) for body in batch.bodies] for batch in take_all(queue)]
    assert sizes == [[1, 1, 1], [1, 9], [1]]


async def test_deferred_messages_and_other_timeouts_go_alone() -> None:
    queue, _ = make()
    queue.add("t", b"1", 30.0)
    queue.add("t", b"2", 30.0, 500)
    queue.add("t", b"3", 30.0)
    queue.add("t", b"4", 5.0)
    queue.add("t", b"5", 30.0)

    found = [(batch.bodies, batch.defer_ms, batch.timeout_s) for batch in take_all(queue)]

    assert found == [
        ([b"1", b"3"], 0, 30.0),
        ([b"2"], 500, 30.0),
        ([b"4"], 0, 5.0),
        ([b"5"], 0, 30.0),
    ]


async def test_what_nsqd_would_refuse_is_refused_here() -> None:
    queue, _ = make(max_message_bytes=5)

    with pytest.raises(InvalidNameError) as name:
        queue.add("no topic", b"x", 30.0)
    with pytest.raises(MessageTooLargeError):
        queue.add("t", b"", 30.0)
    with pytest.raises(MessageTooLargeError):
        queue.add("t", b"123456", 30.0)

    assert name.value.is_certainly_not_published
    assert queue.count == 0


async def test_cancelled_messages_are_not_taken() -> None:
    queue, _ = make()
    futures = [queue.add("t", b"%d" % number, 30.0) for number in range(4)]
    alone = queue.add("u", b"x", 30.0)
    futures[1].cancel()
    futures[2].cancel()
    alone.cancel()

    [batch] = take_all(queue)

    assert batch.bodies == [b"0", b"3"]
    assert (queue.count, queue.body_bytes) == (2, 2)


async def test_batches_come_back_before_the_others() -> None:
    queue, woken = make()
    queue.add("a", b"1", 30.0)
    queue.add("b", b"2", 30.0)
    taken = take_all(queue)
    queue.add("c", b"3", 30.0)

    queue.put_back(taken)

    assert [batch.topic for batch in take_all(queue)] == ["a", "b", "c"]
    queue.put_back(taken)
    assert woken.count == 3


async def test_publishers_wait_for_room_in_their_order() -> None:
    queue, _ = make(max_pending_count=2, max_pending_bytes=100)
    order: list[int] = []

    async def publish(number: int, size: int) -> None:
        if not queue.has_room(1, size):
            await queue.wait_for_room(1, size, 30.0)
        order.append(number)
        queue.add(f"t{number}", b"x" * size, 30.0)

    tasks = [asyncio.create_task(publish(number, 10)) for number in range(5)]
    await asyncio.sleep(0)
    assert order == [0, 1]
    for expected in ([0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4]):
        batch = queue.take()
        assert batch is not None
        queue.settle(batch)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert order == expected
        assert queue.count <= 2
    await asyncio.gather(*tasks)


async def test_bytes_are_bounded_and_a_giant_goes_alone() -> None:
    queue, _ = make(max_pending_bytes=100)

    assert queue.has_room(1, 1000)
    queue.add("t", b"x" * 60, 30.0)

    assert queue.has_room(1, 40)
    assert not queue.has_room(1, 41)


async def test_a_cancelled_publisher_hands_its_room_on() -> None:
    queue, _ = make(max_pending_count=1)
    queue.add("t", b"x", 30.0)
    first = asyncio.create_task(queue.wait_for_room(1, 1, 30.0))
    second = asyncio.create_task(queue.wait_for_room(1, 1, 30.0))
    await asyncio.sleep(0)

    batch = queue.take()
    assert batch is not None
    queue.settle(batch)  # admits the first
    first.cancel()
    await asyncio.sleep(0)

    await second
    assert queue.count == 0


async def test_the_time_of_waiting_messages_and_publishers_ends() -> None:
    queue, _ = make(max_pending_count=2)
    early, late = queue.add("t", b"1", 1.0), queue.add("u", b"2", 50.0)
    waiter = asyncio.create_task(queue.wait_for_room(1, 1, 1.0))
    await asyncio.sleep(0)

    # The publisher would be let in by the room that the message leaves.
    queue.fail_expired(asyncio.get_running_loop().time() + 2, lambda _batch: ClosedError("over"))

    assert isinstance(early.exception(), ClosedError)
    assert not late.done()
    await waiter
    assert queue.count == 1
    second = asyncio.create_task(queue.wait_for_room(5, 1, 1.0))
    await asyncio.sleep(0)
    queue.fail_expired(asyncio.get_running_loop().time() + 2, lambda _batch: ClosedError("over"))
    with pytest.raises(ClosedError):
        await second


async def test_waiting_for_the_end() -> None:
    queue, _ = make()
    future = queue.add("t", b"1", 30.0)
    waiter = asyncio.create_task(queue.wait_until_empty())
    await asyncio.sleep(0)
    assert not waiter.done()

    queue.fail_all(lambda _batch: ClosedError("over"))

    await waiter
    assert isinstance(future.exception(), ClosedError)
