"""One client, byte by byte and second by second: its deadlines, its pauses and its end."""

import logging
import zlib
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest

from nsqd.protocol.frames import FrameType
from nsqd.runtime.door_counts import Failure
from nsqd.tcp.connection import DEADLINE_SLACK_S, LINGER_S, SILENT_INTERVAL_S, V2Connection
from nsqd.tcp.handlers import MAX_WAITING_REPLIES
from nsqd.tcp.read_gate import PauseReason
from nsqd.tcp.stream import MAX_DECODED_BYTES
from tests.support.broker_rig import BrokerRig
from tests.support.connection_rig import MAGIC, ConnectionRig, pub, sized

HEARTBEAT = b"_heartbeat_"
BAD_COMMAND = b"E_INVALID invalid command BAD"


# --- the start


@pytest.mark.parametrize(
    ("max_connections", "count", "is_refused"),
    [(0, 5, False), (2, 1, False), (2, 2, False), (2, 3, True), (1, 2, True)],
)
def test_a_connection_beyond_the_limit_is_aborted(
    max_connections: int, count: int, *, is_refused: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    connections: set[V2Connection] = set()
    rigs = [
        ConnectionRig(max_connections=max_connections, connections=connections)
        for _ in range(count)
    ]

    last = rigs[-1]
    last.send(b"NOP\nBAD\n")

    assert last.transport.is_aborted == is_refused
    assert last.texts() == ([] if is_refused else [BAD_COMMAND])
    assert all(not rig.transport.is_aborted for rig in rigs[:-1])
    assert ("too many connections" in caplog.text) == is_refused


def test_a_refused_connection_has_no_deadline_and_counts_until_it_is_lost() -> None:
    connections: set[V2Connection] = set()
    ConnectionRig(max_connections=1, connections=connections)
    refused = ConnectionRig(max_connections=1, connections=connections)
    assert refused.loop.timer_count == 0
    assert len(connections) == 2

    refused.connection.connection_lost(None)

    assert len(connections) == 1


def test_every_read_of_commands_is_told() -> None:
    reads: list[None] = []
    rig = ConnectionRig(on_read=lambda: reads.append(None))
    reads.clear()

    rig.send(b"NOP\n", pub(b"x"), b"NOP\nNOP\n")

    assert len(reads) == 3


@pytest.mark.parametrize("sent", [b"", b" ", b"  V"])
def test_the_magic_has_a_deadline(sent: bytes) -> None:
    rig = ConnectionRig(magic=sent, handshake_timeout_s=10.0)

    rig.advance(9.9)
    assert rig.transport.is_open
    rig.advance(0.1)

    assert rig.transport.is_aborted


def test_the_magic_may_come_byte_by_byte_and_ends_its_deadline() -> None:
    rig = ConnectionRig(magic=b"", handshake_timeout_s=10.0)
    rig.send(*(MAGIC[index : index + 1] for index in range(3)))
    rig.send(MAGIC[3:] + pub(b"a"))

    assert rig.texts() == [b"OK"]
    rig.advance(20)
    assert rig.transport.is_open


def test_another_magic_is_answered_and_closed() -> None:
    rig = ConnectionRig(magic=b"  V1")

    assert rig.frames() == [(FrameType.ERROR, b"E_BAD_PROTOCOL")]
    assert rig.transport.has_eof


# --- signs of life


def identify(rig: ConnectionRig, body: bytes) -> None:
    rig.send(b"IDENTIFY\n" + sized(body))
    assert rig.texts()


def test_heartbeats_come_at_the_interval_until_the_client_is_silent_for_two() -> None:
    rig = ConnectionRig()
    identify(rig, b'{"heartbeat_interval":1000}')

    rig.advance(0.99)
    assert rig.texts() == []
    rig.advance(0.01)
    assert rig.texts() == [HEARTBEAT]
    rig.advance(1.0)

    assert rig.texts() == []
    assert rig.transport.is_closed


def test_a_client_that_answers_heartbeats_stays() -> None:
    rig = ConnectionRig()
    identify(rig, b'{"heartbeat_interval":1000}')

    for _ in range(5):
        rig.advance(1.0)
        rig.send(b"NOP\n")

    assert rig.texts() == [HEARTBEAT] * 5
    assert rig.transport.is_open


def test_a_client_that_drags_a_command_along_is_silent() -> None:
    rig = ConnectionRig()
    identify(rig, b'{"heartbeat_interval":1000}')
    rig.send(b"PUB t\n")
    rig.advance(1.0)
    rig.send(b"\x00")
    assert rig.texts() == [HEARTBEAT]

    rig.advance(1.0)

    assert rig.texts() == [b"E_BAD_MESSAGE PUB failed to read message body size"]
    assert rig.transport.has_eof


def test_the_last_byte_just_before_the_second_heartbeat_is_late() -> None:
    rig = ConnectionRig()
    identify(rig, b'{"heartbeat_interval":1000}')
    rig.advance(DEADLINE_SLACK_S / 2)
    rig.send(b"NOP\n")

    rig.advance(2.0)

    assert rig.transport.is_closed


def test_a_client_without_heartbeats_has_all_the_time() -> None:
    rig = ConnectionRig()
    identify(rig, b'{"heartbeat_interval":-1}')

    rig.advance(10_000)

    assert rig.transport.is_open
    assert rig.texts() == []
    rig.send(b"SUB t c\n")
    assert rig.texts() == [b"E_INVALID cannot SUB with heartbeats disabled"]


@pytest.mark.parametrize(
    ("begun", "answer"),
    [
        (b"PUB ", []),
        (b"PUB t\n\x00", [b"E_BAD_MESSAGE PUB failed to read message body size"]),
        (
            b"MPUB t\n\x00\x00\x00\x20\x00\x00\x00\x02" + sized(b"x"),
            [b"E_BAD_MESSAGE MPUB failed to read message(1) body size"],
        ),
    ],
)
def test_without_heartbeats_a_command_that_has_begun_has_a_deadline(
    begun: bytes, answer: list[bytes]
) -> None:
    rig = ConnectionRig()
    identify(rig, b'{"heartbeat_interval":-1}')
    rig.advance(1000.0)

    rig.send(begun)
    rig.advance(SILENT_INTERVAL_S)
    rig.send(b"\x00")  # no sign of life
    assert rig.transport.is_open
    rig.advance(SILENT_INTERVAL_S)
    rig.advance(SILENT_INTERVAL_S)

    assert rig.texts() == answer
    assert rig.transport.has_eof if answer else rig.transport.is_closed


def test_a_deaf_client_is_aborted_after_one_interval() -> None:
    rig = ConnectionRig()
    identify(rig, b'{"heartbeat_interval":1000}')
    rig.advance(0.5)
    rig.connection.pause_writing()

    rig.advance(0.5)
    assert rig.texts() == [HEARTBEAT]
    rig.send(b"NOP\n")
    rig.advance(1.0)

    assert rig.transport.is_aborted


def test_a_client_that_reads_again_stays() -> None:
    rig = ConnectionRig()
    identify(rig, b'{"heartbeat_interval":1000}')
    rig.connection.pause_writing()
    rig.advance(0.9)

    rig.connection.resume_writing()
    rig.advance(1.0)

    assert rig.transport.is_open


def test_reading_is_a_sign_of_life() -> None:
    rig = ConnectionRig()
    identify(rig, b'{"heartbeat_interval":1000}')
    rig.advance(0.8)
    rig.connection.pause_writing()
    rig.advance(0.7)

    rig.connection.resume_writing()
    rig.advance(0.5)  # the second heartbeat, without a command of the client

    assert rig.texts() == [HEARTBEAT] * 2
    assert rig.transport.is_open


# --- reading and not reading


def test_a_client_that_does_not_read_its_replies_is_not_read_from() -> None:
    rig = ConnectionRig()
    rig.connection.pause_writing()
    rig.send(b"NOP\n")
    assert rig.transport.is_reading()  # there was no reply to it

    rig.publish(b"a")
    assert not rig.transport.is_reading()

    rig.connection.resume_writing()
    assert rig.transport.is_reading()


def test_durable_replies_count_as_unread_too() -> None:
    rig = ConnectionRig()
    rig.topic.is_durable = True
    rig.publish(b"a")
    assert rig.transport.is_reading()

    rig.connection.pause_writing()
    rig.topic.receipts[0].settle(None)

    assert rig.texts() == [b"OK"]
    assert not rig.transport.is_reading()


def test_too_many_replies_that_wait_for_the_disk_pause_reading() -> None:
    rig = ConnectionRig()
    identify(rig, b'{"heartbeat_interval":1000}')
    rig.topic.is_durable = True
    for _ in range(MAX_WAITING_REPLIES - 1):
        rig.publish(b"a")
    assert rig.transport.is_reading()
    rig.publish(b"a")
    assert not rig.transport.is_reading()

    rig.advance(5.0)  # nsqd does not listen, so this is no silence
    assert rig.texts() == [HEARTBEAT] * 5
    rig.topic.receipts[0].settle(None)

    assert rig.transport.is_reading()
    assert rig.texts() == [b"OK"]
    rig.advance(5.0)  # it waits for its other answers
    for receipt in rig.topic.receipts[1:]:
        receipt.settle(None)
    rig.advance(1.9)  # counted from now
    assert rig.transport.is_open
    rig.advance(0.1)
    assert rig.transport.is_closed


def test_compressed_input_is_read_in_turns() -> None:
    rig = ConnectionRig()
    rig.send(b"IDENTIFY\n" + sized(b'{"feature_negotiation":true,"deflate":true}'))
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    commands = pub(bytes(1000)) * 300
    packed = compressor.compress(commands) + compressor.flush(zlib.Z_SYNC_FLUSH)
    rig.turns.has_tiny_slices = True

    rig.send(packed)
    turn_count = 0
    while not rig.transport.is_reading():
        assert len(rig.topic.bodies) <= turn_count * MAX_DECODED_BYTES // 1000 + 1
        rig.loop.turn()
        turn_count += 1

    assert turn_count > 3
    assert len(rig.topic.bodies) == 300
    assert rig.transport.is_reading()
    assert rig.connection.gate.reasons == set()


def test_an_identify_waits_for_the_replies_before_it() -> None:
    rig = ConnectionRig()
    rig.topic.is_durable = True
    rig.send(pub(b"a") + b"IDENTIFY\n" + sized(b"{}") + b"NOP\nBAD\n")
    assert rig.texts() == []
    assert rig.connection.gate.reasons == {PauseReason.ORDER, PauseReason.TURN}
    assert not rig.transport.is_reading()

    rig.topic.receipts[0].settle(None)

    assert rig.texts() == [b"OK", b"OK", BAD_COMMAND]


def test_reading_goes_on_after_an_identify_that_waited() -> None:
    rig = ConnectionRig()
    rig.topic.is_durable = True
    rig.send(pub(b"a") + b"IDENTIFY\n" + sized(b"{}"))

    rig.topic.receipts[0].settle(None)

    assert rig.texts() == [b"OK", b"OK"]
    assert rig.transport.is_reading()


# --- the end


def test_after_a_fatal_error_the_client_has_time_to_read_it() -> None:
    rig = ConnectionRig()
    rig.send(pub(b"a") + b"BAD\n" + pub(b"b"))
    assert rig.frames() == [(FrameType.RESPONSE, b"OK"), (FrameType.ERROR, BAD_COMMAND)]
    assert rig.transport.has_eof

    rig.send(pub(b"c"))
    rig.advance(LINGER_S - 0.01)
    assert not rig.transport.is_closing()
    rig.advance(0.01)
    assert rig.transport.is_closed
    rig.advance(LINGER_S - 0.01)
    aborted = [rig.transport.is_aborted]
    rig.advance(0.01)
    aborted.append(rig.transport.is_aborted)

    assert aborted == [False, True]
    assert rig.topic.published == [[b"a"]]
    assert rig.texts() == []


def test_a_fatal_error_waits_for_the_replies_before_it() -> None:
    rig = ConnectionRig()
    rig.topic.is_durable = True
    rig.send(pub(b"a") + b"BAD\n")
    rig.advance(5 * LINGER_S)
    assert rig.transport.is_open
    assert rig.texts() == []

    rig.topic.receipts[0].settle(None)

    assert rig.texts() == [b"OK", BAD_COMMAND]
    assert rig.transport.has_eof
    rig.advance(LINGER_S)
    assert rig.transport.is_closed


def test_a_publish_that_fails_on_disk_ends_the_connection() -> None:
    rig = ConnectionRig()
    rig.topic.is_durable = True
    rig.publish(b"a")
    rig.publish(b"b")

    rig.topic.receipts[0].settle(OSError(28, "No space left on device"))

    assert rig.texts() == [b"E_PUB_FAILED PUB failed no space left on device"]
    rig.publish(b"c")
    had_eof = rig.transport.has_eof
    rig.topic.receipts[1].settle(None)
    assert rig.texts() == [b"OK"]  # it is stored
    assert (had_eof, rig.transport.has_eof) == (False, True)
    assert rig.topic.bodies == [b"a", b"b"]


def test_a_client_that_stops_in_a_body_is_told_so() -> None:
    rig = ConnectionRig()
    rig.send(pub(b"abc")[:-1])

    rig.connection.eof_received()

    assert rig.texts() == [b"E_BAD_MESSAGE PUB failed to read message body"]
    assert rig.transport.has_eof
    rig.advance(LINGER_S)
    assert rig.transport.is_closed


def test_a_client_that_stops_gets_its_last_replies() -> None:
    rig = ConnectionRig()
    rig.topic.is_durable = True
    rig.publish(b"a")

    assert rig.connection.eof_received()  # the transport stays open
    assert rig.transport.is_open
    rig.send(pub(b"b"))
    rig.topic.receipts[0].settle(None)

    assert rig.texts() == [b"OK"]
    assert rig.transport.is_closed
    assert len(rig.topic.published) == 1


def test_a_client_that_stops_is_let_go_in_a_turn_that_has_time() -> None:
    rig = ConnectionRig()
    rig.publish(b"a")

    assert rig.connection.eof_received()  # the transport stays open
    assert rig.transport.is_open
    rig.loop.turn()

    assert rig.transport.is_closed
    assert rig.settings.connections == set()
    assert rig.loop.timer_count == 0


def test_a_client_that_stops_and_reads_nothing_is_cut_off() -> None:
    rig = ConnectionRig()
    rig.publish(b"a")
    rig.transport.buffered_bytes = 1000

    rig.connection.eof_received()
    rig.loop.turn()
    assert rig.settings.connections == {rig.connection}
    rig.loop.advance(LINGER_S)

    assert rig.transport.is_aborted


def test_a_client_that_is_lost_before_its_turn_leaves_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    rig = ConnectionRig()

    rig.connection.eof_received()
    rig.connection.connection_lost(None)
    rig.loop.turn()

    assert caplog.text.count("exiting") == 1
    assert rig.settings.connections == set()


def test_a_line_that_is_too_long_closes_without_a_word() -> None:
    rig = ConnectionRig()
    rig.send(pub(b"a") + b"x" * 20_000)

    assert rig.texts() == [b"OK"]
    assert rig.transport.has_eof
    rig.advance(LINGER_S)  # what it still sends is dropped: a reset could destroy the OK
    assert rig.transport.is_closed


LONG_LINE = b"x" * 20_000


def leave_by_long_line(rig: ConnectionRig) -> None:
    rig.send(LONG_LINE)


def leave_by_internal_error(rig: ConnectionRig) -> None:
    rig.topic.error = RuntimeError("ours")
    rig.publish(b"c")


def leave_by_close(rig: ConnectionRig) -> None:
    rig.connection.close()  # the channel is deleted, or nsqd stops


@pytest.mark.parametrize("leave", [leave_by_long_line, leave_by_internal_error, leave_by_close])
def test_replies_that_are_owed_come_before_any_end(leave: Callable[[ConnectionRig], None]) -> None:
    """Go answers OK twice and closes: both messages are stored."""
    rig = ConnectionRig()
    rig.topic.is_durable = True
    rig.publish(b"a", b"b")

    leave(rig)
    rig.send(pub(b"too late"))
    assert rig.transport.is_open
    for receipt in rig.topic.receipts:
        receipt.settle(None)

    assert rig.texts() == [b"OK", b"OK"]
    rig.advance(LINGER_S)
    assert rig.transport.is_closed
    assert rig.topic.bodies == [b"a", b"b"]


def test_a_client_that_waits_for_its_answer_is_not_silent() -> None:
    rig = ConnectionRig()
    identify(rig, b'{"heartbeat_interval":1000}')
    rig.topic.is_durable = True
    rig.publish(b"a")

    for _ in range(10):
        rig.advance(1.0)
    assert rig.transport.is_open
    assert rig.texts() == [HEARTBEAT] * 10
    rig.topic.receipts[0].settle(None)
    assert rig.texts() == [b"OK"]

    rig.advance(1.0)  # its silence counts from the answer on
    assert rig.transport.is_open
    rig.advance(1.0)
    assert rig.transport.is_closed


def test_an_internal_error_closes_one_connection(caplog: pytest.LogCaptureFixture) -> None:
    rig = ConnectionRig()
    rig.topic.error = RuntimeError("ours")

    rig.publish(b"a")

    assert rig.transport.is_closed
    assert "internal error, closing" in caplog.text


def test_an_internal_error_at_the_end_aborts_the_connection() -> None:
    rig = ConnectionRig()
    rig.topic.is_durable = True
    rig.publish(b"a")
    rig.connection.close()

    with patch.object(rig.transport, "write", side_effect=RuntimeError("ours")):
        rig.topic.receipts[0].settle(None)

    assert rig.transport.is_aborted


def test_a_broken_invariant_is_not_hidden() -> None:
    rig = ConnectionRig()
    rig.topic.error = AssertionError("ours")

    with pytest.raises(AssertionError, match="ours"):
        rig.publish(b"a")


def test_a_lost_connection_leaves_no_timer() -> None:
    rig = ConnectionRig()
    rig.topic.is_durable = True
    rig.publish(b"a")

    rig.connection.connection_lost(None)
    rig.topic.receipts[0].settle(None)

    assert rig.loop.timer_count == 0
    assert rig.texts() == []
    assert rig.settings.connections == set()


def test_commands_are_logged_without_bodies(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    rig = ConnectionRig()
    content = b"\x00\x00\x00\x01" + sized(b"secret")

    rig.send(pub(b"secret"), pub(b"secret"), b"MPUB t\n" + sized(content))

    lines = [record.getMessage() for record in caplog.records if record.levelname == "DEBUG"]
    assert lines == [
        "PROTOCOL(V2): [@] PUB t count=1",
        "PROTOCOL(V2): [@] PUB t count=1",
        "PROTOCOL(V2): [@] MPUB t count=1",
    ]


def test_a_client_that_failed_cannot_stay_by_reading_slowly() -> None:
    rig = ConnectionRig()
    rig.send(b"NONSENSE\n")
    assert rig.transport.has_eof

    for _ in range(4):
        rig.advance(LINGER_S / 4)
        rig.connection.pause_writing()
        rig.connection.resume_writing()

    assert rig.transport.is_closed


def test_messages_come_again_when_the_client_reads_again(tmp_path: Path) -> None:
    broker = BrokerRig(tmp_path)
    rig = ConnectionRig(broker=broker.broker)
    rig.send(b"SUB t c\nRDY 10\n")
    rig.connection.pause_writing()
    broker.publish(b"a", b"b")
    broker.settle()
    assert rig.texts() == [b"OK"]

    rig.connection.resume_writing()
    broker.settle()

    assert [data[26:] for data in rig.texts()] == [b"a", b"b"]


def test_each_failure_is_counted_once() -> None:
    too_long = ConnectionRig()
    too_long.send(b"x" * 20_000, b"x" * 20_000)
    too_long.advance(2 * LINGER_S)
    assert too_long.settings.counts.failures == {Failure.PROTOCOL: 1}

    late = ConnectionRig(magic=b"")
    late.advance(late.settings.handshake_timeout_s + 1)
    assert late.settings.counts.failures == {Failure.MAGIC: 1}

    silent = ConnectionRig()
    silent.advance(10 * SILENT_INTERVAL_S)
    assert silent.settings.counts.failures == {Failure.SILENT: 1}


# --- the end of input


def test_a_client_that_sends_no_more_gets_its_last_replies() -> None:
    rig = ConnectionRig()
    rig.topic.is_durable = True
    rig.publish(b"1")

    assert rig.connection.eof_received()
    rig.advance(0.0)
    assert rig.transport.is_open
    rig.topic.receipts[0].settle(None)

    assert rig.texts() == [b"OK"]
    assert rig.transport.is_closed
    assert rig.settings.counts.failures == {}


def test_a_client_that_stops_within_a_command_is_told_so() -> None:
    rig = ConnectionRig()
    rig.send(pub(b"12345")[:-1])

    assert rig.connection.eof_received()

    assert rig.texts() == [b"E_BAD_MESSAGE PUB failed to read message body"]
    assert rig.transport.has_eof


def test_a_client_that_sends_no_more_gets_no_more_messages(tmp_path: Path) -> None:
    broker = BrokerRig(tmp_path)
    rig = ConnectionRig(broker=broker.broker)
    rig.send(b"SUB t c\nRDY 5\n")
    rig.texts()

    assert rig.connection.eof_received()
    broker.publish(b"1")  # before the turn in which the client leaves
    rig.send(pub(b"2"))

    assert rig.texts() == []
    assert broker.channel().depth == 1
    rig.advance(0.0)
    assert rig.transport.is_closed
    assert rig.settings.connections == set()
    assert len(broker.channel().consumers) == 0


@pytest.mark.parametrize("unsent_bytes", [0, 1])
def test_a_client_that_leaves_gets_what_is_written(unsent_bytes: int) -> None:
    rig = ConnectionRig()
    rig.transport.buffered_bytes = unsent_bytes
    rig.connection.eof_received()
    rig.advance(0.0)

    assert rig.transport.is_closed
    assert (rig.settings.connections == set()) is (unsent_bytes == 0)
    rig.advance(LINGER_S)
    assert rig.transport.is_aborted is (unsent_bytes > 0)


# --- a client that nsqd holds up is not silent


def hold_by_disk(rig: ConnectionRig) -> Callable[[], object]:
    rig.topic.is_durable = True
    rig.publish(b"1")
    return lambda: rig.topic.receipts[0].settle(None)


def hold_by_output(rig: ConnectionRig) -> Callable[[], object]:
    rig.connection.pause_writing()
    return rig.connection.resume_writing


def hold_by_nothing(rig: ConnectionRig) -> Callable[[], object]:
    return lambda: rig.send(b"NOP\n")


@pytest.mark.parametrize("hold", [hold_by_disk, hold_by_output, hold_by_nothing])
def test_silence_counts_from_the_end_of_what_holds_a_client_up(
    hold: Callable[[ConnectionRig], Callable[[], object]],
) -> None:
    rig = ConnectionRig()
    identify(rig, b'{"heartbeat_interval":1000}')
    rig.advance(1.2)
    release = hold(rig)
    rig.advance(0.7)

    release()

    rig.advance(0.2)
    assert rig.transport.is_open, "at the second heartbeat it was heard just before"
    rig.advance(0.99)
    assert rig.transport.is_open
    rig.advance(1.0)
    assert rig.transport.is_closed, "it says nothing any more"


def test_a_client_that_nothing_holds_up_is_silent() -> None:
    rig = ConnectionRig()
    identify(rig, b'{"heartbeat_interval":1000}')

    rig.advance(2.1)

    assert rig.transport.is_closed
