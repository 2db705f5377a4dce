"""Messages that leave in one command."""

import asyncio

import pytest

from nsqd.client.errors import PublishTimeoutError
from nsqd.client.publish.batch import Batch
from nsqd.protocol import client_wire as wire


def make(*bodies: bytes, defer_ms: int = 0) -> Batch:
    batch = Batch("t", 0.0, 30.0, defer_ms=defer_ms)
    batch.bodies = list(bodies)
    batch.futures = [asyncio.get_running_loop().create_future() for _ in bodies]
    batch.body_bytes = sum(map(len, bodies))
    return batch


async def test_one_message_is_a_pub_and_more_are_an_mpub() -> None:
    assert make(b"a").encode() == wire.encode_pub("t", b"a")
    assert make(b"a", b"b").encode() == wire.encode_mpub("t", [b"a", b"b"])
    assert make(b"a", defer_ms=5).encode() == wire.encode_dpub("t", b"a", 5)


async def test_what_was_cancelled_is_taken_out() -> None:
    batch = make(b"a", b"bb", b"ccc")
    batch.futures[1].cancel()

    assert batch.drop_abandoned() == (1, 2)
    assert (batch.bodies, batch.body_bytes, len(batch.futures)) == ([b"a", b"ccc"], 4, 2)
    assert batch.drop_abandoned() == (0, 0)


async def test_a_whole_batch_goes_as_a_whole() -> None:
    batch = make(b"a", b"bb")
    batch.is_whole = True
    batch.futures = batch.futures[:1]
    batch.futures[0].cancel()

    assert batch.drop_abandoned() == (2, 3)
    assert batch.bodies == []


async def test_every_publisher_hears_of_the_outcome() -> None:
    good, bad = make(b"a", b"b"), make(b"a", b"b")
    good.futures[0].cancel()
    cause = OSError("why")
    error = PublishTimeoutError("late", is_certainly_not_published=True)
    error.__cause__ = cause

    good.succeed()
    bad.fail(error)

    assert good.futures[1].result() is None
    copies = [future.exception() for future in bad.futures]
    assert copies[0] is not copies[1]
    for copied in copies:
        assert isinstance(copied, PublishTimeoutError)
        assert (str(copied), copied.is_certainly_not_published) == ("late", True)
        assert copied.__cause__ is cause


async def test_large_bodies_are_split_off() -> None:
    batch = make(b"a", b"bbbb", b"c")
    futures = list(batch.futures)

    large = batch.split_off_larger(3)

    assert (batch.bodies, batch.futures, batch.body_bytes) == (
        [b"a", b"c"],
        [futures[0], futures[2]],
        2,
    )
    assert (large.bodies, large.futures, large.body_bytes) == ([b"bbbb"], [futures[1]], 4)


@pytest.mark.parametrize("count", [2, 5])
async def test_halves_are_in_order(count: int) -> None:
    bodies = [bytes([65 + number]) for number in range(count)]
    batch = make(*bodies)

    first, second = batch.split()

    assert first.bodies + second.bodies == bodies
    assert first.futures + second.futures == batch.futures
