"""HttpClient against a small server on loopback, whose bytes each test chooses."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from nsqd.http.client import BadReplyError, ClientLimits, HttpClient, Reply, Url, UrlError
from nsqd.http.reply_parser import MAX_HEADER_COUNT
from tests.support import certs
from tests.support.waiting import until

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LIMITS = ClientLimits(connect_timeout_s=5.0, request_timeout_s=10.0)
# Long enough to be a moment for the code under test, short enough to wait for it.
SHORT_S = 0.05


class Server:
    """Answers each request with the next of its replies, and notes requests and connections."""

    def __init__(self, *replies: bytes | list[bytes]) -> None:
        self.replies = [[reply] if isinstance(reply, bytes) else reply for reply in replies]
        self.requests: list[bytes] = []
        self.connection_count = 0
        self.open_count = 0
        self.port = 0
        # Called after each reply, with the connection it was written to.
        self.after_reply: Callable[[asyncio.StreamWriter], Awaitable[None]] | None = None
        self.changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, context: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        self._server = await asyncio.start_server(self._serve, host, 0, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def wait_until_closed(self) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: not self.open_count)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connection_count += 1
        self.open_count += 1
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, OSError):
                while True:
                    await self._answer(reader, writer)
        finally:
            writer.close()
            async with self.changed:
                self.open_count -= 1
                self.changed.notify_all()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (
                int(line.split(b":")[1])
                for line in request.split(b"\r\n")
                if line.lower().startswith(b"content-length")
            ),
            0,
        )
        self.requests.append(request + await reader.readexactly(length))
        if not self.replies:
            raise ConnectionError  # the reply is the end of the connection
        for part in self.replies.pop(0):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        if self.after_reply is not None:
            await self.after_reply(writer)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def client() -> AsyncIterator[HttpClient]:
    client = HttpClient(LIMITS)
    yield client
    client.close()


async def get(server: Server, client: HttpClient, *replies: bytes | list[bytes]) -> Reply:
    server.replies = [[reply] if isinstance(reply, bytes) else reply for reply in replies]
    return await client.request("GET", server.url)


# Requests


async def test_a_get(server: Server, client: HttpClient) -> None:
    server.replies = [[OK]]

    reply = await client.request("GET", f"{server.url}/path?a=b", headers={"X-Y": "z"})

    assert (reply.status, reply.body, reply.headers) == (200, b"ok", {b"content-length": b"2"})
    [request] = server.requests
    line, *headers = request.decode().rstrip().split("\r\n")
    assert line == "GET /path?a=b HTTP/1.1"
    assert headers == [f"Host: 127.0.0.1:{server.port}", "Accept-Encoding: identity", "X-Y: z"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_a_body(server: Server, client: HttpClient, method: str) -> None:
    server.replies = [[OK]]

    await client.request(method, server.url, body=b"x" * 300_000)

    [request] = server.requests
    head, _, body = request.partition(b"\r\n\r\n")
    assert b"\r\nContent-Length: 300000" in head
    assert body == b"x" * 300_000


async def test_a_post_without_a_body_says_so(server: Server, client: HttpClient) -> None:
    server.replies = [[OK]]

    await client.request("POST", server.url)

    assert b"\r\nContent-Length: 0\r\n" in server.requests[0]


async def test_credentials_of_the_url_are_sent(server: Server, client: HttpClient) -> None:
    server.replies = [[OK]]

    await client.request("GET", f"http://us%40er:pass@127.0.0.1:{server.port}/")

    assert b"\r\nAuthorization: Basic dXNAZXI6cGFzcw==\r\n" in server.requests[0]


@pytest.mark.parametrize("header", [{"X": "a\r\nY: b"}, {"X\nY": "a"}])
async def test_a_header_with_a_line_break_is_refused(
    server: Server, client: HttpClient, header: dict[str, str]
) -> None:
    with pytest.raises(ValueError, match="line break"):
        await client.request("GET", server.url, headers=header)

    assert server.connection_count == 0


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://h", Url("http", "h", 80)),
        ("https://h/p?q#f", Url("https", "h", 443, "/p?q")),
        ("http://[::1]:99?a=b?c", Url("http", "::1", 99, "/?a=b?c")),
        ("http://u@h/", Url("http", "h", 80, "/", b"u:")),
        ("http://b\u00fccher.example/", Url("http", "xn--bcher-kva.example", 80)),
    ],
)
def test_a_url_is_taken_apart(text: str, url: Url) -> None:
    assert Url.parse(text) == url


@pytest.mark.parametrize(
    ("url", "authority"),
    [
        (Url("http", "h", 80), "h"),
        (Url("https", "h", 80), "h:80"),
        (Url("http", "::1", 4161), "[::1]:4161"),
    ],
)
def test_the_host_header(url: Url, authority: str) -> None:
    assert url.authority == authority


@pytest.mark.parametrize(
    "text",
    [
        *("", "h:80", "ftp://h/", "http://", "http:///p", "http://h:0x/", "http://h:99999/"),
        *("http://[::1", "http://h/a b", "http://h/\u00fc", "http://a b/", "http://h\\x/"),
        "http://" + "\u00fc" * 70 + "/",
    ],
)
def test_a_url_that_cannot_be_requested(text: str) -> None:
    with pytest.raises(UrlError):
        Url.parse(text)


def test_an_error_of_a_url_does_not_quote_it() -> None:
    with pytest.raises(UrlError) as caught:
        Url.parse("http://h/?secret=s3cr3t \n")

    assert "s3cr3t" not in str(caught.value)
    assert "s3cr3t" not in repr(Url.parse("http://u:s3cr3t@h/"))


async def test_a_name_that_no_resolver_takes(client: HttpClient) -> None:
    with pytest.raises((UrlError, OSError)):
        await client.request("GET", Url("http", "x" * 64, 80))


# Replies


@pytest.mark.parametrize(
    "raw",
    [
        OK,
        b"HTTP/1.0 200 OK\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\n\r\nok",
        b"HTTP/1.1 200\r\nConnection: close\r\n\r\nok",
        CHUNKED + b"1\r\no\r\n1;x=y\r\nk\r\n0\r\nT: v\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK,
    ],
)
@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_a_reply_however_it_is_split(
    server: Server, client: HttpClient, raw: bytes, size: int
) -> None:
    async def end(writer: asyncio.StreamWriter) -> None:
        writer.close()

    server.after_reply = end
    parts = [raw[start : start + size] for start in range(0, len(raw), size)]

    reply = await get(server, client, parts)

    assert (reply.status, reply.body) == (200, b"ok")
    assert b"link" not in reply.headers


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
async def test_a_status_without_a_body(server: Server, client: HttpClient, status: str) -> None:
    reply = await get(server, client, f"HTTP/1.1 {status}\r\n\r\n".encode(), OK)

    assert (reply.status, reply.body) == (int(status[:3]), b"")
    assert (await client.request("GET", server.url)).body == b"ok"
    assert server.connection_count == 1


@pytest.mark.parametrize("status", [301, 302, 307, 404, 500])
async def test_any_status_is_a_reply_and_redirects_are_not_followed(
    server: Server, client: HttpClient, status: int
) -> None:
    head = f"HTTP/1.1 {status} X\r\nLocation: {server.url}/elsewhere\r\n"
    reply = await get(server, client, f"{head}Content-Length: 0\r\n\r\n".encode())

    assert reply.status == status
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not HTTP"),
        (b"HTTP/1.1 two hundred\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "unknown transfer coding"),
        (b"HTTP/1.1 101 X\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "changes the protocol"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * (MAX_HEADER_COUNT + 2), "more than 128 headers"),
    ],
)
async def test_an_answer_that_is_no_reply(
    server: Server, client: HttpClient, raw: bytes, text: str
) -> None:
    with pytest.raises(BadReplyError, match=text):
        await get(server, client, raw)

    await server.wait_until_closed()


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 2",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n",
    ],
)
async def test_a_reply_that_ends_too_early(server: Server, client: HttpClient, raw: bytes) -> None:
    async def end(writer: asyncio.StreamWriter) -> None:
        writer.close()

    server.after_reply = end

    with pytest.raises(BadReplyError, match="no end"):
        await get(server, client, raw)
    assert len(server.requests) == 1


async def test_a_server_that_says_nothing(server: Server, client: HttpClient) -> None:
    with pytest.raises(ConnectionError, match="closed the connection"):
        await get(server, client)

    assert len(server.requests) == 1


async def test_bytes_after_a_reply_spoil_only_the_connection(
    server: Server, client: HttpClient
) -> None:
    assert (await get(server, client, OK + b"\r\nmore", OK)).body == b"ok"
    await server.wait_until_closed()

    assert (await client.request("GET", server.url)).body == b"ok"
    assert server.connection_count == 2


# Bounds


def limited_client(**limits: float) -> HttpClient:
    return HttpClient(ClientLimits(**limits))  # type: ignore[arg-type]  # ints are floats too


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 101,
        CHUNKED + b"a\r\n0123456789\r\n" * 11,
    ],
)
async def test_a_body_that_is_too_large(server: Server, raw: bytes) -> None:
    client = limited_client(max_body_bytes=100)

    with pytest.raises(BadReplyError, match="reply of more than 100 bytes"):
        await get(server, client, raw)

    await server.wait_until_closed()


@pytest.mark.parametrize("body", [b"", b"x" * 100])
async def test_a_body_that_just_fits(server: Server, body: bytes) -> None:
    client = limited_client(max_body_bytes=100)
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n"

    assert (await get(server, client, head.encode() + body)).body == body
    client.close()


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 " + b"x" * 30_000,
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 30_000,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 1500,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"x" * 30_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: " + b"y" * 30_000,
    ],
)
async def test_a_head_that_is_too_large(server: Server, raw: bytes) -> None:
    client = limited_client(max_head_bytes=10_000)

    with pytest.raises(BadReplyError, match="a head of more than 10000 bytes"):
        await get(server, client, raw)

    await server.wait_until_closed()


# Connections that are kept


async def test_a_connection_is_used_again(server: Server, client: HttpClient) -> None:
    server.replies = [[OK], [OK], [OK]]

    for _ in range(3):
        assert (await client.request("GET", server.url)).body == b"ok"

    assert (server.connection_count, len(server.requests)) == (1, 3)


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
    ],
)
async def test_a_connection_that_the_server_ends_is_not(
    server: Server, client: HttpClient, raw: bytes
) -> None:
    assert (await get(server, client, raw, OK)).body == b"ok"
    await server.wait_until_closed()
    await client.request("GET", server.url)

    assert server.connection_count == 2


async def test_a_kept_connection_that_has_gone_is_replaced(
    server: Server, client: HttpClient
) -> None:
    # Read the second request, then close without a byte: the race that every kept connection runs.
    await get(server, client, OK)
    closing = asyncio.create_task(client.request("GET", server.url))
    while len(server.requests) < 2:  # noqa: ASYNC110 - a few turns of the loop
        await asyncio.sleep(0)
    server.replies = [[OK]]

    assert (await closing).body == b"ok"
    assert (server.connection_count, len(server.requests)) == (2, 3)


async def test_it_is_replaced_once(server: Server, client: HttpClient) -> None:
    await get(server, client, OK)

    with pytest.raises(ConnectionError):
        await client.request("GET", server.url)

    assert (server.connection_count, len(server.requests)) == (2, 3)


async def test_not_if_some_of_the_reply_has_come(server: Server, client: HttpClient) -> None:
    async def end(writer: asyncio.StreamWriter) -> None:
        if len(server.requests) == 2:
            writer.close()

    server.after_reply = end
    await get(server, client, OK, b"HTTP/1.1 200")

    with pytest.raises(BadReplyError, match="no end"):
        await client.request("GET", server.url)

    assert len(server.requests) == 2


async def test_a_post_is_not_sent_twice(server: Server, client: HttpClient) -> None:
    await get(server, client, OK, OK, OK)

    await client.request("POST", server.url)
    assert server.connection_count == 2
    await client.request("POST", server.url, is_repeatable=True)
    assert server.connection_count == 2


async def test_requests_at_the_same_time_have_a_connection_each(
    server: Server, client: HttpClient
) -> None:
    server.replies = [[OK] for _ in range(5)]

    await asyncio.gather(*(client.request("GET", server.url) for _ in range(5)))

    assert server.connection_count == 5


async def test_only_so_many_are_kept(server: Server) -> None:
    client = limited_client(max_idle_connections=2)
    server.replies = [[OK] for _ in range(5)]

    await asyncio.gather(*(client.request("GET", server.url) for _ in range(5)))

    async with server.changed:
        await server.changed.wait_for(lambda: server.open_count == 2)
    client.close()
    await server.wait_until_closed()


async def test_a_client_that_keeps_none_closes_each(server: Server) -> None:
    client = limited_client(max_idle_connections=0)
    server.replies = [[OK], [OK]]

    for _ in range(2):
        await client.request("GET", server.url)

    assert server.connection_count == 2
    await server.wait_until_closed()


async def test_a_kept_connection_is_closed_after_a_while(server: Server) -> None:
    client = limited_client(idle_timeout_s=SHORT_S)

    await get(server, client, OK)

    await server.wait_until_closed()


async def test_a_kept_connection_is_closed_when_the_server_ends_its_side(server: Server) -> None:
    async def end(writer: asyncio.StreamWriter) -> None:
        writer.write_eof()

    server.after_reply = end
    client = limited_client(idle_timeout_s=3600.0)

    await get(server, client, OK)

    await server.wait_until_closed()


async def test_a_reply_that_nobody_asked_for_ends_the_connection(
    server: Server, client: HttpClient
) -> None:
    async def write_more(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(SHORT_S)
        writer.write(OK)

    server.after_reply = write_more
    await get(server, client, OK)

    await server.wait_until_closed()


async def test_a_connection_is_not_used_for_another_server(
    server: Server, client: HttpClient
) -> None:
    other = Server(OK)
    await other.start()
    await get(server, client, OK)

    await client.request("GET", other.url)

    assert other.connection_count == 1
    await other.stop()


# Time


async def test_a_reply_that_takes_too_long(server: Server) -> None:
    client = limited_client(request_timeout_s=SHORT_S)

    async def wait(_writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    server.after_reply = wait
    with pytest.raises(TimeoutError, match=r"timed out after 0\.05 s"):
        await get(server, client, OK[:-1])

    server.after_reply = None
    server.replies = [[OK]]
    assert (await client.request("GET", server.url)).body == b"ok"
    client.close()


async def test_a_server_that_sends_a_byte_now_and_then(server: Server) -> None:
    client = limited_client(request_timeout_s=4 * SHORT_S)

    async def trickle(writer: asyncio.StreamWriter) -> None:
        while True:
            await asyncio.sleep(SHORT_S / 2)
            writer.write(b"x")
            await writer.drain()

    server.after_reply = trickle
    with pytest.raises(TimeoutError, match="timed out"):
        await get(server, client, b"HTTP/1.1 200 OK\r\nX: ")

    await server.wait_until_closed()


async def test_a_tls_handshake_that_takes_too_long(server: Server) -> None:
    # The server waits for a request, the client for the answer to its hello.
    client = limited_client(connect_timeout_s=SHORT_S)

    with pytest.raises(TimeoutError, match=r"no connection in 0\.05 s"):
        await client.request("GET", f"https://127.0.0.1:{server.port}")

    await server.wait_until_closed()


async def test_zero_is_no_limit(server: Server) -> None:
    client = limited_client(connect_timeout_s=0, request_timeout_s=0)

    assert (await get(server, client, OK)).body == b"ok"
    client.close()


async def test_a_server_that_is_not_there(client: HttpClient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]

    with pytest.raises(ConnectionRefusedError):
        await client.request("GET", f"http://127.0.0.1:{port}")


async def test_a_request_that_is_cancelled_leaves_nothing_open(
    server: Server, client: HttpClient
) -> None:
    asked = asyncio.Event()

    async def note(_writer: asyncio.StreamWriter) -> None:
        asked.set()

    server.after_reply = note
    server.replies = [[OK[:-1]]]
    task = asyncio.create_task(client.request("GET", server.url))
    await asked.wait()

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    await server.wait_until_closed()


async def test_a_client_that_is_closed_fails_what_is_under_way(server: Server) -> None:
    client = HttpClient(LIMITS)
    asked = asyncio.Event()

    async def note(_writer: asyncio.StreamWriter) -> None:
        asked.set()

    server.after_reply = note
    server.replies = [[OK[:-1]]]
    task = asyncio.create_task(client.request("GET", server.url))
    await asked.wait()

    client.close()

    with pytest.raises(ConnectionAbortedError):
        await task
    await server.wait_until_closed()


# TLS


@pytest.fixture
def authority(tmp_path: Path) -> certs.Credentials:
    return certs.make_authority(tmp_path)


@pytest.fixture
async def tls_server(tmp_path: Path, authority: certs.Credentials) -> AsyncIterator[Server]:
    credentials = certs.make_server(tmp_path, authority)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(credentials.cert_file, credentials.key_file)
    server = Server(OK, OK)
    await server.start(context)
    yield server
    await server.stop()


def trusting_client(authority: certs.Credentials) -> HttpClient:
    return HttpClient(LIMITS, ssl_context=ssl.create_default_context(cafile=authority.cert_file))


async def test_https(tls_server: Server, authority: certs.Credentials) -> None:
    client = trusting_client(authority)

    for _ in range(2):
        reply = await client.request("GET", f"https://127.0.0.1:{tls_server.port}")
        assert reply.body == b"ok"

    assert tls_server.connection_count == 1
    client.close()


async def test_a_certificate_of_an_unknown_authority(tls_server: Server) -> None:
    client = HttpClient(LIMITS)

    with pytest.raises(ssl.SSLCertVerificationError):
        await client.request("GET", f"https://127.0.0.1:{tls_server.port}")

    assert tls_server.requests == []


async def test_a_certificate_of_another_host(
    tls_server: Server, authority: certs.Credentials
) -> None:
    client = trusting_client(authority)

    with pytest.raises((ssl.SSLCertVerificationError, OSError)):
        await client.request("GET", f"https://127.0.0.2:{tls_server.port}")

    assert tls_server.requests == []


# NSQ's rules


async def test_version_1_is_asked_for(server: Server, client: HttpClient) -> None:
    server.replies = [[OK], [OK]]

    await client.request_v1("GET", Url.parse(server.url))
    await client.request_v1("POST", Url.parse(server.url), body=b"{}")

    get_request, post_request = server.requests
    assert b"\r\nAccept: application/vnd.nsq; version=1.0\r\n" in get_request
    assert b"Content-Type" not in get_request
    assert b"\r\nContent-Type: application/json\r\n" in post_request


async def test_a_server_that_wants_https_is_asked_there(
    server: Server, tls_server: Server, authority: certs.Credentials
) -> None:
    client = trusting_client(authority)
    body = b'{"https_port":%d}' % tls_server.port
    head = f"HTTP/1.1 403 Forbidden\r\nContent-Length: {len(body)}\r\n\r\n"
    server.replies = [[head.encode() + body]]

    reply = await client.request_v1("GET", Url.parse(f"{server.url}/x"))

    assert reply.body == b"ok"
    assert tls_server.requests[0].startswith(b"GET /x HTTP/1.1\r\n")
    client.close()


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[]", b'{"https_port":0}', b'{"https_port":70000}', b'{"https_port":"1"}'],
)
async def test_a_plain_403_is_a_reply(server: Server, client: HttpClient, body: bytes) -> None:
    head = f"HTTP/1.1 403 Forbidden\r\nContent-Length: {len(body)}\r\n\r\n"
    server.replies = [[head.encode() + body]]

    assert (await client.request_v1("GET", Url.parse(server.url))).status == 403


class Handles:
    """The timers of a loop that are set in a test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        call_later = loop.call_later
        self.idle: list[asyncio.TimerHandle] = []

        def note(delay: float, callback: Callable[..., None], *arguments: object) -> object:
            handle = call_later(delay, callback, *arguments)
            if delay == LIMITS.idle_timeout_s:
                self.idle.append(handle)
            return handle

        monkeypatch.setattr(loop, "call_later", note)

    @property
    def are_set(self) -> list[bool]:
        return [not handle.cancelled() for handle in self.idle]


async def test_a_connection_has_a_timer_only_while_it_is_idle(
    server: Server, client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    handles = Handles(monkeypatch)

    await get(server, client, OK)
    assert handles.are_set == [True]
    await get(server, client, OK)
    assert handles.are_set == [False, True]
    client.close()
    await server.wait_until_closed()
    await until(lambda: handles.are_set == [False, False])


async def test_the_timer_of_a_connection_that_the_server_ends_is_gone(
    server: Server, client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    handles = Handles(monkeypatch)
    writers: list[asyncio.StreamWriter] = []

    async def keep(writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    server.after_reply = keep
    await get(server, client, OK)
    assert handles.are_set == [True]

    writers[0].transport.abort()

    await until(lambda: handles.are_set == [False])
