"""A connection that is over leaves no timer and no object behind: the collector is off in nsqd."""

import gc
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqd.broker.consumer import Consumer
from nsqd.protocol.command_parser import CommandParser
from nsqd.tcp.connection import Deadlines, V2Connection
from nsqd.tcp.handlers import Replies
from nsqd.tcp.outgoing import Outgoing
from nsqd.tcp.read_gate import ReadGate
from nsqd.tcp.stream import ClientStream
from tests.support.broker_rig import BrokerRig
from tests.support.connection_rig import ConnectionRig, pub, sized

IDENTIFY = b"IDENTIFY\n"


def identify(**options: str) -> bytes:
    members = ",".join(f'"{name}":{value}' for name, value in options.items())
    return IDENTIFY + sized(b'{"feature_negotiation":true,%b}' % members.encode())


SCENARIOS = {
    "nothing": b"",
    "half a command": b"PUB t\n\0",
    "heartbeats": identify(heartbeat_interval="1000"),
    "deflate": identify(deflate="true"),
    "snappy": identify(snappy="true"),
    "publish": pub(b"1") * 2,
    "fatal error": b"WHAT\n",
    "fatal error behind others": pub(b"1") + b"PUB t\n" + b"\0\0\0\0",
    "line too long": b"x" * 100_000,
    "subscription": b"SUB t c\nRDY 5\n",
    "ephemeral": b"SUB t c#ephemeral\nRDY 5\n",
    "close": b"SUB t c\nRDY 5\nCLS\n",
}


@pytest.fixture(autouse=True, scope="module")
def _no_collector() -> Iterator[None]:
    # pytest keeps log records, and with them errors, tracebacks and connections.
    logging.disable(logging.WARNING)
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    logging.disable(logging.NOTSET)


KINDS = (
    V2Connection,
    ClientStream,
    Outgoing,
    ReadGate,
    Replies,
    Deadlines,
    CommandParser,
    Consumer,
)


class Before:
    """The objects of connections that other tests have left, which pytest may hold for a while."""

    def __init__(self) -> None:
        self._objects = find_objects()  # kept, so that no other object gets one of their ids

    def find_new(self) -> list[str]:
        """Return the kinds of those that have come since and are alive."""
        old = {id(each) for each in self._objects}
        return [type(each).__name__ for each in find_objects() if id(each) not in old]


def find_objects() -> list[object]:
    return [each for each in gc.get_objects() if isinstance(each, KINDS)]


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("is_deaf", [False, True])
def test_a_client_that_has_left_leaves_nothing(
    tmp_path: Path, scenario: str, *, is_deaf: bool
) -> None:
    before = Before()
    broker = BrokerRig(tmp_path)
    rig = ConnectionRig(broker=broker.broker)
    rig.send(SCENARIOS[scenario])
    broker.settle()
    if is_deaf:
        rig.connection.pause_writing()
    assert rig.loop.timer_count == 1

    rig.connection.connection_lost(None)
    rig.connection.connection_lost(None)  # as uvloop does after an abort

    assert rig.loop.timer_count == 0
    assert rig.connection not in rig.settings.connections
    broker.publish(b"for others", topic="t")
    rig.transport.written.clear()
    rig.send(pub(b"too late"))
    rig.connection.resume_writing()
    rig.advance(1000.0)
    assert rig.transport.written == []
    del rig.connection
    broker.advance(100.0)
    assert before.find_new() == []


@pytest.mark.parametrize("error", [None, OSError("Broken")])
def test_the_reply_of_a_publish_whose_client_has_left_is_dropped(error: OSError | None) -> None:
    before = Before()
    rig = ConnectionRig()
    rig.topic.is_durable = True
    rig.publish(b"1")
    rig.publish(b"2")
    rig.send(b"NOP\n")

    rig.connection.connection_lost(None)
    del rig.connection
    receipts, rig.topic.receipts = rig.topic.receipts, []
    for receipt in receipts:
        receipt.settle(error)
    del receipts, receipt

    assert rig.texts() == []
    assert before.find_new() == []
