"""Messages that come from a data directory, as other tools may have left it (W-106, D-12, D-26)."""

import struct
from pathlib import Path

import pytest

from tests.support.running_daemon import StartNsqd
from tests.support.v2_client import Message

TIMESTAMP_NS = 1_700_000_000_123_456_789


@pytest.fixture
def data_path(tmp_path: Path) -> Path:
    """A data directory with the topic "t" and its channel "ch"."""
    (tmp_path / "nsqd.dat").write_text('{"topics":[{"name":"t","channels":[{"name":"ch"}]}]}')
    return tmp_path


def store(data_path: Path, *messages: Message) -> None:
    """Write messages into the channel's queue, byte by byte as the format has it."""
    records = b""
    for message in messages:
        header = struct.pack(">qH16s", message.timestamp_ns, message.attempts, message.id)
        records += struct.pack(">i", 26 + len(message.body)) + header + message.body
    (data_path / "t:ch.diskqueue.000000.dat").write_bytes(records)
    meta = f"{len(messages)}\n0,0\n0,{len(records)}\n"
    (data_path / "t:ch.diskqueue.meta.dat").write_text(meta)


def greatest_file_bytes(data_path: Path) -> int:
    return max(path.stat().st_size for path in data_path.iterdir())


async def test_stored_message_is_delivered_as_it_was(
    start_nsqd: StartNsqd, data_path: Path
) -> None:
    stored = Message(TIMESTAMP_NS, 7, b"not-hex-at-all!!", b"body\n\x00")
    store(data_path, stored)
    nsqd = await start_nsqd()
    consumer = await nsqd.consumer("t", rdy=1)

    message = await consumer.read_message()

    assert message == Message(TIMESTAMP_NS, 8, b"not-hex-at-all!!", b"body\n\x00")
    consumer.fin(message)
    await consumer.settle()
    assert (await nsqd.channel("t"))["in_flight_count"] == 0


async def test_attempts_do_not_wrap_around(start_nsqd: StartNsqd, data_path: Path) -> None:
    """W-106: nsqd delivers the 65,536th attempt as the 0th; clients would try forever."""
    store(data_path, Message(TIMESTAMP_NS, 65534, b"0" * 16, b"x"))
    nsqd = await start_nsqd()
    consumer = await nsqd.consumer("t", rdy=1)

    for _ in range(3):
        message = await consumer.read_message()
        assert message.attempts == 65535
        consumer.req(message, 0)


async def test_empty_message_is_delivered(start_nsqd: StartNsqd, data_path: Path) -> None:  # D-26
    store(data_path, Message(TIMESTAMP_NS, 0, b"0" * 16, b""))
    nsqd = await start_nsqd()
    consumer = await nsqd.consumer("t", rdy=1)

    assert (await consumer.read_message()).body == b""


async def test_messages_may_share_an_id(start_nsqd: StartNsqd, data_path: Path) -> None:
    """Both are delivered, and each FIN finishes one of them."""
    store(
        data_path,
        Message(TIMESTAMP_NS, 0, b"twin" * 4, b"first"),
        Message(TIMESTAMP_NS, 0, b"twin" * 4, b"second"),
    )
    nsqd = await start_nsqd()
    consumer = await nsqd.consumer("t", rdy=2)

    first, second = await consumer.read_messages(2)

    assert {first.body, second.body} == {b"first", b"second"}
    consumer.fin(first)
    await consumer.settle()
    assert (await nsqd.channel("t"))["in_flight_count"] == 1
    consumer.fin(second)
    await consumer.settle()
    assert (await nsqd.channel("t"))["in_flight_count"] == 0
    consumer.fin(second)
    text = b"E_FIN_FAILED FIN twintwintwintwin failed ID not in flight"
    await consumer.expect_error(text, is_fatal=False)


async def test_message_greater_than_the_limit_of_today_is_not_lost(
    start_nsqd: StartNsqd, data_path: Path
) -> None:
    """Stored under a greater --max-msg-size; what is not accepted any more is still kept."""
    store(
        data_path,
        Message(TIMESTAMP_NS, 0, b"0" * 16, b"small"),
        Message(TIMESTAMP_NS, 0, b"1" * 16, bytes(2000)),
    )
    nsqd = await start_nsqd(max_msg_size=1000)
    consumer = await nsqd.consumer("t", rdy=2)

    assert (await consumer.read_message()).body == b"small"

    await nsqd.stop()
    assert greatest_file_bytes(data_path) >= 2000
