"""Messages between their arrival and their handlers."""

import asyncio

import pytest

from nsqd.client.consume.inbox import Inbox
from nsqd.client.consume.message import MessageState
from nsqd.client.errors import AuthError
from tests.support.client_messages import FakeOrigin, make_message


def make(*, limit: int = 100, max_attempts: int = 0) -> Inbox:
    inbox = Inbox(max_attempts=max_attempts, give_up=lambda message: given_up.append(message.id))
    inbox.set_limit(limit)
    return inbox


given_up: list[bytes] = []


@pytest.fixture(autouse=True)
def _clean() -> None:
    given_up.clear()


async def test_messages_are_handed_out_in_order() -> None:
    inbox = make()
    messages = [make_message(number) for number in range(3)]

    inbox.put(messages)

    assert [inbox.take_now() for _ in range(4)] == [*messages, None]
    assert messages[0].state is MessageState.HANDED


@pytest.mark.parametrize("is_bulk", [False, True])
async def test_no_more_than_the_limit_is_handed_out(is_bulk: bool) -> None:  # noqa: FBT001 - drawn
    inbox = make(limit=2)
    inbox.put([make_message(number) for number in range(3)])

    if is_bulk:
        assert len(inbox.take_many(10)) == 2
    else:
        assert inbox.take_now() is not None
        assert inbox.take_now() is not None
    assert inbox.take_now() is None
    inbox.answered()

    assert inbox.take_now() is not None


@pytest.mark.parametrize("is_bulk", [False, True])
async def test_what_is_over_is_not_handed_out(is_bulk: bool) -> None:  # noqa: FBT001 - drawn
    inbox = make()
    lost, expired, good = make_message(1), make_message(2, deadline=0.0), make_message(3)
    lost.state = MessageState.LOST
    inbox.put([lost, expired, good])

    taken = inbox.take_many(5) if is_bulk else [inbox.take_now()]

    assert taken == [good]
    assert (inbox.expired_count, inbox.handed_count) == (1, 1)
    assert expired.state is MessageState.EXPIRED


@pytest.mark.parametrize("is_bulk", [False, True])
async def test_what_was_delivered_too_often_is_given_up(is_bulk: bool) -> None:  # noqa: FBT001 - drawn
    inbox = make(max_attempts=5)
    inbox.put([make_message(1, attempts=6), make_message(2, attempts=5)])

    taken = inbox.take_many(5) if is_bulk else [inbox.take_now()]

    assert [message.attempts for message in taken if message] == [5]
    assert given_up == [make_message(1).id]
    assert inbox.handed_count == 2


async def test_takers_are_woken_in_turn() -> None:
    inbox = make()
    takers = [asyncio.create_task(inbox.take()) for _ in range(3)]
    await asyncio.sleep(0)
    messages = [make_message(number) for number in range(2)]

    inbox.put(messages)
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert [taker.done() for taker in takers] == [True, True, False]
    inbox.close()
    assert [await taker for taker in takers] == [*messages, None]


async def test_a_cancelled_taker_leaves_its_message_to_the_next() -> None:
    inbox = make()
    first, second = asyncio.create_task(inbox.take()), asyncio.create_task(inbox.take())
    await asyncio.sleep(0)

    inbox.put([make_message(1)])  # wakes the first
    first.cancel()

    assert await second is not None


async def test_a_raised_limit_wakes_takers() -> None:
    inbox = make(limit=0)
    inbox.put([make_message(1)])
    taker = asyncio.create_task(inbox.take())
    await asyncio.sleep(0)

    inbox.set_limit(1)

    assert await taker is not None


async def test_a_failure_is_raised_to_takers_and_the_end_is_none() -> None:
    failed, ended = make(), make()
    taker = asyncio.create_task(failed.take())
    await asyncio.sleep(0)

    failed.close(AuthError("no"))
    ended.close()

    with pytest.raises(AuthError):
        await taker
    with pytest.raises(AuthError):
        await failed.take()
    assert await ended.take() is None


async def test_waiting_has_an_end() -> None:
    inbox = make()

    await inbox.wait(0.0)

    assert inbox.take_now() is None


async def test_waiting_for_the_last_answer() -> None:
    inbox = make()
    origin = FakeOrigin(inbox)
    inbox.put([make_message(1, origin=origin)])
    message = inbox.take_now()
    assert message is not None
    waiter = asyncio.create_task(inbox.wait_until_answered())
    await asyncio.sleep(0)
    assert not waiter.done()

    message.fin()

    await waiter
