import asyncio
import contextlib
import ssl
import weakref
import zlib
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest
import snappy
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqd.protocol import frames
from nsqd.protocol.compression import CompressionError, DeflateCodec, SnappyCodec
from nsqd.runtime.tls import build_server_context
from nsqd.tcp.stream import (
    MAX_DECODED_BYTES,
    WRITELINES_MIN_BYTES,
    ClientStream,
    TlsEndedError,
    TlsRefusedError,
)
from tests.support.certs import make_authority, make_server
from tests.support.fake_loop import FakeLoop, FakeTurns


class FakeTransport(asyncio.Transport):
    """Keeps what is written to it, write by write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.joined_writes: list[list[bytes]] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert data, "an empty write"
        self.writes.append(bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        parts = [bytes(part) for part in list_of_data]
        self.joined_writes.append(parts)
        self.writes.append(b"".join(parts))

    def take(self) -> bytes:
        data = b"".join(self.writes)
        self.writes.clear()
        return data


class TlsPeer:
    """The client's end of TLS."""

    def __init__(self, authority_file: str) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(authority_file)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")

    def shake_hands(self, received: bytes = b"") -> bytes:
        """Take a step of the handshake; return what to send."""
        self._incoming.write(received)
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()
        return self._outgoing.read()

    def encrypt(self, plain: bytes) -> bytes:
        self._tls.write(plain)
        return self._outgoing.read()

    def say_farewell(self) -> bytes:
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.unwrap()
        return self._outgoing.read()

    def decrypt(self, received: bytes) -> bytes:
        self._incoming.write(received)
        pieces = []
        with contextlib.suppress(ssl.SSLWantReadError):
            while piece := self._tls.read():
                pieces.append(piece)
        return b"".join(pieces)


class Rig:
    """A stream between a fake transport and a list of what the client meant."""

    def __init__(self) -> None:
        self.transport = FakeTransport()
        self.received: list[bytes] = []
        self.loop = FakeLoop()
        self.stream = ClientStream(
            self.transport, FakeTurns(self.loop), self.received.append, lambda: None
        )

    def take(self) -> bytes:
        data = b"".join(self.received)
        self.received.clear()
        return data

    def feed_all(self, data: bytes) -> None:
        """Feed data and go on as long as something is pending, as the connection does."""
        self.stream.feed(data)
        while self.stream.has_pending:
            self.stream.feed(b"")


class TlsParty:
    """A server's context and the authority that clients trust."""

    def __init__(self, directory: Path) -> None:
        authority = make_authority(directory)
        server = make_server(directory, authority)
        self.authority_file = authority.cert_file
        self.context = build_server_context(
            server.cert_file,
            server.key_file,
            client_auth_policy="",
            root_ca_file="",
            min_version=ssl.TLSVersion.TLSv1_2,
        )

    def connect(self, rig: Rig) -> TlsPeer:
        """Upgrade a stream; what follows goes through TLS, the OK has been received."""
        peer = TlsPeer(self.authority_file)
        rig.stream.start_tls(self.context, lambda: None, b"")
        sent = peer.shake_hands()
        for _ in range(4):
            rig.stream.feed(sent)
            sent = peer.shake_hands(rig.transport.take())
            if not sent:
                break
        assert peer.decrypt(b"") == frames.OK
        return peer


@pytest.fixture(scope="module")
def party(tmp_path_factory: pytest.TempPathFactory) -> TlsParty:
    return TlsParty(tmp_path_factory.mktemp("certs"))


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_without_upgrades_bytes_pass_as_they_are(rig: Rig) -> None:
    rig.stream.feed(b"  V2NOP\n")
    rig.stream.write(frames.OK)

    assert rig.received == [b"  V2NOP\n"]
    assert rig.transport.writes == [frames.OK]
    assert rig.stream.is_plain
    assert not rig.stream.is_compressed
    assert not rig.stream.has_pending


def test_small_messages_are_joined_into_one_write(rig: Rig) -> None:
    rig.stream.write_messages([b"a", b"b", b"c", b"body"], [b"body"])

    assert rig.transport.writes == [b"abcbody"]
    assert rig.transport.joined_writes == []


def test_large_bodies_are_not_copied_into_one_write(rig: Rig) -> None:
    body = bytes(WRITELINES_MIN_BYTES)
    rig.stream.write_messages([b"a", b"b", b"c", body], [body])

    assert rig.transport.joined_writes == [[b"a", b"b", b"c", body]]


def test_large_bodies_are_compressed_too(rig: Rig) -> None:
    body = bytes(WRITELINES_MIN_BYTES)
    rig.stream.start_compression(DeflateCodec(6))
    rig.stream.write_messages([b"a", b"b", b"c", body], [body])
    rig.loop.advance()

    plain = zlib.decompressobj(-zlib.MAX_WBITS).decompress(rig.transport.take())
    assert plain == b"abc" + body


def test_snappy_in_both_directions(rig: Rig) -> None:
    # W-122, W-125
    rig.stream.start_compression(SnappyCodec())
    peer = snappy.StreamCompressor()

    rig.feed_all(peer.compress(b"NOP\n") + peer.compress(b"RDY 1\n"))
    rig.stream.write(frames.OK)

    assert rig.take() == b"NOP\nRDY 1\n"
    assert rig.transport.writes[0].startswith(b"\xff\x06\x00\x00sNaPpY")
    assert snappy.StreamDecompressor().decompress(rig.transport.take()) == frames.OK
    assert rig.stream.is_compressed
    assert not rig.stream.is_plain


def test_deflate_in_both_directions(rig: Rig) -> None:
    # W-123, W-125
    rig.stream.start_compression(DeflateCodec(6))
    peer = zlib.compressobj(wbits=-zlib.MAX_WBITS)

    rig.feed_all(peer.compress(b"NOP\n") + peer.flush(zlib.Z_SYNC_FLUSH))
    rig.stream.write(frames.OK)

    assert rig.take() == b"NOP\n"
    assert rig.transport.writes[0].endswith(b"\x00\x00\xff\xff")


@pytest.mark.parametrize("codec", [SnappyCodec, lambda: DeflateCodec(6)])
def test_garbage_in_the_compressed_stream_is_an_error(rig: Rig, codec: type) -> None:
    # W-126
    rig.stream.start_compression(codec())

    with pytest.raises(CompressionError):
        rig.feed_all(b"\xff" * 100)


@pytest.mark.parametrize("name", ["snappy", "deflate"])
def test_what_decompresses_to_much_comes_bit_by_bit(rig: Rig, name: str) -> None:
    plain = bytes(20 * MAX_DECODED_BYTES)
    if name == "snappy":
        rig.stream.start_compression(SnappyCodec())
        compressed = snappy.StreamCompressor().compress(plain)
    else:
        rig.stream.start_compression(DeflateCodec(6))
        peer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
        compressed = peer.compress(plain) + peer.flush(zlib.Z_SYNC_FLUSH)

    rig.stream.feed(compressed)
    assert 0 < sum(map(len, rig.received)) <= MAX_DECODED_BYTES
    assert rig.stream.has_pending
    rig.feed_all(b"")

    assert max(map(len, rig.received)) <= MAX_DECODED_BYTES
    assert rig.take() == plain
    assert not rig.stream.has_pending


@settings(max_examples=60)
@given(
    st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=5),
    st.lists(st.integers(0, 2000), max_size=8),
    st.booleans(),
)
def test_any_split_of_a_compressed_stream_gives_the_same(
    parts: list[bytes],
    cuts: list[int],
    is_snappy: bool,  # noqa: FBT001 - drawn by Hypothesis
) -> None:
    rig = Rig()
    if is_snappy:
        rig.stream.start_compression(SnappyCodec())
        compressor = snappy.StreamCompressor()
        data = b"".join(compressor.compress(part) for part in parts)
    else:
        rig.stream.start_compression(DeflateCodec(6))
        deflater = zlib.compressobj(wbits=-zlib.MAX_WBITS)
        data = b"".join(
            deflater.compress(part) + deflater.flush(zlib.Z_SYNC_FLUSH) for part in parts
        )
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]

    for start, end in pairwise(edges):
        if start < end:
            rig.feed_all(data[start:end])

    assert rig.take() == b"".join(parts)


def test_tls_in_both_directions(rig: Rig, party: TlsParty) -> None:
    # W-119
    peer = party.connect(rig)

    rig.stream.feed(peer.encrypt(b"NOP\n"))
    rig.stream.write(b"reply")

    assert rig.take() == b"NOP\n"
    assert peer.decrypt(rig.transport.take()) == b"reply"
    assert rig.stream.tls is not None
    assert not rig.stream.is_plain


def test_the_connection_is_told_once_when_tls_is_in_force(rig: Rig, party: TlsParty) -> None:
    # W-119: the OK goes before whatever the connection then sends
    peer = TlsPeer(party.authority_file)
    calls: list[bool] = []

    def on_tls() -> None:
        assert rig.stream.tls is not None
        calls.append(rig.stream.tls.handshake_done)
        rig.stream.write(b"next")

    rig.stream.start_tls(party.context, on_tls, b"")
    rig.stream.feed(peer.shake_hands())
    assert calls == []
    rig.stream.feed(peer.shake_hands(rig.transport.take()))
    assert calls == [True]
    assert peer.decrypt(rig.transport.take()) == frames.OK + b"next"
    rig.stream.feed(peer.encrypt(b"NOP\n"))

    assert calls == [True]


def test_what_the_client_sent_ahead_begins_the_handshake(rig: Rig, party: TlsParty) -> None:
    peer = TlsPeer(party.authority_file)

    rig.stream.start_tls(party.context, lambda: None, peer.shake_hands())

    answer = rig.transport.take()
    assert answer
    rig.stream.feed(peer.shake_hands(answer))
    assert peer.decrypt(rig.transport.take()) == frames.OK


def test_commands_right_behind_the_handshake_are_not_lost(rig: Rig, party: TlsParty) -> None:
    peer = TlsPeer(party.authority_file)
    rig.stream.start_tls(party.context, lambda: None, peer.shake_hands())
    finish = peer.shake_hands(rig.transport.take())

    rig.stream.feed(finish + peer.encrypt(b"NOP\n"))

    assert rig.take() == b"NOP\n"


def test_tls_and_compression_lie_in_this_order(rig: Rig, party: TlsParty) -> None:
    # W-124: frame, compressor, TLS, socket
    peer = TlsPeer(party.authority_file)

    def on_tls() -> None:
        rig.stream.start_compression(SnappyCodec())
        rig.stream.write(frames.OK)

    rig.stream.start_tls(party.context, on_tls, peer.shake_hands())
    finish = peer.shake_hands(rig.transport.take())
    rig.stream.feed(finish + peer.encrypt(snappy.StreamCompressor().compress(b"NOP\n")))

    received = peer.decrypt(rig.transport.take())
    assert received.startswith(frames.OK)
    assert snappy.StreamDecompressor().decompress(received[len(frames.OK) :]) == frames.OK
    assert rig.take() == b"NOP\n"


def test_bytes_that_are_no_tls_refuse_it_and_leave_the_stream_in_the_clear(
    rig: Rig, party: TlsParty
) -> None:
    # W-120
    rig.stream.start_tls(party.context, lambda: None, b"")

    with pytest.raises(TlsRefusedError) as caught:
        rig.stream.feed(b"NOP\nNOP\nNOP\n")

    assert str(caught.value)
    assert rig.stream.tls is None
    rig.transport.take()
    rig.stream.write(b"error in the clear")
    assert rig.transport.take() == b"error in the clear"


def test_a_handshake_that_takes_too_long_can_be_dropped(rig: Rig, party: TlsParty) -> None:
    # W-121
    rig.stream.start_tls(party.context, lambda: None, TlsPeer(party.authority_file).shake_hands())
    rig.transport.take()

    rig.stream.drop_tls()
    rig.stream.write(b"error in the clear")

    assert rig.transport.take() == b"error in the clear"


def test_garbage_inside_tls_is_an_error(rig: Rig, party: TlsParty) -> None:
    party.connect(rig)

    with pytest.raises(ssl.SSLError):
        rig.stream.feed(b"no TLS record at all")


def test_a_farewell_inside_tls_ends_the_stream_after_what_came_before(
    rig: Rig, party: TlsParty
) -> None:
    peer = party.connect(rig)
    last = peer.encrypt(b"FIN") + peer.say_farewell()

    rig.stream.feed(last)
    assert rig.take() == b"FIN"
    assert rig.stream.has_pending

    with pytest.raises(TlsEndedError):
        rig.stream.feed(b"")


def test_a_closed_stream_drops_what_comes_and_holds_nobody() -> None:
    class Connection:
        def __init__(self) -> None:
            self.transport = FakeTransport()
            turns = FakeTurns(FakeLoop())
            self.stream = ClientStream(self.transport, turns, self.take, self.note_output)

        def note_output(self) -> None:
            raise AssertionError("the connection is over")

        def take(self, data: bytes) -> None:
            raise AssertionError("the connection is over")

    connection = Connection()
    reference = weakref.ref(connection)
    stream = connection.stream

    stream.close()
    stream.feed(b"NOP\n")
    del connection

    assert reference() is None
