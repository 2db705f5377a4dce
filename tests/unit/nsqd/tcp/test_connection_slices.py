"""A read is worked off in slices: nothing changes for its client, and others run in between."""

import zlib
from collections.abc import Callable
from itertools import pairwise
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqd.protocol import command_parser
from nsqd.tcp.connection import FULL_READ_BYTES
from nsqd.tcp.read_gate import PauseReason
from tests.support.connection_rig import ConnectionRig, pub, sized

DEFLATE = b"IDENTIFY\n" + sized(b'{"feature_negotiation":true,"deflate":true}')


def mpub(*bodies: bytes) -> bytes:
    return b"MPUB t\n" + sized(pack(">i", len(bodies)) + b"".join(map(sized, bodies)))


bodies = st.binary(min_size=1, max_size=5)
commands = st.one_of(
    st.builds(pub, bodies),
    st.builds(lambda body, count: pub(body) * count, bodies, st.integers(1, 9)),
    st.lists(bodies, min_size=1, max_size=9).map(lambda parts: mpub(*parts)),
    st.just(b"NOP\n"),
    st.just(b"DPUB t 10\n" + sized(b"later")),
    st.just(b"IDENTIFY\n" + sized(b"{}")),
)
# The last command may be cut off, or wrong.
ends = st.sampled_from([b"", b"BAD\n", b"PUB t\n", pub(b"cut off")[:-1], mpub(b"a", b"bc")[:-2]])


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(edges) if start < end]


def deflate(reads: list[bytes]) -> list[bytes]:
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return [compressor.compress(read) + compressor.flush(zlib.Z_SYNC_FLUSH) for read in reads]


def play(
    reads: list[bytes], *, is_durable: bool, is_deflated: bool, has_tiny_slices: bool
) -> tuple[list[bytes], list[bytes]]:
    """Return the messages that were published and the replies, the client's EOF included."""
    rig = ConnectionRig()
    if is_deflated:
        rig.send(DEFLATE)
        del rig.transport.written[0]  # what follows the answer is compressed
        reads = deflate(reads)
    rig.topic.is_durable = is_durable
    rig.turns.has_tiny_slices = has_tiny_slices
    for read in reads:
        rig.send(read)
        while not rig.transport.is_reading() and rig.transport.is_open:
            for receipt in rig.topic.receipts:
                receipt.settle(None)
            rig.topic.receipts.clear()
            rig.loop.turn()
    for receipt in rig.topic.receipts:
        receipt.settle(None)
    if rig.transport.is_open:
        rig.connection.eof_received()
    if is_deflated:
        packed = b"".join(rig.transport.written)
        rig.transport.written[:] = [zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed)]
    return rig.topic.bodies, rig.texts()


@pytest.mark.parametrize("is_deflated", [False, True])
@pytest.mark.parametrize("is_durable", [False, True])
@given(
    each=st.lists(commands, max_size=12),
    end=ends,
    cuts=st.lists(st.integers(0, 500), max_size=4),
)
def test_slices_change_nothing_for_the_client(
    *, each: list[bytes], end: bytes, cuts: list[int], is_durable: bool, is_deflated: bool
) -> None:
    reads = split(b"".join(each) + end, cuts)

    whole, sliced = (
        play(reads, is_durable=is_durable, is_deflated=is_deflated, has_tiny_slices=tiny)
        for tiny in (False, True)
    )

    assert sliced == whole


def test_a_flood_is_run_one_slice_in_each_turn() -> None:
    rig = ConnectionRig()
    rig.turns.has_tiny_slices = True

    rig.send(b"DPUB t 1\n" + sized(b"a") + b"NOP\n" + pub(b"b") + b"NOP\n" + pub(b"c"))
    seen = [list(rig.topic.bodies)]
    while not rig.transport.is_reading():
        rig.loop.turn()
        seen.append(list(rig.topic.bodies))

    assert seen == [[b"a"], [b"a"], [b"a", b"b"], [b"a", b"b"], [b"a", b"b", b"c"]]
    assert rig.texts() == [b"OK"] * 3
    assert rig.loop.timer_count == 1  # the heartbeat's


def test_others_are_served_before_a_flood_is_over() -> None:
    greedy = ConnectionRig()
    other = ConnectionRig(turns=greedy.turns)
    greedy.turns.has_tiny_slices = True

    greedy.send(b"NOP\n" * 100 + pub(b"last"))
    greedy.loop.turn()
    other.send(b"NOP\n" + pub(b"mine"))
    greedy.loop.turn()

    assert other.texts() == [b"OK"]
    assert other.transport.is_reading()
    assert greedy.texts() == []
    for _ in range(100):
        greedy.loop.turn()
    assert greedy.texts() == [b"OK"]


def test_a_long_mpub_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_parser, "MAX_MPUB_PART_COUNT", 2)
    rig = ConnectionRig()
    rig.turns.has_tiny_slices = True

    rig.send(mpub(*b"a b c d e".split()) + pub(b"f"))
    turn_count = 0
    while not rig.topic.published:
        rig.loop.turn()
        turn_count += 1

    assert turn_count == 3
    assert rig.topic.published == [[b"a", b"b", b"c", b"d", b"e"]]
    rig.loop.turn()
    assert rig.topic.bodies[-1] == b"f"


def test_a_read_that_filled_the_buffer_is_the_last_of_its_turn() -> None:
    rig = ConnectionRig()
    command = pub(bytes(1000))
    reads = command * (FULL_READ_BYTES // len(command) + 1)

    rig.send(reads[: FULL_READ_BYTES - 1])
    assert rig.transport.is_reading()
    rig.send(reads[FULL_READ_BYTES - 1 :] + reads[:FULL_READ_BYTES])
    assert rig.connection.gate.reasons == {PauseReason.TURN}
    rig.loop.turn()

    assert rig.transport.is_reading()


def test_a_client_that_leaves_between_two_slices_is_forgotten() -> None:
    rig = ConnectionRig()
    rig.turns.has_tiny_slices = True
    rig.send(b"NOP\n" * 9 + pub(b"a"))
    rig.loop.turn()

    rig.connection.connection_lost(None)
    for _ in range(20):
        rig.loop.turn()

    assert rig.topic.bodies == []
    assert rig.loop.timer_count == 0


def test_a_flood_stops_at_its_first_error() -> None:
    rig = ConnectionRig()
    rig.turns.has_tiny_slices = True

    rig.send(b"NOP\nNOP\nBAD\n" + pub(b"a"))
    for _ in range(5):
        rig.loop.turn()

    assert rig.texts() == [b"E_INVALID invalid command BAD"]
    assert rig.topic.bodies == []
    assert rig.loop.timer_count == 1  # the end of lingering


def test_a_flood_waits_while_its_replies_are_not_read() -> None:
    rig = ConnectionRig()
    rig.turns.has_tiny_slices = True
    rig.send(pub(b"a") + b"NOP\n" + pub(b"b") + b"NOP\n" + pub(b"c"))
    rig.connection.pause_writing()
    for _ in range(9):
        rig.loop.turn()
    assert rig.connection.gate.reasons == {PauseReason.TURN, PauseReason.UNREAD}
    assert rig.topic.bodies == [b"a", b"b"]

    rig.connection.resume_writing()
    for _ in range(9):
        rig.loop.turn()

    assert rig.topic.bodies == [b"a", b"b", b"c"]
    assert rig.transport.is_reading()


def test_a_client_whose_bytes_wait_for_a_turn_is_not_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = ConnectionRig()
    rig.send(b"IDENTIFY\n" + sized(b'{"heartbeat_interval":1000}'))
    rig.turns.has_tiny_slices = True
    waiting: list[Callable[[], bool]] = []
    monkeypatch.setattr(rig.turns, "share", waiting.append)
    rig.send(b"NOP\nNOP\n")
    rig.advance(9.9)
    assert rig.transport.is_open

    [step] = waiting
    assert not step()
    rig.advance(1.9)  # counted from now
    assert rig.transport.is_open
    rig.advance(0.2)

    assert rig.transport.is_closed


def test_in_a_turn_that_is_full_only_a_lone_publish_is_run() -> None:
    rig = ConnectionRig()
    rig.publish(b"a")
    rig.turns.has_full_turns = True

    rig.publish(b"b")
    assert rig.topic.bodies == [b"a", b"b"]
    rig.publish(b"c", b"d")
    assert rig.topic.bodies == [b"a", b"b"]
    assert not rig.transport.is_reading()
    rig.loop.turn()

    assert rig.topic.bodies == [b"a", b"b", b"c", b"d"]
    assert rig.transport.is_reading()


class DeflatedRig(ConnectionRig):
    """A client that wants deflate; slices are tiny, so that each turn compresses one piece."""

    def __init__(self) -> None:
        super().__init__()
        self.send(DEFLATE)
        del self.transport.written[0]  # what follows the answer is compressed
        self.turns.has_tiny_slices = True
        self._compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
        self._plain = zlib.decompressobj(-zlib.MAX_WBITS)
        self.send_deflated(b"NOP\n")  # the OK to IDENTIFY has been sent by now
        self.loop.advance()
        self.texts_inflated()

    def send_deflated(self, data: bytes) -> None:
        self.send(self._compressor.compress(data) + self._compressor.flush(zlib.Z_SYNC_FLUSH))

    def deliver(self, *bodies: bytes) -> None:
        count = len(bodies)
        self.connection.deliver([b"\0" * 18] * count, [b"0123456789abcdef"] * count, list(bodies))

    def inflate(self) -> bytes:
        data = self._plain.decompress(b"".join(self.transport.written))
        self.transport.written.clear()
        return data

    def texts_inflated(self) -> list[bytes]:
        self.transport.written[:] = [self.inflate()]
        return self.texts()


def test_commands_wait_until_a_large_delivery_is_compressed() -> None:
    rig = DeflatedRig()
    body = bytes(100_000)

    rig.deliver(body)
    assert not rig.transport.is_reading()
    rig.turns.has_tiny_slices = False
    rig.loop.advance()

    assert rig.inflate().endswith(body)
    assert rig.transport.is_reading()
    rig.send_deflated(pub(b"a"))
    rig.loop.advance()
    assert rig.texts_inflated() == [b"OK"]


def test_an_error_comes_behind_a_large_delivery_and_before_the_end() -> None:
    rig = DeflatedRig()
    rig.deliver(bytes(100_000))

    rig.send_deflated(b"WHAT\n")
    assert not rig.transport.has_eof
    rig.loop.advance()

    data = rig.inflate()
    assert data.index(b"E_INVALID") > 100_000
    assert rig.transport.has_eof


def test_a_client_that_stops_gets_the_rest_of_a_large_delivery() -> None:
    rig = DeflatedRig()
    body = bytes(range(256)) * 400
    rig.deliver(body)

    rig.connection.eof_received()
    rig.loop.turn()
    assert rig.transport.is_open
    rig.loop.advance()

    assert rig.inflate().endswith(body)
    assert rig.transport.is_closed
