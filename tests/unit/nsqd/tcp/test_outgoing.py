import weakref
import zlib

import pytest
import snappy
from hypothesis import given
from hypothesis import strategies as st

from nsqd.protocol.compression import Codec, DeflateCodec, SnappyCodec
from nsqd.tcp.outgoing import Outgoing
from nsqd.tcp.stream import ClientStream
from tests.support.fake_loop import FakeLoop, FakeTransport, FakeTurns


class Rig:
    """Pieces on their way into a list, and how often the owner was told of a change."""

    def __init__(self) -> None:
        self.loop = FakeLoop()
        self.turns = FakeTurns(self.loop)
        self.turns.has_tiny_slices = True
        self.encoded: list[bytes] = []
        self.changes: list[bool] = []
        self.outgoing = Outgoing(self.turns, self.encoded.append, self._note)

    def _note(self) -> None:
        self.changes.append(self.outgoing.is_busy)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_each_slice_encodes_a_piece(rig: Rig) -> None:
    rig.outgoing.add(b"abcdefgh", 3)
    seen = []
    while rig.outgoing.is_busy:
        seen.append(len(rig.encoded))
        rig.loop.turn()

    assert rig.encoded == [b"abc", b"def", b"gh"]
    assert seen == [0, 1, 2]
    assert rig.changes == [True, False]
    assert rig.loop.timer_count == 0


def test_bytes_that_come_meanwhile_wait_behind(rig: Rig) -> None:
    rig.outgoing.add(b"abcd", 2)
    rig.loop.turn()
    rig.outgoing.add(b"e", 2)
    rig.loop.advance()

    assert rig.encoded == [b"ab", b"cd", b"e"]
    assert rig.changes == [True, False]


def test_a_socket_that_takes_no_more_holds_the_rest(rig: Rig) -> None:
    rig.outgoing.add(b"abcd", 2)
    rig.loop.turn()
    rig.outgoing.hold()
    rig.loop.advance(10)

    assert rig.encoded == [b"ab"]
    assert rig.outgoing.is_busy
    assert rig.loop.timer_count == 0  # nothing is called in vain
    rig.outgoing.go_on()
    rig.loop.advance()
    assert rig.encoded == [b"ab", b"cd"]
    assert rig.changes == [True, False]


def test_the_end_drops_the_rest_and_holds_nobody() -> None:
    rig = Rig()
    rig.outgoing.add(b"abcd", 2)
    outgoing, loop, encoded = rig.outgoing, rig.loop, rig.encoded
    reference = weakref.ref(rig)

    outgoing.close()
    del rig
    assert reference() is None
    loop.advance()

    assert encoded == []
    assert not outgoing.is_busy


def decode(codec: Codec, data: bytes) -> bytes:
    if isinstance(codec, SnappyCodec):
        plain: bytes = snappy.StreamDecompressor().decompress(data)
        return plain
    return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data)


@pytest.mark.parametrize("make_codec", [SnappyCodec, lambda: DeflateCodec(6)])
@given(
    writes=st.lists(
        st.tuples(st.integers(1, 200_000), st.integers(0, 3), st.booleans()), max_size=8
    ),
    has_tiny_slices=st.booleans(),
)
def test_any_slices_send_the_same_bytes_in_the_same_order(
    make_codec: type, writes: list[tuple[int, int, bool]], *, has_tiny_slices: bool
) -> None:
    loop, transport, codec = FakeLoop(), FakeTransport(), make_codec()
    turns = FakeTurns(loop)
    turns.has_tiny_slices = has_tiny_slices
    stream = ClientStream(transport, turns, lambda data: None, lambda: None)
    stream.start_compression(codec)
    expected = b""

    for number, (size, turn_count, is_held) in enumerate(writes):
        data = bytes([number]) * size
        expected += data
        stream.write(data)
        if is_held:
            stream.outgoing.hold()
        for _ in range(turn_count):
            loop.turn()
        stream.outgoing.go_on()
    loop.advance()

    assert decode(codec, b"".join(transport.written)) == expected if writes else not expected
    assert not stream.outgoing.is_busy
