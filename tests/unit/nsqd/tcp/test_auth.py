import asyncio
import base64
import json
import random
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlsplit

import pytest

from nsqd.http.client import ClientLimits, HttpClient
from nsqd.tcp import auth
from nsqd.tcp.auth import (
    MAX_DECISIONS,
    PUBLISH,
    SUBSCRIBE,
    AuthError,
    Authorization,
    AuthServers,
    AuthState,
    Question,
)
from nsqd.tcp.auth_patterns import Pattern

SECRET = "s3cr3t"


class FakeServer(asyncio.Transport):
    """Notes the request, answers with the given bytes, then with the end of the stream.

    It keeps its connection open if it is told so.
    """

    def __init__(self, response: bytes) -> None:
        super().__init__()
        self.sent = b""
        self.is_kept = False
        self._response = response
        self._protocol: asyncio.Protocol | None = None

    def accept(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol
        protocol.connection_made(self)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data
        asyncio.get_running_loop().call_soon(self._answer)

    def _answer(self) -> None:
        assert self._protocol is not None
        if self._response:
            self._protocol.data_received(self._response)
        if self.is_kept:
            return
        self._protocol.eof_received()
        self._protocol.connection_lost(None)

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        pass

    @property
    def request_line(self) -> str:
        return self.sent.split(b"\r\n", 1)[0].decode()

    @property
    def target(self) -> str:
        return self.request_line.split(" ")[1]

    @property
    def headers(self) -> dict[str, str]:
        lines = self.sent.split(b"\r\n\r\n", 1)[0].decode().split("\r\n")[1:]
        return dict(line.split(": ", 1) for line in lines)

    @property
    def body(self) -> bytes:
        return self.sent.split(b"\r\n\r\n", 1)[1]


@dataclass
class Network:
    """The servers by address, and the connections that were made to them."""

    answers: dict[tuple[str, int], FakeServer | Exception] = field(default_factory=dict)
    connects: list[tuple[str, int]] = field(default_factory=list)
    handshakes: list[ssl.SSLContext] = field(default_factory=list)

    def serve(self, host: str, port: int, response: bytes) -> FakeServer:
        server = FakeServer(response)
        self.answers[host, port] = server
        return server

    async def connect(
        self,
        make: Callable[[], asyncio.Protocol],
        host: str,
        port: int,
        *,
        ssl: ssl.SSLContext | None,
    ) -> tuple[FakeServer, asyncio.Protocol]:
        """Stand in for the loop's create_connection."""
        self.connects.append((host, port))
        if ssl is not None:
            self.handshakes.append(ssl)
        answer = self.answers.get((host, port), ConnectionRefusedError(111, "Connect call failed"))
        if isinstance(answer, Exception):
            raise answer
        protocol = make()
        answer.accept(protocol)
        return answer, protocol


@pytest.fixture
async def network(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Network]:
    network = Network()
    with monkeypatch.context() as patched:
        patched.setattr(asyncio.get_running_loop(), "create_connection", network.connect)
        yield network


@pytest.fixture
def context() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def response(payload: object, status: str = "200 OK") -> bytes:
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def answer(**changes: object) -> dict[str, object]:
    entry = {"topic": ".*", "channels": [".*"], "permissions": ["publish", "subscribe"]}
    return {
        "ttl": 3600,
        "identity": "someone",
        "identity_url": "http://id.example/someone",
        "authorizations": [entry],
    } | changes


async def ask(
    *addresses: str,
    secret: bytes | str = SECRET,
    remote_ip: str = "10.0.0.7",
    common_name: str = "",
    is_tls: bool = False,
    method: str = "get",
    ssl_context: ssl.SSLContext | None = None,
    now: float = 1000.0,
) -> AuthState:
    servers = AuthServers(
        addresses or ("auth:4181",),
        HttpClient(ClientLimits(), ssl_context=ssl_context),
        method=method,
        clock=lambda: now,
    )
    raw_secret = secret.encode() if isinstance(secret, str) else secret
    return await servers.ask(Question(raw_secret, remote_ip, common_name, is_tls))


# What is asked


async def test_the_question_is_a_get_of_auth_with_sorted_parameters(network: Network) -> None:
    #
    server = network.serve("auth", 4181, response(answer()))

    await ask()

    assert server.request_line == (
        "GET /auth?common_name=&remote_ip=10.0.0.7&secret=s3cr3t&tls=false HTTP/1.1"
    )
    assert server.headers["Accept"] == "application/vnd.nsq; version=1.0"
    assert server.headers["Host"] == "auth:4181"


async def test_parameters_are_form_encoded(network: Network) -> None:
    #
    server = network.serve("auth", 4181, response(answer()))

    await ask(secret=b"a b&=\xff~/", common_name="Jö&rg", is_tls=True, remote_ip="::1")

    assert server.target == (
        "/auth?common_name=J%C3%B6%26rg&remote_ip=%3A%3A1&secret=a+b%26%3D%FF~%2F&tls=true"
    )


@pytest.mark.parametrize(
    ("address", "host", "port", "start"),
    [
        ("auth:4181", "auth", 4181, "/auth?"),
        ("auth", "auth", 80, "/auth?"),
        ("[::1]:4181", "::1", 4181, "/auth?"),
        ("http://auth:99/my/path", "auth", 99, "/my/path?"),
        ("http://auth", "auth", 80, "/?"),
        ("http://auth/p?x=1", "auth", 80, "/p?x=1?"),
    ],
)
async def test_the_address_is_used_as_given(
    network: Network, address: str, host: str, port: int, start: str
) -> None:
    #
    server = network.serve(host, port, response(answer()))

    await ask(address)

    assert server.target.startswith(f"{start}common_name=")


async def test_post_sends_arrays_in_json(network: Network) -> None:
    #
    server = network.serve("auth", 4181, response(answer()))

    await ask(
        "http://auth:4181/custom", method="post", secret="geh\N{SNOWMAN}eim", common_name="cn"
    )

    assert server.request_line == "POST /custom HTTP/1.1"
    assert server.headers["Content-Type"] == "application/json"
    assert server.headers["Content-Length"] == str(len(server.body))
    assert b": " not in server.body
    assert json.loads(server.body) == {
        "common_name": ["cn"],
        "remote_ip": ["10.0.0.7"],
        "secret": ["geh\N{SNOWMAN}eim"],
        "tls": ["false"],
    }
    assert list(json.loads(server.body)) == ["common_name", "remote_ip", "secret", "tls"]


@pytest.mark.parametrize("method", ["get", "post"])
async def test_all_questions_go_over_one_connection(network: Network, method: str) -> None:
    # A question changes nothing, so it may be repeated on a connection that the server has closed.
    network.serve("auth", 4181, response(answer())).is_kept = True
    servers = AuthServers(
        ("auth:4181",), HttpClient(ClientLimits()), method=method, clock=lambda: 0.0
    )

    for _ in range(3):
        await servers.ask(Question(SECRET.encode(), "10.0.0.7", "", is_tls=False))

    assert network.connects == [("auth", 4181)]


async def test_a_secret_that_is_no_text_is_replaced_in_json(network: Network) -> None:
    server = network.serve("auth", 4181, response(answer()))

    await ask(method="post", secret=b"a\xff")

    assert json.loads(server.body)["secret"] == ["a\ufffd"]


async def test_credentials_of_the_url_are_sent_as_basic_auth(network: Network) -> None:
    server = network.serve("auth", 80, response(answer()))

    await ask("http://nsqd:p%40ss@auth/auth")

    scheme, _, credentials = server.headers["Authorization"].partition(" ")
    assert scheme == "Basic"
    assert base64.b64decode(credentials) == b"nsqd:p@ss"


# https


async def test_https_is_spoken_with_the_given_context(
    network: Network, context: ssl.SSLContext
) -> None:
    server = network.serve("auth", 443, response(answer()))

    await ask("https://auth/auth", ssl_context=context)

    assert network.handshakes == [context]
    assert server.target.startswith("/auth?")


@pytest.mark.parametrize("method", ["get", "post"])
async def test_a_server_that_wants_https_is_asked_there(
    network: Network, context: ssl.SSLContext, method: str
) -> None:
    plain = network.serve("auth", 4181, response({"https_port": 4182}, "403 Forbidden"))
    secure = network.serve("auth", 4182, response(answer()))

    state = await ask(ssl_context=context, method=method)

    assert state.identity == "someone"
    assert network.handshakes == [context]
    assert (secure.target, secure.body) == (plain.target, plain.body)


async def test_https_is_tried_once(network: Network, context: ssl.SSLContext) -> None:
    for port in (4181, 4182):
        network.serve("auth", port, response({"https_port": 4182}, "403 Forbidden"))

    with pytest.raises(AuthError, match="status 403"):
        await ask(ssl_context=context)

    assert len(network.connects) == 2


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b'{"https_port":0}', b'{"https_port":70000}', b'{"https_port":"1"}']
)
async def test_a_plain_403_is_a_failure(network: Network, body: bytes) -> None:
    network.serve("auth", 4181, response(body, "403 Forbidden"))

    with pytest.raises(AuthError, match="status 403"):
        await ask()

    assert len(network.connects) == 1


# Servers that fail


@pytest.mark.parametrize("start", [0, 1, 2])
async def test_any_server_that_answers_suffices(
    network: Network, monkeypatch: pytest.MonkeyPatch, start: int
) -> None:
    #
    monkeypatch.setattr(random, "randrange", lambda count: start)
    network.serve("b", 4181, response(answer()))

    await ask("a:4181", "b:4181", "c:4181")

    asked = [host for host, _ in network.connects]
    assert asked == {0: ["a", "b"], 1: ["b"], 2: ["c", "a", "b"]}[start]


async def test_the_error_names_every_server(network: Network) -> None:
    network.serve("b", 4181, response(b"", "500 Internal Server Error"))

    with pytest.raises(AuthError) as caught:
        await ask("a:4181", "http://user:password@b:4181/auth?key=value")

    assert sorted(str(caught.value).split("; ")) == [
        "failed to auth against a:4181 - Connection refused",
        "failed to auth against b:4181/auth - status 500",
    ]


async def test_without_servers_no_client_is_let_in() -> None:
    with pytest.raises(AuthError, match="no auth servers"):
        await AuthServers((), HttpClient()).ask(Question(b"x", "", "", is_tls=False))


@pytest.mark.parametrize(
    "address", ["ftp://auth/x", "http://", "http://auth:99999/", "http://auth:x/", "http://[::1"]
)
async def test_an_address_that_is_none_is_a_failure(network: Network, address: str) -> None:
    with pytest.raises(AuthError, match="failed to auth against"):
        await ask(address)

    assert network.connects == []


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary Redirect"])
async def test_redirects_are_not_followed(network: Network, status: str) -> None:
    elsewhere = network.serve("evil", 80, response(answer()))
    head = f"HTTP/1.1 {status}\r\nLocation: http://evil/auth\r\nContent-Length: 0\r\n\r\n"
    network.serve("auth", 4181, head.encode())

    with pytest.raises(AuthError, match="status 30"):
        await ask()

    assert elsewhere.sent == b""


async def test_a_reply_without_end_is_cut(network: Network) -> None:
    network.serve(
        "auth", 4181, b"HTTP/1.0 200 OK\r\n\r\n" + b" " * (ClientLimits().max_body_bytes + 10)
    )

    with pytest.raises(AuthError, match="reply of more than 1048576 bytes"):
        await ask()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 two hundred\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000,
    ],
)
async def test_a_server_that_speaks_no_http_is_a_failure(network: Network, raw: bytes) -> None:
    network.serve("auth", 4181, raw)

    with pytest.raises(AuthError, match="failed to auth against auth:4181 - "):
        await ask()


@pytest.mark.parametrize(
    "failure",
    [
        ConnectionResetError(104, "Connection reset by peer"),
        TimeoutError("timed out"),
        socket.gaierror(-2, "Name or service not known"),
        ssl.SSLCertVerificationError(1, "certificate verify failed"),
        ValueError(f"GET /auth?secret={SECRET}"),
        OSError(),
    ],
)
async def test_the_secret_is_in_no_error(network: Network, failure: Exception) -> None:
    network.answers["auth", 4181] = failure

    with pytest.raises(AuthError) as caught:
        await ask()

    assert SECRET not in str(caught.value)
    assert not str(caught.value).endswith("- ")


async def test_a_path_that_cannot_be_sent_does_not_reveal_the_secret(network: Network) -> None:
    network.serve("auth", 80, response(answer()))

    with pytest.raises(AuthError) as caught:
        await ask("http://auth/a b")

    assert SECRET not in str(caught.value)


# Replies


async def test_the_reply_is_read(network: Network) -> None:
    #
    entries = [
        {"topic": "^a$", "channels": ["x", "y"], "permissions": ["subscribe"]},
        {"topic": "b", "channels": [], "permissions": ["publish", "subscribe"]},
    ]
    network.serve("auth", 4181, response(answer(ttl=60, authorizations=entries)))

    state = await ask(now=1000.0)

    assert (state.identity, state.identity_url) == ("someone", "http://id.example/someone")
    assert state.permission_count == 2
    assert state.expires_at == 1060.0
    first, second = state.authorizations
    assert (first.topic.text, [pattern.text for pattern in first.channels]) == ("^a$", ["x", "y"])
    assert first.permissions == {SUBSCRIBE}
    assert second.permissions == {PUBLISH, SUBSCRIBE}


@pytest.mark.parametrize("extra", [{"authorizations": []}, {"authorizations": None}])
async def test_a_reply_may_hold_no_authorization(
    network: Network, extra: dict[str, object]
) -> None:
    #
    network.serve("auth", 4181, response(answer(**extra)))

    assert (await ask()).permission_count == 0


async def test_keys_match_whatever_their_case_and_null_is_absent(network: Network) -> None:
    entry = {"Topic": "t", "channels": None}
    payload = {"TTL": 5, "Identity": None, "Authorizations": [entry]}
    network.serve("auth", 4181, response(payload))

    state = await ask()

    assert (state.identity, state.permission_count) == ("", 1)
    assert state.authorizations[0].channels == ()


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"this is not json", "not JSON"),
        (b"", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"ttl":NaN}', "not JSON"),
        (b'{"ttl":' + b"9" * 5_000 + b"}", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"null", "not a JSON object"),
        ({}, "ttl is not positive"),
        (answer(ttl=0), "ttl is not positive"),
        (answer(ttl=-5), "ttl is not positive"),
        (answer(ttl=1 << 63), "ttl is not positive"),
        (answer(ttl=1.5), "ttl is not of type int"),
        (answer(ttl="60"), "ttl is not of type int"),
        (answer(ttl=True), "ttl is not of type int"),
        (answer(identity=7), "identity is not of type str"),
        (answer(authorizations={}), "authorizations is not of type list"),
        (answer(authorizations=["x"]), "not a JSON object"),
        (answer(authorizations=[{"permissions": ["fly"]}]), "unknown permission"),
        (answer(authorizations=[{"permissions": [1]}]), "permissions are not strings"),
        (answer(authorizations=[{"permissions": "publish"}]), "permissions is not of type list"),
        (answer(authorizations=[{"topic": "("}]), r"bad pattern '\(': missing "),
        (answer(authorizations=[{"channels": ["a**"]}]), r"bad pattern 'a\*\*'"),
        (answer(authorizations=[{"topic": 5}]), "topic is not of type str"),
    ],
)
async def test_an_unusable_reply_is_a_failure(network: Network, payload: object, text: str) -> None:
    #
    network.serve("auth", 4181, response(payload))

    with pytest.raises(AuthError, match=text):
        await ask()


# Rights


def authorization(topic: str, channels: list[str], *permissions: str) -> Authorization:
    return Authorization(Pattern(topic), tuple(map(Pattern, channels)), frozenset(permissions))


def state_of(*entries: Authorization, expires_at: float = 10.0) -> AuthState:
    return AuthState("someone", "", entries, expires_at)


@pytest.mark.parametrize(
    ("entry", "permission", "topic", "channel", "is_allowed"),
    [
        (authorization("orders", [".*"], PUBLISH), PUBLISH, "orders", "", True),
        (authorization("orders", [".*"], PUBLISH), PUBLISH, "reorders.eu", "", True),
        (authorization("^orders$", [".*"], PUBLISH), PUBLISH, "reorders", "", False),
        (authorization("orders", [".*"], PUBLISH), SUBSCRIBE, "orders", "c", False),
        (authorization("orders", [".*"], SUBSCRIBE), PUBLISH, "orders", "", False),
        (authorization("orders", ["^c$"], PUBLISH), PUBLISH, "orders", "", False),
        (authorization("orders", ["^c$"], SUBSCRIBE), SUBSCRIBE, "orders", "c", True),
        (authorization("orders", ["^c$"], SUBSCRIBE), SUBSCRIBE, "orders", "d", False),
        (authorization("orders", ["^c$", "d"], SUBSCRIBE), SUBSCRIBE, "orders", "d", True),
        (authorization("orders", [], PUBLISH, SUBSCRIBE), PUBLISH, "orders", "", False),
        (authorization("orders", [], PUBLISH, SUBSCRIBE), SUBSCRIBE, "orders", "c", False),
        (authorization(".*", [".*"]), PUBLISH, "orders", "", False),
    ],
)
def test_an_entry_allows_what_it_says(
    entry: Authorization, permission: str, topic: str, channel: str, *, is_allowed: bool
) -> None:
    #
    assert state_of(entry).is_allowed(permission, topic, channel) is is_allowed


def test_one_entry_that_allows_it_is_enough() -> None:
    state = state_of(
        authorization("a", [".*"], PUBLISH),
        authorization("b", [".*"], PUBLISH),
    )

    assert state.is_allowed(PUBLISH, "b", "")
    assert not state.is_allowed(PUBLISH, "c", "")


def test_a_decision_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def allow(_: Authorization, *question: str) -> bool:
        asked.append(question)
        return True

    state = state_of(authorization("a", [".*"], PUBLISH))
    monkeypatch.setattr(Authorization, "allows", allow)

    for _ in range(3):
        assert state.is_allowed(PUBLISH, "a", "")
    assert asked == [(PUBLISH, "a", "")]

    for number in range(MAX_DECISIONS):
        state.is_allowed(PUBLISH, f"t{number}", "")
    asked.clear()
    state.is_allowed(PUBLISH, "a", "")
    assert asked == [(PUBLISH, "a", "")]


def test_an_answer_expires() -> None:
    #
    state = state_of(expires_at=10.0)

    assert not state.is_expired(9.9)
    assert state.is_expired(10.0)


async def test_the_question_can_be_parsed_back(network: Network) -> None:
    server = network.serve("auth", 4181, response(answer()))

    await ask(secret="ümläut & more+", common_name="a=b")

    assert dict(parse_qsl(urlsplit(server.target).query, keep_blank_values=True)) == {
        "common_name": "a=b",
        "remote_ip": "10.0.0.7",
        "secret": "ümläut & more+",
        "tls": "false",
    }


@pytest.mark.parametrize(("max_instructions", "is_good"), [(200_000, True), (1000, False)])
async def test_a_reply_with_many_large_patterns_is_refused(
    network: Network, monkeypatch: pytest.MonkeyPatch, max_instructions: int, *, is_good: bool
) -> None:
    monkeypatch.setattr(auth, "MAX_REPLY_INSTRUCTIONS", max_instructions)
    entries = [{"topic": f"{number}{'a' * 100}"} for number in range(20)]
    network.serve("auth", 4181, response(answer(authorizations=entries)))

    if is_good:
        assert (await ask()).permission_count == 20
    else:
        with pytest.raises(AuthError, match="too large"):
            await ask()


async def test_only_so_many_questions_are_under_way(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "MAX_QUESTIONS", 2)
    hung = FakeServer(b"")
    monkeypatch.setattr(hung, "write", lambda data: None)
    network.answers["auth", 4181] = hung
    servers = AuthServers(("auth:4181",), HttpClient())

    tasks = [servers.ask(Question(b"x", "", "", is_tls=False)) for _ in range(5)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(network.connects) == 2

    tasks[0].cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(network.connects) == 3

    servers.close()
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)
    assert len(network.connects) == 3


async def test_a_reply_with_too_many_patterns_is_refused(network: Network) -> None:
    entry = {"channels": [str(number) for number in range(auth.MAX_REPLY_PATTERNS)]}
    network.serve("auth", 4181, response(answer(authorizations=[entry])))

    with pytest.raises(AuthError, match="too many patterns"):
        await ask()


async def test_entries_that_say_nothing_are_counted_too(network: Network) -> None:
    entries: list[object] = [{}] * (auth.MAX_REPLY_USES + 1)
    network.serve("auth", 4181, response(answer(authorizations=entries)))

    with pytest.raises(AuthError, match="too many patterns"):
        await ask()


async def test_a_pattern_that_repeats_counts_once(network: Network) -> None:
    entry = {"topic": ".*", "channels": [".*"] * 2 * auth.MAX_REPLY_PATTERNS}
    network.serve("auth", 4181, response(answer(authorizations=[entry])))

    assert (await ask()).permission_count == 1


@pytest.mark.parametrize(
    ("bound", "entries", "used"),
    [
        ("MAX_REPLY_PATTERNS", [{"topic": "a", "channels": ["b", "c"]}], 3),
        ("MAX_REPLY_USES", [{"topic": "a", "channels": ["b", "b"]}, {"topic": "a"}], 4),
        (
            "MAX_REPLY_INSTRUCTIONS",
            [{"topic": "ab", "channels": ["cde"]}],
            Pattern("ab").instruction_count + Pattern("cde").instruction_count,
        ),
    ],
)
@pytest.mark.parametrize("excess", [0, 1])
async def test_the_bounds_of_a_reply_are_exact(
    network: Network,
    monkeypatch: pytest.MonkeyPatch,
    bound: str,
    entries: list[dict[str, object]],
    used: int,
    excess: int,
) -> None:
    monkeypatch.setattr(auth, bound, used - excess)
    entries = [{"permissions": ["publish"], **entry} for entry in entries]
    network.serve("auth", 4181, response(answer(authorizations=entries)))

    if excess:
        with pytest.raises(AuthError, match=r"too many patterns|too large"):
            await ask()
    else:
        assert (await ask()).permission_count == len(entries)
