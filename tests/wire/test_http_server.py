"""The HTTP server over real sockets, every case on uvloop and on stock asyncio."""

import asyncio
import contextlib
import http.client
import os
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from nsqd.http.server import (
    OK,
    HttpLimits,
    HttpServer,
    Request,
    Response,
    Router,
    Style,
)
from nsqd.runtime.listen import listen, remove_unix_socket
from tests.support.certs import make_authority, make_server
from tests.support.lookupd_in_process import LoopFactory
from tests.support.waiting import until

LIMITS = HttpLimits(
    header_timeout_s=0.2, body_timeout_s=0.3, idle_timeout_s=0.6, write_timeout_s=0.5
)
PATIENT = HttpLimits()
WAIT_S = 5.0
BIG = b"b" * 1_000_000

Run: TypeAlias = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture
def run(loop_factory: LoopFactory) -> Run:
    """Run a coroutine to its end; what escapes a callback fails it."""

    def run_on_loop(main: Coroutine[Any, Any, None]) -> None:
        escaped: list[dict[str, Any]] = []

        async def watched() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, context: escaped.append(context))
            await asyncio.wait_for(main, 20)

        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(watched())
        assert escaped == []

    return run_on_loop


class App:
    """Handlers of all kinds, and a gate for the slow one."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.cancelled_count = 0
        self.router = Router()
        self.router.add("GET", "/ping", lambda request: OK, style=Style.PLAIN)
        self.router.add("POST", "/echo", self.echo, max_body_bytes=2_000_000, is_quiet=True)
        self.router.add("POST", "/small", self.echo, max_body_bytes=10, too_large_code="TOO_BIG")
        self.router.add("GET", "/big", lambda request: Response(body=BIG))
        self.router.add("GET", "/slow", self.slow)
        self.router.add("GET", "/peer", self.peer)

    def echo(self, request: Request) -> Response:
        return Response(body=request.body)

    def peer(self, request: Request) -> Response:
        return Response.json([request.remote, request.is_tls])

    async def slow(self, request: Request) -> Response:
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled_count += 1
            raise
        return Response.text("slow")


@contextlib.asynccontextmanager
async def serving(
    app: App, *, limits: HttpLimits = PATIENT, tls: ssl.SSLContext | None = None, **options: Any
) -> AsyncIterator[HttpServer]:
    server = HttpServer(app.router, limits=limits, **options)
    await server.start(listen("127.0.0.1:0"), ssl=tls)
    try:
        yield server
    finally:
        await server.close(grace_s=0.2)
        assert server.connection_count == 0


class Client:
    """A raw connection; what is read is checked for its framing."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, server: HttpServer, **options: Any) -> "Client":
        return cls(*await asyncio.open_connection("127.0.0.1", server.port, **options))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def reply(self) -> tuple[int, bytes]:
        return (await self.reply_with_head())[::2]

    async def reply_with_head(self) -> tuple[int, dict[str, str], bytes]:
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), WAIT_S)
        start, *lines = head.decode().split("\r\n")[:-2]
        headers = dict(line.split(": ", 1) for line in lines)
        body = await asyncio.wait_for(
            self.reader.readexactly(int(headers.get("Content-Length", "0"))), WAIT_S
        )
        return int(start.split()[1]), headers, body

    async def rest(self) -> bytes:
        """Everything up to the end of the connection."""
        return await asyncio.wait_for(self.reader.read(), WAIT_S)

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


def get(path: str, *lines: str, method: str = "GET") -> bytes:
    return "\r\n".join((f"{method} {path} HTTP/1.1", "Host: h", *lines, "", "")).encode()


def post(path: str, body: bytes) -> bytes:
    return get(path, f"Content-Length: {len(body)}", method="POST") + body


def with_client(
    run: Run,
    test: Callable[[App, Client], Awaitable[None]],
    **options: Any,
) -> None:
    """Run a test with one client of one server."""

    async def main() -> None:
        app = App()
        async with serving(app, **options) as server:
            client = await Client.connect(server)
            try:
                await test(app, client)
            finally:
                await client.close()

    run(main())


# Requests and replies


def test_keep_alive_and_pipelining(run: Run) -> None:
    async def test(app: App, client: Client) -> None:
        client.send(get("/ping"))
        assert await client.reply() == (200, b"OK")
        client.send(b"".join(post("/echo", b"%d" % number) for number in range(500)))
        for number in range(500):
            assert await client.reply() == (200, b"%d" % number)

    with_client(run, test)


def test_a_stock_client_is_served(run: Run) -> None:
    def ask(port: int) -> list[tuple[int, bytes]]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        replies = []
        for method, path, body in (
            ("GET", "/ping", None),
            ("HEAD", "/ping", None),
            ("POST", "/echo", b"x" * 1_500_000),
            ("POST", "/echo", iter([b"chunk"] * 3)),
            ("GET", "/nope", None),
        ):
            connection.request(method, path, body, encode_chunked=isinstance(body, type(iter([]))))
            response = connection.getresponse()
            replies.append((response.status, response.read()))
        connection.close()
        return replies

    async def main() -> None:
        async with serving(App()) as server:
            assert await asyncio.to_thread(ask, server.port) == [
                (200, b"OK"),
                (405, b""),
                (200, b"x" * 1_500_000),
                (200, b"chunk" * 3),
                (404, b'{"message":"NOT_FOUND"}'),
            ]

    run(main())


def test_slow_calls_do_not_hold_up_others(run: Run) -> None:
    async def main() -> None:
        app = App()
        async with serving(app) as server:
            slow, fast = await Client.connect(server), await Client.connect(server)
            slow.send(get("/slow") + get("/ping"))
            fast.send(get("/ping"))
            assert await fast.reply() == (200, b"OK")
            app.gate.set()
            assert await slow.reply() == (200, b"slow")
            assert await slow.reply() == (200, b"OK")
            await slow.close()
            await fast.close()

    run(main())


def test_a_slow_call_is_cancelled_with_its_connection(run: Run) -> None:
    async def main() -> None:
        app = App()
        async with serving(app) as server:
            client = await Client.connect(server)
            client.send(get("/slow"))
            await until(lambda: server.connection_count == 1)
            await asyncio.sleep(0.02)
            # A reset: the end of the input alone may be a client that waits for its reply.
            end = client.writer.get_extra_info("socket")
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.writer.transport.abort()
            await until(lambda: app.cancelled_count == 1)
            assert server.connection_count == 0

    run(main())


@pytest.mark.both_loops("closing")
def test_a_half_closed_client_gets_its_replies(run: Run) -> None:
    async def test(app: App, client: Client) -> None:
        client.send(get("/slow") + get("/ping"))
        client.writer.write_eof()
        await asyncio.sleep(0.02)
        app.gate.set()
        assert await client.reply() == (200, b"slow")
        assert await client.reply() == (200, b"OK")
        assert await client.rest() == b""

    with_client(run, test)


# Refusals


@pytest.mark.both_loops("closing")
@pytest.mark.parametrize("framing", ["Content-Length: 5000000", "Transfer-Encoding: chunked"])
def test_the_reply_to_a_body_too_large_can_be_read(run: Run, framing: str) -> None:
    # The client writes it all before it reads, as many do. 5 MB do not fit into the sockets.
    async def test(app: App, client: Client) -> None:
        client.send(get("/small", framing, method="POST"))
        for _ in range(50):
            client.send(b"186a0\r\n" * ("chunked" in framing) + b"x" * 100_000)
            client.send(b"\r\n" * ("chunked" in framing))
            await client.writer.drain()
        status, headers, body = await client.reply_with_head()
        assert (status, body) == (413, b'{"message":"TOO_BIG"}')
        assert headers["Connection"] == "close"
        assert await client.rest() == b""

    with_client(run, test)


def test_connections_beyond_the_maximum_are_refused(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with serving(App(), max_connections=1) as server:
            first = await Client.connect(server)
            first.send(get("/ping"))
            assert await first.reply() == (200, b"OK")
            second = await Client.connect(server)
            second.send(get("/ping"))
            assert await second.reply() == (503, b'{"message":"TOO_MANY_CONNECTIONS"}')
            await second.close()
            await first.close()
            await until(lambda: server.connection_count == 0)
            third = await Client.connect(server)
            third.send(get("/ping"))
            assert await third.reply() == (200, b"OK")
            await third.close()

    run(main())


# Timeouts


def test_idle_connections_are_closed(run: Run) -> None:
    async def test(app: App, client: Client) -> None:
        client.send(get("/ping"))
        assert await client.reply() == (200, b"OK")
        assert await client.rest() == b""

    with_client(run, test, limits=LIMITS)


@pytest.mark.parametrize("start", [b"GET /pi", get("/echo", "Content-Length: 9", method="POST")])
def test_slow_requests_are_408(run: Run, start: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def test(app: App, client: Client) -> None:
        client.send(start)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                while True:
                    await asyncio.sleep(0.03)
                    client.send(b"x")
        assert await client.reply() == (408, b'{"message":"REQUEST_TIMEOUT"}')
        assert await client.rest() == b""

    with_client(run, test, limits=LIMITS)


@pytest.mark.both_loops("flow control")
def test_a_client_that_does_not_read_is_cut_and_costs_little(run: Run) -> None:
    handled = []

    async def main() -> None:
        app = App()

        def big(request: Request) -> Response:
            handled.append(request)
            return Response(body=BIG)

        app.router.add("GET", "/count", big)
        async with serving(app, limits=LIMITS) as server:
            with socket.create_connection(("127.0.0.1", server.port)) as idle:
                idle.setblocking(False)
                await asyncio.get_running_loop().sock_sendall(idle, get("/count") * 200)
                await until(lambda: server.connection_count == 1)
                await until(lambda: server.connection_count == 0)

    run(main())
    # What the kernel takes, a reply in the transport, and one more: far from 200 MB.
    assert 1 <= len(handled) < 20


@pytest.mark.both_loops("flow control")
def test_a_slow_reader_gets_everything(run: Run) -> None:
    async def test(app: App, client: Client) -> None:
        client.send(get("/big") * 20 + get("/ping"))
        for _ in range(20):
            await asyncio.sleep(0.005)
            assert await client.reply() == (200, BIG)
        assert await client.reply() == (200, b"OK")

    with_client(run, test, limits=LIMITS)


# Starting and stopping


@pytest.mark.both_loops("closing")
def test_close_lets_replies_finish_and_closes_the_idle(run: Run) -> None:
    async def main() -> None:
        app = App()
        server = HttpServer(app.router)
        await server.start(listen("127.0.0.1:0"))
        busy, idle = await Client.connect(server), await Client.connect(server)
        busy.send(get("/slow"))
        idle.send(get("/ping"))
        await idle.reply()
        assert server.connection_count == 2

        closing = asyncio.create_task(server.close())
        assert await idle.rest() == b""
        with pytest.raises(OSError, match="Connect"):
            await Client.connect(server)
        app.gate.set()
        status, headers, body = await busy.reply_with_head()
        await closing

        assert (status, body, headers["Connection"]) == (200, b"slow", "close")
        assert await busy.rest() == b""
        await busy.close()
        await idle.close()

    run(main())


@pytest.mark.both_loops("closing")
def test_close_cuts_what_takes_too_long(run: Run) -> None:
    async def main() -> None:
        app = App()
        server = HttpServer(app.router)
        await server.start(listen("127.0.0.1:0"))
        client = await Client.connect(server)
        client.send(get("/slow"))
        await until(lambda: server.connection_count == 1)
        await asyncio.sleep(0.02)

        await server.close(grace_s=0.05)

        await until(lambda: app.cancelled_count == 1)
        with contextlib.suppress(ConnectionError):
            assert await client.rest() == b""
        await client.close()

    run(main())


@pytest.mark.both_loops("listening")
def test_what_has_queued_up_before_the_start_is_served(run: Run) -> None:
    async def main() -> None:
        server = HttpServer(App().router)
        listener = listen("127.0.0.1:0")
        client = Client(*await asyncio.open_connection(*listener.getsockname()))
        client.send(get("/peer"))

        await server.start(listener)

        peer = client.writer.get_extra_info("sockname")
        assert await client.reply() == (200, b'["127.0.0.1:%d",false]' % peer[1])
        await client.close()
        await server.close()

    run(main())


@pytest.mark.both_loops("listening")
def test_a_unix_socket_is_served(run: Run, tmp_path: Path) -> None:  # H-12
    path = str(tmp_path / "http.sock")

    async def main() -> None:
        server = HttpServer(App().router)
        listener = listen(path)
        await server.start(listener)
        assert server.port == -1
        client = Client(*await asyncio.open_unix_connection(path))
        client.send(get("/peer"))
        assert await client.reply() == (200, b'["@",false]')
        await client.close()
        await server.close()
        remove_unix_socket(listener)

    run(main())
    assert not os.path.exists(path)


@pytest.mark.both_loops("TLS")
def test_the_same_over_tls(run: Run, tmp_path: Path) -> None:  # H-11
    authority = make_authority(tmp_path)
    credentials = make_server(tmp_path, authority)
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(credentials.cert_file, credentials.key_file)
    client_side = ssl.create_default_context(cafile=authority.cert_file)

    async def main() -> None:
        async with serving(App(), tls=server_side) as server:
            client = await Client.connect(server, ssl=client_side, server_hostname="localhost")
            client.send(post("/echo", BIG) + get("/peer") + get("/big"))
            assert await client.reply() == (200, BIG)
            status, body = await client.reply()
            assert (status, body.endswith(b",true]")) == (200, True)
            assert await client.reply() == (200, BIG)
            client.send(get("/small", "Content-Length: 11", method="POST") + b"x" * 11)
            assert await client.reply() == (413, b'{"message":"TOO_BIG"}')
            await client.close()
            plain = await Client.connect(server)
            plain.send(get("/ping"))
            with contextlib.suppress(ConnectionError):
                await plain.rest()
            await plain.close()

    run(main())
