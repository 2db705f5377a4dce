"""Whoever can reach a port: what it may cost, what it may learn, where it may write."""

import asyncio
import json
import os
import resource
import socket
import ssl
import stat
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from struct import pack

import pytest

from lookupd.registry import Registry
from lookupd.tcp import PeerConnection, PeerServer
from nsqd.config.options import Options
from nsqd.protocol.go_json import MAX_OBJECT_BYTES
from nsqd.protocol.identify import TEXT_FIELDS
from nsqd.runtime.process import StartError
from nsqd.runtime.tls import build_client_context, build_server_context
from tests.support import certs
from tests.support.auth_server import AuthServer, allow
from tests.support.fake_lookupd import FakeLookupd
from tests.support.http_client import HttpClient
from tests.support.lookupd_in_process import LookupdInProcess, LoopFactory
from tests.support.running_daemon import RunningDaemon, StartNsqd
from tests.support.v2_client import ConnectionEndedError, V2Client, client_context
from tests.support.waiting import until

SLOW_COUNT = 200
MAX_GROWTH_BYTES = 32 * 1024 * 1024
ESCAPES = ("../x", "/etc/x", "a/b", "..\\x", "%2e%2e", "a\0b", "a\nb", "", "é", "a:b", "x" * 65)


def peak_bytes() -> int:
    """The most memory that this process, and so the daemon in it, has ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# --- floods and slow clients


async def test_who_sends_a_command_byte_by_byte_is_disconnected(nsqd: RunningDaemon) -> None:
    """A command has two heartbeat intervals from its first byte to its last."""
    big = b"\0\0\x03\xe8"
    starts = (b"PUB t", b"PUB t\n" + big, b"MPUB t\n" + big + b"\0\0\0\x40", b"IDENTIFY\n" + big)
    clients = [await nsqd.connect() for _ in starts]
    for client, start in zip(clients, starts, strict=True):
        client.send_identify(heartbeat_interval=1000)
        await client.expect_ok()
        client.send(start)

    async def trickle(client: V2Client) -> None:
        for _ in range(40):
            await asyncio.sleep(0.1)
            client.send(b"x")

    outcomes = await asyncio.gather(*map(trickle, clients), return_exceptions=True)

    assert [type(outcome) for outcome in outcomes] == [ConnectionEndedError] * len(starts)


async def test_slow_clients_keep_nobody_from_publishing(nsqd: RunningDaemon) -> None:
    before = peak_bytes()
    writers = []
    for _ in range(SLOW_COUNT):
        for port, start in (
            (nsqd.daemon.tcp_port, b"  V2PUB slow\n\0\x0f\xff\xff"),
            (nsqd.daemon.http_port, b"GET /"),
        ):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(start)
            writers.append(writer)
    client = await nsqd.connect()
    for _ in range(20):
        for writer in writers:
            writer.write(b"x")
        await client.publish("t", b"x")
        await asyncio.sleep(0.01)

    assert peak_bytes() - before < MAX_GROWTH_BYTES
    for writer in writers:
        writer.close()
        await writer.wait_closed()


def test_nsqlookupd_has_the_same_limit(loop_factory: LoopFactory) -> None:
    with LookupdInProcess(loop_factory, max_connections=2) as lookupd:
        first, second = lookupd.nsqd("a"), lookupd.nsqd("b")
        with lookupd.peer() as refused:
            assert refused.is_closed_by_server()

        assert first.command(b"PING") == b"OK"
        assert len(lookupd.get("/nodes")["producers"]) == 2
        first.close()
        second.close()


class StuckTransport(asyncio.Transport):
    """The connection of a peer that reads nothing."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__({"peername": ("127.0.0.1", 5), "socket": connection})
        self.is_read = True
        self.is_aborted = asyncio.Event()

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def is_closing(self) -> bool:
        return self.is_aborted.is_set()

    def write(self, data: object) -> None:
        """Keep it for ever."""

    def abort(self) -> None:
        self.is_aborted.set()


async def test_nsqlookupd_cuts_off_who_does_not_read() -> None:
    registry = Registry(inactive_producer_timeout_s=300, tombstone_lifetime_s=45)
    server = PeerServer(registry, clock=time.monotonic, command_timeout_s=0.05)
    with socket.socket() as one, socket.socket() as other:
        deaf, slow = StuckTransport(one), StuckTransport(other)
        connections = [PeerConnection(server), PeerConnection(server)]
        for connection, transport in zip(connections, (deaf, slow), strict=True):
            connection.connection_made(transport)
            server.read_buffer[:9] = b"  V1PING\n"
            connection.buffer_updated(9)
            connection.pause_writing()
            assert not transport.is_read
        connections[1].resume_writing()  # the slow one has read at last

        async with asyncio.timeout(10):
            await deaf.is_aborted.wait()

    assert not slow.is_aborted.is_set()
    assert slow.is_read


# --- bombs


@pytest.mark.parametrize(
    "body",
    [
        b'{"x":' + b"[" * 60_000,
        b'{"x":[' + b"[]," * 20_000 + b"0]}",
        b"[" * (5 << 20),
        b'{"x":"' + b"\xff" * (5 << 20) + b'"}',
        b'{"x":' + b"9" * 60_000 + b"}x",
    ],
    ids=["deep", "wide", "deep and long", "long", "a number"],
)
async def test_json_bomb_in_identify(nsqd: RunningDaemon, body: bytes) -> None:
    client = await nsqd.connect()
    client.command("IDENTIFY", body=body[: 5 << 20])

    kind, data = await client.read_frame()

    if len(body) > MAX_OBJECT_BYTES:
        size = min(len(body), 5 << 20)
        text = f"E_BAD_BODY IDENTIFY body too large {size} > {MAX_OBJECT_BYTES}"
        assert (kind, data) == (1, text.encode())
    else:
        refusal = (1, b"E_BAD_BODY IDENTIFY failed to decode JSON body")
        assert (kind, data) in ((0, b"OK"), refusal)


@pytest.mark.parametrize(("verb", "limit"), [("IDENTIFY", 64 * 1024), ("AUTH", 4 * 1024)])
async def test_sizes_are_checked_before_the_body_comes(
    nsqd: RunningDaemon, verb: str, limit: int
) -> None:
    client = await nsqd.connect()

    client.send_raw(f"{verb}\n".encode() + pack(">i", limit + 1))  # and not one byte more

    await client.expect_error(f"E_BAD_BODY {verb} body too large {limit + 1} > {limit}".encode())


@pytest.mark.parametrize("name", TEXT_FIELDS)
async def test_identities_are_short(nsqd: RunningDaemon, name: str) -> None:
    client = await nsqd.connect()
    await client.identify(**{name: "é" * 127})

    client.command("IDENTIFY", body=json.dumps({name: "é" * 128}).encode())

    await client.expect_error(f"E_BAD_BODY IDENTIFY {name} too large 256 > 255".encode())


async def test_json_bomb_in_config(nsqd: RunningDaemon) -> None:
    async with await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port)) as http:
        for body in (b"[" * 500_000, b"9" * 50_000, b'{"a":' * 100_000):
            reply = await http.request("PUT", "/config/nsqlookupd_tcp_addresses", body)
            assert reply.error == (400, "INVALID_VALUE")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"topics":' + "[" * 100_000, "9" * 100_000])
async def test_json_bomb_in_nsqd_dat(start_nsqd: StartNsqd, tmp_path: Path, text: str) -> None:
    (tmp_path / "nsqd.dat").write_text(text)

    with pytest.raises(StartError, match="failed to load metadata - failed to parse"):
        await start_nsqd()

    assert (tmp_path / "nsqd.dat").read_text() == text


@pytest.mark.parametrize(
    "reply",
    [
        b"[" * 500_000,
        b'{"ttl":' + b"9" * 100_000 + b"}",
        json.dumps(
            {
                "ttl": 60,
                "authorizations": [
                    {"topic": "((a{1000}){9})", "channels": [".*"], "permissions": ["publish"]}
                ]
                * 2000,
            }
        ).encode(),
    ],
    ids=["deep", "a number", "patterns"],
)
async def test_bomb_from_the_auth_server(start_nsqd: StartNsqd, reply: bytes) -> None:
    with AuthServer() as server:
        server.answers["s"] = (200, reply)
        nsqd = await start_nsqd(auth_http_addresses=(server.address,))
        before = peak_bytes()
        client = await nsqd.connect()
        client.command("AUTH", body=b"s")

        await client.expect_error(b"E_AUTH_FAILED AUTH failed")

        assert peak_bytes() - before < 2 * MAX_GROWTH_BYTES


async def test_bomb_from_nsqlookupd(start_nsqd: StartNsqd) -> None:
    lookupd = FakeLookupd()
    await lookupd.start()
    try:
        lookupd.answer = lambda _command: b"[" * 500_000
        nsqd = await start_nsqd(lookupd_tcp_addresses=(f"127.0.0.1:{lookupd.tcp_port}",))
        await until(lambda: len(lookupd.peers) > 1)  # it was given up, and tried again

        await nsqd.publish("t", b"x")
    finally:
        await lookupd.stop()


# --- TLS


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> certs.Credentials:
    return certs.make_authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, authority: certs.Credentials
) -> certs.Credentials:
    return certs.make_server(tmp_path_factory.mktemp("server"), authority)


def test_defaults_of_tls_are_current(server: certs.Credentials) -> None:
    context = build_server_context(
        server.cert_file,
        server.key_file,
        client_auth_policy="",
        root_ca_file="",
        min_version=Options().tls_min_version,
    )

    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_COMPRESSION
    assert context.options & ssl.OP_NO_RENEGOTIATION
    for cipher in context.get_ciphers():
        # Each has forward secrecy, and none is broken.
        assert cipher["name"].startswith(("TLS_", "ECDHE-", "DHE-")), cipher
        assert not {"RC4", "3DES", "NULL", "MD5", "CBC3"} & set(cipher["name"].split("-"))


def test_our_own_requests_verify_the_server(server: certs.Credentials) -> None:
    context = build_client_context(server.cert_file, Options().tls_min_version)

    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_no_session_is_resumed(
    start_nsqd: StartNsqd,
    authority: certs.Credentials,
    server: certs.Credentials,
    tmp_path: Path,
    version: ssl.TLSVersion,
) -> None:
    """A resumed session would let in a client whose certificate has expired meanwhile."""
    nsqd = await start_nsqd(
        tls_cert=server.cert_file,
        tls_key=server.key_file,
        tls_root_ca_file=authority.cert_file,
        tls_client_auth_policy="require-verify",
        https_address="127.0.0.1:0",
    )
    known = certs.make_client(tmp_path, "known.example", authority=authority)
    context = client_context(authority, known)
    context.maximum_version = version

    async def open_tcp(session: ssl.SSLSession | None) -> TlsFacts:
        client = await nsqd.connect()
        await client.identify(tls_v1=True)
        await client.start_tls(context, session)
        await client.publish("t", b"x")
        return client.tls.version(), client.tls.session, client.tls.session_reused

    async def open_https(session: ssl.SSLSession | None) -> TlsFacts:
        return await asyncio.to_thread(ping_https, nsqd.daemon.https_port, context, session)

    for connect in (open_tcp, open_https):
        used, session, _ = await connect(None)
        assert used == version.name.replace("_", ".")
        assert session is None or not session.has_ticket
        assert (await connect(session))[2] is False


# The version, the session to resume, and whether one was resumed.
TlsFacts = tuple[str | None, ssl.SSLSession | None, bool | None]


def ping_https(port: int, context: ssl.SSLContext, session: ssl.SSLSession | None) -> TlsFacts:
    """Ask for /ping, and return the facts of the connection that was used."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="localhost", session=session) as secured,
    ):
        secured.sendall(b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert secured.recv(1000).startswith(b"HTTP/1.1 200")
        return secured.version(), secured.session, secured.session_reused


@pytest.mark.parametrize("is_trusted", [True, False])
async def test_auth_server_over_https_must_have_a_good_certificate(
    start_nsqd: StartNsqd,
    authority: certs.Credentials,
    server: certs.Credentials,
    tmp_path: Path,
    is_trusted: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    other = certs.make_authority(tmp_path, "somebody else")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(server.cert_file, server.key_file)
    seen: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readline())
        body = json.dumps({"ttl": 60, "authorizations": [allow()]}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        writer.close()

    listener = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    port = listener.sockets[0].getsockname()[1]
    nsqd = await start_nsqd(
        auth_http_addresses=(f"https://localhost:{port}/auth",),
        tls_root_ca_file=(authority if is_trusted else other).cert_file,
    )
    client = await nsqd.connect()
    client.command("AUTH", body=b"hush")

    kind, data = await client.read_frame()

    assert (kind, b"permission_count" in data) == ((0, True) if is_trusted else (1, False))
    assert bool(seen) == is_trusted, "the secret went to a stranger"
    listener.close()


# --- files


def modes(directory: Path) -> dict[str, str]:
    return {
        path.name: oct(stat.S_IMODE(path.lstat().st_mode))
        for path in directory.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
async def test_data_files_are_for_their_owner_alone(start_nsqd: StartNsqd, tmp_path: Path) -> None:
    nsqd = await start_nsqd(mem_queue_size=0, sync_every=1, max_bytes_per_file=1000)
    consumer = await nsqd.consumer("t", rdy=5)
    await nsqd.publish("t", *[bytes(400)] * 20)
    for message in await consumer.read_messages(5):
        consumer.req(message, 60_000)
    await nsqd.shut_down()

    found = modes(tmp_path)

    assert len(found) > 5
    assert set(found.values()) == {"0o600"}, found


async def test_unix_socket_has_the_mode_that_the_umask_leaves(start_nsqd: StartNsqd) -> None:
    with tempfile.TemporaryDirectory() as directory:  # pytest's own paths are too long for sockets
        path = f"{directory}/nsqd.sock"
        before = os.umask(0o027)
        try:
            await start_nsqd(tcp_address=path)
        finally:
            os.umask(before)

        assert stat.S_IMODE(os.stat(path).st_mode) == 0o750


@pytest.mark.parametrize("name", [".", "..", "...", "-rf", "nsqd.dat", ".diskqueue.000000.dat"])
async def test_names_of_dots_stay_in_the_data_path(
    start_nsqd: StartNsqd, tmp_path: Path, name: str
) -> None:
    data_path = tmp_path / "parent" / "data"
    data_path.mkdir(parents=True)
    nsqd = await start_nsqd(data_path=data_path, mem_queue_size=0, sync_every=1)
    consumer = await nsqd.consumer(name, name)
    await nsqd.publish(name, b"x", b"y")
    await nsqd.wait_for_channel(name, name, depth=2)
    await consumer.close()
    await nsqd.shut_down()

    assert [path.name for path in (tmp_path / "parent").iterdir()] == ["data"]
    assert all(path.is_file() for path in data_path.iterdir())
    again = await start_nsqd(data_path=data_path)
    consumer = await again.consumer(name, name, rdy=2)
    assert {message.body for message in await consumer.read_messages(2)} == {b"x", b"y"}


@pytest.mark.parametrize("name", ESCAPES)
async def test_names_that_lead_elsewhere_are_refused(
    start_nsqd: StartNsqd, tmp_path: Path, name: str
) -> None:
    data_path = tmp_path / "parent" / "data"
    data_path.mkdir(parents=True)
    topics = [{"name": name}, {"name": "t", "channels": [{"name": name}]}]
    (data_path / "nsqd.dat").write_text(json.dumps({"topics": topics}))
    nsqd = await start_nsqd(data_path=data_path)
    quoted = "".join(f"%{byte:02x}" for byte in name.encode())
    async with await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port)) as http:
        for target in (
            f"/pub?topic={quoted}",
            f"/topic/create?topic={quoted}",
            f"/channel/create?topic=t&channel={quoted}",
        ):
            assert (await http.post(target, b"x")).status == 400
        assert (await http.post(f"/topic/delete?topic={quoted}")).status in {400, 404}
    lines = (b"PUB %b\n\0\0\0\1x", b"SUB t %b\n", b"SUB %b c\n", b"DPUB %b 1\n\0\0\0\1x")
    for line in () if "\n" in name else lines:
        client = await nsqd.connect()
        client.send(line % name.encode())
        assert (await client.read_frame())[0] == 1

    assert list(nsqd.daemon.broker.topics) == ["t"]
    assert not nsqd.daemon.broker.topics["t"].channels
    await nsqd.shut_down()
    assert [path.name for path in (tmp_path / "parent").iterdir()] == ["data"]
    assert "nsqd.dat" in modes(data_path)


def test_nsqlookupd_refuses_such_names(lookupd: LookupdInProcess) -> None:
    for name in (b"../x", b"a/b", b"a\0b", b"%2e%2e"):
        with lookupd.nsqd() as peer:
            assert peer.command(b"REGISTER " + name).startswith(b"E_BAD_TOPIC")
        with lookupd.nsqd() as peer:
            assert peer.command(b"REGISTER t " + name).startswith(b"E_BAD_CHANNEL")
    response = lookupd.request("POST", "/topic/create?topic=..%2fx")
    assert response.status == 400


# --- HTTP

POST = b"POST /pub?topic=t HTTP/1.1\r\nHost: a\r\n"
HIDDEN = b"POST /pub?topic=hidden HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx"


@pytest.mark.parametrize(
    "request_bytes",
    [
        POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        POST + b"Content-Length: 1, 1\r\n\r\nx",
        POST + b"Content-Length: +1\r\n\r\nx",
        POST + b"Content-Length: 0x1\r\n\r\nx",
        POST + b"Content-Length: -1\r\n\r\nx",
        POST + b"Content-Length: 18446744073709551617\r\n\r\nx",
        POST + b"Content-Length : 1\r\n\r\nx",
        POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: identity\r\nContent-Length: 1\r\n\r\nx",
        POST + b"Transfer-Encoding: chunked\r\n\r\n-1\r\nx\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\n0x1\r\nx\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\n10000000000000001\r\nx\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\nxyz\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\n1\nx\r\n0\r\n\r\n",
        POST + b"X: a\r\n\tb\r\nTransfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
        POST + b"X: a\0b\r\n\r\n",
        POST + b"X: a\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"Host: b\r\n\r\n",
        b"POST /pub?topic=t HTTP/1.1\r\nContent-Length: 1\r\n\r\nx",
        b"POST /pub?topic=t HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
    ],
)
async def test_requests_that_a_proxy_may_cut_otherwise_end_the_connection(
    nsqd: RunningDaemon, request_bytes: bytes
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", nsqd.daemon.http_port)
    writer.write(request_bytes + HIDDEN)

    reply = await asyncio.wait_for(reader.read(), 10)

    writer.close()
    assert reply.count(b"HTTP/1.1 ") == 1
    assert reply.split(b" ")[1] in {b"400", b"501", b"413"}, reply
    assert await nsqd.find_topic("hidden") is None


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /ping HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 200 + b"\r\n", b"431"),
        (b"GET /ping HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 200_000 + b"\r\n\r\n", b"431"),
        (b"GET /ping?" + b"y" * 10_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", b"414"),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"y" * 500_000, b"431"),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: y\r\n" * 50_000, b"431"),
    ],
    ids=["many headers", "a long header", "a long target", "a chunk extension", "trailers"],
)
async def test_floods_of_headers_are_refused(
    nsqd: RunningDaemon, head: bytes, status: bytes
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", nsqd.daemon.http_port)
    writer.write(head)

    reply = await asyncio.wait_for(reader.read(), 10)

    writer.close()
    assert reply.split(b" ")[1] == status


async def test_compressed_bodies_are_taken_as_they_are(nsqd: RunningDaemon) -> None:
    bomb = zlib.compress(bytes(1 << 24), 9)
    consumer = await nsqd.consumer("t", rdy=1)
    async with await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port)) as http:
        headers = {"Content-Encoding": "deflate"}
        reply = await http.request("POST", "/pub?topic=t", bomb, headers=headers)

    assert reply.status == 200
    assert (await consumer.read_message()).body == bomb


async def test_debug_pages_need_the_token(start_nsqd: StartNsqd, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("sesame")
    nsqd = await start_nsqd(http_auth_token_file=str(tmp_path / "token"))
    async with await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port)) as http:
        for name in ("", "cmdline", "profile?seconds=1", "heap", "goroutine", "block", "symbol"):
            target = f"/debug/pprof/{name}"
            assert (await http.get(target)).error == (401, "UNAUTHORIZED")
            assert (await http.get(target.replace("p", "%70", 1))).status == 401
        allowed = await http.request(
            "GET", "/debug/pprof/cmdline", headers={"Authorization": "Bearer sesame"}
        )

    assert allowed.status == 200
