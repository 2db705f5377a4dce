import contextlib
import itertools
import random
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import snappy
from hypothesis import example, given
from hypothesis import strategies as st
from nsq.deflate_socket import DeflateEncoder, DeflateSocket
from nsq.snappy_socket import SnappyEncoder, SnappySocket

from nsqd.protocol.compression import (
    MAX_CHUNK_COUNT,
    Codec,
    CompressionError,
    DeflateCodec,
    SnappyCodec,
)

MAKE_CODEC: dict[str, Callable[[], Codec]] = {
    "snappy": SnappyCodec,
    "deflate": lambda: DeflateCodec(6),
}
IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
ROOM_BYTES = 1 << 20

kinds = st.sampled_from(sorted(MAKE_CODEC))
every_codec = pytest.mark.parametrize("kind", sorted(MAKE_CODEC))
pieces = st.lists(
    st.binary(max_size=200)
    | st.builds(bytes.__mul__, st.binary(min_size=1, max_size=4), st.integers(1, 70_000)),
    max_size=6,
)


def incompressible(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def drain(codec: Codec, data: bytes, max_bytes: int = ROOM_BYTES) -> Iterator[bytes]:
    yield codec.decode(data, max_bytes)
    while codec.has_pending:
        yield codec.decode(b"", max_bytes)


def decode_all(codec: Codec, data: bytes, max_bytes: int = ROOM_BYTES) -> bytes:
    return b"".join(drain(codec, data, max_bytes))


def chunk(kind: int, content: bytes) -> bytes:
    return bytes([kind]) + len(content).to_bytes(3, "little") + content


def split_chunks(stream: bytes) -> list[tuple[int, bytes]]:
    chunks = []
    while stream:
        end = 4 + int.from_bytes(stream[1:4], "little")
        chunks.append((stream[0], stream[4:end]))
        stream = stream[end:]
    return chunks


def test_the_largest_snappy_chunk_is_that_of_bytes_that_do_not_compress() -> None:
    def decode_header(size: int) -> bytes:
        return SnappyCodec().decode(IDENTIFIER + chunk(0x00, bytes(size))[:4], ROOM_BYTES)

    size = 4 + 32 + 65_536 + 65_536 // 6  # with the checksum

    assert decode_header(size) == b""
    with pytest.raises(CompressionError, match=f"chunk of {size + 1} bytes"):
        decode_header(size + 1)


@every_codec
def test_nothing_is_pending_before_the_first_byte(kind: str) -> None:
    assert not MAKE_CODEC[kind]().has_pending


@given(kinds, pieces, st.integers(1, 100_000))
def test_what_one_end_encodes_the_other_decodes(
    kind: str, plain: list[bytes], max_bytes: int
) -> None:
    sender, receiver = MAKE_CODEC[kind](), MAKE_CODEC[kind]()

    for piece in plain:
        # Each flush is complete: nothing of it waits for the next one.
        assert decode_all(receiver, sender.encode(piece), max_bytes) == piece


@given(kinds, pieces, st.lists(st.integers(0, 400_000), max_size=8), st.integers(1, 100_000))
def test_any_split_of_the_stream_gives_the_same(
    kind: str, plain: list[bytes], cuts: list[int], max_bytes: int
) -> None:
    sender, receiver = MAKE_CODEC[kind](), MAKE_CODEC[kind]()
    stream = b"".join(map(sender.encode, plain))
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]

    received = b"".join(
        decode_all(receiver, stream[start:end], max_bytes)
        for start, end in itertools.pairwise(edges)
    )

    assert received == b"".join(plain)
    assert not receiver.has_pending


@every_codec
def test_one_byte_at_a_time_is_enough(kind: str) -> None:
    sender, receiver = MAKE_CODEC[kind](), MAKE_CODEC[kind]()
    plain = b"PUB topic\n" * 30 + incompressible(100)

    received = b"".join(decode_all(receiver, bytes([byte])) for byte in sender.encode(plain))

    assert received == plain


@given(kinds, st.binary(max_size=300), st.integers(1, 1000))
@example("snappy", IDENTIFIER + b"\x00\x04\x00\x00\x00\x00\x00\x00", 1)
@example("snappy", IDENTIFIER + b"\x00\x09\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\x0f", 1)
@example("snappy", IDENTIFIER + b"\x01\x03\x00\x00abc", 1)
def test_garbage_is_refused_or_decoded_within_bounds(
    kind: str, data: bytes, max_bytes: int
) -> None:
    codec = MAKE_CODEC[kind]()
    sizes = []

    with contextlib.suppress(CompressionError):
        for piece in drain(codec, data, max_bytes):
            sizes.append(len(piece))  # noqa: PERF401 - the sizes before an error count too

    assert all(size <= max_bytes for size in sizes)


@given(kinds, st.binary(min_size=20, max_size=300), st.data())
def test_damage_is_never_taken_for_other_data_by_snappy(
    kind: str, plain: bytes, data: st.DataObject
) -> None:
    stream = bytearray(MAKE_CODEC[kind]().encode(plain * 3))
    position = data.draw(st.integers(0, len(stream) - 1))
    stream[position] ^= data.draw(st.integers(1, 255))
    received = b""

    with contextlib.suppress(CompressionError):
        received = decode_all(MAKE_CODEC[kind](), bytes(stream))

    # Deflate has no checksum; snappy's must catch it, unless the damage made the chunk incomplete
    # or one to be skipped.
    assert kind == "deflate" or received in {b"", plain * 3}


@every_codec
def test_a_bomb_comes_out_in_the_sizes_asked_for(kind: str) -> None:
    sender, receiver = MAKE_CODEC[kind](), MAKE_CODEC[kind]()
    bomb = sender.encode(bytes(16 << 20))

    sizes = [len(piece) for piece in drain(receiver, bomb, 10_000)]

    assert len(bomb) < 1 << 20
    assert max(sizes) == 10_000
    assert sum(sizes) == 16 << 20


@every_codec
def test_pending_data_comes_before_new_data(kind: str) -> None:
    sender, receiver = MAKE_CODEC[kind](), MAKE_CODEC[kind]()
    first, second = sender.encode(b"a" * 1000), sender.encode(b"b" * 1000)

    received = receiver.decode(first, 600)
    assert receiver.has_pending
    received += decode_all(receiver, second, 600)

    assert received == b"a" * 1000 + b"b" * 1000


@every_codec
def test_encoding_nothing_sends_nothing_once_started(kind: str) -> None:
    codec = MAKE_CODEC[kind]()
    codec.encode(b"OK")

    assert codec.encode(b"") == b""


class ReceivedBytes:
    """Enough of a socket for pynsq's decoders to read from."""

    def __init__(self) -> None:
        self.received = b""

    def recv(self, size: int) -> bytes:
        data, self.received = self.received[:size], self.received[size:]
        return data


PYNSQ: dict[str, tuple[Callable[[], Any], Callable[[ReceivedBytes], Any]]] = {
    "snappy": (SnappyEncoder, SnappySocket),
    "deflate": (lambda: DeflateEncoder(6), lambda socket: DeflateSocket(socket, 6)),
}
CONVERSATION = [b"OK", b"NOP\n", bytes(50_000), incompressible(70_000), b"_heartbeat_" * 99]


@every_codec
def test_we_understand_pynsq(kind: str) -> None:
    # W-125
    encoder, codec = PYNSQ[kind][0](), MAKE_CODEC[kind]()

    for plain in CONVERSATION:
        assert decode_all(codec, encoder.encode(plain)) == plain


@every_codec
def test_pynsq_understands_us(kind: str) -> None:
    # W-122, W-123
    codec, socket = MAKE_CODEC[kind](), ReceivedBytes()
    client = PYNSQ[kind][1](socket)

    for plain in CONVERSATION:
        socket.received = codec.encode(plain)
        assert client.recv(1 << 20) == plain


# Snappy's framing


def test_the_identifier_opens_the_stream_once() -> None:
    # W-122
    codec = SnappyCodec()

    first, second = codec.encode(b"one"), codec.encode(b"two")

    assert first.startswith(IDENTIFIER)
    assert [kind for kind, _ in split_chunks(first + second)] == [0xFF, 0x01, 0x01]


def test_chunks_hold_at_most_65536_plain_bytes() -> None:
    chunks = split_chunks(SnappyCodec().encode(incompressible(150_000)))[1:]

    assert [(kind, len(content) - 4) for kind, content in chunks] == [
        (0x01, 65_536),
        (0x01, 65_536),
        (0x01, 150_000 - 2 * 65_536),
    ]


def test_data_is_compressed_only_if_it_shrinks_by_an_eighth() -> None:
    codec = SnappyCodec()
    codec.encode(b"start")

    ((barely, _),) = split_chunks(codec.encode(incompressible(900) + bytes(60)))
    ((well, content),) = split_chunks(codec.encode(incompressible(600) + bytes(400)))

    assert barely == 0x01
    assert well == 0x00
    assert len(content) - 4 <= 1000 - 1000 // 8


def test_an_independent_decoder_reads_what_we_send() -> None:
    codec = SnappyCodec()
    plain = [b"OK", bytes(100_000), incompressible(70_000)]
    decoder = snappy.StreamDecompressor()

    assert b"".join(decoder.decompress(codec.encode(piece)) for piece in plain) == b"".join(plain)


def test_every_command_may_begin_with_an_identifier() -> None:
    # pynsq makes a new compressor for each command it sends.
    codec = SnappyCodec()
    stream = snappy.StreamCompressor().compress(b"NOP\n") * 3

    assert decode_all(codec, stream) == b"NOP\n" * 3


def test_chunks_from_the_specification_are_understood() -> None:
    # "hello", plain, with the masked CRC-32C computed by hand; then padding and a skippable chunk.
    hello = chunk(0x01, mask(0x9A71BB4C).to_bytes(4, "little") + b"hello")
    stream = IDENTIFIER + hello + chunk(0xFE, bytes(10)) + chunk(0x80, b"?") + hello

    assert decode_all(SnappyCodec(), stream) == b"hellohello"


def mask(checksum: int) -> int:
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_an_empty_chunk_holds_nothing() -> None:
    nothing = chunk(0x01, mask(0).to_bytes(4, "little"))
    stream = IDENTIFIER + nothing + SnappyCodec().encode(b"x")[10:]

    assert decode_all(SnappyCodec(), stream) == b"x"


@pytest.mark.parametrize(
    ("stream", "text"),
    [
        (b"NOP\n", "chunk of"),
        (b"\x00\x06\x00\x00sNaPpY", "without identifier"),
        (b"\xfe\x00\x00\x00" + IDENTIFIER, "without identifier"),
        (b"\xff\x06\x00\x00sNaPpX", "sNaPpX"),
        (b"\xff\x05\x00\x00sNaPp", "header"),
        (IDENTIFIER + b"\x02\x00\x00\x00", "chunk type 0x02"),
        (IDENTIFIER + b"\x7f\x00\x00\x00", "chunk type 0x7f"),
        (IDENTIFIER + b"\x01\xff\xff\xff", "chunk of 16777215 bytes"),
        (IDENTIFIER + b"\x80\xff\xff\xff", "chunk of 16777215 bytes"),
        (IDENTIFIER + chunk(0x00, b"\0\0\0\0\x81\x80\x04"), "more than 65536"),
        (IDENTIFIER + chunk(0x00, b"\0\0\0\0\x80\x80\x80"), "more than 65536"),
        (IDENTIFIER + chunk(0x00, b""), "65536"),
        (IDENTIFIER + chunk(0x01, bytes(65_541)), "65537"),
        (IDENTIFIER + chunk(0x01, b"abc"), "chunk length"),
        (IDENTIFIER + chunk(0x01, b"\0\0\0\0hello"), "checksum"),
        (IDENTIFIER + chunk(0x00, b"\0\0\0\0\x05\xff\xff\xff"), "snappy"),
    ],
)
def test_a_broken_snappy_stream_is_refused(stream: bytes, text: str) -> None:
    # W-126
    with pytest.raises(CompressionError, match=text):
        decode_all(SnappyCodec(), stream)


def test_an_oversized_chunk_is_refused_before_it_arrives() -> None:
    codec = SnappyCodec()
    codec.decode(IDENTIFIER, ROOM_BYTES)

    with pytest.raises(CompressionError):
        codec.decode(b"\x00\xff\xff\x01", ROOM_BYTES)


# Deflate


def test_every_flush_ends_with_a_sync_marker() -> None:
    # W-123
    codec = DeflateCodec(6)

    for piece in (b"OK", b"x" * 100_000):
        assert codec.encode(piece).endswith(b"\x00\x00\xff\xff")


def test_the_stream_is_raw_deflate() -> None:
    stream = DeflateCodec(1).encode(b"hello" * 20)

    assert zlib.decompressobj(-15).decompress(stream) == b"hello" * 20


def test_a_higher_level_compresses_better() -> None:
    plain = b" ".join(b"%d" % (number * number) for number in range(5_000))

    assert len(DeflateCodec(9).encode(plain)) < len(DeflateCodec(1).encode(plain))


@pytest.mark.parametrize("stream", [b"\xff\xff\xff", b"\x07NOP\n", b"\x00\x01\x00\x01\x00a"])
def test_a_broken_deflate_stream_is_refused(stream: bytes) -> None:
    # W-126
    with pytest.raises(CompressionError):
        decode_all(DeflateCodec(6), stream)


def test_a_stream_that_ended_takes_no_more_data() -> None:
    client = zlib.compressobj(6, zlib.DEFLATED, -15)
    stream = client.compress(b"CLS\n") + client.flush(zlib.Z_FINISH)
    codec = DeflateCodec(6)

    assert decode_all(codec, stream) == b"CLS\n"
    with pytest.raises(CompressionError, match="after the end"):
        codec.decode(b"x", ROOM_BYTES)


def test_data_after_the_end_of_the_stream_is_pending_until_refused() -> None:
    client = zlib.compressobj(6, zlib.DEFLATED, -15)
    stream = client.compress(b"CLS\n") + client.flush(zlib.Z_FINISH) + b"x"
    codec = DeflateCodec(6)

    assert codec.decode(stream, ROOM_BYTES) == b"CLS\n"
    assert codec.has_pending
    with pytest.raises(CompressionError, match="after the end"):
        codec.decode(b"", ROOM_BYTES)


def test_empty_chunks_are_decompressed_some_at_a_time() -> None:
    codec = SnappyCodec()
    empty = b"\xfe\x00\x00\x00"

    data = b"\xff\x06\x00\x00sNaPpY" + empty * (2 * MAX_CHUNK_COUNT) + b"\xfe\x00\x00"
    call_count = 1
    assert codec.decode(data, 100) == b""
    while codec.has_pending:
        assert codec.decode(b"", 100) == b""
        call_count += 1

    assert call_count == 3
    assert codec.decode(b"\x00" + snappy.StreamCompressor().compress(b"NOP\n"), 100) == b"NOP\n"


def test_what_did_not_fit_is_pending() -> None:
    sent = DeflateCodec(6).encode(bytes(1000))
    codec = DeflateCodec(6)

    # The room is filled, and zlib has taken all input; or there is input that it has left.
    assert codec.decode(sent[:-1], 999) == bytes(999)
    assert codec.has_pending
    assert codec.decode(sent[-1:], 100) == b"\x00"
    assert not codec.has_pending


@pytest.mark.parametrize("kind", [0x00, 0x01, 0x80, 0xFE])
def test_a_chunk_may_be_as_large_as_bytes_that_do_not_compress_can_grow(kind: int) -> None:
    largest = 32 + 65_536 + 65_536 // 6 + 4

    SnappyCodec().decode(IDENTIFIER + bytes([kind]) + largest.to_bytes(3, "little"), ROOM_BYTES)
    with pytest.raises(CompressionError):
        SnappyCodec().decode(
            IDENTIFIER + bytes([kind]) + (largest + 1).to_bytes(3, "little"), ROOM_BYTES
        )
