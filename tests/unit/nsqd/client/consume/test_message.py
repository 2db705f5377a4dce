"""Messages and their answers."""

import asyncio

import pytest

from nsqd.client.consume.message import Batch, Message, MessageState, Requeue
from nsqd.client.errors import AlreadyAnsweredError
from tests.support.client_messages import FakeOrigin, make_message


def handed(number: int = 1, *, attempts: int = 1) -> tuple[Message, FakeOrigin]:
    origin = FakeOrigin()
    message = make_message(number, attempts=attempts, origin=origin)
    message.state = MessageState.HANDED
    return message, origin


def test_a_message_is_answered_once() -> None:
    message, origin = handed()

    message.touch()
    message.fin()

    assert origin.answers == [("TOUCH", message.id), ("FIN", message.id)]
    assert message.is_answered
    for answer in (message.fin, message.req, message.touch):
        with pytest.raises(AlreadyAnsweredError):
            answer()


@pytest.mark.parametrize(("attempts", "delay_s"), [(1, 90.0), (3, 270.0), (11, 900.0)])
def test_the_delay_of_a_requeue_grows_with_the_attempts(attempts: int, delay_s: float) -> None:
    message, origin = handed(attempts=attempts)

    message.req()

    assert origin.answers == [("REQ", message.id, delay_s, True)]


def test_an_answer_after_a_redelivery_raises_and_after_a_lost_connection_does_not() -> None:
    expired, _ = handed()
    expired.state = MessageState.EXPIRED
    lost, origin = handed()
    lost.state = MessageState.LOST

    with pytest.raises(AlreadyAnsweredError, match="delivered again"):
        expired.fin()
    lost.fin()

    assert origin.answers == [("lost", lost.id)]


async def test_a_context_finishes() -> None:
    message, origin = handed()

    async with message:
        assert not origin.answers

    assert origin.answers == [("FIN", message.id)]


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (ValueError("x"), ("REQ", 90.0, True)),
        (asyncio.CancelledError(), ("REQ", 0, False)),
        (Requeue(5, backoff=False), ("REQ", 5, False)),
    ],
)
async def test_a_context_requeues_what_fails(
    error: BaseException, answer: tuple[object, ...]
) -> None:
    message, origin = handed()

    async def use() -> None:
        async with message:
            raise error

    if isinstance(error, Requeue):
        await use()
    else:
        with pytest.raises(type(error)):
            await use()

    assert origin.answers == [(answer[0], message.id, *answer[1:])]


async def test_an_answer_within_the_context_stands() -> None:
    message, origin = handed()

    async with message:
        message.req(1)

    assert origin.answers == [("REQ", message.id, 1, True)]


def test_bodies_are_decoded() -> None:
    message = make_message(1, body='{"a": "ü"}'.encode())

    assert message.text() == '{"a": "ü"}'
    assert message.json() == {"a": "ü"}
    assert (message.topic, message.channel, message.nsqd) == ("topic", "channel", "127.0.0.1:4150")


def test_the_body_is_in_no_repr() -> None:
    assert "body" not in repr(make_message(1)).replace("bytes", "")


def batch() -> tuple[Batch, FakeOrigin]:
    origin = FakeOrigin()
    messages = [make_message(number, origin=origin) for number in range(3)]
    for message in messages:
        message.state = MessageState.HANDED
    return Batch(messages), origin


def test_a_batch_answers_what_has_no_answer() -> None:
    messages, origin = batch()
    messages[1].req(3)

    messages.fin()

    assert len(messages) == 3
    assert messages.bodies == [b"body"] * 3
    assert [answer[0] for answer in origin.answers] == ["REQ", "FIN", "FIN"]
    messages.fin()
    assert len(origin.answers) == 3


async def test_a_batch_that_fails_counts_once() -> None:
    messages, origin = batch()

    with pytest.raises(OSError, match="disk"):
        async with messages:
            raise OSError("disk")

    assert [answer[-1] for answer in origin.answers] == [True, False, False]
