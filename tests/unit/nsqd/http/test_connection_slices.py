"""Many requests of one read are answered in slices, in turn with those of other clients."""

from itertools import pairwise
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from nsqd.http import connection
from nsqd.http.connection import LARGE_BYTES, HttpConnection, HttpService
from nsqd.http.parser import HttpLimits
from nsqd.http.routes import Request, Response, Router
from tests.support.fake_loop import FakeLoop, FakeTransport, FakeTurns

LARGE = Response(body=bytes(LARGE_BYTES))


class Rig:
    """Connections to one server, on one loop."""

    def __init__(self, *, has_tiny_slices: bool = True) -> None:
        self.seen: list[bytes] = []
        self.loop = FakeLoop()
        self.turns = FakeTurns(self.loop)
        self.turns.has_tiny_slices = has_tiny_slices
        router = Router()
        router.add("POST", "/echo", self.echo, max_body_bytes=100_000)
        router.add("GET", "/large", lambda _: LARGE)
        self.service = HttpService(router, limits=HttpLimits(header_timeout_s=10))

    def echo(self, request: Request) -> Response:
        self.seen.append(request.body)
        return Response(body=request.body)

    def connect(self) -> tuple[HttpConnection, FakeTransport]:
        transport = FakeTransport()
        with patch.object(connection, "turns_of", lambda _: self.turns):
            client = HttpConnection(self.service, self.loop.as_loop())
        client.connection_made(transport)
        return client, transport


def post(body: bytes) -> bytes:
    head = f"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def chunked(body: bytes) -> bytes:
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    return b"POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks


bodies = st.one_of(st.binary(max_size=5), st.just(bytes(20_000)))
requests = st.one_of(st.builds(post, bodies), st.builds(chunked, st.binary(min_size=1, max_size=9)))
ends = st.sampled_from([b"", b"garbage\r\n\r\n", post(b"cut off")[:-1]])


def play(reads: list[bytes], *, has_tiny_slices: bool) -> tuple[list[bytes], bytes, bool]:
    rig = Rig(has_tiny_slices=has_tiny_slices)
    client, transport = rig.connect()
    for read in reads:
        client.data_received(read)
        while not transport.is_reading():
            rig.loop.turn()
    client.eof_received()
    while rig.turns.has_tiny_slices and transport.is_open and not transport.is_reading():
        rig.loop.turn()
    return rig.seen, b"".join(transport.written), transport.is_open


@given(
    each=st.lists(requests, max_size=8), end=ends, cuts=st.lists(st.integers(0, 50_000), max_size=3)
)
def test_slices_change_nothing_for_the_client(
    each: list[bytes], end: bytes, cuts: list[int]
) -> None:
    data = b"".join(each) + end
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    reads = [data[start:stop] for start, stop in pairwise(edges) if start < stop]

    with patch.object(HttpService, "date_line", lambda *_: b"Date: today\r\n"):
        whole, sliced = (play(reads, has_tiny_slices=tiny) for tiny in (False, True))

    assert sliced == whole


def test_others_are_served_before_a_pipeline_is_answered() -> None:
    rig = Rig()
    greedy, greedy_transport = rig.connect()
    other, other_transport = rig.connect()

    greedy.data_received(b"".join(post(b"%d" % number) for number in range(9)))
    assert not greedy_transport.is_reading()
    rig.loop.turn()
    other.data_received(post(b"mine"))

    assert rig.seen == [b"0", b"1", b"mine"]
    assert other_transport.is_reading()
    for _ in range(9):
        rig.loop.turn()
    assert rig.seen[3:] == [b"%d" % number for number in range(2, 9)]
    assert greedy_transport.is_reading()


def test_a_client_that_leaves_between_two_slices_is_forgotten() -> None:
    rig = Rig()
    client, _ = rig.connect()
    client.data_received(post(b"a") * 9)

    client.connection_lost(None)
    for _ in range(9):
        rig.loop.turn()

    assert rig.seen == [b"a"]
    assert rig.loop.timer_count == 0


def test_requests_that_wait_for_a_turn_have_no_deadline() -> None:
    rig = Rig()
    client, transport = rig.connect()
    with patch.object(rig.turns, "share"):
        client.data_received(post(b"a") * 2 + post(b"cut off")[:-1])
        rig.loop.advance(500)

    assert transport.is_open
    assert len(transport.written) == 1


def test_a_large_body_is_not_copied() -> None:
    rig = Rig()
    client, transport = rig.connect()

    client.data_received(b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n")

    head, body = transport.written
    assert head.endswith(b"\r\n\r\n")
    assert body == LARGE.body
