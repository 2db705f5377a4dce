"""The timer and the flow control of one connection to nsqlookupd, without sockets."""

import asyncio

import pytest

from lookupd.registry import Registry
from lookupd.tcp import CLOSE_TIMEOUT_S, READ_BYTES, PeerConnection, PeerServer
from nsqd.protocol.lookup import MAGIC, encode_reply
from tests.support.fake_loop import FakeLoop, FakeTransport

TIMEOUT_S = 30.0
OK = encode_reply(b"OK")


class Rig:
    """A connection that has sent its magic."""

    def __init__(self) -> None:
        self.loop = FakeLoop()
        registry = Registry(inactive_producer_timeout_s=300.0, tombstone_lifetime_s=45.0)
        self.server = PeerServer(registry, clock=self.loop.time, command_timeout_s=TIMEOUT_S)
        self.transport = FakeTransport()
        self.connection = PeerConnection(self.server)

    def start(self) -> None:
        """Connect."""
        self.connection.connection_made(self.transport)
        self.feed(MAGIC)

    def feed(self, data: bytes) -> None:
        """Have the loop read these bytes."""
        self.connection.get_buffer(-1)[: len(data)] = data
        self.connection.buffer_updated(len(data))

    def take_replies(self) -> bytes:
        """Return the bytes that were written since the last time."""
        data = b"".join(self.transport.written)
        self.transport.written.clear()
        return data


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    rig = Rig()
    monkeypatch.setattr(asyncio, "get_running_loop", rig.loop.as_loop)
    rig.start()
    return rig


def test_a_trickle_of_bytes_does_not_extend_the_time(rig: Rig) -> None:
    for _ in range(3):
        rig.feed(b" ")
        rig.loop.advance(TIMEOUT_S / 3 - 0.1)
    assert rig.transport.is_open

    rig.loop.advance(0.3)

    assert rig.transport.is_aborted


def test_complete_commands_do_extend_the_time(rig: Rig) -> None:
    rig.feed(b"PI")
    for _ in range(3):
        rig.loop.advance(TIMEOUT_S - 0.1)
        rig.feed(b"NG\nPI")
        assert rig.take_replies() == OK

    rig.loop.advance(TIMEOUT_S)

    assert rig.transport.is_aborted


def test_between_two_commands_a_peer_may_be_silent(rig: Rig) -> None:
    rig.feed(b"PING\n")
    rig.loop.advance(100 * TIMEOUT_S)

    assert rig.transport.is_open
    assert rig.loop.timer_count == 0


def test_a_peer_that_reads_its_replies_at_last_is_read_from_again(rig: Rig) -> None:
    rig.connection.pause_writing()
    assert not rig.transport.is_reading()
    rig.loop.advance(TIMEOUT_S - 0.1)

    rig.connection.resume_writing()

    assert rig.transport.is_reading()
    rig.loop.advance(10 * TIMEOUT_S)
    assert rig.transport.is_open
    rig.feed(b"PING\n")
    assert rig.take_replies() == OK


def test_half_a_command_counts_again_when_the_replies_are_read(rig: Rig) -> None:
    rig.feed(b"PI")
    rig.connection.pause_writing()
    rig.loop.advance(TIMEOUT_S - 0.1)
    rig.connection.resume_writing()
    rig.loop.advance(TIMEOUT_S - 0.1)
    assert rig.transport.is_open

    rig.loop.advance(0.1)

    assert rig.transport.is_aborted


def test_a_peer_that_never_reads_its_replies_is_given_up(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.connection.pause_writing()
    rig.loop.advance(TIMEOUT_S)

    assert rig.transport.is_aborted
    assert "does not read its replies" in caplog.text


def test_a_connection_that_closes_is_neither_read_nor_timed_again(rig: Rig) -> None:
    """The last reply, an error, is not taken: after a while the connection is dropped."""
    rig.feed(b"NONSENSE\n")
    assert rig.transport.is_closed

    rig.connection.pause_writing()
    rig.connection.resume_writing()

    assert not rig.transport.is_reading()
    assert not rig.transport.is_aborted
    rig.loop.advance(CLOSE_TIMEOUT_S)
    assert rig.transport.is_aborted


def test_a_full_buffer_is_followed_by_the_turns_of_others(rig: Rig) -> None:
    pings = b"PING\n" * (READ_BYTES // 5 + 1)

    rig.feed(pings[:READ_BYTES])

    assert not rig.transport.is_reading()
    rig.loop.turn()
    assert rig.transport.is_reading()
    assert rig.take_replies() == OK * (READ_BYTES // 5)


@pytest.mark.parametrize("is_deaf", [False, True])
def test_a_full_buffer_is_not_read_on_after_the_end(rig: Rig, *, is_deaf: bool) -> None:
    rig.feed((b"PING\n" * READ_BYTES)[:READ_BYTES])
    rig.transport.is_read = True  # pausing twice is no error for the transports of a loop
    if is_deaf:
        rig.connection.pause_writing()
    else:
        rig.transport.abort()
        rig.transport.is_read = False

    rig.loop.turn()

    assert not rig.transport.is_reading()
