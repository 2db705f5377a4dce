"""The V1 protocol over real sockets, on uvloop and on stock asyncio (L-1 to L-13, L-24)."""

import contextlib
import os
import random
import resource
import socket
import struct

import pytest

from nsqd.protocol.lookup import MAGIC, NsqdIdentity, encode_identify, encode_register
from tests.support.clock import not_before
from tests.support.lookupd_in_process import LookupdInProcess, LookupPeer, LoopFactory
from tests.support.waiting import PATIENCE_S, wait_until

IDENTITY = NsqdIdentity("peer.example", 5150, 5151, "1.3.0")
IDENTIFY = encode_identify(IDENTITY)


def connection_count(lookupd: LookupdInProcess) -> int:
    body = lookupd.request("GET", "/metrics").body
    [line] = [line for line in body.splitlines() if line.startswith(b"nsqlookupd_tcp_connections ")]
    return int(float(line.split()[1]))


def narrow_peer(lookupd: LookupdInProcess) -> LookupPeer:
    """Open a connection that holds few replies: nsqlookupd notices soon that none is read."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(PATIENCE_S)
    connection.connect(("127.0.0.1", lookupd.daemon.tcp_port))
    return LookupPeer(connection, MAGIC)


def send_until_stuck(peer: LookupPeer, command: bytes) -> int:
    """Send a command again and again until no more is taken; return how many bytes were."""
    flood = command * 20_000
    sent_bytes = 0
    peer.socket.settimeout(0.5)
    with contextlib.suppress(TimeoutError):
        while True:
            sent_bytes += peer.socket.send(flood[sent_bytes % len(command) :])
    peer.socket.settimeout(PATIENCE_S)
    return sent_bytes


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_another_magic_is_refused(lookupd: LookupdInProcess) -> None:  # L-1
    with lookupd.peer(magic=b"  V2") as peer:
        assert peer.read_reply() == b"E_BAD_PROTOCOL"
        assert peer.is_closed_by_server()


def test_ping_works_before_and_after_identify(lookupd: LookupdInProcess) -> None:  # L-2, L-3
    with lookupd.peer() as peer:
        assert peer.command(b"PING") == b"OK"
        peer.identify(IDENTITY)
        assert peer.command(b" PING\r") == b"OK"


def test_identify_is_answered_with_who_we_are(lookupd: LookupdInProcess) -> None:  # L-4
    with lookupd.peer() as peer:
        assert peer.identify(IDENTITY) == {
            "broadcast_address": "here",
            "hostname": socket.gethostname(),
            "http_port": lookupd.daemon.http_port,
            "tcp_port": lookupd.daemon.tcp_port,
            "version": "1.3.0",
        }


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"NOPE\n", b"E_INVALID invalid command NOPE"),
        (b"REGISTER t\n", b"E_INVALID client must IDENTIFY"),
        (b"IDENTIFY\n\0\0\0\2{}", b"E_BAD_BODY IDENTIFY missing fields"),
        (b"IDENTIFY\n\0\0\0\2{]", b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (b"IDENTIFY\n\xff\xff\xff\xff", b"E_BAD_BODY IDENTIFY invalid body size -1"),
        (b"IDENTIFY\n\0\1\0\1{", b"E_BAD_BODY IDENTIFY body too big 65537 > 65536"),
        (b"IDENTIFY\n\x7f\xff\xff\xff", b"E_BAD_BODY IDENTIFY body too big 2147483647 > 65536"),
    ],
)
def test_errors_close_the_connection(  # L-5, L-7, L-24
    lookupd: LookupdInProcess, data: bytes, text: bytes
) -> None:
    with lookupd.peer() as peer:
        peer.send(data)

        assert peer.read_reply() == text
        assert peer.is_closed_by_server()


def test_commands_before_an_error_are_answered(lookupd: LookupdInProcess) -> None:  # L-6, L-8
    with lookupd.peer() as peer:
        peer.send(IDENTIFY + b"PING\nREGISTER t bad!\nPING\n")

        assert peer.read_reply().startswith(b"{")
        assert peer.read_reply() == b"OK"
        assert peer.read_reply() == b"E_BAD_CHANNEL REGISTER channel name 'bad!' is not valid"
        assert peer.is_closed_by_server()


def test_half_a_body_before_eof_is_answered(lookupd: LookupdInProcess) -> None:
    with lookupd.peer() as peer:
        peer.send(IDENTIFY[:-1])
        peer.socket.shutdown(socket.SHUT_WR)

        assert peer.read_reply() == b"E_BAD_BODY IDENTIFY failed to read body"
        assert peer.is_closed_by_server()


@pytest.mark.both_loops("closing")
@pytest.mark.parametrize("data", [b"", b"  V", MAGIC, MAGIC + b"PIN"])
def test_eof_elsewhere_just_closes(lookupd: LookupdInProcess, data: bytes) -> None:
    with lookupd.peer(magic=data) as peer:
        peer.socket.shutdown(socket.SHUT_WR)

        assert peer.is_closed_by_server()


def test_bytes_may_come_one_by_one(lookupd: LookupdInProcess) -> None:
    with lookupd.peer(magic=b"") as peer:
        peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in MAGIC + IDENTIFY + encode_register("t", "c"):
            peer.send(bytes([byte]))

        assert peer.read_reply().startswith(b"{")
        assert peer.read_reply() == b"OK"
        assert lookupd.get("/channels?topic=t") == {"channels": ["c"]}


def test_registrations_come_and_go(lookupd: LookupdInProcess) -> None:  # L-9 to L-12
    with lookupd.nsqd() as peer:
        assert peer.command(b"REGISTER t c") == b"OK"
        assert peer.command(b"REGISTER t c") == b"OK"
        assert peer.command(b"REGISTER t e#ephemeral") == b"OK"
        [producer] = lookupd.get("/lookup?topic=t")["producers"]
        assert producer["remote_address"] == peer.address

        assert peer.command(b"UNREGISTER t e#ephemeral") == b"OK"
        assert peer.command(b"UNREGISTER t nope") == b"OK"
        assert peer.command(b"UNREGISTER nope") == b"OK"
        assert lookupd.get("/channels?topic=t") == {"channels": ["c"]}

        assert peer.command(b"UNREGISTER t") == b"OK"
        assert lookupd.get("/lookup?topic=t") == {"channels": ["c"], "producers": []}


@pytest.mark.parametrize("linger_s", [None, 0], ids=["fin", "reset"])
def test_a_disconnect_removes_the_producer(  # L-13
    lookupd: LookupdInProcess, linger_s: int | None
) -> None:
    with lookupd.nsqd() as peer:
        peer.command(b"REGISTER t c")
        peer.command(b"REGISTER gone#ephemeral c")
        if linger_s is not None:
            option = struct.pack("ii", 1, linger_s)
            peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, option)

    wait_until(lambda: lookupd.get("/nodes") == {"producers": []})
    assert lookupd.get("/lookup?topic=t") == {"channels": ["c"], "producers": []}
    assert lookupd.get("/topics") == {"topics": ["t"]}


@pytest.mark.both_loops("flow control")
def test_many_registrations_may_be_pipelined(lookupd: LookupdInProcess) -> None:
    with lookupd.nsqd() as peer:
        peer.send(b"".join(encode_register(f"t{i}", f"c{j}") for i in range(500) for j in range(4)))

        assert all(peer.read_reply() == b"OK" for _ in range(2000))
        assert len(lookupd.get("/topics")["topics"]) == 500


def test_a_half_command_is_given_up_on(loop_factory: LoopFactory) -> None:
    with LookupdInProcess(loop_factory, command_timeout_s=0.2) as lookupd:
        halves = [b"", b"  V", MAGIC + b"PIN", MAGIC + IDENTIFY[:-1]]
        peers = [lookupd.peer(magic=half) for half in halves]
        idle = lookupd.peer()

        with not_before(0.1):
            assert all(peer.is_closed_by_server() for peer in peers)

        # Whoever is between two commands may take all the time it likes.
        assert idle.command(b"PING") == b"OK"
        for peer in (*peers, idle):
            peer.close()


@pytest.mark.both_loops("flow control")
def test_a_peer_that_does_not_read_is_not_read_from(lookupd: LookupdInProcess) -> None:
    with narrow_peer(lookupd) as peer:
        before = resident_bytes()

        send_until_stuck(peer, b"PING\n")

        assert resident_bytes() - before < 40 * 1024 * 1024
        with lookupd.peer() as other:
            assert other.command(b"PING") == b"OK"


def test_connections_beyond_the_limit_are_refused(
    loop_factory: LoopFactory, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        LookupdInProcess(loop_factory, max_connections=2) as lookupd,
        lookupd.peer() as first,
    ):
        with lookupd.peer() as second:
            assert second.command(b"PING") == b"OK"
            with lookupd.connect() as third:
                assert LookupPeer(third, b"").is_closed_by_server()
            assert first.command(b"PING") == b"OK"
        wait_until(lambda: connection_count(lookupd) == 1)

        with lookupd.peer() as fourth:
            assert fourth.command(b"PING") == b"OK"

    assert "TCP: too many connections, refusing 127.0.0.1" in caplog.text


def test_garbage_neither_stops_nor_grows_it(lookupd: LookupdInProcess) -> None:  # L-24
    noise = random.Random(1)
    starts = [
        lambda: noise.randbytes(noise.randrange(2000)),
        lambda: MAGIC + noise.randbytes(noise.randrange(2000)),
        lambda: MAGIC + b"IDENTIFY\n" + noise.randbytes(8),
        lambda: MAGIC + b"IDENTIFY\n" + struct.pack(">i", noise.randrange(-(2**31), 2**31)),
        lambda: MAGIC + IDENTIFY + noise.randbytes(200),
        lambda: MAGIC + IDENTIFY + b"REGISTER " + noise.randbytes(60) + b"\n",
        lambda: MAGIC + b"x" * 100_000,
        lambda: MAGIC + b"REGISTER t",
    ]

    def assault(count: int) -> None:
        for i in range(count):
            with lookupd.connect() as connection:
                try:
                    connection.sendall(starts[i % len(starts)]())
                except ConnectionError:
                    continue

    assault(400)
    before = resident_bytes()
    assault(1600)

    wait_until(lambda: connection_count(lookupd) == 0)
    assert resident_bytes() - before < 10 * 1024 * 1024
    assert lookupd.get("/nodes") == {"producers": []}


def test_five_thousand_connections_at_once_are_borne(lookupd: LookupdInProcess) -> None:
    # Both ends are in this process.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(5000, (hard - 200) // 2)
    connections = []
    try:
        for i in range(count):
            connection = lookupd.connect()
            connections.append(connection)
            connection.sendall((b"", b" ", MAGIC, MAGIC + b"IDENTIFY\n\0\0")[i % 4])

        with lookupd.nsqd() as peer:
            assert peer.command(b"REGISTER t") == b"OK"
            assert len(lookupd.get("/lookup?topic=t")["producers"]) == 1
            assert connection_count(lookupd) == count + 1
    finally:
        for connection in connections:
            connection.close()

    wait_until(lambda: connection_count(lookupd) == 0)


def test_keep_alive_is_on(lookupd: LookupdInProcess) -> None:
    # Only the kernel knows of a connection's timers: 02 in the sixth column is keep-alive.
    with lookupd.peer() as peer:
        assert peer.command(b"PING") == b"OK"
        local = f"0100007F:{lookupd.daemon.tcp_port:04X}"
        remote = f"0100007F:{peer.socket.getsockname()[1]:04X}"

        def find_timers() -> list[str]:
            with open("/proc/net/tcp") as file:
                rows = [line.split() for line in file]
            return [row[5] for row in rows if row[1:3] == [local, remote]]

        # The kernel may leave a row out while connections of other tests come and go.
        assert wait_until(find_timers)[0].startswith("02:")


@pytest.mark.both_loops("closing")
def test_a_connection_without_magic_does_not_hold_up_the_exit(loop_factory: LoopFactory) -> None:
    with LookupdInProcess(loop_factory) as lookupd:
        silent, identified = lookupd.connect(), lookupd.nsqd()

    # It has ended: sooner than the magic was given up on, which takes COMMAND_TIMEOUT_S.
    silent.close()
    identified.close()
