"""Commands to bytes, bytes to frames."""

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskqueue.envelope import HEADER
from nsqd.protocol import client_wire as wire
from nsqd.protocol.client_wire import FrameError, FrameReader, RawMessage, Reply


def frame(kind: int, data: bytes) -> bytes:
    return struct.pack(">ii", len(data) + 4, kind) + data


def message(number: int, body: bytes) -> tuple[bytes, RawMessage]:
    message_id = b"%016x" % number
    raw = (number * 1000, number % 7 + 1, message_id, body)
    return frame(2, HEADER.pack(raw[0], raw[1], message_id) + body), raw


def sample() -> tuple[bytes, list[RawMessage], list[Reply]]:
    parts: list[bytes] = []
    messages: list[RawMessage] = []
    replies: list[Reply] = []
    for number in range(20):
        data, raw = message(number, bytes([number]) * (number * 13))
        parts.append(data)
        messages.append(raw)
        if number % 3 == 0:
            parts.append(frame(0, wire.HEARTBEAT))
            replies.append((False, wire.HEARTBEAT))
        if number % 5 == 0:
            parts.append(frame(1, b"E_FIN_FAILED FIN x failed"))
            replies.append((True, b"E_FIN_FAILED FIN x failed"))
    parts.append(frame(0, b""))
    replies.append((False, b""))
    return b"".join(parts), messages, replies


def read(pieces: list[bytes]) -> tuple[list[RawMessage], list[Reply]]:
    reader = FrameReader()
    messages: list[RawMessage] = []
    replies: list[Reply] = []
    for piece in pieces:
        more_messages, more_replies = reader.feed(piece)
        messages += more_messages
        replies += more_replies
    return messages, replies


def test_frames_cut_at_every_byte_are_the_same() -> None:
    data, messages, replies = sample()

    assert read([data]) == (messages, replies)
    assert read([data[i : i + 1] for i in range(len(data))]) == (messages, replies)
    for cut in range(len(data)):
        assert read([data[:cut], data[cut:]]) == (messages, replies)


def test_ten_thousand_random_cuts_change_nothing() -> None:
    data, messages, replies = sample()
    choose = random.Random(1)

    for _ in range(10_000):
        cuts = sorted(choose.sample(range(len(data)), choose.randrange(6)))
        ends = [*cuts, len(data)]
        starts = [0, *cuts]
        assert read([data[a:b] for a, b in zip(starts, ends, strict=True)]) == (messages, replies)


@pytest.mark.parametrize("size", [-1, 0, 3, wire.MAX_FRAME_BYTES + 1, 2**31 - 1])
@pytest.mark.parametrize("kind", [0, 1, 2])
def test_an_impossible_size_is_refused(size: int, kind: int) -> None:
    with pytest.raises(FrameError):
        FrameReader().feed(struct.pack(">ii", size, kind) + b"x" * 40)


def test_an_impossible_size_is_refused_before_the_frame_is_whole() -> None:
    with pytest.raises(FrameError):
        FrameReader().feed(struct.pack(">ii", wire.MAX_FRAME_BYTES + 1, 2))


@pytest.mark.parametrize("kind", [-1, 3, 65536])
def test_an_unknown_type_is_refused(kind: int) -> None:
    with pytest.raises(FrameError):
        FrameReader().feed(struct.pack(">ii", 6, kind) + b"OK")


@pytest.mark.parametrize("size", range(4, 30))
def test_a_message_shorter_than_its_header_is_refused(size: int) -> None:
    with pytest.raises(FrameError):
        FrameReader().feed(struct.pack(">ii", size, 2) + b"x" * 40)


@given(st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=50))
def test_an_mpub_has_the_sizes_that_nsqd_reads(bodies: list[bytes]) -> None:
    data = wire.encode_mpub("t", bodies)

    line, _, rest = data.partition(b"\n")
    assert line == b"MPUB t"
    size, count = struct.unpack_from(">ii", rest)
    assert size == len(rest) - 4
    assert count == len(bodies)
    position = 8
    for body in bodies:
        (length,) = struct.unpack_from(">i", rest, position)
        assert rest[position + 4 : position + 4 + length] == body
        position += 4 + length
    assert position == len(rest)


def test_commands_are_those_of_the_protocol() -> None:
    first, second = b"0123456789abcdef", b"fedcba9876543210"

    assert wire.encode_pub("t", b"body") == b"PUB t\n\x00\x00\x00\x04body"
    assert wire.encode_dpub("t", b"b", 1500) == b"DPUB t 1500\n\x00\x00\x00\x01b"
    assert wire.encode_sub("t", "c") == b"SUB t c\n"
    assert wire.encode_rdy(12) == b"RDY 12\n"
    assert wire.encode_fins([first, second]) == b"FIN %b\nFIN %b\n" % (first, second)
    assert wire.encode_touches([first]) == b"TOUCH %b\n" % first
    assert wire.encode_reqs([first, second], 9) == b"REQ %b 9\nREQ %b 9\n" % (first, second)


def test_no_piece_of_a_split_mpub_is_larger_than_it_may_be() -> None:
    bodies = [b"a" * 6, b"b" * 5, b"c" * 5, b"d", b"e" * 20, b"f"]

    pieces = list(wire.cut(bodies, 10))

    assert [[len(body) for body in piece] for piece in pieces] == [[6], [5, 5], [1], [20], [1]]


@pytest.mark.parametrize("max_bytes", [0, 1, 9, 10, 11, 37, 38, 39, 100])
def test_pieces_of_a_split_mpub_are_as_large_as_they_may_be(max_bytes: int) -> None:
    bodies = [b"a" * 6, b"b" * 5, b"c" * 5, b"d", b"e" * 20, b"f"]

    pieces = list(wire.cut(bodies, max_bytes))

    assert [body for piece in pieces for body in piece] == bodies
    sizes = [sum(map(len, piece)) for piece in pieces]
    assert all(
        size <= max_bytes or len(piece) == 1 for size, piece in zip(sizes, pieces, strict=True)
    )
    # The first of the next one had no room.
    for size, following in zip(sizes, pieces[1:], strict=False):
        assert size + len(following[0]) > max_bytes
    assert list(wire.cut([], max_bytes)) == []


def test_messages_behind_their_sizes_are_an_mpub_too() -> None:
    bodies = [b"first", b"second one"]
    framed = b"".join(struct.pack(">i", len(body)) + body for body in bodies)

    assert wire.encode_framed_mpub("t", 2, framed) == wire.encode_mpub("t", bodies)


def test_the_rest_behind_the_last_frame_is_given_once() -> None:
    reader = FrameReader()
    data, _ = message(1, b"body")
    reader.feed(data + b"\x00\x00")
    reader.feed(b"\x00")

    assert reader.take_rest() == b"\x00\x00\x00"
    assert reader.take_rest() == b""
