"""Replies leave in the order of the commands, though some wait for the disk."""

import asyncio

import pytest

from nsqd.broker.queue.receipt import Receipt
from nsqd.protocol.frames import FrameType, encode_frame
from nsqd.tcp.handlers import MAX_WAITING_BYTES, MAX_WAITING_REPLIES, Replies
from nsqd.tcp.read_gate import ReadGate
from nsqd.tcp.stream import ClientStream
from tests.support.fake_loop import FakeLoop, FakeTransport, FakeTurns


class Rig:
    """Replies and the writes that they lead to."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.transport = FakeTransport()
        self.written = self.transport.written
        turns = FakeTurns(FakeLoop())
        gate = ReadGate(self.transport, turns, lambda: False)
        stream = ClientStream(self.transport, turns, lambda data: None, lambda: None)
        self.replies = Replies(stream, gate, self.on_settled)

    def on_settled(self) -> None:
        failure = self.replies.send_settled()
        if failure is not None:
            self.failures.append(str(failure))

    def add_durable(self, reply: bytes, verb: str = "PUB") -> Receipt:
        receipt = Receipt(1)
        self.replies.add_durable(receipt, verb, reply)
        return receipt


def test_fresh_replies_are_one_write() -> None:
    rig = Rig()
    rig.replies.add(b"a")
    rig.replies.add(b"b")
    assert rig.written == []

    rig.replies.flush()
    rig.replies.flush()

    assert rig.written == [b"ab"]
    assert rig.transport.is_reading()


def test_replies_behind_a_publish_wait_with_it() -> None:
    rig = Rig()
    rig.replies.add(b"a")
    receipt = rig.add_durable(b"b")
    rig.replies.add(b"c")
    rig.replies.flush()
    assert rig.written == [b"a"]

    receipt.settle(None)

    assert rig.written == [b"a", b"bc"]
    assert not rig.replies.waiting


def test_a_publish_that_is_durable_first_waits_for_the_one_before() -> None:
    rig = Rig()
    first, second, third = rig.add_durable(b"1"), rig.add_durable(b"2"), rig.add_durable(b"3")
    second.settle(None)
    assert rig.written == []

    first.settle(None)
    assert rig.written == [b"12"]
    third.settle(None)

    assert rig.written == [b"12", b"3"]


def test_a_publish_that_is_durable_already_waits_for_nothing() -> None:
    rig = Rig()
    receipt = Receipt(1)
    receipt.settle(None)
    rig.replies.add(b"a")

    rig.replies.add_durable(receipt, "PUB", b"b")

    assert rig.written == [b"a", b"b"]


def test_a_failed_publish_is_answered_in_its_turn_and_so_are_those_behind_it() -> None:
    rig = Rig()
    first, second = rig.add_durable(b"1"), rig.add_durable(b"2", "MPUB")
    third, fourth = rig.add_durable(b"3"), rig.add_durable(b"4")
    second.settle(OSError("disk"))
    third.settle(OSError("later"))
    assert rig.failures == []

    first.settle(None)
    fourth.settle(None)

    errors = [b"E_MPUB_FAILED MPUB failed disk", b"E_PUB_FAILED PUB failed later"]
    frames = b"".join(encode_frame(FrameType.ERROR, text) for text in errors)
    assert rig.written == [b"1" + frames, b"4"]
    assert rig.failures == [errors[0].decode()]
    assert not rig.replies.waiting


@pytest.mark.parametrize(
    ("reply", "count"), [(b"x", MAX_WAITING_REPLIES), (bytes(MAX_WAITING_BYTES // 4), 4)]
)
def test_too_many_waiting_replies_are_full(reply: bytes, count: int) -> None:
    rig = Rig()
    receipts = [rig.add_durable(reply) for _ in range(count - 1)]
    rig.replies.flush()
    assert rig.transport.is_reading()

    receipts.append(rig.add_durable(reply))
    rig.replies.flush()
    assert not rig.transport.is_reading()

    receipts[0].settle(None)
    assert not rig.replies.is_full


def test_a_failure_makes_room() -> None:
    rig = Rig()
    rig.add_durable(bytes(MAX_WAITING_BYTES)).settle(OSError("disk"))

    assert not rig.replies.is_full


def test_closed_replies_are_dropped() -> None:
    rig = Rig()
    receipt = rig.add_durable(b"1")
    rig.replies.add(b"2")

    rig.replies.close()
    receipt.settle(OSError("disk"))

    rig.replies.flush()
    assert rig.written == []
    assert rig.failures == []


async def test_to_wait_for_the_replies_is_to_wait_for_the_last_of_them() -> None:
    rig = Rig()
    first, last = rig.add_durable(b"1"), rig.add_durable(b"2")
    waiting = asyncio.create_task(rig.replies.wait_sent())
    await asyncio.sleep(0)

    first.settle(None)
    await asyncio.sleep(0)
    assert not waiting.done()
    last.settle(None)
    await waiting

    assert rig.written == [b"1", b"2"]


async def test_nobody_waits_for_the_replies_of_a_connection_that_is_gone() -> None:
    rig = Rig()
    rig.add_durable(b"1")
    waiting = asyncio.create_task(rig.replies.wait_sent())
    await asyncio.sleep(0)

    rig.replies.close()

    await waiting
    await rig.replies.wait_sent()


def test_replies_to_a_client_that_does_not_read_pause_reading() -> None:
    rig = Rig()
    rig.replies.stalled_at = 1000.0
    rig.replies.flush()
    assert rig.transport.is_reading()  # there was no reply

    rig.replies.add(b"a")
    rig.replies.flush()

    assert rig.written == [b"a"]
    assert not rig.transport.is_reading()


def test_settled_replies_to_a_client_that_does_not_read_pause_reading() -> None:
    rig = Rig()
    first, second = rig.add_durable(b"1"), rig.add_durable(b"2")
    rig.replies.stalled_at = 1000.0
    second.settle(None)
    assert rig.transport.is_reading()  # none was sent

    first.settle(None)

    assert not rig.transport.is_reading()
